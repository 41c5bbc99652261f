"""Copies of a server's database, for commands that read the file itself: analysts' statements and exports.

Such work gets a process and a file of its own: it takes no memory of the server, holds up no commit, and opens nothing that the server
has open. The server makes the copy, with everything it has accepted, in the folder of its socket.
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
from streams.log.ownership import log_folder


@contextlib.contextmanager
def readable_file(settings: Settings) -> Iterator[Path]:
    """Return the file of a database, or a copy of it while a server has it. StoreError if another process has it."""
    database = settings.database
    try:
        FileLock(database, shared=True).release()
    except StoreError as error:
        if error.hint != IN_USE or (link := ServerLink.to(database)) is None:
            raise
        with copied(link, database) as copy:
            yield copy
    else:
        if log_folder(database).exists():  # a server was killed: what it left lands first
            with open_workspace(settings):
                pass
        yield database


@contextlib.contextmanager
def own_store(workspace: Workspace) -> Iterator[Store]:
    """Return the workspace's store if this process has it, else a copy of it."""
    if workspace.server is None:
        yield workspace.store
        return
    with copied(workspace.server, workspace.settings.database) as copy, Store(copy) as store:
        yield store


@contextlib.contextmanager
def copied(server: ServerLink, database: Path) -> Iterator[Path]:
    """Return a copy of a server's database, removed at the end; the server removes that of a command that was killed."""
    with tempfile.TemporaryDirectory(prefix="copy-", dir=folder_of(database), ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / database.name
        server.call("copy", type(None), str(copy))
        yield copy
