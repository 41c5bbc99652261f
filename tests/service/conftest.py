"""What the tests of commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clocks import ManualClock

from service.cli.main import run
from service.setup.access import AccessStore

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def driftline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in an empty folder, without settings or credentials; answers exit code, output and error output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in os.environ:
        if name.startswith(("DRIFTLINE_", "ANTHROPIC_", "OPENCLAW_")):
            monkeypatch.delenv(name)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def clock() -> ManualClock:
    """The time of a test."""
    return ManualClock()


@pytest.fixture
def access(tmp_path: Path, clock: ManualClock) -> Iterator[AccessStore]:
    """An empty file of tokens."""
    with AccessStore(tmp_path / "fleet.access", clock) as opened:
        yield opened
