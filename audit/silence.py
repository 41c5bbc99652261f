"""Counts the heartbeats that a session has missed, and derives its status.

| missed | status | level |
| --- | --- | --- |
| 0 | green | none |
| 1 | yellow | info: logged |
| 2 | yellow | warning: an alert |
| 3 or more | red | critical: the session has stopped |

A session whose last turn ended is idle. It sends no heartbeat until its user asks again, so it misses none.
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
"""Number of missed heartbeats at which a session counts as stopped."""


@dataclass(frozen=True, slots=True)
class Silence:
    """The time without a heartbeat while the server was listening, and the number of whole intervals in it."""

    elapsed: timedelta
    missed: int

    @property
    def status(self) -> Status:
        """Green below one interval, yellow below three, red beyond."""
        return _STATUSES[min(self.missed, STOPPED)]

    @property
    def level(self) -> Level | None:
        """The urgency of the silence; None if nothing is missed."""
        return _LEVELS[min(self.missed, STOPPED)]


def silence(
    last_received: datetime, listening: datetime | None, now: datetime, interval: timedelta, *, is_idle: bool = False
) -> Silence:
    """Return the silence since the last heartbeat, or since the server started `listening` if that is later.

    A heartbeat is missed once its interval is over: after exactly one interval, none is missed. A heartbeat from the future
    counts as received now. An idle session misses none.
    """
    start = last_received if listening is None else max(last_received, listening)
    elapsed = max(now - start, timedelta(0))
    if is_idle:
        return Silence(elapsed, 0)
    return Silence(elapsed, max(elapsed - _MICROSECOND, timedelta(0)) // interval)


def listening_since(
    since: datetime | None, last_look: datetime | None, now: datetime, *, ready: bool, patience: timedelta
) -> datetime:
    """Return the time since which the server has listened without a break, as of `now`.

    Listening restarts if the server accepts no records (not `ready`), or if the last check is longer ago than `patience`,
    because then the process itself was paused. A session that seems silent during a break may have sent heartbeats.
    """
    if since is None or last_look is None or not ready or now - last_look > patience:
        return now
    return since
