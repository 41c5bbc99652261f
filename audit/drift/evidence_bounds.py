"""Upper bounds of the evidence of many series at once, from daily sums, so that only few series are examined by the change detector.

The largest likelihood ratio of a change is never below the Bayes factor that averages over all changes. For a share it is that of two
binomial counts; for a mean that of two normal means whose variance is measured before the change. Days and blocks that vary only reduce
the evidence of the detector, and so do correlated days and skewed scores. Weekdays and weekends are compared together and separately, and
the larger bound counts. The detector also looks during a day, which `MARGIN` allows for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from audit.drift.change_detector import CANDIDATE_AGES, CHECKED_DAYS, MIN_DAYS_BEFORE, SUSPECTED
from audit.drift.change_evidence import MIN_VARIANCE, TINY, ratio
from audit.drift.discoveries import family_penalty
from audit.drift.series import Flags, Floats
from schemas.lazy_numpy import np

SUMS = ("units", "weight", "total", "squares", "mixed", "totals")
"""The sums over the units of a day, as in `audit.drift.series.Cells`."""
MARGIN = 2.0
"""Log evidence by which a look during a day may exceed the looks at the ends of days."""
_MIN_FREEDOM = 3.0


def mask_candidates(sums: Floats, first_day: int, is_share: Flags) -> Flags:
    """Return the mask of the series that may have changed beyond what `family_penalty` asks of the whole family.

    `sums` has the daily sums by series: (SUMS, series, days), the last day being that of the check; `first_day` is the number of the first
    day. False discoveries are bounded by the ranks of the evidence, so a series that does not pass by its bound does not pass by its
    evidence either.
    """
    if not sums.shape[1]:
        return np.zeros(0, dtype=bool)
    excess = bound_log_evidence(sums, first_day, is_share) + MARGIN - math.log(SUSPECTED)
    return excess >= family_penalty(excess.tolist(), len(excess))


def bound_log_evidence(sums: Floats, first_day: int, is_share: Flags) -> Floats:
    """Return an upper bound of the log evidence of each series at the ends of every other of the last `CHECKED_DAYS` days."""
    bounds = np.empty(sums.shape[1])
    for kind, log_ratios in ((is_share, _binomial_ratios), (~is_share, _normal_ratios)):
        bounds[kind] = _bound_kind(sums[:, kind], first_day, log_ratios)
    return bounds


def _bound_kind(sums: Floats, first_day: int, log_ratios: Callable[[Floats, Floats], Floats]) -> Floats:
    days = np.arange(sums.shape[2])
    is_weekend = (days + first_day + 3) % 7 >= 5  # 1970 began on a Thursday; Monday is 0
    strata = [
        np.cumsum(np.concatenate((np.zeros_like(sums[..., :1]), sums * mask), axis=2), axis=2)
        for mask in (1, ~is_weekend, is_weekend)
    ]
    ages, represented_days = np.array(CANDIDATE_AGES).T
    bounds = np.full(sums.shape[1], -math.inf)
    for look in range(len(days) - 1, max(-1, len(days) - 1 - CHECKED_DAYS), -2):
        starts = look - ages
        is_usable = starts >= MIN_DAYS_BEFORE
        if not is_usable.any():
            continue
        starts = starts[is_usable]
        pooled, weekdays, weekends = (
            _log_likelihood_ratios(stratum[..., starts], stratum[..., look + 1, None], log_ratios) for stratum in strata
        )
        terms = np.maximum(pooled, weekdays + weekends) + np.log(represented_days[is_usable])
        bounds = np.maximum(bounds, np.logaddexp.reduce(terms, axis=1))
    return bounds


def _log_likelihood_ratios(before: Floats, both: Floats, log_ratios: Callable[[Floats, Floats], Floats]) -> Floats:
    """Return the largest log likelihood ratios of a change between stretches; 0 where a side is empty."""
    after = both - before
    return np.where((before[0] > 0) & (after[0] > 0), log_ratios(before, after), 0.0)


def _normal_ratios(before: Floats, after: Floats) -> Floats:
    units, weight, total, squares, mixed, totals = before
    mean = ratio(total, weight)
    variance = np.maximum(MIN_VARIANCE, ratio(totals - 2 * mean * mixed + mean**2 * squares, squares))
    variance = variance * (ratio(squares, weight**2) + ratio(after[3], after[1] ** 2))
    freedom = np.maximum(_MIN_FREEDOM, units - 2)
    ratios: Floats = ratio((ratio(after[2], after[1]) - mean) ** 2, variance) * (1 + 1 / freedom) / 2
    return ratios


def _binomial_ratios(before: Floats, after: Floats) -> Floats:
    both = (before + after)[:, :, :1]
    ratios: Floats = _log_likelihood(before) + _log_likelihood(after) - _log_likelihood(both)
    return ratios


def _log_likelihood(sums: Floats) -> Floats:
    """Return the log likelihood of counts at their own share."""
    _, runs, positives, *_ = sums
    share = ratio(positives, runs)
    complement = 1 - share
    log_likelihood: Floats = positives * np.log(np.maximum(share, TINY)) + (runs - positives) * np.log(
        np.maximum(complement, TINY)
    )
    return log_likelihood
