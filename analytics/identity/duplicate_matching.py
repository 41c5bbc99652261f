# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Detection of records that the log already has, by identity and, if necessary, by content.

`KnownIdentities` holds the hashes of all identities of a log in memory, eight bytes each, so that new records are recognized without
reading the log.
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

MAX_POSITIONS = 1_000_000
"""Maximum number of positions to read in one query."""
MAX_UNSORTED = 50_000
"""Maximum number of unsorted hashes."""
Identity = tuple[str | int, ...]
"""The values that identify a record of a type: strings, and numbers as `_encode_number` returns them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MERGE_FACTOR = 4
"""A sorted run is merged with new hashes unless it is this many times larger, so each hash is sorted only a few times."""


class _Run:
    """A sorted run of hashes. Indexing a polars series takes a microsecond, so searches read its memory as a numpy array."""

    def __init__(self, hashes: pl.Series) -> None:
        self.hashes = hashes.sort()
        self._values = self.hashes.to_numpy().data

    def __contains__(self, value: int) -> bool:
        index = bisect_left(self._values, value)
        return index < len(self._values) and self._values[index] == value


@dataclass
class Hashes:
    """A set of hashes: sorted runs of decreasing size, and a small unsorted buffer."""

    runs: list[_Run] = field(default_factory=list)
    recent: set[int] = field(default_factory=set)

    def add(self, hashes: Collection[int]) -> None:
        """Add hashes."""
        if len(hashes) < MAX_UNSORTED:
            self.recent.update(hashes)
        if len(hashes) >= MAX_UNSORTED or len(self.recent) >= MAX_UNSORTED:
            unsorted = [*hashes, *self.recent] if len(hashes) >= MAX_UNSORTED else list(self.recent)
            self._add_run(pl.Series(unsorted, dtype=pl.Int64))
            self.recent = set()

    def _add_run(self, added: pl.Series) -> None:
        while self.runs and len(self.runs[-1].hashes) < _MERGE_FACTOR * len(added):
            added = pl.concat([self.runs.pop().hashes, added])
        self.runs.append(_Run(added))

    def contains_each(self, hashes: Sequence[int]) -> list[bool]:
        """Tell for each hash whether the set contains it."""
        return [value in self.recent or any(value in run for run in self.runs) for value in hashes]


class KnownIdentities:
    """The index of the identities of one store, which follows the log by position."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, str], Hashes] = {}
        self._read: dict[str, int] = {}
        self._lock = threading.Lock()

    def find_possible(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose identity may be on the part of the topic that was read. Call `read` first."""
        with self._lock:
            hashes = self._hashes.get((topic, schema.name))
            return frame.clear() if hashes is None else frame.filter(hashes.contains_each(_hash_identities(schema, frame)))

    def which_are_new(self, name: str, topic: str, identities: Sequence[Identity]) -> list[bool]:
        """Tell for each identity of record type `name` whether it is certainly not on the part of the topic that was read."""
        with self._lock:
            hashes = self._hashes.get((topic, name))
            if hashes is None:
                return [True] * len(identities)
            return [not may_exist for may_exist in hashes.contains_each(list(map(hash, identities)))]

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
        for first in range(start, end, MAX_POSITIONS):
            last = min(first + MAX_POSITIONS, end)
            for name in topics()[topic]:
                self._read_part(connection, schema_of(name), topic, first, last)
        if end > start:  # another thread may have read further
            self._read[topic] = end

    def add_identities(self, topic: str, identities: Mapping[str, Sequence[Identity]], end: int) -> None:
        """Add the identities that were just appended to a topic, by record type. The topic was read before and now ends at `end`."""
        with self._lock:
            for name, added in identities.items():
                self._hashes.setdefault((topic, name), Hashes()).add(list(map(hash, added)))
        self._read[topic] = end

    def add_rows(self, topic: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Add the rows that the only writer of the topic just committed. The topic was read before."""
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
            hashes = _hash_identities(schema, frame)
            with self._lock:
                self._hashes.setdefault((topic, schema.name), Hashes()).add(hashes)


def identity_of(schema: RecordSchema) -> list[str]:
    """Return the columns that identify a record: its identity, and its revision if it has one."""
    return [*schema.identity, "revision"] if schema.has_revisions else list(schema.identity)


def identities_of(name: str, records: Iterable[Any]) -> list[Identity]:
    """Return the identities of records of one type."""
    return list(map(_identity_reader(name), records))


@cache
def _identity_reader(name: str) -> Callable[[Any], Identity]:
    """Return the function that reads the identity of a record of a type."""
    names, texts = _identity_columns(name)
    times = {field["name"] for field in schema_of(name).fields if isinstance(field["type"], dict)}
    if len(names) > 1 and times.isdisjoint(names):
        return attrgetter(*names)
    columns = [(attrgetter(column), column in texts) for column in names]
    return lambda record: tuple(read(record) if is_text else _encode_number(read(record)) for read, is_text in columns)


def _encode_number(value: int | datetime) -> int:
    """Return a time as microseconds since the epoch, as columns store it, and a number unchanged."""
    return value if isinstance(value, int) else (value - _EPOCH) // timedelta(microseconds=1)


def _hash_identities(schema: RecordSchema, frame: pl.DataFrame) -> list[int]:
    """Return the hash of each row's identity, equal for decoded rows and rows from the log, whose types differ."""
    # Hash in Python: for a single exchange, starting the threads of polars costs more than the complete look-up.
    names, texts = _identity_columns(schema.name)
    columns = [frame[name] if name in texts else frame[name].to_physical().cast(pl.Int64) for name in names]
    return list(map(hash, zip(*(column.to_list() for column in columns), strict=True)))


@cache
def _identity_columns(name: str) -> tuple[list[str], list[str]]:
    """Return the columns of a record type's identity, and those of them that are strings."""
    # Use the schema instead of a frame, so that the first sender does not wait for polars to load.
    schema = schema_of(name)
    texts = {field["name"] for field in schema.fields if field["type"] == "string"}
    names = identity_of(schema)
    return names, [column for column in names if column in texts]


COMPARED_COLUMNS = {
    "Exchange": (*EXCHANGE_FIELDS, *FILED_FIELDS, "content_digest"),
    "AgentEvent": ("payload",),
    "Span": ("content_digest",),
}
"""The columns by which two records of one identity are compared, by record type."""
POSITION = ["_partition", "_offset"]
_SESSION_KEY = ["connection", "session_id"]
_EVENT_KEY = [*_SESSION_KEY, "event_id"]
_ACCOUNT_COLUMNS = [*_EVENT_KEY, "occurred_at", "ingested_at", "payload"]
_MARKS = (f'"told_by":"{HOOK}"', f'"told_by":"{TRAJECTORY}"', '"entry_id":"')
"""Substrings of canonical payloads that mark events which can have a duplicate."""

CONTENT_COLUMNS = {"AgentEvent": "payload", "Exchange": "content_digest", "Span": "content_digest"}
"""The content column of ingested record types. The same identity with other content is a conflict, not a duplicate."""
_STORED = "_held"


def find_differences(schema: RecordSchema, stored: Mapping[str, Any], received: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields in which two rows (with COMPARED_COLUMNS) contradict each other; none if they report the same event."""
    if schema.name == "Exchange":
        return exchange_differences(stored, received)
    if schema.name == "AgentEvent":
        return payload_differences(_parse_payload(stored["payload"]), _parse_payload(received["payload"]))
    return tuple(name for name in COMPARED_COLUMNS[schema.name] if stored[name] != received[name])


def _parse_payload(text: str) -> dict[str, Any]:
    """Return the fields of a payload. A payload that is no JSON object, which Kafka producers may send, becomes one field."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        fields = None
    return fields if isinstance(fields, dict) else {"payload": text}


def find_conflicts(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, candidates: pl.DataFrame, identities: pl.DataFrame, topic: str
) -> dict[int, tuple[str, ...]]:
    """Return the rows (INDEX) that contradict the stored record of their identity, with the differing fields.

    `identities` has the positions of the stored records. A row without a stored record is a conflict too, without named fields.
    """
    if candidates.is_empty():
        return {}
    identity = identity_of(schema)
    columns = COMPARED_COLUMNS[schema.name]
    first = identities.sort(POSITION).unique(subset=identity, keep="first", maintain_order=True)
    compared = first.join(candidates.select(identity).unique(), on=identity, how="semi")
    rows = fetch_rows_at(connection, schema, compared, topic, columns) if compared.height else None
    stored = (
        {}
        if rows is None
        else {row[:-1]: row[-1] for row in _iterate_rows(compared.join(rows, on=POSITION), identity, columns)}
    )
    conflicts: dict[int, tuple[str, ...]] = {}
    for index, row in zip(candidates[INDEX].to_list(), _iterate_rows(candidates, identity, columns), strict=True):
        before = stored.get(row[:-1])
        differing = () if before is None else find_differences(schema, before, row[-1])
        if before is None or differing:
            conflicts[index] = differing
    return _drop_accounts_of_revisions(connection, schema, candidates, conflicts, topic) if schema.has_revisions else conflicts


def fetch_rows_at(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, positions: pl.DataFrame, topic: str, columns: Iterable[str]
) -> pl.DataFrame:
    """Return the columns and positions of the rows at these positions, without reading other rows."""
    with registered(connection, positions.select(POSITION)):
        statement = (
            f"SELECT _partition, _offset, {', '.join(map(quote, columns))} FROM {full_name(schema)} "
            f"SEMI JOIN {BATCH} USING (_partition, _offset) WHERE _topic = $topic AND _offset BETWEEN $first AND $last"
        )
        bounds = {"first": positions["_offset"].min() or 0, "last": positions["_offset"].max() or 0}
        return fetch(connection, statement, {"topic": topic, **bounds})


def _iterate_rows(rows: pl.DataFrame, identity: list[str], columns: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
    """Yield the rows as tuples: the values of the identity, then a mapping of the columns."""
    for row in rows.select(*identity, *(pl.col(name).alias(f"={name}") for name in columns)).iter_rows():
        yield (*row[: len(identity)], _build_row(columns, row[len(identity) :]))


def _build_row(columns: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    """Return a row as a comparable mapping: times are in UTC, and labels are mappings."""
    row = dict(zip(columns, values, strict=True))
    if "labels" in row:
        row["labels"] = [
            label if isinstance(label, Mapping) else msgspec.structs.asdict(label) for label in row["labels"] or ()
        ]
    if row.get("occurred_at") is not None:
        row["occurred_at"] = row["occurred_at"].replace(tzinfo=UTC)
    return row


def _drop_accounts_of_revisions(
    connection: duckdb.DuckDBPyConnection,
    schema: RecordSchema,
    candidates: pl.DataFrame,
    conflicts: Mapping[int, tuple[str, ...]],
    topic: str,
) -> dict[int, tuple[str, ...]]:
    """Return the conflicts (INDEX) that contradict every stored revision, because an account may match a later revision of its turn."""
    if not conflicts:
        return {}
    columns = COMPARED_COLUMNS[schema.name]
    identity = list(schema.identity)
    rows = candidates.filter(pl.col(INDEX).is_in(list(conflicts)))
    names = ", ".join(map(quote, (*identity, *columns)))
    with registered(connection, rows.select(identity).unique()):
        statement = f"SELECT {names} FROM {full_name(schema)} SEMI JOIN {BATCH} USING ({', '.join(map(quote, identity))}) WHERE _topic = $topic"
        stored = fetch(connection, statement, {"topic": topic})
    revisions: dict[tuple[Any, ...], list[Any]] = {}
    for row in _iterate_rows(stored, identity, columns):
        revisions.setdefault(row[:-1], []).append(row[-1])
    return {
        index: conflicts[index]
        for index, row in zip(rows[INDEX].to_list(), _iterate_rows(rows, identity, columns), strict=True)
        if all(find_differences(schema, before, row[-1]) for before in revisions.get(row[:-1], ()))
    }


def find_contradictions(connection: duckdb.DuckDBPyConnection, topic: str, record: Record) -> tuple[str, ...]:
    """Return the fields in which a record contradicts the stored record of its identity; none without a stored record."""
    schema = schema_of(type(record).__name__)
    identity = {name: getattr(record, name) for name in identity_of(schema)}
    columns = COMPARED_COLUMNS.get(schema.name, ())
    where = " AND ".join(f"{quote(name)} = ${name}" for name in identity)
    statement = (
        f"SELECT {', '.join(map(quote, columns))} FROM {full_name(schema)} WHERE _topic = $topic AND {where} "
        "ORDER BY _partition, _offset LIMIT 1"
    )
    rows = fetch(connection, statement, {"topic": topic, **identity}) if columns else pl.DataFrame()
    if rows.is_empty():
        return ()
    return find_differences(
        schema, _build_row(columns, rows.row(0)), _build_row(columns, tuple(getattr(record, name) for name in columns))
    )


class RecentMatches:
    """The last PAIRS events that were skipped as duplicates of events in the log.

    An event has at most one duplicate over all deliveries. The pairs are in memory while the store is open. If a pair is lost, a second
    event may wrongly count as a duplicate.
    """

    PAIRS = 50_000

    def __init__(self) -> None:
        self._stored_events: dict[int, int] = {}
        self._matched: set[int] = set()

    def find_known(self, ids: Mapping[int, int], stored: Mapping[int, int]) -> list[int]:
        """Return the indexes in `ids` of events that were already skipped as duplicates of a stored event."""
        stored_events = set(stored.values())
        return [index for index, event in ids.items() if self._stored_events.get(event) in stored_events]

    def has_duplicate(self, stored: int) -> bool:
        """Tell whether a stored event already has its duplicate."""
        return stored in self._matched

    def add(self, event: int, stored: int) -> None:
        """Add a pair, and drop the oldest one if there are too many."""
        self._stored_events[event] = stored
        self._matched.add(stored)
        if len(self._stored_events) > self.PAIRS:
            oldest = next(iter(self._stored_events))
            self._matched.discard(self._stored_events.pop(oldest))


def may_have_duplicate(payload: str) -> bool:
    """Tell whether an event with this canonical payload can have a duplicate."""
    return any(mark in payload for mark in _MARKS)


def find_duplicates_in_log(
    connection: duckdb.DuckDBPyConnection, events: pl.DataFrame, topic: str, recent_matches: RecentMatches
) -> list[int]:
    """Return the new events (INDEX) that have a duplicate in the topic: one is from a hook, the other from a transcript."""
    marked = events.filter(pl.any_horizontal(pl.col("payload").str.contains(mark, literal=True) for mark in _MARKS))
    if marked.is_empty():
        return []
    schema = schema_of("AgentEvent")
    # A session may last for months, so read only the events that can be duplicates.
    time_ranges = (
        marked.with_columns(pl.col("occurred_at").dt.replace_time_zone(None))
        .group_by(_SESSION_KEY)
        .agg((pl.col("occurred_at").min() - CLOCKS).alias("_from"), (pl.col("occurred_at").max() + CLOCKS).alias("_to"))
    )
    with registered(connection, time_ranges):
        # DuckDB skips row groups of a large log only by constant bounds, not by joined columns.
        statement = (
            f"SELECT _partition, _offset FROM {full_name(schema)} JOIN {BATCH} USING (connection, session_id) "
            "WHERE _topic = $topic AND occurred_at BETWEEN _from AND _to AND occurred_at BETWEEN $first AND $last"
        )
        positions = fetch(
            connection, statement, {"topic": topic, "first": time_ranges["_from"].min(), "last": time_ranges["_to"].max()}
        )
    if positions.is_empty():
        return []
    stored = fetch_rows_at(connection, schema, positions, topic, _ACCOUNT_COLUMNS).with_row_index(INDEX)
    stored_ids = _hash_event_ids(stored)
    ids = _hash_event_ids(marked)
    repeated = recent_matches.find_known(ids, stored_ids)
    new = _build_accounts(marked.filter(~pl.col(INDEX).is_in(repeated)))
    matches = find_duplicates(
        [account for account in _build_accounts(stored) if not recent_matches.has_duplicate(stored_ids[account.key])], new
    )
    for index, stored_index in matches.items():
        recent_matches.add(ids[index], stored_ids[stored_index])
    return sorted([*repeated, *matches])


def _hash_event_ids(events: pl.DataFrame) -> dict[int, int]:
    """Return the hash of each event's identity by its index."""
    return {
        index: hash(identity)
        for index, identity in ((row[0], row[1:]) for row in events.select(INDEX, *_EVENT_KEY).iter_rows())
    }


def _build_accounts(events: pl.DataFrame) -> Iterable[ReportedEvent]:
    for index, connection, session, _, occurred_at, ingested_at, text in events.select(INDEX, *_ACCOUNT_COLUMNS).iter_rows():
        if any(mark in text for mark in _MARKS):
            payload = _parse_payload(text)
            if is_told_by_hook(payload) or is_of_entry(payload):
                yield ReportedEvent(
                    index, (connection, session), occurred_at.replace(tzinfo=UTC), ingested_at.replace(tzinfo=UTC), payload
                )


def find_new_rows(
    connection: duckdb.DuckDBPyConnection,
    schema: RecordSchema,
    frame: pl.DataFrame,
    topic: str,
    seen: KnownIdentities | None = None,
    *,
    recent_matches: RecentMatches | None = None,
) -> tuple[pl.DataFrame, dict[int, tuple[str, ...]]]:
    """Return the new rows, whose identity is neither in the topic nor earlier in the frame, and the conflicting rows.

    Conflicts are given by INDEX, with their differing fields if known. Rows that `seen` proves new are not looked up.

    A row is known, too, if it is another account of a stored event, possibly under another id; `recent_matches` remembers these pairs.
    Without `recent_matches` accounts are not compared, because another log has already decided which records are separate.
    """
    fresh, conflicts = _filter_by_identity(connection, schema, frame, topic, seen, is_deduplicated=recent_matches is None)
    if schema.name == "AgentEvent" and fresh.height and recent_matches is not None:
        duplicates = find_duplicates_in_log(connection, fresh, topic, recent_matches)
        fresh = fresh.filter(~pl.col(INDEX).is_in(duplicates)) if duplicates else fresh
    return fresh, conflicts


def _filter_by_identity(
    connection: duckdb.DuckDBPyConnection,
    schema: RecordSchema,
    frame: pl.DataFrame,
    topic: str,
    seen: KnownIdentities | None,
    *,
    is_deduplicated: bool,
) -> tuple[pl.DataFrame, dict[int, tuple[str, ...]]]:
    identity = identity_of(schema)
    first = frame.unique(subset=identity, keep="first", maintain_order=True) if frame.height > 1 else frame
    candidates = first if seen is None else seen.find_possible(schema, topic, first)
    if first.height == frame.height and candidates.is_empty():
        return frame, {}
    in_topic = _find_in_topic(connection, schema, candidates, topic)
    fresh = first.join(in_topic, on=identity, how="anti", maintain_order="left") if in_topic.height else first
    content = CONTENT_COLUMNS.get(schema.name)
    if content is None or fresh.height == frame.height:
        return fresh, {}
    contents = _fetch_contents(connection, schema, content, in_topic, topic)
    stored = pl.concat([contents, fresh.select(*identity, pl.col(content).alias(_STORED))])
    others = frame.join(fresh, on=INDEX, how="anti").join(stored, on=identity)
    candidates = others.filter(pl.col(content) != pl.col(_STORED))
    if is_deduplicated:
        return fresh, dict.fromkeys(candidates[INDEX].to_list(), ())
    return fresh, find_conflicts(connection, schema, candidates, in_topic, topic)


def _find_in_topic(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, candidates: pl.DataFrame, topic: str
) -> pl.DataFrame:
    """Return the identities of the frame that are in the topic, each with its positions."""
    identity = identity_of(schema)
    columns = ", ".join(map(quote, identity))
    with registered(connection, candidates.select(identity)):
        statement = (
            f"SELECT {columns}, _partition, _offset FROM {full_name(schema)} SEMI JOIN {BATCH} USING ({columns}) "
            "WHERE _topic = $topic"
        )
        in_topic = fetch(connection, statement, {"topic": topic})
    times = [name for name in identity if candidates.schema[name].is_temporal()]
    return in_topic.with_columns(pl.col(name).dt.replace_time_zone("UTC") for name in times)


def _fetch_contents(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, content: str, in_topic: pl.DataFrame, topic: str
) -> pl.DataFrame:
    """Return the identities of known rows with their stored content, without reading other rows."""
    identity = identity_of(schema)
    in_topic = in_topic.sort(POSITION).unique(subset=identity, keep="first", maintain_order=True)
    contents = fetch_rows_at(connection, schema, in_topic, topic, [content]).rename({content: _STORED})
    return in_topic.join(contents, on=POSITION).drop(POSITION)
