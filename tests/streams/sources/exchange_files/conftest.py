"""Contexts and readers for files of exchanges."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from streams.sources.exchange_files.mapping import Fields
from streams.sources.exchange_files.profiling import profile_file
from streams.sources.exchange_files.reading import read_exchange_file
from streams.sources.source import Reading, ReadingContext

Read = Callable[..., Reading]
LABELS = {"deployment": ("langfuse.environment",)}
"""As the policy has it where nothing else is said."""


@pytest.fixture
def redacting() -> ReadingContext:
    """Return a context that redacts, at a fixed time."""
    redactor = Redactor(RedactionSettings())
    return ReadingContext("conn", "ops", None, datetime(2026, 11, 20, tzinfo=UTC), timedelta(minutes=30), redactor)


@pytest.fixture
def read_file(redacting: ReadingContext) -> Read:
    """Return a function that reads a whole file as one reading, optionally by a mapping."""

    def read(path: Path, fields: Fields | None = None, context: ReadingContext = redacting) -> Reading:
        layout = profile_file(path, fields).layout(context.redactor)
        reading = Reading()
        for part in read_exchange_file(path, context, layout, LABELS):
            reading.exchanges += part.exchanges
            reading.events += part.events
            reading.faults += part.faults
            reading.session_ids += part.session_ids
            reading.skipped_traces += part.skipped_traces
            reading.complete &= part.complete
        return reading

    return read
