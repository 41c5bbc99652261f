"""`driftline backup`: the database and its tokens, copied whole and as of one moment, beside a running server too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.options import AsJson, Database, PolicyFile, print_json, settings_of
from service.cli.terminal import counted, err, out
from service.export.backups import back_up
from service.workspace import open_workspace


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the copies; made where it is missing.")],
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database and its tokens to a folder: whole, as of one moment, and also while a server has them.

    Everything that was accepted before is in the copy. To put it back, stop the server, move the database and what begins with its
    name away, and copy the files of the backup to their place. Replays are not copied: they can be made again.
    """
    with open_workspace(settings_of(database, policy)) as workspace, err.status("copying the database"):
        made = back_up(workspace, folder)
    if as_json:
        print_json({"files": [str(path) for path in made.files], "rows": made.rows})
        return
    rows = ", ".join(counted(count, table.replace("_", " ").removesuffix("s")) for table, count in made.rows.items())
    out.say(f"copied to {', '.join(map(str, made.files))}: {rows or 'no record yet'}")
