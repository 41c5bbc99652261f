"""The worker: a Faust app with one agent for each stage. Read this module first; each stage processes its chunks in its own module.

Faust owns membership, rebalancing, heartbeats and the timing of commits. Each partition has its own actor (`isolated_partitions`),
so partitions do not wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, cast

import faust

from streams.kafka.connection import KafkaConnection
from streams.kafka.partitions import SESSION_SECONDS, SURE_SECONDS, DeliveredChunk, KafkaStage, Membership
from streams.kafka.reading import Decrypter, require_plain
from streams.kafka.topics import GROUP
from streams.kafka.transport import ChunkConsumer, ChunkTransport, TransportHooks

SETTINGS: dict[str, Any] = {
    "broker_session_timeout": SESSION_SECONDS,
    "broker_heartbeat_interval": 3.0,
    "broker_max_poll_interval": 604_800.0,  # a client that does not poll for this long leaves the group and never rejoins
    "broker_commit_interval": 1.0,
    "consumer_auto_offset_reset": "earliest",
    "stream_buffer_maxsize": 65_536,  # never full: partitions without room are not fetched (see streams.kafka.partitions)
    "stream_wait_empty": False,  # the stages end their own work
    "stream_recovery_delay": 0.0,
    "topic_disable_leader": True,
    "topic_allow_declare": False,
    "web_enabled": False,
}


class Undecoded(faust.Schema[Any, Any]):
    """A codec that passes the chunk through unchanged."""

    def loads_key(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:  # noqa: ARG002 - Faust's
        """Return the key unchanged; a chunk has none."""
        return message.key

    def loads_value(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:  # noqa: ARG002 - Faust's
        """Return the chunk."""
        return message.value


def add_agent(app: faust.App, topic: str, stage: KafkaStage) -> None:
    """Add the agent that passes the chunks of a topic to its stage."""

    @app.agent(app.topic(topic, schema=Undecoded(), acks=False), name=stage.source, isolated_partitions=True)
    async def work(chunks: AsyncIterable[DeliveredChunk]) -> None:
        async for chunk in chunks:
            await stage.run(chunk)


class Worker:
    """Runs some stages. A missing topic is read as soon as it exists."""

    def __init__(
        self,
        connection: KafkaConnection,
        stages: Iterable[KafkaStage],
        *,
        membership: Membership | None = None,
        settings: Mapping[str, Any] | None = None,
        consumer: Mapping[str, Any] | None = None,
        decrypt: Decrypter = require_plain,
    ) -> None:
        by_topic = {stage.source if stage.is_foreign else connection.topic(stage.source): stage for stage in stages}
        self.stages = tuple(by_topic.values())
        changed = asyncio.Event()
        for stage in self.stages:
            stage.changed = changed
        self._folder = tempfile.TemporaryDirectory(prefix="driftline-faust-")
        # Faust requires addresses for its own client, which never connects. The transport's client connects, with all settings.
        self.app = faust.App(
            connection.topic(GROUP),
            broker="kafka://" + ";kafka://".join(connection.servers),
            **{"datadir": self._folder.name} | SETTINGS | dict(settings or {}),
        )
        hooks = TransportHooks(
            connection=connection,
            stages=by_topic,
            changed=changed,
            membership=membership or Membership(SURE_SECONDS),
            options=consumer or {},
            decrypt=decrypt,
        )
        self.app.transport = ChunkTransport(self.app.conf.broker, self.app, hooks)
        for topic, stage in by_topic.items():
            add_agent(self.app, topic, stage)

    @property
    def consumer(self) -> ChunkConsumer:
        """The consumer."""
        return cast("ChunkConsumer", self.app.consumer)

    async def start(self) -> None:
        """Join the group and start working."""
        await self.app.start()

    async def failed(self) -> BaseException:
        """Wait until the worker fails, and return the reason."""
        await self.app._crashed.wait()  # noqa: SLF001 - no public way to wait for it
        return self.app._crash_reason or RuntimeError("the worker ended without a reason")  # noqa: SLF001

    async def hurry(self) -> None:
        """Abandon the work in progress that `stop` is waiting for."""
        await self._end_stages(0)

    async def stop(self, grace: float) -> None:
        """Finish the work in progress, for `grace` seconds at most, commit the finished chunks, and leave the group."""
        self.consumer.stop_flow()
        await self._end_stages(grace)
        with contextlib.suppress(Exception):
            await self.consumer.commit()
        await self.app.stop()
        self._folder.cleanup()

    async def _end_stages(self, grace: float) -> None:
        await asyncio.gather(*(stage.stop(grace) for stage in self.stages))
