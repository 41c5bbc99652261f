# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Retention and erasure: rows of the log that are too old, or of an erased session, and the rows that belong to them. Rules: `README.md`.

The log stays open for writing: rows are deleted in batches, each in its own transaction. `plan_*` counts the rows that retention
or an erasure would delete, and changes nothing. Hourly sums stay until `analytics.sums.daily.forget_hours` runs.

Erasing deletes the own rows of sessions and connections, and mentions of them in other rows (rules 9 to 13).

Scores of withdrawn exchanges are deleted too, and the sums of their days recomputed. An exchange may still be scored after it was
withdrawn, so every run repeats this. Judgements of withdrawn exchanges stay, because they were paid for.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

import msgspec

from analytics.deletion.deleting import Erased, schemas_of_sessions
from analytics.store.connection import fetch
from analytics.store.positions import COMPACTION, PLACE, RETENTION
from analytics.store.store import Store
from analytics.store.tables import BATCH, full_name, registered
from analytics.sums.daily import recompute_days
from analytics.sums.list_sums import outline_again
from audit.anchors import ANCHORS
from audit.fingerprints import canonical_json
from schemas.codec.arrow import decode_batch
from schemas.codec.single_object import decode
from schemas.errors import RecordError
from schemas.lazy import duckdb, pl
from schemas.registry import schema_of

NOTHING_UNREAD = 2**62
"""Position that no topic reaches."""
FOR_EVER = datetime(1970, 1, 1, tzinfo=UTC)
"""The cutoff of a project that keeps records for ever: no record is older."""
CUT = "retention"
"""Stage whose states name the sessions whose first records retention has deleted."""
ONE_BY_ONE = 100
"""Up to this many projects are recorded one by one, which takes hundredths of a second and does not load polars."""
SESSION_STAGES = (CUT, "intake", "scoring", "diagnosis", "evaluation")
"""Stages that keep a state of each session."""

AT_ONCE = 200_000
"""Exchanges, or other rows, deleted in one round."""
PLACES = ", ".join(PLACE)
_SAID_OF = "SELECT connection, exchange_id AS subject_id FROM"
PROJECTS = " UNION ".join(
    f"SELECT project FROM log.{table}"
    for table in (
        "exchanges", "agent_events", "scores", "judgements", "reservations", "reviews",
        "heartbeats", "diagnoses", "trace_assemblies", "session_closings", "evaluations", "evaluation_requests",
    )
)  # fmt: skip
CUTOFFS = """
CREATE OR REPLACE TEMP TABLE cutoffs AS
SELECT unnest($projects::VARCHAR[]) AS project, unnest($cutoffs::TIMESTAMP[]) AS cutoff
"""
DOOMED_OF_ALL = f"""
CREATE OR REPLACE TEMP TABLE doomed AS
WITH pending AS (
    SELECT connection, exchange_id FROM log.scoring_tasks WHERE _offset >= $tasks
    UNION ALL
    SELECT connection, exchange_id FROM log.judging_requests WHERE _offset >= $exchanges
)
SELECT connection, session_id, exchange_id, project, occurred_at, {PLACES}
FROM log.exchanges
JOIN cutoffs USING (project)
ANTI JOIN pending USING (connection, exchange_id)
WHERE occurred_at < cutoff AND _offset < $exchanges
"""
"""All exchanges that retention would delete, for a dry run."""
DOOMED = f"{DOOMED_OF_ALL}ORDER BY occurred_at\nLIMIT {AT_ONCE}"
OF_EXCHANGES = {
    "Review": f"""
        SELECT {PLACES} FROM log.reviews
        SEMI JOIN (SELECT score_id AS subject_id FROM log.scores SEMI JOIN doomed USING (connection, exchange_id)) USING (subject_id)
        WHERE kind = 'human_score'""",
    "Score": f"SELECT score_id, {PLACES} FROM log.scores SEMI JOIN doomed USING (connection, exchange_id)",
    "ScoringTask": f"SELECT {PLACES} FROM log.scoring_tasks SEMI JOIN doomed USING (connection, exchange_id)",
    "JudgingRequest": f"SELECT {PLACES} FROM log.judging_requests SEMI JOIN doomed USING (connection, exchange_id)",
    # A reservation without its judgement would look like an interrupted call.
    "Reservation": f"SELECT {PLACES} FROM log.reservations SEMI JOIN ({_SAID_OF} doomed) USING (connection, subject_id)",
    "Judgement": f"SELECT {PLACES} FROM log.judgements SEMI JOIN ({_SAID_OF} doomed) USING (connection, subject_id)",
    "Exchange": f"SELECT connection, session_id, exchange_id, {PLACES} FROM doomed",
}
"""The records that are deleted with exchanges, in this order."""
_OLD = "JOIN cutoffs USING (project)"
_ONE_LEFT = (
    f"ANTI JOIN ({_SAID_OF} log.exchanges) USING (connection, subject_id) "
    "ANTI JOIN (SELECT connection, evaluation_id AS subject_id FROM log.evaluation_requests) USING (connection, subject_id)"
)
BY_AGE = {
    "Review": f"SELECT {PLACES} FROM log.reviews {_OLD} ANTI JOIN (SELECT score_id AS subject_id FROM log.scores) USING (subject_id) "
    "WHERE kind = 'human_score' AND occurred_at < cutoff",
    "Score": f"SELECT score_id, {PLACES} FROM log.scores {_OLD} ANTI JOIN log.exchanges USING (connection, exchange_id) "
    "WHERE exchange_at < cutoff",
    # A re-evaluation may reuse older answers, so its request's time counts if it is later.
    "Evaluation": f"SELECT {PLACES} FROM log.evaluations {_OLD} "
    "LEFT JOIN (SELECT request_id, requested_at FROM log.evaluation_requests) USING (request_id) "
    "WHERE greatest(evaluated_at, requested_at) < cutoff",
    "EvaluationRequest": f"SELECT {PLACES} FROM log.evaluation_requests {_OLD} "
    "ANTI JOIN (SELECT request_id FROM log.evaluations) USING (request_id) WHERE requested_at < cutoff AND _offset < $requests",
    "Reservation": f"SELECT {PLACES} FROM log.reservations {_OLD} {_ONE_LEFT} WHERE reserved_at < cutoff",
    "Judgement": f"SELECT {PLACES} FROM log.judgements {_OLD} {_ONE_LEFT} WHERE judged_at < cutoff",
    "AgentEvent": f"SELECT connection, session_id, {PLACES} FROM log.agent_events {_OLD} WHERE occurred_at < cutoff AND _offset < $events",
    # The exchanges and events of an assembled trace are kept: its spans are needed only to merge late spans.
    "Span": f"SELECT {PLACES} FROM log.spans WHERE ingested_at < $spans",
    "TraceAssembly": f"SELECT {PLACES} FROM log.trace_assemblies {_OLD} WHERE started_at < cutoff",
    "Heartbeat": f"SELECT {PLACES} FROM log.heartbeats {_OLD} WHERE occurred_at < cutoff",
    "Diagnosis": f"SELECT {PLACES} FROM log.diagnoses {_OLD} WHERE closed_at < cutoff",
    "SessionClosed": f"SELECT {PLACES} FROM log.session_closings {_OLD} ANTI JOIN log.exchanges USING (connection, session_id) "
    "ANTI JOIN log.agent_events USING (connection, session_id) WHERE closed_at < cutoff",
    "DeadLetter": f"SELECT {PLACES} FROM log.dead_letters WHERE rejected_at < $otherwise",
}
"""The records deleted by their own time, in this order: leftovers of exchanges, and records that belong to no exchange."""
LETTER_REVIEWS = (
    f"SELECT {PLACES} FROM log.reviews ANTI JOIN (SELECT dead_letter_id AS subject_id FROM log.dead_letters) USING (subject_id) "
    "WHERE kind = 'dead_letter' AND occurred_at < $otherwise"
)
WITHOUT_EXCHANGE = """
SELECT project, exchange, {places} FROM log.{table}
ANTI JOIN (SELECT hash(connection, exchange_id) AS known FROM log.exchanges) ON hash(connection, exchange_id) = known
WHERE _offset < $unread
"""
"""Compares hashes, which take a fraction of the memory; a collision would only keep a row."""
GONE = """
WITH cut AS (
    SELECT key, split_part(key, '/', 1) AS connection, substr(key, instr(key, '/') + 1) AS session_id
    FROM log.stage_state
    WHERE stage = $cut
)
SELECT key FROM cut
ANTI JOIN log.exchanges USING (connection, session_id)
ANTI JOIN log.agent_events USING (connection, session_id)
"""

IN_ONE_COMMIT = 100_000
"""Rows deleted in one transaction, which takes 0.1 to 0.2 s with the recomputed sums."""
_EVER = datetime(1970, 1, 1, tzinfo=UTC)

_ANY = "SELECT EXISTS (SELECT 1 FROM log.exchanges WHERE withdrawn)"
_SCORES = (
    f"SELECT {', '.join(PLACE)}, project, exchange_at FROM log.scores "
    "SEMI JOIN (SELECT connection, exchange_id FROM log.exchanges WHERE withdrawn) USING (connection, exchange_id)"
)


@dataclass(frozen=True)
class Unread:
    """The first position of each topic that its stage has not read."""

    exchanges: int = NOTHING_UNREAD
    tasks: int = NOTHING_UNREAD
    events: int = NOTHING_UNREAD
    requests: int = NOTHING_UNREAD
    """Of evaluations."""


@dataclass
class Purged:
    """The deletions of a run: exchanges and scores, each counted once for all its revisions, and rows by record type."""

    exchanges: int = 0
    scores: int = 0
    rows: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Cutoffs:
    """The cutoff of each project, and of records without a project; times are UTC."""

    of: Callable[[str], datetime]
    otherwise: datetime
    spans: datetime
    """The cutoff of spans, by the time of their intake."""


class Retention:
    """One retention run over a store. `unread` is None if this database runs no stages, in which case it has no states either."""

    def __init__(self, store: Store, cutoffs: Cutoffs, unread: Unread | None) -> None:
        self._store = store
        self._cutoffs = cutoffs
        self._has_states = unread is not None
        self._unread = unread or Unread()
        self._purged = Purged()

    def run(self) -> Purged:
        """Delete all records before their cutoff."""
        with contextlib.closing(self._store.cursor()) as cursor:
            by_project = self._cutoffs_of_projects(cursor)
            self._note(by_project)
            while self._with_exchanges(cursor):
                pass
            values = {
                "events": self._unread.events,
                "requests": self._unread.requests,
                "otherwise": self._cutoffs.otherwise,
                "spans": self._cutoffs.spans,
            }
            for name, statement in [*BY_AGE.items(), ("Review", LETTER_REVIEWS)]:
                while self._delete(cursor, name, f"{statement} LIMIT {AT_ONCE}", values) == AT_ONCE:
                    pass
            for name, table, unread in (
                ("ScoringTask", "scoring_tasks", self._unread.tasks),
                ("JudgingRequest", "judging_requests", self._unread.exchanges),
            ):
                statement = WITHOUT_EXCHANGE.format(table=table, places=PLACES)
                if _finds(cursor, statement, {"unread": unread}):
                    self._remove(name, _too_old(fetch(cursor, statement, {"unread": unread}), by_project))
            if self._has_states:
                self._forget_sessions(cursor)
        return self._purged

    def _cutoffs_of_projects(self, cursor: duckdb.DuckDBPyConnection) -> dict[str, datetime]:
        """The cutoff of each project with records; the cursor also has them as the table `cutoffs`."""
        names = [name for (name,) in cursor.execute(PROJECTS).fetchall()]
        by_project = {name: self._cutoffs.of(name) for name in names}
        values = {"projects": names, "cutoffs": [by_project[name].replace(tzinfo=None) for name in names]}
        cursor.execute(CUTOFFS, values)
        return by_project

    def _note(self, by_project: Mapping[str, datetime]) -> None:
        """Record the time from which each project's history is complete."""
        with self._store.transaction() as transaction:
            before = transaction.watermarks(RETENTION)
            starts = {(name, 0): _microseconds(cutoff) for name, cutoff in by_project.items() if cutoff > FOR_EVER}
            moved = {one: at for one, at in starts.items() if at > before.get(one, 0)}
            for part in [{one: at} for one, at in moved.items()] if len(moved) <= ONE_BY_ONE else [moved]:
                transaction.set_watermarks(RETENTION, part)

    def _with_exchanges(self, cursor: duckdb.DuckDBPyConnection) -> bool:
        """Delete the oldest exchanges with all records that belong to them; tell whether there may be more."""
        positions = {"tasks": self._unread.tasks, "exchanges": self._unread.exchanges}
        cursor.begin()
        try:
            cursor.execute(DOOMED, positions)
            if not _finds(cursor, "FROM doomed"):
                return False
            related = {name: fetch(cursor, statement) for name, statement in OF_EXCHANGES.items()}
        finally:
            cursor.commit()
        for name, frame in related.items():
            self._remove(name, frame)
        return related["Exchange"].height == AT_ONCE

    def _delete(self, cursor: duckdb.DuckDBPyConnection, name: str, statement: str, values: Mapping[str, Any]) -> int:
        used = {key: value for key, value in values.items() if f"${key}" in statement}
        return self._remove(name, fetch(cursor, statement, used)) if _finds(cursor, statement, used) else 0

    def _remove(self, name: str, rows: pl.DataFrame) -> int:
        """Delete rows of a record type, after marking the sessions that lose records as cut."""
        if self._has_states and "session_id" in rows.columns and rows.height:
            keys = rows.select(pl.concat_str("connection", pl.lit("/"), "session_id")).to_series().unique().to_list()
            with self._store.transaction() as transaction:
                transaction.set_states(CUT, dict.fromkeys(keys, b""), 0)
        removed = remove(self._store, name, rows)
        self._purged.rows[name] += removed
        self._purged.exchanges += rows.n_unique(["connection", "exchange_id"]) if name == "Exchange" and rows.height else 0
        self._purged.scores += rows["score_id"].n_unique() if name == "Score" else 0
        return rows.height

    def _forget_sessions(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete the states of sessions without any record left."""
        ends = {topic: self._store.end_of(topic) for topic in ("exchanges", "agent-events")}
        keys = {key for (key,) in cursor.execute(GONE, {"cut": CUT}).fetchall()}
        if not keys:
            return
        with self._store.transaction() as transaction:
            for topic, end in ends.items():
                # A session with new records meanwhile keeps its state.
                for frame in self._store.read(topic, end, transaction.end_of(topic) - end).values():
                    keys -= set(frame.select(pl.concat_str("connection", pl.lit("/"), "session_id")).to_series())
            transaction.drop_states(sorted(keys), SESSION_STAGES)


def _finds(cursor: duckdb.DuckDBPyConnection, statement: str, values: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a statement finds any row. Most days it does not, and no frame has to be built."""
    return bool(cursor.execute(f"SELECT EXISTS ({statement})", dict(values or {})).fetchall()[0][0])


def _too_old(left: pl.DataFrame, by_project: Mapping[str, datetime]) -> pl.DataFrame:
    """The rows whose encoded exchange happened before its project's cutoff."""
    batch = decode_batch(left["exchange"].to_list())
    exchanges = batch.frames.get("Exchange", pl.DataFrame())
    old = [
        place
        for place, project, at in exchanges.select("_index", "project", "occurred_at").iter_rows()
        if at < by_project.get(project, FOR_EVER)
    ]
    return left[old]


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def remove(store: Store, name: str, places: pl.DataFrame) -> int:
    """Delete the rows of a record type at these places; return how many still existed."""
    removed = 0
    for part in places.sort("_offset").iter_slices(IN_ONE_COMMIT):
        with store.transaction() as transaction:
            removed += transaction.remove(name, part)
    return removed


def remove_scores(store: Store, places: pl.DataFrame) -> int:
    """Delete the scores at these places and recompute their days; return their number. `places` needs `project` and `exchange_at` too."""
    since, removed = whole_since(store), 0
    for part in places.sort("_offset").iter_slices(IN_ONE_COMMIT):
        days = {(project, at.date()) for project, at in part.select("project", "exchange_at").iter_rows()}
        with store.transaction() as transaction:
            removed += transaction.remove("Score", part)
            recompute_days(transaction, (one for one in days if _midnight(one[1]) >= since.get(one[0], _EVER)))
    return removed


def whole_since(store: Store) -> dict[str, datetime]:
    """The time from which each project's history is complete, for projects that retention has reached."""
    with store.transaction() as transaction:
        starts = transaction.watermarks(RETENTION)
    return {project: datetime.fromtimestamp(at / 1_000_000, UTC) for (project, _), at in starts.items()}


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


@dataclass(frozen=True, slots=True)
class DoomedProject:
    """The exchanges of a project that retention would delete."""

    project: str
    kept_from: datetime
    """The cutoff: the midnight (UTC) from which exchanges are kept."""
    exchanges: int
    first: date
    last: date


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The rows that a run of retention would delete at this moment.

    Records that only become deletable by the run itself, such as the end of a session that loses its last exchange, are not counted.
    """

    projects: tuple[DoomedProject, ...]
    rows: dict[str, int]
    """Rows by table, those without any left out."""


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """The rows that an erasure would delete. Mentions in incidents, alerts and dead letters, and whole replays, are found only by the erasure itself."""

    rows: dict[str, int]
    """Rows by table, those without any left out."""
    sessions: int
    projects: tuple[str, ...]
    first: datetime | None
    """Time of the first exchange or event."""
    last: datetime | None


def plan_retention(store: Store, cutoffs: Cutoffs, unread: Unread) -> RetentionPlan:
    """Count the rows that a run of retention would delete."""
    values = {
        "tasks": unread.tasks,
        "exchanges": unread.exchanges,
        "events": unread.events,
        "requests": unread.requests,
        "otherwise": cutoffs.otherwise,
        "spans": cutoffs.spans,
    }
    with contextlib.closing(store.cursor()) as cursor:
        names = [name for (name,) in cursor.execute(PROJECTS).fetchall()]
        by_project = [cutoffs.of(name).replace(tzinfo=None) for name in names]
        cursor.execute(CUTOFFS, {"projects": names, "cutoffs": by_project})
        cursor.execute(DOOMED_OF_ALL, {name: values[name] for name in ("tasks", "exchanges")})
        doomed = cursor.execute(
            "SELECT project, count(*), min(occurred_at)::DATE, max(occurred_at)::DATE FROM doomed GROUP BY project ORDER BY project"
        ).fetchall()
        rows = Counter[str]()
        for name, statement in [*OF_EXCHANGES.items(), *BY_AGE.items(), ("Review", LETTER_REVIEWS)]:
            used = {key: value for key, value in values.items() if f"${key}" in statement}
            ((count,),) = cursor.execute(f"SELECT count(*) FROM ({statement})", used).fetchall()
            rows[schema_of(name).table] += count
    return RetentionPlan(
        tuple(DoomedProject(project, cutoffs.of(project), *rest) for project, *rest in doomed),
        {table: count for table, count in rows.items() if count},
    )


def plan_erasure(store: Store, connection: str, session_id: str | None) -> ErasurePlan:
    """Count the records of a session, or without a session id those of a whole connection."""
    whose = "connection = $connection AND ($session IS NULL OR session_id = $session)"
    values = {"connection": connection, "session": session_id}
    with contextlib.closing(store.cursor()) as cursor:
        rows = {schema.table: _count(cursor, full_name(schema), whose, values) for schema in schemas_of_sessions()}
        ((sessions, projects, first, last),) = cursor.execute(
            "SELECT count(DISTINCT (connection, session_id)), list_sort(list(DISTINCT project)), min(occurred_at), max(occurred_at) "
            f"FROM (SELECT connection, session_id, project, occurred_at FROM log.exchanges WHERE {whose} UNION ALL "
            f"SELECT connection, session_id, project, occurred_at FROM log.agent_events WHERE {whose})",
            values,
        ).fetchall()
    return ErasurePlan({table: found for table, found in rows.items() if found}, sessions, tuple(projects or ()), first, last)


def _count(cursor: duckdb.DuckDBPyConnection, table: str, whose: str, values: dict[str, str | None]) -> int:
    ((count,),) = cursor.execute(f"SELECT count(*) FROM {table} WHERE {whose}", values).fetchall()
    return int(count)


def forget_withdrawn(store: Store) -> int:
    """Delete the scores of withdrawn exchanges; return the number of rows."""
    with contextlib.closing(store.cursor()) as cursor:
        if not cursor.execute(_ANY).fetchall()[0][0]:
            return 0
        scores = fetch(cursor, _SCORES)
    return remove_scores(store, scores)


ERASED = {"erased": True}
"""The mark that replaces an exchange in an incident's evidence."""
TELLING = 8
"""Minimum length of a session id whose occurrence in unreadable bytes, or in a path, cannot be chance."""
MOST = 10_000
"""Maximum number of session ids searched for in such bytes and paths."""
READ_AT_ONCE = 1_000
"""Incidents whose evidence is in memory together: some ten kilobytes each, in every revision."""
_P = ", ".join(PLACE)
_THEIRS = (
    "(connection IN (SELECT connection FROM erased WHERE session_id IS NULL) "
    "OR (connection, session_id) IN (SELECT (connection, session_id) FROM erased WHERE session_id IS NOT NULL))"
)
_JUDGED = (
    f"SELECT score_id AS subject_id FROM log.scores WHERE {_THEIRS} "
    f"UNION ALL SELECT evaluation_id FROM log.evaluations WHERE {_THEIRS}"
)
_REVIEWS = f"SELECT {_P} FROM log.reviews SEMI JOIN ({_JUDGED}) USING (subject_id)"
_COPIES = {
    "ScoringTask": "exchange_id",
    "JudgingRequest": "exchange_id",
    "Reservation": "subject_id",
    "Judgement": "subject_id",
    "Score": "exchange_id",
    "Exchange": "exchange_id",
}
"""The records of a copy of an anchor's exchange, and the column with the copy's id: the anchor's, an at sign and the round."""
_OF_ANCHORS = "list_contains($ids, split_part({}, '@', 1))"
_LAST = ("Reservation", "Judgement", "Score", "Exchange")
"""The records of a session that are deleted after all others, in this order."""
_SPANS = (
    f"SELECT {_P} FROM log.spans WHERE {_THEIRS} OR (session_id = trace_id AND (connection, trace_id) IN ("
    f"SELECT (connection, trace_id) FROM log.spans WHERE {_THEIRS} "
    f"UNION SELECT (connection, trace_id) FROM log.trace_assemblies WHERE {_THEIRS}))"
)
"""Spans of erased sessions, and spans of their traces that name no session and so have the trace's id as session id."""
_STATES = (
    "DELETE FROM log.stage_state WHERE key IN (SELECT connection || '/' || session_id FROM gone) "
    "OR split_part(key, '/', 1) IN (SELECT connection FROM gone WHERE session_id IS NULL)"
)
_FILES = "DELETE FROM log.import_progress WHERE EXISTS (SELECT 1 FROM (SELECT unnest($ids) AS id) WHERE contains(path, id))"
_IDS = (
    f"SELECT session_id FROM log.exchanges WHERE {_THEIRS} UNION SELECT session_id FROM log.agent_events WHERE {_THEIRS} "
    "UNION SELECT session_id FROM erased WHERE session_id IS NOT NULL LIMIT $most"
)


class Erasing:
    """One erasure run over a store."""

    def __init__(self, store: Store, erased: Erased) -> None:
        self._store = store
        self._erased = erased
        self._deleted: Counter[str] = Counter()
        self._ids: list[str] = []
        self._is_marked = False

    def run(self) -> Counter[str]:
        """Erase; return the number of rows deleted or redacted, by table."""
        with contextlib.closing(self._store.cursor()) as cursor:
            with registered(cursor, self._erased.frame()):
                cursor.execute(f"CREATE OR REPLACE TEMP TABLE erased AS SELECT * FROM {BATCH}")
            ids = cursor.execute(_IDS, {"most": MOST}).fetchall()
            self._ids = [session for (session,) in ids if len(session) >= TELLING]
            self._blacken_incidents(cursor)
            self._drop_alerts(cursor)
            self._remove_anchors(cursor)
            self._remove_letters(cursor)
            self._remove("Review", fetch(cursor, _REVIEWS))
            self._remove("Span", fetch(cursor, _SPANS))
            names = [schema.name for schema in schemas_of_sessions()]
            for name in [*(name for name in names if name not in _LAST), *_LAST]:
                days = ", project, exchange_at" if name == "Score" else ""
                statement = f"SELECT {_P}{days} FROM {full_name(schema_of(name))} WHERE {_THEIRS}"
                self._remove(name, fetch(cursor, statement))
        self._forget_states()
        self._store.checkpoint()
        return self._deleted

    def _must_be_compacted(self) -> None:
        """Mark the file for compaction before anything is deleted, because free space will hold the data. A run that finds nothing sets no mark."""
        if not self._is_marked:
            with self._store.transaction() as transaction:
                transaction.set_watermark(COMPACTION, "", 1)
            self._is_marked = True

    def _remove(self, name: str, places: pl.DataFrame) -> None:
        if places.height:
            self._must_be_compacted()
        removed = remove_scores(self._store, places) if name == "Score" else remove(self._store, name, places)
        self._deleted[schema_of(name).table] += removed

    def _blacken_incidents(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Redact the erased sessions in the evidence of incidents, in every revision."""
        incidents = cursor.execute(f"SELECT {_P}, metadata FROM log.incidents")
        while part := incidents.fetchmany(READ_AT_ONCE):
            for *position, metadata in part:
                before = _json(metadata.encode())
                after = _blackened(before, self._erased)
                if after != before:
                    self._rewrite_incident(position, after)

    def _rewrite_incident(self, position: Sequence[object], evidence: Any) -> None:
        self._must_be_compacted()
        with self._store.transaction() as transaction:
            transaction.connection.execute(
                "UPDATE log.incidents SET metadata = ? WHERE _topic = ? AND _partition = ? AND _offset = ?",
                [canonical_json(evidence), *position],
            )
            outline_again(transaction.connection, position)
        self._deleted["incidents"] += 1

    def _drop_alerts(self, cursor: duckdb.DuckDBPyConnection) -> None:
        rows = cursor.execute("SELECT alert_id, subject_id, body FROM log.alerts").fetchall()
        theirs = [alert for alert, subject, body in rows if self._is_named(subject) or self._is_theirs(body.encode())]
        if theirs:
            self._must_be_compacted()
            with self._store.transaction() as transaction:
                transaction.connection.execute("DELETE FROM log.alerts WHERE alert_id IN (SELECT unnest(?))", [theirs])
            self._deleted["alerts"] += len(theirs)

    def _remove_anchors(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete the anchors made from erased exchanges; first their copies in every round, with the scores and judgements of those copies."""
        rows = fetch(cursor, f"SELECT {_P}, anchor_id, exchange FROM log.anchors")
        theirs = rows.filter(pl.Series([self._is_theirs(body) for body in rows["exchange"]], dtype=pl.Boolean))
        if theirs.height:
            for name, column in _COPIES.items():
                days = ", project, exchange_at" if name == "Score" else ""
                statement = f"SELECT {_P}{days} FROM {full_name(schema_of(name))} WHERE connection = $anchors AND {_OF_ANCHORS.format(column)}"
                self._remove(name, fetch(cursor, statement, {"anchors": ANCHORS, "ids": theirs["anchor_id"].to_list()}))
            self._remove("Anchor", theirs)

    def _remove_letters(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete dead letters whose bytes hold erased records, and people's decisions about those letters."""
        rows = fetch(cursor, f"SELECT {_P}, dead_letter_id, source, body, detail FROM log.dead_letters")
        theirs = rows.filter(
            pl.Series(
                [
                    self._is_theirs(body) or self._is_named(source) or self._stands_in(detail.encode())
                    for source, body, detail in rows.select("source", "body", "detail").iter_rows()
                ],
                dtype=pl.Boolean,
            )
        )
        with registered(cursor, theirs.select("dead_letter_id")):
            self._remove(
                "Review", fetch(cursor, f"SELECT {_P} FROM log.reviews SEMI JOIN {BATCH} ON subject_id = dead_letter_id")
            )
        self._remove("DeadLetter", theirs)

    def _forget_states(self) -> None:
        """Delete their stage states and the import progress of their files."""
        with self._store.transaction() as transaction, registered(transaction.connection, self._erased.frame()):
            transaction.connection.execute(f"CREATE OR REPLACE TEMP TABLE gone AS SELECT * FROM {BATCH}")
            for table, statement, values in (("stage_state", _STATES, {}), ("import_progress", _FILES, {"ids": self._ids})):
                ((deleted,),) = transaction.connection.execute(statement, values).fetchall()
                self._deleted[table] += deleted
                if deleted:
                    transaction.set_watermark(COMPACTION, "", 1)

    def _is_named(self, name: str) -> bool:
        """Tell whether a name refers to an erased session: by its id, its key, or a source that ends in its id."""
        parts = name.split("/", 1)
        return self._erased.has(parts[0], parts[-1]) or any(name == session for _, session in self._erased.sessions)

    def _is_theirs(self, body: bytes) -> bool:
        """Tell whether bytes hold a record of an erased session, or JSON that mentions one.

        Unreadable bytes count if they contain the id of an erased session.
        """
        try:
            value: Any = msgspec.to_builtins(decode(body))
        except RecordError:
            value = _json(body)
        if isinstance(value, dict | list):
            return bool(_blackened(value, self._erased) != value)
        return self._stands_in(body)

    def _stands_in(self, body: bytes) -> bool:
        return any(session.encode() in body for session in self._ids)


def _json(body: bytes) -> Any:
    """The JSON value of bytes; None if they are not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _blackened(value: Any, erased: Erased) -> Any:
    """A copy of a JSON value in which every part that names an erased session is replaced."""
    if isinstance(value, dict):
        connection = value.get("connection", value.get("connectionId", value.get("connection_id")))
        session = value.get("sessionId", value.get("session_id"))
        if erased.has(connection, session) or (connection is None and session in {one for _, one in erased.sessions}):
            return ERASED
        return {key: _blackened(inner, erased) for key, inner in value.items()}
    return [_blackened(inner, erased) for inner in value] if isinstance(value, list) else value
