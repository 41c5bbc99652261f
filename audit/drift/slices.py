"""Slices: takes a difference of two weighted means apart by the values of each label.

1. A label cuts the exchanges into slices. Before and after, slice g has the share p0, p1 of the weight and the mean m0, m1; M0 and M1
   are the means of all. With p and m as the averages of both sides, the change is, exactly,

       M1 - M0  =  sum over g of  (p1 - p0) (m - M0)   the mix moved
                 + sum over g of  p (m1 - m0)          inside the slice it moved

   This is Kitagawa's decomposition (E. Kitagawa 1955, "Components of a difference between two rates", JASA 50), which Oaxaca and Blinder
   found again. The mix is measured from the mean before: a slice that grew counts for how it differs from what was usual, one that
   shrank hardly counts. As shares add up to 1, that changes no sum. A slice that one side has not takes its mean from the other one.
2. Intervals are Student's, 95 %. A session is a cluster: its exchanges are not independent. Variances are closed, by linearisation:
   what a session adds to a share, a mean or a product of both is linear in its weight and total, within the slice and in all. Degrees
   of freedom are Welch's, by the sessions that the slice has on each side.
3. Slices of all labels are ranked by f_within² / p + 2 f_mix² / |p1 - p0|, where f is the part of the change that is explained, in its
   direction. The first term is the log likelihood ratio of "only this slice moved, all of it alike", relative to that of "all moved":
   of two slices that explain as much, the smaller one is the better explanation. The second one is the same of the share that moved;
   it counts twice, because a mix that moves together with the mean seldom does so by chance.
4. The mix changed, and not the slices, where what moved inside all slices of a label together is less than half of the change for
   certain. Slices of few sessions count as one. An agent that came or went is part of the mix if others stayed, and so is history that
   was imported later, also where it ends as live exchanges begin. Of any other label a value that is there on one side alone may be a
   new state of the same agent, such as a build, and counts as a change inside.
5. A slice stands out when it explains more than its share: what it adds less p (M1 - M0) is above 0 beyond chance, with the chance
   divided among all slices that were tried (Bonferroni). When none does, the change is everywhere.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

VALUE, NOT_GIVEN, OTHER = "value", "not_given", "other"
"""Kinds of slices: of one value, of exchanges without the label, of values beyond the first `MOST_VALUES`."""
MOST_VALUES = 50
FEWEST_SESSIONS = 3
"""Sessions that a side has at least; with fewer there is no variance worth the name."""
MIX_COUNTS = 2.0
AGENT, ARRIVAL = "agent", "arrival"
"""The labels of the agent that answered, and of whether an exchange came when it happened (`live`) or more than a day later (`later`)."""
SMALLEST_COMMON = 0.1
"""The share that the slices of both sides have at least on either one, where others came or went: with less there is no comparison."""
EXPLAINS = 0.5
"""The share of a change from which on it is called the doing of the slices rather than of the mix."""
MIX_SHOWN = 5
"""Slices that are named with a mix, those whose share changed most."""
_MIX_ORDER = {ARRIVAL: 0, AGENT: 1}
_COMING_AND_GOING = frozenset(_MIX_ORDER)
"""Labels whose values come and go without a change of any other."""
_NORMAL = NormalDist()
_WIDTH = _NORMAL.inv_cdf(0.975)
_CHANCE = 0.05


class Key(NamedTuple):
    """The name of a slice."""

    label: str
    kind: str
    value: str


_LIVE = Key(ARRIVAL, VALUE, "live")


class Moments(NamedTuple):
    """Sums over the sessions of one side: w and t are a session's weight and weight x score within the slice, W and T in all."""

    sessions: int
    """Sessions with exchanges in the slice."""
    exchanges: int
    w: float
    t: float
    ww: float
    wt: float
    tt: float
    w_all: float
    """Sum of w W."""
    wt_all: float
    """Sum of w T."""
    tw_all: float
    """Sum of t W."""
    t_all: float
    """Sum of t T."""


NOTHING = Moments(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Part(NamedTuple):
    """An amount in points of the score, with its 95 % interval."""

    amount: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One slice and its part in the change."""

    key: Key
    share_before: float
    share_after: float
    mean_before: float | None
    """None where the slice was not there."""
    mean_after: float | None
    exchanges_before: int
    exchanges_after: int
    mix: Part
    within: Part
    explained: float
    """Part of the change that both make up together; below 0 where they work against it, above 1 where others do."""
    score: float
    """By which slices are ranked."""
    stands_out: bool
    same_as: tuple[Key, ...] = ()
    """Slices of other labels that hold exactly the same exchanges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A change that comes from the shares of a label's slices."""

    label: str
    within: Part
    """What moved inside the slices, all together."""
    all_better: bool
    """True if the mean of every slice with enough sessions moved against the change, and all together for certain."""
    moved: tuple[Slice, ...]
    """The slices whose shares changed most, the largest change first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A change, taken apart."""

    change: Part
    slices: tuple[Slice, ...]
    """All that were tried, the best explanation first."""
    tried: int
    """The number of them that hold different exchanges."""
    mix: Mix | None = None
    """The label whose shares explain the change, if one does."""

    @property
    def unexplained(self) -> float:
        """Part of the change that the best slice leaves, in points of the score; all of it where none stands out."""
        best = self.slices[0] if self.slices and self.slices[0].stands_out else None
        return self.change.amount * (1.0 if best is None else 1.0 - best.explained)


class _Side(NamedTuple):
    """A slice on one side: its share and its mean, and all there is on that side."""

    own: Moments
    all: Moments

    @property
    def share(self) -> float:
        return self.own.w / self.all.w

    @property
    def mean(self) -> float | None:
        return self.own.t / self.own.w if self.own.w > 0 else None

    @property
    def whole(self) -> float:
        return self.all.t / self.all.w

    def variance(self, of_share: float, of_mean: float, of_whole: float) -> float:
        """The variance of a sum of share, mean and mean of all with these coefficients."""
        if self.all.sessions < 2:
            return 0.0
        own, total = self.own, self.all
        mean = self.mean or 0.0
        per_mean = of_mean / own.w if own.w > 0 else 0.0
        a = of_share / total.w - per_mean * mean
        b = per_mean
        c = -(of_share * self.share + of_whole * self.whole) / total.w
        d = of_whole / total.w
        squares = a * a * own.ww + b * b * own.tt + c * c * total.ww + d * d * total.tt
        crossed = (
            a * b * own.wt + a * c * own.w_all + a * d * own.wt_all + b * c * own.tw_all + b * d * own.t_all + c * d * total.wt
        )
        return max(0.0, squares + 2 * crossed) * total.sessions / (total.sessions - 1)


class _Doubt(NamedTuple):
    """The uncertainty of an amount: its variance, and how well that itself is known."""

    variance: float
    freedom: float

    @classmethod
    def of(cls, before: _Side, after: _Side, first: tuple[float, float, float], second: tuple[float, float, float]) -> _Doubt:
        """The doubt of an amount with these coefficients on both sides, with Welch's degrees of freedom."""
        sides = [
            (one.variance(*coefficients), max(1, (one.own.sessions or one.all.sessions) - 1))
            for one, coefficients in ((before, first), (after, second))
        ]
        variance = sum(part for part, _ in sides)
        below = sum(part * part / freedom for part, freedom in sides)
        return cls(variance, max(1.0, variance * variance / below) if below > 0 else math.inf)

    def half(self, width: float) -> float:
        """Half of an interval that is so many standard errors wide where the variance is known: Student's, by Fisher's expansion."""
        wider = (width**3 + width) / (4 * self.freedom)
        wider += (5 * width**5 + 16 * width**3 + 3 * width) / (96 * self.freedom**2)
        return (width + wider) * math.sqrt(self.variance)


def explain(
    before: dict[Key, Moments],
    after: dict[Key, Moments],
    whole: tuple[Moments, Moments],
    versions: Collection[str] = (),
) -> Explanation | None:
    """Explain a change by slices; None with too few sessions, or no change.

    `whole` has the moments of all scores before and after. Labels with a single slice say nothing, and are left out. `versions` are the
    labels whose values are states of an agent, such as its version or model: their shares are no mix.
    """
    if min(side.sessions for side in whole) < FEWEST_SESSIONS or min(side.w for side in whole) <= 0:
        return None
    first, second = (_Side(side, side) for side in whole)
    change = second.whole - first.whole
    if abs(change) < 1e-12:
        return None
    doubt = _Doubt.of(first, second, (0, 0, 1), (0, 0, 1))
    pairs = _pairs(before, after, whole)
    groups: dict[object, list[Key]] = defaultdict(list)
    for key, (side, other) in pairs.items():
        groups[side.own, other.own].append(key)
    width = _NORMAL.inv_cdf(1 - _CHANCE / 2 / max(1, len(groups)))
    explained = [
        _slice(key, *pairs[key], width, tuple(other for other in sorted(keys) if other != key))
        for keys in groups.values()
        for key in keys
    ]
    # Ranks are compared to nine places, so that equal explanations stand in the order of their names.
    explained.sort(key=lambda side: (-round(side.score, 9), side.key))
    return Explanation(_part(change, doubt), tuple(explained), len(groups), _find_mix(pairs, explained, change, versions))


def _find_mix(
    pairs: Mapping[Key, tuple[_Side, _Side]], slices: Sequence[Slice], change: float, versions: Collection[str]
) -> Mix | None:
    """Find the label whose shares explain a change: of several, arrivals and agents first, then the one that leaves least inside its slices."""
    by_label: dict[str, list[tuple[_Side, _Side]]] = defaultdict(list)
    for key, sides in pairs.items():
        if key.label not in versions:
            by_label[key.label].append(sides)
    width = _NORMAL.inv_cdf(1 - _CHANCE / max(1, len(by_label)))
    sign, mixes = math.copysign(1.0, change), []
    for label, pairs_of_label in by_label.items():
        pooled = _pool_small(pairs_of_label)
        common = [pair for pair in pooled if all(side.mean is not None for side in pair)]
        stays = common and min(sum(pair[place].share for pair in common) for place in (0, 1)) >= SMALLEST_COMMON
        # Where imported history ends and live exchanges begin, the levels of two sources meet, whatever the agents did. The other way
        # round it counts: records that come late after a change may be late for the same reason.
        is_seam = label == ARRIVAL and _LIVE in pairs and pairs[_LIVE][0].mean is None
        amount, doubt = _within(pooled, counts_new=label not in _COMING_AND_GOING or not (stays or is_seam))
        if sign * amount + doubt.half(width) < EXPLAINS * abs(change):
            moves = [_both(before.mean, after.mean) for before, after in common]
            own = sorted(
                (part for part in slices if part.key.label == label),
                key=lambda part: (-abs(part.share_after - part.share_before), part.key),
            )
            is_better = all(sign * (mean1 - mean0) < 0 for mean0, mean1 in moves) and sign * amount + doubt.half(_WIDTH) < 0
            mix = Mix(label=label, within=_part(amount, doubt), all_better=is_better, moved=tuple(own[:MIX_SHOWN]))
            mixes.append((_MIX_ORDER.get(label, len(_MIX_ORDER)), sign * amount, mix))
    return min(mixes, key=lambda ranked: ranked[:2])[2] if mixes else None


def _pool_small(sides: Sequence[tuple[_Side, _Side]]) -> list[tuple[_Side, _Side]]:
    """The slices of a label; those that are on both sides with too few sessions for a variance are one."""
    small = [
        pair
        for pair in sides
        if all(side.own.w > 0 for side in pair) and any(side.own.sessions < FEWEST_SESSIONS for side in pair)
    ]
    if not small:
        return list(sides)
    pooled = [
        _Side(Moments(*map(sum, zip(*(pair[place].own for pair in small), strict=True))), small[0][place].all)
        for place in (0, 1)
    ]
    return [*(pair for pair in sides if pair not in small), (pooled[0], pooled[1])]


def _within(sides: Iterable[tuple[_Side, _Side]], *, counts_new: bool) -> tuple[float, _Doubt]:
    """Return what moved inside slices, and its doubt; with `counts_new` also the slices that one side has not."""
    amount, variance, below = 0.0, 0.0, 0.0
    for before, after in sides:
        known0, known1 = _both(before.mean, after.mean)
        if before.mean is not None and after.mean is not None:
            share = (before.share + after.share) / 2
            amount += share * (known1 - known0)
        elif counts_new:
            share = after.share - before.share
            amount += share * (known1 - before.whole)
        else:
            continue
        for side in (before, after):
            freedom = side.own.sessions - 1
            if freedom > 0:
                part = side.variance(0.0, share, 0.0) * side.own.sessions / freedom
                variance += part
                below += part * part / freedom
    return amount, _Doubt(variance, max(1.0, variance * variance / below) if below > 0 else math.inf)


def _pairs(
    before: dict[Key, Moments], after: dict[Key, Moments], whole: tuple[Moments, Moments]
) -> dict[Key, tuple[_Side, _Side]]:
    """Both sides of each slice of the labels that cut at all."""
    keys = sorted({*before, *after})
    many: dict[str, int] = defaultdict(int)
    for key in keys:
        many[key.label] += 1
    return {
        key: (_Side(before.get(key, NOTHING), whole[0]), _Side(after.get(key, NOTHING), whole[1]))
        for key in keys
        if many[key.label] > 1
    }


def _slice(key: Key, before: _Side, after: _Side, width: float, same_as: tuple[Key, ...]) -> Slice:
    change = after.whole - before.whole
    mean0, mean1 = before.mean, after.mean
    known0, known1 = _both(mean0, mean1)
    share, grew, moved = (before.share + after.share) / 2, after.share - before.share, known1 - known0
    level = (known0 + known1) / 2 - before.whole
    mix, within = grew * level, share * moved
    # How the average of both means follows each of them: alone where the other side has none.
    follows0, follows1 = (0.5 if mean1 is not None else 1.0, 0.5 if mean0 is not None else 1.0)
    lasts = share if mean0 is not None and mean1 is not None else 0.0
    of_mix0, of_mix1 = (-level, grew * follows0, -grew), (level, grew * follows1, 0.0)
    of_within0, of_within1 = (moved / 2, -lasts, 0.0), (moved / 2, lasts, 0.0)
    excess = mix + within - share * change
    of_excess0 = _sum(of_mix0, of_within0, (-change / 2, 0.0, share))
    of_excess1 = _sum(of_mix1, of_within1, (-change / 2, 0.0, -share))
    doubt = _Doubt.of(before, after, of_excess0, of_excess1)
    return Slice(
        key=key,
        share_before=before.share,
        share_after=after.share,
        mean_before=mean0,
        mean_after=mean1,
        exchanges_before=before.own.exchanges,
        exchanges_after=after.own.exchanges,
        mix=_part(mix, _Doubt.of(before, after, of_mix0, of_mix1)),
        within=_part(within, _Doubt.of(before, after, of_within0, of_within1)),
        explained=(mix + within) / change,
        score=_squared(within / change, share) + MIX_COUNTS * _squared(mix / change, abs(grew)),
        stands_out=math.copysign(1.0, change) * excess > max(doubt.half(width), 1e-9),
        same_as=same_as,
    )


def _both(first_mean: float | None, second_mean: float | None) -> tuple[float, float]:
    """Both means, each standing in for a missing one."""
    first = second_mean if first_mean is None else first_mean
    second = first_mean if second_mean is None else second_mean
    return first or 0.0, second or 0.0


def _sum(*coefficients: tuple[float, float, float]) -> tuple[float, float, float]:
    shares, means, wholes = zip(*coefficients, strict=True)
    return sum(shares), sum(means), sum(wholes)


def _squared(explained: float, share: float) -> float:
    return max(0.0, explained) ** 2 / share if share > 0 else 0.0


def _part(amount: float, doubt: _Doubt) -> Part:
    half = doubt.half(_WIDTH)
    return Part(amount, amount - half, amount + half)
