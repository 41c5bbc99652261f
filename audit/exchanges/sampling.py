"""Sampling: which exchanges of a session the judge sees, as a pure function from state to state.

1. The first rule that applies samples an exchange: sampling is off (every exchange is scored), the first turns, a Tier 1 flag,
   trouble with tools, an attempt to sway the judge, disagreement, a long response, every n-th turn. All other exchanges are skipped.
2. Every n-th turn is counted from a start that is a hash of the session, so any turn is a routine sample with probability 1 / n. With a
   fixed start, turn 6 of every session would represent turns 6 to 8, even in sessions that end at 6.
3. The last turns are known only when the session closes. Until then the state keeps the newest exchanges, and `close` returns them for
   judging with probability 1, whatever sampled them before. Only first turns keep their reason.
4. So the weights of a session's turns, 1 / probability, add up to the number of turns in expectation, before and after its close.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, Self, get_args

import msgspec

from audit.exchanges.context import has_trouble
from audit.patterns import compile_pattern, straighten
from audit.policy import Sampling
from schemas.records import Exchange, ToolCall

SAMPLING_DISABLED: Final = "sampling_disabled"
FIRST_TURNS: Final = "first_turns"
LAST_TURNS: Final = "last_turns"
TIER1_FLAGS: Final = "tier1_flags"
TOOL_TROUBLE: Final = "tool_trouble"
JUDGE_TAMPERING: Final = "judge_tampering"
"""Also the start of an anomaly's reason; up to the rules eval-4 it began with judge_tamper."""
DISAGREEMENT_REASON: Final = "disagreement"
LONG_RESPONSE: Final = "long_response"
ROUTINE_SAMPLE = "routine_sample"
SAMPLING_SKIP = "sampling_skip"
CertainReason = Literal[
    "sampling_disabled", "first_turns", "tier1_flags", "tool_trouble", "judge_tampering", "disagreement", "long_response"
]
"""The reasons to sample an exchange with probability 1, in the order of `_find_certain_reason`."""
REASONS: tuple[str, ...] = (*get_args(CertainReason), ROUTINE_SAMPLE, LAST_TURNS, SAMPLING_SKIP)
"""Every reason of a decision, in the order of the rules."""

DISAGREEMENT = compile_pattern(
    r"\bi\s+(?:disagree|don't\s+agree|respectfully|must\s+point\s+out|should\s+note|would\s+advise\s+against)\b"
    r"|\bhowever,?\s+i\s+(?:think|believe|suggest|recommend)\b"
    r"|\bthat(?:'s|\s+is)\s+(?:not\s+correct|incorrect|wrong|inaccurate)\b"
    r"|\bi(?:'d|\s+would)\s+(?:push\s+back|caution|warn|flag)\b"
    r"|\bno,\s+(?:i\s+think|actually|that|the)\b",
    where="disagreement",
)
"""Phrases by which an agent pushes back, for straightened text."""

_KEPT_REASONS = frozenset({SAMPLING_DISABLED, FIRST_TURNS})
"""Reasons that a turn keeps if it is one of the last."""


def may_become_last(reason: str) -> bool:
    """Return whether a turn sampled for this reason is judged again if it is one of the last when its session closes."""
    return reason not in _KEPT_REASONS and reason != LAST_TURNS


class DeferredExchange(msgspec.Struct, frozen=True, array_like=True):
    """An exchange that may have to be judged as one of the last turns."""

    turn: int
    exchange_id: str
    revision: int
    """The highest revision of its score that was requested."""
    record: bytes
    """The encoded exchange; empty once `close` has returned it."""


class RecentTurn(msgspec.Struct, frozen=True, array_like=True):
    """One of the newest turns of a session."""

    turn: int
    ordinal: int
    """The number of the exchange in the session, from 1; distinguishes exchanges with the same turn number."""
    deferred: DeferredExchange | None
    """The exchange; None if it keeps its reason."""


class SamplingState(msgspec.Struct, frozen=True, array_like=True):
    """The sampling state of a session, stored as MessagePack; it holds at most `alwaysScoreLast` exchanges."""

    exchanges: int = 0
    """The number of exchanges so far."""
    newest: tuple[RecentTurn, ...] = ()
    """The turns with the highest numbers, ascending, at most `alwaysScoreLast`."""

    @property
    def deferred(self) -> tuple[DeferredExchange, ...]:
        """The exchanges that `close` would return."""
        return tuple(turn.deferred for turn in self.newest if turn.deferred is not None and turn.deferred.record)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of an exchange that sampling uses."""

    session: str
    """Key of its session, unique among all connections."""
    exchange_id: str
    revision: int
    turn_number: int | None
    """The turn number from the source; None to count."""
    agent_response: str
    output_tokens: int | None
    """None if unknown; a response of unknown length is not long."""
    tier1_flags: tuple[str, ...]
    tool_calls: tuple[ToolCall, ...]
    is_tampering: bool
    """True if the rules recognize an attempt to sway the judge."""
    record: bytes
    """The encoded exchange, kept while it is deferred."""

    @classmethod
    def of(cls, exchange: Exchange, *, session: str, tier1_flags: tuple[str, ...], is_tampering: bool, record: bytes) -> Self:
        """Return the candidate for the first version of an exchange."""
        return cls(
            session=session,
            exchange_id=exchange.exchange_id,
            revision=0,
            turn_number=exchange.turn_number,
            agent_response=exchange.agent_response,
            output_tokens=exchange.output_tokens,
            tier1_flags=tier1_flags,
            tool_calls=exchange.tool_calls,
            is_tampering=is_tampering,
            record=record,
        )


class Decision(msgspec.Struct, frozen=True):
    """The decision whether an exchange is judged, and its reason."""

    sampled: bool
    reason: str
    probability: float | None
    """Probability of being sampled for this reason; None if the exchange is skipped."""
    turn: int
    """The turn number, from the source or counted."""


def is_disagreement(response: str) -> bool:
    """Return whether the agent pushes back against the user."""
    return DISAGREEMENT.matches(straighten(response))


@lru_cache(4096)
def routine_start(session: str, interval: int) -> int:
    """Return the first routine sample of a session, among its turns 0 to interval - 1.

    It is uniform over sessions and the same in every process.
    """
    digest = hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8, person=b"routine").digest()
    return int.from_bytes(digest, "big") % interval


def decide(state: SamplingState, candidate: Candidate, settings: Sampling) -> tuple[Decision, SamplingState]:
    """Decide whether the next exchange of a session is judged; return the decision and the new state."""
    ordinal = state.exchanges + 1
    turn = ordinal if candidate.turn_number is None else candidate.turn_number
    decision = _apply_rules(candidate, turn, settings)
    recent = RecentTurn(turn, ordinal, _defer(candidate, turn) if may_become_last(decision.reason) else None)
    newest = (*state.newest, recent)
    if state.newest and turn < state.newest[-1].turn:  # turns come in their order, but for odd sources
        newest = tuple(sorted(newest, key=lambda recent: (recent.turn, recent.ordinal)))
    return decision, SamplingState(ordinal, _list_newest_turns(newest, settings))


def close(state: SamplingState, settings: Sampling) -> tuple[tuple[DeferredExchange, ...], SamplingState]:
    """Return the exchanges to be judged as last_turns when a session closes, in order of turns, each with its next revision.

    The session may continue: the new state keeps the turns but not the exchanges, so none is returned twice.
    """
    newest = _list_newest_turns(state.newest, settings)
    due = tuple(_next_revision(deferred) for deferred in SamplingState(state.exchanges, newest).deferred)
    by_id = {deferred.exchange_id: msgspec.structs.replace(deferred, record=b"") for deferred in due}
    return due, SamplingState(state.exchanges, tuple(_update_deferred(recent, by_id) for recent in newest))


def decide_again(
    state: SamplingState, exchange_id: str, decision: Decision, revision: int
) -> tuple[Decision, int, SamplingState]:
    """Decide on a request to judge an exchange again; return the decision, its revision and the new state.

    A request that was made just before the session closed may have the revision that `close` used. It then gets the next revision, and the
    exchange stays one of the last turns.
    """
    deferred = next(
        (recent.deferred for recent in state.newest if recent.deferred and recent.deferred.exchange_id == exchange_id), None
    )
    if deferred is None:
        return decision, revision, state
    if not deferred.record and revision <= deferred.revision:
        decision = Decision(sampled=True, reason=LAST_TURNS, probability=1.0, turn=decision.turn)
        revision = deferred.revision + 1
    updated = msgspec.structs.replace(deferred, revision=max(deferred.revision, revision))
    newest = tuple(_update_deferred(recent, {exchange_id: updated}) for recent in state.newest)
    return decision, revision, SamplingState(state.exchanges, newest)


def replace_deferred(state: SamplingState, exchange_id: str, record: bytes) -> SamplingState:
    """Return the state after an exchange was revised: a deferred exchange is replaced by its newest record."""
    newest = tuple(
        _update_deferred(recent, {exchange_id: msgspec.structs.replace(recent.deferred, record=record)})
        if recent.deferred is not None and recent.deferred.exchange_id == exchange_id and recent.deferred.record
        else recent
        for recent in state.newest
    )
    return SamplingState(state.exchanges, newest)


def drop_deferred(state: SamplingState, exchange_id: str) -> SamplingState:
    """Return the state after an exchange was deleted: `close` does not return it."""
    newest = tuple(
        RecentTurn(recent.turn, recent.ordinal, None)
        if recent.deferred is not None and recent.deferred.exchange_id == exchange_id
        else recent
        for recent in state.newest
    )
    return SamplingState(state.exchanges, newest)


def _defer(candidate: Candidate, turn: int) -> DeferredExchange:
    return DeferredExchange(turn, candidate.exchange_id, candidate.revision, candidate.record)


def _next_revision(deferred: DeferredExchange) -> DeferredExchange:
    return msgspec.structs.replace(deferred, revision=deferred.revision + 1)


def _update_deferred(turn: RecentTurn, deferred: Mapping[str, DeferredExchange]) -> RecentTurn:
    """Return the turn with its new deferred exchange, if it has one."""
    old = turn.deferred
    if old is None:
        return turn
    return RecentTurn(turn.turn, turn.ordinal, deferred.get(old.exchange_id, old))


def _apply_rules(candidate: Candidate, turn: int, settings: Sampling) -> Decision:
    """Decide by the first rule that applies; see the rules in order at the top of the module."""
    reason = _find_certain_reason(candidate, turn, settings)
    if reason is not None:
        return Decision(sampled=True, reason=reason, probability=1.0, turn=turn)
    interval = settings.routine_interval
    if turn % interval == routine_start(candidate.session, interval):
        return Decision(sampled=True, reason=ROUTINE_SAMPLE, probability=1 / interval, turn=turn)
    return Decision(sampled=False, reason=SAMPLING_SKIP, probability=None, turn=turn)


def _find_certain_reason(  # noqa: PLR0911 - one return per rule
    candidate: Candidate, turn: int, settings: Sampling
) -> CertainReason | None:
    """Return why an exchange is sampled with probability 1; None if it is not."""
    if not settings.enabled:
        return SAMPLING_DISABLED
    if 0 < settings.always_score_first >= turn:
        return FIRST_TURNS
    if candidate.tier1_flags:
        return TIER1_FLAGS
    if settings.always_score_tool_trouble and has_trouble(candidate.tool_calls):
        return TOOL_TROUBLE
    if candidate.is_tampering:
        return JUDGE_TAMPERING
    if settings.always_score_disagreement and is_disagreement(candidate.agent_response):
        return DISAGREEMENT_REASON
    if settings.always_score_long_responses and _is_long(candidate.output_tokens, settings.long_response_threshold):
        return LONG_RESPONSE
    return None


def _is_long(output_tokens: int | None, threshold: int) -> bool:
    return output_tokens is not None and output_tokens > threshold


def _list_newest_turns(turns: tuple[RecentTurn, ...], settings: Sampling) -> tuple[RecentTurn, ...]:
    return turns[-settings.always_score_last :] if settings.always_score_last else ()
