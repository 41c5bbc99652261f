"""Values for the template of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from audit.exchanges.states import SCORED
from schemas.lazy import duckdb
from service.pages.runs.run_data import PAYLOAD_SHOWN, payloads_of, tells_of_failure
from service.pages.runs.view import gist, indented
from service.pages.sessions.finding_links import STEPS, event_link, finding_links
from service.pages.texts import Excerpt, excerpt
from service.read.sessions import (
    Part,
    Row,
    SessionPlace,
    SessionRead,
    session_steps,
    session_turns,
)
from service.text.links import Links

TURNS, STEPS_ALONE = 20, 100
"""Turns per page, and events per page of a single part."""
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
class Asked:
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


def session_values(read: SessionRead, shown: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """Return every value of the template; `shown` are the values of `shown_part`."""
    return {
        "project": read.place.project,
        "place": read.place,
        "read": read,
        "session": read.session,
        "run": read.session.run,
        "findings": read.findings,
        "links_of": partial(finding_links, read.place),
        "link_to_event": partial(event_link, read.place),
        "asked": asked,
        "tokens": _known(read.session.input_tokens, read.session.output_tokens),
        **shown,
    }


def shown_part(cursor: duckdb.DuckDBPyConnection, place: SessionPlace, asked: Asked) -> dict[str, Any]:
    """Return the requested part of the session: turns with their events, or only the events of one part.

    A session without turns has a single part of events.
    """
    alone = asked.part if asked.part is not None or place.has_turns else 0
    shown = _turns(cursor, place, asked) if alone is None else _alone(cursor, place, alone, asked.step)
    return {"alone": alone, **shown}


def _turns(cursor: duckdb.DuckDBPyConnection, place: SessionPlace, asked: Asked) -> dict[str, Any]:
    skip, anomalies = (asked.turn - 1) // TURNS * TURNS, asked.only == "anomalies"
    part = Part(skip=skip, exchange=asked.exchange, limit=TURNS, anomalies=anomalies, longest=TEXT_SHOWN)
    rows = session_turns(cursor, place, part)
    parts = {row["place"] for row in rows}
    if rows and rows[0]["place"] == 1:
        parts.add(0)
    steps = _steps(cursor, place, parts, (1, STEPS))
    total, first = (rows[0]["places"], rows[0]["row"]) if rows else (0, 1)
    return {
        "opening": steps.get(0),
        "turns": [_turn(place.project, row, steps.get(row["place"])) for row in rows],
        "turn_count": total,
        "first_turn": first,
        "previous_turn": first - TURNS if first > TURNS else None,
        "next_turn": first + TURNS if first + TURNS <= total else None,
    }


def _alone(cursor: duckdb.DuckDBPyConnection, place: SessionPlace, part: int, step: int) -> dict[str, Any]:
    first = (step - 1) // STEPS_ALONE * STEPS_ALONE + 1
    steps = _steps(cursor, place, {part}, (first, first + STEPS_ALONE - 1)).get(part)
    events = steps.events if steps else 0
    return {
        "steps": steps,
        "first_step": first,
        "previous_step": first - STEPS_ALONE if first > STEPS_ALONE else None,
        "next_step": first + STEPS_ALONE if first + STEPS_ALONE <= events else None,
    }


def _steps(cursor: duckdb.DuckDBPyConnection, place: SessionPlace, parts: set[int], rows: tuple[int, int]) -> dict[int, Steps]:
    found = session_steps(cursor, place, parts, rows)
    offsets = [step["place"] for row in found.values() for step in row["steps"]]
    payloads = payloads_of(cursor, place.connection, place.session_id, offsets, PAYLOAD_SHOWN)
    return {part: _part(part, row, payloads) for part, row in found.items()}


def _part(part: int, row: Row, payloads: Mapping[int, Row]) -> Steps:
    kinds = [f"{one['count']} {one['event']}" for one in row["kinds"][:KINDS]]
    return Steps(
        part=part,
        events=row["events"],
        kinds=", ".join(kinds) + (", …" if len(row["kinds"]) > KINDS else ""),
        shown=[_step(step, payloads) for step in row["steps"]],
    )


def _step(step: Row, payloads: Mapping[int, Row]) -> Row:
    kept = payloads.get(step["place"], {"payload": "", "characters": 0})
    is_cut = kept["characters"] > PAYLOAD_SHOWN
    return {
        **step,
        "is_failed": not is_cut and tells_of_failure({"event": step["event"], **kept}),
        "gist": gist(kept["payload"], is_cut=is_cut),
        "payload": kept["payload"] if is_cut else indented(kept["payload"]),
        "characters": kept["characters"],
        "is_cut": is_cut,
    }


def _turn(project: str, row: Row, steps: Steps | None) -> Turn:
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


def _known(*numbers: int | None) -> int | None:
    """Return the sum of the known values; None if all are unknown."""
    told = [one for one in numbers if one is not None]
    return sum(told) if told else None
