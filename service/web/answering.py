"""Endpoints that answer with a `service.text.answers.Answer`: encoded as it is, and described in OpenAPI by its own fields."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

import msgspec
from fastapi import Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from service.text.answers import Answer, document
from service.text.rounding import rounded

REFERENCE = "#/components/schemas/"
JSON = "application/json"
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class RoundedJson(JSONResponse):
    """An answer in JSON, its numbers rounded to what they mean."""

    def render(self, content: Any) -> bytes:
        """The content as JSON."""
        return rounded_json(content)


def rounded_json(content: Any) -> bytes:
    """A value as the JSON of an answer, its numbers rounded to what they mean."""
    return _encode(rounded(content)).encode()


class AnswerRoute(APIRoute):
    """An endpoint whose annotation says which answer it gives; other endpoints are as FastAPI has them."""

    answer: type[Answer] | None

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """`options` are those of FastAPI's route."""
        self.answer = _answer_of(endpoint)
        if self.answer is not None:
            status = options.get("status_code") or 200
            described = {status: answering(self.answer), **(options.get("responses") or {})}
            options |= {"response_model": None, "responses": described}
            endpoint = _encoding(endpoint, status)
        super().__init__(path, endpoint, **options)


def answering(answer: type[Answer], description: str = "Successful Response") -> dict[str, Any]:
    """Return what OpenAPI says of a status that has this answer."""
    return {"description": description, "content": {JSON: {"schema": {"$ref": f"{REFERENCE}{answer.__name__}"}}}}


def schemas_of(routes: Iterable[Any]) -> dict[str, Any]:
    """Return the schemas of the answers of routes, by name, as OpenAPI has them."""
    answers = {route.answer for route in routes if isinstance(route, AnswerRoute) and route.answer is not None}
    ordered = sorted(answers, key=lambda answer: answer.__name__)
    return msgspec.json.schema_components(ordered, ref_template=f"{REFERENCE}{{name}}")[1]


def _answer_of(endpoint: Callable[..., Any]) -> type[Answer] | None:
    answer = get_type_hints(endpoint).get("return")
    return answer if isinstance(answer, type) and issubclass(answer, Answer) else None


def _encoding(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    """Return the endpoint, which then gives a response; FastAPI runs what is no coroutine in a thread, as before."""

    def encoded(answer: Any, named: dict[str, Any]) -> Response:
        if isinstance(answer, Response):
            return answer
        response = RoundedJson(document(answer), status_code=status)
        for one in named.values():
            # FastAPI adds the headers and the status of the response that it hands to an endpoint only to answers that it encodes.
            if isinstance(one, Response):
                response.headers.raw.extend(one.headers.raw)
                response.status_code = one.status_code or status
        return response

    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def waited(**named: Any) -> Response:
            return encoded(await endpoint(**named), named)

        return waited

    @functools.wraps(endpoint)
    def called(**named: Any) -> Response:
        return encoded(endpoint(**named), named)

    return called
