"""Our own commands as child processes, located by the address they print, and supervised workers, which are restarted when they die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from schemas.errors import BrokerError, DriftlineError
from service.setup.settings import Settings
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.topics import SPANS, SPENDING, TEXT_KEYS, TOPICS, state_topic
from streams.log.admission import DEAD_LETTERS
from streams.process import handled, handled_in_loop
from streams.topology import Stage

PATIENCE = 60.0
"""Time limit for the start of a child, and for its stop, in seconds."""
_CONFIGURING = ("ANTHROPIC_", "DRIFTLINE_")
_LOG_END = 4096


class ChildError(DriftlineError):
    """A child process failed."""


@contextlib.contextmanager
def serving(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run a serving command while the context is open; yield the address it prints. Its log goes to the file.

    It gets only the given settings and keys, none from our environment. It has its own process group, so that Ctrl-C reaches
    only us and we stop our children in order. Raises ChildError if it ends before it serves, or does not stop properly.
    """
    # It imports the same modules as we do, and never a folder called `service` in the current directory.
    command = [sys.executable, "-P", "-m", "service.cli.main", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_CONFIGURING)}
    variables = inherited | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | dict(environment)
    with log.open("wb") as stream:
        child = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stream, text=True, process_group=0
        )
        try:
            yield _read_address(child, arguments[0], log)
        finally:
            _stop(child)
    if child.returncode:
        raise _describe_failure(arguments[0], f"ended with {child.returncode}", log)


def unwound_by_signals() -> contextlib.AbstractContextManager[None]:
    """Make SIGTERM and SIGHUP unwind all open contexts as Ctrl-C does, so that no child is left behind."""

    def leave(number: signal.Signals) -> NoReturn:
        raise SystemExit(128 + number)

    return handled(leave, [signal.SIGTERM, signal.SIGHUP])


def _read_address(child: subprocess.Popen[str], name: str, log: Path) -> str:
    """Return the address from the first line that contains one."""
    overdue = threading.Timer(PATIENCE, child.kill)
    overdue.start()
    try:
        for line in child.stdout or ():
            _, separator, rest = line.partition("http://")
            if separator:
                return separator + rest.split()[0]
    finally:
        overdue.cancel()
    raise _describe_failure(name, "ended before it served", log)


def _stop(child: subprocess.Popen[str]) -> None:
    """Ask the child to stop, and kill it if it does not stop in time."""
    child.terminate()
    try:
        child.communicate(timeout=PATIENCE)
    except BaseException as error:
        child.kill()
        child.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def _describe_failure(name: str, how: str, log: Path) -> ChildError:
    """Return the error with the last lines of the log."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _LOG_END))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("error: ").strip() for line in lines if line.startswith("error: ")] or [*map(str.strip, lines)]
    last = next(filter(None, reversed(errors)), "it logged nothing")
    return ChildError(f"driftline {name} {how}: {last}", hint=f"Its log is {log}.")


FIRST_BACKOFF, LAST_BACKOFF = 1.0, 30.0
"""Seconds before a dead process is restarted: first and maximum.

They double each time, until a process outlives the maximum.
"""
KILL_AFTER = 15.0
"""Seconds after the grace period until a process that does not stop is killed."""
log = logging.getLogger(__name__)


def partitions_of(connection: KafkaConnection, stages: Sequence[Stage], foreign: Collection[str] = ()) -> dict[str, int]:
    """Return the number of partitions of each stage's source. Raises BrokerError if a stage's topic is missing or differs.

    `foreign` are a Collector's topics, each with its own number, 0 if it does not exist.
    """
    with TopicAdministration(connection) as administration:
        there, foreign_topics = administration.describe(), administration.foreign(foreign)
    needed = {topic for stage in stages for topic in (stage.source, state_topic(stage.name), *stage.sinks)} | {DEAD_LETTERS}
    if foreign:
        needed.add(SPANS)
    if any(stage.judged for stage in stages):
        needed |= {"judgements", SPENDING}
    if connection.text_secret is not None:
        needed.add(TEXT_KEYS)
    missing = sorted(needed - there.keys())
    if missing:
        names = ", ".join(map(connection.topic, missing))
        raise BrokerError(f"Kafka at {connection.bootstrap} has no topic {names}", hint="Run driftline topics create.")
    keyed = {name: there[name].partitions for name in sorted(needed) if TOPICS[name].is_keyed}
    if len(set(keyed.values())) > 1:
        counts = ", ".join(f"{connection.topic(name)} has {count}" for name, count in keyed.items())
        raise BrokerError(
            f"the topics differ in their partitions, so a session is not on the same number everywhere: {counts}",
            hint="`driftline topics check` says what does not fit and what to do.",
        )
    ours = {stage.name: there[stage.source].partitions for stage in stages}
    return ours | {name: foreign_topics.get(name, 0) for name in foreign}


def supervise(settings: Settings, arguments: Sequence[str], processes: int) -> None:
    """Run a number of `driftline worker` processes with these arguments until a stop signal."""
    asyncio.run(_Supervisor(settings.judge_grace, arguments).run(processes))


class _Supervisor:
    def __init__(self, grace: float, arguments: Sequence[str]) -> None:
        self._grace = grace
        self._command = [sys.executable, "-P", "-m", "service.cli.main", "worker", *arguments]
        self._stopping = asyncio.Event()
        self._children: set[asyncio.subprocess.Process] = set()

    async def run(self, processes: int) -> None:
        """Supervise the processes; a second signal is passed on, so that they stop faster."""
        with handled_in_loop(self._handle_signal):
            await asyncio.gather(*(self._keep(number + 1) for number in range(processes)))

    async def _keep(self, number: int) -> None:
        backoff = FIRST_BACKOFF
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._child()
            if self._stopping.is_set():
                return
            backoff = FIRST_BACKOFF if time.monotonic() - started > LAST_BACKOFF else backoff
            log.error("worker %d ended with %d; it is started again in %.0f s", number, code, backoff)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff)
            backoff = min(2 * backoff, LAST_BACKOFF)

    async def _child(self) -> int:
        """Run one process to its end; return its exit code."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Its standard input closes when we end, for whatever reason. In its own process group it does not receive our Ctrl-C.
        child = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, env=environment, process_group=0
        )
        self._children.add(child)
        ended, stopping = asyncio.create_task(child.wait()), asyncio.create_task(self._stopping.wait())
        await asyncio.wait([ended, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            _signal(child, signal.SIGTERM)
            await asyncio.wait([ended], timeout=self._grace + KILL_AFTER)
            if not ended.done():
                log.error("worker process %d does not stop; it is killed", child.pid)
                _signal(child, signal.SIGKILL)
        stopping.cancel()
        code = await ended
        self._children.discard(child)
        if child.stdin is not None:
            child.stdin.close()
        return code

    def _handle_signal(self, _number: signal.Signals) -> None:
        if self._stopping.is_set():
            for child in self._children:
                _signal(child, signal.SIGTERM)
        self._stopping.set()


def _signal(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)
