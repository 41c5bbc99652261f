"""Anchors: exchanges that are judged again in rounds, so that a change of their scores shows a change of the judge.

Anchors are filed under a reserved connection, with one project per project that holds its rounds. All values are on a scale
from 0 to 1.

The size of a shift between two stretches of rounds:

1. A judge has moods: on some days it is harsher with every anchor. So the unit is the round, not the verdict. The shift is the
   mean of the later rounds less that of the earlier ones. Its error comes from the variance between rounds, with Student's t.
2. The variance of the change between anchors is added, because other exchanges would have changed by different amounts.
3. Each anchor is compared with itself, so anchors may come and go. Rounds that judged fewer than half of them are left out.

Whether the judge changed:

4. If a judge does not change, the verdicts on one anchor are exchangeable: a new verdict has any rank among the earlier ones
   with the same probability. So the share of earlier verdicts below it, less the share above it, is zero on average.
5. A bet on that difference being positive (or negative) is fair, and its winnings multiply over anchors and rounds. A fair bet
   that starts with 1 reaches 1 / a with probability a at most, however often one looks (Ville 1939). Using ranks makes this
   hold for verdicts of any distribution (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, on
   exchangeability martingales).
6. Bets of several sizes start at every round, each with a part of the stake, so that late changes are found as well.
7. The probability that an unchanged judge is ever reported as changed is ERROR per tier, half of it for each direction.
8. The bets assume that the verdicts on different anchors are independent, which moods violate. So the change must also exceed
   the variance between rounds (rules 1 to 3), corrected for the number of rounds that were searched.

Whether the agent or the judge explains an incident:

9. The judge's shift is compared with the size of the incident, not with zero: a small shift does not explain a large incident.
10. The agent changed if the interval excludes that the judge explains half of the incident. The judge changed if it explains
    half by the estimate and a quarter with certainty. Otherwise the cause is unknown, and `Attribution.reason` says why.
11. Rounds within the interval of the first day may be on either side, so they are not used.

Both conclusions are wrong in 2.5 % of cases if rounds are independent and about normal.
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
"""The reserved connection under which anchors are judged."""
_MARK = f"{ANCHORS}."
_LONGEST = 63
FEWEST_ROUNDS = 2
"""Fewest rounds on each side of a change."""
_RESOLUTION = 0.05
"""The resolution of verdicts.

Two anchors that moved by one step are added to each sample, because a dozen anchors without any change do not prove that none
would change.
"""
Rounds = Mapping[datetime, Mapping[str, float]]
"""The verdict on each anchor in each round, oldest round first."""
ERROR = 0.01
"""Probability that an unchanged judge of a tier is ever reported as changed."""
MIN_ANCHORS = 8
"""Fewest anchors for naming a cause."""
UP, DOWN = "up", "down"
_BETS = (0.15, 0.4, 0.8)
NEAREST_ROUNDS = 14
"""Most rounds on each side of a change, the nearest ones: a judge that changed long ago does not explain today's incident."""
EXPLAINS = 0.5
"""Share of an incident from which on the judge rather than the agent is its cause."""
CERTAIN = 0.25
"""Share of an incident that the judge must explain with certainty to be its cause."""
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


_REASONS: Mapping[Cause | None, Reason] = {"agent": "unexplained", "judge": "explained", None: "unclear"}
"""The reason for each cause, or for not naming one."""


def anchor_project(project: str) -> str:
    """Return the project under which the anchors of a project are judged; a long name is cut and made unique by its digest."""
    name = f"{_MARK}{project}"
    return name if len(name) <= _LONGEST else f"{name[:46]}.{digest(project)}"


def is_reserved(name: str) -> bool:
    """Return whether a name is reserved for the connection or the projects of anchors."""
    return name == ANCHORS or name.startswith(_MARK)


def refuse_reserved_name(name: str) -> str:
    """Return the name of a connection or project; raise ValueError if it is reserved for anchors."""
    if is_reserved(name):
        raise ValueError("the name is reserved for anchors")
    return name


@dataclass(frozen=True, slots=True)
class Verdict:
    """A tier's verdict on an anchor in a round."""

    anchor: str
    at: datetime
    """The start of the round, the same for all its verdicts."""
    value: float
    """0 to 1."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of the judge by the anchors: an estimate with its variance and degrees of freedom."""

    size: float
    """Mean since less mean before."""
    variance: float
    freedom: float
    by_rounds: float
    """The part of the variance between rounds, which is the whole variance if only these anchors matter."""
    rounds: int

    def round_half_width(self, confidence: float) -> float:
        """Return half the width of the interval of the change of these anchors alone."""
        return t_quantile((1 + confidence) / 2, self.rounds - 2) * math.sqrt(self.by_rounds)

    def half_width(self, more: float = 0.0) -> float:
        """Return half the width of the 95 % interval of the size; `more` is further variance."""
        return t_quantile((1 + CONFIDENCE) / 2, self.freedom) * math.sqrt(self.variance + more)


@dataclass(frozen=True, slots=True)
class Sides:
    """The rounds and anchors that can be compared across a change."""

    anchors: tuple[str, ...]
    """Anchors that were judged before and since."""
    before: tuple[datetime, ...]
    since: tuple[datetime, ...]

    @property
    def shift_is_known(self) -> bool:
        """True if there are enough rounds and anchors for a size and its error."""
        return len(self.anchors) > 1 and min(len(self.before), len(self.since)) >= FEWEST_ROUNDS


def group_by_round(verdicts: Sequence[Verdict]) -> dict[datetime, dict[str, float]]:
    """Group the verdicts by round and anchor, in order of time."""
    rounds: dict[datetime, dict[str, float]] = defaultdict(dict)
    for verdict in sorted(verdicts, key=lambda verdict: (verdict.at, verdict.anchor)):
        rounds[verdict.at][verdict.anchor] = verdict.value
    return rounds


def comparable_sides(rounds: Rounds, before: Sequence[datetime], since: Sequence[datetime]) -> Sides:
    """Return the anchors and rounds of two stretches that can be compared."""
    anchors = _judged_anchors(rounds, before) & _judged_anchors(rounds, since)
    return Sides(tuple(sorted(anchors)), _complete_rounds(rounds, before, anchors), _complete_rounds(rounds, since, anchors))


def _judged_anchors(rounds: Rounds, times: Sequence[datetime]) -> set[str]:
    return {anchor for time in times for anchor in rounds[time]}


def _complete_rounds(rounds: Rounds, times: Sequence[datetime], anchors: set[str]) -> tuple[datetime, ...]:
    """Return the rounds that judged at least half of the anchors: the mean of a few shows little of the judge's mood."""
    return tuple(time for time in times if anchors and 2 * len(rounds[time].keys() & anchors) >= len(anchors))


def estimate_shift(rounds: Rounds, compared: Sides) -> Shift | None:
    """Estimate the change of the anchors' mean with its variance; None if there are too few rounds or anchors."""
    if not compared.shift_is_known:
        return None
    means = [_anchor_means(rounds, compared.before, compared.anchors), _anchor_means(rounds, compared.since, compared.anchors)]
    changes = [means[1][anchor] - means[0][anchor] for anchor in compared.anchors if anchor in means[0] and anchor in means[1]]
    if len(changes) < 2:
        return None
    deviations = [
        [rounds[time][anchor] - means_of_side[anchor] for anchor in compared.anchors if anchor in rounds[time]]
        for times, means_of_side in zip((compared.before, compared.since), means, strict=True)
        for time in times
    ]
    per_round = 1 / len(compared.before) + 1 / len(compared.since)
    return _estimate(changes, deviations, per_round)


def _anchor_means(rounds: Rounds, times: Sequence[datetime], anchors: Sequence[str]) -> dict[str, float]:
    """Return the mean of each anchor over some rounds."""
    values = {anchor: [rounds[time][anchor] for time in times if anchor in rounds[time]] for anchor in anchors}
    return {anchor: math.fsum(verdicts) / len(verdicts) for anchor, verdicts in values.items() if verdicts}


def _estimate(changes: Sequence[float], deviations: Sequence[Sequence[float]], per_round: float) -> Shift:
    """Estimate the shift; `deviations` are those of each round's verdicts from the mean of their anchor."""
    count, freedom = len(changes), len(deviations) - 2
    size = math.fsum(changes) / count
    round_deviations = [math.fsum(row) / len(row) for row in deviations]
    by_rounds = math.fsum(round_deviation * round_deviation for round_deviation in round_deviations) / freedom * per_round
    squares = math.fsum((change - size) ** 2 for change in changes) + 2 * _RESOLUTION**2
    by_anchors = squares / ((count + 1) * (count + 2))
    noise = math.fsum(
        (deviation - round_deviation) ** 2
        for row, round_deviation in zip(deviations, round_deviations, strict=True)
        for deviation in row
    ) / ((count - 1) * freedom)
    # Both variances contain the noise of single verdicts, which must count once.
    variance = max(by_rounds, by_anchors, by_rounds + by_anchors - noise * per_round / count)
    freedom_of_sum = variance**2 / (by_rounds**2 / freedom + by_anchors**2 / (count + 1))
    return Shift(size, variance, freedom_of_sum, by_rounds, len(deviations))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeChange:
    """The result of testing whether a tier's judge changed."""

    changed: bool
    direction: str | None
    """up or down; None if the judge did not change."""
    since: datetime | None
    """The most probable first round of the change."""
    evidence: float
    """The highest value of the better bet; 2 / ERROR is significant."""
    size: float | None
    """Mean of the anchors since the change less that before;

    without a change, since the last two rounds. None with fewer than two rounds on either side.
    """
    low: float | None
    high: float | None
    anchors: int
    """The number of anchors that the size rests on."""
    rounds: int


def judge_change(verdicts: Sequence[Verdict]) -> JudgeChange:
    """Test whether a tier's judge has ever changed."""
    rounds = group_by_round(verdicts)
    times = list(rounds)
    stakes = {split: 1 / (split * (split + 1)) for split in range(1, len(times))}
    evidence, direction, best_start = max(_bet_evidence(rounds, stakes, sign) for sign in (1, -1)) if stakes else (0.0, 0, 0)
    split = best_start if evidence >= 2 / ERROR else max(1, len(times) - FEWEST_ROUNDS)
    compared = comparable_sides(rounds, times[:split], times[split:])
    shift = estimate_shift(rounds, compared)
    half_width = math.nan if shift is None else shift.half_width()
    changed = evidence >= 2 / ERROR and shift is not None and _is_beyond_moods(shift, direction, len(times))
    return JudgeChange(
        changed=changed,
        direction=(UP if direction > 0 else DOWN) if changed else None,
        since=times[best_start] if changed else None,
        evidence=evidence,
        size=None if shift is None else shift.size,
        low=None if shift is None else shift.size - half_width,
        high=None if shift is None else shift.size + half_width,
        anchors=len(compared.anchors),
        rounds=len(times),
    )


def _bet_evidence(
    rounds: Mapping[datetime, Mapping[str, float]], starts: Mapping[int, float], sign: int
) -> tuple[float, int, int]:
    """Return the highest value of the bets on a direction, the direction, and the round at which the best bet started."""
    bets: dict[tuple[int, float], float] = {}
    highest, best_start = 0.0, min(starts)
    for index, shares in enumerate(_rank_shares(rounds)):
        bets.update({(index, bet): 0.0 for bet in _BETS if index in starts})
        gains = {bet: math.fsum(math.log1p(sign * bet * share) for share in shares) for bet in _BETS}
        bets = {key: log_gain + gains[key[1]] for key, log_gain in bets.items()}
        worth = {
            (start, bet): starts[start] / len(_BETS) * math.exp(min(log_gain, 700.0)) for (start, bet), log_gain in bets.items()
        }
        # Bets that have not started keep their stake.
        total = math.fsum(worth.values()) + math.fsum(part for start, part in starts.items() if start > index)
        if total > highest:
            highest = total
            # If verdicts stay constant, all bets that start before the change win equally; the latest of them is nearest to it.
            best_start = max(bets, key=lambda key: (round(bets[key], 9), key[0]))[0] if bets else best_start
    return highest, sign, best_start


def _rank_shares(rounds: Mapping[datetime, Mapping[str, float]]) -> Iterator[list[float]]:
    """Yield for each round the rank of each new verdict: the share of earlier verdicts below it, less the share above it."""
    earlier: dict[str, list[float]] = defaultdict(list)
    for verdicts in rounds.values():
        shares = []
        for anchor, value in verdicts.items():
            earlier_values = earlier[anchor]
            if earlier_values:
                shares.append(
                    (
                        sum(earlier_value < value for earlier_value in earlier_values)
                        - sum(earlier_value > value for earlier_value in earlier_values)
                    )
                    / (len(earlier_values) + 1)
                )
            earlier_values.append(value)
        yield shares


def _is_beyond_moods(shift: Shift, direction: int, rounds: int) -> bool:
    """Return whether a shift exceeds the variance between rounds, corrected for searching all of them."""
    return shift.size * direction > shift.round_half_width(1 - ERROR / rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentChange:
    """The change of a tier in an incident, on the scale from 0 to 1."""

    direction: str
    """up or down."""
    size: float
    """Always above 0."""
    error: float = 0.0
    """Standard error of the size; 0 if the rule has none."""
    earliest: date
    latest: date
    """The interval of the first day, both ends included."""
    until: datetime | None = None
    """End of the incident's data; later rounds are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The cause of a tier's change, and the reason."""

    cause: Cause | None
    """None if the cause is unknown."""
    reason: Reason
    """Why this cause was named, or none."""
    judge: float | None = None
    """The shift of the anchors: mean since less mean before."""
    low: float | None = None
    high: float | None = None
    """The ends of its 95 % interval."""
    anchors: int = 0
    """Anchors that were judged before and since."""
    rounds_before: int = 0
    rounds_since: int = 0


def attribute(verdicts: Sequence[Verdict], incident: IncidentChange) -> Attribution:
    """Decide by the verdicts on its anchors whether the judge or the agent changed a tier."""
    rounds = group_by_round(verdicts)
    before = [at for at in rounds if at.date() < incident.earliest]
    since = [at for at in rounds if at.date() > incident.latest and (incident.until is None or at < incident.until)]
    compared = comparable_sides(rounds, before[-NEAREST_ROUNDS:], since[:NEAREST_ROUNDS])
    rounds_before, rounds_since = len(before), len(since)
    if compared.anchors:
        rounds_before, rounds_since = len(compared.before), len(compared.since)
    lacking = _lacking(len(compared.anchors), rounds_before, rounds_since) if rounds else "no_anchors"
    shift = None if lacking else estimate_shift(rounds, compared)
    cause = None if shift is None else _cause(shift, incident)
    return Attribution(
        cause=cause,
        reason=lacking or _REASONS[cause],
        judge=None if shift is None else shift.size,
        low=None if shift is None else shift.size - shift.half_width(),
        high=None if shift is None else shift.size + shift.half_width(),
        anchors=len(compared.anchors),
        rounds_before=rounds_before,
        rounds_since=rounds_since,
    )


def _lacking(anchors: int, before: int, since: int) -> Reason | None:
    if before < FEWEST_ROUNDS:
        return "few_rounds_before"
    if since < FEWEST_ROUNDS:
        return "few_rounds_since"
    return "few_anchors" if anchors < MIN_ANCHORS else None


def _cause(shift: Shift, incident: IncidentChange) -> Cause | None:
    explained = shift.size if incident.direction == UP else -shift.size

    def excess_interval(share: float) -> tuple[float, float]:
        """Return the interval of the judge's shift less this share of the incident."""
        centre, half_width = explained - share * incident.size, shift.half_width((share * incident.error) ** 2)
        return centre - half_width, centre + half_width

    if excess_interval(EXPLAINS)[1] < 0:
        return "agent"
    if explained >= EXPLAINS * incident.size and excess_interval(CERTAIN)[0] > 0:
        return "judge"
    return None
