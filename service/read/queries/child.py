"""The child process that answers one statement. It applies its limits before it runs anything.

1. It dies with the server, at its time limit, and at its CPU limit.
2. It cannot exceed its memory limit, write to any file, open many files, or dump core.
3. The snapshot is an unlinked file whose descriptor it inherits. DuckDB can read no other file, and its settings are locked.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys
from contextlib import suppress

import msgspec

from analytics.adhoc import CATALOG_HINT, FORMATS, fetch_limited, open_snapshot
from analytics.subprocesses import end_with_parent
from schemas.errors import QueryError
from service.read.queries.protocol import Outcome, QueryLimits, Task

FILES = 64
NICE = 10
PR_SET_NO_NEW_PRIVS = 38
LOOK_FIRST_HERE = "SHOW TABLES lists the tables and views, DESCRIBE turns the columns of one."
OUT_OF_MEMORY = "Out of Memory Error"
"""The beginning of DuckDB's message. The rest advises to change settings, which are locked here."""
TOO_MUCH = Outcome(
    error="the statement needs more memory than allowed", hint="Query less at once: fewer columns, a shorter time."
)


def main() -> None:
    """Read a task from standard input; write its outcome as a line of JSON, and after it the bytes of the answer."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    limit_process(task.limits)
    try:
        outcome, body = _answer_task(task)
    except QueryError as error:
        outcome, body = _refuse_statement(error), b""
    except MemoryError:
        outcome, body = TOO_MUCH, b""
    except BaseException as error:
        # Out of memory, polars raises its own exception, which is not a subclass of Exception.
        if not type(error).__name__.startswith("Panic"):
            raise
        outcome, body = TOO_MUCH, b""
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n" + body)
    sys.stdout.buffer.flush()
    os._exit(0)  # Exit at once: closing DuckDB takes as long as a small statement, and there is nothing to clean up.


def _refuse_statement(error: QueryError) -> Outcome:
    if str(error).startswith(OUT_OF_MEMORY):
        return TOO_MUCH
    return Outcome(error=str(error), hint=LOOK_FIRST_HERE if error.hint == CATALOG_HINT else error.hint)


def limit_process(limits: QueryLimits) -> None:
    """Set the limits of this process, which the code that it runs cannot lift."""
    end_with_parent()
    with suppress(OSError, AttributeError):  # only on Linux
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.nice(NICE)
    whole = limits.seconds + limits.grace
    signal.setitimer(signal.ITIMER_REAL, whole)
    cpu = math.ceil(whole) + 1
    bounds = {
        resource.RLIMIT_DATA: limits.data,
        resource.RLIMIT_AS: limits.address_space,
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: FILES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, bound in bounds.items():
        resource.setrlimit(kind, (bound, bound))


def _answer_task(task: Task) -> tuple[Outcome, bytes]:
    question, limits = task.question, task.limits
    connection = open_snapshot(task.file, memory=limits.memory, seconds=limits.seconds)
    frame, types, more = fetch_limited(connection, question.sql, question.parameters, question.limit)
    body = FORMATS[question.format].encode(frame)
    return Outcome(columns=list(zip(frame.columns, types, strict=True)), rows=frame.height, truncated=more), body


if __name__ == "__main__":
    main()
