"""A run: rounds of traffic with a fault in each, a quiet period, and the verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chaos.faults import (
    LONG,
    OUTAGES,
    SHORT,
    Fault,
    freeze,
    freeze_broker,
    good_day,
    judge_out,
    kill,
    orphan,
    restart_broker,
    stop_worker,
)
from chaos.plant import PARTITIONS, PREFIX, SERVER, Plant
from chaos.records import Sources
from chaos.traffic import Traffic
from chaos.verdict import check
from support.kafka_brokers import Broker, quick
from support.processes import free_port
from support.servers import Home, nursery

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from driftline_trial.simulator import running
from service.setup.workspace import utc_now
from streams.kafka.connection import KafkaConnection
from streams.kafka.sink import Sink

CAPS = {"poor": 0.06, "rich": 0.6, "ops": 1.0}
"""Cost cap per session in USD, by project; only some sessions reach it."""
POLICY = "version: 1\nprojects:\n" + "".join(f"  {name}:\n    costCapPerSession: {cap}\n" for name, cap in CAPS.items())
WORKERS = 2
NOTHING = "nothing happened"
COMPLETION_TIMEOUT = 600.0
"""Seconds within which all work must be done."""
KILLS: tuple[Fault, ...] = (*[partial(kill, kind="worker")] * 4, *[partial(kill, kind=SERVER)] * 2)
OTHER_FAULTS: tuple[Fault, ...] = (
    judge_out,
    restart_broker,
    partial(freeze, kind="worker", seconds=SHORT),
    partial(freeze, kind="worker", seconds=LONG),
    partial(freeze, kind=SERVER, seconds=SHORT),
    freeze_broker,
    stop_worker,
    orphan,
)


@dataclass
class Outcome:
    """The faults and the final counts of a run."""

    rounds: int
    seed: int
    happened: Counter[str]
    counted: dict[str, int]
    seconds: float


def faults(rounds: int, rng: random.Random) -> list[Fault]:
    """Return one fault per round in random order: three kills for each fault of another kind."""
    shuffled = [
        KILLS[number % len(KILLS)] if number % 4 else OTHER_FAULTS[number // 4 % len(OTHER_FAULTS)] for number in range(rounds)
    ]
    rng.shuffle(shuffled)
    return shuffled


@contextmanager
def plant(folder: Path, rng: random.Random) -> Iterator[Plant]:
    """Start the broker and the judge of a run, and stop all processes at the end."""
    broker = Broker(folder / "kafka", options=quick())
    broker.start()
    try:
        with running(good_day(rng)) as judge, nursery() as children:
            settings = {"DRIFTLINE_KAFKA": broker.bootstrap, "DRIFTLINE_KAFKA_PREFIX": PREFIX}
            home = Home(folder, POLICY, ANTHROPIC_BASE_URL=judge.base_url, DRIFTLINE_JUDGE_DEADLINE="5", **settings)
            code, output = children.run(home, "topics", "create", "--partitions", str(PARTITIONS))
            assert code == 0, output
            yield Plant(children, home, broker, judge, free_port())
    finally:
        broker.kill()


def outages(seconds: float) -> list[Fault]:
    """Return an outage of this length for each way in which the judge fails; none for 0 seconds."""
    return [partial(judge_out, kind=kind, seconds=(seconds, seconds)) for kind in OUTAGES] if seconds else []


def run(folder: Path, rounds: int, seed: int, tell: Callable[[str], None] = lambda _: None, *, outage: float = 0.0) -> Outcome:
    """Run the rounds and the outages of the judge, wait until all work is done, and check; raise AssertionError on a violation."""
    rng = random.Random(seed)
    started = time.monotonic()
    with plant(folder, rng) as running_plant:
        happened, counted = asyncio.run(_run(running_plant, faults(rounds, rng) + outages(outage), rng, tell))
    return Outcome(rounds, seed, happened, counted, time.monotonic() - started)


async def _run(
    plant: Plant, faults: list[Fault], rng: random.Random, tell: Callable[[str], None]
) -> tuple[Counter[str], dict[str, int]]:
    happened: Counter[str] = Counter()
    connection = KafkaConnection(plant.broker.bootstrap, prefix=PREFIX)
    traffic = Traffic(plant, rng)
    plant.start(WORKERS)
    supervising = asyncio.create_task(_supervise(plant))
    try:
        async with Sources(connection) as sources:
            for number, fault in enumerate(faults, 1):
                fault_name = await _run_round(plant, traffic, fault, sources, rng)
                happened[fault_name] += 1
                tell(f"round {number}: {fault_name or NOTHING}; {len(traffic.accepted)} exchanges, {plant.judge_calls} calls")
            plant.mood("answer")
            await _wait_until_done(sources, tell)
    finally:
        supervising.cancel()
        await traffic.stop()
    plant.stop()
    await _flush_remaining(plant, connection)
    happened += Counter({f"a {kind} that ended by itself with {code}": count for (kind, code), count in plant.codes.items()})
    return happened, await check(traffic, connection, CAPS)


async def _run_round(plant: Plant, traffic: Traffic, fault: Fault, sources: Sources, rng: random.Random) -> str:
    """Send traffic, inject the fault at a random time while the workers are busy, and return its name."""
    committed = await sources.committed()
    sending = asyncio.create_task(traffic.round())
    async with asyncio.timeout(COMPLETION_TIMEOUT):
        while await sources.committed() == committed:  # noqa: ASYNC110 - other processes make the progress
            await asyncio.sleep(0.02)
    target = traffic.progress() + rng.randrange(1, 80)
    while not sending.done() and traffic.progress() < target:  # noqa: ASYNC110 - others make the progress
        await asyncio.sleep(0.005)
    await asyncio.sleep(rng.uniform(0, 0.5))
    fault_name = await fault(plant, rng)
    await sending
    return fault_name


async def _supervise(plant: Plant) -> None:
    """Restart processes that exited by themselves, while the broker is running."""
    while True:
        if plant.broker.runs:
            plant.supervise()
        await asyncio.sleep(0.2)


async def _wait_until_done(sources: Sources, tell: Callable[[str], None]) -> None:
    """Wait until the workers have committed everything."""
    ends_at = time.monotonic() + COMPLETION_TIMEOUT
    pending = await sources.behind()
    while pending > 0:
        assert time.monotonic() < ends_at, f"{pending} records were not done within {COMPLETION_TIMEOUT:g} s"
        tell(f"waiting for {pending} records")
        await asyncio.sleep(1)
        pending = await sources.behind()


async def _flush_remaining(plant: Plant, connection: KafkaConnection) -> None:
    """Store the records that the server's sink has not stored."""
    with Store(plant.home.database) as store:
        sink = Sink(store, connection, Redactor(Policy().redaction), utc_now)
        await sink.start()
        try:
            async with asyncio.timeout(COMPLETION_TIMEOUT):
                await sink.caught_up()
        finally:
            await sink.stop()
