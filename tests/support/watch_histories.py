"""Histories with known changes for tests of the watch: scores, runs, findings of a rule and their incidents."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from support.builders import score
from support.stored_sessions import diagnosed

from analytics.store.store import Store
from audit.drift.incident_evidence import Cause, Day, Evidence, Numbers
from audit.drift.watched_series import DOWN, DRIFT, WARNING, Key
from schemas.codec.single_object import encode
from schemas.records import Diagnosis, FailureCause, Incident, Record, Score
from streams.watch.evidence import UNEXPLAINED, Explanation
from streams.watch.findings import Finding, Source
from streams.watch.incidents import build_record, plan_updates

END = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
"""The time as of which checks run."""


def history(
    quality: Callable[[int], float],
    days: int,
    *,
    project: str = "ops",
    a_day: int = 10,
    seed: int = 7,
    name: str = "",
    end: datetime = END,
    **fields: object,
) -> list[Score]:
    """Return scores up to `end`, one per session, of a Tier 2 around `quality(days before the end)` with a deviation of 0.1."""
    chance = random.Random(seed)
    scores = []
    for back in range(days, -1, -1):
        for number in range(a_day):
            at = end - timedelta(days=back, minutes=10 * number + 5)
            session = f"{project}{name}-{back}-{number}"
            tier2 = round(min(1.0, max(0.0, chance.gauss(quality(back), 0.1))), 3)
            values = {"project": project, "exchange_at": at, "scored_at": at, "tier2_score": tier2, **JUDGED, **fields}
            scores.append(score(session, 1, **values))
    return scores


JUDGED: dict[str, object] = {
    "disposition": "scored",
    "tier2_state": "scored",
    "tier2_reason": "always",
    "tier3_state": "skipped_gate",
    "tier3_reason": "routine",
    "judge_model": "claude-haiku-4-5",
}
"""The fields of a score whose Tier 2 was judged."""


def fallen(since: int, to: float = 0.45, before: float = 0.85) -> Callable[[int], float]:
    """Return a quality that fell this many days before the end."""
    return lambda back: to if back < since else before


def steady(_back: int) -> float:
    """Return a constant quality."""
    return 0.85


def put(store: Store, topic: str, records: Iterable[Record]) -> None:
    """Append records to a topic."""
    with store.transaction() as transaction:
        transaction.append(topic, [encode(one) for one in records], skip_known=True)


UNSAFE = "unsafe_for_production"


def failure(name: str) -> FailureCause:
    """Return a cause of a failure type."""
    return FailureCause(
        type=name, severity="critical", impact_score=-20, causal_chain=(), description="", evidence_count=1, evidence=(), remediation=""
    )  # fmt: skip


def ended_run(name: str, end: datetime, *, bad: bool = False, kind: str = "cost_explosion", **fields: Any) -> Diagnosis:
    """Return the diagnosis of a run that ended at this time; a bad run is unsafe and has a failure."""
    values: dict[str, Any] = {"ended_at": end, "closed_at": end, "agent": "desk"}
    if bad:
        values |= {
            "trust_score": 88,
            "readiness_level": UNSAFE,
            "failure_causes": (failure(kind),),
            "failure_cause_count": 1,
            "primary_failure_type": kind,
            "primary_severity": "critical",
        }
    return diagnosed(name, **(values | fields))


def runs(
    share: Callable[[int], float], days: int = 30, a_day: int = 2, *, name: str = "r", seed: int = 5, **fields: Any
) -> list[Diagnosis]:
    """Return runs up to the end of the history, of which a share (by days before the end) is bad."""
    chance = random.Random(seed)
    return [
        ended_run(
            f"{name}-{back}-{number}",
            END - timedelta(days=back, minutes=30 * number + 5),
            bad=chance.random() < share(back),
            **fields,
        )
        for back in range(days, -1, -1)
        for number in range(a_day)
    ]


def worse_since(back: int, share: float = 0.9, before: float = 0.05) -> Callable[[int], float]:
    """Return a share of bad runs that rose this many days before the end."""
    return lambda days: share if days < back else before


def session_ids(records: Iterable[Any]) -> set[str]:
    """Return the ids of the sessions that some records are about."""
    return {one["sessionId"] for one in records}


RUNS, EVIDENCE = "consecutive_days", "sequential"
TODAY = END.date()
DAY = timedelta(days=1)


def finding(*, started_days_ago: int, ended_days_ago: int = 0, **changes: object) -> Finding:
    """Return a finding that Tier 2 fell on the days of this range, counted back from `END`; negative numbers are later days."""
    first, last = TODAY - started_days_ago * DAY, TODAY - ended_days_ago * DAY
    days = [Day(day=first + number * DAY, average=0.5, count=9) for number in range((last - first).days + 1)]
    result = Finding(
        key=Key(DRIFT, "tier2", DOWN),
        rule=RUNS,
        severity=WARNING,
        since=first,
        until=last,
        size=1.5,
        owner="ops",
        headline="answer quality fell",
        description="It fell.",
        numbers=Numbers(days=days),
        before=(END - 20 * DAY, END - 9 * DAY),
        after=(END - 9 * DAY, END),
        expected=0.9,
        source=Source("watched_sessions", {}),
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def explanation(cause: str | None) -> Explanation:
    """Return an explanation by anchors that names this cause, or none."""
    if cause is None:
        return UNEXPLAINED
    return Explanation(cause, f"The {cause} explains it.", Cause(cause=cause))


def check(
    findings: Sequence[Finding], stored: Sequence[Incident] = (), time: datetime = END, cause: str | None = None
) -> list[Incident]:
    """Return the incidents and revisions that a check writes for its findings, given the stored incidents."""
    return [
        build_record(change, "ops", time, Evidence())
        for change in plan_updates(findings, stored, time, lambda _: explanation(cause))
    ]


def opened(*findings: Finding) -> Incident:
    """Return the one incident that these findings open."""
    (incident,) = check(findings)
    return incident
