"""Our own commands as child processes: started, known by the address they print, and stopped in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from schemas.errors import DriftlineError
from streams.process import handled

PATIENCE = 60.0
"""Seconds that a child may take to start, and to stop."""
_CONFIGURING = ("ANTHROPIC_", "DRIFTLINE_")
_LOG_END = 4096


class ChildError(DriftlineError):
    """A command that was started failed."""


@contextlib.contextmanager
def serving(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run a command that serves while the context is open; yield the address it prints. Its log goes to the file.

    Of the settings and keys in our own environment it gets none, only those that are given. It belongs to a process group of its
    own, so that Ctrl-C reaches us alone and we stop our children in order. ChildError when it ends before it serves, or does not
    stop properly.
    """
    # It imports what we import, wherever we found it, and never a folder called `service` of whoever stands there.
    command = [sys.executable, "-P", "-m", "service.cli.main", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_CONFIGURING)}
    given = inherited | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | dict(environment)
    with log.open("wb") as stream:
        child = subprocess.Popen(
            command, env=given, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stream, text=True, process_group=0
        )
        try:
            yield _address(child, arguments[0], log)
        finally:
            _stop(child)
    if child.returncode:
        raise _failed(arguments[0], f"ended with {child.returncode}", log)


def unwound_by_signals() -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP end us as Ctrl-C does, through every open context, so that no child is left behind."""

    def leave(number: signal.Signals) -> NoReturn:
        raise SystemExit(128 + number)

    return handled(leave, [signal.SIGTERM, signal.SIGHUP])


def _address(child: subprocess.Popen[str], name: str, log: Path) -> str:
    """Return the address in the first line that has one."""
    overdue = threading.Timer(PATIENCE, child.kill)
    overdue.start()
    try:
        for line in child.stdout or ():
            _, found, rest = line.partition("http://")
            if found:
                return found + rest.split()[0]
    finally:
        overdue.cancel()
    raise _failed(name, "ended before it served", log)


def _stop(child: subprocess.Popen[str]) -> None:
    """Ask the child to stop, and make sure that it does."""
    child.terminate()
    try:
        child.communicate(timeout=PATIENCE)
    except BaseException as error:
        child.kill()
        child.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def _failed(name: str, how: str, log: Path) -> ChildError:
    """Return the error with the last lines of the log."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _LOG_END))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    said = [line.removeprefix("error: ").strip() for line in lines if line.startswith("error: ")] or [*map(str.strip, lines)]
    last = next(filter(None, reversed(said)), "it logged nothing")
    return ChildError(f"driftline {name} {how}: {last}", hint=f"Its log is {log}.")
