"""Derived evidence of OpenClaw transcripts: when it is reported, with which ids, and what the agent's store adds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streams.sources.openclaw.storage import read_database
from streams.sources.source import Reading, ReadingContext

START = datetime(2026, 11, 3, 9, tzinfo=UTC)
CONFIG = "listen=0.0.0.0:7443 workers=24 retention_days=198"
Read = Callable[..., Reading]


def _entry(name: str, parent: str | None, minute: int, message: dict[str, Any]) -> dict[str, Any]:
    at = (START + timedelta(minutes=minute)).isoformat()
    return {"type": "message", "id": name, "parentId": parent, "timestamp": at, "message": message}


def _user(name: str, parent: str | None, minute: int, text: str) -> dict[str, Any]:
    return _entry(name, parent, minute, {"role": "user", "content": text})


def _call(name: str, parent: str, minute: int, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    block = {"type": "toolCall", "id": f"call-{name}", "name": tool, "arguments": arguments}
    return _entry(name, parent, minute, {"role": "assistant", "content": [block], "stopReason": "toolUse"})


def _result(name: str, parent: str, minute: int, tool: str, text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return _entry(
        name,
        parent,
        minute,
        {"role": "toolResult", "toolCallId": f"call-{parent}", "toolName": tool, "content": content, **more},
    )


def _says(name: str, parent: str, minute: int, text: str, stop: str = "stop") -> dict[str, Any]:
    return _entry(name, parent, minute, {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": stop})


def _ignoring(stop: str = "stop") -> list[dict[str, Any]]:
    """Return a transcript in which a file is read and the answer names a port that it does not have."""
    return [
        {"type": "session", "id": "s", "timestamp": START.isoformat()},
        _user("u1", None, 0, "Which port?"),
        _call("a1", "u1", 1, "read", {"path": "app.conf"}),
        _result("r1", "a1", 1, "read", CONFIG),
        _says("a2", "r1", 2, "It uses port 8080.", stop),
    ]


def _derived(reading: Reading) -> list[tuple[str, str]]:
    return [(event.event, event.event_id) for event in reading.events if event.event in ("output_use", "skill_event")]


def _at(context: ReadingContext, minute: int) -> ReadingContext:
    now = START + timedelta(minutes=minute)
    return ReadingContext(context.connection, context.project, context.agent, now, context.session_gap, context.redactor)


def test_an_unused_output_is_an_event_of_its_exchange(read: Read) -> None:
    """It is filed beside its call, at the time of the answer, and marked as derived."""
    (event,) = [event for event in read(_ignoring()).events if event.event == "output_use"]
    payload = json.loads(event.payload)

    assert event.used is False
    assert event.event_id == "r1.use"
    assert event.occurred_at == START + timedelta(minutes=2)
    assert payload["exchange_id"] == "s:u1"
    assert payload["tool_call_id"] == "call-a1"
    assert payload["derived_by"] == "output-use-1"


def test_no_derived_event_is_reported_before_the_answer_is_over(read: Read, context: ReadingContext) -> None:
    """The agent may use the output in its next message, and an event cannot be withdrawn."""
    for length in range(1, len(_ignoring()) + 1):
        assert _derived(read(_ignoring()[:length], _at(context, 3))) == []

    assert _derived(read(_ignoring(), _at(context, 40))) == [("output_use", "r1.use")]


def test_the_next_message_of_the_user_ends_the_answer(read: Read, context: ReadingContext) -> None:
    """Its events come before the following ones, as in a later reading of the whole file."""
    entries = [*_ignoring(), _user("u2", "a2", 3, "And now?"), _call("a3", "u2", 4, "exec", {"command": "date"})]
    reading = read(entries, _at(context, 5))

    assert [event.event_id for event in reading.events] == ["a1", "r1", "r1.use", "a3"]


def test_an_answer_that_uses_the_output_later_has_used_it(read: Read) -> None:
    """A further message of the agent belongs to the same answer."""
    assert _derived(read([*_ignoring(), _says("a3", "a2", 4, "Sorry, it is 7443.")])) == []


@pytest.mark.parametrize("stop", ["error", "aborted", "toolUse"])
def test_an_exchange_without_an_answer_is_not_judged(stop: str, read: Read) -> None:
    """The agent had no chance to use what it read."""
    assert _derived(read(_ignoring(stop))) == []


def test_derived_events_do_not_depend_on_the_cuts(read: Read, context: ReadingContext) -> None:
    """A followed file is read repeatedly as it grows."""
    entries = [*_ignoring(), _user("u2", "a2", 50, "Thanks"), _says("a3", "u2", 51, "Any time.")]
    complete = [(event.seq, event.event_id) for event in read(entries).events]

    for length in range(1, len(entries) + 1):
        for minute in (3, 33, 49, 51, 90):
            if minute >= [0, 0, 1, 1, 2, 50, 51][length - 1]:
                cut_events = [(event.seq, event.event_id) for event in read(entries[:length], _at(context, minute)).events]
                assert cut_events == complete[: len(cut_events)]


def test_a_wrapped_output_is_judged_like_that_of_the_inner_tool(read: Read) -> None:
    """A delivery through the wrapper needs no use, a file does."""
    for tool, expected in (("message", []), ("memory_get", [("output_use", "r1.use")])):
        entries = _ignoring()
        entries[2] = _call("a1", "u1", 1, "tool_call", {"id": tool, "args": {"path": "x"}})
        entries[3] = _result("r1", "a1", 1, "tool_call", CONFIG)
        assert _derived(read(entries)) == expected


def _store(root: Path, entries: list[dict[str, Any]], entry_json: str) -> Path:
    """Return a database of the current form with one session and its node's entry."""
    path = root / "agents/ops/agent/openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE transcript_events (session_id, seq, event_json, created_at)")
        connection.execute("CREATE TABLE session_windows (session_id, session_key, chat_type, spawned_by, created_at)")
        connection.execute("CREATE TABLE session_nodes (session_key, current_session_id, entry_json)")
        rows = [("s", seq, json.dumps(entry)) for seq, entry in enumerate(entries)]
        connection.executemany("INSERT INTO transcript_events VALUES (?, ?, ?, 0)", rows)
        connection.execute("INSERT INTO session_windows VALUES ('s', 'agent:ops:main', NULL, NULL, 1)")
        connection.execute("INSERT INTO session_nodes VALUES ('agent:ops:main', 's', ?)", (entry_json,))
    return path


def _asking() -> list[dict[str, Any]]:
    return [_user("u1", None, 0, "/proofread my draft"), _says("a1", "u1", 1, "It reads well.")]


def test_the_agents_store_tells_which_skills_it_has(tmp_path: Path, context: ReadingContext) -> None:
    """The snapshot in the conversation's node names them."""
    snapshot = json.dumps({"skillsSnapshot": {"skills": [{"name": "Proofread"}, {"name": "tmux"}]}})
    (reading,) = read_database(_store(tmp_path, _asking(), snapshot), context)

    assert _derived(reading) == [("skill_event", "u1.skill-0")]


@pytest.mark.parametrize(
    "entry_json",
    [
        "",
        "{",
        "null",
        "[]",
        '{"skillsSnapshot": 5}',
        '{"skillsSnapshot": {"skills": {"name": "proofread"}}}',
        '{"skillsSnapshot": {"skills": [5, {"name": 7}]}}',
    ],
)
def test_a_store_without_skills_gives_no_ignored_ones(entry_json: str, tmp_path: Path, context: ReadingContext) -> None:
    """Whatever is in its place, the session is read."""
    (reading,) = read_database(_store(tmp_path, _asking(), entry_json), context)

    assert _derived(reading) == []
    assert len(reading.exchanges) == 1
