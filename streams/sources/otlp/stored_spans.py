"""Converts received spans to redacted records within the limits of a message, and records back to spans."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from audit.fingerprints import digest
from audit.redaction import Redactor, texts_in
from schemas.bounds import MAX_DEPTH, MAX_ID, MAX_LABEL, is_too_deep
from schemas.records import Span
from streams.sources.exchange_builder import MAX_TEXT_BYTES
from streams.sources.openclaw.events import MAX_ARGUMENTS_CHARACTERS, MAX_RESULT_CHARACTERS
from streams.sources.openclaw.text import cut, cut_bytes
from streams.sources.otlp.reading import TRUNCATED, FactReader
from streams.sources.otlp.span_facts import Rating, SpanFacts, ToolCall, ToolResult
from streams.sources.otlp.trace import StoredSpan

if TYPE_CHECKING:
    from streams.sources.otlp.received import ReceivedSpan

MAX_CALLS = 256
"""Maximum number of tool calls, and of tool outputs, kept per message."""
MAX_RATINGS = 64
"""Maximum number of external ratings kept per span."""
MAX_CONTENT = 900_000
"""Maximum size of a record's content. The remainder of a Kafka message is for ids and names."""
_NAME_FACTS = ("scope", "unknown", "session_id", "agent", "service", "model", "response_id", "stop_reason", "memory")
"""Facts that are names or ids chosen by the sender, except the span's name."""
_TEXT_FACTS = ("question", "answer", "thinking")
"""Facts that are texts of the exchange."""
_LONG_TEXT_FACTS = (*_TEXT_FACTS, "error")
"""Facts that are long texts. They are cut after redaction."""
_ALL_TEXT_FACTS = ("name", *_NAME_FACTS, *_LONG_TEXT_FACTS)
_TEXT_DIVISORS = (1, 8, 64, 512)
"""Divisors of the limits on texts, tried in order until the span fits into a message."""
Part = TypeVar("Part", ToolCall, ToolResult)
_decoder = msgspec.json.Decoder(SpanFacts)


class SpanOwner(NamedTuple):
    """The owner of spans: a connection, its project, and the agent of its token if it has one."""

    connection: str
    project: str
    agent: str | None = None


class SpanDraft(NamedTuple):
    """A span before redaction: the received span, its facts, and its owner."""

    received: ReceivedSpan
    facts: SpanFacts
    owner: SpanOwner
    texts: Sequence[str]
    """All texts that may hold a secret, so that the texts of many spans can be prefiltered at once."""
    named: Sequence[str]
    """The names and values of arguments and labels. A name may mark its value as a secret."""


def build_span_record(
    received: ReceivedSpan, owner: SpanOwner, redactor: Redactor, now: datetime, labels: Mapping[str, Sequence[str]]
) -> Span:
    """Return the record of a span. `labels` has the attributes that give each label."""
    return build_record(build_draft(received, owner, FactReader(labels)), redactor, now)


def build_draft(received: ReceivedSpan, owner: SpanOwner, reader: FactReader) -> SpanDraft:
    """Return the draft of a span."""
    facts = reader.facts_of(received)
    if owner.agent is not None:
        facts = msgspec.structs.replace(facts, agent=owner.agent)
    named = _collect_named_texts(facts)
    return SpanDraft(received, facts, owner, _collect_texts(facts) + named, named)


def _collect_texts(facts: SpanFacts) -> list[str]:
    texts = [text for text in _read_all_texts(facts) if text]
    if facts.calls or facts.called is not None:
        for call in (*facts.calls[:MAX_CALLS], *_as_tuple(facts.called)):
            texts += filter(None, (call.name, call.call_id))
    if facts.results or facts.returned is not None:
        for result in (*facts.results[:MAX_CALLS], *_as_tuple(facts.returned)):
            texts += filter(None, (result.output, result.name, result.call_id))
    return texts


def _collect_named_texts(facts: SpanFacts) -> list[str]:
    texts = [*facts.labels, *facts.labels.values(), *facts.definitions]
    if facts.calls or facts.called is not None:
        for call in (*facts.calls[:MAX_CALLS], *_as_tuple(facts.called)):
            texts += texts_in(call.arguments)
    return texts


def _as_tuple(part: Part | None) -> tuple[Part, ...]:
    return () if part is None else (part,)


_read_all_texts = attrgetter(*_ALL_TEXT_FACTS)
_read_names, _read_all_names, _read_long_texts = (
    attrgetter(*_NAME_FACTS),
    attrgetter("name", *_NAME_FACTS),
    attrgetter(*_LONG_TEXT_FACTS),
)


def build_record(draft: SpanDraft, redactor: Redactor, now: datetime) -> Span:
    """Return the redacted record of a draft."""
    received = draft.received
    owner = draft.owner
    facts = _redact_facts(draft, redactor)
    content = _encode(facts)
    content_digest = digest(f"{received.parent_id} {received.started_at.isoformat()} {received.ended_at.isoformat()} {content}")
    return Span(
        connection=owner.connection,
        project=owner.project,
        session_id=facts.session_id or received.trace_id,
        trace_id=received.trace_id,
        span_id=f"{received.span_id}:{_compute_short_digest(content_digest)}" if received.is_log else received.span_id,
        parent_span_id=received.parent_id,
        started_at=received.started_at,
        ended_at=received.ended_at,
        ingested_at=now,
        content=content,
        content_digest=content_digest,
    )


def to_stored_span(record: Span) -> StoredSpan:
    """Return the span of a record. Its ids include the trace id, because span ids are only unique within a trace."""
    parent_id = None if record.parent_span_id is None else f"{record.trace_id}:{record.parent_span_id}"
    facts = _decoder.decode(record.content)
    return StoredSpan(
        f"{record.trace_id}:{record.span_id}", parent_id, record.started_at, record.ended_at, facts, record.trace_id
    )


def _redact_facts(draft: SpanDraft, redactor: Redactor) -> SpanFacts:
    """Return redacted facts, with names and ids within their limits. Field names hold no secrets, so only values are checked."""
    facts = draft.facts
    if redactor.are_clean(draft.texts) and redactor.is_clean_json(draft.named) and _fits_record(facts):
        return facts
    changes = _redact_texts(facts, redactor)
    if facts.calls:
        changes["calls"] = tuple(_redact_call(call, redactor) for call in facts.calls[:MAX_CALLS])
    if facts.results:
        changes["results"] = tuple(_redact_result(result, redactor) for result in facts.results[:MAX_CALLS])
    if facts.called is not None:
        changes["called"] = _redact_call(facts.called, redactor)
    if facts.returned is not None:
        changes["returned"] = _redact_result(facts.returned, redactor)
    if facts.labels:
        changes["labels"] = {name: text[:MAX_LABEL].strip() for name, text in redactor.redact_labels(facts.labels).items()}
    if facts.definitions:
        changes["definitions"] = {redactor.redact_name(tool)[:MAX_ID]: text for tool, text in facts.definitions.items()}
    if facts.ratings:
        changes["ratings"] = tuple(
            msgspec.convert(redactor.redact_json(msgspec.to_builtins(rating))[0], Rating) for rating in facts.ratings
        )
    if len(facts.calls) > MAX_CALLS or len(facts.results) > MAX_CALLS:
        changes["tags"] = _add_truncated_tag(facts, is_cut=True)
    return msgspec.structs.replace(facts, **changes) if changes else facts


def _fits_record(facts: SpanFacts) -> bool:
    """Return whether facts without secrets fit into a record unchanged."""
    # All names were read as identifiers, so they can only be too long. The agent's name may come from a token and is checked fully.
    if max(map(len, filter(None, _read_all_names(facts))), default=0) > MAX_ID or not (
        facts.agent is None or _is_valid_name(facts.agent)
    ):
        return False
    if facts.ratings or (facts.labels and max(map(len, facts.labels.values())) > MAX_LABEL):
        return False
    if facts.calls or facts.called is not None:
        calls = (*facts.calls, *_as_tuple(facts.called))
        if len(facts.calls) > MAX_CALLS or not all(map(_is_valid_call, calls)):
            return False
    if facts.results or facts.returned is not None:
        results = (*facts.results, *_as_tuple(facts.returned))
        return len(facts.results) <= MAX_CALLS and all(map(_has_valid_names, results))
    return True


def _is_valid_call(call: ToolCall) -> bool:
    return _has_valid_names(call) and not _is_too_deep(call.arguments)


def _has_valid_names(part: ToolCall | ToolResult) -> bool:
    return (part.name is None or _is_valid_name(part.name)) and (part.call_id is None or _is_valid_name(part.call_id))


def _is_valid_name(name: str) -> bool:
    """Return whether a name fits into a record unchanged."""
    return 0 < len(name) <= MAX_ID and not (name[0].isspace() or name[-1].isspace())


def _redact_texts(facts: SpanFacts, redactor: Redactor) -> dict[str, Any]:
    """Return the names and texts that redaction or the limits change."""
    changes: dict[str, Any] = {}
    for field, name in zip(_NAME_FACTS, _read_names(facts), strict=True):
        if name is not None and (clean := _redact_name(name, redactor)) is not name:
            changes[field] = clean
    for field, text in zip(_LONG_TEXT_FACTS, _read_long_texts(facts), strict=True):
        if text is not None and (clean := redactor.redact_text(text)) is not text:
            changes[field] = clean
    if (clean := _redact_name(facts.name, redactor) or "") is not facts.name:
        changes["name"] = clean
    return changes


def _redact_call(call: ToolCall, redactor: Redactor) -> ToolCall:
    arguments, _ = redactor.redact_json(_limit_depth(call.arguments))
    return ToolCall(_redact_name(call.name, redactor), _redact_name(call.call_id, redactor), arguments)


def _redact_result(result: ToolResult, redactor: Redactor) -> ToolResult:
    output = redactor.redact_text(result.output)
    return ToolResult(output, _redact_name(result.name, redactor), _redact_name(result.call_id, redactor), result.is_error)


def _redact_name(name: str | None, redactor: Redactor) -> str | None:
    """Return the redacted name. It is cut after redaction, because a cut could split a secret."""
    return None if name is None else redactor.redact_name(name)[:MAX_ID].strip() or None


def _shorten_name(name: str | None) -> str | None:
    return None if name is None else name[:MAX_ID].strip() or None


def _limit_depth(arguments: Any) -> Any:
    """Return arguments that nest too deep as JSON text, and other arguments unchanged."""
    return msgspec.json.encode(arguments).decode() if _is_too_deep(arguments) else arguments


def _is_too_deep(arguments: Any) -> bool:
    return arguments is not None and is_too_deep(arguments, MAX_DEPTH - 8)


def _encode(facts: SpanFacts) -> str:
    """Return redacted facts as JSON that fits into a message. Long texts are cut."""
    content = msgspec.json.encode(facts, order="sorted")
    if len(content) <= MAX_RESULT_CHARACTERS and not facts.ratings:
        return content.decode()  # no text can exceed its limit
    for divisor in _TEXT_DIVISORS:
        content = msgspec.json.encode(_shorten(facts, divisor), order="sorted")
        if len(content) <= MAX_CONTENT:
            break
    return content.decode()


def _shorten(facts: SpanFacts, divisor: int) -> SpanFacts:
    texts: dict[str, str] = {}
    for name in _TEXT_FACTS:
        text = getattr(facts, name)
        if text is not None:
            texts[name] = cut_bytes(text, MAX_TEXT_BYTES // divisor)
    short = msgspec.structs.replace(
        facts,
        **texts,
        calls=tuple(_shorten_call(call, divisor) for call in facts.calls),
        results=tuple(_shorten_result(result, divisor) for result in facts.results),
        called=None if facts.called is None else _shorten_call(facts.called, divisor),
        returned=None if facts.returned is None else _shorten_result(facts.returned, divisor),
        error=None if facts.error is None else cut(facts.error, MAX_RESULT_CHARACTERS // divisor),
        ratings=tuple(_shorten_rating(rating, divisor) for rating in facts.ratings[:MAX_RATINGS]),
    )
    return (
        short
        if short == facts
        else msgspec.structs.replace(short, tags=_add_truncated_tag(facts, is_cut=any(_list_changed_texts(short, facts))))
    )


def _list_changed_texts(short: SpanFacts, facts: SpanFacts) -> list[bool]:
    """Return whether each text of the exchange was cut. Tool texts are always cut, so they do not mark the exchange."""
    return [getattr(short, name) != getattr(facts, name) for name in _TEXT_FACTS]


def _shorten_call(call: ToolCall, divisor: int) -> ToolCall:
    if (
        call.arguments is None
        or len(text := msgspec.json.encode(call.arguments, order="sorted").decode()) <= MAX_ARGUMENTS_CHARACTERS // divisor
    ):
        return call
    return msgspec.structs.replace(call, arguments=cut(text, MAX_ARGUMENTS_CHARACTERS // divisor))


def _shorten_result(result: ToolResult, divisor: int) -> ToolResult:
    return msgspec.structs.replace(result, output=cut(result.output, MAX_RESULT_CHARACTERS // divisor))


def _shorten_rating(rating: Rating, divisor: int) -> Rating:
    names = {name: _shorten_name(getattr(rating, name)) for name in ("label", "response_id")}
    why = None if rating.explanation is None else cut(rating.explanation, MAX_ARGUMENTS_CHARACTERS // divisor)
    return msgspec.structs.replace(rating, name=rating.name[:MAX_ID], explanation=why, **names)


def _add_truncated_tag(facts: SpanFacts, *, is_cut: bool) -> tuple[str, ...]:
    return tuple(sorted({*facts.tags, TRUNCATED})) if is_cut else facts.tags


def _compute_short_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
