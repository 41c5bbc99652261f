"""Times: parse the various formats of sources, and format times in one way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, overload

from schemas.bounds import EARLIEST, LATEST

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_LENGTH = 64
"""Maximum length of a text that may be a time."""
_EPOCH_UNITS = ((10**11, "seconds"), (10**14, "milliseconds"), (10**17, "microseconds"))


def parse_timestamp(value: Any) -> datetime | None:
    """Return a source's time in UTC: ISO 8601 (UTC without an offset), or seconds, milli- or microseconds since 1970.

    The unit of a number follows from its magnitude, which is unambiguous for the years 2000 to 2099. None and blank text mean
    that there is no time. Raises ValueError if the value cannot be parsed or is outside those years.
    """
    if type(value) is str and len(value) <= _MAX_LENGTH:
        # Fast path for the usual form: ISO 8601 in UTC, without spaces.
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            if time.tzinfo is UTC and EARLIEST <= time < LATEST:
                return time
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        moment = _parse_instant(value)
    except (ValueError, OverflowError, TypeError):
        moment = None
    if moment is None:
        raise ValueError(f"timestamp: {_describe_value(value)} is neither ISO 8601 nor a number of seconds since 1970")
    if not EARLIEST <= moment < LATEST:
        raise ValueError(f"timestamp: {_describe_value(value)} is outside the years 2000 to 2099")
    return moment


@overload
def iso_time(moment: datetime) -> str: ...


@overload
def iso_time(moment: None) -> None: ...


@overload
def iso_time(moment: datetime | None) -> str | None: ...


def iso_time(moment: datetime | None) -> str | None:
    """Return the time in ISO 8601, UTC, with a Z; microseconds if there are any. None stays None."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def time_text(value: Any) -> Any:
    """Return a time as `iso_time` writes it; other values are returned unchanged."""
    return iso_time(value) if isinstance(value, datetime) else value


def _parse_instant(value: Any) -> datetime | None:
    """Return the instant in UTC, or None for an unknown form; raises the parser's ValueError and OverflowError."""
    if isinstance(value, str):
        text = value.strip()
        if len(text) > _MAX_LENGTH:
            return None
        parsed = datetime.fromisoformat(text)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return next((_EPOCH + timedelta(**{unit: value}) for limit, unit in _EPOCH_UNITS if abs(value) < limit), None)


def _describe_value(value: Any) -> str:
    """Return the value for a message, at most 40 characters; values that may be long or nested are named by their type."""
    if isinstance(value, str):
        return ascii(value[:40])
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 64):
        return str(value)
    return f"a value of type {type(value).__name__}"
