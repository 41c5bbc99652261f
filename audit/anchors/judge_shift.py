"""Size of a judge's shift between two stretches of rounds, with an error that allows for moods.

1. A judge has moods: on some days it is harsher with every anchor. So the unit is the round, not the verdict. The change is the mean of
   the rounds since less that before, and its error comes from how rounds differ, with Student's t for the few rounds that there are.
2. How anchors differ in their change is added, because other exchanges would have answered to it in their own way.
3. Each anchor is compared with itself, so that anchors may come and go. A round that judged fewer than half of them is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from audit.comparison import CONFIDENCE, t_quantile

FEWEST_ROUNDS = 2
"""Rounds that are needed on either side of a change."""
_RESOLUTION = 0.05
"""Verdicts are coarse: two anchors that moved by a step are added, because a dozen that stood do not prove that none would."""
Rounds = Mapping[datetime, Mapping[str, float]]
"""The verdict on each anchor in each round, oldest round first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A tier's verdict on an anchor in a round."""

    anchor: str
    at: datetime
    """The start of the round; the same for all of it."""
    value: float
    """0 to 1."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of the judge by the anchors, as an estimate with its error and degrees of freedom."""

    size: float
    """Mean since less mean before."""
    variance: float
    freedom: float
    by_rounds: float
    """The part of the variance that comes from how rounds differ: all of it where only these anchors matter."""
    rounds: int

    def moods_reach(self, confidence: float) -> float:
        """Half the width of an interval of the change of these very anchors."""
        return t_quantile((1 + confidence) / 2, self.rounds - 2) * math.sqrt(self.by_rounds)

    def reach(self, more: float = 0.0) -> float:
        """Half the width of the 95 % interval of the size, with more variance that comes from elsewhere."""
        return t_quantile((1 + CONFIDENCE) / 2, self.freedom) * math.sqrt(self.variance + more)


@dataclass(frozen=True, slots=True)
class Sides:
    """The rounds and anchors that can be compared across a change."""

    anchors: tuple[str, ...]
    """Judged before and since."""
    before: tuple[datetime, ...]
    since: tuple[datetime, ...]

    @property
    def shift_is_known(self) -> bool:
        """True if there is enough to tell a size with an error."""
        return len(self.anchors) > 1 and min(len(self.before), len(self.since)) >= FEWEST_ROUNDS


def by_round(verdicts: Sequence[Verdict]) -> dict[datetime, dict[str, float]]:
    """The verdicts of each round by anchor, in order of time."""
    rounds: dict[datetime, dict[str, float]] = defaultdict(dict)
    for one in sorted(verdicts, key=lambda one: (one.at, one.anchor)):
        rounds[one.at][one.anchor] = one.value
    return rounds


def sides(rounds: Rounds, before: Sequence[datetime], since: Sequence[datetime]) -> Sides:
    """Return the parts of two stretches of rounds that can be compared."""
    anchors = _judged(rounds, before) & _judged(rounds, since)
    return Sides(tuple(sorted(anchors)), _whole(rounds, before, anchors), _whole(rounds, since, anchors))


def shift_between(rounds: Rounds, sides: Sides) -> Shift | None:
    """The change of the anchors' mean, with the variance that rounds and anchors have in it; None where there is too little."""
    if not sides.shift_is_known:
        return None
    means = [_means(rounds, sides.before, sides.anchors), _means(rounds, sides.since, sides.anchors)]
    changes = [means[1][anchor] - means[0][anchor] for anchor in sides.anchors if anchor in means[0] and anchor in means[1]]
    if len(changes) < 2:
        return None
    off = [
        [rounds[at][anchor] - known[anchor] for anchor in sides.anchors if anchor in rounds[at]]
        for times, known in zip((sides.before, sides.since), means, strict=True)
        for at in times
    ]
    per_round = 1 / len(sides.before) + 1 / len(sides.since)
    return _estimate(changes, off, per_round)


def _estimate(changes: Sequence[float], off: Sequence[Sequence[float]], per_round: float) -> Shift:
    """The mean of the anchors' changes; `off` is by how much the verdicts of each round lie off their anchor's mean."""
    count, freedom = len(changes), len(off) - 2
    size = math.fsum(changes) / count
    moods = [math.fsum(row) / len(row) for row in off]
    by_rounds = math.fsum(mood * mood for mood in moods) / freedom * per_round
    spread = math.fsum((change - size) ** 2 for change in changes) + 2 * _RESOLUTION**2
    by_anchors = spread / ((count + 1) * (count + 2))
    noise = math.fsum((one - mood) ** 2 for row, mood in zip(off, moods, strict=True) for one in row) / ((count - 1) * freedom)
    # The noise of single verdicts is in both, and counts once.
    variance = max(by_rounds, by_anchors, by_rounds + by_anchors - noise * per_round / count)
    known = variance**2 / (by_rounds**2 / freedom + by_anchors**2 / (count + 1))
    return Shift(size, variance, known, by_rounds, len(off))


def _judged(rounds: Rounds, times: Sequence[datetime]) -> set[str]:
    return {anchor for at in times for anchor in rounds[at]}


def _whole(rounds: Rounds, times: Sequence[datetime], anchors: set[str]) -> tuple[datetime, ...]:
    """The rounds that judged at least half of the anchors: the mean of a few says little of the judge's mood."""
    return tuple(at for at in times if anchors and 2 * len(rounds[at].keys() & anchors) >= len(anchors))


def _means(rounds: Rounds, times: Sequence[datetime], anchors: Sequence[str]) -> dict[str, float]:
    """The mean of each anchor over some rounds."""
    values = {anchor: [rounds[at][anchor] for at in times if anchor in rounds[at]] for anchor in anchors}
    return {anchor: math.fsum(known) / len(known) for anchor, known in values.items() if known}
