"""The events of one session as records: cleaned of secrets, cut, and numbered in their order."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from audit.diagnosis.events import normalise_event, to_record
from audit.fingerprints import canonical_json
from schemas.records import AgentEvent
from streams.sources.openclaw.events import shortened
from streams.sources.source import ReadingContext

_OURS = frozenset(
    {
        *("event", "event_id", "entry_id", "exchange_id", "tool_call_id", "run_id", "first_kept_entry_id"),
        *("timestamp", "usage", "source", "told_by"),
    }
)
"""Fields that hold no secrets: ids, and what a reader wrote itself."""

Json = dict[str, Any]


class SessionEvents:
    """The raw events of one session in order; texts are whole."""

    def __init__(self, context: ReadingContext, agent: str | None) -> None:
        self._context = context
        self._agent = agent
        self._events: list[tuple[Json, datetime]] = []

    def add(self, raw: Json, at: datetime) -> None:
        """Take one event."""
        self._events.append((raw, at))

    def records(self, session_id: str) -> list[AgentEvent]:
        """The record of each event."""
        return [self._record(raw, seq, at, session_id) for seq, (raw, at) in enumerate(self._events)]

    def _record(self, raw: Json, seq: int, at: datetime, session_id: str) -> AgentEvent:
        redact = self._context.redactor.redact_json
        clean = {name: value if name in _OURS else redact(value)[0] for name, value in raw.items()}
        event = normalise_event(shortened(clean), seq)
        return to_record(
            event,
            connection=self._context.connection,
            project=self._context.project,
            agent=self._agent,
            session_id=session_id,
            seq=seq,
            occurred_at=at,
            ingested_at=self._context.ingested_at,
            payload_json=canonical_json(event.payload),
        )
