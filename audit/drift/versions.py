"""Versions side by side: is a version better or worse than the others of its agent in the same days, from its first session on?

A new version has no past, so its sessions are compared with those of the other versions on the same UTC days. On day d

    difference[d]  =  mean of the version  -  mean of the others

What the day does to all versions cancels out. What remains has a variance of

    units of the version / weight + units of the others / weight + interaction

1. Units vary within their day; the variance is pooled over the days of the others, and increased if the version's units vary more.
2. The interaction is what a day does to one version alone. It is estimated from the differences themselves (DerSimonian and Laird 1986, "Meta-analysis
   in clinical trials"), together with a prior of `PRIOR_DAYS` days: `INTERACTION` of the variance of a unit, or `COMMON_PART` of the variance of the
   others' days if that is more. So a canary of two sessions a day is hardly delayed by it, while a single day never confirms a small difference,
   however many sessions it has.
3. The difference is the mean over the days, weighted by precision. The evidence is the Bayes factor of Student's t with the prior of sizes of
   `audit.drift.change_evidence`, including its corrections for scores that are bounded, or nearly always the same.

The start is fixed by the version's first session, not chosen by the data. So the Bayes factor is an e-process: without a difference it ever
reaches 1 / a with a probability of at most a, however often one looks (Ville 1939; Grünwald, de Heide and Koolen 2024, "Safe testing"). This
is exact for normal scores of known variance, and measured for others: `python -m benchmarks drift --versions`, and
`docs/decisions/0123-mixes-versions-discoveries.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date

from audit.comparison import t_quantile
from audit.drift.change_detector import CONFIDENCE, MIN_RARE_UNITS, Interval
from audit.drift.change_evidence import MIN_VARIANCE, PSEUDO_UNITS, Contrast, Ranges, log_evidence, ratio
from audit.drift.consecutive_days import Direction, Severity, severity_of
from audit.drift.series import (
    Cells,
    Counts,
    DaySums,
    DeviantUnits,
    Flags,
    Floats,
    Ints,
    UnitSums,
    date_of,
    day_correlation,
    day_number,
    discount_correlated,
    log_count_evidence,
    rows_of,
    select_until,
)
from schemas.lazy_numpy import np

SUSPECTED = 400.0
"""Evidence for which a version is reported: of 400 versions that are like the others, at most one ever reaches it."""
CONFIRMED = 2_000.0
"""Evidence that confirms the difference: of 2,000 versions that are like the others, at most one ever reaches it. So it is also enough if 200 versions
are compared at once and at most one in ten of those that are named may be wrong (`audit.drift.discoveries`)."""
DAYS_BEFORE = 28
"""Days before the version's first one from which the variance of the others is measured as well."""
INTERACTION = 0.04
"""The assumed variance of what a day does to one version alone, as a part of the variance of a unit."""
COMMON_PART = 0.05
"""The same as a part of the variance of the others' days: most of what makes days differ affects all versions."""
PRIOR_DAYS = 10.0
"""The weight of these assumptions, in days."""
MIN_UNITS = 2
MIN_OTHER_UNITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """A significant difference between a version and the others of its agent."""

    direction: Direction
    """Whether the version is above or below the others."""
    severity: Severity
    """Critical if the size is beyond two sigma."""
    is_confirmed: bool
    first_day: date
    """The first day with sessions of the version and of others."""
    days: int
    """The number of these days."""
    size: float
    """Mean of the version less that of the others, in points of the score."""
    size_interval: Interval
    """95%."""
    sigma: float
    """Standard deviation of one unit's mean within its day, in points of the score."""
    mean: float
    others_mean: float
    sessions: int
    """Sessions of the version on these days."""
    others_sessions: int
    log_evidence: float
    """Natural logarithm of the evidence, which is an e-value."""


def compare_versions(version: Cells, others: Cells, as_of: date) -> VersionChange | None:
    """Return the difference of a version from the others of its agent at the end of the day `as_of`; None if there is no evidence.

    Both are sums by hour, oldest first, from the version's first session on; those of the others may begin earlier.
    """
    version = select_until(version, as_of)
    others = select_until(others, as_of)
    days, version_sums, others_sums = _pair_days(version, others, as_of)
    is_common = (version_sums.units > 0) & (others_sums.units > 0)
    if version_sums.units[is_common].sum() < MIN_UNITS or others_sums.units[is_common].sum() < MIN_OTHER_UNITS:
        return None
    common_days = days[is_common]
    difference = _weigh_days(version_sums, others_sums, is_common)
    evidence = log_evidence(difference, _find_range(others, common_days), _find_range(version, common_days))
    bound = _bound_by_counts(version, others, version_sums, others_sums, is_common)
    log_e = min(float(evidence[0]), bound)
    if log_e < math.log(SUSPECTED):
        return None
    size = float(difference.size[0])
    sigma = math.sqrt(float(difference.unit_variance[0]))
    half_width = t_quantile((1 + CONFIDENCE) / 2, float(difference.freedom[0])) * math.sqrt(float(difference.variance[0]))
    return VersionChange(
        direction="up" if size > 0 else "down",
        severity=severity_of(size / sigma),
        is_confirmed=log_e >= math.log(CONFIRMED),
        first_day=date_of(common_days[0]),
        days=len(common_days),
        size=size,
        size_interval=Interval(size - half_width, size + half_width),
        sigma=sigma,
        mean=float(difference.after[0]),
        others_mean=float(difference.before[0]),
        sessions=round(float(version_sums.units[is_common].sum())),
        others_sessions=round(float(others_sums.units[is_common].sum())),
        log_evidence=log_e,
    )


def _free_squares(sums: UnitSums) -> Floats:
    """Return the number by which the centred squares are divided to get the variance of a unit: n - 1 for n units of weight 1."""
    return sums.squares * np.maximum(0.0, 1 - ratio(sums.squares, sums.weight**2))


def _pair_days(version: Cells, others: Cells, as_of: date) -> tuple[Ints, UnitSums, UnitSums]:
    """Return the days from `DAYS_BEFORE` the version's first one on, with the sums of both sides."""
    first = version.days[0] if version.last.size else day_number(as_of)
    days = np.arange(first - DAYS_BEFORE, max(first, day_number(as_of)) + 1)

    def sum_days(cells: Cells) -> UnitSums:
        index = cells.days - days[0]
        is_used = (index >= 0) & (index < len(days))
        rows = [np.bincount(index[is_used], row[is_used], len(days)).astype(np.float64) for row in rows_of(cells)]
        return UnitSums(*rows)

    return days, sum_days(version), sum_days(others)


def _weigh_days(version: UnitSums, others: UnitSums, is_common: Flags) -> Contrast:
    """Return the mean difference over the common days, as a contrast of one pair: the others before, the version after."""
    unit = max(MIN_VARIANCE, float(ratio(others.centred_squares.sum(), _free_squares(others).sum())))
    freedom = max(1.0, float(np.maximum(0.0, others.units - 1).sum()))
    others_common = UnitSums(*(column[is_common] for column in others))
    common = UnitSums(*(column[is_common] for column in version))
    # Shorter sessions vary more, as independent scores would, until their variance has been measured.
    variance_per_weight = unit * float(others_common.squares.sum() / others_common.weight.sum())
    expected = np.maximum(unit, variance_per_weight * ratio(common.weight, common.squares))
    observed = ratio(common.centred_squares * common.units, expected * common.squares).sum()
    version_freedom = float((common.units - 1).sum())
    # A few units often vary more by chance, so the excess counts as far as it is beyond its standard error.
    excess = max(1.0, (PSEUDO_UNITS + float(observed) - math.sqrt(2 * version_freedom)) / (PSEUDO_UNITS + version_freedom))
    from_version = excess * expected * common.squares / common.weight**2
    from_others = unit * others_common.squares / others_common.weight**2
    differences = common.mean - others_common.mean
    prior = max(INTERACTION * unit, COMMON_PART * _measure_day_variance(others, unit))
    interaction = _estimate_interaction(differences, from_version + from_others, prior)
    precision = 1 / (from_version + from_others + interaction)
    shares = precision / precision.sum()
    others_mean = float((shares * others_common.mean).sum())
    unit_after = float((shares**2 * from_version).sum())
    unit_before = float((shares**2 * from_others).sum())
    by_day = float((shares**2).sum()) * interaction
    day_freedom = PRIOR_DAYS + len(differences) - 1
    variance = unit_before + unit_after + by_day
    welch = (unit_before + unit_after) ** 2 / freedom + by_day**2 / day_freedom
    return Contrast(
        before=np.array([others_mean]),
        after=np.array([others_mean + float((shares * differences).sum())]),
        variance_before=np.array([unit_before]),
        variance_after=np.array([unit_after + by_day]),
        freedom=np.array([variance**2 / welch]),
        unit_variance=np.array([unit]),
        unit_before=np.array([unit_before]),
        unit_after=np.array([unit_after]),
        excess=np.array([excess]),
        units_before=others_common.units.sum(keepdims=True),
        units_after=common.units.sum(keepdims=True),
        is_usable=np.array([True]),
    )


def _measure_day_variance(sums: UnitSums, unit: float) -> float:
    """Return the variance of days beyond what their units explain."""
    is_used = sums.units > 0
    return _excess_variance(sums.mean[is_used], unit * sums.squares[is_used] / sums.weight[is_used] ** 2)


def _excess_variance(values: Floats, variances: Floats) -> float:
    """Return the variance of values beyond their known variances, by moments (DerSimonian and Laird)."""
    if len(values) < 2:
        return 0.0
    weights = 1 / variances
    mean = (weights * values).sum() / weights.sum()
    excess = float((weights * (values - mean) ** 2).sum()) - (len(values) - 1)
    return max(0.0, excess) / float(weights.sum() - (weights**2).sum() / weights.sum())


def _estimate_interaction(differences: Floats, variances: Floats, prior: float) -> float:
    """Return the variance of what a day does to one version alone."""
    days = len(differences) - 1
    return (PRIOR_DAYS * prior + days * _excess_variance(differences, variances)) / (PRIOR_DAYS + days)


def _find_range(cells: Cells, days: Ints) -> Ranges:
    """Return the lowest and the highest mean of a unit on some days."""
    is_used = np.isin(cells.days, days)
    return cells.low[is_used].min(keepdims=True), cells.high[is_used].max(keepdims=True)


def _bound_by_counts(version: Cells, others: Cells, version_sums: UnitSums, others_sums: UnitSums, is_common: Flags) -> float:
    """Return an upper bound of the log evidence if nearly all scores of the others have one value; infinity if they vary.

    Units are then counted by whether they have another value, as in `audit.drift.change_detector`.
    """
    low = min(float(others.low.min()), float(version.low.min()))
    high = max(float(others.high.max()), float(version.high.max()))
    mean = float(others_sums.total.sum() / others_sums.weight.sum())
    usual = high if 2 * mean > low + high else low
    off_others = DeviantUnits.from_sums(np.stack(others_sums).sum(axis=1, keepdims=True), usual)
    if off_others.min_count[0] >= MIN_RARE_UNITS:
        return math.inf
    off_version = DeviantUnits.from_sums(np.stack(version_sums)[:, is_common].sum(axis=1, keepdims=True), usual)
    correlation = day_correlation([_count_days(others_sums, usual), _count_days(version_sums, usual)])
    units = version_sums.units[is_common]
    units_per_day = (units**2).sum(keepdims=True) / units.sum(keepdims=True)
    log_e = log_count_evidence(off_others.counts, off_version.counts)
    return float(discount_correlated(log_e, correlation, units_per_day)[0])


def _count_days(sums: UnitSums, usual: float) -> tuple[Counts, DaySums]:
    """Count the units off the usual value, with sums by day."""
    off = DeviantUnits.from_sums(np.stack(sums), usual).min_count
    units = sums.units
    counts = Counts(off.sum(keepdims=True), units.sum(keepdims=True))
    return counts, DaySums((units**2).sum(keepdims=True), (units * off).sum(keepdims=True), (off**2).sum(keepdims=True))
