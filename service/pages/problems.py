"""Errors as pages, for browsers that requested a page; other requests get the API's form."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.pages.rendering import page
from service.text.links import CALLS

_TITLES = {
    400: "The address is not valid",
    403: "Not for this token",
    404: "This page does not exist",
    503: "The server is busy",
}
Answers = Callable[[Request, Exception], Awaitable[Response]]
_ERRORS: tuple[type[Exception], ...] = (HTTPException, RequestValidationError)


def add_problem_pages(app: FastAPI) -> None:
    """Answer errors of pages with pages. The handlers for other answers must already be installed."""
    for kind in _ERRORS:
        app.add_exception_handler(kind, _as_page(app.exception_handlers[kind]))


def _as_page(otherwise: Any) -> Answers:
    """Return the handler's answer, or a page if a browser wants one."""

    async def told(request: Request, error: Exception) -> Response:
        answer: Response = await otherwise(request, error)
        if not _wants_page(request) or answer.status_code < HTTPStatus.BAD_REQUEST:
            return answer
        words = json.loads(bytes(answer.body))["error"]
        title = _TITLES.get(answer.status_code, "Something went wrong")
        return page(request, "problem.html", {"title": title, "words": words}, answer.status_code)

    return told


def _wants_page(request: Request) -> bool:
    return not request.url.path.startswith(CALLS) and "text/html" in request.headers.get("accept", "")
