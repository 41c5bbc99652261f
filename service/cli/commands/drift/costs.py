"""`driftline costs`: the cost of judging."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
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
    offer_older,
    show_rows,
    since_of,
    until_of,
)
from service.cli.commands.runs.listing import of_project, opened_to_show
from service.cli.views import costs_table
from service.read.costs import judge_costs
from service.text.answers import document


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
    by: Annotated[By, typer.Option("--by", help="Group to sum by; a day is the UTC day of the judge's answer.")] = By.PROJECT,
    project: Project = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = SHOWN,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show what judging cost: calls, tokens and money by session, project, day or model.

    Days are listed newest first, all others most expensive first. `--since` and `--until` choose by the time of the judge's answer.
    """
    start, end = since_of(since), until_of(until)
    with opened_to_show(database, project) as workspace:
        shown = judge_costs(workspace.store.cursor(), by.value, project, start, end)
        if start is not None and end is None and not shown:
            older = judge_costs(workspace.store.cursor(), By.DAY.value, project, end=start)
            offer_older(start, older[-1].day if older else None)
    if by is By.DAY:
        shown.reverse()
    when = "in that time" if since or until else "yet"
    none = f"the judge has not been asked {when}{of_project(project)}: no cost"
    show_rows(shown, partial(costs_table, GROUPS[by]), as_json=as_json, none=none, limit=limit, document=document)
