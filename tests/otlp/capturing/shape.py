"""The shape of a capture: names without values, by which two runs of one program can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from otlp.capturing.readable import Json


class Shape(NamedTuple):
    """A span or a log record: its scope, its name, and the names of its attributes and events."""

    scope: str
    name: str
    attributes: tuple[str, ...]
    events: tuple[str, ...]
    failed: bool


def shape(lines: Iterable[Json]) -> Counter[Shape]:
    """How often each shape is there, in whatever order and requests."""
    return Counter(
        Shape(
            scope.get("name", ""),
            record.get("name") or record.get("eventName", ""),
            names(record),
            events := tuple(event["name"] for event in record.get("events", ())),
            # LangSmith's status depends on how its runs were cut into batches; the event does not.
            record.get("status", {}).get("code") == 2 or "exception" in events,
        )
        for scope, record in records(lines)
    )


def records(lines: Iterable[Json]) -> Iterator[tuple[Json, Json]]:
    """Every span and log record with its scope."""
    for line in lines:
        request = line["request"]
        for resource in (*request.get("resourceSpans", ()), *request.get("resourceLogs", ())):
            for scoped in (*resource.get("scopeSpans", ()), *resource.get("scopeLogs", ())):
                for record in (*scoped.get("spans", ()), *scoped.get("logRecords", ())):
                    yield scoped["scope"], record


def names(attributed: dict[str, Any]) -> tuple[str, ...]:
    """The names of the attributes of a span, a record or a resource, in alphabetical order."""
    return tuple(sorted(attribute["key"] for attribute in attributed.get("attributes", ())))
