"""A process that has loaded the command line and forks: `driftline` in a shell, without loading it anew for every command.

Who wants a command run connects to a socket, says module, arguments, folder and variables, and passes its open files along, input,
output and error output first;
the answer is the command's process id, and its exit code when it has ended. One such process serves a whole worker of a test run.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.effort import SOAK
from support.servers import PATIENCE, PRELOADED, ROOT

from analytics.subprocesses import module_environment
from service.read.queries import pool as query_processes

COMMAND = "service.cli.main"
_SERVER = """
    import json, os, select, signal, socket, sys

    def command(wanted, files):
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(wanted["folder"])
        os.environ.clear()
        os.environ.update(wanted["variables"])
        os.cpu_count = lambda: 1  # a replay in as many processes as there are cores would have each load everything anew
        sys.argv = ["driftline", *wanted["arguments"]]
        sys.exit(importlib.import_module(wanted["module"]).main())

    def keep(caller):
        message, files, _, _ = socket.recv_fds(caller, 1 << 20, 4)
        while not message.endswith(b"\\n"):
            message += caller.recv(1 << 20)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if (pid := os.fork()) == 0:
            caller.close()
            command(json.loads(message), files)
        caller.sendall(b"%d\\n" % pid)
        for file in files:
            os.close(file)
        caller.sendall(b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("listening", flush=True)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            caller, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                keep(caller)
            caller.close()
"""
_CLIENT = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as caller:
    caller.connect({address!r})
    wanted = {{"module": {module!r}, "arguments": sys.argv[1:], "folder": os.getcwd(), "variables": dict(os.environ)}}
    socket.send_fds(caller, [json.dumps(wanted).encode() + b"\\n"], [0, 1, 2])
    with caller.makefile() as answers:
        answers.readline()
        sys.exit(int(answers.readline()) & 255)
"""


class Forked:
    """A command in a forked process, with these open files as its first descriptors."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, variables: Mapping[str, str], files: Sequence[int], module: str = COMMAND
    ) -> None:
        address, _ = forking()
        request = {"module": module, "arguments": arguments, "folder": str(folder), "variables": variables}
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(PATIENCE)
            caller.connect(address)
            socket.send_fds(caller, [json.dumps(request).encode() + b"\n"], files)
            self._answers = caller.makefile()
        self.pid = int(self._answers.readline())
        self._process = os.pidfd_open(self.pid)

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return bool(select.select([self._process], [], [], 0)[0])

    def send(self, number: signal.Signals) -> int:
        """Send the process a signal and return its exit code once it has ended."""
        self.signal(number)
        return self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal unless it has ended."""
        if not self.has_ended:
            signal.pidfd_send_signal(self._process, number)

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code, negative for a signal."""
        return int(self._answers.readline())

    def close(self) -> None:
        """Kill the process."""
        if not self._answers.closed:
            self.signal(signal.SIGKILL)
            os.close(self._process)
            self._answers.close()


@functools.cache
def forking() -> tuple[str, str]:
    """Return the address of the forking process and a `driftline` script that runs its arguments there."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    # A socket's address has to be short, and a test's folder is not.
    address = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driftline-forking-"))) / "commands")
    return stack.enter_context(_served(address))


@contextlib.contextmanager
def _served(address: str) -> Iterator[tuple[str, str]]:
    server: Any = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PRELOADED) + textwrap.dedent(_SERVER), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    with server:
        assert server.stdout.readline().strip() == "listening"
        yield address, _CLIENT.format(python=sys.executable, address=address, module=COMMAND)
        server.stdin.close()
        server.wait(PATIENCE)


CHUNK = 256 * 1024
_VARIABLES = {"POLARS_MAX_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


class _Input:
    """The writing end of a pipe, written to in a thread."""

    def __init__(self, file: int, threads: ThreadPoolExecutor) -> None:
        self._file, self._threads = file, threads
        self._content = b""

    def write(self, content: bytes) -> None:
        """Queue data to write."""
        self._content += content

    async def drain(self) -> None:
        """Write the queued data."""
        await asyncio.wrap_future(self._threads.submit(self._written))

    def _written(self) -> None:
        while self._content:
            self._content = self._content[os.write(self._file, self._content) :]

    def close(self) -> None:
        """Signal the end of the data."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class _Output:
    """The reading end of a pipe, read in a thread."""

    def __init__(self, file: int, threads: ThreadPoolExecutor) -> None:
        self._file, self._threads = file, threads

    async def read(self, count: int = CHUNK) -> bytes:
        """Read at most this many bytes; return no bytes at the end."""
        return await asyncio.wrap_future(self._threads.submit(os.read, self._file, count))

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._file)


class _Process:
    """The part of `asyncio.subprocess.Process` that `service.read.queries` uses."""

    def __init__(self, command: Forked, threads: ThreadPoolExecutor, stdin: int, stdout: int, stderr: int) -> None:
        self.stdin, self.stdout, self.stderr = _Input(stdin, threads), _Output(stdout, threads), _Output(stderr, threads)
        self._command = command
        self._code = threads.submit(command.wait)

    @property
    def returncode(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return await asyncio.wrap_future(self._code)

    async def communicate(self) -> tuple[bytes, bytes]:
        """Wait for the end of the process and return its error output."""
        errors = b""
        while chunk := await self.stderr.read():
            errors += chunk
        await self.wait()
        return b"", errors

    def close(self) -> None:
        """Kill the process and close its pipes."""
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
    """Replace the `start_module` of `service.read.queries.pool` by a forked process, which ends with the context."""
    (given, stdin), (stdout, printed), (stderr, said) = os.pipe(), os.pipe(), os.pipe()
    # A forked process has its files from 3 on, whatever their numbers are here.
    numbers = {
        f"{folder}{number}": f"{folder}{position}"
        for position, number in enumerate(files, 3)
        for folder in ("", "/proc/self/fd/")
    }
    arguments = [numbers.get(argument, argument) for argument in arguments]
    command = Forked(arguments, Path("/"), module_environment(**_VARIABLES), [given, printed, said, *files], module)
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
    """Fork processes while the context is open, unless this is a soak run."""
    with pytest.MonkeyPatch.context() as patch:
        if not SOAK:
            patch.setattr(query_processes, "start_module", _started)
        yield
