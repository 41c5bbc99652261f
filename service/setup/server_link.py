"""The command's end of its link to the server that has its database: calls over HTTP on the database's socket, in MessagePack.

The operations are listed in `service.server.commands`. Both ends check values against types, and never execute received data.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from uuid import UUID

import msgspec

from schemas import errors
from schemas.errors import DriftlineError, StoreError
from service.setup.command_socket import connect
from service.setup.version import version

Result = TypeVar("Result")
MESSAGE_PACK = "application/msgpack"
GREETING_SECONDS = 10.0
"""Seconds within which a server has to report its version."""
CANCELLED = 499
"""The status of a cancelled operation: its caller hung up or the server is stopping."""
_SAME_VERSION = "Restart the server, so that both have the same version."
_ENDED = "Restart it, or repeat the command, which opens the database itself if no server has it. Earlier records are kept."
STOP_IT = "A server has the database, and this cannot be done beside it: stop the server, run the command, and start it again."
"""The advice for a command that needs exclusive access to the database."""


class Failure(NamedTuple):
    """An error of an operation: its class in `schemas.errors`, its message, and its hint."""

    kind: str
    message: str
    hint: str


class Rows(NamedTuple):
    """The rows of a statement, with the name and the DuckDB type of each column."""

    columns: list[tuple[str, str]]
    rows: list[tuple[Any, ...]]


class Outcome(NamedTuple):
    """The outcome of publishing to a topic: rows written by table, the number of known records, and the indexes of conflicts."""

    written: dict[str, int]
    known: int
    conflicts: list[int]


class Judged(NamedTuple):
    """The outcome of judging: calls by result, and their cost as far as prices are known."""

    judge: str
    requested: int
    calls: Mapping[str, int]
    spent_usd: float


class ServerLink:
    """Calls the server that has a database, each time on a connection of its own."""

    def __init__(self, database: Path) -> None:
        self._database = database

    @classmethod
    def to(cls, database: Path) -> Self | None:
        """Return a link to the server that has a database; None if no server takes commands.

        StoreError if the server runs as another user or has another version.
        """
        connection = connect(database)
        if connection is None:
            return None
        link = cls(database)
        connection.settimeout(GREETING_SECONDS)
        theirs = link._call(connection, "version", str, ())
        if theirs != version():
            raise link._another_version(f"version {theirs}")
        return link

    def call(self, operation: str, returns: type[Result], *arguments: Any) -> Result:
        """Return the result of an operation. Its error is raised here; StoreError if the server ends before it answers.

        Closing the connection cancels the operation.
        """
        connection = connect(self._database)
        if connection is None:
            raise self._ended()
        return self._call(connection, operation, returns, arguments)

    def _call(self, connection: socket.socket, operation: str, returns: type[Result], arguments: tuple[Any, ...]) -> Result:
        status, body = self._request(connection, operation, arguments)
        if status == HTTPStatus.OK:
            return unpack(body, returns)
        if status == HTTPStatus.UNPROCESSABLE_ENTITY:
            kind, message, hint = unpack(body, Failure)
            # Classes that other modules define for themselves come as their base.
            error_class: type[DriftlineError] = getattr(errors, kind, DriftlineError)
            raise error_class(message, hint=hint)
        if status == CANCELLED:
            raise self._ended()
        raise StoreError(f"{self._database}: its server answered {status} to {operation}", hint="Look into the server's log.")

    def _request(self, connection: socket.socket, operation: str, arguments: tuple[Any, ...]) -> tuple[int, bytes]:
        import http.client  # noqa: PLC0415 - only beside a server

        http_connection = http.client.HTTPConnection("localhost")
        http_connection.sock = connection
        with contextlib.closing(http_connection):
            try:
                http_connection.request("POST", f"/{operation}", pack(arguments), {"Content-Type": MESSAGE_PACK})
                response = http_connection.getresponse()
                return response.status, response.read()
            except TimeoutError as error:
                # Servers up to 0.2.0 speak another protocol: they greet with their version, then wait for more bytes than this request has.
                raise self._another_version("an older version, or does not answer,") from error
            except (OSError, http.client.HTTPException) as error:
                raise self._ended() from error

    def _another_version(self, theirs: str) -> StoreError:
        message = f"{self._database}: its server is of {theirs}, and this command of version {version()}"
        return StoreError(message, hint=_SAME_VERSION)

    def _ended(self) -> StoreError:
        return StoreError(f"{self._database}: the server that has it ended before it answered", hint=_ENDED)


def pack(value: Any) -> bytes:
    """Encode a value."""
    return msgspec.msgpack.encode(value)


def unpack(body: bytes, kind: type[Result]) -> Result:
    """Decode a value of a type; msgspec.ValidationError if it is of another type."""
    return msgspec.msgpack.decode(body, type=kind, ext_hook=_unpack_extension)


# MessagePack lacks these types, and a column's content is only known from DuckDB's type. A datetime is also a date, so it comes first.
_EXTENSIONS: tuple[tuple[type, Callable[[Any], Any], Callable[[str], Any]], ...] = (
    (datetime, datetime.isoformat, datetime.fromisoformat),
    (date, date.isoformat, date.fromisoformat),
    (timedelta, timedelta.total_seconds, lambda text: timedelta(seconds=float(text))),
    (Decimal, str, Decimal),
    (UUID, str, UUID),
)


def portable(value: Any) -> Any:
    """Convert a value of a row or a parameter into a form that keeps its Python type in MessagePack."""
    if isinstance(value, Mapping):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(part) for part in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    for code, (kind, text_of, _) in enumerate(_EXTENSIONS):
        if isinstance(value, kind):
            return msgspec.msgpack.Ext(code, str(text_of(value)).encode())
    return value


def _unpack_extension(code: int, body: memoryview) -> Any:
    _, _, parse = _EXTENSIONS[code]
    return parse(bytes(body).decode())
