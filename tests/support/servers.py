"""Servers for tests: real `driftline serve` processes over a file of their own, to be killed, frozen and stopped.

Loading what a server imports takes seconds. A process that has loaded it already forks: each child then runs the command line from
its beginning, as a process of its own that opens the file, migrates, recovers and listens. All nurseries of a test run's worker share
one such process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now

PATIENCE = 300.0
"""Seconds that no sound server needs for anything."""
LONG = 600.0
"""Seconds that nothing takes, however busy the machine: for what is many times slower beside others."""
ROOT = Path(__file__).parents[2]
_CLEAN = ("ANTHROPIC_", "DRIFTLINE_")
PRELOADED = """
    import importlib, pkgutil

    import anthropic, fastapi.openapi.utils, h11, httpx2, numpy, polars, pythonjsonlogger.json, uvicorn, uvloop
    import service.cli.main, service.cli.commands, service.read.queries.building, service.read.queries.template, service.server.server_lifecycle, streams.judges.live

    for found in pkgutil.walk_packages(service.cli.commands.__path__, "service.cli.commands."):
        importlib.import_module(found.name)
"""
"""What a process that forks commands loads before."""
_FORKING = """
    import json, os, resource, sys

    def become(wanted):
        for name, mode, number in (("/dev/null", os.O_RDONLY, 0), (wanted["out"], os.O_WRONLY, 1), (wanted["log"], os.O_WRONLY, 2)):
            file = os.open(name, mode | os.O_CREAT | (os.O_APPEND if number else 0), 0o600)
            os.dup2(file, number)
            os.close(file)
        if wanted["file_size"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (wanted["file_size"], resource.RLIM_INFINITY))
        os.chdir(wanted["folder"])
        os.environ.clear()
        os.environ.update(wanted["environment"])
        exec(wanted["before"], {})
        sys.argv = ["driftline", *wanted["arguments"]]
        service.cli.main.main()

    for line in sys.stdin:
        wanted = json.loads(line)
        if "wait" in wanted:
            print(os.waitstatus_to_exitcode(os.waitpid(wanted["wait"], 0)[1]), flush=True)
        elif (pid := os.fork()) == 0:
            become(wanted)
        else:
            print(pid, flush=True)
"""


def until(condition: Callable[[], bool], description: str, patience: float = PATIENCE) -> None:
    """Return as soon as the condition holds; if it never does, fail with the description of the condition."""
    ends_at = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < ends_at, f"waited {patience:g} s for {description}"
        time.sleep(0.005)


class Home:
    """A folder with a database, its tokens, a policy and the log of its server."""

    def __init__(self, folder: Path, policy: str = "version: 1\ndefaults: {retentionDays: null}\n", **environment: str) -> None:
        self.database = folder / "fleet.duckdb"
        self.policy = folder / "policy.yaml"
        self.log = folder / "server.log"
        self.tokens: dict[str, str] = {}
        self.policy.write_text(policy)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_CLEAN)}
        variables = {"DRIFTLINE_DATABASE": str(self.database), "DRIFTLINE_POLICY": str(self.policy)}
        self.environment = inherited | variables | {"PYTHONPATH": str(ROOT)} | environment

    def connection(self, name: str, project: str = "ops") -> str:
        """Return a connection's token, created on the first call."""
        return self._token(Holder("connection", name, project))

    def operator(self) -> str:
        """Return the token of an operator of every project."""
        return self._token(Holder("operator", "root", None))

    def _token(self, holder: Holder) -> str:
        if holder.name not in self.tokens:
            with AccessStore(access_file(self.database), utc_now) as access:
                self.tokens[holder.name] = access.add(holder)
        return self.tokens[holder.name]


class Child:
    """A command that runs in its own process."""

    def __init__(self, pid: int, log: Path, out: Path, reap: Callable[[int], int]) -> None:
        self.pid = pid
        self._log, self._out = log, out
        self._reap = reap
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None

    @property
    def printed(self) -> str:
        """Return the output so far."""
        return self._out.read_text() if self._out.exists() else ""

    @property
    def logged(self) -> str:
        """Return the error output so far, including that of previous processes in this folder."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self.ends_within(0)

    @property
    def listens(self) -> bool:
        """Return whether the server has announced that it listens."""
        return "/docs" in self.printed

    def serving(self) -> str:
        """Wait until the server listens, and return its address."""
        until(lambda: self.listens or self.ended, "a server to say where it listens")
        assert self.listens, self.logged[-4000:]
        return "http://" + self.printed.split("http://", 1)[1].split()[0]

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> int:
        """Kill the process, as a power failure would."""
        if not self.ended:
            self.send(signal.SIGKILL)
        return self.wait()

    def ends_within(self, seconds: float) -> bool:
        """Wait up to this long, and return whether the process has ended."""
        return self._code is not None or bool(select.select([self._pidfd], [], [], seconds)[0])

    def wait(self, patience: float = PATIENCE) -> int:
        """Return the exit code, negative for a signal; fail if the process does not end in time."""
        if self._code is None:
            assert self.ends_within(patience), f"still running after {patience:g} s: {self.logged[-4000:]}"
            self._code = self._reap(self.pid)
            os.close(self._pidfd)
        return self._code


class _Forking:
    """The process that forks commands, for as long as this process runs."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", textwrap.dedent(PRELOADED) + textwrap.dedent(_FORKING)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            text=True,
        )
        self._asking = threading.Lock()
        atexit.register(self.close)

    def ask(self, request: Mapping[str, Any]) -> int:
        """Start a command and return its process id, or reap an ended one and return its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the forking process."""
        with closing(self._process.stdout), closing(self._process.stdin):  # type: ignore[type-var]
            self._process.stdin.close()  # type: ignore[union-attr]
            self._process.wait(PATIENCE)


_forking = functools.cache(_Forking)


class Nursery:
    """Starts commands; see the module."""

    def __init__(self) -> None:
        self._forking = _forking()
        self._children: list[Child] = []

    def start(
        self,
        home: Home,
        *arguments: str,
        file_size: int = 0,
        environment: Mapping[str, str] | None = None,
        before: str = "",
        folder: Path = ROOT,
    ) -> Child:
        """Start a command in a folder.

        `file_size` bounds the files it may write, in bytes (0: as they are), `before` is Python to run first.
        """
        out = home.log.with_name(f"out-{len(self._children)}")
        command_environment = home.environment | dict(environment or {})
        request = {"arguments": arguments, "environment": command_environment, "file_size": file_size, "before": before}
        request |= {"out": str(out), "log": str(home.log), "folder": str(folder)}
        child = Child(self._forking.ask(request), home.log, out, lambda pid: self._forking.ask({"wait": pid}))
        self._children.append(child)
        return child

    def serve(self, home: Home, *arguments: str, **options: Any) -> Child:
        """Start a server on a free port; it does not listen yet."""
        return self.start(home, "serve", "--port", "0", *arguments, **options)

    def run(self, home: Home, *arguments: str, **options: Any) -> tuple[int, str]:
        """Run a command to its end, and return its exit code and output."""
        child = self.start(home, *arguments, **options)
        return child.wait(), child.printed

    def close(self) -> None:
        """Kill every started process."""
        for child in self._children:
            child.kill()


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Yield a nursery whose processes end with the context."""
    with contextlib.closing(Nursery()) as opened:
        yield opened
