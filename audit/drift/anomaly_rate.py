"""Anomaly spikes: has the share of anomalous exchanges risen in the last two weeks, against the days before it rose.

What is normal are the days before, whatever they were: so a spike never becomes its own baseline. Each of the last `DAYS` days may be the
first one of a spike. Of all anomalies, before it and since, the number of late ones is binomial (Przyborowski and Wilenski 1940, the
conditional test of two Poisson rates); for a rate that is `RATIOS` times as high it is binomial, too, so the ratio of the two, averaged,
is an e-value, and the sum over the days is evidence as in `audit.drift.change_detector`. Anomalies come in bunches, session by session: where days
differ by more than independent exchanges would, all counts count for less by as much.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple

from audit.drift.consecutive_days import Severity

DAYS = 14
"""A spike that is older than so many UTC days, the one of the check included, is no spike."""
HISTORY_DAYS = 90
"""So many UTC days are looked at, the one of the check included."""
REFERENCE_DAYS = 7
"""So many days with exchanges stand before a spike."""
CRITICAL = 3.0
"""From so many times the rate before on it is critical."""
FEWEST_ANOMALIES = 2
"""One exchange is no spike, however few there were: it is shown as an anomaly by itself."""
RATIOS = (1.5, 2.0, 3.0, 5.0)
"""The factors by which the rate may have risen: all of them count alike."""
SUSPECTED = 150.0
"""Evidence that makes an alarm: at most one false one a year, `docs/decisions/0052-spikes.md`."""
CONFIRMED = 1_000_000.0
"""Evidence from which on a spike is confirmed."""


class Day(NamedTuple):
    """The exchanges and anomalies of one UTC day."""

    day: date
    anomalies: int
    exchanges: int
    """Those with a score."""


@dataclass(frozen=True, slots=True)
class Spike:
    """More anomalies than the days before let expect."""

    severity: Severity
    first_day: date
    """The most probable first day."""
    anomalies: int
    """Since the first day."""
    exchanges: int
    rate: float
    """Anomalies an exchange since then, 0 to 1."""
    start: date
    """First of the days before that were compared with."""
    anomalies_before: int
    exchanges_before: int
    rate_before: float
    ratio: float | None
    """`rate` by `rate_before`; None where there was no anomaly before."""
    log_evidence: float
    """Natural logarithm of the evidence."""
    is_confirmed: bool


class _Sums(NamedTuple):
    """The sums of several days."""

    anomalies: int = 0
    exchanges: int = 0
    squares: float = 0.0
    """Of anomalies squared by exchanges."""
    days: int = 0

    def plus(self, day: Day) -> _Sums:
        """These, and a day more."""
        return _Sums(
            self.anomalies + day.anomalies,
            self.exchanges + day.exchanges,
            self.squares + day.anomalies**2 / day.exchanges,
            self.days + 1,
        )

    @property
    def dispersion(self) -> float:
        """The factor by which the days' anomalies vary more than those of independent exchanges, at least 1.

        It is Pearson's chi-square, divided by its degrees of freedom.
        """
        rate = self.anomalies / self.exchanges
        if not 0 < rate < 1:
            return 1.0
        off = (self.squares - self.anomalies * rate) / (rate * (1 - rate))
        return max(1.0, off / (self.days - 1))


def anomaly_spike(days: Iterable[Day], as_of: date) -> Spike | None:
    """Return the rise in the rate of anomalies within the last `DAYS` days up to `as_of`, or None.

    `days` come in any order, one each; later ones and those before the last `HISTORY_DAYS` do not matter.
    """
    oldest, first = (as_of - timedelta(days=count - 1) for count in (HISTORY_DAYS, DAYS))
    days_with_exchanges = sorted(one for one in days if oldest <= one.day <= as_of and one.exchanges > 0)
    sums = list(itertools.accumulate(days_with_exchanges, _Sums.plus, initial=_Sums()))
    places = [place for place in range(REFERENCE_DAYS, len(days_with_exchanges)) if days_with_exchanges[place].day >= first]
    terms = [_log_evidence(sums[place], sums[-1]) for place in places]
    total = _log_sum(terms)
    if total < math.log(SUSPECTED):
        return None
    best = places[max(range(len(terms)), key=terms.__getitem__)]
    spike = _spike(days_with_exchanges, best, sums, total)
    return spike if spike.anomalies >= FEWEST_ANOMALIES else None


def _spike(days: Sequence[Day], index: int, sums: Sequence[_Sums], total: float) -> Spike:
    before = sums[index]
    anomalies, exchanges = sums[-1].anomalies - before.anomalies, sums[-1].exchanges - before.exchanges
    rate, rate_before = anomalies / exchanges, before.anomalies / before.exchanges
    # None in a hundred does not mean that there never is one.
    expected = rate_before or 1 / before.exchanges
    return Spike(
        severity="critical" if rate >= CRITICAL * expected else "warning",
        first_day=days[index].day,
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


def _log_evidence(before: _Sums, whole: _Sums) -> float:
    """Logarithm of how much more probable the late anomalies are if their rate rose than if it did not."""
    late, share = whole.anomalies - before.anomalies, 1 - before.exchanges / whole.exchanges
    terms = []
    for ratio in RATIOS:
        # Of all anomalies the late share is r s / (r s + 1 - s) instead of s.
        growth = -math.log(ratio * share + 1 - share)
        terms.append((late * (math.log(ratio) + growth) + before.anomalies * growth) / before.dispersion)
    return _log_sum(terms) - math.log(len(RATIOS))


def _log_sum(terms: Sequence[float]) -> float:
    """Logarithm of the sum of what these are logarithms of."""
    top = max(terms, default=-math.inf)
    return top if math.isinf(top) else top + math.log(math.fsum(math.exp(one - top) for one in terms))
