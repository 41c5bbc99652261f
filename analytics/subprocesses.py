"""Runs our own modules as child processes that end with their caller, also from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

PR_SET_PDEATHSIG = 1


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules; it needs the variables from `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """Return an environment with the module path and the given variables, and no other variable of this process."""
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))} | variables


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Linux only; elsewhere the process runs to its own end."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.asynccontextmanager
async def started(
    module: str, arguments: Sequence[str] = (), *, files: tuple[int, ...] = (), keeps_errors: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process with pipes and without our environment; it has ended when the context exits.

    `files` are descriptors that it inherits; `keeps_errors` gives its standard error a pipe, too.
    """
    variables = environment(POLARS_MAX_THREADS="1", MALLOC_ARENA_MAX="2")
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command(module, *arguments),
            stdin=pipe, stdout=pipe, stderr=pipe if keeps_errors else nothing, env=variables, cwd="/", pass_fds=files,
        )
    )  # fmt: skip
    try:
        # A cancelled start would leave a process that nobody waits for.
        yield await asyncio.shield(starting)
    finally:
        await _end(await starting)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    cancellation = None
    while process.returncode is None:
        # A closing loop cancels a second time. Keep waiting, or nobody would wait for the process.
        try:
            await process.wait()
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
