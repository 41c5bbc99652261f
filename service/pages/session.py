"""The page of a session: the conversation turn by turn, with scores, events and the run. Also the redirect from a session id alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from analytics.queries import query_rows
from audit.evaluation.dimensions import MEANINGS
from audit.exchanges.states import SCORED
from audit.policy import SessionJudging
from schemas.lazy import duckdb
from service.pages.rendering import MAX_SHOWN, Excerpt, day, excerpt, page, share
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
from service.read.evaluations import SessionJudgement
from service.read.review_queues import read_queues
from service.read.sessions import (
    Row,
    SessionDetails,
    SessionHeader,
    TurnRange,
    find_sessions,
    judgement_of_session,
    matching_turns,
    open_answers,
    read_session,
    session_steps,
    session_turns,
    turn_strip,
)
from service.text.links import Links
from service.text.words import WORDS
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import ConnectionName, Id

router = APIRouter(include_in_schema=False)
SessionId = Annotated[Id, Path()]
ConnectionFilter = Annotated[ConnectionName | None, Query()]
Number = Annotated[int, Query(ge=1, le=2**31)]
PartNumber = Annotated[int | None, Query(ge=0, le=2**31)]
FindText = Annotated[str, Query(max_length=200)]
TurnFilter = Annotated[str | None, Query(pattern="^(anomalies)?$")]
_NO_SUCH_SESSION = "There is no session with this id. It may have been erased, or its retention period has passed."


@router.get("/projects/{project}/sessions/{session_id:path}")
async def session(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    session_id: SessionId,
    connection: ConnectionFilter = None,
    only: TurnFilter = None,
    turn: Number | None = None,
    find: FindText = "",
    exchange: Annotated[Id | None, Query()] = None,
    part: PartNumber = None,
    step: Number = 1,
) -> HTMLResponse:
    """Show a session: a page of its turns, or the events of one part."""
    selection = TurnSelection(only=only or None, turn=turn, find=find.strip(), exchange=exchange, part=part, step=step)
    headers = await services.ask(lambda cursor: find_sessions(cursor, session_id, [project], connection))
    if not headers:
        raise ApiError(404, "not_found", await _explain_absence(services, project, session_id))
    if len(headers) > 1:
        return _offer_choice(request, session_id, headers)
    # Read in two threads: half of the time is DuckDB's planning, which is single-threaded.
    now, gap = services.engine.now(), timedelta(minutes=services.engine.policy.session_gap_minutes)
    details, judgement, queues, shown, still_open = await asyncio.gather(
        services.ask(lambda cursor: read_session(cursor, headers[0])),
        services.ask(lambda cursor: judgement_of_session(cursor, headers[0], services.engine)),
        services.ask(lambda cursor: read_queues(cursor, project)),
        services.ask(lambda cursor: read_selection(cursor, headers[0], selection)),
        services.ask(lambda cursor: open_answers(cursor, project, now, gap, headers[0])),
    )
    settings = services.engine.policy.for_project(project).settings.session_judging
    values = (
        session_values(details, shown, selection)
        | judgement_values(judgement, settings)
        | {"queues": queues, "still_open": still_open}
    )
    answer = page(request, "session.html", values)
    # The page quotes agents' conversations, so no cache may store it.
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.get("/sessions/{session_id:path}")
async def session_by_id(request: Request, *, viewer: Viewer, services: Services, session_id: SessionId) -> Response:
    """Redirect to the session with an id, or offer a choice if there are several."""
    projects = None if viewer.project is None else [viewer.project]
    headers = await services.ask(lambda cursor: find_sessions(cursor, session_id, projects))
    if not headers:
        raise ApiError(404, "not_found", _NO_SUCH_SESSION)
    if len(headers) > 1:
        return _offer_choice(request, session_id, headers)
    return RedirectResponse(_links.session(headers[0].project, session_id), 303)


def _offer_choice(request: Request, session_id: str, headers: list[SessionHeader]) -> HTMLResponse:
    return page(request, "session_choice.html", {"session_id": session_id, "headers": headers})


async def _explain_absence(services: ApiContext, project: str, session_id: str) -> str:
    """Return the message for a missing session: that it was erased, if a connection of the project had it, or that it does not exist."""

    def read_erasures(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, object]]:
        return [row for row in query_rows(cursor, "erasures") if row["session_id"] == session_id]

    for row in await services.ask(read_erasures):
        owner = services.access.holder("connection", str(row["connection"]))
        if owner is not None and owner.project == project:
            return f"This session was erased: {row['requested_by']} requested that on {day(row['occurred_at'])}."  # type: ignore[arg-type]
    return _NO_SUCH_SESSION


TURNS_PER_PAGE = 20
MAX_STRIP_TURNS = 1000
"""Turns in the strip of a session."""
STEPS_PER_PAGE = 100
"""Events per page of a part."""
MAX_TEXT_LENGTH = 3_000
"""Characters of a text. The page of its exchange shows more."""
MAX_KINDS = 6
"""Event types in the summary of a part."""
TEXTS = ("user_message", "agent_thinking", "agent_response")
TIERS = (
    ("tier1", "tier1_score", None),
    ("tier2", "tier2_score", "tier2_state"),
    ("tier2_5", "tier2_5_alignment", "tier2_5_state"),
    ("tier3", "tier3_score", "tier3_state"),
)
"""The tiers with the columns of their score and state."""
_SEVERITIES = {severity: rank for rank, severity in enumerate(("critical", "high", "medium", "low"))}
_links = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSelection:
    """The turns or events of a session that an address selects."""

    only: str | None = None
    turn: int | None = None
    """Number of a turn; None for the first, or the first match of a search."""
    find: str = ""
    """Text to find in all turns."""
    exchange: str | None = None
    part: int | None = None
    """Only the events of this part; None for turns."""
    step: int = 1
    """Number of the first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The events of a part of a session: those of a turn, and those between it and the next turn."""

    part: int
    events: int
    kinds: str
    """Number of events by type, in words."""
    shown: Sequence[Row]
    acted_until: datetime | None = None
    """Time of the last call, output, error or token count."""

    @property
    def left_out(self) -> int:
        """The number of events that are not shown."""
        return self.events - len(self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn with its events."""

    row: Row
    tiers: Sequence[tuple[str, float | None, str]]
    """Name, score and state of each tier."""
    user: Excerpt | None
    thinking: Excerpt | None
    agent: Excerpt | None
    steps: Steps | None
    seconds: float | None = None
    """Seconds from the message of the user to the last step of the agent; None if no event says so."""
    is_match: bool = False
    """Whether it contains the text to find."""
    has_hidden_match: bool = False
    """Whether it does so only after the beginnings that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The turns that contain a text, and the one that is selected."""

    places: Sequence[int]
    """Numbers of the first matching turns."""
    total: int
    current: int | None
    """Number of the selected turn."""

    @property
    def number(self) -> int | None:
        """The number of the selected turn among the matches; None if it is none."""
        return self.places.index(self.current) + 1 if self.current in self.places else None

    @property
    def previous(self) -> int | None:
        """The last match before the selected turn."""
        return max((place for place in self.places if place < (self.current or 0)), default=None)

    @property
    def next(self) -> int | None:
        """The first match after the selected turn."""
        return min((place for place in self.places if place > (self.current or 0)), default=None)


def session_values(details: SessionDetails, shown: Mapping[str, Any], selection: TurnSelection) -> dict[str, Any]:
    """Return every value of the template. `shown` comes from `read_selection`."""
    return {
        "project": details.header.project,
        "header": details.header,
        "details": details,
        "session": details.session,
        "run": details.session.run,
        "findings": details.findings,
        "worst_first": sorted(
            details.findings.findings, key=lambda finding: _SEVERITIES.get(finding.severity, len(_SEVERITIES))
        ),
        "link_turns": partial(link_turns, details.header),
        "link_event": partial(link_event, details.header),
        "selection": selection,
        "lasted": (details.header.last_at - details.header.first_at).total_seconds(),
        "tokens": _sum_known(details.session.input_tokens, details.session.output_tokens),
        **shown,
    }


def judgement_values(judgement: SessionJudgement, settings: SessionJudging) -> dict[str, Any]:
    """Return the template's values about the judgement of the session as a whole."""
    cap = "The cap on judging a session as a whole (sessionJudging.costCap in the policy) left no room for the call."
    failure = judgement.failure or ""
    reasons = {
        "open": "It is judged when it has ended.",
        "due": "It will be judged within minutes.",
        "pending": "The judge is being asked.",
        "not_drawn": f"Not drawn: by the policy, {share(settings.sample)} of the sessions are judged as a whole.",
        "no_turns": "Drawn, but not judged: it has no exchanges.",
        "no_judge": "Drawn, but this server has no judge.",
        "too_late": "Drawn, but not judged: no server with a judge read its end within a day.",
        "rejected": f"The request was rejected: {failure}.",
        "failed": f"The judge gave no verdict. {cap if failure == 'cost_cap' else WORDS['reasons'].get(failure, failure)}",
    }
    return {"judgement": judgement, "judgement_reason": reasons.get(judgement.state), "meanings": MEANINGS}


def read_selection(cursor: duckdb.DuckDBPyConnection, session: SessionHeader, selection: TurnSelection) -> dict[str, Any]:
    """Return the selected turns with their events, or the selected events of one part.

    A session without turns has only part 0.
    """
    part = selection.part
    if part is None and not session.has_turns:
        part = 0
    if part is None:
        return {"part": None, **_build_turns(cursor, session, selection)}
    return {"part": part, **_build_part(cursor, session, part, selection.step)}


def _build_turns(cursor: duckdb.DuckDBPyConnection, session: SessionHeader, selection: TurnSelection) -> dict[str, Any]:
    matches = _find_matches(cursor, session, selection) if selection.find else None
    turn = selection.turn or (matches and matches.current) or 1
    turns = TurnRange(
        skip=(turn - 1) // TURNS_PER_PAGE * TURNS_PER_PAGE,
        exchange=selection.exchange,
        limit=TURNS_PER_PAGE,
        anomalies=selection.only == "anomalies" and matches is None,
        max_text_length=MAX_TEXT_LENGTH if matches is None else MAX_SHOWN,
    )
    rows = session_turns(cursor, session, turns)
    parts = {row["place"] for row in rows}
    if rows and rows[0]["place"] == 1:
        parts.add(0)
    steps = _read_steps(cursor, session, parts, (1, MAX_STEPS_PER_TURN))
    total = rows[0]["places"] if rows else 0
    strip = turn_strip(cursor, session, MAX_STRIP_TURNS) if total > TURNS_PER_PAGE and selection.only is None else []
    first = rows[0]["row"] if rows else 1
    return {
        "opening": steps.get(0),
        "matches": matches,
        "turns": [_build_turn(session.project, row, steps.get(row["place"]), selection.find, matches) for row in rows],
        "turn_count": total,
        "strip": strip,
        "last_turn": max(total - 1, 0) // TURNS_PER_PAGE * TURNS_PER_PAGE + 1,
        "first_turn": first,
        "previous_turn": first - TURNS_PER_PAGE if first > TURNS_PER_PAGE else None,
        "next_turn": first + TURNS_PER_PAGE if first + TURNS_PER_PAGE <= total else None,
    }


def _find_matches(cursor: duckdb.DuckDBPyConnection, session: SessionHeader, selection: TurnSelection) -> Matches:
    rows = matching_turns(cursor, session, selection.find)
    places = [row["place"] for row in rows]
    return Matches(places=places, total=rows[0]["matches"] if rows else 0, current=selection.turn or next(iter(places), None))


def _build_part(cursor: duckdb.DuckDBPyConnection, session: SessionHeader, part: int, step: int) -> dict[str, Any]:
    first = (step - 1) // STEPS_PER_PAGE * STEPS_PER_PAGE + 1
    steps = _read_steps(cursor, session, {part}, (first, first + STEPS_PER_PAGE - 1)).get(part)
    events = steps.events if steps else 0
    return {
        "steps": steps,
        "first_step": first,
        "previous_step": first - STEPS_PER_PAGE if first > STEPS_PER_PAGE else None,
        "next_step": first + STEPS_PER_PAGE if first + STEPS_PER_PAGE <= events else None,
    }


def _read_steps(
    cursor: duckdb.DuckDBPyConnection, session: SessionHeader, parts: set[int], rows: tuple[int, int]
) -> dict[int, Steps]:
    steps = session_steps(cursor, session, parts, rows)
    offsets = [step["place"] for row in steps.values() for step in row["steps"]]
    payloads = read_payloads(cursor, session.connection, session.session_id, offsets, MAX_PAYLOAD_LENGTH)
    return {part: _build_steps(part, row, payloads) for part, row in steps.items()}


def _build_steps(part: int, row: Row, payloads: Mapping[int, Row]) -> Steps:
    seconds = _measure_calls(row["steps"], payloads)
    kinds = [f"{kind['count']} {kind['event']}" for kind in row["kinds"][:MAX_KINDS]]
    return Steps(
        part=part,
        events=row["events"],
        kinds=", ".join(kinds) + (", …" if len(row["kinds"]) > MAX_KINDS else ""),
        shown=[_build_step(step, payloads, seconds) for step in row["steps"]],
        acted_until=row["acted_until"],
    )


def _measure_calls(steps: Sequence[Row], payloads: Mapping[int, Row]) -> dict[int, float]:
    """Return the seconds of tool calls by the offset of their output: as reported, or from the call with the same id to it."""
    called_at: dict[str, datetime] = {}
    seconds = {}
    for step in steps:
        stored = payloads.get(step["place"], {})
        call_id, reported = stored.get("call_id"), stored.get("duration_ms")
        if step["event"] == "tool_call" and call_id is not None:
            called_at[call_id] = step["occurred_at"]
        elif step["event"] == "tool_output" and reported is not None and reported >= 0:
            seconds[step["place"]] = reported / 1000
        elif step["event"] == "tool_output" and call_id in called_at:
            seconds[step["place"]] = (step["occurred_at"] - called_at[call_id]).total_seconds()
    return seconds


def _build_step(step: Row, payloads: Mapping[int, Row], seconds: Mapping[int, float]) -> Row:
    stored = payloads.get(step["place"], {"payload": "", "characters": 0})
    is_cut = stored["characters"] > MAX_PAYLOAD_LENGTH
    return {
        **step,
        "is_failed": not is_cut and reports_failure({"event": step["event"], **stored}),
        "gist": summarize_payload(stored["payload"], is_cut=is_cut),
        "payload": stored["payload"] if is_cut else indent_payload(stored["payload"]),
        "characters": stored["characters"],
        "is_cut": is_cut,
        "seconds": seconds.get(step["place"]),
    }


def _build_turn(project: str, row: Row, steps: Steps | None, find: str, matches: Matches | None) -> Turn:
    def build_excerpt(name: str) -> Excerpt | None:
        if row[name] is None:
            return None
        address = _links.exchange_text(project, row["score_id"], name, row["said_at"]) if row["score_id"] else ""
        beginning = excerpt(row[name], address).text
        return Excerpt(beginning, row[f"{name}_length"] - len(beginning), address)

    texts = {name: build_excerpt(name) for name in TEXTS}
    acted_until = steps and steps.acted_until
    is_match = matches is not None and row["place"] in matches.places
    return Turn(
        row=row,
        tiers=[(name, row[score], SCORED if state is None else row[state]) for name, score, state in TIERS],
        user=texts["user_message"],
        thinking=texts["agent_thinking"],
        agent=texts["agent_response"],
        steps=steps,
        seconds=(acted_until - row["said_at"]).total_seconds() if acted_until and acted_until >= row["said_at"] else None,
        is_match=is_match,
        has_hidden_match=is_match and not any(text and find.lower() in text.text.lower() for text in texts.values()),
    )


def _sum_known(*numbers: int | None) -> int | None:
    """Return the sum of the known numbers; None if all are unknown."""
    summands = [number for number in numbers if number is not None]
    return sum(summands) if summands else None
