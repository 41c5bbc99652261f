"""Anchors: exchanges that are judged again in rounds. They stay the same, so a change of their scores is the judge's.

Anchors are filed under a reserved connection, with one project per project that holds its rounds. All values are on a scale from 0 to 1.

The size of a shift between two stretches of rounds:

1. A judge has moods: on some days it is harsher with every anchor. So the unit is the round, not the verdict. The shift is the mean of
   the later rounds less that of the earlier, and its error comes from how rounds differ, with Student's t for the few rounds.
2. How much anchors differ in their change is added, because other exchanges would have answered to it in their own way.
3. Each anchor is compared with itself, so that anchors may come and go. A round that judged fewer than half of them is left out.

Whether the judge changed:

4. Under a judge that does not change, the verdicts on one anchor could as well have come in any other order: each new one is as likely
   as any of those before it to have any rank among them. So the share of earlier verdicts below the new one, less that above, is zero on average.
5. A bet on that share going up (or down) is fair, and its winnings multiply over anchors and rounds. A fair bet that begins with 1
   reaches 1 / a with a chance of a at most, however often one looks (Ville 1939); ranks make it hold for verdicts of any
   distribution (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, on exchangeability martingales).
6. Bets of several sizes begin at every round, each with its part of the stake, so that a late change is found as well.
7. The chance that a judge that never changes is ever reported as changed is ERROR per tier, half of it for each direction.
8. The bets take the verdicts on different anchors to be independent. Moods break that. So the change must also exceed how much
   rounds differ anyway (rules 1 to 3), wherever among them it was looked for.

Whether the agent or the judge explains an incident:

9. The judge's shift is compared with the size of the incident, never with zero alone: a judge that moved a little does not
   explain an incident that is large.
10. The agent changed if the anchors rule out that the judge explains half of the incident. The judge changed if it explains half by
    the estimate and a quarter for certain. Otherwise it is unknown, and `Attribution.reason` says why.
11. Rounds within the interval of the first day could lie on either side, so they count for neither.

Both conclusions are wrong in 2.5 % where rounds are independent and about normal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from audit.comparison import CONFIDENCE, t_quantile
from audit.fingerprints import digest

ANCHORS = "anchors"
"""Connection of what anchors are judged by, a reserved name."""
_MARK = f"{ANCHORS}."
_LONGEST = 63
FEWEST_ROUNDS = 2
"""Rounds that are needed on either side of a change."""
_RESOLUTION = 0.05
"""Verdicts are coarse: two anchors that moved by a step are added, because a dozen that stood do not prove that none would."""
Rounds = Mapping[datetime, Mapping[str, float]]
"""The verdict on each anchor in each round, oldest round first."""
ERROR = 0.01
"""Chance, for ever, that a tier's judge is wrongly said to have changed."""
MIN_ANCHORS = 8
"""With fewer, no cause is named."""
UP, DOWN = "up", "down"
_BETS = (0.15, 0.4, 0.8)
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


def anchor_project(project: str) -> str:
    """The project under which the anchors of a project are judged; a name that grows too long is cut and told apart by its digest."""
    name = f"{_MARK}{project}"
    return name if len(name) <= _LONGEST else f"{name[:46]}.{digest(project)}"


def is_reserved(name: str) -> bool:
    """Return whether a connection or project of this name would be taken for anchors."""
    return name == ANCHORS or name.startswith(_MARK)


def checked_own_name(name: str) -> str:
    """Return the name of a connection or project that records may be filed under; ValueError for one of anchors."""
    if is_reserved(name):
        raise ValueError("the name is reserved for anchors")
    return name


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
    for verdict in sorted(verdicts, key=lambda verdict: (verdict.at, verdict.anchor)):
        rounds[verdict.at][verdict.anchor] = verdict.value
    return rounds


def sides(rounds: Rounds, before: Sequence[datetime], since: Sequence[datetime]) -> Sides:
    """Return the parts of two stretches of rounds that can be compared."""
    anchors = _judged(rounds, before) & _judged(rounds, since)
    return Sides(tuple(sorted(anchors)), _whole(rounds, before, anchors), _whole(rounds, since, anchors))


def _judged(rounds: Rounds, times: Sequence[datetime]) -> set[str]:
    return {anchor for at in times for anchor in rounds[at]}


def _whole(rounds: Rounds, times: Sequence[datetime], anchors: set[str]) -> tuple[datetime, ...]:
    """The rounds that judged at least half of the anchors: the mean of a few says little of the judge's mood."""
    return tuple(at for at in times if anchors and 2 * len(rounds[at].keys() & anchors) >= len(anchors))


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


def _means(rounds: Rounds, times: Sequence[datetime], anchors: Sequence[str]) -> dict[str, float]:
    """The mean of each anchor over some rounds."""
    values = {anchor: [rounds[at][anchor] for at in times if anchor in rounds[at]] for anchor in anchors}
    return {anchor: math.fsum(known) / len(known) for anchor, known in values.items() if known}


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
    freedom_of_sum = variance**2 / (by_rounds**2 / freedom + by_anchors**2 / (count + 1))
    return Shift(size, variance, freedom_of_sum, by_rounds, len(off))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeChange:
    """The finding of the anchors about a tier's judge."""

    changed: bool
    direction: str | None
    """up or down; None where it has not changed."""
    since: datetime | None
    """First round that shows the change, at the likeliest."""
    evidence: float
    """The outcome of the better of the two bets; 2 / ERROR is the proof."""
    size: float | None
    """Mean of the anchors since then less that before; of the last two rounds where nothing changed. None without
    two rounds on either side."""
    low: float | None
    high: float | None
    anchors: int
    """Anchors that the size rests on."""
    rounds: int


def judge_change(verdicts: Sequence[Verdict]) -> JudgeChange:
    """Return whether a tier's judge has ever changed."""
    rounds = by_round(verdicts)
    times = list(rounds)
    starts = {split: 1 / (split * (split + 1)) for split in range(1, len(times))}
    evidence, direction, best_start = max(_evidence(rounds, starts, sign) for sign in (1, -1)) if starts else (0.0, 0, 0)
    split = best_start if evidence >= 2 / ERROR else max(1, len(times) - FEWEST_ROUNDS)
    compared = sides(rounds, times[:split], times[split:])
    shift = shift_between(rounds, compared)
    reach = math.nan if shift is None else shift.reach()
    changed = evidence >= 2 / ERROR and shift is not None and _is_beyond_moods(shift, direction, len(times))
    return JudgeChange(
        changed=changed,
        direction=(UP if direction > 0 else DOWN) if changed else None,
        since=times[best_start] if changed else None,
        evidence=evidence,
        size=None if shift is None else shift.size,
        low=None if shift is None else shift.size - reach,
        high=None if shift is None else shift.size + reach,
        anchors=len(compared.anchors),
        rounds=len(times),
    )


def _evidence(rounds: Mapping[datetime, Mapping[str, float]], starts: Mapping[int, float], sign: int) -> tuple[float, int, int]:
    """The highest that the bets on a direction ever came to, the direction, and where the bet that gave most began."""
    bets: dict[tuple[int, float], float] = {}
    highest, began = 0.0, min(starts)
    for index, shares in enumerate(_shares(rounds)):
        bets.update({(index, bet): 0.0 for bet in _BETS if index in starts})
        won = {bet: math.fsum(math.log1p(sign * bet * share) for share in shares) for bet in _BETS}
        bets = {key: gain + won[key[1]] for key, gain in bets.items()}
        worth = {(start, bet): starts[start] / len(_BETS) * math.exp(min(gain, 700.0)) for (start, bet), gain in bets.items()}
        # The stake of bets that have not begun lies idle.
        total = math.fsum(worth.values()) + math.fsum(part for start, part in starts.items() if start > index)
        if total > highest:
            highest = total
            # Where verdicts stay as they are, all bets that begin before the change gain alike: the last of them is nearest to it.
            began = max(bets, key=lambda key: (round(bets[key], 9), key[0]))[0] if bets else began
    return highest, sign, began


def _shares(rounds: Mapping[datetime, Mapping[str, float]]) -> Iterator[list[float]]:
    """For each round and each anchor that was judged before: the share of earlier verdicts below, less that above, of all with the new one."""
    earlier: dict[str, list[float]] = defaultdict(list)
    for verdicts in rounds.values():
        shares = []
        for anchor, value in verdicts.items():
            earlier_values = earlier[anchor]
            if earlier_values:
                shares.append(
                    (sum(one < value for one in earlier_values) - sum(one > value for one in earlier_values))
                    / (len(earlier_values) + 1)
                )
            earlier_values.append(value)
        yield shares


def _is_beyond_moods(shift: Shift, direction: int, rounds: int) -> bool:
    """Return whether a shift exceeds the differences between rounds, wherever among them it was looked for."""
    return shift.size * direction > shift.moods_reach(1 - ERROR / rounds)


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
    """Return whether the judge or the agent moved a tier, by the verdicts on its anchors."""
    rounds = by_round(verdicts)
    before = [at for at in rounds if at.date() < moved.earliest]
    since = [at for at in rounds if at.date() > moved.latest and (moved.until is None or at < moved.until)]
    compared = sides(rounds, before[-NEAREST_ROUNDS:], since[:NEAREST_ROUNDS])
    anchors, rounds_counted = len(compared.anchors), (len(before), len(since))
    if compared.anchors:
        rounds_counted = len(compared.before), len(compared.since)
    lacking = _lacking(anchors, *rounds_counted) if rounds else "no_anchors"
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
        rounds_before=rounds_counted[0],
        rounds_since=rounds_counted[1],
    )


def _lacking(anchors: int, before: int, since: int) -> Reason | None:
    if before < FEWEST_ROUNDS:
        return "few_rounds_before"
    if since < FEWEST_ROUNDS:
        return "few_rounds_since"
    return "few_anchors" if anchors < MIN_ANCHORS else None


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
