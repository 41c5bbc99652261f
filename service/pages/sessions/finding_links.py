"""Links from a finding to the turns and events of its session that it is about."""

from __future__ import annotations

from service.read.sessions import Finding, MarkedEvent, MarkedTurn, SessionPlace
from service.text.links import Links

STEPS = 12
"""Events of a turn in the conversation: the first ones; the others have a page of their own."""
TURNS_NAMED = 20
"""Turns that a finding names: the first ones."""
_links = Links()


def finding_links(place: SessionPlace, finding: Finding) -> list[tuple[int, str, int]]:
    """Return the first turns in which a finding lies: its place, its address, and how many of the finding's events it has."""
    return [(turn.turn, _turn_link(place, turn), turn.event_count) for turn in finding.turns[:TURNS_NAMED]]


def _turn_link(place: SessionPlace, turn: MarkedTurn) -> str:
    """Return the address of a marked turn; of its first marked event where that is not in a turn."""
    if not turn.turn:
        return event_link(place, 0, turn.events[0])
    return _links.session(place.project, place.session_id, place.connection, fragment=f"turn-title-{turn.turn}", turn=turn.turn)


def event_link(place: SessionPlace, turn: int, event: MarkedEvent) -> str:
    """Return the address of an event: in the conversation, or on the page of its turn's events where there are many."""
    asked = {"turn": turn or 1} if place.has_turns and event.row <= STEPS else {"part": turn, "step": event.row}
    return _links.session(place.project, place.session_id, place.connection, fragment=f"step-{event.place}", **asked)
