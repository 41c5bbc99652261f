"""Endpoints that return a `service.text.answers.Answer`: encoded by msgspec, and described in OpenAPI by its own fields."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec
from fastapi import Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from schemas.registry import schema_of
from service.text.answers import REFERENCE, Answer, camel, document
from service.text.rounding import rounded

JSON = "application/json"
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class RoundedJson(JSONResponse):
    """A JSON response with rounded numbers."""

    def render(self, content: Any) -> bytes:
        """Encode the content as JSON."""
        return rounded_json(content)


def rounded_json(content: Any) -> bytes:
    """Encode a value as the JSON of an answer, with rounded numbers."""
    return _encode(rounded(content)).encode()


class AnswerRoute(APIRoute):
    """An endpoint whose return annotation is an answer; other endpoints work as in FastAPI.

    An endpoint that encodes its answers itself can name an answer, or a union of answers, as `response_model`, to have them described.
    """

    answers: tuple[type[Answer], ...]

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """`options` are the options of FastAPI's route."""
        status, annotated = options.get("status_code") or 200, get_type_hints(endpoint).get("return")
        answer = annotated if _kinds_of(annotated) else options.get("response_model")
        self.answers = _kinds_of(answer)
        if self.answers:
            described = {status: answering(answer), **(options.get("responses") or {})}
            options |= {"response_model": None, "responses": described}
        if answer is annotated and self.answers:
            endpoint = _encoding(endpoint, status)
        super().__init__(path, endpoint, **options)


def answering(answer: Any, description: str = "Successful Response") -> dict[str, Any]:
    """Return OpenAPI's description of a status with this answer, or a union of answers."""
    references = [{"$ref": f"{REFERENCE}{kind.__name__}"} for kind in _kinds_of(answer)]
    schema = {"anyOf": references} if len(references) > 1 else references[0]
    return {"description": description, "content": {JSON: {"schema": schema}}}


def schemas_of(routes: Iterable[Any]) -> dict[str, Any]:
    """Return the schemas of the routes' answers by name, for OpenAPI."""
    answers = {answer for route in routes if isinstance(route, AnswerRoute) for answer in route.answers}
    ordered = sorted(answers, key=lambda answer: answer.__name__)
    schemas = msgspec.json.schema_components(ordered, ref_template=f"{REFERENCE}{{name}}")[1]
    for answer in Answer.__subclasses__():
        if answer.record_type and answer.__name__ in schemas:
            properties = schemas[answer.__name__]["properties"]
            for field in schema_of(answer.record_type).fields:
                properties.get(camel(field["name"]), {}).setdefault("description", field["doc"])
    return schemas


def _kinds_of(answer: Any) -> tuple[type[Answer], ...]:
    """Return the answer, or all answers of a union; empty if any part is not an answer."""
    kinds = get_args(answer) if isinstance(answer, UnionType) else (answer,)
    return kinds if all(isinstance(kind, type) and issubclass(kind, Answer) for kind in kinds) else ()


def _encoding(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    """Wrap an endpoint so that it returns a response; FastAPI still runs plain functions in a thread."""

    def encoded(answer: Any, named: dict[str, Any]) -> Response:
        if isinstance(answer, Response):
            return answer
        response = RoundedJson(document(answer), status_code=status)
        for one in named.values():
            # FastAPI applies headers and status set on the injected response only to answers that it encodes itself.
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
