"""`driftline lake`: the topics of Kafka in Delta tables, for readers who need no server."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analytics.lake import Lake, require_lake
from schemas.errors import SettingsError
from service.cli.commands.options import (
    AsJson,
    Database,
    Expose,
    Host,
    HostNames,
    Kafka,
    OfProject,
    PolicyFile,
    Port,
    Since,
    Until,
    print_json,
    settings_of,
    since_of,
    until_of,
)
from service.cli.exit_codes import end_with
from service.cli.progress import working
from service.cli.terminal import out
from service.read.known_projects import require_known
from service.server.logs import configure_logs
from service.setup.kafka import connection_of, framing_of
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import open_workspace, utc_now
from service.text.formats import counted
from service.text.links import API
from streams.process import collect_rarely, handled_in_loop

if TYPE_CHECKING:
    from streams.lake.maintenance import LakeMaintenance, MaintenanceReport

lake_app = typer.Typer(no_args_is_help=True, help="Write the topics into a lake of Delta tables.")

LakeRoot = Annotated[
    str,
    typer.Argument(
        metavar="LAKE", help="Folder of the tables, or a URL such as s3://bucket/folder, with access in the environment."
    ),
]


@lake_app.command("sink")
def sink(
    root: LakeRoot,
    seconds: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, max=600, help="Seconds between commits.")
    ] = 5.0,
    kafka: Kafka = None,
    policy: PolicyFile = None,
) -> None:
    """Write every record of the topics into the lake until stopped. Run the command several times to share the partitions.

    Press Ctrl-C or send SIGTERM to stop. A killed process loses nothing: another one, or the next start, continues.
    """
    require_lake()
    settings = settings_of(None, policy, kafka=kafka)
    configure_logs(sys.stderr, redactor_of(settings, policy_of(settings)))
    collect_rarely()
    end_with(asyncio.run(_run_sink(settings, Lake(root), seconds)))


@lake_app.command("serve")
def serve(
    root: LakeRoot,
    host: Host = None,
    port: Port = None,
    at_once: Annotated[
        int,
        typer.Option(
            "--at-once", metavar="N", min=1, max=64, help="Statements that run at the same time; further ones wait for a retry."
        ),
    ] = 2,
    scratch: Annotated[
        Path | None,
        typer.Option("--scratch", metavar="DIR", help="Folder for snapshots; the system's for temporary files by default."),
    ] = None,
    name: HostNames = None,
    expose: Expose = False,
    database: Database = None,
    policy: PolicyFile = None,
) -> None:
    """Answer SQL over a lake at POST /api/audit/query, with the limits and rights that a server has. Start as many as you like.

    Statements run on a snapshot. A statement has the next one made if the lake has changed and the snapshot is over a minute old. The tokens
    are those of the database, which need not exist: `driftline operators add NAME`. Press Ctrl-C or send SIGTERM to stop.
    """
    require_lake()
    from service.server.lake_reader import ReaderOptions, serve_lake  # noqa: PLC0415 - the web framework takes half a second to load

    settings = settings_of(database, policy, host=host, port=port)
    configure_logs(sys.stderr, redactor_of(settings, policy_of(settings)))
    options = ReaderOptions(Lake(root), scratch or Path(tempfile.gettempdir()), at_once)
    if not options.scratch.is_dir():
        raise SettingsError(f"--scratch {options.scratch}: is not a folder", hint="Name an existing folder.")
    serve_lake(settings, options, names=name or [], expose=expose, announce=_announce_reader)


def _announce_reader(url: str, notes: Sequence[str]) -> None:
    out.say(f"SQL over the lake at {url}{API}/query. Press Ctrl-C to stop.")
    for note in notes:
        out.say(f"note: {note}")


@lake_app.command("fetch")
def fetch(
    project: OfProject,
    since: Since,
    until: Until = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Have the running server fetch the details of days (UTC) from the lake, for an export or a replay of these days.

    They stay in its database until the next day begins (UTC). Sessions, runs and exchanges that are opened one by one need no command.
    """
    start, end = since_of(since), until_of(until) or utc_now()
    if start is None or start >= end:
        raise SettingsError("--since must be before --until", hint="--until is exclusive.")
    first, last = start.date(), (end - timedelta(microseconds=1)).date()
    with open_workspace(settings_of(database)) as workspace, working("fetching from the lake"):
        require_known(workspace, project)
        if workspace.server is None:
            raise SettingsError(
                f"no server is running over {workspace.settings.database}",
                hint="Start it: driftline serve --kafka … --lake LAKE --hot-days N",
            )
        restored = workspace.server.call("recall_days", int, project, first, last)
    if as_json:
        print_json({"rows": restored})
    else:
        out.say(f"{counted(restored, 'row')} fetched" if restored else "nothing to fetch: the database has what the lake has")


@lake_app.command("maintain")
def maintain(root: LakeRoot, policy: PolicyFile = None, as_json: AsJson = False) -> None:
    """Delete what was erased or is past its retention, compact small files, and remove old ones.

    A sink does this by itself, every hour and after each erasure. Sinks may run meanwhile. Kafka is needed only if texts are encrypted.
    """
    require_lake()
    from streams.lake.maintenance import LakeMaintenance  # noqa: PLC0415 - it loads the code of deletion

    settings = settings_of(None, policy)
    with working("keeping the lake in order"):
        report = asyncio.run(_run_maintenance(settings, LakeMaintenance(Lake(root).root, policy_of(settings), utc_now)))
    if as_json:
        print_json(
            {
                "erased": dict(report.erased),
                "expired": dict(report.expired),
                "compacted_files": report.compacted,
                "removed_files": report.removed,
            }
        )
        return
    for what, counts in (("erased", report.erased), ("past their retention", report.expired)):
        for table, count in sorted(counts.items()):
            out.say(f"{counted(count, 'row')} of {table} deleted: {what}")
    out.say(f"{counted(report.compacted, 'file')} compacted, {counted(report.removed, 'file')} removed")


async def _run_maintenance(settings: Settings, maintenance: LakeMaintenance) -> MaintenanceReport:
    if settings.text_key_file is None:
        return maintenance.run()
    from streams.kafka.encryption import open_encryption  # noqa: PLC0415 - the client of Kafka takes half a second to load

    async with open_encryption(connection_of(settings), keeps_keys=True) as encryption:
        return await asyncio.to_thread(maintenance.run, encryption)


async def _run_sink(settings: Settings, lake: Lake, seconds: float) -> int:
    from streams.lake.maintenance import LakeMaintenance  # noqa: PLC0415
    from streams.lake.sink import LakeLimits, LakeSink  # noqa: PLC0415 - the client of Kafka takes half a second to load

    policy = policy_of(settings)
    framing = framing_of(settings)
    lake_sink = LakeSink(
        lake,
        connection_of(settings),
        redactor_of(settings, policy),
        utc_now,
        reframe=None if framing is None else framing.reframe_when_available,
        limits=LakeLimits(seconds=seconds),
        maintenance=LakeMaintenance(lake.root, policy, utc_now),
    )
    stop = asyncio.Event()
    with handled_in_loop(lambda _: stop.set()):
        try:
            await lake_sink.start()
            out.say(f"the topics go to {lake.root}, every {seconds:g} s. Press Ctrl-C to stop.")
            waits = [asyncio.create_task(stop.wait()), asyncio.create_task(lake_sink.broken.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
        finally:
            await lake_sink.stop()
    if lake_sink.failure is not None:
        raise lake_sink.failure
    erased = 0 if lake_sink.encryption is None else lake_sink.encryption.erased.total()
    skipped = f", {counted(erased, 'record')} of erased sessions skipped" if erased else ""
    out.say(f"{counted(lake_sink.committed, 'record')} written{skipped}")
    return 0
