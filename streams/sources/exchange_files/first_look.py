"""A first look at a file of exchanges: its format, the export that it is, or the mapping that its columns suggest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from audit.redaction import Redactor
from schemas.errors import InputError
from streams.sources.exchange_files.formats import Format, told
from streams.sources.exchange_files.mapping import REQUIRED, Fields, Source
from streams.sources.exchange_files.own_export import EXCHANGES, table_of
from streams.sources.exchange_files.proposals import proposed, time_problem
from streams.sources.exchange_files.rows import Json, Row, parquet_columns, read_rows
from streams.sources.exchange_files.span_exports import SPAN_EXPORTS, SpanExport
from streams.sources.exchange_files.values import find

LOOKED = 100
"""Rows that a first look reads."""
OWN = "Driftline's export"
_NAMED = 40
"""Columns that an error names."""


class Layout(NamedTuple):
    """A way to read the rows of a file: as our own export, as spans, or by a mapping."""

    own: bool = False
    export: SpanExport | None = None
    fields: Fields | None = None

    @property
    def name(self) -> str:
        """The name of what the file is."""
        return OWN if self.own else self.export.name if self.export is not None else "a table"

    @property
    def key(self) -> str:
        """A text that differs where the rows would be read in another way."""
        return self.name if self.fields is None else self.fields.model_dump_json()


class Prefilter(NamedTuple):
    """The result of a first look. `sources` are the proposed mapping of a table, or the given one.

    `time_problem` says why a column that is named like a time is none.
    """

    path: Path
    form: Format
    columns: Sequence[str]
    own_table: str | None = None
    export: SpanExport | None = None
    sources: Mapping[str, Source] = {}
    time_problem: str | None = None

    @property
    def missing(self) -> list[str]:
        """The required fields that no column gives."""
        return [] if self.own_table or self.export else [name for name in REQUIRED if name not in self.sources]

    def layout(self, redactor: Redactor) -> Layout:
        """Return how the file is read; InputError that names the field where a required one has no column."""
        if self.own_table is not None:
            if self.own_table != EXCHANGES:
                raise InputError(
                    f"{self.path}: is Driftline's table {self.own_table}, not exchanges",
                    hint="Give the file exchanges.parquet.",
                )
            return Layout(own=True)
        if self.export is not None:
            return Layout(export=self.export)
        if self.missing:
            names = ", ".join(self.columns[:_NAMED]) + (", …" if len(self.columns) > _NAMED else "")
            # The first row of a table without a header holds more than names.
            shown = redactor.redact(names)[0]
            fields = ", ".join(self.missing)
            problem = "" if self.time_problem is None else f"The {redactor.redact(self.time_problem)[0]}. "
            hint = f"{problem}Its columns: {shown}. Write a mapping with --save-map map.yaml, name the column in it, import with --map map.yaml."
            raise InputError(f"{self.path}: no column gives {fields}", hint=hint)
        return Layout(fields=_fields(self.sources))


def look(path: Path, given: Fields | None = None) -> Prefilter:
    """Look at a file. InputError where it holds no exchanges, or where a given mapping names a column that it does not have."""
    form = told(path).form
    rows = list(_first_rows(path))
    columns = parquet_columns(path) if form is Format.PARQUET else list(dict.fromkeys(name for row in rows for name in row))
    table = None if given is not None else table_of(path, columns)
    if not rows and table is None:
        raise InputError(f"{path}: holds no row that can be read", hint="Check how it was written, or name another file.")
    if given is not None:
        _require_columns(path, given, rows, form)
        return Prefilter(path, form, columns, sources=given.sources())
    export = next((one for one in SPAN_EXPORTS if one.known_by(frozenset(columns))), None) if table is None else None
    sources = proposed(rows) if table is None and export is None else {}
    problem = time_problem(rows) if sources and "occurred_at" not in sources else None
    return Prefilter(path, form, columns, table, export, sources, problem)


def _first_rows(path: Path) -> Iterator[Json]:
    with closing(read_rows(path)) as rows:
        read = (row.value for row in islice(rows, LOOKED) if isinstance(row, Row))
        yield from (value for value in read if isinstance(value, dict))


def _require_columns(path: Path, given: Fields, rows: Sequence[Json], form: Format) -> None:
    """InputError where no row looked at has the column of a field. In JSON an optional one may come later."""
    for name, source in given.sources().items():
        is_fixed = form is not Format.JSON and source.column is not None and "." not in source.column
        if source.column is None or not (name in REQUIRED or is_fixed):
            continue
        if not any(source.column in row or find(row, source.column) is not None for row in rows):
            hint = "Correct the mapping: --dry-run without --map shows what the columns are."
            raise InputError(f"{path}: no column {source.column}, which the mapping names for {name}", hint=hint)


def _fields(sources: Mapping[str, Source]) -> Fields:
    labels = {name.removeprefix("labels."): source for name, source in sources.items() if name.startswith("labels.")}
    own: dict[str, Any] = {name: source for name, source in sources.items() if not name.startswith("labels.")}
    return Fields(**own, labels=labels)
