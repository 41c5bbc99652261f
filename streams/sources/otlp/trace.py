"""A trace: its spans as a tree, and what each of them belongs to. The same spans give the same answers, in whatever order they came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

import msgspec

from streams.sources.otlp.conventions import NAMELESS, NAMING
from streams.sources.otlp.repeated_requests import told_once
from streams.sources.otlp.span_facts import SpanFacts

SESSION_FROM_TRACE = "session_from_trace"
"""Tag of an exchange whose spans name no session: the id of its trace stands in for it."""
ENCLOSING = frozenset({"agent", "chain"})
"""Kinds of spans that enclose an exchange."""


class KeptSpan(NamedTuple):
    """A span as it is kept."""

    span_id: str
    parent_id: str | None
    started_at: datetime
    ended_at: datetime
    facts: SpanFacts

    @property
    def place(self) -> tuple[datetime, str]:
        """Its place among the spans of its trace: by time, and by id where two began together."""
        return self.started_at, self.span_id


class Trace:
    """The spans of one trace, those that are the records of a log taken into the spans they belong to."""

    def __init__(self, trace_id: str, spans: Iterable[KeptSpan]) -> None:
        self.trace_id = trace_id
        self.spans = told_once(_with_records(sorted(spans, key=lambda span: span.place)))
        self._by_id = {span.span_id: span for span in self.spans}
        self._children: dict[str, list[KeptSpan]] = {}
        for span in self.spans:
            if span.parent_id is not None:
                self._children.setdefault(span.parent_id, []).append(span)

    def ancestors(self, span: KeptSpan) -> Iterator[KeptSpan]:
        """The spans around a span, from the inside. A circle of parents, which no SDK makes, is walked once."""
        met = {span.span_id}
        parent = self._by_id.get(span.parent_id or "")
        while parent is not None and parent.span_id not in met:
            met.add(parent.span_id)
            yield parent
            parent = self._by_id.get(parent.parent_id or "")

    def within(self, span: KeptSpan) -> list[KeptSpan]:
        """The span and all that stand within it, in order of time."""
        found, waiting = dict[str, KeptSpan](), [span]
        while waiting:
            one = waiting.pop()
            if one.span_id not in found:
                found[one.span_id] = one
                waiting += self._children.get(one.span_id, [])
        return sorted(found.values(), key=lambda one: one.place)

    def children(self, span: KeptSpan) -> Sequence[KeptSpan]:
        """The spans directly within a span."""
        return self._children.get(span.span_id, ())

    @cached_property
    def requests(self) -> list[KeptSpan]:
        """The requests to models that enclose no other: two instrumentors may each tell of one, the outer in the words of a framework."""
        inner = {around.span_id for span in self.spans if span.facts.kind == "inference" for around in self.ancestors(span)}
        return [span for span in self.spans if span.facts.kind == "inference" and span.span_id not in inner]

    @cached_property
    def outermost(self) -> list[KeptSpan]:
        """The agents and chains that stand within no other."""
        return [
            span
            for span in self.spans
            if span.facts.kind in ENCLOSING and not any(around.facts.kind in ENCLOSING for around in self.ancestors(span))
        ]

    def session_of(self, span: KeptSpan) -> str:
        """The session of a span: what it says itself, else the spans around it, else those within it, else any of the trace."""
        return next((one.facts.session_id for one in self._nearest(span) if one.facts.session_id), self.trace_id)

    def agent_of(self, span: KeptSpan) -> str | None:
        """The agent of a span, found alike; else by the name of an agent's span around it, else the name of its service."""
        named = (one.facts.agent for one in self._nearest(span) if one.facts.agent)
        around = (one.facts.name for one in (span, *self.ancestors(span), *self.outermost) if _names_its_agent(one.facts))
        return next(named, None) or next(around, None) or span.facts.service or self._service

    def labels_of(self, span: KeptSpan) -> dict[str, str]:
        """The labels of a span, with those that only the spans around and within it tell."""
        found: dict[str, str] = {}
        for one in (span, *self.ancestors(span), *self.within(span)):
            found = {**one.facts.labels, **found}
        return dict(sorted(found.items()))

    @property
    def has_root(self) -> bool:
        """Whether the span that all others stand within has come."""
        return any(span.parent_id is None for span in self.spans)

    @cached_property
    def _service(self) -> str | None:
        return next((span.facts.service for span in self.spans if span.facts.service), None)

    def _nearest(self, span: KeptSpan) -> Iterator[KeptSpan]:
        yield span
        yield from self.ancestors(span)
        yield from self.within(span)
        yield from self.spans


def _names_its_agent(facts: SpanFacts) -> bool:
    return facts.kind == "agent" and facts.dialect in NAMING and bool(facts.name) and facts.name not in NAMELESS


def _with_records(ordered: Sequence[KeptSpan]) -> list[KeptSpan]:
    """The spans, with what records of a log say of them. Of a record whose span has not come a request is made."""
    records: dict[str, list[KeptSpan]] = {}
    for span in ordered:
        if span.facts.kind == "log":
            records.setdefault(span.parent_id or span.span_id, []).append(span)
    spans = [span for span in ordered if span.facts.kind != "log"]
    there = {span.span_id for span in spans}
    stand_ins = [
        first._replace(
            span_id=span_id, parent_id=None, facts=SpanFacts("inference", dialect="otel", service=first.facts.service)
        )
        for span_id, (first, *_) in records.items()
        if span_id not in there
    ]
    told = [_told(span, records.get(span.span_id, ())) for span in (*spans, *stand_ins)]
    return sorted(told, key=lambda span: span.place)


def _told(span: KeptSpan, records: Sequence[KeptSpan]) -> KeptSpan:
    """The span with what the records say that it does not say itself."""
    if not records:
        return span
    facts = [record.facts for record in records]
    own = span.facts
    answers = [one for one in facts if one.answer or one.calls or one.thinking or one.stop_reason]
    first = answers[0] if answers else SpanFacts("log")
    questions = [one.question for one in facts if one.question]
    has_content = bool(own.question or own.answer or own.calls)
    return span._replace(
        facts=msgspec.structs.replace(
            own,
            question=own.question or (questions[-1] if questions else None),
            answer=own.answer or first.answer,
            thinking=own.thinking or first.thinking,
            calls=own.calls or first.calls,
            results=own.results if has_content else tuple(result for one in facts for result in one.results),
            choices=max(own.choices, len(answers)),
            stop_reason=own.stop_reason or first.stop_reason,
            session_id=own.session_id or next((one.session_id for one in facts if one.session_id), None),
            tags=tuple(sorted({*own.tags, *(tag for one in facts for tag in one.tags)})),
            ratings=(*own.ratings, *(rating for one in facts for rating in one.ratings)),
        )
    )
