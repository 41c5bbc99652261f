"""The builder of exchanges: unwraps, tags, redacts, bounds and identifies the exchange of any source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from schemas.errors import BoundsError
from schemas.records import Exchange, Label, Redaction
from streams.sources.openclaw.text import Unwrapped, answer_tags, cut_bytes, question_tags, unwrap

MAX_TEXT = 200_000
"""Bytes kept of an exchange's text. An exchange has four texts and must fit into a Kafka message."""
Redact = Callable[[str], tuple[str, Counter[str]]]


class ExchangeDraft(msgspec.Struct, frozen=True):
    """An exchange as in its source, with secrets and wrapping. `tags` are those that do not follow from its texts."""

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


class Clean(NamedTuple):
    """The redacted texts and names of an exchange, from which its digest is computed."""

    question: str
    answer: str
    thinking: str | None
    agent: str | None
    model: str | None
    multi_user: bool


def _text_tags(question: str, answer: str) -> set[str]:
    """Return the tags that follow from the texts of an exchange."""
    return question_tags(question) | answer_tags(answer)


class Filing(NamedTuple):
    """Owner of a source's exchanges, and the rules by which their texts are unwrapped, tagged, redacted and bounded.

    `agent` overrides the source's agent. Texts are cut at `longest` bytes each, or rejected if their total exceeds `most` bytes.
    """

    connection: str
    project: str
    ingested_at: datetime
    redact: Redact
    agent: str | None = None
    unwrap: Callable[[str], Unwrapped] = unwrap
    tags: Callable[[str, str], set[str]] = _text_tags
    longest: int | None = MAX_TEXT
    most: int | None = None


def build_exchange(draft: ExchangeDraft, filing: Filing, digest: Callable[[Clean], str]) -> Exchange:
    """Return the record of an exchange; `digest` identifies its content. Raises BoundsError if its texts are too long."""
    counts: Counter[str] = Counter()

    def clean(text: str) -> str:
        redacted, kinds = filing.redact(text)
        if kinds:
            counts.update(kinds)
        return redacted if filing.longest is None else cut_bytes(redacted, filing.longest)

    def name(text: str | None) -> str | None:
        return None if text is None else filing.redact(text)[0]

    text, is_group = filing.unwrap(draft.question)
    question, answer, thinking = clean(text), clean(draft.answer), clean(draft.thinking or "") or None
    # The raw text repeats the message, so its secrets are not counted again.
    raw = cut_bytes(filing.redact(draft.question)[0], MAX_TEXT) if text != draft.question else None
    if filing.most is not None and _is_longer((question, answer, thinking or "", raw or ""), filing.most):
        raise BoundsError(f"its texts have more than {filing.most} bytes after redaction")
    agent, model, multi_user = name(draft.agent), name(draft.model), draft.multi_user or is_group
    return Exchange(
        exchange_id=draft.exchange_id,
        connection=filing.connection,
        project=filing.project,
        agent=filing.agent or agent,
        session_id=draft.session_id,
        turn_number=draft.turn_number,
        occurred_at=draft.at,
        ingested_at=filing.ingested_at,
        user_message=question,
        agent_response=answer,
        agent_thinking=thinking,
        raw_user_message=raw,
        agent_model=model,
        input_tokens=draft.input_tokens,
        output_tokens=draft.output_tokens,
        stop_reason=name(draft.stop_reason),
        outcome=draft.outcome,
        multi_user=multi_user,
        tags=tuple(sorted(draft.tags | filing.tags(text, draft.answer))),
        redactions=tuple(Redaction(kind=kind, count=count) for kind, count in sorted(counts.items())),
        content_digest=digest(Clean(question, answer, thinking, agent, model, multi_user)),
        labels=draft.labels,
    )


def _is_longer(texts: Sequence[str], most: int) -> bool:
    """Return whether the texts exceed this number of bytes in total."""
    # A character takes at most four bytes.
    return sum(map(len, texts)) * 4 > most and sum(len(text.encode()) for text in texts) > most
