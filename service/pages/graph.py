"""A causal graph as SVG: time from left to right, a lane per type of event, the failures below."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup, escape

from service.pages.charts import visible


@dataclass(frozen=True, slots=True)
class Element:
    """Markup with placeholders, formatted like `Markup.format` in a fifth of the time."""

    markup: str

    def format(self, *values: object) -> Markup:
        """Fill in values, which are escaped unless they are markup."""
        return Markup(self.markup.format(*map(escape, values)))  # noqa: S704 - our own markup, and values that are escaped


COLUMNS = 100
"""Maximum number of columns; up to this many events are drawn one by one."""
LANES = 8
"""Maximum number of event types with their own lane; the others share one."""
OTHERS = "other types"
SHORTEST_BLOCK = 3
"""This many consecutive ordinary events become a block."""
NAMES, ENDS = 136, 34
"""Width of the names at the left, and of the failures' nodes at the right."""
LANE, FAILURE, TOP = 26, 40, 8
"""Height of a lane, of a failure's row, and of the space above."""
SINGLE, BLOCK, GAP = 16, 32, 8
"""Width of an event, of a block, and of the space between columns."""
_APART = 4
"""Distance between the lines from one column to several failures."""
Group = tuple[int, int]
"""First and last place of the events of a column."""


class Reinforcing(NamedTuple):
    """Two events by their places; the second is the next evidence of the same cause."""

    source: int
    target: int
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEvents:
    """The events to draw, by their places in the session, with their known properties."""

    types: Sequence[str]
    """The type of each event."""
    first: int = 0
    """Place of the first of them in the session."""
    evidence: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The failures that have a place as evidence."""
    failed: Collection[int] = frozenset()
    """Places of events that report a failure."""
    reinforcing: Iterable[Reinforcing] = ()
    failures: Sequence[str] = ()
    """Every failure of the session, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """An event, or a block of consecutive events."""

    first: int
    """Place of its first event, and of its last."""
    last: int
    x: int
    width: int
    lanes: tuple[tuple[int, int], ...]
    """Lanes of its events, and how many are in each."""
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
    """The point where a column's evidence meets the row of a failure: one edge `causes`, or several from a block."""

    column: int
    failure: int
    x: int
    y: int
    count: int


class Arc(NamedTuple):
    """An arc between two ports for evidence that reinforces evidence, with the number of edges it stands for."""

    source: int
    target: int
    edges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A drawing in user units; lanes and failures are given by the middle of their rows, columns start at x = 0."""

    columns: tuple[Column, ...]
    lanes: tuple[str, ...]
    failures: tuple[str, ...]
    ports: tuple[Port, ...]
    arcs: tuple[Arc, ...]
    width: int
    height: int

    def lane_y(self, lane: int) -> int:
        """Return the middle of a lane."""
        return TOP + lane * LANE + LANE // 2

    def failure_y(self, failure: int) -> int:
        """Return the line of a failure's trunk."""
        return _failure_y(len(self.lanes), failure)


def layout(events: GraphEvents, columns: int = COLUMNS) -> Layout:
    """Place events, failures and the links between them; `columns` is their maximum number, at least 2."""
    lanes, lane_of = _order_lanes(events)
    groups = _group_places(events, columns)
    placed = tuple(_build_columns(events, groups, lane_of))
    ports = tuple(_build_ports(events, placed, len(lanes)))
    return Layout(
        columns=placed,
        lanes=lanes,
        failures=tuple(events.failures),
        ports=ports,
        arcs=tuple(_build_arcs(events, placed, ports)),
        width=placed[-1].x + placed[-1].width + GAP if placed else GAP,
        height=_failure_y(len(lanes), len(events.failures)) - FAILURE // 2 + TOP,
    )


def _failure_y(lanes: int, failure: int) -> int:
    return TOP + lanes * LANE + failure * FAILURE + FAILURE * 3 // 4


def _order_lanes(events: GraphEvents) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the lanes in the order of their types, and the lane of each type."""
    counts = Counter(events.types)
    telling = {events.types[position - events.first] for position in events.evidence if _is_within(events, position)}
    kept = set(sorted(counts, key=lambda name: (name not in telling, -counts[name], name))[:LANES])
    names = tuple(name for name in counts if name in kept)
    return (names if len(kept) == len(counts) else (*names, OTHERS)), {
        name: names.index(name) if name in kept else len(names) for name in counts
    }


def _is_within(events: GraphEvents, position: int) -> bool:
    return 0 <= position - events.first < len(events.types)


def _group_places(events: GraphEvents, columns: int) -> list[Group]:
    """Return the first and last place of each column."""
    places = range(events.first, events.first + len(events.types))
    if len(places) <= columns:
        return [(position, position) for position in places]
    groups = list(_split_runs(events, places))
    if len(groups) == 1:
        step = -(-len(places) // columns)
        return [(position, min(position + step, places.stop) - 1) for position in places[::step]]
    step = max(1, len(groups) // columns)
    joined = [(groups[at][0], groups[min(at + step, len(groups)) - 1][1]) for at in range(0, len(groups), step)]
    return _merge_columns(events, joined, columns)


def _split_runs(events: GraphEvents, places: range) -> Iterable[Group]:
    """Return single events, with runs of ordinary events joined into blocks."""
    start = places.start
    for position in (*sorted({*events.evidence, *events.failed}.intersection(places)), places.stop):
        if position - start >= SHORTEST_BLOCK:
            yield start, position - 1
        else:
            yield from ((dull, dull) for dull in range(start, position))
        if position < places.stop:
            yield position, position
        start = position + 1


def _merge_columns(events: GraphEvents, groups: list[Group], columns: int) -> list[Group]:
    """Join neighbouring groups down to the limit, starting with the least evidence, then with the fewest events.

    Whatever the number of events, this works on at most twice as many groups as columns.
    """
    left = list(groups)
    evidence = sorted(events.evidence)
    telling = [_limit_columns(evidence, group) for group in left]
    while len(left) > columns:
        at = min(range(len(left) - 1), key=lambda at: (telling[at] + telling[at + 1], left[at + 1][1] - left[at][0], at))
        left[at : at + 2] = [(left[at][0], left[at + 1][1])]
        telling[at : at + 2] = [telling[at] + telling[at + 1]]
    return left


def _build_columns(events: GraphEvents, groups: Iterable[Group], lane_of: Mapping[str, int]) -> Iterable[Column]:
    x, places_failed = GAP, sorted(events.failed)
    for first, last in groups:
        counts: Counter[int] = Counter()
        for name, count in Counter(events.types[first - events.first : last + 1 - events.first]).items():
            counts[lane_of[name]] += count
        width, failed = SINGLE if first == last else BLOCK, _limit_columns(places_failed, (first, last))
        yield Column(first=first, last=last, x=x, width=width, lanes=tuple(sorted(counts.items())), failed=failed)
        x += width + GAP


def _limit_columns(places: Sequence[int], group: Group) -> int:
    """Count the sorted places that lie in a column."""
    return bisect_right(places, group[1]) - bisect_left(places, group[0])


def _find_column(columns: Sequence[Column], position: int) -> int:
    """Return the column of a place; -1 if it is not in the drawing."""
    at = bisect_right(columns, position, key=lambda column: column.first) - 1
    return at if at >= 0 and position <= columns[at].last else -1


def _build_ports(events: GraphEvents, columns: Sequence[Column], lanes: int) -> Iterable[Port]:
    """Return the ports, ordered by column and then by failure."""
    order = {name: index for index, name in enumerate(events.failures)}
    counts = Counter(
        (index, order[name])
        for position, names in events.evidence.items()
        if (index := _find_column(columns, position)) >= 0
        for name in names
        if name in order
    )
    for (index, failure), count in sorted(counts.items()):
        column, shift = columns[index], _APART * failure - _APART * (len(order) - 1) // 2
        x, y = column.x + column.width // 2 + shift, _failure_y(lanes, failure)
        yield Port(column=index, failure=failure, x=x, y=y, count=count)


def _build_arcs(events: GraphEvents, columns: Sequence[Column], ports: Sequence[Port]) -> Iterable[Arc]:
    """Return arcs in the order of their edges; edges within a block or out of the drawing have none."""
    order = {name: index for index, name in enumerate(events.failures)}
    port_of = {(port.column, port.failure): index for index, port in enumerate(ports)}
    counts: Counter[tuple[int, int]] = Counter()
    for edge in dict.fromkeys(events.reinforcing):
        ends = [port_of.get((_find_column(columns, position), order.get(edge.failure, -1))) for position in edge[:2]]
        if ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
            counts[ends[0], ends[1]] += 1
    return (Arc(source, target, count) for (source, target), count in counts.items())


_RADIUS, _END_RADIUS, _PORT_RADIUS = 6, 9, 3
_NAME = 20
"""Characters of a name at the left; its title has the full name."""
_STEEPEST, _FLATTEST = 15, 5
"""Height of an arc, at most and at least."""
_MIDDLE = 4
"""Distance from a text's baseline to its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The links of the nodes."""

    event: Callable[[int], str]
    """Returns the link of an event by its place."""
    block: Callable[[int, int], str]
    """Returns the link of a block by the places of its first and last event."""
    failure: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The three images."""

    names: Markup
    drawing: Markup
    ends: Markup


def draw(placed: Layout, describe: Callable[[int], str], title_of: Callable[[str], str], addresses: Addresses) -> Drawing:
    """Draw a layout: `describe` describes the event at a place, `title_of` names a failure."""
    failures = [title_of(name) for name in placed.failures]
    marks = [
        *_draw_lane_lines(placed),
        *_draw_trunks(placed),
        *_precedes(placed),
        *(_drop(placed, port) for port in placed.ports),
        *(_draw_arc(placed.ports, arc) for arc in placed.arcs),
        *_draw_nodes(placed, describe, failures, addresses),
        *(_draw_port(placed, port, failures, addresses) for port in placed.ports),
    ]
    return Drawing(
        names=_wrap_svg("names", NAMES, placed.height, _draw_names(placed, failures), 'aria-hidden="true"'),
        drawing=_wrap_svg("events", placed.width, placed.height, marks, 'role="group" aria-label="Events in their order, and what they led to"'),
        ends=_wrap_svg("ends", ENDS, placed.height, _draw_ends(placed, failures, addresses), 'role="group" aria-label="Failures"'),
    )  # fmt: skip


def _wrap_svg(kind: str, width: int, height: int, marks: Iterable[Markup], description: str) -> Markup:
    opened = Element('<svg class="graph-{}" width="{}" height="{}" viewBox="0 0 {} {}" {}>{}</svg>')
    return opened.format(kind, width, height, width, height, Markup(description), Markup("").join(marks))  # noqa: S704 - our own words


def _draw_names(placed: Layout, failures: Sequence[str]) -> Iterable[Markup]:
    name = Element('<text class="{}" x="2" y="{}"><title>{}</title>{}</text>')
    for lane, text in enumerate(placed.lanes):
        yield name.format("lane", placed.lane_y(lane) + _MIDDLE, visible(text), _cut(text))
    for failure, text in enumerate(failures):
        yield name.format("failure", placed.failure_y(failure) + _MIDDLE, visible(text), _cut(text))


def _cut(text: str) -> str:
    return visible(text if len(text) <= _NAME else f"{text[: _NAME - 1]}…")


def _draw_ends(placed: Layout, failures: Sequence[str], addresses: Addresses) -> Iterable[Markup]:
    drawn = Element(
        '<line class="trunk" x1="0" y1="{}" x2="{}" y2="{}"/><a href="{}" aria-label="{}"><title>{}</title>'
        '<circle class="end" cx="{}" cy="{}" r="{}"/><path class="cross" d="M{} {}l8 8m0 -8l-8 8"/></a>'
    )
    middle = ENDS - _END_RADIUS - 3
    for failure, text in enumerate(failures):
        y, description = placed.failure_y(failure), f"Failure: {text}"
        address = addresses.failure(placed.failures[failure])
        yield drawn.format(
            y, middle - _END_RADIUS, y, address, description, description, middle, y, _END_RADIUS, middle - _MIDDLE, y - _MIDDLE
        )


def _draw_lane_lines(placed: Layout) -> Iterable[Markup]:
    line = Element('<line class="lane" x1="0" y1="{}" x2="{}" y2="{}"/>')
    return (line.format(placed.lane_y(lane), placed.width, placed.lane_y(lane)) for lane in range(len(placed.lanes)))


def _draw_trunks(placed: Layout) -> Iterable[Markup]:
    """Draw a trunk from a failure's first port to its node, or along the whole width if its evidence lies outside the drawing."""
    line = Element('<line class="trunk {}" x1="{}" y1="{}" x2="{}" y2="{}"/>')
    for failure in range(len(placed.failures)):
        starts = [port.x for port in placed.ports if port.failure == failure]
        y = placed.failure_y(failure)
        yield line.format("" if starts else "elsewhere", min(starts, default=0), y, placed.width, y)


def _precedes(placed: Layout) -> Iterable[Markup]:
    """Draw one line through all columns, straight along the edges of blocks."""
    line = Element('<path class="precedes" d="M{} {}C{} {} {} {} {} {}"/>')
    for earlier, later in zip(placed.columns, placed.columns[1:], strict=False):
        start, end = _height(placed, earlier), _height(placed, later)
        start, end = (end if earlier.is_block else start), (start if later.is_block else end)
        if earlier.is_block and later.is_block:
            start = end = placed.lane_y(0) + (len(placed.lanes) - 1) * LANE // 2
        left, right = earlier.x + earlier.width - _inset(earlier), later.x + _inset(later)
        middle = (left + right) // 2
        yield line.format(left, start, middle, start, middle, end, right, end)


def _inset(column: Column) -> int:
    """Return the distance of a node from the edge of its column."""
    return 0 if column.is_block else column.width // 2 - _RADIUS


def _height(placed: Layout, column: Column) -> int:
    return placed.lane_y(column.lanes[0][0])


def _drop(placed: Layout, port: Port) -> Markup:
    column = placed.columns[port.column]
    top = _bottom(placed) if column.is_block else _height(placed, column) + _RADIUS - abs(port.x - _middle(column)) // 2
    return Element('<line class="causes" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(port.x, top, port.x, port.y)


def _middle(column: Column) -> int:
    return column.x + column.width // 2


def _bottom(placed: Layout) -> int:
    """Return the lower edge of the blocks."""
    return placed.lane_y(len(placed.lanes) - 1) + LANE // 2 - 2


def _draw_arc(ports: Sequence[Port], arc: Arc) -> Markup:
    source, target = ports[arc.source], ports[arc.target]
    rise = 2 * max(_FLATTEST, min(_STEEPEST, abs(target.x - source.x) // 4))
    return Element('<path class="reinforces" d="M{} {}Q{} {} {} {}"/>').format(
        source.x, source.y, (source.x + target.x) // 2, source.y - rise, target.x, target.y
    )


def _draw_port(placed: Layout, port: Port, failures: Sequence[str], addresses: Addresses) -> Markup:
    column = placed.columns[port.column]
    description = f"{_name_column(column)}: evidence of {failures[port.failure]}" + (
        f", {port.count} times" if port.count > 1 else ""
    )
    dot = Element(
        '<a href="{}" aria-label="{}" tabindex="-1"><title>{}</title><circle class="port" cx="{}" cy="{}" r="{}"/>{}</a>'
    )
    count = Element('<text class="times" x="{}" y="{}">\N{MULTIPLICATION SIGN}{}</text>').format(
        port.x + 4, port.y + 13, port.count
    )
    return dot.format(
        _link_column(column, addresses), description, description, port.x, port.y, _PORT_RADIUS, count if port.count > 1 else ""
    )  # fmt: skip


def _name_column(column: Column) -> str:
    if column.is_block:
        return f"Events {column.first + 1} to {column.last + 1}"
    return f"Event {column.first + 1}"


def _link_column(column: Column, addresses: Addresses) -> str:
    return addresses.block(column.first, column.last) if column.is_block else addresses.event(column.first)


def _draw_nodes(
    placed: Layout, describe: Callable[[int], str], failures: Sequence[str], addresses: Addresses
) -> Iterable[Markup]:  # fmt: skip
    """Draw every column as a link with a description."""
    of: dict[int, list[str]] = {}
    for port in placed.ports:
        of.setdefault(port.column, []).append(failures[port.failure])
    node = Element('<a class="{}" href="{}" aria-label="{}" data-node><title>{}</title>{}</a>')
    for index, column in enumerate(placed.columns):
        evidence = of.get(index, [])
        kinds = [name for name, holds in (("evidence", bool(evidence)), ("failed", bool(column.failed))) if holds]
        description = _describe_column(placed, column, describe, evidence)
        shape = _draw_block(placed, column) if column.is_block else _draw_event(placed, column, is_evidence=bool(evidence))
        yield node.format(" ".join(["node", *kinds]), _link_column(column, addresses), description, description, shape)


def _describe_column(placed: Layout, column: Column, describe: Callable[[int], str], evidence: Sequence[str]) -> str:
    if column.is_block:
        parts = [
            ", ".join(f"{count} {visible(placed.lanes[lane])}" for lane, count in column.lanes),
            f"{column.failed} failed" if column.failed else "",
        ]
    else:
        parts = [visible(describe(column.first)), "failed" if column.failed else ""]
    parts.append(f"evidence of {', '.join(evidence)}" if evidence else "")
    return f"{_name_column(column)}: {'; '.join(part for part in parts if part)}"


def _draw_event(placed: Layout, column: Column, *, is_evidence: bool) -> Markup:
    """Draw a dot, filled for evidence, with a cross for a failure, and a touch target around it."""
    x, y = _middle(column), _height(placed, column)
    cross = Element('<path class="cross" d="M{} {}l6 6m0 -6l-6 6"/>').format(x - 3, y - 3) if column.failed else ""
    room = Element('<rect class="room" x="{}" y="{}" width="24" height="{}"/>').format(x - 12, y - LANE // 2, LANE)
    ring = Element('<circle class="ring" cx="{}" cy="{}" r="{}"/>').format(x, y, _RADIUS + 3) if is_evidence else ""
    return Element('{}{}<circle class="dot" cx="{}" cy="{}" r="{}"/>{}').format(room, ring, x, y, _RADIUS, cross)


def _draw_block(placed: Layout, column: Column) -> Markup:
    """Draw a box over all lanes with the number of events in each."""
    top = placed.lane_y(0) - LANE // 2 + 2
    box = Element('<rect class="box" x="{}" y="{}" width="{}" height="{}" rx="8"/>')
    text = Element('<text class="count" x="{}" y="{}">{}</text>')
    counts = (
        text.format(_middle(column), placed.lane_y(lane) + _MIDDLE, _shorten_title(count)) for lane, count in column.lanes
    )
    return box.format(column.x, top, column.width, _bottom(placed) - top) + Markup("").join(counts)


def _shorten_title(count: int) -> str:
    """Shorten a count to fit into a block."""
    if count < 10_000:
        return str(count)
    return f"{count // 1000}k" if count < 10_000_000 else f"{count // 1_000_000}M"
