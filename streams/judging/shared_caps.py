"""The caps that all sessions share: of a project's day and month, and of the installation's.

A cap is kept by a log of spending that every process which pays appends to (`audit.spending`): on Kafka a topic, beside a database a
file. A call is made only after its reservation has its position in the log, and fits there.

Where a cap is nearly reached, the worst cases of a few calls use up the rest of it, although the calls will cost less. So a question
without a reservation waits until these calls are settled, before it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.policy import Policy
from audit.spending import ENTRY, NO_LIMITS, Entry, Reserved, Settled, Spending, Spent, account_of, has_shared_caps, limits_of
from schemas.errors import StoreError

RETRY_SECONDS = 1.0
"""Seconds between two tries to write an entry."""
log = logging.getLogger(__name__)


class SpendingLog(Protocol):
    """A log of spending. `reserve` and `settle` retry until they succeed."""

    on_change: Callable[[], None]
    """Called when the sums have changed."""

    @property
    def keeps_all(self) -> bool:
        """True if calls are recorded even where no cap applies, because they cannot be looked up when there is one."""
        ...

    def spending(self, at: datetime) -> Spending:
        """Return the sums that this process has read, for the month of a time."""
        ...

    async def reserve(self, entry: Reserved) -> str | None:
        """Make a reservation durable. Return the cap that refuses it; None if it counts."""
        ...

    async def settle(self, entry: Settled) -> None:
        """Make a settlement durable."""
        ...


class SharedCaps:
    """Reserves the calls of a process in a log of spending, under the caps of a policy. Belongs to one event loop."""

    def __init__(self, policy: Policy, spending_log: SpendingLog) -> None:
        self._policy = policy
        self._log = spending_log
        self._running: set[str] = set()
        """The reservations of calls of this process that end soon: those of batches may take a day."""
        self._changed = asyncio.Event()
        spending_log.on_change = self._wake

    async def reserve(self, entry: Reserved, *, batched: bool) -> str | None:
        """Reserve the largest possible cost of a call; durable on return. Return the cap that refuses it."""
        if entry.limits == NO_LIMITS and not self._log.keeps_all:
            return None
        cap = await self._log.reserve(entry)
        if cap is None and not batched:
            self._running.add(entry.reservation_id)
        return cap

    async def settle(self, reservation_ids: Sequence[str], cost: int) -> None:
        """Replace the reservations of a question by its cost, in nano-USD."""
        if reservation_ids:
            await self._log.settle(Settled(tuple(reservation_ids), cost))

    def forget(self, reservation_ids: Sequence[str]) -> None:
        """Note that the calls of these reservations have ended, with or without a settlement."""
        self._running.difference_update(reservation_ids)
        self._wake()

    async def wait_for_room(self, entry: Reserved) -> bool:
        """Wait until a refused reservation may fit. Return False if no running call can make room for it."""
        while self.refusing_cap(entry):
            if not self._running or self.refusing_cap(entry, counting_reserved=False):
                return False
            await self._changed.wait()
        return True

    def refusing_cap(self, entry: Reserved, *, counting_reserved: bool = True) -> str | None:
        """Return the cap that leaves no room for a reservation, by what this process has read; see `Spending.refusing_cap`."""
        if entry.limits == NO_LIMITS:
            return None
        return self._log.spending(entry.at).refusing_cap(entry, counting_reserved=counting_reserved)

    def entry(self, reservation_id: str, project: str, at: datetime, amount: int) -> Reserved:
        """Return the entry of a reservation of this many nano-USD under the project's caps."""
        return Reserved(reservation_id, project, at, amount, limits_of(self._policy, project))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class SpendingFiles:
    """The `SpendingLog` beside a database: a file for each month, which processes append to in turn. Without a folder it is in memory.

    A reservation is synced to disk before its call; a settlement need not be, because without it the reservation counts.
    """

    keeps_all = False

    def __init__(self, folder: Path | None) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._folder = folder
        self._months: dict[str, _Month] = {}
        self._lock = asyncio.Lock()

    def spending(self, at: datetime) -> Spending:
        """See `SpendingLog`."""
        return self._month(at).spending

    async def reserve(self, entry: Reserved) -> str | None:
        """See `SpendingLog`."""
        return await self._append(self._month(entry.at), entry)

    async def settle(self, entry: Settled) -> None:
        """See `SpendingLog`."""
        for month in list(self._months.values()):
            if month.spending.has_open(entry.reservation_ids):
                await self._append(month, entry)
        self.on_change()

    def add_earlier(self, rows: Iterable[Mapping[str, Any]], at: datetime) -> None:
        """Add what the records of the month show beyond the log, such as calls from before there was a cap.

        `rows` have `project`, `day` and `nano_usd`.
        """
        month = self._month(at)
        recorded: Counter[tuple[str, date]] = Counter()
        for row in rows:
            recorded[account_of(row["project"]), row["day"]] += row["nano_usd"]
        for (account, day), amount in recorded.items():
            missing = amount - month.spending.used_on(account, day)
            if missing > 0:
                month.append(Spent(account, day, missing))

    def _month(self, at: datetime) -> _Month:
        """Return the month of a time. The files of the month before stay open for calls that began in it; earlier ones are removed."""
        name = f"{at:%Y-%m}"
        if name not in self._months:
            previous = f"{at.replace(day=1) - timedelta(days=1):%Y-%m}"
            if self._folder is not None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                for path in self._folder.iterdir():
                    if path.name < previous:
                        path.unlink()
            self._months = {month: self._months.get(month) or _Month(self._folder, month) for month in (previous, name)}
        return self._months[name]

    async def _append(self, month: _Month, entry: Entry) -> str | None:
        async with self._lock:
            while True:
                try:
                    return await asyncio.to_thread(month.append, entry)
                except OSError as error:
                    log.warning("%s: %s; trying again", month.path, error)
                    await asyncio.sleep(RETRY_SECONDS)


class _Month:
    """The entries of a month, in a file that several processes append to."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.path = None if folder is None else folder / name
        self.spending = Spending()
        self._position = 0
        if self.path is not None and self.path.exists():
            try:
                with self._locked(self.path) as file:
                    self._read(file)
            except OSError as error:
                raise StoreError(f"{self.path}: {error}", hint="The server needs to read and write this file.") from error

    def append(self, entry: Entry) -> str | None:
        """Append an entry. Return the cap that refuses it, so that it is not appended."""
        if self.path is None:
            return self.spending.add(entry)
        with self._locked(self.path) as file:
            self._read(file)
            if isinstance(entry, Reserved) and not self.spending.has_open([entry.reservation_id]):
                cap = self.spending.refusing_cap(entry)
                if cap is not None:
                    return cap
            os.pwrite(file, msgspec.json.encode(entry) + b"\n", self._position)
            if not isinstance(entry, Settled):
                os.fsync(file)
            self._read(file)
            return None

    def _read(self, file: int) -> None:
        """Read the entries that other processes have appended, and remove a line that a killed process left incomplete."""
        content = b""
        while chunk := os.pread(file, 1 << 20, self._position + len(content)):
            content += chunk
        *lines, incomplete = content.split(b"\n")
        try:
            for line in lines:
                self.spending.add(ENTRY.decode(line))
        except msgspec.DecodeError as error:
            hint = "Move the file away: the spending is then taken from the records of the database."
            raise StoreError(f"{self.path}: a line is no entry of spending: {error}", hint=hint) from error
        self._position += len(content) - len(incomplete)
        if incomplete:
            os.ftruncate(file, self._position)

    @staticmethod
    @contextlib.contextmanager
    def _locked(path: Path) -> Iterator[int]:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def spending_folder(database: Path) -> Path:
    """Return the folder with the spending of a database's calls under shared caps."""
    return database.with_name(f"{database.name}.spending")


def open_shared_caps(policy: Policy, store: Store, now: datetime) -> SharedCaps:
    """Return the shared caps for judging beside a database, with what its records show of the month.

    Open reservations must be settled. Raises StoreError if the files of spending cannot be read.
    """
    files = SpendingFiles(None if store.path is None else spending_folder(store.path))
    if has_shared_caps(policy):
        with contextlib.closing(store.cursor()) as cursor:
            files.add_earlier(query_rows(cursor, "spending", {"from": now.replace(day=1).date(), "as_of": now}), now)
    return SharedCaps(policy, files)
