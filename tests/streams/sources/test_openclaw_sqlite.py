"""Transcripts in SQLite give the records of the same lines in a file, and the database is left as it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from schemas.errors import InputError
from streams.sources.lines import MAX_LINE
from streams.sources.openclaw import read_transcript
from streams.sources.openclaw_sqlite import find_databases, read_database
from streams.sources.reading import ReadingContext

CORPUS = Path(__file__).parents[2] / "corpus" / "openclaw"
EVENTS = "CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, created_at INTEGER)"


def _database(root: Path, statements: Iterable[str] = (EVENTS,), agent: str = "ops") -> Path:
    path = root / "agents" / agent / "agent" / "openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def _fill(path: Path, session: str, lines: Iterable[str | bytes]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [(session, 10 * seq, line) for seq, line in enumerate(lines)]
        connection.executemany("INSERT INTO transcript_events VALUES (?, ?, ?, 0)", reversed(rows))


@pytest.mark.parametrize("name", ["plain", "branch_and_leaf", "wrapped_text", "memory", "repeated_ids"])
def test_rows_give_the_records_of_the_same_lines(name: str, tmp_path: Path, context: ReadingContext) -> None:
    """Moving an agent from files to SQLite must not change what is known of it."""
    path = _database(tmp_path)
    file = CORPUS / f"{name}.jsonl"
    _fill(path, "s-1", file.read_text(encoding="utf-8").splitlines())
    (reading,) = read_database(path, context)
    expected = read_transcript(file, context)
    assert [e.exchange_id for e in expected.exchanges] == [e.exchange_id for e in reading.exchanges]
    assert [e.content_digest for e in expected.exchanges] == [e.content_digest for e in reading.exchanges]
    assert [e.payload for e in expected.events] == [e.payload for e in reading.events]
    assert [f.reason for f in expected.faults] == [f.reason for f in reading.faults]
    assert {"ops"} == {event.agent for event in reading.events}


def test_each_session_is_a_reading_under_the_name_of_its_rows(tmp_path: Path, context: ReadingContext) -> None:
    """The row says which session an event is of; a copied header does not."""
    path = _database(tmp_path)
    _fill(path, "b", ['{"type":"session","id":"other"}', '{"type":"reset","id":"r1"}'])
    _fill(path, "ä", ['{"type":"reset","id":"r1"}'])
    readings = list(read_database(path, context))
    assert [["b"], ["ä"]] == [reading.session_ids for reading in readings]
    assert ["second_session"] == [fault.reason for fault in readings[0].faults]
    assert [["b"], ["ä"]] == [[event.session_id for event in reading.events] for reading in readings]


def test_bad_rows_are_faults_and_too_long_ones_are_not_loaded(tmp_path: Path, context: ReadingContext) -> None:
    """A row can hold anything: nothing, bytes, a gigabyte."""
    path = _database(tmp_path)
    rows: list[str | bytes] = ["{", b'{"a":"\xff"}', "x" * (MAX_LINE + 1), '{"type":"reset","id":"r1"}']
    _fill(path, "s", rows)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO transcript_events VALUES ('s', 99, NULL, 0)")
    (reading,) = read_database(path, context)
    faults = [(1, "not_json"), (2, "not_utf8"), (3, "too_long"), (5, "not_an_object")]
    assert faults == [(fault.line, fault.reason) for fault in reading.faults]
    assert ["reset"] == [event.action for event in reading.events]


def test_reading_changes_nothing_and_works_beside_a_writer(tmp_path: Path, context: ReadingContext) -> None:
    """The gateway keeps writing: we must neither lock it nor touch its file."""
    path = _database(tmp_path, ["PRAGMA journal_mode = WAL", EVENTS])
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute('INSERT INTO transcript_events VALUES (\'s\', 1, \'{"type":"reset","id":"r1"}\', 0)')
        before = path.read_bytes()
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO transcript_events VALUES ('s', 2, 'not committed', 0)")
        (reading,) = read_database(path, context)
        after = path.read_bytes()
        writer.execute("ROLLBACK")
    assert (["r1"], []) == ([event.event_id for event in reading.events], reading.faults)
    assert before == after


def test_only_databases_with_transcripts_are_found(tmp_path: Path, context: ReadingContext) -> None:
    """The file exists in earlier versions with nothing but login state."""
    _database(tmp_path, ["CREATE TABLE auth_profiles (id TEXT)"], agent="login")
    events = _database(tmp_path, agent="events")
    later = _database(tmp_path, ["CREATE TABLE session_nodes (id TEXT)"], agent="later")
    assert [events, later] == find_databases(tmp_path)
    assert [] == list(read_database(tmp_path / "agents/login/agent/openclaw-agent.sqlite", context))


def test_what_is_no_database_is_listed_and_stops_no_other(tmp_path: Path, context: ReadingContext) -> None:
    """One damaged file must not keep a whole fleet from being imported, nor go unreported."""
    damaged = _database(tmp_path, agent="damaged")
    damaged.write_bytes(b"no database" * 100)
    sound = _database(tmp_path, agent="sound")
    assert [damaged, sound] == find_databases(tmp_path)
    with pytest.raises(InputError, match="damaged"):
        list(read_database(damaged, context))


@pytest.mark.parametrize("table", ["session_windows", "session_nodes", "session_transcript_archives"])
def test_tables_whose_columns_are_not_published_are_refused_with_a_way_out(
    table: str, tmp_path: Path, context: ReadingContext
) -> None:
    """Guessing columns would import nonsense; importing only what is left in the old table would hide the rest."""
    path = _database(tmp_path, [EVENTS, f"CREATE TABLE {table} (id TEXT)"])
    with pytest.raises(InputError, match=table) as caught:
        list(read_database(path, context))
    assert str(path) in str(caught.value)
    assert "JSONL" in caught.value.hint


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path, context: ReadingContext) -> None:
    """A wrong path must say so."""
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match=r"x\.sqlite"):
        list(read_database(path, context))


def test_a_view_in_place_of_the_table_is_not_run(tmp_path: Path, context: ReadingContext) -> None:
    """A view is code of whoever made the file."""
    bomb = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 's' AS session_id, i AS seq, '' AS event_json FROM n"
    path = _database(tmp_path, [f"CREATE VIEW transcript_events AS {bomb}"])
    assert [] == list(read_database(path, context))
    assert [] == find_databases(tmp_path)
