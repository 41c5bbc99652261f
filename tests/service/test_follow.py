"""Following transcripts while they are written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Transcript:
    """A transcript that a gateway is writing, entry by entry."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        self._path = path
        self._last: str | None = None
        self.write({"type": "session", "version": 3, "id": path.stem, "timestamp": datetime.now(UTC).isoformat()})

    def write(self, entry: dict[str, Any]) -> None:
        """Append a whole line."""
        self.write_text(json.dumps(entry) + "\n")

    def write_text(self, text: str) -> None:
        """Append text as it is: perhaps half a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)

    def entry(self, name: str, role: str, text: str, **message: object) -> dict[str, Any]:
        """A message that continues the last one."""
        body = {"role": role, "content": [{"type": "text", "text": text}], **message}
        entry = {
            "type": "message",
            "id": name,
            "parentId": self._last,
            "timestamp": datetime.now(UTC).isoformat(),
            "message": body,
        }
        self._last = name
        return entry


@pytest.fixture
def transcript(tmp_path: Path) -> Transcript:
    """A question that the agent works on."""
    transcript = Transcript(tmp_path / "openclaw/agents/ops/sessions/live.jsonl")
    transcript.write(transcript.entry("q1", "user", "Is the backup healthy?"))
    transcript.write(transcript.entry("a1", "assistant", "Let me look.", stopReason="toolUse"))
    return transcript


@pytest.fixture
def follower(tmp_path: Path, transcript: Transcript) -> Iterator[subprocess.Popen[str]]:
    """A `driftline import openclaw --follow` that looks ten times a second."""
    del transcript  # it has to be there first
    command = [
        sys.executable,
        "-m",
        "service.cli.main",
        "import",
        "openclaw",
        "openclaw",
        "--follow",
        "--interval",
        "0.1",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DRIFTLINE_DATABASE": "follow.duckdb"}
    environment.pop("PYTHONUNBUFFERED", None)  # what is printed has to come through without it
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # A follower that says nothing would keep the test waiting for ever.
    watchdog = threading.Timer(600, process.kill)
    watchdog.start()
    yield process
    watchdog.cancel()
    process.kill()
    process.communicate()


def next_summary(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line the follower prints, which it does when something came."""
    assert process.stdout is not None
    summary: dict[str, Any] = json.loads(process.stdout.readline())
    return summary


def test_an_exchange_is_imported_once_it_is_complete(follower: subprocess.Popen[str], transcript: Transcript) -> None:
    """Work goes on until the next question, an answer ends itself; half a line is no entry yet; an interrupt ends it well."""
    assert next_summary(follower)["exchanges"] == 0
    line = json.dumps(transcript.entry("q2", "user", "And the one of db3?"))
    transcript.write_text(line[:40])
    transcript.write_text(line[40:] + "\n")
    assert next_summary(follower)["exchanges"] == 1
    transcript.write(transcript.entry("a2", "assistant", "It failed.", stopReason="stop"))
    transcript.write(transcript.entry("q3", "user", "Why?"))
    assert next_summary(follower)["exchanges"] == 1
    follower.send_signal(signal.SIGINT)
    _, errors = follower.communicate(timeout=300)
    assert follower.returncode == 0, errors
    assert "Traceback" not in errors
