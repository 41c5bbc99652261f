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
    """Type and comment of each column of a table or view, in order."""
    statement = (
        "SELECT column_name, data_type, comment FROM duckdb_columns() "
        "WHERE schema_name = $schema AND table_name = $table ORDER BY column_index"
    )
    rows = store.cursor().execute(statement, {"schema": schema, "table": table}).fetchall()
    return {name: (kind.replace('"', ""), comment) for name, kind, comment in rows}


def expected_type(avro_type: Any, named: dict[str, str]) -> str:
    """The type of a column, said once more in other words."""
    match avro_type:
        case str():
            return named.get(avro_type) or TYPES[avro_type]
        case ["null", inner]:
            return expected_type(inner, named)
        case {"logicalType": "timestamp-micros"}:
            return "TIMESTAMP"
        case {"type": "array", "items": items}:
            return f"{expected_type(items, named)}[]"
        case {"type": "record", "name": name, "fields": fields}:
            inner = ", ".join(f"{field['name']} {expected_type(field['type'], named)}" for field in fields)
            named[f"driftline.{name}"] = f"STRUCT({inner})"
            return named[f"driftline.{name}"]
    raise AssertionError(avro_type)


@pytest.mark.parametrize("name", sorted(current_schemas()))
def test_a_table_has_the_columns_types_and_comments_of_its_schema(store: Store, name: str) -> None:
    """The schema is the only place where a column is defined, and its doc is what people see in the database."""
    schema = schema_of(name)
    named: dict[str, str] = {}
    wanted = {field["name"]: (expected_type(field["type"], named), field["doc"]) for field in schema.fields}
    found = columns(store, "log", schema.table)
    assert [item for item in found.items() if item[0] not in SYSTEM] == list(wanted.items())
    assert {column: kind for column, (kind, comment) in found.items() if column in SYSTEM and comment} == SYSTEM
    comments = dict(store.cursor().execute("SELECT table_name, comment FROM duckdb_tables()").fetchall())
    assert schema.definition["doc"] == comments[schema.table]


@pytest.mark.parametrize("name", sorted(current_schemas()))
def test_a_view_shows_the_record_without_its_place(store: Store, name: str) -> None:
    """People query what was said, not where in the log it stands; what only the store keeps they do not see at all."""
    schema = schema_of(name)
    found = columns(store, "main", schema.table)
    assert (dict(list(columns(store, "log", schema.table).items())[3:]) if schema.topics else {}) == found


def test_no_table_has_a_key_or_an_index(store: Store) -> None:
    """At a million rows a key takes three quarters of the speed and doubles the file."""
    cursor = store.cursor()
    assert cursor.execute("SELECT * FROM duckdb_indexes()").fetchall() == []
    assert cursor.execute("SELECT * FROM duckdb_constraints()").fetchall() == []


def append(store: Store, topic: str, *records: Record) -> None:
    """Append records to a topic."""
    with store.transaction() as transaction:
        transaction.append(topic, [encode(record) for record in records])


def incident(identity: str, revision: int, status: str) -> Incident:
    """A revision of an incident."""
    return Incident(
        incident_id=identity, revision=revision, project="ops", type="drift", status=status, severity="warning", title="t",
        description="d", metadata="{}", detected_at=NOON,
    )  # fmt: skip


def test_a_view_shows_the_latest_revision_and_nothing_else(store: Store) -> None:
    """Revisions arrive in any order, and a redelivery brings one twice."""
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
    """Else which of them is shown would be chance."""
    append(store, "incidents", incident("a", 0, "open"))
    append(store, "incidents", incident("a", 0, "dismissed"))
    assert store.cursor().execute("SELECT status FROM incidents").fetchall() == [("dismissed",)]


def test_a_record_on_two_topics_is_one_thing_in_the_view(store: Store) -> None:
    """A session is closed once, however many topics must be told; a count of closings must not count topics."""
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


def test_an_older_file_gains_what_was_added_and_keeps_its_rows(path: Path, add_fields: Callable[..., None]) -> None:
    """An upgrade must not ask anybody to import again."""
    events = [build.event("s1", number, event="tool_call", tool="exec") for number in range(5)]
    with Store(path) as store:
        append(store, "agent-events", *events)
        before = store.cursor().execute("SELECT * FROM agent_events ORDER BY seq").fetchall()
    add_fields("AgentEvent", *({**field, "doc": f"It's {field['name']}."} for field, _ in ADDED))
    defaults = tuple(default for _, default in ADDED)
    for _ in range(2):  # the second time there is nothing left to do
        with Store(path) as store:
            rows = store.cursor().execute("SELECT * FROM agent_events ORDER BY seq").fetchall()
            assert rows == [(*row, *defaults) for row in before]
            assert store.end_of("agent-events") == 5
    with Store(path) as store:
        append(store, "agent-events", build.event("s1", 9, event="tool_call"))
        frame = store.read("agent-events", 0, 10)["AgentEvent"]
        assert [list(row) for row in frame.select(field["name"] for field, _ in ADDED).rows()] == [list(defaults)] * 6
        found = columns(store, "log", "agent_events")
        assert {f"It's {field['name']}." for field, _ in ADDED} <= {comment for _, comment in found.values()}
        assert found["notes"] == columns(store, "main", "agent_events")["notes"] == ("VARCHAR[]", "It's notes.")


def test_dimensions_of_diagnoses_in_an_older_file_are_read_into_the_list(path: Path) -> None:
    """Files of version 0.2 have six columns of scores and no list: what they say must not be lost, nor asked for anew."""
    known = DimensionScores(loop_control=80, tool_output_utilization=100, memory_integrity=0)
    with Store(path) as store:
        append(store, "diagnoses", diagnosed("a", scores=known), diagnosed("b"))
    with duckdb.connect(str(path)) as raw:
        raw.execute("DROP VIEW main.diagnoses; ALTER TABLE log.diagnoses DROP COLUMN dimensions")
    expected = {"a": [*known.__struct_fields__], "b": [*known.__struct_fields__]}
    for _ in range(2):  # the second time there is nothing left to do
        with Store(path) as store:
            rows = store.cursor().execute("SELECT session_id, dimensions FROM diagnoses ORDER BY session_id").fetchall()
            assert {name: [one["dimension"] for one in dimensions] for name, dimensions in rows} == expected
            assert [one["score"] for one in rows[0][1]] == [80, 100, 0, None, None, None]
            assert [one["score"] for one in rows[1][1]] == [None] * 6
            (first, _) = rows_as_records("Diagnosis", store.read("diagnoses", 0, 10)["Diagnosis"])
            assert isinstance(first, Diagnosis)
            assert first.scores == known
            assert first.dimensions[0].score == 80
    new = DiagnosedDimension(dimension="retry_discipline", score=75)
    with Store(path) as store:
        append(store, "diagnoses", diagnosed("c", dimensions=(new,)))
        statement = "SELECT dimensions FROM diagnoses WHERE session_id = 'c'"
        assert store.cursor().execute(statement).fetchall() == [([{"dimension": "retry_discipline", "score": 75}],)]


def test_a_table_that_is_missing_is_made(path: Path) -> None:
    """A new record type comes with an upgrade."""
    with Store(path) as store:
        append(store, "incidents", incident("a", 0, "open"))
    with duckdb.connect(str(path)) as raw:
        raw.execute("DROP VIEW main.baselines; DROP TABLE log.baselines")
    with Store(path) as store:
        assert store.count("baselines") == 0
        assert store.count("incidents") == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ADD COLUMN mood VARCHAR", "mood"),
        ('ADD COLUMN "odd ""name""" INTEGER', 'odd "name"'),
        ("ALTER COLUMN tokens SET DATA TYPE VARCHAR", "tokens"),
        ("ALTER COLUMN _offset SET DATA TYPE INTEGER", "_offset"),
    ],
)
def test_a_file_of_a_newer_version_is_refused(path: Path, change: str, named: str) -> None:
    """Writing into it would lose what the newer version knows."""
    with Store(path) as store:
        append(store, "agent-events", build.event("s1", 0, event="tool_call"))
    with duckdb.connect(str(path)) as raw:
        raw.execute(f"DROP VIEW main.agent_events; ALTER TABLE log.agent_events {change}")
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert "agent_events" in str(caught.value)
    assert str(caught.value).endswith(f": {named}")
    assert "Upgrade" in caught.value.hint
    # The file is let go and unchanged.
    with duckdb.connect(str(path)) as raw:
        assert raw.execute("SELECT count(*) FROM log.agent_events").fetchall() == [(1,)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, add_fields: Callable[..., None]) -> None:
    """Half of the columns would be neither version."""
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


def test_a_file_that_is_up_to_date_is_left_alone(store: Store) -> None:
    """A change of tables in the write-ahead log costs the next start."""
    rows = store.cursor().execute("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE schema_name = 'log'")
    existing: dict[str, dict[str, str]] = {}
    for table, column, kind in rows.fetchall():
        existing.setdefault(table, {})[column] = kind
    ((made,),) = store.cursor().execute(f"SELECT log.{DIGEST}()").fetchall()
    assert list(migration_statements(existing, made)) == []


def test_a_file_with_macros_of_before_gets_the_current_ones(tmp_path: Path) -> None:
    """They are kept in the file: without that a query would go on as the version did that made it."""
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
    """A name or a doc with a quote in it must not end the statement."""
    with duckdb.connect() as connection:
        result = connection.execute(f"SELECT {literal(text)} AS {quote(name)}")
        assert [column[0] for column in result.description] == [name]
        assert result.fetchall() == [(text,)]


@pytest.mark.parametrize(("field", "value"), ADDED)
def test_defaults_mean_the_same_in_sql(field: dict[str, Any], value: Any) -> None:
    """Old rows in the table and old bytes in a topic must get the same value."""
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT {default_literal(field)}").fetchone() == (value,)


def test_what_only_the_store_keeps_has_no_view() -> None:
    """Nobody should build on the state of a stage."""
    assert list(view_statements(schema_of("StageState"))) == []


def test_a_revision_is_part_of_no_identity() -> None:
    """Else nothing would ever replace anything."""
    assert not [schema.name for schema in current_schemas().values() if "revision" in schema.identity]
