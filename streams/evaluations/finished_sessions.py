"""Finished sessions read from the tables, each as the run that a case is held against.

1. Sessions are read several at once, so that a store with millions of records is not gone through for each of them.
2. What is in memory does not grow with a session: of one beyond the limits both ends are read whole. In its middle texts and payloads
   are left out, and where there are very many records, these. The reader is told so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analytics.queries import query_records, query_rows
from audit.diagnosis.events import raw_event
from audit.evaluation.run import Run, SessionRecords, run_of
from audit.policy.policy import Policy
from schemas.errors import InputError
from schemas.lazy.duckdb import duckdb
from schemas.records import Diagnosis, Exchange
from streams.evaluations.selecting import FinishedSession

AT_ONCE = 50
"""Sessions that are read together, at most,"""
AT_ONCE_BYTES = 16_000_000
"""and about so many bytes of them."""
Key = tuple[str, str]
"""Connection and id of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The part of one session that is read: half of each limit at either end."""

    exchange_bytes: int = 16_000_000
    """Of texts."""
    exchanges: int = 20_000
    event_bytes: int = 16_000_000
    """Of payloads."""
    events: int = 100_000


LIMITS = Limits()


class ReadRun(NamedTuple):
    """A run, and what the reader of a result should know of how it was read."""

    run: Run
    warnings: tuple[str, ...]


def read_runs(
    cursor: duckdb.DuckDBPyConnection, sessions: Sequence[FinishedSession], policy: Policy, limits: Limits = LIMITS
) -> Iterator[ReadRun]:
    """The runs of the sessions, in their order, read as they are asked for."""
    for start in range(0, len(sessions), AT_ONCE):
        part = sessions[start : start + AT_ONCE]
        sizes = {_key(row): row for row in query_rows(cursor, "session_sizes", _asked(part))}
        for few in _within(part, sizes):
            yield from _read(cursor, few, sizes, policy, limits)


def _within(part: Sequence[FinishedSession], sizes: Mapping[Key, Mapping[str, int]]) -> Iterator[list[FinishedSession]]:
    """The sessions in parts of about AT_ONCE_BYTES."""
    few: list[FinishedSession] = []
    size = 0
    for one in part:
        found = sizes.get((one.connection, one.session_id), {})
        added = found.get("exchange_bytes", 0) + found.get("event_bytes", 0)
        if few and size + added > AT_ONCE_BYTES:
            yield few
            few, size = [], 0
        few.append(one)
        size += added
    yield few


def _read(
    cursor: duckdb.DuckDBPyConnection,
    few: Sequence[FinishedSession],
    sizes: Mapping[Key, Mapping[str, int]],
    policy: Policy,
    limits: Limits,
) -> Iterator[ReadRun]:
    asked = _asked(few)
    texts = asked | {"bytes": limits.exchange_bytes, "rows": limits.exchanges}
    exchanges = _by_session(query_records(cursor, "session_exchanges", Exchange, texts))
    payloads = asked | {"bytes": limits.event_bytes, "rows": limits.events}
    events = _by_session(query_rows(cursor, "session_evidence", payloads))
    diagnoses = _by_session(query_records(cursor, "session_diagnoses", Diagnosis, asked))
    for one in few:
        key = one.connection, one.session_id
        diagnosis = next(iter(diagnoses.get(key, ())), None)
        read = [_event(row) for row in events.pop(key, ())]
        left_out = list(_left_out(sizes.get(key, {}), limits))
        records = SessionRecords(
            connection=one.connection,
            project=one.project,
            session_id=one.session_id,
            exchanges=exchanges.pop(key, ()),
            events=[event for event, _ in read],
            trust=diagnosis.trust_score if diagnosis else None,
            failure_causes=diagnosis.failure_causes if diagnosis else (),
            closed_at=one.ended_at,
            is_whole=not left_out,
        )
        broken = sum(is_broken for _, is_broken in read)
        words = f"{broken} of the run's events hold no JSON object as their payload: only their columns were read."
        yield ReadRun(run_of(records, policy.prices), (*left_out, words) if broken else tuple(left_out))


def _event(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The raw event of a row; what its columns tell where the payload was left out, or is none. And whether it is none."""
    is_broken = False
    if row["payload"] is not None:
        try:
            return raw_event(row["payload"]), False
        except InputError:
            is_broken = True
    told = {name: row[name] for name in ("event_id", "event", "tool", "status") if row[name] is not None}
    usage = {} if row["tokens"] is None else {"usage": {"total": row["tokens"]}}
    return told | usage, is_broken


def _left_out(size: Mapping[str, int], limits: Limits) -> Iterator[str]:
    """Yield a sentence for each part of a session that was not read."""
    for name, texts, most, most_bytes in (
        ("exchanges", "texts", limits.exchanges, limits.exchange_bytes),
        ("events", "payloads", limits.events, limits.event_bytes),
    ):
        count, size_bytes = size.get(name, 0), size.get(f"{name[:-1]}_bytes", 0)
        if count > most:
            yield f"The run has {count} {name}: {count - most} in its middle were not read."
        if size_bytes > most_bytes:
            yield f"The {name} of the run hold {size_bytes} bytes: in its middle, {texts} were not read."


def _asked(sessions: Sequence[FinishedSession]) -> dict[str, Any]:
    return {"sessions": [{"connection": one.connection, "session_id": one.session_id} for one in sessions]}


def _by_session(rows: Any) -> dict[Key, list[Any]]:
    found: dict[Key, list[Any]] = defaultdict(list)
    for row in rows:
        found[_key(row)].append(row)
    return found


def _key(row: Any) -> Key:
    """Of a record or a row."""
    return (row["connection"], row["session_id"]) if isinstance(row, Mapping) else (row.connection, row.session_id)
