"""The exchanges of a trace and their ratings. An exchange is a turn: the agents and requests that answer one message of a user.

Senders cut their traces in every way, so turns are found by these rules:

1. A turn begins where the input of a request ends in a new message of the user, and ends with the answer that calls no tool.
2. Turns are made of the outermost agents, chains and requests. A span that has both a question and an answer is whole, and so is an agent
   that has a question. Any other is taken apart if it encloses several turns: it is the frame of a conversation.
3. Of two consecutive units, the second begins a turn if the first one ended and the second was sent more messages of the user. Without a
   history it begins one if it asks something else and both are of the only agent so far, or requests outside of any agent. It does not if
   it asks the same, runs beside the first, is given its answer or the outputs of tools, or serves the same call of a server.
4. Roots of one trace are turns of their own, unless they run beside each other and ask the same.
5. Spans beside the units, and tools, belong to the turn in which they began.
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
from streams.sources.otlp.trace import ENCLOSING, SESSION_FROM_TRACE, KeptSpan, Trace, place_of

PASSED_ON = 16
"""Characters of the shortest answer that identifies a question made of it: `yes` is in many."""
_REMEMBERED = 16
"""Answers of a turn that a later question may be made of."""


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
    """The exchanges of a trace, in order of time: one for each turn. A turn without question and answer gives none."""
    exchanges = (_build_exchange(trace, turn) for turn in turns_of(trace))
    return [exchange for exchange in exchanges if exchange is not None]


def _build_exchange(trace: Trace, turn: Turn) -> TracedExchange | None:
    asking = next((unit.asked for unit in (*turn.tellers, *turn.units) if unit.asked is not None), None)
    teller, answering = _find_answer(turn)
    if asking is None and answering is None:
        return None
    if answering is None and turn.units[-1].waits_for_tools and turn.units[0].session_id == trace.trace_id:
        # What follows is in another trace, and nothing says in which.
        return None
    own = teller.span.facts
    question, answer = "" if asking is None else asking.question or "", "" if answering is None else answering.answer or ""
    requests = sorted((request for unit in turn.units for request in unit.requests), key=place_of)
    last = (answering if answering is not None and answering.model else None) or (requests[-1].facts if requests else own)
    paid = [span for span in turn.spans if span.span_id in trace.request_ids]
    tags = {TRUNCATED for facts in (own, asking, answering) if facts is not None and TRUNCATED in facts.tags}
    tags |= {UNCLEAR_TOKENS for request in paid if UNCLEAR_TOKENS in request.facts.tags}
    session = turn.units[0].session_id
    return TracedExchange(
        span=turn.span,
        session_id=session,
        agent=trace.agent_of(turn.span),
        question=question,
        answer=answer,
        thinking="\n\n".join(_collect_thoughts(own, requests)) or None,
        model=last.model,
        input_tokens=_sum_tokens(paid, "input"),
        output_tokens=_sum_tokens(paid, "output"),
        stop_reason=last.stop_reason,
        outcome="error" if own.error is not None else outcome_of(answer, "error" if teller.failed else last.stop_reason),
        labels=trace.labels_of(turn.span),
        tags=tuple(sorted(tags | ({SESSION_FROM_TRACE} if session == trace.trace_id else set()))),
        within=frozenset(span.span_id for span in turn.spans),
    )


def _find_answer(turn: Turn) -> tuple[Unit, SpanFacts | None]:
    """The unit that ends a turn, and the facts with its answer: of the last that answers without a call of a tool, else of the last."""
    answers = [(unit, unit.answered) for unit in turn.tellers if unit.answered is not None]
    ended = [(unit, facts) for unit, facts in answers if unit.is_enclosing or not facts.calls]
    last = turn.tellers[-1]
    if ended:
        return ended[-1]
    return answers[-1] if answers and not last.failed else (last, None)


def _collect_thoughts(own: SpanFacts, requests: Sequence[KeptSpan]) -> list[str]:
    """The thoughts, in order: those of the requests, else the span's own."""
    thoughts = list(dict.fromkeys(one.facts.thinking for one in requests if one.facts.thinking))
    return thoughts or ([own.thinking] if own.thinking else [])


def _sum_tokens(requests: Sequence[KeptSpan], field: str) -> int | None:
    """The sum of a count; None where no request has it, or where that of one is unclear, because then the sum is, too."""
    counts = [(None if (usage := one.facts.usage) is None else getattr(usage, field), one.facts.tags) for one in requests]
    if any(count is None and UNCLEAR_TOKENS in tags for count, tags in counts):
        return None
    counted = [count for count, _ in counts if count is not None]
    return sum(counted) if counted else None


def places_of(exchanges: Sequence[TracedExchange]) -> dict[str, int]:
    """The place among the exchanges of the one that each span belongs to, by the id of the span."""
    return {span_id: place for place, exchange in enumerate(exchanges) for span_id in exchange.within}


class Unit:
    """An outermost agent, chain or request, with its question and answer."""

    def __init__(self, trace: Trace, span: KeptSpan) -> None:
        self.span = span
        self.is_enclosing = span.facts.kind in ENCLOSING
        self.session_id = trace.session_of(span)
        self.inside = [inner for inner in trace.within(span) if inner.span_id not in trace.helper_ids]
        requests = [inner for inner in self.inside if inner.span_id in trace.request_ids]
        self.requests = [inner for inner in requests if inner.span_id not in trace.tool_ids] or requests
        """The requests that speak for it: those that serve a tool only where there are no others."""
        inner = _unframe(trace, span) if self.is_enclosing and _is_silent(span.facts) else [span]
        # A chain within may have the state of a framework, which is neither question nor answer.
        self._tellers = [span, *(one for one in inner if one is not span and one.facts.kind == "agent")]

    @cached_property
    def asked(self) -> SpanFacts | None:
        """The facts with its question: its own, else those of an agent within it, else of the first request that has one."""
        return next((one.facts for one in (*self._tellers, *self.requests, *self.inside) if one.facts.question), None)

    @cached_property
    def answered(self) -> SpanFacts | None:
        """The facts with its answer: its own, else those of the last agent within it, else of the last request that calls no tool.

        If it failed, texts on the way are no answer.
        """
        own, *inner = self._tellers
        teller = next((one.facts for one in (own, *reversed(inner)) if one.facts.answer), None)
        if teller is not None:
            return teller
        answers = [request.facts for request in self.requests if request.facts.answer]
        ended = [facts for facts in answers if not facts.calls] or ([] if self.failed else answers)
        return ended[-1] if ended else self._answered_by_tool

    @property
    def _answered_by_tool(self) -> SpanFacts | None:
        """The facts with the answer that a model gave by calling the tool for it."""
        for span in reversed(self.inside):
            called, returned = span.facts.called, span.facts.returned
            if called is not None and called.name in ANSWER_TOOLS and returned is not None and not returned.is_error:
                return msgspec.structs.replace(span.facts, answer=returned.output)
        return None

    @property
    def waits_for_tools(self) -> bool:
        """Tell whether it is a request that called tools: the answer comes with a later one."""
        return not self.is_enclosing and bool(self.span.facts.calls)

    @property
    def failed(self) -> bool:
        """Tell whether it failed, or the last of its requests."""
        return self.span.facts.error is not None or (bool(self.requests) and self.requests[-1].facts.error is not None)

    @property
    def has_ended(self) -> bool:
        """Tell whether it came to an answer that calls no tool, or its last request failed."""
        return (self.answered is not None and (self.is_enclosing or not self.answered.calls)) or (
            bool(self.requests) and self.requests[-1].facts.error is not None
        )

    @property
    def agent(self) -> str | None:
        """What distinguishes its agent from others; None where it is none, such as a step of a program without a question of its own."""
        facts = self.span.facts
        if facts.kind == "agent":
            return facts.agent or facts.name
        return None if _is_silent(facts) else facts.name

    @cached_property
    def user_messages(self) -> int:
        """Messages of the user that it was sent."""
        return max([self.span.facts.asked, *(request.facts.asked for request in self.requests[:1])])

    @property
    def resumes(self) -> bool:
        """Tell whether it goes on with the outputs of tools that were called before it."""
        return bool(self.requests) and bool(self.requests[0].facts.results)


def _unframe(trace: Trace, span: KeptSpan) -> list[KeptSpan]:
    """The outermost spans within a frame, or within the frame that is all there is in it."""
    inner = [span]
    while len(inner) == 1 and inner[0].facts.kind in ENCLOSING and _is_silent(inner[0].facts):
        inner = trace.outermost(inner[0])
    return inner


def _is_silent(facts: SpanFacts) -> bool:
    """Tell whether a span lacks its question or, unless it is an agent, its answer."""
    return not (facts.question and (facts.answer or facts.kind == "agent"))


class Turn:
    """The units that answer one message of a user, in order of time, and the spans that belong to it."""

    def __init__(self) -> None:
        self.units = list[Unit]()
        self.spans = list[KeptSpan]()
        self._questions, self._answers, self._agents = set[str](), deque[str](maxlen=_REMEMBERED), set[str | None]()
        self._ends_at = datetime.min.replace(tzinfo=UTC)
        self._user_messages = 0

    @property
    def span(self) -> KeptSpan:
        """The span that the turn is known by: the first agent or chain, else the first request."""
        return next((unit.span for unit in self.units if unit.is_enclosing), self.units[0].span)

    @property
    def tellers(self) -> list[Unit]:
        """The units that speak for the turn: its agents and chains, else all of them."""
        return [unit for unit in self.units if unit.is_enclosing] or self.units

    def add(self, unit: Unit) -> None:
        """Add the next unit."""
        self.units.append(unit)
        if unit.asked is not None and unit.asked.question:
            self._questions.add(unit.asked.question)
        if unit.answered is not None and unit.answered.answer:
            self._answers.append(unit.answered.answer)
        self._agents.add(unit.agent)
        self._ends_at = max(self._ends_at, unit.span.ended_at)
        self._user_messages = max(self._user_messages, unit.user_messages)

    def is_over(self, trace: Trace, unit: Unit) -> bool:
        """Tell whether a unit that comes after it begins another turn."""
        question = unit.asked.question if unit.asked is not None else None
        if question is None or unit.resumes:
            return False
        before = self.units[-1]
        is_same_question = question in self._questions
        runs_beside = unit.span.started_at < self._ends_at
        are_agents = before.is_enclosing and unit.is_enclosing
        if before.span.trace_id != unit.span.trace_id:
            return not runs_beside
        if before.span.parent_id is None and unit.span.parent_id is None and are_agents:
            return not (runs_beside and is_same_question)
        return not runs_beside and self._is_next(trace, unit, question)

    def _is_next(self, trace: Trace, unit: Unit, question: str) -> bool:
        """Tell whether a unit of the same trace that comes after it asks for something else."""
        before, is_same_question = self.units[-1], question in self._questions
        if before.has_ended and question not in self._answers and self._went_on(unit, is_same_question=is_same_question):
            return True
        is_passed_on = any(answer in question for answer in self._answers if len(answer) >= PASSED_ON or answer == question)
        if is_same_question or is_passed_on or trace.serves(unit.span):
            return False
        if before.is_enclosing and unit.is_enclosing:
            return unit.agent is not None and {unit.agent} == self._agents
        # What an agent asks a model on its way are prompts of its own.
        return not (before.is_enclosing or unit.is_enclosing) and before.has_ended and unit.span.span_id not in trace.agent_ids

    def _went_on(self, unit: Unit, *, is_same_question: bool) -> bool:
        """Tell whether a unit was sent a history that went on: a window over a long one has always as many messages."""
        before = self._user_messages
        return unit.user_messages > before or (unit.user_messages == before > 1 and not is_same_question)


def turns_of(trace: Trace) -> list[Turn]:
    """The turns of a trace, in order of time; see the module."""
    units = [unit for span in trace.outermost() for unit in _units_of(trace, span)]
    turns = sorted(_split_turns(trace, units), key=lambda turn: place_of(turn.span))
    _add_rest(trace, turns)
    return turns


def _units_of(trace: Trace, span: KeptSpan) -> list[Unit]:
    """An outermost span as one unit, or as those within it where it is the frame of several turns."""
    if span.facts.kind in ENCLOSING and _is_silent(span.facts):
        inner = [Unit(trace, one) for one in _unframe(trace, span)]
        if len(inner) > 1 and len(_split_turns(trace, inner)) > 1:
            return inner
    return [Unit(trace, span)]


def _split_turns(trace: Trace, units: Iterable[Unit]) -> list[Turn]:
    turns, current = list[Turn](), dict[str, Turn]()
    for unit in sorted(units, key=lambda one: place_of(one.span)):
        turn = current.get(unit.session_id)
        if turn is None or turn.is_over(trace, unit):
            turn = current[unit.session_id] = Turn()
            turns.append(turn)
        turn.add(unit)
    return turns


def _add_rest(trace: Trace, turns: Sequence[Turn]) -> None:
    """Give each turn the spans of its units, and those beside them that began in it: all below the same root, and tools below any."""
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
    """A rating of an exchange, the span that it was reported in, and when."""

    exchange_id: str
    rating: Rating
    span_id: str
    at: datetime


def ratings_of(trace: Trace, exchanges: Sequence[TracedExchange]) -> Iterator[TracedRating]:
    """The ratings of the exchanges of a trace; those of anything else are passed over.

    A rating is of the exchange with the response that it names, else of that of its span.
    """
    indices = places_of(exchanges)
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
