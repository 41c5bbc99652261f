"""The turns of a trace: which of its agents and requests answer one message of a user, however the sender cuts its traces.

1. A turn begins where the input of a request ends in a new message of the user, and ends with the answer that calls no tool.
2. The outermost agents, chains and requests are what turns are made of. One that tells both a question and an answer is whole, and so is
   an agent that tells a question. Any other is taken apart where those within it are several turns: it is the frame of a conversation.
3. Of two that follow each other, the second begins a turn if the first one ended and the second was sent more messages of the user. Without
   a history it begins one if both are of the only agent so far, or requests outside of any agent, and it is asked something else. It does
   not where it asks the same, runs beside the first, is given its answer or the outputs of tools, or serves the same call of a server.
4. Roots of one trace are turns of their own, unless they run beside each other and ask the same.
5. Spans beside them, and tools, belong to the turn in which they began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property

import msgspec

from streams.sources.otlp.conventions import ANSWER_TOOLS
from streams.sources.otlp.span_facts import SpanFacts
from streams.sources.otlp.traces.trace import ENCLOSING, KeptSpan, Trace, place_of

PASSED_ON = 16
"""Characters of the shortest answer by which a question is known to be made of it: `yes` is in many."""
_REMEMBERED = 16
"""Answers of a turn that a later question may be made of."""


class Unit:
    """An outermost agent, chain or request, and what it says."""

    def __init__(self, trace: Trace, span: KeptSpan) -> None:
        self.span = span
        self.is_enclosing = span.facts.kind in ENCLOSING
        self.session_id = trace.session_of(span)
        self.inside = [inner for inner in trace.within(span) if inner.span_id not in trace.helper_ids]
        requests = [inner for inner in self.inside if inner.span_id in trace.request_ids]
        self.requests = [inner for inner in requests if inner.span_id not in trace.tool_ids] or requests
        """The requests that speak for it: those that serve a tool only where there are no others."""
        inner = _frame(trace, span) if self.is_enclosing and is_silent(span.facts) else [span]
        # A chain within may have the state of a framework, which is neither question nor answer.
        self._tellers = [span, *(one for one in inner if one is not span and one.facts.kind == "agent")]

    @cached_property
    def asked(self) -> SpanFacts | None:
        """The facts with its question: its own, else those of an agent within it, else of the first request that has one."""
        return next((one.facts for one in (*self._tellers, *self.requests, *self.inside) if one.facts.question), None)

    @cached_property
    def answered(self) -> SpanFacts | None:
        """The facts with its answer: its own, else those of the last agent within it, else of the last request that calls no tool.

        Where it failed, what was said on the way is no answer.
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
        """What tells its agent from another; None where it is none, such as a step of a program that does not say what it is asked."""
        facts = self.span.facts
        if facts.kind == "agent":
            return facts.agent or facts.name
        return None if is_silent(facts) else facts.name

    @cached_property
    def user_messages(self) -> int:
        """Messages of the user that it was sent."""
        return max([self.span.facts.asked, *(request.facts.asked for request in self.requests[:1])])

    @property
    def resumes(self) -> bool:
        """Tell whether it goes on with the outputs of tools that were called before it."""
        return bool(self.requests) and bool(self.requests[0].facts.results)


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
    units = [unit for span in trace.outermost() for unit in _units(trace, span)]
    turns = sorted(_turns(trace, units), key=lambda turn: place_of(turn.span))
    _add_rest(trace, turns)
    return turns


def is_silent(facts: SpanFacts) -> bool:
    """Tell whether a span does not tell what was asked and, unless it is an agent, what was answered."""
    return not (facts.question and (facts.answer or facts.kind == "agent"))


def _units(trace: Trace, span: KeptSpan) -> list[Unit]:
    """An outermost span as one unit, or as those within it where it is the frame of several turns."""
    if span.facts.kind in ENCLOSING and is_silent(span.facts):
        inner = [Unit(trace, one) for one in _frame(trace, span)]
        if len(inner) > 1 and len(_turns(trace, inner)) > 1:
            return inner
    return [Unit(trace, span)]


def _frame(trace: Trace, span: KeptSpan) -> list[KeptSpan]:
    """The outermost spans within a frame, or within the frame that is all there is in it."""
    inner = [span]
    while len(inner) == 1 and inner[0].facts.kind in ENCLOSING and is_silent(inner[0].facts):
        inner = trace.outermost(inner[0])
    return inner


def _turns(trace: Trace, units: Iterable[Unit]) -> list[Turn]:
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
