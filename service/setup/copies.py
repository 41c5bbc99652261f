"""Copies of a server's database, for commands that need a file: analysts' statements and exports.

Such work runs in its own process on its own file, so it uses no memory of the server, delays no commit, and opens no file that the
server has open. The server makes the copy, with every accepted record, in the folder of its socket.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from analytics.store.connection import IN_USE, FileLock
from analytics.store.store import Store
from schemas.errors import StoreError
from service.setup.command_socket import folder_of
from service.setup.server_link import ServerLink
from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace
from streams.log.log import log_folder


@contextlib.contextmanager
def readable_file(settings: Settings) -> Iterator[Path]:
    """Return the file of a database, or a copy if a server has it. StoreError if another kind of process has it."""
    database = settings.database
    try:
        FileLock(database, shared=True).release()
    except StoreError as error:
        if error.hint != IN_USE or (link := ServerLink.to(database)) is None:
            raise
        with copied(link, database) as copy:
            yield copy
    else:
        if log_folder(database).exists():  # A server was killed: flush its pending records first.
            with open_workspace(settings):
                pass
        yield database


@contextlib.contextmanager
def own_store(workspace: Workspace) -> Iterator[Store]:
    """Return the workspace's store if this process has it, otherwise a copy."""
    if workspace.server is None:
        yield workspace.store
        return
    with copied(workspace.server, workspace.settings.database) as copy, Store(copy) as store:
        yield store


@contextlib.contextmanager
def copied(server: ServerLink, database: Path) -> Iterator[Path]:
    """Yield a copy of a server's database and remove it at the end; the server removes the copies of killed commands."""
    with tempfile.TemporaryDirectory(prefix="copy-", dir=folder_of(database), ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / database.name
        server.call("copy", type(None), str(copy))
        yield copy
