"""One worker process: built from the settings, it works until it is stopped or fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.policy import Policy
from audit.redaction import Redactor
from service.setup.judge_setup import open_judge
from service.setup.kafka import connection_of, framing_of
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import utc_now
from streams.engine.embedded import StageRunner
from streams.judges.protocol import Judge
from streams.judging.judged_stages import read_no_judgements
from streams.judging.judging_partition import JudgeCalls, TaskSlots
from streams.kafka.agents import Worker
from streams.kafka.connection import KafkaConnection
from streams.kafka.partitions import STUCK, SURE_SECONDS, KafkaStage, Membership, Watchdog, end_process
from streams.kafka.producing import RecordProducer
from streams.kafka.schema_registry import RegistryFraming
from streams.kafka.stages import ComputingContext
from streams.kafka.states import StateTopic
from streams.process import collect_rarely, handled_in_loop
from streams.topology import Stage

STOP_GRACE_SECONDS = 15.0
"""How long a stop may take beyond its grace period, in seconds."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Parts:
    """The parts from which a worker's processors are built."""

    connection: KafkaConnection
    policy: Policy
    redactor: Redactor
    judge: Judge | None
    calls: JudgeCalls
    producer: RecordProducer
    membership: Membership
    framing: RegistryFraming | None
    slots: TaskSlots


def run_worker(
    settings: Settings, stages: Sequence[Stage], orphaned: int | None, collected: Mapping[str, str] | None = None
) -> int:
    """Work until a stop signal; return the exit code. The descriptor `orphaned` reaches its end when our supervisor ends.

    `collected` are a Collector's topics to read as well, each with its signal.
    """
    collect_rarely()
    return asyncio.run(_run(settings, stages, orphaned, collected or {}))


async def _run(settings: Settings, stages: Sequence[Stage], orphaned: int | None, collected: Mapping[str, str]) -> int:
    policy, connection = policy_of(settings), connection_of(settings)
    async with contextlib.AsyncExitStack() as stack:
        judge = (await open_judge(settings, policy, os.environ)).judge if any(stage.judged for stage in stages) else None
        if judge is not None:
            stack.push_async_callback(judge.aclose)
        producer = RecordProducer(connection)
        stack.push_async_callback(producer.stop)
        await producer.start()
        membership, framing = Membership(SURE_SECONDS), framing_of(settings)
        parts = _Parts(
            connection,
            policy,
            redactor_of(settings, policy),
            judge,
            JudgeCalls(),
            producer,
            membership,
            framing,
            TaskSlots(settings.judge_concurrency),
        )
        states = {stage.name: _open_states(stage, parts) for stage in stages}
        for topic in states.values():
            stack.callback(topic.close)
        at_work = [_run_stages(stage, states[stage.name], parts) for stage in stages]
        worker = Worker(connection, [*at_work, *_collect_garbage(collected, parts)], membership=membership)
        return await _work(worker, [stage.source for stage in stages if stage.judged], settings.judge_grace, orphaned)


def _open_states(stage: Stage, parts: _Parts) -> StateTopic:
    """Open the topic with the states of the stage."""
    return StateTopic(
        parts.connection, stage.name, parts.producer, source=stage.source, state_type=stage.state_type, redactor=parts.redactor
    )


def _run_stages(stage: Stage, states: StateTopic, parts: _Parts) -> KafkaStage:
    """Return the stage with the factory of its processors."""
    if stage.judged is not None:
        from streams.kafka.stages import CHUNK_TASKS, KafkaJudgingContext  # noqa: PLC0415 - a worker without such a stage asks no judge

        judging = KafkaJudgingContext(
            stage=stage.judged,
            policy=parts.policy,
            judge=parts.judge,
            redactor=parts.redactor,
            now=utc_now,
            calls=parts.calls,
            slots=parts.slots,
            connection=parts.connection,
            producer=parts.producer,
            states=states,
            is_sure=parts.membership.is_sure,
        )
        return KafkaStage(stage.source, judging.open_partition, records_at_once=CHUNK_TASKS)
    computing = ComputingContext(
        stage=stage,
        runner=StageRunner(parts.policy, read_no_judgements, parts.redactor, utc_now),
        redactor=parts.redactor,
        producer=parts.producer,
        states=states,
        reframe=None if parts.framing is None else parts.framing.reframe_when_available,
    )
    return KafkaStage(stage.source, computing.open_partition, records_at_once=stage.records_at_once)


def _collect_garbage(topics: Mapping[str, str], parts: _Parts) -> Sequence[KafkaStage]:
    """Return one stage for each Collector topic."""
    if not topics:
        return ()
    from streams.kafka.collector import collector_stages  # noqa: PLC0415 - most workers need no protobuf

    return collector_stages(topics, policy=parts.policy, redactor=parts.redactor, now=utc_now, producer=parts.producer)


async def _work(worker: Worker, patient: Sequence[str], grace: float, orphaned: int | None) -> int:
    """Work until stopped, or until the worker fails; a second signal makes it stop faster.

    `patient` are topics whose stages may wait without a time limit.
    """
    stop_requests = asyncio.Queue[str]()
    with (
        handled_in_loop(lambda number: stop_requests.put_nowait(f"signal {number.name}")),
        _follow_parent(orphaned, stop_requests),
    ):
        await worker.start()
        watchdog = Watchdog(worker.stages, worker.consumer.waiting, patient=patient)
        stop, fail = asyncio.create_task(stop_requests.get()), asyncio.create_task(worker.failed())
        with _run_background([watchdog.run()]):
            await asyncio.wait([stop, fail], return_when=asyncio.FIRST_COMPLETED)
        if fail.done():
            log.critical("the consumer failed: %s", fail.result(), exc_info=fail.result())
            logging.shutdown()
            os._exit(STUCK)
        log.info("stopping: %s", stop.result())
        fail.cancel()
        await _stop(worker, grace, stop_requests)
    return 0


async def _stop(worker: Worker, grace: float, stop_requests: asyncio.Queue[str]) -> None:
    # Without a broker the client never finishes leaving its group, and without a supervisor nobody else ends the process.
    asyncio.get_running_loop().call_later(grace + STOP_GRACE_SECONDS, os._exit, STUCK)
    stopping, again = asyncio.create_task(worker.stop(grace)), asyncio.create_task(stop_requests.get())
    await asyncio.wait([stopping, again], return_when=asyncio.FIRST_COMPLETED)
    if again.done():
        log.info("hurrying: %s", again.result())
        await worker.hurry()
    again.cancel()
    await stopping


@contextlib.contextmanager
def _follow_parent(supervisor: int | None, stop_requests: asyncio.Queue[str]) -> Iterator[None]:
    """Stop when our supervisor ends, if there is one: the descriptor `supervisor` then reaches its end."""
    loop = asyncio.get_running_loop()
    if supervisor is not None:
        loop.add_reader(supervisor, _hear_end, loop, supervisor, stop_requests)
    try:
        yield
    finally:
        if supervisor is not None:
            loop.remove_reader(supervisor)


def _hear_end(loop: asyncio.AbstractEventLoop, orphaned: int, stop_requests: asyncio.Queue[str]) -> None:
    if not os.read(orphaned, 1):
        loop.remove_reader(orphaned)
        stop_requests.put_nowait("the supervisor is gone")


@contextlib.contextmanager
def _run_background(works: Iterable[Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Run coroutines beside the context; if one fails, end the process, because nothing else would do its work."""
    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(_find_fault)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def _find_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(error)
