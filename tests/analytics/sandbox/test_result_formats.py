"""Results as bytes: whatever a statement can answer can be written in every format, and means the same in each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pytest

from analytics.adhoc import FORMATS, encode_csv, encode_json, fetch_frame

AT = datetime(2026, 10, 1, 9, tzinfo=UTC)
VALUES: dict[str, tuple[str, Any]] = {
    "a number": ("1", 1),
    "a decimal": ("1.5", 1.5),
    "more than a double holds": ("12345678901234567890123::HUGEINT", 12345678901234567890123),
    "no number": ("'nan'::DOUBLE", None),
    "without end": ("'inf'::DOUBLE", None),
    "nothing": ("NULL", None),
    "a text": ("'a,\"b\"\n'", 'a,"b"\n'),
    "truth": ("true", True),
    "a day": ("DATE '2026-10-01'", "2026-10-01"),
    "a time of the tables": ("TIMESTAMP '2026-10-01 09:00:00'", "2026-10-01T09:00:00Z"),
    "a time with a zone": ("TIMESTAMPTZ '2026-10-01 11:00:00+02'", "2026-10-01T09:00:00Z"),
    "a fine time": ("TIMESTAMP_NS '2026-10-01 09:00:00'", "2026-10-01T09:00:00Z"),
    "a time within": ("{'at': TIMESTAMP '2026-10-01 09:00:00'}", {"at": "2026-10-01T09:00:00Z"}),
    "a while": ("INTERVAL 1 DAY", "1 day"),
    "a list": ("[1, 2]", [1, 2]),
    "an empty list": ("[]", []),
    "a map": ("MAP {'a': 1}", {"a": 1}),
    "one of several": ("'a'::ENUM('a', 'TIMESTAMP')", "a"),
    "one or the other": ("union_value(n := 1)", "1"),
    "bits": ("'101'::BIT", "101"),
    "bytes": ("'\\xAA'::BLOB", "qg=="),
    "an id": ("'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::UUID", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
}


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory, in UTC."""
    with duckdb.connect() as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


@pytest.mark.parametrize("value", VALUES)
def test_every_type_can_be_written_in_every_format(value: str, connection: duckdb.DuckDBPyConnection) -> None:
    """A statement must not fail because of the types in its result."""
    sql, expected = VALUES[value]
    frame = fetch_frame(connection.sql(f"SELECT {sql} AS x, 1 AS y"))

    assert json.loads(encode_json(frame)) == [{"x": expected, "y": 1}]
    assert len(list(csv.reader(io.StringIO(encode_csv(frame).decode())))) == 2
    assert pl.read_ipc(io.BytesIO(FORMATS["arrow"].encode(frame))).height == 1
    assert pl.read_parquet(io.BytesIO(FORMATS["parquet"].encode(frame))).height == 1


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_result_can_be_written(name: str, connection: duckdb.DuckDBPyConnection) -> None:
    """It has its columns in formats that can have columns without rows."""
    assert FORMATS[name].encode(fetch_frame(connection.sql("SELECT 1 AS x WHERE false")))


def test_columns_with_equal_names_are_renamed(connection: duckdb.DuckDBPyConnection) -> None:
    """Dataframes and objects need distinct names, and no value may be lost."""
    frame = fetch_frame(connection.sql("SELECT 1 AS a, 2 AS a, 3 AS a_1"))
    assert list(frame.row(0)) == [1, 2, 3]
    assert len(set(frame.columns)) == 3


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1+1"])
def test_a_text_that_looks_like_a_formula_is_quoted(text: str, connection: duckdb.DuckDBPyConnection) -> None:
    """An audited agent wrote it, and a spreadsheet would run it."""
    frame = fetch_frame(connection.sql("SELECT $text AS x", params={"text": text}))
    csv_text = encode_csv(frame.with_columns(y=1)).decode()
    cell = list(csv.reader(io.StringIO(csv_text, newline="")))[1][0]
    assert cell == f"'{text}"


def test_negative_numbers_and_plain_texts_are_unchanged(connection: duckdb.DuckDBPyConnection) -> None:
    """Only texts can be formulas."""
    frame = fetch_frame(connection.sql("SELECT -1 AS a, -1.5 AS b, 'a=b' AS c, '' AS d"))
    assert list(csv.reader(io.StringIO(encode_csv(frame).decode())))[1] == ["-1", "-1.5", "a=b", ""]


def test_times_and_decimals_keep_their_types(connection: duckdb.DuckDBPyConnection) -> None:
    """Arrow and Parquet are for programs, so only texts are strings."""
    frame = fetch_frame(connection.sql("SELECT TIMESTAMP '2026-10-01 09:00:00' AS at, 1.5 AS d"))
    assert pl.read_parquet(io.BytesIO(FORMATS["parquet"].encode(frame))).rows() == [(AT, Decimal("1.5"))]
