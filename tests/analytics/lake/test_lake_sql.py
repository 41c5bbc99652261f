"""SQL over a lake: the rows of a database, under the same names, for any number of readers within limits."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb
import msgspec
import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from support import maven
from support.builders import event, exchange, score
from support.kafka_sinks import samples
from support.lakes import TYPES, put
from support.processes import skip_or_fail
from support.servers import ROOT

from analytics.adhoc import fetch_statement
from analytics.lake import DAY, PROJECT, Lake
from analytics.lake_sql import LakeQueryLimits, fetch_from_lake
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import LakeError, QueryError
from schemas.records import Record
from schemas.registry import schema_of, topics

LIMITS = LakeQueryLimits()
SPARK = Path(__file__).parent / "spark"
JAVA_OPTIONS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch", "sun.util.calendar")
]
"""What Spark opens on Java 17 (its `JavaModuleOptions`, as far as counting rows needs it)."""
COMPUTED_BY_A_SERVER = {"failure_groups", "daily_failures"}


def query(root: Path, statement: str, limits: LakeQueryLimits = LIMITS) -> list[tuple[object, ...]]:
    """Return the rows of a statement over a lake."""
    return fetch_from_lake(Lake(str(root)), statement, 100_000, limits).frame.rows()


@pytest.fixture(scope="module")
def records() -> list[tuple[str, Record]]:
    """Return records of each type."""
    return [(topic, record) for topic, names in topics().items() for name in names for record in samples(name, 20)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, records: Sequence[tuple[str, Record]]) -> Path:
    """Return a lake with the records, and some of them twice."""
    root = tmp_path_factory.mktemp("lake")
    put(root, records)
    put(root, records[::7])
    return root


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, records: Sequence[tuple[str, Record]]) -> Path:
    """Return a database with the records."""
    path = tmp_path_factory.mktemp("database") / "d.duckdb"
    with Store(path) as store, store.transaction() as transaction:
        for topic, record in records:
            transaction.append(topic, [encode(record)], skip_known=True)
    return path


def test_every_table_and_view_has_the_rows_of_a_database(lake: Path, database: Path) -> None:
    """An analyst's statement must not depend on where it runs."""
    names = {str(name) for (name,) in fetch_statement(database, "SELECT name FROM (SHOW TABLES)", 1_000)[0].rows()}
    compared = 0
    for name in sorted(names - COMPUTED_BY_A_SERVER):
        statement = f"SELECT * FROM {name}"
        try:
            expected, _ = fetch_statement(database, statement, 100_000)
        except QueryError:  # the samples have texts where a view expects JSON
            with pytest.raises(QueryError):
                query(lake, statement)
            continue
        actual = fetch_from_lake(Lake(str(lake)), statement, 100_000, LIMITS).frame
        # Only a server numbers the runs.
        expected, actual = expected.drop("run_id", strict=False), actual.drop("run_id", strict=False)
        assert actual.schema == expected.schema, name
        assert sorted(map(repr, actual.rows())) == sorted(map(repr, expected.rows())), name
        compared += expected.height > 0
    assert compared >= len(TYPES)


def test_the_catalog_has_every_table_and_view(lake: Path, database: Path) -> None:
    """Analysts look up names first; a statement that names tables opens only these."""
    expected = {str(name) for (name,) in fetch_statement(database, "SELECT name FROM (SHOW TABLES)", 1_000)[0].rows()}
    for statement in ("SELECT name FROM (SHOW TABLES)", "SELECT view_name FROM duckdb_views() WHERE NOT internal"):
        actual = {str(name) for (name,) in query(lake, statement)}
        assert actual >= expected - COMPUTED_BY_A_SERVER
    assert query(lake, "SELECT count(*) FROM duckdb_columns() WHERE comment IS NOT NULL")[0] > (400,)
    with pytest.raises(QueryError):
        query(lake, "SELECT count(*) FROM failure_groups")


def test_a_repetition_counts_once_and_the_newest_revision_is_current(tmp_path: Path) -> None:
    """Producers send again after a failure, and scores are revised."""
    revised = msgspec.structs.replace(score("s", 1), revision=1, tier1_score=0.25)
    contradicting = exchange("s", 1, "Something else.", content_digest="f" * 16)
    put(tmp_path, [("scores", score("s", 1)), ("exchanges", exchange("s", 1)), ("agent-events", event("s", 1))])
    put(tmp_path, [("scores", revised), ("scores", revised), ("exchanges", contradicting), ("agent-events", event("s", 1))])
    assert query(tmp_path, "SELECT revision, tier1_score FROM scores") == [(1, 0.25)]
    assert query(tmp_path, "SELECT revision FROM log.scores ORDER BY 1") == [(0,), (1,)]
    assert query(tmp_path, "SELECT agent_response FROM exchanges") == [("It is done.",)]
    assert query(tmp_path, "SELECT count(*) FROM agent_events") == [(1,)]
    assert query(tmp_path, "SELECT count(*) FROM lake.agent_events") == [(2,)]


def test_duckdb_and_polars_count_the_same_rows(lake: Path) -> None:
    """The lake is a format of others: a reader without our code must see the same."""
    for name in TYPES:
        uri = str(lake / schema_of(name).table)
        files = DeltaTable(uri).file_uris()
        polars_count = pl.scan_delta(uri).select(pl.len()).collect().item()
        ((duckdb_count,),) = duckdb.sql("SELECT count(*) FROM read_parquet($files)", params={"files": files}).fetchall()
        assert polars_count == duckdb_count > 0, name
        assert [(polars_count,)] == query(lake, f"SELECT count(*) FROM lake.{schema_of(name).table}"), name


def test_spark_counts_the_same_rows(lake: Path) -> None:
    """Warehouses read a lake with Spark; it reads Delta's log itself, with code that is not ours."""
    try:
        jars = maven.jars("spark", SPARK / "pom.xml")
    except maven.UnavailableError as error:
        skip_or_fail(error)
    tables = [schema_of(name).table for name in TYPES]
    classpath = ["-cp", f"{jars}/*", str(SPARK / "CountRows.java")]
    spark = subprocess.run(
        [shutil.which("java") or "java", *JAVA_OPTIONS, *classpath, str(lake), *tables],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert spark.returncode == 0, spark.stderr[-2000:]
    expected = {table: query(lake, f"SELECT count(*) FROM lake.{table}")[0][0] for table in tables}
    assert {table: int(count) for table, count in map(str.split, spark.stdout.splitlines())} == expected


def test_rows_from_before_a_field_have_its_default(tmp_path: Path) -> None:
    """Files of an earlier version have no such column, and stay as they are."""
    put(tmp_path, [("agent-events", event("s", 1))])
    uri = str(tmp_path / "agent_events")
    older = pl.read_delta(uri).drop("labels", "action")
    write_deltalake(uri, older, mode="overwrite", schema_mode="overwrite", partition_by=[PROJECT, DAY])
    assert query(tmp_path, "SELECT labels, action FROM agent_events") == [([], None)]
    put(tmp_path, [("agent-events", event("s", 2))])
    assert query(tmp_path, "SELECT labels, action FROM agent_events") == [([], None)] * 2


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_parquet('{lake}/*/*/*/*.parquet')",
        "SELECT * FROM read_parquet('{orphan}')",
        "COPY (SELECT 1) TO '{secret}'",
        "WITH x AS (DELETE FROM exchanges RETURNING 1) SELECT 1",
        "SET memory_limit = '8GB'",
        "INSTALL httpfs",
        "ATTACH '{secret}' AS other",
        "SELECT 1; SELECT 2",
    ],
)
def test_a_statement_reads_the_lake_and_nothing_else(lake: Path, tmp_path: Path, statement: str) -> None:
    """The statement may come from somebody who may read the lake, but not the machine."""
    secret, orphan = tmp_path / "secret", lake / "exchanges" / "orphan.parquet"
    secret.write_text("secret")
    pl.DataFrame({"text": ["erased"]}).write_parquet(orphan)
    with pytest.raises(QueryError):
        query(lake, statement.format(secret=secret, lake=lake, orphan=orphan))
    assert secret.read_text() == "secret"


@pytest.mark.parametrize(
    ("statement", "limits"),
    [
        ("SELECT count(*) FROM range(1000000000) AS a, range(1000000) AS b", LakeQueryLimits(seconds=0.2)),
        ("SELECT list(range) FROM range(100000000)", LakeQueryLimits(memory=64 * 1024 * 1024)),
    ],
)
def test_a_statement_has_limits(lake: Path, statement: str, limits: LakeQueryLimits) -> None:
    """One statement must not take the machine from the others."""
    with pytest.raises(QueryError) as caught:
        query(lake, statement, limits)
    assert caught.value.hint.startswith("Query less")


def test_a_file_that_was_replaced_meanwhile_is_read_in_its_new_form(tmp_path: Path) -> None:
    """An erasure removes files at once, also those that a reader has listed."""
    put(tmp_path, [("agent-events", event("s", 1))])
    put(tmp_path, [("agent-events", event("s", 2))])
    lake = Lake(str(tmp_path))
    listed = lake.table("AgentEvent").file_uris()
    table = DeltaTable(lake.uri("AgentEvent"))
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert not any(Path(file).exists() for file in listed)
    assert fetch_from_lake(lake, "SELECT count(*) FROM agent_events", 10, LIMITS).frame.item() == 2


def test_any_number_of_processes_may_read(lake: Path) -> None:
    """A database has one owner; readers of a lake must not wait for each other."""
    command = [
        sys.executable,
        "-m",
        "service.cli.main",
        "sql",
        "SELECT count(*) AS n FROM agent_events",
        "--lake",
        str(lake),
        "--json",
    ]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(4)]
    answers = [reader.communicate() for reader in readers]
    assert {answer for answer, _ in answers} == {'{"n":20}\n'}, answers


def test_what_is_no_lake_is_named(tmp_path: Path) -> None:
    """A typing error in a path must not look like an empty lake."""
    (tmp_path / "notes.txt").write_text("mine")
    for root in (tmp_path, tmp_path / "missing", tmp_path / "notes.txt"):
        with pytest.raises(LakeError, match="is not a lake"):
            query(root, "SELECT 1")
    with pytest.raises(LakeError, match="s3://bucket/lake"):
        fetch_from_lake(Lake("s3://bucket/lake"), "SELECT 1", 1, LIMITS)
