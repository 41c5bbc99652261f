"""The state of the installation: version, size, lag and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from analytics.queries import query_rows
from analytics.store.store import Store
from schemas.lazy import duckdb
from service.setup.access import AccessStore
from service.setup.version import version
from service.text.answers import Answer, Moment
from streams.engine.record_intake import RecordIntake
from streams.log.log import is_fed_by_kafka
from streams.stage_progress import lagging


class Lag(Answer, frozen=True):
    """A stage with unread records."""

    stage: Annotated[str, Meta(examples=["scoring"])]
    behind: Annotated[int, Meta(description="Records that it has not read.", examples=[120])]


class Installation(Answer, frozen=True):
    """The state of the installation."""

    version: Annotated[str, Meta(examples=["0.2.0"])]
    ready: bool
    not_ready_because: str | None
    judge: Annotated[str, Meta(description="Who judges.", examples=["live"])]
    kafka: Annotated[
        bool, Meta(description="Whether records go through Kafka; workers then score them and report their own lag.")
    ]
    database_bytes: Annotated[int | None, Meta(description="Of the DuckDB file; null for one in memory.")]
    access_bytes: Annotated[int, Meta(description="Of the file of tokens and the audit log.")]
    lag: Annotated[list[Lag], Meta(description="Stages that have not read everything.")]
    dead_letters: Annotated[list[LetterReason], Meta(description="Rejected records, by stage and reason.")]


def installation(cursor: duckdb.DuckDBPyConnection, engine: RecordIntake, access: AccessStore) -> Installation:
    """Return the state of the installation of a server."""
    store = engine.store
    state = engine.state()
    is_fed = is_fed_by_kafka(store)
    return Installation(
        version=version(),
        ready=state.ready,
        not_ready_because=state.not_ready_reason or None,
        judge=engine.judge_name,
        kafka=is_fed,
        database_bytes=_measure_size(store),
        access_bytes=access.path.stat().st_size,
        lag=[]
        if is_fed
        else [Lag(stage=progress.stage, behind=progress.end - progress.position) for progress in lagging(store)],
        dead_letters=letter_reasons(cursor),
    )


def _measure_size(store: Store) -> int | None:
    return None if store.path is None or not store.path.exists() else store.path.stat().st_size


EVERY: Mapping[str, Any] = dict.fromkeys(("stage", "reason", "source", "since", "until"))
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
