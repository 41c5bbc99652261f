"""SQL of people who may see some projects: a statement is answered as if the other projects did not exist."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from support.api_server import PATIENT
from support.builders import exchange, incident, score
from support.forking import forked

from analytics.adhoc import encode_json, fetch_limited, open_snapshot
from analytics.snapshots import build_part, build_snapshot, copy_database
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import QueryError
from service.read.queries.pool import Answer, DatabaseSource, QueryPool
from service.read.queries.protocol import Question

OURS, THEIRS = "ops", "rival"
HOSTILE = (
    "SELECT * FROM exchanges",
    "SELECT count(*) FROM exchanges",
    "FROM scores",
    "SELECT DISTINCT project FROM incidents",
    "SELECT * FROM exchanges WHERE project = 'rival'",
    "SELECT * FROM exchanges WHERE project <> 'ops' OR true",
    "SELECT * FROM driftline.main.exchanges",
    "SELECT * FROM main.exchanges",
    "SELECT * FROM source.main.exchanges",
    "SELECT * FROM source.log.exchanges",
    "SELECT * FROM memory.main.exchanges",
    "SELECT * FROM temp.exchanges",
    "SELECT * FROM log.run_numbers",
    "SELECT * FROM driftline.log.run_numbers",
    "SELECT * FROM runs",
    "SELECT * FROM turns",
    "SELECT * FROM anchor_turns",
    "SELECT * FROM all_turns",
    "SELECT * FROM days",
    "SELECT * FROM session_summaries",
    "SELECT * FROM eval_exchanges",
    "SELECT * FROM eval_scores",
    "SELECT * FROM eval_baselines",
    "SELECT * FROM eval_incidents",
    "SELECT s.*, e.project FROM eval_scores s JOIN eval_exchanges e ON s.exchange_id = e.id",
    "SELECT * FROM dead_letters",
    "SELECT * FROM erasures",
    "SELECT * FROM query('SELECT * FROM exchanges')",
    "SELECT * FROM query('SELECT * FROM source' || '.main.exchanges')",
    "SELECT * FROM query_table('exchanges')",
    "SELECT * FROM query_table(['exchanges', 'exchanges'])",
    "SELECT * FROM duckdb_tables()",
    "SELECT database_name, schema_name, table_name, estimated_size FROM duckdb_tables() ORDER BY ALL",
    "SELECT database_name, view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
    "SELECT database_name, schema_name FROM duckdb_schemas() ORDER BY ALL",
    "SELECT database_name, path FROM duckdb_databases() ORDER BY ALL",
    "SELECT database_name, table_name, column_name FROM duckdb_columns() WHERE NOT internal ORDER BY ALL",
    "SELECT * FROM duckdb_dependencies()",
    "SELECT * FROM duckdb_temporary_files()",
    "SELECT * FROM duckdb_variables()",
    "SELECT * FROM pragma_storage_info('exchanges')",
    "SELECT * FROM pragma_storage_info('source.main.exchanges')",
    "SELECT * FROM pragma_table_info('exchanges')",
    "SELECT * FROM information_schema.tables ORDER BY ALL",
    "SELECT * FROM information_schema.schemata ORDER BY ALL",
    "SELECT * FROM pg_catalog.pg_class ORDER BY ALL",
    "SHOW DATABASES",
    "SHOW ALL TABLES",
    "SHOW TABLES FROM source",
    "DESCRIBE source.main.exchanges",
    "SUMMARIZE exchanges",
    "SUMMARIZE log.run_numbers",
    "PIVOT exchanges ON project USING count(*)",
    "PIVOT (SELECT project, title FROM incidents) ON title USING first(project)",
    "SELECT stats(project) FROM exchanges",
    "SELECT stats(session_id), stats(turn_number) FROM scores",
    "SELECT min(project), max(project), approx_count_distinct(project) FROM exchanges",
    "SELECT CAST(session_id AS INTEGER) FROM exchanges",
    "SELECT CAST(title AS DATE) FROM incidents WHERE project = 'ops'",
    "SELECT error(title) FROM incidents WHERE project <> 'ops'",
    "SELECT CASE WHEN project = 'rival' THEN error(session_id) ELSE session_id END FROM exchanges",
    "SELECT 1 / (count(*) - 3) FROM exchanges",
    "EXPLAIN SELECT * FROM exchanges WHERE project = 'rival'",
    "EXPLAIN (FORMAT json) SELECT count(*) FROM incidents WHERE title LIKE '%merger%'",
    "SELECT rowid, project FROM exchanges ORDER BY rowid",
    "SELECT max(rowid) FROM incidents",
    "SELECT * FROM exchanges TABLESAMPLE 100%",
    "SELECT * FROM exchanges POSITIONAL JOIN incidents",
    "WITH RECURSIVE r AS (SELECT 'rival' AS p UNION SELECT e.project FROM r JOIN exchanges AS e ON true) SELECT * FROM r",
    "SELECT * FROM (VALUES ('rival')) AS v(p) LEFT JOIN exchanges ON project = p",
    "SELECT getvariable('rival')",
    "SELECT current_database(), current_schemas(true)",
    "SELECT * FROM read_duckdb('/proc/self/fd/3')",
    "SELECT * FROM read_blob('/proc/self/fd/3')",
    "SELECT * FROM glob('/proc/self/fd/*')",
    "ATTACH '/proc/self/fd/3' AS whole",
    "USE source",
    "CREATE MACRO f() AS TABLE SELECT * FROM exchanges",
    "PREPARE p AS SELECT * FROM exchanges",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM source.main.exchanges'))",
    "SELECT * FROM exchanges UNION ALL SELECT * FROM exchanges",
    "SELECT histogram(project) FROM exchanges",
    "SELECT * FROM checkpoint('source')",
)
SECRETS = ("rival", "merger", "zz-their-session")
"""What only the other project's records have."""


def fill_store(path: Path, projects: Sequence[str]) -> Store:
    """Return a store with exchanges, scores and an incident of each project; ours has 3 exchanges, theirs 40."""
    store = Store(path)
    for project in projects:
        ours = project == OURS
        session, connection = ("s1", "north") if ours else ("zz-their-session", "zz-rival")
        sizes = range(3 if ours else 40)
        fields = {"project": project, "connection": connection}
        records = {
            "exchanges": [exchange(session, number, **fields) for number in sizes],
            "scores": [score(session, number, **fields) for number in sizes],
            "incidents": [incident(incident_id=project, project=project, title="Tier 2 fell" if ours else "The merger fell")],
        }
        with store.transaction() as transaction:
            for topic, messages in records.items():
                transaction.append(topic, [encode(record) for record in messages], skip_known=True)
    return store


def make_part(folder: Path, projects: Sequence[str]) -> Path:
    """Return our part of the snapshot of a store with these projects."""
    folder.mkdir()
    with fill_store(folder / "fleet.duckdb", projects) as store:
        copy_database(store, folder / "copy.duckdb")
    build_snapshot(folder / "copy.duckdb", folder / "whole.duckdb", folder / "spill")
    build_part(folder / "whole.duckdb", folder / "part.duckdb", folder / "spill", [OURS])
    return folder / "part.duckdb"


def answer_of(part: Path, statement: str) -> str:
    """Return the rows of a statement as text, or the error."""
    connection = open_snapshot(str(part), memory=256 * 1024 * 1024, seconds=60)
    try:
        result = fetch_limited(connection, statement, {}, 1000)
        return f"{result.frame.columns} {encode_json(result.frame).decode()}"
    except QueryError as error:
        return str(error)
    finally:
        connection.close()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Our part beside the other project's records, and without them."""
    folder = tmp_path_factory.mktemp("parts")
    return {"with": make_part(folder / "a", [THEIRS, OURS, f"anchors.{THEIRS}"]), "without": make_part(folder / "b", [OURS])}


@pytest.mark.parametrize("statement", HOSTILE)
def test_a_statement_is_answered_as_if_other_projects_did_not_exist(statement: str, parts: Mapping[str, Path]) -> None:
    """Not even an error, an estimate or a statistic may depend on the records of others."""
    answer = answer_of(parts["with"], statement)

    assert answer.replace(str(parts["with"]), "") == answer_of(parts["without"], statement).replace(str(parts["without"]), "")
    assert not [secret for secret in SECRETS if secret in answer and secret not in statement]


def test_no_byte_of_another_project_is_in_the_file(parts: Mapping[str, Path]) -> None:
    """The process that answers has this file only, so nothing that it runs can show more."""
    content = parts["with"].read_bytes()

    assert b"zz-rival" not in content
    assert b"merger" not in content
    assert b"s1:2" in content


def test_each_set_of_projects_has_a_part_that_is_built_once(tmp_path: Path) -> None:
    """People of the same projects share a part; nothing of it stays on the disk."""
    with forked(), fill_store(tmp_path / "fleet.duckdb", [OURS, THEIRS]) as store:
        answers = asyncio.run(answer_for_each_set(store))
    rows = [answer.body.decode().split()[1:] for answer in answers]

    assert rows == [["ops,3"], ["rival,40"], ["ops,3", "rival,40"], ["ops,3"], ["ops,3", "rival,40"], [], []]
    assert len({answer.at for answer in answers}) == 1
    assert [path.name for path in tmp_path.iterdir() if "analysts" in path.name] == []


async def answer_for_each_set(store: Store) -> list[Answer]:
    """Return the answers for several sets of projects, four of them at once."""
    statement = Question("SELECT project, count(*) AS n FROM exchanges GROUP BY ALL ORDER BY ALL", format="csv")
    pool = QueryPool(
        DatabaseSource(store), lambda: datetime.now(UTC), msgspec.structs.replace(PATIENT, fresh_for=3600.0, at_once=4)
    )
    sets = ({OURS}, {THEIRS}, {OURS, THEIRS}, {OURS})
    try:
        answers = await asyncio.gather(*(pool.answer(statement, frozenset(projects)) for projects in sets))
        others = (None, frozenset({"none"}), frozenset[str]())
        answers += [await pool.answer(statement, projects) for projects in others]
    finally:
        await pool.close()
    return answers
