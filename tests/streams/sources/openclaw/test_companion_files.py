"""Transcripts in files: copied entries count once, and companion files are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from streams.sources.openclaw.reader import find_transcripts, read_transcript
from streams.sources.source import ReadingContext

Json = dict[str, Any]


def header(session: str, hour: int, parent: str | None = None) -> Json:
    """Return the first line of a transcript."""
    header_fields = {} if parent is None else {"parentSession": parent}
    return {"type": "session", "version": 3, "id": session, "timestamp": f"2026-11-03T{hour:02}:00:00Z", **header_fields}


def said(name: str, role: str, hour: int) -> Json:
    """Return a message whose text is its own id."""
    ended = {"stopReason": "stop"} if role == "assistant" else {}
    message = {"role": role, "content": [{"type": "text", "text": name}], **ended}
    return {"type": "message", "id": name, "timestamp": f"2026-11-03T{hour:02}:01:00Z", "message": message}


FIRST = [said("q1", "user", 9), said("a1", "assistant", 9)]
SECOND = [said("q2", "user", 10), said("a2", "assistant", 10)]
THIRD = [said("q3", "user", 11), said("a3", "assistant", 11)]


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Return the folder of an agent's sessions."""
    folder = tmp_path / "agents" / "ops" / "sessions"
    folder.mkdir(parents=True)
    return folder


def write(file: Path, *entries: Json) -> Path:
    """Write a transcript of these entries."""
    file.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), "utf-8")
    return file


def asked(folder: Path, context: ReadingContext) -> list[str]:
    """Return the questions in all transcripts under a folder, sorted."""
    readings = (read_transcript(file, context) for file in find_transcripts(folder))
    return sorted(exchange.user_message for reading in readings for exchange in reading.exchanges)


@pytest.mark.parametrize("parent", ["/srv/openclaw/agents/ops/sessions/z.jsonl", "C:\\openclaw\\sessions\\z.jsonl", "z.jsonl"])
def test_entries_copied_by_a_fork_count_once(parent: str, sessions: Path, context: ReadingContext) -> None:
    """The header names the source by its path on the machine that wrote it."""
    write(sessions / "z.jsonl", header("z", 9), *FIRST, *SECOND)
    write(sessions / "a.jsonl", header("a", 10, parent), *FIRST, *THIRD)
    assert asked(sessions, context) == ["q1", "q2", "q3"]


def test_a_fork_of_a_fork_counts_only_its_additions(sessions: Path, context: ReadingContext) -> None:
    """Copies of copies must not count again."""
    write(sessions / "z.jsonl", header("z", 9), *FIRST)
    write(sessions / "y.jsonl", header("y", 10, "z.jsonl"), *FIRST, *SECOND)
    write(sessions / "x.jsonl", header("x", 11, "y.jsonl"), *FIRST, *SECOND, *THIRD)
    assert asked(sessions, context) == ["q1", "q2", "q3"]


def test_a_fork_without_its_source_counts_in_full(sessions: Path, context: ReadingContext) -> None:
    """If the source was deleted before the first import, only the copy has the entries."""
    write(sessions / "a.jsonl", header("a", 10, "gone.jsonl"), *FIRST, *THIRD)
    assert asked(sessions, context) == ["q1", "q3"]


@pytest.mark.parametrize("reason", ["deleted", "reset"])
def test_a_deleted_sessions_transcript_is_read_and_its_fork_counts_nothing_twice(
    reason: str, sessions: Path, context: ReadingContext
) -> None:
    """A deleted session disappears from the user's list, but what the agent did still counts."""
    write(sessions / f"z.jsonl.{reason}.2026-11-03T12-00-00.000Z", header("z", 9), *FIRST, *SECOND)
    write(sessions / "a.jsonl", header("a", 10, "/elsewhere/z.jsonl"), *FIRST, *THIRD)
    assert asked(sessions, context) == ["q1", "q2", "q3"]


def test_two_transcripts_that_name_each_other_hide_nothing(sessions: Path, context: ReadingContext) -> None:
    """The older of the two is the source, whatever a header says."""
    write(sessions / "a.jsonl", header("a", 10, "z.jsonl"), *FIRST, *SECOND)
    write(sessions / "z.jsonl", header("z", 10, "a.jsonl"), *FIRST, *THIRD)
    assert asked(sessions, context) == ["q1", "q2", "q3"]


@pytest.mark.parametrize("parent", ["../../../secret.jsonl", "a.jsonl", "\0.jsonl", "", "*.jsonl", 7, None], ids=repr)
def test_a_header_leads_to_no_file_outside_its_folder(
    parent: object, sessions: Path, tmp_path: Path, context: ReadingContext
) -> None:
    """Headers are untrusted input."""
    write(tmp_path / "secret.jsonl", header("secret", 8), *FIRST)
    write(sessions / "a.jsonl", header("a", 10) | {"parentSession": parent}, *FIRST)
    assert asked(sessions, context) == ["q1"]


@pytest.mark.parametrize(
    ("key", "entry", "expected"),
    [
        ("agent:ops:main", {}, ((), False)),
        ("agent:ops:main", {"chatType": "group"}, ((), True)),
        ("agent:ops:discord:channel:c1", {}, ((), True)),
        ("agent:ops:x", {"spawnedBy": "agent:ops:main"}, (("subagent",), False)),
        ("agent:ops:cron:nightly", {}, (("cron",), False)),
    ],
)
def test_the_conversation_entry_tells_who_started_it_and_where(
    key: str, entry: Json, expected: tuple[tuple[str, ...], bool], sessions: Path, context: ReadingContext
) -> None:
    """In files as in a database, a scheduled run is not a person's question."""
    (sessions / "sessions.json").write_text(json.dumps({key: {"sessionId": "z", **entry}, "other": 7}), "utf-8")
    reading = read_transcript(write(sessions / "z.jsonl", header("z", 9), *FIRST), context)
    assert {(exchange.tags, exchange.multi_user) for exchange in reading.exchanges} == {expected}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"k":{"sessionId":7}}'])
def test_unreadable_conversation_entries_are_ignored(content: bytes, sessions: Path, context: ReadingContext) -> None:
    """The list is rewritten while the gateway runs; the transcript must be read anyway."""
    (sessions / "sessions.json").write_bytes(content)
    write(sessions / "z.jsonl", header("z", 9), *FIRST)
    assert asked(sessions, context) == ["q1"]


def test_a_copied_folder_gives_the_same_records(sessions: Path, tmp_path: Path, context: ReadingContext) -> None:
    """Backups are imported like the original folder."""
    write(sessions / "z.jsonl", header("z", 9), *FIRST, *SECOND)
    write(sessions / "a.jsonl", header("a", 10, str(sessions / "z.jsonl")), *FIRST, *THIRD)
    shutil.copytree(tmp_path / "agents", tmp_path / "backup" / "agents")
    assert asked(sessions, context) == asked(tmp_path / "backup", context)
