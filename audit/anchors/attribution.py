"""Attribution: did the agent change or the judge? Compares an incident's change with the anchors of the same days.

1. Anchors cannot change, so what they moved by is the judge's change (`audit.anchors.judge_shift`). It is compared with the size of the incident,
   never with zero alone: a judge that moved a little does not explain an incident that is large.
2. The agent changed where the anchors exclude that the judge explains half of the incident. The judge changed where it explains half by
   the estimate and a quarter for certain. Otherwise it is not known, and `Attribution.reason` says why.
3. Rounds within the interval of the first day could lie on either side, so they count for neither.

Both conclusions are wrong in 2.5 % where rounds are independent and about normal. All values are on a scale from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from audit.anchors.judge_change import MIN_ANCHORS, UP
from audit.anchors.judge_shift import FEWEST_ROUNDS, Shift, Verdict, by_round, shift_between, sides

NEAREST_ROUNDS = 14
"""So many rounds on either side count, those nearest to the change: a judge that changed long before explains nothing of today."""
EXPLAINS = 0.5
"""The share of an incident from which on the judge is its cause rather than the agent."""
CERTAIN = 0.25
"""The share that the judge explains for certain where it is called the cause."""
Cause = Literal["agent", "judge"]
Reason = Literal[
    "rules",
    "no_size",
    "no_anchors",
    "few_anchors",
    "few_rounds_before",
    "few_rounds_since",
    "explained",
    "unexplained",
    "unclear",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The change that an incident made in a tier, in parts of the tier's scale."""

    direction: str
    """up or down."""
    size: float
    """Above 0, whichever the direction."""
    error: float = 0.0
    """Standard error of the size; 0 where the rule that found it gives none."""
    earliest: date
    latest: date
    """The interval of the first day, ends included."""
    until: datetime | None = None
    """End of what the incident rests on: later rounds do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The cause of a tier's change, and its grounds."""

    cause: Cause | None
    """None where it is not known."""
    reason: Reason
    """The reason for this cause, or for not knowing one."""
    judge: float | None = None
    """The amount by which the anchors moved: mean since less mean before."""
    low: float | None = None
    high: float | None = None
    """Its 95 % interval."""
    anchors: int = 0
    """Anchors that were judged before and since."""
    rounds_before: int = 0
    rounds_since: int = 0


def attribute(verdicts: Sequence[Verdict], moved: Moved) -> Attribution:
    """Tell whether the judge or the agent moved a tier, by the verdicts on its anchors."""
    rounds = by_round(verdicts)
    before = [at for at in rounds if at.date() < moved.earliest]
    since = [at for at in rounds if at.date() > moved.latest and (moved.until is None or at < moved.until)]
    compared = sides(rounds, before[-NEAREST_ROUNDS:], since[:NEAREST_ROUNDS])
    anchors, known = len(compared.anchors), (len(before), len(since))
    if compared.anchors:
        known = len(compared.before), len(compared.since)
    lacking = _lacking(anchors, *known) if rounds else "no_anchors"
    shift = None if lacking else shift_between(rounds, compared)
    cause = None if shift is None else _cause(shift, moved)
    reason: Reason = "unexplained" if cause == "agent" else "explained" if cause == "judge" else "unclear"
    return Attribution(
        cause=cause,
        reason=lacking or reason,
        judge=None if shift is None else shift.size,
        low=None if shift is None else shift.size - shift.reach(),
        high=None if shift is None else shift.size + shift.reach(),
        anchors=anchors,
        rounds_before=known[0],
        rounds_since=known[1],
    )


def _cause(shift: Shift, moved: Moved) -> Cause | None:
    along = shift.size if moved.direction == UP else -shift.size

    def beyond(share: float) -> tuple[float, float]:
        """By how much the judge moved more than this share of the incident: both ends of the interval."""
        centre, reach = along - share * moved.size, shift.reach((share * moved.error) ** 2)
        return centre - reach, centre + reach

    if beyond(EXPLAINS)[1] < 0:
        return "agent"
    if along >= EXPLAINS * moved.size and beyond(CERTAIN)[0] > 0:
        return "judge"
    return None


def _lacking(anchors: int, before: int, since: int) -> Reason | None:
    if before < FEWEST_ROUNDS:
        return "few_rounds_before"
    if since < FEWEST_ROUNDS:
        return "few_rounds_since"
    return "few_anchors" if anchors < MIN_ANCHORS else None
