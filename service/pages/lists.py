"""Definitions of a project's lists, their pages, and their files."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from analytics.queries import query_rows
from audit.detectors.detectors import FAILURE_TYPES
from audit.drift.watched_series import TIERS
from schemas.bounds import EARLIEST
from schemas.lazy import duckdb
from service.pages.listing import (
    BY_TIME,
    MAX_EXPORT_ROWS,
    READ_BATCH_SIZE,
    WRITERS,
    Bounds,
    Column,
    Filter,
    ListDefinition,
    Listing,
    ListRequest,
    describe_total,
    parse_decimal,
    parse_list_request,
    parse_name,
    parse_words,
    parse_yes_no,
    read_list,
    read_page,
    stream_file,
)
from service.pages.periods import ListPeriod, Period, range_control
from service.pages.rendering import TIER_HEADINGS, page
from service.pages.viewing import ShownProject, Viewer
from service.read.cold_days import cold_days
from service.read.review_queues import read_queues
from service.setup.access import Holder
from service.text.links import FLEET_EXCHANGES, FLEET_SESSIONS, LIST_FILES
from service.text.window import RangeRequest, Window, bounds, last_period, listed_window
from service.text.words import TERMS, WORDS
from service.web.authentication import require_project
from service.web.context import ApiContext, Services
from service.web.errors import ApiError

NO_FAILURE = "-"
"""Filter value that matches runs without a failure."""
READINESS_LEVELS = ("unsafe_for_production", "review_recommended", "ready_for_runtime", "insufficient_evidence")
"""Worst first."""
_OUTCOMES = ("scored", "sampling_skip", "skipped_cost_cap", "unscored")


def _label_terms(*names: str) -> dict[str, str]:
    return {name: TERMS.get(name, name) for name in names}


_AGENT = Filter(name="agent", label="Agent", parse=parse_name, hint="its name; - for none", suggestions="agent")
_ANOMALIES = Filter(
    name="anomalies", label="Anomaly", choices={"yes": "With an anomaly", "no": "Without"}, parse=parse_yes_no, is_quick=True
)
_VERSION = Filter(name="version", label="Version", hint="of the agent", suggestions="version")
_TOOL = Filter(name="tool", label="Tool", hint="called, by its name", suggestions="tool")
_TOOL_ERROR = Filter(
    name="tool_error", label="Failed tool call", choices={"yes": "With a failed tool call"}, parse=parse_yes_no, is_quick=True
)
_READ_FROM_EXCHANGES = frozenset({"text", "version", "tool", "tool_error"})
_PROJECT = Filter(name="project", label="Project", hint="its name")
_TIER = Filter(name="tier", label="Score of", choices=_label_terms(*TIERS))
_MIN_SCORE = Filter(name="least", label="at least", parse=parse_decimal, hint="such as 0")
_MAX_SCORE = Filter(name="most", label="at most", parse=parse_decimal, hint="such as 0.5")
_FAILURE = Filter(
    name="failure",
    label="Failure",
    choices={NO_FAILURE: "No failure", **{name: failure.title for name, failure in FAILURE_TYPES.items()}},
    parse=parse_name,
)
_READINESS = Filter(name="readiness", label="Readiness", choices=_label_terms(*READINESS_LEVELS))


def _score_column(tier: str, key: str) -> Column:
    return Column(key=key, title=TIERS[tier], heading=TIER_HEADINGS[tier], cell="tier", sort=tier, down=False, is_number=True)


def _derive_tier(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the tier that a range of scores applies to; Tier 2 unless the address names one."""
    return {"tier": texts.get("tier", "tier2")}


def _derive_label(texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the name and value of a label, such as `agent_version=7`. A name alone matches any value."""
    name, _, value = texts.get("label", "").partition("=")
    label = {"label": name.strip() or None, "value": value.strip() or None}
    return {**_derive_tier(texts), **label, "blocks": None}


EXCHANGES = ListDefinition(
    name="exchanges",
    noun="exchange",
    notable="with an anomaly",
    is_notable=lambda row: row["anomaly"],
    total_query="total_exchanges",
    query="list_exchanges",
    prefix_query="list_reach",
    sort="at",
    filters=(
        Filter(name="text", label="Words", parse=parse_words, hint="Find words in questions, answers and tools", is_quick=True),
        _AGENT,
        _VERSION,
        _TOOL,
        _TOOL_ERROR,
        _ANOMALIES,
        Filter(name="reason", label="Reason or flag", hint="part of its text"),
        Filter(name="outcome", label="Outcome", choices=_label_terms(*_OUTCOMES)),
        _TIER,
        _MIN_SCORE,
        _MAX_SCORE,
        Filter(name="model", label="Model", hint="its full name"),
        Filter(name="label", label="Label", hint="agent_version=7"),
        Filter(name="session", label="Session", hint="its full id"),
    ),
    derive_params=_derive_label,
    columns=(
        Column(key="exchange_at", title="Time", cell="exchange", sort="at"),
        Column(key="question", title="Question, answer and findings", cell="texts"),
        Column(key="answer", title="Answer", is_shown=False),
        Column(key="anomaly_reasons", title="Findings", is_shown=False),
        Column(key="agent", title="Agent", cell="agent", sort="agent", down=False),
        Column(key="session_id", title="Session", sort="session", down=False, is_shown=False),
        Column(key="turn_number", title="Turn", sort="turn", is_number=True, is_shown=False),
        _score_column("tier1", "tier1_score"),
        _score_column("tier2", "tier2_score"),
        _score_column("tier2_5", "tier2_5_alignment"),
        _score_column("tier3", "tier3_score"),
        Column(key="disposition", title="Outcome", cell="outcome", sort="outcome", down=False),
        Column(key="agent_model", title="Model", cell="model", is_shown=False),
        Column(key="cost_usd", title="Cost", cell="usd", sort="cost", is_number=True),
    ),
)
ANOMALIES = dataclasses.replace(
    EXCHANGES,
    name="anomalies",
    noun="anomalous exchange",
    notable="",
    has_all=True,
    has_comparison=True,
    filters=[filter_ for filter_ in EXCHANGES.filters if filter_.name != "anomalies"],
    fixed_params={"anomalies": True},
)
SESSIONS = ListDefinition(
    name="sessions",
    noun="session",
    notable="with an anomaly",
    is_notable=lambda row: row["anomalies"] > 0,
    total_query="total_sessions",
    total_of="with exchanges (not counted: those with events only)",
    query="list_sessions",
    sort="at",
    filters=(
        Filter(
            name="text",
            label="Words",
            parse=parse_words,
            hint="Find words in questions, answers and tools",
            is_quick=True,
            list_param="ids",
        ),
        _AGENT,
        _VERSION,
        _TOOL,
        Filter(name="turns", label="Turns", choices={"2": "More than one turn", "10": "Ten or more"}, parse=int, is_quick=True),
        _TOOL_ERROR,
        _ANOMALIES,
        _FAILURE,
        _READINESS,
        _TIER,
        _MIN_SCORE,
        _MAX_SCORE,
    ),
    derive_params=_derive_tier,
    columns=(
        Column(key="session_id", title="Session", cell="session_name", sort="session", down=False),
        Column(key="question", title="First question", is_shown=False),
        Column(key="readiness_level", title="Readiness", cell="verdict", sort="readiness", down=False),
        Column(key="trust_score", title="Trust", cell="number", sort="trust", down=False, is_number=True),
        Column(key="last_at", title="Last activity", cell="moment", sort="at"),
        Column(key="agent", title="Agent", cell="agent", sort="agent", down=False),
        Column(key="turns", title="Turns", cell="number", sort="turns", is_number=True),
        Column(key="events", title="Events", sort="events", is_number=True, is_shown=False),
        Column(key="anomalies", title="Anomalies", cell="bad_number", sort="anomalies", is_number=True),
        Column(key="tier1", title=TIERS["tier1"], is_number=True, is_shown=False),
        _score_column("tier2", "tier2"),
        _score_column("tier2_5", "tier2_5"),
        _score_column("tier3", "tier3"),
        Column(key="run_id", title="Run", is_shown=False),
        Column(key="primary_failure_type", title="Failure", is_shown=False),
        Column(key="cost_usd", title="Cost", cell="usd", sort="cost", is_number=True),
    ),
)
RUNS = ListDefinition(
    name="runs",
    noun="run",
    notable="unsafe for production",
    is_notable=lambda row: row["readiness_level"] == READINESS_LEVELS[0],
    query="list_runs",
    sort="at",
    has_all=True,
    has_comparison=True,
    filters=(
        Filter(name="agent", label="Agent", parse=parse_name, hint="its name; - for none", list_param="agents"),
        _READINESS,
        _FAILURE,
        Filter(name="least", label="Trust at least", parse=parse_decimal, hint="0 to 100"),
        Filter(name="most", label="at most", parse=parse_decimal, hint="0 to 100"),
    ),
    columns=(
        Column(key="last_at", title="Ended", cell="moment", sort="at"),
        Column(key="run_id", title="Run", cell="run", sort="run"),
        Column(key="readiness_level", title="Readiness", cell="verdict", sort="trust", down=False),
        Column(key="trust_score", title="Trust", cell="number", sort="trust_score", down=False, is_number=True),
        Column(key="primary_failure_type", title="Primary failure", sort="failure", down=False, is_shown=False),
        Column(key="session_id", title="Session", cell="session_name", sort="session", down=False),
        Column(key="agent", title="Agent", cell="agent", sort="agent", down=False),
        Column(key="version", title="Version", cell="text"),
        Column(key="tool_calls", title="Tool calls", cell="number", sort="calls", is_number=True),
        Column(key="event_count", title="Events", cell="number", sort="events", is_number=True),
    ),
)
COSTS = ListDefinition(
    name="costs",
    noun="session",
    query="list_costs",
    sort="cost",
    has_comparison=True,
    filters=(
        _AGENT,
        Filter(name="least", label="Cost at least", parse=parse_decimal, hint="in USD"),
        Filter(name="most", label="at most", parse=parse_decimal, hint="in USD"),
    ),
    columns=(
        Column(key="session_id", title="Session", cell="session_name", sort="session", down=False),
        Column(key="run_id", title="Run", cell="run"),
        Column(key="last_at", title="Last activity", cell="day", sort="at"),
        Column(key="agent", title="Agent", cell="agent", sort="agent", down=False),
        Column(key="judgements", title="Judgements", cell="number", sort="judgements", is_number=True),
        Column(key="input_tokens", title="Tokens in", cell="number", sort="input", is_number=True),
        Column(key="cache_write_tokens", title="Cache writes", cell="number", sort="writes", is_number=True),
        Column(key="cache_read_tokens", title="Cache reads", cell="number", sort="reads", is_number=True),
        Column(key="output_tokens", title="Tokens out", cell="number", sort="output", is_number=True),
        Column(key="cost_usd", title="Cost", cell="cost", sort="cost", is_number=True),
    ),
)
EVALUATIONS = ListDefinition(
    name="evaluations",
    noun="evaluation",
    query="list_evaluations",
    sort="at",
    has_all=True,
    has_comparison=True,
    filters=(
        Filter(name="case", label="Case", hint="its full id"),
        Filter(name="model", label="Model", hint="its full name"),
        _AGENT,
        Filter(name="judge", label="Judge", hint="its full name"),
        Filter(name="failed", label="Score", choices={"yes": "Failed", "no": "With a score"}, parse=parse_yes_no),
        Filter(name="least", label="at least", parse=parse_decimal, hint="0 to 10"),
        Filter(name="most", label="at most", parse=parse_decimal, hint="0 to 10"),
    ),
    columns=(
        Column(key="case_title", title="Case", cell="evaluation", sort="case", down=False),
        Column(key="session_id", title="Session", cell="session_name", sort="session", down=False),
        Column(key="final_score", title="Score", cell="final_score", sort="score", down=False, is_number=True),
        Column(key="spread", title="Spread", cell="score", sort="spread", is_number=True),
        Column(key="subject_model", title="Model", cell="model", sort="model", down=False),
        Column(key="judge_model", title="Judge", cell="judge", sort="judge", down=False),
        Column(key="successful_iterations", title="Answers", cell="answers", is_number=True),
        Column(key="warning_count", title="Warnings", cell="number", sort="warnings", is_number=True),
        Column(key="cost_usd", title="Cost", cell="usd", sort="cost", is_number=True),
        Column(key="evaluated_at", title="Judged", cell="moment", sort="at"),
        Column(key="agent", title="Agent", cell="agent", is_shown=False),
    ),
)
WRAPS = ListDefinition(
    name="wrap_quality",
    noun="session",
    query="list_wraps",
    sort="at",
    has_all=True,
    filters=(
        _AGENT,
        Filter(name="missing", label="Missing step", choices=WORDS["wrap_steps"]),
        Filter(name="least", label="Steps at least", parse=parse_decimal, hint="0 to 5"),
        Filter(name="most", label="at most", parse=parse_decimal, hint="0 to 5"),
    ),
    columns=(
        Column(key="session_id", title="Session", cell="session_name", sort="session", down=False),
        Column(key="run_id", title="Run", cell="run_or_end"),
        Column(key="last_at", title="Last exchange", cell="moment", sort="at"),
        Column(key="agent", title="Agent", cell="agent", sort="agent", down=False),
        Column(key="exchange_count", title="Exchanges", cell="number", sort="exchanges", is_number=True),
        Column(key="found", title="Steps", cell="steps_found", sort="found", down=False),
        *(Column(key=step, title=words, cell="step") for step, words in WORDS["wrap_steps"].items()),
        Column(key="score", title="Score", is_shown=False),
    ),
)
LISTS: Mapping[str, ListDefinition] = {
    definition.name: definition for definition in (EXCHANGES, ANOMALIES, SESSIONS, RUNS, COSTS, EVALUATIONS, WRAPS)
}
"""Lists by their names in addresses."""


def _over_all_projects(definition: ListDefinition) -> ListDefinition:
    """Return the list of all projects, which names the project of each row."""
    project = Column(key="project", title="Project", cell="project", is_shown=False)
    columns = [
        dataclasses.replace(column, title="Agent and project") if column.key == "agent" else column
        for column in definition.columns
    ]
    return dataclasses.replace(
        definition,
        columns=(columns[0], project, *columns[1:]),
        filters=(_PROJECT, *definition.filters),
    )


FLEET_LISTS: Mapping[str, ListDefinition] = {
    definition.name: _over_all_projects(definition) for definition in (EXCHANGES, SESSIONS)
}
"""Lists of the fleet by their names in addresses."""


router = APIRouter(include_in_schema=False)


@router.get("/projects/{project}/exchanges")
async def exchanges(request: Request, *, _: Viewer, project: ShownProject, services: Services, days: Period) -> HTMLResponse:
    """Show the exchanges of a project."""
    return await _render_list(request, services, project, days, EXCHANGES)


@router.get("/projects/{project}/sessions")
async def sessions(request: Request, *, _: Viewer, project: ShownProject, services: Services, days: Period) -> HTMLResponse:
    """Show the sessions of a project."""
    return await _render_list(request, services, project, days, SESSIONS)


@router.get(FLEET_EXCHANGES)
async def fleet_exchanges(request: Request, viewer: Viewer, services: Services, days: Period) -> HTMLResponse:
    """Show the exchanges of all projects that the viewer may see."""
    return await _render_list(request, services, _choose_project(request, viewer), days, FLEET_LISTS["exchanges"])


@router.get(FLEET_SESSIONS)
async def fleet_sessions(request: Request, viewer: Viewer, services: Services, days: Period) -> HTMLResponse:
    """Show the sessions of all projects that the viewer may see."""
    return await _render_list(request, services, _choose_project(request, viewer), days, FLEET_LISTS["sessions"])


def _choose_project(request: Request, viewer: Holder) -> str | None:
    """Return the project to which a list of the fleet is limited: that in the address, or the viewer's. None for all."""
    project = request.query_params.get("project") or viewer.project
    if project is not None:
        require_project(viewer, project)
    return project


FileName = Annotated[str, Path(max_length=64)]


@router.get(f"/projects/{{project}}{LIST_FILES}/{{file}}")
async def export(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    days: ListPeriod,
    file: FileName,
) -> Response:
    """Return a list as a file, such as exchanges.csv, with the filters and the sort order of the address."""
    return await _send_file(request, services, project, days, file, lists=LISTS)


@router.get(f"{LIST_FILES}/{{file}}")
async def export_fleet(request: Request, *, viewer: Viewer, services: Services, days: ListPeriod, file: FileName) -> Response:
    """Return a list of all projects that the viewer may see as a file, such as exchanges.csv."""
    return await _send_file(request, services, _choose_project(request, viewer), days, file, lists=FLEET_LISTS)


async def _send_file(
    request: Request,
    services: ApiContext,
    project: str | None,
    days: RangeRequest,
    file: str,
    *,
    lists: Mapping[str, ListDefinition],
) -> Response:
    name, _dot, kind = file.rpartition(".")
    if name not in lists or kind not in WRITERS:
        available = ", ".join(f"{list_name}.{extension}" for list_name in lists for extension in WRITERS)
        raise ApiError(404, "not_found", f"There is no file {file}. Available files: {available}.")
    list_request = parse_list_request(lists[name], request.query_params)
    now = services.engine.now()

    between = bounds(listed_window(days, now))
    limit = min(READ_BATCH_SIZE, MAX_EXPORT_ROWS)
    first = await services.ask(lambda cursor: read_list(cursor, project, list_request, between, limit=limit, after=None))
    headers = {
        "Content-Disposition": f'attachment; filename="{project or "fleet"}-{file}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    body = stream_file(services, list_request, project=project, bounds=between, kind=kind, first=first)
    return StreamingResponse(body, media_type=WRITERS[kind].media_type, headers=headers)


def find_last_period(
    cursor: duckdb.DuckDBPyConnection, project: str | None, list_request: ListRequest, window: Window
) -> Window | None:
    """Return the last period before a window, of the same length, in which a list has rows; None without one."""
    by_time = dataclasses.replace(list_request, sort=BY_TIME, down=True, after=None)
    rows = read_list(cursor, project, by_time, (EARLIEST, window.start), limit=1, after=None)
    return last_period(window, rows[0][list_request.definition.sorts[BY_TIME].key] if rows else None)


async def build_list_values(
    request: Request,
    services: ApiContext,
    project: str | None,
    days: RangeRequest,
    definition: ListDefinition,
    *,
    page_size: int | None = None,
    read_more: Callable[[duckdb.DuckDBPyConnection, Window | None], dict[str, Any]] = lambda _cursor, _window: {},
) -> dict[str, Any]:
    """Return the values of a page with a list. `read_more` reads further values for the same period."""
    list_request = parse_list_request(definition, request.query_params, request.url.path)
    now = services.engine.now()

    window = listed_window(days, now)
    between = bounds(window)

    def read(cursor: duckdb.DuckDBPyConnection) -> tuple[Window | None, Listing, dict[str, Any]]:
        listing = read_page(cursor, project, list_request, between, page_size=page_size)
        is_empty = window is not None and not listing.rows and list_request.after is None
        # Nothing bounds these filters over all time.
        can_look_back = is_empty and not _READ_FROM_EXCHANGES & list_request.texts.keys()
        last = find_last_period(cursor, project, list_request, window) if window is not None and can_look_back else None
        listing = dataclasses.replace(listing, total=describe_total(cursor, project, listing, between))
        more = {"cold": cold_days(cursor, project, *between), **read_more(cursor, window)}
        if project is not None and definition.name in _REVIEWED:
            more["queues"] = read_queues(cursor, project)
        return last, listing, more

    (last, listing, more), suggestions = await asyncio.gather(
        services.ask(read), services.ask(lambda cursor: _read_suggestions(cursor, project, between, now))
    )
    return {
        "project": project,
        "listing": listing,
        "queues": [],
        "window": window,
        "range": range_control(
            request, window, now, has_all=definition.has_all, has_comparison=definition.has_comparison, last=last
        ),
        "suggestions": suggestions,
        "max_export_rows": MAX_EXPORT_ROWS,
        "simulated": sum(bool(row.get("simulated")) for row in listing.rows),
        **more,
    }


_REVIEWED = frozenset({"exchanges", "anomalies", "sessions", "runs"})
"""Lists whose rows can be added to a review queue."""
_SUGGESTED_FROM = timedelta(days=7)
"""Names are suggested from the last days of the period, which are read quickly for a fleet of any size."""
_MAX_SUGGESTIONS = 200


def _read_suggestions(
    cursor: duckdb.DuckDBPyConnection, project: str | None, between: Bounds, now: datetime
) -> Mapping[str, Sequence[str]]:
    """Return the agents, versions and tools at the end of a period, for the fields of its filters."""
    until = min(between[1] or now, now)
    since = max(between[0] or EARLIEST, until - _SUGGESTED_FROM)
    params = {"project": project, "since": since, "until": until, "limit": _MAX_SUGGESTIONS}
    names: dict[str, list[str]] = {}
    for row in query_rows(cursor, "list_choices", params):
        names.setdefault(row["kind"], []).append(row["value"])
    return names


async def _render_list(
    request: Request, services: ApiContext, project: str | None, days: RangeRequest, definition: ListDefinition
) -> HTMLResponse:
    return page(request, "list.html", await build_list_values(request, services, project, days, definition))
