# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Which records of a batch the log already has: by identity and, if needed, by content.

The identities of a log are kept as hashes in memory, eight bytes each (`KnownIdentities`), so a new record is recognised without reading the
log.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec

from analytics.store.connection import fetch
from analytics.store.tables import BATCH, full_name, quote, registered
from audit.diagnosis.duplicate_rules import (
    CLOCKS,
    EXCHANGE_FIELDS,
    FILED_FIELDS,
    HOOK,
    TRAJECTORY,
    ReportedEvent,
    exchange_differences,
    find_duplicates,
    is_of_entry,
    is_told_by_hook,
    payload_differences,
)
from schemas.codec.arrow import INDEX
from schemas.lazy import duckdb, pl
from schemas.records import Record
from schemas.registry import RecordSchema, schema_of, topics

AT_ONCE = 1_000_000
"""Positions read in one query."""
RECENT = 50_000
"""Maximum number of unsorted hashes."""
Identity = tuple[str | int, ...]
"""The values that identify a record among those of its type: texts, and numbers as `_number` returns them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GROWTH = 4
"""A sorted run is merged with the next one until it is this many times larger, so each hash is sorted only a few times."""


class _Run:
    """Sorted hashes. Indexing a polars series takes a microsecond, so searches read the same memory as plain integers."""

    def __init__(self, hashes: pl.Series) -> None:
        self.hashes = hashes.sort()
        self._each = self.hashes.to_numpy().data

    def __contains__(self, value: int) -> bool:
        index = bisect_left(self._each, value)
        return index < len(self._each) and self._each[index] == value


@dataclass
class Hashes:
    """A set of hashes: sorted runs, each larger than the next, and a small unsorted buffer."""

    runs: list[_Run] = field(default_factory=list)
    recent: set[int] = field(default_factory=set)

    def add(self, hashes: Collection[int]) -> None:
        """Add hashes."""
        if len(hashes) < RECENT:
            self.recent.update(hashes)
        if len(hashes) >= RECENT or len(self.recent) >= RECENT:
            self._sort_in(pl.Series([*hashes, *self.recent] if len(hashes) >= RECENT else list(self.recent), dtype=pl.Int64))
            self.recent = set()

    def _sort_in(self, added: pl.Series) -> None:
        while self.runs and len(self.runs[-1].hashes) < _GROWTH * len(added):
            added = pl.concat([self.runs.pop().hashes, added])
        self.runs.append(_Run(added))

    def which_of(self, hashes: Sequence[int]) -> list[bool]:
        """Tell for each hash whether the set has it."""
        return [value in self.recent or any(value in run for run in self.runs) for value in hashes]


class KnownIdentities:
    """The index of one store. It follows the log by position: records of any writer are read before it answers."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, str], Hashes] = {}
        self._read: dict[str, int] = {}
        self._lock = threading.Lock()

    def doubtful(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows whose identity may be on the topic, as far as it was read. Call `read` first."""
        with self._lock:
            hashes = self._hashes.get((topic, schema.name))
            return frame.clear() if hashes is None else frame.filter(hashes.which_of(_hashed(schema, frame)))

    def which_are_new(self, name: str, topic: str, identities: Sequence[Identity]) -> list[bool]:
        """Tell for each identity whether it is certainly not on the topic, as far as it was read; `name` is the record type."""
        with self._lock:
            hashes = self._hashes.get((topic, name))
            if hashes is None:
                return [True] * len(identities)
            return [not is_seen for is_seen in hashes.which_of(list(map(hash, identities)))]

    @property
    def is_busy(self) -> bool:
        """True while another thread holds the lock, so that `which_are_new` would wait."""
        return self._lock.locked()

    def has_read(self, topic: str, end: int) -> bool:
        """Tell whether the topic was read up to position `end`."""
        return self._read.get(topic, 0) >= end

    def read(self, connection: duckdb.DuckDBPyConnection, topic: str, end: int) -> None:
        """Read the topic's new records, up to position `end`."""
        start = self._read.setdefault(topic, 0)
        for first in range(start, end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            for name in topics()[topic]:
                self._read_part(connection, schema_of(name), topic, first, last)
        if end > start:  # otherwise another thread may just have read further
            self._read[topic] = end

    def note(self, topic: str, identities: Mapping[str, Sequence[Identity]], end: int) -> None:
        """Add the identities just appended to a topic, by record type, if all earlier ones were read; the topic now ends at `end`."""
        with self._lock:
            for name, of_type in identities.items():
                self._hashes.setdefault((topic, name), Hashes()).add(list(map(hash, of_type)))
        self._read[topic] = end

    def take_in(self, topic: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Add the rows just committed by the only writer of the topic, if all earlier ones were read."""
        for name, frame in frames.items():
            self._add(schema_of(name), topic, frame)

    def _read_part(
        self, connection: duckdb.DuckDBPyConnection, schema: RecordSchema, topic: str, first: int, last: int
    ) -> None:
        statement = (
            f"SELECT {', '.join(map(quote, identity_of(schema)))} FROM {full_name(schema)} "
            "WHERE _topic = $topic AND _offset >= $first AND _offset < $last"
        )
        self._add(schema, topic, fetch(connection, statement, {"topic": topic, "first": first, "last": last}))

    def _add(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> None:
        if frame.height:
            hashes = _hashed(schema, frame)
            with self._lock:
                self._hashes.setdefault((topic, schema.name), Hashes()).add(hashes)


def identity_of(schema: RecordSchema) -> list[str]:
    """The columns that identify a record: its identity and, if it has one, its revision."""
    return [*schema.identity, "revision"] if schema.has_revisions else list(schema.identity)


def identities_of(name: str, records: Iterable[Any]) -> list[Identity]:
    """The identities of records of one type."""
    return list(map(_identity_reader(name), records))


@cache
def _identity_reader(name: str) -> Callable[[Any], Identity]:
    """Return the function that reads the identity of a record of a type."""
    names, texts = _identity_columns(name)
    times = {field["name"] for field in schema_of(name).fields if isinstance(field["type"], dict)}
    if len(names) > 1 and times.isdisjoint(names):
        return attrgetter(*names)
    columns = [(attrgetter(column), column in texts) for column in names]
    return lambda record: tuple(read(record) if is_text else _number(read(record)) for read, is_text in columns)


def _number(value: int | datetime) -> int:
    """A number as it is, a time as microseconds since the epoch: the form in which columns hold them."""
    return value if isinstance(value, int) else (value - _EPOCH) // timedelta(microseconds=1)


def _hashed(schema: RecordSchema, frame: pl.DataFrame) -> list[int]:
    """The hash of each row's identity. The log returns numbers and times as other types than decoding does."""
    # Hashed in Python, not in polars: for a single exchange, starting polars' threads costs more than the whole look-up.
    names, texts = _identity_columns(schema.name)
    columns = [frame[name] if name in texts else frame[name].to_physical().cast(pl.Int64) for name in names]
    return list(map(hash, zip(*(column.to_list() for column in columns), strict=True)))


@cache
def _identity_columns(name: str) -> tuple[list[str], list[str]]:
    """The columns of a record type's identity, and those of them that are texts."""
    # Read from the schema, not from a frame: otherwise the first sender would wait for polars to load.
    schema = schema_of(name)
    texts = {field["name"] for field in schema.fields if field["type"] == "string"}
    names = identity_of(schema)
    return names, [column for column in names if column in texts]


COMPARED = {
    "Exchange": (*EXCHANGE_FIELDS, *FILED_FIELDS, "content_digest"),
    "AgentEvent": ("payload",),
    "Span": ("content_digest",),
}
"""The columns that two records of one identity are compared by, by record type."""
PLACE = ["_partition", "_offset"]
_SESSION = ["connection", "session_id"]
_EVENT = [*_SESSION, "event_id"]
_TOLD = [*_EVENT, "occurred_at", "ingested_at", "payload"]
_MARKS = (f'"told_by":"{HOOK}"', f'"told_by":"{TRAJECTORY}"', '"entry_id":"')
"""Substrings of canonical payloads that mark events which can have a duplicate."""

CONTENT = {"AgentEvent": "payload", "Exchange": "content_digest", "Span": "content_digest"}
"""The content field of records from outside. The same identity with other content is a conflict, not a repetition."""
_HELD = "_held"


def differences(schema: RecordSchema, held: Mapping[str, Any], received: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields in which two rows (columns COMPARED) contradict each other; none if they are accounts of the same thing."""
    if schema.name == "Exchange":
        return exchange_differences(held, received)
    if schema.name == "AgentEvent":
        return payload_differences(_payload(held["payload"]), _payload(received["payload"]))
    return tuple(name for name in COMPARED[schema.name] if held[name] != received[name])


def _payload(text: str) -> dict[str, Any]:
    """The fields of a payload; one that is not a JSON object becomes a single field. Kafka producers may send any text."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        fields = None
    return fields if isinstance(fields, dict) else {"payload": text}


def contradicting(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, doubtful: pl.DataFrame, identities: pl.DataFrame, topic: str
) -> dict[int, tuple[str, ...]]:
    """The rows (INDEX) that contradict the stored record of their identity, with the differing fields; `identities` has the stored places.

    A row whose identity has no stored place is a conflict too, without named fields.
    """
    if doubtful.is_empty():
        return {}
    identity = identity_of(schema)
    columns = COMPARED[schema.name]
    first = identities.sort(PLACE).unique(subset=identity, keep="first", maintain_order=True)
    wanted = first.join(doubtful.select(identity).unique(), on=identity, how="semi")
    rows = rows_at(connection, schema, wanted, topic, columns) if wanted.height else None
    held = {} if rows is None else {row[:-1]: row[-1] for row in _keyed(wanted.join(rows, on=PLACE), identity, columns)}
    conflicts: dict[int, tuple[str, ...]] = {}
    for index, row in zip(doubtful[INDEX].to_list(), _keyed(doubtful, identity, columns), strict=True):
        before = held.get(row[:-1])
        differing = () if before is None else differences(schema, before, row[-1])
        if before is None or differing:
            conflicts[index] = differing
    return _without_later_accounts(connection, schema, doubtful, conflicts, topic) if schema.has_revisions else conflicts


def rows_at(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, places: pl.DataFrame, topic: str, columns: Iterable[str]
) -> pl.DataFrame:
    """The columns of the rows at these places, with their places. No other row is read."""
    with registered(connection, places.select(PLACE)):
        statement = (
            f"SELECT _partition, _offset, {', '.join(map(quote, columns))} FROM {full_name(schema)} "
            f"SEMI JOIN {BATCH} USING (_partition, _offset) WHERE _topic = $topic AND _offset BETWEEN $first AND $last"
        )
        bounds = {"first": places["_offset"].min() or 0, "last": places["_offset"].max() or 0}
        return fetch(connection, statement, {"topic": topic, **bounds})


def _keyed(rows: pl.DataFrame, identity: list[str], columns: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
    """The rows as tuples: the identity's values, then a mapping of the columns."""
    for row in rows.select(*identity, *(pl.col(name).alias(f"={name}") for name in columns)).iter_rows():
        yield (*row[: len(identity)], _row(columns, row[len(identity) :]))


def _row(columns: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    """A row as a mapping, made comparable: times from the log get their zone (UTC), and labels become mappings."""
    row = dict(zip(columns, values, strict=True))
    if "labels" in row:
        row["labels"] = [
            label if isinstance(label, Mapping) else msgspec.structs.asdict(label) for label in row["labels"] or ()
        ]
    if row.get("occurred_at") is not None:
        row["occurred_at"] = row["occurred_at"].replace(tzinfo=UTC)
    return row


def _without_later_accounts(
    connection: duckdb.DuckDBPyConnection,
    schema: RecordSchema,
    doubtful: pl.DataFrame,
    conflicts: Mapping[int, tuple[str, ...]],
    topic: str,
) -> dict[int, tuple[str, ...]]:
    """The conflicting rows (INDEX) that contradict every stored revision: an account of the whole turn matches a later revision."""
    if not conflicts:
        return {}
    columns, identity = COMPARED[schema.name], list(schema.identity)
    rows = doubtful.filter(pl.col(INDEX).is_in(list(conflicts)))
    names = ", ".join(map(quote, (*identity, *columns)))
    with registered(connection, rows.select(identity).unique()):
        statement = f"SELECT {names} FROM {full_name(schema)} SEMI JOIN {BATCH} USING ({', '.join(map(quote, identity))}) WHERE _topic = $topic"
        stored = fetch(connection, statement, {"topic": topic})
    revisions: dict[tuple[Any, ...], list[Any]] = {}
    for row in _keyed(stored, identity, columns):
        revisions.setdefault(row[:-1], []).append(row[-1])
    return {
        index: conflicts[index]
        for index, row in zip(rows[INDEX].to_list(), _keyed(rows, identity, columns), strict=True)
        if all(differences(schema, before, row[-1]) for before in revisions.get(row[:-1], ()))
    }


def contradictions(connection: duckdb.DuckDBPyConnection, topic: str, record: Record) -> tuple[str, ...]:
    """The fields in which a record contradicts the topic's record of its identity; none if the topic has no such record."""
    schema = schema_of(type(record).__name__)
    identity = {name: getattr(record, name) for name in identity_of(schema)}
    columns = COMPARED.get(schema.name, ())
    where = " AND ".join(f"{quote(name)} = ${name}" for name in identity)
    statement = (
        f"SELECT {', '.join(map(quote, columns))} FROM {full_name(schema)} WHERE _topic = $topic AND {where} "
        "ORDER BY _partition, _offset LIMIT 1"
    )
    rows = fetch(connection, statement, {"topic": topic, **identity}) if columns else pl.DataFrame()
    if rows.is_empty():
        return ()
    return differences(schema, _row(columns, rows.row(0)), _row(columns, tuple(getattr(record, name) for name in columns)))


class Met:
    """Recent matches: the last PAIRS events that were left out as duplicates of events in the log.

    An event has at most one duplicate over all deliveries. Pairs are kept in memory while the store is open. The only harm of a
    forgotten pair is that a second event may count as a duplicate too.
    """

    PAIRS = 50_000

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._taken: set[int] = set()

    def known(self, ids: Mapping[int, int], held: Mapping[int, int]) -> list[int]:
        """The places in `ids` whose events were already left out as duplicates of an event in `held`."""
        there = set(held.values())
        return [index for index, event in ids.items() if self._held.get(event) in there]

    def is_taken(self, held: int) -> bool:
        """Tell whether an event of the log already has its duplicate."""
        return held in self._taken

    def add(self, event: int, held: int) -> None:
        """Note a pair."""
        self._held[event] = held
        self._taken.add(held)
        if len(self._held) > self.PAIRS:
            self._taken.discard(self._held.pop(next(iter(self._held))))


def may_have_twin(payload: str) -> bool:
    """Tell whether an event with this canonical payload can have a duplicate."""
    return any(mark in payload for mark in _MARKS)


def twins_in_log(connection: duckdb.DuckDBPyConnection, events: pl.DataFrame, topic: str, met: Met) -> list[int]:
    """The new events (INDEX) whose duplicate the topic has: one from a hook, the other from a transcript, whichever came first."""
    marked = events.filter(pl.any_horizontal(pl.col("payload").str.contains(mark, literal=True) for mark in _MARKS))
    if marked.is_empty():
        return []
    schema = schema_of("AgentEvent")
    # A session may last for months: read only the events that can be duplicates.
    span = (
        marked.with_columns(pl.col("occurred_at").dt.replace_time_zone(None))
        .group_by(_SESSION)
        .agg((pl.col("occurred_at").min() - CLOCKS).alias("_from"), (pl.col("occurred_at").max() + CLOCKS).alias("_to"))
    )
    with registered(connection, span):
        # Constant bounds let DuckDB skip the rest of a large log; bounds from joined columns do not.
        statement = (
            f"SELECT _partition, _offset FROM {full_name(schema)} JOIN {BATCH} USING (connection, session_id) "
            "WHERE _topic = $topic AND occurred_at BETWEEN _from AND _to AND occurred_at BETWEEN $first AND $last"
        )
        places = fetch(connection, statement, {"topic": topic, "first": span["_from"].min(), "last": span["_to"].max()})
    if places.is_empty():
        return []
    held = rows_at(connection, schema, places, topic, _TOLD).with_row_index(INDEX)
    held_ids, ids = _ids(held), _ids(marked)
    again = met.known(ids, held_ids)
    new = _accounts_of(marked.filter(~pl.col(INDEX).is_in(again)))
    matches = find_duplicates([account for account in _accounts_of(held) if not met.is_taken(held_ids[account.key])], new)
    for index, held_index in matches.items():
        met.add(ids[index], held_ids[held_index])
    return sorted([*again, *matches])


def _ids(events: pl.DataFrame) -> dict[int, int]:
    """The identity of each event as a number, by its place."""
    return {
        index: hash(identity) for index, identity in ((row[0], row[1:]) for row in events.select(INDEX, *_EVENT).iter_rows())
    }


def _accounts_of(events: pl.DataFrame) -> Iterable[ReportedEvent]:
    for index, connection, session, _, at, came, text in events.select(INDEX, *_TOLD).iter_rows():
        if any(mark in text for mark in _MARKS):
            payload = _payload(text)
            if is_told_by_hook(payload) or is_of_entry(payload):
                yield ReportedEvent(index, (connection, session), at.replace(tzinfo=UTC), came.replace(tzinfo=UTC), payload)


def unknown(
    connection: duckdb.DuckDBPyConnection,
    schema: RecordSchema,
    frame: pl.DataFrame,
    topic: str,
    seen: KnownIdentities | None = None,
    *,
    met: Met | None = None,
) -> tuple[pl.DataFrame, dict[int, tuple[str, ...]]]:
    """The new rows, whose identity is neither in the topic nor earlier in the frame; and the places (INDEX) of conflicting rows.

    Each conflict comes with its differing fields, as far as they are known.

    Rows that `seen` proves new are not looked up. A row is known if it is another account of a stored record (see the module), also
    under another id if the two are duplicates; `met` remembers those matches. Without `met`, accounts are not compared: the other
    log has already decided which records are separate.
    """
    fresh, conflicts = _by_identity(connection, schema, frame, topic, seen, has_landed=met is None)
    if schema.name == "AgentEvent" and fresh.height and met is not None:
        twins = twins_in_log(connection, fresh, topic, met)
        fresh = fresh.filter(~pl.col(INDEX).is_in(twins)) if twins else fresh
    return fresh, conflicts


def _by_identity(
    connection: duckdb.DuckDBPyConnection,
    schema: RecordSchema,
    frame: pl.DataFrame,
    topic: str,
    seen: KnownIdentities | None,
    *,
    has_landed: bool,
) -> tuple[pl.DataFrame, dict[int, tuple[str, ...]]]:
    identity = identity_of(schema)
    first = frame.unique(subset=identity, keep="first", maintain_order=True) if frame.height > 1 else frame
    doubtful = first if seen is None else seen.doubtful(schema, topic, first)
    if first.height == frame.height and doubtful.is_empty():
        return frame, {}
    in_topic = _find_in_topic(connection, schema, doubtful, topic)
    fresh = first.join(in_topic, on=identity, how="anti", maintain_order="left") if in_topic.height else first
    content = CONTENT.get(schema.name)
    if content is None or fresh.height == frame.height:
        return fresh, {}
    contents = _contents(connection, schema, content, in_topic, topic)
    held = pl.concat([contents, fresh.select(*identity, pl.col(content).alias(_HELD))])
    others = frame.join(fresh, on=INDEX, how="anti").join(held, on=identity)
    doubtful = others.filter(pl.col(content) != pl.col(_HELD))
    if has_landed:
        return fresh, dict.fromkeys(doubtful[INDEX].to_list(), ())
    return fresh, contradicting(connection, schema, doubtful, in_topic, topic)


def _find_in_topic(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, doubtful: pl.DataFrame, topic: str
) -> pl.DataFrame:
    """The identities of the frame that are in the topic, each with its places."""
    identity = identity_of(schema)
    columns = ", ".join(map(quote, identity))
    with registered(connection, doubtful.select(identity)):
        statement = (
            f"SELECT {columns}, _partition, _offset FROM {full_name(schema)} SEMI JOIN {BATCH} USING ({columns}) "
            "WHERE _topic = $topic"
        )
        in_topic = fetch(connection, statement, {"topic": topic})
    times = [name for name in identity if doubtful.schema[name].is_temporal()]
    return in_topic.with_columns(pl.col(name).dt.replace_time_zone("UTC") for name in times)


def _contents(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, content: str, in_topic: pl.DataFrame, topic: str
) -> pl.DataFrame:
    """The identities of known rows with their stored content. Only these rows are read, by their places."""
    identity = identity_of(schema)
    in_topic = in_topic.sort(PLACE).unique(subset=identity, keep="first", maintain_order=True)
    contents = rows_at(connection, schema, in_topic, topic, [content]).rename({content: _HELD})
    return in_topic.join(contents, on=PLACE).drop(PLACE)
