"""The exchanges of a trace and their ratings. An exchange is a turn: the agents and requests that answer one message of a user.

Senders split their traces in many ways, so turns are found by these rules:

1. A turn starts with a request whose input ends in a new user message, and ends with an answer that calls no tool.
2. The units of turns are the outermost agents, chains and requests. A span with both a question and an answer is one unit, and so is an agent
   with a question. Any other enclosing span is the frame of a conversation, and is split if it contains several turns.
3. A unit starts a new turn if the previous unit ended and this one was sent more user messages. Without a history, it starts a new turn if it
   asks something else and either both units belong to the only agent so far, or both are requests outside any agent. It continues the turn
   if it asks the same, overlaps the previous unit, receives its answer or tool outputs, or handles the same server call.
4. The roots of one trace are separate turns, unless they overlap and ask the same.
5. All other spans, tools included, belong to the turn in which they started.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

import msgspec

from streams.sources.openclaw.tree import outcome_of
from streams.sources.otlp.conventions import ANSWER_TOOLS
from streams.sources.otlp.reading import TRUNCATED, UNCLEAR_TOKENS
from streams.sources.otlp.span_facts import Rating, SpanFacts
from streams.sources.otlp.trace import ENCLOSING_KINDS, SESSION_FROM_TRACE, StoredSpan, Trace, order_key

MIN_QUOTED_ANSWER = 16
"""Minimum length of an answer by which a question that quotes it is recognized. A short answer such as `yes` is in many questions."""
_MAX_ANSWERS = 16
"""Maximum number of answers of a turn that later questions are searched for."""


class TracedExchange(msgspec.Struct, frozen=True):
    """An exchange of a trace. Its texts are already redacted and cut."""

    span: StoredSpan
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
    """Ids of the spans that belong to it."""
    earlier_id: str | None = None
    """Its id in an earlier revision."""

    @property
    def exchange_id(self) -> str:
        """Id of the exchange, unique within its connection."""
        return self.earlier_id or self.span.span_id

    @property
    def at(self) -> datetime:
        """Start time."""
        return self.span.started_at


def build_exchanges(trace: Trace) -> list[TracedExchange]:
    """Return the exchanges of a trace in order of time, one per turn that has a question or an answer."""
    exchanges = (_build_exchange(trace, turn) for turn in find_turns(trace))
    return [exchange for exchange in exchanges if exchange is not None]


def _build_exchange(trace: Trace, turn: Turn) -> TracedExchange | None:
    question_facts = next(
        (unit.question_facts for unit in (*turn.speakers, *turn.units) if unit.question_facts is not None), None
    )
    speaker, answer_facts = _find_answer(turn)
    session = turn.units[0].session_id
    if answer_facts is None:
        # A request that called tools is answered in another trace, which cannot be found without a session.
        continues_elsewhere = turn.units[-1].waits_for_tools and session == trace.trace_id
        if question_facts is None or continues_elsewhere:
            return None
    speaker_facts = speaker.span.facts
    answer = (answer_facts.answer if answer_facts is not None else None) or ""
    requests = sorted((request for unit in turn.units for request in unit.requests), key=order_key)
    last = _find_last_facts(speaker_facts, answer_facts, requests)
    billed = [span for span in turn.spans if span.span_id in trace.request_ids]
    return TracedExchange(
        span=turn.span,
        session_id=session,
        agent=trace.agent_of(turn.span),
        question=(question_facts.question if question_facts is not None else None) or "",
        answer=answer,
        thinking="\n\n".join(_collect_thoughts(speaker_facts, requests)) or None,
        model=last.model,
        input_tokens=_sum_tokens(billed, "input"),
        output_tokens=_sum_tokens(billed, "output"),
        stop_reason=last.stop_reason,
        outcome=_find_outcome(answer, speaker, last.stop_reason),
        labels=trace.labels_of(turn.span),
        tags=_collect_tags((speaker_facts, question_facts, answer_facts), billed, is_session_known=session != trace.trace_id),
        within=frozenset(span.span_id for span in turn.spans),
    )


def _find_outcome(answer: str, speaker: Unit, stop_reason: str | None) -> str:
    """Return the outcome of a turn. A failed span makes it an error even if the turn has an answer."""
    if speaker.span.facts.error is not None:
        return "error"
    return outcome_of(answer, "error" if speaker.failed else stop_reason)


def _find_last_facts(speaker_facts: SpanFacts, answer_facts: SpanFacts | None, requests: Sequence[StoredSpan]) -> SpanFacts:
    """Return the facts with the model and the stop reason of a turn: those of its answer, else of its last request."""
    if answer_facts is not None and answer_facts.model:
        return answer_facts
    return requests[-1].facts if requests else speaker_facts


def _collect_tags(
    sources: Iterable[SpanFacts | None], billed: Iterable[StoredSpan], *, is_session_known: bool
) -> tuple[str, ...]:
    tags = set()
    if any(facts is not None and TRUNCATED in facts.tags for facts in sources):
        tags.add(TRUNCATED)
    if any(UNCLEAR_TOKENS in request.facts.tags for request in billed):
        tags.add(UNCLEAR_TOKENS)
    if not is_session_known:
        tags.add(SESSION_FROM_TRACE)
    return tuple(sorted(tags))


def _find_answer(turn: Turn) -> tuple[Unit, SpanFacts | None]:
    """Return the unit that ends a turn, and the facts with its answer: the last answer without tool calls, else the last answer."""
    last = turn.speakers[-1]
    any_answer: tuple[Unit, SpanFacts] | None = None
    final_answer: tuple[Unit, SpanFacts] | None = None
    for unit in turn.speakers:
        facts = unit.answer_facts
        if facts is not None:
            any_answer = unit, facts
            if unit.is_enclosing or not facts.calls:
                final_answer = unit, facts
    if final_answer is not None:
        return final_answer
    if any_answer is not None and not last.failed:
        return any_answer
    return last, None


def _collect_thoughts(speaker_facts: SpanFacts, requests: Sequence[StoredSpan]) -> list[str]:
    """Return the distinct thoughts of the requests in order; the thoughts of the speaker if the requests have none."""
    distinct = dict.fromkeys(request.facts.thinking for request in requests if request.facts.thinking)
    if distinct:
        return list(distinct)
    return [speaker_facts.thinking] if speaker_facts.thinking else []


def _sum_tokens(requests: Sequence[StoredSpan], field: str) -> int | None:
    """Return the sum of a count; None if no request has it, or if it is unclear for any request."""
    counts: list[int] = []
    for request in requests:
        usage = request.facts.usage
        count = None if usage is None else getattr(usage, field)
        if count is not None:
            counts.append(count)
        elif UNCLEAR_TOKENS in request.facts.tags:
            return None
    return sum(counts) if counts else None


def exchange_indices(exchanges: Sequence[TracedExchange]) -> dict[str, int]:
    """Return the index of the exchange that each span belongs to, by the id of the span."""
    return {span_id: index for index, exchange in enumerate(exchanges) for span_id in exchange.within}


class Unit:
    """An outermost agent, chain or request, with its question and answer."""

    def __init__(self, trace: Trace, span: StoredSpan) -> None:
        self.span = span
        self.is_enclosing = span.facts.kind in ENCLOSING_KINDS
        self.session_id = trace.session_of(span)
        self.inside = [inner for inner in trace.subtree(span) if inner.span_id not in trace.helper_ids]
        requests = [inner for inner in self.inside if inner.span_id in trace.request_ids]
        self.requests = [inner for inner in requests if inner.span_id not in trace.tool_ids] or requests
        """Its requests, without those that serve a tool unless there are no others."""
        inner = _open_frame(trace, span) if self.is_enclosing and _lacks_conversation(span.facts) else []
        # An inner chain may hold a framework's state, which is neither question nor answer.
        self._speakers = [span, *(agent for agent in inner if agent is not span and agent.facts.kind == "agent")]

    @cached_property
    def question_facts(self) -> SpanFacts | None:
        """The facts with its question: its own, else those of an agent inside it, else of the first request that has one."""
        for span in (*self._speakers, *self.requests, *self.inside):
            if span.facts.question:
                return span.facts
        return None

    @cached_property
    def answer_facts(self) -> SpanFacts | None:
        """The facts with its answer: its own, else those of the last agent inside it, else of the last request that calls no tool.

        If the unit failed, its intermediate texts are not an answer.
        """
        own, *inner = self._speakers
        for speaker in (own, *reversed(inner)):
            if speaker.facts.answer:
                return speaker.facts
        answers = [request.facts for request in self.requests if request.facts.answer]
        final_answers = [facts for facts in answers if not facts.calls]
        if final_answers:
            return final_answers[-1]
        if answers and not self.failed:
            return answers[-1]
        return self._answer_by_tool

    @property
    def _answer_by_tool(self) -> SpanFacts | None:
        """The facts with an answer that the model gave by calling a tool."""
        for span in reversed(self.inside):
            called = span.facts.called
            returned = span.facts.returned
            if called is not None and called.name in ANSWER_TOOLS and returned is not None and not returned.is_error:
                return msgspec.structs.replace(span.facts, answer=returned.output)
        return None

    @property
    def waits_for_tools(self) -> bool:
        """True if it is a request that called tools, so that the answer comes with a later one."""
        return not self.is_enclosing and bool(self.span.facts.calls)

    @property
    def failed(self) -> bool:
        """True if it or its last request failed."""
        return self.span.facts.error is not None or (bool(self.requests) and self.requests[-1].facts.error is not None)

    @property
    def has_ended(self) -> bool:
        """True if it has an answer that calls no tool, or its last request failed."""
        if self.requests and self.requests[-1].facts.error is not None:
            return True
        return self.answer_facts is not None and (self.is_enclosing or not self.answer_facts.calls)

    @property
    def agent(self) -> str | None:
        """Name that identifies its agent; None if the unit is no agent, for example a step of a program without a question."""
        facts = self.span.facts
        if facts.kind == "agent":
            return facts.agent or facts.name
        return None if _lacks_conversation(facts) else facts.name

    @cached_property
    def user_messages(self) -> int:
        """Number of user messages that it was sent."""
        return max([self.span.facts.asked, *(request.facts.asked for request in self.requests[:1])])

    @property
    def resumes(self) -> bool:
        """True if it continues with outputs of earlier tool calls."""
        return bool(self.requests) and bool(self.requests[0].facts.results)


def _open_frame(trace: Trace, span: StoredSpan) -> list[StoredSpan]:
    """Return the outermost spans inside a frame, which may be nested."""
    inner = [span]
    while len(inner) == 1 and inner[0].facts.kind in ENCLOSING_KINDS and _lacks_conversation(inner[0].facts):
        inner = trace.outermost(inner[0])
    return inner


def _lacks_conversation(facts: SpanFacts) -> bool:
    """Return whether a span lacks its question or, unless it is an agent, its answer."""
    return not (facts.question and (facts.answer or facts.kind == "agent"))


class Turn:
    """The units that answer one message of a user, in order of time, and the spans that belong to it."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.spans: list[StoredSpan] = []
        self._questions: set[str] = set()
        self._answers: deque[str] = deque(maxlen=_MAX_ANSWERS)
        self._agents: set[str | None] = set()
        self._ends_at = datetime.min.replace(tzinfo=UTC)
        self._user_messages = 0

    @property
    def span(self) -> StoredSpan:
        """Span that identifies the turn: the first agent or chain, else the first request."""
        return next((unit.span for unit in self.units if unit.is_enclosing), self.units[0].span)

    @property
    def speakers(self) -> list[Unit]:
        """Units with the question and answer of the turn: its agents and chains, else all units."""
        return [unit for unit in self.units if unit.is_enclosing] or self.units

    def add(self, unit: Unit) -> None:
        """Add the next unit."""
        self.units.append(unit)
        if unit.question_facts is not None and unit.question_facts.question:
            self._questions.add(unit.question_facts.question)
        if unit.answer_facts is not None and unit.answer_facts.answer:
            self._answers.append(unit.answer_facts.answer)
        self._agents.add(unit.agent)
        self._ends_at = max(self._ends_at, unit.span.ended_at)
        self._user_messages = max(self._user_messages, unit.user_messages)

    def is_over(self, trace: Trace, unit: Unit) -> bool:
        """Return whether a later unit starts another turn."""
        question = unit.question_facts.question if unit.question_facts is not None else None
        if question is None or unit.resumes:
            return False
        previous = self.units[-1]
        is_same_question = question in self._questions
        overlaps = unit.span.started_at < self._ends_at
        if previous.span.trace_id != unit.span.trace_id:
            return not overlaps
        are_agents = previous.is_enclosing and unit.is_enclosing
        are_roots = previous.span.parent_id is None and unit.span.parent_id is None
        if are_agents and are_roots:
            return not (overlaps and is_same_question)
        return not overlaps and self._is_next(trace, unit, question)

    def _is_next(self, trace: Trace, unit: Unit, question: str) -> bool:
        """Return whether a later unit of the same trace asks something else."""
        previous = self.units[-1]
        is_same_question = question in self._questions
        has_longer_history = self._has_longer_history(unit, is_same_question=is_same_question)
        if previous.has_ended and has_longer_history and question not in self._answers:
            return True
        if is_same_question or self._is_quoted_in(question) or trace.is_served(unit.span):
            return False
        if previous.is_enclosing and unit.is_enclosing:
            return unit.agent is not None and {unit.agent} == self._agents
        if previous.is_enclosing or unit.is_enclosing:
            return False
        # The prompts that an agent sends to a model are not user questions.
        return previous.has_ended and unit.span.span_id not in trace.agent_ids

    def _is_quoted_in(self, question: str) -> bool:
        """Return whether a question quotes an answer of the turn."""
        return any(answer in question for answer in self._answers if len(answer) >= MIN_QUOTED_ANSWER or answer == question)

    def _has_longer_history(self, unit: Unit, *, is_same_question: bool) -> bool:
        """Return whether a unit was sent a longer history, or a history of the same length that ends in another question.

        Some programs send only the last messages of the history, so that its length stays the same.
        """
        if unit.user_messages > self._user_messages:
            return True
        return unit.user_messages == self._user_messages > 1 and not is_same_question


def find_turns(trace: Trace) -> list[Turn]:
    """Return the turns of a trace, in order of time, by the rules of this module."""
    units = [unit for span in trace.outermost() for unit in _build_units(trace, span)]
    turns = sorted(_split_turns(trace, units), key=lambda turn: order_key(turn.span))
    _assign_other_spans(trace, turns)
    return turns


def _build_units(trace: Trace, span: StoredSpan) -> list[Unit]:
    """Return an outermost span as one unit, or as the units inside it if it is the frame of several turns."""
    if span.facts.kind in ENCLOSING_KINDS and _lacks_conversation(span.facts):
        inner = [Unit(trace, inner_span) for inner_span in _open_frame(trace, span)]
        if len(inner) > 1 and len(_split_turns(trace, inner)) > 1:
            return inner
    return [Unit(trace, span)]


def _split_turns(trace: Trace, units: Iterable[Unit]) -> list[Turn]:
    """Return the turns of units. Each session has its own turns."""
    turns: list[Turn] = []
    current_turns: dict[str, Turn] = {}
    for unit in sorted(units, key=lambda unit: order_key(unit.span)):
        turn = current_turns.get(unit.session_id)
        if turn is None or turn.is_over(trace, unit):
            turn = Turn()
            current_turns[unit.session_id] = turn
            turns.append(turn)
        turn.add(unit)
    return turns


def _assign_other_spans(trace: Trace, turns: Sequence[Turn]) -> None:
    """Give each turn the spans of its units, and other spans that started in it: any span below the same roots, and tools below any root."""
    by_session: dict[str, list[Turn]] = {}
    covered: set[str] = set(trace.helper_ids)
    for turn in turns:
        by_session.setdefault(turn.units[0].session_id, []).append(turn)
        turn.spans += [span for unit in turn.units for span in unit.inside]
        covered.update(span.span_id for span in turn.spans)
    roots = {trace.root_ids[unit.span.span_id] for turn in turns for unit in turn.units}
    starts = {session: [turn.span.started_at for turn in own] for session, own in by_session.items()}
    for span in trace.spans:
        session = trace.session_of(span)
        is_near = trace.root_ids[span.span_id] in roots or span.facts.kind == "tool"
        if is_near and span.span_id not in covered and session in by_session:
            index = bisect_right(starts[session], span.started_at) - 1
            by_session[session][max(index, 0)].spans.append(span)


class TracedRating(NamedTuple):
    """A rating of an exchange, the span that reported it, and its time."""

    exchange_id: str
    rating: Rating
    span_id: str
    at: datetime


def find_ratings(trace: Trace, exchanges: Sequence[TracedExchange]) -> Iterator[TracedRating]:
    """Yield the ratings that belong to exchanges of a trace.

    A rating belongs to the exchange with the response that it names, else to the exchange of its span.
    """
    indices = exchange_indices(exchanges)
    answered = defaultdict[str, list[str]](list)
    for span in trace.spans:
        if span.facts.response_id is not None:
            answered[span.facts.response_id].append(span.span_id)
    for span in trace.spans:
        for rating in span.facts.ratings:
            rated = answered.get(rating.response_id or "") or [span.span_id]
            index = min((indices[span_id] for span_id in rated if span_id in indices), default=None)
            if index is not None:
                yield TracedRating(exchanges[index].exchange_id, rating, span.span_id, span.ended_at)
