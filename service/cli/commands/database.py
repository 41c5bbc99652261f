"""Commands that rewrite a database: `driftline rebuild`, `retention`, `erase` and `compact`."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analytics.deletion.compaction import bytes_written, measure_space
from analytics.deletion.compaction import compact as compact_file
from analytics.deletion.deleting import ERASURES
from schemas.codec.single_object import encode
from schemas.errors import InputError, SettingsError
from schemas.registry import current_schemas
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    FromLake,
    Kafka,
    PolicyFile,
    Yes,
    clock_of,
    print_json,
    settings_of,
)
from service.cli.exit_codes import agree, fails_when
from service.cli.progress import growing, working
from service.cli.terminal import err, out
from service.setup.kafka import connection_of, framing_of, history_of
from service.setup.server_link import STOP_SERVER_HINT
from service.setup.settings import Settings
from service.setup.wiring import embedded_runner
from service.setup.workspace import open_workspace, require_database
from service.text.answers import document
from service.text.formats import counted, plain
from service.write.deletion import PurgedRecords, RequestedErasure, progress_of, purged_records
from streams.log.admission import EncodedRecords
from streams.topology import derived_tables
from streams.upkeep.deletion import COPIES, erasure, purge
from streams.upkeep.deletion import erase as erase_all

if TYPE_CHECKING:
    from streams.lake.history import LakeHistory

NO_DATABASE_HINT = (
    "Name the database with --db. If it is lost: with Kafka, give --kafka host:port to rebuild the tables from the topics; "
    "without Kafka it was the only copy: restore a backup or import the records again."
)


def rebuild(
    kafka: Kafka = None,
    lake: FromLake = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete all derived records, such as scores and diagnoses, and compute them again from the stored input with the current rules.

    With --kafka, the stored records are deleted and read again from the topics. Records that retention has removed from the topics are
    kept. If there is no database, the command creates one from the topics. With --lake, the records of the lake are read first.
    """
    settings = settings_of(database, policy, kafka=kafka, lake=lake)
    history = history_of(settings)
    if settings.kafka is not None:
        counts = _rebuild_from_topics(settings, history)
        _print_counts("landed again", counts, "nothing: the topics are empty", as_json=as_json)
        return
    if not settings.database.exists():
        raise SettingsError(f"no database at {settings.database}: there is nothing to rebuild from", hint=NO_DATABASE_HINT)
    with open_workspace(settings, writes=True, exclusive_hint=STOP_SERVER_HINT) as workspace:
        with working("recomputing derived records") as tell:
            runner = embedded_runner(settings, workspace.store, workspace.policy, workspace.redactor, workspace.now)
            runner.rebuild(lambda progress: tell(f"stage {progress.stage}: {progress.position} of {progress.end} records"))
        counts = {table: workspace.store.count(table) for table in derived_tables()}
    _print_counts("rebuilt", counts, "nothing", as_json=as_json)


def _print_counts(done: str, counts: Mapping[str, int], nothing: str, *, as_json: bool) -> None:
    """Print the number of rows per table."""
    if as_json:
        print_json({"rows": counts})
    else:
        out.say(f"{done}: {', '.join(f'{count} {table}' for table, count in counts.items()) or nothing}")


def _rebuild_from_topics(settings: Settings, history: LakeHistory | None) -> dict[str, int]:
    """Flush the topics into the tables again; return the number of rows of each non-empty table."""
    from streams.kafka import sink  # noqa: PLC0415 - the clients of Kafka take a while to load

    connection, framing = connection_of(settings), framing_of(settings)
    is_new = not settings.database.exists()
    if is_new and history is None:  # an empty file in place of a lost one would look like a successful rebuild
        asyncio.run(sink.require_records(connection))
    with (
        open_workspace(settings, create=is_new, exclusive_hint=STOP_SERVER_HINT) as workspace,
        working("rebuilding the tables from the topics") as tell,
    ):
        store, redactor = workspace.store, workspace.redactor
        erased = asyncio.run(
            sink.rebuild(
                store,
                connection,
                redactor,
                workspace.now,
                report=lambda left: tell(f"{left} records are left"),
                reframe=None if framing is None else framing.reframe,
                history=history,
            )
        )
        store.checkpoint()
        if erased:
            err.say(f"{counted(erased, 'record')} of erased sessions on the topics skipped")
        tables = [schema.table for schema in current_schemas().values() if schema.topics]
        return {name: count for name in tables if (count := store.count(name))}


retention_app = typer.Typer(no_args_is_help=True, help="Delete records that are past their retention.")
MEGABYTE = 1_000_000
ERASE_THROUGH_SERVER_HINT = "A server holds the database: erase through it (POST /api/audit/erasures, see /docs), or stop it, erase, and start it again."
"""The advice if a server has the database: erase there, because the file is compacted after an erasure."""


@retention_app.command("run")
def retention_run(
    days: Annotated[
        int | None, typer.Option("--days", min=1, max=3650, metavar="N", help="Number of days to keep; overrides the policy.")
    ] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Delete exchanges, events and scores that are past their retention, and their dependent records. Baselines and incidents are kept.

    A running server does this once a day. The file does not shrink; use `driftline compact` for that.
    """
    opened = open_workspace(settings_of(database, policy), now=clock_of(as_of))
    with opened as workspace, working("deleting records past their retention"):
        now = workspace.now()
        if workspace.server is None:
            outcome = purged_records(purge(workspace.store, workspace.policy, now, days), workspace.policy, now, days)
        else:
            outcome = workspace.server.call("purge", PurgedRecords, now, days)
    if as_json:
        print_json(document(outcome))
        return
    since = outcome.cutoff_date
    remaining = (
        "history is kept forever unless a project sets a limit" if since is None else f"history begins on {since:%Y-%m-%d}"
    )
    out.print(
        f"deleted: {counted(outcome.exchanges_purged, 'exchange')}, {counted(outcome.scores_purged, 'score')}; {remaining}"
    )


@fails_when("you decline")
def erase(
    connection: Annotated[str, typer.Option("--connection", metavar="NAME", help="Connection of the records.")],
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session of the connection.")] = None,
    comment: Annotated[
        str | None, typer.Option("--comment", metavar="TEXT", help="Reason, which is stored with the erasure.")
    ] = None,
    yes: Yes = False,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase all records of a session or a connection permanently, and compact the file. Later records of it are rejected."""
    if not connection or session == "":
        raise InputError(f"{'--session' if connection else '--connection'} is empty", hint="Name the records to erase.")
    settings = settings_of(database, policy)
    with open_workspace(settings, writes=True, exclusive_hint=ERASE_THROUGH_SERVER_HINT) as workspace:
        scope = f"connection {connection}" if session is None else f"session {session} of connection {connection}"
        agree(f"Erase all records of {plain(scope)}? This cannot be undone.", yes=yes)
        redacted_comment = workspace.redactor.redact(comment)[0] if comment else None
        record = erasure(connection, session, getpass.getuser(), redacted_comment, workspace.now())
        accepted = EncodedRecords()
        accepted.add(ERASURES, encode(record))
        with working("erasing"):
            workspace.runner.publish(accepted)
            workspace.runner.run()
            erase_all(workspace.store, workspace.now(), again=[record.erasure_id])
        progress = progress_of(workspace.store, record)
    before, after = _compact_file(settings.database)
    if as_json:
        print_json(document(RequestedErasure(erasure=progress, remains=[COPIES])))
        return
    rows = ", ".join(f"{count} {table}" for table, count in progress.deleted.items() if count)
    out.print(f"erased: {rows or 'no records'}; {_format_sizes(before, after)}")
    for label in progress.replays:
        out.print(f"deleted the replay {plain(label)}: it held some of these records")
    err.say(f"note: {COPIES}", style="yellow")


def compact(database: Database = None, as_json: AsJson = False) -> None:
    """Shrink a closed database: write a copy without free space, and replace the file in one step."""
    path: Path = settings_of(database).database
    require_database(path)
    before, after = _compact_file(path)
    if as_json:
        print_json({"before": before, "after": after})
        return
    out.print(_format_sizes(before, after))


def _compact_file(path: Path) -> tuple[int, int]:
    """Compact a closed file; return its bytes before and after."""
    with growing("compacting", measure_space(path).used, lambda: bytes_written(path)):
        return compact_file(path)


def _format_sizes(before: int, after: int) -> str:
    return f"file size: {before / MEGABYTE:.1f} MB, now {after / MEGABYTE:.1f} MB"
