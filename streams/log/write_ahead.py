"""The write-ahead log of a database: records that are durable and not in the tables yet. README.md has its theory of operation.

1. An entry is what was committed together: records from outside and what intake decided on them, and what judged stages made. It is synced before
   anybody is answered.
2. Entries have ascending numbers. Rows and the number of the next entry are committed to the database in one transaction, so each entry
   lands once, whenever the process is killed.
3. It lies in a folder beside the database file. A clean stop leaves nothing in it and removes it; where it is there, a process was killed.
4. A database that has landed less than the entries before those in the folder is an older copy: nothing is landed out of turn.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
from rocksdict import DBRecoveryMode, Options, Rdict, WriteOptions

from schemas.errors import StoreError
from streams.log.ownership import log_folder

EXCHANGES = "exchanges"
"""Topic of the records from outside that intake decides on."""
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

    def counts(self) -> Counter[str]:
        """Return the number of records by topic."""
        found = Counter({EXCHANGES: len(self.exchanges)})
        for part in (self.decided, self.made, self.others):
            found.update({topic: len(messages) for topic, messages in part.items()})
        return found


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

    def append(self, entry: Entry) -> None:
        """Make an entry durable. StoreError when it is not; then it is as if it had never been brought."""
        files = self._open()
        try:
            files[_key(self._next)] = msgspec.msgpack.encode(entry)
        except Exception as error:  # RocksDB has no error type of its own
            # After a failed write RocksDB refuses all others until it is opened again; the number is written anew.
            self._shut()
            raise StoreError(f"{self._folder}: {error}", hint=_DISK) from error
        self._hold(self._next, entry)
        self._next += 1

    def held(self, landed: int) -> Sequence[Entry]:
        """Return the entries that the database has not landed, in order; `landed` is the number of the entry that it lands next."""
        return [entry for number, entry in self._held if number >= landed]

    @property
    def is_empty(self) -> bool:
        """Whether everything has landed."""
        return not self._held

    @property
    def next(self) -> int:
        """The number that the next entry gets."""
        return self._next

    def forget(self) -> None:
        """Delete the entries: they have landed."""
        if self._held and self._files is not None:
            with contextlib.suppress(Exception):  # what stays is left out by its number
                self._files.delete_range(_key(self._held[0][0]), _key(self._next))
        self._held.clear()
        self.waiting = Counter()
        self.states.clear()

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
        self.waiting.update(entry.counts())
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
