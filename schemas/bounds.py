"""Limits of records in figures, the rules of names and labels, and the bounds of single records, for admission, codec, rules and sources.

Bounds are checked when a record is accepted and again when bytes are decoded (`check_fields`; of whole columns: `schemas.codec.arrow`).
They come from what breaks readers downstream: times near 2^63 encode and then crash every reader, NaN makes every mean NaN, and
Kafka refuses messages over about a megabyte.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.errors import BoundsError
from schemas.registry import NAMESPACE, RecordSchema, schemas_by_prefix

EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2100, 1, 1, tzinfo=UTC)
CLOCK_TOLERANCE = timedelta(days=1)
"""The longest time by which an event's own time may lie after its intake: clocks are off, time zones are forgotten."""
MAX_RECORD_BYTES = 1_000_000
"""Encoded size; Kafka's default limit for a message is 1 048 588 bytes."""
MAX_ADMITTED_BYTES = 990_000
"""Encoded size of a record from outside: what carries it on, such as a scoring task, needs room of its own."""
NOT_UNICODE = "is not Unicode: it holds half a surrogate pair"
"""The words for a text that cannot be written as UTF-8, where repairing it would change what it identifies."""
NAME = r"[a-z0-9][a-z0-9_.-]{0,62}"
"""Pattern of the name of a project or connection: safe in a URL, a file name and a terminal, and without a slash."""
MAX_LABELS = 16
"""Labels of one exchange or event."""
LABEL_NAME = r"[a-z][a-z0-9_.]{0,63}"
"""Pattern of the name of a label."""
MAX_LABEL = 256
"""Characters of the longest value of a label."""
NO_LABELS = ("agent", "agent_model", "model")
"""Names that no label has: these are fields of the records."""
MAX_ID = 256
"""Characters of the longest id or name that a source may give."""
MAX_MADE_ID = 2_400
"""Characters of the longest id that is made of others: a session's and two entries', each three times as long once escaped."""
MAX_COUNT = 2**53
"""Largest count, position or number of tokens: the largest integer that every JSON reader keeps exactly."""
OUTCOMES = ("answered", "no_response", "error", "aborted")
"""The possible outcomes of an exchange."""
MAX_DEPTH = 32
"""Levels of nesting of JSON documents, the outermost one included."""
CONTROL = r"[\x00-\x1f\x7f-\x9f]"
SHOWN = 64
"""Characters of a refused name that are repeated."""

_is_label_name = re.compile(LABEL_NAME).fullmatch


def is_too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Tell whether a JSON value nests deeper than `limit`; go down level by level, so that no depth can exhaust the stack."""
    level = [value] if isinstance(value, dict | list | tuple) else []
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def has_surrogates(text: str) -> bool:
    """Tell whether the text holds surrogates, which no record can keep."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def is_plain_identifier(value: str, longest: int) -> bool:
    """Tell whether an id or a name has no fault, as most: neither control characters nor surrogates can be in it. Others may have none."""
    return 0 < len(value) <= longest and value.isascii() and value.isprintable() and not value.isspace()


def identifier_fault(value: str, longest: int) -> str | None:
    """Return the fault of an id or a name that a source gave, as the end of a sentence, or None for a good one."""
    if is_plain_identifier(value, longest):
        return None
    if not 0 < len(value) <= longest:
        return f"has {len(value)} characters; 1 to {longest} are taken"
    if re.search(CONTROL, value):
        return "holds control characters"
    if has_surrogates(value):  # no column can hold one
        return NOT_UNICODE
    return None if value.strip() else "is blank"


def labels_fault(labels: Sequence[Any]) -> str | None:
    """Return the fault of labels, records or mappings with `name` and `value`, or None for good ones.

    A fault of one label begins with a dot and its name, so that it can stand behind the name of the field.
    """
    if len(labels) > MAX_LABELS:
        return f"has {len(labels)} labels; the most is {MAX_LABELS}"
    seen: set[str] = set()
    for label in labels:
        name, text = (label["name"], label["value"]) if isinstance(label, Mapping) else (label.name, label.value)
        if fault := _name_fault(name, seen):
            return fault
        if not isinstance(text, str):
            return f".{name}: must be a string"
        if fault := identifier_fault(text, MAX_LABEL):
            return f".{name}: {fault}"
        seen.add(name)
    return None


def _name_fault(name: Any, seen: set[str]) -> str | None:
    if not isinstance(name, str) or not _is_label_name(name):
        shown = repr(name[:SHOWN]) if isinstance(name, str) else "this"
        return f"{shown} is not a valid label name: use at most 64 of a-z, 0-9, _ and ., beginning with a letter"
    if name in NO_LABELS:
        return f".{name}: is a field of its own, not a label; send it there"
    return f".{name}: appears twice" if name in seen else None


def _check_time(name: str, value: datetime, latest: datetime = LATEST) -> None:
    if value.tzinfo is None:
        raise BoundsError(f"{name}: time without a time zone", hint="Times are UTC: attach the zone.")
    if not EARLIEST <= value <= latest:
        raise BoundsError(f"{name}: {value.isoformat()} is outside {EARLIEST.date()} to {latest.isoformat()}")


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise BoundsError(f"{name}: {value} is not a finite number")


def _check_int(name: str, value: int) -> None:
    if not -(1 << 31) <= value < 1 << 31:
        raise BoundsError(f"{name}: {value} takes more than 32 bits")


Check = Callable[[Any], None]
_CHECKS: dict[str, Callable[[str, Any], None]] = {"double": _check_finite, "float": _check_finite, "int": _check_int}


def _check_of(avro_type: Any, name: str, named: dict[str, Any]) -> Check | None:
    """Return the check for a value of the type, or None if any value will do. `name` is the field's, `named` collects the records met."""
    if isinstance(avro_type, str):
        if avro_type in named:
            return _check_of(named[avro_type], name, named)
        return functools.partial(_CHECKS[avro_type], name) if avro_type in _CHECKS else None
    if isinstance(avro_type, list):
        return _check_of(avro_type[1], name, named)
    if "logicalType" in avro_type:
        return functools.partial(_check_time, name)
    if avro_type["type"] == "array":
        item = _check_of(avro_type["items"], name, named)
        return item and functools.partial(_check_items, item)
    named[f"{NAMESPACE}.{avro_type['name']}"] = avro_type
    checks = [
        (field["name"], check)
        for field in avro_type["fields"]
        if (check := _check_of(field["type"], f"{name}.{field['name']}", named))
    ]
    return functools.partial(_check_record, checks) if checks else None


def _check_items(check: Check, values: Sequence[Any]) -> None:
    for value in values:
        check(value)


def _check_record(checks: Sequence[tuple[str, Check]], fields: dict[str, Any]) -> None:
    for field, check in checks:
        if (value := fields.get(field)) is not None:
            check(value)


@functools.cache
def _checks_of(prefix: bytes) -> Check:
    schema = schemas_by_prefix()[prefix]
    return _check_of({"type": "record", "name": schema.name, "fields": schema.fields}, schema.name, {}) or (lambda _: None)


def check_fields(schema: RecordSchema, fields: dict[str, Any]) -> None:
    """BoundsError naming the field when a time or number of a record lies outside what it may hold."""
    _checks_of(schema.prefix)(fields)
    occurred, ingested = fields.get("occurred_at"), fields.get("ingested_at")
    if occurred is not None and ingested is not None:
        _check_time(f"{schema.name}.occurred_at", occurred, ingested + CLOCK_TOLERANCE)
