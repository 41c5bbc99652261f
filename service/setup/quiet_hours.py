"""Quiet hours: the hours of every day in which warnings wait, in their own time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo

_FORM = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})(?: ([A-Za-z0-9_+/-]{1,64}))?")
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `start` until before `end`; over midnight if the end is the earlier one."""

    start: time
    end: time
    zone: tzinfo

    def over(self, moment: datetime) -> datetime:
        """Return the moment itself, or the end of the quiet hours that it falls into, UTC."""
        local = moment.astimezone(self.zone)
        clock = local.time()
        if not self._holds(clock):
            return moment
        day = local.date() + (_DAY if clock >= self.start > self.end else timedelta(0))
        end = datetime.combine(day, self.end, self.zone)
        # When clocks are put back, a time of the day comes twice, and the first of the two may have passed.
        return next((at for fold in (0, 1) if (at := end.replace(fold=fold).astimezone(UTC)) > moment), moment)

    def _holds(self, clock: time) -> bool:
        if self.start < self.end:
            return self.start <= clock < self.end
        return clock >= self.start or clock < self.end


def quiet_hours_of(text: str) -> QuietHours:
    """Parse quiet hours such as `22:00-07:00 Europe/Berlin`, in UTC without a zone; ValueError saying what is wrong."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise ValueError("must be like 22:00-07:00 Europe/Berlin")
    try:
        start, end = time(int(form[1]), int(form[2])), time(int(form[3]), int(form[4]))
    except ValueError:
        raise ValueError("must be two times of the day, 00:00 to 23:59") from None
    if start == end:
        raise ValueError("must begin and end at different times")
    return QuietHours(start, end, _zone_of(form[5] or "UTC"))


def _zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError(f"knows no time zone {name}; name one such as Europe/Berlin, or install tzdata") from None
