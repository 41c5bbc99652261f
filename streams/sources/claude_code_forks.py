"""Copied lines: `claude --fork-session` begins a new transcript with the lines of another, their `uuid` kept, their session id not.

Nothing in a copied line says so. It counts where it was written first: in the transcript of the same folder that was begun earlier. A
transcript whose first line of the conversation is older than the transcript itself is a fork; so is one that begins with the same
line as an earlier one.
"""

from __future__ import annotations

import mmap
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from streams.sources.lines import decode_line, read_lines

HEAD_LINES = 64
"""Lines at the beginning of a transcript within which its conversation begins."""

_UUID = re.compile(rb'"uuid"\s*:\s*"([^"\\]{1,256})"')


class Head(NamedTuple):
    """How a transcript begins: when it was begun, and uuid and time of the first line of its conversation. ISO times compare."""

    begun: str
    uuid: str
    at: str


def copied_lines(path: Path) -> frozenset[str]:
    """The uuids of the lines that an earlier transcript of the folder has; none where the transcript is no fork."""
    head = _head(path)
    if head is None:
        return frozenset()
    copied: set[str] = set()
    for other in sorted(path.parent.glob("*.jsonl")):
        older = None if other == path or other.name.startswith(".") or other.is_symlink() else _head(other)
        if older is None or (older.begun, other.name) >= (head.begun, path.name):
            continue
        if older.uuid == head.uuid or (older.begun <= head.at < head.begun):
            copied |= _uuids(other)
    return frozenset(copied)


def _head(path: Path) -> Head | None:
    """How a transcript begins; None where nothing of a conversation is there yet. It never changes again."""
    try:
        return _read_head(path)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _read_head(path: Path) -> Head:
    """As `_head`; LookupError where nothing is there yet, which is not remembered."""
    begun: str | None = None
    with path.open("rb") as stream:
        for line in read_lines(stream):
            value = decode_line(line)
            if line.number > HEAD_LINES:
                break
            if not isinstance(value, dict) or not isinstance(at := value.get("timestamp"), str):
                continue
            begun = begun or at
            if isinstance(value.get("uuid"), str):
                return Head(begun, value["uuid"], at)
    raise LookupError(path)


def _uuids(path: Path) -> set[str]:
    """The uuids that any line of a transcript has, those of unreadable lines included."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return {match.group(1).decode("utf-8", "replace") for match in _UUID.finditer(content)}
    except (OSError, ValueError):  # gone, or empty by now
        return set()
