"""What every simulated world has: chance, a clock, faults that strike at their point, a trace, and laws that end the history."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

from simulation.history import Fault, History
from simulation.loop import KilledError, SimulatedLoop
from support.engines import policy_of

START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
POLICIES = (
    policy_of(sampling={"enabled": False}, cost_cap_per_session=0.06),
    policy_of(sampling={"always_score_first": 2, "always_score_last": 2, "routine_interval": 2}),
    policy_of(sampling={"enabled": False}, cost_cap_per_session=0.02),
)
"""Everything is judged, under a cap; some of it is, without one; everything, under a cap that leaves room for little."""


class LawBrokenError(KilledError):
    """A law does not hold: the history ends here."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law = law


class World:
    """See the module."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.policy = POLICIES[history.policy]
        self.chance = random.Random(f"world {history.seed}")
        self.time = 0.0
        """Virtual seconds, as far as no loop runs."""
        self.trace: list[str] = []
        self.is_running = True
        """False while what a killed process left is cleared away: nothing of it reaches the world."""
        self._loop: SimulatedLoop | None = None
        self._faults = {(fault.point, fault.n): fault for fault in history.faults}
        self._passed: Counter[str] = Counter()
        self._clock_error = timedelta()
        self._readings = 0

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now():.6f} {text}")

    def now(self) -> float:
        """Virtual seconds."""
        return self.time if self._loop is None else self._loop.time()

    def read_clock(self) -> datetime:
        """What the clock on the wall says: it may jump, and says nothing twice."""
        self._readings += 1
        return START + timedelta(seconds=round(self.now(), 3), microseconds=self._readings) + self._clock_error

    def jump(self, seconds: float) -> None:
        """Set the clock on the wall to another time."""
        self._clock_error += timedelta(seconds=seconds)
        self.note(f"the clock jumps by {seconds} s")

    def pass_point(self, point: str) -> Fault | None:
        """Note that a point is passed; answers what goes wrong there this time."""
        self._passed[point] += 1
        fault = self._faults.get((point, self._passed[point]))
        if fault is not None:
            self.note(f"{point} {fault.n}: {fault.what}")
        return fault

    def reach(self) -> None:
        """Note that a process reaches out of itself: one that was killed does not."""
        if not self.is_running:
            raise KilledError

    def kill(self) -> None:
        """End the process that runs at this moment."""
        raise KilledError

    def require(self, holds: bool, law: str, detail: str) -> None:
        """End the history where a law does not hold."""
        if not holds:
            self.note(f"broken: {law}: {detail}")
            raise LawBrokenError(law, detail)
