"""`driftline runs`, `scores` and `costs`: lists that load no rules, so that they start fast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.options import (
    SHOWN,
    AsJson,
    Database,
    Limit,
    Project,
    Since,
    Until,
    newest,
    offer_older,
    settings_of,
    show_rows,
    since_of,
    until_of,
)
from service.cli.terminal import err, out
from service.cli.views import caps_table, costs_table, runs_table, scores_table
from service.read.known_projects import require_known
from service.read.runs import Run, runs_of
from service.read.scores import ScoreFilter, judge_costs, project_scores
from service.setup.workspace import CATCH_UP, Workspace, describe_lag, open_workspace
from service.text.answers import document


def runs(
    project: Project = None,
    since: Since = None,
    limit: Limit = SHOWN,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List the runs, newest first by their end: readiness level, trust score, primary failure, tool calls."""
    start = since_of(since)
    with open_for_display(database, project) as workspace:
        runs = runs_of(workspace.store, project, newest=limit + 1)
    shown = newest(sorted(runs, key=_last_at, reverse=True), start, _last_at)
    period = "yet" if start is None else f"since {start:%Y-%m-%d %H:%M}"
    none = f"no runs{of_project(project)} {period}: a session becomes a run when it ends (driftline finalize SESSION)"
    show_rows(shown, runs_table, as_json=as_json, none=none, limit=limit, document=document)


def scores(
    project: Project = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session.")] = None,
    anomalies: Annotated[bool, typer.Option("--anomalies", help="Only exchanges with an anomaly.")] = False,
    since: Since = None,
    limit: Limit = SHOWN,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List the scores, newest exchange first: tiers, sampling reasons, anomalies."""
    start = since_of(since)
    with open_for_display(database, project) as workspace:
        score_filter = ScoreFilter(session=session, anomalies=anomalies, limit=limit + 1)
        matches = project_scores(workspace.store.cursor(), project, score_filter)
    shown = newest(matches, start, lambda score: score.exchange_at)
    show_rows(shown, scores_table, as_json=as_json, none="no score matches", limit=limit, document=document)


@contextmanager
def open_for_display(database: Path | None, project: str | None = None, policy: Path | None = None) -> Iterator[Workspace]:
    """Open the workspace of a database for reading, with a note if its stages lag. Raises InputError for an unknown project."""
    with open_workspace(settings_of(database, policy)) as workspace:
        require_known(workspace, project)
        lag = describe_lag(workspace.store)
        if lag:
            err.say(f"note: {lag}. {CATCH_UP}", style="yellow")
        yield workspace


def _last_at(run: Run) -> datetime:
    return run.last_at


def of_project(project: str | None) -> str:
    """Return ` of project NAME` for a message; empty without a project."""
    return "" if project is None else f" of project {project}"


class By(StrEnum):
    """Groups that costs can be summed by."""

    SESSION = "session"
    PROJECT = "project"
    DAY = "day"
    MODEL = "model"


GROUPS = {
    By.SESSION: ("project", "connection", "session_id"),
    By.PROJECT: ("project",),
    By.DAY: ("day",),
    By.MODEL: ("model",),
}
"""The fields that name a group."""


def costs(
    by: Annotated[By, typer.Option("--by", help="What to group by. A day is the UTC day of the judge's answer.")] = By.PROJECT,
    project: Project = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = SHOWN,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show the cost of judging: calls, tokens and money by session, project, day or model.

    Days are listed newest first, other groups by cost, highest first. --since and --until apply to the time of the judge's answer. The
    caps of the current day and month (costCaps in the policy) follow, with the spending that counts toward them.
    """
    from service.read.caps import shared_caps  # noqa: PLC0415 - it loads the policy, which the other lists do not need

    start = since_of(since)
    end = until_of(until)
    with open_for_display(database, project) as workspace:
        rows = judge_costs(workspace.store.cursor(), by.value, project, start, end)
        if start is not None and end is None and not rows:
            older = judge_costs(workspace.store.cursor(), By.DAY.value, project, end=start)
            offer_older(start, older[-1].day if older else None)
        caps = [] if as_json else shared_caps(workspace.store.cursor(), workspace.policy, project, workspace.now())
    if by is By.DAY:
        rows.reverse()
    period = " in this period" if since or until else ""
    none = f"no judge calls{of_project(project)}{period}: no cost"
    show_rows(rows, partial(costs_table, GROUPS[by]), as_json=as_json, none=none, limit=limit, document=document)
    if caps:
        out.print(caps_table(caps))
