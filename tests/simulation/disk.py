"""A disk that survives every kill: the folder of the local log, and a DuckDB in memory. Both fail as the history says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import msgspec
from simulation.world import World

from analytics.identity.duplicate_matching import RecentMatches
from analytics.store.store import Store
from audit.exchanges.questions import ANSWERED
from schemas.codec.single_object import decode
from schemas.records import Judgement, Reservation
from streams.log.log import Commit

PATH = Path("simulated.duckdb")
"""The name of the database: there is no such file."""
JUDGEMENTS = "judgements"
WITH_ROWS = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'log' AND estimated_size > 0 ORDER BY 1"
"""Asks for the tables that have, or had, rows."""
FULL = "No space left on device"


class Calls:
    """What is durable of calls to the judge: reservations by question, and the questions that were answered."""

    def __init__(self) -> None:
        self.reservations: dict[str, str] = {}
        """The fingerprint of the question, by reservation."""
        self.answered: set[str] = set()
        """Fingerprints."""

    def add(self, messages: list[bytes]) -> None:
        """Take in encoded records."""
        for record in map(decode, messages):
            if isinstance(record, Reservation):
                self.reservations[record.reservation_id] = record.fingerprint
            elif isinstance(record, Judgement) and record.outcome == ANSWERED:
                self.answered.add(record.fingerprint)


class LogDisk:
    """The entries of the log that are on disk, by key."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.entries: dict[bytes, bytes] = {}
        self.is_there = False
        self._acknowledged: set[bytes] = set()
        """The keys of entries of which a process knows. What failed and was written all the same counts for nothing until it is read."""
        self._full_for = 0
        """Appends that find no room."""
        self._calls = Calls()
        """What was durable in entries that were deleted since: the tables have it."""
        self._ends: dict[str, int] = {}
        """The ends of topics after those entries."""

    def write(self, key: bytes, entry: bytes) -> None:
        """Put an entry on disk, as far as nothing goes wrong."""
        self._world.reach()
        world, fault = self._world, self._world.pass_point("append")
        what = "" if fault is None else fault.what
        if what == "killed before":  # an entry that is cut off is left out by RocksDB: it is as if it had not been begun
            world.kill()
        if what == "no room" and fault is not None:
            self._full_for = int(fault.amount)
        if self._full_for:
            self._full_for -= 1
            raise OSError(FULL)
        self._check_offsets(key, msgspec.msgpack.decode(entry, type=Commit))
        self.is_there, self.entries[key] = True, entry
        world.note(f"append {int.from_bytes(key[1:], 'big')}: {len(entry)} bytes")
        self._acknowledged.discard(key)
        if what == "error, yet written":
            raise OSError(FULL)
        self._acknowledged.add(key)
        if what == "killed after":
            world.kill()

    def delete(self, first: bytes, end: bytes) -> None:
        """Delete entries: the tables have them."""
        self._world.reach()
        for key in [key for key in sorted(self.entries) if first <= key < end]:
            if key in self._acknowledged:
                commit = self._commit(key)
                self._calls.add(commit.records.get(JUDGEMENTS, []))
                for topic, messages in commit.records.items():
                    self._ends[topic] = commit.offsets[topic] + len(messages)
            del self.entries[key]

    def read(self) -> list[tuple[bytes, bytes]]:
        """Every entry, in order."""
        self._acknowledged.update(self.entries)
        return sorted(self.entries.items())

    def remove(self) -> None:
        """Remove the folder."""
        self.delete(b"", b"\xff")
        self.is_there = False

    def calls(self) -> Calls:
        """What is durable of calls to the judge at this moment."""
        calls = Calls()
        calls.reservations |= self._calls.reservations
        calls.answered |= self._calls.answered
        for key in sorted(self.entries):
            calls.add(self._commit(key).records.get(JUDGEMENTS, []))
        return calls

    def _check_offsets(self, key: bytes, commit: Commit) -> None:
        ends = dict(self._ends)
        for earlier in sorted(self.entries):
            if earlier < key:
                before = self._commit(earlier)
                ends |= {topic: before.offsets[topic] + len(messages) for topic, messages in before.records.items()}
        for topic, offset in commit.offsets.items():
            self._world.require(
                offset >= ends.get(topic, 0), "offsets are never given twice", f"{topic}: {offset} after {ends.get(topic)}"
            )

    def _commit(self, key: bytes) -> Commit:
        return msgspec.msgpack.decode(self.entries[key], type=Commit)


class SimulatedFolder:
    """Takes the place of `streams.log.local_log.LogFolder`."""

    def __init__(self, path: Path, disk: LogDisk) -> None:
        self.path = path
        self._disk = disk

    def exists(self) -> bool:
        """Tell whether it is there."""
        return self._disk.is_there

    def entries(self) -> list[tuple[bytes, bytes]]:
        """Every whole entry."""
        return self._disk.read()

    def write(self, key: bytes, entry: bytes) -> None:
        """Put an entry on disk."""
        self._disk.write(key, entry)

    def delete(self, first: bytes, end: bytes) -> None:
        """Delete entries."""
        self._disk.delete(first, end)

    def close(self) -> None:
        """Nothing to let go of."""

    def remove(self) -> None:
        """Remove the folder."""
        self._disk.remove()


class _Connection:
    """A connection to the database whose commits may fail; all else is the connection's."""

    def __init__(self, store: SimulatedStore, connection: duckdb.DuckDBPyConnection) -> None:
        self._store = store
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def begin(self) -> None:
        self._store.reach()
        if self._store.has_given_up:
            raise duckdb.FatalException(FULL)
        self._connection.begin()

    def commit(self) -> None:
        self._store.commit(self._connection)


class SimulatedStore(Store):
    """A store in memory that serves one history after another, and in each of them one process after another."""

    def __init__(self) -> None:
        super().__init__(None, is_browsed=False)
        self.path = PATH
        self._connection.execute("SET GLOBAL threads = 1")  # rows without an order come in the same one then
        self._connection = _Connection(self, self._connection)  # type: ignore[assignment]
        self.has_given_up = False
        self._world: World | None = None

    def begin_history(self, world: World) -> None:
        """Begin empty."""
        self._world, self.has_given_up = None, False
        for (table,) in self._connection.execute(WITH_ROWS).fetchall():
            self._connection.execute(f'DELETE FROM log."{table}"')
        self._ends = dict.fromkeys(self._ends, 0)
        self._world = world

    def restart(self) -> None:
        """Forget what a process knows of the database, but for the ends of topics: a transaction that fails has asked for them."""
        self.has_given_up = False
        self.recent_matches = RecentMatches()
        self.commits = 0
        self._state_changes.clear()

    def end_history(self) -> None:
        """Nothing goes wrong any more."""
        self._world = None

    def reach(self) -> None:
        """Note that a process reaches out for the database."""
        if self._world is not None:
            self._world.reach()

    def commit(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Commit, as far as nothing goes wrong."""
        world = self._world
        fault = None if world is None else world.pass_point("commit")
        what = "" if fault is None else fault.what
        if what == "killed before" and world is not None:
            world.kill()
        if what == "fails":
            raise duckdb.IOException(FULL)
        if what == "gives up":
            self.has_given_up = True
            raise duckdb.FatalException(FULL)
        connection.commit()
        if world is not None:
            world.note("the tables are committed")
        if what == "fails, yet durable":
            raise duckdb.IOException(FULL)
        if what == "killed after" and world is not None:
            world.kill()
