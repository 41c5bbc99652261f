"""The description of the API in OpenAPI, with what middleware does to every endpoint, which endpoints do not say themselves."""

from __future__ import annotations

import functools
from typing import Any

from fastapi import FastAPI

from service.api.settings import API

_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 1024},
    "description": "The ETag of an earlier answer: where nothing has changed, 304 is answered and no body.",
}
_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "Digest of this answer; changes exactly when the answer does."}}
_NOT_MODIFIED = {"description": "The answer is still the one of this ETag", "headers": _ETAG}


def describe(app: FastAPI) -> None:
    """Complete the application's description; it is made once, when somebody asks for it."""
    described = app.openapi

    @functools.cache
    def complete() -> dict[str, Any]:
        document = described()
        for path, operations in document["paths"].items():
            if path.startswith(f"{API}/") and "get" in operations:
                _add_polling(operations["get"])
        return document

    app.openapi = complete  # type: ignore[method-assign]


def _add_polling(operation: dict[str, Any]) -> None:
    operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
    operation["responses"]["200"]["headers"] = _ETAG
    operation["responses"]["304"] = _NOT_MODIFIED
