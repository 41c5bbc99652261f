"""A finished run: its verdict, its causes, its events, and its downloads. And the runs of a project."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from analytics.queries import query_rows
from audit.diagnosis.events import raw_event
from schemas.errors import InputError
from schemas.lazy import duckdb
from service.pages.lists import READINESS, RUNS, first_day, listed
from service.pages.periods import ListPeriod, compared
from service.pages.project_charts import counts_of
from service.pages.rendering import number, page
from service.pages.run_view import (
    ONLY,
    PAYLOAD_SHOWN,
    Address,
    EventSelection,
    RunEvents,
    RunRead,
    Timeline,
    Window,
    payloads_of,
    read_context,
    read_events,
    read_findings,
    run_values,
    timeline,
)
from service.pages.viewing import ShownProject
from service.read.run_diagnoses import full_diagnosis
from service.read.runs import Row, Run, find_run
from service.read.sessions import finding_events
from service.text.window import Window as TimeWindow
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import RunId

router = APIRouter(include_in_schema=False)
NO_RUN = "the project has no run of this id"
Only = Annotated[str | None, Query(pattern=f"^({'|'.join(ONLY)})?$")]
Type = Annotated[str | None, Query(max_length=256)]
At = Annotated[int, Query(ge=1, le=2**40)]
Part = Annotated[str | None, Query(pattern="^[1-9][0-9]{0,9}-[1-9][0-9]{0,9}$")]


@router.get("/projects/{project}/runs")
async def runs(
    request: Request, project: ShownProject, services: Services, *, time: ListPeriod, since: date | None = None
) -> HTMLResponse:
    """Show the runs of a project: by readiness, agent, failure and trust, in any order, and optionally between two days."""

    def beside(cursor: duckdb.DuckDBPyConnection, window: TimeWindow | None) -> dict[str, Any]:
        counts = counts_of(cursor, project, window)
        return {"told": _describe_counts(*counts) if counts else None}

    values = await listed(request, services, project, time, RUNS, since=since, beside=beside)
    days = (since, time.until) if first_day(request, since) else (None, None)
    return page(request, "runs.html", {**values, "levels": READINESS, "days": days})


def _describe_counts(now: Row, before: Row) -> str:
    """Describe the difference between a period and the preceding one."""
    parts = (("runs", "runs"), ("unsafe_runs", "of them unsafe"))
    return "; ".join(f"{number(now[name])} {words}, {compared(now[name], before[name], number)}" for name, words in parts)


@router.get("/projects/{project}/runs/{run_id}")
async def run(
    request: Request,
    project: ShownProject,
    services: Services,
    run_id: RunId,
    *,
    type: Type = None,  # noqa: A002 - the name in the address
    only: Only = None,
    at: At = 1,
    graph: Part = None,
) -> HTMLResponse:
    """Show one run: its verdict, its causes, its events and their causal graph."""
    wanted_events = EventSelection(type=type or None, only=only or None, at=at)
    recorded = await services.ask(lambda cursor: find_run(cursor, project, run_id))
    if recorded is None:
        raise ApiError(404, "not_found", NO_RUN)
    record, diagnosis = recorded

    def shown_events(
        cursor: duckdb.DuckDBPyConnection,
    ) -> tuple[RunEvents, dict[int, list[tuple[int, str, int]]], Timeline, dict[int, Row]]:
        located = finding_events(cursor, diagnosis)
        events = read_events(cursor, diagnosis, located)
        shown = timeline(events, wanted_events)
        return (
            events,
            read_findings(cursor, recorded, located),
            shown,
            payloads_of(
                cursor,
                record.connection,
                record.session_id,
                [events.offsets[place] for place in shown.places],
                PAYLOAD_SHOWN,
            ),
        )

    # Read in two threads: half of the time is DuckDB's planning, which is single-threaded.
    context, (events, turns, shown, payloads) = await asyncio.gather(
        services.ask(lambda cursor: read_context(cursor, record)), services.ask(shown_events)
    )
    read = RunRead(run=record, diagnosis=diagnosis, context=context, events=events, turns=turns)
    address = Address(project=project, run_id=run_id, asked=wanted_events, graph=_parse_window(graph, len(events.ids)))
    return page(request, "run.html", {"project": project, **run_values(read, address, shown, payloads)})


def _parse_window(text: str | None, count: int) -> Window | None:
    """Return the requested part of the graph, within the existing events; None for all of it."""
    if text is None or not count:
        return None
    first, last = sorted(min(int(number), count) for number in text.split("-"))
    return None if (first, last) == (1, count) else Window(first=first, last=last)


READ_BATCH_SIZE = 200
"""Events that are read together: each may have half a megabyte."""
_WHOLE = 2**31 - 1
_JSON = "application/json"
Offset = Annotated[int, Path(ge=0, lt=2**63)]


@router.get("/projects/{project}/runs/{run_id}/session.json")
async def session(project: ShownProject, services: Services, run_id: RunId) -> Response:
    """Return the raw events of the run's session, sent as they are read."""
    record = await _run(services, project, run_id)
    return StreamingResponse(
        _stream_session(services, record), media_type=_JSON, headers=_build_headers(f"{project}-{run_id}-session.json")
    )


@router.get("/projects/{project}/runs/{run_id}/diagnosis.json")
async def diagnosis(project: ShownProject, services: Services, run_id: RunId) -> Response:
    """Return the run's diagnosis with all evidence and the causal graph."""
    record = await _run(services, project, run_id)
    document = await services.ask(lambda cursor: full_diagnosis(cursor, record))
    written = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return Response(written, media_type=_JSON, headers=_build_headers(f"{project}-{run_id}-diagnosis.json"))


@router.get("/projects/{project}/runs/{run_id}/events/{offset}.json")
async def event(project: ShownProject, services: Services, run_id: RunId, offset: Offset) -> Response:
    """Return one event of the run, whole, by its place in its topic."""
    record = await _run(services, project, run_id)
    payloads = await services.ask(lambda cursor: payloads_of(cursor, record.connection, record.session_id, [offset], _WHOLE))
    if offset not in payloads:
        raise ApiError(404, "not_found", "the run has no event at this place")
    return Response(
        _write_document(payloads[offset]["payload"]), media_type=_JSON, headers=_build_headers(f"{run_id}-event-{offset}.json")
    )


async def _run(services: ApiContext, project: str, run_id: str) -> Run:
    recorded = await services.ask(lambda cursor: find_run(cursor, project, run_id))
    if recorded is None:
        raise ApiError(404, "not_found", NO_RUN)
    return recorded.run


def _build_headers(name: str) -> Mapping[str, str]:
    """Return the headers of a download with a checked name; proxies may not store agents' texts."""
    return {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}


async def _stream_session(services: ApiContext, run: Run) -> AsyncIterator[str]:
    """Yield the text of the file in parts."""
    params: dict[str, Any] = {"connection": run.connection, "session": run.session_id, "limit": READ_BATCH_SIZE}
    yield f'{{"session_id": {json.dumps(run.session_id)}, "events": ['
    after, separator = -1, "\n"
    while rows := await _read_part(services, {**params, "after": after}):
        for row in rows:
            yield f"{separator}{_write_document(row['payload'])}"
            separator = ",\n"
        after = rows[-1]["place"]
    yield "\n]}\n"


async def _read_part(services: ApiContext, params: Mapping[str, Any]) -> list[Row]:
    return await services.ask(lambda cursor: query_rows(cursor, "session_payloads", params))


def _write_document(payload: str) -> str:
    """Return a JSON object unchanged, and any other payload as a JSON string, so that the file stays valid JSON."""
    try:
        raw_event(payload)
    except InputError:
        return json.dumps(payload, ensure_ascii=False)
    return payload
