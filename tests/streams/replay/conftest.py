"""Fixtures: a history created once, the command line in an empty folder, and preloaded processes for parts."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.effort import SOAK
from support.processes import make_once
from support.replays import Command, configured_variables, create_scored_database

from service.cli.main import run
from streams.replay import part

NAME = "driftline.duckdb"
PARTS = ["service.write.replays", "streams.replay.part"]
"""What the process of a part loads."""


@pytest.fixture(scope="session", autouse=True)
def loaded_parts() -> Iterator[None]:
    """Fork processes for parts from a preloaded one, to save time; a soak run starts them as users do."""
    with pytest.MonkeyPatch.context() as patch:
        if not SOAK:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(PARTS)
            patch.setattr(part, "_SPAWN", context)
        yield


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with a history, created once per run; tests copy it and never open it."""
    return make_once(tmp_path_factory, "replayed", lambda folder: create_scored_database(folder / NAME)) / NAME


@pytest.fixture
def database(live: Path, tmp_path: Path) -> Path:
    """Return a copy of the database in the test's folder."""
    return Path(shutil.copy(live, tmp_path / NAME))


@pytest.fixture
def driftline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command in the test's folder without settings, and returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    for name in configured_variables():
        monkeypatch.delenv(name)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
