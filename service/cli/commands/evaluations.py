"""`driftline evaluations`: list evaluations, show one in full, or summarize them by case, by model or beside human scores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from analytics.queries import query_records
from audit.evaluation.dimensions import HIGHEST, LOWEST
from audit.evaluation.report import Evaluated, row_of
from schemas.errors import InputError, SettingsError
from schemas.lazy import duckdb
from schemas.records import Evaluation
from service.cli.commands.listing import agent_of
from service.cli.commands.options import (
    SHOWN,
    Agent,
    AsJson,
    Database,
    Full,
    Limit,
    Output,
    OutputFormat,
    Project,
    Since,
    Until,
    offer_older,
    print_json,
    settings_of,
    show_rows,
    since_of,
    until_of,
    wants_json,
)
from service.cli.evaluation_files import summary_markdown
from service.cli.evaluation_tables import SIMULATED_NOTE, model_name, usd
from service.cli.list_views import short_document
from service.cli.terminal import ListTable, err, print_text, table
from service.cli.views import agreement_cells
from service.read.evaluations import (
    CaseQuality,
    EvaluatedRun,
    JudgeBesidePeople,
    ModelsCompared,
    SessionScore,
    beside_people,
    evaluation_page,
    evaluation_state,
    models_compared,
    quality_by_case,
    session_scores,
)
from service.read.known_projects import require_known
from service.setup.workspace import open_workspace
from service.text.answers import document
from service.text.formats import MISSING, plain


class By(StrEnum):
    """Ways to summarize evaluations."""

    CASE = "case"
    MODEL = "model"
    PEOPLE = "people"
    SESSION = "session"


class Unit(StrEnum):
    """Length of a period."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


def evaluations(
    evaluation_id: Annotated[str | None, typer.Argument(metavar="ID", help="Evaluation to show in full.")] = None,
    project: Project = None,
    case: Annotated[str | None, typer.Option("--case", metavar="ID", help="Only this case.")] = None,
    agent: Agent = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Only runs of agents with this model.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session.")] = None,
    by: Annotated[
        By | None,
        typer.Option(
            "--by",
            help="case: quality over time. model: comparison of models. people: comparison with human scores. session: sessions judged without a case.",
        ),
    ] = None,
    unit: Annotated[Unit, typer.Option("--unit", help="Period of --by case.")] = Unit.WEEK,
    since: Since = None,
    until: Until = None,
    limit: Limit = SHOWN,
    output: OutputFormat = Output.TABLE,
    database: Database = None,
    as_json: AsJson = False,
    full: Full = False,
) -> None:
    """List evaluations, newest first. With an id, show that evaluation. With --by, summarize by case, model or people."""
    as_json = full or wants_json(output, as_json=as_json)
    start, end = since_of(since), until_of(until)
    if by is not None and any(option is not None for option in (agent, model, session, since, until)):
        raise SettingsError(
            "--by cannot be used with --agent, --model, --session, --since or --until", hint="It sums up all runs of a project."
        )
    if by is By.SESSION and case is not None:
        raise SettingsError(
            "--by session cannot be used with --case", hint="These sessions were judged without a written case."
        )
    with open_workspace(settings_of(database)) as workspace, contextlib.closing(workspace.store.cursor()) as cursor:
        require_known(workspace, project)
        if evaluation_id is not None:
            _show_one(cursor, evaluation_id, as_json=as_json)
            return
        if by is None:
            read = partial(evaluation_page, cursor, project, case=case, model=model, session=session, agent=agent_of(agent))
            rows: Sequence[Any] = read(between=(start, end), limit=limit + 1)
            if start is not None and not rows:
                offer_older(start, next((run.evaluated_at.date() for run in read(between=(None, start), limit=1)), None))
        else:
            rows = _added_up(cursor, by, project, case, unit)
    none = "no evaluation matches; `driftline evaluate` makes evaluations"
    to_json = document if by is not None or full else partial(short_document, EVALUATION_KEYS)
    show_rows(rows, _VIEWS[by], as_json=as_json, none=none, limit=limit, document=to_json)
    if not as_json and by is not By.PEOPLE and any(answer.simulated for answer in rows[:limit]):
        err.say(f"note: {SIMULATED_NOTE}", style="yellow")


def _added_up(cursor: duckdb.DuckDBPyConnection, by: By, project: str | None, case: str | None, unit: Unit) -> Sequence[Any]:
    if by is By.SESSION:
        return session_scores(cursor, project)
    if by is By.CASE:
        newest_first = sorted(quality_by_case(cursor, project, case, unit), key=lambda quality: quality.period, reverse=True)
        return sorted(newest_first, key=lambda quality: (quality.project, quality.case_id, quality.judge_run_id))
    return models_compared(cursor, project, case) if by is By.MODEL else beside_people(cursor, project, case)


def _show_one(cursor: duckdb.DuckDBPyConnection, evaluation_id: str, *, as_json: bool) -> None:
    """Show one evaluation: its summary as in the file, or all of it as JSON. InputError if there is no such evaluation."""
    state = evaluation_state(cursor, evaluation_id)
    evaluation = next(query_records(cursor, "evaluations_by_id", Evaluation, {"evaluations": [evaluation_id]}), None)
    if state is None:
        raise InputError(f"no evaluation {plain(evaluation_id)!r}", hint="`driftline evaluations` lists them.")
    if as_json:
        print_json(document(state.answer))
    elif evaluation is None:
        why = state.answer.set_aside
        err.say("the judge has not been asked yet" if why is None else f"it was set aside: {plain(why)}")
    else:
        evaluated = Evaluated(evaluation, "", "", reused=True)
        print_text(summary_markdown(row_of(evaluated), evaluation.repetition))


EVALUATION_KEYS = (
    *("id", "project", "connection", "sessionId", "agent", "model", "caseId", "judgeModel", "status"),
    *("finalScore", "overallSpread", "costUsd", "evaluatedAt", "simulated"),
)
"""The fields of an evaluation in a list."""


def _list(runs: Sequence[EvaluatedRun]) -> RenderableType:
    headers = ["JUDGED", "PROJECT", "CASE", "MODEL", "RUN", "SCORE", "SPREAD", "ANSWERS", "COST", "ID"]
    rows = [
        [
            f"{run.evaluated_at:%Y-%m-%d %H:%M}",
            plain(run.project),
            plain(run.case_id),
            model_name(run.subject_model),
            plain(run.session_id),
            "failed" if run.final_score is None else f"{run.final_score:.2f}",
            _number(run.overall_spread),
            f"{run.successful_iterations} of {run.configured_repetitions}",
            usd(run.cost_usd),
            run.evaluation_id,
        ]
        for run in runs
    ]
    return ListTable(headers, rows, right=headers[5:9], whole=["JUDGED", "ID"], optional=headers[7:9])


def _by_case(cases: Sequence[CaseQuality]) -> RenderableType:
    headers = ["CASE", "PROJECT", "JUDGE", "FROM", "RUNS", "FAILED", "MEAN", "95% INTERVAL"]
    rows = [
        [
            plain(case.case_id),
            plain(case.project),
            plain(case.judge_run_id),
            str(case.period),
            case.evaluations,
            case.failed,
            _number(case.mean),
            _interval(case.low, case.high),
        ]
        for case in cases
    ]
    return table(headers, rows, right=headers[4:7])


def _by_model(pairs: Sequence[ModelsCompared]) -> RenderableType:
    headers = ["CASE", "MODEL A", "MODEL B", "RUNS", "MEAN A", "MEAN B", "B LESS A", "95% INTERVAL"]
    rows = [
        [
            plain(pair.case_id),
            plain(pair.model_a),
            plain(pair.model_b),
            f"{pair.runs_a} / {pair.runs_b}",
            _number(pair.mean_a),
            _number(pair.mean_b),
            _number(pair.difference, "+.2f"),
            _interval_with_state(pair),
        ]
        for pair in pairs
    ]
    return table(headers, rows, right=headers[3:7])


def _beside_people(judges: Sequence[JudgeBesidePeople]) -> RenderableType:
    headers = ["JUDGE", "RATER", "LABELS", "RUNS", "SESSIONS", "KAPPA", "JUDGE IS HIGHER BY"]
    rows = [
        [plain(judge.judge_model), *agreement_cells(name, estimate)]
        for judge in judges
        for name, estimate in [("everybody", judge.overall), *((plain(each.rater), each) for each in judge.raters)]
    ]
    return table(headers, rows, right=headers[2:5])


def _by_session(scores: Sequence[SessionScore]) -> RenderableType:
    headers = ["PROJECT", "SCORE", "SESSIONS", "MEAN", "95% INTERVAL", "JUDGE"]
    rows = [
        [
            plain(score.project),
            score.score,
            score.sessions,
            _number(score.mean),
            MISSING
            if score.half is None
            else _interval(max(LOWEST, score.mean - score.half), min(HIGHEST, score.mean + score.half)),
            plain(score.judge_model),
        ]
        for score in scores
    ]
    return table(headers, rows, right=headers[2:4])


_VIEWS: Mapping[By | None, Callable[[Sequence[Any]], RenderableType]] = {
    None: _list,
    By.CASE: _by_case,
    By.MODEL: _by_model,
    By.PEOPLE: _beside_people,
    By.SESSION: _by_session,
}


def _interval(low: float | None, high: float | None, form: str = ".2f") -> str:
    return MISSING if low is None or high is None else f"{low:{form}} to {high:{form}}"


def _interval_with_state(pair: ModelsCompared) -> str:
    """Return the interval of a difference, with the reason if it should not be trusted."""
    shown = "" if pair.low is None else _interval(pair.low, pair.high, "+.2f")
    state = "" if pair.state == "enough" else pair.state.replace("_", " ")
    return f"{shown} ({state})" if shown and state else shown or state


def _number(value: float | None, form: str = ".2f") -> str:
    return MISSING if value is None else format(value, form)
