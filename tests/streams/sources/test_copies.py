"""Copies of a session give one complete session, whatever the files are called and whichever sorts first."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import claude_code_lines, codex_lines

from streams.sources.source import EVERY_SESSION, ReadingContext
from streams.sources.transcript_sources import CLAUDE_CODE, CODEX, OPENCLAW, TranscriptSource

Json = dict[str, Any]
QUESTIONS = ["One?", "Two?", "Three?", "Four?"]


def _openclaw_lines() -> list[Json]:
    lines: list[Json] = [{"type": "session", "version": 3, "id": "0c", "timestamp": "2026-11-03T09:00:00.000Z"}]
    parent = None
    for number, question in enumerate(QUESTIONS):
        for role, text in (("user", question), ("assistant", f"Answer {number}.")):
            entry = f"{role[0]}{number}"
            message = {"role": role, "content": text, **({"stopReason": "stop"} if role == "assistant" else {})}
            at = f"2026-11-03T09:0{number}:{10 if role == 'user' else 20}.000Z"
            lines.append({"type": "message", "id": entry, "parentId": parent, "timestamp": at, "message": message})
            parent = entry
    return lines


def _claude_lines() -> list[Json]:
    lines = claude_code_lines.Lines("0d")
    for number, question in enumerate(QUESTIONS):
        lines.user(question)
        lines.said(f"msg_{number}", claude_code_lines.text(f"Answer {number}."))
    return lines.lines


def _codex_lines() -> list[Json]:
    lines = codex_lines.Lines()
    for number, question in enumerate(QUESTIONS):
        lines.turn(question)
        lines.said(f"Answer {number}.")
        lines.event("task_complete")
    return lines.lines


CODEX_NAME = f"rollout-2026-11-03T09-00-00-{codex_lines.SESSION}"
PROGRAMS: dict[str, tuple[TranscriptSource, str, str, Callable[[], list[Json]], int, int]] = {
    "openclaw": (OPENCLAW, "agents/main/sessions", "0c", _openclaw_lines, 1, 2),
    "claude-code": (CLAUDE_CODE, "projects/-srv", "0d", _claude_lines, 0, 2),
    "codex": (CODEX, "sessions/2026/11/03", CODEX_NAME, _codex_lines, 1, 5),
}
"""By program: its source, its folder, the name of its file, its lines, and how many lines begin a session and tell a turn."""
NAMES = [
    "{name}.jsonl.bak",
    "{name}.jsonl~",
    "{name} (1).jsonl",
    "{name}.sync-conflict-20261103-120000-ABCDEFG.jsonl",
    "{name}.jsonl.bak-77-1793696400000",
    "{name}.checkpoint.5f00c0de.jsonl",
    "../../0-archive/{name}.jsonl",
    "../../zz-backup/{name}.jsonl",
]


def _write(path: Path, lines: Sequence[Json]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _check(source: TranscriptSource, root: Path, context: ReadingContext) -> None:
    """Assert that all files of a folder, in any order, are one session with every exchange once."""
    files = source.files_in([root])
    random.Random(len(str(files))).shuffle(files)
    [account] = source.session_files_in(files)
    assert {account.path, *account.copies} == {*files}
    [reading] = source.read(account.path, replace(context, copies=account.copies), EVERY_SESSION)
    assert reading.faults == []
    answers = [f"Answer {number}." for number in range(len(QUESTIONS))]
    assert sorted(zip(QUESTIONS, answers, strict=True)) == sorted(
        (exchange.user_message, exchange.agent_response) for exchange in reading.exchanges
    )


@pytest.mark.parametrize("place", NAMES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_shorter_copy_adds_nothing(context: ReadingContext, tmp_path: Path, program: str, place: str) -> None:
    """A backup made in the middle of a session must not end an exchange."""
    source, folder, name, lines_of, head, turn = PROGRAMS[program]
    root, lines = tmp_path / "root", lines_of()
    _write(root / folder / f"{name}.jsonl", lines)
    _write(root / folder / place.format(name=name), lines[: head + 2 * turn - 1])
    _check(source, root, context)


@pytest.mark.parametrize("place", NAMES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_longer_copy_is_the_one_that_counts(context: ReadingContext, tmp_path: Path, program: str, place: str) -> None:
    """A sync may have left the older file under the session's own name."""
    source, folder, name, lines_of, head, turn = PROGRAMS[program]
    root, lines = tmp_path / "root", lines_of()
    _write(root / folder / f"{name}.jsonl", lines[: head + 2 * turn])
    _write(root / folder / place.format(name=name), lines)
    _check(source, root, context)


@pytest.mark.parametrize("program", ["openclaw", "claude-code"])
def test_a_shortened_file_is_joined_with_its_checkpoint(context: ReadingContext, tmp_path: Path, program: str) -> None:
    """A compaction may leave only the last entries in the session's own file; both files together are the session."""
    source, folder, name, lines_of, head, turn = PROGRAMS[program]
    root, lines = tmp_path / "root", lines_of()
    _write(root / folder / f"{name}.checkpoint.1.jsonl", lines[: head + 3 * turn])
    _write(root / folder / f"{name}.jsonl", lines[:head] + lines[head + 2 * turn :])
    _check(source, root, context)


def test_a_checkpoint_with_another_id_is_a_copy_of_the_session_in_its_name(context: ReadingContext, tmp_path: Path) -> None:
    """Some versions of OpenClaw start it with a header of another session and name no parent."""
    source, folder, name, lines_of, head, turn = PROGRAMS["openclaw"]
    root, lines = tmp_path / "root", lines_of()
    other = [lines[0] | {"id": "0c-checkpoint"}, *lines[1 : head + 3 * turn]]
    _write(root / folder / f"{name}.checkpoint.1.jsonl", other)
    _write(root / folder / f"{name}.jsonl", lines[:head] + lines[head + 2 * turn :])
    _check(source, root, context)


def test_a_copy_with_new_uuids_keeps_the_ids_of_the_sessions_own_file(context: ReadingContext, tmp_path: Path) -> None:
    """Records imported before the copy was made are recognised; only what the copy adds is new."""
    source, folder, name, _, _, turn = PROGRAMS["claude-code"]
    root, lines = tmp_path / "root", _claude_lines()
    copied_lines = claude_code_lines.Lines("0d", prefix="again-")
    for number, question in enumerate(QUESTIONS):
        copied_lines.user(question)
        copied_lines.said(f"msg_{number}", claude_code_lines.text(f"Answer {number}."))
    own = root / folder / f"{name}.jsonl"
    _write(own, lines[: 2 * turn])
    [alone] = source.read(own, context, EVERY_SESSION)
    _write(root / folder / "a-copy.jsonl", copied_lines.lines)
    _check(source, root, context)
    [account] = source.session_files_in(source.files_in([root]))
    [joined] = source.read(account.path, replace(context, copies=account.copies), EVERY_SESSION)
    assert [exchange.exchange_id for exchange in alone.exchanges] == [exchange.exchange_id for exchange in joined.exchanges][:2]
