"""The catalogue that analysts see beside their statements: what it names is what a snapshot has."""

from __future__ import annotations

from pathlib import Path

import duckdb

from analytics.snapshots import build_snapshot, copy_database, load_catalog
from analytics.store.store import Store


def test_the_catalogue_matches_a_snapshot(tmp_path: Path) -> None:
    """A missing column, or one of another type, would break every statement that uses it."""
    copy, target = tmp_path / "copy.duckdb", tmp_path / "driftline.duckdb"
    with Store(tmp_path / "fleet.duckdb") as store:
        copy_database(store, copy)
    build_snapshot(copy, target, tmp_path / "spill")
    with duckdb.connect(str(target), read_only=True) as connection:
        snapshot_columns = connection.execute(
            "SELECT table_name, column_name, data_type, coalesce(comment, '') FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main'"
        ).fetchall()
    catalogue_columns = [
        (one.name, column.name, column.kind, column.description) for one in load_catalog() for column in one.columns
    ]
    assert sorted(snapshot_columns) == sorted(catalogue_columns)


def test_published_views_come_first_with_a_description() -> None:
    """Nobody starts with the record types."""
    kinds = [one.is_view for one in load_catalog()]
    assert sorted(kinds, reverse=True) == kinds
    assert [one.name for one in load_catalog() if not one.description] == []
    turns = next(one for one in load_catalog() if one.name == "turns")
    assert turns.columns[0].description == "Day of the exchange, UTC."
