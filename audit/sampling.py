"""Sampling: which exchanges of a session the judge sees, as a pure step from state to state.

In this order: sampling is off (every exchange is scored), the first turns, a Tier 1 flag, disagreement, a long response, every n-th
turn; everything else is skipped. The last turns are known only when the session closes: until then the newest skipped turns are parked
in the state, with all that is needed to score them, and `close` hands them out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


class Parked(msgspec.Struct, frozen=True, array_like=True):
    """A skipped exchange with what is needed to score it later."""

    turn: int
    exchange_id: str
    revision: int
    """Revision of the score that says it was skipped."""
    record: bytes
    """The encoded exchange; opaque here."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One of the newest turns of a session."""

    turn: int
    ordinal: int
    """Which exchange of the session it was, from 1; keeps turns of one number apart."""
    parked: Parked | None
    """The exchange, while it is skipped."""


class SamplingState(msgspec.Struct, frozen=True, array_like=True):
    """What sampling knows of a session: MessagePack by `msgspec.msgpack`, at most `alwaysScoreLast` exchanges large."""

    exchanges: int = 0
    """Exchanges seen."""
    newest: tuple[Turn, ...] = ()
    """The turns with the highest numbers, ascending, at most `alwaysScoreLast` of them."""

    @property
    def parked(self) -> tuple[Parked, ...]:
        """The skipped exchanges among the newest turns."""
        return tuple(turn.parked for turn in self.newest if turn.parked is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What sampling looks at in an exchange."""

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


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an exchange is judged, and why."""

    sampled: bool
    reason: str
    probability: float | None
    """Probability with which an exchange is sampled for this reason; None when it is not."""
    turn: int
    """Turn number: as given, else counted."""


def is_disagreement(response: str) -> bool:
    """Whether the agent pushes back."""
    return DISAGREEMENT.matches(straighten(response))


_Rule = tuple[str, Callable[[Candidate, int, Sampling], bool], Callable[[Sampling], float]]


def _always(_settings: Sampling) -> float:
    return 1.0


_RULES: tuple[_Rule, ...] = (
    (SAMPLING_DISABLED, lambda _c, _turn, s: not s.enabled, _always),
    (FIRST_TURNS, lambda _c, turn, s: 0 < s.always_score_first >= turn, _always),
    (TIER1_FLAGS, lambda c, _turn, _s: bool(c.tier1_flags), _always),
    (DISAGREEMENT_REASON, lambda c, _turn, s: s.always_score_disagreement and is_disagreement(c.agent_response), _always),
    (LONG_RESPONSE, lambda c, _turn, s: _is_long(c.output_tokens, s), _always),
    (ROUTINE_SAMPLE, lambda _c, turn, s: turn % s.routine_interval == 0, lambda s: 1 / s.routine_interval),
)
"""Reason, condition and probability; the first that holds decides."""


def decide(state: SamplingState, candidate: Candidate, settings: Sampling) -> tuple[Decision, SamplingState]:
    """Decide on the next exchange of a session; the new state knows its turn, and the exchange while it may be scored at the end."""
    ordinal = state.exchanges + 1
    turn = ordinal if candidate.turn_number is None else candidate.turn_number
    decision = _decision(candidate, turn, settings)
    parked = None if decision.sampled else Parked(turn, candidate.exchange_id, candidate.revision, candidate.record)
    known = sorted((*state.newest, Turn(turn, ordinal, parked)), key=lambda seen: (seen.turn, seen.ordinal))
    return decision, SamplingState(ordinal, _last(known, settings))


def close(state: SamplingState, settings: Sampling) -> tuple[tuple[Parked, ...], SamplingState]:
    """The skipped exchanges among the session's last turns, in order of turns: to be scored as last_turns, with probability 1.

    The session may go on: the new state remembers the turns but not the exchanges, so none is handed out twice.
    """
    newest = _last(state.newest, settings)
    parked = SamplingState(state.exchanges, newest).parked
    return parked, SamplingState(state.exchanges, tuple(Turn(seen.turn, seen.ordinal, None) for seen in newest))


def without(state: SamplingState, exchange_id: str) -> SamplingState:
    """The state after the exchange is judged for another reason: it is not handed out at the end any more."""
    newest = tuple(
        Turn(seen.turn, seen.ordinal, None) if seen.parked is not None and seen.parked.exchange_id == exchange_id else seen
        for seen in state.newest
    )
    return SamplingState(state.exchanges, newest)


def _decision(candidate: Candidate, turn: int, settings: Sampling) -> Decision:
    for reason, holds, probability in _RULES:
        if holds(candidate, turn, settings):
            return Decision(True, reason, probability(settings), turn)
    return Decision(False, SAMPLING_SKIP, None, turn)


def _is_long(output_tokens: int | None, settings: Sampling) -> bool:
    return (
        settings.always_score_long_responses and output_tokens is not None and output_tokens > settings.long_response_threshold
    )


def _last(turns: list[Turn] | tuple[Turn, ...], settings: Sampling) -> tuple[Turn, ...]:
    return tuple(turns[-settings.always_score_last :]) if settings.always_score_last else ()
