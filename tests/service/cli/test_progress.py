"""Progress: a line on a terminal while the work lasts, nothing elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from service.cli import progress

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return what a terminal shows of the error output."""
    output = io.StringIO()
    monkeypatch.setattr(progress, "err", Console(file=output, force_terminal=True, width=100))
    return output


def test_a_terminal_shows_the_task_and_its_progress(terminal: io.StringIO) -> None:
    """Texts are escaped and no markup, and the line disappears afterwards."""
    with progress.working("copying [all]") as tell:
        tell("half \x1b[31mway")
    with progress.counting("checking", 4) as bar:
        bar(3, words="two found")
    with progress.measuring("reading", 2_000_000) as bar:
        bar(1_000_000)
    with progress.growing("writing", 10, lambda: 5):
        pass
    output = terminal.getvalue()

    for fragment in ("half <U+001B>[31mway", "checking", "3/4", "two found", "1.0/2.0 MB", "5/10 bytes"):
        assert fragment in output


def test_without_a_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a build would get thousands of lines."""
    with progress.working("copying") as tell, progress.counting("checking", 4) as bar, progress.growing("x", 1, lambda: 1):
        tell("half way")
        bar(3)

    assert capsys.readouterr() == ("", "")


def test_long_work_shows_its_progress(driftline: Command, terminal: io.StringIO, tmp_path: Path) -> None:
    """Import, check, export, backup, compaction, retention and erasure may take minutes."""
    (tmp_path / "e.jsonl").write_text(
        '{"session_id": "s1", "event": "tool_call", "tool": "x", "timestamp": "2026-10-01T09:00:00Z"}\n'
    )
    for command, arguments in (
        (["import", "events", "e.jsonl"], "reading"),
        (["check-drift"], "summing days"),
        (["export", "out"], "exporting"),
        (["export-runs", "runs"], "exporting runs"),
        (["backup", "copy"], "copying the database"),
        (["compact"], "compacting"),
        (["rebuild"], "recomputing derived records"),
        (["retention", "run"], "deleting records past their retention"),
        (["erase", "--connection", "local", "--yes"], "erasing"),
    ):
        terminal.truncate(0)
        code, _, err = driftline(*command)
        assert (code, arguments in terminal.getvalue()) == (0, True), (command, err)


def test_the_progress_of_a_check_ends_at_the_number_of_projects(
    driftline: Command, terminal: io.StringIO, tmp_path: Path
) -> None:
    """Projects are checked in groups, but a bar that counts full groups would show 50 of 1."""
    (tmp_path / "e.jsonl").write_text(
        '{"session_id": "s1", "event": "tool_call", "tool": "x", "timestamp": "2026-10-01T09:00:00Z"}\n'
    )
    driftline("import", "events", "e.jsonl")
    terminal.truncate(0)
    code, out, _ = driftline("check-drift", "--as-of", "2026-10-02T00:00:00Z")
    output = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    assert code == 0
    assert not out.startswith("No project")
    assert {"0/1", "1/1"} >= set(re.findall(r"\d+/\d+", output)) >= {"1/1"}
