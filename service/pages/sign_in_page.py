"""The sign-in page, and the static files that pages load."""

from __future__ import annotations

import hashlib
from functools import cache
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from service.pages.rendering import page
from service.pages.viewing import local_path
from service.web.errors import ApiError
from service.web.transfer import VARIES, packed, takes_gzip

router = APIRouter(include_in_schema=False)
_FILES = Path(__file__).parent / "static"
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@router.get("/sign-in")
async def sign_in(request: Request, next: str = "/") -> HTMLResponse:  # noqa: A002 - the name in the address
    """Show the page that asks for a token."""
    return page(request, "sign_in.html", {"target": local_path(next)})


@router.get("/static/{name:path}")
def static(request: Request, name: str) -> Response:
    """Return a file that pages load."""
    found = _files().get(name)
    if found is None:
        raise ApiError(404, "not_found", "there is no such file")
    content, small, kind, tag = found
    headers = {"ETag": f"W/{tag}", "Cache-Control": "no-cache", "Vary": VARIES}
    if request.headers.get("if-none-match") in {tag, f"W/{tag}"}:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if takes_gzip(request.scope):
        return Response(small, media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(content, media_type=kind, headers=headers)


@cache
def _files() -> dict[str, tuple[bytes, bytes, str, str]]:
    """Return content, compressed content, type and ETag of each file."""
    found = {}
    for path in sorted(_FILES.rglob("*")):
        if path.suffix in _KINDS:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.relative_to(_FILES).as_posix()] = (content, packed(content), _KINDS[path.suffix], tag)
    return found
