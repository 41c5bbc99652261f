"""The ratings of a trace: what evaluators outside said of its exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from streams.sources.otlp.span_facts import Rating
from streams.sources.otlp.trace import KeptSpan, Trace
from streams.sources.otlp.trace_exchanges import TracedExchange


class TracedRating(NamedTuple):
    """A rating of an exchange: what was said, in which span, and when."""

    exchange_id: str
    rating: Rating
    span_id: str
    at: datetime


def ratings_of(trace: Trace, exchanges: Sequence[TracedExchange]) -> Iterator[TracedRating]:
    """The ratings of the exchanges of a trace; those of anything else are passed over."""
    for span in trace.spans:
        for rating in span.facts.ratings:
            exchange = _exchange(trace, exchanges, span, rating)
            if exchange is not None:
                yield TracedRating(exchange.exchange_id(trace.trace_id), rating, span.span_id, span.ended_at)


def _exchange(trace: Trace, exchanges: Sequence[TracedExchange], span: KeptSpan, rating: Rating) -> TracedExchange | None:
    """The exchange that a rating is of: that of the response it names, else that of its span."""
    answered = {one.span_id for one in trace.spans if rating.response_id and one.facts.response_id == rating.response_id}
    places = answered or {span.span_id}
    return next((one for one in exchanges if places & one.within), None)
