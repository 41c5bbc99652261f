"""Packages: the map of the house, from the first line of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from reference.markdown import code, page, sentence, table, words

ROOT = Path(__file__).parents[3]
PACKAGES = ("schemas", "audit", "analytics", "streams", "service", "driftline", "trial/driftline_trial")


def packages() -> str:
    """Return the page."""
    return page(
        "Packages",
        "The map of the code, from the first line of every module. Imports go in one direction: `driftline_trial`, `service`, "
        "`streams`, `analytics`, `audit`, `schemas`. `make lint` checks it. `CONTRIBUTING.md` says how to work here.",
        *(part for folder in folders() for part in _package(folder)),
    )


def folders() -> Iterator[Path]:
    """Return every package, outer ones first."""
    for name in PACKAGES:
        for path in sorted((ROOT / name).rglob("__init__.py")):
            yield path.parent


def modules_of(folder: Path) -> list[Path]:
    """Return the modules that lie loose in a package."""
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n", 1)[0]


def _package(folder: Path) -> list[str]:
    name = ".".join(folder.relative_to(ROOT).parts).removeprefix("trial.")
    rows = [(code(path.stem), sentence(words(first_line(path)))) for path in modules_of(folder)]
    parts = [f"## {name}", words(first_line(folder / "__init__.py"))]
    return [*parts, table(("module", "what it is"), rows)] if rows else parts
