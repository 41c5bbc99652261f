"""Anomaly spikes: the anomaly rate of the last days against that of the baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from audit.drift import Severity

DAYS = 3
"""How many UTC days are looked at, the one of the check included."""
WARNING = 2.0
"""Above so many times the baseline's rate it is a spike."""
CRITICAL = 3.0
FEWEST_ANOMALIES = 2
"""One exchange is no spike, however few there were: it is shown as an anomaly by itself."""
CHANCE = 0.001
"""How probable so many anomalies may be where nothing has changed: three days in a thousand, of windows that overlap, are about one in a year."""


@dataclass(frozen=True, slots=True)
class Spike:
    """More anomalies than the baseline lets expect."""

    severity: Severity
    anomalies: int
    scores: int
    rate: float
    """Anomalies a score over the last days, 0 to 1."""
    baseline_rate: float
    ratio: float | None
    """`rate` by `baseline_rate`; None where the baseline has no anomaly."""


def anomaly_spike(*, anomalies: int, scores: int, baseline_rate: float, baseline_scores: int) -> Spike | None:
    """Whether the rate of the last three days is above twice the baseline's; above three times it is critical.

    A baseline without a single anomaly does not say that the rate is 0, only that it is below about one in `baseline_scores`; it is taken
    to be that. Otherwise the first anomaly of a clean project would be infinitely many times too many. None too when there are fewer than
    two anomalies, when so many are no more than `CHANCE`, or when there is nothing to compare. `scores` and `baseline_scores` are those
    that have a current score.
    """
    if anomalies < FEWEST_ANOMALIES or scores <= 0 or baseline_scores <= 0:
        return None
    rate = anomalies / scores
    expected = baseline_rate or 1 / baseline_scores
    if (
        rate <= WARNING * expected
        or chance_of(anomalies, scores, round(baseline_rate * baseline_scores), baseline_scores) > CHANCE
    ):
        return None
    return Spike(
        severity="critical" if rate > CRITICAL * expected else "warning",
        anomalies=anomalies,
        scores=scores,
        rate=rate,
        baseline_rate=baseline_rate,
        ratio=rate / baseline_rate if baseline_rate else None,
    )


def chance_of(anomalies: int, scores: int, baseline_anomalies: int, baseline_scores: int) -> float:
    """At most how probable it is that so many of all the anomalies, or more, are late ones when the rate is the same as before.

    Of n anomalies that may be any of the scores, the number of late ones is binomial (Przyborowski and Wilenski 1940, the conditional test
    of two Poisson rates). Beyond its mean each term is at most r times the one before, so the first one bounds the sum: first / (1 - r).
    1 where there are no more late ones than their share.
    """
    total, share = anomalies + baseline_anomalies, scores / (scores + baseline_scores)
    ratio = baseline_anomalies / (anomalies + 1) * share / (1 - share)
    if anomalies <= total * share or ratio >= 1:
        return 1.0
    ways = math.lgamma(total + 1) - math.lgamma(anomalies + 1) - math.lgamma(baseline_anomalies + 1)
    first = math.exp(ways + anomalies * math.log(share) + baseline_anomalies * math.log1p(-share))
    return min(1.0, first / (1 - ratio))
