"""`driftline import claude-code` and `driftline import codex`, as processes: twice, killed, following, with faults."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import duckdb
import pytest
from support import claude_code_lines, codex_lines
from support.effort import times
from support.servers import LONG, ROOT, Child, Home, Nursery, nursery

AS_OF = "2026-11-05T00:00:00Z"
KILLS = times(2, soak=10)
PLACES: Mapping[str, str] = {
    "claude-code": "projects/-srv/{name}.jsonl",
    "codex": "sessions/2026/11/03/rollout-2026-11-03T09-00-00-{name}.jsonl",
}
Json = dict[str, Any]


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Starts imports as processes of their own."""
    with nursery() as opened:
        yield opened


def _lines(source: str, name: str) -> list[Json]:
    """A transcript of the source whose session has this name."""
    if source == "claude-code":
        ids = ("uuid", "parentUuid", "logicalParentUuid")
        lines = [line | {"sessionId": name} for line in claude_code_lines.everything()]
        return [line | {field: f"{name}-{line[field]}" for field in ids if line.get(field)} for line in lines]
    lines = codex_lines.everything()
    lines[0]["payload"]["id"] = name
    return lines


def _write(root: Path, source: str, name: str, lines: Sequence[Any], *, end: str = "\n") -> Path:
    path = root / PLACES[source].format(name=name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end, "utf-8")
    return path


def _command(source: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "service.cli.main", "import", source, "agent", *arguments, "--json"]


def _environment(database: str, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "DRIFTLINE_DATABASE": database, **more}


def _started(children: Nursery, folder: Path, source: str, database: str, **more: str) -> Child:
    """An import of everything."""
    arguments = ("import", source, "agent", "--as-of", AS_OF, "--json")
    return children.start(Home(folder), *arguments, environment={"DRIFTLINE_DATABASE": database, **more}, folder=folder)


def _imported(children: Nursery, folder: Path, source: str, database: str = "d.duckdb", **more: str) -> tuple[int, Json]:
    """Import everything; the exit code and the summary."""
    process = _started(children, folder, source, database, **more)
    return process.wait(LONG), json.loads(process.printed or "{}")


def _contents(path: Path) -> list[list[tuple[object, ...]]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return [
            connection.execute(f"SELECT * EXCLUDE (_offset) FROM log.{table} ORDER BY ALL").fetchall()
            for table in ("exchanges", "agent_events", "session_closings", "scores", "diagnoses", "dead_letters")
        ]


@pytest.mark.parametrize("source", PLACES)
def test_importing_twice_changes_nothing(children: Nursery, tmp_path: Path, source: str) -> None:
    """A copy in another place changes nothing either, and an unchanged file is not read again."""
    _write(tmp_path / "agent", source, "s1", _lines(source, "s1"))
    code, first = _imported(children, tmp_path, source)
    assert code == 0
    assert first["sessions"] == 1
    assert first["exchanges"] == 5
    assert first["faults"] == 0
    before = _contents(tmp_path / "d.duckdb")
    code, second = _imported(children, tmp_path, source)
    assert code == 0
    assert second["unchanged"] == 1
    assert second["exchanges"] == 0
    path = _write(tmp_path / "agent", source, "s1", _lines(source, "s1"))
    os.utime(path, (1, 1))
    code, third = _imported(children, tmp_path, source)
    assert code == 0
    assert third["exchanges"] + third["events"] == 0
    assert third["known"] == first["exchanges"] + first["events"]
    assert _contents(tmp_path / "d.duckdb") == before


@pytest.mark.parametrize("source", PLACES)
def test_a_damaged_line_is_a_dead_letter_with_file_and_line(children: Nursery, tmp_path: Path, source: str) -> None:
    """The rest is imported, and the exit code reports the fault."""
    lines = _lines(source, "s1")
    path = _write(tmp_path / "agent", source, "s1", [*lines[:4], "{", *lines[4:]])
    code, summary = _imported(children, tmp_path, source)
    assert code == 1
    assert summary["faults"] == 1
    assert summary["exchanges"] == 5
    with duckdb.connect(str(tmp_path / "d.duckdb"), read_only=True) as connection:
        letters = connection.execute("SELECT source, position, reason FROM log.dead_letters").fetchall()
    assert letters == [(str(path.relative_to(tmp_path)), 5, "not_json")]


@pytest.mark.parametrize("source", PLACES)
def test_a_torn_last_line_is_imported_the_next_time(children: Nursery, tmp_path: Path, source: str) -> None:
    """The program was still writing it."""
    lines = _lines(source, "s1")
    text = "\n".join(map(json.dumps, lines))
    _write(tmp_path / "agent", source, "s1", [text[:-20]], end="")
    code, first = _imported(children, tmp_path, source)
    assert code == 0
    assert first["faults"] == 0
    _write(tmp_path / "agent", source, "s1", lines)
    code, _ = _imported(children, tmp_path, source)
    assert code == 0
    _imported(children, tmp_path, source, "whole.duckdb")
    torn, complete = _contents(tmp_path / "d.duckdb"), _contents(tmp_path / "whole.duckdb")
    assert torn[:2] == complete[:2]
    assert torn[-1] == []


@pytest.mark.parametrize(("source", "other"), [("claude-code", "codex"), ("codex", "claude-code")])
def test_a_file_of_another_program_is_refused_with_the_right_command(
    children: Nursery, tmp_path: Path, source: str, other: str
) -> None:
    """Line by line it would give a thousand faults."""
    path = _write(tmp_path, other, "s1", _lines(other, "s1"))
    environment = {"DRIFTLINE_DATABASE": "d.duckdb"}
    process = children.start(Home(tmp_path), "import", source, str(path), environment=environment, folder=tmp_path)
    assert process.wait(LONG) == 2
    assert f"driftline import {other}" in process.logged
    assert not (tmp_path / "d.duckdb").exists()


@pytest.mark.parametrize("source", PLACES)
def test_a_folder_without_transcripts_names_the_expected_paths(children: Nursery, tmp_path: Path, source: str) -> None:
    """Users easily choose a folder one level too deep."""
    (tmp_path / "agent").mkdir()
    process = _started(children, tmp_path, source, "d.duckdb")
    code, errors = process.wait(LONG), process.logged
    assert code == 2
    assert "no transcript under agent" in errors
    assert PLACES[source].split("/")[0] in errors


@pytest.mark.slow
def test_a_killed_import_ends_like_an_undisturbed_one(children: Nursery, tmp_path: Path) -> None:
    """It resumes after the last committed batch, for every source. The test kills it twice, a soak run ten times."""
    source, batches = "claude-code", "50"
    for number in range(40):
        _write(tmp_path / "agent", source, f"s{number}", _lines(source, f"s{number}"))
    start = perf_counter()
    code, _ = _imported(children, tmp_path, source, "whole.duckdb", DRIFTLINE_BATCH_RECORDS=batches)
    duration = perf_counter() - start
    assert code == 0
    chance = random.Random(5)
    for _ in range(KILLS):
        process = _started(children, tmp_path, source, "killed.duckdb", DRIFTLINE_BATCH_RECORDS=batches)
        if not process.ends_within(chance.uniform(0.2, 0.9) * duration):
            process.kill()
    assert _imported(children, tmp_path, source, "killed.duckdb", DRIFTLINE_BATCH_RECORDS=batches)[0] == 0
    assert _contents(tmp_path / "whole.duckdb") == _contents(tmp_path / "killed.duckdb")


@pytest.mark.parametrize("source", PLACES)
def test_a_follower_imports_additions_and_new_files(tmp_path: Path, source: str) -> None:
    """An exchange is imported when its answer has ended, and Ctrl-C ends the follower cleanly."""
    lines = _lines(source, "s1")
    answer, second = (
        next(number for number, line in enumerate(lines) if text in json.dumps(line)) for text in ("No: ", "And db3?")
    )
    path = _write(tmp_path / "agent", source, "s1", lines[:answer])
    command = _command(source, "--follow", "--interval", "0.1", "--as-of", "2026-11-03T09:02:00Z")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=_environment("d.duckdb"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(600, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["exchanges"] == 0
        with path.open("a", encoding="utf-8") as stream:
            stream.write("".join(json.dumps(line) + "\n" for line in lines[answer:second]))
        assert json.loads(process.stdout.readline())["exchanges"] == 1
        _write(tmp_path / "agent", source, "s2", _lines(source, "s2"))
        # Claude Code says of no failed turn that it is over.
        assert {"claude-code": 4, "codex": 5}[source] == json.loads(process.stdout.readline())["exchanges"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()
