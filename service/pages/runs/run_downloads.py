"""Downloads of a run: its events as received, its diagnosis in full, and one whole event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse

from analytics.queries import query_rows
from audit.diagnosis.events import raw_event
from schemas.errors import InputError
from service.pages.runs.run import NO_RUN
from service.pages.runs.run_data import payloads_of
from service.pages.viewing import ShownProject
from service.read.run_diagnoses import full_diagnosis
from service.read.runs import Row, Run, find_run
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import RunId

router = APIRouter(include_in_schema=False)
AT_ONCE = 200
"""Events that are read together: each may have half a megabyte."""
_WHOLE = 2**31 - 1
_JSON = "application/json"
Offset = Annotated[int, Path(ge=0, lt=2**63)]


@router.get("/projects/{project}/runs/{run_id}/session.json")
async def session(project: ShownProject, services: Services, run_id: RunId) -> Response:
    """Return the raw events of the run's session, sent as they are read."""
    record = await _run(services, project, run_id)
    return StreamingResponse(_session(services, record), media_type=_JSON, headers=_headers(f"{project}-{run_id}-session.json"))


@router.get("/projects/{project}/runs/{run_id}/diagnosis.json")
async def diagnosis(project: ShownProject, services: Services, run_id: RunId) -> Response:
    """Return the run's diagnosis with all evidence and the causal graph."""
    record = await _run(services, project, run_id)
    document = await services.ask(lambda cursor: full_diagnosis(cursor, record))
    written = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return Response(written, media_type=_JSON, headers=_headers(f"{project}-{run_id}-diagnosis.json"))


@router.get("/projects/{project}/runs/{run_id}/events/{offset}.json")
async def event(project: ShownProject, services: Services, run_id: RunId, offset: Offset) -> Response:
    """Return one event of the run, whole, by its place in its topic."""
    record = await _run(services, project, run_id)
    found = await services.ask(lambda cursor: payloads_of(cursor, record.connection, record.session_id, [offset], _WHOLE))
    if offset not in found:
        raise ApiError(404, "not_found", "the run has no event at this place")
    return Response(_written(found[offset]["payload"]), media_type=_JSON, headers=_headers(f"{run_id}-event-{offset}.json"))


async def _run(services: ApiContext, project: str, run_id: str) -> Run:
    recorded = await services.ask(lambda cursor: find_run(cursor, project, run_id))
    if recorded is None:
        raise ApiError(404, "not_found", NO_RUN)
    return recorded.run


def _headers(name: str) -> Mapping[str, str]:
    """Return the headers of a download with a checked name; proxies may not store agents' texts."""
    return {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}


async def _session(services: ApiContext, run: Run) -> AsyncIterator[str]:
    """Yield the text of the file in parts."""
    asked: dict[str, Any] = {"connection": run.connection, "session": run.session_id, "limit": AT_ONCE}
    yield f'{{"session_id": {json.dumps(run.session_id)}, "events": ['
    after, separator = -1, "\n"
    while found := await _part(services, {**asked, "after": after}):
        for one in found:
            yield f"{separator}{_written(one['payload'])}"
            separator = ",\n"
        after = found[-1]["place"]
    yield "\n]}\n"


async def _part(services: ApiContext, asked: Mapping[str, Any]) -> list[Row]:
    return await services.ask(lambda cursor: query_rows(cursor, "session_payloads", asked))


def _written(payload: str) -> str:
    """Return a payload that is a JSON object as it is, and any other as a JSON text, so that the file stays valid JSON."""
    try:
        raw_event(payload)
    except InputError:
        return json.dumps(payload, ensure_ascii=False)
    return payload
