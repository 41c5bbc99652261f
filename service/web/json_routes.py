"""Classes of endpoints: JSON bodies, parsed strictly because differences between JSON parsers can be exploited, and typed answers.

1. UTF-8 without a byte order mark. NaN, infinities and numbers beyond a double are refused.
2. An escaped lone surrogate becomes U+FFFD in a text: gateways cut texts at a length, and an agent must not escape its audit that
   way. In an id it is refused, because two ids would become one (`service.web.models`).
3. At most MAX_DEPTH levels of nesting, unless an endpoint checks each part by itself (`BatchRoute`).
4. A `service.text.answers.Answer` is encoded by msgspec, and described in OpenAPI by its own schema.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Iterable
from types import UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from schemas.bounds import MAX_DEPTH, is_too_deep
from schemas.registry import schema_of
from schemas.validation_messages import decoding_words
from service.text.answers import REFERENCE, Answer, camel, document
from service.text.formats import rounded
from service.web.errors import ApiError
from streams.sources.lines import decode_json

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

    An endpoint that encodes its answers itself can name an answer, or a union of answers, as `response_model`, to have them
    described.
    """

    answers: tuple[type[Answer], ...]

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """`options` are the options of FastAPI's route."""
        status, annotated = options.get("status_code") or 200, get_type_hints(endpoint).get("return")
        answer = annotated if _list_answer_types(annotated) else options.get("response_model")
        self.answers = _list_answer_types(answer)
        if self.answers:
            described = {status: answering(answer), **(options.get("responses") or {})}
            options |= {"response_model": None, "responses": described}
        if answer is annotated and self.answers:
            endpoint = _wrap_endpoint(endpoint, status)
        super().__init__(path, endpoint, **options)


def answering(answer: Any, description: str = "Successful Response") -> dict[str, Any]:
    """Return OpenAPI's description of a status with this answer, or a union of answers."""
    references = [{"$ref": f"{REFERENCE}{kind.__name__}"} for kind in _list_answer_types(answer)]
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


def _list_answer_types(answer: Any) -> tuple[type[Answer], ...]:
    """Return the answer, or all answers of a union; empty if any part is not an answer."""
    kinds = get_args(answer) if isinstance(answer, UnionType) else (answer,)
    return kinds if all(isinstance(kind, type) and issubclass(kind, Answer) for kind in kinds) else ()


def _wrap_endpoint(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    """Wrap an endpoint so that it returns a response; FastAPI still runs plain functions in a thread."""

    def encode(answer: Any, named: dict[str, Any]) -> Response:
        if isinstance(answer, Response):
            return answer
        response = RoundedJson(document(answer), status_code=status)
        for injected in named.values():
            # FastAPI applies headers and status set on the injected response only to answers that it encodes itself.
            if isinstance(injected, Response):
                response.headers.raw.extend(injected.headers.raw)
                response.status_code = injected.status_code or status
        return response

    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def encode_awaited(**named: Any) -> Response:
            return encode(await endpoint(**named), named)

        return encode_awaited

    @functools.wraps(endpoint)
    def encode_result(**named: Any) -> Response:
        return encode(endpoint(**named), named)

    return encode_result


class _StrictJsonRequest(Request):
    """A request whose body is parsed by the rules above."""

    def __init__(self, request: Request, max_depth: int | None) -> None:
        super().__init__(request.scope, request.receive)
        self._max_depth = max_depth

    async def json(self) -> Any:
        """Return the value of the body. Raises ApiError (400) if it is not JSON."""
        return decode_body(await self.body(), self._max_depth)


class JsonRoute(AnswerRoute):
    """An endpoint whose body is parsed by the rules above."""

    max_depth: int | None = MAX_DEPTH

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which gets strict requests."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictJsonRequest(request, self.max_depth))

        return strict


class BatchRoute(JsonRoute):
    """An endpoint for many records: one with too deep nesting does not stop the others."""

    max_depth = None


class FaultyLine(NamedTuple):
    """Stands for the value of a line that is not JSON: the code of the reason, and its description."""

    code: str
    detail: str


def decode_lines(body: bytes) -> list[Any]:
    """Return the value of each line of a body, ignoring blank lines. A faulty line does not stop the others."""
    values: list[Any] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                values.append(decode_body(line, None, f"line {number}"))
            except ApiError as error:
                values.append(FaultyLine(error.code, error.detail))
    return values


def decode_body(body: bytes, max_depth: int | None = MAX_DEPTH, name: str = "the body") -> Any:
    """Parse the JSON value of a body, or of a part that errors call `name`; ApiError (400) describes the problem without repeating the content."""
    try:
        value = decode_json(body)
    except UnicodeDecodeError as error:
        raise ApiError(400, "not_utf8", f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ApiError(400, "too_deep", f"{name} nests far too deep") from None
    except msgspec.DecodeError as error:
        raise ApiError(400, "not_json", f"{name} is not JSON: {decoding_words(error)}") from None
    # Counting brackets is cheap and rules out deep nesting for most bodies; walk only the rest.
    if max_depth is not None and body.count(b"{") + body.count(b"[") > max_depth and is_too_deep(value, max_depth):
        raise ApiError(400, "too_deep", f"{name} nests deeper than {max_depth} levels")
    return value
