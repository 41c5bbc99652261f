# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Dry runs of deletion: what a run of retention or an erasure would delete, counted and not touched."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime

from analytics.deletion.erased import schemas_of_sessions
from analytics.deletion.retention import Cutoffs, Unread
from analytics.deletion.retention_rules import BY_AGE, CUTOFFS, DOOMED_OF_ALL, LETTER_REVIEWS, OF_EXCHANGES, PROJECTS
from analytics.store.store import Store
from analytics.store.tables import full_name
from schemas.lazy.duckdb import duckdb
from schemas.registry import schema_of


@dataclass(frozen=True, slots=True)
class DoomedProject:
    """The exchanges of a project that retention would delete."""

    project: str
    kept_from: datetime
    """The midnight (UTC) from which on they are kept."""
    exchanges: int
    first: date
    last: date


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The deletions of a run of retention at this moment, if there were one.

    Records that only become superfluous by it, such as the end of a session without any exchange left, are not among the rows.
    """

    projects: tuple[DoomedProject, ...]
    rows: dict[str, int]
    """Rows by table, those without any left out."""


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """The deletions of an erasure, if there were one. Mentions in incidents, alerts and dead letters, and whole replays, are found only by doing it."""

    rows: dict[str, int]
    """Rows by table, those without any left out."""
    sessions: int
    projects: tuple[str, ...]
    first: datetime | None
    """Time of the first exchange or event."""
    last: datetime | None


def plan_retention(store: Store, cutoffs: Cutoffs, unread: Unread) -> RetentionPlan:
    """Count what a run of retention would delete."""
    values = {
        "tasks": unread.tasks,
        "exchanges": unread.exchanges,
        "events": unread.events,
        "requests": unread.requests,
        "otherwise": cutoffs.otherwise,
        "spans": cutoffs.spans,
    }
    with contextlib.closing(store.cursor()) as cursor:
        names = [name for (name,) in cursor.execute(PROJECTS).fetchall()]
        by_project = [cutoffs.of(name).replace(tzinfo=None) for name in names]
        cursor.execute(CUTOFFS, {"projects": names, "cutoffs": by_project})
        cursor.execute(DOOMED_OF_ALL, {name: values[name] for name in ("tasks", "exchanges")})
        doomed = cursor.execute(
            "SELECT project, count(*), min(occurred_at)::DATE, max(occurred_at)::DATE FROM doomed GROUP BY project ORDER BY project"
        ).fetchall()
        rows = Counter[str]()
        for name, statement in [*OF_EXCHANGES.items(), *BY_AGE.items(), ("Review", LETTER_REVIEWS)]:
            used = {key: value for key, value in values.items() if f"${key}" in statement}
            ((found,),) = cursor.execute(f"SELECT count(*) FROM ({statement})", used).fetchall()
            rows[schema_of(name).table] += found
    return RetentionPlan(
        tuple(DoomedProject(project, cutoffs.of(project), *rest) for project, *rest in doomed),
        {table: found for table, found in rows.items() if found},
    )


def plan_erasure(store: Store, connection: str, session_id: str | None) -> ErasurePlan:
    """Count the records of a session, or without a session id those of a whole connection."""
    whose = "connection = $connection AND ($session IS NULL OR session_id = $session)"
    values = {"connection": connection, "session": session_id}
    with contextlib.closing(store.cursor()) as cursor:
        rows = {schema.table: _count(cursor, full_name(schema), whose, values) for schema in schemas_of_sessions()}
        ((sessions, projects, first, last),) = cursor.execute(
            "SELECT count(DISTINCT (connection, session_id)), list_sort(list(DISTINCT project)), min(occurred_at), max(occurred_at) "
            f"FROM (SELECT connection, session_id, project, occurred_at FROM log.exchanges WHERE {whose} UNION ALL "
            f"SELECT connection, session_id, project, occurred_at FROM log.agent_events WHERE {whose})",
            values,
        ).fetchall()
    return ErasurePlan({table: found for table, found in rows.items() if found}, sessions, tuple(projects or ()), first, last)


def _count(cursor: duckdb.DuckDBPyConnection, table: str, whose: str, values: dict[str, str | None]) -> int:
    ((found,),) = cursor.execute(f"SELECT count(*) FROM {table} WHERE {whose}", values).fetchall()
    return int(found)
