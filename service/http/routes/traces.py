"""Traces over HTTP: OpenTelemetry's protocol, as protobuf or JSON, compressed or not. A refused span does not affect the others."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from service.setup.access.access import Holder
from service.text.links import LOGS, METRICS, TRACES
from service.web.authentication import Connection
from service.web.context import ApiContext, Services
from service.web.errors import documented
from service.web.request_layers import GZIP, JSON, PROTOBUF, body_kind, header_values

router = APIRouter(tags=["traces"])
_CONTENT: dict[str, Any] = {
    "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
    "application/json": {"schema": {"type": "object"}},
}
_BODY = {
    "requestBody": {"required": True, "description": "An export request of OTLP, perhaps gzip-compressed.", "content": _CONTENT}
}
_WORDS = "All that could be taken is durable; `partialSuccess` counts what could not, and says why"
_ANSWER: dict[int | str, dict[str, Any]] = {200: {"description": _WORDS, "content": _CONTENT}}


@router.post(TRACES, responses=_ANSWER | documented(400, 408, 413, 415), response_class=Response, openapi_extra=_BODY)
async def take_traces(request: Request, caller: Connection, services: Services) -> Response:
    """Take spans of OpenTelemetry. They are durable when this is answered, and become exchanges and events with their whole trace."""
    return await _take("traces", request, caller, services)


@router.post(LOGS, responses=_ANSWER | documented(400, 408, 413, 415), response_class=Response, openapi_extra=_BODY)
async def take_logs(request: Request, caller: Connection, services: Services) -> Response:
    """Take records of OpenTelemetry's logs that hold a model's input and output. Others are passed over."""
    return await _take("logs", request, caller, services)


@router.post(METRICS, responses=_ANSWER | documented(400, 408, 413, 415), response_class=Response, openapi_extra=_BODY)
async def refuse_metrics(request: Request, caller: Connection, services: Services) -> Response:
    """Refuse OpenTelemetry's metrics in its own words: SDKs send them by themselves, and an error would fill the log of each program."""
    return await _take("metrics", request, caller, services)


async def _take(signal: str, request: Request, caller: Holder, services: ApiContext) -> Response:
    # Imported late: protobuf takes time and memory to load, and many installations do not need it.
    from service.http.otlp.receiving import Body, receive  # noqa: PLC0415
    from streams.sources.otlp.request import as_json  # noqa: PLC0415

    is_json = body_kind(request.scope) == JSON
    packed = any(value.strip().lower() == GZIP for value in header_values(request.scope, b"content-encoding"))
    answer = await receive(signal, Body(await request.body(), is_json, packed), caller, services)
    if is_json:
        return Response(as_json(answer), media_type=JSON.decode())
    return Response(answer.SerializeToString(), media_type=PROTOBUF.decode())
