"""Running the server: open the listener first, serve HTTP/1.1 with uvicorn, and stop without losing records."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import math
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from analytics.deletion.compaction import compact_at_start
from analytics.lake_sql import readable_folder
from audit.policy import Policy
from schemas.errors import SettingsError
from service.read.queries.pool import DatabaseSource, LakeSource, SnapshotSource, SpanningSource
from service.server.app import create_app, prepare_routes
from service.server.commands import serve_commands
from service.server.periodic_tasks import periodic_tasks_of
from service.setup.access import AccessStore, access_file
from service.setup.judge_setup import WORKERS, OpenedJudge, check_waiting, open_batches, open_judge, unpriced_note
from service.setup.kafka import connection_of, framing_of, history_of, hot_days_of, lake_of
from service.setup.oidc import open_provider
from service.setup.settings import Settings
from service.setup.wiring import policy_of
from service.setup.workspace import Clock, Workspace, open_workspace, utc_now
from service.text.links import LOOPBACK_NAMES
from service.web.bounds import ApiSettings
from service.web.context import ApiContext
from streams.engine.engine import Engine
from streams.engine.record_intake import RecordIntake
from streams.judges.batch_plans import BatchJournal
from streams.judging.call_budget import batch_journal_path
from streams.process import collect_in_short_pauses, handled_in_loop
from streams.upkeep.assembling import TraceAssembler
from streams.upkeep.periodic_tasks import PeriodicTasks

try:
    from uvloop import new_event_loop
except ImportError:  # uvloop does not exist for Windows
    new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]

if TYPE_CHECKING:
    from service.http.otlp_grpc import Receiver
    from streams.lake.recall import Recall

NO_OPERATOR = (
    "no operator yet, so nobody can sign in: `driftline operators add NAME` prints a token, even while the server runs"
)
_DATABASE_IN_USE = "Another server is using the database. Stop it, or pass another database with --db."
Result = TypeVar("Result")
MAX_CONNECTIONS = 512
"""Maximum number of connections; requests on further connections are answered 503."""
MAX_HEAD_BYTES = 16 * 1024
"""Maximum size of an incomplete request head."""
KEEP_ALIVE_SECONDS = 10
"""How long an idle connection is kept."""
STOP_GRACE_SECONDS = 1.0
"""How long a stopping server waits for the first request of an accepted connection."""
log = logging.getLogger(__name__)
Announce = Callable[[str, str, Sequence[str]], None]
"""Called with the address of a started server, its judge, and notes for the operator."""


def serve(settings: Settings, *, names: Sequence[str], expose: bool, announce: Announce, as_of: datetime | None = None) -> None:
    """Serve until a stop signal. `announce` is called once the server accepts requests.

    With `as_of`, the clock starts at that time, and no drift checks run. Raises SettingsError if the address is not available,
    or if it is not a loopback address and `expose` is not set.
    """
    with listen(settings.host, settings.port, expose=expose) as listener:
        while run(_serve(settings, listener, names, announce, as_of)):
            # Requests that arrive in between wait at the listener. Free the memory of the stopped server.
            gc.unfreeze()
            gc.collect()
            announce = _log_restart


def _log_restart(address: str, _judge: str, _notes: Sequence[str]) -> None:
    log.warning("restarted at %s with the policy from the file", address)


def _start_clock(start: datetime) -> Clock:
    """Return a clock that shows the given time now and then runs on."""
    offset = start - utc_now()
    return lambda: utc_now() + offset


async def _serve(
    settings: Settings, listener: socket.socket, names: Sequence[str], announce: Announce, as_of: datetime | None
) -> bool:
    """Serve until a stop is requested. Return whether to start again."""
    policy = policy_of(settings)
    check_waiting(policy, kafka=settings.kafka is not None)
    hot_days_of(settings, policy)  # reports wrong settings before a file is opened
    api = api_settings(settings, names)
    # Open the judge first: if its API key is missing, no file is created or opened.
    if settings.kafka is not None:
        opened = OpenedJudge(None, WORKERS)
    else:
        opened = await open_judge(settings, policy, os.environ)
    async with contextlib.AsyncExitStack() as stack:
        if opened.judge is not None:
            stack.push_async_callback(opened.judge.aclose)
        workspace = _enter_workspace(stack, settings, as_of)
        # Tokens expire by the real clock, even with `as_of`.
        access = stack.enter_context(AccessStore(access_file(settings.database), utc_now))
        if settings.kafka is None:
            engine, recall = _open_engine(workspace, opened), None
        else:
            engine, recall = _open_engine_over_kafka(workspace)
        source = source_of_statements(settings, DatabaseSource(engine.store, engine.flush))
        app = create_app(engine, access, api, source)
        app.state.context.recall = recall
        stack.push_async_callback(app.state.query_pool.close)
        spans = listen_for_spans(settings, app.state.context)
        notes = _startup_notes(opened, workspace.policy, access)
        if spans is not None:
            notes.append(f"OpenTelemetry over gRPC is accepted at {spans.address}")
        server = build_server(settings, api, listener, app, partial(announce, listener_url(listener), opened.name, notes))
        app.state.context.restart = server.request_restart
        with handled_in_loop(server.handle_stop_signal):
            await _run_until_stopped(settings, engine, app, server, spans, watches=as_of is None)
    return server.restart_requested


def _enter_workspace(stack: contextlib.AsyncExitStack, settings: Settings, as_of: datetime | None) -> Workspace:
    """Compact and open the database; the stack closes it. With Kafka, the workers write and this process only reads."""
    compact_at_start(settings.database)
    now = utc_now if as_of is None else _start_clock(as_of)
    workspace = stack.enter_context(
        open_workspace(settings, now=now, create=True, writes=settings.kafka is None, exclusive_hint=_DATABASE_IN_USE)
    )
    workspace.store.release_memory()
    return workspace


def source_of_statements(settings: Settings, database: DatabaseSource) -> SnapshotSource:
    """Return what analysts' statements run over: the database, and the lake if there is one that DuckDB can read."""
    lake = lake_of(settings)
    if lake is None:
        return database
    root = readable_folder(lake)
    if root is None:
        log.warning(
            "SQL sees only the database: DuckDB reads no lake in %s, only one in a folder without * ? [ in its path", lake.root
        )
        return database
    return SpanningSource(LakeSource(root, database.folder), database)


def listener_url(listener: socket.socket) -> str:
    """Return the address of a listener."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def build_server(
    settings: Settings, api: ApiSettings, listener: socket.socket, app: FastAPI, on_started: Callable[[], None]
) -> AnnouncingServer:
    """Build the server of an application."""
    host, port = listener.getsockname()[:2]
    http = build_http_server(app, api, host, port)
    http.config.timeout_graceful_shutdown = math.ceil(settings.client_grace)
    return AnnouncingServer(http, listener, on_started)


async def _run_until_stopped(
    settings: Settings, engine: Engine, app: FastAPI, server: AnnouncingServer, spans: Receiver | None, *, watches: bool
) -> None:
    """Start the engine and its periodic tasks, serve until the server stops, and stop them.

    Raises the engine's failure if it broke.
    """
    # Create the tasks first: wrong settings are reported before anything starts.
    periodic_tasks = PeriodicTasks(periodic_tasks_of(engine, settings, app.state.context, watches=watches))
    await engine.start()
    prepare_routes(app)
    # Objects loaded so far live until the end. Searching them for garbage would delay all requests by a tenth of a second.
    collect_in_short_pauses()
    engine.has_more = partial(periodic_tasks.poke, TraceAssembler.name)
    periodic_tasks.start()
    watch = asyncio.create_task(server.stop_when_set(engine.broken))
    context: ApiContext = app.state.context
    try:
        async with serve_commands(settings.database, engine, context.watch, context.recall), _receive_spans(spans):
            # uvicorn closes its sockets, and the listener is needed if the server starts again.
            await server.serve(sockets=[server.listener.dup()])
        if engine.broken.is_set():
            raise engine.failure()
    finally:
        watch.cancel()
        await periodic_tasks.stop()
        await _stop(engine, 0 if engine.broken.is_set() else settings.judge_grace, server.hurry)


def listen_for_spans(settings: Settings, services: ApiContext) -> Receiver | None:
    """Bind the address for OTLP over gRPC. Return None if it is not configured.

    Raises SettingsError if gRPC is not installed or the address is in use.
    """
    if settings.otlp_grpc_port is None:
        return None
    try:
        from service.http.otlp_grpc import Receiver  # noqa: PLC0415 - most installations have no gRPC
    except ImportError as error:
        raise SettingsError(
            "DRIFTLINE_OTLP_GRPC_PORT: OTLP over gRPC needs grpcio, which is not installed",
            hint="pip install 'driftline[grpc]', or send OTLP over HTTP to the server's own port.",
        ) from error
    return Receiver(settings.host, settings.otlp_grpc_port, services)


def _receive_spans(spans: Receiver | None) -> contextlib.AbstractAsyncContextManager[None]:
    return contextlib.nullcontext() if spans is None else spans.taking()


def api_settings(settings: Settings, names: Sequence[str]) -> ApiSettings:
    """Return the settings of the API, with the host names that the server accepts and those behind a TLS proxy."""
    public = urlsplit(settings.public_url or "")
    allowed_hosts = LOOPBACK_NAMES | {settings.host} | set(names)
    if public.hostname:
        allowed_hosts |= {public.hostname}
    encrypted_hosts = {public.netloc.lower().removesuffix(":443")} if public.scheme == "https" else set()
    return ApiSettings(
        allowed_hosts=frozenset(allowed_hosts),
        encrypted_hosts=frozenset(encrypted_hosts),
        policy_file=settings.policy,
        public_url=settings.public_url,
        identity_provider=open_provider(settings),
    )


def _open_engine(workspace: Workspace, opened: OpenedJudge) -> Engine:
    """Open the engine that audits in this process."""
    store, policy, redactor, now = workspace.store, workspace.policy, workspace.redactor, workspace.now
    batch_judge = None
    if opened.judge is not None:
        journal = BatchJournal(batch_journal_path(workspace.settings.database))
        batch_judge = open_batches(policy, os.environ, journal)
    return Engine(store, policy, redactor, now, judge=opened.judge, judge_name=opened.name, batch_judge=batch_judge)


def _open_engine_over_kafka(workspace: Workspace) -> tuple[Engine, Recall | None]:
    """Open the engine that passes records to workers through Kafka, and the recall from the lake, if there is one."""
    from streams.kafka.kafka_log import KafkaLog  # noqa: PLC0415 - the clients of Kafka take a while to load, and most need none

    store, policy, redactor, now = workspace.store, workspace.policy, workspace.redactor, workspace.now
    framing = framing_of(workspace.settings)
    reframe = None if framing is None else framing.reframe
    history = history_of(workspace.settings)
    topics = KafkaLog(store, redactor, now, connection_of(workspace.settings), reframe=reframe, history=history)
    engine = Engine(store, policy, redactor, now, judge_name=WORKERS, log=topics)
    lake = lake_of(workspace.settings)
    if lake is None:
        return engine, None
    from streams.lake.recall import Recall  # noqa: PLC0415 - most installations have no lake

    return engine, Recall(store, lake, topics.writer, topics.encryption)


def _startup_notes(opened: OpenedJudge, policy: Policy, access: AccessStore) -> list[str]:
    """Return the reasons why a configured judge cannot judge, or why nobody can sign in."""
    notes = []
    if opened.judge is not None:
        notes = [note for note in (opened.note, unpriced_note(policy)) if note]
    if not access.holders("operator"):
        notes.append(NO_OPERATOR)
    return notes


async def _stop(engine: RecordIntake, grace: float, hurry: asyncio.Event) -> None:
    """Stop the engine. After a second signal (`hurry`), do not wait for judgements in progress.

    Pending records are always committed.
    """
    stopping = asyncio.create_task(engine.stop(grace))
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait([stopping, hurrying], return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if not stopping.done():
        await engine.stop(0)
    await stopping


def listen(host: str, port: int, *, expose: bool = False) -> socket.socket:
    """Return a listening socket. Raises SettingsError as `serve` does."""
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(f"host {host}: {error.strerror}", hint="Pass an address of this machine.") from error
    family, kind, protocol, _, address = candidates[0]
    if not ipaddress.ip_address(address[0]).is_loopback and not expose:
        raise SettingsError(
            f"{host} is reachable from other machines",
            hint="Pass --expose to allow this, and use a TLS proxy. Without --expose, the server listens on loopback only.",
        )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"{host} port {port}: {error.strerror}", hint="Pass another port with --port; 0 chooses a free one."
        ) from error
    return listener


class HttpServer(uvicorn.Server):
    """A uvicorn server that also closes connections that send no request, and waits for first requests when it stops.

    uvicorn closes a connection that is idle after a response, but has no time limit for the first request or for the rest of a
    head, so slow senders could occupy all `MAX_CONNECTIONS`.
    """

    def __init__(self, config: uvicorn.Config, head_seconds: float) -> None:
        """`head_seconds` is the time limit for the head of a request on a connection."""
        super().__init__(config)
        self.head_seconds = head_seconds
        self._without_request: dict[H11Protocol, tuple[object, float]] = {}
        """Connections without a request in progress: the last request of each, and when that request ended."""

    async def on_tick(self, counter: int) -> bool:
        """Close connections that have waited too long for a request. uvicorn calls this ten times a second."""
        now = asyncio.get_running_loop().time()
        previous = self._without_request
        self._without_request = {}
        for connection in self._connections():
            request = connection.cycle
            if request is not None and not request.response_complete:
                continue
            last_request, since = previous.get(connection, (request, now))
            if last_request is not request:
                since = now
            self._without_request[connection] = request, since
            if now - since > self.head_seconds:
                connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, wait for the first requests on accepted ones, and stop as usual."""
        # uvicorn would close connections whose first request it has not read yet, and their callers would get no answer.
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_GRACE_SECONDS
        while loop.time() < deadline and any(connection.cycle is None for connection in self._connections()):  # noqa: ASYNC110 - uvicorn has no event for this
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)

    def _connections(self) -> set[H11Protocol]:
        return cast("set[H11Protocol]", self.server_state.connections)


def run(serving: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end and return the result, on uvloop if the platform has it."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serving)


def build_http_server(app: FastAPI, settings: ApiSettings, host: str, port: int) -> HttpServer:
    """Build a server for the application, without uvicorn's request log and Server header."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=30,
    )
    return HttpServer(config, settings.read_timeout)


class AnnouncingServer(HttpServer):
    """A server that announces when it accepts requests.

    Its caller handles signals, because the engine commits pending records last.
    """

    def __init__(self, http: HttpServer, listener: socket.socket, started: Callable[[], None]) -> None:
        super().__init__(http.config, http.head_seconds)
        self.listener = listener
        self.hurry = asyncio.Event()
        """Set by the second stop signal."""
        self.restart_requested = False
        """Whether the caller is to start a new server after this one has stopped."""
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as usual, then announce."""
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as usual. New connections are refused immediately, unless the server is about to restart."""
        if not self.restart_requested:
            self.listener.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers, because the caller of the server installs them."""
        yield

    async def stop_when_set(self, event: asyncio.Event) -> None:
        """Stop when the event is set."""
        await event.wait()
        self.should_exit = True

    def request_restart(self) -> None:
        """Stop and have the caller start a new server. Does nothing if the server is already stopping."""
        if not self.should_exit:
            self.restart_requested = self.should_exit = True

    def handle_stop_signal(self, _signal: signal.Signals) -> None:
        """Stop. At the second signal, do not wait for judgements. A signal never interrupts a step halfway."""
        if self.should_exit and not self.restart_requested:
            self.force_exit = True
            self.hurry.set()
        self.restart_requested = False
        self.should_exit = True
