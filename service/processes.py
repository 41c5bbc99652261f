"""Commands of our own as child processes: started, known by the address they print, and stopped as a person would stop them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from schemas.errors import DriftlineError

PATIENCE = 60.0
"""Seconds that a child may take to stop."""


class ChildError(DriftlineError):
    """A command that was started did not do its work."""


@contextlib.contextmanager
def serving(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run a command that serves, while the context is open; gives the address it prints. What it logs goes to the file.

    ChildError when it ends before it serves, or does not stop properly.
    """
    command = [sys.executable, "-m", "service.cli", *arguments]
    with log.open("wb") as stream:
        child = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=stream, text=True)
        try:
            yield _address(child, arguments[0], log)
        finally:
            child.terminate()
            try:
                child.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
    if child.returncode:
        raise ChildError(f"driftline {arguments[0]} ended with {child.returncode}", hint=f"Its log is {log}.")


def _address(child: subprocess.Popen[str], name: str, log: Path) -> str:
    """The address in the first line that has one."""
    if child.stdout is not None:
        for line in child.stdout:
            _, found, rest = line.partition("http://")
            if found:
                return found + rest.split()[0]
    raise ChildError(f"driftline {name} ended before it served", hint=f"Its log is {log}.")
