"""Modules of ours that run as processes of their own: how they are called, with what, and that they end with who called them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
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
