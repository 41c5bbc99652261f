"""Progress of a reader of partitions, against the end of the topics when it was last asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from analytics.store.transaction import Partition


class Progress:
    """Positions that are done with, and the ends of the partitions. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.reached = asyncio.Event()
        """Set when everything is done that was there at the start."""
        self.positions: dict[Partition, int] = {}
        self._clock = clock
        self._ends: dict[Partition, int] = {}
        self._target: dict[Partition, int] = {}
        self._target_at = 0.0
        self._reached_at: float | None = None

    def begin(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """Reading begins at these positions, while the partitions have these ends."""
        self.positions = dict(positions)
        self._ends = {one: max(end, self._ends.get(one, 0)) for one, end in ends.items()}
        self._aim()
        self.move({})

    def expect(self, ends: Mapping[Partition, int]) -> None:
        """Count the records that we produced up to these ends as still to be done, also while earlier ones are waited for."""
        for partition, end in ends.items():
            self._ends[partition] = max(end, self._ends.get(partition, 0))
            if self._target:
                self._target[partition] = max(end, self._target.get(partition, 0))

    def saw(self, ends: Mapping[Partition, int]) -> None:
        """The partitions have these ends now."""
        self._ends.update(ends)
        if not self._target:
            self._aim()
            self.move({})

    def move(self, positions: Mapping[Partition, int]) -> None:
        """Everything before these positions is done."""
        self.positions.update(positions)
        if self._target_at and not self.behind(self._target):
            self._reached_at, self._target = self._target_at, {}
            self.reached.set()

    def behind(self, ends: Mapping[Partition, int] | None = None) -> list[Partition]:
        """The partitions whose end is not reached."""
        return [one for one, end in (self._ends if ends is None else ends).items() if self.positions.get(one, 0) < end]

    @property
    def lag(self) -> int:
        """Records that had come when it was last asked, and are not done."""
        return sum(max(0, end - self.positions.get(partition, 0)) for partition, end in self._ends.items())

    @property
    def delay(self) -> float:
        """Seconds: what came earlier than so long ago is done. Infinite until the start's ends are reached."""
        return float("inf") if self._reached_at is None else self._clock() - self._reached_at

    def _aim(self) -> None:
        self._target, self._target_at = dict(self._ends), self._clock()
