# ruff: noqa: S608 - statements are built from names of our own
"""OpenClaw's state on disk: its state folder, and its transcripts in SQLite.

The database of an agent, `<root>/agents/<agent>/agent/openclaw-agent.sqlite`, is opened read-only. Its tables, not a version number, determine
how it is read. A database with none of these tables has only login state and no transcripts:

1. `transcript_events`: each row is a line, as text in `event_json` or, since 2026.9, as zstd in `event_zstd`.
2. `session_transcript_archives`: the rows removed by a reset or a deletion, as a JSONL file in a blob.
3. `session_transcript_cold_archives`: idle sessions, as a compressed file of records. The file is in a blob, or beside the database in
   `<agent>/sessions/cold/`. Only its records of kind `event` are lines.

Archives are read first, oldest first. An entry in two of these tables counts once. Compressed content is read in bounded memory. An archive
that does not match its digest is rejected as a whole.

The configuration in the state folder, `openclaw.json`, may have comments and include other files. It is only read if it is plain JSON.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from schemas.bounds import MAX_ID
from schemas.errors import InputError
from streams.sources.lines import MAX_FAULT_BODY_BYTES, MAX_LINE_BYTES, Line, Problem, is_linked, line_fault, read_lines
from streams.sources.openclaw.companions import SessionFacts, read_stored_facts
from streams.sources.openclaw.reader import read_session
from streams.sources.openclaw.trajectory import SKIPPED_KINDS, Trajectory
from streams.sources.source import EVERY_SESSION, LineFault, Reading, ReadingContext, SessionRange
from streams.sources.zstd import zstd

DATABASE = "openclaw-agent.sqlite"
"""Name of the database with an agent's transcripts."""
EVENTS = "transcript_events"
ARCHIVES = "session_transcript_archives"
COLD = "session_transcript_cold_archives"
SOURCES = {
    EVENTS: frozenset({"session_id", "seq", "event_json"}),
    ARCHIVES: frozenset({"session_id", "generation", "encoding", "archive_blob", "archive_sha256", "created_at"}),
    COLD: frozenset({"session_id", "archive_name", "storage", "archive_blob", "archive_sha256"}),
}
"""Tables with lines of transcripts, and the columns that are read."""
TRAJECTORY_EVENTS = "trajectory_runtime_events"
TRAJECTORY_COLUMNS = frozenset({"session_id", "seq", "event_json"})
"""Table of the trajectories of sessions, and the columns that are read."""
MAX_ARCHIVE_BYTES = 64 * 1024 * 1024
"""Maximum size of an archive that is loaded. OpenClaw's own limit for a row is 4 MiB."""
MAX_UNPACKED_BYTES = 2 * 1024 * 1024 * 1024
"""Maximum size of an archive after decompression."""
# Only the start of a row is loaded if the row is too long.
_BOUNDED_TEXT = (
    "CAST(CASE WHEN length(CAST(event_json AS BLOB)) <= :longest THEN event_json ELSE substr(event_json, 1, :kept) END AS BLOB)"
)
_EVENT_STATEMENTS = {
    False: f"SELECT {_BOUNDED_TEXT}, length(CAST(event_json AS BLOB)), NULL FROM {EVENTS} WHERE session_id = :session ORDER BY seq",
    True: (
        f"SELECT {_BOUNDED_TEXT}, coalesce(event_utf8_bytes, length(CAST(event_json AS BLOB))), "
        "CASE WHEN length(event_zstd) <= :longest THEN event_zstd END "
        f"FROM {EVENTS} WHERE session_id = :session ORDER BY seq"
    ),
}
"""Statement by whether rows may be compressed."""
_TRAJECTORY_STATEMENT = (
    f"SELECT {_BOUNDED_TEXT}, length(CAST(event_json AS BLOB)) FROM {TRAJECTORY_EVENTS} WHERE session_id = :session "
    + "".join(f'AND instr(substr(event_json, 1, 512), \'"type":"{kind}"\') = 0 ' for kind in SKIPPED_KINDS)
    + "ORDER BY seq"
)
_ARCHIVE_STATEMENT = f"""
SELECT generation, encoding, CASE WHEN length(archive_blob) <= :largest THEN archive_blob END, archive_sha256
FROM {ARCHIVES} WHERE session_id = :session ORDER BY created_at, generation
"""
_COLD_STATEMENT = f"""
SELECT archive_name, storage, CASE WHEN length(archive_blob) <= :largest THEN archive_blob END, archive_sha256
FROM {COLD} WHERE session_id = :session
"""
STATE_FOLDERS = ("~/.openclaw", "~/.clawdbot")
STATE_VARIABLE = "OPENCLAW_STATE_DIR"
PLUGIN = "driftline"
"""Id of the plugin in OpenClaw's configuration."""
JSONL = "JSONL files"
FIRST_SQLITE = "SQLite, first form"
CURRENT_SQLITE = "SQLite, current form"
MAX_CONFIG_BYTES = 4 * 1024 * 1024
"""Maximum size of a configuration that is read."""
_VERSION = re.compile(r"[\w.+-]{1,64}")


def find_databases(path: Path) -> list[Path]:
    """Return the databases with transcripts at a path, sorted: the file itself, or all `agents/<agent>/agent/openclaw-agent.sqlite`.

    Below a directory, databases with only login state and symbolic links are left out. A file that cannot be opened is included, so that
    reading it reports the reason. Raises InputError if the path is a file that cannot be opened.
    """
    if path.is_file():
        return [path] if _has_transcripts(path) else []
    pattern = f"agents/*/agent/{DATABASE}"
    databases = {*path.glob(pattern), *path.glob(f"**/{pattern}")}
    return [file for file in sorted(databases) if not is_linked(file, path) and file.is_file() and _may_have_transcripts(file)]


def _has_transcripts(path: Path) -> bool:
    try:
        with closing(_open_database(path)) as connection:
            return not _list_tables(connection).keys().isdisjoint(SOURCES)
    except sqlite3.Error as error:
        raise _build_unreadable_error(path, error) from error


def _open_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    connection.text_factory = bytes
    # The file is untrusted, so code in its schema must not run.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    return connection


def _list_tables(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Return the column names of each table."""
    statement = (
        "SELECT tables.name, columns.name FROM sqlite_schema AS tables JOIN pragma_table_info(tables.name) AS columns "
        "WHERE tables.type = 'table' AND tables.sql NOT LIKE 'CREATE VIRTUAL%'"
    )
    columns_by_table: dict[str, set[str]] = {}
    for table, column in connection.execute(statement):
        columns_by_table.setdefault(table.decode("utf-8", "replace"), set()).add(column.decode("utf-8", "replace"))
    return {table: frozenset(columns) for table, columns in columns_by_table.items()}


def _build_unreadable_error(path: Path, error: sqlite3.Error) -> InputError:
    return InputError(f"{path}: cannot be read as a SQLite database ({error})", hint="Check the file and its permissions.")


def _may_have_transcripts(path: Path) -> bool:
    try:
        return _has_transcripts(path)
    except InputError:
        return True


def session_ranges(path: Path, count: int) -> list[SessionRange]:
    """Return at most `count` ranges of about equal size, which together cover all sessions, future ones included.

    A file that cannot be read is one range, so that reading it reports the reason.
    """
    try:
        with closing(_open_database(path)) as connection:
            names = [
                _describe_session(session_id)
                for session_id in _list_sessions(connection, _list_tables(connection), EVERY_SESSION)
            ]
    except sqlite3.Error:
        names = []
    step = max(1, -(-len(names) // count))
    # The database orders ids by their bytes.
    bounds = sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))[step::step]
    return [SessionRange(first, end) for first, end in itertools.pairwise([None, *bounds, None])]


def _describe_session(session: object) -> str:
    """Return a session id as text that can be encoded to the same bytes."""
    return session.decode("utf-8", "surrogateescape") if isinstance(session, bytes) else str(session)


def _list_sessions(connection: sqlite3.Connection, tables: dict[str, frozenset[str]], within: SessionRange) -> list[object]:
    """Return the ids of the sessions in a range that have lines in any table, sorted."""
    present = [table for table in (*SOURCES, TRAJECTORY_EVENTS) if table in tables]
    parts = [f"SELECT DISTINCT session_id FROM {table}" for table in present]
    if not parts:
        return []
    rows = connection.execute(f"{' UNION '.join(parts)} ORDER BY session_id")
    first, end = (None if bound is None else bound.encode("utf-8", "surrogateescape") for bound in within)
    ids = ((row[0], _describe_session(row[0]).encode("utf-8", "surrogateescape")) for row in rows)
    return [session for session, name in ids if (first is None or name >= first) and (end is None or name < end)]


def read_database(path: Path, context: ReadingContext, sessions: SessionRange = EVERY_SESSION) -> Iterator[Reading]:
    """Yield a reading for each session of the range, ordered by session id; none if the file has only login state.

    All sessions are read from one snapshot. Otherwise a session that is forked meanwhile would count copied entries as its own.

    The line number of a fault is the position of the row in its session. Raises InputError if the file is not a SQLite database, or if a
    table of transcripts lacks a column.
    """
    try:
        with closing(_open_database(path)) as connection:
            connection.execute("BEGIN")
            tables = _list_tables(connection)
            _check_columns(path, tables)
            facts_by_session = read_stored_facts(connection, tables)
            for session in _list_sessions(connection, tables, sessions):
                rows = _SessionRows(path, connection, tables, session)
                trajectory = Trajectory()
                trajectory.read(rows.trajectory())
                name = session.decode("utf-8", "replace") if isinstance(session, bytes) else str(session)
                reading = read_session(
                    rows.lines(),
                    context,
                    session_id=name[:MAX_ID],
                    agent=_find_agent(path),
                    follows_header=False,
                    facts=facts_by_session.get(name, SessionFacts()),
                    trajectory=trajectory,
                )
                reading.faults += rows.faults
                yield reading
    except sqlite3.Error as error:
        raise _build_unreadable_error(path, error) from error


def _check_columns(path: Path, tables: dict[str, frozenset[str]]) -> None:
    """Raise InputError if a table lacks a column. Reading only the other tables would hide its sessions."""
    for table, columns in (*SOURCES.items(), (TRAJECTORY_EVENTS, TRAJECTORY_COLUMNS)):
        missing = sorted(columns - tables.get(table, columns))
        if missing:
            raise InputError(
                f"{path}: the table {table} has no column {', '.join(missing)}",
                hint="Driftline does not know this version of OpenClaw. Update Driftline, or export the sessions to JSONL and import those.",
            )


class _SessionRows:
    """The lines of one session from all tables. `faults` are the rows and archives that could not be read."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]], session: object
    ) -> None:
        self.faults: list[LineFault] = []
        self._path = path
        self._connection = connection
        self._tables = tables
        # The text factory returns ids as bytes, but the statements compare them as text.
        self._session = session.decode("utf-8", "surrogateescape") if isinstance(session, bytes) else session

    def lines(self) -> Iterator[Line]:
        """Yield the lines in order, numbered from 1 across all tables."""
        lines = itertools.chain(self._read_archives(), self._read_cold_archives(), self._read_events())
        for number, line in enumerate(lines, start=1):
            yield msgspec.structs.replace(line, number=number)

    def _read_events(self) -> Iterator[Line]:
        if EVENTS not in self._tables:
            return
        statement = _EVENT_STATEMENTS["event_zstd" in self._tables[EVENTS]]
        values = {"session": self._session, "longest": MAX_LINE_BYTES, "kept": MAX_FAULT_BODY_BYTES}
        for number, (body, size, compressed) in enumerate(self._connection.execute(statement, values), start=1):
            if compressed is None:
                yield Line(number, body or b"null", size or 0, ended=True)
                continue
            try:
                text = _decompress(compressed)
            except (zstd.ZstdError, _TooLargeError) as error:
                self._add_fault(number, "not_zstd", f"event_zstd: cannot be decompressed ({error})", compressed)
            else:
                yield Line(number, text, len(text), ended=True)

    def trajectory(self) -> Iterator[Line]:
        """Yield the lines of the session's trajectory, except those that only repeat prompts and contexts."""
        if TRAJECTORY_EVENTS not in self._tables:
            return
        values = {"session": self._session, "longest": MAX_LINE_BYTES, "kept": MAX_FAULT_BODY_BYTES}
        for number, (body, size) in enumerate(self._connection.execute(_TRAJECTORY_STATEMENT, values), start=1):
            yield Line(number, body or b"null", size or 0, ended=True)

    def _read_archives(self) -> Iterator[Line]:
        for generation, encoding, blob, digest in self._select_archives(ARCHIVES, _ARCHIVE_STATEMENT):
            location = f"{ARCHIVES}, generation {_decode_text(generation)}"
            yield from self._read_archive(location, blob, digest, read_lines, compressed=_decode_text(encoding) == "zstd")

    def _read_cold_archives(self) -> Iterator[Line]:
        for name, storage, kept, digest in self._select_archives(COLD, _COLD_STATEMENT):
            blob = self._read_cold_file(_decode_text(name)) if _decode_text(storage) == "file" else kept
            yield from self._read_archive(f"{COLD}, {_decode_text(name)}", blob, digest, _read_records, compressed=True)

    def _select_archives(self, table: str, statement: str) -> list[tuple[Any, ...]]:
        """Return the session's rows in a table of archives; none if the table does not exist."""
        if table not in self._tables:
            return []
        return self._connection.execute(statement, {"session": self._session, "largest": MAX_ARCHIVE_BYTES}).fetchall()

    def _read_archive(
        self, location: str, blob: bytes | None, digest: bytes, read: Callable[[BinaryIO], Iterator[Line]], *, compressed: bool
    ) -> Iterator[Line]:
        """Yield the lines of an archive, up to the first damaged byte."""
        stream = self._open_archive(location, blob, digest, compressed=compressed)
        if stream is None:
            return
        try:
            yield from read(stream)
        except (EOFError, zstd.ZstdError, _TooLargeError) as error:
            self._add_fault(0, "archive_damaged", f"{location}: cannot be decompressed ({error})", b"")

    def _read_cold_file(self, name: str) -> bytes | None:
        """Return a cold archive beside the database; None if it is missing, too large, or has an unsafe name."""
        agent = self._path.resolve().parent.parent
        file = agent / "sessions" / "cold" / name
        if Path(name).name != name or not file.is_file() or file.is_symlink() or file.stat().st_size > MAX_ARCHIVE_BYTES:
            return None
        return file.read_bytes()

    def _open_archive(self, location: str, blob: bytes | None, digest: bytes, *, compressed: bool) -> BinaryIO | None:
        """Open an archive. If it is missing or does not match its digest, add a fault and return None."""
        if blob is None:
            detail = (
                f"{location}: is missing or larger than {MAX_ARCHIVE_BYTES} bytes; restore it from a backup and import again"
            )
            self._add_fault(0, "archive_missing", detail, b"")
            return None
        if hashlib.sha256(blob).hexdigest() != _decode_text(digest):
            self._add_fault(0, "archive_damaged", f"{location}: does not match its stored digest", blob)
            return None
        stream: BinaryIO = io.BytesIO(blob)
        if compressed:
            stream = cast("BinaryIO", io.BufferedReader(_BoundedReader(zstd.ZstdFile(stream), MAX_UNPACKED_BYTES)))
        return stream

    def _add_fault(self, number: int, reason: str, detail: str, body: bytes) -> None:
        self.faults.append(line_fault(Line(number, body, len(body), ended=True), Problem(reason, detail)))


def _decompress(compressed: bytes) -> bytes:
    """Return the text of a compressed row.

    Raises zstd.ZstdError if the row is not exactly one frame, and _TooLargeError if the text exceeds MAX_LINE_BYTES.
    """
    decompressor = zstd.ZstdDecompressor()
    text = decompressor.decompress(compressed, max_length=MAX_LINE_BYTES + 1)
    if len(text) > MAX_LINE_BYTES:
        raise _TooLargeError(f"more than {MAX_LINE_BYTES} bytes")
    if not decompressor.eof:
        raise zstd.ZstdError("the data is cut off")
    if decompressor.unused_data:
        raise zstd.ZstdError("other bytes follow the data")
    return text


class _TooLargeError(Exception):
    """The decompressed size of a row or archive exceeds its limit."""


def _decode_text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _read_records(stream: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a cold archive: the texts of its `event` records. An unreadable record is yielded unchanged and becomes a fault."""
    for line in read_lines(stream):
        try:
            record = msgspec.json.decode(line.body, type=_ColdRecord)
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield line
            continue
        if record.kind == "event":
            body = record.row.event_json.encode("utf-8", "surrogatepass")
            yield Line(line.number, body, len(body), ended=True)


class _ColdRow(msgspec.Struct):
    event_json: str = ""


class _ColdRecord(msgspec.Struct):
    kind: str
    row: _ColdRow = msgspec.field(default_factory=_ColdRow)


class _BoundedReader(io.RawIOBase):
    """A decompressed stream with a maximum size, because a small archive can expand to any size."""

    def __init__(self, stream: zstd.ZstdFile, max_bytes: int) -> None:
        self._stream = stream
        self._remaining = max_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill the buffer and return the number of bytes; 0 at the end."""
        data = self._stream.read1(len(buffer))
        self._remaining -= len(data)
        if self._remaining < 0:
            raise _TooLargeError(f"more than {MAX_UNPACKED_BYTES} bytes")
        buffer[: len(data)] = data
        return len(data)


def _find_agent(path: Path) -> str | None:
    """Return the agent whose folder contains the file; None if the file is not in an agent's folder."""
    parents = path.resolve().parents
    return parents[1].name if len(parents) > 2 and parents[0].name == "agent" and parents[2].name == "agents" else None


class Plugin(NamedTuple):
    """The plugin's settings in OpenClaw's configuration; None if unknown. `url` is its delivery address."""

    is_on: bool | None
    reads_conversations: bool | None = None
    url: str | None = None


class OpenClawState(NamedTuple):
    """A state folder. `forms` are the storage forms of its transcripts, `unreadable` are messages about databases that cannot be opened."""

    folder: Path
    version: str | None
    forms: tuple[str, ...]
    agents: int
    plugin: Plugin
    unreadable: tuple[str, ...] = ()


def state_folders() -> list[Path]:
    """Return the state folders of the current user: the one named by the environment, else those in the home folder."""
    configured = os.environ.get(STATE_VARIABLE)
    folders = [Path(configured)] if configured else [Path(folder).expanduser() for folder in STATE_FOLDERS]
    return [folder for folder in folders if (folder / "agents").is_dir()]


def read_state(folder: Path) -> OpenClawState:
    """Read a state folder."""
    config = _read_configuration(folder / "openclaw.json")
    versions = set()
    forms = set()
    unreadable = []
    for path in sorted(folder.glob(f"agents/*/agent/{DATABASE}")):
        try:
            description = _describe_database(path)
        except InputError as error:
            unreadable.append(str(error))
            continue
        if description is not None:
            versions.add(description[0])
            forms.add(CURRENT_SQLITE if description[1] else FIRST_SQLITE)
    if next(folder.glob("agents/*/sessions/*.jsonl"), None) is not None:
        forms.add(JSONL)
    return OpenClawState(
        folder=folder,
        version=_find_newest_version(versions) or _nonempty_text(_find_member(config, "meta", "lastTouchedVersion")),
        forms=tuple(form for form in (CURRENT_SQLITE, FIRST_SQLITE, JSONL) if form in forms),
        agents=sum(path.is_dir() for path in (folder / "agents").iterdir()),
        plugin=_read_plugin(config),
        unreadable=tuple(unreadable),
    )


def _read_configuration(path: Path) -> Any:
    """Return the configuration: empty if the file is missing, None if it is too large or not plain JSON."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _describe_database(path: Path) -> tuple[str | None, bool] | None:
    """Return the version of OpenClaw that wrote a database (None if unknown), and whether the database has the current form.

    Return None if it has no transcripts. Raises InputError if it cannot be opened.
    """
    try:
        with closing(_open_database(path)) as connection:
            tables = _list_tables(connection)
            if tables.keys().isdisjoint(SOURCES):
                return None
            version = None
            if "app_version" in tables.get("schema_meta", ()):
                row = connection.execute("SELECT app_version FROM schema_meta LIMIT 1").fetchone()
                version = row[0].decode("utf-8", "replace") if row and isinstance(row[0], bytes) else None
            return version, ARCHIVES in tables
    except sqlite3.Error as error:
        raise _build_unreadable_error(path, error) from error


def _find_newest_version(versions: set[str | None]) -> str | None:
    """Return the newest version; malformed versions are ignored."""
    readable = [version for version in versions if version and _VERSION.fullmatch(version)]
    return max(readable, key=lambda version: [int(part) for part in re.findall(r"\d+", version)], default=None)


def _nonempty_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _find_member(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _read_plugin(config: Any) -> Plugin:
    if config is None:
        return Plugin(None)
    entry = _find_member(config, "plugins", "entries", PLUGIN)
    is_on = (
        isinstance(entry, dict)
        and entry.get("enabled") is not False
        and _find_member(config, "plugins", "enabled") is not False
    )
    if not is_on:
        return Plugin(is_on=False)
    reads = _find_member(entry, "hooks", "allowConversationAccess") is True
    return Plugin(is_on, reads, _nonempty_text(_find_member(entry, "config", "url")))
