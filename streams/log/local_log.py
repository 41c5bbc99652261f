"""The local log: it makes records, states and positions durable beside a DuckDB file before they are in its tables.

README.md has the theory of operation. The log is a RocksDB folder with one entry per commit, numbered in ascending order. The database
stores the number of the next entry to flush, so an entry is flushed once, even after a kill. A database in memory has its log in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from rocksdict import DBRecoveryMode, Options, Rdict, WriteOptions

from analytics.deletion.text_keys import ForgetTexts
from analytics.store.store import Store
from analytics.store.tables import PARTITION
from schemas.errors import StoreError, first_line
from schemas.records import Record
from streams.log.log import Commit, log_folder, move_forward
from streams.log.new_records import NewRecords
from streams.log.sink import database_errors, next_commit, note_fatal, write_commits
from streams.stage_progress import SOURCES

FLUSH_RECORDS = 5_000
"""Pending records from which on the log is flushed early."""
MAX_PENDING = 50_000
"""Pending records from which on an append waits for a flush."""
RETRY_SECONDS = 1.0
"""Seconds between a failed flush and the next try."""

_DISK_HINT = "Free disk space beside the database. Nothing was written; records accepted earlier are safe."
_DAMAGE_HINT = (
    "The write-ahead log is damaged, and accepted records may exist only there. Restore it from a backup, or move it away to "
    "continue without them."
)
_KEPT_INFO_LOGS = 2
"""RocksDB's own log files to keep; its default is a thousand."""
_COMMIT_PREFIX = b"c"
"""Prefix of the keys of commits. The keys of version 0.2.0 have no prefix, and its entries another format."""
_NUMBER_BYTES = 8
"""Bytes of an entry's number in its key."""
log = logging.getLogger(__name__)


class Pending(NamedTuple):
    """Consecutive commits that the tables do not have yet, and the number after the last of them."""

    commits: Sequence[Commit]
    end: int


class LocalLog:
    """The `streams.log.log.Log` beside a DuckDB file; see the module. Appends are sequential; `states` may be called in any thread.

    Without a `folder` the log is in memory. `flush_seconds` is the longest time that a record is only in the log.
    """

    name = "the log"
    runs_stages = True
    forget_texts: ForgetTexts | None = None

    def __init__(self, store: Store, folder: LogFolder | None, *, flush_seconds: float = 0.5) -> None:
        self._store = store
        self._folder = folder
        self._flush_seconds = flush_seconds
        self._new_records = NewRecords(store)
        self._next_number = 0
        self._has_recovered = False
        self._pending: deque[tuple[int, Commit]] = deque()
        self._ends: dict[str, int] = {}
        self._pending_counts: Counter[str] = Counter()
        self._states: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._has_pending = asyncio.Event()
        self._flush_threshold_reached = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._last_flush_error = ""
        self.broken = asyncio.Event()
        self.on_flushed: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Flush the commits of an earlier process. Raises StoreError if the database is an older copy, or the log is damaged."""
        count = await asyncio.to_thread(self.recover)
        if count:
            log.warning("flushed %d records that were not in the tables when the last process ended", count)
        self._flusher = asyncio.create_task(self._flush_when_due())

    async def stop(self) -> None:
        """Flush, and remove the folder if the tables have everything."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        try:
            await self.flush()
        except database_errors() as error:
            log.warning("the log could not be flushed and is kept for the next start: %s", error)
        self.close()

    def recover(self) -> int:
        """Flush the commits of an earlier process; returns the number of records. Raises StoreError as in `start`."""
        self.read()
        pending = self.pending
        count = self.waiting()
        # The earlier process may have had other schemas, so its records are not trusted.
        write_commits(self._store, pending.commits, pending.end, are_own=False)
        self._trim(pending.end)
        return count

    def read(self) -> None:
        """Read the commits of an earlier process. Raises StoreError as in `start`."""
        with contextlib.closing(self._store.cursor()) as cursor:
            self._next_number = next_commit(cursor)
        if self._folder is not None and self._folder.exists():
            self._read_folder(self._folder, self._next_number)
        self._has_recovered = True

    def close(self) -> None:
        """Close the folder, and remove it if the tables have everything."""
        if self._folder is not None:
            self._folder.close()
            if self._has_recovered and not self._pending:
                self._folder.remove()

    @property
    def pending(self) -> Pending:
        """The commits that the tables do not have yet."""
        return Pending([commit for _, commit in self._pending], self._next_number)

    async def outcomes(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """See `Log`. Possible duplicates are compared with the tables after a full flush; nothing is appended meanwhile."""
        if not self._new_records.has_read(topic):
            await asyncio.to_thread(self._new_records.read, topic)
        outcomes = self._new_records.outcomes(topic, records)
        if None in outcomes:
            await self.flush()
        return await self._new_records.look_up(topic, outcomes, messages)

    async def append(self, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """See `Log`. If it raises StoreError, nothing was appended."""
        if self.waiting() >= MAX_PENDING:
            await self.flush()
        if self._folder is not None:
            self._write(self._folder, commit)
        self._add_pending(self._next_number, commit)
        self._next_number += 1
        for topic, topic_records in records.items():
            self._new_records.add(topic, topic_records, self.end_of(topic))
        self._has_pending.set()
        if self.waiting() >= FLUSH_RECORDS:
            self._flush_threshold_reached.set()

    async def flush(self, topic: str | None = None) -> None:
        """See `Log`."""
        if topic is not None and not self._pending_counts[topic]:
            return
        end = self._next_number
        while self._pending and self._pending[0][0] < end:
            if self._flushing is None:
                self._flushing = asyncio.create_task(self._flush_pending())
            # The waiting caller may be cancelled; the flush continues.
            await asyncio.shield(self._flushing)

    async def wait_for_tables(self, topic: str) -> None:  # noqa: ARG002 - there is no other writer
        """See `Log`."""
        await self.flush()

    async def flush_session(self, session: str) -> None:  # noqa: ARG002 - flushing one session costs as much as flushing all
        """See `Log`."""
        await self.flush()

    def is_current(self) -> bool:
        """See `Log`."""
        return not self._pending

    def end_of(self, topic: str) -> int:
        """See `Log`."""
        return max(self._ends.get(topic, 0), self._store.end_of(topic))

    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """See `Log`."""
        return {PARTITION: self._store.end_of(topic)}

    def waiting(self, topic: str | None = None) -> int:
        """See `Log`."""
        return self._pending_counts.total() if topic is None else self._pending_counts[topic]

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """See `Log`."""
        states = self._states.get(stage, {})
        return {key: state for key in keys if (state := states.get(key)) is not None}

    def pending_events(self, session: str) -> Mapping[str, int]:  # noqa: ARG002 - callers flush the session first
        """See `Log`."""
        return {}

    def erased(self) -> Mapping[str, int]:
        """See `Log`."""
        return {}

    def backpressure_reason(self) -> str:
        """See `Log`: always empty, because an append waits for a flush instead."""
        return ""

    def warning(self) -> str:
        """See `Log`."""
        if self.broken.is_set():
            return "the database failed and must be reopened"
        if self._last_flush_error:
            return f"accepted records cannot be written to the tables: {self._last_flush_error}"
        return ""

    def queues(self, submissions: int) -> Mapping[str, int]:
        """See `Log`."""
        return {"commits": submissions}

    def failure(self) -> None:
        """See `Log`: the engine's own error covers it."""

    async def _flush_pending(self) -> None:
        pending = self.pending
        try:
            await asyncio.to_thread(write_commits, self._store, pending.commits, pending.end)
        except database_errors() as error:
            self._last_flush_error = first_line(error)
            note_fatal(error, self.broken)
            raise
        finally:
            self._flushing = None
        self._last_flush_error = ""
        self._trim(pending.end)
        self.on_flushed()

    async def _flush_when_due(self) -> None:
        """Flush when the oldest pending record has waited for `flush_seconds`, or when many records are pending."""
        while True:
            if not self._pending:
                self._has_pending.clear()
                self._flush_threshold_reached.clear()
                await self._has_pending.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._flush_seconds):
                    await self._flush_threshold_reached.wait()
            self._flush_threshold_reached.clear()
            try:
                await self.flush()
            except database_errors() as error:
                log.warning("flush failed, retrying: %s", first_line(error))
                await asyncio.sleep(RETRY_SECONDS)

    def _trim(self, end: int) -> None:
        """Delete the commits before the number `end`: the tables have them."""
        if self._pending and self._folder is not None:
            with contextlib.suppress(Exception):  # entries left behind are skipped by their number
                self._folder.delete(_encode_key(self._pending[0][0]), _encode_key(end))
        remaining = [(number, commit) for number, commit in self._pending if number >= end]
        # Build new objects, because a thread may be reading the old ones.
        self._pending = deque()
        self._pending_counts = Counter()
        self._states = defaultdict(dict)
        for number, commit in remaining:
            self._add_pending(number, commit)

    def _add_pending(self, number: int, commit: Commit) -> None:
        self._pending.append((number, commit))
        for topic, messages in commit.records.items():
            self._pending_counts[topic] += len(messages)
            self._ends[topic] = commit.offsets[topic] + len(messages)
        for stage, states in commit.states.items():
            self._states[stage] |= states

    def _write(self, folder: LogFolder, commit: Commit) -> None:
        try:
            folder.write(_encode_key(self._next_number), msgspec.msgpack.encode(commit))
        except StoreError:
            raise
        except Exception as error:  # RocksDB has no error type of its own
            # After a failed write RocksDB refuses all others until it is opened again.
            folder.close()
            raise StoreError(f"{folder.path}: {error}", hint=_DISK_HINT) from error

    def _read_folder(self, folder: LogFolder, flushed: int) -> None:
        for number, entry in sorted(map(_decode_entry, folder.entries()), key=itemgetter(0)):
            self._next_number = max(self._next_number, number + 1)
            if number < flushed:
                continue
            if not self._pending and number > flushed:
                raise StoreError(
                    f"{folder.path}: begins with entry {number}, but the database needs entry {flushed} next",
                    hint=f"The database is an older copy than {folder.path.name}. Restore the matching database, or move "
                    f"{folder.path.name} away: its records are then lost to the tables.",
                )
            self._add_pending(number, entry.as_commit(self.end_of) if isinstance(entry, _CommitV020) else entry)


class LogFolder:
    """The folder of a local log: entries by key in a RocksDB. The only class of the log that touches the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: Rdict | None = None

    def exists(self) -> bool:
        """Return whether an earlier process left the folder, or this one has written to it."""
        return self.path.exists()

    def entries(self) -> list[tuple[bytes, bytes]]:
        """Return every complete entry; the last may have been truncated. Raises StoreError if the folder is damaged."""
        return cast("list[tuple[bytes, bytes]]", list(self._open().items()))

    def write(self, key: bytes, entry: bytes) -> None:
        """Write an entry; durable on return. If it raises, call `close` next."""
        self._open()[key] = entry

    def delete(self, first: bytes, end: bytes) -> None:
        """Delete the entries from the key `first` on and before the key `end`."""
        self._open().delete_range(first, end)

    def close(self) -> None:
        """Close the folder; the next call opens it again."""
        files = self._files
        self._files = None
        if files is not None:
            with contextlib.suppress(Exception):
                files.close()

    def remove(self) -> None:
        """Remove the folder with all its entries."""
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)

    def _open(self) -> Rdict:
        if self._files is None:
            options = Options(raw_mode=True)
            options.create_if_missing(True)
            options.set_keep_log_file_num(_KEPT_INFO_LOGS)
            # A kill may truncate the last write; damage anywhere else is an error, not the end of the log.
            options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
            synced = WriteOptions()
            synced.sync = True
            try:
                self._files = Rdict(str(self.path), options)
            except Exception as error:
                hint = _DAMAGE_HINT if "Corruption" in str(error) else _DISK_HINT
                raise StoreError(f"{self.path}: cannot be opened: {error}", hint=hint) from error
            self._files.set_write_options(synced)
        return self._files


def local_log(store: Store, flush_seconds: float = 0.5) -> LocalLog:
    """Return the log beside a database."""
    folder = None if store.path is None else LogFolder(log_folder(store.path))
    return LocalLog(store, folder, flush_seconds=flush_seconds)


def recover_closed(store: Store) -> int:
    """Flush the log of a killed process, for a command that takes no records; returns the number of records."""
    with contextlib.closing(local_log(store)) as killed_log:
        return killed_log.recover()


def waiting_in(store: Store) -> int:
    """Return the number of records that a killed process left in the log; none is flushed. Raises StoreError as in `LocalLog.start`."""
    with contextlib.closing(local_log(store)) as killed_log:
        killed_log.read()
        return killed_log.waiting()


def _encode_key(number: int) -> bytes:
    return _COMMIT_PREFIX + number.to_bytes(_NUMBER_BYTES, "big")


class _CommitV020(msgspec.Struct, array_like=True, frozen=True):
    """A commit in the format of version 0.2.0: a server that was killed before its upgrade may have left some."""

    position: int = 0
    erasures: int = 0
    exchanges: list[bytes] = []
    decided: dict[str, list[bytes]] = {}
    made: dict[str, list[bytes]] = {}
    others: dict[str, list[bytes]] = {}
    states: dict[str, dict[str, bytes]] = {}
    marks: dict[str, int] = {}
    decided_states: dict[str, dict[str, bytes]] = {}
    decided_marks: dict[str, int] = {}

    def as_commit(self, end_of: Callable[[str], int]) -> Commit:
        """Return the same commit in the current format; `end_of` gives the ends of the topics before it."""
        records: dict[str, list[bytes]] = defaultdict(list)
        for messages_by_topic in ({SOURCES["intake"]: self.exchanges}, self.decided, self.made, self.others):
            for topic, messages in messages_by_topic.items():
                if messages:
                    records[topic] += messages
        states: dict[str, dict[str, bytes]] = {}
        for states_by_stage in (self.states, self.decided_states):
            for stage, stage_states in states_by_stage.items():
                states[stage] = states.get(stage, {}) | stage_states
        offsets = {topic: end_of(topic) for topic in records}
        positions: dict[str, dict[int, int]] = {}
        for marks in (self.marks, self.decided_marks):
            move_forward(positions, {stage: {PARTITION: position} for stage, position in marks.items()})
        return Commit(dict(records), offsets, states, positions)


def _decode_entry(item: tuple[bytes, bytes]) -> tuple[int, Commit | _CommitV020]:
    """Return the number and the content of an entry of the folder."""
    key, value = item
    number = int.from_bytes(key[-_NUMBER_BYTES:], "big")
    if len(key) == _NUMBER_BYTES:
        return number, msgspec.msgpack.decode(value, type=_CommitV020)
    return number, msgspec.msgpack.decode(value, type=Commit)
