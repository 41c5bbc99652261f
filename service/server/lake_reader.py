"""A reader of a lake: a server that only answers statements, over snapshots of the lake. Any number may run beside sinks and each other.

Tokens, rights and the audit log are in the access file of a database, which other readers and a server may share. A reader has no engine,
and does not open the database.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from analytics.lake import Lake
from analytics.lake_sql import require_readable
from service.read.queries.pool import LakeSource, QueryPool
from service.server.app import create_reader_app, prepare_routes
from service.server.server_lifecycle import NO_OPERATOR, api_settings, build_server, listen, listener_url, run
from service.setup.access import AccessStore, access_file
from service.setup.settings import Settings
from service.setup.workspace import utc_now
from service.web.bounds import ApiSettings
from streams.process import handled_in_loop

SNAPSHOTS = "driftline-lake"
"""The beginning of the name of the folder in which a reader makes snapshots; its port follows."""
Announce = Callable[[str, Sequence[str]], None]
"""Called with the address of a started reader, and notes for the operator."""


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """The lake and the limits of a reader."""

    lake: Lake
    scratch: Path
    """An existing folder on a disk with room for two snapshots."""
    at_once: int
    """Maximum number of concurrent statements."""


def serve_lake(settings: Settings, options: ReaderOptions, *, names: Sequence[str], expose: bool, announce: Announce) -> None:
    """Answer statements until a stop signal. Raises LakeError if DuckDB cannot read the lake, SettingsError as `listen` does."""
    lake = options.lake
    root = require_readable(lake)
    lake.require()
    with listen(settings.host, settings.port, expose=expose) as listener:
        folder = options.scratch.absolute() / f"{SNAPSHOTS}-{listener.getsockname()[1]}"
        api = api_settings(settings, names)
        limits = msgspec.structs.replace(api.queries, at_once=options.at_once)
        pool = QueryPool(LakeSource(root, folder), utc_now, limits)
        run(_serve(settings, api, pool, listener, announce))


async def _serve(settings: Settings, api: ApiSettings, pool: QueryPool, listener: socket.socket, announce: Announce) -> None:
    async with contextlib.AsyncExitStack() as stack:
        access = stack.enter_context(AccessStore(access_file(settings.database), utc_now))
        stack.push_async_callback(pool.close)
        app = create_reader_app(pool, access, api)
        prepare_routes(app)
        notes = [] if access.holders("operator") else [NO_OPERATOR]
        server = build_server(settings, api, listener, app, partial(announce, listener_url(listener), notes))
        pool.prepare()
        with handled_in_loop(server.handle_stop_signal):
            await server.serve(sockets=[listener.dup()])
