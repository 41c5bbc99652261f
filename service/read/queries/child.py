"""The child process that answers one statement. It applies its limits before it reads the statement.

1. It dies with the server, at its time limit, and at its CPU limit.
2. It cannot exceed its memory limit, write to any file, open many files, or dump core.
3. The snapshot is an unlinked file, which was open when the process was forked. DuckDB can read no other file, and its settings are locked.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import socket
from contextlib import suppress
from typing import NoReturn

import msgspec

from analytics.adhoc import CATALOG_HINT, FORMATS, fetch_limited
from schemas.errors import QueryError
from schemas.lazy import duckdb
from service.read.queries.protocol import Outcome, QueryLimits, Question

FILES = 64
NICE = 10
PR_SET_NO_NEW_PRIVS = 38
LOOK_FIRST_HERE = "SHOW TABLES lists the tables and views, DESCRIBE turns the columns of one."
OUT_OF_MEMORY = "Out of Memory Error"
"""The beginning of DuckDB's message. The rest advises to change settings, which are locked here."""
TOO_MUCH = Outcome(
    error="the statement needs more memory than allowed", hint="Query less at once: fewer columns, a shorter time."
)


def answer_statement(connection: socket.socket, snapshot: duckdb.DuckDBPyConnection, limits: QueryLimits) -> NoReturn:
    """Read a question from a connection; write its outcome as a line of JSON, and after it the bytes of the answer. End the process."""
    limit_process(limits)
    with connection.makefile("rwb") as stream:
        question = msgspec.json.decode(stream.read(), type=Question)
        outcome, body = _try_question(question, snapshot)
        stream.write(msgspec.json.encode(outcome) + b"\n" + body)
        stream.flush()
        os._exit(0)  # Exit at once: closing DuckDB takes as long as a small statement, and there is nothing to clean up.


def _try_question(question: Question, snapshot: duckdb.DuckDBPyConnection) -> tuple[Outcome, bytes]:
    """Return the outcome and the answer; without an answer if the statement is refused or needs too much memory."""
    try:
        return _answer_question(question, snapshot)
    except QueryError as error:
        return _refuse_statement(error), b""
    except MemoryError:
        return TOO_MUCH, b""
    except BaseException as error:
        # Out of memory, polars raises its own exception, which is not a subclass of Exception.
        if not type(error).__name__.startswith("Panic"):
            raise
        return TOO_MUCH, b""


def _refuse_statement(error: QueryError) -> Outcome:
    if str(error).startswith(OUT_OF_MEMORY):
        return TOO_MUCH
    return Outcome(error=str(error), hint=LOOK_FIRST_HERE if error.hint == CATALOG_HINT else error.hint)


def limit_process(limits: QueryLimits) -> None:
    """Set the limits of this process, which the code that it runs cannot lift."""
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


def _answer_question(question: Question, snapshot: duckdb.DuckDBPyConnection) -> tuple[Outcome, bytes]:
    frame, types, more = fetch_limited(snapshot, question.sql, question.parameters, question.limit)
    body = FORMATS[question.format].encode(frame)
    return Outcome(columns=list(zip(frame.columns, types, strict=True)), rows=frame.height, truncated=more), body
