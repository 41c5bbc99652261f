"""For each failure type, the evidence of a transcript, a trajectory and the plugin: the table in `docs/openclaw.md`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from streams.sources.derived_evidence import OUTPUT_USE, SKILL_USE


class Grade(Enum):
    """The ways in which evidence comes about."""

    TOLD = "told"
    DERIVED = "derived"
    BLIND = "blind"


class Evidence(NamedTuple):
    """The evidence that one way of reading a session gives of one failure type: the type of its event, and words."""

    grade: Grade
    event: str | None
    words: str


class Row(NamedTuple):
    """A failure type and what each way shows of it."""

    failure_type: str
    imported: Evidence
    trajectory: Evidence
    plugin: Evidence


_CALLS = "the same call again in one exchange; wrapped calls as those of the tool inside"
_USAGE = "tokens of each request, those from the cache apart"
EVIDENCE = (
    Row(
        "infinite_tool_loop",
        Evidence(Grade.TOLD, "tool_call", _CALLS),
        Evidence(Grade.TOLD, "tool.call", "calls that the transcript lacks"),
        Evidence(Grade.TOLD, "tool_call", _CALLS),
    ),
    Row(
        "memory_degradation",
        Evidence(Grade.TOLD, "memory_event", "a search without hits, a memory tool that fails"),
        Evidence(Grade.TOLD, "tool.result", "results that the transcript lacks"),
        Evidence(Grade.TOLD, "memory_event", "a search without hits, a memory tool that fails"),
    ),
    Row(
        "ignoring_tool_outputs",
        Evidence(Grade.DERIVED, "output_use", f"`{OUTPUT_USE}`"),
        Evidence(Grade.BLIND, None, "nothing says which output was used"),
        Evidence(Grade.BLIND, None, "until an import ran"),
    ),
    Row(
        "context_pollution",
        Evidence(Grade.TOLD, "context_event", "compactions"),
        Evidence(Grade.TOLD, "model.completed", "how full the context was"),
        Evidence(Grade.TOLD, "context_event", "compactions, and the size after them"),
    ),
    Row(
        "cost_explosion",
        Evidence(Grade.TOLD, "token_usage", _USAGE),
        Evidence(Grade.TOLD, "model.completed", "attempts that failed and were repeated"),
        Evidence(Grade.TOLD, "token_usage", _USAGE),
    ),
    Row(
        "skill_failure",
        Evidence(Grade.DERIVED, "skill_event", f"`{SKILL_USE}`"),
        Evidence(Grade.BLIND, None, "the skills that were there, not whether one was followed"),
        Evidence(Grade.BLIND, None, "until an import ran"),
    ),
)
"""A row for each failure type, in the order in which the detectors run."""


def evidence_table() -> str:
    """The rows as a table in Markdown."""
    lines = ["| detector | import: transcript | import: trajectory | plugin |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.failure_type} | {' | '.join(map(_cell, row[1:]))} |" for row in EVIDENCE]
    return "\n".join(lines)


def _cell(evidence: Evidence) -> str:
    name = "" if evidence.event is None else f" (`{evidence.event}`)"
    return f"**{evidence.grade.value}**{name}: {evidence.words}"
