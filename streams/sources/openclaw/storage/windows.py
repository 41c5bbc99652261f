# ruff: noqa: S608 - statements are built from names of our own
"""Session data of an OpenClaw database beside the lines: origin, channel, copied lines.

Databases since 2026.7.2 have `session_windows`, a row per session, and `session_nodes`, a row per conversation. Older files have
neither, and say nothing of it.

A fork or a rewind copies entries, with their ids, into another session; the columns that would say so are often empty (2026.9.6
leaves `reason` and `previous_session_id` of a rewound session null). So the ids decide: an entry is of the oldest session that
holds it, and of the others a copy.

The entry of a conversation, `entry_json` there and an object of `sessions.json` beside transcripts in files, tells of its current
session which skills it was given and how large its model's context is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from schemas.bounds.limits import has_surrogates

WINDOWS, NODES, IDENTITIES = "session_windows", "session_nodes", "transcript_event_identities"

_GROUPS = frozenset({"group", "channel"})
_MARKS = {":subagent:": "subagent", ":cron:": "cron", ":heartbeat": "heartbeat", ":acp:": "acp"}
_SHARED = (":group:", ":channel:")
"""Marks in the key of a conversation that several people share; `_MARKS` say who began it, with the tag of its exchanges."""
MAX_ENTRY = 16 * 1024 * 1024
"""Bytes of the largest entry that is read."""
_READ = ("session_id", "session_key", "chat_type", "spawned_by")
_COPIES = f"""
WITH repeated AS (SELECT event_id FROM {IDENTITIES} GROUP BY event_id HAVING count(*) > 1)
SELECT event_id, session_id FROM {IDENTITIES} JOIN repeated USING (event_id) JOIN {WINDOWS} USING (session_id)
ORDER BY event_id, {WINDOWS}.created_at, session_id
"""
"""The sessions of each entry that several have, the oldest first."""


class Fill(NamedTuple):
    """The size of a session's context, from its entry: how many tokens the window of which model has."""

    window: int
    provider: str | None
    model: str | None


class Window(NamedTuple):
    """The known facts about one session.

    `tags` are those of all its exchanges. `multi_user` says that several people take part. `inherited` are the ids of the
    entries that were copied from another session. `skills` are the names of those that its agent was given. `fill` is the size
    of its context.
    """

    tags: frozenset[str] = frozenset()
    multi_user: bool = False
    inherited: frozenset[str] = frozenset()
    skills: tuple[str, ...] = ()
    fill: Fill | None = None


def read_windows(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, Window]:
    """Read what the database says of each session, by its id; nothing if it has no such table."""
    if WINDOWS not in tables or not {"session_id", "session_key"} <= tables[WINDOWS]:
        return {}
    wanted = ", ".join(name if name in tables[WINDOWS] else f"NULL AS {name}" for name in _READ)
    copied = _copied(connection, tables)
    entries = _entries(connection, tables)
    windows = {}
    for row in connection.execute(f"SELECT {wanted} FROM {WINDOWS}"):
        session, key, chat, spawned_by = (_text(value) for value in row)
        window = window_of(key, chat, spawned_by, entries.get(session))
        windows[session] = window._replace(inherited=frozenset(copied.get(session, ())))
    return windows


class Skill(msgspec.Struct):
    """A skill in the snapshot of an entry."""

    name: str = ""


class Snapshot(msgspec.Struct):
    """The skills that a session was given."""

    skills: list[Skill] = []


class SessionEntry(msgspec.Struct, rename="camel"):
    """The fields that are read of a conversation's entry: the rest, prompts and reports, may have megabytes."""

    session_id: str | None = None
    chat_type: str | None = None
    spawned_by: str | None = None
    context_tokens: Any = None
    model_provider: Any = None
    model: Any = None
    skills_snapshot: Snapshot | None = None


def window_of(key: str, chat: str, spawned_by: str, entry: SessionEntry | None) -> Window:
    """Return the facts about a session from the key of its conversation, its type of chat, its spawner, and its entry."""
    tags = {tag for mark, tag in _MARKS.items() if mark in key} | ({"subagent"} if spawned_by else set())
    multi_user = chat in _GROUPS or any(mark in key for mark in _SHARED)
    if entry is None:
        return Window(frozenset(tags), multi_user)
    snapshot = entry.skills_snapshot.skills if entry.skills_snapshot is not None else []
    names = sorted({skill.name for skill in snapshot if skill.name and not has_surrogates(skill.name)})
    size = entry.context_tokens
    provider, model = (value if isinstance(value, str) else None for value in (entry.model_provider, entry.model))
    fill = Fill(size, provider, model) if type(size) is int and size > 0 else None
    return Window(frozenset(tags), multi_user, skills=tuple(names), fill=fill)


def _entries(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, SessionEntry]:
    """The entries of the conversations, by the ids of their current sessions; one that cannot be read tells nothing."""
    if not {"current_session_id", "entry_json"} <= tables.get(NODES, frozenset()):
        return {}
    statement = f"SELECT current_session_id, CAST(entry_json AS BLOB) FROM {NODES} WHERE length(CAST(entry_json AS BLOB)) <= {MAX_ENTRY}"
    entries = {}
    for session, body in connection.execute(statement):
        try:
            entries[_text(session)] = msgspec.json.decode(body, type=SessionEntry)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return entries


def _copied(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """The ids of the entries that each session has from an older one."""
    if not {"session_id", "event_id"} <= tables.get(IDENTITIES, frozenset()) or "created_at" not in tables[WINDOWS]:
        return {}
    first: bytes | None = None
    copied: dict[str, list[str]] = {}
    for event, session in connection.execute(_COPIES):
        if event == first:
            copied.setdefault(_text(session), []).append(_text(event))
        first = event
    return copied


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
