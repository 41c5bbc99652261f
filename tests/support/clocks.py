"""Clocks for tests: one that a test sets, and one that moves by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


class TickingClock:
    """A clock that advances by a microsecond on each reading, so that no two readings are equal."""

    def __init__(self, start: datetime = NOW) -> None:
        self._now = start

    def __call__(self) -> datetime:
        """Return the next microsecond."""
        self._now += timedelta(microseconds=1)
        return self._now

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        self._now += by


class ManualClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now
