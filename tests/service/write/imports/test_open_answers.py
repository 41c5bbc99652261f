"""The last answer of a session, imported right after it was written: it counts at once, is revised if the turn goes on, or is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import claude_code_lines, codex_lines

from service.cli.main import run
from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace
from service.write.importing import Importer
from streams.sources.transcript_sources import CLAUDE_CODE, CODEX, OPENCLAW, TranscriptSource

Json = dict[str, Any]


class Times:
    """A clock that a test moves: it begins a moment after the lines were written."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 3, 9, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the clock."""
        return self.now


@pytest.fixture
def times() -> Times:
    """The clock."""
    return Times()


@pytest.fixture
def workspace(tmp_path: Path, times: Times) -> Iterator[Workspace]:
    """An empty database."""
    with open_workspace(Settings(database=tmp_path / "d.duckdb"), now=times, create=True) as opened:
        yield opened


def _openclaw(*parts: str) -> list[Json]:
    lines: list[Json] = [{"type": "session", "version": 3, "id": "0c", "timestamp": "2026-11-03T09:00:00.000Z"}]
    roles = {"ask": ("user", "Is it up?", None), "call": ("assistant", "Let me look.", "toolUse")}
    roles |= {"answer": ("assistant", "It is up.", "stop"), "more": ("assistant", "And fast.", "stop")}
    for number, part in enumerate(parts):
        role, text, stop = roles[part]
        message = {"role": role, "content": text, **({"stopReason": stop} if stop else {})}
        at = f"2026-11-03T09:00:{number + 1:02}.000Z"
        lines.append({"type": "message", "id": f"e{number}", "timestamp": at, "message": message})
    return lines


def _claude_code(*parts: str) -> list[Json]:
    lines = claude_code_lines.Lines("0d")
    for part in parts:
        if part == "ask":
            lines.user("Is it up?")
        elif part == "call":
            lines.said("msg_1", claude_code_lines.call("toolu_1", "Bash"), stop="tool_use")
        else:
            answer = "It is up." if part == "answer" else "And fast."
            lines.said(f"msg_{part}", claude_code_lines.text(answer), stop="end_turn")
    return lines.lines


def _claude_code_without_stop_reason(*parts: str) -> list[Json]:
    lines = claude_code_lines.Lines("0d")
    for part in parts:
        if part == "ask":
            lines.user("Is it up?")
        elif part == "call":
            lines.said("msg_1", claude_code_lines.call("toolu_1", "Bash"), stop=None)
        else:
            answer = "It is up." if part == "answer" else "And fast."
            lines.said(f"msg_{part}", claude_code_lines.text(answer), stop=None)
            lines.add("system", subtype="turn_duration", durationMs=5)
    return lines.lines


def _codex(*parts: str) -> list[Json]:
    lines = codex_lines.Lines()
    for part in parts:
        if part == "ask":
            lines.turn("Is it up?")
        elif part == "call":
            lines.call("c1", "exec_command", cmd="ping")
        else:
            lines.said("It is up." if part == "answer" else "And fast.")
            lines.event("task_complete")
    return lines.lines


PROGRAMS: dict[str, tuple[TranscriptSource, str, Callable[..., list[Json]]]] = {
    "openclaw": (OPENCLAW, "agents/main/sessions/0c.jsonl", _openclaw),
    "claude-code": (CLAUDE_CODE, "projects/-srv/0d.jsonl", _claude_code),
    "claude-code before stop reasons": (CLAUDE_CODE, "projects/-srv/0d.jsonl", _claude_code_without_stop_reason),
    "codex": (CODEX, f"sessions/2026/11/03/rollout-2026-11-03T09-00-00-{codex_lines.SESSION}.jsonl", _codex),
}


def _write(path: Path, lines: list[Json]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def _answers(workspace: Workspace) -> list[str]:
    with closing(workspace.store.cursor()) as cursor:
        return [text for (text,) in cursor.execute("SELECT agent_response FROM exchanges ORDER BY occurred_at").fetchall()]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_finished_answer_counts_at_once_and_is_revised_if_the_turn_continues(
    workspace: Workspace, tmp_path: Path, times: Times, program: str
) -> None:
    """An import right after a session includes its last answer, which is revised at most once."""
    source, place, lines_of = PROGRAMS[program]
    path = _write(tmp_path / "root" / place, lines_of("ask", "answer"))
    first = Importer(workspace).import_transcripts(source, [path])
    assert first.exchanges == 1
    assert first.revised == 0
    assert first.open == []
    assert _answers(workspace) == ["It is up."]
    _write(path, lines_of("ask", "answer", "more"))
    second = Importer(workspace).import_transcripts(source, [path])
    assert second.exchanges == 0
    assert second.revised == 1
    assert second.conflicts == 0
    assert second.faults == 0
    assert _answers(workspace) == ["And fast."]
    times.now += timedelta(days=1)
    for _ in range(2):
        second_import = Importer(workspace).import_transcripts(source, [path])
        assert second_import.exchanges == 0
        assert second_import.revised == 0
        assert second_import.conflicts == 0
        assert second_import.faults == 0
    assert second_import.unchanged == 1
    assert _answers(workspace) == ["And fast."]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_open_answer_is_reported_with_reason_and_time(
    workspace: Workspace, tmp_path: Path, times: Times, program: str
) -> None:
    """The summary must explain why an import has no exchanges."""
    source, place, lines_of = PROGRAMS[program]
    path = _write(tmp_path / "root" / place, lines_of("ask", "call"))
    first = Importer(workspace).import_transcripts(source, [path])
    [answer] = first.open
    assert first.exchanges == 0
    assert len(first.as_json()["open"]) == 1
    gap = timedelta(minutes=workspace.policy.session_gap_minutes)
    assert answer.asked_at <= answer.counts_at - gap < times.now
    assert "tool" in answer.reason
    times.now = answer.counts_at + timedelta(seconds=1)
    later = Importer(workspace).import_transcripts(source, [path])
    assert later.exchanges == 1
    assert later.open == []
    assert _answers(workspace) == [""]


def test_a_question_without_an_answer_is_reported(workspace: Workspace, tmp_path: Path) -> None:
    """A missing answer is reported differently from a running tool."""
    source, place, lines_of = PROGRAMS["openclaw"]
    path = _write(tmp_path / "root" / place, lines_of("ask"))
    [answer] = Importer(workspace).import_transcripts(source, [path]).open
    assert "no answer" in answer.reason


def test_the_command_says_which_answer_is_open_and_when_it_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """“0 exchanges” without a reason looks as if the import did not work."""
    source, place, lines_of = PROGRAMS["claude-code"]
    root = tmp_path / "root"
    _write(root / place, lines_of("ask", "call"))
    command = ["import", source.name, str(root), "--db", str(tmp_path / "d.duckdb"), "--as-of", "2026-11-03T09:01:00Z"]
    assert run(command) == 0
    printed = capsys.readouterr().out
    assert "0 exchanges" in printed
    assert "1 answer is still open" in printed
    assert "session 0d, asked at 2026-11-03 09:00 UTC" in printed
    assert "at the latest at 2026-11-03 09:30 UTC" in printed
