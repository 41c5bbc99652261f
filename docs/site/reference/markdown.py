"""Pieces of Markdown from values: texts that stand for themselves, tables, code."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence

_MEANING = re.compile(r"([|*<\\\[\]])")
_CODE = re.compile(r"(`[^`]+`)")


def words(text: str) -> str:
    """Return a text as one line in which nothing but code between backticks has a meaning."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part.replace("|", "\\|") if part.startswith("`") else _MEANING.sub(r"\\\1", part) for part in parts)


def sentence(text: str) -> str:
    """Return the text with a capital at its start and a full stop at its end; nothing for an empty one."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def code(text: object) -> str:
    """Return a value as code, in a table too; nothing for an empty one."""
    shown = str(text).replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown already. Columns without any content are left out, and so is a table without rows."""
    lines = [list(row) for row in rows]
    kept = [place for place in range(len(head)) if any(line[place] for line in lines)]
    shown = [[head[place] for place in kept], ["---"] * len(kept), *([line[place] for place in kept] for line in lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in shown) if lines else ""


def fenced(text: str, language: str = "") -> str:
    """Return a block of code."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text)), 3)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def page(title: str, *parts: str) -> str:
    """Return a page of these parts; empty ones are left out."""
    return "\n\n".join([f"# {title}", *(part for part in parts if part)]) + "\n"


def first_paragraph(doc: str | None) -> str:
    """What a docstring says first, as one line."""
    return words(inspect.cleandoc(doc or "").split("\n\n")[0])


def field_words(model: type) -> dict[str, str]:
    """What is said below the fields of a class, by field; those of its bases too."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if one.__module__.split(".")[0] in {"audit", "service", "streams"}:
            found |= _said_below(one)
    return found


def _said_below(model: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    lines = body.body if isinstance(body, ast.ClassDef) else []
    return {
        line.target.id: below.value.value
        for line, below in itertools.pairwise(lines)
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
