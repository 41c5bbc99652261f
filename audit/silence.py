"""Telemetry, pure: how many signs of life a session has missed, and what that calls for.

| missed | status | level |
| --- | --- | --- |
| 0 | green | none |
| 1 | yellow | info: logged |
| 2 | yellow | warning: an alert |
| 3 or more | red | critical: the session has stopped |

A session whose last turn ended is idle: it owes no sign until its user asks again, so it misses none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

Status = Literal["green", "yellow", "red"]
Level = Literal["info", "warning", "critical"]
_MICROSECOND = timedelta(microseconds=1)
_STATUSES: tuple[Status, ...] = ("green", "yellow", "yellow", "red")
_LEVELS: tuple[Level | None, ...] = (None, "info", "warning", "critical")
STOPPED = 3
"""Missed signs from which on a session counts as stopped."""


@dataclass(frozen=True, slots=True)
class Silence:
    """The time without a sign of a session while the server listened, and the number of whole intervals in it."""

    elapsed: timedelta
    missed: int

    @property
    def status(self) -> Status:
        """Green up to one interval, yellow up to three, red beyond."""
        return _STATUSES[min(self.missed, STOPPED)]

    @property
    def level(self) -> Level | None:
        """The urgency of the silence; None where nothing is missed."""
        return _LEVELS[min(self.missed, STOPPED)]


def silence(
    last_received: datetime, listening: datetime | None, now: datetime, interval: timedelta, *, is_idle: bool = False
) -> Silence:
    """The silence since the last sign of life; what lies before `listening` (None: nothing does) does not count.

    A sign is missed once its interval is over: after exactly one interval nothing is missed. A sign from the future is one of now.
    An idle session misses none.
    """
    since = last_received if listening is None else max(last_received, listening)
    elapsed = max(now - since, timedelta(0))
    return Silence(elapsed, 0 if is_idle else max(elapsed - _MICROSECOND, timedelta(0)) // interval)


def listening_since(
    since: datetime | None, last_look: datetime | None, now: datetime, *, ready: bool, patience: timedelta
) -> datetime:
    """Since when the server has listened without a break, at a look at `now`.

    It begins again where no record is taken (not `ready`), and where the last look is longer ago than `patience`: then the process
    itself stood still. A session that was silent during a break may only have gone unheard.
    """
    if since is None or last_look is None or not ready or now - last_look > patience:
        return now
    return since
