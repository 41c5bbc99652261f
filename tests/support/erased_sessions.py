"""Every record that can be about a session, with a marker in each of its texts, for tests of erasure."""

from __future__ import annotations

from typing import Any

import msgspec
from support.builders import closing, event, exchange, judgement, reservation, score
from support.clocks import NOW
from support.sample_records import SampleMaker

from analytics.deletion.deleting import schemas_of_sessions
from schemas.codec.single_object import encode
from schemas.records import Anchor, DeadLetter, Evaluation, Incident, JudgingRequest, Record, Review, ScoringTask

MARKER = "Xq7Ztelltale"
SESSION = "session-to-be-erased"
KEPT = "session-to-be-kept"


def mark_texts(record: Any, marker: str, session: str) -> Any:
    """Return the record with a marker in every text that does not identify its session."""
    own = {"connection": "local", "session_id": session}
    names = set(record.__struct_fields__)
    free = {
        name: f"{marker} {value}" if isinstance(value, str) else value
        for name in names - {"purpose", "kind", "disposition", "project", "subject_id", "exchange_id"}
        if isinstance(value := getattr(record, name), str)
    }
    return msgspec.structs.replace(record, **(free | {name: value for name, value in own.items() if name in names}))


def records_of_session(samples: SampleMaker, session: str, marker: str) -> list[tuple[str, Record]]:
    """Return a record of every type that can belong to a session, with a marker in each of its texts."""
    secret_exchange = exchange(session, 1, f"{marker} answer", user_message=f"{marker} asks", agent_thinking=f"{marker} thinks")
    judged = score(session, 1, tier2_flag_reason=f"{marker} flagged", anomaly_reasons=(f"{marker} odd",))
    identity = {
        "Exchange": secret_exchange,
        "Score": judged,
        "Judgement": judgement(session, 1, answer=f"{marker} said", error=marker),
        "Reservation": reservation(session, 1, fingerprint=marker),
        "AgentEvent": event(session, 1, type="tool_call", tool=marker),
        "SessionClosed": closing(session, 1),
    }
    records: list[tuple[str, Record]] = []
    for schema in schemas_of_sessions():
        record = identity.get(schema.name) or mark_texts(samples.records(schema.name, 1)[0], marker, session)
        if isinstance(record, ScoringTask | JudgingRequest):
            record = msgspec.structs.replace(record, exchange=encode(secret_exchange), exchange_id=secret_exchange.exchange_id)
        if isinstance(record, Evaluation):
            record = msgspec.structs.replace(record, evaluation_id=f"evaluation of {session}")
        records += [(topic, record) for topic in schema.topics]
    return records + records_referring_to(samples, secret_exchange, judged, marker)


def records_referring_to(samples: SampleMaker, secret_exchange: Any, judged: Any, marker: str) -> list[tuple[str, Record]]:
    """Return the records that refer to an exchange but are not of its session."""
    review, incident, anchor = (samples.records(name, 1)[0] for name in ("Review", "Incident", "Anchor"))
    evidence_entry = {
        "connection": "local",
        "sessionId": secret_exchange.session_id,
        "exchangeId": secret_exchange.exchange_id,
        "reason": f"{marker} moved",
    }
    letter = DeadLetter(
        dead_letter_id=f"letter {secret_exchange.session_id}", source="exchanges", position=1, stage="intake", reason="stage_failed",
        detail="it failed", digest="", size=1, body=encode(secret_exchange), rejected_at=NOW,
    )  # fmt: skip
    unread = msgspec.structs.replace(
        letter, dead_letter_id=f"{letter.dead_letter_id} unread", body=f"\xff{marker}{secret_exchange.session_id}".encode()
    )
    anchor_fields: dict[str, Any] = {
        "connection": "anchors",
        "project": "anchors.ops",
        "session_id": "a round",
        "exchange_id": f"{secret_exchange.session_id}@now",
    }
    assert isinstance(review, Review)
    assert isinstance(incident, Incident)
    assert isinstance(anchor, Anchor)
    return [
        ("reviews", msgspec.structs.replace(review, review_id=secret_exchange.session_id, kind="human_score", subject_id=judged.score_id, comment=f"{marker} says who")),
        ("reviews", msgspec.structs.replace(review, review_id=f"{secret_exchange.session_id} 2", kind="dead_letter", subject_id=letter.dead_letter_id, comment=marker)),
        ("reviews", msgspec.structs.replace(review, review_id=f"{secret_exchange.session_id} 3", kind="human_score", subject_id=f"evaluation of {secret_exchange.session_id}", comment=marker)),
        ("incidents", msgspec.structs.replace(incident, incident_id=secret_exchange.session_id, metadata=msgspec.json.encode({"rule": "r", "exchanges": [evidence_entry]}).decode())),
        ("anchors", msgspec.structs.replace(anchor, anchor_id=secret_exchange.session_id, exchange=encode(secret_exchange))),
        ("exchanges", msgspec.structs.replace(secret_exchange, **anchor_fields)),
        ("scores", msgspec.structs.replace(judged, **anchor_fields, score_id=f"copy of {secret_exchange.session_id}")),
        ("dead-letters", letter),
        ("dead-letters", unread),
    ]  # fmt: skip
