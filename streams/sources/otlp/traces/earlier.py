"""What earlier revisions of a trace told: exchanges keep their ids, and nothing is told again by another span.

1. An exchange's id names the span that was the exchange when it was made. Whichever exchange that span belongs to now is the same turn.
2. Which span tells of a thing goes by the spans that are there: a tool's span wins over the message that asks for it, one of two requests
   stands for both. An event that was told and that the whole trace tells by another span stays; that other one is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from streams.sources.otlp.traces.trace import Trace
from streams.sources.otlp.traces.trace_events import TracedEvent
from streams.sources.otlp.traces.trace_exchanges import TracedExchange, places_of


class EarlierEvent(NamedTuple):
    """An event that an earlier revision made, with what tells that a later one is the same thing."""

    event_id: str
    event: str
    tool: str | None
    tool_call_id: str | None

    @property
    def span_id(self) -> str:
        """The id of the span that told it."""
        return self.event_id.partition(":")[0]


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
        span_id = exchange_id.rpartition(":")[2]
        place = places.get(span_id)
        if place is not None and place not in ids:
            ids[place] = exchange_id
        elif span_id in present:
            absorbed.add(exchange_id)
    named = [msgspec.structs.replace(one, earlier_id=ids.get(place)) for place, one in enumerate(exchanges)]
    return EarlierIds(named, frozenset(absorbed))


def without_told(trace: Trace, events: Sequence[TracedEvent], earlier: Iterable[EarlierEvent]) -> list[TracedEvent]:
    """The events that no earlier revision told, neither under their ids nor by another span."""
    ids = {event.event_id for event in events}
    told = list(earlier)
    known = {one.event_id for one in told}
    superseded: dict[str, list[EarlierEvent]] = defaultdict(list)
    for one in told:
        if one.event_id not in ids:
            superseded[one.event].append(one)
    return [
        event
        for event in events
        if event.event_id not in known and not _is_told(trace, event, superseded.get(event.said["event"], []))
    ]


def _is_told(trace: Trace, event: TracedEvent, superseded: list[EarlierEvent]) -> bool:
    """Tell whether a superseded event of its type tells of the same thing; each call is told once."""
    if "tool_call_id" not in event.said and "tool" not in event.said:
        return any(trace.are_nested(one.span_id, event.span.span_id) for one in superseded)
    call_id, tool = event.said.get("tool_call_id"), event.said.get("tool")
    same = next((one for one in superseded if call_id is not None and one.tool_call_id == call_id), None) or next(
        (one for one in superseded if (call_id is None or one.tool_call_id is None) and one.tool == tool), None
    )
    if same is not None:
        superseded.remove(same)
    return same is not None
