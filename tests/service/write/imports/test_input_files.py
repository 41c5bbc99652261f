"""Files that commands read: one rule for a folder, several files, an empty file, and a file that is something else."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from io import BytesIO, TextIOWrapper
from pathlib import Path

import duckdb
import fastavro
import polars as pl
import pytest

from analytics.store.store import Store

Command = Callable[..., tuple[int, str, str]]
EVENT = {"session_id": "s1", "event": "tool_call", "tool": "exec", "timestamp": "2026-10-01T09:00:00Z"}
TRANSCRIPT = '{"type": "session", "id": "t1", "timestamp": "2026-10-01T09:00:00Z"}\n'
READERS = {
    "import events": ["import", "events"],
    "import openclaw": ["import", "openclaw"],
    "diagnose": ["diagnose"],
    "check": ["check"],
}
"""Commands that read what agents said and did; those that read settings are below."""
OF_SETTINGS = {
    "policy check": ["policy", "check"],
    "evaluate --case": ["evaluate", "--profile", "p.yaml", "--case"],
    "evaluate --profile": ["evaluate", "--case", "c.yaml", "--profile"],
}
CASE = {"case_id": "c", "title": "C", "input": {"messages": [{"role": "user", "content": "Is it up?"}]}}
ROWS = [{"session_id": "s1", "event": "tool_call", "count": number} for number in range(1031)]


def lines(*events: dict[str, object]) -> bytes:
    """Event JSON lines."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def write_input_file(kind: str, path: Path) -> Path:
    """Write the rows to a file of this format, and return its path."""
    if kind == "a Parquet file":
        pl.DataFrame(ROWS).write_parquet(path)
    elif kind == "CSV":
        pl.DataFrame(ROWS).write_csv(path)
    elif kind == "an Arrow file":
        pl.DataFrame(ROWS).write_ipc(path)
    elif kind == "a gzip file":
        path.write_bytes(gzip.compress(lines(EVENT)))
    elif kind == "a ZIP archive":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("events.jsonl", lines(EVENT))
    elif kind == "a SQLite database":
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE t (a)")
    elif kind == "a DuckDB database":
        duckdb.connect(str(path)).close()
    elif kind == "an Avro container":
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}, [{"a": 1}])
    else:
        path.write_bytes(BYTES[kind])
    return path


BYTES = {
    "a PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "a Zstandard file": b"\x28\xb5\x2f\xfd\x24\x05",
    "a picture": b"\x89PNG\r\n\x1a\n",
    "text in UTF-16 or UTF-32": "﻿".encode("utf-16-le") + lines(EVENT).decode().encode("utf-16-le"),
    "binary data": b"\0\1\2\3" * 500,
    "XML or HTML": b"<!DOCTYPE html>\n<html><body>not found</body></html>\n",
    "text without JSON": b"[2026-11-01 12:00:00] started\n[2026-11-01 12:00:01] stopped\n",
}
COMPUTED = [
    "a Parquet file",
    "CSV",
    "an Arrow file",
    "a gzip file",
    "a ZIP archive",
    "a SQLite database",
    "a DuckDB database",
    "an Avro container",
]


@pytest.mark.parametrize("kind", [*COMPUTED, *BYTES])
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_another_kind_is_refused_in_one_line(driftline: Command, tmp_path: Path, reader: str, kind: str) -> None:
    """A Parquet file used to give a thousand dead letters."""
    if (reader, kind) == ("import openclaw", "a SQLite database"):
        return  # it may be a database of OpenClaw's
    path = write_input_file(kind, tmp_path / "given.jsonl")
    code, out, err = driftline(*READERS[reader], str(path))
    assert code == 2
    assert out == ""
    message, hint = err.splitlines()
    assert message.startswith(f"error: {path}: is {kind}, not ")
    assert hint.strip()
    assert not (tmp_path / "driftline.duckdb").exists()


@pytest.mark.parametrize("kind", COMPUTED[:2] + COMPUTED[3:])
@pytest.mark.parametrize("command", OF_SETTINGS)
def test_a_settings_file_of_another_kind_is_refused_too(driftline: Command, tmp_path: Path, command: str, kind: str) -> None:
    """The error must name the wrong kind of file instead of an encoding problem."""
    (tmp_path / "c.yaml").write_text(json.dumps(CASE))
    path = write_input_file(kind, tmp_path / "given.yaml")
    code, out, err = driftline(*OF_SETTINGS[command], str(path))
    message = "fields are expected here" if kind == "CSV" else f"is {kind}, not YAML or JSON"
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith(f"error: {path}:1: document: ")


@pytest.mark.parametrize("command", [*READERS, *OF_SETTINGS])
def test_an_empty_file_is_refused(driftline: Command, tmp_path: Path, command: str) -> None:
    """An empty file usually means that the job that writes it has failed."""
    (tmp_path / "c.yaml").write_text(json.dumps(CASE))
    path = tmp_path / "empty"
    path.touch()
    code, out, err = driftline(*(READERS | OF_SETTINGS)[command], str(path))
    assert code == 2
    assert out == ""
    assert "empty\n" in err
    assert err.startswith(f"error: {path}:")


@pytest.mark.parametrize("command", [*READERS, *OF_SETTINGS])
def test_a_missing_file_is_refused(driftline: Command, tmp_path: Path, command: str) -> None:
    """The command exits with code 2 and names the file."""
    (tmp_path / "c.yaml").write_text(json.dumps(CASE))
    path = tmp_path / "missing"
    code, out, err = driftline(*(READERS | OF_SETTINGS)[command], str(path))
    assert code == 2
    assert out == ""
    assert f"error: {path}:" in err
    assert "does not exist" in err


@pytest.mark.parametrize("reader", READERS)
def test_folders_and_files_are_expanded_to_a_list_of_files(driftline: Command, tmp_path: Path, reader: str) -> None:
    """Each file is read once, in order of names; hidden files and links are skipped."""
    folder = tmp_path / "agents" / "one" / "sessions"
    folder.mkdir(parents=True)
    for number in (1, 2):
        text = TRANSCRIPT.replace("t1", f"t{number}").encode()
        events = lines(EVENT | {"session_id": f"s{number}"})
        (folder / f"{number}.jsonl").write_bytes(text if reader == "import openclaw" else events)
    (folder / "empty.jsonl").touch()
    (folder / ".hidden.jsonl").write_bytes(b"\0")
    (folder / "link.jsonl").symlink_to(folder / "1.jsonl")
    (folder / "notes.txt").write_text("no events\n")
    paths = [str(folder), str(folder / "1.jsonl"), str(folder / "2.jsonl")]
    files = []
    for arguments in (paths[:1], paths[1:], paths):
        shutil.rmtree(tmp_path / "driftline.access", ignore_errors=True)
        (tmp_path / "driftline.duckdb").unlink(missing_ok=True)
        code, out, err = driftline(*READERS[reader], *arguments, "--json")
        files.append((code, err, sessions_in(reader, out)))
    assert files == [(0, "", 2)] * 3


def sessions_in(reader: str, out: str) -> int:
    """Return the number of sessions that a command reports."""
    if reader == "diagnose":
        return len(out.splitlines())
    document = json.loads(out)
    return document["checked"] if reader == "check" else document["sessions"]


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_without_matching_files_is_refused(driftline: Command, tmp_path: Path, reader: str) -> None:
    """A folder without matching files is probably a wrong path."""
    folder = tmp_path / "agents" / "one" / "sessions"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("no events\n")
    code, out, err = driftline(*READERS[reader], str(folder))
    assert code == 2
    assert out == ""
    assert str(folder) in err
    (folder / "1.jsonl").touch()
    code, out, err = driftline(*READERS[reader], str(folder))
    assert code == 2
    assert out == ""
    assert f"{folder}: all files are empty" in err


@pytest.mark.parametrize("reader", READERS)
def test_another_file_in_a_folder_is_named_and_skipped(driftline: Command, tmp_path: Path, reader: str) -> None:
    """One broken upload must not stop ten thousand transcripts; the exit code reports it, without dead letters."""
    folder = tmp_path / "agents" / "one" / "sessions"
    folder.mkdir(parents=True)
    good = TRANSCRIPT.encode() if reader == "import openclaw" else lines(EVENT)
    (folder / "good.jsonl").write_bytes(good)
    broken = write_input_file("a Parquet file", folder / "broken.jsonl")
    code, out, err = driftline(*READERS[reader], str(folder), "--json")
    assert code == 1
    assert sessions_in(reader, out) == 1
    assert err.startswith(f"{broken}: is a Parquet file, not ")
    if reader.startswith("import"):
        with Store(tmp_path / "driftline.duckdb") as store:
            assert store.cursor().execute("FROM log.dead_letters").fetchall() == []


def test_transcripts_and_events_name_each_others_command(driftline: Command, tmp_path: Path) -> None:
    """Both are JSON lines, and the wrong command used to give a dead letter per line."""
    transcript, events = tmp_path / "t.jsonl", tmp_path / "e.jsonl"
    transcript.write_text(TRANSCRIPT)
    events.write_bytes(lines(EVENT))
    code, _, err = driftline("import", "events", str(transcript))
    assert code == 2
    assert "is an OpenClaw transcript" in err
    assert "driftline import openclaw" in err
    code, _, err = driftline("import", "openclaw", str(events))
    assert code == 2
    assert "is a file of runtime events" in err
    assert "driftline import events" in err


@pytest.mark.parametrize("first", [b'{"session_id": "s1", "ev', b"\0" * 64, b"garbage", b"a,b"])
def test_a_broken_line_does_not_change_the_kind_of_a_file(driftline: Command, tmp_path: Path, first: bytes) -> None:
    """A truncated or damaged file is still of its kind, so its valid lines are imported."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(first + b"\n" + lines(EVENT))
    code, out, _ = driftline("import", "events", str(path), "--json")
    summary = json.loads(out)
    assert code == 1
    assert summary["events"] == 1
    assert summary["faults"] == 1


@pytest.mark.parametrize("command", ["diagnose", "check"])
@pytest.mark.parametrize(("content", "words"), [(b"", "is empty"), (b"PK\x03\x04", "is a ZIP archive")])
def test_standard_input_is_checked_like_a_file(
    driftline: Command, monkeypatch: pytest.MonkeyPatch, command: str, content: bytes, words: str
) -> None:
    """Standard input is empty if the first command of a pipe failed."""
    monkeypatch.setattr("sys.stdin", TextIOWrapper(_peekable(content)))
    code, out, err = driftline(command, "-")
    assert code == 2
    assert out == ""
    assert f"error: standard input: {words}" in err


def _peekable(content: bytes) -> BytesIO:
    class Peekable(BytesIO):
        def peek(self, _: int) -> bytes:
            return content

    return Peekable(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "exchanges.parquet is empty"), (b"a,b\n1,2\n", "exchanges.parquet is CSV, not a Parquet file")],
)
def test_a_replay_of_other_files_is_refused(driftline: Command, tmp_path: Path, content: bytes, words: str) -> None:
    """The kind is recognised by the first bytes, as for imports."""
    file = tmp_path / "exchanges.parquet"
    file.write_bytes(content)
    code, _, err = driftline("replay", "--from", str(tmp_path))
    assert code == 2
    assert words in err
    code, _, err = driftline("replay", "--from", str(file))
    assert code == 2
    assert f"--from: {file} is a file" in err


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows"])
def test_a_file_that_is_not_a_database_is_refused(driftline: Command, tmp_path: Path, name: str) -> None:
    """DuckDB opens tables of other formats as views in memory, and an import into one would seem to succeed."""
    (tmp_path / name).write_text("a,b\n1,2\n")
    (tmp_path / "events.jsonl").write_bytes(lines(EVENT))
    for arguments in (["runs"], ["import", "events", "events.jsonl"]):
        code, out, err = driftline(*arguments, "--db", name)
        assert code == 2
        assert out == ""
        assert f"{name}: " in err
    assert (tmp_path / name).read_text() == "a,b\n1,2\n"
