"""Endpoints that answer with a `service.text.answers.Answer`: encoded as it is, and described in OpenAPI by its own fields."""

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
    """An answer in JSON, its numbers rounded to what they mean."""

    def render(self, content: Any) -> bytes:
        """The content as JSON."""
        return rounded_json(content)


def rounded_json(content: Any) -> bytes:
    """A value as the JSON of an answer, its numbers rounded to what they mean."""
    return _encode(rounded(content)).encode()


class AnswerRoute(APIRoute):
    """An endpoint whose annotation says which answer it gives; other endpoints are as FastAPI has them.

    The `response_model` of an endpoint that encodes its answers itself is an answer, or a union of some, as well: they are described.
    """

    answers: tuple[type[Answer], ...]

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """`options` are those of FastAPI's route."""
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
    """Return what OpenAPI says of a status that has this answer, or one of a union."""
    references = [{"$ref": f"{REFERENCE}{kind.__name__}"} for kind in _kinds_of(answer)]
    schema = {"anyOf": references} if len(references) > 1 else references[0]
    return {"description": description, "content": {JSON: {"schema": schema}}}


def schemas_of(routes: Iterable[Any]) -> dict[str, Any]:
    """Return the schemas of the answers of routes, by name, as OpenAPI has them."""
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
    """Return the answers of a union, or the one; none where anything is no answer."""
    kinds = get_args(answer) if isinstance(answer, UnionType) else (answer,)
    return kinds if all(isinstance(kind, type) and issubclass(kind, Answer) for kind in kinds) else ()


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
