"""Anomaly spikes: has the rate of anomalous exchanges risen in the last two weeks, compared with the days before the rise?

The baseline is always the days before the spike, so a spike never becomes its own baseline. Each of the last `DAYS` days may be the first
day of a spike. Given the total number of anomalies, the number since that day is binomial (Przyborowski and Wilenski 1940, the conditional
test of two Poisson rates). If the rate rose by one of `RATIOS`, this number is also binomial, so the ratio of the two probabilities,
averaged over `RATIOS`, is an e-value. The sum over the days is the evidence, as in `audit.drift.change_detector`. Anomalies are clustered by
session: if days vary more than independent exchanges would, the evidence is reduced accordingly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple

from audit.drift.consecutive_days import Severity

DAYS = 14
"""UTC days in which a spike may begin, the day of the check included."""
HISTORY_DAYS = 90
"""UTC days that are used, the day of the check included."""
REFERENCE_DAYS = 7
"""Minimum number of days with exchanges before a spike."""
CRITICAL = 3.0
"""Ratio of the rate to the rate before from which on a spike is critical."""
MIN_ANOMALIES = 2
"""Minimum number of anomalies of a spike: a single one is shown as an anomaly by itself."""
RATIOS = (1.5, 2.0, 3.0, 5.0)
"""Factors by which the rate may have risen, all with the same weight."""
SUSPECTED = 150.0
"""Evidence that raises an alarm: at most one false alarm per year, see `docs/decisions/0052-spikes.md`."""
CONFIRMED = 1_000_000.0
"""Evidence from which on a spike is confirmed."""


class Day(NamedTuple):
    """The exchanges and anomalies of one UTC day."""

    day: date
    anomalies: int
    exchanges: int
    """Exchanges with a score."""


@dataclass(frozen=True, slots=True)
class Spike:
    """A significant rise of the rate of anomalies."""

    severity: Severity
    first_day: date
    """The most probable first day."""
    anomalies: int
    """The number of anomalies since the first day."""
    exchanges: int
    rate: float
    """Anomalies per exchange since the first day, 0 to 1."""
    start: date
    """First day of the baseline."""
    anomalies_before: int
    exchanges_before: int
    rate_before: float
    ratio: float | None
    """`rate` / `rate_before`; None without an anomaly before."""
    log_evidence: float
    """Natural logarithm of the evidence."""
    is_confirmed: bool


class _Sums(NamedTuple):
    """Sums over several days."""

    anomalies: int = 0
    exchanges: int = 0
    squares: float = 0.0
    """Sum of anomalies² / exchanges."""
    days: int = 0

    def plus(self, day: Day) -> _Sums:
        """Return the sums with one more day."""
        return _Sums(
            self.anomalies + day.anomalies,
            self.exchanges + day.exchanges,
            self.squares + day.anomalies**2 / day.exchanges,
            self.days + 1,
        )

    @property
    def dispersion(self) -> float:
        """Variance of the days' anomalies relative to independent exchanges, at least 1: Pearson's chi-square per degree of freedom."""
        rate = self.anomalies / self.exchanges
        if not 0 < rate < 1:
            return 1.0
        chi_square = (self.squares - self.anomalies * rate) / (rate * (1 - rate))
        return max(1.0, chi_square / (self.days - 1))


def anomaly_spike(days: Iterable[Day], as_of: date) -> Spike | None:
    """Return the rise in the rate of anomalies within the last `DAYS` days up to `as_of`, or None.

    `days` are distinct and in any order; days after `as_of` or before the last `HISTORY_DAYS` days are ignored.
    """
    oldest = as_of - timedelta(days=HISTORY_DAYS - 1)
    first_candidate_day = as_of - timedelta(days=DAYS - 1)
    days_with_exchanges = sorted(day for day in days if oldest <= day.day <= as_of and day.exchanges > 0)
    sums = list(itertools.accumulate(days_with_exchanges, _Sums.plus, initial=_Sums()))
    starts = [
        index
        for index in range(REFERENCE_DAYS, len(days_with_exchanges))
        if days_with_exchanges[index].day >= first_candidate_day
    ]
    log_evidence = {start: _log_evidence(sums[start], sums[-1]) for start in starts}
    total = _log_sum(log_evidence.values())
    if total < math.log(SUSPECTED):
        return None
    likeliest_start = max(starts, key=log_evidence.__getitem__)
    spike = _describe_spike(days_with_exchanges, likeliest_start, sums, total)
    return spike if spike.anomalies >= MIN_ANOMALIES else None


def _describe_spike(days: Sequence[Day], start: int, sums: Sequence[_Sums], total: float) -> Spike:
    """Describe the spike that begins with the day of index `start`; `total` is the log evidence."""
    before = sums[start]
    anomalies = sums[-1].anomalies - before.anomalies
    exchanges = sums[-1].exchanges - before.exchanges
    rate = anomalies / exchanges
    rate_before = before.anomalies / before.exchanges
    # Without an anomaly before, the true rate need not be 0: one anomaly in all those exchanges is assumed.
    expected = max(before.anomalies, 1) / before.exchanges
    return Spike(
        severity="critical" if rate >= CRITICAL * expected else "warning",
        first_day=days[start].day,
        anomalies=anomalies,
        exchanges=exchanges,
        rate=rate,
        start=days[0].day,
        anomalies_before=before.anomalies,
        exchanges_before=before.exchanges,
        rate_before=rate_before,
        ratio=rate / rate_before if before.anomalies else None,
        log_evidence=total,
        is_confirmed=total >= math.log(CONFIRMED),
    )


def _log_evidence(before: _Sums, total: _Sums) -> float:
    """Return the log of the ratio of probabilities of the late anomalies, with and without a rise of their rate."""
    late = total.anomalies - before.anomalies
    share = 1 - before.exchanges / total.exchanges
    terms = []
    for ratio in RATIOS:
        # With the ratio r, the expected share of late anomalies is r s / (r s + 1 - s) instead of s.
        growth = -math.log(ratio * share + 1 - share)
        terms.append((late * (math.log(ratio) + growth) + before.anomalies * growth) / before.dispersion)
    return _log_sum(terms) - math.log(len(RATIOS))


def _log_sum(terms: Collection[float]) -> float:
    """Return log(sum(exp(term))) without overflow; minus infinity without terms."""
    largest = max(terms, default=-math.inf)
    if math.isinf(largest):
        return largest
    return largest + math.log(math.fsum(math.exp(term - largest) for term in terms))
