"""Commands that delete from a closed database: old records, records of a session or connection, and free space."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

from analytics.deletion.compaction import bytes_written, space_of
from analytics.deletion.compaction import compact as compact_file
from analytics.deletion.deleting import ERASURES
from schemas.codec.single_object import encode
from schemas.errors import InputError
from service.cli.commands.options import AsJson, AsOf, Database, PolicyFile, Yes, clock_of, print_json, settings_of
from service.cli.entry.exit_codes import agree, fails_when
from service.cli.progress import growing, working
from service.cli.terminal import err, out
from service.setup.workspace import open_workspace, require_database
from service.text.answers import document
from service.text.plain import counted, plain
from service.write.deletion import PurgedRecords, RequestedErasure, progress_of, purged_records
from streams.log.admission import Accepted
from streams.upkeep.erasing import COPIES, erasure
from streams.upkeep.erasing import erase as erase_all
from streams.upkeep.retention import purge

retention_app = typer.Typer(no_args_is_help=True, help="Delete records that are past their retention.")
MEGABYTE = 1_000_000
ERASE_THERE = (
    "A server has the database: ask it to erase (POST /api/audit/erasures, see /docs), or stop it, erase, and start it again."
)
"""The advice if a server has the database: erase there, because the file is compacted after an erasure."""


@retention_app.command("run")
def retention_run(
    days: Annotated[
        int | None, typer.Option("--days", min=1, max=3650, metavar="N", help="Days to keep; overrides the policy.")
    ] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Delete exchanges, events and scores past their retention, and their dependent records; baselines and incidents stay.

    A server does this once a day. The file does not shrink (driftline compact).
    """
    opened = open_workspace(settings_of(database, policy), now=clock_of(as_of))
    with opened as workspace, working("deleting what is past its retention"):
        now = workspace.now()
        if workspace.server is None:
            outcome = purged_records(purge(workspace.store, workspace.policy, now, days), workspace.policy, now, days)
        else:
            outcome = workspace.server.call("purge", PurgedRecords, now, days)
    if as_json:
        print_json(document(outcome))
        return
    since = outcome.cutoff_date
    words = (
        "history is kept for ever, unless a project sets a limit" if since is None else f"history begins on {since:%Y-%m-%d}"
    )
    out.print(f"deleted: {counted(outcome.exchanges_purged, 'exchange')}, {counted(outcome.scores_purged, 'score')}; {words}")


@fails_when("you decline")
def erase(
    connection: Annotated[str, typer.Option("--connection", metavar="NAME", help="Connection of the records.")],
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session of the connection.")] = None,
    comment: Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="Reason; stored with the erasure.")] = None,
    yes: Yes = False,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase all records of a session or a connection for good, and compact the file. Later records of it are refused."""
    if not connection or session == "":
        raise InputError(f"{'--session' if connection else '--connection'} is empty", hint="Name the records to erase.")
    settings = settings_of(database, policy)
    with open_workspace(settings, writes=True, alone=ERASE_THERE) as workspace:
        whose = f"connection {connection}" if session is None else f"session {session} of connection {connection}"
        agree(f"Erase everything of {plain(whose)}? This cannot be undone.", yes=yes)
        said = workspace.redactor.redact(comment)[0] if comment else None
        record = erasure(connection, session, getpass.getuser(), said, workspace.now())
        accepted = Accepted()
        accepted.add(ERASURES, encode(record))
        with working("erasing"):
            workspace.runner.publish(accepted)
            workspace.runner.run()
            erase_all(workspace.store, workspace.now(), again=[record.erasure_id])
        progress = progress_of(workspace.store, record)
    before, after = _compacted(settings.database)
    if as_json:
        print_json(document(RequestedErasure(erasure=progress, remains=[COPIES])))
        return
    rows = ", ".join(f"{count} {table}" for table, count in progress.deleted.items() if count)
    out.print(f"erased: {rows or 'no records'}; {_sizes(before, after)}")
    for label in progress.replays:
        out.print(f"deleted the replay {plain(label)}: it held some of these records")
    err.say(f"note: {COPIES}", style="yellow")


def compact(database: Database = None, as_json: AsJson = False) -> None:
    """Shrink a closed database: write it again beside itself without the free space, and replace it in one step."""
    path: Path = settings_of(database).database
    require_database(path)
    before, after = _compacted(path)
    if as_json:
        print_json({"before": before, "after": after})
        return
    out.print(_sizes(before, after))


def _compacted(path: Path) -> tuple[int, int]:
    """Compact a closed file; return its bytes before and after."""
    with growing("compacting", space_of(path).used, lambda: bytes_written(path)):
        return compact_file(path)


def _sizes(before: int, after: int) -> str:
    return f"file size: {before / MEGABYTE:.1f} MB, now {after / MEGABYTE:.1f} MB"
