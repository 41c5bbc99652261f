"""Reading a judge's prompt back: the materials between their marks, and a schema that stands in the text.

A material is three lines: `<name boundary>`, the text as a JSON string, `</name boundary>`. The text is one line, so nothing in it
can be taken for a mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from audit.patterns import compile_pattern

MAX_TRIES = 64
"""Braces at which a schema is looked for."""
_MARK = compile_pattern(r"\A<[a-z][a-z0-9_]{0,63} [^\s<>]{1,128}>\z", where="mark", ignore_case=False)
_decode = json.JSONDecoder().raw_decode


class Prompt(NamedTuple):
    """The content of a prompt."""

    materials: dict[str, str]
    """Texts by name."""
    schema: dict[str, Any] | None
    """The first JSON schema of an object outside of the materials."""


def read_prompt(instructions: str, content: str) -> Prompt:
    """Return the materials of the content, and a schema in the instructions or the rest of the content."""
    materials: dict[str, str] = {}
    rest = []
    lines = content.split("\n")  # not splitlines: JSON lets other separators stand in a text
    place = 0
    while place < len(lines):
        text = _material(lines[place : place + 3])
        if text is None:
            rest.append(lines[place])
            place += 1
        else:
            materials[lines[place][1:].partition(" ")[0]] = text
            place += 3
    schemas = (schema for text in (instructions, "\n".join(rest)) for schema in _schemas(text))
    return Prompt(materials, next(schemas, None))


def _material(lines: list[str]) -> str | None:
    """Return the text of a material that begins with the first of three lines; None without one."""
    if len(lines) < 3 or not _MARK.matches(lines[0]) or lines[2] != f"</{lines[0][1:]}":
        return None
    try:
        text = json.loads(lines[1])
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None


def _schemas(text: str) -> Iterator[dict[str, Any]]:
    place = text.find("{")
    for _ in range(MAX_TRIES):
        if place < 0:
            return
        try:
            value, end = _decode(text, place)
        except (ValueError, RecursionError):
            value, end = None, place + 1
        if isinstance(value, dict) and isinstance(value.get("properties"), dict):
            yield value
        place = text.find("{", end)
