# ruff: noqa: S608 - statements are built from names of our own
"""What an OpenClaw database says of a session beside its lines: who began it, where it was held, what was copied into it.

Databases since 2026.7.2 have `session_windows`, a row per session, and `session_nodes`, a row per conversation. Older files have
neither, and say nothing of it.

A fork or a rewind copies entries, with their ids, into another session; the columns that would say so are often empty (2026.9.6
leaves `reason` and `previous_session_id` of a rewound session null). So the ids decide: an entry is of the oldest session that
holds it, and of the others a copy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

WINDOWS, NODES, IDENTITIES = "session_windows", "session_nodes", "transcript_event_identities"

_GROUPS = frozenset({"group", "channel"})
_MARKS = {":subagent:": "subagent", ":cron:": "cron", ":heartbeat": "heartbeat", ":acp:": "acp"}
"""What the key of a conversation says of who began it, and the tag that its exchanges get."""
_READ = ("session_id", "session_key", "chat_type", "spawned_by")
_COPIES = f"""
WITH repeated AS (SELECT event_id FROM {IDENTITIES} GROUP BY event_id HAVING count(*) > 1)
SELECT event_id, session_id FROM {IDENTITIES} JOIN repeated USING (event_id) JOIN {WINDOWS} USING (session_id)
ORDER BY event_id, {WINDOWS}.created_at, session_id
"""
"""The sessions of each entry that several have, the oldest first."""
_SKILLS = f"""
SELECT session_key, CASE WHEN json_valid(entry_json) THEN json_extract(entry_json, '$.skillsSnapshot.skills') END FROM {NODES}
"""
_MAX_SKILLS = 10_000


class Window(NamedTuple):
    """What is known of one session.

    `tags` are those of all its exchanges; `multi_user` says that several people take part; `inherited` are the ids of the entries
    that were copied from another session; `skills` are the names of the skills its agent has.
    """

    tags: frozenset[str] = frozenset()
    multi_user: bool = False
    inherited: frozenset[str] = frozenset()
    skills: frozenset[str] = frozenset()


def read_windows(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, Window]:
    """What the database says of each session, by its id; nothing where it has no such table."""
    if WINDOWS not in tables or not {"session_id", "session_key"} <= tables[WINDOWS]:
        return {}
    wanted = ", ".join(name if name in tables[WINDOWS] else f"NULL AS {name}" for name in _READ)
    copied, skills = _copied(connection, tables), _skills(connection, tables)
    windows = {}
    for row in connection.execute(f"SELECT {wanted} FROM {WINDOWS}"):
        session, key, chat, spawned_by = (_text(value) for value in row)
        tags = {tag for mark, tag in _MARKS.items() if mark in key} | ({"subagent"} if spawned_by else set())
        own = skills.get(key, frozenset())
        windows[session] = Window(frozenset(tags), chat in _GROUPS, frozenset(copied.get(session, ())), own)
    return windows


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


def _skills(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The names of the skills that each conversation was given, by its key."""
    if not {"session_key", "entry_json"} <= tables.get(NODES, frozenset()):
        return {}
    # Most conversations of an agent have the same ones.
    read: dict[bytes, frozenset[str]] = {}
    found = {}
    for key, snapshot in connection.execute(_SKILLS):
        if isinstance(snapshot, bytes):
            if snapshot not in read:
                read[snapshot] = _names(snapshot)
            found[_text(key)] = read[snapshot]
    return found


def _names(snapshot: bytes) -> frozenset[str]:
    try:
        skills = msgspec.json.decode(snapshot)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return frozenset()
    if not isinstance(skills, list):
        return frozenset()
    names = (skill.get("name") for skill in skills[:_MAX_SKILLS] if isinstance(skill, dict))
    return frozenset(name.casefold() for name in names if isinstance(name, str))


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
