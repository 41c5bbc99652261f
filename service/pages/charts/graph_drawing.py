"""A causal graph as SVG: names at the left, the drawing, the failures at the right.

The graph consists of three images of equal height, so that the names and the failures stay in sight while the drawing between them is
scrolled. Every node is a link: an event to its place in the timeline, a block to its contents, a failure to its cause. Shapes and titles
carry the same information as colours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.pages.charts.elements import Element
from service.pages.charts.graph_layout import ENDS, LANE, NAMES, Arc, Column, Layout, Port
from service.pages.charts.numbers import visible

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
    """By the event's place."""
    block: Callable[[int, int], str]
    """By the places of its first and its last event."""
    failure: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The three images."""

    names: Markup
    drawing: Markup
    ends: Markup


def draw(placed: Layout, told: Callable[[int], str], words: Callable[[str], str], addresses: Addresses) -> Drawing:
    """Draw a layout: `told` describes the event at a place, `words` names a failure."""
    failures = [words(name) for name in placed.failures]
    marks = [
        *_lane_lines(placed),
        *_trunks(placed),
        *_precedes(placed),
        *(_drop(placed, port) for port in placed.ports),
        *(_arc(placed.ports, arc) for arc in placed.arcs),
        *_nodes(placed, told, failures, addresses),
        *(_port(placed, port, failures, addresses) for port in placed.ports),
    ]
    return Drawing(
        names=_svg("names", NAMES, placed.height, _names(placed, failures), 'aria-hidden="true"'),
        drawing=_svg("events", placed.width, placed.height, marks, 'role="group" aria-label="Events in their order, and what they led to"'),
        ends=_svg("ends", ENDS, placed.height, _ends(placed, failures, addresses), 'role="group" aria-label="Failures"'),
    )  # fmt: skip


def _svg(kind: str, width: int, height: int, marks: Iterable[Markup], said: str) -> Markup:
    opened = Element('<svg class="graph-{}" width="{}" height="{}" viewBox="0 0 {} {}" {}>{}</svg>')
    return opened.format(kind, width, height, width, height, Markup(said), Markup("").join(marks))  # noqa: S704 - our own words


def _names(placed: Layout, failures: Sequence[str]) -> Iterable[Markup]:
    name = Element('<text class="{}" x="2" y="{}"><title>{}</title>{}</text>')
    for lane, text in enumerate(placed.lanes):
        yield name.format("lane", placed.lane_y(lane) + _MIDDLE, visible(text), _cut(text))
    for failure, text in enumerate(failures):
        yield name.format("failure", placed.failure_y(failure) + _MIDDLE, visible(text), _cut(text))


def _cut(text: str) -> str:
    return visible(text if len(text) <= _NAME else f"{text[: _NAME - 1]}…")


def _ends(placed: Layout, failures: Sequence[str], addresses: Addresses) -> Iterable[Markup]:
    drawn = Element(
        '<line class="trunk" x1="0" y1="{}" x2="{}" y2="{}"/><a href="{}" aria-label="{}"><title>{}</title>'
        '<circle class="end" cx="{}" cy="{}" r="{}"/><path class="cross" d="M{} {}l8 8m0 -8l-8 8"/></a>'
    )
    middle = ENDS - _END_RADIUS - 3
    for failure, text in enumerate(failures):
        y, said = placed.failure_y(failure), f"Failure: {text}"
        address = addresses.failure(placed.failures[failure])
        yield drawn.format(
            y, middle - _END_RADIUS, y, address, said, said, middle, y, _END_RADIUS, middle - _MIDDLE, y - _MIDDLE
        )


def _lane_lines(placed: Layout) -> Iterable[Markup]:
    line = Element('<line class="lane" x1="0" y1="{}" x2="{}" y2="{}"/>')
    return (line.format(placed.lane_y(lane), placed.width, placed.lane_y(lane)) for lane in range(len(placed.lanes)))


def _trunks(placed: Layout) -> Iterable[Markup]:
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


def _arc(ports: Sequence[Port], arc: Arc) -> Markup:
    source, target = ports[arc.source], ports[arc.target]
    rise = 2 * max(_FLATTEST, min(_STEEPEST, abs(target.x - source.x) // 4))
    return Element('<path class="reinforces" d="M{} {}Q{} {} {} {}"/>').format(
        source.x, source.y, (source.x + target.x) // 2, source.y - rise, target.x, target.y
    )


def _port(placed: Layout, port: Port, failures: Sequence[str], addresses: Addresses) -> Markup:
    column = placed.columns[port.column]
    said = f"{_named(column)}: evidence of {failures[port.failure]}" + (f", {port.count} times" if port.count > 1 else "")
    dot = Element(
        '<a href="{}" aria-label="{}" tabindex="-1"><title>{}</title><circle class="port" cx="{}" cy="{}" r="{}"/>{}</a>'
    )
    count = Element('<text class="times" x="{}" y="{}">\N{MULTIPLICATION SIGN}{}</text>').format(
        port.x + 4, port.y + 13, port.count
    )
    return dot.format(
        _address(column, addresses), said, said, port.x, port.y, _PORT_RADIUS, count if port.count > 1 else ""
    )  # fmt: skip


def _named(column: Column) -> str:
    if column.is_block:
        return f"Events {column.first + 1} to {column.last + 1}"
    return f"Event {column.first + 1}"


def _address(column: Column, addresses: Addresses) -> str:
    return addresses.block(column.first, column.last) if column.is_block else addresses.event(column.first)


def _nodes(
    placed: Layout, told: Callable[[int], str], failures: Sequence[str], addresses: Addresses
) -> Iterable[Markup]:  # fmt: skip
    """Draw every column as a link with a description."""
    of: dict[int, list[str]] = {}
    for port in placed.ports:
        of.setdefault(port.column, []).append(failures[port.failure])
    node = Element('<a class="{}" href="{}" aria-label="{}" data-node><title>{}</title>{}</a>')
    for index, column in enumerate(placed.columns):
        evidence = of.get(index, [])
        kinds = [name for name, holds in (("evidence", bool(evidence)), ("failed", bool(column.failed))) if holds]
        said = _said(placed, column, told, evidence)
        shape = _block(placed, column) if column.is_block else _event(placed, column, is_evidence=bool(evidence))
        yield node.format(" ".join(["node", *kinds]), _address(column, addresses), said, said, shape)


def _said(placed: Layout, column: Column, told: Callable[[int], str], evidence: Sequence[str]) -> str:
    if column.is_block:
        parts = [
            ", ".join(f"{count} {visible(placed.lanes[lane])}" for lane, count in column.lanes),
            f"{column.failed} failed" if column.failed else "",
        ]
    else:
        parts = [visible(told(column.first)), "failed" if column.failed else ""]
    parts.append(f"evidence of {', '.join(evidence)}" if evidence else "")
    return f"{_named(column)}: {'; '.join(part for part in parts if part)}"


def _event(placed: Layout, column: Column, *, is_evidence: bool) -> Markup:
    """Draw a dot, filled for evidence, with a cross for a failure, and a touch target around it."""
    x, y = _middle(column), _height(placed, column)
    cross = Element('<path class="cross" d="M{} {}l6 6m0 -6l-6 6"/>').format(x - 3, y - 3) if column.failed else ""
    room = Element('<rect class="room" x="{}" y="{}" width="24" height="{}"/>').format(x - 12, y - LANE // 2, LANE)
    ring = Element('<circle class="ring" cx="{}" cy="{}" r="{}"/>').format(x, y, _RADIUS + 3) if is_evidence else ""
    return Element('{}{}<circle class="dot" cx="{}" cy="{}" r="{}"/>{}').format(room, ring, x, y, _RADIUS, cross)


def _block(placed: Layout, column: Column) -> Markup:
    """Draw a box over all lanes with the number of events in each."""
    top = placed.lane_y(0) - LANE // 2 + 2
    box = Element('<rect class="box" x="{}" y="{}" width="{}" height="{}" rx="8"/>')
    text = Element('<text class="count" x="{}" y="{}">{}</text>')
    counts = (text.format(_middle(column), placed.lane_y(lane) + _MIDDLE, _short(count)) for lane, count in column.lanes)
    return box.format(column.x, top, column.width, _bottom(placed) - top) + Markup("").join(counts)


def _short(count: int) -> str:
    """Shorten a count to fit into a block."""
    if count < 10_000:
        return str(count)
    return f"{count // 1000}k" if count < 10_000_000 else f"{count // 1_000_000}M"
