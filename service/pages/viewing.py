"""Viewers of pages: the sign-in and its static files, the signed-in operator who may read, and the forms that a page sends."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse

from schemas.bounds import NAME
from service.pages.rendering import MARK_FIELD, page
from service.setup.access import Holder, is_mark
from service.text.links import Links
from service.text.zone import ZONE_COOKIE, set_reader_zone
from service.web.authentication import require_project
from service.web.context import Services
from service.web.errors import ApiError
from service.web.middleware import ENCODING_VARIES, accepts_gzip, compress


async def _require_viewer(request: Request, services: Services) -> Holder:
    set_reader_zone(request.cookies.get(ZONE_COOKIE))
    caller: Holder | None = getattr(request.state, "caller", None)
    if caller is None:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = {"Location": f"{Links.sign_in}?next={quote(here, safe='')}"}
        raise ApiError(HTTPStatus.SEE_OTHER, "signed_out", "sign in first", headers)
    if caller.kind == "guest":
        return caller
    if caller.kind != "operator" or "read" not in caller.scopes:
        raise ApiError(HTTPStatus.FORBIDDEN, "scope_required", "the token lacks the scope read")
    request.state.open_incidents = await services.open_incidents(caller.project)
    request.state.judging_notices = (
        *await services.unreadable_judges(caller.project),
        *await services.reached_caps(caller.project),
    )
    return caller


Viewer = Annotated[Holder, Depends(_require_viewer)]
"""The operator who views a page, or the guest of a shared link to it; without one the answer redirects to the sign-in."""


async def _require_shown_project(
    request: Request, viewer: Viewer, services: Services, project: Annotated[str, PathParameter(pattern=f"^{NAME}$")]
) -> str:
    require_project(viewer, project)
    await services.require_project(project)
    await services.fetch_cold(project, request.path_params)
    return project


ShownProject = Annotated[str, Depends(_require_shown_project)]
"""The project in the address, which the viewer may see; 404 for an unknown one."""


def local_path(address: str) -> str:
    """Return the address to open after the sign-in: the requested one if it is a path of this server, otherwise the fleet."""
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_ours else Links.fleet


MAX_FIELDS = 2000
"""Fields of a form."""
Fields = dict[str, list[str]]


async def _read_fields(request: Request) -> Fields:
    """Return the non-blank values of each field.

    Raises ApiError 400 for a body that is not a form, 403 without the page's mark.
    """
    try:
        pairs = parse_qsl((await request.body()).decode(), errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:  # also raised for bytes that are not UTF-8
        raise ApiError(400, "invalid", f"the form is not readable, or has more than {MAX_FIELDS} fields") from None
    fields: Fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    marks = fields.pop(MARK_FIELD, [])
    cookie: bytes = getattr(request.state, "cookie", b"")
    if len(marks) != 1 or not cookie or not is_mark(marks[0].encode(), cookie):
        raise ApiError(403, "forged", "the form does not come from a page of this server; reload the page")
    return fields


Form = Annotated[Fields, Depends(_read_fields)]
"""The fields of the form that was sent."""


router = APIRouter(include_in_schema=False)
_FILES = Path(__file__).parent / "static"
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """A file that pages load."""

    content: bytes
    compressed: bytes
    """The content compressed with gzip."""
    media_type: str
    etag: str
    """The strong entity tag, in quotes."""


@router.get("/sign-in")
async def sign_in(request: Request, next: str = "/") -> HTMLResponse:  # noqa: A002 - the name in the address
    """Show the page that asks for a token, or leads to the identity provider."""
    target = local_path(next)
    has_provider = request.app.state.context.settings.identity_provider is not None
    provider = f"{Links.provider_sign_in}?next={quote(target, safe='')}" if has_provider else ""
    return page(request, "sign_in.html", {"target": target, "provider": provider})


@router.get("/static/{name:path}")
def static(request: Request, name: str) -> Response:
    """Return a file that pages load."""
    file = _load_files().get(name)
    if file is None:
        raise ApiError(404, "not_found", "there is no such file")
    headers = {"ETag": f"W/{file.etag}", "Cache-Control": "no-cache", "Vary": ENCODING_VARIES}
    if request.headers.get("if-none-match") in {file.etag, f"W/{file.etag}"}:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if accepts_gzip(request.scope):
        return Response(file.compressed, media_type=file.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.content, media_type=file.media_type, headers=headers)


@cache
def _load_files() -> dict[str, StaticFile]:
    """Return the static files by their path below the folder."""
    files = {}
    for path in sorted(_FILES.rglob("*")):
        if path.suffix not in _MEDIA_TYPES:
            continue
        content = path.read_bytes()
        files[path.relative_to(_FILES).as_posix()] = StaticFile(
            content=content,
            compressed=compress(content),
            media_type=_MEDIA_TYPES[path.suffix],
            etag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        )
    return files
