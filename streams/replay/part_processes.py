"""The parts of a replay in processes of their own, and their progress reports."""

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
from streams.judging.call_budget import StoppedError
from streams.process import collect_rarely, end_with_parent

log = logging.getLogger(__name__)
# Forked processes would inherit DuckDB's and polars' locks without the threads that hold them.
_SPAWN = multiprocessing.get_context("spawn")
STOP_SECONDS = 60.0
"""Seconds that parts may take to finish running calls."""


class Heard(NamedTuple):
    """A progress report of a part: its position, and how many more exchanges were seen and questions answered."""

    number: int
    position: int = 0
    seen: int = 0
    answered: int = 0


Tell = Callable[[Heard], None]
Work = Callable[[int, Tell], Any]
"""Works on the part with a number and reports its progress; it must be picklable."""


class PartError(DriftlineError):
    """A bug of Driftline ended a part of a replay."""


@dataclass(frozen=True)
class _Done:
    number: int
    result: Any


def in_processes(work: Work, numbers: Sequence[int], workers: int, tell: Tell) -> list[Any]:
    """Work on the parts in parallel, each in a process of its own; with a single process, one after another in this process.

    Returns the result of each. Raises the first DriftlineError of a part, after an orderly stop of the others; StoppedError when a part
    was told to stop.
    """
    if workers == 1 or len(numbers) == 1:
        return [work(number, tell) for number in numbers]
    waiting, running, results = list(numbers), dict[Connection, SpawnProcess](), dict[int, Any]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                receiver, sender = _SPAWN.Pipe(duplex=False)
                number = waiting.pop(0)
                running[receiver] = _SPAWN.Process(target=_run, args=(work, number, sender), name=f"replay part {number}")
                running[receiver].start()
                sender.close()
            for receiver in [ready for ready in wait(list(running)) if isinstance(ready, Connection)]:
                news = _receive(receiver, running[receiver])
                if isinstance(news, Heard):
                    tell(news)
                elif isinstance(news, _Done):
                    results[news.number] = news.result
                    running.pop(receiver).join()
                    receiver.close()
                else:
                    raise news
    finally:
        _stop(running)
    return [results[number] for number in numbers]


def _receive(receiver: Connection, process: SpawnProcess) -> Heard | _Done | Exception:
    try:
        news: Heard | _Done | Exception = receiver.recv()
    except EOFError:
        process.join()
        return PartError(f"{process.name} ended with {process.exitcode}", hint="Run the command again to continue.")
    return news


def _stop(running: dict[Connection, SpawnProcess]) -> None:
    """Ask the running parts for an orderly stop, and make sure that they stop."""
    for process in running.values():
        with contextlib.suppress(OSError):
            process.terminate()
    for receiver, process in running.items():
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        receiver.close()


def _run(work: Work, number: int, sender: Connection) -> None:
    """Run a part in its process: end with the parent, leave Ctrl-C to it, and send it the result or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    end_with_parent()
    try:
        news: _Done | Exception = _Done(number, work(number, sender.send))
    except (DriftlineError, StoppedError) as error:
        news = error
    except BaseException as error:
        log.exception("part %d of the replay failed", number)
        news = PartError(f"part {number}: {type(error).__name__}: {error}")
    sender.send(news)
    sender.close()
    # DuckDB's bindings print a page about leaked references at interpreter shutdown; everything is closed by now.
    os._exit(0)
