"""The server's operations for commands: a table, each operation run for one caller at a time.

1. Statements read and nothing else: each runs in a transaction that cannot write, on a cursor of the caller's own.
2. Records are published through the record intake, a few hundred at once, so that deliveries over HTTP take turns with an import.
3. What was accepted before a caller asks is in the tables when it is answered.
4. Checks and people's decisions go through the server's own watch, so that they take turns with those of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from analytics.deletion.retention import Purged
from analytics.identity.repetitions import unknown
from analytics.sandbox.snapshots import copy_database
from analytics.store.connection import fetch
from analytics.sums.daily import refresh_daily
from schemas.codec.arrow import decode_batch
from schemas.codec.single_object import decode
from schemas.errors import BusyError, DriftlineError, SettingsError, StoreError
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.records import ImportProgress
from schemas.registry import schema_of
from service.setup.remote.command_socket import folder_of
from service.setup.remote.server_link import Differing, Judged, PublishResult
from streams.engine.record_intake import RecordIntake
from streams.judging.judged_stages import SCORING
from streams.stage_progress import stage_progress
from streams.topology import TOPOLOGY
from streams.upkeep.anchors import run_round
from streams.upkeep.retention import purge
from streams.watch.changing import Change, Changed, Person, Which, change
from streams.watch.checking import Checked
from streams.watch.history import History, ProjectHistory
from streams.watch.watching import Watch

LOOK = 0.02
"""Seconds between checks of the stages' progress, or of the intake's room."""
ROOM = 1.1
"""Free space that a copy needs, in sizes of the file."""


class Caller:
    """The operations of one connection; see the module. `loop` is that of the intake."""

    def __init__(self, intake: RecordIntake, watch: Watch, loop: asyncio.AbstractEventLoop) -> None:
        self._intake = intake
        self._watch = watch
        self._loop = loop
        self._history = History(watch, intake.store, intake.now)
        self._cursor = intake.store.cursor()
        self.is_reading = False
        """Whether it reads in one transaction."""
        self._copies: list[Path] = []

    def interrupt(self) -> None:
        """End the running statement."""
        self._cursor.interrupt()

    def close(self) -> None:
        """Release everything opened for the caller."""
        self._cursor.close()
        for folder in self._copies:
            shutil.rmtree(folder, ignore_errors=True)

    def execute(self, statement: str, parameters: Any) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
        """Run a statement that reads; return its columns with their types, and its rows."""
        with self._reading():
            done = self._cursor.execute(statement, parameters)
            return [(one[0], str(one[1])) for one in done.description or ()], done.fetchall()

    def frame(self, statement: str, parameters: Mapping[str, Any] | None) -> pl.DataFrame:
        """Return the rows of a statement that reads, as a frame."""
        with self._reading():
            return fetch(self._cursor, statement, parameters)

    def begin(self) -> None:
        """Read a single moment from now on, in one transaction."""
        self._flush()
        self._cursor.execute("BEGIN TRANSACTION READ ONLY")
        self.is_reading = True

    def commit(self) -> None:
        """End what `begin` began."""
        self.is_reading = False
        self._cursor.commit()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        if self.is_reading:
            yield
            return
        self.begin()
        try:
            yield
        finally:
            with contextlib.suppress(duckdb.Error):  # a statement that failed has ended the transaction
                self.commit()
            self.is_reading = False

    def _flush(self) -> None:
        # As over HTTP, a failed flush does not keep anybody from reading the tables as they are.
        with contextlib.suppress(DriftlineError, duckdb.Error):
            asyncio.run_coroutine_threadsafe(self._intake.flush(), self._loop).result()

    def copy(self) -> Path:
        """Copy the database, with everything accepted before; the copy is removed when the caller leaves."""
        self._flush()
        path = self._intake.store.path
        if path is None:
            raise StoreError("a database in memory has no copy", hint="Open a file.")
        needed, room = int(path.stat().st_size * ROOM), shutil.disk_usage(path.parent).free
        if room < needed:
            hint = "Free disk space, or stop the server: then no copy is needed."
            raise StoreError(f"{path}: a copy needs {needed} bytes, and the disk has {room} left", hint=hint)
        folder = Path(tempfile.mkdtemp(prefix="copy-", dir=folder_of(path)))
        self._copies.append(folder)
        copy_database(self._intake.store, folder / path.name)
        return folder / path.name

    async def publish(self, topic: str, messages: Sequence[bytes]) -> PublishResult:
        """Publish records of one type, durable on return; wait while the server is overloaded."""
        records = await asyncio.to_thread(lambda: [decode(message) for message in messages])
        while True:
            try:
                done = await self._intake.publish(topic, records)
            except BusyError:
                await asyncio.sleep(LOOK)
            else:
                break
        differing = await asyncio.to_thread(self._differing, topic, messages, done.conflicts) if done.conflicts else {}
        return PublishResult(done.written, done.known, differing)

    def _differing(self, topic: str, messages: Sequence[bytes], places: Sequence[int]) -> Differing:
        """Return the fields in which records differ from known ones with the same identities, by place."""
        found: dict[int, tuple[str, ...]] = {}
        with contextlib.closing(self._intake.store.cursor()) as cursor:
            for name, frame in decode_batch([messages[place] for place in places]).frames.items():
                found |= unknown(cursor, schema_of(name), frame, topic, met=self._intake.store.met)[1]
        return {place: found.get(number, ()) for number, place in enumerate(places)}

    async def settled(self) -> None:
        """Return when the stages have read the present records. Stages that ask a judge count only if there is no judge."""
        store = self._intake.store
        await self._intake.flush()
        waiting = {
            stage.name: store.end_of(stage.source) for stage in TOPOLOGY if stage.judged is None or not self._intake.has_judge
        }
        while waiting:
            if self._intake.broken.is_set():
                raise self._intake.failure()
            await self._intake.flush()
            stages = [stage for stage in TOPOLOGY if stage.name in waiting]
            found = await asyncio.to_thread(lambda: [stage_progress(store, one).position for one in stages])  # noqa: B023 - awaited here
            for stage, position in zip(stages, found, strict=True):
                if position >= waiting[stage.name]:
                    del waiting[stage.name]
            if waiting:
                await asyncio.sleep(LOOK)
        await self._intake.flush()

    def note_progress(self, progress: Sequence[ImportProgress]) -> None:
        """Note the progress of imported files."""
        with self._intake.store.transaction() as transaction:
            transaction.set_progress(progress)

    def begin_history(self, target: str) -> None:
        """Note that an import into a project begins, as `streams.watch.history`."""
        self._flush()
        self._history.begin(target)

    def add_up_days(self) -> None:
        """Sum the days that have new scores."""
        self._flush()
        refresh_daily(self._intake.store)

    def purge(self, now: datetime, days: int | None) -> Purged:
        """Delete records past their retention."""
        self._flush()
        return purge(self._intake.store, self._intake.policy, now, days)

    async def check(self, projects: Sequence[str], as_of: datetime) -> list[Checked]:
        """Check projects for drift as of a moment."""
        await self._intake.flush()
        return await self._watch.check(projects, as_of)

    async def check_history(self, target: str, until: datetime) -> list[ProjectHistory]:
        """Check the days that an import brought, each as of its end."""
        await self._intake.flush()
        return await self._history.check(target, until)

    async def change(self, which: Which, wanted: Change, person: Person, now: datetime) -> Changed:
        """Decide on an incident, assign it or comment on it, as `streams.watch.changing.change`."""
        await self._intake.flush()
        return await change(self._watch, which, wanted, person, now)

    async def rejudge(self, project: str | None, reason: str | None, limit: int) -> Judged:
        """Have unscored exchanges judged again."""
        return await self._judged(lambda: self._intake.rejudge(project, reason, limit))

    async def judge_anchors(self, project: str) -> int:
        """Have the anchors of a project judged again; return their number."""

        async def begun() -> int:
            return (await run_round(self._intake, project)).exchanges

        return (await self._judged(begun)).asked

    async def _judged(self, ask: Callable[[], Awaitable[int]]) -> Judged:
        """Ask, and return once the judge has nothing left to do. SettingsError without a judge."""
        if not self._intake.has_judge:
            raise SettingsError(
                "the server has no judge", hint="Start it with one: set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL."
            )
        before = self._intake.state()
        asked = await ask()
        await self.settled()
        while self._intake.state().queues.get(SCORING.queue):
            if self._intake.broken.is_set():
                raise self._intake.failure()
            await asyncio.sleep(LOOK)
        await self._intake.flush()
        now = self._intake.state()
        calls = dict(Counter(now.judge_calls) - Counter(before.judge_calls))
        return Judged(self._intake.judge_name, asked, calls, now.spent_usd - before.spent_usd)

    async def describe(self) -> str:
        """Describe the server's judge."""
        return self._intake.judge_name


Operation = Callable[..., Any]
BLOCKING: Mapping[str, Operation] = {
    one.__name__: one
    for one in (
        Caller.execute,
        Caller.frame,
        Caller.begin,
        Caller.commit,
        Caller.copy,
        Caller.note_progress,
        Caller.begin_history,
        Caller.add_up_days,
        Caller.purge,
    )
}
"""Operations that wait for the database: they run in threads, a bounded number at once."""
WAITING: Mapping[str, Operation] = {
    one.__name__: one
    for one in (
        Caller.publish,
        Caller.settled,
        Caller.check,
        Caller.check_history,
        Caller.change,
        Caller.rejudge,
        Caller.judge_anchors,
        Caller.describe,
    )
}
"""Operations of the intake and the watch: coroutines of their event loop."""
