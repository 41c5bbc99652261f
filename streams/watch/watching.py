"""The watch over an engine, a gateway or a store: checks and people's decisions, taking turns.

1. Checks and decisions never run at the same time, so that no revision is given to two records.
2. Where records land later than they are published, as over Kafka, what was published is known until the tables show it.
3. A decision and an assignment are a review first and a revision of their incident second. A check makes the revision where only the
   review came through. A comment is a review alone.
4. A check that is cut off has written a baseline, or nothing, or all: each topic's records are published together, incidents last.
5. Then it is kept in the store that the project was checked, as of when and how far back: no incident is good news only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from audit.drift.incident_evidence import evidence_of
from audit.drift.watched_series import Series
from audit.fingerprints import stable_id
from schemas.lazy.duckdb import duckdb
from schemas.records import Baseline, Incident, ProjectCheck, Review
from streams.log.publisher import Publisher
from streams.upkeep.anchors import cause_of
from streams.watch.checking import Checked, Checker
from streams.watch.incidents.causes import Explanation, explained, moved_by
from streams.watch.incidents.incidents import decided, reassigned
from streams.watch.incidents.states import ACKNOWLEDGED, LIVE, assignee_of, decision_of, is_live, shows
from streams.watch.known import Published
from streams.watch.measured import measure
from streams.watch.rules.findings import Finding

DECISION, ASSIGNMENT, COMMENT = "incident_decision", "incident_assignment", "incident_comment"
"""The kinds of review that decide on an incident, assign it, and say something of it."""
AT_ONCE = 50
"""Projects that are checked together: their scores are read in one scan."""
Found = TypeVar("Found")
log = logging.getLogger(__name__)


class Watch:
    """See the module; anchors tell what changed. Belongs to one event loop."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._checker = Checker(publisher.policy, self._cause)
        self._published = Published()
        self._turn = asyncio.Lock()

    async def check(self, projects: Sequence[str], as_of: datetime | None = None) -> list[Checked]:
        """Check some projects as of a moment (now); those that are not audited are left out."""
        wanted = [project for project in projects if self._publisher.policy.for_project(project).settings.enabled]
        checked: list[Checked] = []
        for start in range(0, len(wanted), AT_ONCE):
            checked += await self._check(wanted[start : start + AT_ONCE], as_of)
        return checked

    async def _check(self, projects: Sequence[str], as_of: datetime | None) -> list[Checked]:
        async with self._turn:
            checked = await asyncio.to_thread(self._examine, projects, as_of or self._publisher.now())
            baselines = [one.baseline for one in checked if one.baseline is not None and one.is_new_baseline]
            await self._publish(baselines, [incident for one in checked for incident in one.incidents])
            await asyncio.to_thread(self._note, [one.looked for one in checked if one.looked is not None])
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
            if current is None or (shows(current, decision) and not taken_over):
                return current
            if decision in LIVE and not is_live(current) and await self._is_taken(project, current):
                return current
            now = now or self._publisher.now()
            said = _review(DECISION, current, _reviewer(who, entered_by), comment, now, status=decision)
            await self._publisher.publish("reviews", [said])
            made = decided(current, decision, who, now)
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
            said = _review(ASSIGNMENT, current, _reviewer(who, entered_by), comment, now, assignee=assignee)
            await self._publisher.publish("reviews", [said])
            made = reassigned(current, assignee, now)
            await self._publish([], [made])
        return made

    async def comment(
        self, incident: Incident, who: str, comment: str, *, entered_by: str | None = None, now: datetime | None = None
    ) -> None:
        """Say something of an incident; nothing else of it changes."""
        said = _review(COMMENT, incident, _reviewer(who, entered_by), comment, now or self._publisher.now())
        await self._publisher.publish("reviews", [said])

    async def _is_taken(self, project: str, incident: Incident) -> bool:
        """Tell whether another live incident has a series that raised an alarm in this one."""
        known = await asyncio.to_thread(self._read, lambda cursor: self._published.read(cursor, [project]))
        own = _alarmed(incident)
        live = (one for one in known.incidents.get(project, ()) if is_live(one) and one.incident_id != incident.incident_id)
        return any(not own.isdisjoint(_alarmed(other)) for other in live)

    def _cause(self, project: str, finding: Finding) -> Explanation:
        tier, moved = finding.key.tier, moved_by(finding)
        return explained(tier, moved, cause_of(self._publisher.store, project, tier, moved))

    def _examine(self, projects: Sequence[str], as_of: datetime) -> list[Checked]:
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
            measured, _ = measure(cursor, [project], as_of.date() - timedelta(days=window), as_of)
        return self._checker.baseline(measured[project], window) if project in measured else None

    def _read(self, question: Callable[[duckdb.DuckDBPyConnection], Found]) -> Found:
        with contextlib.closing(self._publisher.store.cursor()) as cursor:
            return question(cursor)

    async def _publish(self, baselines: Sequence[Baseline], incidents: Sequence[Incident]) -> None:
        for topic, records in (("baselines", baselines), ("incidents", incidents)):
            if records:
                await self._publisher.publish(topic, records)
        self._published.note(baselines, incidents)


def _alarmed(incident: Incident) -> set[Series]:
    """The series that raised an alarm in an incident; the one that leads did."""
    evidence = evidence_of(incident)
    return {one.series for one in evidence.moved if not one.fell_too} | {evidence.lead_of(incident)}


def _reviewer(who: str, entered_by: str | None) -> str:
    return who if entered_by in {None, who} else f"{who} (entered by {entered_by})"


def _review(
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
