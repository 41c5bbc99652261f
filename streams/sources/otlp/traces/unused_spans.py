"""Unused spans: those of a trace of which nothing was made, each with the reason why, so that they can be counted and shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from schemas.records import UnusedSpans
from streams.sources.otlp.traces.trace import KeptSpan

UNKNOWN_KIND, NO_CONTENT, HELPER = "unknown_kind", "no_content", "helper"
EVALUATION, REPEATED, RETRIEVAL, NOT_A_MODEL_CALL = "evaluation", "repeated", "retrieval", "not_a_model_call"
STATES = (UNKNOWN_KIND, NO_CONTENT, HELPER, EVALUATION, REPEATED, RETRIEVAL, NOT_A_MODEL_CALL)
"""The reasons, those that a user can act on first."""
MAX_GROUPS = 32
"""Groups of one trace that are kept."""
_TEXTS = ("question", "answer", "thinking", "calls", "results", "called", "returned")


class _Group(NamedTuple):
    state: str
    scope: str


def unused_spans(
    spans: Iterable[KeptSpan], used: Collection[str], helpers: Collection[str], *, has_exchange: bool
) -> tuple[UnusedSpans, ...]:
    """The spans that are not `used`, by state and scope; `helpers` are the ids of those within a helper.

    A request without texts counts even where its tokens were used: an exchange that its sender hides looks like none at all.
    """
    counts: dict[_Group, int] = {}
    examples: dict[_Group, str] = {}
    for span in spans:
        state = _state(span, used, helpers, has_exchange=has_exchange)
        if state is not None:
            group = _Group(state, span.facts.scope or "")
            counts[group] = counts.get(group, 0) + 1
            examples.setdefault(group, span.facts.unknown or span.facts.name)
    groups = sorted(counts, key=lambda group: (STATES.index(group.state), -counts[group], group.scope))[:MAX_GROUPS]
    return tuple([UnusedSpans(state=one.state, scope=one.scope, example=examples[one], spans=counts[one]) for one in groups])


def _state(span: KeptSpan, used: Collection[str], helpers: Collection[str], *, has_exchange: bool) -> str | None:
    facts = span.facts
    is_helper = span.span_id in helpers
    if facts.kind == "inference" and not is_helper and not _has_texts(span):
        return NO_CONTENT
    if facts.kind == "log" or (span.span_id in used and (facts.kind == "memory" or not is_helper)):
        return None
    if facts.unknown is not None and facts.kind == "other":
        return UNKNOWN_KIND
    if facts.kind in _BY_KIND or is_helper:
        return _BY_KIND.get(facts.kind, HELPER)
    # Frameworks put a span around each step: within an exchange it needs no texts of its own.
    return REPEATED if has_exchange or _has_texts(span) else NO_CONTENT


def _has_texts(span: KeptSpan) -> bool:
    return any(getattr(span.facts, name) for name in _TEXTS)


_BY_KIND = {"helper": HELPER, "evaluation": EVALUATION, "retrieval": RETRIEVAL, "other": NOT_A_MODEL_CALL}
