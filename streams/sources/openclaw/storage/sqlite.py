"""OpenClaw transcripts kept in SQLite: `<root>/agents/<agent>/agent/openclaw-agent.sqlite`, opened read-only.

The tables of a file say what it holds, never a version number. `openclaw_rows` knows where the lines of a session lie. A
file without any of these tables holds only login state and is no source of transcripts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from schemas.bounds.limits import MAX_ID
from schemas.errors import InputError
from streams.sources.folders import is_linked
from streams.sources.openclaw.reader import read_session
from streams.sources.openclaw.storage.rows import ARCHIVES, SOURCES, TRAJECTORY, TRAJECTORY_COLUMNS, SessionRows
from streams.sources.openclaw.storage.windows import Window, read_windows
from streams.sources.openclaw.trajectory import Trajectory
from streams.sources.source import EVERY_SESSION, Reading, ReadingContext, SessionRange

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
    return [file for file in sorted(found) if not is_linked(file, path) and file.is_file() and _may_have_transcripts(file)]


def describe_database(path: Path) -> tuple[str | None, bool] | None:
    """The version of OpenClaw that wrote a database, where it says so, and whether its form is the current one.

    None where it has no transcripts; InputError when it cannot be opened.
    """
    try:
        with closing(_connect(path)) as connection:
            tables = _tables_of(connection)
            if tables.keys().isdisjoint(SOURCES):
                return None
            version = None
            if "app_version" in tables.get("schema_meta", ()):
                row = connection.execute("SELECT app_version FROM schema_meta LIMIT 1").fetchone()
                version = row[0].decode("utf-8", "replace") if row and isinstance(row[0], bytes) else None
            return version, ARCHIVES in tables
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error


def session_ranges(path: Path, count: int) -> list[SessionRange]:
    """At most `count` ranges that hold about as many sessions each, and all together every session there is or will be.

    One range for what cannot be read: reading it says why.
    """
    try:
        with closing(_connect(path)) as connection:
            names = [_name(one) for one in _sessions(connection, _tables_of(connection), EVERY_SESSION)]
    except sqlite3.Error:
        names = []
    step = max(1, -(-len(names) // count))
    # The database orders ids by their bytes.
    bounds = sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))[step::step]
    return [SessionRange(first, end) for first, end in pairwise([None, *bounds, None])]


def read_database(path: Path, context: ReadingContext, sessions: SessionRange = EVERY_SESSION) -> Iterator[Reading]:
    """One reading a session of the range, in the order of the session ids; none where the file holds only login state.

    All are of one moment: a session that is forked meanwhile is read next time, whole, and not as if its copies were its own.

    A fault's line is the position of the row in its session. InputError when the file is no SQLite database, or has a table of
    transcripts in a form that is not known.
    """
    try:
        with closing(_connect(path)) as connection:
            connection.execute("BEGIN")
            tables = _tables_of(connection)
            _check_form(path, tables)
            windows = read_windows(connection, tables)
            for session in _sessions(connection, tables, sessions):
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
    for table, columns in (*SOURCES.items(), (TRAJECTORY, TRAJECTORY_COLUMNS)):
        missing = sorted(columns - tables.get(table, columns))
        if missing:
            raise InputError(
                f"{path}: the table {table} has no column {', '.join(missing)}",
                hint="Driftline does not know this version of OpenClaw. Update Driftline, or export the sessions to JSONL and import those.",
            )


def _name(session: object) -> str:
    """An id as text that becomes the same bytes again."""
    return session.decode("utf-8", "surrogateescape") if isinstance(session, bytes) else str(session)


def _sessions(connection: sqlite3.Connection, tables: dict[str, frozenset[str]], within: SessionRange) -> list[object]:
    """The ids of the sessions of a range that any table has lines of, in order."""
    known = [table for table in (*SOURCES, TRAJECTORY) if table in tables]
    parts = [f"SELECT DISTINCT session_id FROM {table}" for table in known]  # noqa: S608 - names of our own
    if not parts:
        return []
    rows = connection.execute(f"{' UNION '.join(parts)} ORDER BY session_id")
    first, end = (None if bound is None else bound.encode("utf-8", "surrogateescape") for bound in within)
    ids = ((row[0], _name(row[0]).encode("utf-8", "surrogateescape")) for row in rows)
    return [session for session, name in ids if (first is None or name >= first) and (end is None or name < end)]


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
