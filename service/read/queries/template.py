"""The process from which the process of each statement is forked: `python -m service.read.queries.template SOCKET LIMITS`.

1. It loads what a statement needs. From it, a process is forked for each snapshot, which opens the snapshot, and from that process
   another one for each statement: loading and opening take most of the time of a small statement. Neither the first nor the second
   process runs statements, so that of a statement is as clean as a process that was started for it.
2. A fork has only the thread that forked. So DuckDB has one thread, and polars, which starts threads when it computes, only computes in the
   process of a statement.
3. A request is one byte on a socket, with descriptors: `OPEN` with a socket for requests about a snapshot, and the snapshot's file;
   `ANSWER` with the connection of a statement. A forked process closes the descriptors of all others.
4. When the process of a statement has ended, its exit status follows its answer. A socket or connection that the server closes ends its
   process. All of them end with the server.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from analytics.adhoc import open_snapshot
from analytics.subprocesses import end_with_parent
from schemas.lazy import duckdb, pl
from service.read.queries.child import answer_statement
from service.read.queries.protocol import QueryLimits

OPEN, ANSWER = b"o", b"a"
STATUS = struct.Struct("=i")
"""The exit status after an answer: 0, or negative for a signal."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A forked process."""

    pid: int
    socket: socket.socket
    """Its socket or connection."""
    end: int
    """A descriptor that becomes readable when the process ends."""


def main() -> None:
    """Fork a process for each request until the server closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its statements
    end_with_parent()
    _ = duckdb.__version__, pl.__version__  # both load on first use
    limits = msgspec.json.decode(sys.argv[2], type=QueryLimits)
    _serve(socket.socket(fileno=int(sys.argv[1])), limits, None)


def _serve(requests: socket.socket, limits: QueryLimits, snapshot: duckdb.DuckDBPyConnection | None) -> None:
    """Fork a process for each request until the other end of the socket is closed."""
    gc.freeze()  # collecting garbage would copy the pages that are shared with the forked processes
    forks: dict[int, Fork] = {}
    events = select.poll()
    events.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor == requests.fileno():
                request, files, _, _ = socket.recv_fds(requests, 1, 2)
                if not request:
                    return
                pid = os.fork()
                if pid == 0:
                    end_with_parent()
                    for inherited in (descriptor, *forks):
                        os.close(inherited)
                    _run_request(request, files, limits, snapshot)
                    os._exit(0)
                for file in files[1:]:
                    os.close(file)
                fork = Fork(pid, socket.socket(fileno=files[0]), os.pidfd_open(pid))
                forks[fork.end] = forks[fork.socket.fileno()] = fork
                events.register(fork.end, select.POLLIN)
                events.register(fork.socket, 0)  # reports only that the other end was closed
            elif descriptor not in forks:
                continue  # its end was reported earlier in this round
            elif descriptor == forks[descriptor].end:
                fork = forks.pop(descriptor)
                del forks[fork.socket.fileno()]
                events.unregister(fork.end)
                events.unregister(fork.socket)
                _report_end(fork)
            else:
                signal.pidfd_send_signal(forks[descriptor].end, signal.SIGKILL)


def _run_request(request: bytes, files: Sequence[int], limits: QueryLimits, snapshot: duckdb.DuckDBPyConnection | None) -> None:
    """Open a snapshot and serve requests about it, or answer a statement, in a forked process."""
    if request == OPEN:
        requests, file = files
        opened = open_snapshot(f"/proc/self/fd/{file}", memory=limits.memory, seconds=limits.seconds)
        _serve(socket.socket(fileno=requests), limits, opened)
    elif snapshot is not None:
        answer_statement(socket.socket(fileno=files[0]), snapshot, limits)


def _report_end(fork: Fork) -> None:
    """Send the exit status of a process that has ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
    os.close(fork.end)
    with fork.socket, contextlib.suppress(OSError):  # the caller may be gone
        fork.socket.sendall(STATUS.pack(status))


if __name__ == "__main__":
    main()
