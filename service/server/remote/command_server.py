"""The server's end: it answers the commands that call it, each connection in a thread, with few statements at once.

A caller that goes away, by Ctrl-C or because it was killed, has what runs for it cancelled. Arguments are never logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from schemas.errors import StoreError
from service.server.remote.operations import BLOCKING, WAITING, Caller
from service.setup.remote.command_socket import folder_of, listening, require_same_user
from service.setup.version import version
from streams.engine.record_intake import RecordIntake
from streams.watch.watching import Watch

AT_ONCE = 4
"""Statements of commands that run at once; others wait."""
CALLERS = 64
"""Connections at once: a command has one, and one more for each of its cursors."""
SILENT = 60.0
"""Seconds after which an idle caller with an open transaction is cut off: DuckDB keeps all that it could ask for."""
LOOK = 0.05
"""Seconds between checks whether a caller is still there."""
log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def taking_commands(database: Path, intake: RecordIntake, watch: Watch) -> AsyncIterator[None]:
    """Answer commands about a database while the context is open. If that is impossible, log it, and go on."""
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(listening(database))
        except StoreError as error:
            log.warning("commands cannot ask this server: %s; %s", error, error.hint)
            yield
            return
        server = _CommandServer(listener, database, intake, watch, asyncio.get_running_loop())
        server.start()
        try:
            yield
        finally:
            await asyncio.to_thread(server.close)


class _CommandServer:
    def __init__(
        self,
        listener: socket.socket,
        database: Path,
        intake: RecordIntake,
        watch: Watch,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._listener = listener
        self._folder = folder_of(database)
        self._intake, self._watch, self._loop = intake, watch, loop
        self._pool = ThreadPoolExecutor(AT_ONCE, "command")
        self._threads: dict[threading.Thread, socket.socket] = {}
        self._changed = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, name="commands", daemon=True)

    def start(self) -> None:
        self._accepting.start()

    def close(self) -> None:
        """Accept no more commands, and cut off running ones."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        with self._changed:
            left = dict(self._threads)
        for thread, peer in left.items():
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            thread.join()
        self._pool.shutdown()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if len(self._threads) >= CALLERS:
                    peer.close()
                    continue
                thread = threading.Thread(target=self._serve, args=(peer,), name="command", daemon=True)
                self._threads[thread] = peer
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        """Answer one connection until it ends."""
        connection = Connection(os.dup(peer.fileno()))
        caller = None
        try:
            require_same_user(peer, self._folder)
            connection.send_bytes(version().encode())
            caller = Caller(self._intake, self._watch, self._loop)
            while not caller.is_reading or connection.poll(SILENT):
                operation, arguments = connection.recv()
                connection.send(self._answer(connection, caller, operation, arguments))
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("a command was not answered")
        finally:
            with self._changed:
                self._threads.pop(threading.current_thread(), None)
            connection.close()
            peer.close()
            if caller is not None:
                caller.close()

    def _answer(self, connection: Connection, caller: Caller, operation: str, arguments: Any) -> tuple[bool, Any]:
        """Return whether an operation succeeded, with its answer or its error. EOFError if the caller left before."""
        if operation in WAITING:
            running: Future[Any] = asyncio.run_coroutine_threadsafe(WAITING[operation](caller, *arguments), self._loop)
        else:
            running = self._pool.submit(BLOCKING[operation], caller, *arguments)
        while not wait([running], LOOK).done:
            if connection.poll():  # nothing is to be said before the answer: the caller has gone
                running.cancel()
                # Again and again: a statement that has not quite begun does not hear it.
                while not wait([running], LOOK).done:
                    caller.interrupt()
                raise EOFError
        try:
            return True, running.result()
        except Exception as error:  # noqa: BLE001 - it is the caller's
            return False, error
