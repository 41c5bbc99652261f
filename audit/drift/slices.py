"""Slices: decompose a difference of two weighted means by the values of each label.

1. A label cuts the exchanges into slices. Before and after, slice g has the share p0, p1 of the weight and the mean m0, m1; M0 and M1
   are the means of all exchanges. With p and m as the averages of both sides, the change is exactly

       M1 - M0  =  sum over g of  (p1 - p0) (m - M0)   change of the mix
                 + sum over g of  p (m1 - m0)          change within the slice

   This is Kitagawa's decomposition (E. Kitagawa 1955, "Components of a difference between two rates", JASA 50), which Oaxaca and Blinder
   also found. The mix is measured from M0, so a slice that grew contributes by its difference from the usual mean, and a slice that shrank
   hardly contributes. Since shares add up to 1, this choice changes no sum. A slice that is missing on one side takes its mean from the
   other side.
2. Intervals are Student's, 95%. A session is a cluster, because its exchanges are not independent. Variances are in closed form, by
   linearization: a session's contribution to a share, a mean or their product is linear in its weight and total, within the slice and
   overall.
   Degrees of freedom are Welch's, by the sessions of the slice on each side.
3. Slices of all labels are ranked by f_within² / p + 2 f_mix² / |p1 - p0|, where f is the explained part of the change, in its direction.
   The first term is the log likelihood ratio of "only this slice changed, by the same amount throughout", relative to "everything changed":
   of two slices that explain equally much, the smaller one is the better explanation. The second term is the same for the changed share. It
   counts twice, because the mix seldom changes together with the mean by chance.
4. The mix changed, rather than the slices, if the change within all slices of a label is significantly less than half of the total. Slices
   with few sessions are pooled. An agent that appeared or disappeared is part of the mix if other agents stayed. History that was imported
   later is also part of the mix, even if live exchanges begin where it ends. For any other label, a value on one side only may be a new
   state of the same agent, such as a build, and counts as a change within.
5. A slice stands out if it explains significantly more than its share: its part less p (M1 - M0) is above 0, with a Bonferroni correction
   for the number of slices. If no slice stands out, the change is everywhere.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

VALUE, NOT_GIVEN, OTHER = "value", "not_given", "other"
"""Kinds of slices: one value, exchanges without the label, and all values beyond the first `MAX_VALUES`."""
MAX_VALUES = 50
MIN_SESSIONS = 3
"""Minimum number of sessions on each side; with fewer, the variance cannot be estimated."""
MIX_FACTOR = 2.0
AGENT, ARRIVAL = "agent", "arrival"
"""The label of the agent, and the label of whether an exchange was received at once (`live`) or more than a day later (`later`)."""
MIN_COMMON_SHARE = 0.1
"""Minimum share, on either side, of the slices that exist on both sides; below this, the sides cannot be compared."""
MAX_WITHIN_SHARE = 0.5
"""Maximum share of the change within the slices for which the mix explains the change."""
MAX_MIX_SLICES = 5
"""Maximum number of slices that are listed with a mix."""
_MIX_ORDER = {ARRIVAL: 0, AGENT: 1}
_ARRIVAL_LABELS = frozenset(_MIX_ORDER)
"""Labels whose values may appear and disappear without a change of the others."""
_NORMAL = NormalDist()
_QUANTILE = _NORMAL.inv_cdf(0.975)
_ERROR_RATE = 0.05


class Key(NamedTuple):
    """The name of a slice."""

    label: str
    kind: str
    value: str


_LIVE = Key(ARRIVAL, VALUE, "live")


class Moments(NamedTuple):
    """Sums over the sessions of one side: w and t are a session's weight and weight x score in the slice, W and T are those overall."""

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


NO_MOMENTS = Moments(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Part(NamedTuple):
    """An amount in points of the score, with its 95% interval."""

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
    """None if the slice did not exist."""
    mean_after: float | None
    exchanges_before: int
    exchanges_after: int
    mix: Part
    within: Part
    explained: float
    """Mix and within as a fraction of the change; below 0 if they oppose it, above 1 if other slices do."""
    score: float
    """The rank of the slice, the highest first."""
    stands_out: bool
    same_as: tuple[Key, ...] = ()
    """Slices of other labels with exactly the same exchanges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A change that comes from the shares of a label's slices."""

    label: str
    within: Part
    """The change within all slices together."""
    all_better: bool
    """True if every slice with enough sessions changed in the opposite direction, and their sum did so significantly."""
    changed: tuple[Slice, ...]
    """The slices whose shares changed most, the largest change first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A change with its decomposition by slices."""

    change: Part
    slices: tuple[Slice, ...]
    """All slices, the best explanation first."""
    tried: int
    """The number of slices compared; slices with the same exchanges count once."""
    mix: Mix | None = None
    """The label whose shares explain the change, if one does."""

    @property
    def unexplained(self) -> float:
        """The part of the change that the best slice leaves, in points of the score; all of it if no slice stands out."""
        if not self.slices or not self.slices[0].stands_out:
            return self.change.amount
        return self.change.amount * (1.0 - self.slices[0].explained)


class _Coefficients(NamedTuple):
    """The coefficients of an amount that is linear in a slice's share, its mean and the overall mean."""

    share: float
    mean: float
    overall_mean: float

    def plus(self, other: _Coefficients) -> _Coefficients:
        """Return the coefficients of the sum of two amounts."""
        return _Coefficients(self.share + other.share, self.mean + other.mean, self.overall_mean + other.overall_mean)


class _SliceSide(NamedTuple):
    """A slice on one side of the change, and all exchanges on that side."""

    moments: Moments
    all: Moments

    @property
    def share(self) -> float:
        return self.moments.w / self.all.w

    @property
    def mean(self) -> float | None:
        return self.moments.t / self.moments.w if self.moments.w > 0 else None

    @property
    def overall_mean(self) -> float:
        return self.all.t / self.all.w

    def variance(self, coefficients: _Coefficients) -> float:
        """Return the variance of the amount with these coefficients."""
        if self.all.sessions < 2:
            return 0.0
        slice_moments = self.moments
        total = self.all
        # A session adds a w + b t + c W + d T to the amount.
        b = coefficients.mean / slice_moments.w if slice_moments.w > 0 else 0.0
        a = coefficients.share / total.w - b * (self.mean or 0.0)
        c = -(coefficients.share * self.share + coefficients.overall_mean * self.overall_mean) / total.w
        d = coefficients.overall_mean / total.w
        squares = a * a * slice_moments.ww + b * b * slice_moments.tt + c * c * total.ww + d * d * total.tt
        crossed = (
            a * b * slice_moments.wt
            + a * c * slice_moments.w_all
            + a * d * slice_moments.wt_all
            + b * c * slice_moments.tw_all
            + b * d * slice_moments.t_all
            + c * d * total.wt
        )
        return max(0.0, squares + 2 * crossed) * total.sessions / (total.sessions - 1)


class _Uncertainty(NamedTuple):
    """The variance of an amount, and the degrees of freedom of that variance."""

    variance: float
    freedom: float

    @classmethod
    def from_terms(cls, terms: Iterable[tuple[float, int]]) -> _Uncertainty:
        """Add up independent variances, each with its degrees of freedom; those of the sum are Welch's."""
        variance = 0.0
        welch_denominator = 0.0
        for term, freedom in terms:
            variance += term
            welch_denominator += term * term / freedom
        return cls(variance, max(1.0, variance * variance / welch_denominator) if welch_denominator > 0 else math.inf)

    @classmethod
    def from_sides(
        cls, before: _SliceSide, after: _SliceSide, of_before: _Coefficients, of_after: _Coefficients
    ) -> _Uncertainty:
        """Return the uncertainty of an amount with these coefficients on both sides."""
        return cls.from_terms(
            (side.variance(coefficients), max(1, (side.moments.sessions or side.all.sessions) - 1))
            for side, coefficients in ((before, of_before), (after, of_after))
        )

    def half_width(self, quantile: float) -> float:
        """Return half the width of the interval for a normal quantile, which Fisher's expansion turns into Student's."""
        correction = (quantile**3 + quantile) / (4 * self.freedom)
        correction += (5 * quantile**5 + 16 * quantile**3 + 3 * quantile) / (96 * self.freedom**2)
        return (quantile + correction) * math.sqrt(self.variance)


_OVERALL_MEAN = _Coefficients(0.0, 0.0, 1.0)


def explain(
    before: dict[Key, Moments],
    after: dict[Key, Moments],
    totals: tuple[Moments, Moments],
    versions: Collection[str] = (),
) -> Explanation | None:
    """Explain a change by slices; None if there are too few sessions, or no change.

    `totals` are the moments of all scores before and after. Labels with a single slice are left out. `versions` are the labels whose
    values are states of an agent, such as its version or model: a change of their shares is not a change of the mix.
    """
    if min(side.sessions for side in totals) < MIN_SESSIONS or min(side.w for side in totals) <= 0:
        return None
    all_before, all_after = (_SliceSide(side, side) for side in totals)
    change = all_after.overall_mean - all_before.overall_mean
    if abs(change) < 1e-12:
        return None

    pairs = _pair_sides(before, after, totals)
    groups = _group_identical(pairs)
    quantile = _NORMAL.inv_cdf(1 - _ERROR_RATE / 2 / max(1, len(groups)))
    slices = [
        _explain_slice(key, *pairs[key], quantile, same_as=tuple(sorted(set(keys) - {key}))) for keys in groups for key in keys
    ]
    # Scores are compared to nine decimals, so that equal explanations are sorted by name.
    slices.sort(key=lambda item: (-round(item.score, 9), item.key))
    return Explanation(
        change=_build_part(change, _Uncertainty.from_sides(all_before, all_after, _OVERALL_MEAN, _OVERALL_MEAN)),
        slices=tuple(slices),
        tried=len(groups),
        mix=_find_mix(pairs, slices, change, versions),
    )


def _group_identical(pairs: Mapping[Key, tuple[_SliceSide, _SliceSide]]) -> list[list[Key]]:
    """Group the slices of different labels that have the same moments, and so the same exchanges."""
    groups: dict[tuple[Moments, Moments], list[Key]] = defaultdict(list)
    for key, (before, after) in pairs.items():
        groups[before.moments, after.moments].append(key)
    return list(groups.values())


def _find_mix(
    pairs: Mapping[Key, tuple[_SliceSide, _SliceSide]], slices: Sequence[Slice], change: float, versions: Collection[str]
) -> Mix | None:
    """Return the label whose shares explain the change, or None.

    If several labels do, arrivals come first, then agents, then the label with the smallest change within its slices.
    """
    by_label: dict[str, list[tuple[_SliceSide, _SliceSide]]] = defaultdict(list)
    for key, sides in pairs.items():
        if key.label not in versions:
            by_label[key.label].append(sides)

    starts_live = _LIVE in pairs and pairs[_LIVE][0].mean is None
    quantile = _NORMAL.inv_cdf(1 - _ERROR_RATE / max(1, len(by_label)))
    sign = math.copysign(1.0, change)
    ranked_mixes = []
    for label, label_sides in by_label.items():
        pooled = _pool_small(label_sides)
        common = [pair for pair in pooled if all(side.mean is not None for side in pair)]
        within, uncertainty = _sum_within(pooled, counts_new=not _is_arrival(label, common, starts_live=starts_live))
        if sign * within + uncertainty.half_width(quantile) >= MAX_WITHIN_SHARE * abs(change):
            continue
        mean_pairs = [_fill_missing_means(before.mean, after.mean) for before, after in common]
        is_significant = sign * within + uncertainty.half_width(_QUANTILE) < 0
        mix = Mix(
            label=label,
            within=_build_part(within, uncertainty),
            all_better=is_significant and all(sign * (after - before) < 0 for before, after in mean_pairs),
            changed=_select_most_changed([item for item in slices if item.key.label == label]),
        )
        ranked_mixes.append((_MIX_ORDER.get(label, len(_MIX_ORDER)), sign * within, mix))
    if not ranked_mixes:
        return None
    _, _, best = min(ranked_mixes, key=lambda ranked: ranked[:2])
    return best


def _is_arrival(label: str, common: Sequence[tuple[_SliceSide, _SliceSide]], *, starts_live: bool) -> bool:
    """Return whether slices on one side only have appeared or disappeared, and so are part of the mix.

    `common` are the label's slices on both sides. `starts_live` is true if imported history ends where live exchanges begin: the two sources
    may then have different levels although no agent changed. The opposite order counts as a change, because records may arrive late for the
    same reason that changed them.
    """
    if label not in _ARRIVAL_LABELS:
        return False
    if label == ARRIVAL and starts_live:
        return True
    common_share = min(sum(pair[index].share for pair in common) for index in (0, 1))
    return common_share >= MIN_COMMON_SHARE


def _select_most_changed(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Return the slices whose shares changed most, the largest change first."""
    ranked = sorted(slices, key=lambda item: (-abs(item.share_after - item.share_before), item.key))
    return tuple(ranked[:MAX_MIX_SLICES])


def _pool_small(sides: Sequence[tuple[_SliceSide, _SliceSide]]) -> list[tuple[_SliceSide, _SliceSide]]:
    """Pool the slices of a label that are on both sides but have too few sessions for a variance."""
    small = [pair for pair in sides if _is_small_pair(*pair)]
    if not small:
        return list(sides)
    pooled = (_add_sides([before for before, _ in small]), _add_sides([after for _, after in small]))
    return [*(pair for pair in sides if pair not in small), pooled]


def _is_small_pair(before: _SliceSide, after: _SliceSide) -> bool:
    """Return whether a slice is on both sides, but has too few sessions for a variance on one of them."""
    if before.moments.w <= 0 or after.moments.w <= 0:
        return False
    return before.moments.sessions < MIN_SESSIONS or after.moments.sessions < MIN_SESSIONS


def _add_sides(sides: Sequence[_SliceSide]) -> _SliceSide:
    """Return several slices of one side as a single slice."""
    columns = zip(*(side.moments for side in sides), strict=True)
    return _SliceSide(Moments(*map(sum, columns)), sides[0].all)


def _sum_within(sides: Iterable[tuple[_SliceSide, _SliceSide]], *, counts_new: bool) -> tuple[float, _Uncertainty]:
    """Return the change within slices and its uncertainty; with `counts_new`, slices on one side only count as well."""
    amount = 0.0
    terms = []
    for before, after in sides:
        _, mean_after = _fill_missing_means(before.mean, after.mean)
        if before.mean is not None and after.mean is not None:
            share = (before.share + after.share) / 2
            amount += share * (after.mean - before.mean)
        elif counts_new:
            share = after.share - before.share
            amount += share * (mean_after - before.overall_mean)
        else:
            continue
        for side in (before, after):
            freedom = side.moments.sessions - 1
            if freedom > 0:
                variance = side.variance(_Coefficients(0.0, share, 0.0)) * side.moments.sessions / freedom
                terms.append((variance, freedom))
    return amount, _Uncertainty.from_terms(terms)


def _pair_sides(
    before: dict[Key, Moments], after: dict[Key, Moments], totals: tuple[Moments, Moments]
) -> dict[Key, tuple[_SliceSide, _SliceSide]]:
    """Return both sides of each slice, for the labels with more than one slice."""
    keys = sorted({*before, *after})
    slices_per_label: dict[str, int] = defaultdict(int)
    for key in keys:
        slices_per_label[key.label] += 1
    return {
        key: (_SliceSide(before.get(key, NO_MOMENTS), totals[0]), _SliceSide(after.get(key, NO_MOMENTS), totals[1]))
        for key in keys
        if slices_per_label[key.label] > 1
    }


def _explain_slice(key: Key, before: _SliceSide, after: _SliceSide, quantile: float, same_as: tuple[Key, ...]) -> Slice:
    """Decompose the part of one slice; it stands out beyond this normal quantile."""
    change = after.overall_mean - before.overall_mean
    mean_before, mean_after = _fill_missing_means(before.mean, after.mean)
    share = (before.share + after.share) / 2
    share_change = after.share - before.share
    mean_change = mean_after - mean_before
    level = (mean_before + mean_after) / 2 - before.overall_mean
    mix = share_change * level
    within = share * mean_change
    excess = mix + within - share * change

    # The weight of each mean in the average of both; 1 if the other side has no mean.
    weight_before = 0.5 if after.mean is not None else 1.0
    weight_after = 0.5 if before.mean is not None else 1.0
    within_weight = share if before.mean is not None and after.mean is not None else 0.0
    mix_before = _Coefficients(-level, share_change * weight_before, -share_change)
    mix_after = _Coefficients(level, share_change * weight_after, 0.0)
    within_before = _Coefficients(mean_change / 2, -within_weight, 0.0)
    within_after = _Coefficients(mean_change / 2, within_weight, 0.0)
    excess_before = mix_before.plus(within_before).plus(_Coefficients(-change / 2, 0.0, share))
    excess_after = mix_after.plus(within_after).plus(_Coefficients(-change / 2, 0.0, -share))
    excess_uncertainty = _Uncertainty.from_sides(before, after, excess_before, excess_after)
    return Slice(
        key=key,
        share_before=before.share,
        share_after=after.share,
        mean_before=before.mean,
        mean_after=after.mean,
        exchanges_before=before.moments.exchanges,
        exchanges_after=after.moments.exchanges,
        mix=_build_part(mix, _Uncertainty.from_sides(before, after, mix_before, mix_after)),
        within=_build_part(within, _Uncertainty.from_sides(before, after, within_before, within_after)),
        explained=(mix + within) / change,
        score=_score_term(within / change, share) + MIX_FACTOR * _score_term(mix / change, abs(share_change)),
        stands_out=math.copysign(1.0, change) * excess > max(excess_uncertainty.half_width(quantile), 1e-9),
        same_as=same_as,
    )


def _fill_missing_means(before: float | None, after: float | None) -> tuple[float, float]:
    """Return both means; a missing one is replaced by the other, or by 0 if both are missing."""
    if before is None:
        return after or 0.0, after or 0.0
    if after is None:
        return before, before
    return before, after


def _score_term(explained: float, share: float) -> float:
    """Return one term of the rank of a slice, from the explained fraction of the change and the slice's share; see 3. above."""
    if share <= 0:
        return 0.0
    return max(0.0, explained) ** 2 / share


def _build_part(amount: float, uncertainty: _Uncertainty) -> Part:
    half_width = uncertainty.half_width(_QUANTILE)
    return Part(amount, amount - half_width, amount + half_width)
