"""The exchanges of a trace: which spans are one, what was asked and answered, and what it took."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from streams.sources.openclaw.answer import outcome_of
from streams.sources.otlp.reading import TRUNCATED, UNCLEAR_TOKENS
from streams.sources.otlp.span_facts import SpanFacts
from streams.sources.otlp.traces.trace import SESSION_FROM_TRACE, KeptSpan, Trace


class TracedExchange(msgspec.Struct, frozen=True):
    """An exchange of a trace; texts are redacted and cut already."""

    span: KeptSpan
    session_id: str
    agent: str | None
    question: str
    answer: str
    thinking: str | None
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    stop_reason: str | None
    outcome: str
    labels: dict[str, str]
    tags: tuple[str, ...]
    within: frozenset[str]
    """The ids of the spans that belong to it."""
    earlier_id: str | None = None
    """The id that it had when fewer of its spans had come."""

    def exchange_id(self, trace_id: str) -> str:
        """The id of the exchange, unique within its connection."""
        return self.earlier_id or f"{trace_id}:{self.span.span_id}"

    @property
    def at(self) -> datetime:
        """The time at which it began."""
        return self.span.started_at


def exchanges_of(trace: Trace) -> list[TracedExchange]:
    """The exchanges of a trace, in order of time.

    Each outermost agent or chain is one. A trace without any has one for each of its sessions: the last request whose answer calls no
    tool. Where neither question nor answer is told there is none.
    """
    found = (_exchange(trace, span, inside) for span, inside in _enclosed(trace))
    return [exchange for exchange in found if exchange is not None]


class Earlier(NamedTuple):
    """Exchanges of a trace, some under the ids that they had, and the ids of those that are part of another one now."""

    exchanges: list[TracedExchange]
    absorbed: frozenset[str]


def with_earlier_ids(exchanges: Sequence[TracedExchange], earlier_ids: Iterable[str], present: Collection[str]) -> Earlier:
    """Give exchanges the ids under which an earlier revision of the trace made them, the oldest first where there were several.

    An id names the span that was the exchange then: whichever exchange that span belongs to now is the same turn. Of a span that is
    not among the `present` ones nothing is known, so its exchange stays as it is.
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
    found = [msgspec.structs.replace(one, earlier_id=ids.get(place)) for place, one in enumerate(exchanges)]
    return Earlier(found, frozenset(absorbed))


def places_of(exchanges: Sequence[TracedExchange]) -> dict[str, int]:
    """The place among the exchanges of the one that each span belongs to, by the id of the span."""
    return {span_id: place for place, exchange in enumerate(exchanges) for span_id in exchange.within}


def _enclosed(trace: Trace) -> Iterator[tuple[KeptSpan, Sequence[KeptSpan]]]:
    """The spans that are exchanges, each with the spans that belong to it."""
    covered: set[str] = set()
    for span in trace.outermost:
        inside = trace.within(span)
        covered |= {one.span_id for one in inside}
        yield span, inside
    by_session: dict[str, list[KeptSpan]] = {}
    for span in trace.spans:
        if span.span_id not in covered:
            by_session.setdefault(trace.session_of(span), []).append(span)
    for spans in by_session.values():
        alone = [span for span in spans if span.span_id in trace.request_ids]
        ended = [span for span in alone if not span.facts.calls]
        if not trace.outermost and alone:
            yield (ended or alone)[-1], spans


def _exchange(trace: Trace, span: KeptSpan, inside: Sequence[KeptSpan]) -> TracedExchange | None:
    requests = [one for one in inside if one.span_id in trace.request_ids]
    own = span.facts
    asked = _asked(span, inside, requests)
    failed = own.error is not None or (bool(requests) and requests[-1].facts.error is not None)
    answered = _answered(span, requests, failed=failed)
    if asked is None and answered is None:
        return None
    question, answer = "" if asked is None else asked.question or "", "" if answered is None else answered.answer or ""
    last = (answered if answered is not None and answered.model else None) or (requests[-1].facts if requests else own)
    session = trace.session_of(span)
    tags = {TRUNCATED for one in (own, asked, answered) if one is not None and TRUNCATED in one.tags}
    tags |= {UNCLEAR_TOKENS for request in requests if UNCLEAR_TOKENS in request.facts.tags}
    return TracedExchange(
        span=span,
        session_id=session,
        agent=trace.agent_of(span),
        question=question,
        answer=answer,
        thinking="\n\n".join(_thoughts(own, requests)) or None,
        model=last.model,
        input_tokens=_total(requests, "input"),
        output_tokens=_total(requests, "output"),
        stop_reason=last.stop_reason,
        outcome="error" if own.error is not None else outcome_of(answer, "error" if failed else last.stop_reason),
        labels=trace.labels_of(span),
        tags=tuple(sorted(tags | ({SESSION_FROM_TRACE} if session == trace.trace_id else set()))),
        within=frozenset(one.span_id for one in inside),
    )


def _asked(span: KeptSpan, inside: Sequence[KeptSpan], requests: Sequence[KeptSpan]) -> SpanFacts | None:
    """The facts with the question: those of the span, else of the first request that has one, else of anything within."""
    return next((one.facts for one in (span, *requests, *inside) if one.facts.question), None)


def _answered(span: KeptSpan, requests: Sequence[KeptSpan], *, failed: bool) -> SpanFacts | None:
    """The facts with the answer: those of the span, else of the last request that calls no tool, else of the last with one.

    Where it failed, what was said on the way is no answer.
    """
    if span.facts.answer:
        return span.facts
    told = [one.facts for one in requests if one.facts.answer]
    ended = [facts for facts in told if not facts.calls] or ([] if failed else told)
    return ended[-1] if ended else None


def _thoughts(own: SpanFacts, requests: Sequence[KeptSpan]) -> list[str]:
    """The thoughts, in order: in the requests, else as the span tells it."""
    told = list(dict.fromkeys(one.facts.thinking for one in requests if one.facts.thinking))
    return told or ([own.thinking] if own.thinking else [])


def _total(requests: Sequence[KeptSpan], field: str) -> int | None:
    """The sum of a count; None where no request tells it, or where that of one is unclear, because then the sum is, too."""
    counts = [(None if (usage := one.facts.usage) is None else getattr(usage, field), one.facts.tags) for one in requests]
    if any(count is None and UNCLEAR_TOKENS in tags for count, tags in counts):
        return None
    told = [count for count, _ in counts if count is not None]
    return sum(told) if told else None
