"""Finished sessions for tests, put into the tables as a source would have brought them."""

from __future__ import annotations

from typing import Any

import msgspec
from support.builders import START, closing, exchange

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import CostAnalysis, Diagnosis, DimensionScores, Record
from streams.log.admission import EncodedRecords

SONNET, HAIKU = "claude-sonnet-4-5", "claude-haiku-4-5"


def filled(store: Store, *records: tuple[str, Record]) -> Store:
    """Return the store after appending the records to their topics."""
    accepted = EncodedRecords()
    for topic, record in records:
        accepted.add(topic, encode(record))
    with store.transaction() as transaction:
        for topic, messages in accepted.messages.items():
            transaction.append(topic, messages)
    return store


def session(name: str, number: int = 1, model: str = SONNET, **fields: Any) -> list[tuple[str, Record]]:
    """Return a finished session of one exchange, the `number`-th to end; the fields override those of the exchange."""
    project, connection = fields.get("project", "ops"), fields.get("connection", "local")
    end = msgspec.structs.replace(closing(name, number), connection=connection, project=project)
    return [("exchanges", exchange(name, number, agent_model=model, **fields)), ("exchanges", end)]


def diagnosed(name: str, **fields: Any) -> Diagnosis:
    """Return the diagnosis of a session of a few events without findings; the fields override."""
    values: dict[str, Any] = {
        "connection": "local", "project": "ops", "agent": "scout", "session_id": name, "revision": 0, "ended_at": START, "closed_at": START,
        "closed_reason": "explicit", "trust_score": 100, "readiness_level": "ready_for_runtime", "scores": DimensionScores(),
        "failure_cause_count": 0, "event_count": 3, "event_type_count": 1, "rule_version": "r", "policy_digest": "0" * 16,
        "cost_analysis": CostAnalysis(total_tokens=0, duplicate_calls=0, redundancy_score=0, token_waste=0, cost_efficiency=100),
        "evidence_digest": "0" * 16,
    }  # fmt: skip
    return Diagnosis(**(values | fields))
