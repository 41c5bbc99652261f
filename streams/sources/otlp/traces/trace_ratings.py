"""The ratings of a trace: what evaluators outside said of its exchanges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from streams.sources.otlp.span_facts import Rating
from streams.sources.otlp.traces.trace import Trace
from streams.sources.otlp.traces.trace_exchanges import TracedExchange, places_of


class TracedRating(NamedTuple):
    """A rating of an exchange: what was said, in which span, and when."""

    exchange_id: str
    rating: Rating
    span_id: str
    at: datetime


def ratings_of(trace: Trace, exchanges: Sequence[TracedExchange]) -> Iterator[TracedRating]:
    """The ratings of the exchanges of a trace; those of anything else are passed over.

    A rating is of the exchange with the response that it names, else of that of its span.
    """
    places = places_of(exchanges)
    answered = defaultdict[str, list[str]](list)
    for span in trace.spans:
        if span.facts.response_id is not None:
            answered[span.facts.response_id].append(span.span_id)
    for span in trace.spans:
        for rating in span.facts.ratings:
            rated = answered.get(rating.response_id or "") or [span.span_id]
            place = min((places[span_id] for span_id in rated if span_id in places), default=None)
            if place is not None:
                yield TracedRating(exchanges[place].exchange_id, rating, span.span_id, span.ended_at)
