"""The shape of a capture: names without values, by which two runs of one program can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from otlp.capturing.readable import Json

STATUS_ERROR = 2
"""`STATUS_CODE_ERROR` of OpenTelemetry."""


class Shape(NamedTuple):
    """A span or a log record: its scope, its name, and the names of its attributes and events."""

    scope: str
    name: str
    attributes: tuple[str, ...]
    events: tuple[str, ...]
    failed: bool


def count_shapes(lines: Iterable[Json]) -> Counter[Shape]:
    """Return the number of records of each shape, whatever their order and requests."""
    return Counter(_build_shape(scope, record) for scope, record in iterate_records(lines))


def _build_shape(scope: Json, record: Json) -> Shape:
    events = tuple(event["name"] for event in record.get("events", ()))
    return Shape(
        scope=scope.get("name", ""),
        name=record.get("name") or record.get("eventName", ""),
        attributes=names(record),
        events=events,
        # LangSmith's status depends on how its runs were cut into batches; the event does not.
        failed=record.get("status", {}).get("code") == STATUS_ERROR or "exception" in events,
    )


def iterate_records(lines: Iterable[Json]) -> Iterator[tuple[Json, Json]]:
    """Yield every span and log record with its scope."""
    for line in lines:
        request = line["request"]
        for resource in (*request.get("resourceSpans", ()), *request.get("resourceLogs", ())):
            for scoped in (*resource.get("scopeSpans", ()), *resource.get("scopeLogs", ())):
                for record in (*scoped.get("spans", ()), *scoped.get("logRecords", ())):
                    yield scoped["scope"], record


def names(attributed: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the attributes of a span, a record or a resource, in alphabetical order."""
    return tuple(sorted(attribute["key"] for attribute in attributed.get("attributes", ())))
