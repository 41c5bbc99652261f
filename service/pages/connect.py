"""Guides the connection of an agent up to its first session: a token, the lines for its stack, and the records received so far."""

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
SHOWN = 24
"""Maximum number of connections to choose from; a fleet may have thousands."""
UNKNOWN = "dl_…"
"""Shown in place of a token, which is only known when it is made."""
ConnectionName = Annotated[str, Query(pattern=f"^{NAME}$")]


class Stack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stack of agents and how to connect it: packages to install, lines to add, and the source of the session's id.

    `variables` are needed in addition to the common environment, `notes` are remarks, also on gaps in its spans, and `tried`
    names the tested versions.
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
    """The stacks, and their common parts: environment variables, the variables that switch texts on, and Python's exporter."""

    environment: str
    content: str
    exporter: str
    stacks: tuple[Stack, ...]

    def lines(self, stack: Stack, filled: Mapping[str, str]) -> str:
        """Return the lines to add to a program or a configuration, with placeholders filled."""
        return fill(f"{self.exporter}\n{stack.code}" if stack.has_exporter else stack.code, filled)


def fill(text: str, filled: Mapping[str, str]) -> str:
    """Fill placeholders such as `{url}` in a text; other braces stay."""
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
    chosen = next((one for one in available.stacks if one.key == stack), available.stacks[0])
    filled = {"url": str(request.base_url).rstrip("/"), "token": UNKNOWN}
    shown = None if connection is None else _find_connection(services, viewer, connection)
    connections = [one for one, _ in services.access.holders("connection") if _is_visible(viewer, one)]
    values = {
        "stacks": available.stacks,
        "chosen": chosen,
        "environment": fill(available.environment + chosen.variables, filled),
        "content": available.content,
        "lines": available.lines(chosen, filled),
        "may_add": viewer.project is None and "admin" in viewer.scopes,
        "connection": shown,
        "connections": connections[:SHOWN],
        "more": max(0, len(connections) - SHOWN),
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
    matching = (one for one, _ in services.access.holders("connection") if one.name == name and _is_visible(viewer, one))
    return next(matching, None)


def _is_visible(viewer: Holder, connection: Holder) -> bool:
    return viewer.project in (None, connection.project)
