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
_LONGEST_WORD = 64
_WORDS_KEPT = 1 << 12
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


class _Words(dict[str | None, bytes]):
    """Texts of fields that have few values, as Avro writes them, after the bytes of `start`; they are kept, but for long ones."""

    def __init__(self, start: bytes = b"") -> None:
        super().__init__()
        self._start = start

    def __missing__(self, word: str | None) -> bytes:
        if word is None and self._start:
            self[None] = b"\0"
            return b"\0"
        data = word.encode()  # type: ignore[union-attr]  # whatever has no such method may not be written
        written = self._start + NUMBERS[len(data)] + data
        if len(data) <= _LONGEST_WORD:
            if len(self) >= _WORDS_KEPT:
                self.clear()
            self[word] = written
        return written


def written_time(value: datetime) -> bytes:
    """A time as Avro writes it; ValueError for one out of bounds."""
    micros = (value - EPOCH) // _MICROSECOND
    if not FIRST <= micros <= LAST:
        raise ValueError(value)
    return time_bytes(micros)


class _Pairs(dict[int, bytes]):
    """Fourteen bits of a number as two bytes of Avro that others follow."""

    def __missing__(self, pair: int) -> bytes:
        written = self[pair] = bytes((pair & 0x7F | 0x80, pair >> 7 | 0x80))
        return written


class _Ends(dict[int, bytes]):
    """The last four bytes of a time, which change every two minutes."""

    def __missing__(self, end: int) -> bytes:
        if len(self) >= _WORDS_KEPT:
            self.clear()
        written = self[end] = bytes((end & 0x7F | 0x80, end >> 7 & 0x7F | 0x80, end >> 14 & 0x7F | 0x80, end >> 21))
        return written


def time_bytes(micros: int) -> bytes:
    """Eight bytes: no time within bounds takes fewer or more."""
    rest = micros << 1
    return _PAIRS[rest & 0x3FFF] + _PAIRS[rest >> 14 & 0x3FFF] + _ENDS[rest >> 28]


_PAIRS, _ENDS = _Pairs(), _Ends()


def _unfit(value: Any) -> bytes:
    raise ValueError(value)


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
    "words": _Words(),
    "words_or_null": _Words(b"\2"),
    "time": written_time,
    "unfit": _unfit,
    "isfinite": math.isfinite,
    "in_order": _in_order,
    "truth": TRUTH,
    "double_bytes": double_bytes,
    "float_bytes": struct.Struct("<f").pack,
}
_INTEGER = "numbers[_value] if type(_value := {{}}) is int and -{0} <= _value < {0} else unfit(_value)"
_TERMS = {
    "string": "numbers[len(_data := {}.encode())] + _data",
    "bytes": "numbers[len(_data := {})] + _data",
    "int": f"({_INTEGER.format(1 << 31)})",
    "long": f"({_INTEGER.format(1 << 63)})",
    "timestamp-micros": "time({})",
    "double": "(double_bytes(_value) if isfinite(_value := {}) else unfit(_value))",
    "float": "(float_bytes(_value) if isfinite(_value := {}) else unfit(_value))",
    "boolean": "truth[{}]",
}
"""An expression for the bytes of a value of each type."""
_FEW_VALUES = frozenset(
    {
        *("action", "agent", "agent_model", "aggregation_method", "answering_model", "connection", "dimension", "disposition"),
        *("event", "judge_model", "kind", "methodology", "methodology_digest", "methodology_version", "outcome", "policy"),
        *("policy_digest", "project", "purpose", "requested_model", "rule_version", "sampling_reason", "severity", "source"),
        *("stage", "status", "stop_reason", "tier2_reason", "tier2_state", "tier2_5_reason", "tier2_5_state", "tier3_reason"),
        *("tier3_state", "tool"),
    }
)
"""Fields whose texts come again and again."""


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
        terms = [repr(start), *(self.field(field, reached[field["name"]]) for field in definition["fields"])]
        if reached.keys() >= _ORDERED:
            terms.append("in_order({occurred_at}, {ingested_at})".format_map(reached))
        self.text += f"def {name}(record):\n    return b''.join(({', '.join(terms)},))\n"
        return name

    def field(self, field: Json, value: str) -> str:
        """An expression for the bytes of a field's value."""
        if field["name"] in _FEW_VALUES and field["type"] in ("string", ["null", "string"]):
            return f"words[{value}]" if field["type"] == "string" else f"words_or_null[{value}]"
        return self.term(field["type"], value)

    def term(self, kind: Any, value: str) -> str:
        """An expression for the bytes of a value of a type."""
        if isinstance(kind, list):
            return rf"(b'\0' if (_given := {value}) is None else b'\2' + {self.term(kind[1], '_given')})"
        if isinstance(kind, str):
            return f"{self._named[kind]}({value})" if kind in self._named else _TERMS[kind].format(value)
        if kind["type"] == "array":
            item = self.term(kind["items"], "item")
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
