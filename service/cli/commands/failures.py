"""`driftline failures`: what failed in a project, in groups."""

from __future__ import annotations

from datetime import datetime

from analytics.sums.daily import is_failure_behind
from schemas.lazy import duckdb
from service.cli.commands.options import ListOptions, OfProject, with_option_group
from service.cli.list_views import print_of_project
from service.cli.terminal import err
from service.read.failures import FailureGroup, read_failures


@with_option_group
def failures(project: OfProject, options: ListOptions) -> None:
    """List what failed in a project, in groups: runs that are not ready and exchanges with an anomaly.

    Groups that are new or grow come first, then the largest. With --since, each group is compared with the period of the same length
    before. Periods are whole UTC days.
    """
    names = ("id", "name", "sessions", "trend", "wastedTokens", "firstAt", "lastAt")
    print_of_project(
        project,
        options,
        _read,
        names,
        whole=["id", "sessions"],
        optional=["trend", "wastedTokens", "firstAt", "lastAt"],
        none="no failure",
    )


def _read(
    cursor: duckdb.DuckDBPyConnection, project: str, start: datetime | None, end: datetime | None, *, limit: int
) -> list[FailureGroup]:
    if is_failure_behind(cursor):
        err.say(
            "note: the newest records are not grouped yet. A running server groups them within a minute; driftline check-drift "
            "groups them now.",
            style="yellow",
        )
    return read_failures(cursor, project, start, end, limit)
