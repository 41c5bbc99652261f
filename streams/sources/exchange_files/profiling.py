"""Profile of a file of exchanges: its format, and the export it is or the mapping that its columns suggest.

A mapping is proposed from the names of a table's columns and from its first rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from audit.redaction import Redactor
from schemas.errors import InputError
from streams.sources.exchange_files.mapping import (
    REQUIRED,
    Fields,
    Source,
    TimeSource,
    answer_in,
    as_json,
    count_in,
    find_value,
    helper_output_in,
    input_tokens_in,
    name_in,
    output_tokens_in,
    question_in,
    time_in,
)
from streams.sources.exchange_files.rows import Format, Json, Row, detect_format, parquet_columns, read_rows
from streams.sources.exchange_files.span_exports import SPAN_EXPORTS, SpanExport
from streams.sources.exchange_files.tables import EXCHANGES, table_of

PROFILED_ROWS = 100
"""Rows read for a profile."""
OWN = "Driftline's export"
_NAMED_COLUMNS = 40
"""Columns that an error lists."""
DEPTH = 4
"""Levels of nested objects searched for columns."""
MAX_PATHS = 1_000
MIN_FITTING = 0.8
"""Share of a column's values that have to fit the field."""
NAMES: Mapping[str, tuple[str, ...]] = {
    "user_message": (
        "user_message", "user_input", "user_query", "user_prompt", "user_text", "question", "prompt", "query", "input",
        "inputs", "request", "human", "user", "instruction", "messages", "conversation",
    ),
    "agent_response": (
        "agent_response", "assistant_response", "model_response", "response", "answer", "output", "outputs", "completion",
        "reply",
        "assistant", "generated_text", "generation", "model_output", "messages", "conversation",
    ),
    "session_id": (
        # In LangSmith, session_id is a project and thread_id the conversation.
        "thread_id", "conversation_id", "session_id", "session", "conversation", "thread", "chat_id", "dialog_id", "dialogue_id",
        "trace_id",
    ),
    "occurred_at": (
        "occurred_at", "timestamp", "created_at", "created", "created_time", "start_time", "started_at", "request_time",
        "event_time", "datetime", "time", "date", "ts",
    ),
    "exchange_id": ("exchange_id", "message_id", "request_id", "response_id", "run_id", "id", "uuid"),
    "turn_number": ("turn_number", "turn", "turn_index"),
    "agent": ("agent", "agent_name", "agent_id", "assistant_name", "bot", "bot_name"),
    "agent_model": ("agent_model", "model", "model_name", "model_id", "llm", "llm_model", "engine"),
    "agent_thinking": ("agent_thinking", "thinking", "reasoning", "reasoning_content", "chain_of_thought"),
    "stop_reason": ("stop_reason", "finish_reason"),
    "input_tokens": ("input_tokens", "prompt_tokens", "tokens_in", "num_input_tokens", "token_count_prompt"),
    "output_tokens": ("output_tokens", "completion_tokens", "tokens_out", "num_output_tokens", "token_count_completion"),
}  # fmt: skip
"""Column names for each field, the best first. Only letters and digits are compared."""
UNIQUE = frozenset({"exchange_id"})
"""Fields that are unique except for repeated rows: an `id` may instead be that of a session or a user."""
SUBSTITUTES = {"session_id": "exchange_id"}
"""The field whose column is used if a field has none: then each row is a separate session."""
TIME_FORMATS = (
    "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M",
    "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d",
)  # fmt: skip
"""Formats tried if a column is neither ISO 8601 nor numeric. If two fit, none is used."""
_AMBIGUOUS_NAMES = frozenset({"id", "name", "text", "content", "value"})
"""Names that mean nothing without the name of their object."""
_PUNCTUATION = re.compile(r"[^a-z0-9]")
_TOKENS: Mapping[str, Callable[[Any], int | None]] = {"input_tokens": input_tokens_in, "output_tokens": output_tokens_in}


class Layout(NamedTuple):
    """How to read the rows of a file: as Driftline's own export, as spans, or by a mapping."""

    own: bool = False
    export: SpanExport | None = None
    fields: Fields | None = None

    @property
    def name(self) -> str:
        """Name of the file's kind."""
        if self.own:
            return OWN
        return "a table" if self.export is None else self.export.name

    @property
    def key(self) -> str:
        """Text that changes with the way rows are read."""
        return self.name if self.fields is None else self.fields.model_dump_json()


class FileProfile(NamedTuple):
    """What the first rows of a file show. `sources` are the proposed mapping of a table, or the given one.

    `time_problem`: why a column with the name of a time cannot be read.
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
        """Required fields without a column."""
        if self.own_table or self.export:
            return []
        return [name for name in REQUIRED if name not in self.sources]

    def layout(self, redactor: Redactor) -> Layout:
        """Return how to read the file. Raises InputError that names the required fields without a column."""
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
            raise self._missing_columns(redactor)
        return Layout(fields=_fields(self.sources))

    def _missing_columns(self, redactor: Redactor) -> InputError:
        names = ", ".join(self.columns[:_NAMED_COLUMNS])
        if len(self.columns) > _NAMED_COLUMNS:
            names += ", …"
        # Without a header, the first row of a table is data, which may hold secrets.
        columns = redactor.redact(names)[0]
        problem = "" if self.time_problem is None else f"The {redactor.redact(self.time_problem)[0]}. "
        return InputError(
            f"{self.path}: no column gives {', '.join(self.missing)}",
            hint=f"{problem}Its columns: {columns}. "
            "Write a mapping with --save-map map.yaml, name the column in it, import with --map map.yaml.",
        )


def _fields(sources: Mapping[str, Source]) -> Fields:
    fields: dict[str, Any] = {}
    labels: dict[str, Source] = {}
    for name, source in sources.items():
        if name.startswith("labels."):
            labels[name.removeprefix("labels.")] = source
        else:
            fields[name] = source
    return Fields(**fields, labels=labels)


def profile_file(path: Path, mapping: Fields | None = None) -> FileProfile:
    """Profile a file by its first rows.

    Raises InputError if the file holds no exchanges, or if the mapping names a column that the file lacks.
    """
    form = detect_format(path).form
    rows = list(_first_rows(path))
    columns = parquet_columns(path) if form is Format.PARQUET else list(dict.fromkeys(name for row in rows for name in row))
    own_table = None if mapping is not None else table_of(path, columns)
    if not rows and own_table is None:
        raise InputError(f"{path}: has no readable row", hint="Check how it was written, or name another file.")
    if mapping is not None:
        _require_columns(path, mapping, rows, form)
        return FileProfile(path, form, columns, sources=mapping.sources())
    if own_table is not None:
        return FileProfile(path, form, columns, own_table)
    export = _find_export(columns)
    if export is not None:
        return FileProfile(path, form, columns, export=export)
    sources = propose_sources(rows)
    problem = find_time_problem(rows) if sources and "occurred_at" not in sources else None
    return FileProfile(path, form, columns, sources=sources, time_problem=problem)


def _find_export(columns: Sequence[str]) -> SpanExport | None:
    for export in SPAN_EXPORTS:
        if export.known_by(frozenset(columns)):
            return export
    return None


def _first_rows(path: Path) -> Iterator[Json]:
    with closing(read_rows(path)) as rows:
        for row in islice(rows, PROFILED_ROWS):
            if isinstance(row, Row) and isinstance(row.value, dict):
                yield row.value


def _require_columns(path: Path, mapping: Fields, rows: Sequence[Json], form: Format) -> None:
    """Raise InputError if no row has the column of a field. In JSON, an optional column may appear later."""
    for name, source in mapping.sources().items():
        is_fixed = form is not Format.JSON and source.column is not None and "." not in source.column
        if source.column is None or not (name in REQUIRED or is_fixed):
            continue
        if not any(source.column in row or find_value(row, source.column) is not None for row in rows):
            hint = "Correct the mapping: --dry-run without --map shows what the columns are."
            raise InputError(f"{path}: no column {source.column}, which the mapping names for {name}", hint=hint)


def propose_sources(rows: Sequence[Json]) -> dict[str, Source]:
    """Return the sources of the fields for which these rows have a column."""
    columns = list(_columns(rows))
    sources: dict[str, Source] = {}
    for field, names in NAMES.items():
        source = next(_fitting_sources(field, names, columns), None)
        if source is not None:
            sources[field] = source
    for field, substitute in SUBSTITUTES.items():
        if field not in sources and substitute in sources:
            sources[field] = sources[substitute]
    for field, read_count in _TOKENS.items():
        usage = _usage_source(sources.get(field), read_count, rows)
        if usage is not None:
            sources[field] = usage
    return sources


def _columns(rows: Sequence[Json]) -> Iterator[_Column]:
    """Yield the columns of the rows and of their nested objects, outermost first, with their values."""
    paths = dict.fromkeys(path for row in rows for path in _paths(row, DEPTH))
    for path in sorted(list(paths)[:MAX_PATHS], key=lambda path: path.count(".")):
        values = [value for row in rows if (value := find_value(row, path)) not in (None, "")]
        yield _Column(path, _names(path), values)


class _Column(NamedTuple):
    path: str
    names: frozenset[str]
    values: list[Any]


def _paths(value: Mapping[str, Any], depth: int, before: str = "") -> Iterator[str]:
    for name, inner_value in value.items():
        path = f"{before}{name}"
        yield path
        inner = as_json(inner_value) if isinstance(inner_value, str) else inner_value
        if isinstance(inner, Mapping) and depth > 1:
            yield from _paths(inner, depth - 1, f"{path}.")


def _names(path: str) -> frozenset[str]:
    """Return the names of a column: its last step and its last two, because an `id` alone is ambiguous."""
    *around, last = map(_plain_name, path.split("."))
    pair = "".join((*around[-1:], last))
    return frozenset({pair} if around and last in _AMBIGUOUS_NAMES else {last, pair})


def _plain_name(name: str) -> str:
    return _PUNCTUATION.sub("", name.lower())


def _fitting_sources(field: str, names: Sequence[str], columns: Sequence[_Column]) -> Iterator[Source]:
    """Yield sources of a field, the best first: by the order of its names, then outermost first."""
    for name in map(_plain_name, names):
        for column in columns:
            if name in column.names and (source := _source(field, column)) is not None:
                yield source


def _source(field: str, column: _Column) -> Source | None:
    """Return a column as the source of a field; None if its values do not fit."""
    if field == "occurred_at":
        return _time_source(column)
    if field in UNIQUE and len(set(map(str, column.values))) < MIN_FITTING * len(column.values):
        return None
    # A conversation with questions only has the same shape as one with answers.
    answers = [value for value in column.values if helper_output_in(value) is None]
    if field == "agent_response" and not any(map(_accepts(_has_spoken_text(answer_in)), answers)):
        return None
    return Source(column=column.path) if _fits_most(_FITS[field], column) else None


def _time_source(column: _Column) -> TimeSource | None:
    plain = TimeSource(column=column.path)
    if _is_time(plain, column):
        return plain
    formats = [TimeSource(column=column.path, format=form) for form in TIME_FORMATS]
    fitting = [source for source in formats if _is_time(source, column)]
    return fitting[0] if len(fitting) == 1 else None


def _is_time(source: TimeSource, column: _Column) -> bool:
    return _fits_most(_accepts(lambda value: time_in(value, source)), column)


def _fits_most(fits: Callable[[Any], bool], column: _Column) -> bool:
    """Return whether most values fit, because any table may have a few broken rows."""
    return bool(column.values) and sum(map(fits, column.values)) >= MIN_FITTING * len(column.values)


def _accepts(read: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        try:
            return bool(read(value))
        except ValueError:
            return False

    return fits


def _has_spoken_text(read: Callable[[Any], str]) -> Callable[[Any], bool]:
    """Return a test for texts and conversations from which `read` gets a text; a number is not one."""

    def is_said(value: Any) -> bool:
        return isinstance(value, str | list | dict) and bool(read(value).strip())

    return is_said


def _usage_source(source: Source | None, read_count: Callable[[Any], int | None], rows: Sequence[Json]) -> Source | None:
    """Return the usage object around a token count if it gives another number: Anthropic's input excludes cached tokens."""
    if source is None or source.column is None:
        return None
    parent = source.column.rpartition(".")[0]
    if not parent:
        return None
    for row in rows:
        total = _count(read_count, find_value(row, parent))
        if total is not None and total != _count(read_count, find_value(row, source.column)):
            return Source(column=parent)
    return None


def _count(read: Callable[[Any], int | None], value: Any) -> int | None:
    try:
        return read(value)
    except ValueError:
        return None


def find_time_problem(rows: Sequence[Json]) -> str | None:
    """Return why a column with the name of a time cannot be read, with one of its values; None if there is no such column."""
    names = set(map(_plain_name, NAMES["occurred_at"]))
    for column in _columns(rows):
        if names.isdisjoint(column.names):
            continue
        for value in column.values:
            try:
                time_in(value, TimeSource(column=column.path))
            except ValueError as error:
                return f"column {column.path}: {error}"
    return None


def _is_count(value: Any) -> bool:
    return count_in(value) is not None


def _may_be_answer(value: Any) -> bool:
    """Return whether a value may be an answer. Helper outputs in a proxy's log count, too: their rows are set aside later."""
    return isinstance(value, str | list | dict) and (helper_output_in(value) is not None or answer_in(value) is not None)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(NAMES, _accepts(name_in)),
    **dict.fromkeys(("input_tokens", "output_tokens", "turn_number"), _accepts(_is_count)),
    "user_message": _accepts(_has_spoken_text(question_in)),
    "agent_response": _accepts(_may_be_answer),
    "agent_thinking": _accepts(_has_spoken_text(answer_in)),
}
