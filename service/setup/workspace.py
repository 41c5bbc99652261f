"""Workspaces: the database that the settings name, with the parts wired to it (`service.setup.wiring`). No other module opens one.

Analysts' statements and exports need a file. If a server has the database, they work on a copy in their own process, so that they
use no memory of the server, delay no commit, and open no file that the server has open. The server makes the copy, which has every
accepted record, in the folder of its socket.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from analytics.store.connection import IN_USE_HINT, FileLock
from analytics.store.store import Store
from schemas.errors import SettingsError, StoreError
from service.setup.server_link import ServerLink, folder_of
from service.setup.settings import Settings
from streams.log.log import is_fed_by_kafka, log_folder, require_embedded
from streams.stage_progress import lagging

if TYPE_CHECKING:
    from audit.policy import Policy
    from audit.redaction import Redactor
    from service.setup.wiring import Runner, Wiring
    from streams.log.sink import Publisher

CATCH_UP = (
    "If a server was stopped before its work was done, start it again or run `driftline rejudge`. If an import or a rebuild was "
    "interrupted, run it again. Use the same policy."
)
"""The hint for stages with unread records."""
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current time, UTC. Code below the service gets the time as an argument."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Workspace:
    """A command's database and the parts configured by the settings, built on first use."""

    settings: Settings
    store: Store
    now: Clock
    server: ServerLink | None = None
    """The server that has the database; None if this process has it."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._wiring.policy

    @property
    def redactor(self) -> Redactor:
        """The redactor, which removes secrets from texts."""
        return self._wiring.redactor

    @property
    def runner(self) -> Runner:
        """The runner that publishes records and runs the stages."""
        return self._wiring.runner

    @property
    def publisher(self) -> Publisher:
        """The publisher for records that no stage reads."""
        return self._wiring.publisher

    @functools.cached_property
    def _wiring(self) -> Wiring:
        from service.setup.wiring import wire  # noqa: PLC0415 - rules and stages take long to load, and most commands need neither

        return wire(self.settings, self.store, self.server, self.now)


def require_database(path: Path) -> None:
    """Raise a SettingsError if there is no database to read from."""
    if not path.exists():
        raise SettingsError(f"there is no database at {path}", hint="Import something first, or pass another one with --db.")


@contextlib.contextmanager
def open_workspace(
    settings: Settings, *, now: Clock = utc_now, create: bool = False, writes: bool = False, exclusive_hint: str = ""
) -> Iterator[Workspace]:
    """Open the database and wire everything to it, or to the server that has it.

    A command that needs the database exclusively passes `exclusive_hint`, the hint for users if a server has it.

    Raises SettingsError if there is no database and `create` is not set, or if the command `writes` to a database that is filled from
    Kafka. Raises StoreError if another process uses the database and accepts no commands, or if a server has it and the command needs
    it exclusively.
    """
    if not create:
        require_database(settings.database)
    with open_store(settings.database, exclusive_hint=exclusive_hint) as (store, server):
        if writes:
            require_embedded(store)
        workspace = Workspace(settings, store, now, server)
        if settings.policy is not None or (server is None and log_folder(settings.database).exists()):
            workspace.runner  # noqa: B018 - report an invalid policy before anything is done, and flush pending records
        yield workspace


@contextlib.contextmanager
def open_store(database: Path, *, exclusive_hint: str = "") -> Iterator[tuple[Store, ServerLink | None]]:
    """Yield the database, opened by this process or through the server that has it; `exclusive_hint` as for `open_workspace`."""
    with contextlib.ExitStack() as stack:
        server = None
        try:
            store = stack.enter_context(Store(database))
        except StoreError as error:
            server = ServerLink.find(database) if error.hint == IN_USE_HINT else None
            if server is None:
                raise
            if exclusive_hint:
                raise StoreError(str(error), hint=exclusive_hint) from error
            from service.setup.server_link import ServerStore  # noqa: PLC0415 - only beside a server

            store = ServerStore(database, server)
        yield store, server


def describe_lag(store: Store) -> str:
    """List the stages with unread records; empty if there are none, or if workers on Kafka run the stages."""
    if is_fed_by_kafka(store):
        return ""
    return ", ".join(
        f"stage {progress.stage} has read {progress.position} of {progress.end} records" for progress in lagging(store)
    )


@contextlib.contextmanager
def readable_file(settings: Settings) -> Iterator[Path]:
    """Yield the file of a database, or a copy if a server has it.

    Raises StoreError if a process other than a server uses it.
    """
    database = settings.database
    try:
        FileLock(database, shared=True).release()
    except StoreError as error:
        server = ServerLink.find(database) if error.hint == IN_USE_HINT else None
        if server is None:
            raise
        with database_copy(server, database) as copy:
            yield copy
    else:
        if log_folder(database).exists():  # a server was killed: flush its pending records first
            with open_workspace(settings):
                pass
        yield database


@contextlib.contextmanager
def local_store(workspace: Workspace) -> Iterator[Store]:
    """Yield the workspace's store if this process has it, otherwise a copy."""
    if workspace.server is None:
        yield workspace.store
        return
    with database_copy(workspace.server, workspace.settings.database) as copy, Store(copy) as store:
        yield store


@contextlib.contextmanager
def database_copy(server: ServerLink, database: Path) -> Iterator[Path]:
    """Yield a copy of a server's database, and remove it at the end. The server removes the copies of killed commands."""
    with tempfile.TemporaryDirectory(prefix="copy-", dir=folder_of(database), ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / database.name
        server.call("copy", type(None), str(copy))
        yield copy
