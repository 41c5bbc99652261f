"""Layout of a causal graph: time from left to right, a lane per type of event, the failures below.

1. Every event is in exactly one column. Three or more consecutive ordinary events, without evidence or failures, form a block. If there
   are still too many columns, neighbours are joined until they fit, evidence last. A block has fewer events than the drawing it is in,
   so opening blocks always ends at single events.
2. A failure has a row below the lanes. A line drops from each of its evidence events to that row, where a trunk collects the lines and
   leads to the failure's node at the right. The point where a line arrives is the event's port.
3. Arcs from port to port join consecutive evidence of one cause.

The layout is a pure function of the events, in time linear in their number.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

COLUMNS = 100
"""Maximum number of columns; up to this many events are drawn one by one."""
LANES = 8
"""Types of events with a lane of their own; the others share one."""
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
        """Tell whether the column has more than one event."""
        return self.last > self.first

    @property
    def count(self) -> int:
        """Return the number of its events."""
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
    lanes, lane_of = _lanes(events)
    groups = _groups(events, columns)
    placed = tuple(_columns(events, groups, lane_of))
    ports = tuple(_ports(events, placed, len(lanes)))
    return Layout(
        columns=placed,
        lanes=lanes,
        failures=tuple(events.failures),
        ports=ports,
        arcs=tuple(_arcs(events, placed, ports)),
        width=placed[-1].x + placed[-1].width + GAP if placed else GAP,
        height=_failure_y(len(lanes), len(events.failures)) - FAILURE // 2 + TOP,
    )


def _failure_y(lanes: int, failure: int) -> int:
    return TOP + lanes * LANE + failure * FAILURE + FAILURE * 3 // 4


def _lanes(events: GraphEvents) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the lanes in the order of their types, and the lane of each type."""
    counts = Counter(events.types)
    telling = {events.types[place - events.first] for place in events.evidence if _is_within(events, place)}
    kept = set(sorted(counts, key=lambda name: (name not in telling, -counts[name], name))[:LANES])
    names = tuple(name for name in counts if name in kept)
    return (names if len(kept) == len(counts) else (*names, OTHERS)), {
        name: names.index(name) if name in kept else len(names) for name in counts
    }


def _is_within(events: GraphEvents, place: int) -> bool:
    return 0 <= place - events.first < len(events.types)


def _groups(events: GraphEvents, columns: int) -> list[Group]:
    """Return the first and last place of each column."""
    places = range(events.first, events.first + len(events.types))
    if len(places) <= columns:
        return [(place, place) for place in places]
    groups = list(_runs(events, places))
    if len(groups) == 1:
        step = -(-len(places) // columns)
        return [(place, min(place + step, places.stop) - 1) for place in places[::step]]
    step = max(1, len(groups) // columns)
    joined = [(groups[at][0], groups[min(at + step, len(groups)) - 1][1]) for at in range(0, len(groups), step)]
    return _fewer(events, joined, columns)


def _runs(events: GraphEvents, places: range) -> Iterable[Group]:
    """Return single events, with runs of ordinary events joined into blocks."""
    start = places.start
    for place in (*sorted({*events.evidence, *events.failed}.intersection(places)), places.stop):
        if place - start >= SHORTEST_BLOCK:
            yield start, place - 1
        else:
            yield from ((dull, dull) for dull in range(start, place))
        if place < places.stop:
            yield place, place
        start = place + 1


def _fewer(events: GraphEvents, groups: list[Group], columns: int) -> list[Group]:
    """Join neighbouring groups down to the limit, starting with the least evidence, then with the fewest events.

    Whatever the number of events, this works on at most twice as many groups as columns.
    """
    left = list(groups)
    evidence = sorted(events.evidence)
    telling = [_within(evidence, group) for group in left]
    while len(left) > columns:
        at = min(range(len(left) - 1), key=lambda at: (telling[at] + telling[at + 1], left[at + 1][1] - left[at][0], at))
        left[at : at + 2] = [(left[at][0], left[at + 1][1])]
        telling[at : at + 2] = [telling[at] + telling[at + 1]]
    return left


def _columns(events: GraphEvents, groups: Iterable[Group], lane_of: Mapping[str, int]) -> Iterable[Column]:
    x, places_failed = GAP, sorted(events.failed)
    for first, last in groups:
        counts: Counter[int] = Counter()
        for name, count in Counter(events.types[first - events.first : last + 1 - events.first]).items():
            counts[lane_of[name]] += count
        width, failed = SINGLE if first == last else BLOCK, _within(places_failed, (first, last))
        yield Column(first=first, last=last, x=x, width=width, lanes=tuple(sorted(counts.items())), failed=failed)
        x += width + GAP


def _within(places: Sequence[int], group: Group) -> int:
    """Count the sorted places that lie in a column."""
    return bisect_right(places, group[1]) - bisect_left(places, group[0])


def _column_of(columns: Sequence[Column], place: int) -> int:
    """Return the column of a place; -1 if it is not in the drawing."""
    at = bisect_right(columns, place, key=lambda column: column.first) - 1
    return at if at >= 0 and place <= columns[at].last else -1


def _ports(events: GraphEvents, columns: Sequence[Column], lanes: int) -> Iterable[Port]:
    """Return the ports, ordered by column and then by failure."""
    order = {name: index for index, name in enumerate(events.failures)}
    counts = Counter(
        (index, order[name])
        for place, names in events.evidence.items()
        if (index := _column_of(columns, place)) >= 0
        for name in names
        if name in order
    )
    for (index, failure), count in sorted(counts.items()):
        column, shift = columns[index], _APART * failure - _APART * (len(order) - 1) // 2
        x, y = column.x + column.width // 2 + shift, _failure_y(lanes, failure)
        yield Port(column=index, failure=failure, x=x, y=y, count=count)


def _arcs(events: GraphEvents, columns: Sequence[Column], ports: Sequence[Port]) -> Iterable[Arc]:
    """Return arcs in the order of their edges; edges within a block or out of the drawing have none."""
    order = {name: index for index, name in enumerate(events.failures)}
    port_of = {(port.column, port.failure): index for index, port in enumerate(ports)}
    counts: Counter[tuple[int, int]] = Counter()
    for edge in dict.fromkeys(events.reinforcing):
        ends = [port_of.get((_column_of(columns, place), order.get(edge.failure, -1))) for place in edge[:2]]
        if ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
            counts[ends[0], ends[1]] += 1
    return (Arc(source, target, count) for (source, target), count in counts.items())
