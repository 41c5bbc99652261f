"""What tests of incidents share: findings of a rule, and the incidents that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from watched import END

from audit.drift.incident_evidence import Cause, Day, Evidence, Numbers
from audit.drift.watched_series import DOWN, DRIFT, WARNING, Key
from schemas.records import Incident
from streams.watch.evidence import UNEXPLAINED, Explanation
from streams.watch.findings import Finding, Source
from streams.watch.incidents import due, record_of

RUNS, EVIDENCE = "consecutive_days", "sequential"
TODAY = END.date()
DAY = timedelta(days=1)


def finding(since: int, until: int = 0, **changes: object) -> Finding:
    """A run of days from so many days ago on, to so many days ago."""
    first, last = TODAY - since * DAY, TODAY - until * DAY
    days = [Day(day=first + number * DAY, average=0.5, count=9) for number in range((last - first).days + 1)]
    made = Finding(
        key=Key(DRIFT, "tier2", DOWN),
        rule=RUNS,
        severity=WARNING,
        since=first,
        until=last,
        size=1.5,
        title="Tier 2 fell",
        description="It fell.",
        numbers=Numbers(days=days),
        before=(END - 20 * DAY, END - 9 * DAY),
        after=(END - 9 * DAY, END),
        expected=0.9,
        looked=Source("watched_sessions", {}),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def told_of(cause: str | None) -> Explanation:
    """What anchors say that name a cause, or none."""
    return UNEXPLAINED if cause is None else Explanation(cause, f"The {cause} explains it.", Cause(cause=cause))


def written(
    findings: Sequence[Finding], known: Sequence[Incident] = (), at: datetime = END, cause: str | None = None
) -> list[Incident]:
    """The incidents and revisions that findings make."""
    return [
        record_of(
            one,
            "ops",
            at,
            Evidence(),
        )
        for one in due(findings, known, at, lambda _: told_of(cause))
    ]


def opened(*findings: Finding) -> Incident:
    """The incident that findings open."""
    (made,) = written(findings)
    return made
