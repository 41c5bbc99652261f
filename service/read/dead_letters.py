"""Dead letters: open ones by reason, single ones, and the outcome of a retry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from analytics.queries import query_rows
from schemas.lazy import duckdb
from service.text.answers import Answer, Moment

EVERY: Mapping[str, Any] = dict.fromkeys(("stage", "reason", "source", "since"))
"""Filters that match every dead letter."""


class LetterReason(Answer, frozen=True):
    """Open dead letters of one stage and reason."""

    stage: str
    reason: str
    letters: int
    first_at: Moment
    last_at: Moment


class OpenLetter(Answer, frozen=True):
    """An open dead letter, without its bytes."""

    id: str
    source: str
    partition: int | None
    position: int
    stage: str
    reason: str
    detail: str
    size: int
    kept: Annotated[int, Meta(description="Bytes that are there.")]
    rejected_at: Moment


class LetterList(Answer, frozen=True):
    """Open dead letters: counts by reason, and the newest ones."""

    reasons: list[LetterReason]
    letters: list[OpenLetter]


class StoredLetter(Answer, frozen=True):
    """A dead letter with its bytes, and the expected outcome of a retry."""

    id: str
    source: str
    partition: int | None
    position: int
    stage: str
    reason: str
    detail: str
    digest: str
    size: int
    rejected_at: Moment
    body: Annotated[str | None, Meta(description="The bytes, if they are text.")]
    body_hex: str
    whole: Annotated[bool, Meta(description="Whether the bytes are all there and unchanged.")]
    retried_at: Moment | None
    retry: str


class ReturnedLetter(Answer, frozen=True):
    """A dead letter that was put back."""

    id: str
    topic: str
    record: str


class KeptLetter(Answer, frozen=True):
    """A dead letter that cannot be put back."""

    id: str
    reason: str


class RetriedLetters(Answer, frozen=True):
    """The outcome of a retry."""

    put_back: list[ReturnedLetter]
    stay: list[KeptLetter]
    put_back_before: list[str]
    set_aside_again: int


def letter_reasons(cursor: duckdb.DuckDBPyConnection, filters: Mapping[str, Any] = EVERY) -> list[LetterReason]:
    """Count the open dead letters by stage and reason."""
    return [LetterReason.of(row) for row in query_rows(cursor, "letter_reasons", filters)]


def open_letters(cursor: duckdb.DuckDBPyConnection, filters: Mapping[str, Any], limit: int) -> list[OpenLetter]:
    """Return the open dead letters, newest first."""
    rows = query_rows(cursor, "letters", {**filters, "limit": limit})
    return [OpenLetter.of(row, id=row["dead_letter_id"]) for row in rows]
