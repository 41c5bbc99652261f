"""`driftline evaluations`: list evaluations, show one in full, or sum them up by case, by model or beside people."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from analytics.queries import query_records
from audit.evaluation.results.report import Evaluated, row_of
from schemas.errors import InputError, SettingsError
from schemas.lazy.duckdb import duckdb
from schemas.records import Evaluation
from service.cli.commands.options import (
    SHOWN,
    AsJson,
    Database,
    Limit,
    Output,
    OutputFormat,
    Project,
    Since,
    newest,
    print_json,
    settings_of,
    show_rows,
    since_of,
    wants_json,
)
from service.cli.evaluations.output_tables import SIMULATED_NOTE, model_name, usd
from service.cli.evaluations.summary import summary_markdown
from service.cli.terminal import err, print_text, table
from service.cli.views import agreement_cells
from service.read.evaluation_history import beside_people, models_compared, quality_by_case
from service.read.evaluations import evaluation_page, evaluation_state
from service.read.known_projects import require_known
from service.setup.workspace import open_workspace, utc_now
from service.text.plain import MISSING, plain
from service.text.times import moment_of


class By(StrEnum):
    """Ways to sum up evaluations."""

    CASE = "case"
    MODEL = "model"
    PEOPLE = "people"


class Unit(StrEnum):
    """Length of a period."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


def evaluations(
    evaluation_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Evaluation to show in full.")] = None,
    project: Project = None,
    case: Annotated[str | None, typer.Option("--case", metavar="ID", help="Only this case.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Only agents on this model.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session.")] = None,
    by: Annotated[
        By | None, typer.Option("--by", help="case: over time; model: models compared; people: beside human scores.")
    ] = None,
    unit: Annotated[Unit, typer.Option("--unit", help="Period of --by case.")] = Unit.WEEK,
    since: Since = None,
    limit: Limit = SHOWN,
    output: OutputFormat = Output.TABLE,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List evaluations, newest first; show one in full; or sum them up by case, by model or beside human scores."""
    as_json = wants_json(output, as_json=as_json)
    start, now = since_of(since), utc_now()
    if by is not None and (model is not None or session is not None or since is not None):
        raise SettingsError("--by cannot be used with --model, --session or --since", hint="It sums up all runs of a project.")
    with open_workspace(settings_of(database)) as workspace, contextlib.closing(workspace.store.cursor()) as cursor:
        require_known(workspace, project)
        if evaluation_id is not None:
            _show_one(cursor, evaluation_id, as_json=as_json)
            return
        if by is None:
            page = evaluation_page(cursor, project, case=case, model=model, session=session, limit=limit + 1)
            found = newest(page, start, lambda one: moment_of(one["evaluatedAt"], "evaluatedAt", now))
        else:
            found = _added_up(cursor, by, project, case, unit)
    none = "no evaluation matches; `driftline evaluate` makes evaluations"
    show_rows(found, _VIEWS[by], as_json=as_json, none=none, limit=limit)
    if not as_json and any(one.get("simulated") for one in found[:limit]):
        err.say(f"note: {SIMULATED_NOTE}", style="yellow")


def _added_up(
    cursor: duckdb.DuckDBPyConnection, by: By, project: str | None, case: str | None, unit: Unit
) -> list[dict[str, Any]]:
    if by is By.CASE:
        newest_first = sorted(quality_by_case(cursor, project, case, unit), key=lambda one: str(one["period"]), reverse=True)
        return sorted(newest_first, key=lambda one: _names(one, "project", "caseId", "judgeRunId"))
    return (models_compared if by is By.MODEL else beside_people)(cursor, project, case)


def _show_one(cursor: duckdb.DuckDBPyConnection, evaluation_id: str, *, as_json: bool) -> None:
    """Show one evaluation: its summary as in its file, or all of it as JSON. InputError if there is none."""
    state = evaluation_state(cursor, evaluation_id)
    evaluation = next(query_records(cursor, "evaluations_by_id", Evaluation, {"evaluations": [evaluation_id]}), None)
    if state is None:
        raise InputError(f"no evaluation {plain(evaluation_id)!r}", hint="`driftline evaluations` lists them.")
    if as_json:
        print_json(state.document)
    elif evaluation is None:
        why = state.document["setAside"]
        err.say("the judge has not been asked yet" if why is None else f"it was set aside: {plain(why)}")
    else:
        known = Evaluated(evaluation, "", "", reused=True)
        print_text(summary_markdown(row_of(known), evaluation.repetition))


def _list(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    headers = ["JUDGED", "PROJECT", "CASE", "MODEL", "RUN", "SCORE", "SPREAD", "ANSWERS", "COST", "ID"]
    return table(headers, [_line(one) for one in found], right=headers[5:9])


def _line(one: Mapping[str, Any]) -> list[Any]:
    score = "failed" if one["finalScore"] is None else f"{one['finalScore']:.2f}"
    names = [plain(one["project"]), plain(one["caseId"]), model_name(one["model"]), plain(one["sessionId"])]
    answers = f"{one['successfulIterations']} of {one['configuredRepetitions']}"
    return [one["evaluatedAt"][:16], *names, score, _number(one["overallSpread"]), answers, usd(one["costUsd"]), one["id"]]


def _by_case(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    headers = ["CASE", "PROJECT", "JUDGE", "FROM", "RUNS", "FAILED", "MEAN", "95 % INTERVAL"]
    rows = [
        [*_names(one, "caseId", "project", "judgeRunId", "period"), one["evaluations"], one["failed"], *_mean(one)]
        for one in found
    ]
    return table(headers, rows, right=headers[4:7])


def _by_model(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    headers = ["CASE", "MODEL A", "MODEL B", "RUNS", "MEAN A", "MEAN B", "B LESS A", "95 % INTERVAL"]
    rows = [
        [*_names(one, "caseId", "modelA", "modelB"), f"{one['runsA']} / {one['runsB']}", *_difference(one)] for one in found
    ]
    return table(headers, rows, right=headers[3:7])


def _beside_people(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    headers = ["JUDGE", "RATER", "LABELS", "RUNS", "SESSIONS", "KAPPA", "JUDGE IS HIGHER BY"]
    rows = [
        [plain(one["judgeModel"]), *agreement_cells(name, estimate)]
        for one in found
        for name, estimate in [("everybody", one["overall"]), *((plain(each["rater"]), each) for each in one["raters"])]
    ]
    return table(headers, rows, right=headers[2:5])


_VIEWS: Mapping[By | None, Callable[[Sequence[Mapping[str, Any]]], RenderableType]] = {
    None: _list,
    By.CASE: _by_case,
    By.MODEL: _by_model,
    By.PEOPLE: _beside_people,
}


def _names(one: Mapping[str, Any], *fields: str) -> list[str]:
    return [plain(one[field]) for field in fields]


def _mean(one: Mapping[str, Any]) -> list[str]:
    return [_number(one["mean"]), _interval(one)]


def _difference(one: Mapping[str, Any]) -> list[str]:
    means = _number(one["meanA"]), _number(one["meanB"]), _number(one["difference"], "+.2f")
    return [*means, _believed(one)]


def _interval(one: Mapping[str, Any], form: str = ".2f") -> str:
    return MISSING if one["low"] is None else f"{one['low']:{form}} to {one['high']:{form}}"


def _believed(one: Mapping[str, Any]) -> str:
    """Return the interval of a difference, and the reason if it should not be trusted."""
    shown = "" if one["low"] is None else _interval(one, "+.2f")
    state = "" if one["state"] == "enough" else one["state"].replace("_", " ")
    return f"{shown} ({state})" if shown and state else shown or state


def _number(value: float | None, form: str = ".2f") -> str:
    return MISSING if value is None else format(value, form)
