"""Events of one session as messages: cleaned of secrets, cut, read and encoded in one go, without a record for each.

1. Nearly every event takes the short way, which knows that its fields come from lines that were JSON. Whatever is odd about an event
   (a text that is no Unicode, an id of control characters, a time too far ahead, very long integers) sends it the way that every event of an
   agent takes: a record, which the admission checks. Tests hold the two against each other.
2. Fields that all events share are checked and encoded once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from audit.diagnosis.events import columns_of, normalise_event, to_record
from audit.diagnosis.payloads import MAX_DIGITS
from audit.fingerprints import canonical_bytes, canonical_json
from audit.redaction.redactor import Redactor, texts_in
from schemas.bounds.limits import MAX_ADMITTED_BYTES, MAX_DEPTH
from schemas.bounds.name_rules import is_plain_identifier
from schemas.codec.writers import SharedFields
from schemas.records import AgentEvent
from streams.sources.messages.shared_fields import checked_time, checked_writer
from streams.sources.openclaw.events import MAX_NAME, shortened, shortened_arguments, shortened_text
from streams.sources.source import ReadingContext

_OURS = frozenset(
    {
        *("event", "event_id", "entry_id", "exchange_id", "tool_call_id", "run_id", "first_kept_entry_id"),
        *("timestamp", "usage", "source", "told_by"),
    }
)
"""Fields that hold no secrets: ids, and what a reader wrote itself."""
_LONG = frozenset({"tool_call_id", "run_id", "first_kept_entry_id"})
"""Those that other programs wrote, at any length."""
_PLAIN = frozenset({bool, int, float})
_SHARED = ("connection", "project", "agent", "session_id", "ingested_at", "source", "labels")
_FORM = SharedFields("AgentEvent", _SHARED, utf8=frozenset({"payload"}), written=frozenset({"occurred_at"}))
_MAX_WORD = 64
_MAX_WORDS = 1024

Json = dict[str, Any]


class EventMessages:
    """The raw events of one session in order; texts are whole."""

    def __init__(self, context: ReadingContext, agent: str | None, source: str) -> None:
        self._context = context
        self._agent = agent
        self._source = source
        self._told: list[tuple[Json, datetime]] = []
        self._texts: list[str] = []
        self._words: dict[str, str] = {}

    def add(self, raw: Json, at: datetime) -> None:
        """Take one event."""
        self._told.append((raw, at))
        result = raw.get("result")
        if type(result) is str:
            self._texts.append(result)
        arguments = raw.get("arguments")
        if arguments is not None:
            self._texts += texts_in(arguments)

    def written(self, session_id: str) -> list[bytes | AgentEvent]:
        """Every event, as its message or, where that may not be written, as a record."""
        redactor = self._context.redactor.having_looked(self._texts)
        write = self._writer(session_id)
        found: list[bytes | AgentEvent] = []
        last: datetime | None = None
        at_bytes = b""
        for seq, (raw, at) in enumerate(self._told):
            if at is not last:
                last, at_bytes = at, checked_time(at, self._context.ingested_at)
            message = self._message(raw, seq, at_bytes, redactor, write) if at_bytes and write is not None else None
            found.append(self._record(raw, seq, at, session_id) if message is None else message)
        return found

    def _writer(self, session_id: str) -> Callable[..., bytes] | None:
        """The writer of the session's events; None where a field that they share breaks its rule."""
        shared = {
            "connection": self._context.connection,
            "project": self._context.project,
            "agent": self._agent,
            "session_id": session_id,
            "ingested_at": self._context.ingested_at,
            "source": self._source,
            "labels": (),
        }
        return checked_writer(_FORM, shared)

    def _message(
        self, raw: Json, seq: int, occurred_at: bytes, redactor: Redactor, write: Callable[..., bytes]
    ) -> bytes | None:
        """The message of one event; None where it has to go the longer way."""
        event_id, exchange_id = raw["event_id"], raw.get("exchange_id")
        if not is_plain_identifier(event_id, MAX_NAME):
            return None
        if exchange_id is not None and not is_plain_identifier(exchange_id, MAX_NAME):
            return None
        payload = self._clean(raw, redactor)
        columns = columns_of(payload)
        try:
            body = canonical_bytes(payload)
            if body.count(b"{") + body.count(b"[") > MAX_DEPTH or len(body) > MAX_DIGITS:
                return None
            tool, call_key, action, status, used, referenced, invoked, saturation, tokens, _, _, prompt, cached = columns
            message = write(
                event_id=event_id,
                seq=seq,
                event=raw["event"],
                occurred_at=occurred_at,
                tool=tool,
                call_key=call_key,
                action=action,
                status=status,
                used=used,
                referenced=referenced,
                invoked=invoked,
                saturation=saturation,
                tokens=tokens,
                payload=body,
                exchange_id=exchange_id,
                prompt_tokens=prompt,
                cached_tokens=cached,
            )
        except (ValueError, TypeError, OverflowError):
            return None
        return message if len(message) <= MAX_ADMITTED_BYTES else None

    def _clean(self, raw: Json, redactor: Redactor) -> Json:
        """The event without secrets, its long texts cut."""
        clean = dict(raw)
        for name in raw.keys() - _OURS:
            value = raw[name]
            if type(value) is str:
                clean[name] = shortened_text(name, self._clean_text(value, redactor))
            elif type(value) not in _PLAIN:
                clean[name] = redactor.redact_json(value)[0]
        if clean.get("arguments") is not None:
            clean["arguments"] = shortened_arguments(clean["arguments"])
        for name in _LONG.intersection(raw):
            if type(raw[name]) is str:
                clean[name] = shortened_text(name, raw[name])
        return clean

    def _clean_text(self, text: str, redactor: Redactor) -> str:
        if len(text) > _MAX_WORD:
            return redactor.redact_text(text)
        # Names of tools and models come again and again.
        clean = self._words.get(text)
        if clean is None:
            clean = redactor.redact_text(text)
            if len(self._words) < _MAX_WORDS:
                self._words[text] = clean
        return clean

    def _record(self, raw: Json, seq: int, at: datetime, session_id: str) -> AgentEvent:
        """The record of one event."""
        redact = self._context.redactor.redact_json
        event = normalise_event(
            shortened({name: value if name in _OURS else redact(value)[0] for name, value in raw.items()}), seq
        )
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
