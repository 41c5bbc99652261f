"""A session whole: its turns with their scores, its events beside them, its run, its end, the incidents that name it.

Whatever a session holds, what is read is bounded: some turns, and some events of each. The session is looked up once: when it was, how
it ended, and whether it has events and a diagnosis. Every other query reads only what lies between these times, and none is asked for
what is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from service.read.evaluations import evaluation_page
from service.read.sessions.findings import SessionFindings, session_findings
from service.text.members import Document

Row = dict[str, Any]
WHOLE = 2**31 - 1
"""Characters of a text that is not cut."""
_EVALUATIONS = 20
_NO_TOTALS: Row = {
    **dict.fromkeys(
        [
            "exchanges",
            "unanswered",
            "scores",
            "scored",
            "anomalies",
            "flagged",
            "unknown_costs",
            "simulated",
            "events",
            "tool_calls",
        ],
        0,
    ),
    **dict.fromkeys(
        [
            "input_tokens",
            "output_tokens",
            "multi_user",
            "tier1",
            "tier2",
            "tier2_5",
            "tier3",
            "judge_usd",
            "event_tokens",
            "agent_usd",
        ]
    ),
    **dict.fromkeys(["models", "agents", "labels"], ()),
}
"""The totals of a session of which only signs of life came."""
_HOURS = (6, 72, 1440)
"""How far sessions beside one are looked for: farther where there is none nearer."""
_SIDES = {"hours_before": False, "hours_after": True}
"""The parameters of `session_beside` that say so, and whether the session that they find is the one after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlace:
    """The owner of a session: its project and connection, when it was, and whether it has ended."""

    project: str
    connection: str
    session_id: str
    first_at: datetime
    last_at: datetime
    """The event times between which it was."""
    has_turns: bool
    """Whether it has exchanges or scores."""
    events: int
    """How many it has."""
    diagnosis: int | None
    """Where its diagnosis is in its topic; None without one."""
    closed_at: datetime | None
    reason: str | None
    """When it last ended, and why; None if it never has."""
    is_open: bool
    """Whether something came of it since."""

    @property
    def named(self) -> Row:
        """Its name, as queries take it."""
        return {"project": self.project, "connection": self.connection, "session": self.session_id}

    @property
    def bounded(self) -> Row:
        """Its name and its times, as queries take them."""
        return {**self.named, "since": self.first_at, "until": self.last_at}

    @property
    def state(self) -> str:
        """Its state in one word: open or ended."""
        return "open" if self.is_open else "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The turns of a session to read: behind some, or those around an exchange."""

    skip: int = 0
    """Turns before them, of those asked for."""
    exchange: str | None = None
    limit: int = 20
    anomalies: bool = False
    """Only turns with an anomaly."""
    longest: int = WHOLE
    """Characters of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRead:
    """A session with everything but its turns and events."""

    place: SessionPlace
    totals: Row
    """A row of `session_totals`."""
    run: Row | None
    findings: SessionFindings
    """Of its run, with the turns and events that each is about."""
    incidents: Sequence[Row]
    evaluations: Sequence[Document]
    before: Row | None
    """The session of the same agent that began right before it."""
    after: Row | None


def session_places(
    cursor: duckdb.DuckDBPyConnection, session: str, projects: Sequence[str] | None = None, connection: str | None = None
) -> list[SessionPlace]:
    """Return whose session an id is, in some projects or in any, the one heard last first; ids are unique within a connection."""
    asked = {"session": session, "projects": None if projects is None else list(projects), "connection": connection}
    return [SessionPlace(session_id=session, **row) for row in query_rows(cursor, "session_places", asked)]


def read_session(cursor: duckdb.DuckDBPyConnection, place: SessionPlace) -> SessionRead:
    """Return everything about a session but its turns and events."""
    totals = next(iter(query_rows(cursor, "session_totals", place.bounded)), _NO_TOTALS)
    evaluations = evaluation_page(cursor, place.project, session=place.session_id, limit=_EVALUATIONS)
    before, after = _beside(cursor, place, totals["agents"][0] if totals["agents"] else None)
    run = _run(cursor, place)
    return SessionRead(
        place=place,
        totals=totals,
        run=run,
        findings=session_findings(cursor, place.bounded, run),
        incidents=query_rows(cursor, "session_incidents", place.named),
        evaluations=[one for one in evaluations if one["connection"] == place.connection],
        before=before,
        after=after,
    )


def session_turns(cursor: duckdb.DuckDBPyConnection, place: SessionPlace, part: Part) -> list[Row]:
    """Return some turns of a session, in order, as rows of the query of that name; none behind the last one."""
    asked = {
        **place.bounded,
        "anomalies": part.anomalies,
        "exchange": part.exchange,
        "skip": part.skip,
        "limit": part.limit,
        "longest": part.longest,
    }
    return query_rows(cursor, "session_turns", asked)


def session_steps(
    cursor: duckdb.DuckDBPyConnection, place: SessionPlace, parts: Collection[int], rows: tuple[int, int]
) -> dict[int, Row]:
    """Return the events of some parts of a session, by part: of each those of some rows, first to last.

    Part 0 is what happened before the first turn, and every event of a session without turns.
    """
    if not parts or not place.events:
        return {}
    asked = {**place.bounded, "parts": sorted(parts), "from_row": rows[0], "to_row": rows[1]}
    return {row["part"]: row for row in query_rows(cursor, "session_steps", asked)}


def run_findings(cursor: duckdb.DuckDBPyConnection, project: str, run: Mapping[str, Any]) -> SessionFindings:
    """Return the findings of a run, by its project and its connection and session: where each lies in the session."""
    for place in session_places(cursor, run["session_id"], [project], run["connection"]):
        return session_findings(cursor, place.bounded, _run(cursor, place))
    return SessionFindings()


def _run(cursor: duckdb.DuckDBPyConnection, place: SessionPlace) -> Row | None:
    if place.diagnosis is None:
        return None
    asked = {**place.named, "number": None, "place": place.diagnosis}
    return next(iter(query_rows(cursor, "one_run", asked)), None)


def _beside(cursor: duckdb.DuckDBPyConnection, place: SessionPlace, agent: str | None) -> tuple[Row | None, Row | None]:
    """Return the sessions of an agent right before and right after one."""
    asked = {**place.named, "agent": agent, "start": place.first_at}
    sides: dict[bool, Row] = {}
    for hours in _HOURS:
        missing = {name: 0 if is_after in sides else hours for name, is_after in _SIDES.items()}
        sides |= {row["is_after"]: row for row in query_rows(cursor, "session_beside", {**asked, **missing})}
        if len(sides) == len(_SIDES):
            break
    return sides.get(False), sides.get(True)
