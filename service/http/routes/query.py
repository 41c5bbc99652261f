"""SQL for analysts, answered from a snapshot in a separate process; docs/sql.md describes the views."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field, StringConstraints

from analytics.adhoc import FORMATS
from audit.times import iso_time
from schemas.errors import QueryError, StoreError
from service.read.queries import pool as query_pool
from service.read.queries.protocol import DEFAULT_ROWS, MAX_ROWS, QueryColumn, QueryResult, Question
from service.text.links import API
from service.web.authentication import Querier
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.middleware import ClientGone
from service.web.models import EXAMPLES, MAX_SQL, OperatorBody, Text

router = APIRouter(route_class=JsonRoute, tags=["query"])
MAX_PARAMETERS = 100
Done = TypeVar("Done")
Scalar = Text | int | float | bool | None
ParameterName = Annotated[str, StringConstraints(pattern="^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class QueryBody(OperatorBody):
    """A read-only statement, and the format of its answer."""

    sql: Annotated[Text, StringConstraints(min_length=1, max_length=MAX_SQL)] = Field(
        description="One read-only statement; `$name` stands for a parameter."
    )
    format: Literal["json", "csv", "arrow", "parquet"] = "json"
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS, description="Maximum number of rows.")] = DEFAULT_ROWS
    parameters: dict[ParameterName, Scalar | list[Scalar]] = Field(
        {}, max_length=MAX_PARAMETERS, description="Values by name; a date is a text that the statement casts."
    )

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLES["query"]]})


_OTHERS = {one.media_type.split(";")[0]: {"schema": {"type": "string", "format": "binary"}} for one in FORMATS.values()}
_OTHERS["application/json"] = {"schema": {"$ref": "#/components/schemas/QueryResult"}}


@router.post(
    f"{API}/query",
    response_model=QueryResult,
    responses=documented(400, 408, 413, 415) | {200: {"description": "The rows, in the requested format", "content": _OTHERS}},
)
async def query(body: QueryBody, caller: Querier, request: Request) -> Response:
    """Run one read-only SQL statement over a snapshot of every record in its latest revision, with views for analysts.

    Besides JSON there are CSV, Arrow and Parquet, with the number of rows, the truncation and the snapshot's time in the headers
    X-Driftline-Rows, X-Driftline-Truncated and X-Driftline-As-Of. The statement sees the projects in which you have the scope `query`.
    """
    began = time.monotonic()
    pool: query_pool.QueryPool = request.app.state.query_pool
    question = Question(body.sql, body.parameters, body.format, body.limit)
    try:
        answer = await _cancel_if_gone(request, pool.answer(question, caller.projects_with("query")))
    except QueryError as error:
        raise ApiError(400, "query_refused", f"{error}\n{error.hint}".strip()) from None
    except StoreError as error:
        raise ApiError(503, "no_snapshot", f"there is no snapshot at the moment: {error}", {"Retry-After": "30"}) from None
    return _build_response(answer, body.format, time.monotonic() - began)


def _build_response(answer: query_pool.Answer, format_name: str, seconds: float) -> Response:
    outcome, at = answer.outcome, iso_time(answer.at)
    kind, content = FORMATS[format_name], answer.body
    headers = {
        "Cache-Control": "no-store",
        "X-Driftline-Rows": str(outcome.rows),
        "X-Driftline-Truncated": str(outcome.truncated).lower(),
        "X-Driftline-As-Of": at,
    }
    if format_name == "json":
        result = QueryResult(
            columns=[QueryColumn(name, kind) for name, kind in outcome.columns],
            rows=msgspec.Raw(content),
            row_count=outcome.rows,
            truncated=outcome.truncated,
            as_of=answer.at,
            elapsed_ms=int(seconds * 1000),
        )
        content = msgspec.json.encode(result)
    else:
        headers["Content-Disposition"] = f'attachment; filename="driftline.{kind.extension}"'
    return Response(content, media_type=kind.media_type, headers=headers)


async def _cancel_if_gone(request: Request, work: Coroutine[Any, Any, Done]) -> Done:
    """Await the work while the client is connected; if it disconnects, cancel the work and raise ClientGone."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return await working
    finally:
        for task in (working, leaving):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([working, leaving])


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
