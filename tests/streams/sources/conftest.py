"""A context that hides nothing, and transcripts from lists of dicts."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streams.sources.lines import read_lines
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext


class NothingRedacted:
    """A redactor that finds nothing."""

    def redact(self, text: str) -> tuple[str, Counter[str]]:
        """The text as it is."""
        return text, Counter()

    def redact_json(self, value: Any) -> tuple[Any, Counter[str]]:
        """The value as it is."""
        return value, Counter()


@pytest.fixture
def context() -> ReadingContext:
    """A reading long after every transcript of the tests."""
    return ReadingContext(
        connection="conn",
        project="ops",
        agent=None,
        ingested_at=datetime(2026, 11, 20, tzinfo=UTC),
        session_gap=timedelta(minutes=30),
        redactor=NothingRedacted(),
    )


@pytest.fixture
def read(context: ReadingContext) -> Callable[..., Reading]:
    """Read entries (dicts, or strings as they are) as one transcript."""

    def reader(entries: list[Any], under: ReadingContext = context, *, end: str = "\n") -> Reading:
        text = "\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries) + end
        return read_session(read_lines(io.BytesIO(text.encode())), under, session_id="file", agent=None)

    return reader
