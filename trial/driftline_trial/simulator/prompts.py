"""Reading a judge's prompt back: the materials of an exchange, a schema in the text, or the run of an evaluation.

1. A material is three lines: `<name boundary>`, the text as a JSON string, `</name boundary>`. The text is one line, so nothing in it
   can be taken for a mark. Tool calls and earlier turns are a JSON array instead, which the simulated judge does not weigh.
2. The subject view of an evaluation is one JSON document of three parts. Texts of the audited agent are objects in it whose one member
   begins with `untrusted-`; here they are texts again. Missing parts, and parts of another shape, count as empty: the simulated judge
   answers any view.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from audit.fingerprints import canonical_json
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
    other_lines = []
    lines = content.split("\n")  # not splitlines: JSON lets other separators stand in a text
    index = 0
    while index < len(lines):
        material = _material(lines[index : index + 3])
        if material is None:
            other_lines.append(lines[index])
            index += 1
            continue
        if isinstance(material, str):
            materials[lines[index][1:].partition(" ")[0]] = material
        index += 3
    schemas = (schema for text in (instructions, "\n".join(other_lines)) for schema in _schemas(text))
    return Prompt(materials, next(schemas, None))


def _material(lines: list[str]) -> str | list[Any] | None:
    """Return the text or the array of a material that begins with the first of three lines; None without one."""
    if len(lines) < 3 or not _MARK.matches(lines[0]) or lines[2] != f"</{lines[0][1:]}":
        return None
    try:
        value = json.loads(lines[1])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str | list) else None


def _schemas(text: str) -> Iterator[dict[str, Any]]:
    start = text.find("{")
    for _ in range(MAX_TRIES):
        if start < 0:
            return
        try:
            value, end = _decode(text, start)
        except (ValueError, RecursionError):
            value, end = None, start + 1
        if isinstance(value, dict) and isinstance(value.get("properties"), dict):
            yield value
        start = text.find("{", end)


_ORDER = ("evaluation_target", "subject_response", "execution_evidence")
PARTS = frozenset(_ORDER)
"""Members that identify the document."""
MAX_LEVELS = 40
"""Levels of nesting that are read; deeper ones are null."""
MAX_COUNTED = 100_000
"""Counts are smaller; others are not believed."""
UNTRUSTED = "untrusted-"
"""The beginning of the member for a text of the audited agent."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run as the view shows it."""

    task: str
    """The texts of users and system, joined."""
    hard: tuple[str, ...]
    """Hard expectations."""
    soft: tuple[str, ...]
    answer: str
    """The final output."""
    said: str
    """All texts of the agent, including the final output."""
    calls: tuple[str, ...]
    """Tool and arguments of each call, as canonical JSON."""
    results: int
    failed_results: int
    checks: int
    """Deterministic checks."""
    failed_checks: int
    """Those of them that failed or could not be made."""
    failures: tuple[str, ...]
    """Failures that were not recovered."""


def read_subject(content: str) -> Subject | None:
    """Return the subject of an evaluation's user message; None for any other message."""
    try:
        document = json.loads(content) if content.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not document.keys() >= PARTS:
        return None
    target, response, evidence = (_object(_bare(document[part], MAX_LEVELS)) for part in _ORDER)
    checks = _object(evidence.get("checks"))
    results = list(_steps(evidence, "result"))
    counts = [_count(checks.get(name)) for name in ("passed", "failed", "error")]
    task = [_object(item).get("content") for item in _list(target.get("messages"))]
    return Subject(
        # Without a written case, the task is what the user asked.
        task=_joined(response.get("user_messages") or task),
        hard=_expectations(target, "hard_expectations"),
        soft=_expectations(target, "soft_expectations"),
        answer=_joined(response.get("final_output")),
        said=_joined([response.get("assistant_messages"), response.get("final_output")]),
        calls=tuple(canonical_json([item.get("tool"), item.get("arguments")]) for item in _steps(evidence, "call")),
        results=len(results),
        failed_results=sum(item.get("failed") is True for item in results),
        checks=sum(counts),
        failed_checks=sum(counts[1:]),
        failures=tuple(_joined(item) for item in _list(evidence.get("failures"))),
    )


def _expectations(target: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(_joined(item) for item in _list(target.get(name)))


def _steps(evidence: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    """Yield calls or results of tools, in order."""
    steps = (_object(item) for item in _list(evidence.get("steps")))
    yield from (_object(step[kind]) for step in steps if kind in step)


def _bare(value: Any, levels: int) -> Any:
    """Return the value with every marked text as a text."""
    if levels == 0:
        return None
    if isinstance(value, list):
        return [_bare(item, levels - 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)).startswith(UNTRUSTED):
        return next(iter(value.values()))
    return {name: _bare(item, levels - 1) for name, item in value.items()}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else value.values():
            yield from _texts(item)


def _joined(value: Any) -> str:
    """Return all texts in the value, one per line."""
    return "\n".join(_texts(value))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < MAX_COUNTED else 0
