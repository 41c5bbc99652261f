"""Reading a span: its facts, by the tables of `streams.sources.otlp.conventions`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.bounds.limits import MAX_COUNT, MAX_ID, MAX_LABEL, MAX_LABELS
from streams.sources.openclaw.text import cut
from streams.sources.otlp import conventions as named
from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.messages import Message, message_of, messages_of, text_of
from streams.sources.otlp.span_facts import Kind, Rating, SpanFacts, ToolCall, ToolResult, Usage

if TYPE_CHECKING:
    from streams.sources.otlp.request import Event, Observed

TRUNCATED = "truncated"
"""Tag of a span, and of what is made of it, of which a part was cut off before it came."""
_UNWRAPPED = frozenset({"message", "message_content", "tool_call"})
"""Steps of OpenInference's flat names that only say what follows."""
Values = Mapping[str, Any]


class _Conversation(NamedTuple):
    """What was sent, what came back, and whether a part of it was cut off."""

    sent: Sequence[Message]
    came: Sequence[Message]
    is_cut: bool


def facts_of(observed: Observed, labels: Mapping[str, Sequence[str]]) -> SpanFacts:
    """The facts of a span or record; `labels` are the attributes that tell each label."""
    values = _with_details(observed)
    kind, dialect = _kind(observed, values)
    talk = _conversation(values, observed.events, kind)
    answer = _answer(talk.came, kind)
    question = next((message.text for message in reversed(talk.sent) if message.role == "user" and message.texts), None)
    is_tool = kind == "tool"
    returned = _returned(values, observed) if is_tool else None
    tags = (TRUNCATED,) if observed.lost or talk.is_cut else ()
    return SpanFacts(
        kind=kind,
        name=cut(observed.name, MAX_ID),
        dialect=dialect,
        session_id=_identifier(_told(named.SESSION, values, observed.resource)),
        agent=_identifier(_agent(values, kind)),
        service=_identifier(_told((named.SERVICE,), observed.resource)),
        question=None if is_tool else question,
        answer=None if is_tool or answer is None else answer.text or None,
        thinking=None if answer is None else "\n\n".join([*answer.thoughts, *_texts(named.THOUGHT, values)]) or None,
        choices=len(talk.came) if kind == "inference" else 0,
        calls=() if is_tool or answer is None else (*answer.calls, *_calls_beside(values, answer)),
        results=() if is_tool else _trailing_results(talk.sent),
        called=_called(values, observed.name, returned) if is_tool else None,
        returned=returned,
        model=_identifier(_told(named.MODEL, values)),
        response_id=_identifier(_told(named.RESPONSE_ID, values)),
        usage=_usage(values) if kind == "inference" else None,
        stop_reason=_stop_reason(values, answer),
        error=_error(observed, values),
        compacted=values.get(named.COMPACTED) is True or any(message.compacted for message in (*talk.sent, *talk.came)),
        memory=values.get("gen_ai.operation.name") if kind == "memory" else None,
        labels=_labels(labels, values, observed.resource),
        tags=tags,
        ratings=tuple(_ratings(observed.events)),
        probability=_probability(observed.trace_state),
    )


def _with_details(observed: Observed) -> Values:
    """The attributes of a span, with those of an event that has its details."""
    details = [event.attributes for event in observed.events if event.name == named.DETAILS_EVENT]
    return (
        {name: value for one in (*details, observed.attributes) for name, value in one.items()}
        if details
        else observed.attributes
    )


def _kind(observed: Observed, values: Values) -> tuple[Kind, str]:
    """What a span is, and the dialect that says so."""
    if observed.is_log:
        return "log", "otel"
    for dialect, name, kinds in named.KINDS:
        if name in values:
            found = "pydantic-ai" if observed.scope == "pydantic-ai" else dialect
            return kinds.get(str(values[name]), "other"), found
    return next(((kind, dialect) for dialect, name, kind in named.SIGNS if name in values), ("other", ""))


def _conversation(values: Values, events: Iterable[Event], kind: Kind) -> _Conversation:
    sent: Sequence[Message]
    came: Sequence[Message]
    sent, sent_cut = _messages(named.SENT, values, "user")
    came, came_cut = _messages(named.CAME, values, "assistant")
    whole_cut = False
    if not came or not sent:
        whole, whole_cut = _messages([named.Place(name, "json") for name in named.WHOLE], values, "user")
        asked, answered = _parted(whole)
        sent, came = sent or asked, came or answered
    if not sent or not came:
        asked, answered = _told_by_events(events)
        sent, came = sent or asked, came or answered
    if kind not in ("inference", "log"):
        # The state of an agent or chain has the history, too: only what its model said last came back.
        came = [message for message in came if message.role == "assistant"][-1:]
    return _Conversation(sent, came, sent_cut or came_cut or whole_cut)


def _messages(places: Iterable[named.Place], values: Values, role: str) -> tuple[list[Message], bool]:
    """The messages at the first place that has any, and whether they were cut off."""
    for place in places:
        if place.shape == "flat":
            flat = unflattened(values, place.name)
            if flat:
                return [message_of(one, role) for one in flat], False
        if (value := values.get(place.name)) is not None:
            read = parsed(value if place.shape == "json" else [{"role": role, "content": value}])
            if found := messages_of(read.value, role):
                return found, read.is_cut
    return [], False


def unflattened(values: Values, prefix: str) -> list[dict[str, Any]]:
    """The objects of a list that was written flat: `PREFIX.0.role`, `PREFIX.0.tool_calls.1.name` and so on, in order."""
    tree: dict[str, Any] = {}
    start = len(prefix) + 1
    for name, value in values.items():
        if not name.startswith(prefix) or name[start - 1 : start] != ".":
            continue
        node, steps = tree, [step for step in name[start:].split(".") if step not in _UNWRAPPED]
        for step in steps[:-1]:
            inner = node.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            node = inner
        else:
            if steps:
                node[steps[-1]] = value
    found = _lists(tree)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _lists(node: Any) -> Any:
    """The tree with a list for each node whose names are numbers."""
    if not isinstance(node, dict):
        return node
    if node and all(name.isdecimal() and len(name) <= _DIGITS for name in node):
        return [_lists(node[name]) for name in sorted(node, key=int)]
    return {name: _lists(value) for name, value in node.items()}


def _parted(whole: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """A conversation as what was sent for its last answer, and that answer."""
    last = max((place for place, message in enumerate(whole) if message.role == "assistant"), default=-1)
    return (whole, ()) if last < 0 or last < len(whole) - 1 else (whole[:last], whole[last:])


def _told_by_events(events: Iterable[Event]) -> tuple[list[Message], list[Message]]:
    sent, came = list[Message](), list[Message]()
    for event in events:
        role = named.MESSAGE_EVENTS.get(event.name)
        if role == "choice":
            came.append(
                message_of({"role": "assistant", **{name: parsed(value).value for name, value in event.attributes.items()}})
            )
        elif role is not None:
            sent.append(message_of({"role": role, **event.attributes}, role))
    return sent, came


def _answer(came: Sequence[Message], kind: Kind) -> Message | None:
    """The message that counts: the first choice of a model; of an agent the last message, which is the only one here."""
    if not came:
        return None
    if kind == "inference" and len(came) > 1 and all(message.finish is None for message in came):
        # A Responses API gives one answer in several items.
        return Message(
            "assistant",
            texts=[text for message in came for text in message.texts],
            thoughts=[text for message in came for text in message.thoughts],
            calls=[call for message in came for call in message.calls],
        )
    return came[0]


def _calls_beside(values: Values, answer: Message) -> Iterator[ToolCall]:
    if answer.calls:
        return
    for name in named.CALLED:
        listed = parsed(values.get(name)).value
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict):
                yield from message_of({"role": "assistant", "tool_calls": [one]}).calls


def _trailing_results(sent: Sequence[Message]) -> tuple[ToolResult, ...]:
    """The outputs of tools after the last message of the model: those before were sent with an earlier request already."""
    last = max((place for place, message in enumerate(sent) if message.role == "assistant"), default=-1)
    return tuple(result for message in sent[last + 1 :] for result in message.results)


def _called(values: Values, span_name: str, returned: ToolResult | None) -> ToolCall:
    name = _told(named.TOOL, values) or span_name.removeprefix("execute_tool ").removesuffix(".tool")
    call_id = _identifier(_told(named.TOOL_CALL_ID, values)) or (None if returned is None else returned.call_id)
    return ToolCall(_identifier(name), call_id, parsed(_first(named.ARGUMENTS, values)).value)


def _returned(values: Values, observed: Observed) -> ToolResult | None:
    """The output of a tool's span. LangChain's has a whole message in it, with the id of the call."""
    output = _first(named.RESULT, values)
    if output is None and not observed.failed:
        return None
    message = next((one for one in messages_of(parsed(output).value) if one.results), None)
    words = text_of(output) if output is not None else _error(observed, values) or ""
    told = ToolResult(words) if message is None else message.results[0]
    call_id = _identifier(_told(named.TOOL_CALL_ID, values) or told.call_id)
    return ToolResult(told.output, _identifier(_told(named.TOOL, values)), call_id, observed.failed)


def _usage(values: Values) -> Usage | None:
    details = parsed(values.get(named.USAGE_DETAILS)).value
    details = details if isinstance(details, dict) else {}
    usage = Usage(
        _count(_first(named.READ, values), details.get("input")),
        _count(_first(named.WRITTEN, values), details.get("output")),
        _count(_first(named.CACHE_READ, values), details.get("cache_read_input_tokens")),
        _count(_first(named.CACHE_WRITTEN, values), details.get("cache_creation_input_tokens")),
    )
    return usage if usage != Usage() else None


def _count(*given: Any) -> int | None:
    return next((int(one) for one in given if type(one) in (int, float) and 0 <= one <= MAX_COUNT and one == int(one)), None)


def _stop_reason(values: Values, answer: Message | None) -> str | None:
    told = _first(named.STOP, values)
    told = parsed(told).value
    told = told[0] if isinstance(told, list) and told else told
    return _identifier(told) or (None if answer is None else _identifier(answer.finish))


def _error(observed: Observed, values: Values) -> str | None:
    """Why a span failed, in the words of its status, else of an exception, else of the type of the error."""
    level = values.get("langfuse.observation.level") == "ERROR"
    kind = _told(named.ERROR, values)
    if not observed.failed and not level and kind is None:
        return None
    thrown = (event.attributes.get("exception.message") for event in observed.events if event.name == "exception")
    words = [observed.message, *thrown, values.get("langfuse.observation.status_message"), kind]
    return next((word for word in words if isinstance(word, str) and word), "error")


def _agent(values: Values, kind: Kind) -> str | None:
    return _told(named.AGENT, values) or (_told((named.AGENT_OF_ENTITY,), values) if kind == "agent" else None)


def _labels(wanted: Mapping[str, Sequence[str]], values: Values, resource: Values) -> dict[str, str]:
    found = {label: _told(names, values, resource) for label, names in wanted.items()}
    given = [(label, text) for label, value in found.items() if value is not None and (text := _clean(value, MAX_LABEL))]
    return dict(sorted(given)[:MAX_LABELS])


def _ratings(events: Iterable[Event]) -> Iterator[Rating]:
    for event in events:
        if event.name == named.EVALUATION_EVENT:
            given = event.attributes
            yield Rating(
                name=_identifier(given.get("gen_ai.evaluation.name")) or "evaluation",
                score=_number(given.get("gen_ai.evaluation.score.value")),
                label=_identifier(given.get("gen_ai.evaluation.score.label")),
                explanation=_told(("gen_ai.evaluation.explanation",), given),
                response_id=_identifier(given.get("gen_ai.response.id")),
            )


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _probability(trace_state: str) -> float | None:
    """The share of traces that are kept, from the threshold in `ot=th:…`: its digits are the most significant ones of 56 bits."""
    found = _THRESHOLD.search(trace_state)
    if found is None:
        return None
    return 1 - int(found.group(1).ljust(14, "0"), 16) / 2**56


def _told(names: Iterable[str], *sources: Values) -> str | None:
    """The first of the attributes that has a value, as a text."""
    for source in sources:
        for name in names:
            value = source.get(name)
            if isinstance(value, str) and value.strip():
                return value
            if type(value) in (int, float):
                return str(value)
    return None


def _first(names: Iterable[str], values: Values) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _texts(names: Iterable[str], values: Values) -> list[str]:
    return [values[name] for name in names if isinstance(values.get(name), str) and values[name]]


def _identifier(value: Any) -> str | None:
    """A text as an id or name: without control characters, cut at the longest that a record takes; None where nothing is left."""
    return _clean(value, MAX_ID) or None if isinstance(value, str) else None


def _clean(value: str, limit: int) -> str:
    return (
        "".join(character for character in value if character.isprintable()).strip()[:limit]
        if not value.isprintable()
        else value.strip()[:limit]
    )


_DIGITS = 6
_THRESHOLD = re.compile(r"(?:^|,)\s*ot=(?:[^,]*;)?th:([0-9a-f]{1,14})(?:[;,\s]|$)")
