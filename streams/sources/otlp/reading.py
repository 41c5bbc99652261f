"""Reads the facts of a span, by the tables in `streams.sources.otlp.conventions`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.fingerprints import digest
from schemas.bounds import MAX_ID, MAX_LABELS
from streams.sources.otlp import conventions
from streams.sources.otlp.attributes import parse_json
from streams.sources.otlp.kinds import Names, PresentAttributes, find_present_attributes, read_kind
from streams.sources.otlp.messages import (
    ELIDED,
    MAX_NESTED,
    ConversationReader,
    Message,
    SpanMessages,
    build_message,
    decode_json_string,
    failed_by_attributes,
    failed_by_result,
    find_tool_result,
    is_elided,
    output_text,
)
from streams.sources.otlp.span_facts import Kind, Rating, SpanFacts, ToolCall, ToolResult
from streams.sources.otlp.token_usage import UsageReading, read_usage

if TYPE_CHECKING:
    from streams.sources.otlp.received import Event, ReceivedSpan


TRUNCATED = "truncated"
"""Tag of a span, and of the records made from it, if a part of it was lost before it arrived."""
UNCLEAR_TOKENS = "unclear_tokens"
"""Tag of a request, and of its exchange, whose token counts contradict each other."""
Attributes = Mapping[str, Any]
_ENVELOPES = (
    ("kwargs", frozenset({"args", "kwargs", "sanitize_inputs_outputs"})),
    ("inputs", frozenset({"input_str", "inputs", "tags", "metadata", "kwargs", "run_id", "name"})),
)
"""The envelopes that frameworks put around the arguments of a tool: the member with the arguments, and all members of the envelope."""
MAX_DEFINITIONS = 256
"""Maximum number of tools of a request whose descriptions are read."""
_TRACEBACK = "Traceback (most recent call last)"
"""Start of a Python stack trace, which some senders append to an error message."""
_METERED_KINDS = frozenset({"inference", "helper"})
"""Kinds of spans whose tokens are those of a single request, not a sum."""
_THRESHOLD = re.compile(r"(?:^|,)\s*ot=(?:[^,]*;)?th:([0-9a-f]{1,14})(?:[;,\s]|$)")


class FactReader:
    """Reads the facts of the spans of one OTLP request.

    The facts of a resource are read once for all its spans. `label_attributes` has the attributes that give each label. The descriptions of
    tools are read if `reads_definitions`.
    """

    def __init__(self, label_attributes: Mapping[str, Sequence[str]], *, reads_definitions: bool = False) -> None:
        self._reads_definitions = reads_definitions
        self._all_label_attributes = label_attributes
        self._label_attributes = label_attributes
        self._label_attribute_names = frozenset(name for names in label_attributes.values() for name in names)
        self._conversations = ConversationReader()
        self._resource: Attributes | None = None
        self._scope = ("", "")
        self._session: str | None = None
        self._service: str | None = None
        self._resource_labels: dict[str, str] = {}

    def facts_of(self, received: ReceivedSpan) -> SpanFacts:
        """Return the facts of a span or log record."""
        if received.resource is not self._resource or self._scope != (received.scope, received.scope_version):
            self._read_resource(received)
        environment = _find_first_text((conventions.ENVIRONMENT,), received.attributes, received.resource)
        if environment is not None and environment.startswith(conventions.EVALUATION_ENVIRONMENTS):
            return _read_evaluation_facts(received, environment)
        span = _read_span(received)
        request, response = self._conversations.read(span.attributes, span.present, received.events, span.kind)
        answer = _choose_answer(span, response)
        facts = self._read_common_facts(span) | _read_conversation_facts(span, request, response, answer)
        if span.kind == "tool":
            facts |= _read_tool_facts(span)
        else:
            facts |= _read_exchange_facts(span, request, response, answer)
        if self._reads_definitions and span.kind in _METERED_KINDS | {"agent"}:
            facts["definitions"] = _read_definitions(span.attributes)
        return SpanFacts(**facts)

    def _read_resource(self, received: ReceivedSpan) -> None:
        resource = received.resource
        self._resource = resource
        self._scope = received.scope, received.scope_version
        self._label_attributes = self._all_label_attributes
        if _has_framework_version(received):
            self._label_attributes = _without_service_version(self._all_label_attributes)
        self._session = _find_first_text(conventions.SESSION, resource)
        self._service = _read_identifier(_find_first_text((conventions.SERVICE,), resource))
        self._resource_labels = _read_labels(self._label_attributes, {}, resource)

    def _read_common_facts(self, span: _Span) -> dict[str, Any]:
        """Return the facts that a span of any kind may have."""
        received = span.received
        attributes = span.attributes
        metadata = _read_metadata(span)
        session = _find_first_text(span.present.session, attributes) or _find_first_text(conventions.METADATA_SESSION, metadata)
        return {
            "kind": span.kind,
            "name": _clean_label(received.name),
            "dialect": span.dialect,
            "scope": _read_identifier(received.scope),
            "unknown": _read_identifier(span.unknown),
            "serves": not conventions.SERVER_ATTRIBUTES.isdisjoint(attributes),
            "session_id": _read_identifier(session or self._session),
            "agent": _read_identifier(_find_agent_name(span, metadata)),
            "service": self._service,
            "model": _read_identifier(_find_model_name(span)),
            "response_id": _read_identifier(_find_response_id(span)),
            "error": _find_error_message(span),
            "memory": attributes.get("gen_ai.operation.name") if span.kind == "memory" else None,
            "labels": self._read_span_labels(attributes),
            "ratings": tuple(_read_ratings(received.events)),
            "probability": _read_sampling_probability(received.trace_state),
        }

    def _read_span_labels(self, attributes: Attributes) -> dict[str, str]:
        """Return the labels of a span, which the caller must not change."""
        if self._resource is None or self._label_attribute_names.isdisjoint(attributes):
            return self._resource_labels
        return _read_labels(self._label_attributes, attributes, self._resource)


class _Span(NamedTuple):
    """A span or log record while its facts are read. `attributes` include those of its details events."""

    received: ReceivedSpan
    attributes: Attributes
    present: PresentAttributes
    kind: Kind
    dialect: str
    unknown: str | None


def _read_span(received: ReceivedSpan) -> _Span:
    attributes, present = _merge_details(received)
    kind, dialect, unknown = read_kind(received, attributes, present)
    return _Span(received, attributes, present, kind, dialect, unknown)


def _merge_details(received: ReceivedSpan) -> tuple[Attributes, PresentAttributes]:
    """Return the attributes of a span and its details events, with JSON-encoded texts decoded, and which of them are known."""
    attributes = received.attributes
    present = find_present_attributes(attributes)
    details = [event.attributes for event in received.events if event.name == conventions.DETAILS_EVENT]
    if not details and not present.json_encoded:
        return attributes, present
    merged: dict[str, Any] = {}
    for event_attributes in details:
        merged.update(event_attributes)
    merged.update(attributes)
    for name in present.json_encoded:
        merged[name] = decode_json_string(merged[name])
    return merged, find_present_attributes(merged) if details else present


def _read_evaluation_facts(received: ReceivedSpan, environment: str) -> SpanFacts:
    """Return the facts of a span of an evaluator or an experiment. It is only counted, because its texts are not those of an agent."""
    return SpanFacts(
        kind="evaluation",
        name=_clean_label(received.name),
        dialect="langfuse",
        scope=_read_identifier(received.scope),
        unknown=_read_identifier(f"{conventions.ENVIRONMENT} = {environment}"),
    )


def _read_conversation_facts(
    span: _Span, request: SpanMessages, response: SpanMessages, answer: Message | None
) -> dict[str, Any]:
    """Return the facts about the messages of a span of any kind."""
    usage = None
    if span.kind in _METERED_KINDS and span.present.token_conventions:
        usage = read_usage(span.attributes, span.present.token_conventions)
    is_compacted = span.attributes.get(conventions.COMPACTED) is True or request.compacted
    return {
        "thinking": "\n\n".join(_read_thoughts(span, request, answer)) or None,
        "usage": None if usage is None else usage.counts,
        "stop_reason": _find_stop_reason(span, answer),
        "compacted": is_compacted or any(message.compacted for message in response.messages),
        "tags": _read_tags(is_cut=span.received.lost or request.is_cut or response.is_cut, usage=usage),
    }


def _read_tool_facts(span: _Span) -> dict[str, Any]:
    """Return the facts of a span that is a tool call."""
    returned = _read_tool_result(span)
    return {
        "is_served_call": span.received.is_server,
        "called": _read_tool_call(span, returned),
        "returned": returned,
    }


def _read_definitions(attributes: Attributes) -> dict[str, str]:
    """Return the digests of the descriptions of the tools that were sent, by name.

    Spaces do not count, because instrumentors of the same program disagree about them. A definition that was cut off is left out.
    """
    definitions = next((attributes[name] for name in conventions.TOOL_DEFINITIONS if name in attributes), None)
    if definitions is None:
        numbered = (attributes.get(conventions.TOOL_DEFINITION.format(number)) for number in range(MAX_DEFINITIONS))
        definitions = list(takewhile(lambda definition: definition is not None, numbered))
    parsed = parse_json(definitions)
    if parsed.is_cut or not isinstance(parsed.value, list):
        return {}
    digests: dict[str, str] = {}
    for item in map(parse_json, parsed.value[:MAX_DEFINITIONS]):
        tool = item.value.get("function", item.value) if isinstance(item.value, dict) and not item.is_cut else None
        name = _read_identifier(tool.get("name")) if isinstance(tool, dict) else None
        if name is not None and isinstance(tool, dict) and isinstance(tool.get("description"), str):
            digests[name[:MAX_ID]] = digest(" ".join(tool["description"].split()))
    return digests


def _read_exchange_facts(span: _Span, request: SpanMessages, response: SpanMessages, answer: Message | None) -> dict[str, Any]:
    """Return the question, answer and calls of a span that is not a tool call."""
    return {
        "question": request.question,
        "asked": sum(message.role == "user" and message.is_user_turn for message in request.messages),
        "answer": None if answer is None else answer.text or None,
        "choices": len(response.messages) if span.kind == "inference" else 0,
        "calls": () if answer is None else _read_calls(span, answer),
        "results": request.results,
    }


def _choose_answer(span: _Span, response: SpanMessages) -> Message | None:
    """Return the message that counts as the answer: the first choice of a model, or the only message of an agent."""
    messages = response.messages
    if not messages:
        return Message("assistant") if span.present.tool_calls or span.present.reasoning else None
    if span.kind == "inference" and len(messages) > 1 and all(message.finish is None for message in messages):
        return _join_items(messages)
    return messages[0]


def _join_items(items: Sequence[Message]) -> Message:
    """Return the items of an answer of a Responses API as one message."""
    return Message(
        "assistant",
        texts=[text for item in items for text in item.texts],
        thoughts=[text for item in items for text in item.thoughts],
        calls=[call for item in items for call in item.calls],
        media=[placeholder for item in items for placeholder in item.media],
    )


def _read_metadata(span: _Span) -> Attributes:
    """Return the object in OpenInference's `metadata`, in which frameworks write names of their own."""
    if not span.present.metadata:
        return {}
    metadata = parse_json(span.attributes[conventions.METADATA]).value
    return metadata if isinstance(metadata, dict) else {}


def _find_agent_name(span: _Span, metadata: Attributes) -> str | None:
    attributes = span.attributes
    present = span.present
    name = _find_first_text(present.agent, attributes) or _find_first_text(conventions.METADATA_AGENT, metadata)
    if name is not None or span.kind != "agent":
        return name
    entity = _find_first_text(present.agent_of_entity, attributes)
    if entity is not None:
        return entity
    node = _find_first_text(present.agent_node, attributes)
    return None if node in conventions.FRAMEWORK_AGENT_NAMES else node


def _find_model_name(span: _Span) -> str | None:
    name = _find_first_text(span.present.model, span.attributes)
    if name is None and span.kind == "inference":
        return _find_first_text(span.present.model_of_request, span.attributes)
    return name


def _find_response_id(span: _Span) -> str | None:
    response_id = _find_first_text(span.present.response_id, span.attributes)
    if response_id is None and span.kind == "inference" and span.present.output:
        return _find_response_id_in_output(span.attributes[conventions.OUTPUT])
    return response_id


def _find_response_id_in_output(output: Any) -> str | None:
    """Return the id in a provider's response, if the span has the whole response; None if it does not."""
    answer = parse_json(output).value
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, dict) and isinstance(answer.get("id"), str):
        return str(answer["id"])
    return None


def _find_error_message(span: _Span) -> str | None:
    """Return the reason why a span failed; None if it did not.

    It is the message of the last exception, else the status message without its stack trace, else the type of the error.
    """
    received = span.received
    attributes = span.attributes
    error_type = _find_first_text(span.present.error, attributes)
    is_error_level = attributes.get("langfuse.observation.level") == "ERROR"
    if not received.failed and not is_error_level and error_type is None:
        return None
    exceptions = [event.attributes.get("exception.message") for event in received.events if event.name == "exception"]
    status_message = attributes.get("langfuse.observation.status_message")
    for message in (*reversed(exceptions), received.message, status_message, error_type):
        if isinstance(message, str) and message:
            return message.partition(_TRACEBACK)[0].strip() or message
    return "error"


def _read_thoughts(span: _Span, request: SpanMessages, answer: Message | None) -> Sequence[str]:
    """Return the thoughts of the answer, or those of the previous answer if it has none."""
    thoughts = [] if answer is None else list(answer.thoughts)
    for name in span.present.reasoning:
        text = span.attributes[name]
        if isinstance(text, str) and text:
            thoughts.append(text)
    return thoughts or request.thoughts


def _find_stop_reason(span: _Span, answer: Message | None) -> str | None:
    reason = parse_json(_find_first_value(span.present.stop_reason, span.attributes)).value
    if isinstance(reason, list) and reason:
        reason = reason[0]
    return _read_identifier(reason) or (None if answer is None else _read_identifier(answer.finish))


def _read_tags(*, is_cut: bool, usage: UsageReading | None) -> tuple[str, ...]:
    tags = []
    if is_cut:
        tags.append(TRUNCATED)
    if usage is not None and not usage.is_clear:
        tags.append(UNCLEAR_TOKENS)
    return tuple(tags)


def _read_calls(span: _Span, answer: Message) -> tuple[ToolCall, ...]:
    """Return the tool calls of an answer, or those of a separate attribute if the answer has none."""
    if answer.calls:
        return tuple(answer.calls)
    calls: list[ToolCall] = []
    for name in span.present.tool_calls:
        for item in _list_objects(span.attributes[name]):
            calls += build_message({"role": "assistant", "tool_calls": [item]}).calls
    return tuple(calls)


def _list_objects(value: Any) -> list[Any]:
    """Return the objects of a list, which may be JSON text."""
    items = parse_json(value).value
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _read_tool_result(span: _Span) -> ToolResult | None:
    """Return the result of a tool's span. LangChain wraps it in a message with the id of the call."""
    attributes = span.attributes
    present = span.present
    output = _find_first_value(present.result, attributes)
    if output is None:
        output = _read_event_field(span.received.events, conventions.TOOL_RESULT_EVENTS)
    value = parse_json(output).value
    if is_elided(value):
        output = None
        value = None
    error = _find_error_message(span)
    failed = error is not None or failed_by_attributes(attributes)
    if output is None and not failed:
        return None
    result = find_tool_result(value)
    if result is None:
        result = ToolResult(output_text(output) if output is not None else error or "")
    return ToolResult(
        output=result.output,
        name=_find_tool_name(_find_first_text(present.tool, attributes)),
        call_id=_read_identifier(_find_first_text(present.tool_call_id, attributes) or result.call_id),
        is_error=failed or result.is_error is True or failed_by_result(value) is True,
    )


def _read_tool_call(span: _Span, returned: ToolResult | None) -> ToolCall:
    attributes = span.attributes
    present = span.present
    name = _find_first_text(present.tool, attributes)
    if name is None:
        name = span.received.name.removeprefix("execute_tool ").removesuffix(".tool")
    call_id = _read_identifier(_find_first_text(present.tool_call_id, attributes))
    if call_id is None and returned is not None:
        call_id = returned.call_id
    arguments = _find_first_value(present.arguments, attributes)
    if arguments is None:
        arguments = _read_event_field(span.received.events, conventions.TOOL_ARGUMENTS_EVENTS)
    return ToolCall(_find_tool_name(name), call_id, _unwrap_arguments(parse_json(arguments).value))


def _find_tool_name(name: str | None) -> str | None:
    """Return the name of a tool. The method name of a callable Python object is removed."""
    return None if name is None else _read_identifier(name.removesuffix(".__call__"))


def _unwrap_arguments(value: Any) -> Any:
    """Return the arguments of a call without the envelopes that frameworks put around them."""
    for _ in range(MAX_NESTED):
        inner = _unwrap_envelope(value)
        if inner is None:
            return value
        value = inner
    return value


def _unwrap_envelope(value: Any) -> Any:
    # An envelope with positional arguments is kept, because only the envelope tells what they are.
    if not isinstance(value, dict) or value.get("args"):
        return None
    for member, members in _ENVELOPES:
        if isinstance(value.get(member), dict) and value.keys() <= members:
            return value[member]
    return None


def _read_event_field(events: Iterable[Event], fields: Sequence[tuple[str, str]]) -> Any:
    """Return the field of the first of these events; None if there is no such event."""
    field_by_event = dict(fields)
    for event in events:
        if event.name in field_by_event:
            return event.attributes.get(field_by_event[event.name])
    return None


def _read_ratings(events: Iterable[Event]) -> Iterator[Rating]:
    for event in events:
        if event.name == conventions.EVALUATION_EVENT:
            attributes = event.attributes
            yield Rating(
                name=_read_identifier(attributes.get("gen_ai.evaluation.name")) or "evaluation",
                score=_read_finite_number(attributes.get("gen_ai.evaluation.score.value")),
                label=_read_identifier(attributes.get("gen_ai.evaluation.score.label")),
                explanation=_find_first_text(("gen_ai.evaluation.explanation",), attributes),
                response_id=_read_identifier(attributes.get("gen_ai.response.id")),
            )


def _read_finite_number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _read_sampling_probability(trace_state: str) -> float | None:
    """Return the share of traces that the sender keeps. `ot=th:…` has the leading hexadecimal digits of a 56-bit threshold."""
    threshold = _THRESHOLD.search(trace_state)
    if threshold is None:
        return None
    return 1 - int(threshold.group(1).ljust(14, "0"), 16) / 2**56


def _has_framework_version(received: ReceivedSpan) -> bool:
    """Return whether the version of the service is that of a framework, whose upgrade is not a deployment of the agent."""
    if received.scope in conventions.FRAMEWORK_TRACERS:
        return True
    attribute, prefix = conventions.FRAMEWORK_SDK
    if str(received.resource.get(attribute, "")).startswith(prefix):
        return True
    version = received.resource.get(conventions.SERVICE_VERSION)
    return received.scope == conventions.FRAMEWORK_SCOPE and version == received.scope_version


def _without_service_version(label_attributes: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Return the attributes of the labels, without `service.version` as the version of the agent."""
    names = label_attributes.get(conventions.AGENT_VERSION)
    if names is None:
        return label_attributes
    other_names = [name for name in names if name != conventions.SERVICE_VERSION]
    return {**label_attributes, conventions.AGENT_VERSION: other_names}


def _read_labels(label_attributes: Mapping[str, Sequence[str]], attributes: Attributes, resource: Attributes) -> dict[str, str]:
    labels: dict[str, str] = {}
    for label in sorted(label_attributes):
        text = _clean_label(_find_first_text(label_attributes[label], attributes, resource) or "")
        if text and len(labels) < MAX_LABELS:
            labels[label] = text
    return labels


def _find_first_text(names: Iterable[str], *sources: Attributes) -> str | None:
    """Return the value of the first of these attributes that has one, as text."""
    for source in sources:
        for name in names:
            value = source.get(name)
            if isinstance(value, str):
                if value and not value.isspace() and not value.startswith(conventions.SCRUBBED_PREFIX) and value not in ELIDED:
                    return value
            elif type(value) in (int, float):
                return str(value)
    return None


def _find_first_value(names: Names, attributes: Attributes) -> Any:
    """Return the first value that its sender did not withhold; an empty text only if there is no other value."""
    fallback = None
    for name in names:
        value = attributes[name]
        if value is None or value == conventions.ELIDED.get(name):
            continue
        if value != "":
            return value
        fallback = value
    return fallback


def _read_identifier(value: Any) -> str | None:
    """Return an id or name without control characters; None if nothing is left. It is cut later, after redaction."""
    if not isinstance(value, str):
        return None
    return _clean_label(value) or None


def _clean_label(value: str) -> str:
    return (value if value.isprintable() else "".join(filter(str.isprintable, value))).strip()
