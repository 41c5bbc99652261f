"""Links from a finding to its turns and events."""

from __future__ import annotations

from service.read.sessions import Finding, MarkedEvent, MarkedTurn, SessionPlace
from service.text.links import Links

STEPS = 12
"""Maximum number of a turn's events in the conversation; the others are on a separate page."""
TURNS_NAMED = 20
"""Maximum number of turns that a finding names."""
_links = Links()


def finding_links(place: SessionPlace, finding: Finding) -> list[tuple[int, str, int]]:
    """Return the first turns of a finding: place, address, and number of the finding's events."""
    return [(turn.turn, _turn_link(place, turn), turn.event_count) for turn in finding.turns[:TURNS_NAMED]]


def _turn_link(place: SessionPlace, turn: MarkedTurn) -> str:
    """Return the address of a marked turn, or of its first marked event for events outside of turns."""
    if not turn.turn:
        return event_link(place, 0, turn.events[0])
    return _links.session(place.project, place.session_id, place.connection, fragment=f"turn-title-{turn.turn}", turn=turn.turn)


def event_link(place: SessionPlace, turn: int, event: MarkedEvent) -> str:
    """Return the address of an event: in the conversation, or on the page of its turn's events if there are many."""
    asked = {"turn": turn or 1} if place.has_turns and event.row <= STEPS else {"part": turn, "step": event.row}
    return _links.session(place.project, place.session_id, place.connection, fragment=f"step-{event.place}", **asked)
