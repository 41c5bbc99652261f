"""Copied lines: `claude --fork-session` begins a new transcript with the lines of another, their `uuid` kept, their session id not.

Nothing in a copied line says so. It counts where it was written first: in the transcript of the same folder that was begun earlier. What
stands before the conversation tells when a transcript was begun: a prompt that was queued, or the snapshots of files of all prompts. A
transcript whose conversation begins long before that is a fork; so is one that begins with the same line as an earlier one.
"""

from __future__ import annotations

import mmap
import re
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from streams.sources.agent_entries import moment
from streams.sources.lines import decode_line, read_lines

HEAD_LINES = 4096
"""Lines at the beginning of a transcript within which its conversation begins: a fork has one for each prompt before it."""
MARGIN = timedelta(seconds=5)
"""The time by which a transcript that is no fork may seem younger than its first line: both are written at once."""

_UUID = re.compile(rb'"uuid"\s*:\s*"([^"\\]{1,256})"')


class Head(NamedTuple):
    """The beginning of a transcript: the time, and the uuid and time of the first line of its conversation."""

    begun: datetime
    uuid: str
    at: datetime


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
        if older.uuid == head.uuid or (head.begun - head.at > MARGIN and older.begun - MARGIN <= head.at):
            copied |= _uuids(other, head.uuid)
    return frozenset(copied)


def _head(path: Path) -> Head | None:
    """Read the beginning of a transcript; None if nothing of a conversation is there yet."""
    try:
        return _read_head(path)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _read_head(path: Path) -> Head:
    """As `_head`; LookupError where nothing is there yet. What is there never changes, so it is remembered."""
    begun: datetime | None = None
    with path.open("rb") as stream:
        for line in read_lines(stream):
            if line.number > HEAD_LINES:
                break
            value = decode_line(line)
            at = _told(value) if isinstance(value, dict) else None
            if at is None:
                continue
            begun = at if begun is None else max(begun, at)
            if isinstance(value, dict) and isinstance(value.get("uuid"), str):
                return Head(begun, value["uuid"], at)
    raise LookupError(path)


def _told(line: dict[str, Any]) -> datetime | None:
    """The time of a line, or of the snapshot that it is of."""
    snapshot = line.get("snapshot")
    return moment(line.get("timestamp")) or (moment(snapshot.get("timestamp")) if isinstance(snapshot, dict) else None)


def _uuids(path: Path, first: str) -> set[str]:
    """The uuids that the lines of a transcript have, unreadable ones included; none where this one is not among them."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(first.encode("utf-8", "replace")) < 0:
                return set()
            return {match.group(1).decode("utf-8", "replace") for match in _UUID.finditer(content)}
    except (OSError, ValueError):  # gone, or empty by now
        return set()
