"""A large database is imported in parts, with the same records as in one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from service.write import input_files
from service.write.input_files import split_into_parts
from streams.sources.copies import SessionFiles
from streams.sources.transcript_sources import OPENCLAW


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with a hundred sessions."""
    path = tmp_path / "openclaw-agent.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT)")
        rows = [(f"s-{number:03}", 1, "{}") for number in range(100)]
        connection.executemany("INSERT INTO transcript_events VALUES (?, ?, ?)", rows)
    return path


def test_a_part_is_no_larger_than_the_memory_allows(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder of months exceeds the memory of a small machine."""
    size = database.stat().st_size
    assert len(split_into_parts(OPENCLAW, SessionFiles(database), size)) == 1
    monkeypatch.setattr(input_files, "MAX_PART_BYTES", size // 7)
    parts = split_into_parts(OPENCLAW, SessionFiles(database), size)
    assert len(parts) == 8
    assert [part.is_last for part in parts] == [False] * 7 + [True]
    assert all(part.size <= size // 7 for part in parts)


@pytest.mark.parametrize("name", ["broken.sqlite", "transcript.jsonl"])
def test_an_indivisible_file_is_one_part(name: str, tmp_path: Path) -> None:
    """Reading it reports the problem."""
    path = tmp_path / name
    path.write_bytes(b"no database" * 10)
    (part,) = split_into_parts(OPENCLAW, SessionFiles(path), 10**9)
    assert part.path == path
    assert part.size == 10**9
    assert part.is_last is True
