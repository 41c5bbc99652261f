"""The watch: runs checks, and applies the changes that people make to incidents, one at a time.

1. Checks and changes never run concurrently, so that no two records get the same revision.
2. Over Kafka, a record reaches the tables some time after it was published. Until then the watch remembers it.
3. A decision, an assignment or a snooze is published as a review first, and then as a revision of its incident. If only the review came through,
   the next check makes the revision. A comment is only a review.
4. The records of a topic are published together, incidents last. So an interrupted check has published everything, or only a baseline,
   or nothing.
5. After publishing, the check itself is stored with its as-of: the absence of incidents is good news only if there was a check.
6. A change is applied in this order: the decision, the assignee, the snooze, the comment. The first of them that changes anything carries
   the comment.
   A change that is already in effect is no error: only its comment is published.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from analytics.queries import query_records
from audit.drift.incident_evidence import evidence_of
from audit.drift.watched_series import TIERS, VERSION, Series
from audit.fingerprints import stable_id
from schemas.lazy import duckdb
from schemas.records import Baseline, Incident, ProjectCheck, Review
from streams.log.sink import Publisher
from streams.upkeep.anchors import cause_of
from streams.watch.checking import Checker, CheckResult, KnownRecords
from streams.watch.evidence import SIDE_BY_SIDE, Explanation, explain_by_anchors, measure_change
from streams.watch.findings import Finding
from streams.watch.incidents import apply_assignment, apply_decision, apply_snooze
from streams.watch.lifecycle import (
    ACKNOWLEDGED,
    ASSIGNMENT,
    COMMENT,
    DECISION,
    LIVE,
    SNOOZE,
    assignee_of,
    decision_of,
    is_in_effect,
    is_live,
    is_snoozed,
)
from streams.watch.measures import measure_scores


class PublishedRecords:
    """The records that were published, until the tables show them."""

    def __init__(self) -> None:
        self._baselines: dict[str, Baseline] = {}
        self._incidents: dict[str, Incident] = {}
        self._lock = threading.Lock()

    def note(self, baselines: Sequence[Baseline], incidents: Sequence[Incident]) -> None:
        """Remember published records."""
        with self._lock:
            self._baselines.update({baseline.project: baseline for baseline in baselines})
            self._incidents.update({incident.incident_id: incident for incident in incidents})

    def read(self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime | None = None) -> KnownRecords:
        """Return the known records of projects, without baselines that were computed after `as_of`."""
        stored = query_records(cursor, "watched_incidents", Incident, {"projects": projects})
        incidents = {incident.incident_id: incident for incident in stored}
        with self._lock:
            published = [incident for incident in self._incidents.values() if incident.project in projects]
        unflushed = {
            incident.incident_id: incident
            for incident in published
            if self._is_unflushed(incident, incidents.get(incident.incident_id))
        }
        by_project: dict[str, list[Incident]] = defaultdict(list)
        for incident in sorted((incidents | unflushed).values(), key=lambda known: (known.detected_at, known.incident_id)):
            by_project[incident.project].append(incident)
        return KnownRecords(self.baselines(cursor, projects, as_of), by_project, frozenset(unflushed))

    def baselines(
        self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime | None = None
    ) -> dict[str, Baseline]:
        """Return the latest baseline of each project, without those that were computed after `as_of`."""
        stored = query_records(cursor, "latest_baselines", Baseline, {"projects": projects, "as_of": as_of})
        baselines = {baseline.project: baseline for baseline in stored}
        with self._lock:
            for published in [baseline for baseline in self._baselines.values() if baseline.project in projects]:
                if as_of is not None and published.computed_at > as_of:
                    continue
                latest = baselines.get(published.project)
                if latest is not None and latest.computed_at >= published.computed_at:
                    del self._baselines[published.project]
                else:
                    baselines[published.project] = published
        return baselines

    def incident(self, cursor: duckdb.DuckDBPyConnection, project: str, incident_id: str) -> Incident | None:
        """Return the latest revision of an incident; None if the project has no such incident."""
        rows = query_records(cursor, "incident_by_id", Incident, {"project": project, "incident": incident_id})
        stored = next((incident for incident in rows if incident.incident_id == incident_id), None)
        with self._lock:
            published = self._incidents.get(incident_id)
        if published is not None and published.project == project and self._is_unflushed(published, stored):
            return published
        return stored

    def _is_unflushed(self, published: Incident, stored: Incident | None) -> bool:
        """Return whether a published revision is newer than the stored one; forget it otherwise."""
        if stored is None or stored.revision < published.revision:
            return True
        with self._lock:
            if self._incidents.get(published.incident_id) is published:
                del self._incidents[published.incident_id]
        return False


PROJECT_BATCH_SIZE = 50
"""Projects that are checked together, so that one scan reads their scores."""
Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


class Watch:
    """Checks projects and changes incidents, as the module describes. Belongs to one event loop."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._checker = Checker(publisher.policy, self._explain)
        self._published = PublishedRecords()
        self._lock = asyncio.Lock()

    async def check(self, projects: Sequence[str], as_of: datetime | None = None) -> list[CheckResult]:
        """Check projects as of a moment, by default now. Projects that are not audited are left out."""
        audited = [project for project in projects if self._publisher.policy.for_project(project).settings.enabled]
        results: list[CheckResult] = []
        for start in range(0, len(audited), PROJECT_BATCH_SIZE):
            results += await self._check_batch(audited[start : start + PROJECT_BATCH_SIZE], as_of)
        return results

    async def _check_batch(self, projects: Sequence[str], as_of: datetime | None) -> list[CheckResult]:
        async with self._lock:
            results = await asyncio.to_thread(self._run_checker, projects, as_of or self._publisher.now())
            baselines = [result.baseline for result in results if result.baseline is not None and result.is_new_baseline]
            await self._publish(baselines, [incident for result in results for incident in result.incidents])
            checks = [result.project_check for result in results if result.project_check is not None]
            await asyncio.to_thread(self._store_checks, checks)
        for result in results:
            for incident in (*result.opened, *result.worsened):
                log.info("incident in %s: %s: %s", result.project, incident.severity, incident.title)
        return results

    async def recompute(self, project: str, days: int | None = None) -> Baseline | None:
        """Compute and publish a baseline over the last days, by default the policy's window; None without scores."""
        async with self._lock:
            baseline = await asyncio.to_thread(self._compute_baseline, project, days, self._publisher.now())
            await self._publish([] if baseline is None else [baseline], [])
        return baseline

    async def baseline(self, project: str) -> Baseline | None:
        """Return the latest baseline of a project."""
        return await asyncio.to_thread(self._read, lambda cursor: self._published.baselines(cursor, [project]).get(project))

    async def incident(self, project: str, incident_id: str) -> Incident | None:
        """Return the latest revision of an incident; None if the project has no such incident."""
        return await asyncio.to_thread(self._read, lambda cursor: self._published.incident(cursor, project, incident_id))

    async def decide(
        self,
        project: str,
        incident_id: str,
        decision: str,
        who: str,
        comment: str | None = None,
        *,
        entered_by: str | None = None,
        now: datetime | None = None,
    ) -> Incident | None:
        """Apply a decision (`lifecycle.DECISIONS`) to an incident, and return its latest revision; None if there is no such incident.

        `entered_by` is the person who enters the decision for another. The incident does not change if the decision is already in effect,
        except that another person may acknowledge it. It also does not change if it would become live while another live incident has one
        of its series.
        """
        decision = decision_of(decision)
        async with self._lock:
            current = await self.incident(project, incident_id)
            if current is None:
                return None
            is_takeover = decision == ACKNOWLEDGED and current.acknowledged_by != who
            if is_in_effect(current, decision) and not is_takeover:
                return current
            if decision in LIVE and not is_live(current) and await self._has_live_duplicate(project, current):
                return current
            now = now or self._publisher.now()
            review = _build_review(DECISION, current, _format_reviewer(who, entered_by), comment, now, status=decision)
            await self._publisher.publish("reviews", [review])
            revision = apply_decision(current, decision, who, now)
            await self._publish([], [revision])
        return revision

    async def assign(
        self,
        incident: Incident,
        assignee: str | None,
        who: str,
        comment: str | None = None,
        *,
        entered_by: str | None = None,
        now: datetime | None = None,
    ) -> Incident:
        """Assign an incident to a person, or to nobody, and return its latest revision. Its status does not change."""
        async with self._lock:
            current = await self.incident(incident.project, incident.incident_id) or incident
            if assignee_of(current) == assignee:
                return current
            now = now or self._publisher.now()
            review = _build_review(ASSIGNMENT, current, _format_reviewer(who, entered_by), comment, now, assignee=assignee)
            await self._publisher.publish("reviews", [review])
            revision = apply_assignment(current, assignee, now)
            await self._publish([], [revision])
        return revision

    async def snooze(
        self,
        incident: Incident,
        until: datetime | None,
        who: str,
        comment: str | None = None,
        *,
        entered_by: str | None = None,
        now: datetime | None = None,
    ) -> Incident:
        """Snooze a live incident until a time (None: until it gets worse), and return its latest revision. A past time ends the snooze."""
        async with self._lock:
            current = await self.incident(incident.project, incident.incident_id) or incident
            now = now or self._publisher.now()
            ends = until is not None and until <= now
            if not is_live(current) or (ends and not is_snoozed(current, now)):
                return current
            review = _build_review(SNOOZE, current, _format_reviewer(who, entered_by), comment, now, until=until)
            await self._publisher.publish("reviews", [review])
            revision = apply_snooze(current, until, who, now)
            await self._publish([], [revision])
        return revision

    async def comment(
        self, incident: Incident, who: str, comment: str, *, entered_by: str | None = None, now: datetime | None = None
    ) -> None:
        """Publish a comment on an incident."""
        now = now or self._publisher.now()
        review = _build_review(COMMENT, incident, _format_reviewer(who, entered_by), comment, now)
        await self._publisher.publish("reviews", [review])

    async def _has_live_duplicate(self, project: str, incident: Incident) -> bool:
        """Return whether another live incident has a series that raised an alarm in this one."""
        known = await asyncio.to_thread(self._read, lambda cursor: self._published.read(cursor, [project]))
        series = _alarmed_series(incident)
        return any(
            is_live(other) and other.incident_id != incident.incident_id and not series.isdisjoint(_alarmed_series(other))
            for other in known.incidents.get(project, ())
        )

    def _explain(self, project: str, finding: Finding) -> Explanation:
        if finding.kind == VERSION and finding.key.tier in TIERS:
            return SIDE_BY_SIDE
        tier = finding.key.tier
        tier_change = measure_change(finding)
        return explain_by_anchors(tier, tier_change, cause_of(self._publisher.store, project, tier, tier_change))

    def _run_checker(self, projects: Sequence[str], as_of: datetime) -> list[CheckResult]:
        with contextlib.closing(self._publisher.store.cursor()) as cursor:
            cursor.begin()  # a check reads everything from the same snapshot
            known = self._published.read(cursor, projects, as_of)
            return list(self._checker.check(cursor, projects, as_of, known))

    def _store_checks(self, checks: Sequence[ProjectCheck]) -> None:
        """Store the checks, because the absence of incidents means something only if there was a check."""
        if checks:
            with self._publisher.store.transaction() as transaction:
                transaction.set_checks(checks)

    def _compute_baseline(self, project: str, days: int | None, as_of: datetime) -> Baseline | None:
        window = days or self._publisher.policy.for_project(project).settings.baseline_window_days
        with contextlib.closing(self._publisher.store.cursor()) as cursor:
            measured, _ = measure_scores(cursor, [project], as_of.date() - timedelta(days=window), as_of)
        return self._checker.baseline(measured[project], window) if project in measured else None

    def _read(self, query: Callable[[duckdb.DuckDBPyConnection], Answer]) -> Answer:
        with contextlib.closing(self._publisher.store.cursor()) as cursor:
            return query(cursor)

    async def _publish(self, baselines: Sequence[Baseline], incidents: Sequence[Incident]) -> None:
        if baselines:
            await self._publisher.publish("baselines", baselines)
        if incidents:
            await self._publisher.publish("incidents", incidents)
        self._published.note(baselines, incidents)


def _alarmed_series(incident: Incident) -> set[Series]:
    """Return the series that raised an alarm in an incident, including the leading one."""
    evidence = evidence_of(incident)
    return {changed.series for changed in evidence.moved if not changed.fell_too} | {evidence.lead_series(incident)}


def _format_reviewer(who: str, entered_by: str | None) -> str:
    return who if entered_by in {None, who} else f"{who} (entered by {entered_by})"


def _build_review(
    kind: str,
    incident: Incident,
    who: str,
    comment: str | None,
    now: datetime,
    *,
    status: str | None = None,
    assignee: str | None = None,
    until: datetime | None = None,
) -> Review:
    # The ids of decisions do not contain the kind, as in versions that had no other reviews.
    identity = [status or ""] if kind == DECISION else [kind, assignee or "", comment or ""]
    if until is not None:
        identity.append(until.isoformat())
    return Review(
        review_id=stable_id("review", incident.incident_id, *identity, who, now.isoformat()),
        project=incident.project,
        kind=kind,
        subject_id=incident.incident_id,
        reviewer=who,
        status=status,
        comment=comment,
        occurred_at=now,
        ingested_at=now,
        assignee=assignee,
        until=until,
    )


IncidentKey = tuple[str, str]
"""The project and the id of an incident."""
Problem = Literal["not_found", "conflict", "over"]
PROBLEMS: dict[str, str] = {
    "not_found": "the project has no incident with this id",
    "conflict": "another live incident covers the same tier and direction",
    "over": "it is resolved or dismissed, and only a live incident can be snoozed",
}
"""The reasons why an incident was not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of an incident, with at least one part."""

    decision: str | None = None
    """One of `lifecycle.DECISIONS`."""
    assigns: bool = False
    """True if the assignee changes."""
    assignee: str | None = None
    """The new assignee; None for nobody."""
    snoozes: bool = False
    """True if the incident is snoozed."""
    until: datetime | None = None
    """The end of the snooze; None for none but a worse change. A past time ends it."""
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The latest revision of an incident after a change, or the reason why it was not changed."""

    incident: Incident | None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """The author of a change. `entered_by` is the person who enters it for the author."""

    name: str
    entered_by: str | None = None


async def apply_change(
    watch: Watch, key: IncidentKey, wanted: Change, person: Person, now: datetime | None = None
) -> ChangeResult:
    """Apply a change to an incident, at the present time unless `now` is given."""
    project, incident_id = key
    incident = await watch.incident(project, incident_id)
    if incident is None:
        return ChangeResult(None, "not_found")
    has_comment = False
    if wanted.decision is not None:
        decided = await watch.decide(
            project, incident_id, wanted.decision, person.name, wanted.comment, entered_by=person.entered_by, now=now
        )
        if decided is None or not is_in_effect(decided, wanted.decision):
            return ChangeResult(decided or incident, "conflict")
        has_comment = decided.revision != incident.revision
        incident = decided
    if wanted.assigns:
        comment = None if has_comment else wanted.comment
        assigned = await watch.assign(incident, wanted.assignee, person.name, comment, entered_by=person.entered_by, now=now)
        has_comment = has_comment or assigned.revision != incident.revision
        incident = assigned
    if wanted.snoozes:
        comment = None if has_comment else wanted.comment
        snoozed = await watch.snooze(incident, wanted.until, person.name, comment, entered_by=person.entered_by, now=now)
        if not is_live(snoozed):
            return ChangeResult(snoozed, "over")
        has_comment = has_comment or snoozed.revision != incident.revision
        incident = snoozed
    if wanted.comment and not has_comment:
        await watch.comment(incident, person.name, wanted.comment, entered_by=person.entered_by, now=now)
    return ChangeResult(incident)
