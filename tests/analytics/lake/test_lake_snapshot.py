"""Snapshots of a lake: the tables and views of a snapshot of a database with the same records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import msgspec
import pytest
from support.builders import exchange, score
from support.clocks import NOW
from support.kafka_sinks import samples
from support.lakes import put

from analytics.adhoc import fetch_limited, open_snapshot
from analytics.snapshots import build_lake_snapshot, build_part, build_snapshot, copy_database
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import LakeError, QueryError
from schemas.records import Record
from schemas.registry import schema_of, topics
from streams.upkeep.deletion import erasure

COMPUTED_BY_A_SERVER = {"failure_groups", "daily_failures"}
MEMORY = 512 * 1024 * 1024


def snapshot_of_lake(folder: Path, records: Sequence[tuple[str, Record]], *again: tuple[str, Record]) -> Path:
    """Return the snapshot of a lake with the records, the last ones in a commit of their own."""
    folder.mkdir()
    put(folder / "lake", records)
    put(folder / "lake", again)
    build_lake_snapshot(str(folder / "lake"), folder / "lake.duckdb", folder / "spill")
    return folder / "lake.duckdb"


def snapshot_of_database(folder: Path, records: Sequence[tuple[str, Record]]) -> Path:
    """Return the snapshot of a database with the records."""
    folder.mkdir()
    with Store(folder / "d.duckdb") as store:
        with store.transaction() as transaction:
            for topic, record in records:
                transaction.append(topic, [encode(record)], skip_known=True)
        copy_database(store, folder / "copy.duckdb")
    build_snapshot(folder / "copy.duckdb", folder / "database.duckdb", folder / "spill")
    return folder / "database.duckdb"


def answer_of(snapshot: Path, statement: str) -> str:
    """Return the types and sorted rows of a statement as text, or its error."""
    connection = open_snapshot(str(snapshot), memory=MEMORY, seconds=60)
    try:
        result = fetch_limited(connection, statement, {}, 100_000)
    except QueryError as error:
        return str(error)  # the samples have texts where a view expects JSON
    finally:
        connection.close()
    frame = result.frame.drop("run_id", strict=False)  # only a server numbers the runs
    return f"{frame.schema} {sorted(map(repr, frame.rows()))}"


def test_every_table_and_view_has_the_rows_of_a_database(tmp_path: Path) -> None:
    """An analyst's statement must not depend on where it runs."""
    records = [(topic, record) for topic, names in topics().items() for name in names for record in samples(name, 20)]
    lake = snapshot_of_lake(tmp_path / "lake", records, *records[::7])
    database = snapshot_of_database(tmp_path / "database", records)
    with duckdb.connect(str(database), read_only=True) as connection:
        names = {name for (name,) in connection.execute("SHOW TABLES").fetchall()}
    with duckdb.connect(str(lake), read_only=True) as connection:
        assert {name for (name,) in connection.execute("SHOW TABLES").fetchall()} == names - COMPUTED_BY_A_SERVER
    answers = {name: answer_of(lake, f"SELECT * FROM {name}") for name in names - COMPUTED_BY_A_SERVER}
    assert answers == {name: answer_of(database, f"SELECT * FROM {name}") for name in answers}
    assert sum(answer.count("(") > 1 for answer in answers.values()) > 20


def test_an_identity_has_its_newest_revision_once(tmp_path: Path) -> None:
    """A topic may have a record twice, scores are revised, and an exchange may be withdrawn."""
    revised = msgspec.structs.replace(score("s", 1), revision=1, tier1_score=0.25)
    withdrawn = msgspec.structs.replace(exchange("s", 2), revision=1, withdrawn=True)
    contradicting = exchange("s", 1, "Something else.", content_digest="f" * 16)
    first: list[tuple[str, Record]] = [
        ("scores", score("s", 1)),
        ("scores", revised),
        ("exchanges", exchange("s", 1)),
        ("exchanges", exchange("s", 2)),
    ]
    later: list[tuple[str, Record]] = [
        ("scores", score("s", 1)),
        ("scores", revised),
        ("exchanges", contradicting),
        ("exchanges", withdrawn),
    ]
    lake = snapshot_of_lake(tmp_path / "lake", first, *later)
    database = snapshot_of_database(tmp_path / "database", [*first, *later])
    statement = (
        "SELECT exchange_id, scores.revision, tier1_score, content_digest FROM scores FULL JOIN exchanges USING (exchange_id)"
    )
    assert answer_of(lake, statement) == answer_of(database, statement)
    assert answer_of(lake, statement).count("'s:") == 1


def test_a_snapshot_spans_the_lake_and_the_database_of_a_server(tmp_path: Path) -> None:
    """Old records have left the database, and the newest ones are not in the lake yet."""
    records = [(topic, record) for topic, names in topics().items() for name in names for record in samples(name, 15)]
    everything = snapshot_of_database(tmp_path / "database", records)
    copy = tmp_path / "database" / "copy.duckdb"
    by_topic = {topic: [record for name, record in records if name == topic] for topic in topics()}
    put(tmp_path / "lake", [(topic, record) for topic, values in by_topic.items() for record in values[: len(values) * 2 // 3]])
    with duckdb.connect(str(copy)) as connection:
        for topic, values in by_topic.items():
            for name in topics()[topic]:
                table = schema_of(name).table
                statement = f'DELETE FROM log."{table}" WHERE _topic = ? AND _offset < ?'
                connection.execute(statement, [topic, len(values) // 3])
    build_lake_snapshot(str(tmp_path / "lake"), tmp_path / "spanning.duckdb", tmp_path / "spill", copy)
    with duckdb.connect(str(everything), read_only=True) as connection:
        names = [name for (name,) in connection.execute("SHOW TABLES").fetchall()]
    answers = {name: answer_of(tmp_path / "spanning.duckdb", f"SELECT * FROM {name}") for name in names}
    assert answers == {name: answer_of(everything, f"SELECT * FROM {name}") for name in names}
    numbers = "SELECT connection, session_id, number FROM log.run_numbers"
    assert answer_of(tmp_path / "spanning.duckdb", numbers) == answer_of(everything, numbers)


def test_an_erased_session_is_in_no_snapshot(tmp_path: Path) -> None:
    """A sink may write records of a session after it has carried out the erasure."""
    records: list[tuple[str, Record]] = [("exchanges", exchange(session, 0)) for session in ("kept", "erased")]
    other = ("exchanges", exchange("gone", 0, connection="gone"))
    erasures = [("erasures", erasure(*erased, "me", None, NOW)) for erased in (("local", "erased"), ("gone", None))]
    snapshot = snapshot_of_lake(tmp_path / "lake", [*records, other, *erasures])
    assert answer_of(snapshot, "SELECT session_id FROM exchanges").endswith("""["('kept',)"]""")


def test_a_part_has_no_byte_of_another_project(tmp_path: Path) -> None:
    """The process that answers people of some projects has this file only."""
    ours = [("exchanges", exchange("s", number)) for number in range(3)]
    theirs = [("exchanges", exchange("zz-rival", number, project="rival")) for number in range(3)]
    whole = snapshot_of_lake(tmp_path / "lake", [*ours, *theirs])
    build_part(whole, tmp_path / "part.duckdb", tmp_path / "spill", ["ops"])
    content = (tmp_path / "part.duckdb").read_bytes()
    assert b"zz-rival" in whole.read_bytes()
    assert b"zz-rival" not in content
    assert b"s:2" in content


def test_rows_are_in_the_order_of_projects(tmp_path: Path) -> None:
    """A statement about a project then skips the rows of the others."""
    records = [("exchanges", exchange(f"s{number}", 0, project=f"p{number % 3}")) for number in range(9)]
    snapshot = snapshot_of_lake(tmp_path / "lake", records)
    with duckdb.connect(str(snapshot), read_only=True) as connection:
        projects = [project for (project,) in connection.execute("SELECT project FROM exchanges ORDER BY rowid").fetchall()]
    assert projects == sorted(projects)


def test_what_is_no_lake_is_named(tmp_path: Path) -> None:
    """A typing error in a path must not look like an empty lake."""
    with pytest.raises(LakeError, match="is not a lake"):
        build_lake_snapshot(str(tmp_path), tmp_path / "s.duckdb", tmp_path / "spill")
