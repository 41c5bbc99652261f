# ruff: noqa: S608 - statements are built from names of our own
"""Facts about a session from outside its lines: origin, channel, skills, context size, and copied entries.

In a database:

1. Since 2026.7.2 a database has `session_windows`, a row per session, and `session_nodes`, a row per conversation. Older files have
   neither.
2. A fork or a rewind copies entries, with their ids, into another session. The columns for this are often empty (2026.9.6 leaves `reason`
   and `previous_session_id` of a rewound session null), so the ids decide: an entry belongs to the oldest session that has it, and is a
   copy in the others.
3. The entry of a conversation (`entry_json`) has the skills of its current session and the size of its model's context.

Beside a transcript in a file:

4. `<name>.trajectory.jsonl` is the trajectory of the session's runs. If `OPENCLAW_TRAJECTORY_DIR` moved it elsewhere, it is not read,
   because a path in a file may point anywhere.
5. `sessions.json` has the entry of each conversation by its key, as in rule 3.
6. A fork, and the successor written by a compaction, start with a copy of another transcript, which their header names as `parentSession`.
   Common entries count in the older transcript. If it is missing, the copy counts.
7. `<name>.jsonl.reset.<time>` and `….deleted.<time>` are transcripts set aside by OpenClaw, and count.
"""

from __future__ import annotations

import functools
import glob
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import msgspec

from schemas.bounds import has_surrogates
from streams.sources.lines import Line, decode_line, read_lines
from streams.sources.openclaw.trajectory import Fill, Trajectory

WINDOWS, NODES, IDENTITIES = "session_windows", "session_nodes", "transcript_event_identities"
_GROUPS = frozenset({"group", "channel"})
_TAG_BY_KEY_PART = {":subagent:": "subagent", ":cron:": "cron", ":heartbeat": "heartbeat", ":acp:": "acp"}
_SHARED_KEY_PARTS = (":group:", ":channel:")
"""Parts of the key of a conversation shared by several people. `_TAG_BY_KEY_PART`: the part that tells who began it, with its tag."""
MAX_ENTRY = 16 * 1024 * 1024
"""Bytes of the largest conversation entry that is read."""
_WINDOW_COLUMNS = ("session_id", "session_key", "chat_type", "spawned_by")
_COPIES = f"""
WITH repeated AS (SELECT event_id FROM {IDENTITIES} GROUP BY event_id HAVING count(*) > 1)
SELECT event_id, session_id FROM {IDENTITIES} JOIN repeated USING (event_id) JOIN {WINDOWS} USING (session_id)
ORDER BY event_id, {WINDOWS}.created_at, session_id
"""
"""The sessions of each entry that is in several, oldest first."""
TRAJECTORY = ".trajectory.jsonl"
"""Suffix of trajectory files."""
CHECKPOINT = ".checkpoint."
"""Part of the name of a copy made before a compaction: `<session id>.checkpoint.<id>.jsonl`."""
SESSIONS = "sessions.json"
"""Name of the file with the entries of the conversations."""
MAX_SESSIONS = 256 * 1024 * 1024
"""Bytes of the largest SESSIONS file that is read."""
_SET_ASIDE = re.compile(r"\.jsonl\.(?:reset|deleted)\.[0-9TZ.:-]{1,40}\Z")
Json = dict[str, Any]


class Window(NamedTuple):
    """Known facts about one session.

    `tags` apply to all its exchanges. `multi_user`: several people take part. `inherited` are the ids of entries copied from another
    session. `skills` are the names of the agent's skills. `fill` is the size of the context.
    """

    tags: frozenset[str] = frozenset()
    multi_user: bool = False
    inherited: frozenset[str] = frozenset()
    skills: tuple[str, ...] = ()
    fill: Fill | None = None


def read_windows(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, Window]:
    """Read the windows of a database by session id; empty if it has no such table."""
    if WINDOWS not in tables or not {"session_id", "session_key"} <= tables[WINDOWS]:
        return {}
    columns = ", ".join(name if name in tables[WINDOWS] else f"NULL AS {name}" for name in _WINDOW_COLUMNS)
    copied = _read_copied(connection, tables)
    entries = _read_entries(connection, tables)
    windows = {}
    for row in connection.execute(f"SELECT {columns} FROM {WINDOWS}"):
        session, key, chat, spawned_by = (_decode_text(value) for value in row)
        window = window_of(key, chat, spawned_by, entries.get(session))
        windows[session] = window._replace(inherited=frozenset(copied.get(session, ())))
    return windows


def _read_copied(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Return the ids of the entries that each session copied from an older one."""
    if not {"session_id", "event_id"} <= tables.get(IDENTITIES, frozenset()) or "created_at" not in tables[WINDOWS]:
        return {}
    first: bytes | None = None
    copied: dict[str, list[str]] = {}
    for event, session in connection.execute(_COPIES):
        if event == first:
            copied.setdefault(_decode_text(session), []).append(_decode_text(event))
        first = event
    return copied


def _decode_text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _read_entries(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, SessionEntry]:
    """Return the entries of the conversations by current session id; unreadable ones are ignored."""
    if not {"current_session_id", "entry_json"} <= tables.get(NODES, frozenset()):
        return {}
    statement = f"SELECT current_session_id, CAST(entry_json AS BLOB) FROM {NODES} WHERE length(CAST(entry_json AS BLOB)) <= {MAX_ENTRY}"
    entries = {}
    for session, body in connection.execute(statement):
        try:
            entries[_decode_text(session)] = msgspec.json.decode(body, type=SessionEntry)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return entries


class Skill(msgspec.Struct):
    """A skill in the snapshot of an entry."""

    name: str = ""


class Snapshot(msgspec.Struct):
    """The skills that a session was given."""

    skills: list[Skill] = []


class SessionEntry(msgspec.Struct, rename="camel"):
    """The fields read from a conversation's entry. The others, prompts and reports, may have megabytes."""

    session_id: str | None = None
    chat_type: str | None = None
    spawned_by: str | None = None
    context_tokens: Any = None
    model_provider: Any = None
    model: Any = None
    skills_snapshot: Snapshot | None = None


def window_of(key: str, chat: str, spawned_by: str, entry: SessionEntry | None) -> Window:
    """Return the facts about a session given the key of its conversation, its chat type, its spawner and its entry."""
    tags = {tag for part, tag in _TAG_BY_KEY_PART.items() if part in key}
    if spawned_by:
        tags.add("subagent")
    multi_user = chat in _GROUPS or any(part in key for part in _SHARED_KEY_PARTS)
    if entry is None:
        return Window(frozenset(tags), multi_user)
    snapshot = entry.skills_snapshot.skills if entry.skills_snapshot is not None else []
    names = sorted({skill.name for skill in snapshot if skill.name and not has_surrogates(skill.name)})
    size = entry.context_tokens
    provider, model = (value if isinstance(value, str) else None for value in (entry.model_provider, entry.model))
    fill = Fill(size, provider, model) if type(size) is int and size > 0 else None
    return Window(frozenset(tags), multi_user, skills=tuple(names), fill=fill)


def is_set_aside(name: str) -> bool:
    """Return whether a name is that of a transcript set aside by a reset or a deletion."""
    return _SET_ASIDE.search(name) is not None


def stem_of(name: str) -> str:
    """Return the name of a transcript without its suffix, which may mark it as set aside."""
    suffix = _SET_ASIDE.search(name)
    return name.removesuffix(".jsonl") if suffix is None else name[: suffix.start()]


def trajectory_beside(transcript: Path) -> Path:
    """Return the path of a transcript's trajectory, which need not exist."""
    return transcript.with_name(stem_of(transcript.name) + TRAJECTORY)


def read_trajectory(transcript: Path) -> Trajectory:
    """Return the trajectory beside a transcript; an empty one if it is missing or unreadable."""
    trajectory, file = Trajectory(), trajectory_beside(transcript)
    if file == transcript or file.is_symlink() or not file.is_file():
        return trajectory
    with file.open("rb") as stream:
        trajectory.read(read_lines(stream))
    return trajectory


def read_header(transcript: Path) -> Json:
    """Return the header of a transcript; an empty object if the first line is not one."""
    with transcript.open("rb") as stream:
        first = next(read_lines(stream), None)
    value = None if first is None else decode_line(first)
    return value if isinstance(value, dict) and value.get("type") == "session" else {}


def read_window(transcript: Path, header: Json) -> Window:
    """Read the window of a transcript in a file."""
    session = header.get("id") if isinstance(header.get("id"), str) else stem_of(transcript.name)
    file = transcript.with_name(SESSIONS)
    try:
        stat = file.stat()
    except OSError:
        window_arguments = None
    else:
        window_arguments = _read_session_file(file, stat.st_mtime_ns, stat.st_size).get(str(session))
    window = Window() if window_arguments is None else window_of(*window_arguments)
    return window._replace(inherited=frozenset(_inherited_ids(transcript, header)))


@functools.lru_cache(maxsize=16)
def _read_session_file(file: Path, _modified: int, size: int) -> dict[str, _WindowArguments]:
    """Return the conversation entries by current session id; unreadable ones are ignored."""
    if size > MAX_SESSIONS or file.is_symlink():
        return {}
    try:
        listed = msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    entries: dict[str, _WindowArguments] = {}
    for key, body in listed.items():
        try:
            entry = msgspec.json.decode(body, type=SessionEntry) if len(memoryview(body)) <= MAX_ENTRY else SessionEntry()
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if entry.session_id is not None:
            entries[entry.session_id] = key, entry.chat_type or "", entry.spawned_by or "", entry
    return entries


def _inherited_ids(transcript: Path, header: Json) -> Iterator[str]:
    """Yield the ids of the entries of the parent transcript, if it exists and is older."""
    parent = _find_parent(transcript, header.get("parentSession"))
    if parent is None or _age_key(read_header(parent), parent) >= _age_key(header, transcript):
        return
    with parent.open("rb") as stream:
        for line in read_lines(stream):
            entry_id = _read_id(line)
            if entry_id is not None:
                yield entry_id


def _find_parent(transcript: Path, named: Any) -> Path | None:
    """Return the parent file that a header names, always in the same folder."""
    if not isinstance(named, str) or not named or "\0" in named:
        return None
    # A state folder copied from Windows has Windows paths.
    name = PureWindowsPath(named).name if "\\" in named else PurePosixPath(named).name
    if not name.endswith(".jsonl"):
        return None
    folder = transcript.parent
    candidates = [folder / name, *sorted(file for file in folder.glob(f"{glob.escape(name)}.*") if is_set_aside(file.name))]
    return next((file for file in candidates if file != transcript and not file.is_symlink() and file.is_file()), None)


def _age_key(header: Json, file: Path) -> tuple[str, str]:
    """Return the sort key of transcripts: start time, then name.

    A total order ensures that no two transcripts are copies of each other.
    """
    return str(header.get("timestamp") or ""), file.name


def _read_id(line: Line) -> str | None:
    try:
        return msgspec.json.decode(line.body, type=_IdOnly).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _IdOnly(msgspec.Struct):
    id: str | None = None


_WindowArguments = tuple[str, str, str, SessionEntry]
