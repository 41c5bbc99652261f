"""Processes for analysts' statements and snapshots that are forked instead of started: for tests of what these answer.

Such a process loads for half a second before it does anything, and hundreds of tests ask for one. `forked` has `service.read.queries` get
its processes from the one that forks commands. Each still limits itself, reads the snapshot that it was handed open, and ends as it
would. In a soak run they are started as a server starts them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
from forking import Forked
from soak import SOAK

from analytics.sandbox.subprocesses import environment
from service.read.queries import pool as query_processes

CHUNK = 256 * 1024
_VARIABLES = {"POLARS_MAX_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


class _Input:
    """The writing end of a pipe, written to in a thread."""

    def __init__(self, file: int, threads: ThreadPoolExecutor) -> None:
        self._file, self._threads = file, threads
        self._content = b""

    def write(self, content: bytes) -> None:
        """Take something to write."""
        self._content += content

    async def drain(self) -> None:
        """Write it."""
        await asyncio.wrap_future(self._threads.submit(self._written))

    def _written(self) -> None:
        while self._content:
            self._content = self._content[os.write(self._file, self._content) :]

    def close(self) -> None:
        """Say that there is no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class _Output:
    """The reading end of a pipe, read in a thread."""

    def __init__(self, file: int, threads: ThreadPoolExecutor) -> None:
        self._file, self._threads = file, threads

    async def read(self, count: int = CHUNK) -> bytes:
        """So many bytes at most, none at the end."""
        return await asyncio.wrap_future(self._threads.submit(os.read, self._file, count))

    def close(self) -> None:
        """Give it back."""
        os.close(self._file)


class _Process:
    """As much of `asyncio.subprocess.Process` as `service.read.queries` uses."""

    def __init__(self, command: Forked, threads: ThreadPoolExecutor, stdin: int, stdout: int, stderr: int) -> None:
        self.stdin, self.stdout, self.stderr = _Input(stdin, threads), _Output(stdout, threads), _Output(stderr, threads)
        self._command = command
        self._code = threads.submit(command.wait)

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; nothing while it runs."""
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        """Its exit code once it has ended."""
        return await asyncio.wrap_future(self._code)

    async def communicate(self) -> tuple[bytes, bytes]:
        """What it has said of errors, once it has ended."""
        said = b""
        while chunk := await self.stderr.read():
            said += chunk
        await self.wait()
        return b"", said

    def close(self) -> None:
        """End it, and give everything back."""
        self._command.signal(signal.SIGKILL)
        self._code.exception()
        self.stdin.close()


@asynccontextmanager
async def _started(
    module: str,
    arguments: Sequence[str] = (),
    *,
    files: tuple[int, ...] = (),
    keeps_errors: bool = False,  # noqa: ARG001 - it always does
) -> AsyncIterator[_Process]:
    """What `service.read.queries.pool` has as `started`, with a process that was forked; it is gone when the context is left."""
    (given, stdin), (stdout, printed), (stderr, said) = os.pipe(), os.pipe(), os.pipe()
    command = Forked(arguments, Path("/"), environment(**_VARIABLES), [given, printed, said, *files], module)
    for end in (given, printed, said):
        os.close(end)
    with closing(command), ThreadPoolExecutor(4) as threads:
        process = _Process(command, threads, stdin, stdout, stderr)
        try:
            yield process
        finally:
            process.close()
    process.stdout.close()
    process.stderr.close()


@contextmanager
def forked() -> Iterator[None]:
    """Have processes forked while the context is open, unless this is a soak run."""
    with pytest.MonkeyPatch.context() as patch:
        if not SOAK:
            patch.setattr(query_processes, "started", _started)
            patch.setattr(query_processes, "Task", lambda _file, *task: _TASK("/proc/self/fd/3", *task))
        yield


_TASK = query_processes.Task
