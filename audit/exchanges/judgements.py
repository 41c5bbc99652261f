"""Recorded judgements of a question: the one that counts, the state without an answer, and their cost.

All records that a function here is given are of one question: one fingerprint, so one exchange; but for those that a request carries,
which are everything that was recorded of what it asks about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from audit.cost.prices import nano_of
from audit.exchanges.outcomes import TierState
from audit.exchanges.questions import Reply
from audit.exchanges.states import SKIPPED_COST_CAP, UNSCORED
from schemas.bounds.limits import MAX_ADMITTED_BYTES
from schemas.codec.single_object import encode
from schemas.records import EvaluationRequest, Judgement, JudgingRequest

ANSWERED = "answered"
"""Outcome of a judgement that answers its question."""
INTERRUPTED = "interrupted"
"""Outcome of a call whose process ended before the answer was recorded: it is paid for, and says nothing."""
COST_CAP = TierState(SKIPPED_COST_CAP, "cost_cap")
"""The state of a tier when the session's cap leaves no room for the call."""
UNKNOWN_PRICE = TierState(UNSCORED, "unknown_price")
"""The state of a tier under a cap if the model has no known price."""

_LENGTHS = 10
"""Bytes that an array takes beside its items, and each item beside its own bytes, at most."""
_Request = TypeVar("_Request", EvaluationRequest, JudgingRequest)


def outcome_state(outcome: str) -> TierState:
    """The state of a tier whose question came to this outcome and has no answer."""
    return COST_CAP if outcome == COST_CAP.reason else TierState(UNSCORED, outcome)


def recorded_reply(records: Sequence[Judgement], revision: int) -> Reply | None:
    """Return the recorded reply to a question, for this revision of the score; None where the judge is to be asked.

    Later revisions are out of sight, so a replay finds the same reply as the first time. An answer counts whichever revision
    it was given to: the same question is not paid for twice. A failure counts for its own revision only: a new revision asks
    again. The reply rests on everything in sight, because everything in sight was paid for.
    """
    seen = _in_sight(records, revision)
    answer = next((one for one in seen if one.outcome == ANSWERED), None)
    if answer is not None:
        return Reply(text=answer.answer or "", judgements=seen)
    failures = [one for one in seen if one.subject_revision == revision and one.outcome != INTERRUPTED]
    return Reply(state=outcome_state(failures[-1].outcome), judgements=seen) if failures else None


def charged(records: Iterable[Judgement], revision: int) -> int:
    """Nano-USD that a question has cost on behalf of this revision of the score.

    The revisions before it have been charged for what they asked, so nothing is charged twice. A call without a known price counts 0.
    """
    return sum(nano_of(one.cost_usd or 0) for one in records if one.subject_revision == revision)


def with_earlier(request: _Request, recorded: Sequence[Judgement]) -> _Request:
    """The request with what was recorded, in that order; the oldest failures are left out first where there is no room."""
    encoded = [encode(one) for one in recorded]
    room = MAX_ADMITTED_BYTES - len(encode(request)) - _LENGTHS
    kept = set()
    # Answers were paid for and still hold; of failures the newest say most.
    newest_first = range(len(recorded) - 1, -1, -1)
    for place in sorted(newest_first, key=lambda place: recorded[place].outcome != ANSWERED):
        room -= len(encoded[place]) + _LENGTHS
        if room < 0:
            break
        kept.add(place)
    return msgspec.structs.replace(request, earlier_judgements=tuple(encoded[place] for place in sorted(kept)))


def _in_sight(records: Iterable[Judgement], revision: int) -> tuple[Judgement, ...]:
    """Return the records that this revision may see, in an order that does not depend on how they came together."""
    seen = (one for one in records if one.subject_revision <= revision)
    return tuple(sorted(seen, key=lambda one: (one.subject_revision, one.judged_at, one.judgement_id)))
