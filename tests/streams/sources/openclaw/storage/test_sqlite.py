"""Transcripts in SQLite give the same records as files, and reading changes nothing in the database."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import InputError
from streams.sources.lines import MAX_LINE_BYTES
from streams.sources.openclaw import storage
from streams.sources.openclaw.reader import read_transcript
from streams.sources.openclaw.storage import find_databases, read_database, session_ranges
from streams.sources.source import ReadingContext
from streams.sources.zstd import zstd

CORPUS = Path(__file__).parents[4] / "corpus" / "openclaw"
EVENTS = "CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, created_at INTEGER)"
COMPRESSED_EVENTS = (
    "CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, event_zstd BLOB, event_utf8_bytes INTEGER)"
)
ARCHIVES = (
    "CREATE TABLE session_transcript_archives (session_id TEXT, generation TEXT, session_key TEXT, reason TEXT, encoding TEXT, "
    "archive_blob BLOB, archive_sha256 TEXT, archive_name TEXT, created_at INTEGER)"
)
COLD = (
    "CREATE TABLE session_transcript_cold_archives (session_id TEXT, archive_name TEXT, storage TEXT, archive_blob BLOB, "
    "archive_sha256 TEXT)"
)
WINDOWS = (
    "CREATE TABLE session_windows (session_id TEXT, session_key TEXT, chat_type TEXT, spawned_by TEXT, created_at INTEGER)"
)
IDENTITIES = "CREATE TABLE transcript_event_identities (session_id TEXT, event_id TEXT)"


def _database(root: Path, statements: Iterable[str] = (EVENTS,), agent: str = "ops") -> Path:
    path = root / "agents" / agent / "agent" / "openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def _insert(path: Path, table: str, *rows: Sequence[Any]) -> None:
    placeholders = ", ".join("?" for _ in rows[0])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(f"INSERT INTO {table} VALUES ({placeholders})", rows)


def _insert_events(path: Path, session: str, lines: Iterable[str | bytes]) -> None:
    rows = [(session, 10 * seq, line, 0) for seq, line in enumerate(lines)]
    _insert(path, "transcript_events", *reversed(rows))


@pytest.mark.parametrize("name", ["plain", "branch_and_leaf", "wrapped_text", "memory", "repeated_ids"])
def test_rows_give_the_same_records_as_lines(name: str, tmp_path: Path, context: ReadingContext) -> None:
    """Moving an agent from files to SQLite must not change its records."""
    path = _database(tmp_path)
    file = CORPUS / f"{name}.jsonl"
    _insert_events(path, "s-1", file.read_text(encoding="utf-8").splitlines())
    (reading,) = read_database(path, context)
    expected = read_transcript(file, context)
    assert [exchange.exchange_id for exchange in reading.exchanges] == [exchange.exchange_id for exchange in expected.exchanges]
    assert [exchange.content_digest for exchange in reading.exchanges] == [
        exchange.content_digest for exchange in expected.exchanges
    ]
    assert [event.payload for event in reading.events] == [event.payload for event in expected.events]
    assert [fault.reason for fault in reading.faults] == [fault.reason for fault in expected.faults]
    assert {event.agent for event in reading.events} == {"ops"}


def test_each_session_is_a_reading_named_by_its_rows(tmp_path: Path, context: ReadingContext) -> None:
    """The row, not a copied header, names the session of an event."""
    path = _database(tmp_path)
    _insert_events(path, "b", ['{"type":"session","id":"other"}', '{"type":"reset","id":"r1"}'])
    _insert_events(path, "ä", ['{"type":"reset","id":"r1"}'])
    readings = list(read_database(path, context))
    assert [reading.session_ids for reading in readings] == [["b"], ["ä"]]
    assert [fault.reason for fault in readings[0].faults] == ["second_session"]
    assert [[event.session_id for event in reading.events] for reading in readings] == [["b"], ["ä"]]


def test_invalid_rows_are_faults_and_oversized_ones_are_not_loaded(tmp_path: Path, context: ReadingContext) -> None:
    """A row may be empty, binary, or a gigabyte long."""
    path = _database(tmp_path)
    lines: list[str | bytes] = ["{", b'{"a":"\xff"}', "x" * (MAX_LINE_BYTES + 1), '{"type":"reset","id":"r1"}']
    _insert_events(path, "s", lines)
    _insert(path, "transcript_events", ("s", 99, None, 0))
    (reading,) = read_database(path, context)
    assert [(fault.line, fault.reason) for fault in reading.faults] == [
        (1, "not_json"),
        (2, "not_utf8"),
        (3, "too_long"),
        (5, "not_an_object"),
    ]
    assert [event.action for event in reading.events] == ["reset"]


def test_reading_changes_nothing_and_works_beside_a_writer(tmp_path: Path, context: ReadingContext) -> None:
    """The gateway keeps writing: reading must neither lock nor change its file."""
    path = _database(tmp_path, ["PRAGMA journal_mode = WAL", EVENTS])
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute('INSERT INTO transcript_events VALUES (\'s\', 1, \'{"type":"reset","id":"r1"}\', 0)')
        before = path.read_bytes()
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO transcript_events VALUES ('s', 2, 'not committed', 0)")
        (reading,) = read_database(path, context)
        after = path.read_bytes()
        writer.execute("ROLLBACK")
    assert [event.event_id for event in reading.events] == ["r1"]
    assert reading.faults == []
    assert after == before


def test_only_databases_with_transcripts_are_found(tmp_path: Path, context: ReadingContext) -> None:
    """In earlier versions the file has only login state."""
    _database(tmp_path, ["CREATE TABLE auth_profiles (id TEXT)"], agent="login")
    events = _database(tmp_path, agent="events")
    archives = _database(tmp_path, [ARCHIVES], agent="archives")
    _database(tmp_path, ["CREATE TABLE session_nodes (id TEXT)"], agent="unused")
    assert find_databases(tmp_path) == [archives, events]
    assert list(read_database(tmp_path / "agents/login/agent/openclaw-agent.sqlite", context)) == []


def test_an_invalid_database_is_listed_and_stops_no_other(tmp_path: Path, context: ReadingContext) -> None:
    """A damaged file must not stop the import of a fleet, and must be reported."""
    damaged = _database(tmp_path, agent="damaged")
    damaged.write_bytes(b"no database" * 100)
    readable = _database(tmp_path, agent="sound")
    assert find_databases(tmp_path) == [damaged, readable]
    with pytest.raises(InputError, match="damaged"):
        list(read_database(damaged, context))


@pytest.mark.parametrize(
    "table",
    ["transcript_events", "session_transcript_archives", "session_transcript_cold_archives", "trajectory_runtime_events"],
)
def test_an_unknown_schema_is_refused_with_an_alternative(table: str, tmp_path: Path, context: ReadingContext) -> None:
    """Guessing columns would import nonsense, and importing only the other tables would hide sessions."""
    tables = [] if table == "transcript_events" else [EVENTS]
    path = _database(tmp_path, [*tables, f"CREATE TABLE {table} (session_id TEXT)"])
    with pytest.raises(InputError, match=f"{table} has no column") as caught:
        list(read_database(path, context))
    assert str(path) in str(caught.value)
    assert "JSONL" in caught.value.hint


def _lines(name: str) -> list[str]:
    return (CORPUS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()


def test_compressed_rows_give_the_same_records_as_lines(tmp_path: Path, context: ReadingContext) -> None:
    """OpenClaw compresses long rows since 2026.9, which must not change their records."""
    path = _database(tmp_path, [COMPRESSED_EVENTS])
    rows = [
        ("s-1", seq, None, zstd.compress(line.encode()), len(line.encode())) if seq % 2 else ("s-1", seq, line, None, None)
        for seq, line in enumerate(_lines("plain"))
    ]
    _insert(path, "transcript_events", *rows)
    (reading,) = read_database(path, context)
    expected = read_transcript(CORPUS / "plain.jsonl", context)
    assert [exchange.content_digest for exchange in reading.exchanges] == [
        exchange.content_digest for exchange in expected.exchanges
    ]
    assert [event.payload for event in reading.events] == [event.payload for event in expected.events]
    assert reading.faults == []


def _bomb(size: int) -> bytes:
    return zstd.compress(b" " * size)


_ROW = zstd.compress(b'{"type":"reset","id":"r0"}')


@pytest.mark.parametrize("body", [b"no zstd", _bomb(MAX_LINE_BYTES + 1), b"", _ROW[:-3], _ROW + b"x", _ROW + _ROW])
def test_a_row_that_cannot_be_decompressed_affects_no_other(body: bytes, tmp_path: Path, context: ReadingContext) -> None:
    """A few bytes may expand to gigabytes, and must not end the session."""
    path = _database(tmp_path, [COMPRESSED_EVENTS])
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [("s", 1, None, body, 10), ("s", 2, '{"type":"reset","id":"r1"}', None, None)]
        connection.executemany("INSERT INTO transcript_events VALUES (?, ?, ?, ?, ?)", rows)
    (reading,) = read_database(path, context)
    assert [event.action for event in reading.events] == ["reset"]
    assert [(fault.line, fault.reason) for fault in reading.faults] == [(1, "not_zstd")]


def _archive(
    path: Path, session: str, lines: Sequence[str], *, encoding: str = "zstd", digest: str | None = None, cut_off: int = 0
) -> None:
    content = "\n".join(lines).encode()
    blob = zstd.compress(content) if encoding == "zstd" else content
    blob = blob[: len(blob) - cut_off]
    row = (session, "g1", "k", "reset", encoding, blob, digest or hashlib.sha256(blob).hexdigest(), f"{session}.zst", 1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"INSERT INTO session_transcript_archives VALUES ({', '.join('?' * 9)})", row)


@pytest.mark.parametrize("encoding", ["identity", "zstd"])
def test_an_archived_session_is_read_like_its_rows(encoding: str, tmp_path: Path, context: ReadingContext) -> None:
    """Rows moved by a reset or a deletion still count."""
    path = _database(tmp_path, [EVENTS, ARCHIVES])
    _archive(path, "s-1", _lines("plain"), encoding=encoding)
    (reading,) = read_database(path, context)
    expected = read_transcript(CORPUS / "plain.jsonl", context)
    assert [exchange.content_digest for exchange in reading.exchanges] == [
        exchange.content_digest for exchange in expected.exchanges
    ]
    assert reading.faults == []


def test_entries_in_an_archive_and_in_rows_count_once(tmp_path: Path, context: ReadingContext) -> None:
    """A session that continues after it was archived has its start in both."""
    path = _database(tmp_path, [EVENTS, ARCHIVES])
    _archive(path, "s-1", _lines("plain")[:5])
    _insert_events(path, "s-1", _lines("plain"))
    (reading,) = read_database(path, context)
    expected = read_transcript(CORPUS / "plain.jsonl", context)
    assert [exchange.content_digest for exchange in reading.exchanges] == [
        exchange.content_digest for exchange in expected.exchanges
    ]
    assert [exchange.event_id for exchange in reading.events] == [exchange.event_id for exchange in expected.events]
    assert reading.faults == []


def test_a_truncated_archive_is_reported(tmp_path: Path, context: ReadingContext) -> None:
    """Its digest matches although the session is incomplete."""
    path = _database(tmp_path, [ARCHIVES])
    _archive(path, "s-1", _lines("plain"), cut_off=8)

    (reading,) = read_database(path, context)

    assert [fault.reason for fault in reading.faults] == ["archive_damaged"]


def test_an_oversized_archive_is_read_in_bounded_memory(
    tmp_path: Path, context: ReadingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes may expand to terabytes."""
    monkeypatch.setattr(storage, "MAX_UNPACKED_BYTES", 1_000_000)
    path = _database(tmp_path, [ARCHIVES])
    _archive(path, "s-1", [*_lines("plain"), *[" " * 1_000] * 2_000])

    (reading,) = read_database(path, context)

    assert [fault.reason for fault in reading.faults] == ["archive_damaged"]
    assert "more than" in reading.faults[0].detail
    assert reading.exchanges != []


def test_a_changed_archive_is_rejected_as_a_unit(tmp_path: Path, context: ReadingContext) -> None:
    """Content that does not match its digest is not evidence; the rows beside it are."""
    path = _database(tmp_path, [EVENTS, ARCHIVES])
    _archive(path, "s-1", _lines("plain"), digest="0" * 64)
    _insert_events(path, "s-2", ['{"type":"reset","id":"r1"}'])
    damaged, sound = read_database(path, context)
    assert [fault.reason for fault in damaged.faults] == ["archive_damaged"]
    assert damaged.exchanges == []
    assert [event.action for event in sound.events] == ["reset"]


@pytest.mark.parametrize("storage", ["file", "sqlite"])
def test_a_cold_archive_is_read_from_the_database_or_from_beside_it(
    storage: str, tmp_path: Path, context: ReadingContext
) -> None:
    """Idle sessions are moved out of the rows, and a late import must not miss them."""
    path = _database(tmp_path, [EVENTS, COLD])
    records = [{"kind": "header", "version": 1, "sessionId": "s-1", "generation": "g"}]
    records += [{"kind": "event", "row": {"seq": seq, "event_json": line}} for seq, line in enumerate(_lines("plain"))]
    records += [{"kind": "identity", "row": {"event_id": "x", "seq": 1}}]
    blob = zstd.compress("\n".join(map(json.dumps, records)).encode())
    name = f"{hashlib.sha256(blob).hexdigest()}.jsonl.zst"
    if storage == "file":
        folder = path.parent.parent / "sessions" / "cold"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(blob)
    archive_blob = None if storage == "file" else blob
    _insert(path, "session_transcript_cold_archives", ("s-1", name, storage, archive_blob, name.partition(".")[0]))
    (reading,) = read_database(path, context)
    expected = read_transcript(CORPUS / "plain.jsonl", context)
    assert [exchange.content_digest for exchange in reading.exchanges] == [
        exchange.content_digest for exchange in expected.exchanges
    ]
    assert reading.faults == []


@pytest.mark.parametrize("name", ["../../../secret.jsonl.zst", "missing.jsonl.zst"])
def test_a_missing_cold_archive_is_reported_and_no_other_file_is_read(
    name: str, tmp_path: Path, context: ReadingContext
) -> None:
    """The name is untrusted and must not lead out of its folder."""
    path = _database(tmp_path, [EVENTS, COLD])
    (tmp_path / "secret.jsonl.zst").write_bytes(b"secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    _insert(path, "session_transcript_cold_archives", ("s-1", name, "file", None, digest))
    (reading,) = read_database(path, context)
    assert [fault.reason for fault in reading.faults] == ["archive_missing"]


def test_entries_copied_by_a_fork_count_in_their_original_session(tmp_path: Path, context: ReadingContext) -> None:
    """A fork or a rewind starts with a copy of another session. Counted twice, all figures of the agent would be wrong."""
    path = _database(tmp_path, [EVENTS, WINDOWS, IDENTITIES])
    lines = _lines("plain")
    own_line = '{"type":"message","id":"own","timestamp":"2026-11-03T10:00:00Z","message":{"role":"user","content":"More?"}}'
    # The copy has the id that comes first: age decides, not the alphabet.
    for session, created, session_lines in (("z-source", 1, lines), ("a-fork", 2, [*lines, own_line])):
        _insert_events(path, session, session_lines)
        _insert(path, "session_windows", (session, f"agent:ops:{session}", None, None, created))
        _insert(path, "transcript_event_identities", *((session, json.loads(line)["id"]) for line in session_lines))
    fork, source = read_database(path, context)
    expected = read_transcript(CORPUS / "plain.jsonl", context)
    assert [exchange.content_digest for exchange in source.exchanges] == [
        exchange.content_digest for exchange in expected.exchanges
    ]
    assert [exchange.user_message for exchange in fork.exchanges] == ["More?"]
    assert [exchange.turn_number for exchange in fork.exchanges] == [len(expected.exchanges) + 1]
    assert fork.events == []


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (("agent:ops:main", "direct", None), ((), False)),
        (("agent:ops:slack:channel:c1", "channel", None), ((), True)),
        (("agent:ops:whatsapp:group:g1", "group", None), ((), True)),
        (("agent:ops:subagent:1", None, "agent:ops:main"), (("subagent",), False)),
        (("agent:ops:dashboard:1", None, "agent:ops:main"), (("subagent",), False)),
        (("agent:ops:cron:nightly", None, None), (("cron",), False)),
    ],
)
def test_the_session_window_gives_tags_and_multi_user(
    row: tuple[str, str | None, str | None], expected: tuple[tuple[str, ...], bool], tmp_path: Path, context: ReadingContext
) -> None:
    """A scheduled run or a subagent is not a person's question, and a group is not one person."""
    path = _database(tmp_path, [EVENTS, WINDOWS])
    _insert_events(path, "s-1", _lines("plain"))
    _insert(path, "session_windows", ("s-1", *row, 1))
    (reading,) = read_database(path, context)
    assert {(exchange.tags, exchange.multi_user) for exchange in reading.exchanges} == {expected}


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path, context: ReadingContext) -> None:
    """A wrong path must be reported."""
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match=r"x\.sqlite"):
        list(read_database(path, context))


def test_a_view_in_place_of_a_table_is_not_queried(tmp_path: Path, context: ReadingContext) -> None:
    """A view runs code of the file's author."""
    bomb = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 's' AS session_id, i AS seq, '' AS event_json FROM n"
    path = _database(tmp_path, [f"CREATE VIEW transcript_events AS {bomb}"])
    assert list(read_database(path, context)) == []
    assert find_databases(tmp_path) == []


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_ranges_cover_every_session_once(count: int, tmp_path: Path, context: ReadingContext) -> None:
    """A large database is read in parts: no session may be missed or read twice."""
    path = _database(tmp_path)
    names = ["a", "b", "ba", "c", "ä", "z" * 300, "7"]
    for name in names:
        _insert_events(path, name, ['{"type":"reset","id":"r1"}'])
    ranges = session_ranges(path, count)
    session_ids = [
        reading.session_ids[0] for session_range in ranges for reading in read_database(path, context, session_range)
    ]
    assert [reading.session_ids[0] for reading in read_database(path, context)] == session_ids
    assert len(names) == len(session_ids)
    assert len(ranges) <= count


def test_a_session_added_later_is_in_a_range(tmp_path: Path, context: ReadingContext) -> None:
    """The gateway writes between planning and reading."""
    path = _database(tmp_path)
    for name in ("f", "k", "p"):
        _insert_events(path, name, ['{"type":"reset","id":"r1"}'])
    ranges = session_ranges(path, 3)
    for name in ("a", "g", "z"):
        _insert_events(path, name, ['{"type":"reset","id":"r1"}'])
    session_ids = [
        reading.session_ids[0] for session_range in ranges for reading in read_database(path, context, session_range)
    ]
    assert session_ids == ["a", "f", "g", "k", "p", "z"]


def test_a_database_is_read_as_of_one_moment(tmp_path: Path, context: ReadingContext) -> None:
    """A fork made during the reading would count its copies as its own."""
    path = _database(tmp_path, ["PRAGMA journal_mode = WAL", EVENTS])
    for name in ("a", "b"):
        _insert_events(path, name, ['{"type":"reset","id":"r1"}'])
    readings = read_database(path, context)
    next(readings)
    _insert_events(path, "b", ['{"type":"reset","id":"r2"}'])
    assert [event.event_id for event in next(readings).events] == ["r1"]
