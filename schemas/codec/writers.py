"""Compiled writers: a function for each schema, which writes a record in a third of the time of one that walks through its schema.

1. A writer takes what may be written (`schemas.bounds.record_bounds`) and nothing else: it raises some error where a value is of
   another type, out of bounds or missing. The general writer, fastavro's, is then asked, and finds the words.
2. It writes what the general writer would. A test holds the two against each other for every record type.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.bounds.limits import CLOCK_TOLERANCE, EARLIEST, LATEST
from schemas.registry import NAMESPACE, Json, schemas_by_prefix

Writer = Callable[[Any], bytes]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
FIRST, LAST = ((limit - EPOCH) // _MICROSECOND for limit in (EARLIEST, LATEST))
_KEPT = 1 << 16
_ORDERED = {"occurred_at", "ingested_at"}


class _Numbers(dict[int, bytes]):
    """Integers as Avro writes them: zigzag, seven bits a byte, lowest first. Small ones are kept."""

    def __missing__(self, number: int) -> bytes:
        rest, out = (number << 1) ^ (number >> 63), bytearray()
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
        written = bytes(out)
        if 0 <= number < _KEPT:
            self[number] = written
        return written


def _within(number: int, bits: int) -> int:
    if type(number) is not int or not -(1 << bits) <= number < 1 << bits:
        raise ValueError(number)
    return number


def _time(value: datetime) -> bytes:
    micros = (value - EPOCH) // _MICROSECOND
    if not FIRST <= micros <= LAST:
        raise ValueError(value)
    return time_bytes(micros)


def time_bytes(micros: int) -> bytes:
    """Eight bytes: no time within bounds takes fewer or more."""
    rest = micros << 1
    # fmt: off
    return bytes((
        rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14 & 0x7F | 0x80, rest >> 21 & 0x7F | 0x80,
        rest >> 28 & 0x7F | 0x80, rest >> 35 & 0x7F | 0x80, rest >> 42 & 0x7F | 0x80, rest >> 49,
    ))
    # fmt: on


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(value)
    return value


def _in_order(occurred: datetime | None, ingested: datetime | None) -> bytes:
    """Nothing, where a record's own time is none that lies too far after its intake."""
    if occurred is not None and ingested is not None and occurred > ingested + CLOCK_TOLERANCE:
        raise ValueError(occurred)
    return b""


NUMBERS = _Numbers()
TRUTH = {False: b"\0", True: b"\1"}
double_bytes = struct.Struct("<d").pack
_NAMES: dict[str, Any] = {
    "numbers": NUMBERS,
    "within": _within,
    "time": _time,
    "finite": _finite,
    "in_order": _in_order,
    "truth": TRUTH,
    "double_bytes": double_bytes,
    "float_bytes": struct.Struct("<f").pack,
}
_TERMS = {
    "string": "numbers[len(data := {}.encode())] + data",
    "bytes": "numbers[len({0})] + {0}",
    "int": "numbers[within({}, 31)]",
    "long": "numbers[within({}, 63)]",
    "timestamp-micros": "time({})",
    "double": "double_bytes(finite({}))",
    "float": "float_bytes(finite({}))",
    "boolean": "truth[{}]",
}
"""An expression for the bytes of a value of each type."""


class _Source:
    """The source of a writer and of those of the records inside; `reach` is how a field is reached: attribute or item."""

    def __init__(self, reach: str) -> None:
        self._reach = reach
        self._named: dict[str, str] = {}
        self.text = ""

    def record(self, definition: Json, start: bytes = b"") -> str:
        """Add the writer of a record type, whose bytes begin with `start`; answers its name."""
        name = self._named[f"{NAMESPACE}.{definition['name']}"] = f"write_{len(self._named)}"
        reached = {field["name"]: self._reach.format(field["name"]) for field in definition["fields"]}
        terms = [repr(start), *(self._term(field["type"], reached[field["name"]]) for field in definition["fields"])]
        if reached.keys() >= _ORDERED:
            terms.append("in_order({occurred_at}, {ingested_at})".format_map(reached))
        self.text += f"def {name}(record):\n    return b''.join(({', '.join(terms)},))\n"
        return name

    def _term(self, kind: Any, value: str) -> str:
        if isinstance(kind, list):
            return rf"(b'\0' if {value} is None else b'\2' + {self._term(kind[1], value)})"
        if isinstance(kind, str):
            return f"{self._named[kind]}({value})" if kind in self._named else _TERMS[kind].format(value)
        if kind["type"] == "array":
            item = self._term(kind["items"], "item")
            return rf"(numbers[len({value})] + b''.join([{item} for item in {value}]) + b'\0' if len({value}) else b'\0')"
        if kind["type"] == "record":
            return f"{self.record(kind)}({value})"
        return _TERMS[kind.get("logicalType", kind["type"])].format(value)


@functools.cache
def record_writer(prefix: bytes) -> Writer:
    """The writer of records of a schema: a message in single-object encoding."""
    return _compiled(prefix, "record.{}")


@functools.cache
def fields_writer(prefix: bytes) -> Writer:
    """The same of a record's fields as builtins."""
    return _compiled(prefix, "record[{!r}]")


def _compiled(prefix: bytes, reach: str) -> Writer:
    schema, source, names = schemas_by_prefix()[prefix], _Source(reach), dict(_NAMES)
    name = source.record({"name": schema.name, "fields": schema.fields}, prefix)
    exec(source.text, names)  # noqa: S102 - made of the schemas, which are ours
    writer: Writer = names[name]
    return writer
