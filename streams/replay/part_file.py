"""File of one part of a replay: scores, questions, session states and the position, committed together (rule 6 of `README.md`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from analytics.queries import query_rows
from analytics.store.connection import IN_USE
from analytics.store.store import Store
from schemas.codec.arrow import empty_frame
from schemas.codec.single_object import encode
from schemas.errors import StoreError
from schemas.lazy.polars import pl
from schemas.records import Judgement, Record
from streams.judging.call_budget import settle_interrupted
from streams.judging.recorded_judgements import Subject, recorded_in
from streams.log.admission import Accepted
from streams.log.group_commit import GroupCommit
from streams.replay.digests import digests_of, digests_of_messages, digests_together

REPLAY = "replay"
"""Consumer of the watermark that says how far a part has come."""
SOURCE = "exchanges"
SCORES = "scores"
TAKEOVER_SECONDS = 15.0
"""Seconds that a killed process may take to let go of its file."""
_AT_ONCE = 256
_SCORES_AT_ONCE = 20_000


@dataclass
class WindowResult:
    """The result of a window: scores and dead letters, encoded, and the states that changed, by stage and session."""

    end: int
    made: Accepted = field(default_factory=Accepted)
    states: dict[str, dict[str, bytes]] = field(default_factory=dict)


class States:
    """Session states in memory: for passes over history that leave nothing behind."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, bytes]] = {}

    @property
    def position(self) -> int:
        """The position from which reading goes on."""
        return 0

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The states of a stage for those of the sessions that have one."""
        known = self._states.get(stage, {})
        return {key: known[key] for key in keys if key in known}

    def commit(self, result: WindowResult) -> None:
        """Keep the states, and nothing else."""
        for stage, states in result.states.items():
            self._states.setdefault(stage, {}).update(states)


class PartFile:
    """A part's DuckDB file; belongs to one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file; StoreError when another process has it for longer than one that was killed takes to end."""
        self._store = opened(path)
        self._log: GroupCommit[Record] = GroupCommit(self._append, at_once=_AT_ONCE)
        self._paid = recorded_in(self._store)
        self._digests: list[pl.DataFrame] | None = None if self.position else []
        """Those of all scores, unless some were made by a process before this one."""

    def close(self) -> None:
        """Commit what waits and close the file."""
        self._log.close()
        self._store.close()

    @property
    def position(self) -> int:
        """The position from which reading goes on."""
        with self._store.transaction() as transaction:
            return transaction.watermark(REPLAY, SOURCE)

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The states of a stage for those of the sessions that have one."""
        with self._store.transaction() as transaction:
            return transaction.states(stage, keys)

    def commit(self, result: WindowResult) -> None:
        """Keep a window's result and the position after it, all of it or nothing."""
        with self._store.transaction() as transaction:
            appended = {
                topic: transaction.append(topic, messages, are_own=True) for topic, messages in result.made.messages.items()
            }
            for stage, states in result.states.items():
                transaction.set_states(stage, states, result.end)
            transaction.set_watermark(REPLAY, SOURCE, result.end)
        if self._digests is not None and SCORES in appended:
            self._digests.append(digests_of_messages(appended[SCORES].frames["Score"], result.made.messages[SCORES]))

    def paid(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        """Return this replay's own judgements of the exchanges so far."""
        return self._paid(subjects)

    def settle(self, now: datetime) -> None:
        """Charge the calls that a killed process had under way; none may be under way now."""
        settle_interrupted(self._store, now)

    def reservations(self) -> dict[str, str]:
        """Ids of the reservations that no judgement settles, by fingerprint."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return {row["fingerprint"]: row["reservation_id"] for row in query_rows(cursor, "open_reservations")}

    def digests(self) -> pl.DataFrame:
        """The digests of the scores that were made; see `digests_of`."""
        return digests_of(self._scores()) if self._digests is None else digests_together(self._digests)

    def _scores(self) -> Iterator[pl.DataFrame]:
        """The scores that were made, in the order they were, some thousands at a time."""
        for start in range(0, self._store.end_of(SCORES), _SCORES_AT_ONCE):
            yield self._store.read(SCORES, start, _SCORES_AT_ONCE).get("Score", empty_frame("Score"))

    async def publish(self, record: Record) -> None:
        """Make a record of a judge call durable."""
        await asyncio.wrap_future(self._log.submit(record))

    def _append(self, records: Sequence[Record]) -> None:
        with self._store.transaction() as transaction:
            transaction.append("judgements", [encode(one) for one in records])


def opened(path: Path) -> Store:
    """The store in a file, once a process that was killed with it has let go of it."""
    again = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, StoreError) and error.hint == IN_USE),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(TAKEOVER_SECONDS),
        reraise=True,
    )
    return again(Store, path, is_browsed=False)
