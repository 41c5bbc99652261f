"""Limits of records, rules of names and labels, and checks of the bounds of single records.

Bounds are checked when a record is accepted and again when it is decoded (`check_fields`; `schemas.codec.arrow` checks columns). They
protect readers: times near 2^63 can be encoded but crash every reader, NaN makes every mean NaN, and Kafka refuses messages over about
a megabyte.
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
"""Maximum time by which an event's own time may be after its ingestion, because clocks are wrong and time zones are forgotten."""
MAX_RECORD_BYTES = 1_000_000
"""Maximum encoded size. Kafka's default limit for a message is 1,048,588 bytes."""
MAX_ADMITTED_BYTES = 990_000
"""Maximum encoded size of an ingested record. Records that embed it, such as a scoring task, need the remaining bytes."""
NOT_UNICODE = "is not Unicode: it holds half a surrogate pair"
"""Fault of a text that cannot be encoded as UTF-8. Repairing an id would change what it identifies."""
NAME = r"[a-z0-9][a-z0-9_.-]{0,62}"
"""Pattern of the name of a project or connection, which is safe in URLs, file names and terminals."""
MAX_LABELS = 16
"""Maximum number of labels of an exchange or event."""
LABEL_NAME = r"[a-z][a-z0-9_.]{0,63}"
"""Pattern of the name of a label."""
MAX_LABEL = 256
"""Maximum length of a label's value."""
NO_LABELS = ("agent", "agent_model", "model")
"""Reserved label names, because they are fields of the records."""
MAX_ID = 256
"""Maximum length of an id or name from a source."""
MAX_MADE_ID = 2_400
"""Maximum length of a composed id: of a session and two entries, each up to three times as long after escaping."""
MAX_COUNT = 2**53
"""Maximum of counts, positions and numbers of tokens: the largest integer that every JSON reader represents exactly."""
MAX_TOOL_CALLS = 32
"""Maximum number of tool calls of an exchange."""
MAX_TOOL_TEXT_BYTES = 800
"""Maximum bytes of the arguments of a tool call, and of its result, in UTF-8."""
TOOL_OUTCOMES = ("ok", "error", "unanswered")
"""The possible outcomes of a tool call."""
OUTCOMES = ("answered", "no_response", "error", "aborted")
"""The possible outcomes of an exchange."""
MAX_DEPTH = 32
"""Maximum nesting depth of JSON documents, including the outermost level."""
CONTROL = r"[\x00-\x1f\x7f-\x9f]"
SHOWN = 64
"""Number of characters of an invalid name that an error shows."""

_is_label_name = re.compile(LABEL_NAME).fullmatch


def is_too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Tell whether a JSON value nests deeper than `limit`. It is searched level by level, because recursion could exhaust the stack."""
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
    """Tell whether the text contains surrogates, which no record can store."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def is_plain_identifier(value: str, longest: int) -> bool:
    """Tell whether an id or name is certainly valid, which is true for most. Others may be valid too."""
    return 0 < len(value) <= longest and value.isascii() and value.isprintable() and not value.isspace()


def identifier_fault(value: str, longest: int) -> str | None:
    """Return the fault of an id or name from a source, as the end of a sentence; None if it is valid."""
    if is_plain_identifier(value, longest):
        return None
    if not 0 < len(value) <= longest:
        return f"has {len(value)} characters; 1 to {longest} are allowed"
    if re.search(CONTROL, value):
        return "contains control characters"
    if has_surrogates(value):  # no column can store it
        return NOT_UNICODE
    return None if value.strip() else "is blank"


def labels_fault(labels: Sequence[Any], *, derived: bool = False) -> str | None:
    """Return the fault of labels (records or mappings with `name` and `value`); None if they are valid.

    Derived labels may have reserved names, and any values: the model of a record is a label of its score. The fault of one label begins
    with a dot and its name, to follow the name of the field.
    """
    if len(labels) > MAX_LABELS:
        return f"has {len(labels)} labels; at most {MAX_LABELS} are allowed"
    earlier_names: set[str] = set()
    for label in labels:
        name, text = (label["name"], label["value"]) if isinstance(label, Mapping) else (label.name, label.value)
        fault = _name_fault(name, earlier_names, () if derived else NO_LABELS)
        if fault:
            return fault
        if not isinstance(text, str):
            return f".{name}: must be a string"
        fault = None if derived else identifier_fault(text, MAX_LABEL)
        if fault:
            return f".{name}: {fault}"
        earlier_names.add(name)
    return None


def _name_fault(name: Any, earlier_names: set[str], reserved: Sequence[str]) -> str | None:
    if not isinstance(name, str) or not _is_label_name(name):
        quoted_name = repr(name[:SHOWN]) if isinstance(name, str) else "this"
        return f"{quoted_name} is not a valid label name: use at most 64 of a-z, 0-9, _ and ., beginning with a letter"
    if name in reserved:
        return f".{name}: is a field of its own, not a label; send it there"
    return f".{name}: appears twice" if name in earlier_names else None


def _check_time(name: str, value: datetime, latest: datetime = LATEST) -> None:
    if value.tzinfo is None:
        raise BoundsError(f"{name}: time without a time zone", hint="Add the time zone UTC.")
    if not EARLIEST <= value <= latest:
        raise BoundsError(f"{name}: {value.isoformat()} is outside {EARLIEST.date()} to {latest.isoformat()}")


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise BoundsError(f"{name}: {value} is not a finite number")


def _check_int(name: str, value: int) -> None:
    if not -(1 << 31) <= value < 1 << 31:
        raise BoundsError(f"{name}: {value} exceeds 32 bits")


Check = Callable[[Any], None]
_CHECKS: dict[str, Callable[[str, Any], None]] = {"double": _check_finite, "float": _check_finite, "int": _check_int}


def _check_of(avro_type: Any, name: str, definitions: dict[str, Any]) -> Check | None:
    """Return the check for values of a type; None if all values are valid. `name` is the field; `definitions` collects record types."""
    if isinstance(avro_type, str):
        if avro_type in definitions:
            return _check_of(definitions[avro_type], name, definitions)
        return functools.partial(_CHECKS[avro_type], name) if avro_type in _CHECKS else None
    if isinstance(avro_type, list):
        return _check_of(avro_type[1], name, definitions)
    if "logicalType" in avro_type:
        return functools.partial(_check_time, name)
    if avro_type["type"] == "array":
        item_check = _check_of(avro_type["items"], name, definitions)
        return None if item_check is None else functools.partial(_check_items, item_check)
    definitions[f"{NAMESPACE}.{avro_type['name']}"] = avro_type
    checks: list[tuple[str, Check]] = []
    for field in avro_type["fields"]:
        check = _check_of(field["type"], f"{name}.{field['name']}", definitions)
        if check is not None:
            checks.append((field["name"], check))
    return functools.partial(_check_record, checks) if checks else None


def _check_items(check: Check, values: Sequence[Any]) -> None:
    for value in values:
        check(value)


def _check_record(checks: Sequence[tuple[str, Check]], fields: dict[str, Any]) -> None:
    for field, check in checks:
        value = fields.get(field)
        if value is not None:
            check(value)


@functools.cache
def _checks_of(prefix: bytes) -> Check:
    schema = schemas_by_prefix()[prefix]
    return _check_of({"type": "record", "name": schema.name, "fields": schema.fields}, schema.name, {}) or (lambda _: None)


def check_fields(schema: RecordSchema, fields: dict[str, Any]) -> None:
    """Check the times and numbers of a record. Raises BoundsError naming the field that is out of bounds."""
    _checks_of(schema.prefix)(fields)
    occurred = fields.get("occurred_at")
    ingested = fields.get("ingested_at")
    if occurred is not None and ingested is not None:
        _check_time(f"{schema.name}.occurred_at", occurred, ingested + CLOCK_TOLERANCE)
