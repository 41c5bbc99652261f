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
"""USD a session may cost, by project: some sessions come to their cap, and some do not."""
POLICY = "version: 1\nprojects:\n" + "".join(f"  {name}:\n    costCapPerSession: {cap}\n" for name, cap in CAPS.items())
WORKERS = 2
NOTHING = "nothing happened"
QUIET = 600.0
"""Seconds after which everything must be done."""
KILLS: tuple[Fault, ...] = (*[partial(kill, kind="worker")] * 4, *[partial(kill, kind=SERVER)] * 2)
OTHERS: tuple[Fault, ...] = (
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
    """What a run came to."""

    rounds: int
    seed: int
    happened: Counter[str]
    counted: dict[str, int]
    seconds: float


def faults(rounds: int, chance: random.Random) -> list[Fault]:
    """One fault a round: three kills for each fault of another kind, in an order drawn by chance."""
    drawn = [KILLS[number % len(KILLS)] if number % 4 else OTHERS[number // 4 % len(OTHERS)] for number in range(rounds)]
    chance.shuffle(drawn)
    return drawn


@contextmanager
def plant(folder: Path, chance: random.Random) -> Iterator[Plant]:
    """Everything that a run needs, started; nothing of it is left."""
    broker = Broker(folder / "kafka", options=quick())
    broker.start()
    try:
        with running(good_day(chance)) as judge, nursery() as children:
            settings = {"DRIFTLINE_KAFKA": broker.bootstrap, "DRIFTLINE_KAFKA_PREFIX": PREFIX}
            home = Home(folder, POLICY, ANTHROPIC_BASE_URL=judge.base_url, DRIFTLINE_JUDGE_DEADLINE="5", **settings)
            code, said = children.run(home, "topics", "create", "--partitions", str(PARTITIONS))
            assert code == 0, said
            yield Plant(children, home, broker, judge, free_port())
    finally:
        broker.kill()


def outages(seconds: float) -> list[Fault]:
    """The judge is away for so long in each way, one after the other; not at all for 0 seconds."""
    return [partial(judge_out, kind=kind, seconds=(seconds, seconds)) for kind in OUTAGES] if seconds else []


def run(folder: Path, rounds: int, seed: int, tell: Callable[[str], None] = lambda _: None, *, outage: float = 0.0) -> Outcome:
    """Do so many rounds and these outages of the judge, wait for quiet and check; AssertionError says what does not hold."""
    chance = random.Random(seed)
    started = time.monotonic()
    with plant(folder, chance) as made:
        happened, counted = asyncio.run(_run(made, faults(rounds, chance) + outages(outage), chance, tell))
    return Outcome(rounds, seed, happened, counted, time.monotonic() - started)


async def _run(
    made: Plant, drawn: list[Fault], chance: random.Random, tell: Callable[[str], None]
) -> tuple[Counter[str], dict[str, int]]:
    happened: Counter[str] = Counter()
    connection = KafkaConnection(made.broker.bootstrap, prefix=PREFIX)
    traffic = Traffic(made, chance)
    made.start(WORKERS)
    supervising = asyncio.create_task(_supervise(made))
    try:
        async with Sources(connection) as sources:
            for number, fault in enumerate(drawn, 1):
                said = await _round(made, traffic, fault, sources, chance)
                happened[said] += 1
                tell(f"round {number}: {said or NOTHING}; {len(traffic.accepted)} exchanges, {made.asked} calls")
            made.mood("answer")
            await _quiet(sources, tell)
    finally:
        supervising.cancel()
        await traffic.stop()
    made.stop()
    await _drain(made, connection)
    happened += Counter({f"a {kind} that ended by itself with {code}": count for (kind, code), count in made.codes.items()})
    return happened, await check(traffic, connection, CAPS)


async def _round(made: Plant, traffic: Traffic, fault: Fault, sources: Sources, chance: random.Random) -> str:
    """Traffic, and a fault at a point drawn by chance once the workers are at work; what happened."""
    done = await sources.committed()
    sending = asyncio.create_task(traffic.round())
    async with asyncio.timeout(QUIET):
        while await sources.committed() == done:  # noqa: ASYNC110 - other processes make the progress
            await asyncio.sleep(0.02)
    target = traffic.progress() + chance.randrange(1, 80)
    while not sending.done() and traffic.progress() < target:  # noqa: ASYNC110 - others make the progress
        await asyncio.sleep(0.005)
    await asyncio.sleep(chance.uniform(0, 0.5))
    said = await fault(made, chance)
    await sending
    return said


async def _supervise(made: Plant) -> None:
    """Start again what ended by itself, where there is a broker to start with."""
    while True:
        if made.broker.runs:
            made.supervise()
        await asyncio.sleep(0.2)


async def _quiet(sources: Sources, tell: Callable[[str], None]) -> None:
    """Wait until the workers have committed everything."""
    ends_at = time.monotonic() + QUIET
    while (left := await sources.behind()) > 0:
        assert time.monotonic() < ends_at, f"{left} records were not done within {QUIET:g} s"
        tell(f"waiting for {left} records")
        await asyncio.sleep(1)


async def _drain(made: Plant, connection: KafkaConnection) -> None:
    """Have a sink take in what the server's has not."""
    with Store(made.home.database) as store:
        sink = Sink(store, connection, Redactor(Policy().redaction), utc_now)
        await sink.start()
        try:
            async with asyncio.timeout(QUIET):
                await sink.caught_up()
        finally:
            await sink.stop()
