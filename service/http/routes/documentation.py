"""The OpenAPI description, completed with details that endpoints do not declare themselves, and the documentation page.

1. Polling by ETag, which middleware adds to every endpoint.
2. An example of every body and answer, as lines if an array may be sent as lines.
3. FastAPI's 422 is removed: a wrong body is answered 400, like every other fault of a request.
4. The page is Swagger UI from the package's own files, so that it works offline.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from service.text.links import API
from service.web.bounds import LINES
from service.web.errors import ApiError
from service.web.json_routes import schemas_of

TAGS = {
    "records": "Deliver records",
    "traces": "Traces",
    "sessions": "Sessions",
    "telemetry": "Telemetry",
    "alerts": "Alerts",
    "reading": "Read",
    "baselines": "Baselines",
    "incidents": "Incidents",
    "people": "People",
    "anchors": "Anchors",
    "deployments": "Deployments",
    "annotations": "Annotations",
    "judging": "Judge again",
    "retention": "Retention and erasure",
    "access": "Access",
    "policy": "Policy",
    "query": "SQL",
    # After all endpoints of a project, because a project may be called evaluations, like the first segment of an evaluation's path.
    "evaluations": "Evaluations",
    "operations": "Operations",
}
"""The tags of endpoints with their titles, in the order in which endpoints are described and matched."""
Json = dict[str, Any]
JSON, NDJSON = "application/json", "application/x-ndjson"
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 1024},
    "description": "The ETag of an earlier answer: if nothing has changed, the answer is 304 without a body.",
}
_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "Digest of this answer; changes exactly when the answer does."}}
_NOT_MODIFIED = {"description": "The answer is still the one of this ETag", "headers": _ETAG}
_LINES = {"type": "string", "description": "The values of the array, one per line."}
_UNUSED = ("HTTPValidationError", "ValidationError")


def describe(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Complete the application's description, once, on the first request. `routes` are the routes of its routers."""
    described = app.openapi

    @functools.cache
    def complete() -> Json:
        document = described()
        schemas = document["components"]["schemas"]
        schemas.update(schemas_of(routes))
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                operation["responses"].pop("422", None)
                for content in _find_contents(operation):
                    content["example"] = example_of(content["schema"], schemas)
                if path in LINES:
                    operation["requestBody"]["content"][NDJSON] = {"schema": _LINES}
                if method == "get" and path.startswith(f"{API}/"):
                    _add_polling(operation)
        for name in _UNUSED:
            schemas.pop(name, None)
        return document

    app.openapi = complete  # type: ignore[method-assign]


def _find_contents(operation: Json) -> Iterator[Json]:
    """Return the JSON contents of an endpoint's description: its body and its answers."""
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        content = part.get("content", {}).get(JSON)
        if content and content.get("schema"):
            yield content


def _add_polling(operation: Json) -> None:
    operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
    operation["responses"]["200"]["headers"] = _ETAG
    operation["responses"]["304"] = _NOT_MODIFIED


Schema = Mapping[str, Any]
_REFERENCE = "#/components/schemas/"
_BY_FORMAT = {"date-time": "2026-10-01T09:07:00Z", "date": "2026-10-01"}
_BY_TYPE: Mapping[str, Any] = {"string": "…", "integer": 1, "number": 1, "boolean": True, "null": None}
MAX_NESTED = 8
"""Maximum nesting of schemas; no body and no answer has more levels."""


def example_of(schema: Schema, components: Mapping[str, Schema], depth: int = 0) -> Any:
    """Return an example for a schema: its own, or one built from the examples of its parts."""
    if "$ref" in schema:
        return example_of(components[schema["$ref"].removeprefix(_REFERENCE)], components, depth)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    for name in ("example", "const"):
        if name in schema:
            return schema[name]
    if depth > MAX_NESTED:
        return None
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return example_of(schema[name][0], components, depth + 1)
    return _build_example(schema, components, depth)


def _build_example(schema: Schema, components: Mapping[str, Schema], depth: int) -> Any:
    kind = schema.get("type", "object")
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: example_of(field, components, depth + 1) for name, field in fields.items() if not field.get("deprecated")}
    if "prefixItems" in schema:
        return [example_of(item, components, depth + 1) for item in schema["prefixItems"]]
    if kind == "array":
        return [example_of(schema["items"], components, depth + 1)] if "items" in schema else []
    if "format" in schema:
        return _BY_FORMAT.get(schema["format"], _BY_TYPE[kind])
    return schema.get("default", schema.get("minimum", _BY_TYPE[kind]))


router = APIRouter(include_in_schema=False)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES = Path(fastapi_offline.__file__).parent / "static"
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_START = """SwaggerUIBundle({url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, persistAuthorization: false});\n"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"><title>Driftline API</title>
<link rel="icon" href="/docs/favicon.png"><link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script><script src="/docs/start.js"></script>
</body>
</html>
"""


@router.get("/docs")
async def page() -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": POLICY})


@router.get("/docs/start.js")
async def start() -> Response:
    """Return the script that starts the page."""
    return Response(_START, media_type="text/javascript")


@router.get("/docs/{name}")
def asset(name: str) -> Response:
    """Return a file of the page."""
    if name not in _ASSETS:
        raise ApiError(404, "not_found", "this file does not exist")
    return Response((_FILES / name).read_bytes(), media_type=_ASSETS[name], headers={"Cache-Control": "max-age=3600"})
