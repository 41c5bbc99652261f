"""The documentation page: Swagger UI from the package's own files, so that it works offline.

Its content security policy allows only these files; the page has no inline script.
"""

from __future__ import annotations

from pathlib import Path

import fastapi_offline
from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from service.web.errors import ApiError

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
