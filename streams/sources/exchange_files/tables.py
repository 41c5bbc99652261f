"""Converts rows to exchanges: rows of any table by a mapping, and rows of Driftline's own export to the original records.

1. Without an id column, the id of an exchange is derived from session, time, question and answer, and a counter for equal rows. So the same rows
   give the same ids in any file and in any later export.
2. Rows of Driftline's table `exchanges` keep connection, project, id, labels and digest, so that an import into an empty database restores the same
   exchanges. They are redacted again, because redaction may have been off where the export was made.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from audit.diagnosis.duplicate_rules import read_digest
from audit.exchanges.context import OK, UNANSWERED
from audit.exchanges.labels import read_labels
from audit.fingerprints import stable_id
from schemas.bounds import TOOL_OUTCOMES
from schemas.contract import check_record
from schemas.errors import RecordError
from schemas.records import Exchange, Label, Redaction
from schemas.registry import current_schemas
from streams.sources.exchange_builder import (
    DraftCall,
    ExchangeDraft,
    ExchangeSettings,
    RedactedTexts,
    build_exchange,
    clean_call,
    write_text,
)
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
from streams.sources.exchange_files.rows import Json
from streams.sources.lines import Problem
from streams.sources.openclaw.tree import outcome_of
from streams.sources.source import ReadingContext

MAX_COUNTED_CONTENTS = 65_536
"""Maximum number of recent contents without an id among which equal ones are counted."""
_MAY_BE_EMPTY = frozenset({"agent_response"})
"""Required fields that may be empty in a row: an agent may give no answer."""
EXCHANGES = "exchanges"
EXPORT_COLUMNS = frozenset(
    {"exchange_id", "connection", "project", "session_id", "user_message", "agent_response", "content_digest"}
)
"""Columns that identify an export of exchanges. In a partitioned export, the project is in the name of the folder instead."""
TABLE_COLUMNS = frozenset({"_topic", "_partition", "_offset"})
"""Columns that all exported tables have."""
TABLE_NAMES = frozenset(schema.table for schema in current_schemas().values())
_TEXTS = ("user_message", "agent_response", "agent_thinking", "raw_user_message")
_NAMES = ("agent", "agent_model", "stop_reason")
_FIELDS = frozenset(Exchange.__struct_fields__)


class TableReader:
    """Converts the rows of one file to exchanges, in order."""

    def __init__(self, fields: Fields, context: ReadingContext) -> None:
        self._sources = dict(fields.sources())
        self._context = context
        self._settings = ExchangeSettings(
            connection=context.connection,
            project=context.project,
            ingested_at=context.ingested_at,
            redact=context.redactor.redact,
            agent=context.agent,
        )
        self._equal_counts: OrderedDict[str, int] = OrderedDict()

    def exchange(self, row: Json) -> Exchange | Problem:
        """Return the exchange of a row, or the reason why it cannot be read."""
        cells = self._read_cells(row)
        if isinstance(cells, Problem):
            return cells
        try:
            labels = read_labels(cells.labels or None, self._context.redactor)
            exchange = self._build(cells.values, labels)
            check_record(exchange, self._context.ingested_at)
        except RecordError as error:
            return Problem("bounds", str(error).removeprefix("Exchange."))
        return exchange

    def _read_cells(self, row: Json) -> _Cells | Problem:
        values: dict[str, Any] = {}
        labels: dict[str, str] = {}
        for name, source in self._sources.items():
            value = source.value if source.column is None else find_value(row, source.column)
            label = name.removeprefix("labels.") if name.startswith("labels.") else None
            try:
                read = read_name(value) if label is not None else _READERS[name](value, source)
            except ValueError as error:
                return Problem("wrong_type", f"{name}: {_describe_source(source)} {error}")
            if label is None:
                values[name] = read
            elif read is not None:
                labels[label] = read
        for name in REQUIRED:
            if name not in _MAY_BE_EMPTY and not values[name]:
                return Problem("missing_field", f"{name}: {_describe_source(self._sources[name])} is empty")
        return _Cells(values, labels)

    def _build(self, values: Mapping[str, Any], labels: tuple[Label, ...]) -> Exchange:
        question = values["user_message"]
        answer = values["agent_response"]
        at = values["occurred_at"]
        session = values["session_id"]
        stop = values.get("stop_reason")
        draft = ExchangeDraft(
            exchange_id=values.get("exchange_id") or self._build_id(session, at, question, answer),
            session_id=session,
            at=at,
            question=question,
            answer=answer,
            outcome=outcome_of(answer, stop),
            thinking=values.get("agent_thinking"),
            agent=values.get("agent"),
            turn_number=values.get("turn_number"),
            model=values.get("agent_model"),
            input_tokens=values.get("input_tokens"),
            output_tokens=values.get("output_tokens"),
            stop_reason=stop,
            labels=labels,
            tool_calls=values.get("tool_calls") or (),
        )

        def identify(clean: RedactedTexts) -> str:
            return read_digest(clean.question, clean.answer, clean.thinking, at)

        return build_exchange(draft, self._settings, identify)

    def _build_id(self, session: str, at: datetime, question: str, answer: str) -> str:
        content = stable_id("exchange-content", session, at.isoformat(), question, answer)
        earlier = self._equal_counts.pop(content, 0)
        self._equal_counts[content] = earlier + 1
        if len(self._equal_counts) > MAX_COUNTED_CONTENTS:
            self._equal_counts.popitem(last=False)
        return content if not earlier else stable_id("exchange-content", content, earlier)


class _Cells(NamedTuple):
    values: dict[str, Any]
    labels: dict[str, str]


def _describe_source(source: Source) -> str:
    return "its value" if source.column is None else f"column {source.column}"


def table_of(path: Path, columns: Collection[str]) -> str | None:
    """Return the name of the table in a file of an export, which may be partitioned; None for any other file."""
    if set(columns) >= EXPORT_COLUMNS - {"project"}:
        return EXCHANGES
    folder, project, day = ("", "", "", *path.parent.parts)[-3:]
    is_partition = folder in TABLE_NAMES and project.startswith("project=") and day.startswith("day=")
    if is_partition:
        return folder
    return path.stem if set(columns) >= TABLE_COLUMNS and path.stem in TABLE_NAMES else None


def exported_exchange(row: Json, context: ReadingContext) -> Exchange | Problem:
    """Return the exchange of an exported row, or the reason why it cannot be read."""
    fields = {name: _add_utc(value) for name, value in row.items() if name in _FIELDS and value is not None}
    if context.agent is not None:
        fields["agent"] = context.agent
    try:
        exchange = _redact(msgspec.convert(fields, Exchange), context)
        check_record(exchange, context.ingested_at)
    except msgspec.ValidationError as error:
        return Problem("wrong_type", str(error))
    except RecordError as error:
        return Problem("bounds", str(error).removeprefix("Exchange."))
    return exchange


def _add_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _redact(exchange: Exchange, context: ReadingContext) -> Exchange:
    redacted: Counter[str] = Counter()
    clean: dict[str, Any] = {}
    for name in (*_TEXTS, *_NAMES):
        text = getattr(exchange, name)
        if text is not None:
            clean[name], counts = context.redactor.redact(text)
            # The raw text repeats the message, so its secrets are not counted again. Secrets in names are not counted.
            redacted.update(counts if name in _TEXTS[:3] else ())
    labels = context.redactor.redact_json({label.name: label.value for label in exchange.labels})[0]
    clean["tool_calls"] = tuple(clean_call(call, context.redactor.redact_text) for call in exchange.tool_calls)
    clean["labels"] = tuple(
        msgspec.structs.replace(label, value=labels.get(label.name, label.value)) for label in exchange.labels
    )
    if redacted:
        for redaction in exchange.redactions:
            redacted[redaction.kind] += redaction.count
        clean["redactions"] = tuple(Redaction(kind=kind, count=count) for kind, count in sorted(redacted.items()))
    return msgspec.structs.replace(exchange, **clean)


def _read_time(value: Any, source: Source) -> datetime | None:
    return read_time(value, source if isinstance(source, TimeSource) else TimeSource(column="-"))


def _read_answer(value: Any) -> str:
    """Return the agent's answer. Raises ValueError if the value is the output of a helper model."""
    helper_output = find_helper_output(value)
    if helper_output is not None:
        raise ValueError(f"has {helper_output}, which are not an agent's answer")
    return read_answer(value)


def _read_calls(value: Any) -> tuple[DraftCall, ...]:
    """Return the tool calls in a column, in the form of the body of `POST ingest`. Raises ValueError for any other form."""
    items = as_json(value) if isinstance(value, str) else value
    if items in (None, ""):
        return ()
    if not isinstance(items, list) or not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
        raise ValueError("is not a list of tool calls, each with a name")
    calls = []
    for item in items:
        arguments, result = write_text(item.get("arguments")), write_text(item.get("result"))
        outcome = item.get("outcome") or (UNANSWERED if result is None else OK)
        if outcome not in TOOL_OUTCOMES:
            raise ValueError(f"has a tool call whose outcome is none of {', '.join(TOOL_OUTCOMES)}")
        calls.append(DraftCall(item["name"], arguments, result, outcome))
    return tuple(calls)


_READERS: Mapping[str, Callable[[Any, Source], Any]] = {
    **dict.fromkeys(
        ("exchange_id", "session_id", "agent", "agent_model", "stop_reason"), lambda value, _source: read_name(value)
    ),
    "tool_calls": lambda value, _source: _read_calls(value),
    "turn_number": lambda value, _source: read_count(value),
    "input_tokens": lambda value, _source: read_input_tokens(value),
    "output_tokens": lambda value, _source: read_output_tokens(value),
    "occurred_at": _read_time,
    "user_message": lambda value, _source: read_question(value),
    "agent_response": lambda value, _source: _read_answer(value),
    "agent_thinking": lambda value, _source: read_answer(value) or None,
}
"""Function that reads the value of each field."""
