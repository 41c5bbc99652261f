"""A judged stage on Kafka: with a judge each partition is worked on by itself; without one the stage's step computes what comes of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from schemas.records import Judgement
from streams.engine.stage_runs import StageRuns
from streams.judging.recorded_judgements import Subject
from streams.kafka.reading import Chunk
from streams.kafka.worker.kafka_tasks import CHUNK_TASKS, KafkaJudging, KafkaTasks
from streams.kafka.worker.stage_processor import StageProcessor
from streams.topology import Stage, keeping_calls


def with_judge(stage: Stage) -> Stage:
    """A judged stage whose judge is asked: in small chunks, because the offset waits for all of a chunk."""
    return dataclasses.replace(stage, records_at_once=CHUNK_TASKS)


class JudgingProcessor:
    """See the module; a `streams.kafka.worker.processing.Processor`.

    Whoever opened the context's judge and states closes them after `stop`. Processors that ask the same judge share its `turns`.
    """

    def __init__(self, context: KafkaJudging) -> None:
        self._context = context
        unjudged = keeping_calls(context.stage)
        self._unjudged = StageProcessor(
            unjudged,
            StageRuns(context.policy, self._recorded, context.redactor, context.now, [unjudged]),
            redactor=context.redactor,
            now=context.now,
            producer=context.producer,
            states=context.states,
            pulse=context.pulse,
        )
        self._partitions: dict[int, KafkaTasks] = {}

    async def assigned(self, partitions: frozenset[int]) -> None:
        """Take note; a partition is taken up with its first chunk."""
        await self.end(partitions, 0)
        self.revoked(partitions)

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Work on a chunk; with a judge this returns when there is room for the partition's next one."""
        partition = self._partitions.get(chunk.partition)
        if partition is None:
            partition = self._partitions[chunk.partition] = KafkaTasks(chunk.partition, self._context)
        if self._context.judge is not None:
            await partition.take(chunk, done)
        elif await partition.take_up(chunk.records[0].timestamp):
            await self._unjudged.take(chunk, done)

    async def end(self, partitions: frozenset[int], grace: float) -> None:
        """Make no more calls, let those under way be recorded, and give up the rest: who gets a partition next charges it in full."""
        await asyncio.gather(*(self._partitions[number].end(grace) for number in partitions & self._partitions.keys()))

    def revoked(self, partitions: frozenset[int]) -> None:
        """Forget what was recorded there: until now a chunk that was under way was judged from it."""
        for number in partitions & self._partitions.keys():
            del self._partitions[number]
        self._unjudged.revoked(partitions)

    def _recorded(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        found: dict[Subject, Sequence[Judgement]] = {}
        for partition in list(self._partitions.values()):
            found |= partition.calls.of_all(subjects)
        return found
