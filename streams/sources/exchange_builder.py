"""Builds the record of an exchange from any source: unwraps, tags, redacts and cuts its texts, and computes its digest."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from audit.exchanges.context import ERROR, OK, UNANSWERED, bound_calls, tool_call
from audit.fingerprints import canonical_json
from schemas.errors import BoundsError
from schemas.records import Exchange, Label, Redaction, ToolCall
from streams.sources.derived_evidence import has_failed
from streams.sources.openclaw.text import Unwrapped, answer_tags, cut_bytes, question_tags, unwrap

MAX_TEXT_BYTES = 200_000
"""Maximum size of each text of an exchange. An exchange has four texts and must fit into one Kafka message."""
Redact = Callable[[str], tuple[str, Counter[str]]]
"""Returns a text without its secrets, and the number of secrets by kind."""


MAX_CALL_TEXT = 16_000
"""Maximum characters of a text of a tool call that are searched for secrets: twenty times as many as are kept of it."""


class DraftCall(NamedTuple):
    """A tool call as its source has it. Texts that the source does not record are None."""

    name: str
    arguments: str | None
    result: str | None
    outcome: str
    """ok, error or unanswered."""

    def texts(self) -> list[str]:
        """Return the texts that may contain secrets. Of a very long text, which is cut later anyway, only the ends are left."""
        return [self.name, *(shorten_call_text(text) for text in (self.arguments, self.result) if text is not None)]


def pair_calls(events: Iterable[Mapping[str, Any]]) -> tuple[DraftCall, ...]:
    """Return the tool calls of a turn from its events in order: each call with its output.

    An output belongs to the call with its `tool_call_id`, or else to the first call of its tool without one. An output without a call
    is a call with unknown arguments.
    """
    calls: list[DraftCall] = []
    call_events: list[Mapping[str, Any] | None] = []
    index_by_id: dict[Any, int] = {}
    waiting = defaultdict[Any, deque[int]](deque)
    for event in events:
        call_id, tool = event.get("tool_call_id"), event.get("tool")
        if event["event"] == "tool_call":
            if call_id is None:
                waiting[tool].append(len(calls))
            else:
                index_by_id[call_id] = len(calls)
            calls.append(DraftCall(str(tool or ""), write_text(event.get("arguments")), None, UNANSWERED))
            call_events.append(event)
        elif event["event"] == "tool_output":
            index = None if call_id is None else index_by_id.get(call_id)
            if index is None and waiting[tool]:
                index = waiting[tool].popleft()
            if index is None:
                index = len(calls)
                calls.append(DraftCall(str(tool or ""), None, None, UNANSWERED))
                call_events.append(None)
            outcome = ERROR if has_failed(event, call_events[index]) else OK
            calls[index] = calls[index]._replace(result=write_text(event.get("result")), outcome=outcome)
    return tuple(calls)


def write_text(value: Any) -> str | None:
    """Return a text of a tool call: a text as it is, any other value as JSON, and None for a missing one."""
    return value if value is None or isinstance(value, str) else canonical_json(value)


def shorten_call_text(text: str) -> str:
    """Return a text of a tool call; of a very long one its head and its tail."""
    return text if len(text) <= MAX_CALL_TEXT else f"{text[: MAX_CALL_TEXT // 2]} […] {text[-MAX_CALL_TEXT // 2 :]}"


def clean_call(call: DraftCall | ToolCall, redact: Callable[[str], str]) -> ToolCall:
    """Return a tool call with redacted excerpts of its texts."""
    arguments, result = (None if text is None else redact(text) for text in (call.arguments, call.result))
    return tool_call(redact(call.name), arguments, result, call.outcome)


class ExchangeDraft(msgspec.Struct, frozen=True):
    """An exchange as its source has it, with secrets and wrapping. `tags` are tags that do not follow from the texts."""

    exchange_id: str
    session_id: str
    at: datetime
    question: str
    answer: str
    outcome: str
    thinking: str | None = None
    agent: str | None = None
    turn_number: int | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    stop_reason: str | None = None
    multi_user: bool = False
    tags: frozenset[str] = frozenset()
    labels: tuple[Label, ...] = ()
    tool_calls: tuple[DraftCall, ...] = ()


class RedactedTexts(NamedTuple):
    """The redacted texts and names of an exchange. Its digest is computed from them."""

    question: str
    answer: str
    thinking: str | None
    agent: str | None
    model: str | None
    multi_user: bool
    tool_calls: tuple[ToolCall, ...]
    omitted_tool_calls: int


def _derive_tags(question: str, answer: str) -> set[str]:
    """Return the tags that follow from the texts of an exchange."""
    return question_tags(question) | answer_tags(answer)


class ExchangeSettings(NamedTuple):
    """The owner of a source's exchanges, and the functions and limits applied to their texts.

    `agent` overrides the agent named in the source. A text longer than `max_text_bytes` is cut. An exchange whose texts exceed
    `max_total_bytes` in total is rejected.
    """

    connection: str
    project: str
    ingested_at: datetime
    redact: Redact
    agent: str | None = None
    unwrap: Callable[[str], Unwrapped] = unwrap
    tags: Callable[[str, str], set[str]] = _derive_tags
    max_text_bytes: int | None = MAX_TEXT_BYTES
    max_total_bytes: int | None = None


def build_exchange(draft: ExchangeDraft, settings: ExchangeSettings, digest: Callable[[RedactedTexts], str]) -> Exchange:
    """Return the record of an exchange. `digest` computes the digest of its content. Raises BoundsError if its texts are too long."""
    secret_counts: Counter[str] = Counter()

    def clean_text(text: str) -> str:
        redacted, counts = settings.redact(text)
        if counts:
            secret_counts.update(counts)
        return redacted if settings.max_text_bytes is None else cut_bytes(redacted, settings.max_text_bytes)

    def clean_name(name: str | None) -> str | None:
        return None if name is None else settings.redact(name)[0]

    def clean_call_text(text: str) -> str:
        # The source's events count the secrets of calls.
        return settings.redact(shorten_call_text(text))[0]

    unwrapped, is_group = settings.unwrap(draft.question)
    kept_calls, omitted_calls = bound_calls(draft.tool_calls)
    calls = tuple(clean_call(call, clean_call_text) for call in kept_calls)
    texts = RedactedTexts(
        question=clean_text(unwrapped),
        answer=clean_text(draft.answer),
        thinking=clean_text(draft.thinking or "") or None,
        agent=clean_name(draft.agent),
        model=clean_name(draft.model),
        multi_user=draft.multi_user or is_group,
        tool_calls=calls,
        omitted_tool_calls=omitted_calls,
    )
    raw_question = None
    if unwrapped != draft.question:
        # The raw text repeats the message, so its secrets are not counted again.
        raw_question = cut_bytes(settings.redact(draft.question)[0], MAX_TEXT_BYTES)
    call_texts = [text for call in calls for text in (call.name, call.arguments, call.result) if text]
    _check_total(
        (texts.question, texts.answer, texts.thinking or "", raw_question or "", *call_texts), settings.max_total_bytes
    )
    return Exchange(
        exchange_id=draft.exchange_id,
        connection=settings.connection,
        project=settings.project,
        agent=settings.agent or texts.agent,
        session_id=draft.session_id,
        turn_number=draft.turn_number,
        occurred_at=draft.at,
        ingested_at=settings.ingested_at,
        user_message=texts.question,
        agent_response=texts.answer,
        agent_thinking=texts.thinking,
        raw_user_message=raw_question,
        agent_model=texts.model,
        input_tokens=draft.input_tokens,
        output_tokens=draft.output_tokens,
        stop_reason=clean_name(draft.stop_reason),
        outcome=draft.outcome,
        multi_user=texts.multi_user,
        tags=tuple(sorted(draft.tags | settings.tags(unwrapped, draft.answer))),
        redactions=tuple(Redaction(kind=kind, count=count) for kind, count in sorted(secret_counts.items())),
        content_digest=digest(texts),
        labels=draft.labels,
        tool_calls=calls,
        omitted_tool_calls=omitted_calls,
    )


def _check_total(texts: Sequence[str], max_total_bytes: int | None) -> None:
    """Raise BoundsError if the texts exceed this number of bytes in total. None means no limit."""
    if max_total_bytes is None:
        return
    # UTF-8 takes at most four bytes per character, so short texts need not be encoded.
    if sum(map(len, texts)) * 4 > max_total_bytes and sum(len(text.encode()) for text in texts) > max_total_bytes:
        raise BoundsError(f"its texts have more than {max_total_bytes} bytes after redaction")
