"""`driftline compare`: what a change of policy or judge would have changed."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.commands.options import AsJson, Database, Project, print_json, settings_of
from service.cli.terminal import out
from service.reports.comparison import compare as compared
from service.reports.comparison import side_of
from service.reports.comparison_tables import comparison_view


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Label of a replay, or live: the database's own scores.")],
    second: Annotated[str, typer.Argument(metavar="B", help="What to compare it with: changes are B less A.")],
    project: Project = None,
    top: Annotated[int, typer.Option(min=0, max=1000, help="So many of the exchanges that moved most.")] = 5,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Compare two scorings of the same exchanges: what moved and how surely, states, exchanges that moved most, cost."""
    file = settings_of(database).database
    document = compared(side_of(first, file), side_of(second, file), project, top)
    if as_json:
        print_json(document)
    else:
        out.print(comparison_view(document))
