"""A judged stage on Kafka: with a judge each partition is worked on by itself; without one the stage's step computes what comes of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.records import Judgement
from streams.engine.stage_runs import StageRuns
from streams.engine.turns import Turns
from streams.judges.protocol import Judge
from streams.judging.judge_calls import JudgeCalls
from streams.judging.judged_stages import JudgedStage
from streams.judging.recorded_judgements import Subject
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import Sender
from streams.kafka.state.state_topic import StateTopic
from streams.kafka.worker.judging_partition import CHUNK_TASKS, JudgingContext, JudgingPartition
from streams.kafka.worker.partition_queues import end_process
from streams.kafka.worker.processing import Chunk
from streams.kafka.worker.stage_processor import RELEASE_SECONDS, StageProcessor
from streams.kafka.worker.watchdog import Pulse
from streams.topology import Stage, keeping_calls


def with_judge(stage: Stage) -> Stage:
    """A judged stage whose judge is asked: in small chunks, because the offset waits for all of a chunk."""
    return dataclasses.replace(stage, records_at_once=CHUNK_TASKS)


class JudgingProcessor:
    """See the module; a `streams.kafka.worker.processing.Processor`. `judge` None: what wants one stays unjudged.

    Whoever opened the judge closes it, and `states`, after `stop`. `turns` bounds what is judged at once; processors that ask the same judge
    share it. `calls` takes note of what the judge says. `is_sure` tells
    whether no other worker can have our partitions; `fail` is called with errors that this process cannot mend.
    """

    def __init__(
        self,
        stage: JudgedStage[Any],
        connection: KafkaConnection,
        policy: Policy,
        judge: Judge | None,
        *,
        calls: JudgeCalls,
        redactor: Redactor,
        now: Callable[[], datetime],
        producer: Sender,
        states: StateTopic,
        pulse: Pulse,
        is_sure: Callable[[], bool],
        turns: Turns | None = None,
        fail: Callable[[BaseException], None] = end_process,
    ) -> None:
        self._context = JudgingContext(
            stage=stage,
            connection=connection,
            policy=policy,
            judge=judge,
            redactor=redactor,
            now=now,
            producer=producer,
            states=states,
            lease=pulse.check,
            is_sure=is_sure,
            fail=fail,
            calls=calls,
            turns=turns or Turns(),
        )
        unjudged = keeping_calls(stage)
        runs = StageRuns(policy, self._recorded, redactor, now, [unjudged])
        self._unjudged = StageProcessor(
            unjudged, runs, redactor=redactor, now=now, producer=producer, states=states, pulse=pulse
        )
        self._held: frozenset[int] = frozenset()
        self._partitions: dict[int, JudgingPartition] = {}

    async def assigned(self, partitions: frozenset[int]) -> None:
        """Take note; a partition is taken up with its first chunk."""
        await self._end(self._let_go(partitions), 0)
        self._held |= partitions
        await self._unjudged.assigned(partitions)

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Work on a chunk; with a judge this returns when there is room for the partition's next one.

        Of a partition that is not ours nothing is taken.
        """
        if chunk.partition not in self._held:
            return
        partition = self._partitions.get(chunk.partition)
        if partition is None:
            partition = self._partitions[chunk.partition] = JudgingPartition(chunk.partition, self._context)
        if self._context.judge is not None:
            await partition.take(chunk, done)
        elif await partition.take_up(chunk.records[0].timestamp):
            await self._unjudged.take(chunk, done)

    async def revoked(self, partitions: frozenset[int]) -> None:
        """Let calls under way there be recorded for a while, and give up the rest: who gets the partitions charges it in full."""
        self._held -= partitions
        ending = [self._partitions[number] for number in partitions & self._partitions.keys()]
        await asyncio.gather(self._end(ending, RELEASE_SECONDS), self._unjudged.revoked(partitions))
        # Not before: a chunk that is finished there meanwhile is judged from the calls that were read back.
        self._let_go(partitions)

    async def stop(self, grace: float) -> None:
        """Make no more calls, let those under way be recorded, for `grace` seconds at most, and give up the rest."""
        await asyncio.gather(self._end(list(self._partitions.values()), grace), self._unjudged.stop(grace))

    def _let_go(self, partitions: frozenset[int]) -> list[JudgingPartition]:
        self._held -= partitions
        return [self._partitions.pop(number) for number in partitions & self._partitions.keys()]

    async def _end(self, partitions: Sequence[JudgingPartition], grace: float) -> None:
        await asyncio.gather(*(one.end(grace) for one in partitions))

    def _recorded(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        found: dict[Subject, Sequence[Judgement]] = {}
        for partition in list(self._partitions.values()):
            found |= partition.calls.of_all(subjects)
        return found
