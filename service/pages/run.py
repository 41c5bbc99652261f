"""The list of a project's runs, the page of one run, and its downloads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.datastructures import QueryParams

from analytics.queries import query_rows
from audit.diagnosis.events import raw_event
from schemas.errors import InputError
from schemas.lazy import duckdb
from service.pages.listing import Listing, parse_list_request, read_list
from service.pages.lists import EXCHANGES, READINESS_LEVELS, RUNS, build_list_values
from service.pages.periods import ListPeriod, compared
from service.pages.project_charts import read_counts
from service.pages.rendering import number, page
from service.pages.run_view import (
    EVENT_FILTERS,
    MAX_EXCHANGES,
    MAX_PAYLOAD_LENGTH,
    EventSelection,
    RunAddress,
    RunContext,
    RunDetails,
    RunEvents,
    Timeline,
    TurnLink,
    Window,
    read_context,
    read_events,
    read_finding_turns,
    read_payloads,
    run_values,
    timeline,
)
from service.pages.viewing import ShownProject
from service.read.run_diagnoses import full_diagnosis
from service.read.runs import Row, Run, find_run
from service.read.sessions import finding_events
from service.text.links import Links
from service.text.window import Window as TimeWindow
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import RunId

router = APIRouter(include_in_schema=False)
_LINKS = Links()
NO_RUN = "the project has no run with this id"
EventFilter = Annotated[str | None, Query(pattern=f"^({'|'.join(EVENT_FILTERS)})?$")]
EventType = Annotated[str | None, Query(max_length=256)]
EventNumber = Annotated[int, Query(ge=1, le=2**40)]
GraphWindow = Annotated[str | None, Query(pattern="^[1-9][0-9]{0,9}-[1-9][0-9]{0,9}$")]


@router.get("/projects/{project}/runs")
async def runs(request: Request, project: ShownProject, services: Services, *, time: ListPeriod) -> HTMLResponse:
    """Show the runs of a project, optionally only those that ended between two days."""

    def read_comparison(cursor: duckdb.DuckDBPyConnection, window: TimeWindow | None) -> dict[str, Any]:
        counts = read_counts(cursor, project, window)
        return {"comparison": _describe_counts(*counts) if counts else None}

    values = await build_list_values(request, services, project, time, RUNS, read_more=read_comparison)
    return page(request, "runs.html", {**values, "levels": READINESS_LEVELS})


def _describe_counts(current: Row, previous: Row) -> str:
    """Describe the runs of a period compared with the preceding one."""
    labels = {"runs": "runs", "unsafe_runs": "of them unsafe"}
    return "; ".join(
        f"{number(current[name])} {label}, {compared(current[name], previous[name], number)}" for name, label in labels.items()
    )


@router.get("/projects/{project}/runs/{run_id}")
async def run(
    request: Request,
    project: ShownProject,
    services: Services,
    run_id: RunId,
    *,
    type: EventType = None,  # noqa: A002 - the name in the address
    only: EventFilter = None,
    at: EventNumber = 1,
    graph: GraphWindow = None,
) -> HTMLResponse:
    """Show a run: its verdict, its causes, its events and their causal graph."""
    selection = EventSelection(type=type or None, only=only or None, number=at)
    recorded = await services.ask(lambda cursor: find_run(cursor, project, run_id))
    if recorded is None:
        raise ApiError(404, "not_found", NO_RUN)
    record, diagnosis = recorded

    def read_timeline(
        cursor: duckdb.DuckDBPyConnection,
    ) -> tuple[RunEvents, dict[int, list[TurnLink]], Timeline, dict[int, Row]]:
        located = finding_events(cursor, diagnosis)
        events = read_events(cursor, diagnosis, located)
        turns = read_finding_turns(cursor, recorded, located)
        shown = timeline(events, selection)
        offsets = [events.offsets[index] for index in shown.indexes]
        payloads = read_payloads(cursor, record.connection, record.session_id, offsets, MAX_PAYLOAD_LENGTH)
        return events, turns, shown, payloads

    def read_related(cursor: duckdb.DuckDBPyConnection) -> tuple[RunContext, Listing]:
        context = read_context(cursor, record)
        return context, _read_exchanges(cursor, record, context.exchanges)

    # Read in two threads: half of the time is DuckDB's planning, which is single-threaded.
    (context, listing), (events, turns, shown, payloads) = await asyncio.gather(
        services.ask(read_related), services.ask(read_timeline)
    )
    details = RunDetails(run=record, diagnosis=diagnosis, context=context, events=events, finding_turns=turns)
    address = RunAddress(project=project, run_id=run_id, selection=selection, graph=_parse_window(graph, len(events.ids)))
    values = run_values(details, address, shown, payloads)
    return page(request, "run.html", {"project": project, "listing": listing, **values})


_RUN_EXCHANGES = EXCHANGES.showing(agent=False)


def _read_exchanges(cursor: duckdb.DuckDBPyConnection, record: Run, scores: Sequence[Row]) -> Listing:
    """Return the run's last exchanges with their texts, in the order of their turns."""
    params = QueryParams({"session": record.session_id, "down": "false", "window": "90d"})
    list_request = parse_list_request(_RUN_EXCHANGES, params, _LINKS.exchanges(record.project))
    rows: list[dict[str, Any]] = []
    last_scores = scores[-MAX_EXCHANGES:]
    if last_scores:
        period = (last_scores[0]["exchange_at"], last_scores[-1]["exchange_at"] + timedelta(microseconds=1))
        rows = read_list(cursor, record.project, list_request, period, limit=MAX_EXCHANGES, after=None)
    # Another connection of the project may have a session with this id.
    own_rows = [row for row in rows if row["connection"] == record.connection]
    return Listing(request=list_request, rows=own_rows, following=None, first=None)


def _parse_window(text: str | None, count: int) -> Window | None:
    """Return the requested window of the graph, limited to the existing events; None if it has them all."""
    if text is None or not count:
        return None
    first, last = sorted(min(int(number), count) for number in text.split("-"))
    return None if (first, last) == (1, count) else Window(first=first, last=last)


READ_BATCH_SIZE = 200
"""Events per query of a download. An event can have half a megabyte."""
_UNLIMITED = 2**31 - 1
_JSON = "application/json"
Offset = Annotated[int, Path(ge=0, lt=2**63)]


@router.get("/projects/{project}/runs/{run_id}/session.json")
async def session(project: ShownProject, services: Services, run_id: RunId) -> Response:
    """Stream the raw events of the run's session."""
    record = await _require_run(services, project, run_id)
    return StreamingResponse(
        _stream_session(services, record), media_type=_JSON, headers=_build_headers(f"{project}-{run_id}-session.json")
    )


@router.get("/projects/{project}/runs/{run_id}/diagnosis.json")
async def diagnosis(project: ShownProject, services: Services, run_id: RunId) -> Response:
    """Return the run's diagnosis with all evidence and the causal graph."""
    record = await _require_run(services, project, run_id)
    document = await services.ask(lambda cursor: full_diagnosis(cursor, record))
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return Response(text, media_type=_JSON, headers=_build_headers(f"{project}-{run_id}-diagnosis.json"))


@router.get("/projects/{project}/runs/{run_id}/events/{offset}.json")
async def event(project: ShownProject, services: Services, run_id: RunId, offset: Offset) -> Response:
    """Return an event of the run in full, by its offset in the topic."""
    record = await _require_run(services, project, run_id)
    payloads = await services.ask(
        lambda cursor: read_payloads(cursor, record.connection, record.session_id, [offset], _UNLIMITED)
    )
    if offset not in payloads:
        raise ApiError(404, "not_found", "the run has no event at this offset")
    return Response(
        _encode_payload(payloads[offset]["payload"]), media_type=_JSON, headers=_build_headers(f"{run_id}-event-{offset}.json")
    )


async def _require_run(services: ApiContext, project: str, run_id: str) -> Run:
    recorded = await services.ask(lambda cursor: find_run(cursor, project, run_id))
    if recorded is None:
        raise ApiError(404, "not_found", NO_RUN)
    return recorded.run


def _build_headers(name: str) -> Mapping[str, str]:
    """Return the headers of a download. Proxies must not store it, because it quotes agents."""
    return {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}


async def _stream_session(services: ApiContext, run: Run) -> AsyncIterator[str]:
    """Yield the parts of session.json."""
    params: dict[str, Any] = {"connection": run.connection, "session": run.session_id, "limit": READ_BATCH_SIZE}
    yield f'{{"session_id": {json.dumps(run.session_id)}, "events": ['
    separator = "\n"
    rows = await _read_payloads(services, {**params, "after": -1})
    while rows:
        for row in rows:
            yield f"{separator}{_encode_payload(row['payload'])}"
            separator = ",\n"
        rows = await _read_payloads(services, {**params, "after": rows[-1]["place"]})
    yield "\n]}\n"


async def _read_payloads(services: ApiContext, params: Mapping[str, Any]) -> list[Row]:
    return await services.ask(lambda cursor: query_rows(cursor, "session_payloads", params))


def _encode_payload(payload: str) -> str:
    """Return a JSON object unchanged and any other payload as a JSON string, so that the file stays valid JSON."""
    try:
        raw_event(payload)
    except InputError:
        return json.dumps(payload, ensure_ascii=False)
    return payload
