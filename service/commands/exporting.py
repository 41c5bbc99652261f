"""`driftline export`: the log as Parquet, for a replay elsewhere and for everything else that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.commands.options import AsJson, Database, print_json, settings_of
from service.exporting import export_tables
from service.terminal import counted, out
from service.workspace import open_workspace


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; made where it is missing.")],
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Write every topic's table as a Parquet file: all revisions, with topic, partition and offset, times in UTC."""
    with open_workspace(settings_of(database)) as workspace:
        written = export_tables(workspace.store, folder)
    if as_json:
        print_json({"folder": str(folder), "rows": written})
    else:
        total = sum(written.values())
        out.print(
            f"{counted(len(written), 'table')} with {counted(total, 'row')} written to {folder}", markup=False, soft_wrap=True
        )
