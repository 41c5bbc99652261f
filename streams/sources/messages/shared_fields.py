"""Fields that all records of a session share: checked and encoded once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from schemas.bounds.contract import rules_of
from schemas.bounds.limits import CLOCK_TOLERANCE, EARLIEST
from schemas.codec.writers import NUMBERS, SharedFields, shared_writer, written_time


def checked_writer(form: SharedFields, shared: Mapping[str, Any]) -> Callable[..., bytes] | None:
    """The writer of records that share these values; None where one of them may not be written or breaks its rule."""
    rules = rules_of(form.schema)
    if any(rules[name].fault(value) for name, value in shared.items() if name in rules and value is not None):
        return None
    try:
        return shared_writer(form, shared)
    except Exception:  # noqa: BLE001 - whatever a value that may not be written runs into
        return None


def checked_time(at: datetime, ingested_at: datetime) -> bytes:
    """The bytes of a record's own time; none where it may not be written."""
    return written_time(at) if EARLIEST <= at <= ingested_at + CLOCK_TOLERANCE else b""


def written_text(text: str | None) -> bytes:
    """The bytes of a field that is a text or null."""
    if text is None:
        return b"\0"
    data = text.encode()
    return b"\2" + NUMBERS[len(data)] + data
