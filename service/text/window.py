"""Periods of time on pages, in the API and on the command line. They count back from now unless an end is given.

An age, a date or a time can be given.

1. Without an end, a period of days ends with today, and a period of hours with the current hour. It never moves to the newest data.
   Otherwise 7 days would be different weeks on different pages, and 30 days could show less than 14.
2. A page without data in the period says so, and offers the last period of the same length with data (`last_period`).
3. Pages of a project show `USUAL` if the address names no length; lists show all time only with `window=all`. The inbox and the lists
   of the API and the command line cover all time unless a period is named.
4. Up to three days are shown by hour, longer periods by day: at most 74 points in an hourly chart and 366 in a daily one.
5. `until` is the last UTC day, or a time. A window of days ends with that day; a window of hours ends at that time, or with that day.
6. `since` begins a custom range, up to `until`. Its days, and its times without an offset, are in the time zone `zone`, by default
   UTC, so that an address means the same period to every reader, in a file, and on every tab.
7. Sums and detectors count UTC days. Charts therefore show a custom range in whole UTC hours or days (`in_steps`), and say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final, Literal
from urllib.parse import urlencode

from audit.times import parse_timestamp
from schemas.bounds import EARLIEST, LATEST
from schemas.errors import SettingsError
from service.text.zone import find_zone, local, reader_zone

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
NAMES = ("window", "since", "until", "zone", "compare")
"""The parameters of an address that select the period of a page."""
BEFORE = "before"
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_RESOLUTION = timedelta(microseconds=1)
_MAX_HOURLY_LENGTH = timedelta(days=3)
_MAX_RANGE = timedelta(days=366)
"""Longest custom range, for which charts are still legible and queries bounded."""
_TO = " \u2013 "
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
    since: date | datetime | None = None
    """The first day, or the start, of a custom range; None for a window of `length`."""
    zone: str = ""
    """The time zone of a custom range's days; empty for UTC."""


@dataclass(frozen=True, slots=True)
class Window:
    """A period of time: consecutive UTC hours or days, or a custom range."""

    length: Length | None
    """None for a custom range, which has a start of its own."""
    end: datetime
    """The first moment after it."""
    is_pinned: bool = False
    """Whether the address names its end, so that the window does not move with the clock."""
    compare: bool = False
    """Whether the preceding period is shown beside it."""
    since: datetime | None = None
    """The start of a custom range."""
    zone: str = ""
    """The time zone of a custom range's days; empty for UTC."""

    @property
    def span(self) -> timedelta:
        """Return the time from start to end."""
        return self.end - self.start

    @property
    def is_hourly(self) -> bool:
        """Tell whether its points are hours, not days."""
        # Three days have an hour more when the clocks go back.
        return self.span <= _MAX_HOURLY_LENGTH + (_HOUR if self.length is None else timedelta())

    @property
    def step(self) -> timedelta:
        """Return the length of a point."""
        return _HOUR if self.is_hourly else _DAY

    @property
    def start(self) -> datetime:
        """Return the first moment."""
        return self.since or self.end - LENGTHS[self.length or USUAL]

    @property
    def first(self) -> date:
        """Return the first UTC day."""
        return self.start.date()

    @property
    def last(self) -> date:
        """Return the last UTC day."""
        return (self.end - _RESOLUTION).date()

    @property
    def before(self) -> Window:
        """Return the preceding period of the same length, which ends where this one starts."""
        return self._shift(-1)

    def ending_with(self, moment: datetime) -> Window:
        """Return the window of the same length whose last point contains a moment."""
        end = self.slot_of(moment) + self.step
        return replace(self, end=end, since=None if self.since is None else end - self.span)

    def in_steps(self) -> Window:
        """Return the period in whole UTC hours or days, as sums and charts count it. Days of a zone become the UTC days of the same dates."""
        if self.since is None:
            return self
        days = self.days
        if days is not None and not self.is_hourly:
            since, end = (datetime.combine(day, time(), UTC) for day in (days[0], days[1] + _DAY))
        else:
            since = self.slot_of(self.since)
            end = self.slot_of(self.end - _RESOLUTION) + self.step
        return replace(self, since=since, end=end, zone="")

    def slots(self) -> list[datetime]:
        """Return the beginning of each point, the oldest first."""
        return [self.start + index * self.step for index in range(self.span // self.step)]

    def label(self, slot: datetime) -> str:
        """Return the label of a point in tables."""
        return f"{slot:%Y-%m-%d %H:%M}" if self.is_hourly else f"{slot:%Y-%m-%d}"

    def slot_of(self, moment: datetime) -> datetime:
        """Return the beginning of the point that contains a moment; the moment may lie outside the window."""
        midnight = datetime.combine(moment.astimezone(UTC).date(), time(), UTC)
        return midnight + (moment - midnight) // self.step * self.step

    @property
    def words(self) -> str:
        """Describe the period from its first to its last point: its days, or the reader's times. The zone of other days is named."""
        days = self.days
        if days is None:
            return _describe_times(local(self.start), local(self.end))
        zone = find_zone(self.zone) or UTC
        days_of = "" if zone == reader_zone() else f" ({zone} day{'s' if days[0] != days[1] else ''})"
        return _describe_days(*days) + days_of

    @property
    def days(self) -> tuple[date, date] | None:
        """Return the first and the last day, in the zone of the period; None if it does not consist of whole days."""
        zone = find_zone(self.zone) or UTC
        start, end = self.start.astimezone(zone), self.end.astimezone(zone)
        if start.time() != time() or end.time() != time():
            return None
        return start.date(), (end - _DAY).date()

    @property
    def params(self) -> dict[str, str]:
        """Return its parameters in an address."""
        if self.since is None:
            return self.params_for(self.length or USUAL)
        days = self.days
        since, until = (f"{day}" for day in days) if days else (_format_time(self.since), _format_time(self.end))
        return {
            "since": since,
            **({"until": until} if self.is_pinned else {}),
            **({"zone": self.zone} if days and self.zone else {}),
            **({"compare": BEFORE} if self.compare else {}),
        }

    @property
    def query(self) -> str:
        """Return its parameters as a query string."""
        return f"?{urlencode(self.params)}"

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
        return self.before.params if (self.start - self.span).date() >= _FIRST_DAY else None

    def later(self, now: datetime) -> dict[str, str] | None:
        """Return the parameters of the following period; None if that is in the future."""
        if self.end >= now:
            return None
        following = self._shift(1)
        if following.end < now or self.length is None:
            return following.params
        return replace(self, is_pinned=False).params

    def _shift(self, count: int) -> Window:
        """Return the period moved by its own length, later or earlier. Days of a zone can have an hour more or less."""
        days = self.days
        if self.since is None or days is None:
            end = self.end + count * self.span
            return replace(self, end=end, is_pinned=True, since=None if self.since is None else end - self.span)
        length = days[1] - days[0] + _DAY
        zone = find_zone(self.zone) or UTC
        since, end = (_start_of(day + count * length, zone) for day in (days[0], days[1] + _DAY))
        return replace(self, since=since, end=end, is_pinned=True)


def _describe_days(first: date, last: date) -> str:
    """Describe days, such as 3 Nov to 9 Nov 2026, with a dash."""
    if first == last:
        return f"{first.day} {first:%b %Y}"
    year = f" {first.year}" if first.year != last.year else ""
    return f"{first.day} {first:%b}{year}{_TO}{last.day} {last:%b %Y}"


def _describe_times(start: datetime, end: datetime) -> str:
    """Describe times, such as 3 Nov 2026, 14:00 to 20:00, with a dash."""
    day = "" if start.date() == (end - _RESOLUTION).date() else f"{end.day} {end:%b %Y}, "
    clock = "24:00" if not day and end.time() == time() else f"{end:%H:%M}"
    return f"{start.day} {start:%b %Y}, {start:%H:%M}{_TO}{day}{clock}"


def _format_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _start_of(day: date, zone: tzinfo) -> datetime:
    """Return the first moment of a day."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


def until_text(length: Length, end: datetime) -> str:
    """Format the end of a window for an address: the last day if it ends at midnight or consists of days, otherwise the hour."""
    if LENGTHS[length] > _MAX_HOURLY_LENGTH or end.timetz() == time(tzinfo=UTC):
        return f"{(end - _RESOLUTION).date()}"
    return f"{end:%Y-%m-%dT%H:%MZ}"


def window_of(requested: RangeRequest, now: datetime) -> Window:
    """Return the requested window; without an end it ends with the current hour or day."""
    if requested.since is not None:
        return _build_range(requested.since, requested, now)
    window = Window(requested.length, now, requested.until is not None, requested.compare)
    if isinstance(requested.until, datetime):
        # A time on the hour is itself the end.
        return window.ending_with(_first_moment(requested.until, UTC) - _RESOLUTION)
    if requested.until is not None:
        return replace(window, end=datetime.combine(requested.until + _DAY, time(), UTC))
    return window.ending_with(now)


def _build_range(since: date | datetime, requested: RangeRequest, now: datetime) -> Window:
    """Return a custom range. Without an end it ends with today, but is a day long at least and at most the longest range.

    Raises ValueError if it is empty or too long.
    """
    zone = find_zone(requested.zone) or UTC
    start, until = _first_moment(since, zone), requested.until
    if until is None:
        today_end = _start_of(now.astimezone(zone).date() + _DAY, zone)
        end = min(max(today_end, start + _DAY), start + _MAX_RANGE)
    else:
        end = _first_moment(until if isinstance(until, datetime) else until + _DAY, zone)
    if end <= start:
        raise ValueError("since: must be before until" if isinstance(since, datetime) else "since: must not be after until")
    if end - start > _MAX_RANGE + _HOUR:
        raise ValueError(f"since: must be at most {_MAX_RANGE.days} days before until")
    named = "" if zone is UTC else str(zone)
    return Window(None, end, until is not None, requested.compare, start, named)


def _first_moment(day: date | datetime, zone: tzinfo) -> datetime:
    """Return the time itself, or the first moment of a day."""
    if isinstance(day, datetime):
        return (day if day.tzinfo else day.replace(tzinfo=zone)).astimezone(UTC)
    return _start_of(day, zone)


def listed_window(requested: RangeRequest, now: datetime) -> Window | None:
    """Return the period that a list is limited to; None for all time."""
    return None if requested.is_all else window_of(requested, now)


def last_period(window: Window, newest: datetime | None) -> Window | None:
    """Return the last period of the window's length that has data. `newest` is the time of the newest data; None if there is none."""
    return None if newest is None else replace(window.in_steps().ending_with(newest), is_pinned=True)


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
    if parameters.get("window") == ALL:
        return {"window": ALL}
    kept = {name: parameters[name] for name, is_valid in _VALID.items() if name in parameters and is_valid(parameters[name])}
    if "window" in kept or "since" not in kept:
        kept = {name: value for name, value in kept.items() if name not in {"since", "zone"}}
    return kept if "since" not in kept or _is_range(kept) else {}


def _is_range(kept: Mapping[str, str]) -> bool:
    try:
        window_of(range_of(kept), LATEST - _DAY)
    except ValueError:
        return False
    return True


def range_of(parameters: Mapping[str, str]) -> RangeRequest:
    """Return the period in the valid parameters of an address; all time if they name neither a length nor a time."""
    length = next((name for name in LENGTHS if name == parameters.get("window")), USUAL)
    is_all = parameters.get("window") == ALL or not parameters.keys() & {"window", "since", "until"}
    return RangeRequest(
        length,
        read_until(parameters.get("until")),
        parameters.get("compare") == BEFORE,
        is_all,
        since=None if "window" in parameters else read_until(parameters.get("since")),
        zone=parameters.get("zone", ""),
    )


def _is_until(text: str) -> bool:
    try:
        return read_until(text) is not None
    except ValueError:
        return False


def read_until(text: object) -> date | datetime | None:
    """Parse the start or the end of a period in an address; None without one. A time without an offset is in the zone of the address.

    Raises ValueError with a message to follow the field's name.
    """
    if text is None or isinstance(text, date):
        return text
    try:
        moment = date.fromisoformat(str(text)) if len(str(text)) == _DAY_LENGTH else datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(_NO_TIME) from None
    if isinstance(moment, datetime):
        bounded = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        if not datetime.combine(_FIRST_DAY, time(), UTC) <= bounded <= datetime.combine(_LAST_DAY, time(), UTC):
            raise ValueError(_BOUNDS)
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
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
_VALID: Mapping[str, Callable[[str], bool]] = {
    "window": LENGTHS.__contains__,
    "since": _is_until,
    "until": _is_until,
    "zone": lambda text: find_zone(text) is not None,
    "compare": BEFORE.__eq__,
}
