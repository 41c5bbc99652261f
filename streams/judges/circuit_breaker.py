"""A circuit breaker for each model: one whose answers cannot be read is left alone for a while, because each of them is paid for.

1. Questions count, not calls: an answer that a turn of repair mends, or the schema in the prompt, is what the ladder of formats is
   for. `MAX_UNREADABLE` questions in a row that end without a readable answer open the circuit.
2. While it is open, nobody asks that model: questions wait, and cost nothing. Questions that are being asked make no further call.
3. When the pause is over, one question is asked. A readable answer closes the circuit for all; one that cannot be read begins the
   next pause, twice as long, at most `MAX_PAUSE_SECONDS`.
4. Refusals, cut-off answers, errors and time-outs change nothing: they say nothing of whether the model's answers can be read.

Its state is this process's: after a restart, and in each worker on Kafka, the count begins at 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from streams.judges.rate_limits import MAX_PAUSE_SECONDS, Waiting

MAX_UNREADABLE = 5
"""Questions in a row. A model that loses one question in five would be left alone, without need, once in 3,000 questions."""
FIRST_PAUSE_SECONDS = 60.0
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Circuit:
    unreadable: int = 0
    """Questions in a row."""
    pause: float = FIRST_PAUSE_SECONDS
    """Seconds of the next pause."""
    resumes_at: float = 0.0
    probe: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Its holder is the one that asks when the pause is over."""

    @property
    def is_closed(self) -> bool:
        return self.unreadable < MAX_UNREADABLE


class CircuitBreaker:
    """See the module. Belongs to one event loop."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._circuits: dict[str, _Circuit] = defaultdict(_Circuit)

    def is_paused(self, model: str) -> bool:
        """Tell whether no call may be made to the model now."""
        circuit = self._circuits[model]
        return not circuit.is_closed and self._waiting.now() < circuit.resumes_at

    def may_ask(self, model: str, *, is_probe: bool) -> bool:
        """Tell whether a question that was admitted, and has waited for other things since, may be asked."""
        return is_probe or self._circuits[model].is_closed

    @asynccontextmanager
    async def admitted(self, model: str) -> AsyncGenerator[bool]:
        """Wait until a question may be asked; true for the one question whose answer decides for all who wait."""
        circuit = self._circuits[model]
        if not circuit.is_closed:
            async with circuit.probe:
                while not circuit.is_closed and (pause := circuit.resumes_at - self._waiting.now()) > 0:
                    await self._waiting.sleep(pause)
                if not circuit.is_closed:
                    yield True
                    return
        yield False

    def note_readable(self, model: str) -> None:
        """A question was answered."""
        circuit = self._circuits[model]
        if not circuit.is_closed:
            _LOG.warning("the answers of %s can be read again", model)
        circuit.unreadable, circuit.pause = 0, FIRST_PAUSE_SECONDS

    def note_unreadable(self, model: str) -> None:
        """A question ended with an answer that cannot be read."""
        circuit = self._circuits[model]
        circuit.unreadable += 1
        # Questions that were under way when the pause began hear the same, and do not make it longer.
        if circuit.is_closed or self.is_paused(model):
            return
        circuit.resumes_at = self._waiting.now() + circuit.pause
        _LOG.error(
            "%d answers of %s in a row cannot be read: it is asked again in %g s, and what is to be judged waits",
            circuit.unreadable,
            model,
            circuit.pause,
        )
        circuit.pause = min(circuit.pause * 2, MAX_PAUSE_SECONDS)
