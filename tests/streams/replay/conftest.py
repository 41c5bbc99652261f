"""A past that is made once, and the command line in an empty folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from replayed import Command, clean_environment, scored_live

from service.cli.main import run


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a past; nobody changes it."""
    return scored_live(tmp_path_factory.mktemp("live") / "driftline.duckdb")


@pytest.fixture
def database(live: Path, tmp_path: Path) -> Path:
    """A copy of it in the test's folder."""
    return Path(shutil.copy(live, tmp_path / "driftline.duckdb"))


@pytest.fixture
def driftline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in the test's folder, without settings or credentials; answers exit code, output and error output."""
    monkeypatch.chdir(tmp_path)
    for name in clean_environment():
        monkeypatch.delenv(name)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
