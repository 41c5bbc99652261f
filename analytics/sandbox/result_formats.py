"""Results of queries as bytes: JSON, CSV, an Arrow file or Parquet. Times are written in UTC with their zone."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from analytics.store.tables import quote
from schemas.lazy import duckdb, pl

FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"  # noqa: RUF001 - some take the wide forms, too
"""The beginnings of a text that a spreadsheet would take for a formula."""
_NOT_IN_FRAMES = re.compile(r"\b(INTERVAL|UNION|BIT|VARIANT|GEOMETRY|BIGNUM|UHUGEINT|TIME WITH TIME ZONE|TIME_NS|LAMBDA)\b")
_WITHOUT_ZONE = re.compile(r"\bTIMESTAMP\b(?! WITH)")
_JSON = msgspec.json.Encoder(decimal_format="number")
Encode: TypeAlias = "Callable[[pl.DataFrame], bytes]"


@dataclass(frozen=True, slots=True)
class ResultFormat:
    """A format: its media type, its file suffix, and the function that writes it."""

    media_type: str
    extension: str
    encode: Encode


def frame_of(relation: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """The rows of a relation as a frame: column names made distinct, times in UTC.

    Types that frames do not support, such as intervals and unions, become text.
    """
    names = _distinct(relation.columns)
    columns = (
        f"{_cast(number, str(kind))} AS {quote(name)}"
        for number, (name, kind) in enumerate(zip(names, relation.types, strict=True), 1)
    )
    frame = pl.DataFrame(relation.project(", ".join(columns)))
    return frame.with_columns(
        pl.selectors.datetime(time_zone=None).dt.replace_time_zone("UTC"),
        pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"),  # DuckDB says Etc/UTC, everything else UTC
    )


def _distinct(names: list[str]) -> list[str]:
    """The names, with numbers added to repeated ones: `n`, `n_1`."""
    taken: set[str] = set()
    found = []
    for name in names:
        number, tried = 0, name
        while tried in taken:
            number += 1
            tried = f"{name}_{number}"
        taken.add(tried)
        found.append(tried)
    return found


def _cast(number: int, kind: str) -> str:
    if _NOT_IN_FRAMES.search(kind):
        return f"CAST(#{number} AS VARCHAR)"
    if _WITHOUT_ZONE.search(kind) and "ENUM(" not in kind:
        return f"CAST(#{number} AS {_WITHOUT_ZONE.sub('TIMESTAMP WITH TIME ZONE', kind)})"
    return f"#{number}"


def json_of(frame: pl.DataFrame) -> bytes:
    """A JSON list with one object per row. Numbers stay numbers, NaN and infinities become null, bytes become Base64."""
    return _JSON.encode(frame.to_dicts())


def csv_of(frame: pl.DataFrame) -> bytes:
    """CSV with a header. Lists and structs become JSON; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    cells = frame.with_columns(*(_as_text(frame[name]) for name in frame.columns if _is_no_cell(frame.schema[name])))
    guarded = cells.with_columns(
        pl.when(pl.selectors.string().str.contains(FORMULA))
        .then("'" + pl.selectors.string())
        .otherwise(pl.selectors.string())
        .name.keep()
    )
    header = {name: f"'{name}" for name in guarded.columns if re.match(FORMULA, name)}
    return guarded.rename(header).write_csv(datetime_format="%Y-%m-%dT%H:%M:%S%.6fZ").encode()


def _is_no_cell(kind: pl.DataType) -> bool:
    return kind.is_nested() or kind in (pl.Binary, pl.Categorical, pl.Enum, pl.Null)


def _as_text(column: pl.Series) -> pl.Series:
    texts = (
        None if value is None else value if isinstance(value, str) else _JSON.encode(value).decode()
        for value in column.to_list()
    )
    return pl.Series(column.name, list(texts), dtype=pl.String)


def arrow_of(frame: pl.DataFrame) -> bytes:
    """An Arrow file (IPC, also called Feather version 2)."""
    buffer = io.BytesIO()
    frame.write_ipc(buffer)
    return buffer.getvalue()


def parquet_of(frame: pl.DataFrame) -> bytes:
    """A Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


FORMATS = {
    "json": ResultFormat("application/json", "json", json_of),
    "csv": ResultFormat("text/csv; charset=utf-8", "csv", csv_of),
    "arrow": ResultFormat("application/vnd.apache.arrow.file", "arrow", arrow_of),
    "parquet": ResultFormat("application/vnd.apache.parquet", "parquet", parquet_of),
}
"""Every format by name."""
