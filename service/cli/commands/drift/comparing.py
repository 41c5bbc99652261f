"""`driftline compare`: two scorings of the same exchanges, side by side."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Annotated

import typer

from service.cli.commands.options import AsJson, Database, Project, print_json, settings_of
from service.cli.progress import working
from service.cli.reports.comparison import compare as compared
from service.cli.reports.comparison import side_of
from service.cli.reports.comparison_tables import comparison_view
from service.cli.terminal import out
from service.setup.copies import readable_file
from streams.replay.plan import LIVE


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Label of a replay, or live (the database's own scores).")],
    second: Annotated[str, typer.Argument(metavar="B", help="Label to compare with; changes are B minus A.")],
    project: Project = None,
    top: Annotated[int, typer.Option(min=0, max=1000, help="Number of most-changed exchanges to show.")] = 5,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Compare two scorings of the same exchanges: mean shifts with intervals, states, the largest moves, cost."""
    settings = settings_of(database)
    sides = [side_of(label, settings.database) for label in (first, second)]
    with contextlib.ExitStack() as stack:
        if LIVE in {first, second}:
            file = stack.enter_context(readable_file(settings))
            sides = [replace(side, path=file) if side.label == LIVE else side for side in sides]
        stack.enter_context(working("comparing"))
        document = compared(sides[0], sides[1], project, top)
    if as_json:
        print_json(document)
    else:
        out.print(comparison_view(document))
