"""Tables: made from the schemas and from nothing else, and kept through upgrades."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import builders as build
from support.effort import examples
from support.stored_sessions import diagnosed

from analytics.store.store import Store
from analytics.store.tables import DIGEST, default_literal, literal, migration_statements, quote, view_statements
from analytics.store.views import SUMMED_TABLE
from schemas.codec.arrow import rows_as_records
from schemas.codec.single_object import encode
from schemas.errors import StoreError
from schemas.records import DiagnosedDimension, Diagnosis, DimensionScores, Incident, Record
from schemas.registry import current_schemas, schema_of

NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)
TYPES = {"string": "VARCHAR", "bytes": "BLOB", "boolean": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "double": "DOUBLE"}
SYSTEM = {"_topic": "VARCHAR", "_partition": "INTEGER", "_offset": "BIGINT"}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


def columns(store: Store, schema: str, table: str) -> dict[str, tuple[str, str | None]]:
    """Return type and comment of each column of a table or view, in order."""
    statement = (
        "SELECT column_name, data_type, comment FROM duckdb_columns() "
        "WHERE schema_name = $schema AND table_name = $table ORDER BY column_index"
    )
    rows = store.cursor().execute(statement, {"schema": schema, "table": table}).fetchall()
    return {name: (kind.replace('"', ""), comment) for name, kind, comment in rows}


def expected_type(avro_type: Any, named_types: dict[str, str]) -> str:
    """Return the SQL type of an Avro type, derived independently of the code under test."""
    match avro_type:
        case str():
            return named_types.get(avro_type) or TYPES[avro_type]
        case ["null", inner]:
            return expected_type(inner, named_types)
        case {"logicalType": "timestamp-micros"}:
            return "TIMESTAMP"
        case {"type": "array", "items": items}:
            return f"{expected_type(items, named_types)}[]"
        case {"type": "record", "name": name, "fields": fields}:
            inner = ", ".join(f"{field['name']} {expected_type(field['type'], named_types)}" for field in fields)
            named_types[f"driftline.{name}"] = f"STRUCT({inner})"
            return named_types[f"driftline.{name}"]
    raise AssertionError(avro_type)


@pytest.mark.parametrize("name", sorted(current_schemas()))
def test_a_table_has_the_columns_types_and_comments_of_its_schema(store: Store, name: str) -> None:
    """A column is defined only in the schema, and its comment is shown in the database."""
    schema = schema_of(name)
    named_types: dict[str, str] = {}
    expected_columns = {field["name"]: (expected_type(field["type"], named_types), field["doc"]) for field in schema.fields}
    actual_columns = columns(store, "log", schema.table)
    assert [item for item in actual_columns.items() if item[0] not in SYSTEM] == list(expected_columns.items())
    assert {column: kind for column, (kind, comment) in actual_columns.items() if column in SYSTEM and comment} == SYSTEM
    comments = dict(store.cursor().execute("SELECT table_name, comment FROM duckdb_tables()").fetchall())
    assert schema.definition["doc"] == comments[schema.table]


@pytest.mark.parametrize("name", sorted(current_schemas()))
def test_a_view_shows_the_record_without_its_position(store: Store, name: str) -> None:
    """Users query contents, not positions; internal columns are hidden."""
    schema = schema_of(name)
    view_columns = columns(store, "main", schema.table)
    has_view = bool(schema.topics) or schema.table == SUMMED_TABLE
    assert (dict(list(columns(store, "log", schema.table).items())[3:]) if has_view else {}) == view_columns


def test_no_table_has_a_key_or_an_index(store: Store) -> None:
    """With a million rows, a key costs three quarters of the speed and doubles the file."""
    cursor = store.cursor()
    assert cursor.execute("SELECT * FROM duckdb_indexes()").fetchall() == []
    assert cursor.execute("SELECT * FROM duckdb_constraints()").fetchall() == []


def append(store: Store, topic: str, *records: Record) -> None:
    """Append records to a topic."""
    with store.transaction() as transaction:
        transaction.append(topic, [encode(record) for record in records])


def incident(identity: str, revision: int, status: str) -> Incident:
    """Return a revision of an incident."""
    return Incident(
        incident_id=identity, revision=revision, project="ops", type="drift", status=status, severity="warning", title="t",
        description="d", metadata="{}", detected_at=NOON,
    )  # fmt: skip


def test_a_view_shows_only_the_latest_revision(store: Store) -> None:
    """Revisions arrive in any order and repeatedly."""
    append(
        store,
        "incidents",
        incident("a", 0, "open"), incident("a", 2, "dismissed"), incident("a", 1, "accepted"),
        incident("b", 0, "open"), incident("b", 0, "open"),
    )  # fmt: skip
    append(store, "incidents", incident("a", 1, "accepted"))
    rows = store.cursor().execute("SELECT incident_id, revision, status FROM incidents ORDER BY ALL").fetchall()
    assert rows == [("a", 2, "dismissed"), ("b", 0, "open")]
    assert store.cursor().execute("SELECT count(*) FROM log.incidents").fetchone()[0] == 6
    assert store.count("incidents") == 2


def test_of_two_records_with_one_revision_the_later_one_counts(store: Store) -> None:
    """Otherwise the shown one would be random."""
    append(store, "incidents", incident("a", 0, "open"))
    append(store, "incidents", incident("a", 0, "dismissed"))
    assert store.cursor().execute("SELECT status FROM incidents").fetchall() == [("dismissed",)]


def test_a_record_on_two_topics_is_one_row_of_the_view(store: Store) -> None:
    """A session is closed once, so the number of closings must not count topics."""
    closing = build.closing("s1", 3)
    append(store, "exchanges", closing)
    append(store, "agent-events", build.event("s1", 0, event="tool_call"), closing)
    assert store.cursor().execute("SELECT count(*) FROM log.session_closings").fetchone()[0] == 2
    assert store.count("session_closings") == 1


ADDED = [
    ({"name": "note", "type": "string", "default": 'it\'s "new"; --'}, 'it\'s "new"; --'),
    ({"name": "maybe", "type": ["null", "double"], "default": None}, None),
    ({"name": "total", "type": "long", "default": -5}, -5),
    ({"name": "share", "type": "double", "default": 0.25}, 0.25),
    ({"name": "known", "type": "boolean", "default": True}, True),
    ({"name": "unknown", "type": "boolean", "default": False}, False),
    ({"name": "notes", "type": {"type": "array", "items": "string"}, "default": []}, []),
    ({"name": "order", "type": "string", "default": ""}, ""),
]


def test_an_older_file_gains_new_columns_and_keeps_its_rows(path: Path, add_fields: Callable[..., None]) -> None:
    """An upgrade must not need another import."""
    events = [build.event("s1", number, event="tool_call", tool="exec") for number in range(5)]
    with Store(path) as store:
        append(store, "agent-events", *events)
        original_rows = store.cursor().execute("SELECT * FROM agent_events ORDER BY seq").fetchall()
    add_fields("AgentEvent", *({**field, "doc": f"It's {field['name']}."} for field, _ in ADDED))
    defaults = tuple(default for _, default in ADDED)
    for _ in range(2):  # the second time there is nothing left to do
        with Store(path) as store:
            rows = store.cursor().execute("SELECT * FROM agent_events ORDER BY seq").fetchall()
            assert rows == [(*row, *defaults) for row in original_rows]
            assert store.end_of("agent-events") == 5
    with Store(path) as store:
        append(store, "agent-events", build.event("s1", 9, event="tool_call"))
        frame = store.read("agent-events", 0, 10)["AgentEvent"]
        assert [list(row) for row in frame.select(field["name"] for field, _ in ADDED).rows()] == [list(defaults)] * 6
        event_columns = columns(store, "log", "agent_events")
        assert {f"It's {field['name']}." for field, _ in ADDED} <= {comment for _, comment in event_columns.values()}
        assert event_columns["notes"] == columns(store, "main", "agent_events")["notes"] == ("VARCHAR[]", "It's notes.")


def test_dimension_columns_of_an_older_file_are_read_into_the_list(path: Path) -> None:
    """Files of version 0.2 have six score columns, whose contents must not be lost or computed again."""
    scores = DimensionScores(loop_control=80, tool_output_utilization=100, memory_integrity=0)
    with Store(path) as store:
        append(store, "diagnoses", diagnosed("a", scores=scores), diagnosed("b"))
    with duckdb.connect(str(path)) as raw:
        raw.execute("DROP VIEW main.diagnoses; ALTER TABLE log.diagnoses DROP COLUMN dimensions")
    expected = {"a": [*scores.__struct_fields__], "b": [*scores.__struct_fields__]}
    for _ in range(2):  # the second time there is nothing left to do
        with Store(path) as store:
            rows = store.cursor().execute("SELECT session_id, dimensions FROM diagnoses ORDER BY session_id").fetchall()
            assert {name: [dimension["dimension"] for dimension in dimensions] for name, dimensions in rows} == expected
            assert [row["score"] for row in rows[0][1]] == [80, 100, 0, None, None, None]
            assert [row["score"] for row in rows[1][1]] == [None] * 6
            (first_diagnosis, _) = rows_as_records("Diagnosis", store.read("diagnoses", 0, 10)["Diagnosis"])
            assert isinstance(first_diagnosis, Diagnosis)
            assert first_diagnosis.scores == scores
            assert first_diagnosis.dimensions[0].score == 80
    new = DiagnosedDimension(dimension="retry_discipline", score=75)
    with Store(path) as store:
        append(store, "diagnoses", diagnosed("c", dimensions=(new,)))
        statement = "SELECT dimensions FROM diagnoses WHERE session_id = 'c'"
        assert store.cursor().execute(statement).fetchall() == [([{"dimension": "retry_discipline", "score": 75}],)]


def test_a_missing_table_is_created(path: Path) -> None:
    """An upgrade may add a record type."""
    with Store(path) as store:
        append(store, "incidents", incident("a", 0, "open"))
    with duckdb.connect(str(path)) as raw:
        raw.execute("DROP VIEW main.baselines; DROP TABLE log.baselines")
    with Store(path) as store:
        assert store.count("baselines") == 0
        assert store.count("incidents") == 1


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ("ADD COLUMN mood VARCHAR", "mood"),
        ('ADD COLUMN "odd ""name""" INTEGER', 'odd "name"'),
        ("ALTER COLUMN tokens SET DATA TYPE VARCHAR", "tokens"),
        ("ALTER COLUMN _offset SET DATA TYPE INTEGER", "_offset"),
    ],
)
def test_a_file_of_a_newer_version_is_refused(path: Path, change: str, column: str) -> None:
    """Writing into it would lose data that only the newer version knows."""
    with Store(path) as store:
        append(store, "agent-events", build.event("s1", 0, event="tool_call"))
    with duckdb.connect(str(path)) as raw:
        raw.execute(f"DROP VIEW main.agent_events; ALTER TABLE log.agent_events {change}")
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert "agent_events" in str(caught.value)
    assert str(caught.value).endswith(f": {column}")
    assert "Upgrade" in caught.value.hint
    # The file is released and unchanged.
    with duckdb.connect(str(path)) as raw:
        assert raw.execute("SELECT count(*) FROM log.agent_events").fetchall() == [(1,)]


def test_a_failed_migration_leaves_the_file_unchanged(path: Path, add_fields: Callable[..., None]) -> None:
    """With half of the columns, the file would fit neither version."""
    with Store(path):
        pass
    with duckdb.connect(str(path)) as raw:
        raw.execute("DROP VIEW main.scores; CREATE TABLE main.scores (mine INTEGER)")
    add_fields("Heartbeat", {"name": "mood", "type": "string", "default": "calm", "doc": "Mood."})
    with pytest.raises(StoreError, match="scores") as caught:
        Store(path)
    assert caught.value.hint
    with duckdb.connect(str(path)) as raw:
        names = raw.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = 'heartbeats'").fetchall()
    assert ("mood",) not in names


def test_a_current_file_is_not_changed(store: Store) -> None:
    """A schema change in the write-ahead log costs time at the next start."""
    rows = store.cursor().execute("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE schema_name = 'log'")
    existing: dict[str, dict[str, str]] = {}
    for table, column, kind in rows.fetchall():
        existing.setdefault(table, {})[column] = kind
    ((digest,),) = store.cursor().execute(f"SELECT log.{DIGEST}()").fetchall()
    assert list(migration_statements(existing, digest)) == []


def test_a_file_with_old_macros_gets_the_current_ones(tmp_path: Path) -> None:
    """Macros are stored in the file, so an old one would still be used."""
    path = tmp_path / "fleet.duckdb"
    Store(path).close()
    with duckdb.connect(str(path)) as raw:
        raw.execute("CREATE OR REPLACE MACRO log.mean_of(n, total) AS 42")
        raw.execute(f"CREATE OR REPLACE MACRO log.{DIGEST}() AS 'of before'")
    with Store(path) as store:
        assert store.cursor().execute("SELECT log.mean_of(1, 2_000_000_000)").fetchall() == [(2.0,)]


@settings(max_examples=examples(30))
@given(TEXTS, TEXTS)
def test_names_and_texts_are_quoted(name: str, text: str) -> None:
    """A quotation mark in a name or comment must not end the statement."""
    with duckdb.connect() as connection:
        result = connection.execute(f"SELECT {literal(text)} AS {quote(name)}")
        assert [column[0] for column in result.description] == [name]
        assert result.fetchall() == [(text,)]


@pytest.mark.parametrize(("field", "value"), ADDED)
def test_defaults_are_the_same_in_sql_and_avro(field: dict[str, Any], value: Any) -> None:
    """Old rows in a table and old records on a topic must get the same value."""
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT {default_literal(field)}").fetchone() == (value,)


def test_internal_tables_have_no_view() -> None:
    """Users must not depend on the states of stages."""
    assert list(view_statements(schema_of("StageState"))) == []


def test_a_revision_is_not_part_of_an_identity() -> None:
    """Otherwise a revision would never replace the previous one."""
    assert not [schema.name for schema in current_schemas().values() if "revision" in schema.identity]
