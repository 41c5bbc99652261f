"""The link of a command to the server that has its database: HTTP calls in MessagePack over a Unix socket beside the database.

`service.server.commands` defines the operations. Both ends check values against types, and never execute received data.

1. The folder `driftline.duckdb.commands` gets mode 0700 before the socket is created in it, so that no other user can connect.
2. A command asks the operating system which user runs the server, and sends nothing to the process of another user.
3. The folder belongs to the process that has the database (`analytics.store.connection`). The next server removes the folder of a
   killed one.
4. If the path is too long for a socket address, Linux reaches the socket through the open folder.
5. Commands use the database through `ServerStore`, `ServerRunner` and `ServerPublisher` as they would use their own. Each statement
   runs in its own transaction in the server. Writes are possible only through operations of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast
from uuid import UUID

import msgspec

from analytics.identity.duplicate_matching import RecentMatches
from analytics.store.positions import read_ends
from analytics.store.store import AppendResult, Store, Transaction
from schemas import errors
from schemas.codec.single_object import encode
from schemas.errors import DriftlineError, StoreError
from schemas.lazy import duckdb, pl
from service.setup.version import version

if TYPE_CHECKING:
    from audit.policy import Policy
    from schemas.records import ImportProgress, Record
    from streams.log.admission import EncodedRecords

MESSAGE_PACK = "application/msgpack"
GREETING_TIMEOUT = 10.0
"""Seconds within which a server has to report its version."""
CANCELLED = 499
"""The status of a cancelled operation: its caller has disconnected, or the server is stopping."""
_SAME_VERSION_HINT = "Restart the server, so that both have the same version."
_ENDED_HINT = (
    "Restart the server, or repeat the command, which opens the database itself if no server has it. Earlier records are kept."
)
STOP_SERVER_HINT = "This command needs the database exclusively: stop the server, run the command, and start the server again."
"""The hint for a command that needs the database exclusively."""
FOLDER_SUFFIX = ".commands"
SOCKET_NAME = "socket"
MAX_ADDRESS_BYTES = 103
"""Length of a socket address that every system accepts."""
MAX_WAITING_COMMANDS = 16
"""Maximum number of commands that wait for a connection."""
_PEER_CREDENTIALS = struct.Struct("3i")
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
Result = TypeVar("Result")
Row = tuple[Any, ...]


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


class RejudgeResult(NamedTuple):
    """The outcome of judging: calls by result, and their cost without calls of unknown price."""

    judge: str
    requested: int
    calls: Mapping[str, int]
    spent_usd: float


class ServerLink:
    """Calls the server that has a database, each time on a new connection."""

    def __init__(self, database: Path) -> None:
        self._database = database

    @classmethod
    def find(cls, database: Path) -> Self | None:
        """Return a link to the server that has a database; None if no server accepts commands.

        Raises StoreError if the server runs as another user or has another version.
        """
        connection = connect(database)
        if connection is None:
            return None
        link = cls(database)
        connection.settimeout(GREETING_TIMEOUT)
        server_version = link._call(connection, "version", str, ())
        if server_version != version():
            raise link._version_error(f"version {server_version}")
        return link

    def call(self, operation: str, returns: type[Result], *arguments: Any) -> Result:
        """Return the result of an operation. Raises the operation's error, or StoreError if the server ends before it answers.

        Closing the connection cancels the operation.
        """
        connection = connect(self._database)
        if connection is None:
            raise self._ended_error()
        return self._call(connection, operation, returns, arguments)

    def _call(self, connection: socket.socket, operation: str, returns: type[Result], arguments: tuple[Any, ...]) -> Result:
        status, body = self._request(connection, operation, arguments)
        if status == HTTPStatus.OK:
            return unpack(body, returns)
        if status == HTTPStatus.UNPROCESSABLE_ENTITY:
            kind, message, hint = unpack(body, Failure)
            # Error classes outside `schemas.errors` arrive as their base class.
            error_class: type[DriftlineError] = getattr(errors, kind, DriftlineError)
            raise error_class(message, hint=hint)
        if status == CANCELLED:
            raise self._ended_error()
        raise StoreError(f"{self._database}: its server answered {status} to {operation}", hint="Check the server's log.")

    def _request(self, connection: socket.socket, operation: str, arguments: tuple[Any, ...]) -> tuple[int, bytes]:
        import http.client  # noqa: PLC0415 - needed only if a server has the database

        http_connection = http.client.HTTPConnection("localhost")
        http_connection.sock = connection
        with contextlib.closing(http_connection):
            try:
                http_connection.request("POST", f"/{operation}", pack(arguments), {"Content-Type": MESSAGE_PACK})
                response = http_connection.getresponse()
                return response.status, response.read()
            except TimeoutError as error:
                # Servers up to 0.2.0 use another protocol: they send their version, then wait for more bytes than this request has.
                raise self._version_error("an older version, or does not answer,") from error
            except (OSError, http.client.HTTPException) as error:
                raise self._ended_error() from error

    def _version_error(self, server_version: str) -> StoreError:
        message = f"{self._database}: its server is of {server_version}, and this command of version {version()}"
        return StoreError(message, hint=_SAME_VERSION_HINT)

    def _ended_error(self) -> StoreError:
        return StoreError(f"{self._database}: its server ended before it answered", hint=_ENDED_HINT)


def pack(value: Any) -> bytes:
    """Encode a value."""
    return msgspec.msgpack.encode(value)


def unpack(body: bytes, kind: type[Result]) -> Result:
    """Decode a value of a type. Raises msgspec.ValidationError if it has another type."""
    return msgspec.msgpack.decode(body, type=kind, ext_hook=_unpack_extension)


# MessagePack lacks these types. A datetime is also a date, so it comes first.
_EXTENSIONS: tuple[tuple[type, Callable[[Any], Any], Callable[[str], Any]], ...] = (
    (datetime, datetime.isoformat, datetime.fromisoformat),
    (date, date.isoformat, date.fromisoformat),
    (timedelta, timedelta.total_seconds, lambda text: timedelta(seconds=float(text))),
    (Decimal, str, Decimal),
    (UUID, str, UUID),
)


def to_portable(value: Any) -> Any:
    """Convert a value of a row or a parameter into a form that keeps its Python type in MessagePack."""
    if isinstance(value, Mapping):
        return {key: to_portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_portable(item) for item in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    for code, (kind, format_value, _) in enumerate(_EXTENSIONS):
        if isinstance(value, kind):
            return msgspec.msgpack.Ext(code, str(format_value(value)).encode())
    return value


def _unpack_extension(code: int, body: memoryview) -> Any:
    _, _, parse = _EXTENSIONS[code]
    return parse(bytes(body).decode())


def folder_of(database: Path) -> Path:
    """Return the folder of the socket. It is the same for all paths of the database."""
    resolved = database.resolve()
    return resolved.with_name(resolved.name + FOLDER_SUFFIX)


@contextlib.contextmanager
def command_socket(database: Path) -> Iterator[socket.socket]:
    """Open a socket for commands while the context is open. Raises StoreError if access cannot be limited to its owner."""
    folder = folder_of(database)
    with contextlib.ExitStack() as stack:
        try:
            _make_folder(folder)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            with _address(folder) as address:
                listener.bind(address)
            (folder / SOCKET_NAME).chmod(0o600)
            listener.listen(MAX_WAITING_COMMANDS)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror or error}", hint="Make it writable for its owner.") from error
        yield listener


def connect(database: Path) -> socket.socket | None:
    """Connect to the server that has a database. Return None if no server accepts commands.

    Raises StoreError if another user runs the server.
    """
    folder = folder_of(database)
    if not folder.is_dir():
        return None
    _require_own(folder)
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _address(folder) as address:
            connection.connect(address)
        _require_same_user(connection, folder)
    except OSError:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def _require_same_user(connection: socket.socket, folder: Path) -> None:
    """Raise a StoreError if the process at the other end belongs to another user. Not every system reports the user."""
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        _, user, _ = _PEER_CREDENTIALS.unpack(credentials)
        if user != os.geteuid():
            raise _foreign_error(folder, user)


def _make_folder(folder: Path) -> None:
    """Recreate the folder with access for its owner only. Raises StoreError if the folder belongs to another user."""
    with contextlib.suppress(FileNotFoundError):
        _require_own(folder)
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)


def _require_own(folder: Path) -> None:
    """Raise a StoreError if the path is not a folder, or belongs to another user."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{folder}: is not a folder", hint="Remove it: the server creates a folder there for its socket.")
    if status.st_uid != os.geteuid():
        raise _foreign_error(folder, status.st_uid)


def _foreign_error(folder: Path, user: int) -> StoreError:
    return StoreError(
        f"{folder}: belongs to the user with the id {user}", hint="Run commands as the user that runs the server."
    )


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Yield an address of the socket that is short enough. Raises OSError if there is none."""
    path = str(folder / SOCKET_NAME)
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield path
        return
    descriptor = os.open(folder, _FOLDER_FLAGS)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


class ServerStore(Store):
    """The store of a server, read through the server."""

    def __init__(self, path: Path, link: ServerLink) -> None:
        # The parent's constructor would open the file, so it is not called.
        self.path = path
        self.recent_matches = RecentMatches()
        self.commits = 0
        self._link = link

    def close(self) -> None:
        """Do nothing: each call has its own connection."""

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a cursor that reads through the server."""
        return cast("duckdb.DuckDBPyConnection", ServerCursor(self._link))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Raise StoreError, because only the server writes."""
        raise StoreError(f"{self.path}: in use by a server", hint=STOP_SERVER_HINT)
        yield

    def checkpoint(self) -> None:
        """Raise StoreError, as `transaction` does."""
        raise StoreError(f"{self.path}: in use by a server", hint=STOP_SERVER_HINT)

    def end_of(self, topic: str) -> int:
        """Return the position after the last committed record of the topic."""
        return read_ends(self.cursor())[topic]


class ServerCursor:
    """The read methods of `duckdb.DuckDBPyConnection`, which cannot be subclassed."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._rows: list[Row] = []
        self.description: list[tuple[str, str]] = []

    def execute(self, statement: str, parameters: Any = None) -> Self:
        """Run a read-only statement. Its rows can be fetched from this cursor."""
        self.description, self._rows = self._link.call("read", Rows, statement, to_portable(parameters))
        return self

    def sql(self, statement: str, *, params: Mapping[str, Any] | None = None) -> pl.DataFrame:
        """Return the rows of a read-only statement as a frame."""
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
        """Return the next row; None after the last one."""
        return next(iter(self.fetchmany(1)), None)

    def begin(self) -> Self:
        """Do nothing: the server runs each statement in its own transaction."""
        return self

    def rollback(self) -> Self:
        """Do nothing, as `begin` does."""
        return self

    def close(self) -> None:
        """Do nothing, as `ServerStore.close` does."""


class ServerRunner:
    """Publishes records to a server and waits for the server's stages, as an `EmbeddedRunner` does within a process."""

    def __init__(self, link: ServerLink, now: Callable[[], datetime]) -> None:
        self._link = link
        self._now = now

    def publish(
        self,
        accepted: EncodedRecords,
        progress: Sequence[ImportProgress] = (),
        *,
        are_own: bool = False,  # noqa: ARG002 - no record is the server's own
    ) -> dict[str, AppendResult]:
        """Publish accepted records, then record the import's progress. Both are durable on return. Return the outcome by topic."""
        outcomes = self._link.call("publish", dict[str, Outcome], accepted.messages, list(progress), self._now())
        return {topic: AppendResult(*outcome) for topic, outcome in outcomes.items()}

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
        """Publish records, except known ones. They are durable on return."""
        messages = {topic: [encode(record) for record in records]}
        outcomes = await asyncio.to_thread(self._link.call, "publish", dict[str, Outcome], messages, [], self.now())
        return outcomes[topic]
