"""The faults of a run: each does its harm, waits as long as it lasts, and says what really happened."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable

from chaos.plant import Plant, frozen, processes, there

Fault = Callable[[Plant, random.Random], Awaitable[str]]
SHORT, LONG = (0.3, 3.0), (17.0, 20.0)
"""Seconds that a process stands still: unnoticed by its group, and until the group has given it up."""
BRIEF_OUTAGE = (3.0, 6.0)
"""Seconds that the judge fails every call, in a round among others."""
ORPHANED = 300.0
"""Seconds within which a worker ends that nobody looks after any more."""
OUTAGES = {
    "rate limited": "rate_limited:1*1000000",
    "overloaded": "overloaded*1000000",
    "hangs": "hang*1000000",
    "answers garbage": "garbage*1000000",
    "resets": "reset*1000000",
}
MOODS = (
    *["answer"] * 12,
    *["slow:0.15"] * 4,
    *["thinking_first", "garbage", "out_of_range", "refusal", "cut_off", "no_usage", "reset", "truncated_json", "html"],
    *["wrong_shape", "no_text", "error500", "overloaded", "rate_limited:0.2", "ignores_structured"],
)
"""What the judge does on a good day, drawn for each request."""


def good_day(chance: random.Random) -> str:
    """A judge of many moods."""
    return ",".join(chance.choices(MOODS, k=4000)) + ",answer"


async def kill(plant: Plant, chance: random.Random, kind: str) -> str:
    """End a process at once, and the one that looks after it."""
    child = chance.choice([child for name, child in plant.victims() if name == kind])
    for pid in processes(child):
        os.kill(pid, signal.SIGKILL)
    code = child.kill()
    assert code == -signal.SIGKILL, f"the {kind} had ended before, with {code}"
    plant.replace(child)
    return f"kill -9 of a {kind}"


async def orphan(plant: Plant, chance: random.Random) -> str:
    """End at once the process that looks after a worker; the worker is to end, too."""
    child = chance.choice(plant.workers)
    pids = processes(child)
    child.kill()
    plant.replace(child)
    async with asyncio.timeout(ORPHANED):
        while any(map(there, pids)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    return "kill -9 of a worker's supervisor"


async def freeze(plant: Plant, chance: random.Random, kind: str, seconds: tuple[float, float]) -> str:
    """Have a process stand still for a while."""
    child = chance.choice([child for name, child in plant.victims() if name == kind])
    pids = processes(child)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(*seconds))
    assert all(map(frozen, pids))
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return f"freeze of a {kind}" + (", longer than its session" if seconds is LONG else "")


async def stop_worker(plant: Plant, chance: random.Random) -> str:
    """A rolling restart."""
    child = chance.choice(plant.workers)
    child.send(signal.SIGTERM)
    while not child.ended:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.01)
    plant.replace(child)
    return f"stop of a worker, exit code {child.wait()}"


async def restart_broker(plant: Plant, chance: random.Random) -> str:
    """The broker goes, as an operator or a loss of power has it go, and comes back."""
    killed = chance.random() < 0.5
    await asyncio.to_thread(plant.broker.kill if killed else plant.broker.stop)
    await asyncio.sleep(chance.uniform(0, 1))
    await asyncio.to_thread(plant.broker.start)
    return f"{'kill -9' if killed else 'stop'} of the broker, and its start"


async def freeze_broker(plant: Plant, chance: random.Random) -> str:
    """The broker stands still with its connections open."""
    plant.broker.freeze()
    await asyncio.sleep(chance.uniform(0.5, 4))
    plant.broker.thaw()
    return "freeze of the broker"


async def judge_out(
    plant: Plant, chance: random.Random, kind: str | None = None, seconds: tuple[float, float] = BRIEF_OUTAGE
) -> str:
    """The judge fails every call for a while, in this way or in one drawn by chance."""
    name = kind or chance.choice(list(OUTAGES))
    plant.mood(OUTAGES[name])
    before = plant.judge.requests
    await asyncio.sleep(chance.uniform(*seconds))
    met = plant.judge.requests - before
    plant.mood(good_day(chance))
    length = f"of {seconds[0]:g} s " if seconds is not BRIEF_OUTAGE else ""
    return f"outage {length}of the judge: {name}" if met else ""
