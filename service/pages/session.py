"""A session as a page: the conversation turn by turn with scores, events and its run. Also the redirect from a bare id."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from analytics.queries import query_rows
from audit.exchanges.states import SCORED
from schemas.lazy import duckdb
from service.pages.rendering import Excerpt, day, excerpt, page
from service.pages.run_view import (
    MAX_PAYLOAD_LENGTH,
    MAX_STEPS_PER_TURN,
    indent_payload,
    link_event,
    link_turns,
    read_payloads,
    reports_failure,
    summarize_payload,
)
from service.pages.viewing import ShownProject, Viewer
from service.read.sessions import (
    Row,
    SessionPlace,
    SessionRead,
    TurnRange,
    read_session,
    session_places,
    session_steps,
    session_turns,
)
from service.text.links import Links
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import ConnectionName, Id

router = APIRouter(include_in_schema=False)
SessionId = Annotated[Id, Path()]
OfConnection = Annotated[ConnectionName | None, Query()]
Place = Annotated[int, Query(ge=1, le=2**31)]
PartNumber = Annotated[int | None, Query(ge=0, le=2**31)]
Only = Annotated[str | None, Query(pattern="^(anomalies)?$")]
_NO_SUCH_SESSION = "There is no session with this id. It may have been erased, or its retention period has passed."


@router.get("/projects/{project}/sessions/{session_id:path}")
async def session(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    session_id: SessionId,
    connection: OfConnection = None,
    only: Only = None,
    turn: Place = 1,
    exchange: Annotated[Id | None, Query()] = None,
    part: PartNumber = None,
    step: Place = 1,
) -> HTMLResponse:
    """Show a session: some of its turns, or the events of one part of it."""
    selection = TurnSelection(only=only or None, turn=turn, exchange=exchange, part=part, step=step)
    places = await services.ask(lambda cursor: session_places(cursor, session_id, [project], connection))
    if not places:
        raise ApiError(404, "not_found", await _explain_absence(services, project, session_id))
    if len(places) > 1:
        return _offer_choice(request, session_id, places)
    # Read in two threads: half of the time is DuckDB's planning, which is single-threaded.
    read, shown = await asyncio.gather(
        services.ask(lambda cursor: read_session(cursor, places[0])),
        services.ask(lambda cursor: shown_part(cursor, places[0], selection)),
    )
    answer = page(request, "session.html", session_values(read, shown, selection))
    # The page quotes agents' conversations, so no cache may store it.
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.get("/sessions/{session_id:path}")
async def session_by_id(request: Request, *, viewer: Viewer, services: Services, session_id: SessionId) -> Response:
    """Redirect to the session with an id, or offer a choice if several projects of the viewer have one."""
    projects = None if viewer.project is None else [viewer.project]
    places = await services.ask(lambda cursor: session_places(cursor, session_id, projects))
    if not places:
        raise ApiError(404, "not_found", _NO_SUCH_SESSION)
    if len(places) > 1:
        return _offer_choice(request, session_id, places)
    return RedirectResponse(_links.session(places[0].project, session_id), 303)


def _offer_choice(request: Request, session_id: str, places: list[SessionPlace]) -> HTMLResponse:
    return page(request, "session_choice.html", {"session_id": session_id, "places": places})


async def _explain_absence(services: ApiContext, project: str, session_id: str) -> str:
    """Report that a session was erased, with the time, if a connection of the project had it; otherwise that it does not exist."""

    def read_erasures(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, object]]:
        return [row for row in query_rows(cursor, "erasures") if row["session_id"] == session_id]

    for row in await services.ask(read_erasures):
        owner = services.access.holder("connection", str(row["connection"]))
        if owner is not None and owner.project == project:
            return f"This session was erased: {row['requested_by']} requested that on {day(row['occurred_at'])}."  # type: ignore[arg-type]
    return _NO_SUCH_SESSION


TURNS = 20
"""Turns per page."""
STEPS_PER_PAGE = 100
"""Events per page of a single part."""
TEXT_SHOWN = 3_000
"""Characters of a text: the exchange's own page has more."""
KINDS = 6
"""Types of events that the summary of a part names."""
TIERS = (
    ("tier1", "tier1_score", None),
    ("tier2", "tier2_score", "tier2_state"),
    ("tier2_5", "tier2_5_alignment", "tier2_5_state"),
    ("tier3", "tier3_score", "tier3_state"),
)
"""The tiers: their names, and the columns of their score and of their state."""
_links = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSelection:
    """A request for a part of a session, parsed from an address."""

    only: str | None = None
    turn: int = 1
    exchange: str | None = None
    part: int | None = None
    """Show only the events of this part; None: show turns."""
    step: int = 1
    """The first of these events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Events of a part of a session: the events of a turn's exchange, and later ones before the next turn."""

    part: int
    events: int
    kinds: str
    """The number of events by type."""
    shown: Sequence[Row]

    @property
    def left_out(self) -> int:
        """Events that are not shown."""
        return self.events - len(self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn with its events."""

    row: Row
    tiers: Sequence[tuple[str, float | None, str]]
    """Name, score, and state of each tier."""
    user: Excerpt | None
    thinking: Excerpt | None
    agent: Excerpt | None
    steps: Steps | None


def session_values(read: SessionRead, shown: Mapping[str, Any], selection: TurnSelection) -> dict[str, Any]:
    """Return every value of the template; `shown` are the values of `shown_part`."""
    return {
        "project": read.place.project,
        "place": read.place,
        "read": read,
        "session": read.session,
        "run": read.session.run,
        "findings": read.findings,
        "links_of": partial(link_turns, read.place),
        "link_to_event": partial(link_event, read.place),
        "selection": selection,
        "tokens": _sum_known(read.session.input_tokens, read.session.output_tokens),
        **shown,
    }


def shown_part(cursor: duckdb.DuckDBPyConnection, of_session: SessionPlace, selection: TurnSelection) -> dict[str, Any]:
    """Return the requested part of the session: turns with their events, or only the events of one part.

    A session without turns has a single part of events.
    """
    part = selection.part
    if part is None and not of_session.has_turns:
        part = 0
    if part is None:
        return {"part": None, **_build_turns(cursor, of_session, selection)}
    return {"part": part, **_build_part(cursor, of_session, part, selection.step)}


def _build_turns(cursor: duckdb.DuckDBPyConnection, of_session: SessionPlace, selection: TurnSelection) -> dict[str, Any]:
    part = TurnRange(
        skip=(selection.turn - 1) // TURNS * TURNS,
        exchange=selection.exchange,
        limit=TURNS,
        anomalies=selection.only == "anomalies",
        longest=TEXT_SHOWN,
    )
    rows = session_turns(cursor, of_session, part)
    parts = {row["place"] for row in rows}
    if rows and rows[0]["place"] == 1:
        parts.add(0)
    steps = _read_steps(cursor, of_session, parts, (1, MAX_STEPS_PER_TURN))
    total = rows[0]["places"] if rows else 0
    first = rows[0]["row"] if rows else 1
    return {
        "opening": steps.get(0),
        "turns": [_build_turn(of_session.project, row, steps.get(row["place"])) for row in rows],
        "turn_count": total,
        "first_turn": first,
        "previous_turn": first - TURNS if first > TURNS else None,
        "next_turn": first + TURNS if first + TURNS <= total else None,
    }


def _build_part(cursor: duckdb.DuckDBPyConnection, of_session: SessionPlace, part: int, step: int) -> dict[str, Any]:
    first = (step - 1) // STEPS_PER_PAGE * STEPS_PER_PAGE + 1
    steps = _read_steps(cursor, of_session, {part}, (first, first + STEPS_PER_PAGE - 1)).get(part)
    events = steps.events if steps else 0
    return {
        "steps": steps,
        "first_step": first,
        "previous_step": first - STEPS_PER_PAGE if first > STEPS_PER_PAGE else None,
        "next_step": first + STEPS_PER_PAGE if first + STEPS_PER_PAGE <= events else None,
    }


def _read_steps(
    cursor: duckdb.DuckDBPyConnection, of_session: SessionPlace, parts: set[int], rows: tuple[int, int]
) -> dict[int, Steps]:
    steps = session_steps(cursor, of_session, parts, rows)
    offsets = [step["place"] for row in steps.values() for step in row["steps"]]
    payloads = read_payloads(cursor, of_session.connection, of_session.session_id, offsets, MAX_PAYLOAD_LENGTH)
    return {part: _build_steps(part, row, payloads) for part, row in steps.items()}


def _build_steps(part: int, row: Row, payloads: Mapping[int, Row]) -> Steps:
    kinds = [f"{kind['count']} {kind['event']}" for kind in row["kinds"][:KINDS]]
    return Steps(
        part=part,
        events=row["events"],
        kinds=", ".join(kinds) + (", …" if len(row["kinds"]) > KINDS else ""),
        shown=[_build_step(step, payloads) for step in row["steps"]],
    )


def _build_step(step: Row, payloads: Mapping[int, Row]) -> Row:
    stored = payloads.get(step["place"], {"payload": "", "characters": 0})
    is_cut = stored["characters"] > MAX_PAYLOAD_LENGTH
    return {
        **step,
        "is_failed": not is_cut and reports_failure({"event": step["event"], **stored}),
        "gist": summarize_payload(stored["payload"], is_cut=is_cut),
        "payload": stored["payload"] if is_cut else indent_payload(stored["payload"]),
        "characters": stored["characters"],
        "is_cut": is_cut,
    }


def _build_turn(project: str, row: Row, steps: Steps | None) -> Turn:
    def text(name: str) -> Excerpt | None:
        if row[name] is None:
            return None
        whole = _links.exchange_text(project, row["score_id"], name, row["said_at"]) if row["score_id"] else ""
        head = excerpt(row[name], whole)
        return Excerpt(head.text, row[f"{name}_length"] - len(head.text), whole)

    return Turn(
        row=row,
        tiers=[(name, row[score], SCORED if state is None else row[state]) for name, score, state in TIERS],
        user=text("user_message"),
        thinking=text("agent_thinking"),
        agent=text("agent_response"),
        steps=steps,
    )


def _sum_known(*numbers: int | None) -> int | None:
    """Return the sum of the known values; None if all are unknown."""
    known_numbers = [number for number in numbers if number is not None]
    return sum(known_numbers) if known_numbers else None
