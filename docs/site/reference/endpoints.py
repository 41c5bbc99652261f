"""Every endpoint of the HTTP API, from its own description in OpenAPI: a page per group, and one that lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI

from reference.markdown import code, fenced, page, table, words
from service.http.routes.documentation import JSON, TAGS, describe
from service.server.app import ROUTERS


def endpoint_pages() -> dict[str, Callable[[], str]]:
    """Return the pages by name."""
    return {"endpoints": endpoints, **{f"endpoints-{group}": partial(_group_page, group) for group in TAGS}}


def endpoints() -> str:
    """Return the page that lists the endpoints by group."""
    rows = [
        (f"[{title}](endpoints-{group}.md)", "<br>".join(code(f"{method} {path}") for method, path, _ in _operations_of(group)))
        for group, title in TAGS.items()
    ]
    return page(
        "Endpoints",
        "[The HTTP API](../api.md) says what all of them have in common. A running server shows the same at `/docs`, and `/openapi.json` has it "
        'for programs. Errors are answered `{"error", "code"}`; the codes are in [Errors](errors.md#codes-of-the-api).',
        table(("group", "endpoints"), rows),
    )


def _group_page(group: str) -> str:
    parts = [part for endpoint in _operations_of(group) for part in _endpoint(*endpoint)]
    return page(f"Endpoints: {TAGS[group]}", "[All endpoints](endpoints.md).", *parts)


def _operations_of(group: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [endpoint for endpoint in operations() if endpoint[2].get("tags", ["operations"])[0] == group]


@cache
def _description() -> dict[str, Any]:
    app = FastAPI(title="Driftline")
    for router in ROUTERS:
        app.include_router(router)
    describe(app, [route for router in ROUTERS for route in router.routes])
    return app.openapi()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of every endpoint."""
    for path, methods in _description()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _endpoint(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## {method} {path}"
    yield "\n\n".join(words(part) for part in operation.get("description", "").split("\n\n"))
    yield _access(operation)
    rows = [
        (code(one["name"]), one["in"], words(one.get("description", "")), _kind(one["schema"]))
        for one in operation.get("parameters", ())
    ]
    yield table(("parameter", "in", "what it is", "holds"), [row for row in rows if row[0] != code("If-None-Match")])
    body = operation.get("requestBody", {}).get("content", {}).get(JSON)
    if body and "example" in body:
        yield "Body, such as:"
        yield fenced(_indented(body["example"]), "json")
    statuses = operation["responses"]
    yield "Answers " + ", ".join(f"{code(status)} {_phrase(status)}" for status in statuses) + "."
    for status, answer in statuses.items():
        example = answer.get("content", {}).get(JSON, {}).get("example")
        if status.startswith("2") and example:
            yield f"{status}, such as:"
            yield fenced(_indented(example), "json")


def _phrase(status: str) -> str:
    return HTTPStatus(int(status)).phrase.lower()


def _access(operation: dict[str, Any]) -> str:
    """Who may call."""
    allowed = []
    for one in operation.get("security", ()):
        if "connectionToken" in one:
            allowed.append("the token of a connection")
        allowed += [f"an operator's token with the scope {code(scope)}" for scope in one.get("operatorToken", ())]
    return f"Takes {' or '.join(allowed)}." if allowed else "Takes no token."


def _kind(schema: dict[str, Any]) -> str:
    choices = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    shown = [
        ", ".join(map(code, one["enum"])) if "enum" in one else code(one["const"]) if "const" in one else one.get("type", "")
        for one in choices
    ]
    default = f"; default {code(schema['default'])}" if schema.get("default") is not None else ""
    return " or ".join(shown) + default


def _indented(example: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(example), indent=2).decode()
