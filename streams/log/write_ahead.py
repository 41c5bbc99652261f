"""The write-ahead log of a database: records that are durable and not in the tables yet. README.md has its theory of operation.

1. An entry is what was committed together: records from outside and what intake decided on them, and what judged stages made. It is synced before
   anybody is answered.
2. Entries have ascending numbers. An entry lands: it becomes rows, with the states of intake and the number of the next entry, in one
   transaction. So each entry lands once, whenever the process is killed.
3. It lies in a folder beside the database file. A clean stop leaves nothing in it and removes it; where it is there, a process was killed.
4. A database that has landed less than the entries before those in the folder is an older copy: nothing is landed out of turn.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from rocksdict import DBRecoveryMode, Options, Rdict, WriteOptions

from analytics.deletion.erased import ERASURES, erased_in
from analytics.identity.identity_index import KnownIdentities
from analytics.store.inserting import PARTITION
from analytics.store.positions import AHEAD, watermarks_of
from analytics.store.store import Appended, Store, Transaction
from schemas.codec.arrow import INDEX
from schemas.errors import StoreError
from streams.engine.embedded import EmbeddedRunner
from streams.engine.stage_runs import StageOutcome
from streams.judging.judged_stages import JUDGED
from streams.log.ownership import log_folder
from streams.stage_batches import StageBatch
from streams.topology import stage_named

INTAKE = stage_named("intake")
SOURCES = {INTAKE.name: INTAKE.source} | {stage.name: stage.source for stage in JUDGED}
"""Topics that stages read whose work goes through a write-ahead log."""
_DISK = "Make room where the database is: nothing was written, and what was taken in before stays."
_DAMAGED = (
    "The write-ahead log is damaged, and exchanges that were accepted may be in it alone. Put back a copy of it, or move it away: "
    "the database then goes on without them."
)
_KEPT_FILES = 2
"""Files of RocksDB's own account of what it did; it keeps a thousand by itself."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """Records that were committed together, encoded: new ones from outside, and those that stages made."""

    position: int = 0
    """Position of the first of `exchanges` on its topic."""
    erasures: int = 0
    """Erasures that the database had been asked for."""
    exchanges: list[bytes] = []
    """Records from outside on the topic that intake reads: exchanges, ends of sessions and requests to judge again."""
    decided: dict[str, list[bytes]] = {}
    """Records that stages made of these, by topic."""
    made: dict[str, list[bytes]] = {}
    """Records of judged stages by topic."""
    others: dict[str, list[bytes]] = {}
    """Other records from outside, and dead letters, by topic; the tables may have them already."""
    states: dict[str, dict[str, bytes]] = {}
    """The states of judged stages that changed, by stage and session key."""
    marks: dict[str, int] = {}
    """The position that each judged stage reads next."""
    decided_states: dict[str, dict[str, bytes]] = {}
    """The states that changed with what was `decided`."""
    decided_marks: dict[str, int] = {}
    """The position that each of these stages reads next."""

    def counted_in(self, counts: Counter[str]) -> None:
        """Add the number of records by topic."""
        counts[INTAKE.source] += len(self.exchanges)
        for part in (self.decided, self.made, self.others):
            for topic, messages in part.items():
                counts[topic] += len(messages)


class Unlanded(NamedTuple):
    """What is to land together."""

    entries: Sequence[Entry]
    next: int
    """The number of the entry after them."""

    def stands(self, transaction: Transaction) -> bool:
        """Tell whether what intake decided still holds: nobody asked for an erasure since, and its topic ends where it did."""
        asked, end = transaction.end_of(ERASURES), transaction.end_of(INTAKE.source)
        return all(one.erasures == asked for one in self.entries) and (not self.entries or self.entries[0].position == end)


class WriteAheadLog:
    """See the module. Belongs to the process that has the database, and to one thread at a time."""

    def __init__(self, database: Path) -> None:
        self._folder = log_folder(database)
        self._files: Rdict | None = None
        self._next = 0
        self._is_read = False
        self._held: deque[tuple[int, Entry]] = deque()
        self.waiting: Counter[str] = Counter()
        """How many records are not in the tables yet, by topic; other threads may look a topic up."""
        self.states: dict[str, dict[str, bytes]] = defaultdict(dict)
        """The newest states that are not in the tables yet, by stage and session key."""

    def recover(self, landed: int) -> None:
        """Take up what an earlier process left; `landed` is the number of the entry that the database lands next.

        StoreError where entries before the first one here are missing from the database.
        """
        self._next = landed
        if self._folder.exists():
            self._take_up(landed)
        self._is_read = True

    def append(self, entry: Entry) -> int:
        """Make an entry durable; return its number. StoreError when it is not; then it is as if it had never been brought."""
        files = self._open()
        try:
            files[_key(self._next)] = msgspec.msgpack.encode(entry)
        except Exception as error:  # RocksDB has no error type of its own
            # After a failed write RocksDB refuses all others until it is opened again; the number is written anew.
            self._shut()
            raise StoreError(f"{self._folder}: {error}", hint=_DISK) from error
        self._hold(self._next, entry)
        self._next += 1
        return self._next - 1

    def unlanded(self, landed: int) -> Unlanded:
        """Return what the database has not landed, in order; `landed` is the number of the entry that it lands next."""
        # A commit can fail and yet be durable: the database says what it has.
        return Unlanded([entry for number, entry in self._held if number >= landed], self._next)

    @property
    def is_empty(self) -> bool:
        """Whether everything has landed."""
        return not self._held

    def forget(self, end: int) -> None:
        """Delete the entries before this number: they have landed."""
        if self._held and self._files is not None:
            with contextlib.suppress(Exception):  # what stays is left out by its number
                self._files.delete_range(_key(self._held[0][0]), _key(end))
        left = [(number, entry) for number, entry in self._held if number >= end]
        # In place of the old ones, which other threads may be reading.
        self._held, self.waiting, self.states = deque(), Counter(), defaultdict(dict)
        for number, entry in left:
            self._hold(number, entry)

    def close(self) -> None:
        """Let go of the folder, and remove it where everything in it has landed."""
        self._shut()
        if self._is_read and not self._held and self._folder.is_dir():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take_up(self, landed: int) -> None:
        for key, value in list(self._open().items()):
            number = int.from_bytes(cast("bytes", key), "big")
            self._next = max(self._next, number + 1)
            if number >= landed:
                self._hold(number, msgspec.msgpack.decode(value, type=Entry))
        if self._held and self._held[0][0] > landed:
            hint = (
                f"The database is an older copy than {self._folder.name}. Put back the database that belongs to it, or move "
                f"{self._folder.name} away: what is in it is then not in the tables."
            )
            first = self._held[0][0]
            raise StoreError(f"{self._folder}: begins with entry {first}, and the database has landed {landed}", hint=hint)

    def _hold(self, number: int, entry: Entry) -> None:
        self._held.append((number, entry))
        entry.counted_in(self.waiting)
        for stage, changed in (*entry.states.items(), *entry.decided_states.items()):
            self.states[stage] |= changed

    def _open(self) -> Rdict:
        if self._files is None:
            options = Options(raw_mode=True)
            options.create_if_missing(True)
            options.set_keep_log_file_num(_KEPT_FILES)
            # What was being written when the process was killed may be cut off; damage anywhere else is an error, not an end.
            options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
            synced = WriteOptions()
            synced.sync = True
            try:
                self._files = Rdict(str(self._folder), options)
            except Exception as error:
                hint = _DAMAGED if "Corruption" in str(error) else _DISK
                raise StoreError(f"{self._folder}: cannot be opened: {error}", hint=hint) from error
            self._files.set_write_options(synced)
        return self._files

    def _shut(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            with contextlib.suppress(Exception):
                files.close()


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def land(
    transaction: Transaction,
    unlanded: Unlanded,
    runner: EmbeddedRunner,
    seen: KnownIdentities | None = None,
    *,
    are_own: bool = False,
) -> dict[str, Appended]:
    """Write entries to the tables within a transaction; once that is committed, the log may `forget` them.

    Returns what was written of the records from outside, by topic. `are_own` as of `Transaction.append`: an earlier process may have
    had other schemas.

    Where the database was asked to erase something since, or its topic ends elsewhere than it did, intake decides again, and the stages
    after it come later: records that are left out move those after them.
    """
    entries, stands = unlanded.entries, unlanded.stands(transaction)
    if not entries:
        return {}
    exchanges = [message for entry in entries for message in entry.exchanges]
    appended = transaction.append(INTAKE.source, exchanges, skip_known=not stands, seen=seen, are_own=are_own)
    if not stands:
        entries = [_undecided(transaction, entry) for entry in entries]
        decide(transaction, runner, appended)
    others = keep(transaction, entries, seen, are_own=are_own)
    transaction.set_watermark(AHEAD, "", unlanded.next)
    return others | {INTAKE.source: appended}


def keep(
    transaction: Transaction, entries: Sequence[Entry], seen: KnownIdentities | None = None, *, are_own: bool = False
) -> dict[str, Appended]:
    """Write what stages made, their states, and each one's watermark: the farthest of the entries', never back.

    Returns what was written of the entries' other records, by topic; `are_own` as of `land`.
    """
    made: dict[str, list[bytes]] = defaultdict(list)
    others: dict[str, list[bytes]] = defaultdict(list)
    states: dict[str, dict[str, bytes]] = defaultdict(dict)
    marks: dict[str, int] = defaultdict(int)
    for entry in entries:
        for topic, messages in (*entry.decided.items(), *entry.made.items()):
            made[topic] += messages
        for topic, messages in entry.others.items():
            others[topic] += messages
        for stage, changed in (*entry.states.items(), *entry.decided_states.items()):
            states[stage] |= changed
        for stage, mark in (*entry.marks.items(), *entry.decided_marks.items()):
            marks[stage] = max(marks[stage], mark)
    for topic, messages in made.items():
        transaction.append(topic, messages, are_own=are_own)
    appended = {
        topic: transaction.append(topic, messages, skip_known=True, seen=seen, are_own=are_own)
        for topic, messages in others.items()
    }
    transaction.set_states_of_stages(states, marks)
    for stage, mark in marks.items():
        source = SOURCES[stage]
        transaction.set_watermark(stage, source, max(mark, transaction.watermark(stage, source)))
    return appended


def decide(transaction: Transaction, runner: EmbeddedRunner, appended: Appended) -> StageOutcome:
    """Let intake decide on what was just appended to its topic, in the same transaction; return what it made."""
    if not appended.frames:
        return StageOutcome()
    frames = {name: frame.drop(INDEX) for name, frame in appended.frames.items()}
    end = 1 + max(int(frame["_offset"][-1]) for frame in frames.values())
    return runner.process(transaction, INTAKE, StageBatch.of(INTAKE.source, frames), end)


def recover(store: Store, ahead: WriteAheadLog, runner: EmbeddedRunner) -> int:
    """Land what an earlier process left in the log; return how many records those were. StoreError as `WriteAheadLog.recover`."""
    with store.transaction() as transaction:
        ahead.recover(transaction.watermark(AHEAD, ""))
        left = ahead.waiting.total()
        landed = ahead.unlanded(transaction.watermark(AHEAD, ""))
        land(transaction, landed, runner)
    ahead.forget(landed.next)
    return left


def recover_closed(store: Store, runner: EmbeddedRunner) -> int:
    """Land what a process that was killed left beside the database, for a command that takes no exchanges in."""
    if store.path is None:
        return 0
    ahead = WriteAheadLog(store.path)
    try:
        return recover(store, ahead, runner)
    finally:
        ahead.close()


def waiting_in(store: Store) -> int:
    """How many records a process that was killed left beside the database; nothing is landed. StoreError as `WriteAheadLog.recover`."""
    if store.path is None:
        return 0
    with contextlib.closing(store.cursor()) as cursor:
        landed = watermarks_of(cursor, AHEAD).get(("", PARTITION), 0)
    ahead = WriteAheadLog(store.path)
    try:
        ahead.recover(landed)
        return ahead.waiting.total()
    finally:
        ahead.close()


def _undecided(transaction: Transaction, entry: Entry) -> Entry:
    """Return the entry without what intake reads, without what was decided, and without states of sessions that were erased meanwhile."""
    erased = erased_in(transaction.connection)
    states = {
        stage: {key: state for key, state in of_stage.items() if not erased.has(*key.split("/", 1))}
        for stage, of_stage in entry.states.items()
    }
    return msgspec.structs.replace(entry, exchanges=[], decided={}, decided_states={}, decided_marks={}, states=states)
