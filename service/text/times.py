"""Times as people type them: an age, a date, or a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from audit.times import parse_timestamp
from schemas.bounds.limits import EARLIEST
from schemas.errors import SettingsError

GIVE_A_TIME = "Give an age such as 24h or 7d, a date such as 2026-11-01, or a time such as 2026-11-01T12:00:00Z."
_AGE = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def moment_of(
    given: str, option: str, now: datetime, start_of: Callable[[timedelta, datetime], datetime] = lambda age, now: now - age
) -> datetime:
    """Return the time given with an option, UTC: an age is taken off `now`, a date is its first moment.

    `start_of` takes an age off in another way. SettingsError that names the option if it is none of these.
    """
    text = given.strip()
    try:
        if age := _AGE.fullmatch(text):
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
