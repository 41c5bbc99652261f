"""Builders for the records that stages read, with neutral values for what a test does not say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import polars as pl

from audit.diagnosis.events import normalise_event, to_record
from audit.fingerprints import canonical_json
from schemas.codec.arrow import INDEX, decode_batch
from schemas.codec.single_object import encode
from schemas.records import AgentEvent, Exchange, Incident, Judgement, Record, Reservation, Score, SessionClosed
from streams.stage_batches import MESSAGE, OFFSET, StageBatch

START = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)


def exchange(session: str, number: int, response: str = "It is done.", **fields: object) -> Exchange:
    """Return the exchange `number` of a session."""
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
    """Return the event `number` of a session, normalised from a raw event."""
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
    """Return the closing record of a session, at the time of its record `number`."""
    at = START + timedelta(hours=1, seconds=number)
    return SessionClosed(connection="local", project="ops", session_id=session, closed_at=at, ingested_at=at, reason=reason)


def score(session: str, number: int, **fields: object) -> Score:
    """Return the first score of the exchange `number` of a session: sampled, and not judged yet."""
    subject = exchange(session, number)
    values: dict[str, object] = {
        "score_id": f"score {session}:{number}",
        "revision": 0,
        "exchange_id": subject.exchange_id,
        "connection": subject.connection,
        "project": subject.project,
        "session_id": session,
        "turn_number": number,
        "exchange_at": subject.occurred_at,
        "scored_at": subject.ingested_at,
        "disposition": "unscored",
        "sampling_reason": "first_turns",
        "sampling_probability": 1.0,
        "tier1_score": 1.0,
        "tier1_flags": (),
        "tier2_state": "unscored",
        "tier2_reason": "no_judge",
        "tier2_5_state": "not_applicable",
        "tier2_5_reason": "no_thinking",
        "tier3_state": "unscored",
        "tier3_reason": "no_judge",
        "anomaly": False,
        "cost_usd": 0.0,
        "methodology": "default",
        "methodology_version": "1",
        "methodology_digest": "0" * 16,
        "rule_version": "eval-1",
        "policy_digest": "0" * 16,
        "evidence_digest": subject.content_digest,
    }
    return Score(**(values | fields))  # type: ignore[arg-type]


def judgement(session: str, number: int, purpose: str = "tier2", **fields: object) -> Judgement:
    """Return the judge's answer about the exchange `number` of a session, one minute later, at 0.001 USD."""
    subject = exchange(session, number)
    values: dict[str, object] = {
        "judgement_id": f"judgement {session}:{number}:{purpose}",
        "fingerprint": f"{session}:{number}:{purpose}",
        "connection": subject.connection,
        "project": subject.project,
        "session_id": session,
        "subject_id": subject.exchange_id,
        "purpose": purpose,
        "requested_model": "claude-haiku-4-5",
        "answering_model": "claude-haiku-4-5-20251001",
        "outcome": "answered",
        "answer": "{}",
        "stop_reason": "end_turn",
        "attempts": 1,
        "input_tokens": 500,
        "output_tokens": 100,
        "cost_usd": 0.001,
        "judged_at": subject.occurred_at + timedelta(minutes=1),
    }
    return Judgement(**(values | fields))  # type: ignore[arg-type]


def reservation(session: str, number: int, purpose: str = "tier2", **fields: object) -> Reservation:
    """Return the reservation of 0.01 USD for a call about the exchange `number` of a session."""
    subject = exchange(session, number)
    values: dict[str, object] = {
        "reservation_id": f"reservation {session}:{number}:{purpose}",
        "fingerprint": f"{session}:{number}:{purpose}",
        "connection": subject.connection,
        "project": subject.project,
        "session_id": session,
        "subject_id": subject.exchange_id,
        "subject_revision": 0,
        "purpose": purpose,
        "requested_model": "claude-haiku-4-5",
        "amount_usd": 0.01,
        "reserved_at": subject.ingested_at,
    }
    return Reservation(**(values | fields))  # type: ignore[arg-type]


def incident(**fields: object) -> Incident:
    """Return an open incident of the project ops."""
    values: dict[str, object] = {
        "incident_id": "i1", "revision": 0, "project": "ops", "type": "drift", "tier": "tier2", "direction": "down",
        "status": "open", "severity": "critical", "title": "Tier 2 fell", "description": "It was 0.85 and is 0.45.",
        "metadata": "{}", "detected_at": START, "rule": "consecutive_days",
    }  # fmt: skip
    return Incident(**(values | fields))  # type: ignore[arg-type]


def batch(topic: str, records: Sequence[Record], first_offset: int = 0, *, delivered: bool = False) -> StageBatch:
    """Return records as a stage receives them: decoded into columns, with consecutive offsets; `delivered` keeps their bytes as well."""
    messages = [encode(record) for record in records]
    decoded = decode_batch(messages)
    assert decoded.rejected == []
    frames = {
        name: frame.with_columns((pl.col(INDEX) + first_offset).alias(OFFSET)).drop(INDEX)
        for name, frame in decoded.frames.items()
    }
    if delivered:
        bodies = pl.Series(MESSAGE, messages, dtype=pl.Binary)
        frames = {name: frame.with_columns(bodies.gather(frame[OFFSET] - first_offset)) for name, frame in frames.items()}
    return StageBatch.of(topic, frames)
