"""Clocks for tests: one that a test sets, and one that moves by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


class TickingClock:
    """A clock that moves by a microsecond each time it is read, so that nothing happens at the same time."""

    def __init__(self, start: datetime = NOW) -> None:
        self._now = start

    def __call__(self) -> datetime:
        """The next microsecond."""
        self._now += timedelta(microseconds=1)
        return self._now


class ManualClock:
    """A time that moves when told."""

    def __init__(self) -> None:
        self.now = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        """The time."""
        return self.now
