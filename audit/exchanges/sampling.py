"""Sampling: which exchanges of a session the judge sees, as a pure step from state to state.

1. In this order: sampling is off (every exchange is scored), the first turns, a Tier 1 flag, disagreement, a long response, every n-th
   turn; everything else is skipped.
2. Every n-th turn is counted from a start that a hash of the session draws, so a turn is a routine sample with probability 1 / n
   whatever its number. A fixed start would judge turn 6 of every session for itself, 7 and 8, also where the session ends at 6.
3. The last turns are known only when the session closes. Until then the newest turns are parked in the state, with all that is needed to
   judge them, and `close` hands them out: with probability 1, whatever else sampled them. Only first turns stay what they are.
4. So the weights of a session's turns, 1 / probability, add up to their number in expectation, before its close and after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from audit.patterns import compile_pattern, straighten
from audit.policy import Sampling

SAMPLING_DISABLED = "sampling_disabled"
FIRST_TURNS = "first_turns"
LAST_TURNS = "last_turns"
TIER1_FLAGS = "tier1_flags"
DISAGREEMENT_REASON = "disagreement"
LONG_RESPONSE = "long_response"
ROUTINE_SAMPLE = "routine_sample"
SAMPLING_SKIP = "sampling_skip"

DISAGREEMENT = compile_pattern(
    r"\bi\s+(?:disagree|don't\s+agree|respectfully|must\s+point\s+out|should\s+note|would\s+advise\s+against)\b"
    r"|\bhowever,?\s+i\s+(?:think|believe|suggest|recommend)\b"
    r"|\bthat(?:'s|\s+is)\s+(?:not\s+correct|incorrect|wrong|inaccurate)\b"
    r"|\bi(?:'d|\s+would)\s+(?:push\s+back|caution|warn|flag)\b"
    r"|\bno,\s+(?:i\s+think|actually|that|the)\b",
    where="disagreement",
)
"""Words by which an agent pushes back; runs on straightened text."""

_STAYS = frozenset({SAMPLING_DISABLED, FIRST_TURNS})
"""Reasons that a turn keeps when it turns out to be one of the last."""


def may_become_last(reason: str) -> bool:
    """Return whether a turn sampled for this reason is judged again if it is one of the last when its session closes."""
    return reason not in _STAYS and reason != LAST_TURNS


class Parked(msgspec.Struct, frozen=True, array_like=True):
    """An exchange with what is needed to judge it as one of the last turns."""

    turn: int
    exchange_id: str
    revision: int
    """Highest revision of its score that was asked for."""
    record: bytes
    """The encoded exchange, opaque here; empty once it was handed out."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One of the newest turns of a session."""

    turn: int
    ordinal: int
    """The number of the exchange in the session, from 1; keeps turns of one number apart."""
    parked: Parked | None
    """The exchange; None where it keeps the reason it has."""


class SamplingState(msgspec.Struct, frozen=True, array_like=True):
    """The sampling state of a session: MessagePack by `msgspec.msgpack`, at most `alwaysScoreLast` exchanges large."""

    exchanges: int = 0
    """Exchanges seen."""
    newest: tuple[Turn, ...] = ()
    """The turns with the highest numbers, ascending, at most `alwaysScoreLast` of them."""

    @property
    def parked(self) -> tuple[Parked, ...]:
        """The exchanges that `close` would hand out."""
        return tuple(turn.parked for turn in self.newest if turn.parked is not None and turn.parked.record)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of an exchange that sampling looks at."""

    session: str
    """Key of its session, unique among all connections."""
    exchange_id: str
    revision: int
    turn_number: int | None
    """As the source gave it; None is counted."""
    agent_response: str
    output_tokens: int | None
    """None is missing, and a response of unknown length is not long."""
    tier1_flags: tuple[str, ...]
    record: bytes
    """The encoded exchange, kept while it is parked."""


class Decision(msgspec.Struct, frozen=True):
    """The decision whether an exchange is judged, and its reason."""

    sampled: bool
    reason: str
    probability: float | None
    """Probability with which an exchange is sampled for this reason; None when it is not."""
    turn: int
    """Turn number: as given, else counted."""


def is_disagreement(response: str) -> bool:
    """Return whether the agent pushes back."""
    return DISAGREEMENT.matches(straighten(response))


@lru_cache(4096)
def routine_start(session: str, interval: int) -> int:
    """Return the first routine sample of a session, of its turns 0 to interval - 1.

    It is uniform over sessions, and the same in every process.
    """
    drawn = hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8, person=b"routine").digest()
    return int.from_bytes(drawn, "big") % interval


_Rule = tuple[str, Callable[[Candidate, int, Sampling], bool], Callable[[Sampling], float]]


def _always(_settings: Sampling) -> float:
    return 1.0


_RULES: tuple[_Rule, ...] = (
    (SAMPLING_DISABLED, lambda _c, _turn, s: not s.enabled, _always),
    (FIRST_TURNS, lambda _c, turn, s: 0 < s.always_score_first >= turn, _always),
    (TIER1_FLAGS, lambda c, _turn, _s: bool(c.tier1_flags), _always),
    (DISAGREEMENT_REASON, lambda c, _turn, s: _disagrees(c, s), _always),
    (LONG_RESPONSE, lambda c, _turn, s: _is_long(c.output_tokens, s), _always),
    (
        ROUTINE_SAMPLE,
        lambda c, turn, s: turn % s.routine_interval == routine_start(c.session, s.routine_interval),
        lambda s: 1 / s.routine_interval,
    ),
)
"""Reason, condition and probability; the first that holds decides."""


def decide(state: SamplingState, candidate: Candidate, settings: Sampling) -> tuple[Decision, SamplingState]:
    """Decide on the next exchange of a session; the new state knows its turn, and the exchange while it may be one of the last."""
    ordinal = state.exchanges + 1
    turn = ordinal if candidate.turn_number is None else candidate.turn_number
    decision = _decision(candidate, turn, settings)
    seen = Turn(turn, ordinal, _parked(candidate, turn) if may_become_last(decision.reason) else None)
    newest = (*state.newest, seen)
    if state.newest and turn < state.newest[-1].turn:  # turns come in their order, but for odd sources
        newest = tuple(sorted(newest, key=lambda one: (one.turn, one.ordinal)))
    return decision, SamplingState(ordinal, _last(newest, settings))


def close(state: SamplingState, settings: Sampling) -> tuple[tuple[Parked, ...], SamplingState]:
    """The exchanges among the session's last turns that are to be judged as last_turns, in order of turns, each with its next revision.

    The session may go on: the new state remembers the turns but not the exchanges, so none is handed out twice.
    """
    newest = _last(state.newest, settings)
    handed_out = tuple(_next_revision(parked) for parked in SamplingState(state.exchanges, newest).parked)
    by_id = {parked.exchange_id: msgspec.structs.replace(parked, record=b"") for parked in handed_out}
    return handed_out, SamplingState(state.exchanges, tuple(_with(seen, by_id) for seen in newest))


def ask_again(state: SamplingState, exchange_id: str, decision: Decision, revision: int) -> tuple[Decision, int, SamplingState]:
    """Decide on a request to judge an exchange again under this revision: the decision, the revision, the new state.

    A request made before the session's close was known has a revision that the close gave away. It then comes after the
    close, and the turn stays one of the last.
    """
    deferred = next((seen.parked for seen in state.newest if seen.parked and seen.parked.exchange_id == exchange_id), None)
    if deferred is None:
        return decision, revision, state
    if not deferred.record and revision <= deferred.revision:
        decision, revision = (
            Decision(sampled=True, reason=LAST_TURNS, probability=1.0, turn=decision.turn),
            deferred.revision + 1,
        )
    later = msgspec.structs.replace(deferred, revision=max(deferred.revision, revision))
    newest = tuple(_with(seen, {exchange_id: later}) for seen in state.newest)
    return decision, revision, SamplingState(state.exchanges, newest)


def revised(state: SamplingState, exchange_id: str, record: bytes) -> SamplingState:
    """The state after an exchange came in a further revision: where it waits for the end of its session, it is this one that waits."""
    newest = tuple(
        _with(seen, {exchange_id: msgspec.structs.replace(seen.parked, record=record)})
        if seen.parked is not None and seen.parked.exchange_id == exchange_id and seen.parked.record
        else seen
        for seen in state.newest
    )
    return SamplingState(state.exchanges, newest)


def without(state: SamplingState, exchange_id: str) -> SamplingState:
    """The state after the exchange is deleted: it is not handed out at the end any more."""
    newest = tuple(
        Turn(seen.turn, seen.ordinal, None) if seen.parked is not None and seen.parked.exchange_id == exchange_id else seen
        for seen in state.newest
    )
    return SamplingState(state.exchanges, newest)


def _disagrees(candidate: Candidate, settings: Sampling) -> bool:
    return settings.always_score_disagreement and is_disagreement(candidate.agent_response)


def _parked(candidate: Candidate, turn: int) -> Parked:
    return Parked(turn, candidate.exchange_id, candidate.revision, candidate.record)


def _next_revision(parked: Parked) -> Parked:
    return msgspec.structs.replace(parked, revision=parked.revision + 1)


def _with(turn: Turn, parked: Mapping[str, Parked]) -> Turn:
    """The turn with what is parked of it now, where that changed."""
    deferred = turn.parked
    return Turn(turn.turn, turn.ordinal, parked.get(deferred.exchange_id, deferred)) if deferred else turn


def _decision(candidate: Candidate, turn: int, settings: Sampling) -> Decision:
    for reason, holds, probability in _RULES:
        if holds(candidate, turn, settings):
            return Decision(True, reason, probability(settings), turn)
    return Decision(False, SAMPLING_SKIP, None, turn)


def _is_long(output_tokens: int | None, settings: Sampling) -> bool:
    return (
        settings.always_score_long_responses and output_tokens is not None and output_tokens > settings.long_response_threshold
    )


def _last(turns: tuple[Turn, ...], settings: Sampling) -> tuple[Turn, ...]:
    return turns[-settings.always_score_last :] if settings.always_score_last else ()
