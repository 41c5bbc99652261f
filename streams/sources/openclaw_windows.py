"""What an OpenClaw database says of a session beside its lines: who began it, where it was held, what it was forked from.

Databases since 2026.7.2 have `session_windows`, a row per session, and `session_nodes`, a row per conversation; a conversation
goes on in another session after a reset, a rollover or a fork. Older files have neither, and say nothing of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

WINDOWS, NODES, IDENTITIES = "session_windows", "session_nodes", "transcript_event_identities"

_GROUPS = frozenset({"group", "channel"})
_MARKS = {":subagent:": "subagent", ":cron:": "cron", ":heartbeat": "heartbeat", ":acp:": "acp"}
"""What the key of a conversation says of who began it, and the tag that its exchanges get."""
_READ = ("session_id", "session_key", "chat_type", "spawned_by", "parent_session_key", "reason", "previous_session_id")


class Window(NamedTuple):
    """What is known of one session.

    `tags` are those of all its exchanges; `multi_user` says that several people take part; `source` is the session whose entries
    it began with, a copy of them.
    """

    tags: frozenset[str] = frozenset()
    multi_user: bool = False
    source: str | None = None


def read_windows(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, Window]:
    """What the database says of each session, by its id; nothing where it has no such table."""
    if WINDOWS not in tables or not {"session_id", "session_key"} <= tables[WINDOWS]:
        return {}
    wanted = ", ".join(name if name in tables[WINDOWS] else f"NULL AS {name}" for name in _READ)
    forks = _forks(connection, tables)
    windows = {}
    for row in connection.execute(f"SELECT {wanted} FROM {WINDOWS}"):  # noqa: S608 - names of our own
        session, key, chat, spawned, parent, reason, previous = (
            value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in row
        )
        tags = {tag for mark, tag in _MARKS.items() if mark in (key or "")}
        if spawned or (parent and ":subagent:" in (key or "")):
            tags.add("subagent")
        source = forks.get(session) or (previous if reason in ("fork", "rewind") else None)
        windows[session] = Window(frozenset(tags), chat in _GROUPS, source)
    return windows


def _forks(connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """The session that each forked session was copied from."""
    if "fork_source_session_id" not in tables.get(NODES, frozenset()):
        return {}
    statement = f"SELECT current_session_id, fork_source_session_id FROM {NODES} WHERE fork_source_session_id IS NOT NULL"  # noqa: S608
    rows = connection.execute(statement)
    return {fork.decode("utf-8", "replace"): source.decode("utf-8", "replace") for fork, source in rows}
