"""Repeated requests: two instrumentors that tell of one request to a model, around each other or side by side, and how it is told once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from streams.sources.otlp.span_facts import SpanFacts, Usage

if TYPE_CHECKING:
    from streams.sources.otlp.trace import KeptSpan

_MESSAGES = ("question", "answer", "thinking", "calls", "results")
_TAKEN = ("session_id", "agent", "model", "response_id", "stop_reason", "error")
"""Facts that the span which stands for a request takes from the others, where it lacks them."""


def told_once(spans: Sequence[KeptSpan]) -> list[KeptSpan]:
    """The spans, each request to a model in one of them.

    Requests are one where they have the same id of the answer, or where one is the only request within the other. The span that tells
    most of the messages stands for it and takes what else the others tell; they are no requests then.
    """
    requests = [span for span in spans if span.facts.kind == "inference"]
    changed: dict[str, KeptSpan] = {}
    for group in _groups(requests, _around(spans)):
        telling = max(group, key=lambda span: (_told(span.facts), span.place))
        others = [span for span in group if span is not telling]
        changed[telling.span_id] = telling._replace(facts=_merged(telling.facts, [span.facts for span in others]))
        for span in others:
            plain = msgspec.structs.replace(span.facts, kind="other", usage=None, error=None, compacted=False)
            changed[span.span_id] = span._replace(facts=plain)
    return [changed.get(span.span_id, span) for span in spans]


def _around(spans: Sequence[KeptSpan]) -> dict[str, str]:
    """The nearest request around each request. What is found for a span is kept for those beside it."""
    by_id = {span.span_id: span for span in spans}
    found: dict[str, str | None] = {}
    for span in spans:
        path = []
        one: KeptSpan | None = span
        while one is not None and one.span_id not in found:
            path.append(one)
            one = by_id.get(one.parent_id or "")
        nearest = None if one is None else one.span_id if one.facts.kind == "inference" else found[one.span_id]
        for one in reversed(path):
            found[one.span_id] = nearest
            nearest = one.span_id if one.facts.kind == "inference" else nearest
    return {span.span_id: outer for span in spans if span.facts.kind == "inference" and (outer := found[span.span_id])}


def _groups(requests: Sequence[KeptSpan], around: dict[str, str]) -> Iterable[list[KeptSpan]]:
    """The requests that are told more than once, with all that tell of each."""
    within = Counter(around.values())
    first_by_answer: dict[str, str] = {}
    first: dict[str, str] = {span.span_id: span.span_id for span in requests}

    def head(span_id: str) -> str:
        while first[span_id] != span_id:
            span_id = first[span_id]
        return span_id

    for span in requests:
        outer = around.get(span.span_id)
        if outer is not None and within[outer] == 1:
            first[head(span.span_id)] = head(outer)
        answer = span.facts.response_id
        if answer is not None:
            first[head(span.span_id)] = head(first_by_answer.setdefault(answer, span.span_id))
    found = defaultdict[str, list["KeptSpan"]](list)
    for span in requests:
        found[head(span.span_id)].append(span)
    return (group for group in found.values() if len(group) > 1)


def _told(facts: SpanFacts) -> int:
    return sum(bool(getattr(facts, name)) for name in _MESSAGES)


def _merged(own: SpanFacts, others: Sequence[SpanFacts]) -> SpanFacts:
    taken = {
        name: getattr(own, name) or next((value for one in others if (value := getattr(one, name))), None) for name in _TAKEN
    }
    return msgspec.structs.replace(
        own,
        **taken,
        usage=_usage([facts.usage for facts in (own, *others) if facts.usage is not None]),
        compacted=any(facts.compacted for facts in (own, *others)),
    )


def _usage(told: Sequence[Usage]) -> Usage | None:
    """Each count as it is told first."""
    if not told:
        return None
    return Usage(
        *(next((count for one in told if (count := getattr(one, name)) is not None), None) for name in Usage.__struct_fields__)
    )
