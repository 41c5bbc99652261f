"""Folds a session's events into the evidence that detectors need.

A fold is incremental. Events may arrive one at a time or in batches, mixed with events of other sessions. The evidence is the same as
long as the events of each session keep their order. It survives MessagePack, so it is also the state of the diagnosis stage.

Events of transcripts (see `audit.detectors.thresholds`) are folded by exchange, because their sessions last for weeks:

1. A call is repeated if the same call follows it in the same exchange without another call in between.
2. New tokens of a request are the tokens it wrote, plus those it read beyond the previous request or, if more, beyond what came
   from a cache. The first request of a session counts only the tokens it wrote, because its prompt is the program's own.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from audit.detectors.call_patterns import CallPatterns
from audit.detectors.thresholds import EVENTS, MIN_SATURATION, TRANSCRIPT_SOURCES, Profile
from audit.detectors.tool_use import ToolUse
from audit.diagnosis.events import MAX_TOKENS, NormalisedEvent
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
    "source",
    "exchange_id",
    "prompt_tokens",
    "cached_tokens",
    "payload",
)
"""Columns of a row for `fold_columns`: the session's key (hashable), then the columns of AgentEvent as plain Python values.

The payload is needed only for PAYLOAD_EVENTS, and only if `SessionEvidence.reads_payloads`; otherwise it is None.
"""
(
    _SESSION,
    _SEQ,
    _EVENT_ID,
    _EVENT,
    _TOOL,
    _CALL_KEY,
    _ACTION,
    _STATUS,
    _USED,
    _REFERENCED,
    _INVOKED,
    _SATURATION,
    _TOKENS,
    _SOURCE,
    _EXCHANGE_ID,
    _PROMPT_TOKENS,
    _CACHED_TOKENS,
    _PAYLOAD,
) = range(len(FOLD_COLUMNS))
"""Positions of the columns in a row."""

PAYLOAD_EVENTS = frozenset({"tool_call", "tool_definitions"})
"""Types of events whose payload a fold may read."""
RETRY_REFERENCES = 3
"""Maximum number of retry events that are evidence of a loop."""
MAX_SHARES = 12
"""Maximum number of token_usage events that are evidence of a cost explosion: those with the most tokens."""
LOST_MEMORY = frozenset({"recall_failed", "ignored", "lost", "miss"})
"""The actions (else statuses) of a memory_event that mean that memory failed."""
FAILED_SKILL = frozenset({"ignored", "mismatch", "failed"})
"""The statuses of a skill_event that mean that the skill failed."""

Reference = tuple[int, str]
"""A reference to an event of the session: its position and its id."""
Share = tuple[int, int, str]
"""An event's share of a sum: the negated amount, so that the largest sorts first, then its position and its id."""
Row = tuple[Any, ...]
Key = TypeVar("Key", bound=Hashable)


class Occurrences(msgspec.Struct, array_like=True, gc=False):
    """Events that show a failure: the count is exact, the references may be capped."""

    count: int = 0
    references: list[Reference] = []


class Calls(msgspec.Struct, array_like=True, gc=False):
    """The tool calls with one call key. `tool` is None if they name no tool, `exchange` is None except for transcripts."""

    tool: str | None
    count: int
    references: list[Reference]
    exchange: str | None = None


class ExchangeSums(msgspec.Struct, array_like=True, gc=False):
    """The sums of the current and of the largest exchange of a transcript, with their largest shares."""

    exchange: str | None = None
    count: int = 0
    max_count: int = 0
    shares: list[Share] = []
    """Shares of the current exchange."""
    max_shares: list[Share] = []
    """Shares of the exchange with the largest sum, the first of equals."""

    def add(self, exchange: str | None, count: int, reference: Reference) -> None:
        """Add an amount of an event to the sum of an exchange."""
        if exchange != self.exchange:
            self.exchange = exchange
            self.count = 0
            self.shares = []
        self.count += count
        _keep_largest(self.shares, count, reference)
        if self.count > self.max_count:
            self.max_count = min(self.count, MAX_TOKENS)
            self.max_shares = self.shares.copy()


class SessionEvidence(msgspec.Struct, gc=False, omit_defaults=True):
    """The evidence about one session. Memory is linear in distinct calls, event types and kept references.

    `reference_limit` caps the references kept of each kind (and of each distinct call); None keeps all. MAX_SHARES shares of each
    sum are always kept, because their number is part of a finding. `calls` is in order of first occurrence. `problems` has, by
    event type, the events that show a failure: lost memories, unused tool outputs, polluted contexts, failed skills. Token
    totals are capped at MAX_TOKENS. `saturation` and `severe_saturation` are thresholds for contexts. `source` is that of the
    first event that has one: it makes the session a transcript, and `calls` then holds the repeated calls and the last one.
    """

    reference_limit: int | None = None
    event_counts: dict[str, int] = {}
    calls: dict[str, Calls] = {}
    retries: list[Reference] = []
    largest: list[Share] = []
    """The token_usage events with the most tokens."""
    problems: dict[str, Occurrences] = {}
    context_full: bool = False
    total_tokens: int = 0
    saturation: float = EVENTS.saturation
    severe_saturation: float = EVENTS.severe_saturation
    fullest: float = 0.0
    """The highest reported saturation, if at least MIN_SATURATION."""
    source: str | None = None
    last_call: tuple[str, str | None] | None = None
    """The key of the last call of a transcript, and its exchange."""
    last_prompt: int | None = None
    """Tokens that the last request of a transcript read."""
    new_tokens: ExchangeSums = msgspec.field(default_factory=ExchangeSums)
    exchange_retries: ExchangeSums = msgspec.field(default_factory=ExchangeSums)
    patterns: CallPatterns | None = None
    """Patterns of its calls; None if the thresholds enable none."""
    tool_use: ToolUse | None = None
    """Its calls against the rules for tools; None without rules."""

    @classmethod
    def held_to(cls, profile: Profile, reference_limit: int | None = None) -> SessionEvidence:
        """Return evidence without events for a session under this profile."""
        evidence = cls(reference_limit)
        evidence.hold_to(profile)
        return evidence

    def hold_to(self, profile: Profile) -> None:
        """Set the thresholds and rules of the session, before any event is folded."""
        self.saturation = profile.thresholds.saturation
        self.severe_saturation = profile.thresholds.severe_saturation
        self.patterns = CallPatterns.for_thresholds(profile.thresholds)
        self.tool_use = ToolUse.for_rules(profile.rules)

    @property
    def reads_payloads(self) -> bool:
        """True if the payloads of calls and definitions must be folded."""
        compares_calls = self.patterns is not None and self.patterns.similarity is not None
        tool_use = self.tool_use
        return compares_calls or (tool_use is not None and bool(tool_use.external or tool_use.definitions))

    @property
    def is_transcript(self) -> bool:
        """True if the session was read from a transcript."""
        return self.source is not None

    @property
    def retries_in_scope(self) -> int:
        """The number of retry events in the session, or for a transcript in the exchange with the most."""
        return self.exchange_retries.max_count if self.is_transcript else self.count("retry_event")

    @property
    def first_retries(self) -> list[Reference]:
        """The first retry events of the session, or for a transcript of the exchange with the most."""
        if not self.is_transcript:
            return self.retries
        return [(seq, event_id) for _, seq, event_id in self.exchange_retries.max_shares[:RETRY_REFERENCES]]

    @property
    def event_count(self) -> int:
        """The number of events folded."""
        return sum(self.event_counts.values())

    @property
    def duplicate_calls(self) -> int:
        """The number of tool calls that repeat an earlier one: calls less distinct call keys."""
        return sum(calls.count for calls in self.calls.values()) - len(self.calls)

    def most_repeated_except(self, tools: Collection[str]) -> list[Calls]:
        """Return the repeated calls, except those of `tools`, of the exchange with the most duplicates.

        If the session is not a transcript, all of it counts as one exchange.
        """
        by_exchange: dict[str | None, list[Calls]] = {}
        for calls in self.calls.values():
            if calls.count > 1 and calls.tool not in tools:
                by_exchange.setdefault(calls.exchange, []).append(calls)
        return max(by_exchange.values(), key=duplicates_of, default=[])

    def count(self, event: str) -> int:
        """Return the number of events of one type."""
        return self.event_counts.get(event, 0)

    def problem(self, event: str) -> Occurrences:
        """Return the events of one type that show a failure."""
        return self.problems.get(event) or Occurrences()

    def count_events(self, event: str, count: int) -> None:
        """Count events of a type."""
        self.event_counts[event] = self.event_counts.get(event, 0) + count

    def add(self, event: NormalisedEvent | AgentEvent, seq: int) -> None:
        """Fold the session's next event, at position `seq`."""
        fold_columns({None: self}, [fold_row(None, event, seq)])


def duplicates_of(repeated: Iterable[Calls]) -> int:
    """Return the calls that repeat an earlier one."""
    return sum(calls.count - 1 for calls in repeated)


def fold_row(session: Hashable, event: NormalisedEvent | AgentEvent, seq: int) -> Row:
    """Return the event as a row of FOLD_COLUMNS."""
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
        event.source,
        event.exchange_id,
        event.prompt_tokens,
        event.cached_tokens,
        event.payload if event.event in PAYLOAD_EVENTS else None,
    )


def fold_columns(
    evidence_by_session: dict[Key, SessionEvidence], rows: Iterable[Row], *, reference_limit: int | None = None
) -> None:
    """Fold rows of FOLD_COLUMNS into the evidence of their sessions in place; rows of one session are in its order.

    Missing sessions are created with `reference_limit`.
    """
    find = evidence_by_session.get
    folds = _FOLDS
    for row in rows:
        evidence = find(row[_SESSION])
        if evidence is None:
            evidence = SessionEvidence(reference_limit=reference_limit)
            evidence_by_session[row[_SESSION]] = evidence
        event = row[_EVENT]
        counts = evidence.event_counts
        if event in counts:
            counts[event] += 1
        else:
            counts[event] = 1
        if event in folds:
            folds[event](evidence, row)


def fold_counted(evidence_by_session: Mapping[Key, SessionEvidence], rows: Iterable[Row]) -> None:
    """Fold rows of existing sessions whose events are already counted.

    Rows may be left out if the fold of their type has nothing to read in them.
    """
    folds = _FOLDS
    for row in rows:
        folds[row[_EVENT]](evidence_by_session[row[_SESSION]], row)


def _fold_tool_call(evidence: SessionEvidence, row: Row) -> None:
    is_transcript = _mark_transcript(evidence, row)
    exchange = row[_EXCHANGE_ID] if is_transcript else None
    key: Any = _update_run(evidence, row) if is_transcript else row[_CALL_KEY]
    reference = (row[_SEQ], row[_EVENT_ID])
    limit = evidence.reference_limit
    calls = evidence.calls.get(key)
    if calls is not None:
        calls.count += 1
        if limit is None or len(calls.references) < limit:
            calls.references.append(reference)
    elif key is not None:  # a call without a key repeats nothing
        references = [reference] if limit is None or limit > 0 else []
        evidence.calls[key] = Calls(row[_TOOL], 1, references, exchange)
    if evidence.patterns is not None:
        evidence.patterns.add(reference, row[_TOOL], row[_CALL_KEY], exchange=exchange, payload=row[_PAYLOAD], limit=limit)
    if evidence.tool_use is not None:
        evidence.tool_use.add_call(reference, row[_TOOL], row[_PAYLOAD], limit)


def _mark_transcript(evidence: SessionEvidence, row: Row) -> bool:
    """Return whether the event was read from a transcript, and if so mark its session as a transcript."""
    if row[_SOURCE] not in TRANSCRIPT_SOURCES:
        return False
    evidence.source = evidence.source or row[_SOURCE]
    return True


def _update_run(evidence: SessionEvidence, row: Row) -> str | None:
    """Return the key of the run of equal calls that a transcript's call extends or starts.

    If it starts a run, the previous run is dropped if it had a single call.
    """
    call_key = row[_CALL_KEY]
    exchange = row[_EXCHANGE_ID]
    if call_key is None:
        return None
    if evidence.last_call is not None:
        last_run, last_exchange = evidence.last_call
        if last_exchange == exchange and last_run.rpartition("@")[0] == call_key:
            return last_run
        if evidence.calls[last_run].count == 1:
            del evidence.calls[last_run]
    new_run = f"{call_key}@{row[_SEQ]}"
    evidence.last_call = (new_run, exchange)
    return new_run


def _fold_approval(evidence: SessionEvidence, row: Row) -> None:
    if evidence.tool_use is not None:
        evidence.tool_use.add_approval(row[_TOOL], row[_ACTION] or row[_STATUS])


def _fold_definitions(evidence: SessionEvidence, row: Row) -> None:
    if evidence.tool_use is not None:
        evidence.tool_use.add_definitions((row[_SEQ], row[_EVENT_ID]), row[_PAYLOAD], evidence.reference_limit)


def _fold_token_usage(evidence: SessionEvidence, row: Row) -> None:
    tokens = row[_TOKENS]
    if tokens is None:
        return
    reference = (row[_SEQ], row[_EVENT_ID])
    evidence.total_tokens = min(evidence.total_tokens + tokens, MAX_TOKENS)
    if _mark_transcript(evidence, row):
        new_tokens = _count_new_tokens(evidence, tokens, row[_PROMPT_TOKENS], row[_CACHED_TOKENS])
        evidence.new_tokens.add(row[_EXCHANGE_ID], new_tokens, reference)
    _keep_largest(evidence.largest, tokens, reference)


def _keep_largest(shares: list[Share], amount: int, reference: Reference) -> None:
    """Keep an event if its share of a sum is among the MAX_SHARES largest, the first of equals."""
    share = (-amount, *reference)
    if amount > 0 and (len(shares) < MAX_SHARES or share < shares[-1]):
        insort(shares, share)
        del shares[MAX_SHARES:]


def _count_new_tokens(evidence: SessionEvidence, tokens: int, prompt: int | None, cached: int | None) -> int:
    """Return the tokens of a request that the previous request did not have."""
    if prompt is None:
        return tokens
    previous_prompt = prompt if evidence.last_prompt is None else evidence.last_prompt
    evidence.last_prompt = prompt
    written = max(0, tokens - prompt)
    newly_read = max(0, prompt - max(cached or 0, previous_prompt))
    return written + newly_read


def _fold_retry(evidence: SessionEvidence, row: Row) -> None:
    if _mark_transcript(evidence, row):
        evidence.exchange_retries.add(row[_EXCHANGE_ID], 1, (row[_SEQ], row[_EVENT_ID]))
    limit = RETRY_REFERENCES
    if evidence.reference_limit is not None:
        limit = min(limit, evidence.reference_limit)
    if len(evidence.retries) < limit:
        evidence.retries.append((row[_SEQ], row[_EVENT_ID]))


def _fold_memory(evidence: SessionEvidence, row: Row) -> None:
    if (row[_ACTION] or row[_STATUS]) in LOST_MEMORY:
        _add_problem(evidence, row)


def _fold_tool_output(evidence: SessionEvidence, row: Row) -> None:
    if row[_USED] is False or row[_REFERENCED] is False or row[_STATUS] == "ignored":
        _add_problem(evidence, row)


def _fold_output_use(evidence: SessionEvidence, row: Row) -> None:
    if row[_USED] is False:
        _add_problem(evidence, row, "tool_output")


def _fold_context(evidence: SessionEvidence, row: Row) -> None:
    saturation = row[_SATURATION]
    if saturation is not None and saturation >= MIN_SATURATION:
        evidence.fullest = max(evidence.fullest, saturation)
    if saturation is not None and saturation >= evidence.saturation:
        evidence.context_full = evidence.context_full or saturation >= evidence.severe_saturation
    elif row[_ACTION] != "compaction":
        return
    _add_problem(evidence, row)


def _fold_skill(evidence: SessionEvidence, row: Row) -> None:
    if row[_INVOKED] is False or row[_STATUS] in FAILED_SKILL:
        _add_problem(evidence, row)


def _add_problem(evidence: SessionEvidence, row: Row, event: str | None = None) -> None:
    """Add an event that shows a failure, under its own type or under another `event` type."""
    event = event or row[_EVENT]
    occurrences = evidence.problems.get(event)
    if occurrences is None:
        occurrences = Occurrences()
        evidence.problems[event] = occurrences
    occurrences.count += 1
    limit = evidence.reference_limit
    if limit is None or len(occurrences.references) < limit:
        occurrences.references.append((row[_SEQ], row[_EVENT_ID]))


_FOLDS: dict[str, Callable[[SessionEvidence, Row], None]] = {
    "tool_call": _fold_tool_call,
    "approval": _fold_approval,
    "tool_definitions": _fold_definitions,
    "token_usage": _fold_token_usage,
    "retry_event": _fold_retry,
    "memory_event": _fold_memory,
    "tool_output": _fold_tool_output,
    "output_use": _fold_output_use,
    "context_event": _fold_context,
    "skill_event": _fold_skill,
}
"""The fold for each event type; other types are counted only."""
