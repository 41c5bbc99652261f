"""The command's end: it calls operations of the server that has the database (`service.server.remote.operations`) and waits."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from schemas.errors import StoreError
from service.setup.remote.command_socket import connected
from service.setup.version import version

MAX_GREETING = 100
"""Bytes of a server's version."""
_ENDED = "Restart it, or repeat the command, which opens the database itself if no server has it. Earlier records are kept."

STOP_IT = "A server has the database, and this cannot be done beside it: stop the server, run the command, and start it again."
"""The way if a command needs the database for itself."""
Differing = Mapping[int, tuple[str, ...]]


@dataclass(frozen=True)
class PublishResult:
    """The outcome of publishing: how many records were written and known, and the conflicting fields by place."""

    written: int
    known: int
    differing: Differing


@dataclass(frozen=True)
class Judged:
    """The outcome of asking a judge: its calls by result, and their cost as far as prices are known."""

    judge: str
    asked: int
    calls: Mapping[str, int]
    spent_usd: float


class ServerLink:
    """A connection to the server that has a database; one call at a time. Closing it cancels what the server does for it."""

    def __init__(self, database: Path, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    @classmethod
    def to(cls, database: Path) -> Self | None:
        """Connect to the server that has a database; None if no server takes commands.

        StoreError where the server runs as another user, or is of another version.
        """
        opened = connected(database)
        if opened is None:
            return None
        link = cls(database, Connection(opened.detach()))
        try:
            link._require_same_version()
        except BaseException:
            link.close()
            raise
        return link

    def again(self) -> ServerLink:
        """Open another connection to the same server. StoreError if it has ended."""
        link = ServerLink.to(self._database)
        if link is None:
            raise self._ended()
        return link

    def call(self, operation: str, *arguments: Any) -> Any:
        """Return the answer of an operation; its error is raised here. StoreError if the server ends meanwhile."""
        try:
            self._connection.send((operation, arguments))
            is_answer, found = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if not is_answer:
            raise found
        return found

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._connection.close()

    def _require_same_version(self) -> None:
        """StoreError if the server's version differs: it is read as plain bytes, before any object."""
        try:
            said = self._connection.recv_bytes(MAX_GREETING).decode("utf-8", "replace")
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if said != version():
            raise StoreError(
                f"{self._database}: its server is of version {said}, and this command of version {version()}",
                hint="Restart the server, so that both have the same version.",
            )

    def _ended(self) -> StoreError:
        return StoreError(f"{self._database}: the server that has it ended before it answered", hint=_ENDED)
