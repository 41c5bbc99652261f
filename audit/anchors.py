"""Anchors: exchanges that are judged again in rounds, so that a change of their scores shows a change of the judge.

Anchors are filed under a reserved connection, with one project per project that holds its rounds. All values are on a scale
from 0 to 1.

The size of a shift between two stretches of rounds:

1. A judge has moods: on some days it is harsher with every anchor. So the unit is the round, not the verdict. The shift is the
   mean of the later rounds less that of the earlier ones. Its error comes from the variance between rounds, with Student's t.
2. The variance of the change between anchors is added, because other exchanges would have changed by different amounts.
3. Each anchor is compared with itself, so anchors may be added and removed. Rounds that judged fewer than half of them are left out.

Whether the judge changed:

4. If a judge does not change, the verdicts on one anchor are exchangeable: a new verdict has any rank among the earlier ones
   with the same probability. So the share of earlier verdicts below it, less the share above it, is zero on average.
5. A bet on that difference being positive (or negative) is fair, and its winnings multiply over anchors and rounds. A fair bet
   that starts with 1 reaches 1 / a with probability a at most, however often one looks (Ville 1939). Because the bet uses ranks,
   this holds for verdicts of any distribution (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, on
   exchangeability martingales).
6. Bets of several sizes start at every round, each with a part of the stake, so that late changes are also found.
7. The probability that an unchanged judge is ever reported as changed is ERROR per tier, half of it for each direction.
8. The bets assume that the verdicts on different anchors are independent, which moods violate. So the change must also exceed
   the variance between rounds (rules 1 to 3), corrected for the number of rounds that were searched.

Whether the agent or the judge explains an incident:

9. The judge's shift is compared with the size of the incident, not with zero: a small shift does not explain a large incident.
10. The agent changed if the interval excludes that the judge explains half of the incident. The judge changed if it explains
    half by the estimate and a quarter with certainty. Otherwise the cause is unknown, and `Attribution.reason` says why.
11. Rounds within the interval of the first day may be on either side, so they are not used.

Both conclusions are wrong in 2.5% of cases if rounds are independent and about normal.

Whether another judge took over:

12. The series of the watch never mix the scores of two judges: those of another judge are moved by how far apart the judges are. So the
    verdicts of another judge are moved alike before rule 9, or left out if too few anchors were judged by both. What remains is a change
    of a judge under the same name.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Literal, NamedTuple

from audit.comparison import CONFIDENCE, t_quantile
from audit.fingerprints import digest

ANCHORS = "anchors"
"""The reserved connection under which anchors are judged."""
_MARK = f"{ANCHORS}."
_MAX_NAME_LENGTH = 63
MIN_ROUNDS = 2
"""Minimum number of rounds on each side of a change."""
_RESOLUTION = 0.05
"""The resolution of verdicts.

Two anchors that changed by one step are added to each sample, because a dozen unchanged anchors do not prove that no anchor would
change.
"""
Rounds = Mapping[datetime, Mapping[str, float]]
"""The verdict on each anchor in each round, oldest round first."""
ERROR = 0.01
"""Probability that an unchanged judge of a tier is ever reported as changed."""
MIN_ANCHORS = 8
"""Minimum number of anchors for naming a cause."""
UP, DOWN = "up", "down"
_BETS = (0.15, 0.4, 0.8)
MAX_ROUNDS = 14
"""Maximum number of rounds on each side of a change, the nearest ones: an old change of the judge does not explain a new incident."""
MIN_ESTIMATED_SHARE = 0.5
"""Minimum share of an incident that the judge must explain by the estimate to be its cause."""
MIN_CERTAIN_SHARE = 0.25
"""Minimum share of an incident that the judge must explain with certainty to be its cause."""
MIN_WHOLE_SHARE = 0.8
"""Minimum share that the judge must explain by the estimate to explain all of an incident, so that nothing is left for the agent."""
Cause = Literal["agent", "judge"]
Reason = Literal[
    "rules",
    "no_size",
    "not_anchored",
    "no_anchors",
    "few_anchors",
    "few_rounds_before",
    "few_rounds_since",
    "explained",
    "fully_explained",
    "unexplained",
    "unclear",
]
_REASONS: Mapping[Cause | None, Reason] = {"agent": "unexplained", "judge": "explained", None: "unclear"}
"""The reason for each cause, or for not naming one."""


def anchor_project(project: str) -> str:
    """Return the project under which the anchors of a project are judged; a long name is cut and made unique by its digest."""
    name = f"{_MARK}{project}"
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[:46]}.{digest(project)}"


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
    judge: str = ""
    """The judge's name."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of the judge by the anchors: an estimate with its variance and degrees of freedom."""

    size: float
    """Mean since less mean before."""
    variance: float
    freedom: float
    round_variance: float
    """The variance between rounds, which is the entire variance if only these anchors matter."""
    rounds: int

    def round_half_width(self, confidence: float) -> float:
        """Return half the width of the interval of the change of these anchors alone."""
        return t_quantile((1 + confidence) / 2, self.rounds - 2) * math.sqrt(self.round_variance)

    def half_width(self, extra_variance: float = 0.0) -> float:
        """Return half the width of the 95% interval of the size; `extra_variance` is added to its variance."""
        return t_quantile((1 + CONFIDENCE) / 2, self.freedom) * math.sqrt(self.variance + extra_variance)


@dataclass(frozen=True, slots=True)
class Sides:
    """The rounds and anchors that can be compared across a change."""

    anchors: tuple[str, ...]
    """Anchors that were judged before and since."""
    before: tuple[datetime, ...]
    since: tuple[datetime, ...]

    @property
    def has_shift(self) -> bool:
        """True if there are enough rounds and anchors for a size and its error."""
        return len(self.anchors) > 1 and min(len(self.before), len(self.since)) >= MIN_ROUNDS


def group_by_round(verdicts: Sequence[Verdict]) -> dict[datetime, dict[str, float]]:
    """Group the verdicts by round and anchor, in order of time."""
    rounds: dict[datetime, dict[str, float]] = defaultdict(dict)
    for verdict in sorted(verdicts, key=lambda verdict: (verdict.at, verdict.anchor)):
        rounds[verdict.at][verdict.anchor] = verdict.value
    return rounds


def comparable_sides(rounds: Rounds, before: Sequence[datetime], since: Sequence[datetime]) -> Sides:
    """Return the anchors and rounds of two stretches that can be compared."""
    anchors = _list_judged_anchors(rounds, before) & _list_judged_anchors(rounds, since)
    return Sides(tuple(sorted(anchors)), _complete_rounds(rounds, before, anchors), _complete_rounds(rounds, since, anchors))


def _list_judged_anchors(rounds: Rounds, times: Sequence[datetime]) -> set[str]:
    return {anchor for time in times for anchor in rounds[time]}


def _complete_rounds(rounds: Rounds, times: Sequence[datetime], anchors: set[str]) -> tuple[datetime, ...]:
    """Return the rounds that judged at least half of the anchors: the mean of a few shows little of the judge's mood."""
    return tuple(time for time in times if anchors and 2 * len(rounds[time].keys() & anchors) >= len(anchors))


def estimate_shift(rounds: Rounds, compared: Sides) -> Shift | None:
    """Estimate the change of the anchors' mean with its variance; None if there are too few rounds or anchors."""
    if not compared.has_shift:
        return None
    means_before = _average_anchors(rounds, compared.before, compared.anchors)
    means_since = _average_anchors(rounds, compared.since, compared.anchors)
    changes = [means_since[anchor] - mean for anchor, mean in means_before.items() if anchor in means_since]
    if len(changes) < 2:
        return None
    deviations = [
        *_deviations(rounds, compared.before, means_before),
        *_deviations(rounds, compared.since, means_since),
    ]
    per_round = 1 / len(compared.before) + 1 / len(compared.since)
    return _combine_variances(changes, deviations, per_round)


class JudgeShift(NamedTuple):
    """How far apart two judges are: the mean of the later one less that of the earlier one, with its 95% interval."""

    size: float
    low: float
    high: float
    anchors: int
    """The number of anchors that both judged."""

    def scaled(self, scale: float) -> JudgeShift:
        """Return the shift on a scale of another length than 1."""
        return JudgeShift(self.size * scale, self.low * scale, self.high * scale, self.anchors)


def measure_judge_shift(verdicts: Sequence[Verdict], earlier: str, later: str) -> JudgeShift | None:
    """Return how far apart two judges are, by the rounds nearest to the change of the judge; None with too few rounds or anchors."""
    rounds = group_by_round(verdicts)
    judges_of: dict[datetime, set[str]] = defaultdict(set)
    for verdict in verdicts:
        judges_of[verdict.at].add(verdict.judge)
    before = [time for time in rounds if judges_of[time] == {earlier}]
    since = [time for time in rounds if judges_of[time] == {later}]
    compared = comparable_sides(rounds, before[-MAX_ROUNDS:], since[:MAX_ROUNDS])
    shift = estimate_shift(rounds, compared) if len(compared.anchors) >= MIN_ANCHORS else None
    if shift is None:
        return None
    return JudgeShift(shift.size, shift.size - shift.half_width(), shift.size + shift.half_width(), len(compared.anchors))


def _move_to_judge(verdicts: Sequence[Verdict], judge: str) -> list[Verdict]:
    """Return the verdicts as this judge would have given them; those of a judge that cannot be compared with it are left out."""
    moved = [verdict for verdict in verdicts if verdict.judge == judge]
    for other in {verdict.judge for verdict in verdicts} - {judge}:
        shift = measure_judge_shift(verdicts, other, judge)
        if shift is not None:
            moved += [replace(verdict, value=verdict.value + shift.size) for verdict in verdicts if verdict.judge == other]
    return moved


def _average_anchors(rounds: Rounds, times: Sequence[datetime], anchors: Sequence[str]) -> dict[str, float]:
    """Return the mean of each anchor over some rounds."""
    values = {anchor: [rounds[time][anchor] for time in times if anchor in rounds[time]] for anchor in anchors}
    return {anchor: math.fsum(verdicts) / len(verdicts) for anchor, verdicts in values.items() if verdicts}


def _deviations(rounds: Rounds, times: Sequence[datetime], means: Mapping[str, float]) -> list[list[float]]:
    """Return, for each round, the deviations of its verdicts from the mean of their anchor."""
    return [[rounds[time][anchor] - mean for anchor, mean in means.items() if anchor in rounds[time]] for time in times]


def _combine_variances(changes: Sequence[float], deviations: Sequence[Sequence[float]], per_round: float) -> Shift:
    """Estimate the shift from the changes of the anchors.

    `deviations` are, for each round, those of its verdicts from the mean of their anchor. `per_round` is the factor from the variance
    of one round to that of the difference of both means.
    """
    count = len(changes)
    freedom = len(deviations) - 2
    size = math.fsum(changes) / count
    round_deviations = [math.fsum(row) / len(row) for row in deviations]
    round_variance = math.fsum(deviation * deviation for deviation in round_deviations) / freedom * per_round
    squares = math.fsum((change - size) ** 2 for change in changes) + 2 * _RESOLUTION**2
    anchor_variance = squares / ((count + 1) * (count + 2))
    noise = math.fsum(
        (deviation - round_deviation) ** 2
        for row, round_deviation in zip(deviations, round_deviations, strict=True)
        for deviation in row
    ) / ((count - 1) * freedom)
    # Both variances contain the noise of single verdicts, which must count once.
    total = round_variance + anchor_variance - noise * per_round / count
    variance = max(round_variance, anchor_variance, total)
    total_freedom = variance**2 / (round_variance**2 / freedom + anchor_variance**2 / (count + 1))
    return Shift(size, variance, total_freedom, round_variance, len(deviations))


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
    """Mean of the anchors since the change less the mean before it.

    Without a change, the last two rounds are compared with the earlier ones. None with fewer than two rounds on either side.
    """
    low: float | None
    high: float | None
    anchors: int
    """The number of anchors from which the size is computed."""
    rounds: int


def judge_change(verdicts: Sequence[Verdict]) -> JudgeChange:
    """Test whether a tier's judge has ever changed."""
    rounds = group_by_round(verdicts)
    times = list(rounds)
    bet = _find_best_bet(rounds)
    is_significant = bet.evidence >= 2 / ERROR
    split = bet.start if is_significant else max(1, len(times) - MIN_ROUNDS)
    compared = comparable_sides(rounds, times[:split], times[split:])
    shift = estimate_shift(rounds, compared)
    changed = is_significant and shift is not None and _is_beyond_moods(shift, bet.sign, len(times))
    direction = UP if bet.sign > 0 else DOWN
    return JudgeChange(
        changed=changed,
        direction=direction if changed else None,
        since=times[bet.start] if changed else None,
        evidence=bet.evidence,
        size=None if shift is None else shift.size,
        low=None if shift is None else shift.size - shift.half_width(),
        high=None if shift is None else shift.size + shift.half_width(),
        anchors=len(compared.anchors),
        rounds=len(times),
    )


class _Bet(NamedTuple):
    """The best result of the bets on one direction."""

    evidence: float
    """The highest value that all bets together reached."""
    sign: int
    """1 for up, -1 for down."""
    start: int
    """The index of the round at which the best bet started."""


def _find_best_bet(rounds: Rounds) -> _Bet:
    """Return the better of the bets on either direction; without a second round there is nothing to bet on."""
    if len(rounds) < 2:
        return _Bet(0.0, 0, 0)
    return max(_bet_on(rounds, sign) for sign in (1, -1))


def _bet_on(rounds: Rounds, sign: int) -> _Bet:
    """Bet on a direction from every round on, with stakes that sum to less than 1."""
    stakes = {start: 1 / (start * (start + 1)) for start in range(1, len(rounds))}
    log_gains: dict[tuple[int, float], float] = {}
    highest = 0.0
    best_start = 1
    for index, rank_differences in enumerate(_rank_verdicts(rounds)):
        if index in stakes:
            log_gains.update({(index, fraction): 0.0 for fraction in _BETS})
        round_gains = {
            fraction: math.fsum(math.log1p(sign * fraction * difference) for difference in rank_differences)
            for fraction in _BETS
        }
        for start, fraction in log_gains:
            log_gains[start, fraction] += round_gains[fraction]
        values = [stakes[start] / len(_BETS) * math.exp(min(gain, 700.0)) for (start, _), gain in log_gains.items()]
        # Bets that have not started keep their stake.
        total = math.fsum(values) + math.fsum(stake for start, stake in stakes.items() if start > index)
        if total > highest:
            highest = total
            # If verdicts stay constant, all bets that start before the change win equally; the latest of them is nearest to it.
            if log_gains:
                best_start, _ = max(log_gains, key=lambda key: (round(log_gains[key], 9), key[0]))
    return _Bet(highest, sign, best_start)


def _rank_verdicts(rounds: Rounds) -> Iterator[list[float]]:
    """Yield for each round the rank of each new verdict: the share of earlier verdicts below it, less the share above it."""
    earlier: dict[str, list[float]] = defaultdict(list)
    for verdicts in rounds.values():
        differences = []
        for anchor, value in verdicts.items():
            values = earlier[anchor]
            if values:
                below = sum(earlier_value < value for earlier_value in values)
                above = sum(earlier_value > value for earlier_value in values)
                differences.append((below - above) / (len(values) + 1))
            values.append(value)
        yield differences


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
    """Why this cause was named, or why the cause is unknown."""
    judge: float | None = None
    """The shift of the anchors: mean since less mean before."""
    low: float | None = None
    high: float | None = None
    """The ends of the shift's 95% interval."""
    anchors: int = 0
    """The number of anchors that were judged before and since."""
    rounds_before: int = 0
    rounds_since: int = 0
    moved_judges: tuple[str, ...] = ()
    """The names of other judges, whose verdicts were moved by how far apart the judges are."""


def attribute(verdicts: Sequence[Verdict], incident: IncidentChange) -> Attribution:
    """Decide by the verdicts on the anchors whether the judge or the agent caused the change of a tier."""
    judges = Counter(verdict.judge for verdict in verdicts if _is_since(verdict.at, incident))
    judge = max(judges, key=lambda judge: (judges[judge], judge), default=None)
    if judge is not None:
        verdicts = _move_to_judge(verdicts, judge)
    rounds = group_by_round(verdicts)
    before = [time for time in rounds if time.date() < incident.earliest]
    since = [time for time in rounds if _is_since(time, incident)]
    compared = comparable_sides(rounds, before[-MAX_ROUNDS:], since[:MAX_ROUNDS])
    rounds_before = len(before)
    rounds_since = len(since)
    if compared.anchors:
        rounds_before = len(compared.before)
        rounds_since = len(compared.since)
    shortage = _find_shortage(len(compared.anchors), rounds_before, rounds_since) if rounds else "no_anchors"
    shift = None if shortage else estimate_shift(rounds, compared)
    cause = None if shift is None else _decide_cause(shift, incident)
    return Attribution(
        cause=cause,
        reason=shortage or ("fully_explained" if shift is not None and _explains_all(shift, incident) else _REASONS[cause]),
        judge=None if shift is None else shift.size,
        low=None if shift is None else shift.size - shift.half_width(),
        high=None if shift is None else shift.size + shift.half_width(),
        anchors=len(compared.anchors),
        rounds_before=rounds_before,
        rounds_since=rounds_since,
        moved_judges=tuple(sorted({verdict.judge for verdict in verdicts} - {judge})) if judge is not None else (),
    )


def _is_since(time: datetime, incident: IncidentChange) -> bool:
    return time.date() > incident.latest and (incident.until is None or time < incident.until)


def _find_shortage(anchors: int, before: int, since: int) -> Reason | None:
    """Return which of the anchors and rounds there are too few of; None if there are enough."""
    if before < MIN_ROUNDS:
        return "few_rounds_before"
    if since < MIN_ROUNDS:
        return "few_rounds_since"
    return "few_anchors" if anchors < MIN_ANCHORS else None


def _decide_cause(shift: Shift, incident: IncidentChange) -> Cause | None:
    """Return the cause of an incident by the judge's shift, or None if it is unclear; see rules 9 and 10."""
    explained = _signed_shift(shift, incident)
    if explained - MIN_ESTIMATED_SHARE * incident.size + _half_width(shift, incident, MIN_ESTIMATED_SHARE) < 0:
        return "agent"
    is_certain = explained - MIN_CERTAIN_SHARE * incident.size - _half_width(shift, incident, MIN_CERTAIN_SHARE) > 0
    if explained >= MIN_ESTIMATED_SHARE * incident.size and is_certain:
        return "judge"
    return None


def _explains_all(shift: Shift, incident: IncidentChange) -> bool:
    """Return whether the judge is the cause, and the rest of the incident is small and no more than chance."""
    rest = incident.size - _signed_shift(shift, incident)
    is_small = rest <= (1 - MIN_WHOLE_SHARE) * incident.size and rest <= _half_width(shift, incident, 1.0)
    return is_small and _decide_cause(shift, incident) == "judge"


def _signed_shift(shift: Shift, incident: IncidentChange) -> float:
    """Return the shift of the anchors, positive in the incident's direction."""
    return shift.size if incident.direction == UP else -shift.size


def _half_width(shift: Shift, incident: IncidentChange, share: float) -> float:
    """Return half the width of the interval of the judge's shift less this share of the incident."""
    return shift.half_width((share * incident.error) ** 2)
