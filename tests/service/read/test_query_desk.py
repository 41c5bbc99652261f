"""Statements of analysts: what they may not do, how long they may take, and what the snapshot they read is.

Limits are tried on processes that a server would start; what a statement is answered, on such that were forked, but in a soak run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_server import PATIENT
from support.builders import exchange
from support.forking import forked
from support.lakes import put
from support.servers import LONG

from analytics.snapshots import (
    EXCLUDED_COLUMNS,
    QUEUE_TABLES,
    build_snapshot,
    copy_database,
    snapshot_columns,
    snapshot_schemas,
)
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import BusyError, QueryError, StoreError
from service.read.queries import pool as keeping
from service.read.queries.pool import (
    NO_STATE,
    TEMPLATE,
    Answer,
    DatabaseSource,
    LakeSource,
    QueryPool,
    Snapshot,
    SnapshotState,
    SpanningSource,
    StatementProcesses,
)
from service.read.queries.protocol import MAX_ROWS, MIB, Outcome, QueryLimits, Question

LIMITS = msgspec.structs.replace(PATIENT, fresh_for=0.0)
SHORT = msgspec.structs.replace(LIMITS, seconds=2.0, grace=0.5, fresh_for=3600.0)
"""For statements that are to be ended."""
REACHING = (
    "COPY scores TO 'FOLDER/stolen.csv'",
    "COPY (SELECT 1) TO '/dev/shm/stolen.csv'",
    "WITH x AS (COPY (SELECT 1) TO 'FOLDER/stolen.csv') SELECT * FROM x",
    "EXPLAIN ANALYZE COPY scores TO 'FOLDER/stolen.csv'",
    "EXPLAIN (ANALYZE) COPY (SELECT 1) TO 'FOLDER/stolen.csv'",
    "EXPORT DATABASE 'FOLDER/stolen'",
    "SELECT * FROM read_csv('/etc/passwd', header = false)",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM read_parquet('FOLDER/x.parquet')",
    "SELECT * FROM read_json('FOLDER/x.json')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM parquet_metadata('FOLDER/x.parquet')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'https://example.com/x.csv'",
    "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
    "SELECT * FROM query('COPY scores TO ''FOLDER/stolen.csv''')",
    "SELECT * FROM query_table('/etc/passwd')",
    "ATTACH 'FOLDER/fleet.duckdb' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH driftline",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL httpfs FROM 'https://example.com'",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CHECKPOINT",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE TEMP TABLE mine AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "INSERT INTO scores SELECT * FROM scores",
    "WITH x AS (INSERT INTO scores SELECT * FROM scores RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM exchanges RETURNING *) SELECT count(*) FROM x",
    "DELETE FROM exchanges",
    "UPDATE exchanges SET project = 'mine'",
    "DROP TABLE exchanges",
    "VACUUM",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "BEGIN",
    "SET VARIABLE x = 1",
    "SELECT getenv('HOME')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT * FROM log.exchanges",
    "SELECT 1; SELECT 2",
    "SELECT 1) AS x; DROP TABLE exchanges; SELECT * FROM (SELECT 1",
    "SELECT 1) UNION ALL (SELECT 2",
    "",
    ";",
    "-- SELECT 1",
    "/* SELECT 1 */",
)
"""Each is refused with words, and leaves nothing behind."""
TELLING = (
    "SELECT * FROM duckdb_databases()",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM duckdb_temporary_files()",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM pragma_storage_info('exchanges')",
    "SELECT * FROM information_schema.schemata",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM duckdb_variables()",
    "SELECT current_setting('home_directory'), current_setting('secret_directory')",
    "EXPLAIN ANALYZE SELECT * FROM exchanges",
)
"""Each is answered, and tells nothing of the machine."""
RUNAWAY = (
    "SELECT length(repeat('x', 1000000000))",
    "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))",
    "SELECT count(*) FROM range(1000000000) AS a(i), range(1000000000) AS b(j) WHERE i * j % 7 = 9",
    "SELECT count(*) FROM generate_series(1, 1000000000000)",
    "WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM t) SELECT max(i) FROM t",
    "SELECT sum(hash(i::VARCHAR)) FROM range(1000000000000) AS t(i)",
)
"""Each would run for minutes or take all the memory there is."""
GREEDY = (
    "SELECT repeat('x', 1000000) FROM range(1000)",
    "SELECT bitstring('1010', 1000000) FROM range(1000)",
    "SELECT format('{:>1000000}', 'x') FROM range(1000)",
    "SELECT array_agg(i) FROM range(100000000) AS t(i)",
    "SELECT repeat('x', 1500) FROM range(1000000)",
    "SELECT list_sum(range(2000000000))",
    "SELECT length(string_agg(repeat('x', 1000000), ',')) FROM range(100000)",
    "SELECT count(DISTINCT md5(i::VARCHAR)) FROM range(100000000) AS t(i)",
)
"""Each would take gigabytes, most of them where DuckDB does not count."""
RESIDENT = 1_200_000_000
"""Bytes of memory that a statement may take, as docs/sql.md says."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this module's database."""
    return tmp_path_factory.mktemp("confidential")


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    """A store with three exchanges."""
    with Store(folder / "fleet.duckdb") as opened:
        append_exchange(opened, 3)
        yield opened


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for all."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def query_pool(store: Store, loop: asyncio.Runner) -> Iterator[QueryPool]:
    """A query pool whose snapshot is made once."""
    with prepared_desk(store, loop, msgspec.structs.replace(LIMITS, fresh_for=3600.0)) as opened:
        yield opened


@pytest.fixture(scope="module")
def hasty(store: Store, loop: asyncio.Runner) -> Iterator[QueryPool]:
    """A query pool that ends statements soon."""
    with prepared_desk(store, loop, SHORT) as opened:
        yield opened


@pytest.fixture
def quick() -> Iterator[None]:
    """Processes are forked instead of started, but in a soak run."""
    with forked():
        yield


@contextlib.contextmanager
def prepared_desk(store: Store, loop: asyncio.Runner, limits: QueryLimits) -> Iterator[QueryPool]:
    """A query pool that has its snapshot."""
    opened = QueryPool(DatabaseSource(store), now, limits)
    loop.run(opened.ready())
    yield opened
    loop.run(opened.close())


def now() -> datetime:
    """The present."""
    return datetime.now(UTC)


def append_exchange(store: Store, number: int, session: str = "s1") -> None:
    """Append exchanges to a session."""
    with store.transaction() as transaction:
        messages = [encode(exchange(session, one, user_message="private words")) for one in range(number)]
        transaction.append("exchanges", messages, skip_known=True)


def rows(answer: Answer) -> Any:
    """The rows of an answer in JSON."""
    return msgspec.json.decode(answer.body)


def contents(folder: Path) -> dict[str, int]:
    """Every file below a folder with its size."""
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("statement", REACHING)
@pytest.mark.usefixtures("quick")
def test_a_statement_outside_the_snapshot_is_refused_without_effect(
    statement: str, query_pool: QueryPool, loop: asyncio.Runner, folder: Path
) -> None:
    """Neither an analyst's token nor a pasted statement may give access to the machine."""
    before = contents(folder)
    with pytest.raises(QueryError) as refused:
        loop.run(query_pool.answer(Question(statement.replace("FOLDER", str(folder)))))

    assert contents(folder) == before
    assert not Path("/dev/shm/stolen.csv").exists()  # noqa: S108
    assert "root:" not in str(refused.value)
    assert str(folder) not in str(refused.value).replace(f"'{folder}", "").replace(f"{folder}/", "") or "FOLDER" in statement


@pytest.mark.parametrize("statement", TELLING)
@pytest.mark.usefixtures("quick")
def test_metadata_queries_reveal_nothing_of_the_machine(
    statement: str, query_pool: QueryPool, loop: asyncio.Runner, folder: Path
) -> None:
    """Neither paths nor user names nor environment variables may be readable."""
    answer = loop.run(query_pool.answer(Question(statement))).body.decode()

    assert folder.name not in answer
    assert os.path.expanduser("~") not in answer.replace("/proc", "")  # noqa: PTH111
    assert os.environ["PATH"] not in answer


@pytest.mark.parametrize("statement", RUNAWAY)
def test_an_endless_statement_is_killed(statement: str, hasty: QueryPool, loop: asyncio.Runner) -> None:
    """DuckDB checks its time limit only between rows, so the process is killed from outside."""
    with pytest.raises(QueryError, match=r"longer than 2 seconds|maximum execution time|more memory than"):
        loop.run(hasty.answer(Question(statement)))


@pytest.fixture
def child_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most bytes that each process took which ended during the test, or a process that it has waited for."""
    peaks: list[int] = []

    def wait_and_measure(pid: int, options: int) -> tuple[int, int]:
        pid, status, usage = os.wait4(pid, options)
        peaks.append(1024 * usage.ru_maxrss)
        return pid, status

    monkeypatch.setattr(os, "waitpid", wait_and_measure)
    return peaks


@pytest.fixture(scope="module")
def snapshot_file(store: Store, folder: Path) -> Path:
    """A snapshot of the store."""
    copy_database(store, folder / "copy.duckdb")
    build_snapshot(folder / "copy.duckdb", folder / "snapshot.duckdb", folder / "spill")
    return folder / "snapshot.duckdb"


@contextlib.asynccontextmanager
async def started_processes(file: Path) -> AsyncIterator[tuple[StatementProcesses, Snapshot]]:
    """Yield processes of a snapshot, started as a server does; at the end, each is waited for by the one that forked it."""
    others = forked_processes(1)
    snapshot = Snapshot(os.open(file, os.O_RDONLY), now(), (0, 0, 0), 0, 0, replaced=True)
    processes = StatementProcesses(LIMITS)
    try:
        yield processes, snapshot
    finally:
        snapshot.close_when_unused()
        async with asyncio.timeout(LIMITS.seconds):
            while forked_processes(1) - others:  # noqa: ASYNC110 - there is no event for a process that ends
                await asyncio.sleep(0.01)
        await processes.close()


async def ask_and_end(file: Path, question: Question) -> tuple[Outcome, bytes]:
    """Return the answer of processes that end afterwards."""
    async with started_processes(file) as (processes, snapshot):
        return await processes.ask(snapshot, question)


@pytest.mark.parametrize("statement", GREEDY)
def test_a_statement_stays_within_its_memory_limit(
    statement: str, snapshot_file: Path, loop: asyncio.Runner, child_memory: list[int]
) -> None:
    """Server and ingest share the machine; the test measures the process, not DuckDB's own figures."""
    with pytest.raises(QueryError, match="more memory than allowed"):
        loop.run(ask_and_end(snapshot_file, Question(statement, limit=MAX_ROWS)))

    assert MIB * 100 < max(child_memory) <= RESIDENT


def test_the_largest_answer_fits_into_the_memory_limit(
    snapshot_file: Path, loop: asyncio.Runner, child_memory: list[int]
) -> None:
    """The memory limit must allow the largest answer that the other limits permit."""
    statement = "SELECT i, i::VARCHAR AS a, md5(i::VARCHAR) AS b FROM range(1000000) AS t(i)"
    outcome, body = loop.run(ask_and_end(snapshot_file, Question(statement, limit=MAX_ROWS)))

    assert outcome.rows == MAX_ROWS
    assert outcome.truncated is False
    assert len(body) > 0.9 * LIMITS.answer
    assert len(body) < max(child_memory) <= RESIDENT


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELEC 1", "LINE 1: SELEC 1"),
        ("SELECT\n  nope + 1\nFROM turns", "nope"),
        ("SELECT\n  1 + + FROM turns WHERE", "LINE"),
        ("SELECT $day", "day"),
        ("SELECT 'x'::INTEGER", "Could not convert"),
        (f"SELECT {'(' * 5000}1{')' * 5000}", "depth"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_an_error_has_the_message_of_the_database(
    statement: str, said: str, query_pool: QueryPool, loop: asyncio.Runner
) -> None:
    """Errors show the analyst's own line, without the wrapping statement."""
    with pytest.raises(QueryError) as refused:
        loop.run(query_pool.answer(Question(statement)))

    assert said in str(refused.value)
    assert "SELECT * FROM (" not in str(refused.value)
    assert "driftline sql" not in refused.value.hint


@pytest.mark.parametrize(
    ("statement", "parameters", "expected"),
    [
        ("SELECT $name AS name, $n + 1 AS n", {"name": "it's; DROP", "n": 1}, [{"name": "it's; DROP", "n": 2}]),
        ("SELECT $day::DATE + 1 AS day", {"day": "2026-10-01"}, [{"day": "2026-10-02"}]),
        ("SELECT count(*) AS n FROM exchanges WHERE exchange_id IN (SELECT unnest($ids))", {"ids": ["s1:0", "x"]}, [{"n": 1}]),
        ("SELECT 1 AS a, 2 AS a;", {}, [{"a": 1, "a_1": 2}]),
        ("SELECT ';' AS x ; -- the end", {}, [{"x": ";"}]),
        ("DESCRIBE SELECT 1 AS a", {}, None),
        ("SUMMARIZE exchanges", {}, None),
        ("SHOW TABLES", {}, None),
        ("EXPLAIN SELECT 1", {}, None),
        ("PIVOT (SELECT project, session_id FROM exchanges) ON project USING count(*)", {}, [{"session_id": "s1", "ops": 3}]),
    ],
)
@pytest.mark.usefixtures("quick")
def test_every_reading_statement_is_answered(
    statement: str, parameters: dict[str, Any], expected: Any, query_pool: QueryPool, loop: asyncio.Runner
) -> None:
    """Every kind of reading statement is answered, and values are passed as parameters, never as text."""
    answer = rows(loop.run(query_pool.answer(Question(statement, parameters))))

    assert answer == (expected or answer)
    assert answer


@pytest.mark.usefixtures("quick")
def test_a_prepared_snapshot_delays_nobody(store: Store, loop: asyncio.Runner) -> None:
    """While a user writes the first statement, the snapshot can already be built."""
    impatient = QueryPool(DatabaseSource(store), now, msgspec.structs.replace(LIMITS, first_patience=0.0, fresh_for=3600.0))

    async def prepared() -> Answer:
        impatient.prepare()
        with pytest.raises(BusyError):
            await impatient.answer(Question("SELECT 1 AS one"))
        await impatient.ready()
        return await impatient.answer(Question("SELECT 1 AS one"))

    assert rows(loop.run(prepared())) == [{"one": 1}]
    loop.run(impatient.close())


@pytest.mark.usefixtures("quick")
def test_a_snapshot_has_the_analysts_tables_without_texts(query_pool: QueryPool, loop: asyncio.Runner) -> None:
    """Texts are not needed to analyse drift, and neither are tables of pending work."""
    statement = "SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal"
    found = {(row["table_name"], row["column_name"]) for row in rows(loop.run(query_pool.answer(Question(statement))))}
    tables = {schema.table for schema in snapshot_schemas()}

    assert {(schema.table, column) for schema in snapshot_schemas() for column in snapshot_columns(schema)} <= found
    assert not found & {(table, column) for table, columns in EXCLUDED_COLUMNS.items() for column in columns}
    assert not {table for table, _ in found} & (QUEUE_TABLES | {"stage_states", "watermarks"})
    assert {"turns", "days", "dimensions", "judge_calls", "human_scores", "session_summaries", "anchor_turns"} <= {
        table for table, _ in found
    } - tables
    assert not [
        True
        for schema in snapshot_schemas()
        for field in schema.fields
        if field["type"] == "bytes" and field["name"] in snapshot_columns(schema)
    ]


@pytest.mark.usefixtures("quick")
def test_every_view_and_table_has_a_description(query_pool: QueryPool, loop: asyncio.Runner) -> None:
    """The descriptions must suffice to find the right view."""
    statement = (
        "SELECT table_name AS name, comment FROM duckdb_tables() UNION ALL "
        "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"
    )
    assert all(row["comment"] for row in rows(loop.run(query_pool.answer(Question(statement)))))


def test_a_statement_over_the_limit_is_refused(hasty: QueryPool, loop: asyncio.Runner) -> None:
    """The number of processes must stay bounded, whatever the number of analysts."""

    async def crowd() -> list[Any]:
        answers = (hasty.answer(Question("SELECT count(*) FROM range(100000000) t(i) WHERE hash(i) = 1")) for _ in range(4))
        return await asyncio.gather(*answers, return_exceptions=True)

    answers = loop.run(crowd())
    assert sum(isinstance(answer, BusyError) for answer in answers) == 2


def test_an_abandoned_statement_ends_with_its_process(snapshot_file: Path, loop: asyncio.Runner) -> None:
    """A closed page must free its process for the next statement."""

    async def give_up() -> bytes:
        others = forked_processes(2)
        async with started_processes(snapshot_file) as (processes, snapshot):
            slow = Question("SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))")
            asking = asyncio.create_task(processes.ask(snapshot, slow))
            while not forked_processes(2) - others:  # noqa: ASYNC110 - there is no event for a process that begins
                await asyncio.sleep(0.01)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            async with asyncio.timeout(LIMITS.seconds / 2):
                while forked_processes(2) - others:  # noqa: ASYNC110 - nor for one that is killed
                    await asyncio.sleep(0.01)
            return (await processes.ask(snapshot, Question("SELECT 1 AS n")))[1]

    assert loop.run(give_up()) == b'[{"n":1}]'


def forked_processes(depth: int) -> set[int]:
    """The processes that templates of this process have forked: with depth 1 those of snapshots, with depth 2 those of statements."""
    parents: dict[int, int] = {}
    templates = set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(process.name)
            parents[pid] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parents[pid] == os.getpid() and TEMPLATE.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                templates.add(pid)
    generation = templates
    for _ in range(depth):
        generation = {pid for pid, parent in parents.items() if parent in generation}
    return generation


@pytest.mark.parametrize("depth", [0, 1])
def test_the_next_statement_starts_a_process_that_was_killed(depth: int, snapshot_file: Path, loop: asyncio.Runner) -> None:
    """The machine may run out of memory and choose the template or the process of a snapshot."""

    async def kill_and_ask() -> bytes:
        others = forked_processes(depth)
        async with started_processes(snapshot_file) as (processes, snapshot):
            await processes.ask(snapshot, Question("SELECT 1 AS n"))
            (victim,) = forked_processes(depth) - others
            os.kill(victim, signal.SIGKILL)
            async with asyncio.timeout(LIMITS.seconds):
                while True:
                    with contextlib.suppress(BusyError):  # it was about to end
                        return (await processes.ask(snapshot, Question("SELECT 2 AS n")))[1]

    assert loop.run(kill_and_ask()) == b'[{"n":2}]'


@pytest.mark.usefixtures("quick")
def test_a_new_snapshot_is_made_only_after_a_change(tmp_path: Path, loop: asyncio.Runner) -> None:
    """An unchanged database must not be copied again."""
    with Store(tmp_path / "fleet.duckdb") as store:
        append_exchange(store, 1)
        query_pool = QueryPool(DatabaseSource(store), now, LIMITS)
        keeping_rest, keeping.REST = keeping.REST, 0
        try:
            counted = Question("SELECT count(*) AS n FROM exchanges")
            first, same = loop.run(query_pool.answer(counted)), loop.run(query_pool.answer(counted))
            append_exchange(store, 2)
            later = loop.run(query_pool.answer(counted))
        finally:
            keeping.REST = keeping_rest
            loop.run(query_pool.close())

    assert same.at == first.at
    assert rows(same) == [{"n": 1}]
    assert later.at > first.at
    assert rows(later) == [{"n": 2}]


@pytest.mark.usefixtures("quick")
def test_a_snapshot_has_every_record_acknowledged_before_its_time(tmp_path: Path, loop: asyncio.Runner) -> None:
    """Acknowledged exchanges may still be in the write-ahead log, so they are flushed before the copy."""
    landings: list[datetime] = []
    with Store(tmp_path / "fleet.duckdb") as store:

        async def land() -> None:
            landings.append(now())
            append_exchange(store, 3)

        query_pool = QueryPool(DatabaseSource(store, land), now, LIMITS)
        answer = loop.run(query_pool.answer(Question("SELECT count(*) AS n FROM exchanges")))
        loop.run(query_pool.close())

    assert rows(answer) == [{"n": 3}]
    assert [answer.at <= at for at in landings] == [True]


@pytest.mark.usefixtures("quick")
def test_no_file_of_a_snapshot_stays_on_disk(tmp_path: Path, loop: asyncio.Runner) -> None:
    """The file is unlinked once it is open, and leftovers of a crash are removed by the next snapshot."""
    leftovers = tmp_path / "fleet.duckdb.analysts"
    leftovers.mkdir()
    (leftovers / "copy.duckdb").write_bytes(b"half a copy")
    with Store(tmp_path / "fleet.duckdb") as store:
        query_pool = QueryPool(DatabaseSource(store), now, LIMITS)
        loop.run(query_pool.answer(Question("SELECT 1")))
        snapshots_held = open_snapshots(tmp_path)
        loop.run(query_pool.close())

    assert not leftovers.exists()
    assert len(snapshots_held) == 1


def test_a_database_with_a_relative_path_has_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default path is relative, and the building process has another working directory."""
    monkeypatch.chdir(tmp_path)
    with Store(Path("driftline.duckdb")) as store, asyncio.Runner() as runner:
        append_exchange(store, 2)
        query_pool = QueryPool(DatabaseSource(store), now, LIMITS)
        answer = runner.run(query_pool.answer(Question("SELECT count(*) AS n FROM exchanges")))
        runner.run(query_pool.close())

    assert rows(answer) == [{"n": 2}]


@pytest.mark.usefixtures("quick")
def test_an_unused_snapshot_is_dropped(tmp_path: Path, loop: asyncio.Runner) -> None:
    """An unused snapshot occupies disk space and may contain erased records."""

    async def left_alone(query_pool: QueryPool) -> None:
        await query_pool.answer(Question("SELECT 1"))
        async with asyncio.timeout(LONG):
            while open_snapshots(tmp_path):  # noqa: ASYNC110 - there is no event for a file that is closed
                await asyncio.sleep(0.01)

    with Store(tmp_path / "fleet.duckdb") as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping, "REST", 0)
        query_pool = QueryPool(DatabaseSource(store), now, msgspec.structs.replace(LIMITS, kept_for=1.0))
        loop.run(left_alone(query_pool))
        assert rows(loop.run(query_pool.answer(Question("SELECT 1 AS n")))) == [{"n": 1}]
        loop.run(query_pool.close())


def open_snapshots(folder: Path) -> list[str]:
    """Return the deleted snapshots of the database that this process still has open."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(f"{folder}/fleet.duckdb.analysts/") and link.endswith("(deleted)")]


def test_a_full_disk_prevents_a_snapshot_and_leaves_the_database_intact(
    tmp_path: Path, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Disk space for ingest takes precedence over snapshots."""
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 100, 0))  # type: ignore[attr-defined]
    with Store(tmp_path / "fleet.duckdb") as store, caplog.at_level(logging.ERROR):
        query_pool = QueryPool(DatabaseSource(store), now, LIMITS)
        with pytest.raises(StoreError, match="the snapshot could not be built"):
            loop.run(query_pool.answer(Question("SELECT 1")))
        append_exchange(store, 1)
        assert store.count("exchanges") == 1


def test_the_progress_of_a_snapshot_is_reported(tmp_path: Path, loop: asyncio.Runner) -> None:
    """On a busy machine the first snapshot takes minutes, so its progress must be visible."""

    async def followed() -> list[SnapshotState]:
        async def land() -> None:
            states.append(query_pool.snapshot_state())

        with Store(tmp_path / "fleet.duckdb") as store:
            query_pool = QueryPool(DatabaseSource(store, land), now, LIMITS)
            states = [query_pool.snapshot_state()]
            await query_pool.ready()
            states.append(query_pool.snapshot_state())
            await query_pool.close()
        return states

    nothing, making, made = loop.run(followed())
    assert nothing == NO_STATE
    assert making.at is None
    assert making.step == "writing accepted records to the database"
    assert making.since is not None
    assert made.at is not None
    assert replace(NO_STATE, at=made.at) == made


def test_the_progress_of_a_snapshot_is_in_bytes_and_rows(tmp_path: Path, loop: asyncio.Runner) -> None:
    """Ten million records take a minute, so users need the progress to decide whether to wait."""
    progress: dict[str, list[str]] = {}

    async def followed() -> None:
        with Store(tmp_path / "fleet.duckdb") as store:
            append_exchange(store, 500)
            query_pool = QueryPool(DatabaseSource(store), now, LIMITS)
            query_pool.prepare()
            while query_pool.snapshot_state().at is None:
                state = query_pool.snapshot_state()
                progress.setdefault(state.step, []).append(state.progress)
                await asyncio.sleep(0)
            assert query_pool.snapshot_state().progress == ""
            await query_pool.close()

    loop.run(followed())
    assert all(re.fullmatch(r"[\d,]+ of [\d,]+ MB", one) for one in progress["copying the database"])
    built = [one for one in progress["building the tables"] if one]
    assert built
    assert all(
        re.fullmatch(r"\d{1,3}% of the rows are done, now \w+ with \d{1,3}% of them; [\d,]+ MB written", one) for one in built
    )
    shares = [int(one.split("%")[0]) for one in built]
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 100


def test_a_failed_snapshot_gives_its_reason_and_gets_more_time_and_priority(
    tmp_path: Path, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the lowest priority a busy machine would never finish it."""
    tried: list[tuple[float, int]] = []

    async def build(source: keeping.BuildSource, target: Path, spill: Path, limits: QueryLimits, nice: int) -> None:
        tried.append((limits.building, nice))
        if len(tried) == 1:
            raise StoreError(f"{target}: not made in time")
        await building(source, target, spill, limits, nice)

    building = keeping.build
    monkeypatch.setattr(keeping, "build", build)
    with Store(tmp_path / "fleet.duckdb") as store:
        query_pool = QueryPool(DatabaseSource(store), now, LIMITS)
        with pytest.raises(
            StoreError, match=r"could not be built: fleet\.duckdb\.analysts/driftline\.duckdb: not made in time"
        ):
            loop.run(query_pool.ready())
        failed = query_pool.snapshot_state()
        loop.run(query_pool.ready())
        state = query_pool.snapshot_state()
        loop.run(query_pool.close())
    assert tried == [(LIMITS.building, keeping.NICE_FIRST), (2 * LIMITS.building, 0)]
    assert failed.at is None
    assert failed.since is None
    assert "fleet.duckdb.analysts/driftline.duckdb" in str(failed.failure)
    assert state.at is not None
    assert state.failed_at is None
    assert state.failure == ""


@pytest.mark.usefixtures("quick")
def test_statements_span_a_lake_and_the_database(tmp_path: Path, loop: asyncio.Runner) -> None:
    """Old records have left the database, and the newest are not in the lake yet."""
    put(tmp_path / "lake", [("exchanges", exchange(session, 0)) for session in ("old", "both")])
    with Store(tmp_path / "fleet.duckdb") as store:
        for session in ("old", "both", "new"):
            append_exchange(store, 1, session)
        store.cursor().execute("DELETE FROM log.exchanges WHERE session_id = 'old'")
        source = SpanningSource(LakeSource(tmp_path / "lake", tmp_path), DatabaseSource(store))
        query_pool = QueryPool(source, now, LIMITS)
        answer = loop.run(query_pool.answer(Question("SELECT session_id FROM exchanges ORDER BY ALL", format="csv")))
        loop.run(query_pool.close())
    assert answer.body.split() == [b"session_id", b"both", b"new", b"old"]
    assert contents(tmp_path / "fleet.duckdb.analysts") == {}


def test_a_database_in_memory_has_no_snapshots(loop: asyncio.Runner) -> None:
    """There is no file to copy."""
    with Store(None) as store, pytest.raises(StoreError):
        loop.run(QueryPool(DatabaseSource(store), now, LIMITS).answer(Question("SELECT 1")))


def test_a_copy_is_consistent_while_others_write(tmp_path: Path) -> None:
    """A copy taken during continuous commits opens cleanly and holds a prefix of them."""
    stop, written = threading.Event(), [0]
    with Store(tmp_path / "fleet.duckdb") as store:

        def write() -> None:
            while not stop.is_set():
                append_exchange(store, 20, f"session-{written[0]}")
                written[0] += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(5):
                before = written[0]
                copy_database(store, tmp_path / f"copy-{number}.duckdb")
                with Store(tmp_path / f"copy-{number}.duckdb") as copy:
                    copied_count = copy.count("exchanges")
                assert copied_count % 20 == 0
                assert 20 * before <= copied_count <= 20 * (written[0] + 1)
        finally:
            stop.set()
            writer.join()
