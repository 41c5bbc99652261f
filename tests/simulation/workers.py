"""A worker process: the product's stages over a simulated cluster, and in place of Faust the least that does its part in a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP
from simulation.cluster import Cluster, SimulatedConsumer
from simulation.world import World

from audit.redaction import Redactor
from schemas.errors import BrokerError, StoreError
from streams.engine.embedded import StageRunner
from streams.judges.protocol import Judge
from streams.judging.judged_stages import read_no_judgements
from streams.judging.judging_partition import JudgeCalls
from streams.kafka.connection import KafkaConnection
from streams.kafka.partitions import SURE_SECONDS, DeliveredChunk, KafkaStage, Membership, release
from streams.kafka.producing import RecordProducer
from streams.kafka.stages import ComputingContext, KafkaJudgingContext
from streams.kafka.states import StateTopic
from streams.kafka.transport import ChunkConsumer, TransportHooks
from streams.topology import Stage, stage_named

STAGES = tuple(stage_named(name) for name in ("intake", "scoring", "diagnosis"))
CHUNK = 3
"""Records of a chunk at most."""
BEAT_SECONDS = 3.0
COMMIT_SECONDS = 1.0
CONNECTION = KafkaConnection("simulated:9092")


class StatesInMemory:
    """Takes the place of `streams.kafka.states.LocalStates`."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, bytes], bytes] = {}

    def get(self, partition: int, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that have one."""
        return {key: self._values[partition, key] for key in keys if (partition, key) in self._values}

    def put(self, partition: int, values: Mapping[bytes, bytes | None]) -> None:
        """Keep values; None takes a key away."""
        for key, value in values.items():
            if value is None:
                self._values.pop((partition, key), None)
            else:
                self._values[partition, key] = value


class Member:
    """A consumer of the group, with an actor for each partition, as Faust's consumer and agents are."""

    _fetch = ChunkConsumer._fetch

    def __init__(self, cluster: Cluster, name: str, hooks: TransportHooks) -> None:
        self.hooks = hooks
        self._cluster = cluster
        self._name = name
        self._client = SimulatedConsumer(cluster)
        self._fetch_lock = asyncio.Lock()
        self._flows = asyncio.Event()
        self._has_to_join = asyncio.Event()
        self._has_to_join.set()
        self._is_joining = False
        self._generation = -1
        self._partitions: list[TopicPartition] = []
        self._queues: dict[TP, asyncio.Queue[DeliveredChunk]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Join the group and begin."""
        self.hooks.membership.watch(self)
        self._tasks += [asyncio.create_task(work()) for work in (self._join, self._beat, self._commit_often, self._drain)]

    async def stop(self, grace: float) -> None:
        """As `streams.kafka.agents.Worker.stop`."""
        self._flows.clear()
        await asyncio.gather(*(stage.stop(grace) for stage in self.hooks.stages.values()))
        with contextlib.suppress(KafkaError):
            await self.commit()
            await self._cluster.call(lambda: self._cluster.group.leave(self._name))
        for task in self._tasks:
            task.cancel()

    async def commit(self) -> None:
        """Commit what is done. Where the cluster does not say that it is, Faust ends the process."""
        committable = {tp: partition.committable() for tp, partition in self.hooks.partitions()}
        offsets = {TopicPartition(*tp): offset for tp, offset in committable.items() if offset is not None}
        if offsets:
            generation = self._generation
            await self._cluster.call(lambda: self._cluster.group.commit(self._name, generation, offsets))

    async def _join(self) -> None:
        """Join whenever that has to be, and take up the partitions that it brings."""
        while True:
            await self._has_to_join.wait()
            self._flows.clear()
            await release(list(self.hooks.stages.values()), self.commit)
            self._is_joining = True
            await self._do_rejoin_group(None)
            self._is_joining, partitions = False, self._partitions
            for topic, stage in self.hooks.stages.items():
                stage.assign([place.partition for place in partitions if place.topic == topic])
            positions: dict[TopicPartition, int] = await self._cluster.call(self._cluster.group.committed.copy)
            async with self._fetch_lock:
                self._client.assign(partitions)
                for place in partitions:
                    self._client.seek(place, positions[place])
            self._flows.set()

    async def _do_rejoin_group(self, _: object) -> bool:
        self._has_to_join.clear()
        join = self._cluster.begin(lambda reply: self._cluster.group.join(self._name, reply))
        self._generation, self._partitions = await join
        return True

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if not self._is_joining:
                with contextlib.suppress(KafkaError):
                    await self._do_heartbeat()

    async def _do_heartbeat(self) -> bool:
        answer = await self._cluster.call(lambda: self._cluster.group.beat(self._name, self._generation))
        if answer != "in" and not self._is_joining:
            self._has_to_join.set()
        return bool(answer != "out")

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_SECONDS)
            await self.commit()

    async def _drain(self) -> None:
        """As `ChunkConsumer._drain_messages`."""
        while True:
            await self._flows.wait()
            for tp, partition in self.hooks.partitions():
                for chunk in partition.deliver():
                    if tp not in self._queues:
                        self._queues[tp] = asyncio.Queue()
                        self._tasks.append(asyncio.create_task(self._work(tp)))
                    self._queues[tp].put_nowait(chunk)
            await self._fetch()

    async def _work(self, tp: TP) -> None:
        """As `streams.kafka.agents.add_agent`."""
        while True:
            await self.hooks.stages[tp.topic].run(await self._queues[tp].get())

    def _get_active_partitions(self) -> set[TP]:
        return {tp for tp, _ in self.hooks.partitions()} if self._flows.is_set() else set()

    async def _getmany(self, places: set[TP], timeout: float) -> Any:  # noqa: ASYNC109 - Faust's
        return await self._client.getmany(*(TopicPartition(*tp) for tp in sorted(places)), timeout_ms=int(timeout * 1000))

    async def failed(self) -> BaseException:
        """Return what ended a part of it, as soon as something does."""
        while True:
            ended, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
            for task in ended:
                if not task.cancelled() and (error := task.exception()) is not None:
                    return error


class SimulatedWorker:
    """See the module; `serve` is a process."""

    def __init__(self, world: World, cluster: Cluster, name: str, judge: Judge) -> None:
        self._world = world
        self._cluster = cluster
        self._name = name
        self._judge = judge
        self._stop = asyncio.Event()
        self._grace = 0.0

    def stop(self, grace: float) -> None:
        """Stop in good order."""
        self._grace = grace
        self._stop.set()

    async def serve(self) -> None:
        """Work until it is told to stop, or cannot go on."""
        producer = RecordProducer(CONNECTION)
        try:
            await producer.start()
        except BrokerError:
            return
        membership = Membership(SURE_SECONDS, now=self._world.now)
        stages = {stage.source: self._at_work(stage, producer, membership) for stage in STAGES}
        changed = asyncio.Event()
        for stage in stages.values():
            stage.changed = changed
        hooks = TransportHooks(connection=CONNECTION, stages=stages, changed=changed, membership=membership)
        member = Member(self._cluster, self._name, hooks)
        member.start()
        watching = asyncio.create_task(self._watch(member))
        await asyncio.wait([asyncio.create_task(self._stop.wait()), watching], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            return
        watching.cancel()
        await member.stop(self._grace)
        await producer.stop()

    async def _watch(self, member: Member) -> None:
        """Return when a part of it has failed: Faust ends the process then."""
        error = await member.failed()
        self._world.note(f"{self._name} cannot go on: {error!r}")
        self._world.require(isinstance(error, KafkaError), "nothing fails by a fault of ours", repr(error))

    def _fail(self, error: BaseException) -> None:
        """As `streams.kafka.partitions.end_process`."""
        self._world.note(f"{self._name} ends: {error!r}")
        is_ours = not isinstance(error, BrokerError | StoreError)
        self._world.require(not is_ours, "nothing fails by a fault of ours", repr(error))
        self._world.kill()

    def _at_work(self, stage: Stage, producer: RecordProducer, membership: Membership) -> KafkaStage:
        policy, redactor = self._world.policy, Redactor(self._world.policy.redaction)
        states = StateTopic(
            CONNECTION,
            stage.name,
            producer,
            StatesInMemory(),  # type: ignore[arg-type]
            source=stage.source,
            state_type=stage.state_type,
            redactor=redactor,
        )
        now = self._world.read_clock
        means: KafkaJudgingContext | ComputingContext
        if stage.judged is not None:
            means = KafkaJudgingContext(
                stage=stage.judged,
                policy=policy,
                judge=self._judge,
                redactor=redactor,
                now=now,
                calls=JudgeCalls(),
                connection=CONNECTION,
                producer=producer,
                states=states,
                is_sure=membership.is_sure,
                fail=self._fail,
            )
        else:
            runs = StageRunner(policy, read_no_judgements, redactor, now)
            means = ComputingContext(stage=stage, runner=runs, redactor=redactor, producer=producer, states=states)
        return KafkaStage(stage.source, means.open_partition, records_at_once=CHUNK, fail=self._fail, now=self._world.now)
