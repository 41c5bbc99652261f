"""A whole installation on one machine: a broker, a server with its sink, workers and a judge, each to be harmed at will."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support.kafka_brokers import Broker
from support.servers import Child, Home, Nursery

from driftline_trial.simulator import RunningJudge
from streams.topology import TOPOLOGY

SERVER = "server"
STAGES = ",".join(stage.name for stage in TOPOLOGY)
PREFIX = "chaos-"
PARTITIONS = 4


@dataclass
class Plant:
    """What runs. Whoever ends by itself is started again, as an operator's supervisor would, and counted."""

    children: Nursery
    home: Home
    broker: Broker
    judge: RunningJudge
    port: int
    prefix: str = PREFIX
    server: Child | None = None
    workers: list[Child] = field(default_factory=list)
    calls: int = 0
    """Calls to the judge before its last change of mood."""
    codes: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often a server or worker ended by itself, by exit code."""

    @property
    def url(self) -> str:
        """Where the server listens, when it does."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def asked(self) -> int:
        """Calls to the judge so far."""
        return self.calls + self.judge.requests

    def start(self, workers: int) -> None:
        """Start the server and so many workers."""
        self.start_server()
        for _ in range(workers):
            self.workers.append(self.start_worker())

    def start_server(self) -> Child:
        """Start the server; it may not listen yet."""
        arguments = ("serve", "--kafka", self.broker.bootstrap, "--port", str(self.port))
        self.server = self.children.start(self.home, *arguments)
        return self.server

    def start_worker(self) -> Child:
        """Start a worker of every stage, and the process that looks after it."""
        return self.children.start(self.home, "worker", "--kafka", self.broker.bootstrap, "--stages", STAGES)

    def mood(self, script: str) -> None:
        """Have the judge behave in another way from now on."""
        self.calls += self.judge.requests
        self.judge.reset(script)

    def victims(self) -> list[tuple[str, Child]]:
        """What may be harmed, by what it is."""
        assert self.server is not None
        return [(SERVER, self.server), *(("worker", worker) for worker in self.workers)]

    def replace(self, child: Child) -> None:
        """Start anew what has ended."""
        if child is self.server:
            self.start_server()
        else:
            self.workers[self.workers.index(child)] = self.start_worker()

    def supervise(self) -> None:
        """Start again what ended by itself."""
        for kind, child in self.victims():
            if child.ended:
                self.codes[kind, child.wait()] += 1
                self.replace(child)

    def stop(self) -> None:
        """Ask everything to stop, the workers first; the broker goes on."""
        for child in [*self.workers, *([self.server] if self.server else [])]:
            if not child.ended:
                child.send(signal.SIGTERM)
            child.wait()
        self.workers.clear()
        self.server = None


def processes(child: Child) -> list[int]:
    """The process, or those that it looks after: they do the work of a worker."""
    found = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    return list(map(int, found)) or [child.pid]


def frozen(pid: int) -> bool:
    """Whether the kernel has stopped the process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def there(pid: int) -> bool:
    """Whether the process has not ended."""
    return Path(f"/proc/{pid}").exists()
