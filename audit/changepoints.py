"""How much the sums of two stretches of scores speak for a change of the mean between them.

The evidence is a Bayes factor: how much more probable the scores are if the mean changed at a given place than if it did not. The size
of the change is not known, so it is averaged over a normal distribution of `SPREAD` sigma; nor are mean and sigma, so they are averaged
over every value (the right Haar prior). For independent normal scores that makes its expectation exactly 1 whatever mean and sigma are,
when nothing has changed, so that it is an e-value that has paid for the reference's uncertainty (Gönen, Johnson, Lu and Westfall 2005,
"The Bayesian two-sample t test"; Pérez-Ortiz, Lardy, de Heide and Grünwald 2024, "E-statistics, group invariance and anytime-valid
testing").

Scores are not normal: they are bounded, come in thirds or fifths, and the rare one lies far off. So four things differ from the
textbook. The variance is the one around the common mean, which a single odd score cannot make small. The distance between the means is
measured in two ways, as a difference and as a binomial deviance between the smallest and the largest value seen, and the lesser counts:
where what is rare becomes a little less rare, the deviance knows how little that says. And each unit counts by its weight, with the
variance of what units really are (linearised, as for a ratio of sums), so that scores of one session may depend on each other; and if
the days of the reference differ by more than their units explain, all units count for less by as much.
"""

from __future__ import annotations

import math
from operator import sub
from typing import NamedTuple

SPREAD = 0.7
"""Standard deviation of the sizes of change that are reckoned with, in sigma."""
_NOISE = 1e-12
"""A variance below this is rounding: scores are steps many times as large as its root."""


class Sums(NamedTuple):
    """What a stretch of units comes to; two stretches are added or taken apart field by field."""

    units: int = 0
    scores: int = 0
    weight: float = 0.0
    total: float = 0.0
    """Sum of weight x score, the score measured from a common origin."""
    squares: float = 0.0
    """Sum of the squared weights of the units."""
    mixed: float = 0.0
    """Sum of weight x total of the units."""
    totals: float = 0.0
    """Sum of the squared totals of the units."""
    days: int = 0
    """Whole days with units; the rest is the same as above, of the weights and totals of days instead of units."""
    day_squares: float = 0.0
    day_mixed: float = 0.0
    day_totals: float = 0.0

    def with_unit(self, scores: int, weight: float, total: float) -> Sums:
        """This stretch and one more unit."""
        units, known, weights, sums, squares, mixed, totals, *days = self
        return Sums._make(
            (
                units + 1,
                known + scores,
                weights + weight,
                sums + total,
                squares + weight * weight,
                mixed + weight * total,
                totals + total * total,
                *days,
            )
        )

    def with_day(self, weight: float, total: float) -> Sums:
        """This stretch, of whose units those that came last make up a day of this weight and total."""
        return self._replace(
            days=self.days + 1,
            day_squares=self.day_squares + weight * weight,
            day_mixed=self.day_mixed + weight * total,
            day_totals=self.day_totals + total * total,
        )

    def less(self, other: Sums) -> Sums:
        """This stretch without a part of it."""
        return Sums._make(map(sub, self, other))


NOTHING = Sums()


class Contrast(NamedTuple):
    """Two stretches beside each other."""

    before: float
    """Mean of the first, from the origin."""
    after: float
    precision: float
    """n0 n1 / (n0 + n1), of the effective numbers of units, less where days differ by more than their units do."""
    variance_within: float
    """Of one unit's mean around the mean of its stretch."""
    log_evidence: float
    """Natural logarithm of the Bayes factor; 0 where there is nothing to compare."""


def contrast(before: Sums, both: Sums, low: float, high: float) -> Contrast:
    """Compare a stretch of whole days with the rest of `both`, whose units' means lie between `low` and `high`."""
    w0, y0, q0 = before.weight, before.total, before.squares
    _, _, weight, total, squares, mixed, totals, *_ = both
    w1 = weight - w0
    mean0, mean1 = y0 / w0, (total - y0) / w1
    n0, n1 = w0 * w0 / q0, w1 * w1 / (squares - q0)
    common = (n0 * mean0 + n1 * mean1) / (n0 + n1)
    variance = (totals - 2 * common * mixed + common * common * squares) / squares
    dispersion = _dispersion(before, mean0)
    n, precision = (n0 + n1) / dispersion, n0 * n1 / (n0 + n1) / dispersion
    if variance <= _NOISE:
        return Contrast(mean0, mean1, precision, 0.0, 0.0)
    share = min((mean1 - mean0) ** 2 * precision / (variance * n), 1.0)
    log_evidence = _log_evidence(share, n, precision)
    if log_evidence > 0:
        width = high - low
        place = (common - low) / width
        loss = n0 * _divergence((mean0 - low) / width, place) + n1 * _divergence((mean1 - low) / width, place)
        deviance = 2 * loss * place * (1 - place) * width * width / (variance * (n0 + n1))
        log_evidence = min(log_evidence, _log_evidence(min(share, deviance), n, precision))
    return Contrast(mean0, mean1, precision, variance * (1 - share), log_evidence)


def _dispersion(stretch: Sums, mean: float) -> float:
    """How many times more the days of a stretch vary than independent units would make them, at least 1."""
    units, _, _, _, squares, mixed, totals, days, day_squares, day_mixed, day_totals = stretch
    by_unit = (totals - 2 * mean * mixed + mean * mean * squares) * units
    if days < 2 or by_unit <= _NOISE * squares * units:
        return 1.0
    by_day = (day_totals - 2 * mean * day_mixed + mean * mean * day_squares) * days
    return max(1.0, by_day * (units - 1) / (by_unit * (days - 1)))


def _log_evidence(share: float, n: float, precision: float) -> float:
    """The Bayes factor of a change that explains a share, 0 to 1, of the variance of n values."""
    spread = SPREAD * SPREAD * precision
    return -0.5 * math.log1p(spread) - (n - 1) / 2 * math.log1p(-share * spread / (1 + spread))


def _divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of two Bernoulli distributions; 0 where q is 0 or 1, which leaves nothing to compare."""
    if not 0 < q < 1:
        return 0.0
    value = 0.0
    if p > 0:
        value += p * math.log(p / q)
    if p < 1:
        value += (1 - p) * math.log((1 - p) / (1 - q))
    return value
