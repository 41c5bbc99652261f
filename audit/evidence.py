"""Folding a session's events into the little the detectors need of them.

A fold is incremental: events may come one at a time or in columns, in batches split anywhere and with the events of many
sessions mixed, as long as each session's own events keep their order; the evidence is the same. It is a plain value that goes
through MessagePack unchanged, which makes it the state of the diagnosis stage.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from audit.events import MAX_TOKENS, NormalisedEvent
from schemas.records import AgentEvent

FOLD_COLUMNS = (
    "session",
    "seq",
    "event_id",
    "event",
    "tool",
    "call_key",
    "action",
    "status",
    "used",
    "referenced",
    "invoked",
    "saturation",
    "tokens",
)
"""Columns of a row for `fold_columns`: the session's key (any hashable), then the columns of AgentEvent, as plain Python values."""

RETRY_REFERENCES = 3
"""Retry events shown as evidence of a loop."""
SPENDING_REFERENCES = 12
"""token_usage and tool_call events shown as evidence of a cost explosion."""
CONTEXT_LIMIT = 85.0
"""Saturation in percent from which a context counts as polluted."""
CONTEXT_FULL = 95.0
"""Saturation in percent from which the pollution is severe."""
LOST_MEMORY = frozenset({"recall_failed", "ignored", "lost", "miss"})
"""What a memory_event's action (else status) says when memory failed."""
FAILED_SKILL = frozenset({"ignored", "mismatch", "failed"})
"""What a skill_event's status says when the skill did not serve."""

Reference = tuple[int, str]
"""Points at one event of the session: its position and its id."""
Row = tuple[Any, ...]
Key = TypeVar("Key", bound=Hashable)


class Sightings(msgspec.Struct, array_like=True, gc=False):
    """How often something was seen, and where: the count is exact, the references may be capped."""

    count: int = 0
    references: list[Reference] = []


class Calls(msgspec.Struct, array_like=True, gc=False):
    """The tool calls with one call key. `tool` is None when they name no tool."""

    tool: str | None
    count: int
    references: list[Reference]


class SessionEvidence(msgspec.Struct, gc=False):
    """What the detectors know of one session. Memory is linear in distinct calls, event types and kept references.

    `reference_limit` caps the references kept of each kind (of each distinct call, too); None keeps all. `calls` is in order of
    first occurrence. `problems` holds, by event type, the events that show a failure of their kind: lost memories, unused tool
    outputs, polluted contexts, failed skills. Token totals stop at MAX_TOKENS.
    """

    reference_limit: int | None = None
    event_counts: dict[str, int] = {}
    calls: dict[str, Calls] = {}
    retries: list[Reference] = []
    spending: list[Reference] = []
    problems: dict[str, Sightings] = {}
    context_full: bool = False
    total_tokens: int = 0

    @property
    def event_count(self) -> int:
        """Events folded in."""
        return sum(self.event_counts.values())

    @property
    def duplicate_calls(self) -> int:
        """Tool calls that repeat an earlier one: calls less the distinct call keys."""
        return sum(calls.count for calls in self.calls.values()) - len(self.calls)

    def count(self, event: str) -> int:
        """Events of one type."""
        return self.event_counts.get(event, 0)

    def problem(self, event: str) -> Sightings:
        """The events of one type that show a failure."""
        return self.problems.get(event) or Sightings()

    def count_events(self, event: str, count: int) -> None:
        """Count so many events of a type."""
        self.event_counts[event] = self.event_counts.get(event, 0) + count

    def add(self, event: NormalisedEvent | AgentEvent, seq: int) -> None:
        """Fold in the session's next event, at position `seq`."""
        fold_columns({None: self}, [fold_row(None, event, seq)])


def fold_row(session: Hashable, event: NormalisedEvent | AgentEvent, seq: int) -> Row:
    """The event as a row of FOLD_COLUMNS."""
    return (
        session,
        seq,
        event.event_id,
        event.event,
        event.tool,
        event.call_key,
        event.action,
        event.status,
        event.used,
        event.referenced,
        event.invoked,
        event.saturation,
        event.tokens,
    )


def fold_columns(
    evidence_by_session: dict[Key, SessionEvidence], rows: Iterable[Row], *, reference_limit: int | None = None
) -> None:
    """Fold rows of FOLD_COLUMNS into the evidence of their sessions, in place; the rows of one session come in its order.

    A session not yet there begins with `reference_limit`.
    """
    find = evidence_by_session.get
    folds = _FOLDS
    for row in rows:
        evidence = find(row[0])
        if evidence is None:
            evidence = evidence_by_session[row[0]] = SessionEvidence(reference_limit=reference_limit)
        event = row[3]
        counts = evidence.event_counts
        if event in counts:
            counts[event] += 1
        else:
            counts[event] = 1
        if event in folds:
            folds[event](evidence, row)


def fold_counted(evidence_by_session: Mapping[Key, SessionEvidence], rows: Iterable[Row]) -> None:
    """Fold rows whose events were counted before, and whose sessions are there.

    Rows of events that are only counted may be left out, and so may those that show nothing of what their type's fold looks for.
    """
    folds = _FOLDS
    for row in rows:
        folds[row[3]](evidence_by_session[row[0]], row)


def _fold_tool_call(evidence: SessionEvidence, row: Row) -> None:
    key = row[5]
    reference = (row[1], row[2])
    limit = evidence.reference_limit
    calls = evidence.calls.get(key)
    if calls is not None:
        calls.count += 1
        if limit is None or len(calls.references) < limit:
            calls.references.append(reference)
    elif key is not None:  # a call without a key repeats nothing
        evidence.calls[key] = Calls(row[4], 1, [reference] if limit is None or limit > 0 else [])
    spending = evidence.spending
    if len(spending) < SPENDING_REFERENCES and (limit is None or len(spending) < limit):
        spending.append(reference)


def _fold_token_usage(evidence: SessionEvidence, row: Row) -> None:
    tokens = row[12]
    if tokens is not None:
        evidence.total_tokens = min(evidence.total_tokens + tokens, MAX_TOKENS)
    limit = evidence.reference_limit
    spending = evidence.spending
    if len(spending) < SPENDING_REFERENCES and (limit is None or len(spending) < limit):
        spending.append((row[1], row[2]))


def _fold_retry(evidence: SessionEvidence, row: Row) -> None:
    limit = evidence.reference_limit
    if len(evidence.retries) < (RETRY_REFERENCES if limit is None else min(limit, RETRY_REFERENCES)):
        evidence.retries.append((row[1], row[2]))


def _fold_memory(evidence: SessionEvidence, row: Row) -> None:
    if (row[6] or row[7]) in LOST_MEMORY:
        _see(evidence, row)


def _fold_tool_output(evidence: SessionEvidence, row: Row) -> None:
    if row[8] is False or row[9] is False or row[7] == "ignored":
        _see(evidence, row)


def _fold_context(evidence: SessionEvidence, row: Row) -> None:
    saturation = row[11]
    if saturation is not None and saturation >= CONTEXT_LIMIT:
        evidence.context_full = evidence.context_full or saturation >= CONTEXT_FULL
    elif row[6] != "compaction":
        return
    _see(evidence, row)


def _fold_skill(evidence: SessionEvidence, row: Row) -> None:
    if row[10] is False or row[7] in FAILED_SKILL:
        _see(evidence, row)


def _see(evidence: SessionEvidence, row: Row) -> None:
    seen = evidence.problems.get(row[3])
    if seen is None:
        seen = evidence.problems[row[3]] = Sightings()
    seen.count += 1
    limit = evidence.reference_limit
    if limit is None or len(seen.references) < limit:
        seen.references.append((row[1], row[2]))


_FOLDS: dict[str, Callable[[SessionEvidence, Row], None]] = {
    "tool_call": _fold_tool_call,
    "token_usage": _fold_token_usage,
    "retry_event": _fold_retry,
    "memory_event": _fold_memory,
    "tool_output": _fold_tool_output,
    "context_event": _fold_context,
    "skill_event": _fold_skill,
}
"""Which fold reads which event type; other types are counted only."""
