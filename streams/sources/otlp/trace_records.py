"""A complete trace as records: exchanges, events, the decision that it is complete, and the spans that nothing was made of.

1. A call that a message and a span both report is one: joined by the id of the call, else by name and arguments, else by name in order. The
   span wins, and takes from the message what it lacks. A handoff is joined by the agent that takes over, and named as the model named it.
2. Tokens are those of the innermost requests: an agent repeats their sum.
3. No convention says whether an output was used, so no event does.
4. A later revision keeps the ids of exchanges. An exchange's id names the span that it was made of; whichever exchange that span belongs
   to now is the same turn.
5. A later revision repeats no event. Which span reports a thing depends on the spans that are there (rule 1), so an event that an earlier
   revision made stays, and the one by which the whole trace reports the same is left out.

Texts are redacted and cut already.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from audit.diagnosis.events import NormalisedEvent, normalise_event, normalise_payload, to_record
from audit.fingerprints import canonical_json, digest
from schemas.bounds import is_too_deep
from schemas.records import AgentEvent, Exchange, Label, Span, TraceAssembly, UnusedSpans
from streams.sources.exchange_builder import Clean, ExchangeDraft, Filing, build_exchange
from streams.sources.openclaw.text import Unwrapped
from streams.sources.otlp.kept_spans import kept_span
from streams.sources.otlp.reading import TRUNCATED
from streams.sources.otlp.span_facts import SpanFacts, ToolCall, ToolResult, Usage
from streams.sources.otlp.trace import (
    SESSION_FROM_TRACE,
    KeptSpan,
    Links,
    Trace,
    links_of,
    place_of,
    told_by,
    without_evaluations,
)
from streams.sources.otlp.trace_exchanges import TracedExchange, TracedRating, exchanges_of, places_of, ratings_of

COMPLETE, CONTINUED, NOT_UNDERSTOOD, NO_MODEL = "complete", "continued", "not_understood", "no_model"
_NONE: Counter[str] = Counter()
_MARKER = re.compile(r"\[SECRET:([a-z][a-z0-9_]{0,31}):[0-9a-f]{8}\]")
UNKNOWN_KIND, NO_CONTENT, HELPER = "unknown_kind", "no_content", "helper"
EVALUATION, REPEATED, RETRIEVAL, NOT_A_MODEL_CALL = "evaluation", "repeated", "retrieval", "not_a_model_call"
STATES = (UNKNOWN_KIND, NO_CONTENT, HELPER, EVALUATION, REPEATED, RETRIEVAL, NOT_A_MODEL_CALL)
"""The reasons, those that a user can act on first."""
MAX_GROUPS = 32
"""Groups of one trace that are kept."""
_TEXTS = ("question", "answer", "thinking", "calls", "results", "called", "returned")
_BY_KIND = {"helper": HELPER, "evaluation": EVALUATION, "retrieval": RETRIEVAL, "other": NOT_A_MODEL_CALL}
_CALLS = frozenset({"tool_call", "tool_output"})
_FILED = frozenset({"event_id", "exchange_id"})
_LONGEST_NAME = 256
SOURCE = "otlp"
"""The source that events of traces name."""
Json = dict[str, Any]
_handoff = re.compile(r"(?:transfer|hand_?off)[ _-]to[ _-](.+)", re.IGNORECASE | re.DOTALL).match
_apart = partial(re.compile(r"[^a-z0-9]+").sub)


class Assembly(NamedTuple):
    """The records that a trace was made into. The positions of the events count from 0 in each session."""

    exchanges: list[Exchange]
    """The present ones, whichever were made before, and then those that turned out to be part of another one: these are withdrawn."""
    events: list[AgentEvent]
    ratings: list[TracedRating]
    decision: TraceAssembly
    links: Links
    """What may link the trace to others."""


class Decision(NamedTuple):
    """The decision that a trace is complete: why, when, and how often it was taken for complete before."""

    reason: str
    now: datetime
    revision: int = 0
    earlier: Sequence[Exchange] = ()
    """The exchanges that earlier revisions made, the oldest first."""
    earlier_events: Sequence[EarlierEvent] = ()
    """The events that earlier revisions made."""
    session: str | None = None
    """The session that earlier revisions filed all of the trace under, because no span named one."""
    trace_id: str | None = None
    """The trace that is complete, where there are spans of others that belong to the same turns."""


def assemble(records: Sequence[Span], decision: Decision) -> Assembly:
    """Make a trace into records, together with the spans of linked traces that belong to the same turns.

    The same spans give the same exchanges and events, whatever the order and however often they came.
    """
    first = min(records, key=place_of)
    kept = sorted(map(kept_span, records), key=place_of)
    trace_id = decision.trace_id or first.trace_id
    own = [span for span in kept if span.trace_id == trace_id]
    trace = Trace(first.trace_id, without_evaluations(kept), decision.session)
    earlier = {one.exchange_id: one for one in decision.earlier if not one.withdrawn}
    traced = exchanges_of(trace)
    named = {name: one for name, one in earlier.items() if not _is_misfiled(one, traced, decision)}
    traced, absorbed = _keep_earlier_ids(traced, named, {span.span_id for span in kept})
    absorbed |= earlier.keys() - named.keys()
    exchanges = [_exchange(one, first, decision.now) for one in traced]
    withdrawn = [replace(one, withdrawn=True, ingested_at=decision.now) for name, one in earlier.items() if name in absorbed]
    events = events_of(trace)
    ratings = list(ratings_of(trace, traced))
    all_facts = [span.facts for span in trace.spans]
    used = {event.span.span_id for event in events} | {one.span.span_id for one in traced} | {one.span_id for one in ratings}
    return Assembly(
        exchanges=[*exchanges, *withdrawn],
        events=_event_records(
            trace, _drop_repeated_events(trace, events, decision.earlier_events), traced, first, decision.now
        ),
        ratings=ratings,
        decision=TraceAssembly(
            connection=first.connection,
            project=first.project,
            agent=trace.agent_of(trace.spans[0]) if trace.spans else None,
            session_id=traced[0].session_id if traced else trace.session_of(trace.spans[0]) if trace.spans else first.trace_id,
            trace_id=trace_id,
            revision=decision.revision,
            reason=decision.reason,
            spans=len(own),
            exchanges=sum(one.exchange_id not in earlier for one in traced if one.span.trace_id == trace_id),
            kept_exchanges=0,
            withdrawn_exchanges=len(withdrawn),
            events=sum(event.span.trace_id == trace_id for event in events),
            state=_trace_state(own, traced),
            unused_spans=unused_spans(own, used, trace.helper_ids, has_exchange=bool(traced)),
            truncated=any(TRUNCATED in facts.tags for facts in all_facts),
            sampling_probability=next((facts.probability for facts in all_facts if facts.probability is not None), None),
            started_at=own[0].started_at,
            ended_at=max(span.ended_at for span in own),
            assembled_at=decision.now,
        ),
        links=links_of(own),
    )


def _is_misfiled(exchange: Exchange, traced: Sequence[TracedExchange], decision: Decision) -> bool:
    """Tell whether an earlier exchange has the id of its trace for a session, and a trace that is linked to it names the session."""
    names_session = any(SESSION_FROM_TRACE not in one.tags for one in traced)
    return decision.trace_id is not None and SESSION_FROM_TRACE in exchange.tags and names_session


def _keep_earlier_ids(exchanges: Sequence[TracedExchange], earlier_ids: Iterable[str], present: Collection[str]) -> _EarlierIds:
    """Give exchanges the ids under which an earlier revision of the trace made them, the oldest first where there were several.

    Of a span that is not among the `present` ones nothing is known, so its exchange stays as it is.
    """
    indices = places_of(exchanges)
    ids: dict[int, str] = {}
    absorbed: set[str] = set()
    for exchange_id in earlier_ids:
        index = indices.get(exchange_id)
        if index is not None and index not in ids:
            ids[index] = exchange_id
        elif exchange_id in present:
            absorbed.add(exchange_id)
    named = [msgspec.structs.replace(one, earlier_id=ids.get(index)) for index, one in enumerate(exchanges)]
    return _EarlierIds(named, frozenset(absorbed))


class _EarlierIds(NamedTuple):
    """Exchanges of a trace, some under the ids that they had, and the ids of those that are part of another one now."""

    exchanges: list[TracedExchange]
    absorbed: frozenset[str]


def _exchange(traced: TracedExchange, span: Span, now: datetime) -> Exchange:
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
        labels=_labels(traced.labels),
    )
    filing = Filing(span.connection, span.project, now, _count_secrets, unwrap=_keep_wrapped)

    def identify(clean: Clean) -> str:
        return digest(canonical_json([*clean, draft.session_id, draft.at.isoformat(), traced.labels]))

    return build_exchange(draft, filing, identify)


def _labels(labels: Mapping[str, str]) -> tuple[Label, ...]:
    return tuple(Label(name=name, value=value) for name, value in labels.items())


def _count_secrets(text: str) -> tuple[str, Counter[str]]:
    """The text, whose secrets were taken out when its span came in, and how many there were."""
    return text, Counter(_MARKER.findall(text)) if "[SECRET:" in text else _NONE


def _keep_wrapped(text: str) -> Unwrapped:
    return Unwrapped(text, multi_user=False)


def _event_records(
    trace: Trace, events: Iterable[TracedEvent], exchanges: Sequence[TracedExchange], span: Span, now: datetime
) -> list[AgentEvent]:
    counts: Counter[str] = Counter()
    filings = _Filings(trace, exchanges)
    made = []
    for event in events:
        filed = filings[event.span]
        session = filed.session_id
        normalised = _normalise(event, filed, counts[session])
        made.append(
            to_record(
                normalised,
                connection=span.connection,
                project=span.project,
                agent=filed.agent,
                session_id=session,
                seq=counts[session],
                occurred_at=event.at,
                ingested_at=now,
                payload_json=canonical_json(normalised.payload),
                labels=filed.labels,
            )
        )
        counts[session] += 1
    return made


class _Filings:
    """The fields that the events of each span have in common, computed once per span."""

    def __init__(self, trace: Trace, exchanges: Sequence[TracedExchange]) -> None:
        self._trace = trace
        self._places = places_of(exchanges)
        self._ids = [one.exchange_id for one in exchanges]
        self._found: dict[str, _Filed] = {}

    def __getitem__(self, span: KeptSpan) -> _Filed:
        filed = self._found.get(span.span_id)
        if filed is None:
            trace, index = self._trace, self._places.get(span.span_id)
            filed = self._found[span.span_id] = _Filed(
                trace.session_of(span),
                trace.agent_of(span),
                None if index is None else self._ids[index],
                _labels(trace.labels_of(span)),
            )
        return filed


class _Filed(NamedTuple):
    """The fields that the events of a span have in common."""

    session_id: str
    agent: str | None
    exchange_id: str | None
    labels: tuple[Label, ...]


def _normalise(event: TracedEvent, filed: _Filed, seq: int) -> NormalisedEvent:
    payload = event.payload if filed.exchange_id is None else {**event.payload, "exchange_id": filed.exchange_id}
    # What was read of a record's JSON can be written as JSON, if it is not too deep for one.
    return normalise_event(payload, seq) if is_too_deep(payload) else normalise_payload(payload, seq)


def _drop_repeated_events(trace: Trace, events: Sequence[TracedEvent], earlier: Sequence[EarlierEvent]) -> list[TracedEvent]:
    """The events that no earlier revision made, neither under their ids nor by another span."""
    if not earlier:
        return list(events)
    ids, earlier_ids = {event.event_id for event in events}, {earlier_event.event_id for earlier_event in earlier}
    fresh: dict[str, list[TracedEvent]] = defaultdict(list)
    for event in events:
        if event.event_id not in earlier_ids:
            fresh[event.payload["event"]].append(event)
    superseded: dict[str, list[EarlierEvent]] = defaultdict(list)
    for earlier_event in earlier:
        if earlier_event.event_id not in ids:
            superseded[earlier_event.payload["event"]].append(earlier_event)
    new_ids = {
        event.event_id
        for name, of_type in fresh.items()
        for event in (_new_calls if name in _CALLS else _new_events)(trace, of_type, superseded[name])
    }
    return [event for event in events if event.event_id in new_ids]


def _new_calls(_: Trace, fresh: Sequence[TracedEvent], superseded: Sequence[EarlierEvent]) -> Iterator[TracedEvent]:
    """The calls that no superseded event covers: matched by the id of the call, else, where one of the two has none, by the name of the tool."""
    by_id: dict[Any, EarlierEvent] = {}
    by_name: dict[tuple[str, bool], dict[str, EarlierEvent]] = defaultdict(dict)
    for candidate in superseded:
        call_id = candidate.payload.get("tool_call_id")
        by_name[candidate.payload.get("tool", ""), call_id is None][candidate.event_id] = candidate
        if call_id is not None:
            by_id[call_id] = candidate
    for event in fresh:
        call_id = event.payload.get("tool_call_id")
        match = None if call_id is None else by_id.get(call_id)
        match = match or next(_of_same_name(event.payload.get("tool", ""), by_name, has_id=call_id is not None), None)
        if match is None:
            yield event
            continue
        by_id.pop(match.payload.get("tool_call_id"), None)
        for has_none in (True, False):
            by_name[match.payload.get("tool", ""), has_none].pop(match.event_id, None)


def _of_same_name(
    tool: str, by_name: Mapping[tuple[str, bool], Mapping[str, EarlierEvent]], *, has_id: bool
) -> Iterator[EarlierEvent]:
    """The events of a tool, or of its transport, whose name is the end of its own; not both have an id."""
    for start in range(max(0, len(tool) - _LONGEST_NAME), len(tool)):
        for lacks_id in (True,) if has_id else (True, False):
            yield from by_name.get((tool[start:], lacks_id), {}).values()


def _new_events(trace: Trace, fresh: Sequence[TracedEvent], superseded: Sequence[EarlierEvent]) -> Iterator[TracedEvent]:
    """The events that no superseded one covers: spans within each other report the same thing; other spans do once for each equal content."""
    inside = trace.in_line_with({one.span_id for one in superseded})
    beside = trace.in_line_with({event.span.span_id for event in fresh})
    alike = Counter(_content_key(one.payload) for one in superseded if one.span_id not in beside)
    for event in fresh:
        if event.span.span_id in inside:
            continue
        key = _content_key(event.payload)
        if alike[key] > 0:
            alike[key] -= 1
        else:
            yield event


def _content_key(payload: Mapping[str, Any]) -> str:
    return canonical_json({name: value for name, value in payload.items() if name not in _FILED})


def _trace_state(spans: Sequence[KeptSpan], traced: Sequence[TracedExchange]) -> str:
    """The state of a trace; if it made no exchange, the reason that its sender can do most about."""
    ids = {span.span_id for span in spans}
    if any(one.span.span_id in ids for one in traced):
        return COMPLETE
    if any(not ids.isdisjoint(one.within) for one in traced):
        return CONTINUED
    own = without_evaluations(spans)
    if not own:
        return EVALUATION
    kinds = {span.facts.kind for span in own}
    if any(span.facts.unknown is not None for span in own):
        return NOT_UNDERSTOOD
    return NO_CONTENT if kinds & {"inference", "agent"} else HELPER if "helper" in kinds else NO_MODEL


def unused_spans(
    spans: Iterable[KeptSpan], used: Collection[str], helpers: Collection[str], *, has_exchange: bool
) -> tuple[UnusedSpans, ...]:
    """The spans that are not `used`, by state and scope; `helpers` are the ids of those within a helper.

    A request without texts counts even where its tokens were used: an exchange that its sender hides looks like none at all.
    """
    counts: dict[_Group, int] = {}
    examples: dict[_Group, str] = {}
    for span in spans:
        state = _unused_state(span, used, helpers, has_exchange=has_exchange)
        if state is not None:
            group = _Group(state, span.facts.scope or "")
            counts[group] = counts.get(group, 0) + 1
            examples.setdefault(group, span.facts.unknown or span.facts.name)
    groups = sorted(counts, key=lambda group: (STATES.index(group.state), -counts[group], group.scope))[:MAX_GROUPS]
    return tuple([UnusedSpans(state=one.state, scope=one.scope, example=examples[one], spans=counts[one]) for one in groups])


class _Group(NamedTuple):
    state: str
    scope: str


def _unused_state(span: KeptSpan, used: Collection[str], helpers: Collection[str], *, has_exchange: bool) -> str | None:
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


class EarlierEvent(NamedTuple):
    """An event that an earlier revision made, and its payload."""

    event_id: str
    payload: Mapping[str, Any]

    @property
    def span_id(self) -> str:
        """The id of the span that it was made of."""
        return ":".join(self.event_id.split(":", 2)[:2])


class TracedEvent(NamedTuple):
    """An event of a trace: when it happened, its span, its id and its payload."""

    at: datetime
    rank: int
    event_id: str
    span: KeptSpan
    payload: Json


def events_of(trace: Trace) -> list[TracedEvent]:
    """The events of a trace in order of time; of one moment a call comes before its output, and both before tokens."""
    if _has_served_calls_alone(trace):
        return []
    events = [event for span in trace.spans for event in _own_events(trace, span)]
    events += _calls_of_tools(trace)
    return sorted(events, key=lambda event: (event.at, event.rank, event.event_id))


def _has_served_calls_alone(trace: Trace) -> bool:
    """Tell whether a trace has nothing but calls as servers of tools report them, such as those of MCP, and names no session.

    The agent reports each of these calls in a trace of its own: here it would count twice, and the server would be an agent with a run.
    """
    told_facts = [span.facts for span in trace.spans if span.facts.kind != "other"]
    return bool(told_facts) and all(facts.is_served_call and facts.session_id is None for facts in told_facts)


def _own_events(trace: Trace, span: KeptSpan) -> Iterator[TracedEvent]:
    facts = span.facts
    if facts.usage is not None and (span.span_id in trace.request_ids or (facts.kind == "helper" and trace.spoken)):
        payload = {"event": "token_usage", "usage": _usage_fields(facts.usage), **_drop_missing(model=facts.model)}
        yield _build_event(span.ended_at, 3, span, "usage", payload)
    if facts.compacted and facts.kind == "inference":
        yield _build_event(span.started_at, 0, span, "compaction", {"event": "context_event", "action": "compaction"})
    if facts.kind == "memory":
        payload = {"event": "memory_event", **_drop_missing(action=facts.memory, error=facts.error)}
        yield _build_event(span.started_at, 0, span, "memory", payload)
    # Each span around a failed one repeats its error.
    if facts.error is not None and facts.kind != "tool" and span.span_id not in trace.failed_within:
        yield _build_event(span.ended_at, 4, span, "err", {"event": "error_event", "action": "error", "message": facts.error})


def _usage_fields(usage: Usage) -> Json:
    """Tokens as events have them: what was read without what came from or went into a cache. Without the first there is no total."""
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


def _build_event(at: datetime, rank: int, span: KeptSpan, suffix: str, payload: Json) -> TracedEvent:
    event_id = f"{span.span_id}:{suffix}"
    return TracedEvent(at, rank, event_id, span, {"event_id": event_id, "source": SOURCE, **payload})


def _calls_of_tools(trace: Trace) -> Iterator[TracedEvent]:
    every = [span for span in trace.spans if span.facts.kind == "tool" and span.span_id not in trace.helper_ids]
    better = find_transports(every)
    inner = (span for span in every if not _repeats_inner(trace, span) and span.span_id not in better)
    tools = _drop_repeated_tools(_with_wrappers(trace, span) for span in inner)
    messages = [
        _MessageCall(span, index, call) for span in _speaking_spans(trace) for index, call in enumerate(span.facts.calls)
    ]
    outputs = _Outputs(trace)
    joined = _join_calls(tools, messages)
    for span in tools:
        message = joined.get(span.span_id)
        yield from _events_of_span(span, None if message is None else message.call, outputs)
    taken = {(message.span.span_id, message.position) for message in joined.values()}
    for message in messages:
        if (message.span.span_id, message.position) not in taken:
            yield from _events_of_message(message, outputs)


def _repeats_inner(trace: Trace, span: KeptSpan) -> bool:
    """Tell whether a tool's span only wraps another of the same tool, which another instrumentor made."""
    return any(
        child.facts.kind == "tool" and _tool_name(child.facts) == _tool_name(span.facts) for child in trace.children(span)
    )


def _tool_name(facts: SpanFacts) -> str | None:
    return None if facts.called is None else facts.called.name


def _drop_repeated_tools(tools: Iterable[KeptSpan]) -> list[KeptSpan]:
    """The tools' spans without those by which a second instrumentor reports the same call at the same time."""
    kept, by_call = list[KeptSpan](), dict[tuple[str, str] | None, KeptSpan]()
    for span in tools:
        call = None if span.facts.called is None else _by_arguments(span.facts.called)
        before = by_call.setdefault(call, span)
        if call is None or told_by(before) == told_by(span) or span.started_at > before.ended_at:
            kept.append(span)
            by_call[call] = span
    return kept


def _by_arguments(call: ToolCall) -> tuple[str, str] | None:
    return None if call.name is None else (call.name, canonical_json(call.arguments))


def _with_wrappers(trace: Trace, span: KeptSpan) -> KeptSpan:
    """A tool's span, completed from the spans that wrap it."""
    own, outer = span.facts, trace.parent(span)
    while outer is not None and outer.facts.kind == "tool" and _tool_name(outer.facts) == _tool_name(own):
        own = msgspec.structs.replace(
            own, called=_complete_call(own.called, outer.facts.called), returned=own.returned or outer.facts.returned
        )
        outer = trace.parent(outer)
    return span if own is span.facts else span._replace(facts=own)


def _complete_call(call: ToolCall | None, other: ToolCall | None) -> ToolCall | None:
    if call is None or other is None:
        return call or other
    arguments = other.arguments if call.arguments is None else call.arguments
    return ToolCall(call.name or other.name, call.call_id or other.call_id, arguments)


class _MessageCall(NamedTuple):
    """A call in a message: its span, and its position among the span's calls."""

    span: KeptSpan
    position: int
    call: ToolCall


def _speaking_spans(trace: Trace) -> list[KeptSpan]:
    """The spans whose messages count: the innermost requests, else whatever has any."""
    return trace.spoken or [span for span in trace.spans if span.facts.kind == "agent" and span.span_id not in trace.helper_ids]


class _Outputs:
    """The outputs in messages, by the id of the call; some senders number the calls of each turn from 1 again."""

    def __init__(self, trace: Trace) -> None:
        self._told = defaultdict[str, list[tuple[KeptSpan, ToolResult]]](list)
        for span in trace.spans:
            for result in span.facts.results:
                if result.call_id is not None:
                    self._told[result.call_id].append((span, result))

    def of(self, call_id: str | None, caller: KeptSpan) -> tuple[KeptSpan, ToolResult] | None:
        """The first output of a call that was reported after it, with its span; any output where clocks differ."""
        outputs = self._told.get(call_id or "", [])
        return next(
            (one for one in outputs if one[0] is not caller and one[0].started_at >= caller.started_at),
            outputs[0] if outputs else None,
        )


def _join_calls(tools: list[KeptSpan], messages: list[_MessageCall]) -> dict[str, _MessageCall]:
    """The message with the same call as a span, by the id of the span."""
    joined: dict[str, _MessageCall] = {}
    left_spans, left_told = list(tools), list(messages)
    for key in (attrgetter("call_id"), _by_arguments, attrgetter("name"), _by_handoff):
        waiting = defaultdict[Any, list[_MessageCall]](list)
        for message in left_told:
            waiting[key(message.call)].append(message)
        for span in left_spans:
            wanted = None if span.facts.called is None else key(span.facts.called)
            if wanted is not None and (ready := waiting.get(wanted)):
                joined[span.span_id] = ready.pop(0)
        taken = {(message.span.span_id, message.position) for message in joined.values()}
        left_spans = [span for span in left_spans if span.span_id not in joined]
        left_told = [message for message in left_told if (message.span.span_id, message.position) not in taken]
    return joined


def _by_handoff(call: ToolCall) -> str | None:
    """The agent that takes over, as a name of a tool: a model calls `transfer_to_billing_desk`, and a span is a `handoff to Billing Desk`."""
    match = None if call.name is None else _handoff(call.name)
    return None if match is None else _apart("_", match[1].lower())


def _events_of_span(span: KeptSpan, message: ToolCall | None, outputs: _Outputs) -> Iterator[TracedEvent]:
    own, message_call = span.facts.called or ToolCall(), message or ToolCall()
    call_id = own.call_id or message_call.call_id
    is_telling = own.arguments is not None and (isinstance(own.arguments, dict) or message_call.arguments is None)
    is_handoff = message_call.name is not None and _by_handoff(own) is not None
    name = message_call.name if is_handoff else own.name or message_call.name
    call = ToolCall(name, call_id, own.arguments if is_telling and not is_handoff else message_call.arguments)
    yield _build_event(span.started_at, 1, span, "call", _call_fields(call))
    told_output = outputs.of(call_id, span)
    output = span.facts.returned or (None if told_output is None else told_output[1])
    if output is not None and told_output is not None and told_output[1].is_error:
        output = msgspec.structs.replace(output, is_error=True)
    if output is not None:
        payload = _output_fields(output, call)
        payload["duration_ms"] = round((span.ended_at - span.started_at).total_seconds() * 1000, 3)
        yield _build_event(span.ended_at, 2, span, "out", payload)


def _call_fields(call: ToolCall) -> Json:
    return {"event": "tool_call", **_drop_missing(tool=call.name, tool_call_id=call.call_id, arguments=call.arguments)}


def _output_fields(output: ToolResult, call: ToolCall) -> Json:
    payload = {
        "event": "tool_output",
        **_drop_missing(tool=call.name or output.name, tool_call_id=call.call_id or output.call_id),
    }
    return {**payload, **_drop_missing(is_error=output.is_error), "result": output.output}


def _events_of_message(message: _MessageCall, outputs: _Outputs) -> Iterator[TracedEvent]:
    span, call = message.span, message.call
    yield _build_event(span.ended_at, 1, span, f"call:{message.position}", _call_fields(call))
    if (output := outputs.of(call.call_id, span)) is not None:
        asking, result = output
        yield _build_event(
            max(span.ended_at, asking.started_at), 2, span, f"out:{message.position}", _output_fields(result, call)
        )


def find_transports(tools: Iterable[KeptSpan]) -> frozenset[str]:
    """The ids of the tools' spans that are only the transport of a call which another span of that time reports.

    The other one has arguments, and its tool's name ends as that of the transport's, which has neither id nor arguments.
    """
    telling, transports = list[_ToolTimes](), defaultdict[str, list[KeptSpan]](list)
    for span in tools:
        called = span.facts.called
        if called is None:
            continue
        if called.arguments is not None:
            telling.append(_ToolTimes((called.name or "")[::-1], span.started_at, span.ended_at))
        elif called.name is not None and called.call_id is None:
            transports[called.name].append(span)
    if not telling or not transports:
        return frozenset()
    telling.sort()
    turned = [one.turned for one in telling]
    return frozenset(
        span.span_id
        for name, spans in transports.items()
        for span in _within_times(_with_name_end(name, telling, turned), spans)
    )


class _ToolTimes(NamedTuple):
    """A span with the arguments of its call: the name of the tool reversed, and the time it took."""

    turned: str
    started_at: datetime
    ended_at: datetime


def _within_times(telling: Sequence[_ToolTimes], spans: Iterable[KeptSpan]) -> Iterable[KeptSpan]:
    """The spans that began within the time of one of these tools."""
    by_start = sorted(telling, key=lambda one: one.started_at)
    starts = [one.started_at for one in by_start]
    latest = list(accumulate((one.ended_at for one in by_start), max))
    for span in spans:
        index = bisect_right(starts, span.started_at)
        if index and span.started_at <= latest[index - 1]:
            yield span


def _with_name_end(name: str, telling: Sequence[_ToolTimes], turned: Sequence[str]) -> Sequence[_ToolTimes]:
    """The tools whose name ends with this one: they are adjacent in the sorted list."""
    turned_name = name[::-1]
    start = bisect_left(turned, turned_name)
    return telling[start : bisect_left(turned, 1, start, key=lambda one: not one.startswith(turned_name))]
