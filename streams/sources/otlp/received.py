"""What a request contains: received spans and log records, and those that were rejected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple


class ReceivedSpan(NamedTuple):
    """A span, or a log record that belongs to a span, before conventions are applied.

    Ids are hexadecimal. The `parent_id` of a log record is its span. `failed` is True if the status is an error, which `message` describes.
    `lost` is True if the SDK dropped attributes or events. `is_server` is True if the span has the kind SERVER.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    scope: str
    started_at: datetime
    ended_at: datetime
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    events: tuple[Event, ...]
    is_log: bool = False
    failed: bool = False
    message: str = ""
    lost: bool = False
    trace_state: str = ""
    scope_version: str = ""
    is_server: bool = False


class Event(NamedTuple):
    """An event of a span, or a log record beside it."""

    name: str
    attributes: Mapping[str, Any]


class RejectedItem(NamedTuple):
    """A span or record that cannot be read: the reason and its content. It may stand for several `items`, or for none."""

    reason: str
    body: bytes = b""
    items: int = 1


ReceivedItems = Iterator[ReceivedSpan | RejectedItem | None]
"""The items of a request, in order; None for a log record that is not about a model."""
