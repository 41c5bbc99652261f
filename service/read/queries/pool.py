"""Analysts' statements: a bounded number run concurrently, each in its own process over the current snapshot.

A process is forked from a template, which has loaded everything and run nothing (`service.read.queries.template`). It ends when it is
done, overdue, or its caller has gone. The snapshot is made on the first request, and again when it is old and records have changed:

1. Only one snapshot is built at a time: one task copies and builds, and all requests wait for that task.
2. A finished snapshot is opened and unlinked, so its disk space is freed when the last statement that reads it ends. A crash leaves
   at most a copy or part of a snapshot, which the next start removes.
3. While a new snapshot is built, statements use the old one, and each answer names its time. A snapshot that becomes too old is
   dropped, so that it neither wastes disk space nor keeps deleted records.
4. A slow build still finishes: it gets a higher priority while statements wait for it, and the server's own priority and more time
   after a failed attempt.
5. A snapshot of a database contains every record acknowledged before its time: that time is read first, then `flush` is awaited, then
   the file is copied. One of a lake contains every record that a sink had committed.
6. Whoever may not see every project reads a part: a snapshot with the rows of the caller's projects only, built from the whole one at
   the first statement. Whatever the statement says, its process has no other rows. A part is dropped with the whole one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from analytics.snapshots import copy_database, read_file_state, read_progress
from analytics.store.store import Store
from analytics.subprocesses import start_module
from schemas.errors import BusyError, DriftlineError, QueryError, StoreError
from schemas.lazy import duckdb
from service.read.queries.child import TOO_MUCH
from service.read.queries.protocol import Outcome, QueryLimits, Question
from service.read.queries.template import ANSWER, OPEN, STATUS
from service.text.formats import grouped

Report = Callable[[str, Callable[[], str]], None]
"""Called with each step of making a snapshot, and a function that describes its progress."""
TEMPLATE = "service.read.queries.template"
START = 60.0
"""Seconds within which a process has to start, generous for a busy machine; after that it enforces its own time limit."""
LINE = 1024 * 1024
CHUNK = 256 * 1024
OVERDUE = frozenset({signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL})
"""The signals that end an overdue process; we send the last one."""


class BuildSource(NamedTuple):
    """What a snapshot is made of."""

    kind: Literal["whole", "lake", "part"]
    """A copy of the database, a lake, or another snapshot."""
    path: str
    database: str = ""
    """With a lake, a copy of the database beside it; empty if there is none."""


async def build(
    source: BuildSource,
    target: Path,
    spill: Path,
    limits: QueryLimits,
    nice: int = 0,
    *,
    projects: Iterable[str] = (),
    files: tuple[int, ...] = (),
) -> None:
    """Build a snapshot in a separate process, `nice` steps below the server's priority.

    From a snapshot, only rows of the `projects` are taken. `files` are the descriptors that the source needs. Raises StoreError if it fails or takes too long.
    """
    arguments = (*source, str(target), str(spill), str(nice), *projects)
    async with start_module("service.read.queries.building", arguments, files=files, keeps_errors=True) as process:
        try:
            async with asyncio.timeout(limits.building):
                _, stderr = await process.communicate()
        except TimeoutError:
            raise StoreError(f"the snapshot was not built within {limits.building:g} seconds") from None
    if process.returncode:
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        raise StoreError(f"the snapshot was not built: {lines[-1] if lines else f'ended with {process.returncode}'}")


def _refuse_overdue(limits: QueryLimits) -> QueryError:
    return QueryError(
        f"the statement took longer than {limits.seconds:g} seconds",
        hint="Query less: a shorter time, fewer sessions, no cross joins.",
    )


SUFFIX = ".analysts"
"""The suffix of the folder beside the database in which snapshots are made."""
REST = 5
"""A snapshot is used for at least this many times its build time, so that building takes a small share of one processor."""
ROOM = 2.2
"""Required free disk space in multiples of the database's size: for the copy, the snapshot, and commits meanwhile."""
NICE_REFRESH, NICE_FIRST = 15, 5
"""Nice levels of a build, relative to the server: with an older snapshot in use, and with statements waiting for the first one."""
MAX_PARTS = 16
"""Parts of a snapshot that are kept at once, each for another set of projects."""
MOST_TIME = 4
"""The maximum factor on the time limit of a build after failed attempts."""
log = logging.getLogger(__name__)


@dataclass(eq=False)
class Snapshot:
    """An open, unlinked file and its time."""

    file: int
    at: datetime
    changes: Hashable
    made: float
    seconds: float
    requests: socket.socket | None = None
    """The socket of the process from which those of the statements are forked; None before the first statement."""
    users: int = 0
    replaced: bool = False
    parts: dict[frozenset[str], asyncio.Task[Snapshot]] = field(default_factory=dict)
    """The parts by their projects, the least recently used first."""

    def close_when_unused(self) -> None:
        """Close the file, which frees its disk space, if it has no readers and was replaced."""
        if self.replaced and not self.users and self.file >= 0:
            os.close(self.file)
            self.file = -1
            self.close_requests()

    def close_requests(self) -> None:
        """End the process that has the snapshot open."""
        if self.requests is not None:
            self.requests.close()
            self.requests = None


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The state of the current snapshot, of the next one, and of the last failed attempt; None or empty if there is none."""

    at: datetime | None
    """The time of the snapshot's data."""
    since: datetime | None
    """The start of building the next one."""
    step: str
    """The present step, such as "copying the database"."""
    progress: str
    """The progress of the step if files show it, such as "410 of 1,355 MB"; otherwise empty."""
    failed_at: datetime | None
    """The time of the last failed attempt, if none has succeeded since."""
    failure: str
    """The reason of the failure, without paths of this machine."""


NO_STATE = SnapshotState(None, None, "", "", None, "")


class StatementProcesses:
    """The processes that answer statements, and those from which they are forked (`service.read.queries.template`)."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._template = contextlib.AsyncExitStack()
        self._requests: socket.socket | None = None
        self._opening = asyncio.Lock()

    async def ask(self, snapshot: Snapshot, question: Question) -> tuple[Outcome, bytes]:
        """Return the answer of a process of its own to a question about a snapshot.

        Raises QueryError if the statement cannot be answered within its limits, BusyError if the process from which it is forked has ended.
        Cancelling the call kills the process.
        """
        limits = self._limits
        reader, writer = await asyncio.open_connection(sock=await self._fork_process(snapshot))
        try:
            async with asyncio.timeout(START + limits.seconds + limits.grace):
                outcome, body = await _exchange(reader, writer, msgspec.json.encode(question), limits)
        except TimeoutError:
            raise _refuse_overdue(limits) from None
        finally:
            writer.close()
        if outcome.error:
            raise QueryError(outcome.error, hint=outcome.hint)
        return outcome, body

    async def close(self) -> None:
        """End all processes."""
        self._requests = None
        await self._template.aclose()

    async def _fork_process(self, snapshot: Snapshot) -> socket.socket:
        """Return a connection to a new process that has the snapshot open. Processes that have ended are started again."""
        async with self._opening:
            if snapshot.requests is not None:
                with contextlib.suppress(OSError):
                    return _request(snapshot.requests, ANSWER)
            snapshot.close_requests()
            snapshot.requests = await self._open_snapshot(snapshot.file)
            return _request(snapshot.requests, ANSWER)

    async def _open_snapshot(self, file: int) -> socket.socket:
        """Return the socket of a new process that opens a snapshot."""
        if self._requests is not None:
            with contextlib.suppress(OSError):
                return _request(self._requests, OPEN, file)
        await self.close()
        self._requests = await self._start_template()
        return _request(self._requests, OPEN, file)

    async def _start_template(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._template.enter_context(ours)
        with theirs:
            number, limits = theirs.fileno(), msgspec.json.encode(self._limits).decode()
            arguments = (str(number), limits)
            await self._template.enter_async_context(start_module(TEMPLATE, arguments, files=(number,)))
        return ours


def _request(requests: socket.socket, request: bytes, *files: int) -> socket.socket:
    """Send a request with a new connection and these files; return our end of the connection. Raises OSError if the process has ended."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        try:
            socket.send_fds(requests, [request], [theirs.fileno(), *files])
        except OSError:
            ours.close()
            raise
    return ours


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: bytes, limits: QueryLimits
) -> tuple[Outcome, bytes]:
    """Send an encoded question, and return the answer."""
    answer = bytearray()
    # A process that ended before it read the question gives the reason by its exit status.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        writer.write(question)
        writer.write_eof()
        await writer.drain()
        while chunk := await reader.read(CHUNK):
            answer += chunk
            if len(answer) > limits.answer + LINE:
                raise QueryError(
                    f"the answer is larger than {limits.answer} bytes", hint="Ask for fewer rows or columns, or for Parquet."
                )
    if len(answer) < STATUS.size:
        raise BusyError("the process that runs statements has ended; the next statement starts it again")
    (status,) = STATUS.unpack(answer[-STATUS.size :])
    head, newline, body = bytes(answer[: -STATUS.size]).partition(b"\n")
    if newline and status == 0:
        return msgspec.json.decode(head, type=Outcome), body
    if -status in OVERDUE:
        raise _refuse_overdue(limits)
    raise QueryError(TOO_MUCH.error, hint=TOO_MUCH.hint)


async def _flush_nothing() -> None:
    """Flush nothing: the store has every record."""


class SnapshotSource(Protocol):
    """The records of which snapshots are made."""

    @property
    def folder(self) -> Path:
        """The absolute folder in which snapshots are made. Raises StoreError if there can be none."""

    def state(self) -> Hashable:
        """Return a value that changes with the records."""

    def space(self) -> int:
        """Return the free bytes that making a snapshot needs."""

    async def prepare(self, report: Report) -> tuple[BuildSource, Hashable]:
        """Return what to build a snapshot of, and the state of its records."""


@dataclass(frozen=True, slots=True)
class DatabaseSource:
    """A database, of which a copy is made. `flush` writes pending records to it."""

    store: Store
    flush: Callable[[], Awaitable[None]] = _flush_nothing

    @property
    def folder(self) -> Path:
        """The folder beside the database."""
        # Absolute, because the building process has another working directory.
        return self._path.absolute().with_name(self._path.name + SUFFIX)

    def state(self) -> Hashable:
        """Return the state of the file."""
        return read_file_state(self._path)

    def space(self) -> int:
        """Return a multiple of the database's size."""
        return int(ROOM * self._path.stat().st_size)

    async def prepare(self, report: Report) -> tuple[BuildSource, Hashable]:
        """Flush, and copy the database."""
        report("writing accepted records to the database", str)
        await self.flush()
        copy = self.folder / "copy.duckdb"
        report("copying the database", lambda: f"{_format_megabytes(copy)} of {_format_megabytes(self._path)} MB")
        state = await asyncio.to_thread(copy_database, self.store, copy)
        return BuildSource("whole", str(copy)), state

    @property
    def _path(self) -> Path:
        if self.store.path is None:
            raise StoreError("a database in memory has no snapshots", hint="Open a file.")
        return self.store.path


@dataclass(frozen=True, slots=True)
class LakeSource:
    """A lake in a folder. Its snapshots are made in another folder, which one server uses."""

    root: Path
    folder: Path

    def state(self) -> Hashable:
        """Return the time of the last commit: each adds a file to the log of a table."""
        return max((log.stat().st_mtime_ns for log in self.root.glob("*/_delta_log")), default=0)

    def space(self) -> int:
        """Return 0, because the size of a snapshot is known only when it is made."""
        return 0

    async def prepare(self, report: Report) -> tuple[BuildSource, Hashable]:
        """Copy nothing: the files of a version of a lake do not change. If an erasure removes them meanwhile, the build fails."""
        report("reading the lake", str)
        return BuildSource("lake", str(self.root)), self.state()


@dataclass(frozen=True, slots=True)
class SpanningSource:
    """A lake, and the database of a server beside it, whose records take precedence and which has the sums and the numbers of runs."""

    lake: LakeSource
    database: DatabaseSource

    @property
    def folder(self) -> Path:
        """The folder beside the database."""
        return self.database.folder

    def state(self) -> Hashable:
        """Return the states of both."""
        return self.lake.state(), self.database.state()

    def space(self) -> int:
        """Return what the copy of the database needs."""
        return self.database.space()

    async def prepare(self, report: Report) -> tuple[BuildSource, Hashable]:
        """Copy the database first, so the lake has every record that leaves the database meanwhile."""
        database, database_state = await self.database.prepare(report)
        lake, lake_state = await self.lake.prepare(report)
        return lake._replace(database=database.path), (lake_state, database_state)


class Snapshots:
    """The current snapshot of a source, and the building of the next one."""

    def __init__(self, source: SnapshotSource, now: Callable[[], datetime], limits: QueryLimits) -> None:
        self._source = source
        self._now = now
        self._limits = limits
        self._current: Snapshot | None = None
        self._making: asyncio.Task[None] | None = None
        self._state = NO_STATE
        self._progress: Callable[[], str] = str
        self._failures = 0
        self._building_part = asyncio.Lock()

    async def fresh(self) -> Snapshot:
        """Return the snapshot to read. If a new one is due, wait for it a little, then fall back to the old one.

        Raises StoreError if none exists and none can be built, and BusyError while the first one is being built.
        """
        self.prepare()
        if self._making is not None:
            patience = self._limits.patience if self._current else self._limits.first_patience
            await asyncio.wait([self._making], timeout=patience)
        if self._current is None:
            if self._making is not None and not self._making.done():
                raise BusyError(f"the first snapshot is still being built: {self._state.step}")
            raise self._build_failed_error()
        return self._current

    async def part(self, whole: Snapshot, projects: frozenset[str]) -> Snapshot:
        """Return the part of a snapshot that has the rows of these projects only, and build it at the first call.

        Raises StoreError if it cannot be built, and BusyError while it is being built.
        """
        building = whole.parts.pop(projects, None) or asyncio.create_task(self._build_part(whole, projects))
        whole.parts[projects] = building
        while len(whole.parts) > MAX_PARTS:
            _drop_part(whole.parts.pop(next(iter(whole.parts))))
        with self.reading(whole):
            await asyncio.wait([building], timeout=self._limits.first_patience)
        if building.done() and (building.cancelled() or building.exception() is not None):
            whole.parts.pop(projects, None)
            raise StoreError("the snapshot of your projects could not be built", hint="See the server's log.")
        if not building.done() or building.result().file < 0:
            raise BusyError("the snapshot of your projects is still being built")
        return building.result()

    def state(self) -> SnapshotState:
        """Return the present state of the snapshots."""
        at = None if self._current is None else self._current.at
        return replace(self._state, at=at, progress=self._progress() if self._state.since else "")

    async def ready(self) -> None:
        """Wait without a time limit until there is a snapshot. Raises StoreError if none can be built."""
        self.prepare()
        if self._making is not None:
            await asyncio.wait([self._making])
        if self._current is None:
            raise self._build_failed_error()

    def prepare(self) -> None:
        """Start building a snapshot if one is due."""
        if self._is_due() and self._making is None:
            self._making = asyncio.create_task(self._make())

    @contextlib.contextmanager
    def reading(self, snapshot: Snapshot) -> Iterator[int]:
        """Keep the file of a snapshot open for the context, and yield its descriptor."""
        snapshot.users += 1
        try:
            yield snapshot.file
        finally:
            snapshot.users -= 1
            snapshot.close_when_unused()

    async def close(self) -> None:
        """Stop building snapshots, and release their disk space."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        if self._current is not None and self._current.parts:
            for building in self._current.parts.values():
                building.cancel()
            await asyncio.wait(self._current.parts.values())
        self._replace(None)

    def _is_due(self) -> bool:
        current = self._current
        if current is None:
            return True
        age = time.monotonic() - current.made
        return age > max(self._limits.fresh_for, REST * current.seconds) and self._source.state() != current.changes

    async def _make(self) -> None:
        self._state = replace(self._state, since=self._now())
        try:
            snapshot = await self._build_snapshot()
            self._replace(snapshot)
            self._state = NO_STATE
            self._failures = 0
            kept_for = max(self._limits.kept_for, 2 * REST * snapshot.seconds)
            asyncio.get_running_loop().call_later(kept_for, self._give_up, snapshot)
        except (DriftlineError, duckdb.Error, OSError) as error:
            log.exception("no snapshot was made")
            self._failures += 1
            self._state = replace(self._state, failed_at=self._now(), failure=self._describe_error(error))
        finally:
            self._state = replace(self._state, since=None, step="")
            self._making = None

    def _step(self, description: str, progress: Callable[[], str] = str) -> None:
        self._state = replace(self._state, step=description)
        self._progress = progress

    def _describe_error(self, error: Exception) -> str:
        """Return the first line of an error, without the folder of the snapshots."""
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        with contextlib.suppress(StoreError):
            return message.replace(f"{self._source.folder.parent}{os.sep}", "")
        return message

    def _build_failed_error(self) -> StoreError:
        return StoreError(f"the snapshot could not be built: {self._state.failure}", hint="See the server's log.")

    def _nice_level(self) -> int:
        """Return how many steps below the server's priority the next snapshot is made."""
        if self._failures:
            return 0
        if self._current is None:
            return NICE_FIRST
        return NICE_REFRESH

    async def _build_snapshot(self) -> Snapshot:
        folder = self._source.folder
        target, spill = folder / "driftline.duckdb", folder / "spill"
        began = time.monotonic()
        try:
            await asyncio.to_thread(_prepare, folder, self._source.space())
            at = self._now()
            source, changes = await self._source.prepare(self._step)
            self._step("building the tables", lambda: _describe_built(target))
            patient = msgspec.structs.replace(self._limits, building=self._limits.building * min(MOST_TIME, 1 + self._failures))
            await build(source, target, spill, patient, self._nice_level())
            file = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Snapshot(file, at, changes, time.monotonic(), time.monotonic() - began)

    async def _build_part(self, whole: Snapshot, projects: frozenset[str]) -> Snapshot:
        folder = self._source.folder.with_name(f"{self._source.folder.name}-part")
        target, began = folder / "driftline.duckdb", time.monotonic()
        try:
            # One part at a time: each build may use as much memory as that of the whole.
            with self.reading(whole) as source:
                async with self._building_part:
                    try:
                        await asyncio.to_thread(_prepare, folder, self._source.space())
                        part, spill, named = BuildSource("part", f"/proc/self/fd/{source}"), folder / "spill", sorted(projects)
                        await build(part, target, spill, self._limits, NICE_FIRST, projects=named, files=(source,))
                        file = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
                    finally:
                        shutil.rmtree(folder, ignore_errors=True)
        except (DriftlineError, OSError) as error:
            log.warning("the part of a snapshot could not be built: %s", self._describe_error(error))
            raise
        return Snapshot(file, whole.at, whole.changes, time.monotonic(), time.monotonic() - began)

    def _give_up(self, snapshot: Snapshot) -> None:
        if snapshot is self._current:
            self._replace(None)

    def _replace(self, snapshot: Snapshot | None) -> None:
        before = self._current
        self._current = snapshot
        if before is not None:
            before.replaced = True
            before.close_when_unused()
            while before.parts:
                _drop_part(before.parts.popitem()[1])


def _drop_part(building: asyncio.Task[Snapshot]) -> None:
    """Release a part once it is built and its last statement has ended."""

    def release(built: asyncio.Task[Snapshot]) -> None:
        if not built.cancelled() and built.exception() is None:
            built.result().replaced = True
            built.result().close_when_unused()

    building.add_done_callback(release)


def _describe_built(target: Path) -> str:
    """Describe the progress of a build: share of rows done, the current table and its share, and megabytes written."""
    progress = read_progress(target)
    if progress is None or not progress.total:
        return ""
    done = f"{progress.done / progress.total:.0%}"
    current = f"{progress.rows / progress.total:.0%}"
    return f"{done} of the rows are done, now {progress.table} with {current} of them; {_format_megabytes(target)} MB written"


def _format_megabytes(path: Path) -> str:
    try:
        return grouped(path.stat().st_size / 1e6)
    except OSError:
        return "0"


def _prepare(folder: Path, needed: int) -> None:
    """Create an empty folder, readable by its owner only, removing leftovers of a crash.

    Raises StoreError if the disk has no room.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StoreError(
            f"a snapshot needs {needed} bytes and the disk has {free}", hint=f"Free disk space in {folder.parent}."
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of an answer, their description, and the time of their snapshot."""

    outcome: Outcome
    body: bytes
    at: datetime


class QueryPool:
    """Answers statements over the snapshots of a source; one per server."""

    def __init__(self, source: SnapshotSource, now: Callable[[], datetime], limits: QueryLimits | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._snapshots = Snapshots(source, now, self.limits)
        self._processes = StatementProcesses(self.limits)
        self._running = 0

    async def answer(self, question: Question, projects: frozenset[str] | None = None) -> Answer:
        """Return the answer to a question about all projects, or about these only.

        Raises QueryError if the question cannot be answered within the limits, BusyError if too many statements are running or
        the first snapshot is still being built, and StoreError if none can be built. Cancelling the call stops the work
        immediately.
        """
        if self._running >= self.limits.at_once:
            raise BusyError(f"{self._running} statements are running already")
        self._running += 1
        try:
            snapshot = await self._snapshots.fresh()
            if projects is not None:
                snapshot = await self._snapshots.part(snapshot, projects)
            with self._snapshots.reading(snapshot):
                outcome, body = await self._processes.ask(snapshot, question)
            return Answer(outcome, body, snapshot.at)
        finally:
            self._running -= 1

    def prepare(self) -> None:
        """Build a snapshot ahead of time, so that the next statement need not wait for it."""
        self._snapshots.prepare()

    def snapshot_state(self) -> SnapshotState:
        """Return the state of the snapshots."""
        return self._snapshots.state()

    async def ready(self) -> None:
        """Wait without a time limit until there is a snapshot. Raises StoreError if none can be built."""
        await self._snapshots.ready()

    async def close(self) -> None:
        """End the processes, and release the snapshots; callers cancel their own questions."""
        await self._processes.close()
        with contextlib.suppress(OSError):
            await self._snapshots.close()
