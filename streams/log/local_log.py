"""The local log: records, states and positions that are durable beside a DuckDB file before they are in its tables.

README.md has the theory of operation. The log is a RocksDB folder with one entry per commit, numbered in ascending order. The database
says which number it flushes next, so an entry is flushed once, whenever the process is killed. A database in memory has its log in memory.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from rocksdict import DBRecoveryMode, Options, Rdict, WriteOptions

from schemas.errors import StoreError
from streams.stage_progress import SOURCES

_DISK = "Make room where the database is: nothing was written, and what was taken in before stays."
_DAMAGED = (
    "The write-ahead log is damaged, and records that were accepted may be in it alone. Put back a copy of it, or move it away: "
    "the database then goes on without them."
)
_KEPT_FILES = 2
"""Files that RocksDB keeps of its own activity; its default is a thousand."""
_COMMIT = b"c"
"""Prefix of the keys of commits. The keys of version 0.2.0 have none, and its entries another shape."""
_NUMBER = 8
"""Bytes of an entry's number in its key."""


class Commit(msgspec.Struct, array_like=True, frozen=True):
    """What becomes durable together: encoded records by topic, and the states and positions of the stages that made them."""

    records: dict[str, list[bytes]] = {}
    offsets: dict[str, int] = {}
    """The offset of the first record of each topic; the others follow without a gap."""
    states: dict[str, dict[str, bytes]] = {}
    """The states that changed, by stage and session key."""
    positions: dict[str, int] = {}
    """The offset that each stage reads next."""


class Pending(NamedTuple):
    """Consecutive commits that the tables do not have yet."""

    commits: Sequence[Commit]
    end: int
    """The number after the last of them."""

    def since(self, number: int) -> Sequence[Commit]:
        """Those with this number or a higher one."""
        return self.commits[max(0, number - (self.end - len(self.commits))) :]


class LocalLog:
    """See the module. Belongs to one event loop; `states` and `waiting` may be read in any thread. `folder` None: in memory.

    `end_in_tables` tells where a topic ends in the tables.
    """

    def __init__(self, folder: LogFolder | None, end_in_tables: Callable[[str], int]) -> None:
        self._folder = folder
        self._end_in_tables = end_in_tables
        self._next = 0
        self._has_recovered = False
        self._pending: deque[tuple[int, Commit]] = deque()
        self._ends: dict[str, int] = {}
        self.waiting: Counter[str] = Counter()
        """The number of pending records by topic."""
        self._states: dict[str, dict[str, bytes]] = defaultdict(dict)

    def recover(self, flushed: int) -> None:
        """Take up the commits of an earlier process; the database flushes the number `flushed` next.

        StoreError if the database lacks commits before the first one here: it is an older copy.
        """
        self._next = flushed
        if self._folder is not None and self._folder.exists():
            self._read(self._folder, flushed)
        self._has_recovered = True

    def append(self, commit: Commit) -> None:
        """Make a commit durable, all of it or nothing. StoreError: it is as if it had never been brought."""
        if self._folder is not None:
            self._write(self._folder, commit)
        self._keep(self._next, commit)
        self._next += 1

    @property
    def pending(self) -> Pending:
        """What was appended and not trimmed."""
        return Pending([commit for _, commit in self._pending], self._next)

    @property
    def is_empty(self) -> bool:
        """Whether the tables have everything."""
        return not self._pending

    def end_of(self, topic: str) -> int:
        """The offset that the next record of the topic gets."""
        return max(self._ends.get(topic, 0), self._end_in_tables(topic))

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The newest pending states of a stage, for those of the keys that have one."""
        states = self._states.get(stage, {})
        return {key: state for key in keys if (state := states.get(key)) is not None}

    def trim(self, end: int) -> None:
        """Delete the commits before the number `end`: the tables have them."""
        if self._pending and self._folder is not None:
            with contextlib.suppress(Exception):  # its number tells that it was flushed
                self._folder.delete(_key(self._pending[0][0]), _key(end))
        left = [(number, commit) for number, commit in self._pending if number >= end]
        # New objects: a thread may be reading the old ones.
        self._pending, self.waiting, self._states = deque(), Counter(), defaultdict(dict)
        for number, commit in left:
            self._keep(number, commit)

    def close(self) -> None:
        """Let go of the folder, and remove it if the tables have everything."""
        if self._folder is not None:
            self._folder.close()
            if self._has_recovered and self.is_empty:
                self._folder.remove()

    def _keep(self, number: int, commit: Commit) -> None:
        self._pending.append((number, commit))
        for topic, messages in commit.records.items():
            self.waiting[topic] += len(messages)
            self._ends[topic] = commit.offsets[topic] + len(messages)
        for stage, states in commit.states.items():
            self._states[stage] |= states

    def _write(self, folder: LogFolder, commit: Commit) -> None:
        try:
            folder.write(_key(self._next), msgspec.msgpack.encode(commit))
        except StoreError:
            raise
        except Exception as error:  # RocksDB has no error type of its own
            # After a failed write RocksDB refuses all others until it is opened again.
            folder.close()
            raise StoreError(f"{folder.path}: {error}", hint=_DISK) from error

    def _read(self, folder: LogFolder, flushed: int) -> None:
        for number, entry in sorted(map(_decoded, folder.entries()), key=itemgetter(0)):
            self._next = max(self._next, number + 1)
            if number < flushed:
                continue
            if not self._pending and number > flushed:
                raise StoreError(
                    f"{folder.path}: begins with entry {number}, and the database has flushed {flushed}",
                    hint=f"The database is an older copy than {folder.path.name}. Put back the database that belongs to it, or move "
                    f"{folder.path.name} away: what is in it is then not in the tables.",
                )
            self._keep(number, entry.as_commit(self.end_of) if isinstance(entry, _Entry) else entry)


class LogFolder:
    """The folder of a local log: entries by key in a RocksDB. The disk, and nothing else of the log, is behind it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: Rdict | None = None

    def exists(self) -> bool:
        """Tell whether an earlier process left it, or this one has written to it."""
        return self.path.exists()

    def entries(self) -> list[tuple[bytes, bytes]]:
        """Every entry that is whole: the last may have been cut off. StoreError if the folder is damaged."""
        return cast("list[tuple[bytes, bytes]]", list(self._open().items()))

    def write(self, key: bytes, entry: bytes) -> None:
        """Put an entry on disk; it is there when this returns. If it raises, `close` comes next."""
        self._open()[key] = entry

    def delete(self, first: bytes, end: bytes) -> None:
        """Delete the entries from the key `first` on that come before the key `end`."""
        self._open().delete_range(first, end)

    def close(self) -> None:
        """Let go of it; what comes next opens it again."""
        files, self._files = self._files, None
        if files is not None:
            with contextlib.suppress(Exception):
                files.close()

    def remove(self) -> None:
        """Remove it with all its entries."""
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)

    def _open(self) -> Rdict:
        if self._files is None:
            options = Options(raw_mode=True)
            options.create_if_missing(True)
            options.set_keep_log_file_num(_KEPT_FILES)
            # A kill may cut off what was being written; damage anywhere else is an error, not an end.
            options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
            synced = WriteOptions()
            synced.sync = True
            try:
                self._files = Rdict(str(self.path), options)
            except Exception as error:
                hint = _DAMAGED if "Corruption" in str(error) else _DISK
                raise StoreError(f"{self.path}: cannot be opened: {error}", hint=hint) from error
            self._files.set_write_options(synced)
        return self._files


def _key(number: int) -> bytes:
    return _COMMIT + number.to_bytes(_NUMBER, "big")


class _Entry(msgspec.Struct, array_like=True, frozen=True):
    """A commit as version 0.2.0 wrote it: a server that was killed before its upgrade may have left some."""

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
        """The same commit in today's shape; `end_of` tells where the topics end without it."""
        records: dict[str, list[bytes]] = defaultdict(list)
        for part in ({SOURCES["intake"]: self.exchanges}, self.decided, self.made, self.others):
            for topic, messages in part.items():
                if messages:
                    records[topic] += messages
        states: dict[str, dict[str, bytes]] = {}
        for changed in (self.states, self.decided_states):
            for stage, by_key in changed.items():
                states[stage] = states.get(stage, {}) | by_key
        offsets = {topic: end_of(topic) for topic in records}
        return Commit(dict(records), offsets, states, _latest(self.marks, self.decided_marks))


def _decoded(item: tuple[bytes, bytes]) -> tuple[int, Commit | _Entry]:
    """The number and the content of an entry of the folder."""
    key, value = item
    number = int.from_bytes(key[-_NUMBER:], "big")
    if len(key) == _NUMBER:
        return number, msgspec.msgpack.decode(value, type=_Entry)
    return number, msgspec.msgpack.decode(value, type=Commit)


def _latest(*positions: Mapping[str, int]) -> dict[str, int]:
    """The farthest position of each stage."""
    latest: dict[str, int] = {}
    for by_stage in positions:
        for stage, position in by_stage.items():
            latest[stage] = max(position, latest.get(stage, 0))
    return latest
