"""Simulated histories: every law holds in each, a seed is one history, and mistakes that somebody could make are found."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from simulation import plants
from simulation.history import EMBEDDED, KAFKA, WORLDS, History, Step, draw
from simulation.loop import KilledError, SimulatedLoop, StuckError
from simulation.running import Plant, find, live
from simulation.shrinking import as_test, shrink
from support.effort import times

TESTS = Path(__file__).parents[1]
HISTORIES: Mapping[str, int] = {EMBEDDED: times(150, soak=10_000), KAFKA: times(50, soak=3_000)}
WITHIN = 500
"""Seeds within which a planted fault has to be found."""
PLANTS: Mapping[str, tuple[str, Plant]] = {
    "an answer before the sync": (EMBEDDED, plants.answer_before_sync),
    "a lost state of a commit": (EMBEDDED, plants.lose_state_of_commit),
    "a double charge after a rebalance": (KAFKA, plants.charge_twice_after_rebalance),
}


@pytest.mark.parametrize(("world", "seed"), [(world, seed) for world, count in HISTORIES.items() for seed in range(count)])
def test_whatever_goes_wrong_every_law_holds(world: str, seed: int) -> None:
    """Kills at any moment, full disks, partitions that move, a judge in every mood: nothing is lost, doubled or paid for twice."""
    assert live(draw(world, seed)).broken is None


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_is_one_history(world: str) -> None:
    """A failure that cannot be repeated cannot be understood."""
    assert live(draw(world, 1)).trace == live(draw(world, 1)).trace
    assert live(draw(world, 1)).trace != live(draw(world, 2)).trace


def test_a_seed_is_the_same_history_in_another_process() -> None:
    """Byte for byte: neither the hashes of a process nor its threads and clocks are in it."""

    def trace(hash_seed: str) -> bytes:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"}
        command = [sys.executable, "-m", "simulation", "--seeds", "5", "--trace"]
        return subprocess.run(command, env=environment, check=True, capture_output=True).stdout

    assert trace("1") == trace("2")


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    """What finds nothing proves nothing. Without the fault the same histories keep every law."""
    world, plant = PLANTS[name]
    found = find(world, range(WITHIN), plant)
    assert found is not None
    history, outcome = found
    assert outcome.broken is not None
    assert find(world, range(history.seed + 1)) is None


def test_a_failure_is_shrunk_to_a_test() -> None:
    """A handful of steps can be understood, and the test that comes of them fails as long as the fault is there."""
    found = find(EMBEDDED, range(WITHIN), plants.answer_before_sync)
    assert found is not None
    history, outcome = found
    assert outcome.broken is not None
    law = outcome.broken.law

    def fails(candidate: History) -> bool:
        broken = live(candidate, plants.answer_before_sync).broken
        return broken is not None and broken.law == law

    shrunk = shrink(history, fails)
    assert len(shrunk.steps) + len(shrunk.faults) <= min(6, len(history.steps) + len(history.faults) - 1)
    names: dict[str, object] = {}
    exec(f"from simulation.history import *\nfrom simulation.running import live\n{as_test(shrunk, law)}", names)  # noqa: S102 - a test made here
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    assert callable(test)
    test()
    with plants.answer_before_sync(), pytest.raises(AssertionError):
        test()


def test_shrinking_keeps_what_is_needed() -> None:
    """Any two of ten steps may be the cause."""
    steps = tuple(Step(sender=0, does="exchanges", session="a", first=number, count=3, pause=0.4) for number in range(10))

    def fails(history: History) -> bool:
        return {2, 7} <= {step.first for step in history.steps}

    shrunk = shrink(History(EMBEDDED, 0, steps=steps), fails)
    assert shrunk.steps == (Step(0, "exchanges", "a", 2), Step(0, "exchanges", "a", 7))


def loop_of(seed: int) -> SimulatedLoop:
    """A loop whose time begins at 0."""
    return SimulatedLoop(random.Random(seed), 0.0, lambda: None)


def test_time_passes_without_waiting() -> None:
    """A call that hangs for an hour costs a history nothing."""

    async def work() -> tuple[float, int]:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(10))
        return asyncio.get_running_loop().time(), await asyncio.to_thread(int, "7")

    loop = loop_of(1)
    assert loop.run_until_complete(work()) == (3600.0, 7)
    loop.abandon()


def test_what_can_never_go_on_is_told() -> None:
    """A deadlock is a failure like any other, and no test that hangs."""
    loop = loop_of(1)
    with pytest.raises(StuckError):
        loop.run_until_complete(asyncio.Event().wait())
    loop.abandon()


def test_nothing_runs_after_a_kill() -> None:
    """What was ready beside it does not run any more, and no handler of an error does."""
    ran = []

    def kill() -> None:
        raise KilledError

    async def end() -> None:
        try:
            kill()
        except Exception:  # noqa: BLE001 - as the product has it
            ran.append("handler")

    async def work() -> None:
        await asyncio.gather(end(), asyncio.to_thread(ran.append, "thread"), asyncio.sleep(0))
        ran.append("after")

    loop = loop_of(1)
    with pytest.raises(KilledError):
        loop.run_until_complete(work())
    loop.abandon()
    assert ran == []
