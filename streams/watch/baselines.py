"""Baselines: what is normal for a project, over a window that ends with the moment they are computed at.

A baseline is computed again when it is older than a day, or when the scores it would rest on were made with something else. While an
incident of drift is open or acknowledged it is left as it was before: a baseline that has taken in the changed days would call them normal.
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
"""The age that a baseline may have before another one is computed."""


def compute_baseline(measured: ProjectScores, policy: Policy, days: int) -> Baseline | None:
    """The baseline over so many times 24 hours before the as-of; None without scores. The same as-of gives the same record."""
    start, end = measured.as_of - timedelta(days=days), measured.as_of
    found = measured.window(days)
    if not found.exchanges:
        return None
    return Baseline(
        baseline_id=stable_id("baseline", measured.project, start.isoformat(), end.isoformat()),
        project=measured.project,
        computed_at=end,
        window_start=start,
        window_end=end,
        **found.tiers,
        anomaly_rate=found.anomalies / found.exchanges,
        exchange_count=found.exchanges,
        policy_digest=policy.for_project(measured.project).digest,
        yardstick=measured.yardstick(start.date(), end.date()),
    )


def is_comparable(baseline: Baseline, measured: ProjectScores) -> bool:
    """Tell whether a baseline's scores were made with the same means as those that its window holds now."""
    last = min(baseline.window_end, measured.as_of).date()
    return baseline.yardstick == measured.yardstick(baseline.window_start.date(), last)


def needs_new_baseline(baseline: Baseline | None, measured: ProjectScores, incidents: Iterable[Incident]) -> bool:
    """Tell whether another baseline is to be computed without a request."""
    if baseline is None or not is_comparable(baseline, measured):
        return True
    held = any(one.type == DRIFT and is_live(one) for one in incidents)
    return not held and measured.as_of - baseline.computed_at > MAX_BASELINE_AGE
