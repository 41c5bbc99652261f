"""The layout of the causal graph: nothing overlaps and no event is lost."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from service.pages.graph import (
    FAILURE_HEIGHT,
    LANE_HEIGHT,
    MAX_COLUMNS,
    MAX_LANES,
    Drawing,
    GraphEvents,
    GraphLinks,
    Layout,
    ReinforcingEdge,
    draw_graph,
    lay_out_graph,
)

FAILURES = ("infinite_tool_loop", "cost_explosion", "skill_failure")
TYPES = ("tool_call", "tool_output", "<b>", "\u202eodd", *(f"own {number}" for number in range(9)))
SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def sessions(draw_value: st.DrawFn) -> GraphEvents:
    """Return part of a session, with evidence inside and outside of that part."""
    first, count = draw_value(st.integers(0, 50)), draw_value(st.integers(0, 400))
    indexes = st.integers(0, first + count + 20)
    evidence = draw_value(st.dictionaries(indexes, st.lists(st.sampled_from(FAILURES), min_size=1, unique=True), max_size=60))
    pairs = draw_value(st.lists(st.tuples(indexes, indexes, st.sampled_from(FAILURES)), max_size=40))
    types = draw_value(st.lists(st.sampled_from(TYPES), min_size=count, max_size=count))
    return GraphEvents(
        types=types,
        first=first,
        evidence=evidence,
        failed=draw_value(st.frozensets(indexes, max_size=30)),
        reinforcing_edges=tuple(ReinforcingEdge(*pair) for pair in pairs),
        failures=FAILURES,
    )


def column_of(layout: Layout) -> dict[int, int]:
    """Return the column of each event."""
    return {
        index: number for number, column in enumerate(layout.columns) for index in range(column.first, column.last + 1)
    }  # fmt: skip


def drawn(layout: Layout) -> Drawing:
    """Return the drawing of a layout, with links that name their targets."""
    links = GraphLinks(
        event=lambda index: f"#event-{index}", block=lambda first, last: f"#{first}-{last}", failure=lambda name: f"#{name}"
    )
    return draw_graph(layout, lambda index: f"event <{index}>", lambda name: name.replace("_", " "), links)


@given(sessions(), st.integers(2, MAX_COLUMNS))
def test_every_event_is_in_exactly_one_column(events: GraphEvents, columns: int) -> None:
    """Every event must be in the drawing, on its own or in a block."""
    layout = lay_out_graph(events, columns)
    assert list(range(events.first, events.first + len(events.types))) == [
        index for column in layout.columns for index in range(column.first, column.last + 1)
    ]
    assert len(layout.columns) <= columns
    assert [column.count for column in layout.columns] == [sum(n for _, n in column.lanes) for column in layout.columns]
    assert len(layout.lanes) <= MAX_LANES + 1


@given(sessions(), st.integers(2, MAX_COLUMNS))
def test_nothing_overlaps(events: GraphEvents, columns: int) -> None:
    """Overlapping columns, lanes or failures would be unreadable."""
    layout = lay_out_graph(events, columns)
    assert all(earlier.x + earlier.width < later.x for earlier, later in pairwise(layout.columns))
    assert all(column.x >= 0 and column.x + column.width <= layout.width for column in layout.columns)
    lanes = [layout.lane_y(lane) for lane in range(len(layout.lanes))]
    failures = [layout.failure_y(failure) for failure in range(len(layout.failures))]
    assert all(later - earlier >= LANE_HEIGHT for earlier, later in pairwise(lanes))
    assert all(later - earlier >= FAILURE_HEIGHT for earlier, later in pairwise(failures))
    assert all(y <= layout.height for y in (*lanes, *failures))
    assert not lanes or min(failures) - max(lanes) > LANE_HEIGHT // 2


@given(sessions(), st.integers(2, MAX_COLUMNS))
def test_all_evidence_is_drawn(events: GraphEvents, columns: int) -> None:
    """Every evidence event counts once, at the port of its column and failure."""
    layout = lay_out_graph(events, columns)
    columns_by_index = column_of(layout)
    for failure, name in enumerate(layout.failures):
        evidence_counts = [0] * len(layout.columns)
        for index, names in events.evidence.items():
            if index in columns_by_index and name in names:
                evidence_counts[columns_by_index[index]] += 1
        port_counts = [0] * len(layout.columns)
        for port in layout.ports:
            if port.failure == failure:
                port_counts[port.column] += port.count
        assert port_counts == evidence_counts


@given(sessions(), st.integers(2, MAX_COLUMNS))
def test_every_edge_ends_at_a_node(events: GraphEvents, columns: int) -> None:
    """An edge that ends elsewhere would connect the wrong events."""
    layout = lay_out_graph(events, columns)
    for port in layout.ports:
        column = layout.columns[port.column]
        assert column.x <= port.x <= column.x + column.width
        assert layout.failure_y(port.failure) == port.y
    for arc in layout.arcs:
        assert arc.source != arc.target
        assert layout.ports[arc.source].failure == layout.ports[arc.target].failure
    assert len(layout.arcs) == len(set(layout.arcs))


@given(sessions(), st.integers(2, MAX_COLUMNS))
def test_every_edge_between_drawn_evidence_of_different_columns_is_an_arc(events: GraphEvents, columns: int) -> None:
    """Only edges within a block have no arc."""
    layout = lay_out_graph(events, columns)
    columns_by_index = column_of(layout)
    edges = {
        edge
        for edge in events.reinforcing_edges
        if all(index in columns_by_index and edge.failure in events.evidence.get(index, ()) for index in edge[:2])
        and columns_by_index[edge.source] != columns_by_index[edge.target]
    }
    # An edge of an event that is no evidence can still end at a port of its block, so there may be more edges than these.
    assert len(edges) <= sum(arc.edges for arc in layout.arcs)


@given(sessions())
def test_opening_blocks_ends_at_single_events(events: GraphEvents) -> None:
    """Opening a block must always lead to smaller ones."""
    layout = lay_out_graph(events, 4)
    for column in layout.columns:
        assert column.count < len(events.types) or not column.is_block


@given(sessions())
def test_the_drawing_is_deterministic(events: GraphEvents) -> None:
    """An unchanged page must have the same bytes, so that it is not sent again."""
    assert drawn(lay_out_graph(events)) == drawn(lay_out_graph(events))


@given(sessions(), st.integers(2, MAX_COLUMNS))
def test_event_types_cannot_inject_markup(events: GraphEvents, columns: int) -> None:
    """Agents choose the event types, so titles and labels must escape them."""
    layout = lay_out_graph(events, columns)
    images = drawn(layout)
    for image in (images.names, images.events, images.failures):
        root = ET.fromstring(f'<x xmlns="http://www.w3.org/2000/svg">{image}</x>'.replace(" data-node", ""))  # noqa: S314
        assert {"svg", "a", "title", "text", "line", "path", "circle", "rect", "x"} >= {
            element.tag.removeprefix(SVG) for element in root.iter()
        }
        assert all(link.get("aria-label") and link.get("href", "").startswith("#") for link in root.iter(f"{SVG}a"))
        assert not re.search(r"style=|\son\w+=|\u202e", str(image))
    assert len(layout.columns) == images.events.count("data-node")
    assert len(layout.failures) == images.failures.count("<a ")


def test_ordinary_events_between_evidence_become_blocks() -> None:
    """Evidence and failures stay visible one by one in a long session."""
    events = GraphEvents(
        types=["tool_call"] * 500, evidence={100: ["skill_failure"], 300: ["skill_failure"]}, failed={400},
        reinforcing_edges=[ReinforcingEdge(100, 300, "skill_failure")], failures=["skill_failure"],
    )  # fmt: skip
    layout = lay_out_graph(events)
    assert [(column.first, column.last) for column in layout.columns] == [
        (0, 99),
        (100, 100),
        (101, 299),
        (300, 300),
        (301, 399),
        (400, 400),
        (401, 499),
    ]
    assert [(port.column, port.count) for port in layout.ports] == [(1, 1), (3, 1)]
    assert [tuple(arc) for arc in layout.arcs] == [(0, 1, 1)]


def test_a_session_without_evidence_is_divided_evenly() -> None:
    """Ordinary events must be reachable, too."""
    layout = lay_out_graph(GraphEvents(types=["decision"] * 1000, first=2000))
    assert len(layout.columns) == MAX_COLUMNS
    assert {column.count for column in layout.columns} == {10}


def test_drawing_takes_linear_time() -> None:
    """A session of 100,000 events must not take minutes."""

    def seconds(count: int) -> float:
        evidence = {index: ["cost_explosion"] for index in range(0, count, 7)}
        edges = [ReinforcingEdge(*pair, "cost_explosion") for pair in pairwise(evidence)]
        events = GraphEvents(
            types=[TYPES[index % 5] for index in range(count)], evidence=evidence, reinforcing_edges=edges, failures=FAILURES
        )
        durations = []
        for _ in range(3):
            start = time.process_time()
            drawn(lay_out_graph(events))
            durations.append(time.process_time() - start)
        return min(durations)

    assert seconds(100_000) < 40 * seconds(10_000)
