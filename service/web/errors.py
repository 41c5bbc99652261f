"""Error answers of the API: `{"error", "code"}` with a status, for every kind of error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from audit.surrogates import repair_text
from schemas.errors import InputError, RecordError
from schemas.validation_messages import words_of

MAX_PROBLEMS = 5
"""Maximum number of problems reported for one body."""
MAX_DRAINED_BYTES = 8 * 1024 * 1024
DRAIN_TIMEOUT = 2.0
_CODES = {404: "not_found", 405: "method_not_allowed"}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods named in answers, logs and metrics. Any other method could be an arbitrary text."""
_NO_FIELD = "is not a field of this request; see /docs"
_SECTIONS = frozenset({"body", "query", "path", "header"})


class ApiError(HTTPException):
    """An error answer: its status, its code for programs and its message for people."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code


def error_response(error: HTTPException) -> JSONResponse:
    """Build the answer for an error."""
    default = _CODES.get(error.status_code, HTTPStatus(error.status_code).name.lower())
    code = error.code if isinstance(error, ApiError) else default
    return JSONResponse({"error": error.detail, "code": code}, error.status_code, error.headers)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error answer before the body has been read, and close the connection.

    The body is read and dropped for up to `DRAIN_TIMEOUT` seconds, because a client that is still sending would see a reset instead of
    the answer. A client that has timed out gets no extra time.
    """
    response = error_response(error)
    response.headers["connection"] = "close"
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if scope["method"] not in ("GET", "HEAD") and error.status_code != HTTPStatus.REQUEST_TIMEOUT:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    drained = 0
    has_more = True
    while has_more and drained < MAX_DRAINED_BYTES:
        message = await receive()
        has_more = message["type"] == "http.request" and message.get("more_body", False)
        drained += len(message.get("body", b""))


def _build_answer(error: HTTPException, method: str) -> HTTPException:
    """Replace the framework's message of an error by ours."""
    if isinstance(error, ApiError) or error.status_code not in _CODES:
        return error
    method_name = method if method in METHODS else "this method"
    message = {404: "this path does not exist", 405: f"{method_name} is not allowed here"}[error.status_code]
    return ApiError(error.status_code, _CODES[error.status_code], message, error.headers)


def problems_in_words(errors: Sequence[Mapping[str, Any]]) -> str:
    """Describe the problems of a body or query, each with its field and without the value."""
    problems = [f"{_name_field(error['loc'])}: {_describe_error(error)}" for error in errors[:MAX_PROBLEMS]]
    return "; ".join(problems) + (f"; and {len(errors) - MAX_PROBLEMS} more" if len(errors) > MAX_PROBLEMS else "")


def problems_at(index: int, error: ValidationError) -> str:
    """Describe the problems of one value among many, each with the value's index and the field."""
    return problems_in_words([{**item, "loc": (index, *item["loc"])} for item in error.errors(include_url=False)])


def _describe_error(error: Mapping[str, Any]) -> str:
    return _NO_FIELD if error["type"] == "extra_forbidden" else words_of(error)


def _name_field(location: Sequence[str | int]) -> str:
    steps = location[1:] if location and location[0] in _SECTIONS else location
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
    return repair_text(path) or ("the body" if "body" in location else "the request")


def add_error_answers(app: FastAPI) -> None:
    """Give every error of the application the same form of answer."""

    async def answer_error(request: Request, error: Exception) -> JSONResponse:
        expected = error if isinstance(error, HTTPException) else ApiError(500, "internal", "internal error")
        return error_response(_build_answer(expected, request.method))

    async def answer_invalid(_: Request, error: Exception) -> JSONResponse:
        problems = error.errors() if isinstance(error, RequestValidationError) else []
        return error_response(ApiError(400, "invalid", problems_in_words(problems)))

    async def answer_rejected(_: Request, error: Exception) -> JSONResponse:
        return error_response(ApiError(400, "invalid", str(error)))

    app.add_exception_handler(HTTPException, answer_error)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(RecordError, answer_rejected)
    app.add_exception_handler(InputError, answer_rejected)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documented error answers of an endpoint: the common ones and its own."""
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
        for status in sorted({400, 401, 403, 429, 500, 503, *statuses})
    }


ERROR_SCHEMA = json.loads("""{
  "type": "object", "required": ["error", "code"],
  "properties": {
    "error": {"type": "string", "description": "What is wrong, for people; it names the field."},
    "code": {"type": "string", "description": "What is wrong, for programs."}
  },
  "example": {"error": "exchange.timestamp: is missing", "code": "invalid"}
}""")
