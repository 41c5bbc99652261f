"""Endpoints that senders call all the time: for small bodies FastAPI's dependencies and its check of the answer cost more than the work.

An endpoint declares its parameters as any other: `(body, caller: Connection, services: Services)`, so that the description of the API
has them. It is given these three here, and returns a response.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

from schemas.bounds.limits import MAX_DEPTH
from service.text.answers import Answer, document
from service.web.answering import AnswerRoute, RoundedJson
from service.web.audit_trail import keep_write
from service.web.authentication import connection_of
from service.web.bodies import decode_body, decode_lines
from service.web.context import services_of
from service.web.errors import ApiError
from service.web.parameters import refuse_unknown
from service.web.request_limits import NDJSON, body_kind


class SenderRoute(AnswerRoute):
    """An endpoint for one body of JSON."""

    max_depth: int | None = MAX_DEPTH
    """Levels of nesting; None where the endpoint looks at each part by itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a call."""
        form, take = self.body_field, self.endpoint
        if form is None:
            raise TypeError(f"{self.path} takes no body")

        async def handle(request: Request) -> Response:
            await refuse_unknown(request)
            await keep_write(request)
            caller = connection_of(request)
            sent = await request.body()
            if not sent:
                raise ApiError(400, "invalid", "the body: is missing")
            value = decode_lines(sent) if body_kind(request.scope) == NDJSON else decode_body(sent, self.max_depth)
            body, problems = form.validate(value, {}, loc=("body",))
            if problems:
                raise RequestValidationError(problems)
            response: Response = await take(body, caller, services_of(request))
            return response

        return handle


class BatchRoute(SenderRoute):
    """An endpoint for many records: one that nests too deep does not stop the others."""

    max_depth = None


def json_response(status: int, answer: Answer) -> Response:
    """Return an answer."""
    return RoundedJson(document(answer), status)
