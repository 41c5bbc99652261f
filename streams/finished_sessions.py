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

MAX_SESSIONS = 10_000
"""Maximum number of sessions that are selected together."""
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_ALL = 10 * MAX_SESSIONS
_MAX_NAME_LENGTH = 100
"""Characters of a name in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSelection:
    """The selection of finished sessions that are to be evaluated."""

    sessions: Sequence[str] = ()
    """Ids, alone or as connection/id. All named sessions are selected; `project` only distinguishes equal ids."""
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
    """Maximum number of sessions, newest first. It does not apply to named sessions."""


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """A session that can be evaluated."""

    connection: str
    project: str
    session_id: str
    ended_at: datetime
    """Event time of the end as it was recorded, UTC."""


def finished_sessions(cursor: duckdb.DuckDBPyConnection, selection: SessionSelection) -> list[FinishedSession]:
    """Return the selected finished sessions, the last one to end first. A session is finished once its end is recorded.

    Raises InputError for a named session that does not exist, is not finished or is in several connections, and for filters together with names.
    """
    if selection.sessions and (selection.tags or selection.since or selection.until):
        raise InputError(
            "sessions are named and also selected by tag or time", hint="Name sessions, or select them by tag or time."
        )
    names = list(dict.fromkeys(selection.sessions))
    if len(names) > MAX_SESSIONS or selection.limit > MAX_SESSIONS:
        raise InputError(
            f"more than {MAX_SESSIONS} sessions are selected", hint="Evaluate them in parts, by tag, project or time."
        )
    values = {
        # A name with a slash is either connection/id or an id that contains a slash.
        "sessions": [part for name in names for part in (name, name.partition("/")[2]) if part] or None,
        "tags": list(selection.tags) or None,
        "project": selection.project,
        "since": selection.since,
        "until": selection.until,
        "limit": _ALL if names else selection.limit,
    }
    sessions = [FinishedSession(**row) for row in query_rows(cursor, "evaluable_sessions", values)]
    if names:
        sessions = [session for session in sessions if session.session_id in names or _qualified_name(session) in names]
        _check_named(cursor, names, selection, sessions)
    return sessions


def _check_named(
    cursor: duckdb.DuckDBPyConnection, names: Sequence[str], selection: SessionSelection, sessions: Sequence[FinishedSession]
) -> None:
    """Raise InputError for the first name that does not identify exactly one session."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for session in sessions:
        by_name[session.session_id].append(_qualified_name(session))
        by_name[_qualified_name(session)].append(_qualified_name(session))
    for name in names:
        matches = by_name.get(name, [])
        if not matches:
            raise _unavailable_error(cursor, name, selection)
        if len(matches) > 1:
            raise InputError(f"session {_quote_name(name)} is in several connections", hint=f"Name one: {', '.join(matches)}.")


def _unavailable_error(cursor: duckdb.DuckDBPyConnection, name: str, selection: SessionSelection) -> InputError:
    """Return the error that says why a named session cannot be evaluated."""
    connection, _, session = name.partition("/")
    candidates = [(None, name), (connection, session)]
    rows = [
        row
        for connection, session in candidates
        for row in query_rows(cursor, "open_topics", {"sessions": [session], "connection": connection, "as_of": _LONG_AGO})
        if not selection.is_confined or row["project"] == selection.project
    ]
    projects = sorted({row["project"] for row in rows})
    if not rows:
        return InputError(f"there is no session {_quote_name(name)}", hint="`driftline runs` lists those that have ended.")
    if all(map(is_reserved, projects)):
        return InputError(f"session {_quote_name(name)} is a round of anchor judgements", hint="Anchors are not evaluated.")
    if selection.project is not None and selection.project not in projects:
        return InputError(
            f"session {_quote_name(name)} does not belong to project {_quote_name(selection.project)}",
            hint=f"It belongs to {', '.join(projects)}.",
        )
    hint = "End it with `driftline finalize`, or wait until it has been idle for the session gap."
    return InputError(f"session {_quote_name(name)} has not ended yet", hint=hint)


def _qualified_name(session: FinishedSession) -> str:
    return f"{session.connection}/{session.session_id}"


def _quote_name(name: str) -> str:
    return repr(name[:_MAX_NAME_LENGTH])


BATCH_SESSIONS = 50
"""Sessions that are read together."""
BATCH_BYTES = 16_000_000
"""Approximate bytes of the sessions that are read together."""
Key = tuple[str, str]
"""Connection and id of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of what is read of a session: half of each limit at its start, half at its end."""

    exchange_bytes: int = 16_000_000
    """Bytes of texts."""
    exchanges: int = 20_000
    event_bytes: int = 16_000_000
    """Bytes of payloads."""
    events: int = 100_000


LIMITS = Limits()


class ReadRun(NamedTuple):
    """A run, and warnings about the parts that were not read."""

    run: Run
    warnings: tuple[str, ...]


def read_runs(
    cursor: duckdb.DuckDBPyConnection, sessions: Sequence[FinishedSession], policy: Policy, limits: Limits = LIMITS
) -> Iterator[ReadRun]:
    """Yield the runs of the sessions, in their order. Runs are read in batches as the caller iterates."""
    for start in range(0, len(sessions), BATCH_SESSIONS):
        selected = sessions[start : start + BATCH_SESSIONS]
        sizes = {_key(row): row for row in query_rows(cursor, "session_sizes", _session_values(selected))}
        for batch in _split_by_size(selected, sizes):
            yield from _read_batch(cursor, batch, sizes, policy, limits)


def _split_by_size(
    sessions: Sequence[FinishedSession], sizes: Mapping[Key, Mapping[str, int]]
) -> Iterator[list[FinishedSession]]:
    """Yield the sessions in batches of about BATCH_BYTES."""
    batch: list[FinishedSession] = []
    batch_bytes = 0
    for session in sessions:
        size = sizes.get((session.connection, session.session_id), {})
        session_bytes = size.get("exchange_bytes", 0) + size.get("event_bytes", 0)
        if batch and batch_bytes + session_bytes > BATCH_BYTES:
            yield batch
            batch = []
            batch_bytes = 0
        batch.append(session)
        batch_bytes += session_bytes
    yield batch


def _read_batch(
    cursor: duckdb.DuckDBPyConnection,
    sessions: Sequence[FinishedSession],
    sizes: Mapping[Key, Mapping[str, int]],
    policy: Policy,
    limits: Limits,
) -> Iterator[ReadRun]:
    values = _session_values(sessions)
    texts = values | {"bytes": limits.exchange_bytes, "rows": limits.exchanges}
    exchanges = _group_by_session(query_records(cursor, "session_exchanges", Exchange, texts))
    payloads = values | {"bytes": limits.event_bytes, "rows": limits.events}
    events = _group_by_session(query_rows(cursor, "session_evidence", payloads))
    diagnoses = _group_by_session(query_records(cursor, "session_diagnoses", Diagnosis, values))
    for session in sessions:
        key = (session.connection, session.session_id)
        diagnosis = next(iter(diagnoses.get(key, ())), None)
        parsed = [_parse_event(row) for row in events.pop(key, ())]
        warnings = list(_describe_omissions(sizes.get(key, {}), limits))
        records = SessionRecords(
            connection=session.connection,
            project=session.project,
            session_id=session.session_id,
            exchanges=exchanges.pop(key, ()),
            events=[event for event, _ in parsed],
            trust=diagnosis.trust_score if diagnosis else None,
            failure_causes=diagnosis.failure_causes if diagnosis else (),
            closed_at=session.ended_at,
            is_whole=not warnings,
            methodology=policy.for_project(session.project).methodology,
        )
        broken = sum(is_broken for _, is_broken in parsed)
        if broken:
            warnings.append(f"{broken} of the run's events hold no JSON object as their payload: only their columns were read.")
        yield ReadRun(run_of(records, policy.prices), tuple(warnings))


def _parse_event(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the raw event of a row, or its columns if the payload was not read or is broken; and whether the payload is broken."""
    is_broken = False
    if row["payload"] is not None:
        try:
            return raw_event(row["payload"]), False
        except InputError:
            is_broken = True
    columns = {name: row[name] for name in ("event_id", "event", "tool", "status") if row[name] is not None}
    usage = {} if row["tokens"] is None else {"usage": {"total": row["tokens"]}}
    return columns | usage, is_broken


def _describe_omissions(size: Mapping[str, int], limits: Limits) -> Iterator[str]:
    """Yield a sentence for each part of a session that was not read."""
    for name, texts, max_count, max_bytes in (
        ("exchanges", "texts", limits.exchanges, limits.exchange_bytes),
        ("events", "payloads", limits.events, limits.event_bytes),
    ):
        count = size.get(name, 0)
        size_bytes = size.get(f"{name[:-1]}_bytes", 0)
        if count > max_count:
            yield f"The run has {count} {name}: {count - max_count} in its middle were not read."
        if size_bytes > max_bytes:
            yield f"The {name} of the run hold {size_bytes} bytes: in its middle, {texts} were not read."


def _session_values(sessions: Sequence[FinishedSession]) -> dict[str, Any]:
    return {"sessions": [{"connection": session.connection, "session_id": session.session_id} for session in sessions]}


def _group_by_session(rows: Any) -> dict[Key, list[Any]]:
    grouped: dict[Key, list[Any]] = defaultdict(list)
    for row in rows:
        grouped[_key(row)].append(row)
    return grouped


def _key(row: Any) -> Key:
    """Return the session of a record or a row."""
    return (row["connection"], row["session_id"]) if isinstance(row, Mapping) else (row.connection, row.session_id)
