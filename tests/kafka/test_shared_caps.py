"""Caps that sessions share, over several workers: no cap is exceeded, whichever worker is killed, and nothing of it is left over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.clocks import NOW, TickingClock
from support.engines import MoodyJudge, policy_of
from support.kafka_judging import (
    PATIENCE,
    TOPICS,
    Mortal,
    Process,
    ScoringRig,
    SoundJudge,
    answer,
    came,
    dialogue,
    scoring_on,
    tasks_of,
)

from audit.cost import nano_of
from audit.policy import CostCaps, Policy
from audit.spending import NO_LIMITS, Reserved, Settled
from schemas.records import Exchange
from streams.judging.shared_caps import SharedCaps
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer
from streams.kafka.spending_topic import SpendingTopic
from streams.kafka.topics import SPENDING

CAP = 0.06
WORKERS = 3
PROJECT = policy_of(sampling={"enabled": False}, cost_cap_per_session=None, cost_caps=CostCaps(day=CAP))
INSTALLATION = policy_of(sampling={"enabled": False}, cost_cap_per_session=None).model_copy(
    update={"cost_caps": CostCaps(month=CAP)}
)


@pytest.fixture(autouse=True)
def topics(make_topics: Any) -> None:
    """Create the topics of a test."""
    configs = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "16777216"}
    make_topics(*TOPICS, partitions=WORKERS, configs=configs)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine with a generous time limit."""
    asyncio.run(asyncio.wait_for(work, 2 * PATIENCE))


def sessions(count: int) -> list[Exchange]:
    """Return the exchanges of many sessions, three in each."""
    return [exchange for number in range(count) for exchange in dialogue(f"s{number}", 3)]


class Worker:
    """A process with its own view of the topic of spending."""

    def __init__(self, rig: ScoringRig, judge: Any, mortal: Mortal) -> None:
        self.spending = SpendingTopic(rig.kafka, mortal, rig.clock, reads=True)
        self.process: Process = rig.process(judge, mortal, shared_caps=SharedCaps(rig.policy, self.spending))

    async def work(self, partition: int) -> None:
        """Begin with a partition."""
        await self.spending.__aenter__()
        await self.process.work(partition)

    async def kill(self) -> None:
        """End as after kill -9."""
        await self.process.kill()
        await self.spending.__aexit__()

    async def stop(self) -> None:
        """Stop gracefully."""
        await self.process.stop()
        await self.spending.__aexit__()


@pytest.mark.parametrize(("policy", "cap"), [(PROJECT, "project_day_cap"), (INSTALLATION, "installation_month_cap")])
def test_three_workers_that_are_killed_exceed_no_shared_cap(kafka: KafkaConnection, policy: Policy, cap: str) -> None:
    """Each worker has a partition and is killed before or after any record; its successor continues under the same cap."""

    async def work() -> None:
        exchanges, chance = sessions(30), random.Random(3)
        async with scoring_on(kafka, policy, WORKERS) as rig:
            await rig.publish(tasks_of(policy, exchanges))
            assert len(rig.records) == WORKERS
            deaths = 0

            async def judge_partition(number: int) -> None:
                nonlocal deaths

                def is_done() -> bool:
                    return bool(rig.committed[number] > rig.records[number][-1].offset)

                while not is_done():
                    dies_at = chance.randrange(3, 40) if deaths < 12 else None
                    mortal = Mortal(rig.producer, dies_at, having_sent=chance.random() < 0.5)
                    worker = Worker(rig, MoodyJudge(number, answer), mortal)
                    await worker.work(number)
                    await came(lambda mortal=mortal: mortal.dead.is_set() or is_done(), "a death or the end")
                    deaths += mortal.dead.is_set()
                    await worker.kill()

            await asyncio.gather(*(judge_partition(number) for number in range(WORKERS)))
            judgements, _ = await rig.calls()
            spent = sum(nano_of(judgement.cost_usd or 0) for judgement in judgements)
            assert deaths >= 6
            assert spent <= nano_of(CAP)
            assert cap in {judgement.outcome for judgement in judgements}
            await rig.check(exchanges)

    run(work())


def test_workers_use_a_shared_cap_up(kafka: KafkaConnection) -> None:
    """No part of a cap belongs to a worker or a partition, so nothing of it is stranded."""

    async def work() -> None:
        exchanges = sessions(60)
        async with scoring_on(kafka, PROJECT, WORKERS) as rig:
            await rig.publish(tasks_of(PROJECT, exchanges))
            workers = [Worker(rig, SoundJudge(answer), Mortal(rig.producer)) for _ in range(WORKERS)]
            await asyncio.gather(*(worker.work(number) for number, worker in enumerate(workers)))
            await came(lambda: bool(rig.failures) or rig.is_done(), "every task to be done")
            await asyncio.gather(*(worker.stop() for worker in workers))
            judgements, reservations = await rig.calls()
            spent = sum(nano_of(judgement.cost_usd or 0) for judgement in judgements)
            worst = max(nano_of(reservation.amount_usd or 0) for reservation in reservations)
            assert nano_of(CAP) - worst < spent <= nano_of(CAP)
            await rig.check(exchanges)

    run(work())


def test_every_reader_of_the_topic_decides_alike(kafka: KafkaConnection) -> None:
    """Reservations race for the last room: exactly as many count as fit, by the caps that they name, also for a later reader."""

    async def work() -> None:
        producer = RecordProducer(kafka)
        limits = (100, None, None, None)
        try:
            async with AsyncExitStack() as stack:
                readers = [
                    await stack.enter_async_context(SpendingTopic(kafka, producer, TickingClock(), reads=True))
                    for _ in range(3)
                ]
                entries = [Reserved(str(number), "p", NOW, 10, limits) for number in range(30)]
                caps = await asyncio.gather(*(readers[index % 3].reserve(entry) for index, entry in enumerate(entries)))
                assert caps.count(None) == 10
                assert set(caps) == {None, "project_day_cap"}
                (settled, *_) = (entry for entry, cap in zip(entries, caps, strict=True) if cap is None)
                await readers[0].settle(Settled((settled.reservation_id,), 5))
                assert await readers[0].reserve(Reserved("small", "p", NOW, 5, limits)) is None
                await producer.send(SPENDING, [(b"x", b"not an entry")], partition=0)
                later = await stack.enter_async_context(SpendingTopic(kafka, producer, TickingClock(), reads=True))
                assert await later.reserve(Reserved("late", "p", NOW, 1, limits)) == "project_day_cap"
                assert await later.reserve(Reserved("other", "q", NOW, 1, limits)) is None
                assert later.spending(NOW).used_on("p", NOW) == 100
                assert await later.reserve(Reserved("free", "p", NOW, 1_000, NO_LIMITS)) is None
        finally:
            await producer.stop()

    run(work())
