"""Runs modules of ours as processes of their own, which end with their caller; from an event loop too."""

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
    """The command that runs a module of ours; it needs the variables that `environment` gives."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """Return the paths of modules, the given variables, and nothing of this process's own."""
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))} | variables


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends. On Linux; elsewhere it runs to its own end."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.asynccontextmanager
async def started(
    module: str, arguments: Sequence[str] = (), *, files: tuple[int, ...] = (), keeps_errors: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process with pipes, and with nothing of our environment; it is gone when the context is left.

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
        # A start that is cut short would leave a process that is never waited for.
        yield await asyncio.shield(starting)
    finally:
        await _end(await starting)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    cancellation = None
    while process.returncode is None:
        # A loop that closes cancels what is already being cancelled; left now, the process would never be waited for.
        try:
            await process.wait()
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
