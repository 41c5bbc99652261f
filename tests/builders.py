"""Builders for the records that stages read, with neutral values for what a test does not say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import polars as pl

from audit.events import normalise_event, to_record
from audit.fingerprints import canonical_json
from schemas.arrow import INDEX, decode_batch
from schemas.codec import encode
from schemas.records import AgentEvent, Exchange, Record, SessionClosed
from streams.batches import OFFSET, StageBatch

START = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)


def exchange(session: str, number: int, response: str = "It is done.", **fields: object) -> Exchange:
    """The exchange `number` of a session."""
    values: dict[str, object] = {
        "exchange_id": f"{session}:{number}",
        "connection": "local",
        "project": "ops",
        "session_id": session,
        "occurred_at": START + timedelta(minutes=number),
        "ingested_at": START + timedelta(minutes=number, seconds=5),
        "user_message": "Is the backup healthy?",
        "agent_response": response,
        "content_digest": "0" * 16,
    }
    return Exchange(**(values | fields))  # type: ignore[arg-type]


def event(session: str, number: int, **raw: object) -> AgentEvent:
    """The event `number` of a session, normalised from a raw event."""
    normalised = normalise_event(raw, number)
    return to_record(
        normalised,
        connection="local",
        project="ops",
        agent=None,
        session_id=session,
        seq=number,
        occurred_at=START + timedelta(seconds=number),
        ingested_at=START + timedelta(seconds=number + 1),
        payload_json=canonical_json(normalised.payload),
    )


def closing(session: str, number: int, reason: str = "explicit") -> SessionClosed:
    """The end of a session, at the time of its record `number`."""
    at = START + timedelta(hours=1, seconds=number)
    return SessionClosed(connection="local", project="ops", session_id=session, closed_at=at, ingested_at=at, reason=reason)


def batch(topic: str, records: Sequence[Record], first_offset: int = 0) -> StageBatch:
    """Records as the stage gets them: through bytes, as columns, with consecutive offsets."""
    decoded = decode_batch([encode(record) for record in records])
    assert [] == decoded.rejected
    frames = {
        name: frame.with_columns((pl.col(INDEX) + first_offset).alias(OFFSET)).drop(INDEX)
        for name, frame in decoded.frames.items()
    }
    return StageBatch.of(topic, frames)
