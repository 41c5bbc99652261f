"""The rule of anomaly spikes applied to what was measured of one project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from audit.drift import incident_evidence as evidence
from audit.drift.anomaly_rate import Day, Spike, anomaly_spike
from audit.drift.watched_series import SPIKE, UP, Key
from streams.watch.rules.cases import Case
from streams.watch.rules.findings import Finding

RATIO = "rate_ratio"
_KEY = Key(SPIKE, None, UP)


def by_rate(case: Case) -> Iterator[Finding]:
    """A rate of anomalies that has risen within the last two weeks, against the days before it rose; needs no baseline record."""
    reference = case.reference(_KEY.series)
    days = [one for one in case.measured.anomalies() if reference.counts(one.day)]
    found = anomaly_spike(days, case.measured.as_of.date())
    if found is not None:
        yield _finding(
            case, found, [one for one in days if one.day >= found.first_day], known_level=reference.since is not None
        )


def _finding(case: Case, found: Spike, days: Sequence[Day], *, known_level: bool) -> Finding:
    last = found.first_day - timedelta(days=1)
    until = max(one.day for one in days)
    return Finding(
        key=_KEY,
        rule=RATIO,
        severity=found.severity,
        since=found.first_day,
        until=until,
        size=found.rate,
        title=f"{found.rate:.0%} of the exchanges since {found.first_day} have an anomaly, {found.rate_before:.1%} had one before",
        description=_in_words(found),
        numbers=evidence.Numbers(
            days=[evidence.Day(day=one.day, anomalies=one.anomalies, count=one.exchanges) for one in days],
            first_day=found.first_day,
            anomalies=found.anomalies,
            exchanges=found.exchanges,
            rate=found.rate,
            baseline_rate=found.rate_before,
            baseline_anomalies=found.anomalies_before,
            baseline_exchanges=found.exchanges_before,
            baseline_from=found.start,
            baseline_until=last,
            ratio=found.ratio,
            log_evidence=found.log_evidence,
        ),
        before=case.window(found.start, last),
        after=case.window(found.first_day, until),
        expected=found.rate_before,
        looked=case.looked,
        confirmed=found.is_confirmed,
        known_level=known_level,
    )


def _in_words(found: Spike) -> str:
    times = "" if found.ratio is None else f", so it is {found.ratio:.1f} times as high"
    return (
        f"Since {found.first_day}, most likely the first day, {found.anomalies} of {found.exchanges} exchanges had an anomaly "
        f"({found.rate:.1%}). From {found.start} to the day before, {found.anomalies_before} of {found.exchanges_before} had one "
        f"({found.rate_before:.1%}){times}."
    )
