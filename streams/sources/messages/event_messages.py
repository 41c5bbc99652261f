"""Events of one session as messages: cleaned of secrets, cut, read and encoded in one go, without a record for each.

1. Nearly every event takes the short way, which knows that its fields come from lines that were JSON. Whatever is odd about an event
   (a text that is no Unicode, an id of control characters, a time too far ahead, very long integers) sends it the way that every event of an
   agent takes: a record, which the admission checks. Tests hold the two against each other.
2. A plain event is written as it is: all of its fields are known, short and flat, and a first look at the texts of all events finds no
   secret in its own. It is neither copied nor walked through again.
3. Fields that all events share are checked and encoded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from audit.diagnosis.events import TOOL_EVENTS, columns_of, normalise_event, to_record, tool_facts, usage_facts
from audit.diagnosis.payloads import MAX_DIGITS
from audit.fingerprints import LARGEST, SMALLEST, canonical_bytes, canonical_json, sorted_bytes
from audit.redaction.redactor import Redactor, plain_texts, texts_in
from schemas.bounds.limits import MAX_ADMITTED_BYTES, MAX_DEPTH
from schemas.bounds.name_rules import is_plain_identifier
from schemas.codec.writers import SharedFields
from schemas.records import AgentEvent
from streams.sources.messages.shared_fields import checked_time, checked_writer, written_text
from streams.sources.openclaw.events import MAX_ARGUMENTS, MAX_NAME, MAX_RESULT, shortened, shortened_arguments, shortened_text
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
_TEXTS = frozenset({"tool", "provider", "model", "action", "message", "result", "summary", "tool_status", "via"})
_NUMBERS = frozenset({"exit_code", "duration_ms", "tokens_before"})
"""Fields of plain events, beside a call's arguments: none of them says anything of an output's use or of how full a context is."""
_SHORT = 1 << 63
_MOST_BYTES, _DIGITS = 6, 32
"""Bytes in JSON of a character and of a number of 64 bits, at most."""
_SHARED = ("connection", "project", "agent", "session_id", "ingested_at", "source", "labels")
_FORM = SharedFields("AgentEvent", _SHARED, utf8=frozenset({"payload"}), written=frozenset({"occurred_at", "exchange_id"}))
_UNTOLD = dict.fromkeys(("status", "used", "referenced", "invoked", "saturation"))
"""Fields that no plain event tells."""
_OF_PLAIN = _UNTOLD | dict.fromkeys(("tokens", "prompt_tokens", "cached_tokens"))
_OF_USAGE = _UNTOLD | dict.fromkeys(("tool", "call_key", "action")) | {"event": "token_usage"}
_MAX_WORD = 64
_MAX_WORDS = 1024

Json = dict[str, Any]


class _Writers(NamedTuple):
    """The writers of one session's events: of any, of plain ones, and of plain ones that tell a usage."""

    any: Callable[..., bytes]
    plain: Callable[..., bytes]
    usage: Callable[..., bytes]


class EventMessages:
    """The raw events of one session in order; texts are whole."""

    def __init__(self, context: ReadingContext, agent: str | None, source: str) -> None:
        self._context = context
        self._agent = agent
        self._source = source
        self._told: list[tuple[Json, datetime, list[str] | None]] = []
        self._texts: list[str] = []
        self._words: dict[str, str] = {}

    def add(self, raw: Json, at: datetime) -> None:
        """Take one event."""
        texts = _texts_of_plain(raw)
        self._told.append((raw, at, texts))
        if texts is not None:
            self._texts += texts
            return
        result = raw.get("result")
        if type(result) is str:
            self._texts.append(result)
        arguments = raw.get("arguments")
        if arguments is not None:
            self._texts += texts_in(arguments)

    def written(self, session_id: str) -> list[bytes | AgentEvent]:
        """Every event, as its message or, where that may not be written, as a record."""
        redactor = self._context.redactor.having_looked(self._texts)
        writers = self._writers(session_id)
        is_clean = redactor.are_clean(self._texts)  # as most sessions
        found: list[bytes | AgentEvent] = []
        last: datetime | None = None
        at_bytes = b""
        exchange, exchange_bytes = None, written_text(None)
        for seq, (raw, at, texts) in enumerate(self._told):
            if at is not last:
                last, at_bytes = at, checked_time(at, self._context.ingested_at)
            named = raw.get("exchange_id")
            if named is not exchange and (named is None or is_plain_identifier(named, MAX_NAME)):
                exchange, exchange_bytes = named, written_text(named)
            message: bytes | None = None
            if writers is not None and at_bytes and named is exchange and is_plain_identifier(raw["event_id"], MAX_NAME):
                if texts is not None and (is_clean or redactor.are_clean(texts)):
                    message = _plain_message(raw, seq, at_bytes, exchange_bytes, writers)
                else:
                    message = self._message(self._clean(raw, redactor), seq, at_bytes, exchange_bytes, writers.any)
            found.append(self._record(raw, seq, at, session_id) if message is None else message)
        return found

    def _writers(self, session_id: str) -> _Writers | None:
        """The writers of the session's events; None where a field that they share breaks its rule."""
        shared = {
            "connection": self._context.connection,
            "project": self._context.project,
            "agent": self._agent,
            "session_id": session_id,
            "ingested_at": self._context.ingested_at,
            "source": self._source,
            "labels": (),
        }
        every = checked_writer(_FORM, shared)
        plain, usage = (checked_writer(_sharing(fixed), shared | fixed) for fixed in (_OF_PLAIN, _OF_USAGE))
        return None if every is None or plain is None or usage is None else _Writers(every, plain, usage)

    def _message(
        self, payload: Json, seq: int, occurred_at: bytes, exchange: bytes, write: Callable[..., bytes]
    ) -> bytes | None:
        """The message of an event without its secrets; None where it has to go the longer way."""
        columns = columns_of(payload)
        try:
            body = canonical_bytes(payload)
            if body.count(b"{") + body.count(b"[") > MAX_DEPTH or len(body) > MAX_DIGITS:
                return None
            tool, call_key, action, status, used, referenced, invoked, saturation, tokens, _, _, prompt, cached = columns
            message = write(
                event_id=payload["event_id"],
                seq=seq,
                event=payload["event"],
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
                exchange_id=exchange,
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


@functools.cache
def _form(fixed: frozenset[str]) -> SharedFields:
    return _FORM._replace(shared=(*_SHARED, *sorted(fixed)))


def _sharing(fixed: Json) -> SharedFields:
    """The form of events that share these fields, too."""
    return _form(frozenset(fixed))


def _texts_of_plain(raw: Json) -> list[str] | None:
    """The texts of a plain event that may hold secrets; None for an event of any other kind."""
    if not _has_short_fields(raw):
        return None
    texts: list[str] = []
    for name in raw.keys() - _OURS:
        value = raw[name]
        if type(value) is str:
            if name not in _TEXTS or len(value) > (MAX_RESULT if name == "result" else MAX_NAME):
                return None
            texts.append(value)
        elif name == "arguments":
            found = _texts_of_arguments(value)
            if found is None:
                return None
            texts += found
        elif not (_is_short(value) if name in _NUMBERS else name == "is_error" and type(value) is bool):
            return None
    return texts


def _has_short_fields(raw: Json) -> bool:
    """Tell whether the ids that other programs wrote are short texts, and the numbers of a usage are plain ones."""
    for name in _LONG.intersection(raw):
        if type(raw[name]) is not str or len(raw[name]) > MAX_NAME:
            return False
    usage = raw.get("usage")
    return usage is None or (type(usage) is dict and all(map(_is_short, usage.values())))


def _texts_of_arguments(arguments: Any) -> list[str] | None:
    """The texts of a call's arguments, where these are a flat object that need not be cut; else None."""
    texts = plain_texts(arguments) if type(arguments) is dict else None
    if texts is None or _MOST_BYTES * sum(map(len, texts)) + _DIGITS * len(arguments) > MAX_ARGUMENTS:
        return None
    return texts


def _is_short(number: Any) -> bool:
    """Tell whether a value is a number that every program writes alike, with few digits."""
    if type(number) is int:
        return -_SHORT < number < _SHORT
    return type(number) is float and (SMALLEST <= abs(number) < LARGEST or number == 0)


def _plain_message(raw: Json, seq: int, occurred_at: bytes, exchange: bytes, writers: _Writers) -> bytes | None:
    """The message of a plain event without secrets; None where it has to go the longer way."""
    event, action = raw["event"], raw.get("action")
    try:
        shared = {"event_id": raw["event_id"], "seq": seq, "occurred_at": occurred_at, "payload": sorted_bytes(raw)}
        if event == "token_usage" and action is None:
            tokens, prompt, cached = usage_facts(raw)
            message = writers.usage(**shared, tokens=tokens, exchange_id=exchange, prompt_tokens=prompt, cached_tokens=cached)
        else:
            tool, call_key = tool_facts(raw) if event in TOOL_EVENTS else (None, None)
            word = None if action is None else action.strip().lower() or None
            message = writers.plain(**shared, event=event, tool=tool, call_key=call_key, action=word, exchange_id=exchange)
    except (ValueError, TypeError, OverflowError):
        return None
    return message if len(message) <= MAX_ADMITTED_BYTES else None
