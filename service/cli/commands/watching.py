"""`driftline watch`: the fleet or a list, and then each change as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from service.cli.commands.incidents import incident_list
from service.cli.commands.listing import list_runs, list_scores, session_list
from service.cli.commands.projects import list_projects
from service.cli.list_views import ListView, watched

FLEET = "projects"


class _WatchGroup(TyperGroup):
    """Watches the fleet unless a list is named."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Insert the list that is watched by default."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [FLEET, *args]
        return super().parse_args(ctx, args)


watch_app = typer.Typer(
    cls=_WatchGroup,
    help="Watch the fleet, or a list: first its rows, the newest last, then each new or changed one, until Ctrl-C. The options are those "
    "of the list.",
)
LISTS: Mapping[str, Callable[..., ListView[Any]]] = {
    FLEET: list_projects,
    "sessions": session_list,
    "runs": list_runs,
    "scores": list_scores,
    "incidents": incident_list,
}
"""What can be watched."""
for name, build in LISTS.items():
    watch_app.command(name)(watched(build))
