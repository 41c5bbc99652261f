"""The exchanges of a trace: which spans are one, what was asked and answered, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from streams.sources.openclaw.answer import outcome_of
from streams.sources.otlp.reading import TRUNCATED, UNCLEAR_TOKENS
from streams.sources.otlp.span_facts import SpanFacts
from streams.sources.otlp.traces.trace import SESSION_FROM_TRACE, KeptSpan, Trace, place_of
from streams.sources.otlp.traces.turns import Turn, Unit, turns_of


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

    @property
    def exchange_id(self) -> str:
        """The id of the exchange, unique within its connection."""
        return self.earlier_id or self.span.span_id

    @property
    def at(self) -> datetime:
        """The time at which it began."""
        return self.span.started_at


def exchanges_of(trace: Trace) -> list[TracedExchange]:
    """The exchanges of a trace, in order of time: one for each turn. Where neither question nor answer is told there is none."""
    exchanges = (_exchange(trace, turn) for turn in turns_of(trace))
    return [exchange for exchange in exchanges if exchange is not None]


def places_of(exchanges: Sequence[TracedExchange]) -> dict[str, int]:
    """The place among the exchanges of the one that each span belongs to, by the id of the span."""
    return {span_id: place for place, exchange in enumerate(exchanges) for span_id in exchange.within}


def _exchange(trace: Trace, turn: Turn) -> TracedExchange | None:
    asked = next((unit.asked for unit in (*turn.tellers, *turn.units) if unit.asked is not None), None)
    teller, answered = _answered(turn)
    if asked is None and answered is None:
        return None
    if answered is None and turn.units[-1].waits_for_tools and turn.units[0].session_id == trace.trace_id:
        # What follows is in another trace, and nothing says in which.
        return None
    own = teller.span.facts
    question, answer = "" if asked is None else asked.question or "", "" if answered is None else answered.answer or ""
    requests = sorted((request for unit in turn.units for request in unit.requests), key=place_of)
    last = (answered if answered is not None and answered.model else None) or (requests[-1].facts if requests else own)
    paid = [span for span in turn.spans if span.span_id in trace.request_ids]
    tags = {TRUNCATED for facts in (own, asked, answered) if facts is not None and TRUNCATED in facts.tags}
    tags |= {UNCLEAR_TOKENS for request in paid if UNCLEAR_TOKENS in request.facts.tags}
    session = turn.units[0].session_id
    return TracedExchange(
        span=turn.span,
        session_id=session,
        agent=trace.agent_of(turn.span),
        question=question,
        answer=answer,
        thinking="\n\n".join(_thoughts(own, requests)) or None,
        model=last.model,
        input_tokens=_total(paid, "input"),
        output_tokens=_total(paid, "output"),
        stop_reason=last.stop_reason,
        outcome="error" if own.error is not None else outcome_of(answer, "error" if teller.failed else last.stop_reason),
        labels=trace.labels_of(turn.span),
        tags=tuple(sorted(tags | ({SESSION_FROM_TRACE} if session == trace.trace_id else set()))),
        within=frozenset(span.span_id for span in turn.spans),
    )


def _answered(turn: Turn) -> tuple[Unit, SpanFacts | None]:
    """The unit that ends a turn, and the facts with its answer: of the last that answers without a call of a tool, else of the last."""
    answers = [(unit, unit.answered) for unit in turn.tellers if unit.answered is not None]
    ended = [(unit, facts) for unit, facts in answers if unit.is_enclosing or not facts.calls]
    last = turn.tellers[-1]
    if ended:
        return ended[-1]
    return answers[-1] if answers and not last.failed else (last, None)


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
