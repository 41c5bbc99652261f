"""Finished sessions: selected by name, or the newest of a tag or a project, and read from the tables as the runs that cases judge.

1. Several sessions are read at once, so that a store with millions of records is not scanned for each of them.
2. Memory does not grow with a session: of one beyond the limits both ends are read whole. In its middle texts and payloads are left out,
   and if there are very many records, these too. The reader is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from analytics.queries import query_records, query_rows
from audit.anchors import is_reserved
from audit.diagnosis.events import raw_event
from audit.evaluation.run import Run, SessionRecords, run_of
from audit.policy import Policy
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Diagnosis, Exchange

MOST = 10_000
"""Sessions that are evaluated at once, at most."""
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_ALL = 10 * MOST
_SHOWN = 100
"""Characters of a name that a message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The selection of finished sessions that are to be evaluated."""

    sessions: Sequence[str] = ()
    """Ids, alone or as connection/id. Naming sessions gets all of them, so `project` only tells equal ids apart."""
    tags: Sequence[str] = ()
    """One of them is enough: on an exchange of the session, or in `tags` of its session_start."""
    project: str | None = None
    is_confined: bool = False
    """True if nothing may be disclosed of other projects, because the caller may not see them."""
    since: datetime | None = None
    """Only sessions that ended then or later; event time."""
    until: datetime | None = None
    """Only sessions that ended before."""
    limit: int = 100
    """Most sessions, the newest first; those that are named are all taken."""


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """A session that can be evaluated."""

    connection: str
    project: str
    session_id: str
    ended_at: datetime
    """Event time of the end as it was recorded, UTC."""


def finished_sessions(cursor: duckdb.DuckDBPyConnection, wanted: Wanted) -> list[FinishedSession]:
    """The finished sessions that are wanted, the one that ended last first. A session is finished once its end is recorded.

    InputError for a named session that is not there, is not finished or is in several connections, and for other filters beside names.
    """
    if wanted.sessions and (wanted.tags or wanted.since or wanted.until):
        raise InputError("sessions are named and also chosen by tag or time", hint="Name sessions, or choose them; not both.")
    named = list(dict.fromkeys(wanted.sessions))
    if len(named) > MOST or wanted.limit > MOST:
        raise InputError(f"more than {MOST} sessions are chosen", hint="Evaluate them in parts, by tag, project or time.")
    values = {
        # What may be connection/id may be an id with a slash, too.
        "sessions": [part for name in named for part in (name, name.partition("/")[2]) if part] or None,
        "tags": list(wanted.tags) or None,
        "project": wanted.project,
        "since": wanted.since,
        "until": wanted.until,
        "limit": _ALL if named else wanted.limit,
    }
    found = [FinishedSession(**row) for row in query_rows(cursor, "evaluable_sessions", values)]
    if named:
        found = [one for one in found if one.session_id in named or _full(one) in named]
        _check_named(cursor, named, wanted, found)
    return found


def _check_named(
    cursor: duckdb.DuckDBPyConnection, named: Sequence[str], wanted: Wanted, found: Sequence[FinishedSession]
) -> None:
    """InputError for the first name that does not stand for exactly one session."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for one in found:
        by_name[one.session_id].append(_full(one))
        by_name[_full(one)].append(_full(one))
    for name in named:
        full = by_name.get(name, [])
        if not full:
            raise _why_not(cursor, name, wanted)
        if len(full) > 1:
            raise InputError(f"session {_shown(name)} is in several connections", hint=f"Name one: {', '.join(full)}.")


def _why_not(cursor: duckdb.DuckDBPyConnection, name: str, wanted: Wanted) -> InputError:
    """Return the error that says why a named session cannot be evaluated."""
    connection, _, session = name.partition("/")
    asked = [(None, name), (connection, session)]
    rows = [
        row
        for connection, session in asked
        for row in query_rows(cursor, "open_topics", {"sessions": [session], "connection": connection, "as_of": _LONG_AGO})
        if not wanted.is_confined or row["project"] == wanted.project
    ]
    projects = sorted({row["project"] for row in rows})
    if not rows:
        return InputError(f"there is no session {_shown(name)}", hint="`driftline runs` lists those that have ended.")
    if all(map(is_reserved, projects)):
        return InputError(f"session {_shown(name)} is a round of anchor judgements", hint="Anchors are not evaluated.")
    if wanted.project is not None and wanted.project not in projects:
        return InputError(
            f"session {_shown(name)} is not of project {_shown(wanted.project)}", hint=f"It is of {', '.join(projects)}."
        )
    hint = "End it with `driftline finalize`, or wait until it has been idle for the session gap."
    return InputError(f"session {_shown(name)} has not ended yet", hint=hint)


def _full(one: FinishedSession) -> str:
    return f"{one.connection}/{one.session_id}"


def _shown(name: str) -> str:
    return repr(name[:_SHOWN])


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
