"""Three brokers for tests: one KRaft cluster whose nodes can be stopped, killed, frozen and started one by one.

Each topic has three copies, and a record counts as taken when two have it: what a cluster in production has. A node that is away leaves
its partitions to the others within a few seconds.

    python tests/kafka_cluster.py

starts one in the foreground, prints its addresses and stops it at Ctrl-C.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest
from kafka_server import Broker, StartError, cluster_id, free_port, in_foreground, quick

NODES = (1, 2, 3)
HEAP = "384m"
SETTLED_SECONDS = 90.0
_NODE = """
node.id={{node}}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller}}
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
default.replication.factor=3
min.insync.replicas=2
# A follower that is frozen holds back what is acknowledged by all in sync for so long.
replica.lag.time.max.ms=3000
"""


class Cluster:
    """Three brokers with a folder and ports of their own. `node` is 1, 2 or 3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.brokers: dict[int, Broker] = {}
        self._frozen: set[int] = set()

    @property
    def bootstrap(self) -> str:
        """The addresses of all of them."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start_all(self) -> None:
        """Start every node; each waits for the others. StartError when they do not come to."""
        options = quick()
        for last in (False, False, True):
            self.brokers = dict(zip(NODES, self._nodes(options), strict=True))
            try:
                self._together(Broker.start)
            except StartError as error:
                self.kill_all()
                # Somebody may have taken a port since it was found free.
                if last or "BindException" not in str(error):
                    raise
            else:
                self.settle()
                return

    def kill_all(self) -> None:
        """End every node at once."""
        self._frozen.clear()
        self._together(Broker.kill)

    def start(self, node: int) -> None:
        """Start a node again."""
        self.brokers[node].start()

    def stop(self, node: int) -> None:
        """Stop a node as an operator would: it hands its partitions over first."""
        self.brokers[node].stop()

    def kill(self, node: int) -> None:
        """End a node at once, as a loss of power would."""
        self._frozen.discard(node)
        self.brokers[node].kill()

    def freeze(self, node: int) -> None:
        """Let a node do nothing, its connections open."""
        self.brokers[node].freeze()
        self._frozen.add(node)

    def thaw(self, node: int) -> None:
        """Let it go on."""
        self.brokers[node].thaw()
        self._frozen.discard(node)

    def leaders(self, topic: str) -> dict[int, int]:
        """The node that leads each partition of a topic, -1 where none does, as a node that is awake has it."""
        partitions = [
            part for found in self._metadata(self._awake())["topics"] if found["topic"] == topic for part in found["partitions"]
        ]
        return {part["partition"]: part["leader"] for part in partitions}

    def settle(self) -> None:
        """Bring every node back, and return when each has all records of all its partitions again."""
        for node in sorted(self._frozen):
            self.thaw(node)
        for node, broker in self.brokers.items():
            if not broker.runs:
                self.start(node)
        ends_at = time.monotonic() + SETTLED_SECONDS
        while not self._is_whole():
            assert time.monotonic() < ends_at, f"the cluster was not whole again after {SETTLED_SECONDS:g} s"
            time.sleep(0.2)

    def _is_whole(self) -> bool:
        """Whether every node says so: one that has just come back knows only what was before."""
        for broker in self.brokers.values():
            found = self._metadata(broker)
            partitions = [part for topic in found["topics"] for part in topic["partitions"]]
            if len(found["brokers"]) < len(NODES) or any(len(part["isr"]) < len(part["replicas"]) for part in partitions):
                return False
        return True

    def _awake(self) -> Broker:
        """A node that answers."""
        return next(broker for node, broker in self.brokers.items() if broker.runs and node not in self._frozen)

    @staticmethod
    def _metadata(broker: Broker) -> dict[str, Any]:
        """What a node knows of the cluster. An administrator's client would ask others as well, and wait for frozen ones."""

        async def ask() -> dict[str, Any]:
            connection = await create_conn("127.0.0.1", broker.port)
            try:
                return dict((await connection.send(MetadataRequest(None))).to_object())
            finally:
                await connection.close()

        return asyncio.run(ask())

    def _nodes(self, options: tuple[str, ...]) -> Iterator[Broker]:
        ports: set[int] = set()
        while len(ports) < 2 * len(NODES):
            ports.add(free_port())
        listening, controllers = sorted(ports)[::2], sorted(ports)[1::2]
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, controllers, strict=True))
        cluster, folder = cluster_id(), Path(tempfile.mkdtemp(dir=self._folder))
        for node, port, controller in zip(NODES, listening, controllers, strict=True):
            properties = _NODE.format(voters=voters).format(node=node, port=port, controller=controller)
            yield Broker(folder / str(node), heap=HEAP, port=port, options=options, properties=properties, cluster=cluster)

    def _together(self, do: Callable[[Broker], object]) -> None:
        with ThreadPoolExecutor(len(NODES)) as threads:
            for _ in threads.map(do, self.brokers.values()):
                pass


@contextmanager
def running() -> Iterator[Cluster]:
    """Three brokers that have started; when the context ends they are gone with their data."""
    with tempfile.TemporaryDirectory(prefix="driftline-kafka-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start_all()
            yield cluster
        finally:
            cluster.kill_all()


def main() -> None:
    """Run three brokers until Ctrl-C."""
    in_foreground(running())


if __name__ == "__main__":
    main()
