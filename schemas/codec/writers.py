"""The parts of which `schemas.generate` makes a writer for each schema (`schemas.codec.record_writers`).

1. A writer takes what may be written (`schemas.bounds`) and nothing else: it raises some error where a value is of
   another type, out of bounds or missing. The general writer, fastavro's, is then asked, and finds the words.
2. It writes what the general writer would. A test holds the two against each other for every record type.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.bounds import CLOCK_TOLERANCE, EARLIEST, LATEST

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
FIRST, LAST = ((limit - EPOCH) // _MICROSECOND for limit in (EARLIEST, LATEST))
_KEPT = 1 << 16
_LONGEST_WORD = 64
_WORDS_KEPT = 1 << 12


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
    """Return a time as Avro writes it; ValueError for one out of bounds."""
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


def unfit(value: Any) -> bytes:
    """ValueError: the value may not be written."""
    raise ValueError(value)


def in_order(occurred: datetime | None, ingested: datetime | None) -> bytes:
    """Nothing, where a record's own time is none that lies too far after its intake."""
    if occurred is not None and ingested is not None and occurred > ingested + CLOCK_TOLERANCE:
        raise ValueError(occurred)
    return b""


NUMBERS = _Numbers()
TRUTH = {False: b"\0", True: b"\1"}
double_bytes = struct.Struct("<d").pack
WORDS, WORDS_OR_NULL = _Words(), _Words(b"\2")
