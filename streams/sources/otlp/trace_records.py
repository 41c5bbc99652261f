"""Assembles a complete trace: its exchanges and events, the decision that it is complete, and the counts of its unused spans.

1. A call that both a message and a span report counts once. They are joined by call id, else by name and arguments, else by name in order.
   The span takes precedence, and takes missing fields from the message. A handoff is joined by the agent that takes over, and keeps the
   name that the model used.
2. Tokens are those of the innermost requests, because an agent repeats their sum.
3. No convention tells whether an output was used, so no event does.
4. A later revision keeps the ids of exchanges. An exchange has the id of the span it was first made from. The exchange that now contains this
   span is the same turn.
5. A later revision repeats no event. Which span reports something depends on the spans that have arrived (rule 1), so an earlier event is kept,
   and its equivalent in the whole trace is left out.

Texts are already redacted and cut.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, islice, takewhile
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from audit.diagnosis.events import TOOL_EVENTS, NormalisedEvent, normalise_event, normalise_payload, to_record
from audit.fingerprints import canonical_json, digest
from schemas.bounds import is_too_deep
from schemas.records import AgentEvent, Exchange, Label, Span, TraceAssembly, UnusedSpans
from streams.sources.exchange_builder import (
    DraftCall,
    ExchangeDraft,
    ExchangeSettings,
    RedactedTexts,
    build_exchange,
    pair_calls,
)
from streams.sources.openclaw.text import Unwrapped
from streams.sources.otlp.reading import TRUNCATED
from streams.sources.otlp.span_facts import SpanFacts, ToolCall, ToolResult, Usage
from streams.sources.otlp.stored_spans import to_stored_span
from streams.sources.otlp.trace import (
    SESSION_FROM_TRACE,
    Links,
    StoredSpan,
    Trace,
    find_links,
    instrumentor_of,
    order_key,
    without_evaluations,
)
from streams.sources.otlp.trace_exchanges import TracedExchange, TracedRating, build_exchanges, exchange_indices, find_ratings

COMPLETE = "complete"
CONTINUED = "continued"
NOT_UNDERSTOOD = "not_understood"
NO_MODEL = "no_model"
_NO_SECRETS: Counter[str] = Counter()
_SECRET_MARKER = re.compile(r"\[SECRET:([a-z][a-z0-9_]{0,31}):[0-9a-f]{8}\]")
UNKNOWN_KIND = "unknown_kind"
NO_CONTENT = "no_content"
HELPER = "helper"
EVALUATION = "evaluation"
REPEATED = "repeated"
RETRIEVAL = "retrieval"
NOT_A_MODEL_CALL = "not_a_model_call"
STATES = (UNKNOWN_KIND, NO_CONTENT, HELPER, EVALUATION, REPEATED, RETRIEVAL, NOT_A_MODEL_CALL)
"""The states of unused spans. Those that a user can act on come first."""
MAX_UNUSED_GROUPS = 32
"""Maximum number of groups of unused spans that are kept per trace."""
_TEXT_FACTS = ("question", "answer", "thinking", "calls", "results", "called", "returned")
_STATE_BY_KIND = {"helper": HELPER, "evaluation": EVALUATION, "retrieval": RETRIEVAL, "other": NOT_A_MODEL_CALL}
_OWNER_FIELDS = frozenset({"event_id", "exchange_id"})
_MAX_TOOL_NAME = 256
_CONTEXT_RANK, _CALL_RANK, _OUTPUT_RANK, _USAGE_RANK, _ERROR_RANK = range(5)
"""The order of events at equal times."""
SOURCE = "otlp"
"""The `source` of events from traces."""
Json = dict[str, Any]
_AnyEvent = TypeVar("_AnyEvent", "EarlierEvent", "TracedEvent")
_HANDOFF = re.compile(r"(?:transfer|hand_?off)[ _-]to[ _-](.+)", re.IGNORECASE | re.DOTALL)
_SEPARATORS = re.compile(r"[^a-z0-9]+")


class Assembly(NamedTuple):
    """The records of a trace. Positions of events count from 0 in each session."""

    exchanges: list[Exchange]
    """The current exchanges, then the withdrawn ones, which turned out to be part of others."""
    events: list[AgentEvent]
    ratings: list[TracedRating]
    decision: TraceAssembly
    links: Links
    """The facts that may link the trace to others."""


class Decision(NamedTuple):
    """The decision that a trace is complete: its reason, its time, and the number of earlier decisions."""

    reason: str
    now: datetime
    revision: int = 0
    earlier: Sequence[Exchange] = ()
    """Exchanges of earlier revisions, oldest first."""
    earlier_events: Sequence[EarlierEvent] = ()
    """Events of earlier revisions."""
    session: str | None = None
    """Session that earlier revisions used for the whole trace because no span named one."""
    trace_id: str | None = None
    """Id of the complete trace, if spans of linked traces are included."""


def assemble(records: Sequence[Span], decision: Decision) -> Assembly:
    """Return the records of a trace. `records` may include spans of linked traces that belong to the same turns.

    The same spans give the same exchanges and events, in whatever order and however often they arrive.
    """
    first = min(records, key=order_key)
    spans = sorted(map(to_stored_span, records), key=order_key)
    trace = Trace(first.trace_id, without_evaluations(spans), decision.session)
    earlier = {exchange.exchange_id: exchange for exchange in decision.earlier if not exchange.withdrawn}
    exchanges, withdrawn_ids = _identify_exchanges(build_exchanges(trace), earlier, decision, {span.span_id for span in spans})
    contents = _TraceContents(
        trace=trace,
        own_spans=[span for span in spans if span.trace_id == (decision.trace_id or first.trace_id)],
        exchanges=exchanges,
        new_exchanges=[exchange for exchange in exchanges if exchange.exchange_id not in earlier],
        withdrawn=[
            replace(exchange, withdrawn=True, ingested_at=decision.now)
            for exchange_id, exchange in earlier.items()
            if exchange_id in withdrawn_ids
        ],
        events=events_of(trace),
        ratings=list(find_ratings(trace, exchanges)),
    )
    new_events = _drop_repeated_events(trace, contents.events, decision.earlier_events)
    calls = _group_calls(contents.events, exchanges)
    exchange_records = [
        _build_exchange_record(exchange, pair_calls(calls[index]), first, decision.now)
        for index, exchange in enumerate(exchanges)
    ]
    return Assembly(
        exchanges=exchange_records + contents.withdrawn,
        events=_build_event_records(trace, new_events, exchanges, first, decision.now),
        ratings=contents.ratings,
        decision=_build_decision(contents, first, decision),
        links=find_links(contents.own_spans),
    )


class _TraceContents(NamedTuple):
    """The contents of a trace with its linked traces. `own_spans` are the spans of the trace itself, in order."""

    trace: Trace
    own_spans: list[StoredSpan]
    exchanges: list[TracedExchange]
    new_exchanges: list[TracedExchange]
    withdrawn: list[Exchange]
    events: list[TracedEvent]
    ratings: list[TracedRating]

    @property
    def used_ids(self) -> set[str]:
        """Ids of the spans from which something was made."""
        used_ids = {event.span.span_id for event in self.events}
        used_ids.update(exchange.span.span_id for exchange in self.exchanges)
        used_ids.update(rating.span_id for rating in self.ratings)
        return used_ids


def _build_decision(contents: _TraceContents, first: Span, decision: Decision) -> TraceAssembly:
    """Return the record of the decision on a trace. Its counts are those of the trace itself, without linked traces."""
    trace = contents.trace
    own_spans = contents.own_spans
    trace_id = decision.trace_id or first.trace_id
    probabilities = [span.facts.probability for span in trace.spans if span.facts.probability is not None]
    return TraceAssembly(
        connection=first.connection,
        project=first.project,
        agent=trace.agent_of(trace.spans[0]) if trace.spans else None,
        session_id=_find_session(trace, contents.exchanges, first),
        trace_id=trace_id,
        revision=decision.revision,
        reason=decision.reason,
        spans=len(own_spans),
        exchanges=sum(exchange.span.trace_id == trace_id for exchange in contents.new_exchanges),
        kept_exchanges=0,
        withdrawn_exchanges=len(contents.withdrawn),
        events=sum(event.span.trace_id == trace_id for event in contents.events),
        state=_find_trace_state(own_spans, contents.exchanges),
        unused_spans=unused_spans(own_spans, contents.used_ids, trace.helper_ids, has_exchange=bool(contents.exchanges)),
        truncated=any(TRUNCATED in span.facts.tags for span in trace.spans),
        sampling_probability=probabilities[0] if probabilities else None,
        started_at=own_spans[0].started_at,
        ended_at=max(span.ended_at for span in own_spans),
        assembled_at=decision.now,
    )


def _find_session(trace: Trace, exchanges: Sequence[TracedExchange], first: Span) -> str:
    if exchanges:
        return exchanges[0].session_id
    if trace.spans:
        return trace.session_of(trace.spans[0])
    return first.trace_id


def _identify_exchanges(
    traced: Sequence[TracedExchange], earlier: Mapping[str, Exchange], decision: Decision, span_ids: Collection[str]
) -> tuple[list[TracedExchange], set[str]]:
    """Give exchanges the ids of the earlier exchanges they continue. Also return the ids of the earlier exchanges to withdraw."""
    misfiled_ids = {exchange_id for exchange_id, exchange in earlier.items() if _has_wrong_session(exchange, traced, decision)}
    kept_ids = [exchange_id for exchange_id in earlier if exchange_id not in misfiled_ids]
    identified, absorbed_ids = _keep_earlier_ids(traced, kept_ids, span_ids)
    return identified, absorbed_ids | misfiled_ids


def _has_wrong_session(exchange: Exchange, traced: Sequence[TracedExchange], decision: Decision) -> bool:
    """Return whether an earlier exchange has the trace's id as its session although a linked trace now names the session."""
    if decision.trace_id is None or SESSION_FROM_TRACE not in exchange.tags:
        return False
    return any(SESSION_FROM_TRACE not in current.tags for current in traced)


def _keep_earlier_ids(
    traced: Sequence[TracedExchange], earlier_ids: Iterable[str], span_ids: Collection[str]
) -> tuple[list[TracedExchange], set[str]]:
    """Give exchanges the ids that an earlier revision gave them; the oldest id if there are several.

    Also return the earlier ids that are now part of another exchange. An earlier exchange whose span is not among `span_ids` stays as it is,
    because nothing is known about it.
    """
    indices = exchange_indices(traced)
    id_by_index: dict[int, str] = {}
    absorbed_ids: set[str] = set()
    for exchange_id in earlier_ids:
        index = indices.get(exchange_id)
        if index is not None and index not in id_by_index:
            id_by_index[index] = exchange_id
        elif exchange_id in span_ids:
            absorbed_ids.add(exchange_id)
    return [replace(exchange, earlier_id=id_by_index.get(index)) for index, exchange in enumerate(traced)], absorbed_ids


def _group_calls(
    events: Iterable[TracedEvent], exchanges: Sequence[TracedExchange]
) -> Mapping[int, Sequence[Mapping[str, Any]]]:
    """Return the events of tool calls and outputs by the index of the exchange that they belong to.

    A tool's span that records no result is an output without one: the span has ended, so the call was answered.
    """
    indices = exchange_indices(exchanges)
    calls = defaultdict[int, list[Mapping[str, Any]]](list)
    for event in events:
        index = indices.get(event.span.span_id)
        if index is not None and event.payload["event"] in TOOL_EVENTS:
            calls[index].append(event.payload)
            facts = event.span.facts
            if facts.kind == "tool" and facts.returned is None and event.payload["event"] == "tool_call":
                output = {**event.payload, "event": "tool_output", "is_error": facts.error is not None}
                calls[index].append(output)
    return calls


def _build_exchange_record(traced: TracedExchange, calls: tuple[DraftCall, ...], span: Span, now: datetime) -> Exchange:
    draft = ExchangeDraft(
        exchange_id=traced.exchange_id,
        session_id=traced.session_id,
        at=traced.at,
        question=traced.question,
        answer=traced.answer,
        thinking=traced.thinking,
        agent=traced.agent,
        model=traced.model,
        input_tokens=traced.input_tokens,
        output_tokens=traced.output_tokens,
        stop_reason=traced.stop_reason,
        outcome=traced.outcome,
        tags=frozenset(traced.tags),
        labels=_build_labels(traced.labels),
        tool_calls=calls,
    )
    settings = ExchangeSettings(span.connection, span.project, now, _count_secrets, unwrap=_keep_wrapped)

    def identify(clean: RedactedTexts) -> str:
        texts = [clean.question, clean.answer, clean.thinking, clean.agent, clean.model, clean.multi_user]
        return digest(canonical_json([*texts, draft.session_id, draft.at.isoformat(), traced.labels]))

    return build_exchange(draft, settings, identify)


def _build_labels(labels: Mapping[str, str]) -> tuple[Label, ...]:
    return tuple(Label(name=name, value=value) for name, value in labels.items())


def _count_secrets(text: str) -> tuple[str, Counter[str]]:
    """Return the text unchanged, and the number of secrets by kind that were redacted when its span arrived."""
    return text, Counter(_SECRET_MARKER.findall(text)) if "[SECRET:" in text else _NO_SECRETS


def _keep_wrapped(text: str) -> Unwrapped:
    return Unwrapped(text, multi_user=False)


def _build_event_records(
    trace: Trace, events: Iterable[TracedEvent], exchanges: Sequence[TracedExchange], span: Span, now: datetime
) -> list[AgentEvent]:
    owners = _EventOwners(trace, exchanges)
    next_seq: Counter[str] = Counter()
    records = []
    for event in events:
        owner = owners.owner_of(event.span)
        seq = next_seq[owner.session_id]
        next_seq[owner.session_id] += 1
        normalised = _normalise(event, owner, seq)
        records.append(
            to_record(
                normalised,
                connection=span.connection,
                project=span.project,
                agent=owner.agent,
                session_id=owner.session_id,
                seq=seq,
                occurred_at=event.at,
                ingested_at=now,
                payload_json=canonical_json(normalised.payload),
                labels=owner.labels,
            )
        )
    return records


class _EventOwners:
    """The owners of the events, computed once per span."""

    def __init__(self, trace: Trace, exchanges: Sequence[TracedExchange]) -> None:
        self._trace = trace
        self._exchange_ids = {span_id: exchanges[index].exchange_id for span_id, index in exchange_indices(exchanges).items()}
        self._owners: dict[str, _EventOwner] = {}

    def owner_of(self, span: StoredSpan) -> _EventOwner:
        owner = self._owners.get(span.span_id)
        if owner is None:
            owner = _EventOwner(
                session_id=self._trace.session_of(span),
                agent=self._trace.agent_of(span),
                exchange_id=self._exchange_ids.get(span.span_id),
                labels=_build_labels(self._trace.labels_of(span)),
            )
            self._owners[span.span_id] = owner
        return owner


class _EventOwner(NamedTuple):
    """The session, agent, exchange and labels of the events of a span."""

    session_id: str
    agent: str | None
    exchange_id: str | None
    labels: tuple[Label, ...]


def _normalise(event: TracedEvent, owner: _EventOwner, seq: int) -> NormalisedEvent:
    payload = event.payload
    if owner.exchange_id is not None:
        payload = {**payload, "exchange_id": owner.exchange_id}
    # The payload comes from JSON, so it needs no cleaning unless it nests too deep.
    return normalise_event(payload, seq) if is_too_deep(payload) else normalise_payload(payload, seq)


def _drop_repeated_events(trace: Trace, events: Sequence[TracedEvent], earlier: Sequence[EarlierEvent]) -> list[TracedEvent]:
    """Return the events that no earlier revision reported, under the same id or by another span."""
    if not earlier:
        return list(events)
    current_ids = {event.event_id for event in events}
    earlier_ids = {event.event_id for event in earlier}
    candidates = _group_by_type(event for event in events if event.event_id not in earlier_ids)
    superseded = _group_by_type(event for event in earlier if event.event_id not in current_ids)
    new_ids: set[str] = set()
    for event_type, candidates_of_type in candidates.items():
        superseded_of_type = superseded.get(event_type, [])
        if event_type in TOOL_EVENTS:
            new_events = _find_new_calls(candidates_of_type, superseded_of_type)
        else:
            new_events = _find_new_events(trace, candidates_of_type, superseded_of_type)
        new_ids.update(event.event_id for event in new_events)
    return [event for event in events if event.event_id in new_ids]


def _group_by_type(events: Iterable[_AnyEvent]) -> dict[str, list[_AnyEvent]]:
    """Return the events by their type, each group in the original order."""
    by_type: dict[str, list[_AnyEvent]] = defaultdict(list)
    for event in events:
        by_type[event.payload["event"]].append(event)
    return by_type


def _find_new_calls(candidates: Sequence[TracedEvent], superseded: Sequence[EarlierEvent]) -> Iterator[TracedEvent]:
    """Yield the calls that no superseded event reported. Calls match by call id, or by tool name if one of the two has no id."""
    by_call_id: dict[Any, EarlierEvent] = {}
    by_name: dict[tuple[str, bool], dict[str, EarlierEvent]] = defaultdict(dict)
    for earlier in superseded:
        call_id = earlier.payload.get("tool_call_id")
        by_name[earlier.payload.get("tool", ""), call_id is None][earlier.event_id] = earlier
        if call_id is not None:
            by_call_id[call_id] = earlier
    for event in candidates:
        call_id = event.payload.get("tool_call_id")
        match = None if call_id is None else by_call_id.get(call_id)
        if match is None:
            match = next(_iterate_same_tool_events(event.payload.get("tool", ""), by_name, has_id=call_id is not None), None)
        if match is None:
            yield event
            continue
        by_call_id.pop(match.payload.get("tool_call_id"), None)
        for lacks_id in (True, False):
            by_name[match.payload.get("tool", ""), lacks_id].pop(match.event_id, None)


def _iterate_same_tool_events(
    tool: str, by_name: Mapping[tuple[str, bool], Mapping[str, EarlierEvent]], *, has_id: bool
) -> Iterator[EarlierEvent]:
    """Yield the events of a tool or of its transport, whose name is a suffix of the tool's name, if at most one of the two has an id."""
    for start in range(max(0, len(tool) - _MAX_TOOL_NAME), len(tool)):
        yield from by_name.get((tool[start:], True), {}).values()
        if not has_id:
            yield from by_name.get((tool[start:], False), {}).values()


def _find_new_events(
    trace: Trace, candidates: Sequence[TracedEvent], superseded: Sequence[EarlierEvent]
) -> Iterator[TracedEvent]:
    """Yield the events that no superseded event reported.

    Spans inside each other report the same thing. For other spans, each superseded event matches one new event with equal content.
    """
    superseded_paths = trace.ids_on_path({event.span_id for event in superseded})
    candidate_paths = trace.ids_on_path({event.span.span_id for event in candidates})
    unmatched = Counter(_build_content_key(event.payload) for event in superseded if event.span_id not in candidate_paths)
    for event in candidates:
        if event.span.span_id in superseded_paths:
            continue
        key = _build_content_key(event.payload)
        if unmatched[key] > 0:
            unmatched[key] -= 1
        else:
            yield event


def _build_content_key(payload: Mapping[str, Any]) -> str:
    return canonical_json({name: value for name, value in payload.items() if name not in _OWNER_FIELDS})


def _find_trace_state(spans: Sequence[StoredSpan], traced: Sequence[TracedExchange]) -> str:
    """Return the state of a trace. Without an exchange, it is the reason that its sender can act on most directly."""
    ids = {span.span_id for span in spans}
    if any(exchange.span.span_id in ids for exchange in traced):
        return COMPLETE
    if any(not ids.isdisjoint(exchange.within) for exchange in traced):
        return CONTINUED
    agent_spans = without_evaluations(spans)
    if not agent_spans:
        return EVALUATION
    if any(span.facts.unknown is not None for span in agent_spans):
        return NOT_UNDERSTOOD
    return _find_state_without_content({span.facts.kind for span in agent_spans})


def _find_state_without_content(kinds: Collection[str]) -> str:
    if "inference" in kinds or "agent" in kinds:
        return NO_CONTENT
    return HELPER if "helper" in kinds else NO_MODEL


def unused_spans(
    spans: Iterable[StoredSpan], used: Collection[str], helpers: Collection[str], *, has_exchange: bool
) -> tuple[UnusedSpans, ...]:
    """Count the unused spans by state and scope. `used` and `helpers` are ids of used spans and of spans inside helpers.

    A request without texts counts as unused even if its tokens were used: its sender may wonder why there is no exchange.
    """
    counts: dict[_Group, int] = {}
    examples: dict[_Group, str] = {}
    for span in spans:
        state = _find_unused_state(span, used, helpers, has_exchange=has_exchange)
        if state is not None:
            group = _Group(state, span.facts.scope or "")
            counts[group] = counts.get(group, 0) + 1
            examples.setdefault(group, span.facts.unknown or span.facts.name)
    groups = sorted(counts, key=lambda group: (STATES.index(group.state), -counts[group], group.scope))
    return tuple(
        UnusedSpans(state=group.state, scope=group.scope, example=examples[group], spans=counts[group])
        for group in groups[:MAX_UNUSED_GROUPS]
    )


class _Group(NamedTuple):
    state: str
    scope: str


def _find_unused_state(span: StoredSpan, used: Collection[str], helpers: Collection[str], *, has_exchange: bool) -> str | None:
    facts = span.facts
    is_helper = span.span_id in helpers
    if facts.kind == "inference" and not is_helper and not _has_texts(span):
        return NO_CONTENT
    if facts.kind == "log" or (span.span_id in used and (facts.kind == "memory" or not is_helper)):
        return None
    if facts.unknown is not None and facts.kind == "other":
        return UNKNOWN_KIND
    if facts.kind in _STATE_BY_KIND or is_helper:
        return _STATE_BY_KIND.get(facts.kind, HELPER)
    # Frameworks wrap each step in a span, which needs no texts inside an exchange.
    return REPEATED if has_exchange or _has_texts(span) else NO_CONTENT


def _has_texts(span: StoredSpan) -> bool:
    return any(getattr(span.facts, name) for name in _TEXT_FACTS)


class EarlierEvent(NamedTuple):
    """An event of an earlier revision, and its payload."""

    event_id: str
    payload: Mapping[str, Any]

    @property
    def span_id(self) -> str:
        """Id of the span that it was made from."""
        return ":".join(self.event_id.split(":", 2)[:2])


class TracedEvent(NamedTuple):
    """An event of a trace: when it happened, its span, its id and its payload."""

    at: datetime
    rank: int
    event_id: str
    span: StoredSpan
    payload: Json


def events_of(trace: Trace) -> list[TracedEvent]:
    """Return the events of a trace in order of time. At equal times, a call precedes its output, and both precede token usage."""
    if _has_served_calls_alone(trace):
        return []
    events = [event for span in trace.spans for event in _build_own_events(trace, span)]
    events += _build_tool_events(trace)
    events += _build_definition_events(trace)
    return sorted(events, key=lambda event: (event.at, event.rank, event.event_id))


def _has_served_calls_alone(trace: Trace) -> bool:
    """Return whether a trace without a session has only calls reported by tool servers, such as MCP servers.

    The agent reports these calls in another trace. They would count twice, and the server would look like an agent.
    """
    understood = [span.facts for span in trace.spans if span.facts.kind != "other"]
    return bool(understood) and all(facts.is_served_call and facts.session_id is None for facts in understood)


def _build_own_events(trace: Trace, span: StoredSpan) -> Iterator[TracedEvent]:
    facts = span.facts
    if facts.usage is not None and (
        span.span_id in trace.request_ids or (facts.kind == "helper" and trace.conversation_requests)
    ):
        payload = {"event": "token_usage", "usage": _build_usage_fields(facts.usage), **_drop_missing(model=facts.model)}
        yield _build_event(span.ended_at, _USAGE_RANK, span, "usage", payload)
    if facts.compacted and facts.kind == "inference":
        yield _build_event(
            span.started_at, _CONTEXT_RANK, span, "compaction", {"event": "context_event", "action": "compaction"}
        )
    if facts.kind == "memory":
        payload = {"event": "memory_event", **_drop_missing(action=facts.memory, error=facts.error)}
        yield _build_event(span.started_at, _CONTEXT_RANK, span, "memory", payload)
    # Spans around a failed span repeat its error.
    if facts.error is not None and facts.kind != "tool" and span.span_id not in trace.failed_within:
        yield _build_event(
            span.ended_at, _ERROR_RANK, span, "err", {"event": "error_event", "action": "error", "message": facts.error}
        )


def _build_usage_fields(usage: Usage) -> Json:
    """Return the token counts of an event. Input excludes cache reads and writes. With cached tokens but no input count there is no total."""
    cached = (usage.cache_read or 0) + (usage.cache_write or 0)
    counts = _drop_missing(
        input=None if usage.input is None else max(0, usage.input - cached),
        output=usage.output,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
    )
    total = None if usage.input is None and cached else max(usage.input or 0, cached) + (usage.output or 0)
    return {**_drop_missing(total=total), **counts}


def _drop_missing(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _build_event(at: datetime, rank: int, span: StoredSpan, suffix: str, payload: Json) -> TracedEvent:
    event_id = f"{span.span_id}:{suffix}"
    return TracedEvent(at, rank, event_id, span, {"event_id": event_id, "source": SOURCE, **payload})


def _build_tool_events(trace: Trace) -> Iterator[TracedEvent]:
    tool_spans = [span for span in trace.spans if span.facts.kind == "tool" and span.span_id not in trace.helper_ids]
    transports = find_transports(tool_spans)
    innermost = [span for span in tool_spans if span.span_id not in transports and not _wraps_same_tool(trace, span)]
    tools = _drop_repeated_tools(_add_wrapper_facts(trace, span) for span in innermost)
    messages: list[_MessageCall] = []
    for span in _list_message_spans(trace):
        messages += [_MessageCall(span, index, call) for index, call in enumerate(span.facts.calls)]
    outputs = _ToolOutputs(trace)
    joined = _join_calls(tools, messages)
    for span in tools:
        message = joined.get(span.span_id)
        yield from _build_span_events(span, None if message is None else message.call, outputs)
    joined_keys = {message.key for message in joined.values()}
    for message in messages:
        if message.key not in joined_keys:
            yield from _build_message_events(message, outputs)


def _build_definition_events(trace: Trace) -> Iterator[TracedEvent]:
    """Yield the descriptions of each agent's tools, and again whenever one of them is new or differs."""
    latest = defaultdict[str | None, dict[str, str]](dict)
    for span in trace.spans:
        definitions = span.facts.definitions
        if not definitions or span.span_id in trace.helper_ids:
            continue
        agent = trace.agent_of(span)
        if not definitions.items() <= latest[agent].items():
            latest[agent].update(definitions)
            payload = {"event": "tool_definitions", **_drop_missing(agent=agent), "tools": definitions}
            yield _build_event(span.started_at, _CONTEXT_RANK, span, "tools", payload)


def _wraps_same_tool(trace: Trace, span: StoredSpan) -> bool:
    """Return whether the span of a tool only wraps a span of the same tool by another instrumentor."""
    return any(
        child.facts.kind == "tool" and _find_tool_name(child.facts) == _find_tool_name(span.facts)
        for child in trace.children(span)
    )


def _find_tool_name(facts: SpanFacts) -> str | None:
    return None if facts.called is None else facts.called.name


def _drop_repeated_tools(tools: Iterable[StoredSpan]) -> list[StoredSpan]:
    """Return the spans of tools without those that a second instrumentor reports for the same call at the same time."""
    distinct: list[StoredSpan] = []
    latest_by_call: dict[tuple[str, str], StoredSpan] = {}
    for span in tools:
        call = None if span.facts.called is None else _build_arguments_key(span.facts.called)
        if call is None:
            distinct.append(span)
            continue
        previous = latest_by_call.get(call)
        if previous is not None and _is_reported_twice(previous, span):
            continue
        distinct.append(span)
        latest_by_call[call] = span
    return distinct


def _is_reported_twice(previous: StoredSpan, span: StoredSpan) -> bool:
    """Return whether two spans of equal calls are one call, reported by two instrumentors at the same time."""
    return instrumentor_of(previous) != instrumentor_of(span) and span.started_at <= previous.ended_at


def _build_arguments_key(call: ToolCall) -> tuple[str, str] | None:
    return None if call.name is None else (call.name, canonical_json(call.arguments))


def _add_wrapper_facts(trace: Trace, span: StoredSpan) -> StoredSpan:
    """Return the span of a tool, completed from the spans that wrap it."""
    own = span.facts
    outer = trace.parent(span)
    while outer is not None and outer.facts.kind == "tool" and _find_tool_name(outer.facts) == _find_tool_name(own):
        own = replace(own, called=_complete_call(own.called, outer.facts.called), returned=own.returned or outer.facts.returned)
        outer = trace.parent(outer)
    return span if own is span.facts else span._replace(facts=own)


def _complete_call(call: ToolCall | None, other: ToolCall | None) -> ToolCall | None:
    if call is None or other is None:
        return call or other
    arguments = other.arguments if call.arguments is None else call.arguments
    return ToolCall(call.name or other.name, call.call_id or other.call_id, arguments)


class _MessageCall(NamedTuple):
    """A call in a message: its span, and its position among the span's calls."""

    span: StoredSpan
    position: int
    call: ToolCall

    @property
    def key(self) -> tuple[str, int]:
        """The id of the span and the position."""
        return self.span.span_id, self.position


def _list_message_spans(trace: Trace) -> list[StoredSpan]:
    """Return the spans whose messages count: the innermost requests, else the agents."""
    return trace.conversation_requests or [
        span for span in trace.spans if span.facts.kind == "agent" and span.span_id not in trace.helper_ids
    ]


class _ToolOutputs:
    """The tool outputs in messages, by call id. An id may recur, because some senders number the calls of each turn from 1."""

    def __init__(self, trace: Trace) -> None:
        self._by_call = defaultdict[str, list[tuple[StoredSpan, ToolResult]]](list)
        for span in trace.spans:
            for result in span.facts.results:
                if result.call_id is not None:
                    self._by_call[result.call_id].append((span, result))

    def find(self, call_id: str | None, caller: StoredSpan) -> tuple[StoredSpan, ToolResult] | None:
        """Return the first output reported after the call, with its span. If the clocks differ, return any output of the call."""
        outputs = self._by_call.get(call_id or "", [])
        for span, result in outputs:
            if span is not caller and span.started_at >= caller.started_at:
                return span, result
        return outputs[0] if outputs else None


def _join_calls(tools: list[StoredSpan], messages: list[_MessageCall]) -> dict[str, _MessageCall]:
    """Return the message calls that spans of tools report too, by the id of the span."""
    joined: dict[str, _MessageCall] = {}
    open_tools = list(tools)
    open_messages = list(messages)
    for key in (attrgetter("call_id"), _build_arguments_key, attrgetter("name"), _build_handoff_key):
        candidates = defaultdict[Any, list[_MessageCall]](list)
        for message in open_messages:
            candidates[key(message.call)].append(message)
        for span in open_tools:
            call_key = None if span.facts.called is None else key(span.facts.called)
            if call_key is not None and candidates.get(call_key):
                joined[span.span_id] = candidates[call_key].pop(0)
        joined_keys = {message.key for message in joined.values()}
        open_tools = [span for span in open_tools if span.span_id not in joined]
        open_messages = [message for message in open_messages if message.key not in joined_keys]
    return joined


def _build_handoff_key(call: ToolCall) -> str | None:
    """Return the normalized name of the agent that takes over in a handoff: `transfer_to_billing_desk` and `handoff to Billing Desk` match."""
    match = None if call.name is None else _HANDOFF.match(call.name)
    return None if match is None else _SEPARATORS.sub("_", match[1].lower())


def _build_span_events(span: StoredSpan, message: ToolCall | None, outputs: _ToolOutputs) -> Iterator[TracedEvent]:
    call = _merge_calls(span.facts.called or ToolCall(), message or ToolCall())
    yield _build_event(span.started_at, _CALL_RANK, span, "call", _build_call_fields(call))
    output = span.facts.returned
    reported = outputs.find(call.call_id, span)
    if reported is not None:
        _, result = reported
        if output is None:
            output = result
        elif result.is_error:
            output = replace(output, is_error=True)
    if output is not None:
        payload = _build_output_fields(output, call)
        payload["duration_ms"] = round((span.ended_at - span.started_at).total_seconds() * 1000, 3)
        yield _build_event(span.ended_at, _OUTPUT_RANK, span, "out", payload)


def _merge_calls(own: ToolCall, message: ToolCall) -> ToolCall:
    """Return the call of a span, completed from the message with the same call. A handoff keeps the name that the model used."""
    call_id = own.call_id or message.call_id
    if message.name is not None and _build_handoff_key(own) is not None:
        return ToolCall(message.name, call_id, message.arguments)
    has_arguments = own.arguments is not None and (isinstance(own.arguments, dict) or message.arguments is None)
    return ToolCall(own.name or message.name, call_id, own.arguments if has_arguments else message.arguments)


def _build_call_fields(call: ToolCall) -> Json:
    return {"event": "tool_call", **_drop_missing(tool=call.name, tool_call_id=call.call_id, arguments=call.arguments)}


def _build_output_fields(output: ToolResult, call: ToolCall) -> Json:
    payload = {
        "event": "tool_output",
        **_drop_missing(tool=call.name or output.name, tool_call_id=call.call_id or output.call_id),
    }
    return {**payload, **_drop_missing(is_error=output.is_error), "result": output.output}


def _build_message_events(message: _MessageCall, outputs: _ToolOutputs) -> Iterator[TracedEvent]:
    span = message.span
    call = message.call
    yield _build_event(span.ended_at, _CALL_RANK, span, f"call:{message.position}", _build_call_fields(call))
    reported = outputs.find(call.call_id, span)
    if reported is not None:
        reporter, result = reported
        yield _build_event(
            max(span.ended_at, reporter.started_at),
            _OUTPUT_RANK,
            span,
            f"out:{message.position}",
            _build_output_fields(result, call),
        )


def find_transports(tools: Iterable[StoredSpan]) -> frozenset[str]:
    """Return the ids of the spans that are only the transport of a tool call that another span reports at the same time.

    The other span has arguments, and the name of its tool ends with the name of the transport. The transport has neither an id nor arguments.
    """
    tools_with_arguments: list[_ToolTimes] = []
    transports = defaultdict[str, list[StoredSpan]](list)
    for span in tools:
        called = span.facts.called
        if called is None:
            continue
        if called.arguments is not None:
            tools_with_arguments.append(_ToolTimes((called.name or "")[::-1], span.started_at, span.ended_at))
        elif called.name is not None and called.call_id is None:
            transports[called.name].append(span)
    if not tools_with_arguments or not transports:
        return frozenset()
    tools_with_arguments.sort()
    reversed_names = [tool.reversed_name for tool in tools_with_arguments]
    return frozenset(
        span.span_id
        for name, spans in transports.items()
        for span in _select_within_times(_select_with_name_end(name, tools_with_arguments, reversed_names), spans)
    )


class _ToolTimes(NamedTuple):
    """A tool call with arguments: the reversed name of the tool, its start and its end."""

    reversed_name: str
    started_at: datetime
    ended_at: datetime


def _select_within_times(tools_with_arguments: Sequence[_ToolTimes], spans: Iterable[StoredSpan]) -> Iterable[StoredSpan]:
    """Yield the spans that started during one of these tool calls."""
    by_start = sorted(tools_with_arguments, key=lambda tool: tool.started_at)
    starts = [tool.started_at for tool in by_start]
    latest = list(accumulate((tool.ended_at for tool in by_start), max))
    for span in spans:
        index = bisect_right(starts, span.started_at)
        if index and span.started_at <= latest[index - 1]:
            yield span


def _select_with_name_end(
    name: str, tools_with_arguments: Sequence[_ToolTimes], reversed_names: Sequence[str]
) -> Sequence[_ToolTimes]:
    """Return the tools whose name ends with `name`. They are adjacent in the sorted list."""
    reversed_end = name[::-1]
    start = bisect_left(reversed_names, reversed_end)
    adjacent_tools = islice(tools_with_arguments, start, None)
    return list(takewhile(lambda tool: tool.reversed_name.startswith(reversed_end), adjacent_tools))
