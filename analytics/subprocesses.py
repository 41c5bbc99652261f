"""Run our own modules as child processes that end with their parent."""

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


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules. It needs the variables of `module_environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment(**variables: str) -> dict[str, str]:
    """Return an environment with the module path and the given variables, without other variables of this process."""
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))} | variables


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. Only Linux supports it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.asynccontextmanager
async def start_module(
    module: str, arguments: Sequence[str] = (), *, files: tuple[int, ...] = (), keeps_errors: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a module in a process with pipes, which ends when the context exits.

    `files` are descriptors that it inherits. With `keeps_errors`, its standard error is a pipe too.
    """
    variables = module_environment(POLARS_MAX_THREADS="1", MALLOC_ARENA_MAX="2")
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *module_command(module, *arguments),
            stdin=pipe, stdout=pipe, stderr=pipe if keeps_errors else nothing, env=variables, cwd="/", pass_fds=files,
        )
    )  # fmt: skip
    try:
        # Cancelling the start would leave a process that nobody waits for.
        yield await asyncio.shield(starting)
    finally:
        await _end(await starting)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    cancellation = None
    while process.returncode is None:
        # A closing event loop cancels again. Keep waiting, or the process would never be reaped.
        try:
            await process.wait()
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
