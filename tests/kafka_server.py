"""Apache Kafka for tests: its jars out of Maven's repository, and a broker of one KRaft node that can be stopped, killed and frozen.

    python tests/kafka_server.py [--heap 1g] [--port PORT]

starts one in the foreground, prints its address and stops it at Ctrl-C. Its data is gone then.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

POM = Path(__file__).parent / "kafka" / "server" / "pom.xml"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
START_SECONDS = 300.0
STOP_SECONDS = 120.0
DOWNLOAD_SECONDS = 600.0
# Below the ports that the kernel hands out to clients: one of those could sit on a stopped broker's port, or connect to itself.
PORTS = range(20_000, 30_000)
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


class UnavailableError(Exception):
    """There is no Kafka to be had in this way; the message says why, and what to install."""


class StartError(Exception):
    """There is a Kafka, and it did not start; the message has the end of its log."""


class Running(Protocol):
    """Brokers that run."""

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        ...


def in_foreground(brokers: AbstractContextManager[Running]) -> None:
    """Run brokers and print their address until Ctrl-C or SIGTERM; exit with the reason where they cannot be had."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with brokers as found:
            sys.stdout.write(f"{found.bootstrap}\n")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        pass
    except (UnavailableError, StartError) as error:
        sys.exit(str(error))


def version() -> str:
    """The version of Kafka that the tests run on."""
    found = re.search("<kafka.version>(.+)</kafka.version>", POM.read_text("utf-8"))
    assert found
    return found[1]


def jars() -> Path:
    """The folder with the jars of the server, downloaded at the first call on a machine; UnavailableError when it cannot be."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise UnavailableError(f"there is no {program}: install Java 17 and Maven")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftline"
    # By what the file asks for: a change of it makes a folder of its own, and checkouts do not disturb each other.
    folder = cache / f"kafka-{version()}-{uuid.uuid5(uuid.NAMESPACE_OID, POM.read_text('utf-8')).hex[:8]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f"{folder.name}.lock"):
            if not folder.exists():
                _download(folder)
    return folder


def quick() -> tuple[str, ...]:
    """Options of Java for a broker that starts in a third of the time and serves slower; for tests, not for benchmarks.

    What is loaded at a start is kept beside the jars, at the first call on a machine.
    """
    compiled_once = "-XX:TieredStopAtLevel=1"
    archive = jars() / "classes.jsa"
    with locked(jars().parent / f"{jars().name}.lock"), tempfile.TemporaryDirectory(prefix="driftline-kafka-") as folder:
        written = Path(folder) / archive.name
        if not archive.exists():
            broker = Broker(Path(folder) / "broker", options=(compiled_once, f"-XX:ArchiveClassesAtExit={written}"))
            broker.start()
            broker.stop()
        if written.exists():
            shutil.copyfile(written, f"{archive}.new")
            Path(f"{archive}.new").rename(archive)
    return compiled_once, f"-XX:SharedArchiveFile={archive}"


def _download(folder: Path) -> None:
    """Let Maven copy the jars beside the folder, and give them its name once all are there."""
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(POM), COPY]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={unfinished}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
        if done.returncode:
            raise UnavailableError(f"Maven could not fetch Kafka {version()}:\n{(done.stdout + done.stderr)[-2000:]}")
        unfinished.rename(folder)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"Maven took more than {DOWNLOAD_SECONDS:g} s to fetch Kafka {version()}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock, which the system gives back when the process ends, however it ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def tied(command: list[str], output: int) -> subprocess.Popen[bytes]:
    """Run a command that is killed when this process ends, however it ends, unless `untie` came first.

    A shell's child waits at a pipe of ours; the shell itself becomes the command, so its process is the one we signal. Linux's own
    way (PR_SET_PDEATHSIG) would also kill it when only the thread that started it ends.
    """
    script = 'exec 3<&0; (read -r _ <&3 || kill -9 $$) & exec "$@" 3<&- </dev/null'
    arguments = ["sh", "-c", script, "sh", *command]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)


def untie(process: subprocess.Popen[bytes]) -> None:
    """Let the process end without us: its number may be another's once it has."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"\n")
        process.stdin.flush()
    process.stdin.close()


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def cluster_id() -> str:
    """A new id of a cluster; one that begins with a dash would be taken for an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "x")


class Broker:
    """One broker with a folder of its own. Data and port stay the same from start to start."""

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
        """`options` are Java's; `properties`, with `{port}` and `{controller}` in them, win over those every broker has.

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
        """Its address."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that runs it."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether its process is there, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> str:
        """Start it, the first time with an empty log; its address once it serves. StartError when it does not come to."""
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
        """Stop it as an operator would; what it had not written it writes."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a loss of power would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it do nothing, its connections open; it has stopped on return."""
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine its threads run on for a while, and answer.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it go on."""
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
        done = subprocess.run(
            [*tool, str(self._properties)], capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        if done.returncode:
            raise StartError(f"Kafka's log directory could not be formatted:\n{(done.stdout + done.stderr)[-2000:]}")

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
        said = ("defaultLogLevel=warn", "log.kafka.server.KafkaRaftServer=info", "showDateTime=true")
        logging = [f"-Dorg.slf4j.simpleLogger.{option}" for option in said]
        return ["java", f"-Xmx{self._heap}", "-XX:+UseSerialGC", *self._options, *logging, "-cp", f"{jars()}/*", *arguments]

    def _launch(self) -> bool:
        """Start the process; whether it came to serve."""
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
def running(*, heap: str = "512m", port: int | None = None, options: Sequence[str] = ()) -> Iterator[Broker]:
    """A broker that has started; when the context ends it is stopped and its data removed."""
    with tempfile.TemporaryDirectory(prefix="driftline-kafka-", ignore_cleanup_errors=True) as folder:
        broker = Broker(Path(folder), heap=heap, port=port, options=options)
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()


def main() -> None:
    """Run a broker until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Run Apache Kafka on loopback until Ctrl-C; nothing is kept.")
    parser.add_argument("--heap", default="1g", help="the broker's memory [1g]")
    parser.add_argument("--port", type=int, help="the port it listens on [a free one]")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with running(heap=options.heap, port=options.port) as broker:
            sys.stdout.write(f"{broker.bootstrap}\n")
            sys.stdout.flush()
            while broker.runs:
                time.sleep(0.2)
            sys.exit(f"the broker ended:\n{broker._said()}")
    except KeyboardInterrupt:
        pass
    except (UnavailableError, StartError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
