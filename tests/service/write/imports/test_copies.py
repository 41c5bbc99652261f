"""Copies of a session in an import give one complete session, whatever the files' names and order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import claude_code_lines, codex_lines

from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace
from service.write.importing import Importer, ImportSummary
from streams.sources.transcript_sources import CLAUDE_CODE, CODEX, OPENCLAW, TranscriptSource

Json = dict[str, Any]
NOW = datetime(2026, 11, 9, tzinfo=UTC)
QUESTIONS = ["One?", "Two?", "Three?", "Four?"]


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """An empty database."""
    with open_workspace(Settings(database=tmp_path / "d.duckdb"), now=lambda: NOW, create=True) as opened:
        yield opened


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


def _write(path: Path, lines: Sequence[Json]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _import(workspace: Workspace, source: TranscriptSource, root: Path) -> ImportSummary:
    files = source.files_in([root])
    random.Random(len(files)).shuffle(files)
    return Importer(workspace).import_transcripts(source, files)


def _questions(workspace: Workspace) -> list[str]:
    with closing(workspace.store.cursor()) as cursor:
        rows = cursor.execute("SELECT user_message, agent_response FROM exchanges ORDER BY occurred_at").fetchall()
    assert all(answer == f"Answer {QUESTIONS.index(question)}." for question, answer in rows)
    return [question for question, _ in rows]


def test_lines_of_a_copy_that_cannot_be_merged_are_counted(workspace: Workspace, tmp_path: Path) -> None:
    """A rollout's lines have no ids: one of two that went different ways is read, and the other is not silently left out."""
    source, folder, name, lines_of, head, turn = PROGRAMS["codex"]
    root, lines = tmp_path / "root", lines_of()
    _write(root / folder / f"{name}.jsonl", lines[: head + 3 * turn])
    _write(root / folder / f"{name} (1).jsonl", lines[: head + turn] + lines[head + 3 * turn :])
    summary = _import(workspace, source, root)
    assert summary.copies == 1
    assert summary.lines_in_copies == turn
    assert summary.exchanges == 3


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_copy_imported_first_is_the_same_session(workspace: Workspace, tmp_path: Path, program: str) -> None:
    """A user may import a backup first and the folder later."""
    source, folder, name, lines_of, head, turn = PROGRAMS[program]
    root, lines = tmp_path / "root", lines_of()
    backup = root / folder / f"{name}.jsonl.bak"
    _write(backup, lines[: head + 2 * turn])
    assert Importer(workspace).import_transcripts(source, [backup]).exchanges == 2
    _write(root / folder / f"{name}.jsonl", lines)
    summary = _import(workspace, source, root)
    assert summary.exchanges == 2
    assert summary.conflicts == 0
    assert summary.faults == 0
    assert _import(workspace, source, root).unchanged + summary.copies == 2
    assert _questions(workspace) == QUESTIONS
