"""Times as programs write them into tables: ISO 8601, numbers since 1970, and the forms of databases, languages and mails.

1. Each form says its instant. What could be two instants is none: it is set aside with the reason, never read wrongly.
2. An offset decides; the name of a zone after it (`+0100 CET`, `[Europe/Paris]`) repeats it.
3. UTC, GMT and Z are the only abbreviations that mean one zone everywhere. Any other counts where the mapping gives a zone whose clocks
   have that name at that time.
4. A time by the clocks of a zone that comes twice when they are set back, or never because they are set forward, is no instant.
5. A day of the week has to be that of the date: else one of the two is wrong.
6. A number that a spreadsheet or C's `%g` rounded to six digits (`1.79085E+12`) is off by minutes or hours.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import NoReturn
from zoneinfo import ZoneInfo

LONGEST = 120
"""Characters of the longest text that is read as a time."""
_CLOCK = r"(?P<clock>\d{1,2}:\d{2}(?::\d{2})?)(?:[.,](?P<fraction>\d{1,12}))?"
_MONTH = r"(?P<month>\d{2}|[A-Z][a-z]{2})"
_WEEKDAY = r"(?P<weekday>[A-Z][a-z]{2})"
FORMS = {
    "SQL, Go, Java's ZonedDateTime and logs": re.compile(
        rf"(?P<year>\d{{4}})-{_MONTH}-(?P<day>\d{{2}})[T ]{_CLOCK}(?P<zone>.{{0,80}})"
    ),
    "RFC 2822": re.compile(rf"(?:{_WEEKDAY}, )?(?P<day>\d{{1,2}}) {_MONTH} (?P<year>\d{{4}}) {_CLOCK}(?P<zone>.{{0,80}})"),
    "Java's Date, Ruby, C": re.compile(
        rf"{_WEEKDAY} {_MONTH} {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK}(?: (?P<zone>\S{{1,12}}))? (?P<year>\d{{4}})"
    ),
    "JavaScript's Date": re.compile(rf"{_WEEKDAY} {_MONTH} (?P<day>\d{{1,2}}) (?P<year>\d{{4}}) {_CLOCK}(?P<zone>.{{0,80}})"),
}
"""The forms that are read beside ISO 8601, by who writes them."""
_ZONE = re.compile(
    r" ?(?:"
    r"(?:[A-Z]{1,5})?(?P<offset>[+-]\d{2}(?::?\d{2})?)(?: (?:[A-Z]{1,5}|[+-]\d{2,4}))?(?:\[[\w/+-]{1,40}\])?"
    r"|(?P<abbreviation>(?!AM|PM)[A-Z]{1,5})(?:\[[\w/+-]{1,40}\])?"
    r"|\[?(?P<region>[A-Z]\w{1,30}(?:/[\w+-]{1,30}){1,2})\]?"
    r")(?: \([^()]{1,60}\))?(?: m=[+-]\d{1,12}\.\d{1,12})?",
    re.ASCII,
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_UNIVERSAL = frozenset({"UTC", "GMT", "UT", "Z"})
_NUMERIC_DATE = re.compile(r"\d{1,2}([/.-])\d{1,2}\1(\d{4}|\d{2})\b(.*)", re.DOTALL)
_EXPONENT = re.compile(r"-?(?P<digits>\d(?:\.\d{1,20})?)[eE](?P<plus>\+?)\d{1,2}", re.ASCII)
_ROUNDED = 6
"""Digits to which spreadsheets and C's `%g` round a number with an exponent."""


def written_time(text: str, zone: str | None = None) -> datetime:
    """Return the instant that a text says, in UTC; one without a zone is in the given one, else in UTC.

    ValueError that says why it is none, and what a mapping can say of it.
    """
    try:
        plain = datetime.fromisoformat(text)
    except ValueError:
        pass  # it may be of another form
    else:
        return moment_of(plain, zone)
    match = next((match for form in FORMS.values() if (match := form.fullmatch(text))), None) if len(text) <= LONGEST else None
    if match is None:
        _refuse(text)
    return _moment(match, text, zone)


def exponent_number(text: str) -> float | None:
    """Return the number that a text with an exponent is; None for any other text. ValueError where its digits were rounded."""
    match = _EXPONENT.fullmatch(text)
    if match is None:
        return None
    if match["plus"] and len(match["digits"].replace(".", "")) <= _ROUNDED:
        raise ValueError(f"{text} is rounded to {_ROUNDED} digits; write the column as whole numbers")
    return float(text)


def moment_of(value: datetime, zone: str | None = None) -> datetime:
    """Return a time in UTC; one without a zone is by the clocks of the given one, else in UTC. ValueError where that is no instant."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC) if zone is None else _by_clocks(value, zone)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value} lies outside the years 2000 to 2099") from None


def _by_clocks(value: datetime, zone: str, abbreviation: str | None = None) -> datetime:
    """The one time at which the clocks of a zone show the value, and are called by the abbreviation if there is one."""
    clocks = ZoneInfo(zone)
    times = {time.utcoffset(): time for time in (value.replace(tzinfo=clocks, fold=fold) for fold in (0, 1))}
    shown = [time for time in times.values() if time.astimezone(UTC).astimezone(clocks).replace(tzinfo=None) == value]
    named = [time for time in shown if abbreviation is None or time.tzname() == abbreviation]
    if len(named) == 1:
        return named[0]
    if not shown:
        raise ValueError(f"{value} is skipped by the clocks of {zone}, which are set forward then")
    if not named:
        raise ValueError(f"{value} is not {abbreviation} by the clocks of {zone}")
    raise ValueError(f"{value} comes twice by the clocks of {zone}, which are set back then")


def _moment(match: re.Match[str], text: str, zone: str | None) -> datetime:
    parts = match.groupdict()
    month = parts["month"]
    try:
        number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
        hour, minute, second = (*map(int, parts["clock"].split(":")), 0)[:3]
        microsecond = int((parts["fraction"] or "")[:6].ljust(6, "0"))
        value = datetime(int(parts["year"]), number, int(parts["day"]), hour, minute, second, microsecond)  # noqa: DTZ001 - its zone comes next
    except ValueError:
        _refuse(text)
    if (weekday := parts.get("weekday")) is not None and _WEEKDAYS[value.weekday()] != weekday:
        raise ValueError(f"{_shown(text)} names another day of the week than its date has")
    return _in_zone(value, (parts["zone"] or "").strip(), text, zone)


def _in_zone(value: datetime, written: str, text: str, zone: str | None) -> datetime:
    if not written:
        return moment_of(value, zone)
    match = _ZONE.fullmatch(written)
    if match is None:
        _refuse(text)
    if match["offset"] is not None:
        fixed = _fixed_zone(match["offset"])
        if fixed is None:
            _refuse(text)
        return moment_of(value.replace(tzinfo=fixed))
    if match["region"] is not None:
        return _in_region(value, match["region"], text)
    if match["abbreviation"] in _UNIVERSAL:
        return moment_of(value)
    if zone is None:
        raise ValueError(
            f"{_shown(text)} names {match['abbreviation']}, which is no single zone; give its zone, such as Europe/Berlin"
        )
    return _by_clocks(value, zone, match["abbreviation"]).astimezone(UTC)


def _fixed_zone(offset: str) -> timezone | None:
    digits = offset[1:].replace(":", "").ljust(4, "0")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    is_offset = int(digits[2:]) < 60 and ahead < timedelta(days=1)
    return timezone(-ahead if offset[0] == "-" else ahead) if is_offset else None


def _in_region(value: datetime, region: str, text: str) -> datetime:
    try:
        ZoneInfo(region)
    except (KeyError, OSError, ValueError):
        raise ValueError(f"{_shown(text)} names no time zone that there is") from None
    return moment_of(value, region)


def _refuse(text: str) -> NoReturn:
    """Raise the ValueError of a text of no form, with what a mapping can say of it."""
    if (numeric := _NUMERIC_DATE.fullmatch(text)) is not None:
        mark, year, clock = numeric[1], "%Y" if len(numeric[2]) == 4 else "%y", _clock_form(numeric[3])
        forms = " or ".join(f'"{mark.join(order)}{clock}"' for order in (("%d", "%m", year), ("%m", "%d", year)))
        raise ValueError(f"{_shown(text)} may have day or month first; give its format: {forms}")
    raise ValueError(f'{_shown(text)} is no time in a form that is read; give its format, such as "%d.%m.%Y %H:%M"')


def _clock_form(rest: str) -> str:
    hours = "%I" if rest.rstrip()[-2:].upper() in ("AM", "PM") else "%H"
    form = re.sub(r"\d{1,2}:\d{2}", f"{hours}:%M", rest[:LONGEST], count=1)
    form = re.sub(r"%M:\d{2}", "%M:%S", form)
    return re.sub(r"[AaPp][Mm]$", "%p", re.sub(r"%S\.\d{1,6}", "%S.%f", form))


def _shown(text: str) -> str:
    return ascii(text[:40])
