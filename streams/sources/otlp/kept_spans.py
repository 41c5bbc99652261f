"""Kept spans: a span of a request as the record that is stored, without secrets and within bounds; and the record as a span again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from audit.fingerprints import digest
from audit.redaction.redactor import Redactor
from schemas.bounds.limits import MAX_DEPTH, MAX_ID, MAX_LABEL, is_too_deep
from schemas.records import Span
from streams.sources.exchange_builder import MAX_TEXT
from streams.sources.openclaw.events import MAX_ARGUMENTS, MAX_RESULT
from streams.sources.openclaw.text import cut, cut_bytes
from streams.sources.otlp.reading import TRUNCATED, facts_of
from streams.sources.otlp.span_facts import Rating, SpanFacts, ToolCall, ToolResult
from streams.sources.otlp.trace import KeptSpan

if TYPE_CHECKING:
    from streams.sources.otlp.request import Observed

MAX_CALLS = 256
"""Calls or outputs of one message that are kept."""
MAX_RATINGS = 64
"""Verdicts of others that are kept."""
MAX_CONTENT = 900_000
"""Bytes of a record's content; the rest of a message is for ids and names."""
_NAMES = ("session_id", "agent", "service", "model", "response_id", "stop_reason", "memory")
"""The facts that are names or ids of the sender's, beside the name of the span."""
_TEXTS = ("question", "answer", "thinking")
"""The facts that are texts of the exchange."""
_LIMITS = (1, 8, 64, 512)
"""By how much the longest texts are shortened, in turn, until all of a span fits into a message."""
Told = TypeVar("Told", ToolCall, ToolResult)
_decoder = msgspec.json.Decoder(SpanFacts)


class SpanOwner(NamedTuple):
    """The owner of spans: the connection, its project, and the agent that its token names."""

    connection: str
    project: str
    agent: str | None = None


def span_record(
    observed: Observed, owner: SpanOwner, redactor: Redactor, now: datetime, labels: Mapping[str, Sequence[str]]
) -> Span:
    """The record of a span; `labels` are the attributes that tell each label."""
    facts = facts_of(observed, labels)
    if owner.agent is not None:
        facts = msgspec.structs.replace(facts, agent=owner.agent)
    facts = _named(_redacted(facts, redactor))
    content = _encoded(facts)
    content_digest = digest(f"{observed.parent_id} {observed.started_at.isoformat()} {observed.ended_at.isoformat()} {content}")
    return Span(
        connection=owner.connection,
        project=owner.project,
        session_id=facts.session_id or observed.trace_id,
        trace_id=observed.trace_id,
        span_id=f"{observed.span_id}:{_short(content_digest)}" if observed.is_log else observed.span_id,
        parent_span_id=observed.parent_id,
        started_at=observed.started_at,
        ended_at=observed.ended_at,
        ingested_at=now,
        content=content,
        content_digest=content_digest,
    )


def kept_span(record: Span) -> KeptSpan:
    """The span of a record."""
    return KeptSpan(record.span_id, record.parent_span_id, record.started_at, record.ended_at, _decoder.decode(record.content))


def _redacted(facts: SpanFacts, redactor: Redactor) -> SpanFacts:
    """The facts without secrets. Our own names of fields say nothing, so only what was told is looked at."""
    names = {field: redactor.redact_name(name) for field in ("name", *_NAMES) if (name := getattr(facts, field)) is not None}
    texts = {field: redactor.redact(text)[0] for field in (*_TEXTS, "error") if (text := getattr(facts, field)) is not None}
    return msgspec.structs.replace(
        facts,
        **names,
        **texts,
        calls=tuple(_redacted_call(call, redactor) for call in facts.calls[:MAX_CALLS]),
        results=tuple(_redacted_result(result, redactor) for result in facts.results[:MAX_CALLS]),
        called=None if facts.called is None else _redacted_call(facts.called, redactor),
        returned=None if facts.returned is None else _redacted_result(facts.returned, redactor),
        labels=redactor.redact_json(facts.labels)[0],
        ratings=tuple(msgspec.convert(redactor.redact_json(msgspec.to_builtins(one))[0], Rating) for one in facts.ratings),
        tags=_tags(facts, is_cut=max(len(facts.calls), len(facts.results)) > MAX_CALLS),
    )


def _redacted_call(call: ToolCall, redactor: Redactor) -> ToolCall:
    arguments, _ = redactor.redact_json(_shallow(call.arguments))
    return ToolCall(_redacted_name(call.name, redactor), _redacted_name(call.call_id, redactor), arguments)


def _redacted_result(result: ToolResult, redactor: Redactor) -> ToolResult:
    output, _ = redactor.redact(result.output)
    return ToolResult(output, _redacted_name(result.name, redactor), _redacted_name(result.call_id, redactor), result.is_error)


def _redacted_name(name: str | None, redactor: Redactor) -> str | None:
    return None if name is None else redactor.redact_name(name)


def _named(facts: SpanFacts) -> SpanFacts:
    """The facts with names and ids as long as a record takes. Secrets are out already: a cut could halve one."""
    return msgspec.structs.replace(
        facts,
        **{name: _short_name(getattr(facts, name)) for name in _NAMES},
        name=_short_name(facts.name) or "",
        calls=tuple(map(_named_call, facts.calls)),
        results=tuple(map(_named_call, facts.results)),
        called=None if facts.called is None else _named_call(facts.called),
        returned=None if facts.returned is None else _named_call(facts.returned),
        labels={name: text[:MAX_LABEL].strip() for name, text in facts.labels.items()},
    )


def _named_call(call: Told) -> Told:
    return msgspec.structs.replace(call, name=_short_name(call.name), call_id=_short_name(call.call_id))


def _short_name(name: str | None) -> str | None:
    return (name and name[:MAX_ID].strip()) or None


def _shallow(arguments: Any) -> Any:
    """Arguments that nest too deep as a text."""
    return msgspec.json.encode(arguments).decode() if is_too_deep(arguments, MAX_DEPTH - 8) else arguments


def _encoded(facts: SpanFacts) -> str:
    """The facts as JSON that fits into a message. Cuts come after secrets were taken out, which a cut could halve."""
    content = msgspec.json.encode(facts, order="sorted")
    if len(content) <= MAX_RESULT and not facts.ratings:
        return content.decode()  # the whole is shorter than the shortest limit of a text
    for share in _LIMITS:
        content = msgspec.json.encode(_cut(facts, share), order="sorted")
        if len(content) <= MAX_CONTENT:
            break
    return content.decode()


def _cut(facts: SpanFacts, share: int) -> SpanFacts:
    texts = {name: cut_bytes(text, MAX_TEXT // share) for name in _TEXTS if (text := getattr(facts, name)) is not None}
    short = msgspec.structs.replace(
        facts,
        **texts,
        calls=tuple(_cut_call(call, share) for call in facts.calls),
        results=tuple(_cut_result(result, share) for result in facts.results),
        called=None if facts.called is None else _cut_call(facts.called, share),
        returned=None if facts.returned is None else _cut_result(facts.returned, share),
        error=None if facts.error is None else cut(facts.error, MAX_RESULT // share),
        ratings=tuple(_cut_rating(rating, share) for rating in facts.ratings[:MAX_RATINGS]),
    )
    return short if short == facts else msgspec.structs.replace(short, tags=_tags(facts, is_cut=any(_cut_texts(short, facts))))


def _cut_texts(short: SpanFacts, facts: SpanFacts) -> list[bool]:
    """Tell of each text of the exchange whether it was cut: those of tools are cut everywhere, and that says nothing of the exchange."""
    return [getattr(short, name) != getattr(facts, name) for name in _TEXTS]


def _cut_call(call: ToolCall, share: int) -> ToolCall:
    if (
        call.arguments is None
        or len(text := msgspec.json.encode(call.arguments, order="sorted").decode()) <= MAX_ARGUMENTS // share
    ):
        return call
    return msgspec.structs.replace(call, arguments=cut(text, MAX_ARGUMENTS // share))


def _cut_result(result: ToolResult, share: int) -> ToolResult:
    return msgspec.structs.replace(result, output=cut(result.output, MAX_RESULT // share))


def _cut_rating(rating: Rating, share: int) -> Rating:
    names = {name: _short_name(getattr(rating, name)) for name in ("label", "response_id")}
    why = None if rating.explanation is None else cut(rating.explanation, MAX_ARGUMENTS // share)
    return msgspec.structs.replace(rating, name=rating.name[:MAX_ID], explanation=why, **names)


def _tags(facts: SpanFacts, *, is_cut: bool) -> tuple[str, ...]:
    return tuple(sorted({*facts.tags, TRUNCATED})) if is_cut else facts.tags


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
