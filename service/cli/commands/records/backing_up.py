"""`driftline backup`: a consistent copy of the database and its tokens, also beside a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.options import AsJson, Database, PolicyFile, print_json, settings_of
from service.cli.progress import growing
from service.cli.terminal import out
from service.export.backups import back_up, begun
from service.setup.settings import Settings
from service.setup.workspace import open_workspace
from service.text.plain import counted


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the copies; created if missing.")],
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database and its tokens to a folder, consistent as of one moment, also while a server is running.

    The copy holds everything that was accepted before. To restore it, stop the server, move the database and all files that begin
    with its name away, and copy the files of the backup there. Replays are not copied: they can be made again.
    """
    settings = settings_of(database, policy)
    with open_workspace(settings) as workspace, growing("copying the database", _size(settings), lambda: begun(folder)):
        made = back_up(workspace, folder)
    if as_json:
        print_json({"files": [str(path) for path in made.files], "rows": made.rows})
        return
    rows = ", ".join(counted(count, table.replace("_", " ").removesuffix("s")) for table, count in made.rows.items())
    out.say(f"copied to {', '.join(map(str, made.files))}: {rows or 'no records yet'}")


def _size(settings: Settings) -> int:
    """Return the expected bytes of the backup, if known; the copy has no free space, so it may be smaller."""
    return settings.database.stat().st_size if settings.database.exists() else 0
