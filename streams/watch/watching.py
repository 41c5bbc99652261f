"""The watch over an engine, a gateway or a store: checks, and changes that people make to incidents, one at a time.

1. Checks and decisions never run at the same time, so that no revision is given to two records.
2. Where records land later than they are published, as over Kafka, what was published is remembered until the tables show it.
3. A decision and an assignment are a review first and a revision of their incident second. A check makes the revision where only the
   review came through. A comment is a review alone.
4. A check that is cut off has written a baseline, or nothing, or all: each topic's records are published together, incidents last.
5. After that the store notes that the project was checked, as of when and how far back: only then is no incident good news.
6. A person's change is applied in this order: the decision, which carries the comment; then the assignee; the comment alone if there is
   neither. A change that is in effect already is no failure: nothing is written but the comment, as one of its own.
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
from audit.drift.watched_series import Series
from audit.fingerprints import stable_id
from schemas.lazy import duckdb
from schemas.records import Baseline, Incident, ProjectCheck, Review
from streams.log.sink import Publisher
from streams.upkeep.anchors import cause_of
from streams.watch.checking import Checker, CheckResult, KnownRecords
from streams.watch.evidence import Explanation, explain_by_anchors, measure_change
from streams.watch.findings import Finding
from streams.watch.incidents import apply_assignment, apply_decision
from streams.watch.lifecycle import ACKNOWLEDGED, LIVE, assignee_of, decision_of, is_in_effect, is_live
from streams.watch.measures import measure_scores


class PublishedRecords:
    """The records that were published lately.

    Over Kafka, the tables show a record only once it has landed; then it is forgotten here.
    """

    def __init__(self) -> None:
        self._baselines: dict[str, Baseline] = {}
        self._incidents: dict[str, Incident] = {}
        self._lock = threading.Lock()

    def note(self, baselines: Sequence[Baseline], incidents: Sequence[Incident]) -> None:
        """Remember what was published."""
        with self._lock:
            self._baselines.update({one.project: one for one in baselines})
            self._incidents.update({one.incident_id: one for one in incidents})

    def read(self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime | None = None) -> KnownRecords:
        """Read what is known of some projects; baselines that were computed after `as_of` are left out."""
        shown = {one.incident_id: one for one in query_records(cursor, "watched_incidents", Incident, {"projects": projects})}
        with self._lock:
            own = [one for one in self._incidents.values() if one.project in projects]
        newer = {one.incident_id: one for one in own if self._newer(one, shown.get(one.incident_id))}
        by_project: dict[str, list[Incident]] = defaultdict(list)
        for one in sorted((shown | newer).values(), key=lambda one: (one.detected_at, one.incident_id)):
            by_project[one.project].append(one)
        return KnownRecords(self.baselines(cursor, projects, as_of), by_project, frozenset(newer))

    def baselines(
        self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime | None = None
    ) -> dict[str, Baseline]:
        """The latest baseline of each of some projects; those computed after `as_of` are left out."""
        latest = query_records(cursor, "latest_baselines", Baseline, {"projects": projects, "as_of": as_of})
        baselines = {one.project: one for one in latest}
        with self._lock:
            for made in [one for one in self._baselines.values() if one.project in projects]:
                if as_of is not None and made.computed_at > as_of:
                    continue
                landed = baselines.get(made.project)
                if landed is not None and landed.computed_at >= made.computed_at:
                    del self._baselines[made.project]
                else:
                    baselines[made.project] = made
        return baselines

    def incident(self, cursor: duckdb.DuckDBPyConnection, project: str, incident_id: str) -> Incident | None:
        """One incident of a project in its latest revision; None where there is none of this id."""
        values = {"project": project, "incident": incident_id}
        named = query_records(cursor, "incident_by_id", Incident, values)
        shown = next((one for one in named if one.incident_id == incident_id), None)
        with self._lock:
            own = self._incidents.get(incident_id)
        return own if own is not None and own.project == project and self._newer(own, shown) else shown

    def _newer(self, own: Incident, shown: Incident | None) -> bool:
        """Tell whether a published record is newer than the tables show; it is forgotten if it has landed."""
        if shown is None or shown.revision < own.revision:
            return True
        with self._lock:
            if self._incidents.get(own.incident_id) is own:
                del self._incidents[own.incident_id]
        return False


DECISION, ASSIGNMENT, COMMENT = "incident_decision", "incident_assignment", "incident_comment"
"""The kinds of review that decide on an incident, assign it, and say something of it."""
PROJECT_BATCH_SIZE = 50
"""Projects that are checked together: their scores are read in one scan."""
Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


class Watch:
    """See the module; anchors tell what changed. Belongs to one event loop."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._checker = Checker(publisher.policy, self._cause)
        self._published = PublishedRecords()
        self._turn = asyncio.Lock()

    async def check(self, projects: Sequence[str], as_of: datetime | None = None) -> list[CheckResult]:
        """Check some projects as of a moment (now); those that are not audited are left out."""
        wanted = [project for project in projects if self._publisher.policy.for_project(project).settings.enabled]
        checked: list[CheckResult] = []
        for start in range(0, len(wanted), PROJECT_BATCH_SIZE):
            checked += await self._check(wanted[start : start + PROJECT_BATCH_SIZE], as_of)
        return checked

    async def _check(self, projects: Sequence[str], as_of: datetime | None) -> list[CheckResult]:
        async with self._turn:
            checked = await asyncio.to_thread(self._examine, projects, as_of or self._publisher.now())
            baselines = [one.baseline for one in checked if one.baseline is not None and one.is_new_baseline]
            await self._publish(baselines, [incident for one in checked for incident in one.incidents])
            await asyncio.to_thread(self._note, [one.project_check for one in checked if one.project_check is not None])
        for one in checked:
            for incident in (*one.opened, *one.worsened):
                log.info("incident in %s: %s: %s", one.project, incident.severity, incident.title)
        return checked

    async def recompute(self, project: str, days: int | None = None) -> Baseline | None:
        """Compute a baseline over the last days (the policy's window) now and make it the latest; None without scores."""
        async with self._turn:
            baseline = await asyncio.to_thread(self._baseline, project, days, self._publisher.now())
            await self._publish([] if baseline is None else [baseline], [])
        return baseline

    async def baseline(self, project: str) -> Baseline | None:
        """The latest baseline of a project."""
        return await asyncio.to_thread(self._read, lambda cursor: self._published.baselines(cursor, [project]).get(project))

    async def incident(self, project: str, incident_id: str) -> Incident | None:
        """An incident of a project in its latest revision; None where there is none of this id."""
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
        """Decide on an incident (`states.DECISIONS`), at the present unless `now` is given; answers it as it is then, None where there is none.

        A decision that one person enters for another says so for as long as it is kept.

        It stays as it is where it is in that state already, except that another person may acknowledge it, and where it is to be open
        or acknowledged again while another live incident has what moved in it.
        """
        decision = decision_of(decision)
        async with self._turn:
            current = await self.incident(project, incident_id)
            taken_over = decision == ACKNOWLEDGED and current is not None and current.acknowledged_by != who
            if current is None or (is_in_effect(current, decision) and not taken_over):
                return current
            if decision in LIVE and not is_live(current) and await self._is_taken(project, current):
                return current
            now = now or self._publisher.now()
            said = _build_review(DECISION, current, _format_reviewer(who, entered_by), comment, now, status=decision)
            await self._publisher.publish("reviews", [said])
            made = apply_decision(current, decision, who, now)
            await self._publish([], [made])
        return made

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
        """Assign an incident to a person, or to no one; answers it as it is then. It stays as it is where the person has it already.

        Its state does not change: to be assigned one is not to work on it.
        """
        async with self._turn:
            current = await self.incident(incident.project, incident.incident_id) or incident
            if assignee_of(current) == assignee:
                return current
            now = now or self._publisher.now()
            said = _build_review(ASSIGNMENT, current, _format_reviewer(who, entered_by), comment, now, assignee=assignee)
            await self._publisher.publish("reviews", [said])
            made = apply_assignment(current, assignee, now)
            await self._publish([], [made])
        return made

    async def comment(
        self, incident: Incident, who: str, comment: str, *, entered_by: str | None = None, now: datetime | None = None
    ) -> None:
        """Say something of an incident; nothing else of it changes."""
        said = _build_review(COMMENT, incident, _format_reviewer(who, entered_by), comment, now or self._publisher.now())
        await self._publisher.publish("reviews", [said])

    async def _is_taken(self, project: str, incident: Incident) -> bool:
        """Tell whether another live incident has a series that raised an alarm in this one."""
        known = await asyncio.to_thread(self._read, lambda cursor: self._published.read(cursor, [project]))
        own = _alarmed_series(incident)
        live = (one for one in known.incidents.get(project, ()) if is_live(one) and one.incident_id != incident.incident_id)
        return any(not own.isdisjoint(_alarmed_series(other)) for other in live)

    def _cause(self, project: str, finding: Finding) -> Explanation:
        tier, moved = finding.key.tier, measure_change(finding)
        return explain_by_anchors(tier, moved, cause_of(self._publisher.store, project, tier, moved))

    def _examine(self, projects: Sequence[str], as_of: datetime) -> list[CheckResult]:
        with contextlib.closing(self._publisher.store.cursor()) as cursor:
            cursor.begin()  # everything that a check reads is of one moment
            return list(self._checker.check(cursor, projects, as_of, self._published.read(cursor, projects, as_of)))

    def _note(self, looked: Sequence[ProjectCheck]) -> None:
        """Keep the times of checks: an empty result means something only if a check was made."""
        if looked:
            with self._publisher.store.transaction() as transaction:
                transaction.set_checks(looked)

    def _baseline(self, project: str, days: int | None, as_of: datetime) -> Baseline | None:
        window = days or self._publisher.policy.for_project(project).settings.baseline_window_days
        with contextlib.closing(self._publisher.store.cursor()) as cursor:
            measured, _ = measure_scores(cursor, [project], as_of.date() - timedelta(days=window), as_of)
        return self._checker.baseline(measured[project], window) if project in measured else None

    def _read(self, question: Callable[[duckdb.DuckDBPyConnection], Answer]) -> Answer:
        with contextlib.closing(self._publisher.store.cursor()) as cursor:
            return question(cursor)

    async def _publish(self, baselines: Sequence[Baseline], incidents: Sequence[Incident]) -> None:
        for topic, records in (("baselines", baselines), ("incidents", incidents)):
            if records:
                await self._publisher.publish(topic, records)
        self._published.note(baselines, incidents)


def _alarmed_series(incident: Incident) -> set[Series]:
    """The series that raised an alarm in an incident; the one that leads did."""
    evidence = evidence_of(incident)
    return {one.series for one in evidence.moved if not one.fell_too} | {evidence.lead_series(incident)}


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
) -> Review:
    """The actions of a person on an incident. Decisions keep the ids that they had before there was anything else to do."""
    named = [status or ""] if kind == DECISION else [kind, assignee or "", comment or ""]
    return Review(
        review_id=stable_id("review", incident.incident_id, *named, who, now.isoformat()),
        project=incident.project,
        kind=kind,
        subject_id=incident.incident_id,
        reviewer=who,
        status=status,
        comment=comment,
        occurred_at=now,
        ingested_at=now,
        assignee=assignee,
    )


IncidentKey = tuple[str, str]
"""An incident, by project and id."""
Problem = Literal["not_found", "conflict"]
PROBLEMS: dict[str, str] = {
    "not_found": "the project has no incident with this id",
    "conflict": "another live incident covers the same tier and direction",
}
"""Why an incident was not changed, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of an incident; at least one of its parts is given."""

    decision: str | None = None
    """One of `states.DECISIONS`."""
    assigns: bool = False
    """Whether the assignee changes."""
    assignee: str | None = None
    """The person whose it is to be; None for nobody."""
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The outcome of a change of one incident: the incident as it is now, or why it was not changed."""

    incident: Incident | None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """The person who changes it. `entered_by` is the person who enters that for another."""

    name: str
    entered_by: str | None = None


async def apply_change(
    watch: Watch, which: IncidentKey, wanted: Change, person: Person, now: datetime | None = None
) -> ChangeResult:
    """Change one incident, at the present unless `now` is given."""
    project, incident_id = which
    before = await watch.incident(project, incident_id)
    if before is None:
        return ChangeResult(None, "not_found")
    made, told = before, False
    if wanted.decision is not None:
        who, entered_by = person.name, person.entered_by
        apply_decision = await watch.decide(
            project, incident_id, wanted.decision, who, wanted.comment, entered_by=entered_by, now=now
        )
        if apply_decision is None or not is_in_effect(apply_decision, wanted.decision):
            return ChangeResult(apply_decision or before, "conflict")
        made, told = apply_decision, apply_decision.revision != before.revision
    if wanted.assigns:
        comment = None if told else wanted.comment
        assigned = await watch.assign(made, wanted.assignee, person.name, comment, entered_by=person.entered_by, now=now)
        made, told = assigned, told or assigned.revision != made.revision
    if wanted.comment and not told:
        await watch.comment(made, person.name, wanted.comment, entered_by=person.entered_by, now=now)
    return ChangeResult(made)
