"""Links between traces: what tells that several of them are parts of one turn.

1. A request goes on with outputs of tools that another trace called, or a tool's span has the id of a call that another trace made: a
   sender begins a trace for each request, or a person had to approve the call. Its question, or the call, is in both.
2. Two traces tell the same answer of a model at the same time: two instrumentors of one process, each with traces of its own. Where
   only the words are the same, and both name a session, it is one session: many users ask the same, and get the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

import msgspec

from audit.fingerprints import digest
from streams.sources.otlp.traces.trace import KeptSpan, place_of

MAX_REQUESTS = 65_536
"""Requests that are remembered: those of two instrumentors come within seconds of each other."""
Owner = TypeVar("Owner")


class ToldRequest(NamedTuple):
    """A request to a model: what it is known by, and its time."""

    key: str
    started_at: datetime
    ended_at: datetime
    session: str | None = None
    """Its session, where the key is made of words."""


class Links(NamedTuple):
    """What may link traces to others. Texts are parts of the contents of the others' spans, as they are stored."""

    texts: frozenset[str]
    """Those of the calls of which only one side is told, and of the questions beside them; none where no other trace is needed."""
    calls: frozenset[str]
    """Those of all calls."""
    requests: tuple[ToldRequest, ...]
    started_at: datetime
    ended_at: datetime
    resumes: bool | None
    """Whether the first request goes on with outputs of tools; None where there is no request."""


def links_of(spans: Iterable[KeptSpan]) -> Links:
    """The links of spans."""
    asked, answered, done = set[str](), set[str](), set[str]()
    requests, questions = list[ToldRequest](), set[str]()
    ordered = sorted(spans, key=place_of)
    session = next((span.facts.session_id for span in ordered if span.facts.session_id), None)
    for span in ordered:
        facts = span.facts
        asked.update(call.call_id for call in facts.calls if call.call_id)
        answered.update(result.call_id for result in facts.results if result.call_id)
        if facts.called is not None and facts.called.call_id:
            done.add(facts.called.call_id)
        if facts.kind == "inference":
            if facts.question:
                questions.add(facts.question)
            if facts.response_id or (facts.question and facts.answer):
                key = facts.response_id or digest(f"{facts.question}\n{facts.answer}")
                session_id = None if facts.response_id else facts.session_id or session
                requests.append(ToldRequest(key, span.started_at, span.ended_at, session_id))
    texts = _contents("call_id", (answered - asked) | (done - asked) | (asked - answered - done))
    first = next((span.facts for span in ordered if span.facts.kind == "inference"), None)
    return Links(
        texts=texts | _contents("question", questions) if texts else texts,
        calls=_contents("call_id", asked | answered | done),
        requests=tuple(requests),
        started_at=ordered[0].started_at,
        ended_at=max(span.ended_at for span in ordered),
        resumes=None if first is None else bool(first.results),
    )


def _contents(name: str, values: Iterable[str]) -> frozenset[str]:
    """Facts as the contents of spans have them."""
    return frozenset(f'"{name}":{msgspec.json.encode(value).decode()}' for value in values)


class RecentRequests(Generic[Owner]):
    """The newest requests to models, each with what told of it."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, list[tuple[ToldRequest, Owner]]] = OrderedDict()

    def add(self, requests: Iterable[ToldRequest], owner: Owner) -> Iterator[Owner]:
        """Remember requests; yields who else told of one of them at that time."""
        for request in requests:
            told = self._told.setdefault(request.key, [])
            self._told.move_to_end(request.key)
            for other, other_owner in told:
                if other_owner != owner and _is_same(other, request):
                    yield other_owner
            told[:] = [(other, one) for other, one in told if one != owner][-_OF_ONE_KEY:]
            told.append((request, owner))
        while len(self._told) > MAX_REQUESTS:
            self._told.popitem(last=False)


def _is_same(first: ToldRequest, second: ToldRequest) -> bool:
    is_one_session = None in (first.session, second.session) or first.session == second.session
    return is_one_session and first.started_at <= second.ended_at and second.started_at <= first.ended_at


_OF_ONE_KEY = 16
"""Tellers of one request that are remembered: the same answer may be given again and again."""
