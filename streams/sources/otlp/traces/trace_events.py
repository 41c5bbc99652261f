"""The events of a trace: calls of tools and their outputs, tokens, errors, compactions, memory. Texts are redacted and cut already.

1. A call that a message and a span tell of is one: joined by the id of the call, else by name and arguments, else by name in order. The
   span wins, and takes from the message what it lacks. A handoff is joined by the agent that takes over, and named as the model named it.
2. Tokens are those of the innermost requests: an agent repeats their sum.
3. No convention tells whether an output was used, so no event says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec

from audit.fingerprints import canonical_json
from streams.sources.otlp.span_facts import SpanFacts, ToolCall, ToolResult, Usage
from streams.sources.otlp.traces.tool_transports import told_better
from streams.sources.otlp.traces.trace import KeptSpan, Trace, told_by

SOURCE = "otlp"
"""The source that events of traces name."""
Json = dict[str, Any]
_handoff = re.compile(r"(?:transfer|hand_?off)[ _-]to[ _-](.+)", re.IGNORECASE | re.DOTALL).match
_apart = partial(re.compile(r"[^a-z0-9]+").sub)


class TracedEvent(NamedTuple):
    """An event of a trace: when it happened, the span that tells of it, and what it says, with its id."""

    at: datetime
    rank: int
    event_id: str
    span: KeptSpan
    said: Json


class _Told(NamedTuple):
    """A call that a message tells of: in which span, and at which place there."""

    span: KeptSpan
    place: int
    call: ToolCall


def events_of(trace: Trace) -> list[TracedEvent]:
    """The events of a trace in order of time; of one moment a call comes before its output, and both before tokens."""
    if _has_served_calls_alone(trace):
        return []
    events = [event for span in trace.spans for event in _own_events(trace, span)]
    events += _calls_of_tools(trace)
    return sorted(events, key=lambda event: (event.at, event.rank, event.event_id))


def _has_served_calls_alone(trace: Trace) -> bool:
    """Tell whether a trace has nothing but calls as servers of tools tell them, such as those of MCP, and names no session.

    Each is a call of an agent that tells it in a trace of its own: it would count twice, and the server would be an agent with a run.
    """
    told = [span.facts for span in trace.spans if span.facts.kind != "other"]
    return bool(told) and all(facts.is_served_call and facts.session_id is None for facts in told)


def _own_events(trace: Trace, span: KeptSpan) -> Iterator[TracedEvent]:
    facts = span.facts
    if facts.usage is not None and (span.span_id in trace.request_ids or (facts.kind == "helper" and trace.spoken)):
        said = {"event": "token_usage", "usage": _usage(facts.usage), **_present(model=facts.model)}
        yield _event(span.ended_at, 3, span, "usage", said)
    if facts.compacted and facts.kind == "inference":
        yield _event(span.started_at, 0, span, "compaction", {"event": "context_event", "action": "compaction"})
    if facts.kind == "memory":
        said = {"event": "memory_event", **_present(action=facts.memory, error=facts.error)}
        yield _event(span.started_at, 0, span, "memory", said)
    # An error that came from within is told again by each span around it.
    if facts.error is not None and facts.kind != "tool" and span.span_id not in trace.failed_within:
        yield _event(span.ended_at, 4, span, "err", {"event": "error_event", "action": "error", "message": facts.error})


def _usage(usage: Usage) -> Json:
    """Tokens as events have them: what was read without what came from or went into a cache. Without the first there is no total."""
    cached = (usage.cache_read or 0) + (usage.cache_write or 0)
    counts = _present(
        input=None if usage.input is None else max(0, usage.input - cached),
        output=usage.output,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
    )
    total = None if usage.input is None and cached else max(usage.input or 0, cached) + (usage.output or 0)
    return {**_present(total=total), **counts}


def _calls_of_tools(trace: Trace) -> Iterator[TracedEvent]:
    every = [span for span in trace.spans if span.facts.kind == "tool" and span.span_id not in trace.helper_ids]
    better = told_better(every)
    inner = (span for span in every if not _repeats_inner(trace, span) and span.span_id not in better)
    tools = _told_by_one(_with_wrappers(trace, span) for span in inner)
    told = [_Told(span, place, call) for span in _speaking(trace) for place, call in enumerate(span.facts.calls)]
    outputs = _Outputs(trace)
    joined = _joined(tools, told)
    for span in tools:
        message = joined.get(span.span_id)
        yield from _events_of_span(span, None if message is None else message.call, outputs)
    taken = {(message.span.span_id, message.place) for message in joined.values()}
    for message in told:
        if (message.span.span_id, message.place) not in taken:
            yield from _events_of_message(message, outputs)


def _repeats_inner(trace: Trace, span: KeptSpan) -> bool:
    """Tell whether a tool's span only wraps another of the same tool, which another instrumentor made."""
    return any(child.facts.kind == "tool" and _name(child.facts) == _name(span.facts) for child in trace.children(span))


def _with_wrappers(trace: Trace, span: KeptSpan) -> KeptSpan:
    """A tool's span, with what those that wrap it tell of the call and it does not tell itself."""
    own, outer = span.facts, trace.parent(span)
    while outer is not None and outer.facts.kind == "tool" and _name(outer.facts) == _name(own):
        own = msgspec.structs.replace(
            own, called=_whole(own.called, outer.facts.called), returned=own.returned or outer.facts.returned
        )
        outer = trace.parent(outer)
    return span if own is span.facts else span._replace(facts=own)


def _whole(call: ToolCall | None, other: ToolCall | None) -> ToolCall | None:
    if call is None or other is None:
        return call or other
    arguments = other.arguments if call.arguments is None else call.arguments
    return ToolCall(call.name or other.name, call.call_id or other.call_id, arguments)


def _told_by_one(tools: Iterable[KeptSpan]) -> list[KeptSpan]:
    """The tools' spans without those that another instrumentor told already: of the same call at the same time."""
    told, by_call = list[KeptSpan](), dict[tuple[str, str] | None, KeptSpan]()
    for span in tools:
        call = None if span.facts.called is None else _by_arguments(span.facts.called)
        before = by_call.setdefault(call, span)
        if call is None or told_by(before) == told_by(span) or span.started_at > before.ended_at:
            told.append(span)
            by_call[call] = span
    return told


def _name(facts: SpanFacts) -> str | None:
    return None if facts.called is None else facts.called.name


def _speaking(trace: Trace) -> list[KeptSpan]:
    """The spans whose messages count: the innermost requests, else whatever has any."""
    return trace.spoken or [span for span in trace.spans if span.facts.kind == "agent" and span.span_id not in trace.helper_ids]


class _Outputs:
    """The outputs that messages tell of, by the id of the call; some senders count the calls of each turn from the first one again."""

    def __init__(self, trace: Trace) -> None:
        self._told = defaultdict[str, list[tuple[KeptSpan, ToolResult]]](list)
        for span in trace.spans:
            for result in span.facts.results:
                if result.call_id is not None:
                    self._told[result.call_id].append((span, result))

    def of(self, call_id: str | None, caller: KeptSpan) -> tuple[KeptSpan, ToolResult] | None:
        """The first output of a call that was told after it, with the span that tells it; of clocks that differ any."""
        told = self._told.get(call_id or "", [])
        return next(
            (one for one in told if one[0] is not caller and one[0].started_at >= caller.started_at), told[0] if told else None
        )


def _joined(tools: list[KeptSpan], told: list[_Told]) -> dict[str, _Told]:
    """The message that tells of the same call as a span, by the id of the span."""
    found: dict[str, _Told] = {}
    left_spans, left_told = list(tools), list(told)
    for key in (_by_id, _by_arguments, _by_name, _by_handoff):
        waiting = defaultdict[Any, list[_Told]](list)
        for message in left_told:
            waiting[key(message.call)].append(message)
        for span in left_spans:
            wanted = None if span.facts.called is None else key(span.facts.called)
            if wanted is not None and (ready := waiting.get(wanted)):
                found[span.span_id] = ready.pop(0)
        taken = {(message.span.span_id, message.place) for message in found.values()}
        left_spans = [span for span in left_spans if span.span_id not in found]
        left_told = [message for message in left_told if (message.span.span_id, message.place) not in taken]
    return found


def _by_id(call: ToolCall) -> str | None:
    return call.call_id


def _by_arguments(call: ToolCall) -> tuple[str, str] | None:
    return None if call.name is None else (call.name, canonical_json(call.arguments))


def _by_name(call: ToolCall) -> str | None:
    return call.name


def _by_handoff(call: ToolCall) -> str | None:
    """The agent that takes over, as a name of a tool: a model calls `transfer_to_billing_desk`, and a span is a `handoff to Billing Desk`."""
    match = None if call.name is None else _handoff(call.name)
    return None if match is None else _apart("_", match[1].lower())


def _events_of_span(span: KeptSpan, message: ToolCall | None, outputs: _Outputs) -> Iterator[TracedEvent]:
    own, told = span.facts.called or ToolCall(), message or ToolCall()
    call_id = own.call_id or told.call_id
    is_telling = own.arguments is not None and (isinstance(own.arguments, dict) or told.arguments is None)
    is_handoff = told.name is not None and _by_handoff(own) is not None
    name = told.name if is_handoff else own.name or told.name
    call = ToolCall(name, call_id, own.arguments if is_telling and not is_handoff else told.arguments)
    yield _event(span.started_at, 1, span, "call", _call(call))
    told_output = outputs.of(call_id, span)
    output = span.facts.returned or (None if told_output is None else told_output[1])
    if output is not None and told_output is not None and told_output[1].is_error:
        output = msgspec.structs.replace(output, is_error=True)
    if output is not None:
        said = _output(output, call)
        said["duration_ms"] = round((span.ended_at - span.started_at).total_seconds() * 1000, 3)
        yield _event(span.ended_at, 2, span, "out", said)


def _events_of_message(message: _Told, outputs: _Outputs) -> Iterator[TracedEvent]:
    span, call = message.span, message.call
    yield _event(span.ended_at, 1, span, f"call:{message.place}", _call(call))
    if (output := outputs.of(call.call_id, span)) is not None:
        asking, result = output
        yield _event(max(span.ended_at, asking.started_at), 2, span, f"out:{message.place}", _output(result, call))


def _call(call: ToolCall) -> Json:
    return {"event": "tool_call", **_present(tool=call.name, tool_call_id=call.call_id, arguments=call.arguments)}


def _output(output: ToolResult, call: ToolCall) -> Json:
    said = {"event": "tool_output", **_present(tool=call.name or output.name, tool_call_id=call.call_id or output.call_id)}
    return {**said, **_present(is_error=output.is_error), "result": output.output}


def _event(at: datetime, rank: int, span: KeptSpan, suffix: str, said: Json) -> TracedEvent:
    event_id = f"{span.span_id}:{suffix}"
    return TracedEvent(at, rank, event_id, span, {"event_id": event_id, "source": SOURCE, **said})


def _present(**given: Any) -> Json:
    return {name: value for name, value in given.items() if value is not None}
