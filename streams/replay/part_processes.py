"""The parts of a replay in processes of their own, and what is heard of them."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

from schemas.errors import DriftlineError
from streams.garbage_collection import collect_rarely
from streams.judging.call_budget import StoppedError
from streams.stop_signals import end_with_parent

log = logging.getLogger(__name__)
_SPAWN = multiprocessing.get_context("spawn")
STOP_SECONDS = 60.0
"""Seconds that parts may take to end the calls that are under way."""


class Heard(NamedTuple):
    """News of a part: where it is, how many more exchanges were seen and questions answered; its result at the end."""

    number: int
    position: int = 0
    seen: int = 0
    answered: int = 0
    result: Any = None
    is_done: bool = False


Work = Callable[[int, Callable[[Heard], None]], Any]
"""Works on the part of a number and tells of it; it can be pickled."""


class PartError(DriftlineError):
    """A part of a replay ended by a fault of Driftline."""


@dataclass(frozen=True)
class _Failed:
    """The error with which a part gave up."""

    message: str
    hint: str
    kind: str


def in_processes(work: Work, numbers: Sequence[int], workers: int, tell: Callable[[Heard], None]) -> list[Any]:
    """Work on the parts, so many at once, each in a process of its own; one after the other in this one where it is one.

    Answers the result of each. DriftlineError of the first part that has one, after the others were stopped in order; StoppedError
    when a part was told to stop.
    """
    if workers == 1 or len(numbers) == 1:
        return [work(number, tell) for number in numbers]
    waiting, running, results = list(numbers), dict[Connection, SpawnProcess](), dict[int, Any]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                receiver, process = _started(work, waiting.pop(0))
                running[receiver] = process
            for receiver in [one for one in wait(list(running)) if isinstance(one, Connection)]:
                heard = _heard(receiver, running[receiver])
                if isinstance(heard, _Failed):
                    raise _error(heard)
                if heard.is_done:
                    results[heard.number] = heard.result
                    running.pop(receiver).join()
                    receiver.close()
                else:
                    tell(heard)
    finally:
        _stop(running)
    return [results[number] for number in numbers]


def _started(work: Work, number: int) -> tuple[Connection, SpawnProcess]:
    # Forked processes would inherit DuckDB's and polars' locks without the threads that hold them.
    receiver, sender = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_child, args=(work, number, sender), name=f"replay part {number}")
    process.start()
    sender.close()
    return receiver, process


def _heard(receiver: Connection, process: SpawnProcess) -> Heard | _Failed:
    try:
        heard: Heard | _Failed = receiver.recv()
    except EOFError:
        process.join()
        return _Failed(f"{process.name} ended with {process.exitcode}", "Run the command again to continue.", "")
    return heard


def _error(failed: _Failed) -> Exception:
    if failed.kind == StoppedError.__name__:
        return StoppedError()
    return PartError(failed.message, hint=failed.hint)


def _stop(running: dict[Connection, SpawnProcess]) -> None:
    """Ask the parts that still run to stop in order, and see that they do."""
    for process in running.values():
        with contextlib.suppress(OSError):
            process.terminate()
    for receiver, process in running.items():
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        receiver.close()


def _child(work: Work, number: int, sender: Connection) -> None:
    """Run a part in its process: end with the parent, leave Ctrl-C to it, and report the outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    end_with_parent()
    sender.send(_outcome(work, number, sender))
    sender.close()
    # DuckDB's bindings print a page about leaked references when the interpreter is torn down; everything is closed by now.
    os._exit(0)


def _outcome(work: Work, number: int, sender: Connection) -> Heard | _Failed:
    try:
        return Heard(number, result=work(number, sender.send), is_done=True)
    except DriftlineError as error:
        return _Failed(str(error), error.hint, type(error).__name__)
    except StoppedError:
        return _Failed("", "", StoppedError.__name__)
    except BaseException as error:
        log.exception("part %d of the replay failed", number)
        return _Failed(f"part {number}: {type(error).__name__}: {error}", "", "")
