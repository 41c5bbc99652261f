"""The help: what the words on the pages mean, each at an address of its own."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from service.pages.help_words import CHAPTERS
from service.pages.rendering import page
from service.pages.viewing import Viewer

router = APIRouter(include_in_schema=False)


@router.get("/help")
async def help_page(request: Request, _: Viewer) -> HTMLResponse:
    """Every word."""
    return page(request, "help.html", {"chapters": CHAPTERS})
