"""A process beside the server that maps large requests of spans, which is nearly half of what a span costs.

1. It starts when large requests come one after the other, and ends when none came for a while: a server at rest has one process, and so
   has one that is sent a request now and then. Until it is ready, requests are mapped in the server.
2. Requests are handed to it in order, a few ahead, so that it maps the next one while the server commits the last.
3. Its end costs no request anything: when it ends, or does not answer in time, the requests it had are mapped in the server.
   Nothing was durable before its answer, so that no span is lost or taken twice. That is counted and logged, and another one starts
   a while later.
4. It ends with the server, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from analytics.sandbox.running import started
from service.otlp.frames import LENGTH_BYTES, length, length_of

MODULE = "service.otlp.mapping_child"
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The processor time that Linux grants to a container, in microseconds per period."""
READ_AHEAD = 1024 * 1024
"""Bytes of an answer that are read before they are asked for: more than a request of 500 spans has."""
log = logging.getLogger(__name__)


class MappingLimits(NamedTuple):
    """The limits of the process, in seconds and in bytes."""

    large: int = 32 * 1024
    """Bytes of a request from which on it is handed over, some 40 spans; a packed one counts `packed` times."""
    packed: int = 8
    many: int = 8
    """Large requests within `busy` seconds that start the process."""
    busy: float = 10.0
    idle: float = 60.0
    """Seconds without a large request after which the process ends."""
    starting: float = 60.0
    """Seconds within which it has to begin; requests do not wait for it."""
    patience: float = 20.0
    """Seconds for an answer, and one more for each `pace` bytes of the request: a fiftieth of what an idle machine maps in one."""
    pace: int = 250_000
    again: float = 10.0
    """Seconds after a failure before another one starts."""
    ahead: int = 2
    """Requests that it is handed at a time."""


class _FailedError(Exception):
    """The process cannot go on, in words."""


class MappingProcess:
    """See the module. Belongs to one event loop; knows nothing of what is asked and answered. `cores` are those that the server may use."""

    def __init__(
        self,
        limits: MappingLimits | None = None,
        *,
        cores: int | None = None,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        self._limits = limits or MappingLimits()
        self._is_of_use = (granted_cores() if cores is None else cores) > 1
        self._on_failure = on_failure
        self._large: deque[float] = deque(maxlen=self._limits.many)
        """The times of the last large requests."""
        self._not_before = 0.0
        self._conversation: _Conversation | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int | None:
        """The process that large requests are handed to; None if they are mapped in the server."""
        return None if self._conversation is None else self._conversation.process_id

    def is_large(self, body: bytes, *, is_packed: bool) -> bool:
        """Tell whether a request is worth handing over."""
        return len(body) * (self._limits.packed if is_packed else 1) >= self._limits.large

    async def ask(self, task: bytes, body: bytes) -> bytes | None:
        """Return the answer to a task about a body; None if the caller has to do it: there is no process, or it has failed."""
        conversation = self._conversation
        if conversation is None:
            self._start_if_busy()
            return None
        return await conversation.ask(task, body) or None

    async def close(self) -> None:
        """End the process, if there is one; what it was asked is answered None."""
        self._is_of_use = False
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _start_if_busy(self) -> None:
        now = time.monotonic()
        self._large.append(now)
        is_busy = len(self._large) == self._limits.many and now - self._large[0] < self._limits.busy
        if is_busy and self._is_of_use and self._running is None and now >= self._not_before:
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Run a process until it is idle; whatever ends it before is counted and logged."""
        try:
            async with started(MODULE, limit=READ_AHEAD) as process:
                await self._converse(_Conversation(process, self._limits))
        except OSError as error:
            self._failed(f"cannot be started: {error}")
        finally:
            self._running = None

    async def _converse(self, conversation: _Conversation) -> None:
        try:
            await conversation.begin()
            self._conversation = conversation
            await conversation.answer()
        except _FailedError as error:
            self._failed(str(error))
        finally:
            self._conversation = None
            conversation.end()

    def _failed(self, words: str) -> None:
        self._not_before = time.monotonic() + self._limits.again
        self._on_failure()
        log.warning("requests of spans are mapped in the server: the process beside it %s", words)


class _Conversation:
    """The tasks of a process and their answers, in order."""

    def __init__(self, process: asyncio.subprocess.Process, limits: MappingLimits) -> None:
        self.process_id = process.pid
        self._process = process
        self._limits = limits
        self._asked: deque[tuple[asyncio.Future[bytes], int]] = deque()
        """The answers that are waited for, each with the size of its request."""
        self._room = asyncio.Semaphore(limits.ahead)
        self._changed = asyncio.Event()
        self._has_ended = False

    async def ask(self, task: bytes, body: bytes) -> bytes:
        """Return the answer; nothing if there is none."""
        # Given back with the answer: whoever goes away leaves one that has to be read.
        await self._room.acquire()
        if self._has_ended:
            self._room.release()
            return b""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked.append((answer, len(body)))
        self._changed.set()
        assert self._process.stdin is not None  # noqa: S101 - it was started with pipes
        with contextlib.suppress(OSError, RuntimeError):  # it has ended, which is heard next
            self._process.stdin.writelines((length_of(task), task, length_of(body), body))
        return await answer

    async def begin(self) -> None:
        """Return when the process is ready."""
        await self._heard(self._limits.starting)

    async def answer(self) -> None:
        """Hand on the answers; return when nothing was asked for a while."""
        while await self._is_asked():
            answer, size = self._asked[0]
            told = await self._heard(self._limits.patience + size / self._limits.pace)
            self._asked.popleft()
            self._settle(answer, told)

    def end(self) -> None:
        """Answer nothing to the callers that wait."""
        self._has_ended = True
        for answer, _ in self._asked:
            self._settle(answer, b"")

    def _settle(self, answer: asyncio.Future[bytes], told: bytes) -> None:
        self._room.release()
        if not answer.done():
            answer.set_result(told)

    async def _is_asked(self) -> bool:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            if not self._asked:
                async with asyncio.timeout(self._limits.idle):
                    await self._changed.wait()
        return bool(self._asked)

    async def _heard(self, seconds: float) -> bytes:
        """Return the content of the next frame."""
        assert self._process.stdout is not None  # noqa: S101 - it was started with pipes
        try:
            async with asyncio.timeout(seconds):
                head = await self._process.stdout.readexactly(LENGTH_BYTES)
                return await self._process.stdout.readexactly(length(head))
        except TimeoutError:
            raise _FailedError(f"did not answer within {seconds:.0f} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _FailedError(f"ended with {await self._process.wait()}") from None


def granted_cores(quota: Path = QUOTA) -> int:
    """Return how many cores this process may use: those of the machine that it may run on, and no more than its container is granted."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        granted, period = map(int, quota.read_text().split())  # "max" where there is no bound
        return max(1, min(known, granted // period))
    return known
