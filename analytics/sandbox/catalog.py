"""Catalog of a snapshot for analysts: its views, tables and columns, without making one."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from analytics.sandbox.snapshots import NUMBERS, comment_statements, shown_columns, shown_schemas
from analytics.store.readable_views import view_statements
from analytics.store.tables import columns_of, quote
from schemas.lazy.duckdb import duckdb

_COLUMNS = """
SELECT c.table_name, c.column_name, c.data_type, c.comment, coalesce(v.comment, t.comment) AS about, v.view_name IS NOT NULL AS is_view
FROM duckdb_columns() AS c
LEFT JOIN (SELECT view_name, comment FROM duckdb_views() WHERE NOT internal) AS v ON c.table_name = v.view_name
LEFT JOIN duckdb_tables() AS t ON c.table_name = t.table_name
WHERE NOT c.internal AND c.schema_name = 'main'
ORDER BY is_view DESC, coalesce(v.view_name, t.table_name), c.column_index
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, DuckDB's name of its type, and what it holds; nothing where its name says that."""

    name: str
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A view or a table of a snapshot, with its columns in their order."""

    name: str
    words: str
    is_view: bool
    """True for a view that is made to be read; the others are the record types themselves."""
    columns: tuple[Column, ...]


@functools.cache
def readable_catalogue() -> tuple[Relation, ...]:
    """Every view, then every table, each by name."""
    with duckdb.connect(":memory:") as connection:
        for schema in shown_schemas():
            types = columns_of(schema)
            columns = ", ".join(f"{quote(name)} {types[name]}" for name in shown_columns(schema))
            connection.execute(f"CREATE TABLE main.{quote(schema.table)} ({columns})")
            for statement in comment_statements(schema):
                connection.execute(statement)
        for statement in (*NUMBERS, *view_statements()):
            connection.execute(statement)
        rows = connection.execute(_COLUMNS).fetchall()
    found: dict[str, list[Column]] = {}
    about = {}
    for table, name, kind, words, told, is_view in rows:
        found.setdefault(table, []).append(Column(name, kind, words or ""))
        about[table] = told or "", is_view
    return tuple(Relation(name, *about[name], columns=tuple(columns)) for name, columns in found.items())
