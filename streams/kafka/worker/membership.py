"""Membership: whether the group still counts this process in, as far as the broker has said.

1. A worker of which the broker heard nothing for the session timeout has lost its partitions to others. Where the broker was the one
   that stood still, the worker cannot know for how long; so what counts is when the last request was sent that was answered.
2. While that is too long ago, nothing is written that must not be written by two: it waits until the next heartbeat has been
   answered, or until the partitions are taken away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, where the system has such a clock."""


def boot_time() -> float:
    """Seconds since the machine started."""
    return time.clock_gettime(CLOCK)


class Membership:
    """See the module. `limit` is in seconds, and shorter than the session timeout: what is being written needs a while to arrive."""

    def __init__(self, limit: float, now: Callable[[], float] = boot_time) -> None:
        self._limit = limit
        self._now = now
        self._heard = float("-inf")

    def is_sure(self) -> bool:
        """Tell whether no other worker can have our partitions. May be called from any thread."""
        return self._now() - self._heard <= self._limit

    def watch(self, coordinator: Any) -> None:
        """Learn it from the part of a client of Kafka that keeps it in its group, which tells it nowhere else."""
        beat, join = coordinator._do_heartbeat, coordinator._do_rejoin_group  # noqa: SLF001

        async def heartbeat() -> bool:
            sent = self._now()
            answered = bool(await beat())
            if answered:
                self._heard = sent
            return answered

        async def rejoin(subscription: Any) -> bool:
            joined = bool(await join(subscription))
            if joined:
                self._heard = self._now()
            return joined

        coordinator._do_heartbeat, coordinator._do_rejoin_group = heartbeat, rejoin  # noqa: SLF001
