"""The layout of a causal graph: nothing overlaps and nothing is lost, for any session."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from service.pages.graph import (
    COLUMNS,
    FAILURE,
    LANE,
    LANES,
    Addresses,
    Drawing,
    GraphEvents,
    Layout,
    Reinforcing,
    draw,
    layout,
)

FAILURES = ("infinite_tool_loop", "cost_explosion", "skill_failure")
TYPES = ("tool_call", "tool_output", "<b>", "\u202eodd", *(f"own {number}" for number in range(9)))
SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def sessions(draw_value: st.DrawFn) -> GraphEvents:
    """A part of a session, with evidence of any failure anywhere, outside of the part, too."""
    first, count = draw_value(st.integers(0, 50)), draw_value(st.integers(0, 400))
    places = st.integers(0, first + count + 20)
    evidence = draw_value(st.dictionaries(places, st.lists(st.sampled_from(FAILURES), min_size=1, unique=True), max_size=60))
    pairs = draw_value(st.lists(st.tuples(places, places, st.sampled_from(FAILURES)), max_size=40))
    types = draw_value(st.lists(st.sampled_from(TYPES), min_size=count, max_size=count))
    return GraphEvents(
        types=types,
        first=first,
        evidence=evidence,
        failed=draw_value(st.frozensets(places, max_size=30)),
        reinforcing=tuple(Reinforcing(*pair) for pair in pairs),
        failures=FAILURES,
    )


def column_of(placed: Layout) -> dict[int, int]:
    """The column of each event."""
    return {
        place: index for index, column in enumerate(placed.columns) for place in range(column.first, column.last + 1)
    }  # fmt: skip


def drawn(placed: Layout) -> Drawing:
    """The drawing of a layout, with addresses that say what they lead to."""
    addresses = Addresses(
        event=lambda place: f"#event-{place}", block=lambda first, last: f"#{first}-{last}", failure=lambda name: f"#{name}"
    )
    return draw(placed, lambda place: f"event <{place}>", lambda name: name.replace("_", " "), addresses)


@given(sessions(), st.integers(2, COLUMNS))
def test_every_event_is_in_one_column_in_its_order(events: GraphEvents, columns: int) -> None:
    """Every event must be in the drawing, on its own or in a block."""
    placed = layout(events, columns)
    assert list(range(events.first, events.first + len(events.types))) == [
        place for column in placed.columns for place in range(column.first, column.last + 1)
    ]
    assert len(placed.columns) <= columns
    assert [column.count for column in placed.columns] == [sum(n for _, n in column.lanes) for column in placed.columns]
    assert len(placed.lanes) <= LANES + 1


@given(sessions(), st.integers(2, COLUMNS))
def test_nothing_overlaps(events: GraphEvents, columns: int) -> None:
    """Columns keep apart from left to right, lanes and failures from top to bottom, and all are within the drawing."""
    placed = layout(events, columns)
    assert all(earlier.x + earlier.width < later.x for earlier, later in pairwise(placed.columns))
    assert all(column.x >= 0 and column.x + column.width <= placed.width for column in placed.columns)
    lanes = [placed.lane_y(lane) for lane in range(len(placed.lanes))]
    failures = [placed.failure_y(failure) for failure in range(len(placed.failures))]
    assert all(later - earlier >= LANE for earlier, later in pairwise(lanes))
    assert all(later - earlier >= FAILURE for earlier, later in pairwise(failures))
    assert all(y <= placed.height for y in (*lanes, *failures))
    assert not lanes or min(failures) - max(lanes) > LANE // 2


@given(sessions(), st.integers(2, COLUMNS))
def test_all_evidence_is_drawn(events: GraphEvents, columns: int) -> None:
    """Each event that is evidence is counted where its column meets the failure, once."""
    placed = layout(events, columns)
    found = column_of(placed)
    for index, name in enumerate(placed.failures):
        wanted = [0] * len(placed.columns)
        for place, names in events.evidence.items():
            if place in found and name in names:
                wanted[found[place]] += 1
        seen = [0] * len(placed.columns)
        for port in placed.ports:
            if port.failure == index:
                seen[port.column] += port.count
        assert seen == wanted


@given(sessions(), st.integers(2, COLUMNS))
def test_every_edge_ends_at_a_node(events: GraphEvents, columns: int) -> None:
    """A line that drops to a failure begins within its column, and an arc goes from port to port of one failure."""
    placed = layout(events, columns)
    for port in placed.ports:
        column = placed.columns[port.column]
        assert column.x <= port.x <= column.x + column.width
        assert placed.failure_y(port.failure) == port.y
    for arc in placed.arcs:
        assert arc.source != arc.target
        assert placed.ports[arc.source].failure == placed.ports[arc.target].failure
    assert len(placed.arcs) == len(set(placed.arcs))


@given(sessions(), st.integers(2, COLUMNS))
def test_every_edge_between_drawn_evidence_of_different_columns_is_an_arc(events: GraphEvents, columns: int) -> None:
    """An edge within a block is in the block; every other one is counted in an arc, repeated ones once."""
    placed = layout(events, columns)
    found = column_of(placed)
    edges = {
        edge
        for edge in events.reinforcing
        if all(place in found and edge.failure in events.evidence.get(place, ()) for place in edge[:2])
        and found[edge.source] != found[edge.target]
    }
    # A block may hold other evidence of the failure, at whose port an edge of events that are none would end.
    assert len(edges) <= sum(arc.edges for arc in placed.arcs)


@given(sessions())
def test_opening_blocks_ends_at_single_events(events: GraphEvents) -> None:
    """Opening a block must always lead to smaller ones."""
    placed = layout(events, 4)
    for column in placed.columns:
        assert column.count < len(events.types) or not column.is_block


@given(sessions())
def test_the_same_session_is_drawn_alike(events: GraphEvents) -> None:
    """An unchanged page must have the same bytes, so that it is not sent again."""
    assert drawn(layout(events)) == drawn(layout(events))


@given(sessions(), st.integers(2, COLUMNS))
def test_what_is_drawn_is_whole_and_nothing_of_it_is_markup_of_others(events: GraphEvents, columns: int) -> None:
    """Types of events are texts of agents: in titles and names they are only that. Every node is a link with a name."""
    placed = layout(events, columns)
    images = drawn(placed)
    for image in (images.names, images.drawing, images.ends):
        root = ET.fromstring(f'<x xmlns="http://www.w3.org/2000/svg">{image}</x>'.replace(" data-node", ""))  # noqa: S314
        assert {"svg", "a", "title", "text", "line", "path", "circle", "rect", "x"} >= {
            one.tag.removeprefix(SVG) for one in root.iter()
        }
        assert all(link.get("aria-label") and link.get("href", "").startswith("#") for link in root.iter(f"{SVG}a"))
        assert not re.search(r"style=|\son\w+=|\u202e", str(image))
    assert len(placed.columns) == images.drawing.count("data-node")
    assert len(placed.failures) == images.ends.count("<a ")


def test_dull_events_become_a_block_between_what_is_telling() -> None:
    """Evidence is drawn one by one, and ordinary events between them as blocks with their number."""
    events = GraphEvents(
        types=["tool_call"] * 500, evidence={100: ["skill_failure"], 300: ["skill_failure"]}, failed={400},
        reinforcing=[Reinforcing(100, 300, "skill_failure")], failures=["skill_failure"],
    )  # fmt: skip
    placed = layout(events)
    assert [(column.first, column.last) for column in placed.columns] == [
        (0, 99),
        (100, 100),
        (101, 299),
        (300, 300),
        (301, 399),
        (400, 400),
        (401, 499),
    ]
    assert [(port.column, port.count) for port in placed.ports] == [(1, 1), (3, 1)]
    assert [tuple(arc) for arc in placed.arcs] == [(0, 1, 1)]


def test_a_part_without_anything_telling_is_cut_evenly() -> None:
    """Ordinary events must be reachable as well."""
    placed = layout(GraphEvents(types=["decision"] * 1000, first=2000))
    assert len(placed.columns) == COLUMNS
    assert {column.count for column in placed.columns} == {10}


def test_a_drawing_takes_time_in_line_with_its_events() -> None:
    """Ten times the events take ten times as long, not a hundred times."""

    def seconds(count: int) -> float:
        evidence = {place: ["cost_explosion"] for place in range(0, count, 7)}
        edges = [Reinforcing(*pair, "cost_explosion") for pair in pairwise(evidence)]
        events = GraphEvents(
            types=[TYPES[place % 5] for place in range(count)], evidence=evidence, reinforcing=edges, failures=FAILURES
        )
        best = []
        for _ in range(3):
            start = time.process_time()
            drawn(layout(events))
            best.append(time.process_time() - start)
        return min(best)

    assert seconds(100_000) < 40 * seconds(10_000)
