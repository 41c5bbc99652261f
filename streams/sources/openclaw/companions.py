# ruff: noqa: S608 - statements are built from names of our own
"""Facts about a session from outside its lines: its origin, channel, skills, context window, and copied entries.

In a database:

1. Since 2026.7.2 a database has `session_windows` with a row per session, and `session_nodes` with a row per conversation. Older files have
   neither.
2. A fork or a rewind copies entries with their ids into another session. The columns that should say so are often empty (2026.9.6 leaves
   `reason` and `previous_session_id` of a rewound session null), so the ids decide: an entry belongs to the oldest session that has it, and
   is a copy in the others.
3. The entry of a conversation (`entry_json`) has the skills of its current session and the size of the model's context window.

Beside a transcript in a file:

4. `<name>.trajectory.jsonl` is the trajectory of the session's runs. If `OPENCLAW_TRAJECTORY_DIR` puts it elsewhere, it is not read, because
   a path in a file may point anywhere.
5. `sessions.json` has the entries of the conversations (rule 3) by their keys.
6. A fork, and the successor written by a compaction, start with a copy of another transcript, which their header names as `parentSession`.
   Common entries count in the older transcript. If that is missing, the copy counts.
7. `<name>.jsonl.reset.<time>` and `….deleted.<time>` are transcripts that OpenClaw archived. They count.
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
from streams.sources.openclaw.trajectory import ContextWindow, Trajectory

WINDOWS, NODES, IDENTITIES = "session_windows", "session_nodes", "transcript_event_identities"
_GROUPS = frozenset({"group", "channel"})
_TAG_BY_KEY_PART = {":subagent:": "subagent", ":cron:": "cron", ":heartbeat": "heartbeat", ":acp:": "acp"}
"""Tag of a conversation by the part of its key that tells who started it."""
_SHARED_KEY_PARTS = (":group:", ":channel:")
"""Parts of the keys of conversations that several people share."""
MAX_ENTRY_BYTES = 16 * 1024 * 1024
"""Maximum size of a conversation entry that is read."""
_FACT_COLUMNS = ("session_id", "session_key", "chat_type", "spawned_by")
_COPIES = f"""
WITH repeated AS (SELECT event_id FROM {IDENTITIES} GROUP BY event_id HAVING count(*) > 1)
SELECT event_id, session_id FROM {IDENTITIES} JOIN repeated USING (event_id) JOIN {WINDOWS} USING (session_id)
ORDER BY event_id, {WINDOWS}.created_at, session_id
"""
"""Selects the sessions of each entry that is in several sessions, oldest first."""
TRAJECTORY = ".trajectory.jsonl"
"""Suffix of trajectory files."""
CHECKPOINT = ".checkpoint."
"""Part of the name of a copy that was made before a compaction: `<session id>.checkpoint.<id>.jsonl`."""
SESSIONS = "sessions.json"
"""Name of the file with the entries of the conversations."""
MAX_SESSIONS_BYTES = 256 * 1024 * 1024
"""Maximum size of a SESSIONS file that is read."""
_ARCHIVED_NAME = re.compile(r"\.jsonl\.(?:reset|deleted)\.[0-9TZ.:-]{1,40}\Z")
Json = dict[str, Any]


class SessionFacts(NamedTuple):
    """The known facts about one session.

    `tags` apply to all its exchanges. `multi_user` is True if several people take part. `inherited` are the ids of entries copied from
    another session. `skills` are the names of the agent's skills.
    """

    tags: frozenset[str] = frozenset()
    multi_user: bool = False
    inherited: frozenset[str] = frozenset()
    skills: tuple[str, ...] = ()
    context_window: ContextWindow | None = None


def read_stored_facts(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, SessionFacts]:
    """Return the facts about the sessions in a database, by session id; empty if it has no table with them."""
    if WINDOWS not in tables or not {"session_id", "session_key"} <= tables[WINDOWS]:
        return {}
    columns = ", ".join(name if name in tables[WINDOWS] else f"NULL AS {name}" for name in _FACT_COLUMNS)
    copied_ids = _read_copied_ids(connection, tables)
    entries = _read_entries(connection, tables)
    facts_by_session = {}
    for row in connection.execute(f"SELECT {columns} FROM {WINDOWS}"):
        session, key, chat, spawned_by = (_decode_text(value) for value in row)
        facts = build_session_facts(key, chat, spawned_by, entries.get(session))
        facts_by_session[session] = facts._replace(inherited=frozenset(copied_ids.get(session, ())))
    return facts_by_session


def _read_copied_ids(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Return the ids of the entries that each session copied from an older one."""
    if not {"session_id", "event_id"} <= tables.get(IDENTITIES, frozenset()) or "created_at" not in tables[WINDOWS]:
        return {}
    previous_id: bytes | None = None
    copied_ids: dict[str, list[str]] = {}
    for entry_id, session in connection.execute(_COPIES):
        # The first row of an entry is its own session; the following ones are copies.
        if entry_id == previous_id:
            copied_ids.setdefault(_decode_text(session), []).append(_decode_text(entry_id))
        previous_id = entry_id
    return copied_ids


def _decode_text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _read_entries(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, SessionEntry]:
    """Return the entries of conversations by current session id. Unreadable ones are ignored."""
    if not {"current_session_id", "entry_json"} <= tables.get(NODES, frozenset()):
        return {}
    statement = f"SELECT current_session_id, CAST(entry_json AS BLOB) FROM {NODES} WHERE length(CAST(entry_json AS BLOB)) <= {MAX_ENTRY_BYTES}"
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
    """The skills of a session when it started."""

    skills: list[Skill] = []


class SessionEntry(msgspec.Struct, rename="camel"):
    """The fields that are read from a conversation's entry. The other fields, prompts and reports, may have megabytes."""

    session_id: str | None = None
    chat_type: str | None = None
    spawned_by: str | None = None
    context_tokens: Any = None
    model_provider: Any = None
    model: Any = None
    skills_snapshot: Snapshot | None = None


def build_session_facts(key: str, chat: str, spawned_by: str, entry: SessionEntry | None) -> SessionFacts:
    """Return the facts about a session, given the key of its conversation, its chat type, its spawner and its entry."""
    tags = {tag for part, tag in _TAG_BY_KEY_PART.items() if part in key}
    if spawned_by:
        tags.add("subagent")
    multi_user = chat in _GROUPS or any(part in key for part in _SHARED_KEY_PARTS)
    if entry is None:
        return SessionFacts(frozenset(tags), multi_user)
    snapshot = entry.skills_snapshot.skills if entry.skills_snapshot is not None else []
    names = sorted({skill.name for skill in snapshot if skill.name and not has_surrogates(skill.name)})
    size = entry.context_tokens
    provider = entry.model_provider if isinstance(entry.model_provider, str) else None
    model = entry.model if isinstance(entry.model, str) else None
    context_window = ContextWindow(size, provider, model) if type(size) is int and size > 0 else None
    return SessionFacts(frozenset(tags), multi_user, skills=tuple(names), context_window=context_window)


def is_archived(name: str) -> bool:
    """Return whether a file of this name is a transcript that a reset or a deletion archived."""
    return _ARCHIVED_NAME.search(name) is not None


def transcript_stem(name: str) -> str:
    """Return the name of a transcript without its suffix and without the mark of an archived transcript."""
    suffix = _ARCHIVED_NAME.search(name)
    return name.removesuffix(".jsonl") if suffix is None else name[: suffix.start()]


def trajectory_beside(transcript: Path) -> Path:
    """Return the path of a transcript's trajectory, which need not exist."""
    return transcript.with_name(transcript_stem(transcript.name) + TRAJECTORY)


def read_trajectory(transcript: Path) -> Trajectory:
    """Return the trajectory beside a transcript; an empty one if it is missing or unreadable."""
    trajectory = Trajectory()
    file = trajectory_beside(transcript)
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


def read_facts_beside(transcript: Path, header: Json) -> SessionFacts:
    """Return the facts about the session of a transcript file."""
    session = header.get("id") if isinstance(header.get("id"), str) else transcript_stem(transcript.name)
    file = transcript.with_name(SESSIONS)
    try:
        stat = file.stat()
    except OSError:
        conversation = None
    else:
        conversation = _read_session_file(file, _FileStamp(stat.st_mtime_ns, stat.st_size)).get(str(session))
    facts = SessionFacts()
    if conversation is not None:
        entry = conversation.entry
        facts = build_session_facts(conversation.key, entry.chat_type or "", entry.spawned_by or "", entry)
    return facts._replace(inherited=frozenset(_read_inherited_ids(transcript, header)))


class _FileStamp(NamedTuple):
    """The version of a file. It is part of the key of the cache, so that a changed file is read again."""

    modified_ns: int
    size: int


class _Conversation(NamedTuple):
    """A conversation in a SESSIONS file."""

    key: str
    entry: SessionEntry


@functools.lru_cache(maxsize=16)
def _read_session_file(file: Path, stamp: _FileStamp) -> dict[str, _Conversation]:
    """Return the conversations in a SESSIONS file by current session id. Unreadable entries are ignored."""
    if stamp.size > MAX_SESSIONS_BYTES or file.is_symlink():
        return {}
    try:
        encoded_entries = msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    conversations: dict[str, _Conversation] = {}
    for key, body in encoded_entries.items():
        if len(memoryview(body)) > MAX_ENTRY_BYTES:
            continue
        try:
            entry = msgspec.json.decode(body, type=SessionEntry)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if entry.session_id is not None:
            conversations[entry.session_id] = _Conversation(key, entry)
    return conversations


def _read_inherited_ids(transcript: Path, header: Json) -> Iterator[str]:
    """Yield the ids of the entries of the parent transcript, if it exists and is older."""
    parent = _find_parent(transcript, header.get("parentSession"))
    if parent is None or _build_age_key(read_header(parent), parent) >= _build_age_key(header, transcript):
        return
    with parent.open("rb") as stream:
        for line in read_lines(stream):
            entry_id = _read_id(line)
            if entry_id is not None:
                yield entry_id


def _find_parent(transcript: Path, parent_path: Any) -> Path | None:
    """Return the parent file that a header names. It is always looked up in the transcript's own folder."""
    if not isinstance(parent_path, str) or not parent_path or "\0" in parent_path:
        return None
    # A state folder copied from Windows has Windows paths.
    name = PureWindowsPath(parent_path).name if "\\" in parent_path else PurePosixPath(parent_path).name
    if not name.endswith(".jsonl"):
        return None
    folder = transcript.parent
    candidates = [folder / name, *sorted(file for file in folder.glob(f"{glob.escape(name)}.*") if is_archived(file.name))]
    return next((file for file in candidates if file != transcript and not file.is_symlink() and file.is_file()), None)


def _build_age_key(header: Json, file: Path) -> tuple[str, str]:
    """Return the sort key of a transcript: its start time, then its name.

    The order is total, so that no two transcripts are copies of each other.
    """
    return str(header.get("timestamp") or ""), file.name


def _read_id(line: Line) -> str | None:
    try:
        return msgspec.json.decode(line.body, type=_IdOnly).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _IdOnly(msgspec.Struct):
    id: str | None = None
