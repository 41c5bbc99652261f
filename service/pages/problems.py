"""Errors as pages, for browsers that asked for a page; other requests get the API's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.pages.rendering import page

_TITLES = {403: "Not for this token", 404: "There is no such page", 503: "Busy at the moment"}
Answers = Callable[[Request, Exception], Awaitable[Response]]
_ERRORS: tuple[type[Exception], ...] = (HTTPException, RequestValidationError)


def add_problem_pages(app: FastAPI) -> None:
    """Make errors of pages answer as pages; what answers them elsewhere has to be there already."""
    for kind in _ERRORS:
        app.add_exception_handler(kind, _as_page(app.exception_handlers[kind]))


def _as_page(otherwise: Any) -> Answers:
    """The handler's answer, or a page in its place where a browser wants one."""

    async def told(request: Request, error: Exception) -> Response:
        answer: Response = await otherwise(request, error)
        if not _wants_page(request) or answer.status_code < HTTPStatus.BAD_REQUEST:
            return answer
        words = str(getattr(error, "detail", "")) or "The address cannot be read."
        title = _TITLES.get(answer.status_code, "This did not work")
        return page(request, "problem.html", {"title": title, "words": words}, answer.status_code)

    return told


def _wants_page(request: Request) -> bool:
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")
