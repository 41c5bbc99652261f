"""Exchanges of one session as messages, without a record for each.

1. An exchange takes the short way if a first look finds no secret in its texts and none of them is so long that it may have to be cut: it is
   then written as it is told. Any other is built as every exchange is (`exchange_builder`). Tests hold the two against each other.
2. Fields that all exchanges share are checked and encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from audit.diagnosis.duplicate_rules import read_digest
from audit.redaction.redactor import Redactor
from schemas.bounds.limits import MAX_ADMITTED_BYTES, MAX_MADE_ID
from schemas.bounds.name_rules import is_plain_identifier
from schemas.codec.writers import SharedFields
from schemas.records import Exchange
from streams.sources.exchange_builder import MAX_TEXT, Filing, ToldExchange, build_exchange
from streams.sources.messages.shared_fields import checked_time, checked_writer
from streams.sources.openclaw.text import Unwrapped

_SHARED = ("connection", "project", "agent", "session_id", "ingested_at", "redactions", "labels")
_FORM = SharedFields("Exchange", _SHARED, written=frozenset({"occurred_at"}))


def exchange_messages(told: Sequence[ToldExchange], filing: Filing, redactor: Redactor) -> list[bytes | Exchange]:
    """The exchanges of one session, each as its message or, where it takes the longer way, as a record."""
    unwrapped = [filing.unwrap(one.question) for one in told]
    texts = [
        [text for text in (one.question, asked.text, one.answer, one.thinking) if text]
        for one, asked in zip(told, unwrapped, strict=True)
    ]
    looked = redactor.having_looked(chain.from_iterable(texts))
    write = _writer(told[0].session_id, filing) if told else None
    return [
        (_message(one, asked, filing, looked, write) if write is not None and _stays(own, looked) else None)
        or _record(one, filing)
        for one, asked, own in zip(told, unwrapped, texts, strict=True)
    ]


def _stays(texts: list[str], redactor: Redactor) -> bool:
    """Tell whether an exchange's texts are written as they are."""
    return max(map(len, texts), default=0) <= _NEVER_CUT and redactor.are_clean(texts)


def _writer(session_id: str, filing: Filing) -> Callable[..., bytes] | None:
    shared = {
        "connection": filing.connection,
        "project": filing.project,
        "agent": filing.agent or None,
        "session_id": session_id,
        "ingested_at": filing.ingested_at,
        "redactions": (),
        "labels": (),
    }
    return checked_writer(_FORM, shared)


def _message(
    told: ToldExchange, asked: Unwrapped, filing: Filing, redactor: Redactor, write: Callable[..., bytes]
) -> bytes | None:
    """The message of one exchange; None where it has to go the longer way."""
    question, answer, thinking = asked.text, told.answer, told.thinking
    occurred_at = checked_time(told.at, filing.ingested_at)
    if not occurred_at or not is_plain_identifier(told.exchange_id, MAX_MADE_ID):
        return None
    found = filing.tags(question, answer)
    tags = told.tags | found if found else told.tags
    try:
        message = write(
            exchange_id=told.exchange_id,
            turn_number=told.turn_number,
            occurred_at=occurred_at,
            user_message=question,
            agent_response=answer,
            agent_thinking=thinking or None,
            raw_user_message=told.question if question != told.question else None,
            agent_model=None if told.model is None else redactor.redact_name(told.model),
            input_tokens=told.input_tokens,
            output_tokens=told.output_tokens,
            stop_reason=None if told.stop_reason is None else redactor.redact_name(told.stop_reason),
            outcome=told.outcome,
            multi_user=told.multi_user or asked.multi_user,
            tags=tuple(sorted(tags)) if tags else (),
            content_digest=read_digest(question, answer, thinking or None, told.at),
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return message if len(message) <= MAX_ADMITTED_BYTES else None


_NEVER_CUT = MAX_TEXT // 4
"""Characters of a text that no encoding makes longer than what is kept of a text."""


def _record(told: ToldExchange, filing: Filing) -> Exchange:
    return build_exchange(told, filing, lambda clean: read_digest(clean.question, clean.answer, clean.thinking, told.at))
