"""A spool: items put aside on disk and given back in order of time, so that a file of any size and order is read in bounded memory.

An export that has the newest first would have its sessions scored backwards. What is spooled is redacted already.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import groupby

from streams.sources.otlp.request import EPOCH

_MICROSECOND = 1_000_000


class Spool:
    """Items by groups. A database without a name is a file that SQLite deletes as soon as it has opened it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE items (place INTEGER PRIMARY KEY, name TEXT, at INTEGER, item BLOB)")

    def add(self, name: str, at: datetime, item: bytes) -> None:
        """Put an item of a group aside."""
        since = at - EPOCH
        microseconds = (since.days * 86_400 + since.seconds) * _MICROSECOND + since.microseconds
        self._connection.execute("INSERT INTO items (name, at, item) VALUES (?, ?, ?)", (name, microseconds, item))

    def items(self) -> Iterator[bytes]:
        """Yield the items by time, those of one time in the order in which they came."""
        yield from (item for (item,) in self._connection.execute("SELECT item FROM items ORDER BY at, place"))

    def groups(self) -> Iterator[Iterator[bytes]]:
        """Yield the items of each group, the groups by the time of their first item."""
        rows = self._connection.execute(
            "SELECT name, item FROM items JOIN (SELECT name, min(at) AS first FROM items GROUP BY name) USING (name) "
            "ORDER BY first, name, at, place"
        )
        for _, group in groupby(rows, key=lambda row: row[0]):
            yield (item for _, item in group)


@contextmanager
def spool() -> Iterator[Spool]:
    """Open an empty spool, which is gone afterwards."""
    with closing(sqlite3.connect("", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        yield Spool(connection)
