"""Erasure on request: a record names the session or connection to erase (see `analytics/deletion/README.md`); a state stores what was done.

No record of an erased session or connection is judged or kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from analytics.deletion.deleting import ERASURES, STAGE, Erased, erased_in
from analytics.deletion.erasure import Erasing
from analytics.queries import query_rows
from analytics.store.connection import attached
from analytics.store.store import Store
from analytics.store.tables import quote
from audit.anchors import ANCHORS
from audit.fingerprints import stable_id
from schemas.errors import InputError, StoreError
from schemas.lazy import duckdb
from schemas.records import Erasure
from streams.engine.record_intake import RecordIntake
from streams.log.ownership import is_fed_by_kafka
from streams.log.sink import note_fatal, trouble
from streams.replay.plan import folder_of


class ErasedNow:
    """The requested erasures of a store, read again when there are more. Belongs to one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._end = 0
        self._erased = Erased.of([])

    @property
    def is_read(self) -> bool:
        """True once all erasures were read."""
        return self._store.end_of(ERASURES) == self._end

    def has(self, connection: str, session_id: str) -> bool:
        """Tell whether the session is erased."""
        if not self.is_read:
            end = self._store.end_of(ERASURES)
            with contextlib.closing(self._store.cursor()) as cursor:
                self._erased = erased_in(cursor)
            self._end = end
        return self._erased.has(connection, session_id)


CHECK_SECONDS = 60.0
"""Seconds between two looks for erasures that were requested elsewhere."""
COPIES = "Backups, copies of the database, exported Parquet files and result files of evaluations: delete them yourself."
FREE_SPACE = (
    "Deleted records are still in the free space of the database file until it is compacted, at the next start of the server."
)
TOPICS = (
    "Records on Kafka's topics and the workers' state of open sessions: let the topics' retention.ms delete them, or delete "
    "those before an offset with kafka-delete-records. Landed again, they are dropped."
)
log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()


class Done(msgspec.Struct, frozen=True):
    """The record of a completed erasure in this database."""

    erased_at: datetime
    deleted: Mapping[str, int]
    """Rows deleted or blackened, by table, for all sessions that were erased together."""
    replays: Sequence[str]
    """Labels of the replays that were deleted because they held erased sessions."""


@dataclass(frozen=True)
class Requested:
    """An erasure, and its completion in this database; None if it is pending."""

    erasure: Mapping[str, Any]
    done: Done | None


def erasure(connection: str, session_id: str | None, requested_by: str, comment: str | None, now: datetime) -> Erasure:
    """The record that requests an erasure: the same for repeated requests of a session or connection.

    InputError for the whole connection of anchors: without it no project's judge could be watched ever after.
    """
    if connection == ANCHORS and session_id is None:
        raise InputError(
            f"connection: {ANCHORS} is reserved for judging anchors", hint="Withdraw the anchors, or name a session."
        )
    return Erasure(
        erasure_id=stable_id("erasure", connection, session_id or "", "connection" if session_id is None else "session"),
        connection=connection,
        session_id=session_id,
        requested_by=requested_by,
        comment=comment,
        occurred_at=now,
        ingested_at=now,
    )


async def request_erasure(engine: RecordIntake, wanted: Erasure) -> None:
    """Make the request durable and, unless records go through Kafka, erase at once."""
    published = await engine.publish(ERASURES, [wanted])
    again = [wanted.erasure_id] if published.known else []
    await _erase(engine, again=again)


async def _erase(engine: RecordIntake, *, again: Collection[str] = (), all_again: bool = False) -> None:
    """Erase in a thread, and note a fatal database error here: no later flush might notice it."""
    try:
        await asyncio.to_thread(erase, engine.store, engine.now(), again=again, all_again=all_again)
    except trouble() as error:
        note_fatal(error, engine.broken)
        raise


def erasures(store: Store) -> list[Requested]:
    """Every erasure, newest first."""
    with contextlib.closing(store.cursor()) as cursor:
        rows = query_rows(cursor, "erasures")
    return [Requested(row, None if row["state"] is None else msgspec.msgpack.decode(row["state"], type=Done)) for row in rows]


def remains(store: Store) -> list[str]:
    """Return the copies that an erasure does not reach, each with advice."""
    return [FREE_SPACE, COPIES, *([TOPICS] if is_fed_by_kafka(store) else [])]


def erase(store: Store, now: datetime, *, again: Collection[str] = (), all_again: bool = False) -> int:
    """Do the pending erasures, and repeat those with the ids `again`, or all that were ever requested; returns their number.

    Earlier deletions are counted together with new ones, so that a second request removes no proof.
    """
    with _one_at_a_time:
        wanted = [one for one in erasures(store) if all_again or one.done is None or one.erasure["erasure_id"] in again]
        if not wanted:
            return 0
        erased = Erased.of([(one.erasure["connection"], one.erasure["session_id"]) for one in wanted])
        deleted = Erasing(store, erased).run()
        replays = [] if store.path is None else _delete_replays(store.path, erased)
        for one in wanted:
            if one.done is None or one.erasure["erasure_id"] in again:
                done = msgspec.msgpack.encode(_added(one.done, Done(now, dict(deleted), replays)))
                with store.transaction() as transaction:
                    transaction.set_states(STAGE, {one.erasure["erasure_id"]: done}, 0)
        if deleted.total() or replays:
            log.warning("erased: %s", ", ".join(f"{count} rows of {table}" for table, count in deleted.items() if count))
    return len(wanted)


class ErasureTask:
    """Does erasures that were requested elsewhere, and at the start all that were ever requested."""

    name = "erasures"
    interval = CHECK_SECONDS

    def __init__(self, engine: RecordIntake) -> None:
        self._engine = engine
        self._is_first = True

    async def run(self) -> None:
        """Erase, once the tables have everything that was there at the start."""
        if self._engine.state().ready:
            await _erase(self._engine, all_again=self._is_first)
            self._is_first = False


def _added(before: Done | None, now: Done) -> Done:
    if before is None:
        return now
    deleted = Counter(before.deleted)
    deleted.update(now.deleted)
    return Done(now.erased_at, dict(deleted), [*before.replays, *now.replays])


def _delete_replays(database: Path, erased: Erased) -> list[str]:
    """Delete the replays beside a database that hold any erased session, because half a replay is useless. Returns their labels."""
    found = []
    for file in sorted(folder_of(database).glob("*.duckdb")):
        if _holds(file, erased):
            file.unlink()
            found.append(file.stem)
    return found


def _holds(file: Path, erased: Erased) -> bool:
    """Tell whether a file has rows of an erased session; an unreadable file counts as having some."""
    columns = (
        "SELECT schema_name, table_name FROM duckdb_columns() WHERE database_name = 'replay' "
        "AND column_name IN ('connection', 'session_id') GROUP BY ALL HAVING count(*) = 2"
    )
    try:
        with attached({"replay": file}) as connection:
            for schema, table in connection.execute(columns).fetchall():
                name = f"replay.{quote(schema)}.{quote(table)}"
                rows = connection.execute(f"SELECT DISTINCT connection, session_id FROM {name}")  # noqa: S608 - names of tables, quoted
                if any(erased.has(*row) for row in rows.fetchall()):
                    return True
    except (StoreError, duckdb.Error):
        log.warning("%s cannot be read, so it may hold erased records: it is deleted", file)
        return True
    return False
