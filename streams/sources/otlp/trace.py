"""The tree of a trace's spans, and the links between traces.

The same spans give the same results, in whatever order they arrive. Two traces are linked if they are parts of one turn:

1. A request continues with the outputs of tools that the other trace called, or a tool's span has the id of a call in the other trace. This
   happens if the sender starts a trace per request, or if a person had to approve the call. Both traces have the question or the call.
2. Both report the same answer of a model at the same time, because a process has two instrumentors with separate traces. If only the texts
   match and both traces name a session, the sessions must match as well: many users ask the same and get the same answer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from audit.fingerprints import digest
from streams.sources.otlp.conventions import AGENT_METHODS, AGENT_NAMING_DIALECTS, FRAMEWORK_AGENT_NAMES
from streams.sources.otlp.kinds import names_helper
from streams.sources.otlp.span_facts import SpanFacts, Usage

SESSION_FROM_TRACE = "session_from_trace"
"""Tag of an exchange whose spans name no session. Its session id is the trace id."""
_MESSAGE_FACTS = ("question", "answer", "thinking", "calls", "results")
_FILLED_FACTS = ("session_id", "agent", "model", "response_id", "stop_reason", "error")
"""Facts that the merged span of a request takes from the other spans if it lacks them."""
order_key = attrgetter("started_at", "span_id")
"""Sort key of spans: start time, then id."""
ENCLOSING_KINDS = frozenset({"agent", "chain"})
"""Kinds of spans that enclose an exchange."""
_NAMED_KINDS = frozenset({"agent", "chain", "inference"})
HELPER_KINDS = frozenset({"helper", "retrieval", "memory"})
"""Kinds of spans that serve the program. Nothing inside them is part of the conversation."""
MAX_RECENT_REQUESTS = 65_536
"""Maximum number of requests kept in memory. Reports of two instrumentors arrive within seconds of each other."""
Owner = TypeVar("Owner")
_MAX_OWNERS = 16
"""Maximum number of owners kept per request, because the same answer may recur any number of times."""


class StoredSpan(NamedTuple):
    """A stored span. Its ids are unique across traces."""

    span_id: str
    parent_id: str | None
    started_at: datetime
    ended_at: datetime
    facts: SpanFacts
    trace_id: str = ""


class Trace:
    """The spans of one trace. Log records are merged into the spans they belong to.

    Properties are computed for all spans at once, from the roots down or from the leaves up, because a trace may be thousands of spans deep
    and recursion would fail.
    """

    def __init__(self, trace_id: str, spans: Iterable[StoredSpan], session: str | None = None) -> None:
        """`session` overrides the sessions that the spans name."""
        self.trace_id = trace_id
        self._session = session
        self.spans = _merge_requests(_break_cycles(_merge_log_records(sorted(spans, key=order_key))))
        self._children: dict[str | None, list[StoredSpan]] = {}
        by_id = {span.span_id: span for span in self.spans}
        self._parents = {span.span_id: by_id.get(span.parent_id or "") for span in self.spans}
        for span in self.spans:
            self._children.setdefault(span.parent_id if span.parent_id in by_id else None, []).append(span)
        self._downwards: list[StoredSpan] = list(self._children.get(None, ()))
        for span in self._downwards:
            self._downwards += self._children.get(span.span_id, ())

    def subtree(self, span: StoredSpan) -> list[StoredSpan]:
        """Return the span and all spans inside it, in order of time."""
        spans = [span]
        for inner in spans:
            spans += self._children.get(inner.span_id, ())
        return sorted(spans, key=order_key)

    def ids_on_path(self, span_ids: Collection[str]) -> frozenset[str]:
        """Return the ids of these spans and of all spans inside or around them."""
        below = set(span_ids)
        for span in self._downwards:
            parent = self._parents[span.span_id]
            if parent is not None and parent.span_id in below:
                below.add(span.span_id)
        around = set(span_ids)
        for span in reversed(self._downwards):
            parent = self._parents[span.span_id]
            if parent is not None and span.span_id in around:
                around.add(parent.span_id)
        return frozenset(below | around)

    def children(self, span: StoredSpan) -> Sequence[StoredSpan]:
        """Return the direct children of a span."""
        return self._children.get(span.span_id, ())

    def parent(self, span: StoredSpan) -> StoredSpan | None:
        """Return the parent of a span."""
        return self._parents.get(span.span_id)

    @cached_property
    def requests(self) -> list[StoredSpan]:
        """The innermost requests to models. A framework may report several of them inside a span that is also called a request."""
        enclosing_ids = self._collect_ids_around(lambda facts: facts.kind == "inference")
        return [span for span in self.spans if span.facts.kind == "inference" and span.span_id not in enclosing_ids]

    @cached_property
    def helper_ids(self) -> frozenset[str]:
        """Ids of the helpers and of all spans inside them, which are not part of the conversation.

        A span that is only named after a helper's task counts as a helper if another request is named otherwise.
        """
        helper_ids = self._collect_ids_inside(lambda span: span.facts.kind in HELPER_KINDS)
        named_ids = helper_ids | self._collect_ids_inside(_is_named_helper)
        has_other_request = any(span.span_id not in named_ids for span in self.requests)
        return named_ids if has_other_request else helper_ids

    @cached_property
    def tool_ids(self) -> frozenset[str]:
        """Ids of the tools' spans and of all spans inside one."""
        return self._collect_ids_inside(lambda span: span.facts.kind == "tool")

    @cached_property
    def agent_ids(self) -> frozenset[str]:
        """Ids of the agents' spans and of all spans inside one."""
        return self._collect_ids_inside(lambda span: span.facts.kind == "agent")

    @cached_property
    def conversation_requests(self) -> list[StoredSpan]:
        """The requests that are part of the conversation."""
        return [span for span in self.requests if span.span_id not in self.helper_ids]

    @cached_property
    def request_ids(self) -> frozenset[str]:
        """Ids of `requests`."""
        return frozenset(span.span_id for span in self.requests)

    @cached_property
    def failed_within(self) -> frozenset[str]:
        """Ids of the spans with a failed span inside."""
        return self._collect_ids_around(lambda facts: facts.error is not None)

    def outermost(self, within: StoredSpan | None = None) -> list[StoredSpan]:
        """Return the outermost agents, chains and requests of the trace, or inside a span, in order of time.

        Spans inside a tool serve the tool, so they are only returned if there are no others.
        """
        level = list(self._children.get(None if within is None else within.span_id, ()))
        units = list[StoredSpan]()
        tools = list[StoredSpan]()
        while level and not units:
            for span in level:
                if span.span_id in self.helper_ids:
                    continue
                if span.facts.kind in ENCLOSING_KINDS or span.span_id in self.request_ids:
                    units.append(span)
                elif span.facts.kind == "tool":
                    tools.append(span)
                else:
                    level += self.children(span)
            level = [child for tool in tools for child in self.children(tool)]
            tools = []
        return sorted(units, key=order_key)

    @cached_property
    def root_ids(self) -> Mapping[str, str]:
        """Id of the root of each span."""
        roots: dict[str, str] = {}
        for span in self._downwards:
            parent = self._parents[span.span_id]
            roots[span.span_id] = span.span_id if parent is None else roots[parent.span_id]
        return roots

    def is_served(self, span: StoredSpan) -> bool:
        """Return whether a span is inside the handling of a server call or a queue message, which is one question."""
        return span.span_id in self._served

    @cached_property
    def _served(self) -> frozenset[str]:
        return self._collect_ids_inside(lambda span: span.facts.serves)

    def session_of(self, span: StoredSpan) -> str:
        """Return the session of a span: its own, else that of the spans around it, inside it, or anywhere in the trace."""
        return self._session or self._only_session or self._sessions.get(span.span_id) or self._any_session or self.trace_id

    def agent_of(self, span: StoredSpan) -> str | None:
        """Return the agent of a span, found like its session; else the name of an agent's span, else the service."""
        return self._only_agent or self._agents.get(span.span_id) or self._any_agent or span.facts.service or self._service

    def labels_of(self, span: StoredSpan) -> dict[str, str]:
        """Return the labels of a span, including those of spans around it and inside it."""
        return {name: values[span.span_id] for name, values in self._labels.items() if span.span_id in values}

    @cached_property
    def _only_session(self) -> str | None:
        """The session, if the spans name only one, as in most traces."""
        return _find_only_value(span.facts.session_id for span in self.spans)

    @cached_property
    def _only_agent(self) -> str | None:
        """The agent, if the spans name only one."""
        return _find_only_value(span.facts.agent for span in self.spans)

    @cached_property
    def _any_session(self) -> str | None:
        return self._find_first(lambda facts: facts.session_id)

    @cached_property
    def _sessions(self) -> Mapping[str, str]:
        return self._spread_values(lambda facts: facts.session_id)

    @cached_property
    def _agents(self) -> Mapping[str, str]:
        return self._spread_values(lambda facts: facts.agent)

    @cached_property
    def _any_agent(self) -> str | None:
        return self._find_first(lambda facts: facts.agent) or self._find_first(_find_agent_in_span_name)

    @cached_property
    def _labels(self) -> Mapping[str, Mapping[str, str]]:
        names = sorted({name for span in self.spans for name in span.facts.labels})
        return {name: self._spread_values(lambda facts, name=name: facts.labels.get(name)) for name in names}  # type: ignore[misc]

    @cached_property
    def _service(self) -> str | None:
        return self._find_first(lambda facts: facts.service)

    def _find_first(self, read: Callable[[SpanFacts], str | None]) -> str | None:
        for span in self.spans:
            if value := read(span.facts):
                return value
        return None

    def _spread_values(self, read: Callable[[SpanFacts], str | None]) -> Mapping[str, str]:
        """Return the value of each span: its own, else the nearest one around it, else the first one inside it."""
        own_values: dict[str, str] = {}
        for span in self.spans:
            value = read(span.facts)
            if value:
                own_values[span.span_id] = value
        if len(own_values) == len(self.spans):
            return own_values
        values = dict(own_values)
        for span in self._downwards:
            parent = self._parents[span.span_id]
            if span.span_id not in own_values and parent is not None and parent.span_id in values:
                values[span.span_id] = values[parent.span_id]
        if len(values) == len(self.spans) or not own_values:
            return values
        return {**self._find_first_inside(own_values), **values}

    def _find_first_inside(self, own_values: Mapping[str, str]) -> dict[str, str]:
        """Return the first value in or inside each span, by start time."""
        first = {span.span_id: span for span in self.spans if span.span_id in own_values}
        for span in reversed(self._downwards):
            parent = self._parents[span.span_id]
            if parent is None or span.span_id not in first:
                continue
            candidate = first[span.span_id]
            first[parent.span_id] = min(first.get(parent.span_id, candidate), candidate, key=order_key)
        return {span_id: own_values[span.span_id] for span_id, span in first.items()}

    def _collect_ids_inside(self, matches: Callable[[StoredSpan], bool]) -> frozenset[str]:
        """Return the ids of the spans that match, and of all spans inside one."""
        ids: set[str] = set()
        for span in self._downwards:
            parent = self._parents[span.span_id]
            if (parent is not None and parent.span_id in ids) or matches(span):
                ids.add(span.span_id)
        return frozenset(ids)

    def _collect_ids_around(self, matches: Callable[[SpanFacts], bool]) -> frozenset[str]:
        """Return the ids of the spans that enclose a span that matches."""
        ids: set[str] = set()
        for span in reversed(self._downwards):
            parent = self._parents[span.span_id]
            if parent is not None and (span.span_id in ids or matches(span.facts)):
                ids.add(parent.span_id)
        return frozenset(ids)


def _merge_requests(spans: Sequence[StoredSpan]) -> list[StoredSpan]:
    """Return the spans, with each request to a model in only one of them.

    Two spans report the same request if they have the same response id, if one is the only request inside the other, or if two
    instrumentors report the same question and answer at the same time. The span with the most messages remains the request, and takes
    missing facts from the others, which become plain spans.
    """
    requests = [span for span in spans if span.facts.kind == "inference"]
    enclosing_requests = _find_enclosing_requests(spans) if requests else {}
    response_ids = [span.facts.response_id for span in requests if span.facts.response_id is not None]
    has_repeated_ids = len(set(response_ids)) < len(response_ids)
    has_two_instrumentors = len({instrumentor_of(span) for span in requests}) > 1
    if not enclosing_requests and not has_repeated_ids and not has_two_instrumentors:
        return list(spans)
    changed: dict[str, StoredSpan] = {}
    for group in _group_requests(requests, enclosing_requests):
        fullest = max(group, key=lambda span: (_count_messages(span.facts), order_key(span)))
        others = [span for span in group if span is not fullest]
        changed[fullest.span_id] = fullest._replace(facts=_merge_facts(fullest.facts, [span.facts for span in others]))
        for span in others:
            plain = msgspec.structs.replace(span.facts, kind="other", usage=None, error=None, compacted=False)
            changed[span.span_id] = span._replace(facts=plain)
    return [changed.get(span.span_id, span) for span in spans]


def _find_enclosing_requests(spans: Sequence[StoredSpan]) -> dict[str, str]:
    """Return the id of the nearest request around each request, by the id of the inner request."""
    by_id = {span.span_id: span for span in spans}
    nearest_by_id: dict[str, str | None] = {}
    for span in spans:
        path = []
        step: StoredSpan | None = span
        while step is not None and step.span_id not in nearest_by_id:
            path.append(step)
            step = by_id.get(step.parent_id or "")
        nearest = None if step is None else _find_nearest(step, nearest_by_id)
        for step in reversed(path):
            nearest_by_id[step.span_id] = nearest
            nearest = _find_nearest(step, nearest_by_id)
    enclosing = {}
    for span in spans:
        outer = nearest_by_id[span.span_id]
        if span.facts.kind == "inference" and outer is not None:
            enclosing[span.span_id] = outer
    return enclosing


def _find_nearest(span: StoredSpan, nearest_by_id: Mapping[str, str | None]) -> str | None:
    """Return the id of the nearest request around the children of a span: the span itself, or the nearest request around it."""
    return span.span_id if span.facts.kind == "inference" else nearest_by_id[span.span_id]


def _group_requests(requests: Sequence[StoredSpan], enclosing_requests: Mapping[str, str]) -> Iterable[list[StoredSpan]]:
    """Return the groups of two or more spans that report the same request, as a union-find over their ids."""
    inner_counts = Counter(enclosing_requests.values())
    first_by_response: dict[str, str] = {}
    representative: dict[str, str] = {span.span_id: span.span_id for span in requests}

    def find(span_id: str) -> str:
        while representative[span_id] != span_id:
            span_id = representative[span_id]
        return span_id

    def join(span_id: str, other_id: str) -> None:
        representative[find(span_id)] = find(other_id)

    for span in requests:
        outer = enclosing_requests.get(span.span_id)
        if outer is not None and inner_counts[outer] == 1:
            join(span.span_id, outer)
        response_id = span.facts.response_id
        if response_id is not None:
            join(span.span_id, first_by_response.setdefault(response_id, span.span_id))
    for later, earlier in _pair_same_requests(requests):
        join(later.span_id, earlier.span_id)
    groups = defaultdict[str, list[StoredSpan]](list)
    for span in requests:
        groups[find(span.span_id)].append(span)
    return [group for group in groups.values() if len(group) > 1]


def _pair_same_requests(requests: Iterable[StoredSpan]) -> Iterator[tuple[StoredSpan, StoredSpan]]:
    """Yield pairs of requests with the same content that two instrumentors reported at the same time, the later one first."""
    by_content = defaultdict[tuple[str, str, tuple[str | None, ...]], list[StoredSpan]](list)
    for span in requests:
        facts = span.facts
        if facts.question and (facts.answer or facts.calls):
            by_content[facts.question, facts.answer or "", tuple(call.name for call in facts.calls)].append(span)
    for spans in by_content.values():
        for earlier, later in pairwise(spans):
            if instrumentor_of(earlier) != instrumentor_of(later) and later.started_at <= earlier.ended_at:
                yield later, earlier


def _count_messages(facts: SpanFacts) -> int:
    return sum(bool(getattr(facts, name)) for name in _MESSAGE_FACTS)


def _merge_facts(own: SpanFacts, others: Sequence[SpanFacts]) -> SpanFacts:
    """Return the facts of a request, completed from other spans that report it."""
    all_facts = (own, *others)
    filled = {name: _find_first_fact(all_facts, name) for name in _FILLED_FACTS}
    return msgspec.structs.replace(
        own,
        **filled,
        usage=_merge_usage([facts.usage for facts in all_facts if facts.usage is not None]),
        compacted=any(facts.compacted for facts in all_facts),
    )


def _find_first_fact(all_facts: Iterable[SpanFacts], name: str) -> Any:
    for facts in all_facts:
        value = getattr(facts, name)
        if value:
            return value
    return None


def _merge_usage(usages: Sequence[Usage]) -> Usage | None:
    """Return a usage with each count of the first usage that has it; None if there is no usage."""
    if not usages:
        return None
    counts = {}
    for name in Usage.__struct_fields__:
        values = [getattr(usage, name) for usage in usages]
        counts[name] = next((value for value in values if value is not None), None)
    return Usage(**counts)


def _break_cycles(spans: Sequence[StoredSpan]) -> list[StoredSpan]:
    """Return the spans without cycles of parents: the first span of a cycle loses its parent. Only a malicious sender creates cycles."""
    by_id = {span.span_id: span for span in spans}
    visited: set[str] = set()
    roots: set[str] = set()
    for span in spans:
        path: dict[str, StoredSpan] = {}
        step: StoredSpan | None = span
        while step is not None and step.span_id not in visited and step.span_id not in path:
            path[step.span_id] = step
            step = by_id.get(step.parent_id or "")
        if step is not None and step.span_id in path:
            cycle = list(path.values())[list(path).index(step.span_id) :]
            roots.add(min(cycle, key=order_key).span_id)
        visited |= path.keys()
    return [span._replace(parent_id=None) if span.span_id in roots else span for span in spans]


def _merge_log_records(ordered: Sequence[StoredSpan]) -> Sequence[StoredSpan]:
    """Return the spans, completed from their log records. Records without a span become a request."""
    if all(span.facts.kind != "log" for span in ordered):
        return ordered
    records: dict[str, list[StoredSpan]] = {}
    for span in ordered:
        if span.facts.kind == "log":
            records.setdefault(span.parent_id or span.span_id, []).append(span)
    spans = [span for span in ordered if span.facts.kind != "log"]
    span_ids = {span.span_id for span in spans}
    for span_id, own_records in records.items():
        if span_id not in span_ids:
            first = own_records[0]
            facts = SpanFacts("inference", dialect="otel", service=first.facts.service)
            spans.append(first._replace(span_id=span_id, parent_id=None, facts=facts))
    completed = [_add_log_records(span, records.get(span.span_id, ())) for span in spans]
    return sorted(completed, key=order_key)


def _add_log_records(span: StoredSpan, records: Sequence[StoredSpan]) -> StoredSpan:
    """Return the span, completed with facts that only its log records have."""
    if not records:
        return span
    own = span.facts
    record_facts = [record.facts for record in records]
    answers = [facts for facts in record_facts if facts.answer or facts.calls or facts.thinking or facts.stop_reason]
    first_answer = answers[0] if answers else SpanFacts("log")
    questions = [facts.question for facts in record_facts if facts.question]
    has_content = bool(own.question or own.answer or own.calls)
    return span._replace(
        facts=msgspec.structs.replace(
            own,
            question=own.question or (questions[-1] if questions else None),
            asked=own.asked or len(questions),
            answer=own.answer or first_answer.answer,
            thinking=own.thinking or first_answer.thinking,
            calls=own.calls or first_answer.calls,
            results=own.results if has_content else tuple(result for facts in record_facts for result in facts.results),
            choices=max(own.choices, len(answers)),
            stop_reason=own.stop_reason or first_answer.stop_reason,
            session_id=own.session_id or next((facts.session_id for facts in record_facts if facts.session_id), None),
            tags=tuple(sorted({*own.tags, *(tag for facts in record_facts for tag in facts.tags)})),
            ratings=(*own.ratings, *(rating for facts in record_facts for rating in facts.ratings)),
        )
    )


def _is_named_helper(span: StoredSpan) -> bool:
    facts = span.facts
    if facts.kind not in _NAMED_KINDS:
        return False
    return names_helper(facts.name) or (facts.agent is not None and names_helper(facts.agent))


def _find_only_value(values: Iterable[str | None]) -> str | None:
    """Return the only distinct value that is not empty; None if there are several or none."""
    distinct = {value for value in values if value}
    return distinct.pop() if len(distinct) == 1 else None


def _find_agent_in_span_name(facts: SpanFacts) -> str | None:
    """Return the agent in the name of a span, without the method; None if the name is not an agent's."""
    if facts.kind != "agent" or facts.dialect not in AGENT_NAMING_DIALECTS or facts.name in FRAMEWORK_AGENT_NAMES:
        return None
    owner, _, method = facts.name.rpartition(".")
    name = owner if owner and method in AGENT_METHODS else facts.name
    return None if name in FRAMEWORK_AGENT_NAMES else name


def without_evaluations(spans: Sequence[StoredSpan]) -> Sequence[StoredSpan]:
    """Return the spans without those of evaluators and experiments, and without all spans inside them."""
    pending = [span.span_id for span in spans if span.facts.kind == "evaluation"]
    if not pending:
        return spans
    children = defaultdict[str, list[str]](list)
    for span in spans:
        children[span.parent_id or ""].append(span.span_id)
    evaluation_ids: set[str] = set()
    while pending:
        span_id = pending.pop()
        if span_id not in evaluation_ids:
            evaluation_ids.add(span_id)
            pending += children[span_id]
    return [span for span in spans if span.span_id not in evaluation_ids]


def instrumentor_of(span: StoredSpan) -> tuple[str, str | None]:
    """Return the identity of a span's instrumentor. Two instrumentors that report the same call differ in trace or scope."""
    return span.trace_id, span.facts.scope


class ReportedRequest(NamedTuple):
    """A request to a model: its identity and its time."""

    key: str
    started_at: datetime
    ended_at: datetime
    session: str | None = None
    """The session of the request, if the key is only a digest of its texts."""


class Links(NamedTuple):
    """The facts that may link a trace to others. Texts are fragments that the stored spans of the other trace contain."""

    texts: frozenset[str]
    """Fragments for the calls of which the trace has only one side, and for its questions; empty if no other trace is needed."""
    calls: frozenset[str]
    """Fragments for all calls."""
    requests: tuple[ReportedRequest, ...]
    started_at: datetime
    ended_at: datetime
    resumes: bool | None
    """Whether the first request continues with tool outputs; None if there is no request."""


def find_links(spans: Iterable[StoredSpan]) -> Links:
    """Return the facts that may link the trace of these spans to others."""
    ordered = sorted(spans, key=order_key)
    requested_ids: set[str] = set()
    result_ids: set[str] = set()
    executed_ids: set[str] = set()
    questions: set[str] = set()
    for span in ordered:
        facts = span.facts
        requested_ids.update(call.call_id for call in facts.calls if call.call_id)
        result_ids.update(result.call_id for result in facts.results if result.call_id)
        if facts.called is not None and facts.called.call_id:
            executed_ids.add(facts.called.call_id)
        if facts.kind == "inference" and facts.question:
            questions.add(facts.question)
    one_sided_ids = (result_ids - requested_ids) | (executed_ids - requested_ids) | (requested_ids - result_ids - executed_ids)
    texts = _encode_fragments("call_id", one_sided_ids)
    if texts:
        texts |= _encode_fragments("question", questions)
    first_request = next((span.facts for span in ordered if span.facts.kind == "inference"), None)
    return Links(
        texts=texts,
        calls=_encode_fragments("call_id", requested_ids | result_ids | executed_ids),
        requests=tuple(_find_reported_requests(ordered)),
        started_at=ordered[0].started_at,
        ended_at=max(span.ended_at for span in ordered),
        resumes=None if first_request is None else bool(first_request.results),
    )


def _find_reported_requests(spans: Sequence[StoredSpan]) -> Iterator[ReportedRequest]:
    """Yield the requests that can be identified by a response id, or by a question and an answer."""
    session = next((span.facts.session_id for span in spans if span.facts.session_id), None)
    for span in spans:
        facts = span.facts
        if facts.kind != "inference":
            continue
        if facts.response_id:
            yield ReportedRequest(facts.response_id, span.started_at, span.ended_at)
        elif facts.question and facts.answer:
            key = digest(f"{facts.question}\n{facts.answer}")
            yield ReportedRequest(key, span.started_at, span.ended_at, facts.session_id or session)


def _encode_fragments(name: str, values: Iterable[str]) -> frozenset[str]:
    """Return values of a fact as fragments of the contents of stored spans."""
    return frozenset(f'"{name}":{msgspec.json.encode(value).decode()}' for value in values)


class RecentRequests(Generic[Owner]):
    """The most recent requests to models, each with the owners that reported it."""

    def __init__(self) -> None:
        self._reports: OrderedDict[str, list[tuple[ReportedRequest, Owner]]] = OrderedDict()

    def add(self, requests: Iterable[ReportedRequest], owner: Owner) -> Iterator[Owner]:
        """Add requests, and yield the other owners that reported one of them at the same time."""
        for request in requests:
            reports = self._reports.setdefault(request.key, [])
            self._reports.move_to_end(request.key)
            other_reports = [report for report in reports if report[1] != owner]
            for other_request, other_owner in other_reports:
                if _is_same(other_request, request):
                    yield other_owner
            self._reports[request.key] = [*other_reports[-_MAX_OWNERS:], (request, owner)]
        while len(self._reports) > MAX_RECENT_REQUESTS:
            self._reports.popitem(last=False)


def _is_same(first: ReportedRequest, second: ReportedRequest) -> bool:
    may_share_session = None in (first.session, second.session) or first.session == second.session
    return may_share_session and first.started_at <= second.ended_at and second.started_at <= first.ended_at
