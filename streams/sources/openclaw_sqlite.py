"""OpenClaw transcripts kept in SQLite: `<root>/agents/<agent>/agent/openclaw-agent.sqlite`, opened read-only.

What a file holds is told by its tables, never by a version number. `openclaw_rows` knows where the lines of a session lie. A
file without any of these tables holds only login state and is no source of transcripts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from schemas.errors import InputError
from schemas.limits import MAX_ID
from streams.sources.openclaw import read_session
from streams.sources.openclaw_rows import SOURCES, TRAJECTORY, TRAJECTORY_COLUMNS, SessionRows
from streams.sources.openclaw_trajectory import Trajectory
from streams.sources.openclaw_windows import Window, read_windows
from streams.sources.reading import Reading, ReadingContext

DATABASE = "openclaw-agent.sqlite"
"""Name of the file in which an agent's transcripts are kept."""


def find_databases(path: Path) -> list[Path]:
    """The databases with transcripts at a path, sorted: the file itself, or all `agents/<agent>/agent/openclaw-agent.sqlite`.

    Files with only login state are left out, and so are symbolic links below a directory. What cannot be opened there is listed:
    reading it says why. InputError when the path itself is a file that cannot be opened.
    """
    if path.is_file():
        return [path] if _has_transcripts(path) else []
    pattern = f"agents/*/agent/{DATABASE}"
    found = {*path.glob(pattern), *path.glob(f"**/{pattern}")}
    links = {file for file in found if any(step.is_symlink() for step in (file, *file.parents) if path in step.parents)}
    return [file for file in sorted(found - links) if file.is_file() and _may_have_transcripts(file)]


def read_database(path: Path, context: ReadingContext) -> Iterator[Reading]:
    """One reading a session, in the order of the session ids; none where the file holds only login state.

    A fault's line is the position of the row in its session. InputError when the file is no SQLite database, or has a table of
    transcripts in a form that is not known.
    """
    try:
        with closing(_connect(path)) as connection:
            tables = _tables_of(connection)
            _check_form(path, tables)
            windows = read_windows(connection, tables)
            for session in _sessions(connection, tables):
                rows = SessionRows(path, connection, tables, session)
                trajectory = Trajectory()
                trajectory.read(rows.trajectory())
                name = session.decode("utf-8", "replace") if isinstance(session, bytes) else str(session)
                reading = read_session(
                    rows.lines(),
                    context,
                    session_id=name[:MAX_ID],
                    agent=_agent_of(path),
                    follows_header=False,
                    window=windows.get(name, Window()),
                    trajectory=trajectory,
                )
                reading.faults += rows.faults
                yield reading
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error


def _check_form(path: Path, tables: dict[str, frozenset[str]]) -> None:
    """Refuse a table that lacks a column: taking only what is left in the others would hide the rest."""
    for table, columns in SOURCES.items():
        missing = sorted(columns - tables.get(table, columns))
        if missing:
            raise InputError(
                f"{path}: the table {table} has no column {', '.join(missing)}",
                hint="This OpenClaw is newer than Driftline knows. Update Driftline, or export the sessions to JSONL and import those.",
            )


def _sessions(connection: sqlite3.Connection, tables: dict[str, frozenset[str]]) -> list[object]:
    """The ids of all sessions that any table has lines of, in order."""
    known = [table for table in SOURCES if table in tables]
    if tables.get(TRAJECTORY, frozenset()) >= TRAJECTORY_COLUMNS:
        known.append(TRAJECTORY)
    parts = [f"SELECT DISTINCT session_id FROM {table}" for table in known]  # noqa: S608 - names of our own
    if not parts:
        return []
    return [row[0] for row in connection.execute(f"{' UNION '.join(parts)} ORDER BY session_id")]


def _agent_of(path: Path) -> str | None:
    """The agent whose folder the file lies in; None elsewhere."""
    parents = path.resolve().parents
    return parents[1].name if len(parents) > 2 and parents[0].name == "agent" and parents[2].name == "agents" else None


def _has_transcripts(path: Path) -> bool:
    try:
        with closing(_connect(path)) as connection:
            return not _tables_of(connection).keys().isdisjoint(SOURCES)
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error


def _may_have_transcripts(path: Path) -> bool:
    try:
        return _has_transcripts(path)
    except InputError:
        return True


def _tables_of(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """The names of the tables, each with the names of its columns."""
    statement = (
        "SELECT tables.name, columns.name FROM sqlite_schema AS tables JOIN pragma_table_info(tables.name) AS columns "
        "WHERE tables.type = 'table' AND tables.sql NOT LIKE 'CREATE VIRTUAL%'"
    )
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(statement):
        found.setdefault(table.decode("utf-8", "replace"), set()).add(column.decode("utf-8", "replace"))
    return {table: frozenset(columns) for table, columns in found.items()}


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    connection.text_factory = bytes
    # The file is not ours: nothing it defines may run.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    return connection


def _unreadable(path: Path, error: sqlite3.Error) -> InputError:
    return InputError(f"{path}: cannot be read as a SQLite database ({error})", hint="Check the file and its permissions.")
