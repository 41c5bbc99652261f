"""Reading a span: its facts, by the tables of `streams.sources.otlp.conventions`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schemas.bounds.limits import MAX_LABELS
from streams.sources.otlp import conventions as named
from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.conversations import ConversationReader, Told
from streams.sources.otlp.kinds import read_kind
from streams.sources.otlp.messages import ELIDED, MAX_NESTED, Message, is_elided, message_of, result_of, text_of, unquoted
from streams.sources.otlp.present import Names, Present, present_in
from streams.sources.otlp.span_facts import Kind, Rating, SpanFacts, ToolCall, ToolResult
from streams.sources.otlp.tool_errors import failed_by_attributes, failed_by_result
from streams.sources.otlp.usage import UsageReading, read_usage

if TYPE_CHECKING:
    from streams.sources.otlp.request import Event, Observed

TRUNCATED = "truncated"
"""Tag of a span, and of what is made of it, of which a part was cut off before it came."""
UNCLEAR_TOKENS = "unclear_tokens"
"""Tag of a request, and of its exchange, whose counts of tokens contradict one another."""
Values = Mapping[str, Any]


class FactReader:
    """Reads the facts of the spans of one request. What a resource alone tells is found once for its spans, and texts that they repeat, too.

    `wanted` are the attributes that tell each label.
    """

    def __init__(self, wanted: Mapping[str, Sequence[str]]) -> None:
        self._wanted_of = {False: wanted, True: _without_service_version(wanted)}
        self._wanted = wanted
        self._names = frozenset(name for names in wanted.values() for name in names)
        self._conversations = ConversationReader()
        self._resource: Values | None = None
        self._scope = ("", "")
        self._session: str | None = None
        self._service: str | None = None
        self._labels: dict[str, str] = {}

    def facts_of(self, observed: Observed) -> SpanFacts:
        """The facts of a span or record."""
        if observed.resource is not self._resource or self._scope != (observed.scope, observed.scope_version):
            self._read_resource(observed)
        environment = _told((named.ENVIRONMENT,), observed.attributes, observed.resource)
        if environment is not None and environment.startswith(named.NO_AGENTS):
            return _evaluation(observed, environment)
        values, has = _with_details(observed)
        if not (any(has) or observed.events or observed.is_log):
            return self._other(observed, values, has)
        kind, dialect, unknown = read_kind(observed, values, has)
        metadata = _metadata(values, has)
        sent, came = self._conversations.read(values, has, observed.events, kind)
        answer = _answer(came.messages, kind) or (Message("assistant") if has.called or has.thought else None)
        is_tool, is_request = kind == "tool", kind == "inference"
        returned = _returned(values, has, observed) if is_tool else None
        usage = read_usage(values, has.counting) if kind in _ASKING and has.counting else None
        return SpanFacts(
            kind=kind,
            name=_clean(observed.name),
            dialect=dialect,
            scope=_identifier(observed.scope),
            unknown=_identifier(unknown),
            serves=not named.SERVES.isdisjoint(values),
            is_served_call=is_tool and observed.is_server,
            session_id=_identifier(_told(has.session, values) or _told(named.METADATA_SESSION, metadata) or self._session),
            agent=_identifier(_agent(values, has, metadata, kind)),
            service=self._service,
            question=None if is_tool else sent.question,
            asked=0 if is_tool else sum(message.role == "user" and message.asks for message in sent.messages),
            answer=None if is_tool or answer is None else answer.text or None,
            thinking="\n\n".join(_thoughts(values, has, sent, answer)) or None,
            choices=len(came.messages) if is_request else 0,
            calls=() if is_tool or answer is None else _calls(values, has, answer),
            results=() if is_tool else sent.results,
            called=_called(values, has, observed, returned) if is_tool else None,
            returned=returned,
            model=_identifier(_told(has.model, values) or (_told(has.model_of_request, values) if is_request else None)),
            response_id=_response_id(values, has, kind),
            usage=None if usage is None else usage.counts,
            stop_reason=_stop_reason(values, has, answer),
            error=_error(observed, values, has),
            compacted=values.get(named.COMPACTED) is True or sent.compacted or any(one.compacted for one in came.messages),
            memory=values.get("gen_ai.operation.name") if kind == "memory" else None,
            labels=self._labels_of(values),
            tags=_tags(is_cut=observed.lost > 0 or sent.is_cut or came.is_cut, usage=usage),
            ratings=tuple(_ratings(observed.events)) if observed.events else (),
            probability=_probability(observed.trace_state) if observed.trace_state else None,
        )

    def _other(self, observed: Observed, values: Values, has: Present) -> SpanFacts:
        """The facts of a span that no convention knows, such as a query of a database: most of a program's are."""
        return SpanFacts(
            kind="other",
            name=_clean(observed.name),
            scope=_identifier(observed.scope),
            serves=not named.SERVES.isdisjoint(values),
            session_id=_identifier(self._session),
            service=self._service,
            error=_error(observed, values, has),
            compacted=values.get(named.COMPACTED) is True,
            labels=self._labels_of(values),
            tags=(TRUNCATED,) if observed.lost else (),
            probability=_probability(observed.trace_state) if observed.trace_state else None,
        )

    def _read_resource(self, observed: Observed) -> None:
        self._resource = resource = observed.resource
        self._scope = observed.scope, observed.scope_version
        self._wanted = self._wanted_of[_says_framework_version(observed)]
        self._session = _told(named.SESSION, resource)
        self._service = _identifier(_told((named.SERVICE,), resource))
        self._labels = _labels(self._wanted, {}, resource)

    def _labels_of(self, values: Values) -> dict[str, str]:
        """The labels of a span with these attributes; not to be changed."""
        return self._labels if self._names.isdisjoint(values) else _labels(self._wanted, values, self._resource or {})


def _without_service_version(wanted: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """The attributes of labels where `service.version` is not the agent's."""
    return {
        label: [name for name in names if label != named.AGENT_VERSION or name != named.SERVICE_VERSION]
        for label, names in wanted.items()
    }


def _says_framework_version(observed: Observed) -> bool:
    """Tell whether the service's version is that of a framework, whose upgrade is no deployment of the agent."""
    resource, (attribute, beginning) = observed.resource, named.FRAMEWORK_SDK
    return (
        observed.scope in named.FRAMEWORK_TRACERS
        or str(resource.get(attribute, "")).startswith(beginning)
        or (observed.scope == named.FRAMEWORK_SCOPE and resource.get(named.SERVICE_VERSION) == observed.scope_version)
    )


def _evaluation(observed: Observed, environment: str) -> SpanFacts:
    """The facts of a span of an evaluator or an experiment: that it was there, for the count. Its texts are no agent's."""
    unknown = _identifier(f"{named.ENVIRONMENT} = {environment}")
    return SpanFacts("evaluation", _clean(observed.name), "langfuse", scope=_identifier(observed.scope), unknown=unknown)


def _with_details(observed: Observed) -> tuple[Values, Present]:
    """The attributes of a span, with those of an event that has its details, and which there are; texts of JSON without their quotes."""
    values = observed.attributes
    has = present_in(values)
    if not observed.events and not has.quoted:
        return values, has
    details = [event.attributes for event in observed.events if event.name == named.DETAILS_EVENT]
    quoted = {name: unquoted(values[name]) for name in has.quoted}
    if not details and not quoted:
        return values, has
    values = {name: value for one in (*details, values, quoted) for name, value in one.items()}
    return values, present_in(values) if details else has


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
            media=[placeholder for message in came for placeholder in message.media],
        )
    return came[0]


def _thoughts(values: Values, has: Present, sent: Told, answer: Message | None) -> Sequence[str]:
    """The thoughts of an answer; else those of the answer before."""
    told = () if answer is None else answer.thoughts
    return (*told, *_texts(has.thought, values)) or sent.thoughts


def _response_id(values: Values, has: Present, kind: Kind) -> str | None:
    told = _told(has.response_id, values) or (_id_within(values) if kind == "inference" and has.output else None)
    return _identifier(told)


def _id_within(values: Values) -> str | None:
    """The id of the provider's answer, where the whole of that was kept."""
    answer = parsed(values[named.OUTPUT]).value
    answer = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    return answer["id"] if isinstance(answer, dict) and isinstance(answer.get("id"), str) else None


def _calls(values: Values, has: Present, answer: Message) -> tuple[ToolCall, ...]:
    """The calls of an answer; where it has none, those of a list that stands beside it."""
    if answer.calls or not has.called:
        return tuple(answer.calls)
    listed = [one for name in has.called for one in _listed(values[name])]
    return tuple([call for one in listed for call in message_of({"role": "assistant", "tool_calls": [one]}).calls])


def _listed(value: Any) -> list[Any]:
    """The objects of a list, which may be a text of JSON."""
    listed = parsed(value).value
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _called(values: Values, has: Present, observed: Observed, returned: ToolResult | None) -> ToolCall:
    name = _told(has.tool, values) or observed.name.removeprefix("execute_tool ").removesuffix(".tool")
    call_id = _identifier(_told(has.tool_call_id, values)) or (None if returned is None else returned.call_id)
    arguments = _first(has.arguments, values)
    if arguments is None:
        arguments = _read_event_field(observed.events, named.TOOL_ARGUMENTS_EVENTS)
    return ToolCall(_tool_name(name), call_id, _arguments(parsed(arguments).value))


def _read_event_field(events: Iterable[Event], fields: Sequence[tuple[str, str]]) -> Any:
    """What the first of these events of a tool's span has in its field; None without such an event."""
    field_of = dict(fields)
    return next((event.attributes.get(field_of[event.name]) for event in events if event.name in field_of), None)


def _tool_name(name: str | None) -> str | None:
    """The name of a tool; of an object that Python calls without that of the method."""
    return _identifier(None if name is None else name.removesuffix(".__call__"))


def _arguments(value: Any) -> Any:
    """The arguments of a call, without the envelope that a framework puts around them: a function's positional and named ones, or LangChain's."""
    for _ in range(MAX_NESTED):
        if not isinstance(value, dict):
            return value
        for inner, around in _ENVELOPES:
            # A positional argument has no name, so that the envelope is all that tells it.
            if isinstance(value.get(inner), dict) and value.keys() <= around and not value.get("args"):
                value = value[inner]
                break
        else:
            return value
    return value


def _returned(values: Values, has: Present, observed: Observed) -> ToolResult | None:
    """The output of a tool's span. LangChain's has a whole message in it, with the id of the call."""
    output = _first(has.result, values)
    if output is None:
        output = _read_event_field(observed.events, named.TOOL_RESULT_EVENTS)
    read = parsed(output).value
    if is_elided(read):
        output = read = None
    error = _error(observed, values, has)
    failed = error is not None or failed_by_attributes(values)
    if output is None and not failed:
        return None
    told = result_of(read) or ToolResult(text_of(output) if output is not None else error or "")
    call_id = _identifier(_told(has.tool_call_id, values) or told.call_id)
    failed = failed or told.is_error is True or failed_by_result(read) is True
    return ToolResult(told.output, _tool_name(_told(has.tool, values)), call_id, failed)


def _stop_reason(values: Values, has: Present, answer: Message | None) -> str | None:
    told = parsed(_first(has.stop, values)).value if has.stop else None
    told = told[0] if isinstance(told, list) and told else told
    return _identifier(told) or (None if answer is None else _identifier(answer.finish))


def _error(observed: Observed, values: Values, has: Present) -> str | None:
    """The reason why a span failed, in the words of an exception, else of its status, which may have a whole stack, else the type of the error."""
    level = values.get("langfuse.observation.level") == "ERROR"
    kind = _told(has.error, values) if has.error else None
    if not observed.failed and not level and kind is None:
        return None
    thrown = (event.attributes.get("exception.message") for event in observed.events if event.name == "exception")
    words = [*reversed(list(thrown)), observed.message, values.get("langfuse.observation.status_message"), kind]
    told = next((word for word in words if isinstance(word, str) and word), "error")
    return told.partition(_STACK)[0].strip() or told


def _tags(*, is_cut: bool, usage: UsageReading | None) -> tuple[str, ...]:
    is_unclear = usage is not None and not usage.is_clear
    return (*((TRUNCATED,) if is_cut else ()), *((UNCLEAR_TOKENS,) if is_unclear else ()))


def _agent(values: Values, has: Present, metadata: Values, kind: Kind) -> str | None:
    agent = _told(has.agent, values) or _told(named.METADATA_AGENT, metadata)
    if agent is not None or kind != "agent":
        return agent
    node = _told(has.agent_node, values)
    return _told(has.agent_of_entity, values) or (None if node in named.NAMELESS else node)


def _metadata(values: Values, has: Present) -> Values:
    """The object that OpenInference's `metadata` is, in which frameworks pass on their own names."""
    metadata = parsed(values[named.METADATA]).value if has.metadata else None
    return metadata if isinstance(metadata, dict) else _NO_METADATA


def _labels(wanted: Mapping[str, Sequence[str]], values: Values, resource: Values) -> dict[str, str]:
    found = {label: _told(names, values, resource) for label, names in wanted.items()}
    given = [(label, text) for label, value in found.items() if value is not None and (text := _clean(value))]
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
            if (value := source.get(name)) is None:
                continue
            if isinstance(value, str):
                if value and not value.isspace() and not value.startswith(named.SCRUBBED) and value not in ELIDED:
                    return value
            elif type(value) in _NUMBERS:
                return str(value)
    return None


def _first(names: Names, values: Values) -> Any:
    """The first of the attributes that has a value, which its sender does not keep to itself; an empty text only where no other has any."""
    empty = None
    for name in names:
        value = values[name]
        if value is None or value == named.ELIDED.get(name):
            continue
        if value != "":
            return value
        empty = value
    return empty


def _texts(names: Names, values: Values) -> list[str]:
    return [values[name] for name in names if isinstance(values[name], str) and values[name]]


def _identifier(value: Any) -> str | None:
    """A text as an id or name: without control characters; None where nothing is left. It is cut after its secrets are taken out."""
    return _clean(value) or None if value is not None and isinstance(value, str) else None


def _clean(value: str) -> str:
    return (value if value.isprintable() else "".join(filter(str.isprintable, value))).strip()


_NO_METADATA: Values = {}
_ENVELOPES = (
    ("kwargs", frozenset({"args", "kwargs", "sanitize_inputs_outputs"})),
    ("inputs", frozenset({"input_str", "inputs", "tags", "metadata", "kwargs", "run_id", "name"})),
)
"""The member of an envelope that has the arguments, and the members that the envelope may have."""
_STACK = "Traceback (most recent call last)"
"""What begins the stack of a Python program, which some append to the words of an error."""
_NUMBERS = frozenset({int, float})
_ASKING = frozenset({"inference", "helper"})
"""Kinds of spans whose tokens are those of one request, and no sum of others."""
_THRESHOLD = re.compile(r"(?:^|,)\s*ot=(?:[^,]*;)?th:([0-9a-f]{1,14})(?:[;,\s]|$)")
