"""Reading a span: its facts, by the tables of `streams.sources.otlp.conventions`.

Counts of tokens are read by the convention that wrote them, and checked against its total:

1. A record has one definition: input are the tokens that the model read, those from and for a cache included; output are those that it
   wrote, reasoning included.
2. The conventions differ in what they include (`conventions.COUNTING`). A reading that cannot be, such as more tokens from a cache than
   were read, is discarded.
3. Where a total contradicts the convention's reading, it decides if exactly one other reading fits it. Else the usage is unclear: counts on
   which all readings agree are kept, the others are left empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.bounds import MAX_COUNT, MAX_LABELS
from streams.sources.otlp import conventions as named
from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.conventions import PROVIDER_COUNTING, USAGE_OBJECT, Counting, Included
from streams.sources.otlp.kinds import COUNTS, Names, Present, present_in, read_kind
from streams.sources.otlp.messages import (
    ELIDED,
    MAX_NESTED,
    ConversationReader,
    Message,
    Side,
    failed_by_attributes,
    failed_by_result,
    is_elided,
    message_of,
    result_of,
    text_of,
    unquoted,
)
from streams.sources.otlp.span_facts import Kind, Rating, SpanFacts, ToolCall, ToolResult, Usage

if TYPE_CHECKING:
    from streams.sources.otlp.request import Event, Observed


TRUNCATED = "truncated"
"""Tag of a span, and of what is made of it, of which a part was cut off before it came."""
UNCLEAR_TOKENS = "unclear_tokens"
"""Tag of a request, and of its exchange, whose counts of tokens contradict one another."""
Values = Mapping[str, Any]
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
_DIGITS = len(str(MAX_COUNT))


class FactReader:
    """Reads the facts of the spans of one request. Facts of a resource are read once for all its spans, and so are repeated texts.

    `wanted` are the attributes of each label.
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
        environment = _first_text((named.ENVIRONMENT,), observed.attributes, observed.resource)
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
            name=_clean_label(observed.name),
            dialect=dialect,
            scope=_identifier(observed.scope),
            unknown=_identifier(unknown),
            serves=not named.SERVES.isdisjoint(values),
            is_served_call=is_tool and observed.is_server,
            session_id=_identifier(
                _first_text(has.session, values) or _first_text(named.METADATA_SESSION, metadata) or self._session
            ),
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
            model=_identifier(
                _first_text(has.model, values) or (_first_text(has.model_of_request, values) if is_request else None)
            ),
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
            name=_clean_label(observed.name),
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
        self._session = _first_text(named.SESSION, resource)
        self._service = _identifier(_first_text((named.SERVICE,), resource))
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


def _first_text(names: Iterable[str], *sources: Values) -> str | None:
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


def _evaluation(observed: Observed, environment: str) -> SpanFacts:
    """The facts of a span of an evaluator or an experiment. It is only counted: its texts are no agent's."""
    unknown = _identifier(f"{named.ENVIRONMENT} = {environment}")
    return SpanFacts("evaluation", _clean_label(observed.name), "langfuse", scope=_identifier(observed.scope), unknown=unknown)


def _identifier(value: Any) -> str | None:
    """A text as an id or name: without control characters; None where nothing is left. It is cut after its secrets are taken out."""
    return _clean_label(value) or None if value is not None and isinstance(value, str) else None


def _clean_label(value: str) -> str:
    return (value if value.isprintable() else "".join(filter(str.isprintable, value))).strip()


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


def _metadata(values: Values, has: Present) -> Values:
    """The object that OpenInference's `metadata` is, in which frameworks pass on their own names."""
    metadata = parsed(values[named.METADATA]).value if has.metadata else None
    return metadata if isinstance(metadata, dict) else _NO_METADATA


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
    verdict = result_of(read) or ToolResult(text_of(output) if output is not None else error or "")
    call_id = _identifier(_first_text(has.tool_call_id, values) or verdict.call_id)
    failed = failed or verdict.is_error is True or failed_by_result(read) is True
    return ToolResult(verdict.output, _tool_name(_first_text(has.tool, values)), call_id, failed)


def _first(names: Names, values: Values) -> Any:
    """The first of the attributes whose value was not withheld by its sender; an empty text only where no other has any."""
    empty = None
    for name in names:
        value = values[name]
        if value is None or value == named.ELIDED.get(name):
            continue
        if value != "":
            return value
        empty = value
    return empty


def _read_event_field(events: Iterable[Event], fields: Sequence[tuple[str, str]]) -> Any:
    """The field of the first of these events of a tool's span; None without such an event."""
    field_of = dict(fields)
    return next((event.attributes.get(field_of[event.name]) for event in events if event.name in field_of), None)


def _error(observed: Observed, values: Values, has: Present) -> str | None:
    """Why a span failed: the message of an exception, else of its status, which may have a whole stack, else the type of the error."""
    level = values.get("langfuse.observation.level") == "ERROR"
    kind = _first_text(has.error, values) if has.error else None
    if not observed.failed and not level and kind is None:
        return None
    thrown = (event.attributes.get("exception.message") for event in observed.events if event.name == "exception")
    candidates = [*reversed(list(thrown)), observed.message, values.get("langfuse.observation.status_message"), kind]
    message = next((word for word in candidates if isinstance(word, str) and word), "error")
    return message.partition(_STACK)[0].strip() or message


def _tool_name(name: str | None) -> str | None:
    """The name of a tool; of a callable Python object without the name of its method."""
    return _identifier(None if name is None else name.removesuffix(".__call__"))


def _agent(values: Values, has: Present, metadata: Values, kind: Kind) -> str | None:
    agent = _first_text(has.agent, values) or _first_text(named.METADATA_AGENT, metadata)
    if agent is not None or kind != "agent":
        return agent
    node = _first_text(has.agent_node, values)
    return _first_text(has.agent_of_entity, values) or (None if node in named.NAMELESS else node)


def _thoughts(values: Values, has: Present, sent: Side, answer: Message | None) -> Sequence[str]:
    """The thoughts of an answer; else those of the answer before."""
    thoughts = () if answer is None else answer.thoughts
    return (*thoughts, *_texts(has.thought, values)) or sent.thoughts


def _texts(names: Names, values: Values) -> list[str]:
    return [values[name] for name in names if isinstance(values[name], str) and values[name]]


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
    name = _first_text(has.tool, values) or observed.name.removeprefix("execute_tool ").removesuffix(".tool")
    call_id = _identifier(_first_text(has.tool_call_id, values)) or (None if returned is None else returned.call_id)
    arguments = _first(has.arguments, values)
    if arguments is None:
        arguments = _read_event_field(observed.events, named.TOOL_ARGUMENTS_EVENTS)
    return ToolCall(_tool_name(name), call_id, _arguments(parsed(arguments).value))


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


def _response_id(values: Values, has: Present, kind: Kind) -> str | None:
    response_id = _first_text(has.response_id, values) or (_id_within(values) if kind == "inference" and has.output else None)
    return _identifier(response_id)


def _id_within(values: Values) -> str | None:
    """The id of the provider's answer, where the whole of that was kept."""
    answer = parsed(values[named.OUTPUT]).value
    answer = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    return answer["id"] if isinstance(answer, dict) and isinstance(answer.get("id"), str) else None


def _stop_reason(values: Values, has: Present, answer: Message | None) -> str | None:
    reason = parsed(_first(has.stop, values)).value if has.stop else None
    reason = reason[0] if isinstance(reason, list) and reason else reason
    return _identifier(reason) or (None if answer is None else _identifier(answer.finish))


def _tags(*, is_cut: bool, usage: UsageReading | None) -> tuple[str, ...]:
    is_unclear = usage is not None and not usage.is_clear
    return (*((TRUNCATED,) if is_cut else ()), *((UNCLEAR_TOKENS,) if is_unclear else ()))


def _ratings(events: Iterable[Event]) -> Iterator[Rating]:
    for event in events:
        if event.name == named.EVALUATION_EVENT:
            raw = event.attributes
            yield Rating(
                name=_identifier(raw.get("gen_ai.evaluation.name")) or "evaluation",
                score=_number(raw.get("gen_ai.evaluation.score.value")),
                label=_identifier(raw.get("gen_ai.evaluation.score.label")),
                explanation=_first_text(("gen_ai.evaluation.explanation",), raw),
                response_id=_identifier(raw.get("gen_ai.response.id")),
            )


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _probability(trace_state: str) -> float | None:
    """The share of traces that are kept, from the threshold in `ot=th:…`: its digits are the most significant ones of 56 bits."""
    threshold = _THRESHOLD.search(trace_state)
    if threshold is None:
        return None
    return 1 - int(threshold.group(1).ljust(14, "0"), 16) / 2**56


def _says_framework_version(observed: Observed) -> bool:
    """Tell whether the service's version is that of a framework, whose upgrade is no deployment of the agent."""
    resource, (attribute, beginning) = observed.resource, named.FRAMEWORK_SDK
    return (
        observed.scope in named.FRAMEWORK_TRACERS
        or str(resource.get(attribute, "")).startswith(beginning)
        or (observed.scope == named.FRAMEWORK_SCOPE and resource.get(named.SERVICE_VERSION) == observed.scope_version)
    )


def _labels(wanted: Mapping[str, Sequence[str]], values: Values, resource: Values) -> dict[str, str]:
    labels = {label: _first_text(names, values, resource) for label, names in wanted.items()}
    present = [(label, text) for label, value in labels.items() if value is not None and (text := _clean_label(value))]
    return dict(sorted(present)[:MAX_LABELS])


class UsageReading(NamedTuple):
    """The usage of a request. Where it is not clear, the counts that depend on how it is read are None."""

    counts: Usage
    is_clear: bool = True


def read_usage(values: Mapping[str, Any], conventions: Sequence[Counting]) -> UsageReading | None:
    """Return the usage in the attributes of one of the conventions; None where there is none."""
    best: tuple[Counting, _Counts] | None = None
    most = 0
    for convention in conventions:
        counts = _read_counts(values, convention)
        present = len(counts) - counts.count(None)
        # A total alone says nothing of what was read and written, and no request reads and writes nothing: some write zeros for unknown.
        if present > most and any(counts[:-1]):
            best, most = (convention, counts), present
    return None if best is None else _interpret(*best)


class _Counts(NamedTuple):
    """The counts as they are written, each None where there is none."""

    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    total: int | None


def _read_counts(values: Mapping[str, Any], convention: Counting) -> _Counts:
    if convention.container is None:
        return _Counts(*(_first_count(values, getattr(convention, field)) for field in COUNTS))
    details = parsed(values[convention.container]).value
    if not isinstance(details, dict):
        return _NONE
    if convention.parts is None:
        return _Counts(*(next(iter(_counts_at(details, getattr(convention, field))), None) for field in COUNTS))
    # Each token is in one count, so several of one sort are added up.
    named = {field: [*getattr(convention, field)] for field in COUNTS}
    all_named = {name for names in named.values() for name in names}
    for field, beginning in zip(COUNTS, convention.parts, strict=False):
        named[field] += [name for name in details if name.startswith(beginning) and _is_sort(name) and name not in all_named]
    counts = [list(_counts_at(details, names)) for names in named.values()]
    return _Counts(*(min(sum(sorts), MAX_COUNT) if sorts else None for sorts in counts))


def _first_count(values: Mapping[str, Any], names: Iterable[str]) -> int | None:
    return next((count for name in names if (count := _count(values[name])) is not None), None)


def _count(value: Any) -> int | None:
    """A whole number from 0, which may be a text; None for anything else."""
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) <= _DIGITS:
        value = int(value)
    return int(value) if type(value) in _NUMBERS and 0 <= value <= MAX_COUNT and value == int(value) else None


def _counts_at(details: Mapping[str, Any], paths: Iterable[str]) -> Iterator[int]:
    """The counts at these paths, without those that are missing."""
    for path in paths:
        if (count := _count(_at(details, path))) is not None:
            yield count


def _at(details: Mapping[str, Any], path: str) -> Any:
    value: Any = details
    for step in path.split("."):
        if isinstance(value, list):
            value = value[int(step)] if step.isdecimal() and int(step) < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _is_sort(name: str) -> bool:
    """Tell whether a name counts tokens of their own: those of a price's tier (`input_cached_tokens_priority`) are in another count, too."""
    return "priority" not in name


def _interpret(convention: Counting, counts: _Counts) -> UsageReading:
    readings = dict.fromkeys(
        Usage(read, written, counts.cache_read, counts.cache_write)
        for read in _read_tokens(counts, convention.cache_is)
        for written in _written_tokens(counts, convention.reasoning_is)
    )
    fitting = [usage for usage in readings if _fits(usage, counts)]
    usual = next(iter(readings))
    if usual in fitting or len(fitting) == 1:
        return UsageReading(usual if usual in fitting else fitting[0])
    agreed = {
        field: values.pop()
        for field in Usage.__struct_fields__
        if len(values := {getattr(usage, field) for usage in fitting or readings}) == 1
    }
    return UsageReading(Usage(**agreed), is_clear=False)


def _read_tokens(counts: _Counts, cache_is: Included) -> list[int | None]:
    """The possible counts of all that the model read: by the convention first, then the other way."""
    cached = (counts.cache_read or 0) + (counts.cache_write or 0)
    return _both_ways(counts.input, cached, cache_is)


def _both_ways(count: int | None, part: int, part_is: Included) -> list[int | None]:
    if not part:
        return [count]
    beside = min((count or 0) + part, MAX_COUNT)
    if count is None:
        return [beside if part_is == "beside" else None]
    ways = [count, beside] if part_is == "included" else [beside, count]
    return [way for way in ways if way >= part]  # no count includes more than it is


def _written_tokens(counts: _Counts, reasoning_is: Included) -> list[int | None]:
    """All that the model wrote, reasoning included."""
    return _both_ways(counts.output, counts.reasoning or 0, reasoning_is)


def _fits(usage: Usage, counts: _Counts) -> bool:
    if counts.total is None or counts.input is None or counts.output is None:
        return True
    # Some add up what they call input and output although more tokens came from a cache than their input has.
    plain = counts.input + counts.output if (counts.cache_read or 0) + (counts.cache_write or 0) > counts.input else None
    return counts.total in ((usage.input or 0) + (usage.output or 0), plain)


def read_provider_usage(usage: Mapping[str, Any]) -> UsageReading | None:
    """Return the usage in an object as a provider's answer has it; None where it has none."""
    return read_usage({USAGE_OBJECT: usage}, PROVIDER_COUNTING)


_NONE = _Counts(None, None, None, None, None, None)
