"""Rows of a file of exchanges as objects, in bounded memory: lines of JSON, a JSON array, CSV with a header, Parquet.

1. The first bytes tell the format. It is compared with what the name of the file says.
2. A row that cannot be read is a Problem in its place; the rows around it are not touched.
3. A row has the number by which a person finds it: its line in JSON lines and CSV, its place from 1 in an array and in Parquet.
4. What is missing is absent or None: an empty cell of CSV is None, and so is the NaN that pandas writes into Parquet for it.
5. DuckDB reads Parquet and arrays of JSON, in one thread and as a stream, so that the order is that of the file.
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
from audit.surrogates import mended
from schemas.bounds import MAX_DEPTH, has_surrogates, is_too_deep
from schemas.errors import InputError
from schemas.lazy import duckdb
from streams.sources.event_files import Document, read_values
from streams.sources.lines import MAX_LINE, Line, Problem, decode_line, json_type, line_fault, value_fault
from streams.sources.source import LineFault
from streams.sources.zstd import zstd

Json = dict[str, Any]
FETCHED = 1_000
"""Rows that are fetched from DuckDB at once."""
SEPARATORS = (",", ";", "\t", "|")
_ITEMS = "data"
"""The member of a document that holds its rows, as answers of APIs have it."""
_DOCUMENT_MEMBERS = frozenset({_ITEMS, "meta"})
"""The members of such an answer, which may be one line."""
_JSON_TYPES = (str, int, float, bool, date, datetime, NoneType)
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
_SHOWN_CHARACTERS = 80
"""Characters of a column's name that an error has."""
_PARQUET = "read_parquet(?, hive_types_autocast=false)"
WORDS = "JSON lines, CSV or Parquet"
COPY_HINT = "Check whether the file was copied completely."
PACKED = {".gz": GZIP, ".zst": ZSTANDARD}
_DUCKDB_COMPRESSION: dict[Kind | None, str] = {None: "none", GZIP: "gzip", ZSTANDARD: "zstd"}


class Row(NamedTuple):
    """A row with its number; `line` holds its bytes where the file has it as a line."""

    number: int
    value: Json | Problem
    line: Line | None = None

    def fault(self, problem: Problem) -> LineFault:
        """Return the fault that reports the row."""
        if self.line is not None:
            return line_fault(self.line, problem)
        value = None if isinstance(self.value, Problem) else self.value
        return value_fault(Line(self.number, b"", 0, ended=True), value, problem)


class Torn(NamedTuple):
    """The last line of a file that is being written, or was cut off."""

    line: Line


def read_rows(path: Path) -> Generator[Row | Torn, None, None]:
    """Yield the rows of a file, and its torn last line if it has one. Raises InputError if it cannot be read, or not any further."""
    detected = detect_format(path)
    if detected.form is Format.PARQUET:
        yield from _parquet_rows(path)
        return
    with _open_unpacked(path) as stream:
        if detected.form is Format.CSV:
            yield from _csv_rows(path, stream)
            return
        head = _first_character(path)
        if head != b"[":
            yield from _json_rows(stream)
            return
    yield from _array_rows(path, detected)


def _parquet_rows(path: Path) -> Iterator[Row]:
    described = list(_fetch(path, f"DESCRIBE SELECT * FROM {_PARQUET}"))  # noqa: S608 - a constant
    names = [name for name, *_ in described]
    columns = ", ".join(_readable_column(name, kind) for name, kind, *_ in described)
    for number, values in enumerate(_fetch(path, f"SELECT {columns} FROM {_PARQUET}"), 1):  # noqa: S608 - names are quoted
        yield Row(number, {name: _clean_value(value) for name, value in zip(names, values, strict=True)})


def _fetch(path: Path, statement: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a statement over the file, as a stream. Raises InputError if it cannot be read any further."""
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            done = connection.execute(statement, [str(path)])
            while fetched := done.fetchmany(FETCHED):
                yield from fetched
    except duckdb.Error as error:
        message = str(error).split("\n")[0]
        raise InputError(
            f"{path}: cannot be read: {message}", hint="Check whether the file was written and copied completely."
        ) from error


def _readable_column(name: str, kind: str) -> str:
    """Return a column as an expression whose values Python can hold: times in UTC, and nested times as JSON."""
    quoted = '"' + name.replace('"', '""') + '"'
    if "TIME ZONE" not in kind and "TIMESTAMPTZ" not in kind:
        return quoted
    is_time = kind.startswith(("TIMESTAMP", "TIME"))
    return f"({quoted}::TIMESTAMPTZ AT TIME ZONE 'UTC') AS {quoted}" if is_time else f"to_json({quoted})::VARCHAR AS {quoted}"


def _clean_value(value: Any) -> Any:
    """Return a value as JSON has it; only times stay as they are."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if isinstance(value, _JSON_TYPES) else msgspec.to_builtins(value, str_keys=True, enc_hook=str)


@contextmanager
def _open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacking it if it is packed. Raises InputError if it cannot be read or unpacked."""
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
        raise InputError(f"{path}: cannot be unpacked ({error})", hint=COPY_HINT) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error


def _csv_rows(path: Path, stream: BinaryIO) -> Iterator[Row]:
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _rows_of_text(path, text)
    finally:
        text.detach()  # who opened the stream closes it


def _rows_of_text(path: Path, text: io.TextIOWrapper) -> Iterator[Row]:
    first = text.readline(MAX_LINE)
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
            yield Row(number, _record(header, cells), line)


class _CountedLines:
    """The lines of a text, counted. A line that is too long comes in pieces, which are no rows of the table."""

    def __init__(self, first: str, rest: io.TextIOWrapper) -> None:
        self._ahead = first
        self._rest = rest
        self._pending: list[str] = []
        self.read = 0

    def take_line(self, number: int) -> Line:
        """Return the text that was read since the last call, as the line with this number."""
        body = "".join(self._pending).rstrip("\r\n").encode("utf-8", "surrogateescape")
        self._pending.clear()
        return Line(number, body, len(body), ended=True)

    def __iter__(self) -> _CountedLines:
        return self

    def __next__(self) -> str:
        line, self._ahead = self._ahead or self._rest.readline(MAX_LINE), ""
        if not line:
            raise StopIteration
        self.read += 1
        self._pending.append(line)
        return line


def _guess_separator(header: str) -> str:
    """Return the separator that makes the most columns of the header."""
    return max(SEPARATORS, key=lambda separator: len(next(csv.reader([header], delimiter=separator), [])))


def _require_equal(path: Path, header: Sequence[str], cells: Sequence[str]) -> None:
    """Raises InputError if columns of one name differ in a row: which of them is meant is unknown. Phoenix has its index twice."""
    values: dict[str, str] = {}
    for name, cell in zip(header, cells, strict=False):
        if name and values.setdefault(name, cell) != cell:
            shown = name[:_SHOWN_CHARACTERS]
            raise InputError(f"{path}: has several columns named {shown}", hint="Give each column a name of its own.")


def _record(header: Sequence[str], cells: Sequence[str]) -> Json | Problem:
    if len(cells) != len(header):
        return Problem("columns", f"the row has {len(cells)} columns, the header has {len(header)}")
    if any(has_surrogates(cell) for cell in cells):
        return Problem("not_utf8", "the row is not UTF-8; save the file as UTF-8")
    return {name: cell or None for name, cell in zip(header, cells, strict=True) if name}


def _first_character(path: Path) -> bytes:
    with _open_unpacked(path) as stream:
        return stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


def _json_rows(stream: BinaryIO) -> Iterator[Row | Torn]:
    for line, value in read_values(stream):
        if value is None:
            yield Torn(line)
        elif isinstance(value, Document) or (isinstance(value, dict) and value.keys() >= _DOCUMENT_MEMBERS):
            for number, item in enumerate(_rows_of_document(value.value if isinstance(value, Document) else value), 1):
                yield _row_of(number, item)
        else:
            yield Row(line.number, value if isinstance(value, Problem) else _writable(value, line.body), line)


def _rows_of_document(document: Any) -> list[Any]:
    """Return the rows of a document: of a list its items, of an answer of an API those in it, else the document itself."""
    items = document.get(_ITEMS) if isinstance(document, dict) else document
    return items if isinstance(items, list) else [document]


def _row_of(number: int, item: Any) -> Row:
    if not isinstance(item, dict):
        return Row(number, Problem("not_an_object", f"the row is {json_type(item)}, not an object"))
    if is_too_deep(item):
        return Row(number, Problem("too_deep", f"the row nests deeper than {MAX_DEPTH} levels"))
    return Row(number, mended(item))


def _writable(value: Json, body: bytes) -> Json:
    r"""Return the value with its texts repaired where a half of a surrogate pair may be in them (`\ud83d`)."""
    return mended(value) if b"\\ud" in body or b"\\uD" in body else value


def _array_rows(path: Path, detected: _DetectedFormat) -> Iterator[Row]:
    packed = _DUCKDB_COMPRESSION[detected.packed]
    options = f"format='array', compression='{packed}', maximum_object_size={MAX_LINE}"
    statement = f"SELECT json::VARCHAR FROM read_json_objects(?, {options})"  # noqa: S608 - words of ours
    for number, (text,) in enumerate(_fetch(path, statement), 1):
        line = Line(number, text.encode("utf-8", "surrogatepass"), len(text), ended=True)
        value = decode_line(line)
        yield Row(number, value if isinstance(value, Problem) else _writable(value, line.body), line)


class _DetectedFormat(NamedTuple):
    """The format of a file, and how it is packed, if it is."""

    form: Format
    packed: Kind | None


def parquet_columns(path: Path) -> list[str]:
    """Return the columns of a Parquet file, which it has without rows, too."""
    return [name for name, *_ in _fetch(path, f"DESCRIBE SELECT * FROM {_PARQUET}")]  # noqa: S608 - a constant


class Format(StrEnum):
    """The formats that hold exchanges, by their names for people."""

    JSON = "JSON"
    CSV = "CSV"
    PARQUET = "Parquet"


def detect_format(path: Path) -> _DetectedFormat:
    """Return the format of a file. Raises InputError if it holds no exchanges, or something else than its name says."""
    packed = _detect_packing(path)
    with _open_unpacked(path) as stream:
        head = stream.read(HEAD)
    kind = exchanges_kind(head)
    suffix_form = SUFFIXES.get(Path(path.stem).suffix if path.suffix in PACKED else path.suffix)
    if suffix_form is Format.CSV and kind is TEXT:
        kind = CSV  # a table of one column has no separator
    if kind not in _FORMATS or (kind is PARQUET and packed is not None):
        assert kind is not None  # noqa: S101 - JSON is a format
        raise InputError(f"{path}: is {kind.name}, not {WORDS}", hint=kind.hint)
    if suffix_form not in (None, _FORMATS[kind]):
        name = "JSON" if kind is None else kind.name
        raise InputError(f"{path}: is {name}, not {suffix_form} as its name says", hint="Name the file by what it holds.")
    return _DetectedFormat(_FORMATS[kind], packed)


def _detect_packing(path: Path) -> Kind | None:
    try:
        with path.open("rb") as stream:
            kind = binary_kind(stream.read(HEAD))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", hint="Check the path and its permissions.") from error
    return kind if kind in PACKED.values() else None


def unlike_exchanges(head: bytes) -> Kind | None:
    """Return the kind of a file that holds no exchanges; None for one that may. The content of a packed file is checked when it is unpacked."""
    kind = exchanges_kind(head)
    return None if kind in (None, CSV, PARQUET, TEXT, GZIP, ZSTANDARD) else kind


csv.field_size_limit(MAX_LINE)


SUFFIXES = {
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".parquet": Format.PARQUET,
}
"""What the name of a file says of its format."""
PATTERNS = tuple(f"*{suffix}{packed}" for suffix in SUFFIXES for packed in ("", *PACKED) if not packed or suffix != ".parquet")
_FORMATS: dict[Kind | None, Format] = {CSV: Format.CSV, PARQUET: Format.PARQUET, None: Format.JSON}
