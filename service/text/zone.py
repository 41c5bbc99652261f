"""The time zone of the reader of a page.

Stored times, addresses without a zone, files, the API and the command line are in UTC. Pages format their times in the zone that the
request's cookie names. It is a context variable, because times are formatted deep inside templates and charts.
"""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

ZONE_COOKIE: Final = "driftline_zone"
"""Set by `pages.js`."""
BROWSER: Final = "browser:"
"""Before a zone in the cookie that follows the browser's and was not chosen."""
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "UCT", "Etc/UCT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal"})
"""Names of UTC, which needs no database of zones."""
_reader_zone: ContextVar[tzinfo] = ContextVar("reader_zone", default=UTC)


def find_zone(name: str) -> tzinfo | None:
    """Return a time zone by its name, such as Europe/Berlin; None for any other text."""
    if name in _UTC_NAMES:
        return UTC
    # Only listed names are looked up, because a name is also the path of a file.
    return ZoneInfo(name) if name in _list_zones() else None


@cache
def _list_zones() -> frozenset[str]:
    return frozenset(available_timezones())


def set_reader_zone(cookie: str | None) -> None:
    """Format the times of this request in the zone of its cookie; in UTC without a valid one."""
    _reader_zone.set(find_zone((cookie or "").removeprefix(BROWSER)) or UTC)


def reader_zone() -> tzinfo:
    """Return the reader's time zone. Its text is its name."""
    return _reader_zone.get()


def is_utc() -> bool:
    """Tell whether the reader's days are UTC days."""
    return reader_zone() is UTC


def local(at: datetime) -> datetime:
    """Return a time in the reader's zone. A time without a zone is in UTC."""
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(reader_zone())


def describe_zone(now: datetime) -> str:
    """Describe the difference of the reader's zone to UTC now, such as UTC+1 or UTC+5:30; empty for UTC itself."""
    offset = local(now).utcoffset()
    minutes = 0 if offset is None else round(offset.total_seconds() / 60)
    hours, rest = divmod(abs(minutes), 60)
    sign = "\u2212" if minutes < 0 else "+"
    return "" if is_utc() else f"UTC{sign}{hours}" + (f":{rest:02}" if rest else "")
