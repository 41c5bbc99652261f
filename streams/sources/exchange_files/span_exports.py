"""Reads the rows of Phoenix's and Langfuse's exports as the spans that OTLP would have delivered.

Phoenix exports OpenInference's attributes as columns (`attributes.llm.model_name`). Lists of messages are values, which pandas writes into CSV as
Python literals. Langfuse exports observations or traces. Field names are in camelCase in exports from its pages, and in snake_case in buckets.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from schemas.bounds import CLOCK_TOLERANCE, MAX_ID
from streams.sources.exchange_files.mapping import (
    TimeSource,
    as_json,
    find_value,
    read_answer,
    read_conversation,
    read_count,
    read_name,
    read_question,
    read_time,
)
from streams.sources.exchange_files.rows import Json
from streams.sources.lines import Problem
from streams.sources.otlp.received import Event, ReceivedSpan
from streams.sources.source import ReadingContext

MAX_LITERAL = 4 * 1024 * 1024
"""Maximum length of a cell that is parsed as a Python literal."""
MAX_FLAT = 4_096
"""Maximum number of attributes into which lists of messages are flattened."""
_TIME = TimeSource(column="-")
_MAX_EVENTS = 1_024
_PREFIX = "attributes."


class SpanExport(NamedTuple):
    """A kind of export: its name, a test of its columns, and a function that reads the spans of a row."""

    name: str
    matches_columns: Callable[[frozenset[str]], bool]
    spans: Callable[[Json, ReadingContext], Iterator[ReceivedSpan | Problem]]


def _read_phoenix_spans(row: Json, context: ReadingContext) -> Iterator[ReceivedSpan | Problem]:
    attributes = {name.removeprefix(_PREFIX): value for name, value in row.items() if name.startswith(_PREFIX)}
    nested_attributes = row.get("attributes")
    attributes |= nested_attributes if isinstance(nested_attributes, dict) else {}
    flat: dict[str, Any] = {}
    for name, value in attributes.items():
        _flatten(name, _parse_literal(value), flat)
    flat.setdefault("openinference.span.kind", row.get("span_kind"))
    for name in [name for name in flat if name.startswith("llm.token_count.")]:
        flat[name] = _try_read_count(flat[name])
    events = _parse_literal(row.get("events"))
    yield _build_span(
        context,
        trace_id=find_value(row, "context.trace_id"),
        span_id=find_value(row, "context.span_id"),
        parent_id=row.get("parent_id"),
        name=row.get("name"),
        started=row.get("start_time"),
        ended=row.get("end_time"),
        # In CSV a missing value is an empty cell.
        attributes={name: value for name, value in flat.items() if value not in (None, "")},
        events=tuple(map(_build_event, events[:_MAX_EVENTS])) if isinstance(events, list) else (),
        failed=row.get("status_code") == "ERROR",
        message=row.get("status_message"),
    )


def _flatten(name: str, value: Any, into: dict[str, Any]) -> None:
    """Flatten the objects of a list as OpenInference does: `NAME.0.message.role`."""
    if len(into) >= MAX_FLAT:
        return
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            if isinstance(item, dict):
                for key, inner in item.items():
                    _flatten(f"{name}.{index}.{key}", inner, into)
    elif value is not None:
        into[name] = value


def _parse_literal(value: Any) -> Any:
    """Return a list or object that pandas wrote into CSV; any other value unchanged."""
    if not isinstance(value, str) or value[:1] not in ("[", "{") or len(value) > MAX_LITERAL:
        return value
    read = as_json(value)
    if read is not value:
        # JSON text of an object, such as the parameters of a call, stays text as in OTLP.
        return read if isinstance(read, list) else value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _try_read_count(value: Any) -> int | None:
    try:
        return read_count(value)
    except ValueError:
        return None


def _build_span(
    context: ReadingContext,
    *,
    trace_id: Any,
    span_id: Any,
    parent_id: Any,
    name: Any,
    started: Any,
    ended: Any,
    attributes: Mapping[str, Any],
    resource: Mapping[str, Any] | None = None,
    events: tuple[Event, ...] = (),
    failed: bool = False,
    message: Any = None,
) -> ReceivedSpan | Problem:
    try:
        ids = [read_name(trace_id), read_name(span_id)]
        at = read_time(started, _TIME)
        end = read_time(ended, _TIME)
    except ValueError as error:
        return Problem("wrong_type", f"the span {error}")
    for field, identifier in zip(("trace id", "span id"), ids, strict=True):
        if not identifier or len(identifier) > MAX_ID:
            return Problem("missing_field", f"the {field} is missing or too long")
    if at is None:
        return Problem("missing_field", "the start time of the span is missing")
    if at > context.ingested_at + CLOCK_TOLERANCE:
        return Problem("bounds", "the start time of the span is more than a day in the future")
    return ReceivedSpan(
        trace_id=str(ids[0]),
        span_id=str(ids[1]),
        parent_id=_find_name_in_row(parent_id),
        name=_find_name_in_row(name) or "",
        scope="",
        started_at=at,
        ended_at=at if end is None else max(at, end),
        attributes=attributes,
        resource=resource or {},
        events=events,
        failed=failed,
        message=message if isinstance(message, str) else "",
    )


def _find_name_in_row(value: Any) -> str | None:
    """Return a name; None if the value is missing or not a name."""
    try:
        return read_name(value)
    except ValueError:
        return None


def _build_event(event: Any) -> Event:
    event = event if isinstance(event, dict) else {}
    attributes = event.get("attributes")
    return Event(str(event.get("name", "")), attributes if isinstance(attributes, dict) else {})


def _read_langfuse_spans(row: Json, context: ReadingContext) -> Iterator[ReceivedSpan | Problem]:
    observations = row.get("observations")
    if isinstance(observations, str):
        observations = as_json(observations)
    if isinstance(observations, list) and any(isinstance(observation, dict) for observation in observations):
        yield from _read_nested_langfuse_spans(row, observations, context)
        return
    is_trace = _read_field(row, "trace_id") is None
    kind = "span" if is_trace else str(row.get("type") or "span").lower()
    name = _find_name_in_row(row.get("name"))
    question = _build_content(row.get("input"), read_question, "user")
    answer = _build_content(row.get("output"), read_answer, "assistant")
    attributes = {
        "langfuse.observation.type": kind,
        "langfuse.observation.input": question,
        "langfuse.observation.output": answer,
        "langfuse.session.id": _read_field(row, "session_id"),
        "langfuse.environment": row.get("environment"),
        "langfuse.observation.model.name": _read_field(row, "provided_model_name") or row.get("model"),
        "langfuse.observation.usage_details": _build_usage(row),
        "langfuse.observation.level": row.get("level"),
        "langfuse.observation.status_message": _read_field(row, "status_message"),
        "gen_ai.agent.name": name if kind == "agent" else None,
        "gen_ai.tool.name": name if kind == "tool" else None,
    }
    trace_name = name if is_trace else _find_name_in_row(_read_field(row, "trace_name"))
    yield _build_span(
        context,
        trace_id=row.get("id") if is_trace else _read_field(row, "trace_id"),
        span_id=row.get("id"),
        parent_id=None if is_trace else _read_field(row, "parent_observation_id"),
        name=name,
        started=row.get("timestamp") if is_trace else _read_field(row, "start_time"),
        ended=None if is_trace else _read_field(row, "end_time"),
        attributes={key: value for key, value in attributes.items() if value not in (None, "")},
        resource={"service.name": trace_name} if trace_name else {},
        failed=row.get("level") == "ERROR",
        message=_read_field(row, "status_message"),
    )


def _read_nested_langfuse_spans(
    row: Json, observations: list[Any], context: ReadingContext
) -> Iterator[ReceivedSpan | Problem]:
    """Yield the spans of the observations in a row. Each takes missing fields from its trace."""
    trace = row["trace"] if isinstance(row.get("trace"), dict) else row
    trace_fields = {
        "traceId": trace.get("id"),
        "sessionId": _read_field(trace, "session_id"),
        "traceName": trace.get("name"),
        "environment": trace.get("environment"),
    }
    for observation in observations:
        if isinstance(observation, dict):
            own_fields = {name: value for name, value in observation.items() if value is not None}
            yield from _read_langfuse_spans({**trace_fields, **own_fields}, context)


def _read_field(row: Json, name: str) -> Any:
    """Return a Langfuse field by its snake_case name, or by its camelCase name in exports from pages; None if it is empty."""
    first_word, *other_words = name.split("_")
    camel_case_name = first_word + "".join(map(str.capitalize, other_words))
    for field in (name, camel_case_name):
        value = row.get(field)
        if value not in (None, ""):
            return value
    return None


def _build_content(value: Any, read_text: Callable[[Any], str], role: str) -> Any:
    """Return messages unchanged, and any other value, such as the arguments of a function, as a message with its text."""
    read = as_json(value) if isinstance(value, str) else value
    if isinstance(read, str):
        return [{"role": role, "content": read}] if read else None
    if read is None or read_conversation(read, role):
        return read
    return [{"role": role, "content": read_text(read)}]


def _build_usage(row: Json) -> dict[str, Any]:
    """Return the token counts: from the details, else from the object of older versions, else from columns."""
    for usage in (_read_field(row, "usage_details"), row.get("usage")):
        counts = _list_pairs(as_json(usage) if isinstance(usage, str) else usage)
        if counts.get("unit") in (None, "TOKENS") and any(_try_read_count(count) is not None for count in counts.values()):
            return counts
    sorts = ("input", "output", "prompt", "completion", "total")
    return {f"{sort}_tokens": _try_read_count(_read_field(row, f"{sort}_tokens")) for sort in sorts}


def _list_pairs(value: Any) -> dict[str, Any]:
    """Return a Parquet map, which may be a list of key-value pairs, as an object."""
    if isinstance(value, list):
        pairs = [pair for pair in value if isinstance(pair, dict) and {"key", "value"} <= pair.keys()]
        return {pair["key"]: pair["value"] for pair in pairs}
    return value if isinstance(value, dict) else {}


def _is_phoenix(columns: frozenset[str]) -> bool:
    return {"context.trace_id", "context.span_id", "start_time"} <= columns or {"context", "span_kind", "start_time"} <= columns


def _is_langfuse_observations(columns: frozenset[str]) -> bool:
    in_pages = {"id", "type", "traceId", "startTime", "parentObservationId"}
    in_buckets = {"id", "type", "trace_id", "start_time", "parent_observation_id"}
    return in_pages <= columns or in_buckets <= columns


def _is_langfuse_traces(columns: frozenset[str]) -> bool:
    if {"id", "timestamp", "name", "input", "output", "public", "bookmarked"} <= columns:
        return True
    return {"id", "timestamp", "observations"} <= columns or {"trace", "observations"} <= columns


PHOENIX = SpanExport("Phoenix spans", _is_phoenix, _read_phoenix_spans)
LANGFUSE = SpanExport("Langfuse observations", _is_langfuse_observations, _read_langfuse_spans)
LANGFUSE_TRACES = SpanExport("Langfuse traces", _is_langfuse_traces, _read_langfuse_spans)
SPAN_EXPORTS = (PHOENIX, LANGFUSE, LANGFUSE_TRACES)
"""The known exports. A file is read by the first export that recognizes its columns."""
