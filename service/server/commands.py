"""The server's end of its link to commands: operations over HTTP on the database's socket, for its owner only.

1. Statements can only read: each runs in a read-only transaction on its own cursor.
2. Records are published through the record intake in batches, so that an import does not delay deliveries over HTTP.
3. Records that were accepted before a call are in the tables when the call is answered.
4. Checks and decisions go through the server's own watch and share its lock.
5. If a caller disconnects, by Ctrl-C or a kill, its operation is cancelled. Arguments are never logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from analytics.identity.duplicate_matching import find_new_rows
from analytics.snapshots import copy_database
from analytics.sums.daily import refresh_daily
from schemas.codec.arrow import decode_batch
from schemas.codec.single_object import decode, writer_schema
from schemas.errors import BusyError, DriftlineError, QueryError, SettingsError, StoreError, first_line
from schemas.lazy import duckdb
from schemas.records import ImportProgress, Record
from schemas.registry import schema_of
from service.setup.server_link import (
    CANCELLED,
    MESSAGE_PACK,
    Failure,
    Outcome,
    RejudgeResult,
    Rows,
    command_socket,
    pack,
    to_portable,
    unpack,
)
from service.setup.version import version
from service.write.deletion import PurgedRecords, purged_records
from streams.engine.record_intake import RecordIntake
from streams.judging.judged_stages import SCORING
from streams.log.admission import Admission, EncodedRecords
from streams.stage_progress import stage_progress
from streams.topology import TOPOLOGY
from streams.upkeep.anchors import run_round
from streams.upkeep.deletion import purge
from streams.watch.checking import CheckResult
from streams.watch.history import History, ProjectHistory
from streams.watch.rounds import read_recent_projects
from streams.watch.watching import Change, ChangeResult, Person, Watch, apply_change

if TYPE_CHECKING:
    from streams.lake.recall import Recall

MAX_CALLERS = 64
"""Maximum number of concurrent operations; further calls are answered 503."""
MAX_READERS = 4
"""Maximum number of concurrent statements; others wait."""
PUBLISH_BATCH_SIZE = 500
"""Number of records that are published together. A delivery over HTTP waits for one batch at most."""
POLL_SECONDS = 0.02
"""Seconds between checks of the stages' progress, of the intake's capacity, or of an interrupted statement."""
COPY_SPACE_FACTOR = 1.1
"""Free space that a copy needs, as a multiple of the file's size."""
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class CommandOperations:
    """The operations: the coroutine methods named in `NAMES`. They run on the event loop of the intake."""

    NAMES = (
        "version",
        "judge",
        "read",
        "copy",
        "publish",
        "settle",
        "begin_history",
        "check_history",
        "check",
        "apply_change",
        "purge",
        "rejudge",
        "judge_anchors",
        "recall_days",
    )

    def __init__(self, intake: RecordIntake, watch: Watch, recall: Recall | None = None) -> None:
        self._intake = intake
        self._watch = watch
        self._recall = recall
        self._history = History(watch, intake.store, intake.now)
        self._readers = anyio.CapacityLimiter(MAX_READERS)

    async def version(self) -> str:
        """Return the server's version."""
        return version()

    async def judge(self) -> str:
        """Describe the server's judge."""
        return self._intake.judge_name

    async def read(self, statement: str, parameters: dict[str, Any] | list[Any] | None) -> Rows:
        """Run a read-only statement. Raises QueryError with the first line of DuckDB's error."""
        async with self._readers:
            await self._flush()
            with contextlib.closing(self._intake.store.cursor()) as cursor:
                return await _run_interruptibly(lambda: _read_rows(cursor, statement, parameters), cursor.interrupt)

    async def copy(self, path: str) -> None:
        """Copy the database to a new file, with all records that were accepted before the call."""
        await self._flush()
        await asyncio.to_thread(self._copy, Path(path))

    async def publish(
        self, messages: dict[str, list[bytes]], progress: list[ImportProgress], now: datetime
    ) -> dict[str, Outcome]:
        """Publish encoded records by topic, then record the progress of imported files. Both are durable on return.

        Known records are skipped. A record that conflicts with a known one becomes a dead letter dated `now`, as without a server.
        """
        outcomes: dict[str, Outcome] = {}
        admission, conflicting = Admission(self._intake.redactor, now), EncodedRecords()
        for topic, encoded in messages.items():
            outcomes[topic] = await self._publish(topic, encoded, admission, conflicting)
        for topic, encoded in conflicting.messages.items():
            earlier = outcomes.get(topic, Outcome({}, 0, []))
            added = await self._publish(topic, encoded, admission, EncodedRecords())
            written = dict(Counter(earlier.written) + Counter(added.written))
            outcomes[topic] = Outcome(written, earlier.known + added.known, earlier.conflicts)
        if progress:
            await asyncio.to_thread(self._record_progress, progress)
        return outcomes

    async def settle(self) -> None:
        """Wait until the stages have read all present records. If there is a judge, do not wait for the stages that call it."""
        store = self._intake.store
        await self._intake.flush()
        pending = {
            stage.name: store.end_of(stage.source) for stage in TOPOLOGY if stage.judged is None or not self._intake.has_judge
        }
        while pending:
            await self._intake.flush()
            stages = [stage for stage in TOPOLOGY if stage.name in pending]
            progress = await asyncio.to_thread(lambda: [stage_progress(store, stage) for stage in stages])  # noqa: B023 - awaited here
            for read in progress:
                if read.position >= pending[read.stage]:
                    del pending[read.stage]
            if pending:
                await self._wait()
        await self._intake.flush()

    async def begin_history(self, target: str) -> None:
        """Record that an import into a project begins, for `streams.watch.history`."""
        await self._flush()
        await asyncio.to_thread(self._history.begin, target)

    async def check_history(self, target: str, until: datetime) -> list[ProjectHistory]:
        """Check the days of an import, each as of its end."""
        await self._intake.flush()
        return await self._history.check(target, until)

    async def check(self, projects: list[str] | None, as_of: datetime) -> list[CheckResult]:
        """Recompute the sums of days with new scores, then check projects for drift as of a time.

        Without `projects`, check all projects with recent data.
        """
        store = self._intake.store
        await self._intake.flush()
        await asyncio.to_thread(refresh_daily, store)
        if projects is None:
            projects = await asyncio.to_thread(read_recent_projects, store, as_of)
        return await self._watch.check(projects, as_of)

    async def apply_change(self, key: tuple[str, str], requested: Change, person: Person, now: datetime) -> ChangeResult:
        """Decide on an incident, assign it, snooze it or comment on it, as `streams.watch.watching.apply_change` does."""
        await self._intake.flush()
        return await apply_change(self._watch, key, requested, person, now)

    async def purge(self, now: datetime, days: int | None) -> PurgedRecords:
        """Delete records past their retention."""
        await self._flush()
        policy = self._intake.policy
        return purged_records(await asyncio.to_thread(purge, self._intake.store, policy, now, days), policy, now, days)

    async def rejudge(self, project: str | None, reason: str | None, limit: int) -> RejudgeResult:
        """Have unscored exchanges judged, and return when the judge has no work left."""
        return await self._judge(lambda: self._intake.rejudge(project, reason, limit))

    async def recall_days(self, project: str, first: date, last: date) -> int:
        """Fetch the details of a project's days from the lake; return the number of rows. Raises SettingsError without a lake."""
        if self._recall is None:
            raise SettingsError("the server has no lake", hint="Start it with --lake, or set DRIFTLINE_LAKE.")
        return await self._recall.days(project, first, last)

    async def judge_anchors(self, project: str) -> int:
        """Have the anchors of a project judged again, and return their number when all are judged."""

        async def begin() -> int:
            return (await run_round(self._intake, project)).exchanges

        return (await self._judge(begin)).requested

    async def _judge(self, request: Callable[[], Awaitable[int]]) -> RejudgeResult:
        """Request judgements and wait until the judge has no work left."""
        if not self._intake.has_judge:
            raise SettingsError(
                "the server has no judge", hint="Start it with one: set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL."
            )
        state_before = self._intake.state()
        requested = await request()
        await self.settle()
        while self._intake.state().queues.get(SCORING.queue):
            await self._wait()
        await self._intake.flush()
        state = self._intake.state()
        calls = dict(Counter(state.judge_calls) - Counter(state_before.judge_calls))
        return RejudgeResult(self._intake.judge_name, requested, calls, state.spent_usd - state_before.spent_usd)

    async def _publish(
        self, topic: str, messages: Sequence[bytes], admission: Admission, conflicting: EncodedRecords
    ) -> Outcome:
        written: Counter[str] = Counter()
        duplicates = 0
        conflicts: list[int] = []
        start = 0
        for name, part in _split_batches(messages):
            records = await asyncio.to_thread(lambda: [decode(message) for message in part])  # noqa: B023 - awaited here
            published = await self._publish_when_ready(topic, records)
            written[schema_of(name).table] += published.written
            duplicates += published.known
            if published.conflicts:
                conflicting_messages = [part[index] for index in published.conflicts]
                differing = await asyncio.to_thread(self._differing_fields, topic, conflicting_messages)
                for message, fields in zip(conflicting_messages, differing, strict=True):
                    admission.add_conflict(conflicting, topic, decode(message), fields)
                conflicts += [start + index for index in published.conflicts]
            start += len(part)
        return Outcome(dict(written), duplicates, conflicts)

    async def _publish_when_ready(self, topic: str, records: Sequence[Record]) -> Any:
        while True:
            try:
                return await self._intake.publish(topic, records)
            except BusyError:
                await self._wait()

    def _differing_fields(self, topic: str, messages: Sequence[bytes]) -> list[tuple[str, ...]]:
        """Return the fields in which each message differs from the known record with its identity."""
        store, differing = self._intake.store, dict[int, tuple[str, ...]]()
        with contextlib.closing(store.cursor()) as cursor:
            for name, frame in decode_batch(messages).frames.items():
                differing |= find_new_rows(cursor, schema_of(name), frame, topic, recent_matches=store.recent_matches)[1]
        return [differing.get(index, ()) for index in range(len(messages))]

    def _record_progress(self, progress: Sequence[ImportProgress]) -> None:
        with self._intake.store.transaction() as transaction:
            transaction.set_progress(progress)

    def _copy(self, path: Path) -> None:
        database = self._intake.store.path
        if database is None:
            raise StoreError("a database in memory has no copy", hint="Open a file.")
        needed = int(database.stat().st_size * COPY_SPACE_FACTOR)
        free = shutil.disk_usage(path.parent).free
        if free < needed:
            hint = "Free disk space, or stop the server: then no copy is needed."
            raise StoreError(f"{database}: a copy needs {needed} bytes, and the disk has {free} left", hint=hint)
        copy_database(self._intake.store, path)

    async def _flush(self) -> None:
        # As over HTTP, a failed flush does not stop reads of the tables as they are.
        with contextlib.suppress(DriftlineError, duckdb.Error):
            await self._intake.flush()

    async def _wait(self) -> None:
        """Wait a moment for the stages or the judge. Raises their error if they have failed."""
        if self._intake.broken.is_set():
            raise self._intake.failure()
        await asyncio.sleep(POLL_SECONDS)


def commands_app(operations: CommandOperations) -> Starlette:
    """Build the socket's application: `POST /OPERATION`, with arguments and result in MessagePack.

    It answers 422 with a `Failure` for an error that users can fix, and 400 for arguments of wrong types.
    """
    methods = {name: getattr(operations, name) for name in CommandOperations.NAMES}
    arguments = {name: _arguments_type(method) for name, method in methods.items()}

    async def call(request: Request) -> Response:
        name = request.path_params["operation"]
        if name not in methods:
            return Response(status_code=404)
        try:
            values = unpack(await request.body(), arguments[name])
        except msgspec.MsgspecError:
            return Response(status_code=400)
        running = asyncio.create_task(methods[name](*values))
        try:
            await _cancel_on_disconnect(request, running)
            return _respond(200, running.result())
        except asyncio.CancelledError:
            return Response(status_code=CANCELLED)
        except DriftlineError as error:
            return _respond(422, Failure(type(error).__name__, str(error), error.hint))
        except Exception:
            log.exception("a command was not answered")
            return Response(status_code=500)

    return Starlette(routes=[Route("/{operation}", call, methods=["POST"])])


@contextlib.asynccontextmanager
async def serve_commands(
    database: Path, intake: RecordIntake, watch: Watch, recall: Recall | None = None
) -> AsyncIterator[None]:
    """Serve commands for a database while the context is open.

    If the socket cannot be opened, log the error and continue without it.
    """
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(command_socket(database))
        except StoreError as error:
            log.warning("commands cannot ask this server: %s; %s", error, error.hint)
            yield
            return
        config = uvicorn.Config(
            commands_app(CommandOperations(intake, watch, recall)),
            http="h11",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            limit_concurrency=MAX_CALLERS,
            timeout_graceful_shutdown=1,
        )
        server = _CommandServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener.dup()]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving
            if server.server_state.tasks:  # the shutdown has cancelled them
                await asyncio.wait(server.server_state.tasks)


class _CommandServer(uvicorn.Server):
    """The second server of the process. The first one handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def _arguments_type(method: Callable[..., Any]) -> Any:
    hints = get_type_hints(method)
    return tuple[tuple(hints[name] for name in inspect.signature(method).parameters)]  # type: ignore[misc]


def _respond(status: int, value: Any) -> Response:
    return Response(pack(value), status, media_type=MESSAGE_PACK)


def _split_batches(messages: Sequence[bytes]) -> Iterator[tuple[str, Sequence[bytes]]]:
    """Split messages, in order, into batches of one record type with at most `PUBLISH_BATCH_SIZE` messages."""
    for name, run in itertools.groupby(messages, lambda message: writer_schema(message).name):
        same_type = list(run)
        for start in range(0, len(same_type), PUBLISH_BATCH_SIZE):
            yield name, same_type[start : start + PUBLISH_BATCH_SIZE]


def _read_rows(cursor: duckdb.DuckDBPyConnection, statement: str, parameters: Any) -> Rows:
    try:
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        result = cursor.execute(statement, parameters)
        columns = [(column[0], str(column[1])) for column in result.description or ()]
        return Rows(columns, [tuple(map(to_portable, row)) for row in result.fetchall()])
    except duckdb.Error as error:
        raise QueryError(first_line(error)) from error


async def _run_interruptibly(work: Callable[[], Result], interrupt: Callable[[], object]) -> Result:
    """Run a function in a thread. On cancellation, interrupt it and wait for its end."""
    running = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            interrupt()  # repeatedly, because a statement that has not started yet ignores an interrupt
            await asyncio.wait([running], timeout=POLL_SECONDS)
        running.exception()  # retrieve the exception: there is no caller left to raise it to
        raise


async def _cancel_on_disconnect(request: Request, operation: asyncio.Task[Any]) -> None:
    """Wait for an operation. Cancel it if its caller disconnects or the wait is cancelled."""
    disconnect = asyncio.ensure_future(request.receive())  # the body has been read, so the next message is the disconnect
    try:
        await asyncio.wait([operation, disconnect], return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect.cancel()
        if not operation.done():
            operation.cancel()
            await asyncio.wait([operation])
