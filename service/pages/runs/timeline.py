"""The timeline of a run: the events on the requested page. The address has a type, a filter, and an event."""

from __future__ import annotations

from dataclasses import dataclass

from service.pages.runs.run_data import RunEvents

PAGE = 50
"""Events of a page."""
EVIDENCE, FAILED = "evidence", "failed"
ONLY = (EVIDENCE, FAILED)
"""The filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The requested events."""

    type: str | None = None
    """Only events of a type."""
    only: str | None = None
    """One of ONLY."""
    at: int = 1
    """Number of an event, from 1: its page, or that of the first match after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A page of the timeline."""

    places: tuple[int, ...]
    """The events by their places."""
    total: int
    """Number of matching events on all pages."""
    start: int
    """Number of them before this page."""
    previous_at: int | None
    """Number of the first event of the previous page; None on the first page."""
    next_at: int | None
    """Number of the first event of the next page; None on the last page."""


def timeline(events: RunEvents, asked: Asked, page: int = PAGE) -> Timeline:
    """Return the page of the matching events that contains the event `at`."""
    fitting = [place for place in _chosen(events, asked.only) if asked.type is None or events.types[place] == asked.type]
    before = sum(place < asked.at - 1 for place in fitting)
    start = min(before, max(0, len(fitting) - 1)) // page * page
    shown = fitting[start : start + page]
    return Timeline(
        places=tuple(shown),
        total=len(fitting),
        start=start,
        previous_at=fitting[start - page] + 1 if start else None,
        next_at=fitting[start + page] + 1 if start + page < len(fitting) else None,
    )


def _chosen(events: RunEvents, only: str | None) -> range | list[int]:
    if only == EVIDENCE:
        return sorted(events.evidence)
    if only == FAILED:
        return sorted(events.failed)
    return range(len(events.ids))
