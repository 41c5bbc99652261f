"""Pages of a timeline: every event that is asked for is on one of them, in its order."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from service.pages.run_view import EVIDENCE, FAILED, EventSelection, RunEvents, timeline

NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)
TYPES = ("tool_call", "decision")


def events(types: list[str], evidence: set[int], failed: set[int]) -> RunEvents:
    """Events of these types, with those marked."""
    count = len(types)
    return RunEvents(
        ids=[f"event_{place}" for place in range(count)],
        types=types,
        tools=[None] * count,
        statuses=[None] * count,
        times=[NOON] * count,
        offsets=list(range(count)),
        evidence={place: ("skill_failure",) for place in sorted(evidence) if place < count},
        failed=frozenset(place for place in failed if place < count),
        reinforcing=(),
        failures=("skill_failure",),
    )


PLACES = st.sets(st.integers(0, 80), max_size=30)


@given(
    st.lists(st.sampled_from(TYPES), max_size=80),
    PLACES,
    PLACES,
    st.tuples(st.sampled_from((None, *TYPES, "unheard of")), st.sampled_from((None, EVIDENCE, FAILED))),
    st.integers(1, 9),
)
def test_the_pages_together_are_what_was_asked_for(
    types: list[str], evidence: set[int], failed: set[int], asked_for: tuple[str | None, str | None], page: int
) -> None:
    """Going on from page to page meets every event once; going back meets the same pages."""
    wanted, only = asked_for
    found = events(types, evidence, failed)
    kept = {EVIDENCE: set(found.evidence), FAILED: set(found.failed), None: set(range(len(types)))}[only]
    asked = EventSelection(type=wanted, only=only)
    shown = timeline(found, asked, page)
    seen, starts = list(shown.places), [shown]
    while shown.next_at is not None:
        shown = timeline(found, EventSelection(type=wanted, only=only, at=shown.next_at), page)
        seen.extend(shown.places)
        assert shown.previous_at == starts[-1].places[0] + 1
        starts.append(shown)
    assert seen == [place for place in sorted(kept) if wanted in (None, types[place])]
    assert {one.total for one in starts} == {len(seen)}


@given(st.lists(st.sampled_from(TYPES), min_size=1, max_size=80), st.integers(1, 100), st.integers(1, 9))
def test_the_page_of_an_event_holds_it(types: list[str], at: int, page: int) -> None:
    """A node of the graph leads to its event; a number beyond the last leads to the last page."""
    places = timeline(events(types, set(), set()), EventSelection(at=at), page).places
    assert min(at, len(types)) - 1 in places
