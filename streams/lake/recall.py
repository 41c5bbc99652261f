# ruff: noqa: S608 - statements are built from names of our own, quoted values and parameters
"""Recall: details of cold days come back from the lake into the database when somebody opens them.

1. The unit is a session: its exchanges, scores, judgements, events and what belongs to them, at the positions that they had. It is found by
   its id, its run, or an id of one of its exchanges or scores. Whole days of a project come back for commands that read a period.
2. Rows that are there already, and rows of erased sessions, are not written. Sums do not change: these positions were counted.
3. The rows are still cold, so the next cooling deletes them: at the beginning of the next day (UTC), or at the next start.
4. One recall runs at a time. A caller that has waited for `WAIT_SECONDS` gets BusyError, and the recall continues.
5. What the lake does not have is not looked up again until the border between hot and cold days moves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from analytics.deletion.deleting import schemas_of_sessions
from analytics.deletion.retention import NOT_COOLED
from analytics.lake import DAY, PROJECT, Lake, record_types
from analytics.queries import query_rows
from analytics.store.store import Store
from analytics.store.tables import literal
from schemas.codec.arrow import INDEX
from schemas.errors import BusyError, InputError
from schemas.lazy import pl
from streams.lake.encrypted_rows import decrypt_rows
from streams.lake.history import BATCH_ROWS, LakeBatch

if TYPE_CHECKING:
    from streams.kafka.encryption import TextEncryption
    from streams.kafka.sink import SinkWriter

WAIT_SECONDS = 10.0
"""How long a caller waits for a recall."""
MAX_EXCHANGES = 1_000_000
"""How many exchanges of whole days are fetched at once."""
LATER_DAYS = timedelta(days=2)
"""How long after the last exchange or event of a session its other records may come, such as its end."""
_ANSWERS = frozenset({"Judgement", "Reservation"})
"""Record types whose day is that of the judge's answer, which may be much later than the exchange."""
_NO_DETAILS = frozenset({"ScoringTask", "JudgingRequest"})
"""Record types of sessions that nobody reads, apart from the stages, which are done with them."""


@dataclass(frozen=True)
class ColdSession:
    """A session with details in the lake only, and the days of its first and its last record."""

    connection: str
    session_id: str
    first_day: date
    last_day: date


class Recall:
    """See the module. Belongs to one event loop. `encryption` decrypts encrypted rows."""

    def __init__(self, store: Store, lake: Lake, writer: SinkWriter, encryption: TextEncryption | None = None) -> None:
        self._encryption = encryption
        self._store = store
        self._lake = lake
        self._writer = writer
        self._lock = asyncio.Lock()
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._absent: dict[Hashable, datetime] = {}
        """What the lake did not have, and the border at that time."""

    async def session(self, project: str, session_id: str) -> None:
        """Have the details of a session in the database, of each connection that has one with this id.

        Raises BusyError if that takes too long, and LakeError if the lake cannot be read; so do the other methods.
        """
        await self._recall(project, ("session", session_id), lambda _: self._recall_sessions(project, session_id, None))

    async def run(self, project: str, number: int) -> None:
        """Have the details of a run in the database, by its number."""
        await self._recall(project, ("run", number), lambda _: self._recall_sessions(project, None, number))

    async def exchange(self, project: str, exchange_id: str) -> None:
        """Have the details of an exchange and its session in the database."""
        await self._recall(
            project, ("exchange", exchange_id), lambda border: self._recall_by(project, "Exchange", exchange_id, border)
        )

    async def score(self, project: str, score_id: str) -> None:
        """Have the details of a score and its session in the database."""
        await self._recall(project, ("score", score_id), lambda border: self._recall_by(project, "Score", score_id, border))

    async def days(self, project: str, first: date, last: date) -> int:
        """Have the details of these days (UTC, both included) in the database; return the number of restored rows.

        Waits as long as it takes. Recalls of sessions come in between days. Raises InputError for more than `MAX_EXCHANGES`.
        """
        border = await asyncio.to_thread(self._read_border, project)
        if border is None:
            return 0
        await asyncio.to_thread(self._check_size, project, first, last)
        restored = 0
        for day in await asyncio.to_thread(self._list_days, project, first, min(last, border.date() - timedelta(days=1))):
            async with self._lock:
                restored += await asyncio.to_thread(self._recall_day, project, day)
        return restored

    def _list_days(self, project: str, first: date, last: date) -> list[str]:
        """Return the days of a period, in order, of which the lake has details."""
        self._lake.reload()
        partitions = (partition for name in _DETAILS for partition in self._lake.table(name).partitions())
        days = {partition[DAY] for partition in partitions if partition[PROJECT] == project}
        return sorted(day for day in days if first.isoformat() <= day <= last.isoformat())

    def _check_size(self, project: str, first: date, last: date) -> None:
        since, until = (datetime.combine(day, time(), UTC) for day in (first, last + timedelta(days=1)))
        with contextlib.closing(self._store.cursor()) as cursor:
            rows = query_rows(cursor, "cold_days", {"project": project, "since": since, "until": until})
        exchanges = sum(row["exchanges"] for row in rows)
        if exchanges > MAX_EXCHANGES:
            raise InputError(
                f"{project} has {exchanges} exchanges from {first} to {last} in the lake, and at most {MAX_EXCHANGES} are fetched at once",
                hint="Name fewer days, or read the lake with `driftline sql --lake`.",
            )

    def _recall_day(self, project: str, day: str) -> int:
        self._lake.reload()
        condition = f"{PROJECT} = {literal(project)} AND {DAY} = '{day}'"
        restored = 0
        for topic, names in record_types().items():
            for name in _DETAILS.intersection(names):
                of_topic = f"_topic = {literal(topic)} AND {condition}"
                first, last = self._lake.offsets(name, of_topic) or (0, -1)
                for start in range(first, last + 1, BATCH_ROWS):
                    window = f"{of_topic} AND _offset >= {start} AND _offset < {start + BATCH_ROWS}"
                    restored += self._writer.restore([self._build_batch(topic, name, self._lake.read(name, window))])
        return restored

    async def _recall(self, project: str, item: tuple[str, str | int], recall: Callable[[datetime], int | None]) -> None:
        """Run a recall in a thread, or wait for a running one of the same item.

        `recall` gets the border of the project, and returns the number of restored rows; None if the database has the item.
        """
        border = await asyncio.to_thread(self._read_border, project)
        key = project, *item
        if border is None or self._absent.get(key) == border:
            return
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._recall_alone(key, recall, border))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.shield(task)
        except TimeoutError as error:
            raise BusyError("this is being fetched from the lake", hint="Ask again in a moment.") from error

    async def _recall_alone(self, key: Hashable, recall: Callable[[datetime], int | None], border: datetime) -> None:
        try:
            async with self._lock:
                restored = await asyncio.to_thread(recall, border)
            if restored == 0:
                self._absent = {absent: at for absent, at in self._absent.items() if at == border} | {key: border}
        finally:
            del self._running[key]

    def _read_border(self, project: str) -> datetime | None:
        """Return the time before which details of a project are in the lake only; None if all are in the database."""
        with contextlib.closing(self._store.cursor()) as cursor:
            borders = cursor.execute("SELECT border FROM log.cold_borders() WHERE project = ?", [project]).fetchall()
        return borders[0][0] if borders else None

    def _recall_sessions(self, project: str, session_id: str | None, number: int | None) -> int | None:
        with contextlib.closing(self._store.cursor()) as cursor:
            rows = query_rows(cursor, "cold_sessions", {"project": project, "session": session_id, "number": number})
        if not rows:
            return None
        self._lake.reload()
        return sum(self._writer.restore(list(self._read_session(project, ColdSession(**row)))) for row in rows)

    def _recall_by(self, project: str, name: str, value: str, border: datetime) -> int | None:
        """Recall the sessions of the exchange or score with this id."""
        table, column = _IDS[name]
        with contextlib.closing(self._store.cursor()) as cursor:
            if cursor.execute(f"SELECT 1 FROM {table} WHERE project = ? AND {column} = ? LIMIT 1", [project, value]).fetchall():
                return None
        self._lake.reload()
        condition = f"{PROJECT} = {literal(project)} AND {DAY} < '{border:%Y-%m-%d}' AND {column} = {literal(value)}"
        session_ids = self._lake.read(name, condition)["session_id"].unique()
        return sum(self._recall_sessions(project, session_id, None) or 0 for session_id in session_ids)

    def _read_session(self, project: str, session: ColdSession) -> Iterable[LakeBatch]:
        """Yield the rows of a session by topic."""
        condition = (
            f"{PROJECT} = {literal(project)} AND connection = {literal(session.connection)}"
            f" AND session_id = {literal(session.session_id)} AND {DAY} >= '{session.first_day:%Y-%m-%d}'"
        )
        until = f" AND {DAY} <= '{session.last_day + LATER_DAYS:%Y-%m-%d}'"
        for topic, names in record_types().items():
            for name in names:
                if name in _DETAILS:
                    rows = self._lake.read(name, condition if name in _ANSWERS else condition + until)
                    yield self._build_batch(topic, name, rows.filter(pl.col("_topic") == topic))

    def _build_batch(self, topic: str, name: str, rows: pl.DataFrame) -> LakeBatch:
        """Return rows of a topic and record type as a batch to restore."""
        decrypted = decrypt_rows(name, topic, rows, self._encryption).rows
        frame = decrypted.drop("_topic").with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(INDEX))
        return LakeBatch(topic, {name: frame} if frame.height else {}, {})


_DETAILS = frozenset(schema.name for schema in schemas_of_sessions()) - NOT_COOLED - _NO_DETAILS
_IDS = {"Exchange": ("log.exchanges", "exchange_id"), "Score": ("log.scores", "score_id")}
"""The table and the id of each record type by whose id sessions are found."""
