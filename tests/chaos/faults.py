"""The faults of a run: each is a coroutine that injects the fault, waits until it is over, and returns what happened."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable

from chaos.plant import Plant, exists, frozen, processes

Fault = Callable[[Plant, random.Random], Awaitable[str]]
SHORT = (0.3, 3.0)
"""Seconds of a freeze within the session timeout of the consumer group."""
LONG = (17.0, 20.0)
"""Seconds of a freeze beyond the session timeout."""
BRIEF_OUTAGE = (3.0, 6.0)
"""Seconds for which the judge fails every call within a round."""
ORPHAN_TIMEOUT = 300.0
"""Seconds within which a worker must exit after its supervisor is killed."""
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
"""Behaviors of the judge outside outages, drawn for each request."""


def good_day(rng: random.Random) -> str:
    """Return a script of random behaviors of the judge."""
    return ",".join(rng.choices(MOODS, k=4000)) + ",answer"


async def kill(plant: Plant, rng: random.Random, kind: str) -> str:
    """Kill a process and its supervisor."""
    child = rng.choice([child for name, child in plant.victims() if name == kind])
    for pid in processes(child):
        os.kill(pid, signal.SIGKILL)
    code = child.kill()
    assert code == -signal.SIGKILL, f"the {kind} had already exited with {code}"
    plant.replace(child)
    return f"kill -9 of a {kind}"


async def orphan(plant: Plant, rng: random.Random) -> str:
    """Kill the supervisor of a worker; the worker must exit, too."""
    child = rng.choice(plant.workers)
    pids = processes(child)
    child.kill()
    plant.replace(child)
    async with asyncio.timeout(ORPHAN_TIMEOUT):
        while any(map(exists, pids)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    return "kill -9 of a worker's supervisor"


async def freeze(plant: Plant, rng: random.Random, kind: str, seconds: tuple[float, float]) -> str:
    """Freeze a process for a while."""
    child = rng.choice([child for name, child in plant.victims() if name == kind])
    pids = processes(child)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(rng.uniform(*seconds))
    assert all(map(frozen, pids))
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return f"freeze of a {kind}" + (", longer than its session" if seconds is LONG else "")


async def stop_worker(plant: Plant, rng: random.Random) -> str:
    """Stop a worker with SIGTERM and start another, as in a rolling restart."""
    child = rng.choice(plant.workers)
    child.send(signal.SIGTERM)
    while not child.ended:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.01)
    plant.replace(child)
    return f"stop of a worker, exit code {child.wait()}"


async def restart_broker(plant: Plant, rng: random.Random) -> str:
    """Stop or kill the broker, and start it again."""
    killed = rng.random() < 0.5
    await asyncio.to_thread(plant.broker.kill if killed else plant.broker.stop)
    await asyncio.sleep(rng.uniform(0, 1))
    await asyncio.to_thread(plant.broker.start)
    return f"{'kill -9' if killed else 'stop'} of the broker, and its start"


async def freeze_broker(plant: Plant, rng: random.Random) -> str:
    """Freeze the broker with its connections open."""
    plant.broker.freeze()
    await asyncio.sleep(rng.uniform(0.5, 4))
    plant.broker.thaw()
    return "freeze of the broker"


async def judge_out(
    plant: Plant, rng: random.Random, kind: str | None = None, seconds: tuple[float, float] = BRIEF_OUTAGE
) -> str:
    """Let the judge fail every call for a while, in this way or a random one."""
    name = kind or rng.choice(list(OUTAGES))
    plant.mood(OUTAGES[name])
    earlier_requests = plant.judge.requests
    await asyncio.sleep(rng.uniform(*seconds))
    failed_requests = plant.judge.requests - earlier_requests
    plant.mood(good_day(rng))
    length = f"of {seconds[0]:g} s " if seconds is not BRIEF_OUTAGE else ""
    return f"outage {length}of the judge: {name}" if failed_requests else ""
