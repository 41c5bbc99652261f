"""`driftline backup` and `driftline export`: copies of the database and of its tables, also beside a running server."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import InputError
from service.cli.commands.options import AsJson, Database, PolicyFile, Project, Since, print_json, settings_of, since_of
from service.cli.progress import growing, working
from service.cli.terminal import out
from service.export.backups import back_up, unfinished_size
from service.export.parquet import PARTITION_KEYS, export_partitions, export_tables, select_days
from service.read.known_projects import require_known
from service.setup.settings import Settings
from service.setup.workspace import local_store, open_workspace
from service.text.formats import counted


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the copies; created if missing.")],
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database and its tokens to a folder, as a consistent snapshot. A server may be running.

    The copy contains everything that was accepted before the command. To restore it, stop the server, move away the database and all
    files whose names begin with its name, and copy the backup's files to that place. Replays are not copied; run them again.
    """
    settings = settings_of(database, policy)
    with (
        open_workspace(settings) as workspace,
        growing("copying the database", _size(settings), lambda: unfinished_size(folder)),
    ):
        made = back_up(workspace, folder)
    if as_json:
        print_json({"files": [str(path) for path in made.files], "rows": made.rows})
        return
    rows = ", ".join(counted(count, table.replace("_", " ").removesuffix("s")) for table, count in made.rows.items())
    out.say(f"copied to {', '.join(map(str, made.files))}: {rows or 'no records yet'}")


def _size(settings: Settings) -> int:
    """Return the expected bytes of the backup, if known; the copy has no free space, so it may be smaller."""
    return settings.database.stat().st_size if settings.database.exists() else 0


LastDay = Annotated[
    datetime | None, typer.Option("--until", metavar="DAY", formats=["%Y-%m-%d"], help="Only up to and including this UTC day.")
]


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; created if missing.")],
    by: Annotated[
        str | None, typer.Option(metavar="project,day", help="Write the latest revisions by project and day.")
    ] = None,
    project: Project = None,
    since: Since = None,
    until: LastDay = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Write every topic's table as a Parquet file, with all revisions, topic, partition and offset. Times are in UTC.

    With --by project,day, write only the latest revisions, as TABLE/project=…/day=…/*.parquet, by UTC day. --project, --since and
    --until need --by.
    """
    _check(by, selected=any(value is not None for value in (project, since, until)))
    start = since_of(since)
    days = select_days(start and start.date(), until and until.date())
    with open_workspace(settings_of(database)) as workspace:
        require_known(workspace, project)
        with local_store(workspace) as store, working("exporting") as tell:
            if by is None:
                written = export_tables(store, folder, tell)
            else:
                written = export_partitions(store, folder, days.of_project(project), tell)
    if as_json:
        print_json({"folder": str(folder), "rows": written})
    else:
        total = sum(written.values())
        out.say(f"{counted(len(written), 'table')} with {counted(total, 'row')} written to {folder}")


def _check(by: str | None, *, selected: bool) -> None:
    if by is not None and tuple(by.split(",")) != PARTITION_KEYS:
        raise InputError(f"--by {by}: must be project,day", hint="Use --by project,day.")
    if by is None and selected:
        raise InputError("--project, --since and --until need --by", hint="Add --by project,day, or leave them out.")
