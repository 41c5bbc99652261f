"""The socket on which a server takes commands, in a folder beside the database that only its owner may enter.

1. `driftline.duckdb.commands` gets mode 0700 before the socket is created in it, so that no other user can ever connect.
2. A command asks the system which user runs the server, and sends nothing to another user's process. Only the server's own user can
   enter the folder.
3. The folder belongs to the process that has the database (`analytics.store.connection`). The next server removes what a killed one
   left behind.
4. If a path is too long for a socket address, the socket is reached through the open folder, on systems that can (Linux).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import StoreError

SUFFIX = ".commands"
NAME = "socket"
LONGEST = 103
"""Bytes of an address that every system accepts."""
WAITING = 16
"""Commands that may wait for a connection."""
_PEER = struct.Struct("3i")
_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


def folder_of(database: Path) -> Path:
    """Return the folder of the socket, the same for every path that leads to the database."""
    resolved = database.resolve()
    return resolved.with_name(resolved.name + SUFFIX)


@contextlib.contextmanager
def listening(database: Path) -> Iterator[socket.socket]:
    """Open a socket for commands while the context is open. StoreError if access cannot be limited to its owner."""
    folder = folder_of(database)
    with contextlib.ExitStack() as stack:
        try:
            _make(folder)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            with _address(folder) as address:
                listener.bind(address)
            (folder / NAME).chmod(0o600)
            listener.listen(WAITING)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror or error}", hint="Make it writable for its owner.") from error
        yield listener


def connect(database: Path) -> socket.socket | None:
    """Connect to the server that has a database; None if no server takes commands. StoreError if another user runs it."""
    folder = folder_of(database)
    if not folder.is_dir():
        return None
    _require_own(folder)
    opened = socket.socket(socket.AF_UNIX)
    try:
        with _address(folder) as address:
            opened.connect(address)
        _require_same_user(opened, folder)
    except OSError:
        opened.close()
        return None
    except BaseException:
        opened.close()
        raise
    return opened


def _require_same_user(connection: socket.socket, folder: Path) -> None:
    """Raise a StoreError if another user's process is at the other end, as far as the system tells."""
    if hasattr(socket, "SO_PEERCRED"):
        _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.geteuid():
            raise _of_another(folder, user)


def _make(folder: Path) -> None:
    """Recreate the folder for its owner only; StoreError if another user's folder is in its place."""
    with contextlib.suppress(FileNotFoundError):
        _require_own(folder)
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)


def _require_own(folder: Path) -> None:
    """Raise a StoreError if the path is not a folder, or belongs to another user."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{folder}: is not a folder", hint="Remove it: a server makes one there for its socket.")
    if found.st_uid != os.geteuid():
        raise _of_another(folder, found.st_uid)


def _of_another(folder: Path, user: int) -> StoreError:
    return StoreError(
        f"{folder}: belongs to the user with the id {user}", hint="Run commands as the user that runs the server."
    )


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Return an address of the socket that is short enough. OSError if there is none."""
    path = str(folder / NAME)
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    opened = os.open(folder, _ENTER)
    try:
        yield f"/proc/self/fd/{opened}/{NAME}"
    finally:
        os.close(opened)
