"""Processes of tests: ended with the test run, on a free port, started or made once per run; and tests that skip without a program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

# Below the ports that the kernel hands out to clients: one of those could sit on a stopped broker's port, or connect to itself.
PORTS = range(20_000, 30_000)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock, which the system releases when the process ends for any reason."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def tied(command: list[str], output: int) -> subprocess.Popen[bytes]:
    """Run a command that is killed when this process ends for any reason, unless `untie` is called first.

    A shell's child waits at a pipe of ours; the shell itself becomes the command, so its process is the one we signal. Linux's own
    way (PR_SET_PDEATHSIG) would also kill it when only the thread that started it ends.
    """
    script = 'exec 3<&0; (read -r _ <&3 || kill -9 $$) & exec "$@" 3<&- </dev/null'
    arguments = ["sh", "-c", script, "sh", *command]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)


def untie(process: subprocess.Popen[bytes]) -> None:
    """Stop tracking the process: its id may be reused once it has ended."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"\n")
        process.stdin.flush()
    process.stdin.close()


def free_port() -> int:
    """Return a free port of the loopback interface."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder of this name that all workers share, filled by `make`; other workers wait meanwhile."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            unfinished = folder.with_suffix(".new")
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def skip_or_fail(reason: object) -> NoReturn:
    """Skip the test with the missing requirement as the reason; in CI, fail instead, because nobody reads skips there."""
    if "CI" in os.environ:
        pytest.fail(f"CI has to run this test: {reason}", pytrace=False)
    pytest.skip(str(reason))
