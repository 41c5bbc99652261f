"""Periods of time on pages, in the API and on the command line. They are in UTC and count back from now unless an end is given.

An age, a date or a time can be given.

1. Without an end, a period of days ends with today, and a period of hours with the current hour. It never moves to the newest data.
   Otherwise 7 days would be different weeks on different pages, and 30 days could show less than 14.
2. A page without data in the period says so, and offers the last period of the same length with data (`last_period`).
3. Pages of a project show `USUAL` if the address names no length; lists show all time only with `window=all`. The inbox and the lists
   of the API and the command line cover all time unless a period is named.
4. Up to three days are shown by hour, longer periods by day: at most 72 points in an hourly chart and 90 in a daily one.
5. `until` is the last UTC day, or a time. A window of days ends with that day; a window of hours ends at that time, or with that day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Literal

from audit.times import parse_timestamp
from schemas.bounds import EARLIEST, LATEST
from schemas.errors import SettingsError

GIVE_A_TIME = "Give an age such as 24h or 7d, a date such as 2026-11-01, or a time such as 2026-11-01T12:00:00Z."
_AGE = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def moment_of(
    text: str, option: str, now: datetime, start_of: Callable[[timedelta, datetime], datetime] = lambda age, now: now - age
) -> datetime:
    """Parse the time of an option, in UTC. An age is subtracted from `now`; a date stands for its first moment.

    `start_of` can replace the subtraction of an age. Raises SettingsError for any other text.
    """
    text = text.strip()
    try:
        age = _AGE.fullmatch(text)
        if age is not None:
            return max(start_of(int(age[1]) * _UNITS[age[2]], now), EARLIEST)
        if _DATE.fullmatch(text):
            text = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC).isoformat()
        moment = parse_timestamp(text)
    except OverflowError:
        return EARLIEST
    except ValueError as error:
        raise SettingsError(f"{option}: {str(error).removeprefix('timestamp: ')}", hint=GIVE_A_TIME) from error
    if moment is None:
        raise SettingsError(f"{option}: no time given", hint=GIVE_A_TIME)
    return moment


Length = Literal["6h", "24h", "3d", "7d", "14d", "30d", "90d"]
LENGTHS: Mapping[Length, timedelta] = {
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "3d": timedelta(days=3),
    "7d": timedelta(days=7),
    "14d": timedelta(days=14),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
}
"""The lengths of a window, the shortest first."""
USUAL: Length = "14d"
"""The default length."""
RECENT: Length = "7d"
"""The length of a fleet's figures."""
ALL: Final = "all"
"""Stands for all time, which lists can show."""
NAMES = ("window", "until", "compare")
"""The parameters of an address that select the period of a page."""
BEFORE = "before"
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_RESOLUTION = timedelta(microseconds=1)
_MAX_HOURLY_LENGTH = timedelta(days=3)
_LAST_DAY = (LATEST - _DAY).date()
_FIRST_DAY = (EARLIEST + 180 * _DAY).date()
_DAY_LENGTH = len("2026-11-26")
_NO_TIME = "must be a day such as 2026-11-26, or a time such as 2026-11-26T14:00Z"


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The period requested in an address."""

    length: Length = USUAL
    until: date | datetime | None = None
    """The last day, or the end; None for now."""
    compare: bool = False
    is_all: bool = False
    """Whether it requests all time, without a beginning and an end."""
    unknown: tuple[str, ...] = ()
    """Unknown names in the address."""
    since: date | None = None
    """The first day of a list's own range of days, which ends with the day of `until`; None for a window."""

    @property
    def days(self) -> tuple[datetime, datetime | None]:
        """Return the bounds of a list's own range of days: its start, and its end (exclusive), None without one."""
        last = self.until.date() if isinstance(self.until, datetime) else self.until
        start = datetime.combine(self.since or EARLIEST.date(), time(), UTC)
        return start, None if last is None else datetime.combine(last + _DAY, time(), UTC)


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive UTC hours or days."""

    length: Length
    end: datetime
    """The first moment after it."""
    is_pinned: bool = False
    """Whether the address names its end, so that the window does not move with the clock."""
    compare: bool = False
    """Whether the preceding period is shown beside it."""

    @property
    def is_hourly(self) -> bool:
        """Tell whether its points are hours, not days."""
        return LENGTHS[self.length] <= _MAX_HOURLY_LENGTH

    @property
    def step(self) -> timedelta:
        """Return the length of a point."""
        return _HOUR if self.is_hourly else _DAY

    @property
    def start(self) -> datetime:
        """Return the first moment."""
        return self.end - LENGTHS[self.length]

    @property
    def first(self) -> date:
        """Return the first day."""
        return self.start.date()

    @property
    def last(self) -> date:
        """Return the last day."""
        return (self.end - _RESOLUTION).date()

    @property
    def before(self) -> Window:
        """Return the preceding period of the same length, which ends where this one starts."""
        return replace(self, end=self.start, is_pinned=True)

    def ending_with(self, moment: datetime) -> Window:
        """Return the window of the same length whose last point contains a moment."""
        return replace(self, end=self.slot_of(moment) + self.step)

    def slots(self) -> list[datetime]:
        """Return the beginning of each point, the oldest first."""
        return [self.start + index * self.step for index in range(LENGTHS[self.length] // self.step)]

    def label(self, slot: datetime) -> str:
        """Return the label of a point in tables."""
        return f"{slot:%Y-%m-%d %H:%M}" if self.is_hourly else f"{slot:%Y-%m-%d}"

    def slot_of(self, moment: datetime) -> datetime:
        """Return the beginning of the point that contains a moment; the moment may lie outside the window."""
        midnight = datetime.combine(moment.astimezone(UTC).date(), time(), UTC)
        return midnight + (moment - midnight) // self.step * self.step

    @property
    def words(self) -> str:
        """Describe the period from its first to its last point."""
        if not self.is_hourly:
            return f"{self.first} to {self.last}"
        return f"{self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M}"

    @property
    def params(self) -> dict[str, str]:
        """Return its parameters in an address."""
        return self.params_for(self.length)

    @property
    def query(self) -> str:
        """Return its parameters as a query string."""
        return "?" + "&".join(f"{name}={value}" for name, value in self.params.items())

    def params_for(self, length: Length, end: datetime | None = None) -> dict[str, str]:
        """Return the parameters of a window with another length, up to the same or another end."""
        until = end or (self.end if self.is_pinned else None)
        return {
            "window": length,
            **({"until": until_text(length, until)} if until else {}),
            **({"compare": BEFORE} if self.compare else {}),
        }

    def earlier(self) -> dict[str, str] | None:
        """Return the parameters of the preceding period; None if there is none."""
        return self.params_for(self.length, self.start) if (self.start - _DAY).date() >= _FIRST_DAY else None

    def later(self, now: datetime) -> dict[str, str] | None:
        """Return the parameters of the following period; None if that is in the future."""
        if self.end >= now:
            return None
        next_end = self.end + LENGTHS[self.length]
        if next_end < now:
            return self.params_for(self.length, next_end)
        return replace(self, is_pinned=False).params


def until_text(length: Length, end: datetime) -> str:
    """Format the end of a window for an address: the last day if it ends at midnight or consists of days, otherwise the hour."""
    if LENGTHS[length] > _MAX_HOURLY_LENGTH or end.timetz() == time(tzinfo=UTC):
        return f"{(end - _RESOLUTION).date()}"
    return f"{end:%Y-%m-%dT%H:%MZ}"


def window_of(requested: RangeRequest, now: datetime) -> Window:
    """Return the requested window; without an end it ends with the current hour or day."""
    window = Window(requested.length, now, requested.until is not None, requested.compare)
    if isinstance(requested.until, datetime):
        # A time on the hour is itself the end.
        return window.ending_with(requested.until - _RESOLUTION)
    if requested.until is not None:
        return replace(window, end=datetime.combine(requested.until + _DAY, time(), UTC))
    return window.ending_with(now)


def listed_window(requested: RangeRequest, now: datetime) -> Window | None:
    """Return the period that a list is limited to; None for all time."""
    return None if requested.is_all else window_of(requested, now)


def last_period(window: Window, newest: datetime | None) -> Window | None:
    """Return the last period of the window's length that has data. `newest` is the time of the newest data; None if there is none."""
    return None if newest is None else replace(window.ending_with(newest), is_pinned=True)


def quarter_to(moment: datetime, *, is_pinned: bool = False) -> Window:
    """Return the ninety days up to the day of a moment. Comparisons with the past always look back this far."""
    return Window("90d", moment, is_pinned).ending_with(moment)


def recent_window(now: datetime, until: date | None = None) -> Window:
    """Return the days of a fleet's figures, up to today or another day."""
    return window_of(RangeRequest(RECENT, until), now)


def age_start(age: timedelta, now: datetime) -> datetime:
    """Return the start of a period of whole hours or days that counts back from now, equal to the start of a window of that length."""
    if age % _HOUR or not age:
        return now - age
    step = _HOUR if age % _DAY or age <= _MAX_HOURLY_LENGTH else _DAY
    midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    return midnight + ((now - midnight) // step + 1) * step - age


def bounds(window: Window | None) -> tuple[datetime | None, datetime | None]:
    """Return a window's start (inclusive) and end (exclusive); no bounds without a window."""
    return (None, None) if window is None else (window.start, window.end)


def kept_of(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the valid parameters of an address that its links keep."""
    if "since" in parameters and "window" not in parameters:
        # Such an address has its own range of days for runs.
        return {}
    if parameters.get("window") == ALL:
        return {"window": ALL}
    return {name: parameters[name] for name, is_valid in _VALID.items() if name in parameters and is_valid(parameters[name])}


def range_of(parameters: Mapping[str, str]) -> RangeRequest:
    """Return the period in the valid parameters of an address; all time if they name neither a length nor an end."""
    kept = kept_of(parameters)
    length = next((name for name in LENGTHS if name == kept.get("window")), USUAL)
    is_all = kept.get("window") == ALL or not kept.keys() & {"window", "until"}
    return RangeRequest(length, read_until(kept.get("until")), kept.get("compare") == BEFORE, is_all)


def _is_until(text: str) -> bool:
    try:
        return read_until(text) is not None
    except ValueError:
        return False


def read_until(text: object) -> date | datetime | None:
    """Parse the end of a period in an address; None without one. Raises ValueError with a message to follow the field's name."""
    if text is None or isinstance(text, date):
        return text
    try:
        moment = date.fromisoformat(str(text)) if len(str(text)) == _DAY_LENGTH else datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(_NO_TIME) from None
    if isinstance(moment, datetime):
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        if not datetime.combine(_FIRST_DAY, time(), UTC) <= moment <= datetime.combine(_LAST_DAY, time(), UTC):
            raise ValueError(_BOUNDS)
        return moment.astimezone(UTC)
    if not _FIRST_DAY <= moment <= _LAST_DAY:
        raise ValueError(_BOUNDS)
    return moment


def read_day(text: object) -> date | None:
    """Parse a UTC day; None without one. Raises ValueError with a message to follow the field's name."""
    if isinstance(text, str) and len(text) != _DAY_LENGTH:
        raise ValueError(_NO_DAY)
    day = read_until(text)
    return day.date() if isinstance(day, datetime) else day


_NO_DAY = "must be a UTC day such as 2026-11-26"
_BOUNDS = f"must be from {_FIRST_DAY} to {_LAST_DAY}"
_VALID: Mapping[str, Callable[[str], bool]] = {"window": LENGTHS.__contains__, "until": _is_until, "compare": BEFORE.__eq__}
