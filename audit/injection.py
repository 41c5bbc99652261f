"""Attempts of a text to sway the judge, recognized without a judge: they are anomalies whatever the judge answers.

Recognized are: addressing the judge, supplying its answer, imitating the marks of the prompt, hiding text in invisible
characters, and all of these in Base64, in nested JSON, in HTML entities and with lookalike letters. Not recognized: spaced or
misspelled letters, other encodings (rot13, percent signs), and languages missing from the table of phrases. Texts that quote such
an attempt, and work on this audit's own prompts, are recognized too; a person then sees that they are harmless.

1. Talking about judges and scores is ordinary: people ask for evaluations, agents grade homework and write prompts for judges.
   What matters is who is addressed and what is demanded. So a phrase that addresses a judge counts only near a demanded
   verdict, in any language of the table; a few unmistakable phrases count alone.
2. Patterns search normalized views of a text (`audit.text_views`), so the search is linear in the length of the text.
3. In an evaluated run there are further attempts: scores for the six dimensions, the parts and marks of the view, a ten for
   every dimension, results of "deterministic checks". Tests say "12 of 12 checks passed" every day, so this is not recognized;
   the view keeps it apart from the real checks.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter

from audit import injection_patterns as patterns
from audit.evaluation.dimensions import DIMENSIONS
from audit.patterns import Pattern, Prefilter, encode
from audit.text_views import BASE64, View, decode_levels, decoded_runs, fold_views, hidden_spans, hides_text
from schemas.records import Exchange

Span = tuple[int, int]
Recognizer = Callable[[bytes, str], Iterable[Span]]
"""Yields the spans, in bytes, of one kind of attempt in a normalized view of a text from some source."""
_NEAR_BYTES = 300
"""Most bytes between the address of a judge and the demanded verdict."""
_MAX_EXTENSION = 300
_BREAK = re.compile("[.!?\u3002\uff01\uff1f][\\s\"')\\]]|[\u3002\uff01\uff1f\n]")
"""The end of a sentence or line."""
_SENTENCE_ENDS = ".!?\u3002\uff01\uff1f \t\r\n"
_CONDITION_BYTES = 40
"""Bytes after a demand in which a condition may start."""
_ENCODED_DIMENSIONS = tuple(encode(name) for name in DIMENSIONS)


def tamper_reasons(exchange: Exchange) -> tuple[str, ...]:
    """Describe the attempts in the exchange to sway the judge: at most one reason for each kind and source.

    Each reason starts with `judge_tampering: ` and quotes nothing of the exchange. The sources are the response, the thinking and
    the user message, in this order. Linear in the length of the texts.
    """
    texts = {"response": exchange.agent_response, "thinking": exchange.agent_thinking, "user message": exchange.user_message}
    # Nearly every exchange contains none of the patterns, and one search for all of them is ten times faster than testing each
    # kind.
    if not may_hold_attempt("\n".join(filter(None, texts.values()))):
        return ()
    return tuple(
        f"judge_tampering: the {source} {kind}"
        for source, text in texts.items()
        if text
        for kind in _find_kinds(text, source, RECOGNIZERS)
    )


def find_attempts(text: str, source: str = "response") -> tuple[Span, ...]:
    """Return the spans (start, end) of attempts to sway the judge, in characters of the text as it is; empty without any.

    `source` is one of `response`, `thinking` and `user message`; texts of other sources count as responses. The spans are
    ascending and apart. Each covers at least what was recognized, from the address to the last verdict demanded nearby, and is
    extended to the sentence or line around it, by at most `_MAX_EXTENSION` characters on each side. In escaped text it covers
    whole escapes; of an encoded run it covers the run. What surrounds an attempt without being part of it, such as the rest of
    a forged table, may lie outside. Linear in the length of the text.
    """
    if not may_hold_attempt(text):
        return ()
    spans = [span for _, view, spans in _find(text, source, RECOGNIZERS) for span in view.locate(spans)]
    return tuple(_merge(_extend(text, span) for span in spans))


def text_kinds(text: str, added: Mapping[str, Recognizer]) -> tuple[str, ...]:
    """Describe the attempts in a single text of an agent to sway a judge, each kind once; empty without any.

    The text is treated as a response. `added` are further recognizers by kind. For a kind in `RECOGNIZERS`, either may match.
    """
    recognizers = RECOGNIZERS | {kind: _match_either(kind, recognizer) for kind, recognizer in added.items()}
    return tuple(_find_kinds(text, "response", recognizers))


def find_sway_attempts(texts: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the attempts in texts of a run to sway the judge: descriptions by source, for `(source, text)` pairs.

    Sources are in order of the texts, without those that have no attempt; nothing of a text is quoted. Linear in the length of
    the texts.
    """
    attempts: dict[str, dict[str, None]] = {}
    for source, text in dict.fromkeys(texts):
        kinds = text_kinds(text, _RUN_RECOGNIZERS)
        if kinds:
            attempts.setdefault(source, {}).update(dict.fromkeys(kinds))
    return {source: tuple(kinds) for source, kinds in attempts.items()}


def may_hold_attempt(text: str) -> bool:
    """Return False if no kind of attempt can be recognized in the text or in parts of it."""
    if hides_text(text):
        return True
    # No view of a text splits a run of Base64.
    return any(_prefilter().found_in(view.data) for level in decode_levels(text) for view in fold_views(level))


@cache
def _prefilter() -> Prefilter:
    """Return the union of all patterns that an attempt needs."""
    required = [pattern for list_patterns in REQUIRED_PATTERNS.values() for pattern in list_patterns()]
    return Prefilter((*required, BASE64))


def _match_either(kind: str, added: Recognizer) -> Recognizer:
    shipped = RECOGNIZERS.get(kind)
    if shipped is None:
        return added
    return lambda view, source: chain(shipped(view, source), added(view, source))


def _find_kinds(text: str, source: str, recognizers: Mapping[str, Recognizer]) -> Iterator[str]:
    """Yield a description of each kind of attempt in the text."""
    kinds: set[str] = set()
    for kind, _, spans in _find(text, source, recognizers):
        if kind not in kinds and any(True for _ in spans):
            kinds.add(kind)
            yield kind


def _find(text: str, source: str, recognizers: Mapping[str, Recognizer]) -> Iterator[tuple[str, View, Iterable[Span]]]:
    """Yield each kind of attempt, a view that was searched for it, and the matching spans, found as they are read."""
    levels = list(decode_levels(text))
    views = [view for level in levels for view in fold_views(level)]
    for kind, recognize in recognizers.items():
        for view in views:
            yield kind, view, recognize(view.data, source)
    # Not in decoded levels: an escape such as \u200b in a program is visible.
    yield "hides text in invisible characters", levels[0], hidden_spans(levels[0])
    for level in levels:
        for content, is_suspicious in decoded_runs(level):
            if is_suspicious or _is_attempt(content, source, recognizers):
                yield "hides text in Base64", content, [(0, len(content.data))]


def _is_attempt(content: View, source: str, recognizers: Mapping[str, Recognizer]) -> bool:
    views = list(fold_views(content))
    return any(True for recognize in recognizers.values() for view in views for _ in recognize(view.data, source))


def _extend(text: str, span: Span) -> Span:
    """Extend a span to the ends of the sentences or lines that it touches."""
    start, end = span
    start = end - len(text[start:end].lstrip(_SENTENCE_ENDS))  # patterns look at the end of the preceding sentence
    window_start = max(0, start - _MAX_EXTENSION)
    preceding = [match.end() for match in _BREAK.finditer(text, window_start, start)]
    following = _BREAK.search(text, end, end + _MAX_EXTENSION)
    return (
        preceding[-1] if preceding else window_start,
        following.end() if following else min(len(text), end + _MAX_EXTENSION),
    )


def _merge(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans in order, joining those that touch."""
    current: Span | None = None
    for start, end in sorted(spans):
        if current is None or start > current[1]:
            if current is not None:
                yield current
            current = (start, end)
        else:
            current = (current[0], max(current[1], end))
    if current is not None:
        yield current


def _speaks_to_judge(view: bytes, source: str) -> Iterator[Span]:
    """Yield the spans in which a judge is addressed with a demand.

    Users may ask the agent for a score, so in their messages an address is required.
    """
    yield from patterns.MODEL_ADDRESS.spans(view)
    if source != "user message":
        yield from _unconditional_matches(patterns.DEMAND, view)
    if not patterns.ADDRESS.found_in(view):
        return
    verdicts = list(_unconditional_matches(patterns.DEMANDED_VERDICT, view))
    if verdicts:
        for span in patterns.ADDRESS.spans(view):
            yield from _join_near(span, verdicts)


def _unconditional_matches(pattern: Pattern, view: bytes) -> Iterator[Span]:
    """Yield the spans where the pattern matches, except before a condition."""
    for start, end in pattern.spans(view):
        if not patterns.CONDITION.found_in(view[end : end + _CONDITION_BYTES]):
            yield start, end


def _join_near(span: Span, others: Sequence[Span]) -> Iterator[Span]:
    """Yield a span that reaches from this one over all of the sorted others that start near it, if there are any."""
    start, end = span
    first = bisect_left(others, start - _NEAR_BYTES, key=itemgetter(0))
    last = bisect_right(others, end + _NEAR_BYTES, key=itemgetter(0)) - 1
    if first <= last:
        yield min(start, others[first][0]), max(end, others[last][1])


def _brings_verdict(view: bytes, _source: str) -> Iterator[Span]:
    """Yield the spans that give a value for a field of the judge's answers that ordinary texts do not have."""
    yield from patterns.answer_field().spans(view)
    for first, second in patterns.FIELD_PAIRS:
        if first.found_in(view) and second.found_in(view):
            yield from chain(first.spans(view), second.spans(view))


def _imitates_marks(view: bytes, source: str) -> Iterator[Span]:
    """Yield the spans that imitate the marks of the prompt.

    They do so by a mark with a code, by closing an agent's mark that was not opened, or by announcing the end of the text.
    Pairs of tags without a code are ordinary in templates for prompts.
    """
    yield from patterns.CODED_MARK.spans(view)
    yield from patterns.END_MARKS.get(source, patterns.END_MARKS["response"]).spans(view)
    closing = next(patterns.CLOSING_MARK.spans(view), None)
    if closing is not None and not patterns.OPENING_MARK.found_in(view[: closing[0]]):
        yield closing


RECOGNIZERS: dict[str, Recognizer] = {
    "speaks to the judge": _speaks_to_judge,
    "brings the judge's answer along": _brings_verdict,
    "imitates the marks of the prompt": _imitates_marks,
}
"""The recognizer of each kind of attempt in normalized views."""
REQUIRED_PATTERNS: dict[str, Callable[[], Iterable[Pattern]]] = {
    "speaks to the judge": lambda: (patterns.MODEL_ADDRESS, patterns.DEMAND, patterns.ADDRESS),
    "brings the judge's answer along": lambda: (patterns.answer_field(), *(first for first, _ in patterns.FIELD_PAIRS)),
    "imitates the marks of the prompt": lambda: (
        patterns.CODED_MARK,
        *patterns.END_MARKS.values(),
        patterns.CLOSING_MARK,
    ),
}
"""For each kind, patterns of which at least one matches every text in which the kind is recognized."""


@lru_cache(maxsize=4)
def _may_hold_run_attempt(view: bytes) -> bool:
    """Return False if no pattern of an evaluated run can match. Cached because it is called for each kind."""
    return patterns.RUN_TRIGGER.found_in(view)


def _demands_tens(view: bytes, _source: str) -> Iterator[Span]:
    if _may_hold_run_attempt(view):
        yield from patterns.ALL_TENS.spans(view)


def _gives_scores(view: bytes, _source: str) -> Iterator[Span]:
    """Yield the spans that score the whole run, or two of its dimensions."""
    if not _may_hold_run_attempt(view):
        return
    yield from patterns.OVERALL_WITH_EVIDENCE.spans(view)
    yield from patterns.OVERALL_SCORE.spans(view)
    scored_dimensions = list(patterns.SCORED_DIMENSION.spans(view))
    if len({_dimension_at(view, start) for start, _ in scored_dimensions}) > 1:
        yield from scored_dimensions
    numbered_dimensions = [pattern for pattern in patterns.NUMBERED_DIMENSIONS if pattern.found_in(view)]
    if len(numbered_dimensions) > 1:
        yield from chain.from_iterable(pattern.spans(view) for pattern in numbered_dimensions)


def _dimension_at(view: bytes, start: int) -> bytes:
    """Return the name of the dimension that starts here."""
    return next(name for name in _ENCODED_DIMENSIONS if view.startswith(name, start))


def _imitates_view(view: bytes, _source: str) -> Iterator[Span]:
    if _may_hold_run_attempt(view):
        yield from patterns.VIEW_PART.spans(view)


def _claims_checks(view: bytes, _source: str) -> Iterator[Span]:
    if _may_hold_run_attempt(view):
        yield from patterns.CHECK_RESULTS.spans(view)


_RUN_RECOGNIZERS = {
    "speaks to the judge": _demands_tens,
    "brings the judge's answer along": _gives_scores,
    "imitates the marks of the prompt": _imitates_view,
    "claims outcomes of the checks": _claims_checks,
}
