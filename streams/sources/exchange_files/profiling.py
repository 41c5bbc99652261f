"""Profiles a file of exchanges: detects its format and the program that exported it, or else proposes a mapping.

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
    as_json,
    find_helper_output,
    find_value,
    read_answer,
    read_count,
    read_input_tokens,
    read_name,
    read_output_tokens,
    read_question,
    read_time,
)
from streams.sources.exchange_files.rows import Format, Json, Row, detect_format, parquet_columns, read_rows
from streams.sources.exchange_files.span_exports import SPAN_EXPORTS, SpanExport
from streams.sources.exchange_files.tables import EXCHANGES, table_of

PROFILED_ROWS = 100
"""Number of rows read for a profile."""
OWN_EXPORT = "Driftline's export"
_NAMED_COLUMNS = 40
"""Maximum number of columns that an error lists."""
MAX_COLUMN_DEPTH = 4
"""Maximum depth of nested objects that are searched for columns."""
MAX_PATHS = 1_000
"""Maximum number of columns and nested columns that are examined."""
MIN_FITTING_SHARE = 0.8
"""Minimum share of a column's values that have to fit the field."""
COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
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
"""Usual column names of each field, the best ones first. Only letters and digits are compared."""
UNIQUE_FIELDS = frozenset({"exchange_id"})
"""Fields whose values differ, except in repeated rows. A column `id` with few distinct values may be that of a session or a user."""
FALLBACK_FIELDS = {"session_id": "exchange_id"}
"""The field whose column is used if a field has no column. Each row is then a separate session."""
TIME_FORMATS = (
    "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M",
    "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d",
)  # fmt: skip
"""Formats that are tried if a column is neither ISO 8601 nor numeric. If several fit, none is used."""
_AMBIGUOUS_NAMES = frozenset({"id", "name", "text", "content", "value"})
"""Names that are ambiguous without the name of the object around them."""
_PUNCTUATION = re.compile(r"[^a-z0-9]")
_TOKEN_READERS: Mapping[str, Callable[[Any], int | None]] = {
    "input_tokens": read_input_tokens,
    "output_tokens": read_output_tokens,
}


class Layout(NamedTuple):
    """The way to read the rows of a file: as Driftline's own export, as spans, or by a mapping."""

    is_own_export: bool = False
    export: SpanExport | None = None
    fields: Fields | None = None

    @property
    def name(self) -> str:
        """Name of the layout."""
        if self.is_own_export:
            return OWN_EXPORT
        return "a table" if self.export is None else self.export.name

    @property
    def key(self) -> str:
        """Text that differs for layouts that read rows differently."""
        return self.name if self.fields is None else self.fields.model_dump_json()


class FileProfile(NamedTuple):
    """What the first rows of a file show. `sources` is the mapping of a table: the user's mapping, or a proposed one.

    `time_problem` is the reason why a column with the name of a time cannot be read.
    """

    path: Path
    file_format: Format
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
        """Return the layout of the file. Raises InputError that names the required fields without a column."""
        if self.own_table is not None:
            if self.own_table != EXCHANGES:
                raise InputError(
                    f"{self.path}: is Driftline's table {self.own_table}, not exchanges",
                    hint="Give the file exchanges.parquet instead.",
                )
            return Layout(is_own_export=True)
        if self.export is not None:
            return Layout(export=self.export)
        if self.missing:
            raise self._build_missing_columns_error(redactor)
        return Layout(fields=_build_fields(self.sources))

    def _build_missing_columns_error(self, redactor: Redactor) -> InputError:
        names = ", ".join(self.columns[:_NAMED_COLUMNS])
        if len(self.columns) > _NAMED_COLUMNS:
            names += ", …"
        # Without a header, the first row of a table is data, which may hold secrets.
        columns = redactor.redact(names)[0]
        problem = "" if self.time_problem is None else f"The {redactor.redact(self.time_problem)[0]}. "
        return InputError(
            f"{self.path}: no column gives {', '.join(self.missing)}",
            hint=f"{problem}Its columns: {columns}. Name one with --set {self.missing[0]}=COLUMN, "
            "or write a mapping with --save-map map.yaml, name the columns in it, and import the file with --map map.yaml.",
        )


def _build_fields(sources: Mapping[str, Source]) -> Fields:
    fields: dict[str, Any] = {}
    labels: dict[str, Source] = {}
    for name, source in sources.items():
        if name.startswith("labels."):
            labels[name.removeprefix("labels.")] = source
        else:
            fields[name] = source
    return Fields(**fields, labels=labels)


def profile_file(path: Path, mapping: Fields | None = None, columns_by_field: Mapping[str, str] = {}) -> FileProfile:
    """Profile a file by its first rows. `columns_by_field` overrides the mapping, or the proposed one, field by field.

    Raises InputError if the file holds no exchanges, if the mapping or `columns_by_field` names a column that the file lacks, or if
    `columns_by_field` is given for a known export.
    """
    file_format = detect_format(path).file_format
    rows = list(_read_first_rows(path))
    columns = (
        parquet_columns(path) if file_format is Format.PARQUET else list(dict.fromkeys(name for row in rows for name in row))
    )
    own_table = None if mapping is not None else table_of(path, columns)
    if not rows and own_table is None:
        raise InputError(f"{path}: has no readable row", hint="Check how the file was written, or name another file.")
    named = {field: _name_column(field, column, rows) for field, column in columns_by_field.items()}
    export = None if mapping is not None or own_table is not None else _find_export(columns)
    if named and (own_table is not None or export is not None):
        layout_name = OWN_EXPORT if export is None else export.name
        raise InputError(f"{path}: is {layout_name}, whose columns are known", hint="Import it without --set, or give --map.")
    if mapping is not None:
        sources = {**mapping.sources(), **named}
        _require_columns(path, sources, rows, file_format)
        return FileProfile(path, file_format, columns, sources=sources)
    if own_table is not None:
        return FileProfile(path, file_format, columns, own_table)
    if export is not None:
        return FileProfile(path, file_format, columns, export=export)
    _require_columns(path, named, rows, file_format)
    sources = propose_sources(rows) | named
    problem = find_time_problem(rows) if sources and "occurred_at" not in sources else None
    return FileProfile(path, file_format, columns, sources=sources, time_problem=problem)


def _find_export(columns: Sequence[str]) -> SpanExport | None:
    for export in SPAN_EXPORTS:
        if export.matches_columns(frozenset(columns)):
            return export
    return None


def _read_first_rows(path: Path) -> Iterator[Json]:
    with closing(read_rows(path)) as rows:
        for row in islice(rows, PROFILED_ROWS):
            if isinstance(row, Row) and isinstance(row.value, dict):
                yield row.value


def _name_column(field: str, column: str, rows: Sequence[Json]) -> Source:
    """Return a column that the user names as the source of a field. The format of a time is recognized."""
    if field != "occurred_at":
        return Source(column=column)
    values = [value for value in (find_value(row, column) for row in rows) if value not in (None, "")]
    return _find_time_source(_Column(column, frozenset(), values)) or TimeSource(column=column)


def _require_columns(path: Path, sources: Mapping[str, Source], rows: Sequence[Json], file_format: Format) -> None:
    """Raise InputError if no row has the column of a field. In JSON, the column of an optional field may appear in later rows."""
    for name, source in sources.items():
        is_fixed = file_format is not Format.JSON and source.column is not None and "." not in source.column
        if source.column is None or not (name in REQUIRED or is_fixed):
            continue
        if not any(source.column in row or find_value(row, source.column) is not None for row in rows):
            hint = "Correct it there. --dry-run without --map and --set lists the columns."
            raise InputError(f"{path}: has no column {source.column}, which the mapping or --set names for {name}", hint=hint)


def propose_sources(rows: Sequence[Json]) -> dict[str, Source]:
    """Return the sources of all fields for which these rows have a fitting column."""
    columns = list(_list_columns(rows))
    sources: dict[str, Source] = {}
    for field, names in COLUMN_NAMES.items():
        source = next(_find_fitting_sources(field, names, columns), None)
        if source is not None:
            sources[field] = source
    for field, substitute in FALLBACK_FIELDS.items():
        if field not in sources and substitute in sources:
            sources[field] = sources[substitute]
    for field, read_tokens in _TOKEN_READERS.items():
        usage = _find_usage_source(sources.get(field), read_tokens, rows)
        if usage is not None:
            sources[field] = usage
    return sources


def _list_columns(rows: Sequence[Json]) -> Iterator[_Column]:
    """Yield the columns of the rows and of their nested objects, outermost first, with their values."""
    paths = dict.fromkeys(path for row in rows for path in _list_paths(row, MAX_COLUMN_DEPTH))
    for path in sorted(list(paths)[:MAX_PATHS], key=lambda path: path.count(".")):
        values = [value for value in (find_value(row, path) for row in rows) if value not in (None, "")]
        yield _Column(path, _normalise_names(path), values)


class _Column(NamedTuple):
    path: str
    names: frozenset[str]
    values: list[Any]


def _list_paths(value: Mapping[str, Any], depth: int, prefix: str = "") -> Iterator[str]:
    for name, inner_value in value.items():
        path = f"{prefix}{name}"
        yield path
        inner = as_json(inner_value) if isinstance(inner_value, str) else inner_value
        if isinstance(inner, Mapping) and depth > 1:
            yield from _list_paths(inner, depth - 1, f"{path}.")


def _normalise_names(path: str) -> frozenset[str]:
    """Return the names of a column: the last step of its path, and the last two steps. An ambiguous step, such as `id`, is no name alone."""
    *around, last = map(_normalise_name, path.split("."))
    pair = "".join((*around[-1:], last))
    return frozenset({pair} if around and last in _AMBIGUOUS_NAMES else {last, pair})


def _normalise_name(name: str) -> str:
    return _PUNCTUATION.sub("", name.lower())


def _find_fitting_sources(field: str, names: Sequence[str], columns: Sequence[_Column]) -> Iterator[Source]:
    """Yield the possible sources of a field, the best ones first: by the order of its names, then outer columns before nested ones."""
    for name in map(_normalise_name, names):
        for column in columns:
            source = _build_source(field, column) if name in column.names else None
            if source is not None:
                yield source


def _build_source(field: str, column: _Column) -> Source | None:
    """Return a column as the source of a field; None if its values do not fit."""
    if field == "occurred_at":
        return _find_time_source(column)
    if field in UNIQUE_FIELDS and len(set(map(str, column.values))) < MIN_FITTING_SHARE * len(column.values):
        return None
    # Conversations without answers have the same shape as those with answers, so at least one value needs an answer.
    answers = [value for value in column.values if find_helper_output(value) is None]
    if field == "agent_response" and not any(map(_reads_value(_has_spoken_text(read_answer)), answers)):
        return None
    return Source(column=column.path) if _fits_most(_FIELD_TESTS[field], column) else None


def _find_time_source(column: _Column) -> TimeSource | None:
    plain = TimeSource(column=column.path)
    if _is_time(plain, column):
        return plain
    formats = [TimeSource(column=column.path, format=file_format) for file_format in TIME_FORMATS]
    fitting = [source for source in formats if _is_time(source, column)]
    return fitting[0] if len(fitting) == 1 else None


def _is_time(source: TimeSource, column: _Column) -> bool:
    return _fits_most(_reads_value(lambda value: read_time(value, source)), column)


def _fits_most(fits: Callable[[Any], bool], column: _Column) -> bool:
    """Return whether most values fit. A few broken rows may occur in any table."""
    return bool(column.values) and sum(map(fits, column.values)) >= MIN_FITTING_SHARE * len(column.values)


def _reads_value(read: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        try:
            return bool(read(value))
        except ValueError:
            return False

    return fits


def _has_spoken_text(read: Callable[[Any], str]) -> Callable[[Any], bool]:
    """Return a test for texts and conversations in which `read` finds a text. Numbers are no texts."""

    def has_text(value: Any) -> bool:
        return isinstance(value, str | list | dict) and bool(read(value).strip())

    return has_text


def _find_usage_source(source: Source | None, read_tokens: Callable[[Any], int | None], rows: Sequence[Json]) -> Source | None:
    """Return the usage object around a token count, if it gives another number. Anthropic's input count excludes cached tokens."""
    if source is None or source.column is None:
        return None
    parent = source.column.rpartition(".")[0]
    if not parent:
        return None
    for row in rows:
        total = _try_read_count(read_tokens, find_value(row, parent))
        if total is not None and total != _try_read_count(read_tokens, find_value(row, source.column)):
            return Source(column=parent)
    return None


def _try_read_count(read: Callable[[Any], int | None], value: Any) -> int | None:
    try:
        return read(value)
    except ValueError:
        return None


def find_time_problem(rows: Sequence[Json]) -> str | None:
    """Return the reason why a column with the name of a time cannot be read, with one of its values; None if there is no such column."""
    names = set(map(_normalise_name, COLUMN_NAMES["occurred_at"]))
    for column in _list_columns(rows):
        if names.isdisjoint(column.names):
            continue
        for value in column.values:
            try:
                read_time(value, TimeSource(column=column.path))
            except ValueError as error:
                return f"column {column.path}: {error}"
    return None


def _is_count(value: Any) -> bool:
    return read_count(value) is not None


def _may_be_answer(value: Any) -> bool:
    """Return whether a value may be an answer. Helper outputs in a proxy's log count, too: their rows are set aside later."""
    return isinstance(value, str | list | dict) and (find_helper_output(value) is not None or read_answer(value) is not None)


_FIELD_TESTS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(COLUMN_NAMES, _reads_value(read_name)),
    **dict.fromkeys(("input_tokens", "output_tokens", "turn_number"), _reads_value(_is_count)),
    "user_message": _reads_value(_has_spoken_text(read_question)),
    "agent_response": _reads_value(_may_be_answer),
    "agent_thinking": _reads_value(_has_spoken_text(read_answer)),
}
