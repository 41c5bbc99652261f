"""Faults to plant in the product: each is a mistake that somebody could make, and that the simulation has to find."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from unittest.mock import patch

import msgspec

from streams.engine.engine import Engine
from streams.kafka.stages import RecordedCalls
from streams.log.local_log import LocalLog, LogFolder
from streams.log.log import Commit

SENT = ("exchanges", "agent-events")
"""Topics of senders' records."""
SYNCED_AFTER = 0.02
"""Seconds."""


@contextlib.contextmanager
def answer_before_sync() -> Iterator[None]:
    """A commit of senders' records counts before it is on disk, where it comes a moment later."""
    write_at_once = LocalLog._write

    def write_late(log: LocalLog, folder: LogFolder, commit: Commit) -> None:
        if commit.records.keys().isdisjoint(SENT):
            write_at_once(log, folder, commit)
        else:
            asyncio.get_running_loop().call_later(SYNCED_AFTER, write, log, folder, log._next_number, commit)

    def write(log: LocalLog, folder: LogFolder, number: int, commit: Commit) -> None:
        if any(pending == number for pending, _ in log._pending):
            with contextlib.suppress(OSError):
                folder.write(b"c" + number.to_bytes(8, "big"), msgspec.msgpack.encode(commit))

    with patch.object(LocalLog, "_write", write_late):
        yield


@contextlib.contextmanager
def lose_state_of_commit() -> Iterator[None]:
    """Every tenth commit loses the states that go with its records."""
    numbers, build_commit = count(1), Engine._build_commit

    def losing(engine: Engine, group: Sequence[Any], *parts: Any) -> Commit:
        commit = build_commit(engine, group, *parts)
        return commit if next(numbers) % 10 else msgspec.structs.replace(commit, states={})

    with patch.object(Engine, "_build_commit", losing):
        yield


@contextlib.contextmanager
def charge_twice_after_rebalance() -> Iterator[None]:
    """A worker that takes a partition up does not look for what the judge told its owners of before."""

    async def read_nothing(*_: object) -> None:
        """Nothing is read."""

    with patch.object(RecordedCalls, "read", read_nothing):
        yield
