"""Ad-hoc SQL: it answers whatever reads the database, and nothing it is given reaches or changes anything else."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import polars as pl
import pytest
from support.builders import START, event, exchange

from analytics.adhoc import READ_ONLY_SETTINGS, fetch_rows, parse_single_statement
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import QueryError, StoreError
from schemas.records import DeadLetter

HOLD = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
LEAVE_WAL = """
import os, sys
from pathlib import Path
from analytics.store.store import Store
from support.builders import event
from schemas.codec.single_object import encode

store = Store(Path(sys.argv[1]))
with store.transaction() as transaction:
    transaction.append("agent-events", [encode(event("late", 0, event="message"))])
os._exit(9)
"""
NEW_YORK = """
import sys
from pathlib import Path
from analytics.adhoc import fetch_rows

statement = "SELECT TIMESTAMPTZ '2026-10-01 11:00:00+02', occurred_at, occurred_at::TIMESTAMPTZ FROM agent_events WHERE seq = 0"
print(*fetch_rows(Path(sys.argv[1]), statement, 1)[1][0], sep=",")
"""
PROGRESS = """
import sys
from pathlib import Path
from analytics.adhoc import fetch_rows

print(fetch_rows(Path(sys.argv[1]), "SELECT current_setting('enable_progress_bar')", 1)[1][0][0])
"""
READING = {
    "FROM dead_letters": 1,
    "SELECT * FROM agent_events": 3,
    "SELECT * FROM agent_events;": 3,
    "SELECT * FROM agent_events; -- all of them": 3,
    "  /* three */ SELECT * FROM log.agent_events": 3,
    "WITH x AS (FROM agent_events) SELECT seq FROM x WHERE seq > 0": 2,
    "FROM agent_events SELECT max(seq)": 1,
    "VALUES (1), (2)": 2,
    "TABLE exchanges": 1,
    "DESCRIBE SELECT 1 AS a, 2 AS b": 2,
    "SUMMARIZE SELECT seq FROM agent_events": 1,
    "SELECT DISTINCT unnest([1, 2, 2])": 2,
    "EXPLAIN SELECT * FROM scores": 1,
    "EXPLAIN ANALYZE SELECT * FROM scores": 1,
    "PIVOT agent_events ON seq USING count(*) GROUP BY session_id": 1,
    "PIVOT agent_events ON seq IN (0, 1) USING count(*) GROUP BY session_id": 1,
    "FROM query('SELECT 42')": 1,
}
CHANGING = (
    "INSERT INTO log.scores SELECT * FROM log.scores",
    "UPDATE log.agent_events SET seq = 9",
    "DELETE FROM log.agent_events",
    "TRUNCATE log.agent_events",
    "MERGE INTO log.agent_events AS a USING (SELECT 0 AS seq) AS b ON a.seq = b.seq WHEN MATCHED THEN DELETE",
    "CREATE TABLE t (i INT)",
    "CREATE TEMP TABLE t (i INT)",
    "CREATE OR REPLACE VIEW scores AS SELECT 1",
    "CREATE MACRO one() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "DROP TABLE log.agent_events",
    "ALTER TABLE log.agent_events ADD COLUMN i INT",
    "COMMENT ON TABLE log.agent_events IS 'x'",
    "WITH x AS (INSERT INTO log.agent_events SELECT * FROM log.agent_events RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM log.agent_events RETURNING *) SELECT * FROM x",
    "EXPLAIN ANALYZE DELETE FROM log.agent_events",
    "ATTACH ':memory:' AS m",
    "ATTACH 'FOLDER/new.duckdb' AS m",
    "ATTACH 'FOLDER/fleet.duckdb' AS m",
    "DETACH fleet",
    "USE fleet.log",
    "COPY agent_events TO 'FOLDER/out.csv'",
    "COPY (SELECT 1) TO 'FOLDER/fleet.duckdb'",
    "COPY (SELECT 1) TO 'FOLDER/fleet.duckdb.wal'",
    "COPY (SELECT 1) TO 'FOLDER/fleet.duckdb.wal.recovery'",
    "COPY log.agent_events FROM 'FOLDER/secret.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'FOLDER/fleet.duckdb.wal'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'FOLDER/out.csv'",
    "WITH x AS (COPY (SELECT 1) TO 'FOLDER/fleet.duckdb.wal') SELECT 1",
    "WITH x AS (COPY (SELECT 1) TO 'FOLDER/out.csv') SELECT 1",
    "EXPORT DATABASE 'FOLDER/export'",
    "IMPORT DATABASE 'FOLDER'",
    "PRAGMA database_list",
    "PRAGMA threads = 1",
    "PRAGMA enable_profiling",
    "SET threads = 1",
    "SET enable_external_access = true",
    "SET disabled_filesystems = ''",
    "SET VARIABLE v = 1",
    "RESET lock_configuration",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD json",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "FROM enable_logging('QueryLog', storage = 'file', storage_config = {'path': 'FOLDER/log'})",
    "FROM enable_profiling(save_location = 'FOLDER/profile.json')",
    "SELECT * FROM query('DELETE FROM log.agent_events')",
)
REACHING = (
    "FROM 'FOLDER/secret.csv'",
    "FROM read_csv('FOLDER/secret.csv')",
    "FROM read_csv('/dev/stdin')",
    "FROM read_text('FOLDER/secret.csv')",
    "FROM read_blob('FOLDER/secret.csv')",
    "FROM read_blob('FOLDER/fleet.duckdb')",
    "FROM read_json('FOLDER/secret.csv')",
    "FROM read_parquet('FOLDER/secret.parquet')",
    "FROM parquet_metadata('FOLDER/secret.parquet')",
    "FROM read_duckdb('FOLDER/other.duckdb')",
    "FROM sniff_csv('FOLDER/secret.csv')",
    "FROM glob('FOLDER/*')",
    "FROM read_csv('http://127.0.0.1:9/secret.csv')",
    "FROM 'https://127.0.0.1:9/secret.parquet'",
    "SELECT getenv('HOME')",
)
WRITING = (
    "EXPLAIN ANALYZE COPY t TO 'x.csv'",
    "explain /* it */ (analyze) copy t TO 'x.csv'",
    "EXPLAIN (FORMAT json) COPY t TO 'x.csv'",
    "EXPLAIN ANALYZE CREATE TABLE y AS SELECT 1",
    "EXPLAIN ANALYZE SET threads = 1",
    "EXPLAIN ANALYZE CHECKPOINT",
    "EXPLAIN ANALYZE CALL pragma_version()",
    "EXPLAIN ANALYZE WITH x AS (SELECT 1) INSERT INTO t FROM x",
    "EXPLAIN ANALYZE WITH x AS (DELETE FROM t RETURNING *) SELECT 1",
    "WITH x AS (COPY (SELECT 1) TO 'x.csv') SELECT 1",
    "WITH x AS NOT MATERIALIZED (DELETE FROM t RETURNING *) SELECT 1",
    "WITH x AS (SELECT 1), y(a) AS (UPDATE t SET a = 1 RETURNING *) SELECT 1",
    "WITH x AS (WITH y AS (SELECT 1) DELETE FROM t RETURNING *) SELECT 1",
    "COPY (PIVOT t ON a USING count(*)) TO 'x.csv'",
    "EXPLAIN ANALYZE COPY (PIVOT t ON a USING count(*)) TO 'x.csv'",
    "WITH x AS (PIVOT t ON a USING count(*)) DELETE FROM t",
    "CREATE TABLE y AS PIVOT t ON a USING count(*)",
)
HARMLESS = (
    "EXPLAIN (ANALYZE, FORMAT json) SELECT 1",
    "EXPLAIN (SELECT 1)",
    "EXPLAIN (FORMAT json) (SELECT 1)",
    "EXPLAIN (WITH x AS (SELECT 1) SELECT 1)",
    "explain -- COPY\n analyze SELECT 'COPY t TO'",
    "EXPLAIN SHOW TABLES",
    "SELECT * FROM (SELECT 1 AS copy) AS update",
    "WITH x AS (SELECT ')' AS \"copy\", '(' AS delete) SELECT (copy), delete FROM x",
    "WITH a AS (SELECT 1), b(i) AS NOT MATERIALIZED (VALUES (1)) (SELECT i FROM b)",
    "WITH RECURSIVE r(i) USING KEY (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 3) FROM r",
    "SELECT sum(a) OVER w FROM t WINDOW w AS (PARTITION BY a)",
    "WITH x AS (SELECT 1 AS i) PIVOT x ON i IN (1) USING count(*)",
)
ROOT = Path(__file__).parents[3]
IMPORTABLE = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
"""An environment in which another process finds the packages and the tests' builders."""
A_FRAME = pl.DataFrame({"secret": [1]})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a session of three events, an exchange and a dead letter."""
    path = tmp_path_factory.mktemp("original") / "fleet.duckdb"
    letter = DeadLetter(
        dead_letter_id="d",
        source="file",
        position=1,
        stage="import",
        reason="bounds",
        detail="of no use",
        digest="",
        size=0,
        body=b"\x00\xff",
        rejected_at=START,
    )
    with Store(path) as store, store.transaction() as transaction:
        transaction.append("agent-events", [encode(event("s", number, event="message")) for number in range(3)])
        transaction.append("exchanges", [encode(exchange("s", 0))])
        transaction.append("dead-letters", [encode(letter)])
    return path


@pytest.fixture
def database(original: Path, tmp_path: Path) -> Path:
    """A copy of the database, alone in a folder with a file that is nobody's business."""
    (tmp_path / "secret.csv").write_text("name,value\nkey,secret\n")
    return Path(shutil.copy(original, tmp_path))


def contents(folder: Path) -> dict[str, str]:
    """Every file under a folder with the digest of its bytes."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def held_by_another_process(path: Path) -> Iterator[None]:
    """Another process holds the file open for writing."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.kill()


@pytest.mark.parametrize("statement", READING)
def test_every_reading_statement_is_answered(statement: str, database: Path) -> None:
    """Analysts may use every form that DuckDB has."""
    _, rows, is_truncated = fetch_rows(database, statement, 1000)

    assert len(rows) == READING[statement]
    assert is_truncated is False


def test_tables_and_columns_can_be_listed_with_their_comments(database: Path) -> None:
    """Analysts start there; the comments come from the schemas."""
    comment = (
        "SELECT comment FROM duckdb_columns() WHERE schema_name = 'main' AND table_name = 'scores' AND column_name = 'anomaly'"
    )

    assert {("scores",), ("diagnoses",), ("agent_events",)} <= set(fetch_rows(database, "SHOW TABLES", 100)[1])
    assert {"agent", "anomaly"} <= {row[0] for row in fetch_rows(database, "DESCRIBE scores", 100)[1]}
    assert fetch_rows(database, comment, 1)[1] == [("True if anything about the exchange is anomalous.",)]


@pytest.mark.parametrize("statement", CHANGING)
def test_a_writing_statement_is_refused_and_changes_nothing(statement: str, database: Path) -> None:
    """This includes files beside the database, even its write-ahead log, which DuckDB would let be overwritten."""
    original_contents = contents(database.parent)
    with pytest.raises(QueryError) as refused:
        fetch_rows(database, statement.replace("FOLDER", str(database.parent)), 1000)

    assert ("SHOW TABLES" in refused.value.hint) == ("Parser Error" in str(refused.value))
    assert contents(database.parent) == original_contents
    assert fetch_rows(database, "SELECT count(*) FROM agent_events", 1)[1] == [(3,)]


@pytest.mark.parametrize("statement", REACHING)
def test_a_statement_outside_the_database_is_refused(statement: str, database: Path) -> None:
    """A pasted statement must not reveal files, the network or the environment."""
    with pytest.raises(QueryError) as refused:
        fetch_rows(database, statement.replace("FOLDER", str(database.parent)), 1000)

    assert ("SHOW TABLES" in refused.value.hint) == ("Catalog Error" in str(refused.value))
    assert "key,secret" not in str(refused.value)


@pytest.mark.parametrize("statement", WRITING)
def test_a_statement_that_contains_a_writing_one_is_refused(statement: str) -> None:
    """EXPLAIN ANALYZE runs the explained statement, and DuckDB reports only the outer type."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
        with pytest.raises(QueryError, match="not allowed"):
            parse_single_statement(connection, statement)


@pytest.mark.parametrize("statement", HARMLESS)
def test_a_statement_that_only_resembles_a_writing_one_is_answered(statement: str) -> None:
    """Names, texts and comments may contain the keywords."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
        connection.execute(parse_single_statement(connection, statement)).fetchall()


@pytest.mark.parametrize("name", ["a_frame", "A_FRAME", "LOCKED", "statement", "rows"])
def test_variables_of_this_process_are_not_tables(name: str, database: Path) -> None:
    """DuckDB would search the variables of its callers for an unknown table."""
    a_frame = A_FRAME.with_columns(more=1)
    with pytest.raises(QueryError, match=f"Table with name {name} does not exist"):
        fetch_rows(database, f"FROM {name}", 1000)

    assert a_frame.columns == ["secret", "more"]


@pytest.mark.parametrize(("statement", "number"), [("", 0), ("-- nothing", 0), (";;", 0), ("SELECT 1; SELECT 2", 2)])
def test_exactly_one_statement_is_answered(statement: str, number: int, database: Path) -> None:
    """Of several statements, only the rows of the last one would be shown."""
    with pytest.raises(QueryError, match=f"got {number}"):
        fetch_rows(database, statement, 1000)


@pytest.mark.parametrize(
    ("limit", "numbers", "is_truncated"), [(1, [0], True), (2, [0, 1], True), (3, [0, 1, 2], False), (9, [0, 1, 2], False)]
)
def test_a_result_over_the_limit_is_truncated_with_a_note(
    limit: int, numbers: list[int], is_truncated: bool, database: Path
) -> None:
    """Silently omitted rows would be taken for missing ones."""
    result = fetch_rows(database, "SELECT seq FROM agent_events ORDER BY seq", limit)

    assert result == (["seq"], [(seq,) for seq in numbers], is_truncated)


def test_an_endless_result_is_truncated(database: Path) -> None:
    """Rows are fetched one by one until the limit."""
    assert fetch_rows(database, "FROM range(1_000_000_000_000)", 2)[1:] == ([(0,), (1,)], True)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC"\nLINE 1: SELEC 1\n        ^^^^^'),
        ("SELECT\n  nope\nFROM scores", "LINE 2:   nope"),
        ("SELECT agnet FROM scores", 'Candidate bindings: "agent"'),
        ("FROM score", 'Did you mean "scores"?'),
        ("SELECT $x", "Values were not provided"),
        ("SELECT error('no\n\n\nmore')", "Invalid Input Error: no\nmore"),
        (f"SELECT {'(' * 10_000}1{')' * 10_000}", "depth"),
        ("SELECT '\ud800'", "not valid text"),
    ],
)
def test_an_error_has_its_position_and_a_hint(statement: str, message: str, database: Path) -> None:
    """Analysts type SQL by hand; the message has no blank lines, because each line is printed as an error."""
    with pytest.raises(QueryError) as refused:
        fetch_rows(database, statement, 1000)

    assert message in str(refused.value)
    assert all(str(refused.value).split("\n"))
    assert refused.value.hint


def test_an_unknown_table_is_answered_with_where_to_list_the_tables(database: Path) -> None:
    """New users do not know the names of the tables."""
    with pytest.raises(QueryError, match="Table with name sessions does not exist") as refused:
        fetch_rows(database, "FROM sessions", 1000)

    assert "SHOW TABLES" in refused.value.hint


def test_a_statement_that_exceeds_the_memory_says_so(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is spilled to disk, and the hint must not suggest a locked setting."""
    monkeypatch.setitem(READ_ONLY_SETTINGS, "memory_limit", "20MB")
    with pytest.raises(QueryError, match="Out of Memory") as refused:
        fetch_rows(database, "SELECT repeat(range::VARCHAR, 100) AS x FROM range(1_000_000) ORDER BY x", 1)

    assert "Query less" in refused.value.hint


def test_a_file_in_use_is_refused_with_what_to_do(database: Path) -> None:
    """The most common reason is a follower that is still running."""
    with held_by_another_process(database), pytest.raises(StoreError) as refused:
        fetch_rows(database, "SELECT 1", 1)

    assert "Another process holds the file" in refused.value.hint


@pytest.mark.parametrize("name", ["missing.duckdb", "missing/fleet.duckdb", ".", "secret.csv", "damaged.duckdb"])
def test_a_file_that_cannot_be_opened_is_an_error_with_a_hint(name: str, database: Path) -> None:
    """A query must not create the file."""
    (database.parent / "damaged.duckdb").write_bytes(b"not a database" * 1000)
    original_contents = contents(database.parent)
    with pytest.raises(StoreError) as refused:
        fetch_rows(database.parent / name, "SELECT 1", 1)

    assert refused.value.hint
    assert contents(database.parent) == original_contents


def test_no_progress_bar_is_printed(database: Path) -> None:
    """Without a script, DuckDB prints one on standard output after two seconds, among the answers."""
    process = subprocess.run([sys.executable, "-c", PROGRESS, str(database)], capture_output=True, text=True, check=True).stdout
    assert process.strip() == "False"


def test_times_are_returned_in_utc(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time without a zone would be taken for local time, and times with one must not need another package."""
    monkeypatch.setitem(sys.modules, "pytz", None)
    statement = """
        SELECT occurred_at, [occurred_at], {'at': [occurred_at]}, MAP {occurred_at: 1}, TIMESTAMPTZ '2026-10-01 11:00:00+02' AS zoned,
            [{'at': TIMESTAMPTZ '2026-10-01 11:00:00+02'}], occurred_at::DATE, TIMESTAMP_NS '2026-10-01 09:00:00', NULL::TIMESTAMP,
            union_value(at := occurred_at), '2026-10-01 09:00'
        FROM agent_events WHERE seq = 0 -- one
    """
    nine = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)
    names, rows, _ = fetch_rows(database, statement, 10)

    expected = (
        nine,
        [nine],
        {"at": [nine]},
        {nine: 1},
        nine,
        [{"at": nine}],
        date(2026, 10, 1),
        nine,
        None,
        nine,
        "2026-10-01 09:00",
    )
    assert rows == [expected]
    assert [names[0], names[4]] == ["occurred_at", "zoned"]


def test_the_time_zone_of_the_machine_does_not_matter(database: Path) -> None:
    """Every stored time is UTC, so a statement that mixes times with and without a zone uses UTC."""
    environment = {**IMPORTABLE, "TZ": "America/New_York"}
    command = [sys.executable, "-c", NEW_YORK, str(database)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert process.stdout.strip().split(",") == ["2026-10-01 09:00:00+00:00"] * 3


def test_statements_may_use_the_current_time(database: Path) -> None:
    """The project's own queries read no clock, but analysts may."""
    ((now, recent),) = fetch_rows(database, "SELECT now(), max(occurred_at) > now() FROM agent_events", 1)[1]

    assert now.tzinfo == UTC
    assert recent is False


def test_values_of_every_type_are_returned(database: Path) -> None:
    """Nulls, nested values, bytes, large numbers and extreme times must not cause an error."""
    statement = """SELECT NULL AS nothing, [1, NULL, 3] AS numbers, {'a': {'b': ['c']}} AS nested, 'x'::BLOB AS bytes, 2::HUGEINT ** 100 AS big,
        1.50::DECIMAL(4, 2) AS money, TIMESTAMP 'infinity' AS never, TIMESTAMP '290000-01-01' AS far, chr(0) AS nul, [] AS empty"""
    names, ((nothing, numbers, nested, data, _, _, never, far, nul, empty),), _ = fetch_rows(database, statement, 10)

    assert nothing is None
    assert numbers == [1, None, 3]
    assert nested == {"a": {"b": ["c"]}}
    assert data == b"x"
    assert never.year == 9999
    assert far == "290000-01-01 00:00:00"
    assert nul == "\0"
    assert empty == []
    assert "big" in names
    assert fetch_rows(database, "FROM test_all_types()", 10)[1]


def test_two_columns_with_one_name_are_both_returned(database: Path) -> None:
    """DuckDB returns both, so none may be lost by its name."""
    assert fetch_rows(database, "SELECT 1 AS a, 2 AS a", 1) == (["a", "a"], [(1, 2)], False)


def test_a_killed_process_s_log_is_read_and_kept(database: Path) -> None:
    """The last commits must be visible, and the log must stay for the owner of the file."""
    killed = subprocess.run([sys.executable, "-c", LEAVE_WAL, str(database)], env=IMPORTABLE, check=False)
    original_contents = contents(database.parent)
    rows = fetch_rows(database, "SELECT session_id FROM agent_events ORDER BY session_id", 10)[1]

    assert killed.returncode == 9
    assert f"{database}.wal" in original_contents
    assert rows == [("late",), ("s",), ("s",), ("s",)]
    assert contents(database.parent) == original_contents
