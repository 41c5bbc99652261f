"""The shape of the repository: whose packages are imported, and what no file may say."""

import ast
import importlib
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import driftline_trial

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "audit", "analytics", "streams", "service", "driftline")
FOLDERS = (*PACKAGES, "trial", "tests", "benchmarks", "docs", "examples", ".ci")
# Written so that this file does not match: each pattern holds something that its own text does not. A bracket before it: data.
UNWANTED = {
    "a note of unfinished work": r"(?<!\[)\b(TO[D]O|FIX[M]E|XX[X])\b",
    "a path of somebody's machine": r"(?<![\w.~-])/(work|root|tmp/venv)[/]",
    "an index's address": r"[p]ypi\.org|[p]ythonhosted|--(extra-)?index[-]url|--trusted[-]host|--find[-]links",
}


def texts() -> Iterator[tuple[Path, str]]:
    """Every file of the repository that is text, with its text."""
    nested = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    for path in (*sorted(ROOT.iterdir()), *nested):
        # In a worktree of git `.git` is a file: where the repository is.
        if path.is_file() and path.name != ".git" and "__pycache__" not in path.parts:
            try:
                yield path.relative_to(ROOT), path.read_text("utf-8")
            except UnicodeDecodeError:
                continue


@pytest.mark.parametrize("package", PACKAGES)
def test_an_imported_package_is_ours(package: str) -> None:
    """The names are common words: an installed distribution of the same name must not be what gets imported."""
    found = importlib.import_module(package).__file__

    assert found is not None
    assert Path(found).parent == ROOT / package


def test_the_trial_gear_is_that_of_this_repository() -> None:
    """A released one beside a checkout would be tested instead of what is here."""
    assert Path(f"{driftline_trial.__file__}").parent == ROOT / "trial" / "driftline_trial"


def test_no_other_distribution_claims_our_names() -> None:
    """Two distributions that write into one folder would overwrite each other's modules."""
    owners = metadata.packages_distributions()

    assert {owner for package in PACKAGES for owner in owners.get(package, ())} - {"driftline"} == set()


def imports_of(path: Path) -> set[str]:
    """The packages that a file imports, by their first names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(f"{node.module}".partition(".")[0])
    return found


def test_one_package_of_few_files_imports_clients_of_kafka() -> None:
    """Another version of a client, or another client, is looked after in one place; pyproject.toml names the files."""
    clients = {"aiokafka", "kafka", "faust", "mode"}
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if imports_of(path) & clients]

    assert [path for path in paths if not path.is_relative_to(ROOT / "streams" / "kafka")] == []
    assert len(paths) <= 8


def test_every_package_says_what_lives_there() -> None:
    """The first line of `__init__` is the map of the house, and the reference prints it."""
    paths = [path for package in (*PACKAGES, "trial/driftline_trial") for path in (ROOT / package).rglob("__init__.py")]

    assert [str(path.relative_to(ROOT)) for path in paths if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


@pytest.mark.parametrize("what", UNWANTED)
def test_no_file_holds(what: str) -> None:
    """Unfinished work, one machine's paths and the addresses of its package index mean nothing to anybody else."""
    pattern = re.compile(UNWANTED[what])

    assert not [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
