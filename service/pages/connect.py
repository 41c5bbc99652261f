"""The page that guides the connection of an agent: a token, the lines for its stack, and the records received so far."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from schemas.bounds import NAME
from schemas.lazy import duckdb
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.read.telemetry import WITHIN, read_unused_spans, sum_up_expected
from service.setup.access import Holder
from service.web.bounds import OTLP_LETTERS
from service.web.context import ApiContext, Services
from streams.sources.otlp.trace_records import NO_CONTENT

router = APIRouter(include_in_schema=False)
MAX_CONNECTIONS = 24
"""Connections to choose from. A fleet may have thousands."""
UNISSUED = "dl_…"
"""Shown in place of a token, which is known only when it is issued."""
ConnectionName = Annotated[str, Query(pattern=f"^{NAME}$")]


class Stack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent framework and how to connect it: packages to install, lines to add, and where the session id comes from.

    `variables` are added to the common environment. `notes` include gaps in its spans. `tried` has the tested versions.
    """

    key: str
    name: str
    install: str
    language: str
    has_exporter: bool
    code: str
    session: str
    variables: str = ""
    notes: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()


class Stacks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stacks and what they share: environment variables, the variables that enable texts, and Python's exporter."""

    environment: str
    content: str
    exporter: str
    stacks: tuple[Stack, ...]

    def lines(self, stack: Stack, filled: Mapping[str, str]) -> str:
        """Return the lines to add to a program or a configuration, with placeholders filled."""
        return fill(f"{self.exporter}\n{stack.code}" if stack.has_exporter else stack.code, filled)


def fill(text: str, filled: Mapping[str, str]) -> str:
    """Fill placeholders such as `{url}` in a text. Other braces stay."""
    for name, value in filled.items():
        text = text.replace(f"{{{name}}}", value)
    return text


@cache
def stacks() -> Stacks:
    """Return the known stacks."""
    text = (Path(__file__).parent / "stacks.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), Stacks)


@router.get("/connect")
async def connect(
    request: Request, viewer: Viewer, services: Services, stack: str = "", connection: ConnectionName | None = None
) -> HTMLResponse:
    """Show how to connect an agent, and the data received from a connection."""
    available = stacks()
    chosen = next((candidate for candidate in available.stacks if candidate.key == stack), available.stacks[0])
    filled = {"url": str(request.base_url).rstrip("/"), "token": UNISSUED}
    shown = None if connection is None else _find_connection(services, viewer, connection)
    connections = [holder for holder, _ in services.access.holders("connection") if _is_visible(viewer, holder)]
    values = {
        "stacks": available.stacks,
        "chosen": chosen,
        "has_choice": bool(stack),
        "environment": fill(available.environment + chosen.variables, filled),
        "content": available.content,
        "lines": available.lines(chosen, filled),
        "may_add": viewer.project is None and "admin" in viewer.scopes,
        "connection": shown,
        "connections": connections[:MAX_CONNECTIONS],
        "more": max(0, len(connections) - MAX_CONNECTIONS),
        **(
            {}
            if shown is None
            else await services.ask(partial(_read_arrivals, connection=shown.name, now=services.engine.now()))
        ),
    }
    return page(request, "connect.html", values)


def _read_arrivals(cursor: duckdb.DuckDBPyConnection, connection: str, now: datetime) -> dict[str, Any]:
    """Return the data received from a connection: its records, unused spans, and refused spans."""
    unused = read_unused_spans(cursor, now, connection)
    return {
        "came": query_rows(cursor, "arrivals", {"connection": connection}),
        "lost": [group for group in unused if group.needs_action],
        "lacks_texts": any(group.state == NO_CONTENT for group in unused),
        "expected": sum_up_expected(unused),
        "refused": query_rows(cursor, "refused_spans", {"source": f"{OTLP_LETTERS}:{connection}/", "since": now - WITHIN}),
    }


def _find_connection(services: ApiContext, viewer: Holder, name: str) -> Holder | None:
    """Return the connection of that name, if the viewer may see it."""
    visible = (holder for holder, _ in services.access.holders("connection") if _is_visible(viewer, holder))
    return next((holder for holder in visible if holder.name == name), None)


def _is_visible(viewer: Holder, connection: Holder) -> bool:
    return viewer.project in (None, connection.project)
