"""The worker: a Faust app with one agent for each stage of the topology, over the transport that brings chunks."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Any, cast

import faust

from streams.kafka.connection import KafkaConnection
from streams.kafka.topics import GROUP
from streams.kafka.worker.membership import Membership
from streams.kafka.worker.offset_tracker import Delivery, OffsetTracker
from streams.kafka.worker.partition_queues import PartitionQueues, end_process
from streams.kafka.worker.processing import Processor
from streams.kafka.worker.transport import BatchConsumer, BatchTransport, TransportHooks
from streams.topology import Stage

FOREIGN_RECORDS = 1_000
"""Messages of another program that a chunk may have: each may hold many records."""
SESSION_SECONDS = 15.0
"""A worker of which the broker heard nothing for so long has lost its partitions to others."""
SURE_SECONDS = SESSION_SECONDS * 2 / 3
"""Seconds after a sign of life in which no other worker can have them, with time for what is on its way to arrive."""
SETTINGS: dict[str, Any] = {
    "broker_session_timeout": SESSION_SECONDS,
    "broker_heartbeat_interval": 3.0,
    "broker_max_poll_interval": 604_800.0,  # a client that does not poll for long leaves the group and never comes back
    "broker_commit_interval": 1.0,
    "consumer_auto_offset_reset": "earliest",
    "stream_buffer_maxsize": 65_536,  # never full: partitions have room or are not fetched (see streams.kafka.worker.offset_tracker)
    "stream_wait_empty": False,  # what is under way is ended by the stages
    "stream_recovery_delay": 0.0,
    "topic_disable_leader": True,
    "topic_allow_declare": False,
    "web_enabled": False,
}


class Undecoded(faust.Schema[Any, Any]):
    """Passes the delivery through as it is."""

    def loads_key(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:  # noqa: ARG002 - Faust's
        """The key, of which a chunk has none."""
        return message.key

    def loads_value(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:  # noqa: ARG002 - Faust's
        """The delivery."""
        return message.value


class Worker:
    """Some stages at work. `processors` has one for each of them, by the stage's name.

    `foreign` has the processors of other programs' topics, by the names that these have on the cluster. A topic that is not there yet is
    read as soon as it is.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        stages: Iterable[Stage],
        processors: Mapping[str, Processor],
        *,
        foreign: Mapping[str, Processor] | None = None,
        membership: Membership | None = None,
        fail: Callable[[BaseException], None] = end_process,
        settings: Mapping[str, Any] | None = None,
        consumer: Mapping[str, Any] | None = None,
    ) -> None:
        self.tracker = OffsetTracker()
        stages, foreign = tuple(stages), foreign or {}
        ours = {stage.source: processors[stage.name] for stage in stages}
        self.queues = PartitionQueues({**ours, **foreign}, self.tracker, fail)
        self._folder = tempfile.TemporaryDirectory(prefix="driftline-faust-")
        hooks = TransportHooks(
            connection=connection,
            queues=self.queues,
            tracker=self.tracker,
            chunk_records={stage.source: stage.records_at_once for stage in stages} | dict.fromkeys(foreign, FOREIGN_RECORDS),
            foreign=frozenset(foreign),
            membership=membership or Membership(SURE_SECONDS),
            options=consumer or {},
        )
        self.app = _app(
            [*ours, *foreign], hooks, self.queues.put, {"datadir": self._folder.name} | SETTINGS | dict(settings or {})
        )

    @property
    def consumer(self) -> BatchConsumer:
        """The consumer."""
        return cast("BatchConsumer", self.app.consumer)

    async def start(self) -> None:
        """Join the group and begin."""
        await self.app.start()

    async def failed(self) -> BaseException:
        """Return when the worker cannot go on, with the reason."""
        await self.app._crashed.wait()  # noqa: SLF001 - there is no public way to wait for it
        return self.app._crash_reason or RuntimeError("the worker ended without a reason")  # noqa: SLF001

    async def hurry(self) -> None:
        """Give up what is under way, while `stop` waits for it."""
        await self.queues.stop(0)

    async def stop(self, grace: float) -> None:
        """Finish what is under way, for `grace` seconds at most, commit what is done, and leave the group."""
        self.consumer.stop_flow()
        await self.queues.stop(grace)
        with contextlib.suppress(Exception):
            await self.consumer.commit()
        await self.app.stop()
        self._folder.cleanup()


def _app(
    topics: Iterable[str], hooks: TransportHooks, put: Callable[[Delivery], None], settings: Mapping[str, Any]
) -> faust.App:
    """The app with an agent for each topic, that hands each delivery on and never waits."""
    connection = hooks.connection
    # Faust takes the addresses for its own client, which never connects: the transport's does, with the whole connection.
    app = faust.App(connection.topic(GROUP), broker="kafka://" + ";kafka://".join(connection.servers), **settings)
    app.transport = BatchTransport(app.conf.broker, app, hooks)

    async def hand_on(stream: AsyncIterable[Delivery]) -> None:
        async for delivery in stream:
            put(delivery)

    for name in topics:
        topic = app.topic(hooks.topic(name), schema=Undecoded(), acks=False)
        app.agent(topic, name=name)(hand_on)
    return app
