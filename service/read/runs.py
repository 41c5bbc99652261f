"""Finished runs: their rows, their full diagnosis with evidence and graph, and their exported files.

A diagnosis record keeps references to its evidence; the events themselves are in the log. The full document is made of both on
request, by the same fold that made the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.detectors.thresholds import recorded_profile
from audit.diagnosis.diagnosis import diagnose_events
from audit.diagnosis.events import raw_event
from audit.exchanges.wrap_quality import wrap_quality
from audit.policy.policy import Policy
from schemas.errors import InputError
from schemas.lazy.duckdb import duckdb
from service.read.run_rows import runs_of
from service.setup.workspace import Workspace

Row = dict[str, Any]
Document = dict[str, Any]
Between = tuple[datetime | None, datetime | None]
"""The first moment of a time, and the first one after it; None for no bound."""
ANY_TIME: Between = (None, None)
_NO_TRUST = -1.0
"""Stands for a missing trust score, which has a place in an order, too."""
_RUN_ID = re.compile(r"run_0{0,2}([1-9][0-9]{0,17})")


def run_page(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    before: tuple[datetime, int] | None,
    limit: int,
    readiness: str | None = None,
    *,
    between: Between = ANY_TIME,
) -> list[Row]:
    """Return runs of a project, the one that ended last first: those before a run (`last_at`, `number`), or the newest.

    Of one readiness level, or of all; of those that ended in a time, or of all.
    """
    at, number = before or (None, None)
    asked = {"project": project, "before_at": at, "before": number, "readiness": readiness, "limit": limit}
    return query_rows(cursor, "project_runs", {**asked, "from": between[0], "to": between[1]})


def with_run_ids(cursor: duckdb.DuckDBPyConnection, project: str, sessions: Sequence[Row]) -> list[Row]:
    """Return rows of sessions (`connection`, `session_id`) of a project, each with the `run_id` of its run and `closed_at`.

    Both are None while it has never ended; `run_id` also if its end has not been diagnosed yet.
    """
    named = {"connections": [one["connection"] for one in sessions], "sessions": [one["session_id"] for one in sessions]}
    asked = {"project": project, **named}
    ended = {(row["connection"], row["session_id"]): row for row in query_rows(cursor, "runs_of_sessions", asked)}
    never = {"run_id": None, "closed_at": None}
    found = [(one, ended.get((one["connection"], one["session_id"]), never)) for one in sessions]
    return [{**one, "run_id": end["run_id"], "closed_at": end["closed_at"]} for one, end in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The runs of a project to show; None is any."""

    readiness: str | None = None
    agents: Sequence[str] | None = None
    since: date | None = None
    until: date | None = None
    """The last day, UTC, on which a run ended."""
    between: Between = ANY_TIME
    """When a run ended, where no days are asked for."""


def worst_runs(
    cursor: duckdb.DuckDBPyConnection, project: str, wanted: Wanted, after: tuple[int, float | None, int] | None, limit: int
) -> list[Row]:
    """Return runs of a project, worst readiness first, then lowest trust: from the worst on, or after a given place."""
    level, trust, number = after or (None, None, None)
    asked = {
        "project": project,
        "readiness": wanted.readiness,
        "agents": list(wanted.agents) if wanted.agents else None,
        "since": wanted.since or wanted.between[0],
        "until": wanted.until + timedelta(days=1) if wanted.until else wanted.between[1],
        "after_level": level,
        "after_trust": _NO_TRUST if trust is None else trust,
        "after_number": number,
        "limit": limit,
    }
    return query_rows(cursor, "worst_runs", asked)


def run_row(cursor: duckdb.DuckDBPyConnection, project: str, run_id: str) -> Row | None:
    """Return the row of one run of a project, a row of the query `one_run`; None if it has none of that id."""
    number = _RUN_ID.fullmatch(run_id)
    if number is None:
        return None
    by_number = dict.fromkeys(("connection", "session", "place"))
    return next(iter(query_rows(cursor, "one_run", {"project": project, "number": int(number[1]), **by_number})), None)


def run_document(cursor: duckdb.DuckDBPyConnection, project: str, run_id: str) -> tuple[Row, Document] | None:
    """Return row and full diagnosis of one run of a project; None if it has none of that id."""
    row = run_row(cursor, project, run_id)
    if row is None:
        return None
    return row, _diagnosed(row, events_of(cursor, row["connection"], row["session_id"]))


def events_of(cursor: duckdb.DuckDBPyConnection, connection: str, session_id: str) -> list[Document]:
    """Return the raw normalised events of a session, in order."""
    rows = query_rows(cursor, "session_events", {"connection": connection, "session": session_id})
    return [raw_event(row["payload"]) for row in rows]


def run_documents(store: Store, wanted: str, project: str | None = None) -> Iterator[tuple[Row, Document]]:
    """Yield row and full diagnosis of the runs whose session id or run id is `wanted`."""
    for row in runs_of(store, project):
        if wanted in (row["session_id"], row["run_id"]):
            yield row, _diagnosed(row, events_of(store.cursor(), row["connection"], row["session_id"]))


def _diagnosed(row: Row, events: Sequence[Document]) -> Document:
    """Return the whole diagnosis of a run, by the thresholds that it was made with."""
    return diagnose_events(row["session_id"], events, recorded_profile(row["threshold_profile"], row["threshold_changes"]))


def export_runs(
    store: Store, folder: Path, project: str | None, tell: Callable[[int, int], None] = lambda _done, _total: None
) -> int:
    """Write every run as three files; return the number of runs. `tell` hears how many are written, and of how many.

    The runs of one project go to FOLDER/runs, those of several to FOLDER/<project>/runs. InputError when the folder cannot be
    written to.
    """
    rows = runs_of(store, project)
    projects = {row["project"] for row in rows}
    for number, row in enumerate(rows):
        tell(number, len(rows))
        root = folder / "runs" if len(projects) == 1 else folder / row["project"] / "runs"
        _refuse_other_project(root, row)
        try:
            _export_run(store, row, root)
        except OSError as error:
            raise InputError(f"{root}: {error.strerror}", hint="Choose a writable folder.") from error
    return len(rows)


def _refuse_other_project(root: Path, row: Row) -> None:
    """InputError if the folder holds another project's run of the same number, which would be overwritten."""
    path = root / f"{row['run_id']}.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")).get("project") != row["project"]:
        raise InputError(f"{path}: is a run of another project", hint="Export each project to its own folder.")


def _export_run(store: Store, row: Row, root: Path) -> None:
    events = events_of(store.cursor(), row["connection"], row["session_id"])
    summary = {
        "run_id": row["run_id"],
        "project": row["project"],
        "agent": row["agent"],
        "connection": row["connection"],
        "session_id": row["session_id"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "readiness_level": row["readiness_level"],
        "trust_score": row["trust_score"],
        "primary_failure_type": row["primary_failure_type"],
        "tool_calls": row["tool_calls"],
        "exchanges_only": row["exchanges_only"],
    }
    (root / row["run_id"]).mkdir(parents=True, exist_ok=True)
    _write(root / f"{row['run_id']}.json", msgspec.to_builtins(summary))
    _write(root / row["run_id"] / "session.json", {"session_id": row["session_id"], "events": events})
    _write(root / row["run_id"] / "diagnosis.json", _diagnosed(row, events))


def _write(path: Path, document: Document) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def wrap_rows(workspace: Workspace, project: str | None, limit: int) -> list[Row]:
    """Return the wrap quality of the newest sessions, without projects that switch it off."""
    return wrap_page(workspace.store.cursor(), workspace.policy, project, limit)


def wrap_page(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    project: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
    *,
    between: Between = ANY_TIME,
) -> list[Row]:
    """Return the same, after a session: the time of its last exchange, and its connection and id with a slash between.

    `between` is the time of a session's last exchange.
    """
    at, identity = after or (None, None)
    place = {"after_at": at, "after_id": identity, "from": between[0], "to": between[1]}
    values = {"project": project, "limit": limit, **place}
    return [
        {
            **{name: value for name, value in row.items() if name != "texts"},
            "score": quality.score,
            "steps_found": list(quality.steps_found),
            "steps_missing": list(quality.steps_missing),
        }
        for row in query_rows(cursor, "wrap_exchanges", values)
        if policy.for_project(row["project"]).settings.wrap_quality_scoring
        for quality in [wrap_quality(row["texts"])]
    ]
