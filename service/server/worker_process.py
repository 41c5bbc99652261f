"""A worker process: it runs stages on Kafka until it is stopped or fails."""

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
from audit.spending import has_shared_caps
from service.setup.judge_setup import check_waiting, open_judge
from service.setup.kafka import connection_of, framing_of
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import utc_now
from streams.engine.embedded import StageRunner
from streams.judges.protocol import Judge
from streams.judging.judged_stages import read_no_judgements
from streams.judging.judging_partition import JudgeCalls, TaskSlots
from streams.judging.shared_caps import SharedCaps
from streams.kafka.agents import Worker
from streams.kafka.connection import KafkaConnection
from streams.kafka.encryption import TextEncryption, decrypter_of, open_encryption
from streams.kafka.partitions import STUCK, SURE_SECONDS, KafkaStage, Membership, Watchdog, end_process
from streams.kafka.producing import RecordProducer
from streams.kafka.schema_registry import RegistryFraming
from streams.kafka.spending_topic import SpendingTopic
from streams.kafka.stages import ComputingContext
from streams.kafka.states import StateTopic
from streams.process import collect_rarely, handled_in_loop
from streams.topology import Stage

STOP_GRACE_SECONDS = 15.0
"""Seconds after the grace period until a worker that does not stop is ended."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Parts:
    """The objects that the stages of a worker share."""

    connection: KafkaConnection
    policy: Policy
    redactor: Redactor
    judge: Judge | None
    calls: JudgeCalls
    producer: RecordProducer
    encryption: TextEncryption | None
    membership: Membership
    framing: RegistryFraming | None
    slots: TaskSlots
    shared_caps: SharedCaps | None


def run_worker(
    settings: Settings, stages: Sequence[Stage], supervisor_pipe: int | None, collector_topics: Mapping[str, str] | None = None
) -> int:
    """Run the stages until a stop signal; return the exit code.

    `supervisor_pipe` is a file descriptor that reaches its end when the supervisor ends; None without a supervisor.
    `collector_topics` maps the topics of an OpenTelemetry Collector that this worker also reads to their signals.
    """
    collect_rarely()
    return asyncio.run(_run(settings, stages, supervisor_pipe, collector_topics or {}))


async def _run(
    settings: Settings, stages: Sequence[Stage], supervisor_pipe: int | None, collector_topics: Mapping[str, str]
) -> int:
    policy = policy_of(settings)
    check_waiting(policy, kafka=True)
    connection = connection_of(settings)
    async with contextlib.AsyncExitStack() as stack:
        judge = (await open_judge(settings, policy, os.environ)).judge if any(stage.judged for stage in stages) else None
        if judge is not None:
            stack.push_async_callback(judge.aclose)
        encryption = await stack.enter_async_context(open_encryption(connection))
        producer = RecordProducer(connection, encryption=encryption)
        stack.push_async_callback(producer.stop)
        await producer.start()
        spending = SpendingTopic(connection, producer, utc_now, reads=has_shared_caps(policy))
        membership = Membership(SURE_SECONDS)
        parts = _Parts(
            connection=connection,
            policy=policy,
            redactor=redactor_of(settings, policy),
            judge=judge,
            calls=JudgeCalls(),
            producer=producer,
            encryption=encryption,
            membership=membership,
            framing=framing_of(settings),
            slots=TaskSlots(settings.judge_concurrency),
            shared_caps=None if judge is None else SharedCaps(policy, await stack.enter_async_context(spending)),
        )
        states = {stage.name: _open_states(stage, parts) for stage in stages}
        for topic in states.values():
            stack.callback(topic.close)
        kafka_stages = [_build_stage(stage, states[stage.name], parts) for stage in stages]
        kafka_stages += _build_collector_stages(collector_topics, parts)
        worker = Worker(connection, kafka_stages, membership=membership, decrypt=decrypter_of(encryption))
        judged_topics = [stage.source for stage in stages if stage.judged]
        return await _run_until_stopped(worker, judged_topics, settings.judge_grace, supervisor_pipe)


def _open_states(stage: Stage, parts: _Parts) -> StateTopic:
    """Open the topic that stores the states of the stage."""
    return StateTopic(
        parts.connection,
        stage.name,
        parts.producer,
        source=stage.source,
        state_type=stage.state_type,
        redactor=parts.redactor,
        encryption=parts.encryption,
    )


def _build_stage(stage: Stage, states: StateTopic, parts: _Parts) -> KafkaStage:
    """Return the Kafka stage that runs a stage of the topology."""
    if stage.judged is not None:
        from streams.kafka.stages import CHUNK_TASKS, KafkaJudgingContext  # noqa: PLC0415 - only judged stages need the judging modules

        judging = KafkaJudgingContext(
            stage=stage.judged,
            policy=parts.policy,
            judge=parts.judge,
            redactor=parts.redactor,
            now=utc_now,
            calls=parts.calls,
            shared_caps=parts.shared_caps,
            slots=parts.slots,
            connection=parts.connection,
            producer=parts.producer,
            states=states,
            encryption=parts.encryption,
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


def _build_collector_stages(topics: Mapping[str, str], parts: _Parts) -> Sequence[KafkaStage]:
    """Return one stage for each Collector topic."""
    if not topics:
        return ()
    from streams.kafka.collector import collector_stages  # noqa: PLC0415 - most workers need no protobuf

    return collector_stages(topics, policy=parts.policy, redactor=parts.redactor, now=utc_now, producer=parts.producer)


async def _run_until_stopped(
    worker: Worker, judged_topics: Sequence[str], grace_seconds: float, supervisor_pipe: int | None
) -> int:
    """Run the worker until a stop request; end the process if the consumer fails. A second signal makes it stop faster.

    The watchdog lets the stages of `judged_topics` wait without a time limit, because judges may be slow.
    """
    stop_requests = asyncio.Queue[str]()
    with (
        handled_in_loop(lambda number: stop_requests.put_nowait(f"signal {number.name}")),
        _stop_with_supervisor(supervisor_pipe, stop_requests),
    ):
        await worker.start()
        watchdog = Watchdog(worker.stages, worker.consumer.waiting, patient=judged_topics)
        stop = asyncio.create_task(stop_requests.get())
        failure = asyncio.create_task(worker.failed())
        with _run_background([watchdog.run()]):
            await asyncio.wait([stop, failure], return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            log.critical("the consumer failed: %s", failure.result(), exc_info=failure.result())
            logging.shutdown()
            os._exit(STUCK)
        log.info("stopping: %s", stop.result())
        failure.cancel()
        await _stop(worker, grace_seconds, stop_requests)
    return 0


async def _stop(worker: Worker, grace_seconds: float, stop_requests: asyncio.Queue[str]) -> None:
    """Stop the worker; hurry it at a second stop request. Ends the process if that takes too long."""
    # Without a broker the client never finishes leaving its group, and without a supervisor nothing else ends the process.
    asyncio.get_running_loop().call_later(grace_seconds + STOP_GRACE_SECONDS, os._exit, STUCK)
    stopping = asyncio.create_task(worker.stop(grace_seconds))
    second_request = asyncio.create_task(stop_requests.get())
    await asyncio.wait([stopping, second_request], return_when=asyncio.FIRST_COMPLETED)
    if second_request.done():
        log.info("hurrying: %s", second_request.result())
        await worker.hurry()
    second_request.cancel()
    await stopping


@contextlib.contextmanager
def _stop_with_supervisor(supervisor_pipe: int | None, stop_requests: asyncio.Queue[str]) -> Iterator[None]:
    """Within the context, request a stop when the supervisor ends. Does nothing without a supervisor."""
    if supervisor_pipe is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(supervisor_pipe, _request_stop_at_end, loop, supervisor_pipe, stop_requests)
    try:
        yield
    finally:
        loop.remove_reader(supervisor_pipe)


def _request_stop_at_end(loop: asyncio.AbstractEventLoop, supervisor_pipe: int, stop_requests: asyncio.Queue[str]) -> None:
    if not os.read(supervisor_pipe, 1):
        loop.remove_reader(supervisor_pipe)
        stop_requests.put_nowait("the supervisor is gone")


@contextlib.contextmanager
def _run_background(coroutines: Iterable[Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Run coroutines while the context is open. If one fails, end the process, because nothing else would do its work."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    for task in tasks:
        task.add_done_callback(_end_process_on_failure)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def _end_process_on_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(error)
