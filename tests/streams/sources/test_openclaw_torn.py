"""An unfinished last line: still being written, or left by a writer that has stopped."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from streams.sources.openclaw.reader import read_transcript
from streams.sources.source import ReadingContext

LINES = (
    '{"type":"session","version":3,"id":"s1","timestamp":"2026-10-01T09:00:00Z"}\n'
    '{"type":"message","id":"q1","parentId":null,"timestamp":"2026-10-01T09:00:01Z","message":{"role":"user","content":"Well?"}}\n'
    '{"type":"message","id":"a1","parentId":"q1","timest'
)


def test_silence_does_not_end_an_exchange_with_a_torn_last_line(tmp_path: Path, context: ReadingContext) -> None:
    """The entries are weeks old, but the file may be a copy in progress."""
    path = tmp_path / "s1.jsonl"
    path.write_text(LINES)
    os.utime(path, (context.ingested_at.timestamp(),) * 2)
    reading = read_transcript(path, context)
    assert reading.exchanges == []
    assert reading.complete is False


def test_an_abandoned_torn_line_is_reported(tmp_path: Path, context: ReadingContext) -> None:
    """A gateway that died in the middle of a line will not finish it; its last question must not be lost."""
    path = tmp_path / "s1.jsonl"
    path.write_text(LINES)
    modified_at = context.ingested_at - context.session_gap - timedelta(minutes=1)
    os.utime(path, (modified_at.timestamp(),) * 2)
    reading = read_transcript(path, replace(context))
    assert [exchange.outcome for exchange in reading.exchanges] == ["no_response"]
    assert not reading.complete
