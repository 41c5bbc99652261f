"""A clock for tests that say what time it is."""

from __future__ import annotations

from datetime import UTC, datetime


class Clock:
    """A time that moves when told."""

    def __init__(self) -> None:
        self.now = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        """The time."""
        return self.now
