"""Running histories: by seed or written down, with or without a fault that was planted."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import NamedTuple

from simulation.disk import SimulatedStore
from simulation.embedded import EmbeddedWorld
from simulation.history import EMBEDDED, History, draw
from simulation.kafka import KafkaWorld
from simulation.world import LawBrokenError

Plant = Callable[[], AbstractContextManager[None]]
"""Plants a fault in the product for as long as the context lasts."""


class Outcome(NamedTuple):
    """What came of a history."""

    broken: LawBrokenError | None
    """The law that did not hold."""
    trace: list[str]


@cache
def _store() -> SimulatedStore:
    return SimulatedStore()


@atexit.register
def _close() -> None:
    if _store.cache_info().currsize:
        _store().close()
        _store.cache_clear()


def live(history: History, plant: Plant = contextlib.nullcontext) -> Outcome:
    """Live through a history."""
    world = (EmbeddedWorld if history.world == EMBEDDED else KafkaWorld)(history, _store())
    with plant():
        return Outcome(world.run(), world.trace)


def find(world: str, seeds: Iterable[int], plant: Plant = contextlib.nullcontext) -> tuple[History, Outcome] | None:
    """The first history that breaks a law; None where all hold."""
    for seed in seeds:
        history = draw(world, seed)
        outcome = live(history, plant)
        if outcome.broken is not None:
            return history, outcome
    return None
