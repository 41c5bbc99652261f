"""Starting the processes that answer and build, and ending them: when they are done, overdue, or no longer asked for."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import msgspec

from analytics.sandbox.subprocesses import started
from schemas.errors import QueryError, StoreError
from service.read.queries.child import TOO_MUCH
from service.read.queries.query_protocol import Outcome, QueryLimits, Question, Task

START = 60.0
"""Seconds within which a process has to begin, many on a busy machine; from then on it watches its time itself."""
LINE = 1024 * 1024
CHUNK = 256 * 1024
OVERDUE = frozenset({signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL})
"""The signals that end an overdue process; the last is ours."""


async def ask(file: int, question: Question, limits: QueryLimits) -> tuple[Outcome, bytes]:
    """Return the answer of a separate process to a question about an open snapshot.

    QueryError when the statement cannot be answered, or not within its limits. Cancelled, it takes the process with it.
    """
    task = Task(f"/proc/self/fd/{file}", question, limits)
    async with started("service.read.queries.child", files=(file,)) as process:
        try:
            async with asyncio.timeout(START + limits.seconds + limits.grace):
                outcome, body = await _exchange(process, msgspec.json.encode(task), limits)
        except TimeoutError:
            raise _overdue(limits) from None
    if outcome.error:
        raise QueryError(outcome.error, hint=outcome.hint)
    return outcome, body


async def build(copy: Path, target: Path, spill: Path, limits: QueryLimits, nice: int = 0) -> None:
    """Have a process make a snapshot from a copy, `nice` steps below the server's priority; StoreError if it fails or takes too long."""
    arguments = (str(copy), str(target), str(spill), str(nice))
    async with started("service.read.queries.building", arguments, keeps_errors=True) as process:
        try:
            async with asyncio.timeout(limits.building):
                _, said = await process.communicate()
        except TimeoutError:
            raise StoreError(f"the snapshot was not made within {limits.building:g} seconds") from None
    if process.returncode:
        words = said.decode("utf-8", "replace").strip().splitlines()
        raise StoreError(f"the snapshot was not made: {words[-1] if words else f'ended with {process.returncode}'}")


async def _exchange(process: asyncio.subprocess.Process, task: bytes, limits: QueryLimits) -> tuple[Outcome, bytes]:
    assert process.stdin is not None  # noqa: S101 - it was started with pipes
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended before it listened: its status tells why
        process.stdin.write(task)
        await process.stdin.drain()
    process.stdin.close()
    answer = bytearray()
    while chunk := await process.stdout.read(CHUNK):
        answer += chunk
        if len(answer) > limits.answer + LINE:
            raise QueryError(
                f"the answer is larger than {limits.answer} bytes", hint="Ask for fewer rows or columns, or for Parquet."
            )
    head, found, body = bytes(answer).partition(b"\n")
    status = await process.wait()
    if found and status == 0:
        return msgspec.json.decode(head, type=Outcome), body
    if -status in OVERDUE:
        raise _overdue(limits)
    raise QueryError(TOO_MUCH.error, hint=TOO_MUCH.hint)


def _overdue(limits: QueryLimits) -> QueryError:
    return QueryError(
        f"the statement took longer than {limits.seconds:g} seconds",
        hint="Query less: a shorter time, fewer sessions, no cross joins.",
    )
