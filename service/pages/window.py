"""The days that a page shows: their number, and the last one. Both are in its address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Literal

from fastapi import Depends, Query, Request

from schemas.bounds.limits import EARLIEST, LATEST

LENGTHS = ("7d", "14d", "30d", "90d")
Length = Literal["7d", "14d", "30d", "90d"]
_DAY = timedelta(days=1)
_LAST = (LATEST - _DAY).date()
_FIRST = (EARLIEST + 180 * _DAY).date()


@dataclass(frozen=True, slots=True)
class AskedDays:
    """The days in an address: a length, and the last day, None for today."""

    length: Length
    until: date | None
    unknown: tuple[str, ...] = ()
    """Unknown names in the address."""


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive UTC days."""

    length: Length
    last: date
    is_pinned: bool
    """Whether the address names the last day, so that the window stays where it is."""

    @property
    def count(self) -> int:
        """Number of days."""
        return int(self.length.removesuffix("d"))

    @property
    def first(self) -> date:
        """The first day."""
        return self.last - (self.count - 1) * _DAY

    @property
    def start(self) -> datetime:
        """The first moment."""
        return datetime.combine(self.first, time(), UTC)

    @property
    def end(self) -> datetime:
        """The first moment after it."""
        return datetime.combine(self.last + _DAY, time(), UTC)

    def days(self) -> Iterator[date]:
        """Each day, the oldest first."""
        return (self.first + back * _DAY for back in range(self.count))

    @property
    def query(self) -> str:
        """Return its part of an address."""
        return self.query_of(self.length)

    def query_of(self, length: str) -> str:
        """Return the part of an address that shows another length up to the same day."""
        return f"?window={length}" + (f"&until={self.last}" if self.is_pinned else "")

    @property
    def earlier(self) -> str | None:
        """Return the part of an address that shows as many days before; None if there are none."""
        last = self.first - _DAY
        return f"?window={self.length}&until={last}" if last >= _FIRST else None

    def later(self, today: date) -> str | None:
        """Return the part of an address that shows as many days after; None if they are in the future."""
        last = self.last + self.count * _DAY
        if self.last >= today:
            return None
        return f"?window={self.length}" + (f"&until={last}" if last < today else "")


def window_of(asked: AskedDays, today: date, newest: date | None = None) -> Window:
    """Return the requested window. Without a last day it ends today, or with the day `newest` if there is nothing since."""
    return Window(asked.length, asked.until or newest or today, asked.until is not None)


def _asked_days(
    request: Request,
    window: Annotated[Length, Query(description="Number of days.")] = "14d",
    until: Annotated[date | None, Query(description="The last day; today by default.", ge=_FIRST, le=_LAST)] = None,
) -> AskedDays:
    return AskedDays(window, until, tuple(sorted(set(request.query_params) - {"window", "until"})))


Asked = Annotated[AskedDays, Depends(_asked_days)]
"""The days in the address."""
