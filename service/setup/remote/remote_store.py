"""The database of a running server, as commands see it: the reading methods of a `Store`, over the server's socket.

Statements run in the server, in transactions that cannot write; a cursor is a connection of its own. Rows and frames come as DuckDB
and polars have them, so that a command prints the same either way. What writes is an operation of the server
(`service.server.remote.operations`): there is no transaction to write with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, cast

from analytics.identity.duplicate_matching import Met
from analytics.store.positions import stored_ends
from analytics.store.store import Store
from analytics.store.transaction import Transaction
from schemas.errors import StoreError
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from service.setup.remote.server_link import STOP_IT, ServerLink

Row = tuple[Any, ...]


class RemoteStore(Store):
    """A store that a server has."""

    def __init__(self, path: Path, link: ServerLink) -> None:  # nothing is opened, so the parent's is not called
        self.path = path
        self.met = Met()
        self.commits = 0
        self._link = link

    def close(self) -> None:
        """End the connection to the server."""
        self._link.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Open a connection to read with, at whose other end is the server."""
        return cast("duckdb.DuckDBPyConnection", RemoteCursor(self._link.again()))

    @contextlib.contextmanager
    def transaction(self, committed: Callable[[], object] = lambda: None) -> Iterator[Transaction]:  # noqa: ARG002 - as of a store
        """StoreError: only the server writes."""
        raise StoreError(f"{self.path}: in use by a server", hint=STOP_IT)
        yield

    def checkpoint(self) -> None:
        """StoreError, as `transaction`."""
        raise StoreError(f"{self.path}: in use by a server", hint=STOP_IT)

    def end_of(self, topic: str) -> int:
        """Return the position after the last committed record of the topic."""
        with contextlib.closing(self.cursor()) as cursor:
            return stored_ends(cursor)[topic]


class RemoteCursor:
    """The reading part of a `duckdb.DuckDBPyConnection`: a class of DuckDB's own, which ours cannot inherit from."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._rows: list[Row] = []
        self.description: list[Any] = []

    def execute(self, statement: str, parameters: Any = None) -> Self:
        """Run a statement that reads; its rows are fetched from here."""
        self.description, self._rows = self._link.call("execute", statement, parameters)
        return self

    def sql(self, statement: str, *, params: Mapping[str, Any] | None = None) -> pl.DataFrame:
        """Return the rows of a statement that reads as a frame, if they can form one."""
        return cast("pl.DataFrame", self._link.call("frame", statement, params))

    def fetchall(self) -> list[Row]:
        """Return the rows that are left."""
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
        """Read a single moment, until `commit` or `close`."""
        self._link.call("begin")
        return self

    def commit(self) -> Self:
        """End what `begin` began."""
        self._link.call("commit")
        return self

    rollback = commit

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
