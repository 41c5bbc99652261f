"""Reads the rows of a file of exchanges in bounded memory. The file is JSON lines, a JSON array, CSV with a header, or Parquet.

1. The format is detected from the first bytes, and must match the file's name.
2. An unreadable row becomes a Problem. Other rows are not affected.
3. A row has a number by which users find it: its line number in JSON lines and CSV, its position from 1 in an array and in Parquet.
4. A missing value is absent or None. An empty CSV cell is None, and so is the NaN that pandas writes into Parquet.
5. DuckDB streams Parquet and JSON arrays in one thread, which preserves the order of the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from audit.file_kinds import CSV, GZIP, HEAD, PARQUET, TEXT, ZSTANDARD, Kind, binary_kind, exchanges_kind
from audit.surrogates import repair_value
from schemas.bounds import MAX_DEPTH, has_surrogates, is_too_deep
from schemas.errors import InputError
from schemas.lazy import duckdb
from streams.sources.event_files import Document, read_values
from streams.sources.lines import MAX_LINE_BYTES, Line, Problem, decode_line, json_type, line_fault, value_fault
from streams.sources.source import LineFault
from streams.sources.zstd import zstd

Json = dict[str, Any]
FETCH_SIZE = 1_000
"""Number of rows fetched from DuckDB at a time."""
SEPARATORS = (",", ";", "\t", "|")
_ITEMS_MEMBER = "data"
"""Member of an API response that has the rows."""
_DOCUMENT_MEMBERS = frozenset({_ITEMS_MEMBER, "meta"})
"""Members that distinguish an API response on one line from a row."""
_JSON_TYPES = (str, int, float, bool, date, datetime, NoneType)
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
_SHOWN_CHARACTERS = 80
"""Characters of a column's name that an error quotes."""
_PARQUET = "read_parquet(?, hive_types_autocast=false)"
FORMAT_NAMES = "JSON lines, CSV or Parquet"
COPY_HINT = "Check whether the file was copied completely."
COMPRESSION_SUFFIXES = {".gz": GZIP, ".zst": ZSTANDARD}
_DUCKDB_COMPRESSION: dict[Kind | None, str] = {None: "none", GZIP: "gzip", ZSTANDARD: "zstd"}


class Row(NamedTuple):
    """A row with its number. `line` is set if the row is a line of the file."""

    number: int
    value: Json | Problem
    line: Line | None = None

    def fault(self, problem: Problem) -> LineFault:
        """Return the fault that reports the row."""
        if self.line is not None:
            return line_fault(self.line, problem)
        value = None if isinstance(self.value, Problem) else self.value
        return value_fault(Line(self.number, b"", 0, ended=True), value, problem)


class TornLine(NamedTuple):
    """An unfinished last line. The file is still being written, or was cut off."""

    line: Line


def read_rows(path: Path) -> Generator[Row | TornLine, None, None]:
    """Yield the rows of a file, and its torn last line if it has one. Raises InputError as soon as the file cannot be read any further."""
    detected = detect_format(path)
    if detected.file_format is Format.PARQUET:
        yield from _read_parquet(path)
        return
    with _open_unpacked(path) as stream:
        if detected.file_format is Format.CSV:
            yield from _read_csv(path, stream)
            return
        head = _read_first_character(path)
        if head != b"[":
            yield from _read_json(stream)
            return
    yield from _read_array(path, detected)


def _read_parquet(path: Path) -> Iterator[Row]:
    described = list(_fetch(path, f"DESCRIBE SELECT * FROM {_PARQUET}"))  # noqa: S608 - a constant
    names = [name for name, *_ in described]
    columns = ", ".join(_build_readable_column(name, kind) for name, kind, *_ in described)
    for number, values in enumerate(_fetch(path, f"SELECT {columns} FROM {_PARQUET}"), 1):  # noqa: S608 - names are quoted
        yield Row(number, {name: _clean_value(value) for name, value in zip(names, values, strict=True)})


def _fetch(path: Path, statement: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a statement over the file. Raises InputError as soon as the file cannot be read any further."""
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            result = connection.execute(statement, [str(path)])
            while rows := result.fetchmany(FETCH_SIZE):
                yield from rows
    except duckdb.Error as error:
        message = str(error).split("\n")[0]
        raise InputError(
            f"{path}: cannot be read: {message}", hint="Check whether the file was written and copied completely."
        ) from error


def _build_readable_column(name: str, kind: str) -> str:
    """Return an SQL expression that gives a column's values as Python can represent them: times in UTC, nested times as JSON."""
    quoted = '"' + name.replace('"', '""') + '"'
    if "TIME ZONE" not in kind and "TIMESTAMPTZ" not in kind:
        return quoted
    is_time = kind.startswith(("TIMESTAMP", "TIME"))
    return f"({quoted}::TIMESTAMPTZ AT TIME ZONE 'UTC') AS {quoted}" if is_time else f"to_json({quoted})::VARCHAR AS {quoted}"


def _clean_value(value: Any) -> Any:
    """Return a value as a JSON value. Times are unchanged."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if isinstance(value, _JSON_TYPES) else msgspec.to_builtins(value, str_keys=True, enc_hook=str)


@contextmanager
def _open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, decompressing it if necessary. Raises InputError if it cannot be read or decompressed."""
    try:
        with path.open("rb") as raw:
            kind = binary_kind(raw.read(HEAD))
            raw.seek(0)
            if kind is GZIP:
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield cast("BinaryIO", stream)
            elif kind is ZSTANDARD:
                with zstd.ZstdFile(raw) as stream:
                    yield cast("BinaryIO", stream)
            else:
                yield raw
    except (gzip.BadGzipFile, EOFError, zstd.ZstdError) as error:
        raise InputError(f"{path}: cannot be decompressed ({error})", hint=COPY_HINT) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error


def _read_csv(path: Path, stream: BinaryIO) -> Iterator[Row]:
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _read_csv_text(path, text)
    finally:
        text.detach()  # the caller closes the stream


def _read_csv_text(path: Path, text: io.TextIOWrapper) -> Iterator[Row]:
    first = text.readline(MAX_LINE_BYTES)
    lines = _CountedLines(first, text)
    separator_line = _SEPARATOR_LINE.fullmatch(first)
    if separator_line is None:
        separator = _guess_separator(first)
    else:  # Excel writes this line before the header
        separator = separator_line[1]
        next(lines)
        lines.take_line(1)
    reader = csv.reader(lines, delimiter=separator)
    header: list[str] | None = None
    repeats = False
    while True:
        number = lines.read + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(number, Problem("not_csv", f"the row is not CSV: {error}"), lines.take_line(number))
            continue
        line = lines.take_line(number)
        if header is None:
            header = [cell.strip() for cell in cells]
            repeats = len({*header}) < len(header)
        elif cells:
            if repeats:
                _require_equal(path, header, cells)
            yield Row(number, _build_record(header, cells), line)


class _CountedLines:
    """The lines of a text, counted. A line that is too long is split into pieces, which are not valid rows."""

    def __init__(self, first_line: str, following: io.TextIOWrapper) -> None:
        self._first_line = first_line
        self._text = following
        self._pending: list[str] = []
        self.read = 0

    def take_line(self, number: int) -> Line:
        """Return the text that was read since the last call, as a line with this number."""
        body = "".join(self._pending).rstrip("\r\n").encode("utf-8", "surrogateescape")
        self._pending.clear()
        return Line(number, body, len(body), ended=True)

    def __iter__(self) -> _CountedLines:
        return self

    def __next__(self) -> str:
        line = self._first_line or self._text.readline(MAX_LINE_BYTES)
        self._first_line = ""
        if not line:
            raise StopIteration
        self.read += 1
        self._pending.append(line)
        return line


def _guess_separator(header: str) -> str:
    """Return the separator that splits the header into the most columns."""
    return max(SEPARATORS, key=lambda separator: len(next(csv.reader([header], delimiter=separator), [])))


def _require_equal(path: Path, header: Sequence[str], cells: Sequence[str]) -> None:
    """Raise InputError if columns with the same name have different values in a row. Phoenix exports its index twice, with equal values."""
    values: dict[str, str] = {}
    for name, cell in zip(header, cells, strict=False):
        if name and values.setdefault(name, cell) != cell:
            raise InputError(
                f"{path}: has several columns named {name[:_SHOWN_CHARACTERS]}", hint="Give the columns different names."
            )


def _build_record(header: Sequence[str], cells: Sequence[str]) -> Json | Problem:
    if len(cells) != len(header):
        return Problem("columns", f"the row has {len(cells)} columns, the header has {len(header)}")
    if any(has_surrogates(cell) for cell in cells):
        return Problem("not_utf8", "the row is not UTF-8; save the file as UTF-8")
    return {name: cell or None for name, cell in zip(header, cells, strict=True) if name}


def _read_first_character(path: Path) -> bytes:
    with _open_unpacked(path) as stream:
        return stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


def _read_json(stream: BinaryIO) -> Iterator[Row | TornLine]:
    for line, value in read_values(stream):
        if value is None:
            yield TornLine(line)
        elif isinstance(value, Document) or (isinstance(value, dict) and value.keys() >= _DOCUMENT_MEMBERS):
            for number, item in enumerate(_list_document_rows(value.value if isinstance(value, Document) else value), 1):
                yield _build_row(number, item)
        else:
            yield Row(line.number, value if isinstance(value, Problem) else _repair_row(value, line.body), line)


def _list_document_rows(document: Any) -> list[Any]:
    """Return the rows of a document: the items of a list or an API response, else the document itself."""
    items = document.get(_ITEMS_MEMBER) if isinstance(document, dict) else document
    return items if isinstance(items, list) else [document]


def _build_row(number: int, item: Any) -> Row:
    if not isinstance(item, dict):
        return Row(number, Problem("not_an_object", f"the row is {json_type(item)}, not an object"))
    if is_too_deep(item):
        return Row(number, Problem("too_deep", f"the row nests deeper than {MAX_DEPTH} levels"))
    return Row(number, repair_value(item))


def _repair_row(value: Json, body: bytes) -> Json:
    r"""Return the value with its texts repaired if they may hold half a surrogate pair (`\ud83d`)."""
    return repair_value(value) if b"\\ud" in body or b"\\uD" in body else value


def _read_array(path: Path, detected: _DetectedFormat) -> Iterator[Row]:
    compression = _DUCKDB_COMPRESSION[detected.compression]
    options = f"format='array', compression='{compression}', maximum_object_size={MAX_LINE_BYTES}"
    statement = f"SELECT json::VARCHAR FROM read_json_objects(?, {options})"  # noqa: S608 - words of ours
    for number, (text,) in enumerate(_fetch(path, statement), 1):
        line = Line(number, text.encode("utf-8", "surrogatepass"), len(text), ended=True)
        value = decode_line(line)
        yield Row(number, value if isinstance(value, Problem) else _repair_row(value, line.body), line)


class _DetectedFormat(NamedTuple):
    """The format of a file, and its compression if any."""

    file_format: Format
    compression: Kind | None


def parquet_columns(path: Path) -> list[str]:
    """Return the columns of a Parquet file, which may have no rows."""
    return [name for name, *_ in _fetch(path, f"DESCRIBE SELECT * FROM {_PARQUET}")]  # noqa: S608 - a constant


class Format(StrEnum):
    """Formats of exchanges, by display name."""

    JSON = "JSON"
    CSV = "CSV"
    PARQUET = "Parquet"


def detect_format(path: Path) -> _DetectedFormat:
    """Return the format of a file. Raises InputError if it is none of the formats of exchanges, or if its name does not match."""
    compression = _detect_compression(path)
    with _open_unpacked(path) as stream:
        head = stream.read(HEAD)
    kind = exchanges_kind(head)
    suffix_form = SUFFIXES.get(Path(path.stem).suffix if path.suffix in COMPRESSION_SUFFIXES else path.suffix)
    if suffix_form is Format.CSV and kind is TEXT:
        kind = CSV  # a table with one column has no separator
    if kind not in _FORMATS or (kind is PARQUET and compression is not None):
        assert kind is not None  # noqa: S101 - JSON is a format
        raise InputError(f"{path}: is {kind.name}, not {FORMAT_NAMES}", hint=kind.hint)
    if suffix_form not in (None, _FORMATS[kind]):
        name = "JSON" if kind is None else kind.name
        raise InputError(f"{path}: is {name}, not {suffix_form} as its name says", hint="Name the file by what it holds.")
    return _DetectedFormat(_FORMATS[kind], compression)


def _detect_compression(path: Path) -> Kind | None:
    try:
        with path.open("rb") as stream:
            kind = binary_kind(stream.read(HEAD))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", hint="Check the path and its permissions.") from error
    return kind if kind in COMPRESSION_SUFFIXES.values() else None


def detect_non_exchanges(head: bytes) -> Kind | None:
    """Return the kind of a file that cannot have exchanges; None if it may have some. Compressed files are checked when they are read."""
    kind = exchanges_kind(head)
    return None if kind in (None, CSV, PARQUET, TEXT, GZIP, ZSTANDARD) else kind


csv.field_size_limit(MAX_LINE_BYTES)


SUFFIXES = {
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".parquet": Format.PARQUET,
}
"""Format by file suffix."""
PATTERNS = tuple(
    f"*{suffix}{compression}"
    for suffix in SUFFIXES
    for compression in ("", *COMPRESSION_SUFFIXES)
    if not compression or suffix != ".parquet"
)
_FORMATS: dict[Kind | None, Format] = {CSV: Format.CSV, PARQUET: Format.PARQUET, None: Format.JSON}
