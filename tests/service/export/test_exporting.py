"""`driftline export --by project,day`: files that others read by partition, each day whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.builders import exchange
from typer.testing import CliRunner

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import InputError
from schemas.registry import current_schemas
from service.cli.main import application
from service.export.parquet import PARTITIONED_TABLES, Selection, export_partitions, select_days

DAY = datetime(2026, 10, 1, 23, 30, tzinfo=UTC)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield a store with exchanges of two projects on two days."""
    with Store(tmp_path / "fleet.duckdb") as opened:
        append_exchanges(
            opened, *(exchange("a", number, project="ops", occurred_at=DAY + timedelta(hours=number)) for number in range(3))
        )
        append_exchanges(opened, exchange("b", 0, project="web", occurred_at=DAY))
        yield opened


def append_exchanges(store: Store, *exchanges: Any) -> None:
    """Append exchanges."""
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(one) for one in exchanges])


def rows(folder: Path, columns: str = "project, day::VARCHAR, count(*)") -> list[tuple[Any, ...]]:
    """Return what a reader of the partitions sees."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        statement = (
            f"SELECT {columns} FROM read_parquet('{folder}/exchanges/*/*/*.parquet', hive_partitioning = true) GROUP BY ALL"
        )
        return sorted(connection.execute(statement).fetchall())


def test_each_project_and_day_has_its_own_partition(store: Store, tmp_path: Path) -> None:
    """The UTC day of the event counts: 23:30 and an hour later are two days."""
    exported = export_partitions(store, tmp_path / "lake", Selection(), KEY)

    assert exported.rows["exchanges"] == 4
    assert rows(tmp_path / "lake") == [("ops", "2026-10-01", 1), ("ops", "2026-10-02", 2), ("web", "2026-10-01", 1)]
    assert [str(path.parent) for path in (tmp_path / "lake").glob("exchanges/project=ops/day=2026-10-01/*")] == [
        f"{tmp_path}/lake/exchanges/project=ops/day=2026-10-01"
    ]


def test_the_last_revision_of_an_exchange_is_exported(store: Store, tmp_path: Path) -> None:
    """A row is a turn for whoever counts rows, and a withdrawn turn is not one."""
    append_exchanges(
        store,
        exchange("a", 1, "Later.", project="ops", occurred_at=DAY + timedelta(hours=1), revision=1),
        exchange("a", 2, project="ops", occurred_at=DAY + timedelta(hours=2), revision=1, withdrawn=True),
    )
    export_partitions(store, tmp_path / "lake", Selection(project="ops"), KEY)

    columns = "exchange_id, agent_response, revision"
    assert rows(tmp_path / "lake", columns) == [("a:0", "It is done.", 0), ("a:1", "Later.", 1)]


def test_a_partition_is_replaced_as_a_unit_and_others_stay(store: Store, tmp_path: Path) -> None:
    """Late data lands on its own day, and partitions of other days are not ours to delete."""
    export_partitions(store, tmp_path / "lake", Selection(), KEY)
    append_exchanges(store, exchange("late", 0, project="ops", occurred_at=DAY))
    export_partitions(store, tmp_path / "lake", Selection(project="ops", since=date(2026, 10, 1), until=date(2026, 10, 2)), KEY)

    assert rows(tmp_path / "lake") == [("ops", "2026-10-01", 2), ("ops", "2026-10-02", 2), ("web", "2026-10-01", 1)]
    assert list((tmp_path / "lake").rglob(".unfinished*")) == []


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(project="web"), [("web", "2026-10-01", 1)]),
        (select_days(date(2026, 10, 2), None), [("ops", "2026-10-02", 2)]),
        (select_days(None, date(2026, 10, 1)), [("ops", "2026-10-01", 1), ("web", "2026-10-01", 1)]),
    ],
)
def test_a_selection_limits_the_export(store: Store, tmp_path: Path, selection: Selection, expected: list[Any]) -> None:
    """A daily job exports the changes of one day."""
    export_partitions(store, tmp_path / "lake", selection, KEY)

    assert rows(tmp_path / "lake") == expected


def test_equal_rows_give_equal_files(store: Store, tmp_path: Path) -> None:
    """A sync to another place copies only what differs."""
    contents = []
    for name in ("one", "two"):
        export_partitions(store, tmp_path / name, Selection(), KEY)
        contents.append([file.read_bytes() for file in sorted((tmp_path / name).glob("exchanges/*/*/*.parquet"))])

    assert contents[0] == contents[1]


def test_times_are_in_utc_and_marked_as_such(store: Store, tmp_path: Path) -> None:
    """A reader elsewhere does not know our time zone."""
    export_partitions(store, tmp_path / "lake", Selection(project="web"), KEY)

    assert rows(tmp_path / "lake", "typeof(occurred_at), occurred_at") == [("TIMESTAMP WITH TIME ZONE", DAY)]


def test_every_table_with_a_project_is_exported() -> None:
    """A new record type is either exported or listed as internal."""
    with_project = {
        schema.table
        for schema in current_schemas().values()
        if schema.topics and "project" in {field["name"] for field in schema.fields}
    }
    assert with_project - set(PARTITIONED_TABLES) == {"evaluation_requests", "judging_requests", "scoring_tasks"}
    assert set(PARTITIONED_TABLES) - with_project == set()


def test_an_empty_database_gives_no_files(tmp_path: Path) -> None:
    """A new deployment runs its first export before any record exists."""
    with Store(tmp_path / "empty.duckdb") as empty:
        assert set(export_partitions(empty, tmp_path / "lake", Selection(), KEY).rows.values()) == {0}


def test_an_unwritable_folder_is_named(store: Store, tmp_path: Path) -> None:
    """A file has the name of the folder."""
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(InputError, match="lake"):
        export_partitions(store, tmp_path / "lake", Selection(), KEY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "day"], "project,day"),
        (["--project", "ops"], "need --by"),
        (["--by", "project,day", "--since", "2026-10-02", "--until", "2026-10-01"], "is after"),
    ],
)
def test_incompatible_options_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    """They are refused before anything is opened or written."""
    result = CliRunner().invoke(
        application(), ["export", str(tmp_path / "lake"), "--db", str(tmp_path / "none.duckdb"), *options]
    )

    assert result.exit_code != 0
    assert message in str(result.exception)


def test_the_command_reports_what_it_wrote(store: Store, tmp_path: Path) -> None:
    """The given days are inclusive."""
    store.close()
    options = [
        "--db",
        str(tmp_path / "fleet.duckdb"),
        "--by",
        "project,day",
        "--since",
        "2026-10-01",
        "--until",
        "2026-10-01",
        "--json",
    ]
    result = CliRunner().invoke(application(), ["export", str(tmp_path / "lake"), *options])

    assert '"exchanges":2' in result.stdout
