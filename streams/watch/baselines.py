"""Baselines: the normal level of a project, over a window that ends when the baseline is computed.

A baseline is computed again when it is older than a day, or when the scores in its window were made by other means. While an incident of
drift is open or acknowledged, an old baseline stays: a new one would include the changed days and call them normal.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from audit.drift.watched_series import DRIFT
from audit.fingerprints import stable_id
from audit.policy import Policy
from schemas.records import Baseline, Incident
from streams.watch.lifecycle import is_live
from streams.watch.measures import ProjectScores

MAX_BASELINE_AGE = timedelta(days=1)
"""The age from which a baseline is computed again."""


def compute_baseline(measured: ProjectScores, policy: Policy, days: int) -> Baseline | None:
    """Return the baseline over the `days` times 24 hours before the as-of; None without scores. The same as-of gives the same record."""
    end = measured.as_of
    start = end - timedelta(days=days)
    statistics = measured.window(days)
    if not statistics.exchanges:
        return None
    return Baseline(
        baseline_id=stable_id("baseline", measured.project, start.isoformat(), end.isoformat()),
        project=measured.project,
        computed_at=end,
        window_start=start,
        window_end=end,
        **statistics.tiers,
        anomaly_rate=statistics.anomalies / statistics.exchanges,
        exchange_count=statistics.exchanges,
        policy_digest=policy.for_project(measured.project).digest,
        yardstick=measured.yardstick(start.date(), end.date()),
    )


def is_comparable(baseline: Baseline, measured: ProjectScores) -> bool:
    """Return whether the scores that are now in a baseline's window were made by the same means as the baseline's."""
    last = min(baseline.window_end, measured.as_of).date()
    return baseline.yardstick == measured.yardstick(baseline.window_start.date(), last)


def needs_new_baseline(baseline: Baseline | None, measured: ProjectScores, incidents: Iterable[Incident]) -> bool:
    """Return whether a check must compute a new baseline."""
    if baseline is None or not is_comparable(baseline, measured):
        return True
    has_live_drift = any(incident.type == DRIFT and is_live(incident) for incident in incidents)
    return not has_live_drift and measured.as_of - baseline.computed_at > MAX_BASELINE_AGE
