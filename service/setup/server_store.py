"""The database of a running server, as commands use it: a readable store, a runner and a publisher, over `ServerLink`.

Each statement runs in its own transaction in the server. Writes are only possible through operations of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from analytics.identity.duplicate_matching import Met
from analytics.store.positions import stored_ends
from analytics.store.store import Store
from analytics.store.transaction import Appended, Transaction
from schemas.codec.single_object import encode
from schemas.errors import StoreError
from schemas.lazy import duckdb, pl
from service.setup.server_link import STOP_IT, Outcome, Rows, ServerLink, portable

if TYPE_CHECKING:
    from audit.policy import Policy
    from schemas.records import ImportProgress, Record
    from streams.log.admission import Accepted

Row = tuple[Any, ...]


class ServerStore(Store):
    """A store that a server has."""

    def __init__(self, path: Path, link: ServerLink) -> None:
        # The parent's constructor would open the file, so it is not called.
        self.path = path
        self.met = Met()
        self.commits = 0
        self._link = link

    def close(self) -> None:
        """Do nothing: each call has its own connection."""

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a cursor that reads through the server."""
        return cast("duckdb.DuckDBPyConnection", ServerCursor(self._link))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """StoreError: only the server writes."""
        raise StoreError(f"{self.path}: in use by a server", hint=STOP_IT)
        yield

    def checkpoint(self) -> None:
        """StoreError, as `transaction`."""
        raise StoreError(f"{self.path}: in use by a server", hint=STOP_IT)

    def end_of(self, topic: str) -> int:
        """Return the position after the last committed record of the topic."""
        return stored_ends(self.cursor())[topic]


class ServerCursor:
    """The reading part of `duckdb.DuckDBPyConnection`, which cannot be subclassed."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._rows: list[Row] = []
        self.description: list[tuple[str, str]] = []

    def execute(self, statement: str, parameters: Any = None) -> Self:
        """Run a reading statement; fetch its rows from this cursor."""
        self.description, self._rows = self._link.call("read", Rows, statement, portable(parameters))
        return self

    def sql(self, statement: str, *, params: Mapping[str, Any] | None = None) -> pl.DataFrame:
        """Return the rows of a reading statement as a frame."""
        rows = self.execute(statement, params).fetchall()
        return pl.DataFrame(rows, [name for name, _ in self.description], orient="row", infer_schema_length=None)

    def fetchall(self) -> list[Row]:
        """Return the remaining rows."""
        rows, self._rows = self._rows, []
        return rows

    def fetchmany(self, size: int = 1) -> list[Row]:
        """Return the next rows."""
        rows, self._rows = self._rows[:size], self._rows[size:]
        return rows

    def fetchone(self) -> Row | None:
        """Return the next row; None if there is none."""
        return next(iter(self.fetchmany(1)), None)

    def begin(self) -> Self:
        """Do nothing: see the module."""
        return self

    def rollback(self) -> Self:
        """Do nothing, as `begin`."""
        return self

    def close(self) -> None:
        """Do nothing, as `ServerStore.close`."""


class ServerRunner:
    """Publishes records to a server and waits for its stages, as an `EmbeddedRunner` does within a process."""

    def __init__(self, link: ServerLink, now: Callable[[], datetime]) -> None:
        self._link = link
        self._now = now

    def publish(
        self,
        accepted: Accepted,
        progress: Sequence[ImportProgress] = (),
        *,
        are_own: bool = False,  # noqa: ARG002 - to the server no record is its own
    ) -> dict[str, Appended]:
        """Publish accepted records, durable on return, then record the import's progress. Return the outcome by topic."""
        outcomes = self._link.call("publish", dict[str, Outcome], accepted.messages, list(progress), self._now())
        return {topic: Appended(*outcome) for topic, outcome in outcomes.items()}

    def run(self) -> None:
        """Wait until the server's stages have read all present records."""
        self._link.call("settle", type(None))


class ServerPublisher:
    """A `Publisher` that sends records to a server."""

    def __init__(self, link: ServerLink, store: Store, policy: Policy, now: Callable[[], datetime]) -> None:
        self.store = store
        self.policy = policy
        self.now = now
        self._link = link

    async def publish(self, topic: str, records: Sequence[Record]) -> Outcome:
        """Publish records, durable on return; known records are left out."""
        messages = {topic: [encode(record) for record in records]}
        return (await asyncio.to_thread(self._link.call, "publish", dict[str, Outcome], messages, [], self.now()))[topic]
