"""Files beside a transcript: its trajectory, the entry of its session, and the session it was forked from.

1. `<name>.trajectory.jsonl` is the second account of the session's runs. Where `OPENCLAW_TRAJECTORY_DIR` moved it elsewhere it is
   not looked for: a path that a file names may lead anywhere.
2. `sessions.json` has the entry of each conversation, by its key. An entry tells of its current session alone.
3. A fork, and the successor that a compaction writes, begin with a copy of another transcript, which their header names as
   `parentSession`. What is in both counts in the older one. Where that one is gone, the copy is all there is and counts.
4. `<name>.jsonl.reset.<time>` and `….deleted.<time>` are transcripts that were put aside: they happened.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from streams.sources.lines import Line, decode_line, read_lines
from streams.sources.openclaw.storage.windows import MAX_ENTRY, SessionEntry, Window, window_of
from streams.sources.openclaw.trajectory import Trajectory

TRAJECTORY = ".trajectory.jsonl"
"""The ending of the names of trajectories."""
CHECKPOINT = ".checkpoint."
"""Part of the name of a copy that was made before a compaction: `<session id>.checkpoint.<id>.jsonl`."""
SESSIONS = "sessions.json"
"""The file with the entries of the conversations."""
MAX_SESSIONS = 256 * 1024 * 1024
"""Bytes of the largest file of entries that is read."""

_SET_ASIDE = re.compile(r"\.jsonl\.(?:reset|deleted)\.[0-9TZ.:-]{1,40}\Z")

Json = dict[str, Any]


def is_set_aside(name: str) -> bool:
    """Tell whether a file name is that of a transcript which a reset or a deletion put aside."""
    return _SET_ASIDE.search(name) is not None


def stem_of(name: str) -> str:
    """The name of a transcript without what says that it is one, or that it was put aside."""
    return name[: found.start()] if (found := _SET_ASIDE.search(name)) else name.removesuffix(".jsonl")


def trajectory_beside(transcript: Path) -> Path:
    """Return the path of a transcript's trajectory, which need not exist."""
    return transcript.with_name(stem_of(transcript.name) + TRAJECTORY)


def read_trajectory(transcript: Path) -> Trajectory:
    """The trajectory beside a transcript; an empty one where there is none, or it cannot be read."""
    trajectory, file = Trajectory(), trajectory_beside(transcript)
    if file == transcript or file.is_symlink() or not file.is_file():
        return trajectory
    with file.open("rb") as stream:
        trajectory.read(read_lines(stream))
    return trajectory


def read_header(transcript: Path) -> Json:
    """The first line of a transcript, where it is a header; else nothing."""
    with transcript.open("rb") as stream:
        first = next(read_lines(stream), None)
    value = None if first is None else decode_line(first)
    return value if isinstance(value, dict) and value.get("type") == "session" else {}


def read_window(transcript: Path, header: Json) -> Window:
    """Read what is known of a transcript's session beside its lines."""
    session = header.get("id") if isinstance(header.get("id"), str) else stem_of(transcript.name)
    file = transcript.with_name(SESSIONS)
    try:
        stat = file.stat()
    except OSError:
        found = None
    else:
        found = _entries(file, stat.st_mtime_ns, stat.st_size).get(str(session))
    window = Window() if found is None else window_of(*found)
    return window._replace(inherited=frozenset(_inherited(transcript, header)))


def _inherited(transcript: Path, header: Json) -> Iterator[str]:
    """The ids of the entries of the transcript that this one was copied from, where that one is there and older."""
    parent = _parent(transcript, header.get("parentSession"))
    if parent is None or _age(read_header(parent), parent) >= _age(header, transcript):
        return
    with parent.open("rb") as stream:
        for line in read_lines(stream):
            entry_id = _id_of(line)
            if entry_id is not None:
                yield entry_id


def _parent(transcript: Path, named: Any) -> Path | None:
    """The file that a header names as its parent: in the same folder, whatever folder the header names."""
    if not isinstance(named, str) or not named or "\0" in named:
        return None
    # A state folder that was copied from Windows names its files as that does.
    name = PureWindowsPath(named).name if "\\" in named else PurePosixPath(named).name
    if not name.endswith(".jsonl"):
        return None
    folder = transcript.parent
    found = [folder / name, *sorted(file for file in folder.glob(f"{_literal(name)}.*") if is_set_aside(file.name))]
    return next((file for file in found if file != transcript and not file.is_symlink() and file.is_file()), None)


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _age(header: Json, file: Path) -> tuple[str, str]:
    """Return the key that orders transcripts: the time when they were begun, then their names.

    So no two of them are each other's copies.
    """
    return str(header.get("timestamp") or ""), file.name


def _id_of(line: Line) -> str | None:
    try:
        return msgspec.json.decode(line.body, type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _Named(msgspec.Struct):
    id: str | None = None


_Entry = tuple[str, str, str, SessionEntry]


@functools.lru_cache(maxsize=16)
def _entries(file: Path, _modified: int, size: int) -> dict[str, _Entry]:
    """The entries by the ids of their current sessions, as `window_of` takes them; what cannot be read tells nothing."""
    if size > MAX_SESSIONS or file.is_symlink():
        return {}
    try:
        listed = msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    found: dict[str, _Entry] = {}
    for key, body in listed.items():
        try:
            entry = msgspec.json.decode(body, type=SessionEntry) if len(memoryview(body)) <= MAX_ENTRY else SessionEntry()
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if entry.session_id is not None:
            found[entry.session_id] = key, entry.chat_type or "", entry.spawned_by or "", entry
    return found
