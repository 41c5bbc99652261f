"""What earlier revisions of a trace told: exchanges keep their ids, and nothing is told again by another span.

1. An exchange's id names the span that was the exchange when it was made. Whichever exchange that span belongs to now is the same turn.
2. Which span tells of a thing goes by the spans that are there: a tool's span wins over the message that asks for it, one of two requests
   stands for both. An event that was told and that the whole trace tells by another span stays; that other one is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from audit.fingerprints import canonical_json
from streams.sources.otlp.traces.trace import Trace
from streams.sources.otlp.traces.trace_events import TracedEvent
from streams.sources.otlp.traces.trace_exchanges import TracedExchange, places_of


class EarlierEvent(NamedTuple):
    """An event that an earlier revision made, and its payload."""

    event_id: str
    said: Mapping[str, Any]

    @property
    def span_id(self) -> str:
        """The id of the span that told it."""
        return ":".join(self.event_id.split(":", 2)[:2])


class EarlierIds(NamedTuple):
    """Exchanges of a trace, some under the ids that they had, and the ids of those that are part of another one now."""

    exchanges: list[TracedExchange]
    absorbed: frozenset[str]


def with_earlier_ids(exchanges: Sequence[TracedExchange], earlier_ids: Iterable[str], present: Collection[str]) -> EarlierIds:
    """Give exchanges the ids under which an earlier revision of the trace made them, the oldest first where there were several.

    Of a span that is not among the `present` ones nothing is known, so its exchange stays as it is.
    """
    places = places_of(exchanges)
    ids: dict[int, str] = {}
    absorbed: set[str] = set()
    for exchange_id in earlier_ids:
        place = places.get(exchange_id)
        if place is not None and place not in ids:
            ids[place] = exchange_id
        elif exchange_id in present:
            absorbed.add(exchange_id)
    named = [msgspec.structs.replace(one, earlier_id=ids.get(place)) for place, one in enumerate(exchanges)]
    return EarlierIds(named, frozenset(absorbed))


def without_told(trace: Trace, events: Sequence[TracedEvent], earlier: Sequence[EarlierEvent]) -> list[TracedEvent]:
    """The events that no earlier revision told, neither under their ids nor by another span."""
    if not earlier:
        return list(events)
    ids, known = {event.event_id for event in events}, {one.event_id for one in earlier}
    fresh: dict[str, list[TracedEvent]] = defaultdict(list)
    for event in events:
        if event.event_id not in known:
            fresh[event.said["event"]].append(event)
    superseded: dict[str, list[EarlierEvent]] = defaultdict(list)
    for one in earlier:
        if one.event_id not in ids:
            superseded[one.said["event"]].append(one)
    untold = {
        event.event_id
        for name, of_type in fresh.items()
        for event in (_untold_calls if name in _CALLS else _untold)(trace, of_type, superseded[name])
    }
    return [event for event in events if event.event_id in untold]


def _untold(trace: Trace, fresh: Sequence[TracedEvent], superseded: Sequence[EarlierEvent]) -> Iterator[TracedEvent]:
    """Those that no superseded event tells: of two spans within each other both tell of the same, other two once what is alike."""
    told = trace.in_line_with({one.span_id for one in superseded})
    beside = trace.in_line_with({event.span.span_id for event in fresh})
    alike = Counter(_words(one.said) for one in superseded if one.span_id not in beside)
    for event in fresh:
        if event.span.span_id in told:
            continue
        words = _words(event.said)
        if alike[words] > 0:
            alike[words] -= 1
        else:
            yield event


def _untold_calls(_: Trace, fresh: Sequence[TracedEvent], superseded: Sequence[EarlierEvent]) -> Iterator[TracedEvent]:
    """Those that no superseded event tells, each of one call: by its id, else, where one of the two has none, by the name of the tool."""
    by_id: dict[Any, EarlierEvent] = {}
    by_name: dict[tuple[str, bool], dict[str, EarlierEvent]] = defaultdict(dict)
    for one in superseded:
        call_id = one.said.get("tool_call_id")
        by_name[one.said.get("tool", ""), call_id is None][one.event_id] = one
        if call_id is not None:
            by_id[call_id] = one
    for event in fresh:
        call_id = event.said.get("tool_call_id")
        match = None if call_id is None else by_id.get(call_id)
        match = match or next(_of_same_name(event.said.get("tool", ""), by_name, has_id=call_id is not None), None)
        if match is None:
            yield event
            continue
        by_id.pop(match.said.get("tool_call_id"), None)
        for has_none in (True, False):
            by_name[match.said.get("tool", ""), has_none].pop(match.event_id, None)


def _of_same_name(
    tool: str, by_name: Mapping[tuple[str, bool], Mapping[str, EarlierEvent]], *, has_id: bool
) -> Iterator[EarlierEvent]:
    """The events of a tool, or of its transport, whose name is the end of its own; not both have an id."""
    for start in range(max(0, len(tool) - _LONGEST_NAME), len(tool)):
        for lacks_id in (True,) if has_id else (True, False):
            yield from by_name.get((tool[start:], lacks_id), {}).values()


def _words(said: Mapping[str, Any]) -> str:
    return canonical_json({name: value for name, value in said.items() if name not in _FILED})


_CALLS = frozenset({"tool_call", "tool_output"})
_FILED = frozenset({"event_id", "exchange_id"})
_LONGEST_NAME = 256
