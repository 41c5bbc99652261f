"""A context without redaction, and transcripts from lists of dicts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from streams.sources.lines import read_lines
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext


@pytest.fixture
def context() -> ReadingContext:
    """Return a context with a time long after every transcript of the tests."""
    return ReadingContext(
        connection="conn",
        project="ops",
        agent=None,
        ingested_at=datetime(2026, 11, 20, tzinfo=UTC),
        session_gap=timedelta(minutes=30),
        redactor=Redactor(RedactionSettings(enabled=False)),
    )


@pytest.fixture
def read(context: ReadingContext) -> Callable[..., Reading]:
    """Return a function that reads entries (dicts, or strings unchanged) as one transcript."""

    def reader(entries: list[Any], under: ReadingContext = context, *, end: str = "\n") -> Reading:
        text = "\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries) + end
        return read_session(read_lines(io.BytesIO(text.encode())), under, session_id="file", agent=None)

    return reader
