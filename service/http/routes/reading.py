"""Reading over HTTP: projects with their health, exchanges, scores, runs, trends and the costs of judging."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import BeforeValidator

from analytics.sums.daily import is_failure_behind
from schemas.bounds import EARLIEST, LATEST
from service.read.agent_costs import (
    DEFAULT_PERIOD,
    AgentCostList,
    read_agent_costs,
    sum_agent_costs,
    sum_known_usd,
)
from service.read.behaviour import BehaviourList, read_behaviour, read_descriptions
from service.read.caps import CostList, shared_caps
from service.read.cold_days import ColdDays, cold_days
from service.read.failures import FailureGroupList, read_failures
from service.read.project import Health, Projects, describe_check, format_banner, read_project, with_remarks
from service.read.run_diagnoses import DiagnosedRun, diagnosed_run
from service.read.runs import Runs, run_page
from service.read.scores import (
    Anomalies,
    ExchangeDetail,
    OneScore,
    ProjectSummary,
    SamplingMix,
    Score,
    ScoreFilter,
    Scores,
    Trends,
    WrapUpList,
    exchanges_by_id,
    judge_costs,
    project_baseline,
    project_scores,
    project_summary,
    sampling_mix,
    score_by_id,
    wrap_ups,
)
from service.read.scores import trends as trends_of
from service.text.answers import Place, after, page_of
from service.text.links import API
from service.text.window import RangeRequest, read_day, window_of
from service.web.authentication import Reader, VisibleProject
from service.web.context import ApiContext, Services, projects_of, with_their_changes
from service.web.errors import ApiError, documented
from service.web.json_routes import AnswerRoute
from service.web.models import (
    AgentFilter,
    ConnectionName,
    Cursor,
    Id,
    Limit,
    QueryMoment,
    RunId,
    ToolErrorFilter,
    ToolFilter,
    VersionFilter,
)

router = APIRouter(route_class=AnswerRoute, tags=["reading"])
PROJECT = f"{API}/{{project}}"
From = Annotated[QueryMoment | None, Query(alias="from", description="Only exchanges at or after this time.")]
To = Annotated[QueryMoment | None, Query(alias="to", description="Only exchanges before this time.")]
JudgedFrom = Annotated[QueryMoment | None, Query(alias="from", description="Only judgements at or after this time.")]
JudgedTo = Annotated[QueryMoment | None, Query(alias="to", description="Only judgements before this time.")]
ByAll = Annotated[
    Literal["project", "day", "model", "session", "all"],
    Query(description="Grouping of the sums; days are UTC, as on the bill."),
]
By = Annotated[
    Literal["day", "model", "session", "all"], Query(description="Grouping of the sums; days are UTC, as on the bill.")
]


ByAnyAgent = Annotated[
    Literal["project", "agent", "version", "model", "day"],
    Query(description="Grouping of the sums; days are UTC days of the exchanges."),
]
ByAgent = Annotated[
    Literal["agent", "version", "model", "day"], Query(description="Grouping of the sums; days are UTC days of the exchanges.")
]


@router.get(f"{API}/costs", responses=documented())
async def fleet_costs(
    caller: Reader,
    services: Services,
    *,
    by: ByAll = "project",
    start: JudgedFrom = None,
    end: JudgedTo = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> CostList:
    """Return the cost of judging, over every project that the caller may see."""
    require_window(start, end)
    return await _sum_costs(services, {"by": by, "project": caller.project, "start": start, "end": end}, limit, cursor)


@router.get(f"{PROJECT}/costs", responses=documented(404))
async def costs(
    _: Reader,
    project: VisibleProject,
    services: Services,
    *,
    by: By = "day",
    start: JudgedFrom = None,
    end: JudgedTo = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> CostList:
    """Return the cost of judging a project's exchanges."""
    require_window(start, end)
    return await _sum_costs(services, {"by": by, "project": project, "start": start, "end": end}, limit, cursor)


@router.get(f"{API}/costs/agents", responses=documented())
async def fleet_agent_costs(
    caller: Reader,
    services: Services,
    *,
    by: ByAnyAgent = "project",
    start: From = None,
    end: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AgentCostList:
    """Return what the models of the agents cost, over every project that the caller may see. The last 30 days by default."""
    return await _sum_agent_costs(services, caller.project, by, (start, end), limit=limit, cursor=cursor)


@router.get(f"{PROJECT}/costs/agents", responses=documented(404))
async def agent_costs(
    _: Reader,
    project: VisibleProject,
    services: Services,
    *,
    by: ByAgent = "agent",
    start: From = None,
    end: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AgentCostList:
    """Return what the models of a project's agents cost, beside the cost of judging. The last 30 days by default."""
    return await _sum_agent_costs(services, project, by, (start, end), limit=limit, cursor=cursor)


async def _sum_agent_costs(
    services: ApiContext,
    project: str | None,
    by: str,
    between: tuple[datetime | None, datetime | None],
    *,
    limit: int,
    cursor: Place | None,
) -> AgentCostList:
    end = between[1] or services.engine.now()
    start = between[0] or end - DEFAULT_PERIOD
    require_window(start, end)
    prices = services.engine.policy.prices
    rows, judging, cold = await services.ask(
        lambda connection: (
            read_agent_costs(connection, project, start, end, prices),
            judge_costs(connection, "all", project, start, end),
            cold_days(connection, project, start, end),
        )
    )
    skip = 0 if cursor is None else max(cursor.number, 0)
    groups = sum_agent_costs(rows, [by])[skip : skip + limit + 1]
    page, next_cursor = page_of(groups, limit, lambda _: Place(EARLIEST, "", skip + limit))
    return AgentCostList(
        costs=page,
        count=len(page),
        next_cursor=next_cursor,
        cold_days=cold,
        start=start,
        end=end,
        cost_usd=sum_known_usd(rows),
        judging_usd=judging[0].cost_usd if judging else None,
    )


async def _sum_costs(services: ApiContext, grouping: Mapping[str, Any], limit: int, cursor: Place | None) -> CostList:
    skip = 0 if cursor is None else max(cursor.number, 0)
    groups = await services.ask(lambda connection: judge_costs(connection, **grouping, skip=skip, limit=limit + 1))
    page, next_cursor = page_of(groups, limit, lambda _: Place(EARLIEST, "", skip + limit))
    policy, project = services.engine.policy, grouping["project"]
    caps = await services.ask(lambda connection: shared_caps(connection, policy, project, services.engine.now()))
    return CostList(costs=page, count=len(page), next_cursor=next_cursor, caps=caps)


ExchangeId = Annotated[Id, Path(description="Id from its sender; slashes need no escaping.", examples=["deploy-0114:7"])]
OfConnection = Annotated[
    ConnectionName | None,
    Query(description="Connection of the exchange: ids are unique within a connection. Required if several have the id."),
]


@router.get(f"{PROJECT}/exchanges/{{exchange_id:path}}", responses=documented(404, 409))
async def exchange(
    _: Reader,
    project: VisibleProject,
    services: Services,
    response: Response,
    exchange_id: ExchangeId,
    connection: OfConnection = None,
) -> ExchangeDetail:
    """Return one exchange with its texts, score and judgements. 409 if several connections of the project have the id."""
    exchanges = await services.ask(lambda cursor: exchanges_by_id(cursor, project, exchange_id, connection))
    if not exchanges:
        raise ApiError(404, "not_found", "the project has no exchange with this id")
    if len(exchanges) > 1:
        names = ", ".join(detail.exchange.connection for detail in exchanges[:5])
        raise ApiError(409, "ambiguous", f"connection: is missing; several have an exchange with this id: {names}")
    response.headers["Cache-Control"] = "no-store"
    return exchanges[0]


MAX_PROJECTS = 5000
ProjectLimit = Annotated[int, Query(ge=1, le=MAX_PROJECTS, description="Maximum number.")]


@router.get(f"{API}/projects", responses=documented())
async def projects(
    *,
    caller: Reader,
    services: Services,
    health: Annotated[Health | None, Query(description="Only projects in this state.")] = None,
    until: Annotated[
        date | None, BeforeValidator(read_day), Query(description="The last of the recent UTC days; today by default.")
    ] = None,
    limit: ProjectLimit = 1000,
    cursor: Cursor = None,
) -> Projects:
    """List every project that the caller may see, with its health. Projects without records are listed if they have a connection.

    Recent figures cover the days up to today, or up to `until`, even if a project has stopped sending.
    """
    visible = await projects_of(services, caller.project, until)
    matches = [
        project for project in visible if health in (None, project.health) and (cursor is None or project.project > cursor.id)
    ]
    page, next_cursor = page_of(matches, limit, lambda project: Place(EARLIEST, project.project))
    changed = await with_their_changes(services, page, caller.project)
    described = await services.ask(lambda connection: with_remarks(connection, changed, caller.project))
    return Projects(projects=described, count=len(described), next_cursor=next_cursor)


@router.get(f"{PROJECT}/runs", responses=documented(404))
async def runs(_: Reader, project: VisibleProject, services: Services, limit: Limit = 100, cursor: Cursor = None) -> Runs:
    """List the finished runs of a project, most recently ended first."""
    before = None if cursor is None else (cursor.at, cursor.number)
    entries = await services.ask(lambda connection: run_page(connection, project, before, limit + 1))
    page, next_cursor = page_of(entries, limit, lambda run: run.place)
    return Runs(runs=page, count=len(page), next_cursor=next_cursor)


@router.get(f"{PROJECT}/runs/{{run_id}}", responses=documented(404))
async def run(_: Reader, project: VisibleProject, services: Services, run_id: RunId, response: Response) -> DiagnosedRun:
    """Return one run with its diagnosis: failures, their events and places in the run, and the causal graph."""
    diagnosed = await services.ask(lambda cursor: diagnosed_run(cursor, project, run_id))
    if diagnosed is None:
        raise ApiError(404, "not_found", "the project has no run with this id")
    # The evidence quotes agents' conversations, so no cache may store it.
    response.headers["Cache-Control"] = "no-store"
    return diagnosed


Since = Annotated[QueryMoment | None, Query(description="Only exchanges scored, or scored again, at or after this time.")]
Session = Annotated[Id | None, Query(description="Only exchanges of this session.")]
ScoreId = Annotated[Id, Path(description="Id of the score.")]


def require_window(start: datetime | None, end: datetime | None) -> None:
    """Raise ApiError (400) if a window ends before it begins."""
    if start is not None and end is not None and start > end:
        raise ApiError(400, "invalid", "from: must not be after to")


def _read_filters(
    *,
    start: From = None,
    end: To = None,
    since: Since = None,
    session: Session = None,
    agent: AgentFilter = None,
    version: VersionFilter = None,
    tool: ToolFilter = None,
    tool_error: ToolErrorFilter = False,
    text: Annotated[
        str | None,
        Query(
            max_length=512, pattern=r"[^\W_]", description="Only exchanges with all these words in question, answer or tools."
        ),
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> ScoreFilter:
    require_window(start, end)
    after = None if cursor is None else (cursor.at, cursor.id, cursor.number)
    return ScoreFilter(
        start=start,
        end=end,
        since=since,
        session=session,
        agent=agent,
        version=version,
        tool=tool,
        tool_error=tool_error,
        text=text,
        limit=limit,
        after=after,
    )


ScoreFilters = Annotated[ScoreFilter, Depends(_read_filters)]


@router.get(f"{PROJECT}/scores", responses=documented(404))
async def scores(
    _: Reader,
    project: VisibleProject,
    services: Services,
    filters: ScoreFilters,
    anomalies: Annotated[bool, Query(description="Only exchanges with an anomaly.")] = False,
) -> Scores:
    """List the scores of a project, newest exchange first."""
    page, next_cursor, cold = await _read_scores(services, project, dataclasses.replace(filters, anomalies=anomalies))
    return Scores(scores=page, count=len(page), next_cursor=next_cursor, cold_days=cold)


@router.get(f"{PROJECT}/anomalies", responses=documented(404))
async def anomalies(_: Reader, project: VisibleProject, services: Services, filters: ScoreFilters) -> Anomalies:
    """List the scores of a project that have an anomaly, newest exchange first.

    An exchange appears here once it has a score, moments after ingest has answered with the result of Tier 1.
    """
    page, next_cursor, cold = await _read_scores(services, project, dataclasses.replace(filters, anomalies=True))
    return Anomalies(anomalies=page, count=len(page), next_cursor=next_cursor, cold_days=cold)


@router.get(f"{PROJECT}/scores/{{score_id}}", responses=documented(404))
async def score(_: Reader, project: VisibleProject, services: Services, score_id: ScoreId) -> OneScore:
    """Return one score in its latest revision."""
    entry = await services.ask(lambda cursor: score_by_id(cursor, project, score_id))
    if entry is None:
        raise ApiError(404, "not_found", "the project has no score with this id")
    return OneScore(score=entry)


@router.get(f"{PROJECT}/summary", responses=documented(404))
async def summary(_: Reader, project: VisibleProject, services: Services) -> ProjectSummary:
    """Return the state of a project: outcomes of its exchanges, means of the tiers, open incidents."""
    version = services.engine.policy.for_project(project).methodology.version
    baseline = await services.watch.baseline(project)
    baseline_answer = None if baseline is None else project_baseline(baseline, version)
    return await services.ask(lambda cursor: project_summary(cursor, project, baseline_answer))


@router.get(f"{PROJECT}/banner", response_class=PlainTextResponse, responses=documented(404))
async def banner(_: Reader, project: VisibleProject, services: Services) -> str:
    """Return the banner for an agent at the start of its session, with the settings in force."""
    settings = services.engine.policy.for_project(project).settings
    engine = services.engine
    summary = await services.ask(lambda cursor: read_project(cursor, engine.policy, engine.now(), project))
    return format_banner(settings, summary.open_incidents, engine.judge_name, describe_check(summary))


async def _read_scores(
    services: ApiContext, project: str, filters: ScoreFilter
) -> tuple[list[Score], str | None, ColdDays | None]:
    """Return a page of scores, the cursor of the next one, and the cold part of the period."""
    page_and_next = dataclasses.replace(filters, limit=filters.limit + 1)
    entries, cold = await services.ask(
        lambda cursor: (
            project_scores(cursor, project, page_and_next),
            cold_days(cursor, project, filters.start, filters.end),
        )
    )
    return *page_of(entries, filters.limit, score_place), cold


def score_place(score: Score) -> Place:
    """Return the place of a score among those of its project."""
    return Place(score.exchange_at, score.score_id, -1 if score.turn_number is None else score.turn_number)


@router.get(f"{PROJECT}/trends", responses=documented(404))
async def trends(
    _: Reader,
    project: VisibleProject,
    services: Services,
    window: Annotated[Literal["7d", "14d", "30d"], Query(description="UTC days up to `until`.")] = "14d",
    until: Annotated[
        date | None, BeforeValidator(read_day), Query(description="The last UTC day; today by default, which is incomplete.")
    ] = None,
) -> Trends:
    """Return a project's figures by day of its exchanges, whenever they were scored."""
    period = window_of(RangeRequest(window, until), services.engine.now())
    return await services.ask(lambda cursor: trends_of(cursor, project, window, period))


@router.get(f"{PROJECT}/behaviour", responses=documented(404))
async def behaviour(
    _: Reader, project: VisibleProject, services: Services, start: From = None, end: To = None
) -> BehaviourList:
    """Return what the agents of a project do, by version and UTC day, without a judge: tool errors, failed turns, refusals, tokens.

    With the descriptions of their tools.
    """
    require_window(start, end)
    period = (start or EARLIEST, end or LATEST)
    entries, descriptions = await services.ask(
        lambda cursor: (read_behaviour(cursor, project, *period), read_descriptions(cursor, project, *period))
    )
    return BehaviourList(behaviour=entries, count=len(entries), descriptions=descriptions)


@router.get(f"{PROJECT}/failures", responses=documented(404))
async def failures(
    _: Reader, project: VisibleProject, services: Services, start: From = None, end: To = None, limit: Limit = 100
) -> FailureGroupList:
    """Return what failed in a project, in groups: runs that are not ready and exchanges with an anomaly, by tool and error or by cause.

    Times are rounded to UTC days. With `from`, each group is compared with the period of the same length before.
    """
    require_window(start, end)
    groups, is_behind = await services.ask(
        lambda cursor: (read_failures(cursor, project, start, end, limit + 1), is_failure_behind(cursor))
    )
    return FailureGroupList(failures=groups[:limit], count=len(groups[:limit]), more=len(groups) > limit, is_behind=is_behind)


@router.get(f"{PROJECT}/wrap-quality", responses=documented(404))
async def wrap_quality(
    _: Reader, project: VisibleProject, services: Services, limit: Limit = 20, cursor: Cursor = None
) -> WrapUpList:
    """List the wrap-up steps at the end of each session. The list is empty if the policy switches the check off."""
    policy = services.engine.policy
    sessions, cold = await services.ask(
        lambda connection: (
            wrap_ups(connection, policy, project, limit + 1, after(cursor)),
            cold_days(connection, project, None, None),
        )
    )
    page, next_cursor = page_of(sessions, limit, lambda session: session.place)
    return WrapUpList(project=project, sessions=page, next_cursor=next_cursor, cold_days=cold)


@router.get(f"{PROJECT}/sampling", responses=documented(404))
async def sampling(_: Reader, project: VisibleProject, services: Services, start: From = None, end: To = None) -> SamplingMix:
    """Count the exchanges of a project that were judged or left out, by reason."""
    require_window(start, end)
    return await services.ask(lambda cursor: sampling_mix(cursor, project, start or EARLIEST, end or LATEST))
