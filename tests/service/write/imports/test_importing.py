"""Importing files that grow: which are read again, and what a follower notices."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from service.cli.commands.importing import FULL_SCAN_INTERVAL, ImportOptions, _follow
from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace
from service.write import importing
from service.write.importing import Importer
from streams.sources.transcript_sources import OPENCLAW

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
SAID = NOW - timedelta(minutes=5)


class Times:
    """A clock that a test moves; `each` happens every time it is looked at."""

    def __init__(self) -> None:
        self.now = NOW
        self.each = lambda: None

    def __call__(self) -> datetime:
        """Return the clock."""
        self.each()
        return self.now


def line(name: str, role: str, text: str, **more: object) -> str:
    """An entry of a transcript."""
    message = {"role": role, "content": [{"type": "text", "text": text}], **more}
    return json.dumps({"type": "message", "id": name, "timestamp": SAID.isoformat(), "message": message}) + "\n"


QUESTION, ANSWER = line("q1", "user", "Is the backup healthy?"), line("a1", "assistant", "It is.", stopReason="stop")
REMARK = line("a1", "assistant", "Let me look.", stopReason="toolUse")
NEXT = line("q2", "user", "And the one of db3?")


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    """A question with its answer, written five minutes ago."""
    path = tmp_path / "agents/ops/sessions/s1.jsonl"
    path.parent.mkdir(parents=True)
    header = json.dumps({"type": "session", "version": 3, "id": "s1", "timestamp": SAID.isoformat()}) + "\n"
    path.write_text(header + QUESTION + ANSWER, "utf-8")
    os.utime(path, (SAID.timestamp(),) * 2)
    return path


@pytest.fixture
def times() -> Times:
    """The clock."""
    return Times()


@pytest.fixture
def workspace(tmp_path: Path, times: Times) -> Iterator[Workspace]:
    """An empty database."""
    settings = Settings(database=tmp_path / "d.duckdb")
    with open_workspace(settings, now=times, create=True) as opened:
        yield opened


def user_messages(workspace: Workspace) -> list[str]:
    """Return the user messages of the stored exchanges."""
    with closing(workspace.store.cursor()) as cursor:
        return [text for (text,) in cursor.execute("SELECT user_message FROM log.exchanges ORDER BY ALL").fetchall()]


def count_unchanged(workspace: Workspace, path: Path, agent: str | None = None) -> int:
    """Import a file; return the number of files that were skipped as unchanged."""
    return Importer(workspace, agent=agent).import_transcripts(OPENCLAW, [path]).unchanged


def test_a_file_is_read_again_with_other_settings(workspace: Workspace, transcript: Path, times: Times) -> None:
    """Other settings would give other records, and a file with pending revisions is not complete."""
    assert count_unchanged(workspace, transcript) == 0
    assert count_unchanged(workspace, transcript) == 0
    times.now += timedelta(hours=2)
    assert count_unchanged(workspace, transcript) == 0
    assert user_messages(workspace) == ["Is the backup healthy?"]
    assert count_unchanged(workspace, transcript) == 1
    assert count_unchanged(workspace, transcript, agent="other") == 0


def test_a_file_that_grows_during_reading_is_read_again(
    workspace: Workspace, transcript: Path, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines appended behind the reader would otherwise never be imported."""
    times.now += timedelta(hours=2)
    read_transcripts = importing.read_transcripts

    def growing(reader: Any, source: str, parts: Iterable[Any]) -> Iterator[Any]:
        records = list(read_transcripts(reader, source, parts))
        with transcript.open("a", encoding="utf-8") as stream:
            stream.write(NEXT)
        yield from records

    with monkeypatch.context() as patch:
        patch.setattr(importing, "read_transcripts", growing)
        assert count_unchanged(workspace, transcript) == 0
    assert count_unchanged(workspace, transcript) == 0
    assert user_messages(workspace) == ["And the one of db3?", "Is the backup healthy?"]


def test_a_follower_notices_silence_and_survives_a_missing_folder(
    workspace: Workspace, transcript: Path, times: Times, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent session writes nothing, and a network folder may disappear briefly."""
    root, looks = tmp_path / "agents", iter(range(1000))
    transcript.write_text(transcript.read_text("utf-8").replace(ANSWER, REMARK), "utf-8")
    aside = tmp_path / "elsewhere"
    files_in = type(OPENCLAW).files_in

    def looking(source: Any, paths: Iterable[Path]) -> list[Path]:
        number = next(looks)
        if number == 1:
            assert user_messages(workspace) == []
            root.rename(aside)
        elif number == 2:
            aside.rename(root)
            times.now += max(timedelta(minutes=workspace.policy.session_gap_minutes), FULL_SCAN_INTERVAL) + timedelta(minutes=1)
        elif number == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return files_in(source, paths)

    monkeypatch.setattr(type(OPENCLAW), "files_in", looking)
    _follow(workspace, OPENCLAW, [root], ImportOptions(as_json=True), 0.001)
    assert user_messages(workspace) == ["Is the backup healthy?"]
    assert transcript.exists()
