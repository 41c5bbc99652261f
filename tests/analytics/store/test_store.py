"""The store: committed records are there once, unchanged and at their position; uncommitted ones leave no trace."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pytest
from support import builders as build

from analytics.store import store as store_module
from analytics.store.connection import IN_USE_HINT
from analytics.store.store import BATCH, AppendResult, Store, fetch
from schemas.codec.arrow import rows_as_records
from schemas.codec.single_object import encode
from schemas.errors import RecordError, StoreError
from schemas.records import RECORD_TYPES, AgentEvent, Heartbeat, ImportProgress, Incident, Record
from schemas.registry import current_schemas, schema_of, topics

NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)
TOPICS = [(topic, name) for topic, names in topics().items() for name in names]


def append(store: Store, topic: str, *records: Record, skip_known: bool = False) -> AppendResult:
    """Append records to a topic in a transaction of their own."""
    with store.transaction() as transaction:
        return transaction.append(topic, [encode(record) for record in records], skip_known=skip_known)


def sort_by_position(frames: Mapping[str, pl.DataFrame]) -> list[tuple[int, Record]]:
    """Return the records of the frames with their positions, in order of position."""
    rows = [
        row
        for name, frame in frames.items()
        for row in zip(frame["_offset"].to_list(), rows_as_records(name, frame), strict=True)
    ]
    return sorted(rows, key=lambda row: row[0])


def read_topic(store: Store, topic: str) -> list[tuple[int, Record]]:
    """Return all records of a topic with their positions."""
    return sort_by_position(store.read(topic, 0, 1 << 60))


def event(session: str, number: int) -> AgentEvent:
    """Return an event of a session."""
    return build.event(session, number, event="tool_call", tool="exec")


@pytest.mark.parametrize(("topic", "name"), TOPICS)
def test_records_are_read_as_they_were_appended(store: Store, topic: str, name: str, samples: Any) -> None:
    """The table is the topic: a record must be equal to the last bit and microsecond."""
    records = samples.records(name, 60)
    assert AppendResult({schema_of(name).table: 60}, 0) == append(store, topic, *records)
    assert list(enumerate(records)) == read_topic(store, topic)


def test_the_tests_cover_every_topic_and_record_type() -> None:
    """A record type without a topic is internal to the store."""
    internal = {
        "StageState",
        "Watermark",
        "ImportProgress",
        "Alert",
        "DailyExchanges",
        "DailyFailure",
        "DailyScores",
        "HourlyBehaviour",
        "HourlyScores",
        "SessionCosts",
        "SessionScores",
        "ToolDescription",
        "ProjectCheck",
        "RunNumber",
        "SearchWord",
        "IncidentOutline",
    }
    assert {name for _, name in TOPICS} | internal == set(RECORD_TYPES)


def test_positions_follow_the_batch_across_record_types(store: Store, samples: Any) -> None:
    """A closing between two exchanges must stay between them, although they are in different tables."""
    kinds = ["Exchange", "SessionClosed", "Exchange", "Exchange", "SessionClosed"]
    records = [record for _ in range(12) for kind in kinds for record in samples.records(kind, 1)]
    append(store, "exchanges", *records[:30])
    append(store, "exchanges", *records[30:])
    assert list(enumerate(records)) == read_topic(store, "exchanges")
    assert store.end_of("exchanges") == 60


def test_a_read_starts_and_ends_at_the_given_positions(store: Store) -> None:
    """A consumer reads from its watermark, up to its batch size."""
    records = [event("s1", number) for number in range(10)]
    append(store, "agent-events", *records)
    for start, limit in [(0, 0), (0, 3), (3, 3), (9, 5), (10, 5), (100, 5)]:
        expected = list(enumerate(records))[start : start + limit]
        assert sort_by_position(store.read("agent-events", start, limit)) == expected
    assert store.read("agent-events", 10, 5) == {}


def test_an_empty_append_changes_nothing(store: Store) -> None:
    """A poll without records must cost nothing."""
    assert AppendResult() == append(store, "exchanges")
    assert AppendResult() == append(store, "exchanges", skip_known=True)
    assert store.end_of("exchanges") == 0


def test_a_known_record_is_skipped(store: Store) -> None:
    """Redelivery is normal, and must leave no gaps in the positions."""
    originals = [event("s1", 0), event("s1", 1)]
    assert AppendResult({"agent_events": 2}, 0) == append(store, "agent-events", *originals, skip_known=True)
    redelivered = [event("s1", 1), event("s2", 1), event("s1", 0), event("s1", 2)]
    assert AppendResult({"agent_events": 2}, 2) == append(store, "agent-events", *redelivered, skip_known=True)
    assert list(enumerate([*originals, redelivered[1], redelivered[3]])) == read_topic(store, "agent-events")
    assert AppendResult({"agent_events": 0}, 4) == append(store, "agent-events", *redelivered, skip_known=True)


def test_a_record_repeated_within_a_batch_counts_once(store: Store) -> None:
    """A client that retries within one request sends it twice; the first one counts."""
    records = [event("s1", 0), event("s1", 0), event("s1", 1), event("s1", 0)]
    assert AppendResult({"agent_events": 2}, 2) == append(store, "agent-events", *records, skip_known=True)
    assert read_topic(store, "agent-events") == [(0, records[0]), (1, records[2])]


def test_other_content_under_a_known_identity_is_a_conflict(store: Store) -> None:
    """Two clients with the same numbering must not hide each other's events, so the conflict is reported."""
    originals = [event("s1", 0), event("s1", 1)]
    append(store, "agent-events", *originals, skip_known=True)
    conflicting = [msgspec.structs.replace(original, payload='{"other":1}') for original in originals]
    redelivered = [msgspec.structs.replace(original, seq=7, ingested_at=NOON) for original in originals]
    batch = [conflicting[0], redelivered[1], event("s1", 2), redelivered[0], conflicting[1]]
    assert AppendResult({"agent_events": 1}, 2, [0, 4]) == append(store, "agent-events", *batch, skip_known=True)
    assert list(enumerate([*originals, batch[2]])) == read_topic(store, "agent-events")


def test_the_first_content_of_an_identity_counts_unless_the_log_has_one(store: Store) -> None:
    """A record is compared with the stored one, whatever else is in the batch."""
    stored, conflicting = build.exchange("s1", 0), build.exchange("s1", 0, content_digest="1" * 16)
    assert AppendResult({"exchanges": 1}, 1, [1]) == append(store, "exchanges", stored, conflicting, stored, skip_known=True)
    assert AppendResult({"exchanges": 0}, 1, [0, 2]) == append(
        store, "exchanges", conflicting, stored, conflicting, skip_known=True
    )
    assert read_topic(store, "exchanges") == [(0, stored)]


def test_without_skipping_every_record_is_stored(store: Store) -> None:
    """A stage's own records are never duplicates: they are committed with its watermark."""
    assert AppendResult({"agent_events": 2}, 0) == append(store, "agent-events", event("s1", 0), event("s1", 0))


@pytest.mark.parametrize(("topic", "name"), TOPICS)
def test_every_type_is_recognized_by_its_identity(store: Store, topic: str, name: str, samples: Any) -> None:
    """Identities contain times and unusual texts, which must be found in the log and within a batch."""
    records = samples.records(name, 50)
    key = [*schema_of(name).identity, *(["revision"] if schema_of(name).has_revisions else [])]
    distinct: dict[tuple[Any, ...], Record] = {}
    for record in records:
        distinct.setdefault(tuple(getattr(record, field) for field in key), record)
    outcome = append(store, topic, *records, *records, skip_known=True)
    assert sum(outcome.written.values()) == len(distinct)
    assert outcome.known + len(outcome.conflicts) == 100 - len(distinct)
    repetition = append(store, topic, *records, skip_known=True)
    assert sum(repetition.written.values()) == 0
    assert repetition.known + len(repetition.conflicts) == 50
    assert list(distinct.values()) == [record for _, record in read_topic(store, topic)]


def test_a_new_revision_is_not_a_duplicate(store: Store) -> None:
    """It has other content, and skipping it would keep the old content forever."""
    (record,) = [
        Incident(
            incident_id="a", revision=0, project="p", type="drift", status="open", severity="warning", title="t",
            description="d", metadata="{}", detected_at=NOON,
        )
    ]  # fmt: skip
    append(store, "incidents", record, skip_known=True)
    newer = msgspec.structs.replace(record, revision=1, status="dismissed")
    assert AppendResult({"incidents": 1}, 1) == append(store, "incidents", record, newer, skip_known=True)
    assert store.cursor().execute("SELECT status FROM incidents").fetchall() == [("dismissed",)]


def test_a_closing_is_independent_on_each_of_its_topics(store: Store) -> None:
    """Different stages read exchanges and events, and each must learn that the session is over."""
    closing, other_closing = build.closing("s1", 1), build.closing("s2", 1)
    append(store, "exchanges", build.exchange("s1", 0), closing, skip_known=True)
    assert AppendResult({"session_closings": 1, "agent_events": 1}, 0) == append(
        store, "agent-events", closing, event("s1", 0), skip_known=True
    )
    assert AppendResult({"session_closings": 1}, 1) == append(store, "agent-events", closing, other_closing, skip_known=True)
    assert read_topic(store, "exchanges") == [(0, build.exchange("s1", 0)), (1, closing)]
    assert read_topic(store, "agent-events") == [(0, closing), (1, event("s1", 0)), (2, other_closing)]
    assert store.end_of("exchanges") == 2
    assert store.end_of("agent-events") == 3


def test_states_are_stored_by_stage_and_key(store: Store) -> None:
    """A stage must see neither another stage's state nor an outdated one of its own."""
    with store.transaction() as transaction:
        transaction.set_states("diagnosis", {"a": b"1", "b": b"\0\xff"}, 5)
        transaction.set_states("scoring", {"a": b"2"}, 9)
    with store.transaction() as transaction:
        transaction.set_states("diagnosis", {"a": b"3", 'it\'s "c"': b""}, 7)
        transaction.set_states("diagnosis", {}, 8)
        assert transaction.states("diagnosis", ["a", "b", "x"]) == {"a": b"3", "b": b"\0\xff"}
        assert transaction.states("diagnosis", ['it\'s "c"']) == {'it\'s "c"': b""}
        assert transaction.states("scoring", ["a", "b"]) == {"a": b"2"}
        assert transaction.states("diagnosis", []) == {}
        assert transaction.states("unheard", ["a"]) == {}
    rows = store.cursor().execute("SELECT stage, key, next_position FROM log.stage_state ORDER BY ALL").fetchall()
    assert rows == [("diagnosis", "a", 7), ("diagnosis", "b", 5), ("diagnosis", 'it\'s "c"', 7), ("scoring", "a", 9)]


@pytest.mark.parametrize("sessions", [1, 20])
def test_states_of_several_stages_are_replaced_together(store: Store, sessions: int) -> None:
    """A flush has states of two stages per session, and each keeps its own at its own position."""
    keys = [f"k{number}" for number in range(sessions)]
    for intake_state, scoring_state, offset in ((b"1", b"2", 5), (b"3", b"4", 8)):
        with store.transaction() as transaction:
            states = {"intake": dict.fromkeys(keys, intake_state), "scoring": dict.fromkeys(keys, scoring_state)}
            transaction.set_states_of_stages(states, {"intake": offset, "scoring": offset + 1})
            assert not transaction.changed_stages
    with store.transaction() as transaction:
        assert transaction.states("intake", keys) == dict.fromkeys(keys, b"3")
        assert transaction.states("scoring", keys) == dict.fromkeys(keys, b"4")
    rows = (
        store.cursor()
        .execute("SELECT stage, next_position, count(*) FROM log.stage_state GROUP BY ALL ORDER BY ALL")
        .fetchall()
    )
    assert rows == [("intake", 8, sessions), ("scoring", 9, sessions)]


def test_watermarks_are_stored_by_consumer_and_topic(store: Store) -> None:
    """Without a read, the watermark is position zero."""
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", 4)
        transaction.set_watermark("sink", "exchanges", 9)
        transaction.set_watermark("intake", "exchanges", 6)
    with store.transaction() as transaction:
        positions = [
            transaction.watermark(*names) for names in [("intake", "exchanges"), ("sink", "exchanges"), ("intake", "x")]
        ]
    assert positions == [6, 9, 0]
    assert store.cursor().execute("SELECT count(*) FROM log.watermarks").fetchone()[0] == 2


def test_the_progress_of_a_file_is_replaced_even_within_one_call(store: Store) -> None:
    """A file may be listed twice, and two rows for it would contradict each other."""
    old = ImportProgress(source="openclaw", path="a", size=1, modified_ns=2, complete=False, settings_digest="d")
    new = msgspec.structs.replace(old, size=9, complete=True)
    for progress in ([old, new], [old, new], [new]):
        with store.transaction() as transaction:
            transaction.set_progress(progress)
        assert store.cursor().execute("SELECT size, complete FROM log.import_progress").fetchall() == [(9, True)]


class Interrupted(BaseException):
    """An error that is not an `Exception`, like KeyboardInterrupt."""


def change_everything_and_raise(store: Store, error: type[BaseException]) -> None:
    """Run a transaction that uses every operation and then fails."""
    with store.transaction() as transaction:
        transaction.append("agent-events", [encode(event("s1", 1)), encode(build.closing("s1", 2))])
        transaction.append("exchanges", [encode(build.exchange("s1", 1))])
        transaction.set_states("diagnosis", {"a": b"1"}, 5)
        transaction.set_watermark("diagnosis", "agent-events", 5)
        assert transaction.watermark("diagnosis", "agent-events") == 5
        transaction.clear_tables(["exchanges"])
        # Uncommitted records do not move the end of a topic.
        assert store.end_of("agent-events") == 1
        assert store.end_of("exchanges") == 0
        raise error


def test_an_exception_rolls_everything_back(store: Store) -> None:
    """Rows, states and watermark are one change; half of it would lose or duplicate records."""
    append(store, "agent-events", event("s1", 0))
    for error in (ValueError, Interrupted, duckdb.Error):
        with pytest.raises(error):
            change_everything_and_raise(store, error)
        assert store.end_of("agent-events") == 1
        assert store.end_of("exchanges") == 0
        with store.transaction() as transaction:
            assert transaction.states("diagnosis", ["a"]) == {}
            assert transaction.watermark("diagnosis", "agent-events") == 0
    append(store, "agent-events", event("s1", 1))
    assert read_topic(store, "agent-events") == [(0, event("s1", 0)), (1, event("s1", 1))]


def test_an_undecodable_message_stops_the_transaction(store: Store) -> None:
    """An appended message has been accepted, so an invalid one is a bug."""
    with pytest.raises(RecordError), store.transaction() as transaction:
        transaction.append("agent-events", [encode(event("s1", 0)), encode(event("s1", 1))[:-1]])
    assert read_topic(store, "agent-events") == []


class FailingAfterCommit:
    """A connection whose commit is durable but raises an error, as DuckDB's does on a full disk."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Commit, and fail."""
        self._connection.commit()
        raise Interrupted


def test_a_durable_commit_that_reports_a_failure_reuses_no_position(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records with one position would be read as one, and the next one skipped."""
    with monkeypatch.context() as patch:
        patch.setattr(store, "_connection", FailingAfterCommit(store._connection))
        with pytest.raises(Interrupted):
            append(store, "agent-events", event("s1", 0), event("s1", 1))
    append(store, "agent-events", event("s1", 2))
    assert read_topic(store, "agent-events") == [(number, event("s1", number)) for number in range(3)]


class FatallyFailed(FailingAfterCommit):
    """A connection that refuses everything, as DuckDB's does after a fatal error."""

    def commit(self) -> None:
        """Fail."""
        raise duckdb.FatalException

    def rollback(self) -> None:
        """Fail."""
        raise duckdb.FatalException

    def execute(self, statement: str, values: object = None) -> Any:
        """Execute inserts and fail on reads."""
        if "max(" in statement:
            raise duckdb.FatalException
        return self._connection.execute(statement, values)


def test_after_a_fatal_error_positions_stay_unchanged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process must reopen the file, and must not claim unknown positions before."""
    with monkeypatch.context() as patch:
        patch.setattr(store, "_connection", FatallyFailed(store._connection))
        with pytest.raises(duckdb.FatalException):
            append(store, "agent-events", event("s1", 0))
    assert store.end_of("agent-events") == 0
    store._connection.rollback()


def test_a_reopened_store_continues(path: Path) -> None:
    """Positions, states and watermarks are only in the file."""
    for round_number in range(3):
        with Store(path) as store:
            assert store.end_of("exchanges") == 2 * round_number
            assert store.end_of("agent-events") == round_number
            append(store, "exchanges", build.exchange("s1", round_number), build.closing("s1", round_number))
            append(store, "agent-events", event("s1", round_number))
            with store.transaction() as transaction:
                assert round_number == transaction.watermark("intake", "exchanges")
                transaction.set_watermark("intake", "exchanges", round_number + 1)
            if round_number == 1:
                store.checkpoint()
    with Store(path) as store:
        assert [offset for offset, _ in read_topic(store, "exchanges")] == list(range(6))


def test_deleted_derived_records_can_be_rebuilt_from_the_start(store: Store) -> None:
    """A rebuild writes the same records to the same positions, and leaves input records alone."""
    append(store, "exchanges", build.exchange("s1", 0), build.closing("s1", 0))
    append(store, "agent-events", event("s1", 0), build.closing("s1", 0))
    with store.transaction() as transaction:
        transaction.clear_tables(["agent_events"])
    # The closing keeps its position on that topic, so no later record may reuse it.
    assert store.end_of("exchanges") == 2
    assert store.end_of("agent-events") == 2
    with store.transaction() as transaction:
        transaction.clear_tables(["session_closings"])
    assert store.end_of("exchanges") == 1
    assert store.end_of("agent-events") == 0
    assert read_topic(store, "exchanges") == [(0, build.exchange("s1", 0))]


def test_a_read_sees_no_uncommitted_row(store: Store) -> None:
    """A consumer could otherwise be ahead of a topic that is rolled back."""
    append(store, "agent-events", event("s1", 0))
    positions: list[int] = []
    with store.transaction() as transaction:
        transaction.append("agent-events", [encode(event("s1", 1))])
        reader = threading.Thread(target=lambda: positions.append(len(read_topic(store, "agent-events"))))
        reader.start()
        reader.join()
        positions.append(len(read_topic(store, "agent-events")))
    positions.append(len(read_topic(store, "agent-events")))
    assert positions == [1, 1, 2]


def test_a_read_is_a_consistent_snapshot(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are read one after another: a commit in between must not show a closing without its exchange.

    The reader's watermark would pass the exchange, and nobody would ever read it.
    """
    append(store, "exchanges", build.exchange("s1", 0))
    commits = iter([(build.exchange("s1", 1), build.closing("s1", 2))])

    def fetch_and_commit(*arguments: Any) -> pl.DataFrame:
        frame = fetch(*arguments)
        for records in commits:
            append(store, "exchanges", *records)
        return frame

    monkeypatch.setattr(store_module, "fetch", fetch_and_commit)
    assert read_topic(store, "exchanges") == [(0, build.exchange("s1", 0))]
    assert [offset for offset, _ in read_topic(store, "exchanges")] == [0, 1, 2]


def test_concurrent_writers_wait_for_each_other(store: Store) -> None:
    """With one writer at a time, no position is repeated or skipped."""
    failures: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for number in range(10):
                append(store, "agent-events", event(name, number), event(name, number + 100))
                len(read_topic(store, "agent-events"))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=write, args=(f"s{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    rows = read_topic(store, "agent-events")
    assert [offset for offset, _ in rows] == list(range(80))
    for name in ("s0", "s1", "s2", "s3"):
        numbers = [record.seq for _, record in rows if isinstance(record, AgentEvent) and record.session_id == name]
        assert numbers == [number for pair in range(10) for number in (pair, pair + 100)]


def run_python(source: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


OPEN = """
    import sys
    from pathlib import Path
    from analytics.store.store import Store
    from schemas.errors import StoreError

    try:
        Store(Path(sys.argv[1]))
    except StoreError as error:
        print(error)
        print(error.hint)
"""


def test_a_second_process_gets_the_id_of_the_first(tmp_path: Path) -> None:
    """This is the most common mistake, so the error must say what to do."""
    path = tmp_path / "walnut.duckdb"
    with Store(path):
        process = run_python(OPEN, str(path))
    assert process.stdout == f"{path}: in use by process {os.getpid()}\n{IN_USE_HINT}\n"
    assert "server" in IN_USE_HINT
    assert run_python(OPEN, str(path)).stdout == ""


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + bytes(9000), b"not a database", bytes(20_000)])
def test_a_file_of_another_format_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    """A mistyped path must not overwrite a file, and the file's name must not decide about the message."""
    path = tmp_path / "lock-the-wal.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"lock-the-wal\.txt: ") as caught:
        Store(path)
    assert "Check that the path is a DuckDB file" in caught.value.hint
    assert path.read_bytes() == content


@pytest.mark.parametrize("where", ["missing/fleet.duckdb", "."])
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path, where: str) -> None:
    """A missing folder is not created, because the path is more likely wrong."""
    with pytest.raises(StoreError) as caught:
        Store(tmp_path / where)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


CRASH = """
    import os, sys
    from pathlib import Path
    from analytics.store.store import Store

    store = Store(Path(sys.argv[1]))
    for number in range(20):
        with store.transaction() as transaction:
            transaction.set_states("s", {f"k{number}": bytes(500)}, number)
    os._exit(0)
"""


def test_a_damaged_log_is_reported_with_what_to_do(path: Path) -> None:
    """DuckDB refuses to open it, but the data in the main file is still valid."""
    run_python(CRASH, str(path))
    log = path.with_name(path.name + ".wal")
    damaged = bytearray(log.read_bytes())
    # Damage the bytes of a state: a damaged entry length would look like a torn end, which is tolerated.
    damaged[damaged.index(bytes(400), len(damaged) // 2)] ^= 1
    log.write_bytes(damaged)
    with pytest.raises(StoreError, match="WAL") as caught:
        Store(path)
    assert ".wal file away" in caught.value.hint
    log.rename(path.with_name("aside"))
    Store(path).close()


ZONES = """
    import sys
    import time
    from datetime import UTC, datetime, timedelta
    from schemas.codec.single_object import encode
    from schemas.records import Heartbeat
    from analytics.store.store import Store

    time.tzset()
    assert time.timezone != 0
    # Around both changes of New York's clocks, and to the microsecond.
    starts = [datetime(2026, 3, 8, 6, 59, 59, 999999, UTC), datetime(2026, 11, 1, 5, 30, 0, 1, UTC), datetime(2000, 1, 1, tzinfo=UTC)]
    times = [start + timedelta(minutes=30 * step, microseconds=step) for start in starts for step in range(5)]
    records = [Heartbeat(connection="c", project="p", session_id="s", occurred_at=at, ingested_at=at) for at in times]
    with Store(None) as store:
        for _ in range(2):
            with store.transaction() as transaction:
                transaction.append("heartbeats", [encode(record) for record in records], skip_known=True)
        frame = store.read("heartbeats", 0, 100)["Heartbeat"]
        assert times == frame["occurred_at"].to_list() == frame["ingested_at"].to_list()
        rows = store.cursor().execute("SELECT occurred_at, epoch_us(occurred_at) FROM heartbeats ORDER BY ALL").fetchall()
        assert [at.replace(tzinfo=None) for at in sorted(times)] == [row[0] for row in rows]
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        assert [(at - epoch) // timedelta(microseconds=1) for at in sorted(times)] == [row[1] for row in rows]
    print("exact")
"""


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_times_do_not_depend_on_the_zone_of_the_machine(zone: str) -> None:
    """One hour occurs twice in an autumn night, and local time would lose an hour of events."""
    process = run_python(ZONES, TZ=zone)
    assert process.stdout == "exact\n", process.stderr


LEAN = """
    import sys
    for name in ("pyarrow", "numpy", "pandas", "pytz"):
        sys.modules[name] = None
    import polars as pl
    from datetime import UTC, datetime
    from schemas.codec.single_object import encode
    from schemas.records import Heartbeat
    from analytics.store.store import Store, fetch

    at = datetime(2026, 10, 1, 12, tzinfo=UTC)
    with Store(None) as store:
        with store.transaction() as transaction:
            message = encode(Heartbeat(connection="c", project="p", session_id="s", occurred_at=at, ingested_at=at))
            transaction.append("heartbeats", [message] * 50)
            transaction.append("heartbeats", [message], skip_known=True)
            transaction.set_states("s", {"a": b"1"}, 1)
            assert {"a": b"1"} == transaction.states("s", ["a"])
        assert [at] * 50 == store.read("heartbeats", 0, 50)["Heartbeat"]["occurred_at"].to_list()
        assert 50 == fetch(store.cursor(), "SELECT * FROM heartbeats").height
    print("lean")
"""


def test_no_undeclared_package_is_needed() -> None:
    """DuckDB and Polars use optional packages that a fresh installation lacks."""
    process = run_python(LEAN)
    assert process.stdout == "lean\n", process.stderr


def test_any_text_is_stored_unchanged(store: Store) -> None:
    """Agents write NUL characters, direction marks, and parts of SQL statements."""
    texts = [
        "",
        "\0",
        "a\0b",
        "\u202eabc",
        "\u200b",
        "👩‍👩‍👧",
        "'; DROP TABLE log.exchanges; --",
        "\r\n",
        "é" * 5000,
        "\U0010ffff",
    ]
    records = [build.exchange("s1", number, text, user_message=text) for number, text in enumerate(texts)]
    append(store, "exchanges", *records, skip_known=True)
    assert records == [record for _, record in read_topic(store, "exchanges")]
    lengths = store.cursor().execute("SELECT user_message FROM exchanges ORDER BY exchange_id").fetchall()
    assert texts == [text for (text,) in lengths]


def test_a_store_in_memory_is_separate() -> None:
    """Two stores in one process must not share anything."""
    with Store(None) as store, Store(None) as other_store:
        append(store, "agent-events", event("s1", 0))
        assert store.end_of("agent-events") == 1
        assert other_store.end_of("agent-events") == 0
        assert read_topic(store, "agent-events") == [(0, event("s1", 0))]
        assert read_topic(other_store, "agent-events") == []


def encode_events(start: int, count: int) -> list[bytes]:
    """Return encoded events with consecutive ids. The id is replaced in the bytes, because encoding a million events is slow."""
    head, tail = encode(msgspec.structs.replace(event("s1", 0), event_id="#######")).split(b"#######")
    return [b"%b%07d%b" % (head, number, tail) for number in range(start, start + count)]


@pytest.mark.slow
def test_a_million_records_are_stored_and_read(path: Path) -> None:
    """A busy fleet writes this many per day; each must be there once, at its position."""
    batch = 20_000
    with Store(path) as store:
        for start in range(0, 1_000_000, batch):
            with store.transaction() as transaction:
                transaction.append("agent-events", encode_events(start, batch))
                transaction.set_watermark("sink", "agent-events", start + batch)
        with store.transaction() as transaction:
            outcome = transaction.append("agent-events", encode_events(990_000, batch), skip_known=True)
        assert AppendResult({"agent_events": 10_000}, 10_000) == outcome
    with Store(path) as store:
        assert store.end_of("agent-events") == store.count("agent_events") == 1_010_000
        offset = 0
        while frames := store.read("agent-events", offset, 101_000):
            frame = frames["AgentEvent"]
            assert frame["_offset"].equals(
                pl.int_range(offset, offset + 101_000, dtype=pl.Int64, eager=True), check_names=False
            )
            ids = frame["event_id"].cast(pl.Int64)
            assert ids.equals(frame["_offset"], check_names=False)
            offset += 101_000
        assert offset == 1_010_000


def test_no_table_has_the_name_of_a_registered_batch() -> None:
    """Such a table would be read instead of the batch."""
    assert BATCH not in {schema.table for schema in current_schemas().values()}


def test_times_are_recognized_to_the_microsecond(store: Store) -> None:
    """A heartbeat's identity is its time, so a rounding error would make each delivery a new one."""
    times = [NOON + timedelta(microseconds=step) for step in (0, 1, 999_999)]
    records = [Heartbeat(connection="c", project="p", session_id="s", occurred_at=at, ingested_at=NOON) for at in times]
    assert append(store, "heartbeats", *records, skip_known=True).known == 0
    assert append(store, "heartbeats", *records, skip_known=True).known == 3


def test_a_file_can_be_closed_while_others_request_cursors(tmp_path: Path) -> None:
    """Pages and periodic tasks may do so at any moment, and stopping a server must not fail."""
    for number in range(3):
        store = Store(tmp_path / f"{number}.duckdb")
        all_ready = threading.Barrier(5)

        def request_cursors(store: Store = store, all_ready: threading.Barrier = all_ready) -> type[BaseException]:
            store.cursor()
            all_ready.wait()
            try:
                while True:
                    store.cursor()
            except Exception as error:  # noqa: BLE001 - the test asserts the type
                return type(error)

        with ThreadPoolExecutor(4) as threads:
            requests = [threads.submit(request_cursors) for _ in range(4)]
            all_ready.wait()
            store.close()
            assert {request.result() for request in requests} == {duckdb.ConnectionException}
