"""`driftline demo`: a synthetic fleet through the real pipeline, and a report of what was found."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import SettingsError
from service.commands.imports import file_progress, show
from service.fleet import write_fleet
from service.fleet_events import EVENTS_FILE
from service.importing import Importer, transcripts_in
from service.report import fleet_report
from service.settings import load_settings
from service.terminal import err, out
from service.workspace import open_workspace

PRESENT = datetime(2026, 11, 2, tzinfo=UTC)
"""The demo's present: the day after its last session, so that the report is the same whenever it is made."""
PROGRAM = "driftline"
MARKER = ".driftline-demo"
PROJECT = "demo"


def demo(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder for the demo's files; made anew each time.")
    ] = Path("demo-data"),
) -> None:
    """Make a small synthetic fleet, import it through the real pipeline and report what was found; offline, no key."""
    _make_room(folder)
    err.print("making a synthetic fleet of OpenClaw transcripts …")
    plan = write_fleet(folder / "openclaw")
    events = plan.root / EVENTS_FILE
    settings = load_settings(database=folder / "demo.duckdb", project=PROJECT)
    with open_workspace(settings, now=lambda: PRESENT, create=True) as workspace:
        files = transcripts_in([folder / "openclaw" / "agents"])
        with file_progress(sum(path.stat().st_size for path in files)) as report:
            summary = Importer(workspace).openclaw(files, report)
        out.print("[bold]Driftline demo[/]: every session here is synthetic: made by a generator, not by an agent", "")
        show(summary, as_json=False)
        with file_progress(events.stat().st_size) as report:
            show(Importer(workspace).events(events, report), as_json=False)
        out.print(fleet_report(workspace.store, settings.database, PROJECT, _program()))


def _program() -> str:
    """How the reader starts the command line: by its name where that is found, else by the path it was started with."""
    return PROGRAM if shutil.which(PROGRAM) else sys.argv[0]


def _make_room(folder: Path) -> None:
    """Empty the demo's own folder; SettingsError for a folder with anything else in it."""
    marker = folder / MARKER
    if folder.exists() and any(folder.iterdir()):
        if not marker.exists():
            raise SettingsError(f"{folder} is not empty and no earlier demo made it", hint="Name another folder with --dir.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text("Made by `driftline demo`, which empties this folder when it runs again.\n", encoding="utf-8")
