"""The full diagnosis of a run, with evidence and graph, and runs exported as files.

A diagnosis record only references its evidence; the events are in the log. The full document is built from both on request, by the
same fold that built the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.detectors.thresholds import recorded_profile
from audit.diagnosis.diagnosis import diagnose_events
from audit.diagnosis.events import raw_event
from schemas.errors import InputError
from schemas.lazy import duckdb
from service.read.runs import Run, find_run, runs_of
from service.read.sessions import SessionFinding, SessionFindings, finding_answers, run_findings
from service.text.answers import Answer, Document

_EXPORTED = (
    "run_id", "project", "agent", "connection", "session_id", "started_at", "ended_at", "readiness_level", "trust_score",
    "primary_failure_type", "tool_calls", "exchanges_only",
)  # fmt: skip
"""The fields of a run in its file."""


class DiagnosedRun(Answer, frozen=True):
    """A run with its full diagnosis, as `driftline diagnose --json` shows it, and the turns of each finding."""

    run: Run
    diagnosis: dict[str, Any]
    findings: Annotated[list[SessionFinding], Meta(description="The findings, and where they lie in the session.")]


def diagnosed_run(cursor: duckdb.DuckDBPyConnection, project: str, run_id: str) -> DiagnosedRun | None:
    """Return one run of a project with its diagnosis; None if the project has no run of that id."""
    recorded = find_run(cursor, project, run_id)
    return None if recorded is None else diagnosed(cursor, recorded.run, run_findings(cursor, recorded.run))


def diagnosed(cursor: duckdb.DuckDBPyConnection, run: Run, findings: SessionFindings) -> DiagnosedRun:
    """Return a run with its diagnosis and its findings."""
    return DiagnosedRun(run=run, diagnosis=full_diagnosis(cursor, run), findings=finding_answers(findings))


def runs_named(store: Store, name: str, project: str | None = None) -> Iterator[Run]:
    """Yield the runs whose session id or run id is `name`."""
    return (run for run in runs_of(store, project) if name in (run.session_id, run.run_id))


def full_diagnosis(cursor: duckdb.DuckDBPyConnection, run: Run) -> Document:
    """Return the full diagnosis of a run, by the thresholds of the recorded one."""
    return _diagnose_session(run, events_of(cursor, run.connection, run.session_id))


def events_of(cursor: duckdb.DuckDBPyConnection, connection: str, session_id: str) -> list[Document]:
    """Return the raw normalised events of a session, in order."""
    rows = query_rows(cursor, "session_events", {"connection": connection, "session": session_id})
    return [raw_event(row["payload"]) for row in rows]


def _diagnose_session(run: Run, events: Sequence[Document]) -> Document:
    return diagnose_events(run.session_id, events, recorded_profile(run.threshold_profile, run.threshold_changes))


def export_runs(
    store: Store, folder: Path, project: str | None, tell: Callable[[int, int], None] = lambda _done, _total: None
) -> int:
    """Write every run as three files; return the number of runs. `tell` is called with the number written and the total.

    The runs of a single project go to FOLDER/runs, runs of several projects to FOLDER/<project>/runs. Raises InputError if the
    folder is not writable.
    """
    runs = runs_of(store, project)
    projects = {run.project for run in runs}
    for number, run in enumerate(runs):
        tell(number, len(runs))
        root = folder / "runs" if len(projects) == 1 else folder / run.project / "runs"
        _refuse_other_project(root, run)
        try:
            _export_run(store, run, root)
        except OSError as error:
            raise InputError(f"{root}: {error.strerror}", hint="Choose a writable folder.") from error
    return len(runs)


def _refuse_other_project(root: Path, run: Run) -> None:
    """Raise an InputError if the folder holds a run of another project with the same number, which would be overwritten."""
    path = root / f"{run.run_id}.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")).get("project") != run.project:
        raise InputError(f"{path}: is a run of another project", hint="Export each project to its own folder.")


def _export_run(store: Store, run: Run, root: Path) -> None:
    events = events_of(store.cursor(), run.connection, run.session_id)
    (root / run.run_id).mkdir(parents=True, exist_ok=True)
    _write(root / f"{run.run_id}.json", msgspec.to_builtins({name: getattr(run, name) for name in _EXPORTED}))
    _write(root / run.run_id / "session.json", {"session_id": run.session_id, "events": events})
    _write(root / run.run_id / "diagnosis.json", _diagnose_session(run, events))


def _write(path: Path, document: Document) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
