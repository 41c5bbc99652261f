"""The pages of a timeline hold every matching event once and in order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from service.pages.run_view import EVIDENCE, FAILED, EventSelection, RunEvents, timeline

NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)
TYPES = ("tool_call", "decision")


def events(types: list[str], evidence: set[int], failed: set[int]) -> RunEvents:
    """Return events of these types, with marks on evidence and failed events."""
    count = len(types)
    return RunEvents(
        ids=[f"event_{index}" for index in range(count)],
        types=types,
        tools=[None] * count,
        statuses=[None] * count,
        times=[NOON] * count,
        offsets=list(range(count)),
        evidence={index: ("skill_failure",) for index in sorted(evidence) if index < count},
        failed=frozenset(index for index in failed if index < count),
        reinforcing_edges=(),
        failures=("skill_failure",),
    )


INDEXES = st.sets(st.integers(0, 80), max_size=30)


@given(
    st.lists(st.sampled_from(TYPES), max_size=80),
    INDEXES,
    INDEXES,
    st.builds(EventSelection, type=st.sampled_from((None, *TYPES, "unknown")), only=st.sampled_from((None, EVIDENCE, FAILED))),
    st.integers(1, 9),
)
def test_the_pages_together_hold_all_matching_events(
    types: list[str], evidence: set[int], failed: set[int], selection: EventSelection, page_size: int
) -> None:
    """Every matching event is on exactly one page, and the links back lead to the previous page."""
    run_events = events(types, evidence, failed)
    page = timeline(run_events, selection, page_size)
    pages = [page]
    while page.next_number is not None:
        page = timeline(run_events, replace(selection, number=page.next_number), page_size)
        assert page.previous_number == pages[-1].indexes[0] + 1
        pages.append(page)
    filtered = {EVIDENCE: run_events.evidence, FAILED: run_events.failed, None: range(len(types))}[selection.only]
    matches = [index for index in sorted(filtered) if selection.type in (None, types[index])]
    assert [index for page in pages for index in page.indexes] == matches
    assert {page.total for page in pages} == {len(matches)}


@given(st.lists(st.sampled_from(TYPES), min_size=1, max_size=80), st.integers(1, 100), st.integers(1, 9))
def test_the_selected_event_is_on_the_page(types: list[str], number: int, page_size: int) -> None:
    """Nodes of the graph link to their event by number. A number beyond the last event selects the last page."""
    page = timeline(events(types, set(), set()), EventSelection(number=number), page_size)
    assert min(number, len(types)) - 1 in page.indexes
