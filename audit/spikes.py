"""Anomaly spikes: the anomaly rate of the last days against that of the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from audit.drift import Severity

DAYS = 3
"""How many UTC days are looked at, the one of the check included."""
WARNING = 2.0
"""Above so many times the baseline's rate it is a spike."""
CRITICAL = 3.0
FEWEST_ANOMALIES = 2
"""One exchange is no spike, however few there were: it is shown as an anomaly by itself."""


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
    two anomalies, or when there is nothing to compare. `scores` and `baseline_scores` are those that have a current score.
    """
    if anomalies < FEWEST_ANOMALIES or scores <= 0 or baseline_scores <= 0:
        return None
    rate = anomalies / scores
    expected = baseline_rate or 1 / baseline_scores
    if rate <= WARNING * expected:
        return None
    return Spike(
        severity="critical" if rate > CRITICAL * expected else "warning",
        anomalies=anomalies,
        scores=scores,
        rate=rate,
        baseline_rate=baseline_rate,
        ratio=rate / baseline_rate if baseline_rate else None,
    )
