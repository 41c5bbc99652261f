"""OpenClaw transcripts kept in SQLite: `<root>/agents/<agent>/agent/openclaw-agent.sqlite`, opened read-only.

What a file holds is told by its tables: `transcript_events(session_id, seq, event_json, created_at)`, where each row is one line
of a transcript; the newer `session_windows`, `session_nodes` and `session_transcript_archives`, whose columns are not published; or
neither, when the file holds only login state and is no source of transcripts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from schemas.errors import InputError
from schemas.limits import MAX_ID
from streams.sources.lines import KEPT_BYTES, MAX_LINE, Line
from streams.sources.openclaw import read_session
from streams.sources.reading import Reading, ReadingContext

DATABASE = "openclaw-agent.sqlite"
"""Name of the file in which an agent's transcripts are kept."""

_EVENTS_TABLE = "transcript_events"
_UNPUBLISHED_TABLES = frozenset({"session_windows", "session_nodes", "session_transcript_archives"})

_SESSIONS = "SELECT DISTINCT session_id FROM transcript_events ORDER BY session_id"
# A row that is too long is not loaded: only its start is.
_ROWS = """
SELECT CAST(CASE WHEN length(CAST(event_json AS BLOB)) <= :longest THEN event_json ELSE substr(event_json, 1, :kept) END AS BLOB),
       length(CAST(event_json AS BLOB))
FROM transcript_events WHERE session_id = :session ORDER BY seq
"""


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

    A fault's line is the position of the row in its session. InputError when the file is no SQLite database, or keeps its
    transcripts in tables whose columns are not published.
    """
    tables = _tables(path)
    if tables & _UNPUBLISHED_TABLES:
        raise InputError(
            f"{path}: keeps transcripts in {', '.join(sorted(tables & _UNPUBLISHED_TABLES))}, whose columns are not published",
            hint="Export the sessions to JSONL with OpenClaw and import the files.",
        )
    if _EVENTS_TABLE not in tables:
        return
    parents = path.resolve().parents
    agent = parents[1].name if len(parents) > 2 and parents[0].name == "agent" and parents[2].name == "agents" else None
    try:
        with closing(_connect(path)) as connection:
            sessions = [row[0] for row in connection.execute(_SESSIONS)]
            for session in sessions:
                name = session.decode("utf-8", "replace") if isinstance(session, bytes) else str(session)
                lines = _lines(connection, session)
                yield read_session(lines, context, session_id=name[:MAX_ID], agent=agent, follows_header=False)
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error


def _lines(connection: sqlite3.Connection, session: object) -> Iterator[Line]:
    # Ids come back as bytes from the text factory; the comparison needs them as text again.
    key = session.decode("utf-8", "surrogateescape") if isinstance(session, bytes) else session
    rows = connection.execute(_ROWS, {"session": key, "longest": MAX_LINE, "kept": KEPT_BYTES})
    for number, (body, size) in enumerate(rows, start=1):
        yield Line(number, body or b"null", size or 0, ended=True)


def _has_transcripts(path: Path) -> bool:
    return not _tables(path).isdisjoint({_EVENTS_TABLE, *_UNPUBLISHED_TABLES})


def _may_have_transcripts(path: Path) -> bool:
    try:
        return _has_transcripts(path)
    except InputError:
        return True


def _tables(path: Path) -> set[str]:
    try:
        with closing(_connect(path)) as connection:
            names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error
    return {name.decode("utf-8", "replace") for (name,) in names}


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    connection.text_factory = bytes
    # The file is not ours: nothing it defines may run.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    return connection


def _unreadable(path: Path, error: sqlite3.Error) -> InputError:
    return InputError(f"{path}: cannot be read as a SQLite database ({error})", hint="Check the file and its permissions.")
