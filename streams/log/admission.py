"""Admission: records are encoded before they are accepted, and rejected ones become dead letters with their bytes. It also decides which records are new.

Spans are admitted from OTLP requests, whichever way these arrived.

New records (`NewRecords`) are those from outside that the log does not have yet:

1. A record whose identity was never stored is new. Hashes of all identities, in memory, show that, and are used for nothing else.
2. Any other record is compared with the tables, once they have everything: it is known, in conflict, or new after all.
3. Records of an erased session count as known: none of them is stored again.
4. Over Kafka the tables lack the records in flight (`InFlight`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import msgspec

from analytics.deletion.deleting import ERASURES, ErasureScope, read_erasures, schemas_of_sessions
from analytics.identity.duplicate_matching import (
    CONTENT_COLUMNS,
    Identity,
    KnownIdentities,
    find_new_rows,
    identities_of,
    may_have_duplicate,
)
from analytics.store.store import Partition, Store
from audit.diagnosis.duplicate_rules import describe_differences
from audit.fingerprints import canonical_json, stable_id
from audit.redaction import Redactor
from audit.surrogates import json_bytes
from schemas.bounds import MAX_ADMITTED_BYTES
from schemas.codec.arrow import INDEX, decode_own
from schemas.codec.single_object import encode
from schemas.contract import check_record
from schemas.errors import BoundsError, RecordError
from schemas.records import AgentEvent, DeadLetter, Record, Score, ScoringTask, Span
from schemas.registry import schema_of
from streams.log.log import Commit
from streams.sources.otlp.reading import FactReader
from streams.sources.otlp.request import ReadItems, ReceivedSpan, RejectedItem
from streams.sources.otlp.stored_spans import SpanDraft, SpanOwner, build_draft, build_record

if TYPE_CHECKING:
    from audit.policy import Policy
    from streams.judging.judged_stages import Subject

DEAD_LETTERS = "dead-letters"
MAX_BODY_BYTES = 64 * 1024
"""Bytes of a rejected record that are kept; its digest and size cover the whole."""
MAX_REDACTED_BYTES = 1024 * 1024
"""Only the start of a longer body is redacted: the kept bytes and `_OVERLAP` more, so that a secret at the cut is recognised."""
MAX_DETAIL = 1000
"""Characters of a reason that are kept."""
TO_DO = "If it is the same record, do nothing; if it is a different one, give it its own id and send it again."
"""Advice to the sender of a record in conflict with the log."""
_OVERLAP = 16 * 1024
_LONGEST_MARKER = 64
_UNFINISHED_TOKEN = re.compile(rb"[A-Za-z0-9+/=_.~%-]*$")
_UNFINISHED_MARKER = re.compile(r"\[(?:S(?:E(?:C(?:R(?:E(?:T(?::[a-z0-9_]{0,32}(?::[0-9a-f]{0,8})?)?)?)?)?)?)?)?$")


@dataclass(frozen=True)
class RecordOrigin:
    """The origin of a record: a topic with partition and offset, or a file with a line."""

    source: str
    position: int
    partition: int | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a record was refused: the refusing stage, the code of the reason, and its text."""

    stage: str
    reason: str
    detail: str


@dataclass
class EncodedRecords:
    """Encoded records by topic, ready to be appended, with their number and their size in bytes."""

    messages: dict[str, list[bytes]] = field(default_factory=dict)
    records: int = 0
    size: int = 0

    def add(self, topic: str, message: bytes) -> None:
        """Add one encoded record to a topic."""
        self.messages.setdefault(topic, []).append(message)
        self.records += 1
        self.size += len(message)

    def extend(self, other: EncodedRecords) -> None:
        """Add other accepted records, topic by topic."""
        for topic, messages in other.messages.items():
            self.messages.setdefault(topic, []).extend(messages)
        self.records += other.records
        self.size += other.size


WRITTEN, KNOWN, CONFLICT = "written", "known", "conflict"


@dataclass(frozen=True)
class Submission:
    """Records to be committed: from outside, without those that turn out to be known, or from a stage, with its states and position."""

    records: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    """Records from outside, by topic."""
    messages: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """The same, encoded."""
    commit: Commit = field(default_factory=Commit)
    """From a stage: its records with its states and positions. Offsets are assigned when they are committed."""


@dataclass(frozen=True)
class CommitResult:
    """The result of a submission."""

    outcomes: Mapping[str, Sequence[str]]
    """For each topic and each of its records from outside: written, known (the log has it) or conflict (with other content)."""
    decisions: Mapping[Subject, ScoringTask | Score]
    """Intake's decisions on exchanges of the whole group: judged (a task) or left out (a score)."""
    spent: Mapping[str, int]
    """Nano-USD that the sessions of the tasks have spent, by session key; sessions that have spent nothing are missing."""


class Admission:
    """Admits records into topics. A record that breaks its contract becomes a dead letter; nothing is dropped."""

    def __init__(self, redactor: Redactor, now: datetime) -> None:
        self._redactor = redactor
        self._now = now

    def admit(self, accepted: EncodedRecords, topic: str, records: Iterable[Record], source: str) -> None:
        """Encode records into `accepted`; records that may not be written become dead letters of `source`."""
        for position, record in enumerate(records):
            try:
                accepted.add(topic, encode_validated(record))
            except RecordError as error:
                body = json_bytes(record)
                self.add_dead_letter(
                    accepted, RecordOrigin(source, position), Refusal("admission", error.code, str(error)), body
                )

    def add_dead_letter(
        self,
        accepted: EncodedRecords,
        place: RecordOrigin,
        refusal: Refusal,
        body: bytes,
        *,
        size: int | None = None,
        digest: str | None = None,
    ) -> None:
        """Keep the bytes of something that cannot be stored as a dead letter: redacted, with origin and reason.

        `size` and `digest` (SHA-256, hexadecimal) are given if `body` is only the start of the bytes.
        """
        digest = digest or hashlib.sha256(body).hexdigest()
        source, _ = self._redactor.redact(place.source)
        detail, _ = self._redactor.redact(refusal.detail[: MAX_DETAIL + _OVERLAP])
        whole = len(body) <= MAX_REDACTED_BYTES and size in (None, len(body))
        kept = self._redacted(body) if whole else self._redacted_text(_start(body))
        if len(kept) > MAX_BODY_BYTES:
            kept = _without_unfinished_marker(kept[:MAX_BODY_BYTES].decode("utf-8", "ignore")).encode()
        letter = DeadLetter(
            dead_letter_id=stable_id("dead-letter", place.source, place.partition or 0, place.position, refusal.stage, digest),
            source=source,
            partition=place.partition,
            position=place.position,
            stage=refusal.stage,
            reason=refusal.reason,
            detail=detail if len(detail) <= MAX_DETAIL else _without_unfinished_marker(detail[:MAX_DETAIL]),
            digest=digest,
            size=len(body) if size is None else size,
            body=kept,
            rejected_at=self._now,
        )
        accepted.add(DEAD_LETTERS, encode(letter))

    def add_conflict(self, accepted: EncodedRecords, topic: str, record: Record, differing: Sequence[str]) -> None:
        """Keep a record whose identity the topic has with other content as a dead letter; `differing` are the fields that differ.

        The dead letter's id is derived from the record's identity and content: its origin is not always known, and its time of arrival
        differs between deliveries.
        """
        name = type(record).__name__
        identity = {field: getattr(record, field) for field in schema_of(name).identity}
        named = ", ".join(f"{field} {value!r}" for field, value in identity.items())
        detail = f"{name} {named}: the log holds it with other content{describe_differences(differing)}, which stays. {TO_DO}"
        content = canonical_json([name, *identity.values(), getattr(record, CONTENT_COLUMNS[name])])
        digest = hashlib.sha256(content.encode()).hexdigest()
        refusal = Refusal("admission", "conflicting_id", detail)
        self.add_dead_letter(accepted, RecordOrigin(topic, 0), refusal, msgspec.json.encode(record), digest=digest)

    def _redacted(self, body: bytes) -> bytes:
        """Return the body without its secrets: parsed as JSON if possible, so that keys identify secrets; else as text.

        Bytes without secrets stay unchanged: an encoded record can then be put back.
        """
        try:
            value, _ = self._redactor.redact_json(msgspec.json.decode(body))
            return msgspec.json.encode(value)
        except (msgspec.MsgspecError, BoundsError, UnicodeError, OverflowError, RecursionError):
            return self._redacted_text(body)

    def _redacted_text(self, body: bytes) -> bytes:
        text, secrets = self._redactor.redact(body.decode("utf-8", "replace"))
        return text.encode("utf-8", "replace") if secrets else body


def encode_validated(record: Record) -> bytes:
    """Return the encoding of a record from outside. Raises RecordError naming the field when the record breaks its contract or is too large."""
    message = encode(record)
    check_record(record)
    if len(message) > MAX_ADMITTED_BYTES:
        raise BoundsError(f"{type(record).__name__}: {len(message)} bytes, {MAX_ADMITTED_BYTES} allowed")
    return message


def encode_each(records: Sequence[Record]) -> list[bytes | RecordError]:
    """Return the encoding of each record from outside, or why the record may not be written."""
    messages: list[bytes | RecordError] = []
    for record in records:
        try:
            messages.append(encode_validated(record))
        except RecordError as error:
            messages.append(error)
    return messages


def _start(body: bytes) -> bytes:
    """Return the start of a truncated body, without its last, incomplete token: half a secret would not be recognised."""
    window = body[: MAX_BODY_BYTES + _OVERLAP]
    tail = _UNFINISHED_TOKEN.search(window, max(0, len(window) - _OVERLAP))
    return window[: tail.start()] if tail else window


def _without_unfinished_marker(text: str) -> str:
    """Return the start of a redacted text, without a truncated marker at its end."""
    return text[:-_LONGEST_MARKER] + _UNFINISHED_MARKER.sub("", text[-_LONGEST_MARKER:])


def encode_all(records: Sequence[tuple[str, Record]]) -> EncodedRecords:
    """Encode records from our own stages; a record that breaks its contract is a bug and raises."""
    accepted = EncodedRecords()
    for topic, record in records:
        accepted.add(topic, encode(record))
    return accepted


TOGETHER = 100
"""Spans that are prefiltered for secrets together."""
PROJECTS = 100
"""Projects whose readers are cached per request."""
Made = TypeVar("Made")
Given = ParamSpec("Given")
log = logging.getLogger(__name__)
OwnerOf = Callable[[ReceivedSpan], SpanOwner | None]
"""Finds the owner of a span; None if the span is skipped."""
LabelsOf = Callable[[str], Mapping[str, Sequence[str]]]
"""Finds a project's labels, each with the attributes that give its value."""


class AdmittedSpan(NamedTuple):
    """A span's record, and its encoding."""

    record: Span
    message: bytes


def labels_of(policy: Policy) -> LabelsOf:
    """Return a function that finds a project's labels in a policy."""
    return lambda project: policy.for_project(project).settings.traces.labels


def admitted(
    items: ReadItems, owner_of: OwnerOf, labels: LabelsOf, redactor: Redactor, now: datetime
) -> Iterator[AdmittedSpan | RejectedItem]:
    """Yield the outcome of each span, in order. A span that cannot be stored affects no other."""
    reader_of = lru_cache(PROJECTS)(lambda project: FactReader(labels(project)))
    while some := list(islice(items, TOGETHER)):
        drafts = [draft for observed in some if (draft := _draft(observed, owner_of, reader_of)) is not None]
        looked = _prefilter_texts(redactor, drafts)
        for draft in drafts:
            yield draft if isinstance(draft, RejectedItem) else _guarded(draft.received, _admitted, draft, looked, now)


def _draft(
    observed: ReceivedSpan | RejectedItem | None, owner_of: OwnerOf, reader_of: Callable[[str], FactReader]
) -> SpanDraft | RejectedItem | None:
    """Return the draft of a span; None if the span is skipped."""
    if observed is None or isinstance(observed, RejectedItem):
        return observed
    owner = owner_of(observed)
    if owner is None:
        return None
    return _guarded(observed, build_draft, observed, owner, reader_of(owner.project))


def _prefilter_texts(redactor: Redactor, drafts: Iterable[SpanDraft | RejectedItem]) -> Redactor:
    """Return the redactor, prefiltered with the texts of the drafts: most texts are clean, and the same texts recur."""
    texts, named = list[str](), list[str]()
    for draft in drafts:
        if isinstance(draft, SpanDraft):
            texts += draft.texts
            named += draft.named
    return redactor.with_prefilter(texts, json_texts=named)


def _admitted(draft: SpanDraft, redactor: Redactor, now: datetime) -> AdmittedSpan:
    record = build_record(draft, redactor, now)
    return AdmittedSpan(record, encode_validated(record))


def _guarded(
    observed: ReceivedSpan, make: Callable[Given, Made], *given: Given.args, **named: Given.kwargs
) -> Made | RejectedItem:
    """Return the result for a span, or why the span is refused."""
    try:
        return make(*given, **named)
    except RecordError as error:
        return RejectedItem(f"{observed.span_id}: {error}", json_bytes(observed._asdict()))
    except MemoryError:
        raise
    except Exception as error:
        log.exception("the span %s of the trace %s cannot be read", observed.span_id, observed.trace_id)
        return RejectedItem(f"{observed.span_id}: cannot be read: {type(error).__name__}", json_bytes(observed._asdict()))


class NewRecords:
    """See the module. Belongs to one event loop, except that `read` runs in a thread."""

    def __init__(self, store: Store, seen: Callable[[], KnownIdentities] | None = None) -> None:
        """`seen` returns the hashes if another object keeps them up to date with the tables."""
        own = KnownIdentities()
        self._store = store
        self._hashes = seen or (lambda: own)
        self._erased = ErasedNow(store)
        self._of_sessions = frozenset(schema.name for schema in schemas_of_sessions())

    def has_read(self, topic: str) -> bool:
        """Return whether the identities of the topic are in memory."""
        return self._hashes().has_read(topic, self._store.end_of(topic))

    def read(self, topic: str) -> None:
        """Read the topic's identities from the tables."""
        with contextlib.closing(self._store.cursor()) as cursor:
            self._hashes().read(cursor, topic, self._store.end_of(topic))

    def outcomes(self, topic: str, records: Sequence[Record]) -> list[str | None]:
        """Return the outcome of each record, WRITTEN or KNOWN; None if only the tables can tell."""
        hashes = self._hashes()
        # While a thread sorts hashes, leave everything to the tables: the event loop must not wait for the thread.
        is_busy = hashes.is_busy
        outcomes: list[str | None] = [None] * len(records)
        for name, of_type in _identities(records).items():
            identities = [identity for _, identity in of_type]
            counts = Counter(identities)
            is_new = [False] * len(of_type) if is_busy else hashes.which_are_new(name, topic, identities)
            for (index, identity), is_unseen in zip(of_type, is_new, strict=True):
                record = records[index]
                if name in self._of_sessions and self._erased.covers(record.connection, record.session_id):  # type: ignore[attr-defined]
                    outcomes[index] = KNOWN
                elif is_unseen and counts[identity] == 1 and not _may_have_twin(record):
                    outcomes[index] = WRITTEN
        return outcomes

    async def look_up(self, topic: str, outcomes: Sequence[str | None], messages: Sequence[bytes]) -> list[str]:
        """Fill in outcomes that are None from the tables, which must have everything; `messages` are the encoded records."""
        doubtful = [message for outcome, message in zip(outcomes, messages, strict=True) if outcome is None]
        in_tables = iter(await asyncio.to_thread(self._look_up, topic, doubtful) if doubtful else ())
        return [outcome or next(in_tables) for outcome in outcomes]

    def _look_up(self, topic: str, messages: Sequence[bytes]) -> list[str]:
        """Return the outcome of each encoded record by the tables: WRITTEN, KNOWN or CONFLICT."""
        outcomes = [KNOWN] * len(messages)
        with contextlib.closing(self._store.cursor()) as cursor:
            for name, frame in decode_own(messages).frames.items():
                fresh, conflicts = find_new_rows(
                    cursor, schema_of(name), frame, topic, self._hashes(), recent_matches=self._store.recent_matches
                )
                for index in fresh[INDEX].to_list():
                    outcomes[index] = WRITTEN
                for index in conflicts:
                    outcomes[index] = CONFLICT
        return outcomes

    def add(self, topic: str, records: Sequence[Record], end: int) -> None:
        """Add the identities of records that were appended to a topic, which now ends at `end`."""
        identities = {name: [identity for _, identity in of_type] for name, of_type in _identities(records).items()}
        self._hashes().add_identities(topic, identities, end)


def _identities(records: Sequence[Record]) -> Mapping[str, list[tuple[int, Identity]]]:
    """Return the identity of each record with its index, by record type."""
    indexes: dict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        indexes[type(record).__name__].append(index)
    return {
        name: list(zip(of_type, identities_of(name, [records[index] for index in of_type]), strict=True))
        for name, of_type in indexes.items()
    }


def _may_have_twin(record: Record) -> bool:
    return isinstance(record, AgentEvent) and may_have_duplicate(record.payload)


Name = tuple[str, str, Identity]
"""The name of a record: its topic, its type and its identity."""


def names_of(topic: str, records: Sequence[Record]) -> list[Name]:
    """Return the names of records on a topic, in their order."""
    types = [type(record).__name__ for record in records]
    return [(topic, name, identities_of(name, (record,))[0]) for name, record in zip(types, records, strict=True)]


class _Entry(NamedTuple):
    """A record in flight: its session, its content, which distinguishes a repetition from a conflict, and an event's id and position."""

    session: bytes
    content: object
    event: tuple[str, int] | None


class InFlight:
    """Records in flight by name, dropped as soon as the tables have them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._entries: dict[Name, _Entry] = {}
        self._sessions: dict[bytes, set[Name]] = defaultdict(set)
        self._queues: dict[Partition, list[tuple[int, Name]]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: Name, record: Record, session: bytes, partition: Partition, offset: int) -> None:
        """Add a record that was produced under the key of its session."""
        event = (record.event_id, record.seq) if isinstance(record, AgentEvent) else None
        self._entries[name] = _Entry(session, _content(record), event)
        self._sessions[session].add(name)
        heapq.heappush(self._queues[partition], (offset, name))

    def outcome(self, name: Name, record: Record) -> str | None:
        """Return the outcome of a record whose name is in flight: known or a conflict; None for others."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        return KNOWN if entry.content == _content(record) else CONFLICT

    def on(self, topic: str) -> int:
        """Return the number of records in flight on a topic."""
        return sum(len(queue) for (name, _), queue in self._queues.items() if name == topic)

    def has_session(self, key: bytes) -> bool:
        """Return whether a record of the session is in flight."""
        return bool(self._sessions.get(key))

    def events_of(self, key: bytes) -> dict[str, int]:
        """Return the events of a session in flight: id and position."""
        entries = (self._entries[name] for name in self._sessions.get(key, ()))
        return dict(entry.event for entry in entries if entry.event is not None)

    def release(self, position: Callable[[Partition], int]) -> None:
        """Drop the records before the positions of their partitions."""
        for partition in list(self._queues):
            queue, landed = self._queues[partition], position(partition)
            while queue and queue[0][0] < landed:
                self._forget(heapq.heappop(queue)[1])
            if not queue:
                del self._queues[partition]

    def _forget(self, name: Name) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._sessions[entry.session].discard(name)
        if not self._sessions[entry.session]:
            del self._sessions[entry.session]


def _content(record: Record) -> object:
    field = CONTENT_COLUMNS.get(type(record).__name__)
    return None if field is None else getattr(record, field)


class ErasedNow:
    """The requested erasures of a store, read again when there are more. Belongs to one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._end = 0
        self._erased = ErasureScope.from_pairs([])

    @property
    def is_read(self) -> bool:
        """True once all erasures were read."""
        return self._store.end_of(ERASURES) == self._end

    def covers(self, connection: str, session_id: str) -> bool:
        """Return whether the session is erased."""
        if not self.is_read:
            end = self._store.end_of(ERASURES)
            with contextlib.closing(self._store.cursor()) as cursor:
                self._erased = read_erasures(cursor)
            self._end = end
        return self._erased.covers(connection, session_id)
