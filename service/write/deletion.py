"""Deletion: the answers about runs of retention, erasures, and dry runs of both."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from analytics.deletion.retention import PurgeCounts, plan_erasure
from analytics.store.store import Store
from audit.policy import Policy
from schemas.bounds import EARLIEST
from schemas.records import Erasure
from service.text.answers import Answer, Moment, NextCursor, Place
from streams.upkeep.deletion import ErasureStatus, cutoff, erasures, plan_purge


class PurgedRecords(Answer, frozen=True):
    """The deleted records."""

    exchanges_purged: Annotated[int, Meta(examples=[1200])]
    scores_purged: Annotated[int, Meta(examples=[1200])]
    cutoff_date: Annotated[
        Moment | None, Meta(description="Older records are deleted, in projects without their own retention; null: none are.")
    ]


class PurgedProject(Answer, frozen=True):
    """The exchanges of a project that would be deleted."""

    project: str
    exchanges: int
    first_day: date
    last_day: date
    kept_from: Annotated[Moment, Meta(description="Older ones are deleted.")]


class PurgeDryRun(Answer, frozen=True):
    """A dry run of retention; nothing was deleted."""

    projects: list[PurgedProject]
    rows: Annotated[dict[str, int], Meta(description="Rows by table.", examples=[{"exchanges": 1200, "scores": 1200}])]


class ErasureDryRun(Answer, frozen=True):
    """A dry run of an erasure; nothing was deleted."""

    rows: Annotated[dict[str, int], Meta(description="Rows by table.", examples=[{"exchanges": 3, "scores": 3}])]
    sessions: int
    projects: list[str]
    first_at: Annotated[Moment | None, Meta(description="Time of the first exchange or event.")]
    last_at: Moment | None


class ErasureProgress(Answer, frozen=True):
    """An erasure, and its progress."""

    id: str
    connection: str
    session_id: str | None
    requested_by: Annotated[str, Meta(examples=["root"])]
    comment: str | None
    requested_at: Moment
    erased_at: Annotated[Moment | None, Meta(description="null: waiting for the record to return from Kafka.")]
    deleted: Annotated[dict[str, int], Meta(description="Rows deleted or redacted, by table.", examples=[{"exchanges": 3}])]
    replays: Annotated[list[str], Meta(description="Replays deleted because they held some of the records.")]

    @property
    def place(self) -> Place:
        """Its place in the list of erasures."""
        return Place(self.requested_at, self.id)


class RequestedErasure(Answer, frozen=True):
    """A requested erasure, and the copies that it does not reach."""

    erasure: ErasureProgress
    remains: Annotated[list[str], Meta(description="Copies that were not erased, and what to do about them.")]


class ErasureList(Answer, frozen=True):
    """Erasures, newest first."""

    erasures: list[ErasureProgress]
    count: int
    next_cursor: NextCursor


def purged_records(purged: PurgeCounts, policy: Policy, now: datetime, days: int | None) -> PurgedRecords:
    """Return the outcome of a run of retention with this number of days, or the policy's."""
    kept_from = cutoff(now, days if days is not None else policy.for_project("").settings.retention_days)
    return PurgedRecords(
        exchanges_purged=purged.exchanges,
        scores_purged=purged.scores,
        cutoff_date=kept_from if kept_from >= EARLIEST else None,
    )


def purge_dry_run(store: Store, policy: Policy, now: datetime, days: int | None) -> PurgeDryRun:
    """Count the rows that a run of retention would delete at this moment."""
    plan = plan_purge(store, policy, now, days)
    projects = [
        PurgedProject(
            project=doomed.project,
            exchanges=doomed.exchanges,
            first_day=doomed.first,
            last_day=doomed.last,
            kept_from=doomed.kept_from,
        )
        for doomed in plan.projects
    ]
    return PurgeDryRun(projects=projects, rows=plan.rows)


def erasure_dry_run(store: Store, connection: str, session_id: str | None) -> ErasureDryRun:
    """Count the rows that an erasure would delete."""
    plan = plan_erasure(store, connection, session_id)
    return ErasureDryRun(
        rows=plan.rows, sessions=plan.sessions, projects=list(plan.projects), first_at=plan.first, last_at=plan.last
    )


def all_erasures(store: Store) -> list[ErasureProgress]:
    """Return the requested erasures, newest first."""
    return [_progress(requested) for requested in erasures(store)]


def progress_of(store: Store, erasure: Erasure) -> ErasureProgress:
    """Return the progress of an erasure; a pending one that is not flushed yet has none."""
    landed = (requested for requested in erasures(store) if requested.erasure["erasure_id"] == erasure.erasure_id)
    return _progress(next(landed, ErasureStatus(msgspec.structs.asdict(erasure), None)))


def _progress(requested: ErasureStatus) -> ErasureProgress:
    record, done = requested.erasure, requested.done
    return ErasureProgress.of(
        record,
        id=record["erasure_id"],
        requested_at=record["occurred_at"],
        erased_at=done and done.erased_at,
        deleted=dict(done.deleted) if done else {},
        replays=list(done.replays) if done else [],
    )
