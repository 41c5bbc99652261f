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
    earlier_calls: int = 0
    """Calls to the judge before the last change of its script."""
    codes: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of servers and workers that exited by themselves, by exit code."""

    @property
    def url(self) -> str:
        """Return the address of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def judge_calls(self) -> int:
        """Return the number of calls to the judge."""
        return self.earlier_calls + self.judge.requests

    def start(self, workers: int) -> None:
        """Start the server and this number of workers."""
        self.start_server()
        for _ in range(workers):
            self.workers.append(self.start_worker())

    def start_server(self) -> Child:
        """Start the server; it may not listen yet."""
        arguments = ("serve", "--kafka", self.broker.bootstrap, "--port", str(self.port))
        self.server = self.children.start(self.home, *arguments)
        return self.server

    def start_worker(self) -> Child:
        """Start a worker for all stages, with its supervisor."""
        return self.children.start(self.home, "worker", "--kafka", self.broker.bootstrap, "--stages", STAGES)

    def mood(self, script: str) -> None:
        """Change the behavior of the judge."""
        self.earlier_calls += self.judge.requests
        self.judge.reset(script)

    def victims(self) -> list[tuple[str, Child]]:
        """Return the processes that a fault may harm, with their kinds."""
        assert self.server is not None
        return [(SERVER, self.server), *(("worker", worker) for worker in self.workers)]

    def replace(self, child: Child) -> None:
        """Start a successor of a process that exited."""
        if child is self.server:
            self.start_server()
        else:
            self.workers[self.workers.index(child)] = self.start_worker()

    def supervise(self) -> None:
        """Restart processes that exited by themselves."""
        for kind, child in self.victims():
            if child.ended:
                self.codes[kind, child.wait()] += 1
                self.replace(child)

    def stop(self) -> None:
        """Stop the workers and then the server; the broker keeps running."""
        for child in [*self.workers, *([self.server] if self.server else [])]:
            if not child.ended:
                child.send(signal.SIGTERM)
            child.wait()
        self.workers.clear()
        self.server = None


def processes(child: Child) -> list[int]:
    """Return the children of a supervisor, or the process itself if it has none."""
    child_ids = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    return list(map(int, child_ids)) or [child.pid]


def frozen(pid: int) -> bool:
    """Return whether the process is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def exists(pid: int) -> bool:
    """Return whether the process exists."""
    return Path(f"/proc/{pid}").exists()
