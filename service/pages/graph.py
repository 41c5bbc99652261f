"""The causal graph of a session as SVG.

Time runs from left to right. Each event type has a lane, and each failure a row below the lanes. The edges are those of the diagnosis:
an event `precedes` the next one, evidence `causes` its failure, and `reinforces` the next evidence of the same failure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup, escape

from service.pages.charts import visible


@dataclass(frozen=True, slots=True)
class Element:
    """A template of markup, formatted like `Markup.format` but five times as fast."""

    markup: str

    def format(self, *values: object) -> Markup:
        """Fill in the values. Values that are not markup are escaped."""
        return Markup(self.markup.format(*map(escape, values)))  # noqa: S704 - a fixed template and escaped values


MAX_COLUMNS = 100
"""A graph with more events than this merges some of them into blocks."""
MAX_LANES = 8
"""The most frequent event types get a lane each; all others share one more."""
OTHER_TYPES = "other types"
MIN_BLOCK_EVENTS = 3
"""Minimum number of consecutive ordinary events that become a block."""
# Sizes are in SVG user units.
NAMES_WIDTH = 136
"""Width of the image with the lane names, at the left."""
FAILURES_WIDTH = 34
"""Width of the image with the failure nodes, at the right."""
LANE_HEIGHT = 26
FAILURE_HEIGHT = 40
TOP_MARGIN = 8
EVENT_WIDTH = 16
BLOCK_WIDTH = 32
COLUMN_GAP = 8
_PORT_SPACING = 4
"""Distance between the ports of one column, one port per failure."""
Group = tuple[int, int]
"""Indexes of the first and last event of a column."""


class ReinforcingEdge(NamedTuple):
    """A `reinforces` edge: `target` is the next evidence of the failure after `source`. Both are event indexes."""

    source: int
    target: int
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEvents:
    """The events to draw. An event's index is its position in the session, from 0."""

    types: Sequence[str]
    """The type of each drawn event."""
    first: int = 0
    """Index of the first drawn event."""
    evidence: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Failures by the index of an event that is evidence of them."""
    failed: Collection[int] = frozenset()
    """Indexes of events that report a failure."""
    reinforcing_edges: Iterable[ReinforcingEdge] = ()
    failures: Sequence[str] = ()
    """All failures of the session, in the order of their rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """An event, or a block of consecutive events."""

    first: int
    """Index of its first event."""
    last: int
    """Index of its last event."""
    x: int
    width: int
    lanes: tuple[tuple[int, int], ...]
    """Lanes of its events, each with its number of events."""
    failed: int
    """Number of its events that report a failure."""

    @property
    def is_block(self) -> bool:
        """Whether the column has more than one event."""
        return self.last > self.first

    @property
    def count(self) -> int:
        """The number of its events."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The end of a column's `causes` edges in the row of a failure; a block can have several."""

    column: int
    failure: int
    x: int
    y: int
    count: int


class Arc(NamedTuple):
    """An arc between two ports. It stands for one or more `reinforces` edges."""

    source: int
    target: int
    edges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Positions of everything in the graph, in SVG user units."""

    columns: tuple[Column, ...]
    lanes: tuple[str, ...]
    failures: tuple[str, ...]
    ports: tuple[Port, ...]
    arcs: tuple[Arc, ...]
    width: int
    height: int

    def lane_y(self, lane: int) -> int:
        """Return the vertical centre of a lane."""
        return TOP_MARGIN + lane * LANE_HEIGHT + LANE_HEIGHT // 2

    def failure_y(self, failure: int) -> int:
        """Return the vertical position of a failure's trunk."""
        return _failure_y(len(self.lanes), failure)


def lay_out_graph(events: GraphEvents, max_columns: int = MAX_COLUMNS) -> Layout:
    """Lay out events, failures and the edges between them in at most `max_columns` columns (at least 2)."""
    lanes = _choose_lanes(events)
    columns = tuple(_place_columns(events, _group_events(events, max_columns), lanes))
    ports = tuple(_place_ports(events, columns, len(lanes)))
    return Layout(
        columns=columns,
        lanes=lanes,
        failures=tuple(events.failures),
        ports=ports,
        arcs=tuple(_place_arcs(events, columns, ports)),
        width=columns[-1].x + columns[-1].width + COLUMN_GAP if columns else COLUMN_GAP,
        height=_failure_y(len(lanes), len(events.failures)) - FAILURE_HEIGHT // 2 + TOP_MARGIN,
    )


def _failure_y(lanes: int, failure: int) -> int:
    return TOP_MARGIN + lanes * LANE_HEIGHT + failure * FAILURE_HEIGHT + FAILURE_HEIGHT * 3 // 4


def _choose_lanes(events: GraphEvents) -> tuple[str, ...]:
    """Return the event types that get a lane: types of evidence first, then the most frequent; and OTHER_TYPES if any are left."""
    counts = Counter(events.types)
    evidence_types = {events.types[index - events.first] for index in events.evidence if _is_drawn(events, index)}
    ranked = sorted(counts, key=lambda name: (name not in evidence_types, -counts[name], name))
    chosen = set(ranked[:MAX_LANES])
    lanes = tuple(name for name in counts if name in chosen)
    return lanes if len(lanes) == len(counts) else (*lanes, OTHER_TYPES)


def _is_drawn(events: GraphEvents, index: int) -> bool:
    return 0 <= index - events.first < len(events.types)


def _group_events(events: GraphEvents, max_columns: int) -> list[Group]:
    """Divide the events into at most `max_columns` columns."""
    indexes = range(events.first, events.first + len(events.types))
    if len(indexes) <= max_columns:
        return [(index, index) for index in indexes]
    groups = list(_split_blocks(events, indexes))
    if len(groups) == 1:
        size = math.ceil(len(indexes) / max_columns)
        return [(start, min(start + size, indexes.stop) - 1) for start in indexes[::size]]
    # Joining neighbours in equal steps first bounds the work below to twice as many groups as columns.
    step = max(1, len(groups) // max_columns)
    joined = []
    for start in range(0, len(groups), step):
        members = groups[start : start + step]
        joined.append((members[0][0], members[-1][1]))
    return _merge_groups(events, joined, max_columns)


def _split_blocks(events: GraphEvents, indexes: range) -> Iterable[Group]:
    """Yield evidence and failed events one by one, and longer runs of ordinary events as blocks."""
    start = indexes.start
    for index in (*sorted({*events.evidence, *events.failed}.intersection(indexes)), indexes.stop):
        if index - start >= MIN_BLOCK_EVENTS:
            yield start, index - 1
        else:
            yield from ((ordinary, ordinary) for ordinary in range(start, index))
        if index < indexes.stop:
            yield index, index
        start = index + 1


def _merge_groups(events: GraphEvents, groups: list[Group], max_columns: int) -> list[Group]:
    """Merge neighbouring groups down to the limit. The pair with the least evidence is merged first, then the one with the fewest events."""
    merged = list(groups)
    evidence = sorted(events.evidence)
    evidence_counts = [_count_within(evidence, group) for group in merged]

    def merge_cost(left: int) -> tuple[int, int, int]:
        return evidence_counts[left] + evidence_counts[left + 1], merged[left + 1][1] - merged[left][0], left

    while len(merged) > max_columns:
        left = min(range(len(merged) - 1), key=merge_cost)
        merged[left : left + 2] = [(merged[left][0], merged[left + 1][1])]
        evidence_counts[left : left + 2] = [evidence_counts[left] + evidence_counts[left + 1]]
    return merged


def _place_columns(events: GraphEvents, groups: Iterable[Group], lanes: Sequence[str]) -> Iterable[Column]:
    """Yield the columns from left to right."""
    lane_of = {name: lane for lane, name in enumerate(lanes)}
    failed = sorted(events.failed)
    x = COLUMN_GAP
    for first, last in groups:
        lane_counts: Counter[int] = Counter()
        for name, count in Counter(events.types[first - events.first : last + 1 - events.first]).items():
            lane_counts[lane_of.get(name, len(lanes) - 1)] += count
        width = EVENT_WIDTH if first == last else BLOCK_WIDTH
        yield Column(
            first=first,
            last=last,
            x=x,
            width=width,
            lanes=tuple(sorted(lane_counts.items())),
            failed=_count_within(failed, (first, last)),
        )
        x += width + COLUMN_GAP


def _count_within(indexes: Sequence[int], group: Group) -> int:
    """Return how many of the sorted event indexes lie in a group."""
    return bisect_right(indexes, group[1]) - bisect_left(indexes, group[0])


def _find_column(columns: Sequence[Column], index: int) -> int | None:
    """Return the number of the column that has an event; None if the event is not drawn."""
    column = bisect_right(columns, index, key=lambda column: column.first) - 1
    return column if column >= 0 and index <= columns[column].last else None


def _place_ports(events: GraphEvents, columns: Sequence[Column], lanes: int) -> Iterable[Port]:
    """Yield the ports, ordered by column and then by failure."""
    row_of = {name: row for row, name in enumerate(events.failures)}
    counts: Counter[tuple[int, int]] = Counter()
    for index, names in events.evidence.items():
        column = _find_column(columns, index)
        if column is not None:
            counts.update((column, row_of[name]) for name in names if name in row_of)
    leftmost = -_PORT_SPACING * (len(row_of) - 1) // 2
    for (column, failure), count in sorted(counts.items()):
        x = columns[column].x + columns[column].width // 2 + leftmost + _PORT_SPACING * failure
        yield Port(column=column, failure=failure, x=x, y=_failure_y(lanes, failure), count=count)


def _place_arcs(events: GraphEvents, columns: Sequence[Column], ports: Sequence[Port]) -> Iterable[Arc]:
    """Return the arcs in the order of their edges. Edges within a block or to an event outside the drawing have none."""
    row_of = {name: row for row, name in enumerate(events.failures)}
    port_of: dict[tuple[int | None, int | None], int] = {
        (port.column, port.failure): number for number, port in enumerate(ports)
    }
    counts: Counter[tuple[int, int]] = Counter()
    for edge in dict.fromkeys(events.reinforcing_edges):
        failure = row_of.get(edge.failure)
        source = port_of.get((_find_column(columns, edge.source), failure))
        target = port_of.get((_find_column(columns, edge.target), failure))
        if source is not None and target is not None and source != target:
            counts[source, target] += 1
    return (Arc(source, target, count) for (source, target), count in counts.items())


_RADIUS = 6
"""Radius of an event."""
_FAILURE_RADIUS = 9
_PORT_RADIUS = 3
_MAX_NAME_LENGTH = 20
"""Maximum length of a lane name, in characters; a tooltip has the full name."""
_MIN_ARC_HEIGHT = 5
_MAX_ARC_HEIGHT = 15
_BASELINE_OFFSET = 4
"""Distance from the baseline of a text to its vertical centre."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLinks:
    """Functions that return the addresses of nodes."""

    event: Callable[[int], str]
    """Takes the index of an event."""
    block: Callable[[int, int], str]
    """Takes the indexes of the first and last event of a block."""
    failure: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The graph as three images side by side: lane names, events, and failure nodes."""

    names: Markup
    events: Markup
    failures: Markup


def draw_graph(
    layout: Layout, describe: Callable[[int], str], name_failure: Callable[[str], str], links: GraphLinks
) -> Drawing:
    """Draw a layout. `describe` returns a short description of the event with an index."""
    failures = [name_failure(name) for name in layout.failures]
    elements = [
        *_draw_lane_lines(layout),
        *_draw_trunks(layout),
        *_draw_precedes_edges(layout),
        *(_draw_causes_edge(layout, port) for port in layout.ports),
        *(_draw_arc(layout.ports, arc) for arc in layout.arcs),
        *_draw_nodes(layout, describe, failures, links),
        *(_draw_port(layout, port, failures, links) for port in layout.ports),
    ]
    events_label = 'role="group" aria-label="Events in order, and the failures they led to"'
    return Drawing(
        names=_wrap_svg("names", NAMES_WIDTH, layout.height, _draw_names(layout, failures), 'aria-hidden="true"'),
        events=_wrap_svg("events", layout.width, layout.height, elements, events_label),
        failures=_wrap_svg(
            "ends", FAILURES_WIDTH, layout.height, _draw_failures(layout, failures, links), 'role="group" aria-label="Failures"'
        ),
    )


def _wrap_svg(kind: str, width: int, height: int, elements: Iterable[Markup], attributes: str) -> Markup:
    svg = Element('<svg class="graph-{}" width="{}" height="{}" viewBox="0 0 {} {}" {}>{}</svg>')
    return svg.format(kind, width, height, width, height, Markup(attributes), Markup("").join(elements))  # noqa: S704 - fixed attributes


def _draw_names(layout: Layout, failures: Sequence[str]) -> Iterable[Markup]:
    name = Element('<text class="{}" x="2" y="{}"><title>{}</title>{}</text>')
    for lane, text in enumerate(layout.lanes):
        yield name.format("lane", layout.lane_y(lane) + _BASELINE_OFFSET, visible(text), _shorten_name(text))
    for failure, text in enumerate(failures):
        yield name.format("failure", layout.failure_y(failure) + _BASELINE_OFFSET, visible(text), _shorten_name(text))


def _shorten_name(text: str) -> str:
    return visible(text if len(text) <= _MAX_NAME_LENGTH else f"{text[: _MAX_NAME_LENGTH - 1]}…")


def _draw_failures(layout: Layout, failures: Sequence[str], links: GraphLinks) -> Iterable[Markup]:
    node = Element(
        '<line class="trunk" x1="0" y1="{}" x2="{}" y2="{}"/><a href="{}" aria-label="{}"><title>{}</title>'
        '<circle class="end" cx="{}" cy="{}" r="{}"/><path class="cross" d="M{} {}l8 8m0 -8l-8 8"/></a>'
    )
    x = FAILURES_WIDTH - _FAILURE_RADIUS - 3
    for failure, name in enumerate(failures):
        y = layout.failure_y(failure)
        description = f"Failure: {name}"
        address = links.failure(layout.failures[failure])
        yield node.format(y, x - _FAILURE_RADIUS, y, address, description, description, x, y, _FAILURE_RADIUS, x - 4, y - 4)


def _draw_lane_lines(layout: Layout) -> Iterable[Markup]:
    line = Element('<line class="lane" x1="0" y1="{}" x2="{}" y2="{}"/>')
    return (line.format(layout.lane_y(lane), layout.width, layout.lane_y(lane)) for lane in range(len(layout.lanes)))


def _draw_trunks(layout: Layout) -> Iterable[Markup]:
    """Draw a trunk from each failure's first port to its node, or over the full width if none of its evidence is drawn."""
    line = Element('<line class="trunk {}" x1="{}" y1="{}" x2="{}" y2="{}"/>')
    for failure in range(len(layout.failures)):
        starts = [port.x for port in layout.ports if port.failure == failure]
        y = layout.failure_y(failure)
        yield line.format("" if starts else "elsewhere", min(starts, default=0), y, layout.width, y)


def _draw_precedes_edges(layout: Layout) -> Iterable[Markup]:
    """Draw a curve from each column to the next. It leaves and enters blocks horizontally."""
    line = Element('<path class="precedes" d="M{} {}C{} {} {} {} {} {}"/>')
    for earlier, later in zip(layout.columns, layout.columns[1:], strict=False):
        start = _node_y(layout, later if earlier.is_block else earlier)
        end = _node_y(layout, earlier if later.is_block else later)
        if earlier.is_block and later.is_block:
            start = end = layout.lane_y(0) + (len(layout.lanes) - 1) * LANE_HEIGHT // 2
        left = earlier.x + earlier.width - _node_inset(earlier)
        right = later.x + _node_inset(later)
        middle = (left + right) // 2
        yield line.format(left, start, middle, start, middle, end, right, end)


def _node_inset(column: Column) -> int:
    """Return the distance from the side of a column to its node."""
    return 0 if column.is_block else column.width // 2 - _RADIUS


def _node_y(layout: Layout, column: Column) -> int:
    return layout.lane_y(column.lanes[0][0])


def _draw_causes_edge(layout: Layout, port: Port) -> Markup:
    column = layout.columns[port.column]
    # Farther from the centre of an event, the edge of its circle is higher.
    circle_bottom = _node_y(layout, column) + _RADIUS - abs(port.x - _center_x(column)) // 2
    top = _block_bottom(layout) if column.is_block else circle_bottom
    return Element('<line class="causes" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(port.x, top, port.x, port.y)


def _center_x(column: Column) -> int:
    return column.x + column.width // 2


def _block_bottom(layout: Layout) -> int:
    """Return the vertical position of the lower edge of blocks."""
    return layout.lane_y(len(layout.lanes) - 1) + LANE_HEIGHT // 2 - 2


def _draw_arc(ports: Sequence[Port], arc: Arc) -> Markup:
    source, target = ports[arc.source], ports[arc.target]
    control_height = 2 * max(_MIN_ARC_HEIGHT, min(_MAX_ARC_HEIGHT, abs(target.x - source.x) // 4))
    return Element('<path class="reinforces" d="M{} {}Q{} {} {} {}"/>').format(
        source.x, source.y, (source.x + target.x) // 2, source.y - control_height, target.x, target.y
    )


def _draw_port(layout: Layout, port: Port, failures: Sequence[str], links: GraphLinks) -> Markup:
    column = layout.columns[port.column]
    description = f"{_name_column(column)}: evidence of {failures[port.failure]}"
    count = Markup("")
    if port.count > 1:
        description += f", {port.count} times"
        count = Element('<text class="times" x="{}" y="{}">\N{MULTIPLICATION SIGN}{}</text>').format(
            port.x + 4, port.y + 13, port.count
        )
    node = Element(
        '<a href="{}" aria-label="{}" tabindex="-1"><title>{}</title><circle class="port" cx="{}" cy="{}" r="{}"/>{}</a>'
    )
    return node.format(_link_column(column, links), description, description, port.x, port.y, _PORT_RADIUS, count)


def _name_column(column: Column) -> str:
    if column.is_block:
        return f"Events {column.first + 1} to {column.last + 1}"
    return f"Event {column.first + 1}"


def _link_column(column: Column, links: GraphLinks) -> str:
    return links.block(column.first, column.last) if column.is_block else links.event(column.first)


def _draw_nodes(
    layout: Layout, describe: Callable[[int], str], failures: Sequence[str], links: GraphLinks
) -> Iterable[Markup]:  # fmt: skip
    """Draw every column as a link with a description."""
    failures_of: dict[int, list[str]] = {}
    for port in layout.ports:
        failures_of.setdefault(port.column, []).append(failures[port.failure])
    node = Element('<a class="{}" href="{}" aria-label="{}" data-node><title>{}</title>{}</a>')
    for number, column in enumerate(layout.columns):
        evidence = failures_of.get(number, [])
        classes = ["node"]
        if evidence:
            classes.append("evidence")
        if column.failed:
            classes.append("failed")
        description = _describe_column(layout, column, describe, evidence)
        shape = _draw_block(layout, column) if column.is_block else _draw_event(layout, column, is_evidence=bool(evidence))
        yield node.format(" ".join(classes), _link_column(column, links), description, description, shape)


def _describe_column(layout: Layout, column: Column, describe: Callable[[int], str], evidence: Sequence[str]) -> str:
    parts = []
    if column.is_block:
        parts.append(", ".join(f"{count} {visible(layout.lanes[lane])}" for lane, count in column.lanes))
        if column.failed:
            parts.append(f"{column.failed} failed")
    else:
        parts.append(visible(describe(column.first)))
        if column.failed:
            parts.append("failed")
    if evidence:
        parts.append(f"evidence of {', '.join(evidence)}")
    return f"{_name_column(column)}: {'; '.join(part for part in parts if part)}"


def _draw_event(layout: Layout, column: Column, *, is_evidence: bool) -> Markup:
    """Draw an event as a dot with a touch target: evidence has a ring, a failed event a cross."""
    x = _center_x(column)
    y = _node_y(layout, column)
    cross = Element('<path class="cross" d="M{} {}l6 6m0 -6l-6 6"/>').format(x - 3, y - 3) if column.failed else ""
    target = Element('<rect class="room" x="{}" y="{}" width="24" height="{}"/>').format(
        x - 12, y - LANE_HEIGHT // 2, LANE_HEIGHT
    )
    ring = Element('<circle class="ring" cx="{}" cy="{}" r="{}"/>').format(x, y, _RADIUS + 3) if is_evidence else ""
    return Element('{}{}<circle class="dot" cx="{}" cy="{}" r="{}"/>{}').format(target, ring, x, y, _RADIUS, cross)


def _draw_block(layout: Layout, column: Column) -> Markup:
    """Draw a block as a box over all lanes, with the number of events in each lane."""
    top = layout.lane_y(0) - LANE_HEIGHT // 2 + 2
    box = Element('<rect class="box" x="{}" y="{}" width="{}" height="{}" rx="8"/>')
    text = Element('<text class="count" x="{}" y="{}">{}</text>')
    counts = (
        text.format(_center_x(column), layout.lane_y(lane) + _BASELINE_OFFSET, _format_count(count))
        for lane, count in column.lanes
    )
    return box.format(column.x, top, column.width, _block_bottom(layout) - top) + Markup("").join(counts)


def _format_count(count: int) -> str:
    """Format a count so that it fits into a block."""
    if count < 10_000:
        return str(count)
    return f"{count // 1000}k" if count < 10_000_000 else f"{count // 1_000_000}M"
