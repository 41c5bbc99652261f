# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Retention, cooling and erasure: deletion of rows that are too old, in the lake, or of an erased session. The rules are in `README.md`.

Rows are deleted in batches, each in its own transaction, so that writers continue. `plan_*` counts the rows that retention or an
erasure would delete, and changes nothing. Hourly sums stay until `analytics.sums.daily.delete_hours` runs.

An erasure deletes the rows of sessions and connections, and redacts or deletes rows that mention them (rules 9 to 13).

Every retention run also deletes the scores of withdrawn exchanges, because an exchange can be scored after its withdrawal, and
recomputes the sums of their days. Judgements of withdrawn exchanges stay, because they were paid for.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

from analytics.deletion.deleting import ErasedMentions, ErasureScope, schemas_of_sessions
from analytics.deletion.text_keys import ForgetTexts
from analytics.store.connection import fetch
from analytics.store.positions import COLD, COMPACTION, POSITION, RETENTION
from analytics.store.store import Partition, Store
from analytics.store.tables import BATCH, full_name, registered
from analytics.sums.daily import recompute_days
from analytics.sums.kept import ALL_SUMS
from analytics.sums.list_sums import rebuild_outline
from audit.anchors import ANCHORS
from schemas.codec.arrow import decode_batch
from schemas.lazy import duckdb, pl
from schemas.registry import schema_of

NOTHING_UNREAD = 2**62
"""A position that no topic reaches."""
KEEP_FOREVER = datetime(1970, 1, 1, tzinfo=UTC)
"""The cutoff of a project that keeps records forever."""
TRUNCATED_STAGE = "retention"
"""Stage whose states name the sessions that lost their first records to retention."""
MAX_SINGLE_WATERMARKS = 100
"""Up to this many watermarks are written one by one, which does not load polars."""
SESSION_STAGES = (TRUNCATED_STAGE, "intake", "scoring", "diagnosis", "evaluation")
"""Stages with a state per session."""

MAX_ROWS = 200_000
"""Maximum number of exchanges, or other rows, to select at once."""
POSITION_COLUMNS = ", ".join(POSITION)
_SUBJECTS_IN = "SELECT connection, exchange_id AS subject_id FROM"
SELECT_PROJECTS = " UNION ".join(
    f"SELECT project FROM log.{table}"
    for table in (
        "exchanges", "agent_events", "scores", "judgements", "reservations", "reviews",
        "heartbeats", "diagnoses", "trace_assemblies", "session_closings", "evaluations", "evaluation_requests",
    )
)  # fmt: skip
CREATE_CUTOFFS = """
CREATE OR REPLACE TEMP TABLE cutoffs AS
SELECT unnest($projects::VARCHAR[]) AS project, unnest($cutoffs::TIMESTAMP[]) AS cutoff
"""
SELECT_EXPIRED = f"""
CREATE OR REPLACE TEMP TABLE expired AS
WITH pending AS (
    SELECT connection, exchange_id FROM log.scoring_tasks WHERE _offset >= $tasks
    UNION ALL
    SELECT connection, exchange_id FROM log.judging_requests WHERE _offset >= $exchanges
)
SELECT connection, session_id, exchange_id, project, occurred_at, {POSITION_COLUMNS}
FROM log.exchanges
JOIN cutoffs USING (project)
ANTI JOIN pending USING (connection, exchange_id)
WHERE occurred_at < cutoff AND _offset < $exchanges
"""
"""Selects all exchanges that retention would delete, for a dry run."""
SELECT_BATCH = f"{SELECT_EXPIRED}ORDER BY occurred_at\nLIMIT {MAX_ROWS}"
NOT_COOLED = frozenset({"Review", "Evaluation", "EvaluationRequest", "Span", "Diagnosis", "DeadLetter"})
"""Record types that cooling leaves: few rows, which lists, agreement and judged sessions of any time need."""
_FOR_REVIEW = "SELECT subject_id AS score_id FROM log.reviews WHERE kind IN ('human_score', 'queue_item')"
_IS_IN_LAKE = "EXISTS (SELECT 1 FROM lake_ranges WHERE topic = _topic AND partition = _partition AND _offset >= first_offset AND _offset < position)"
SELECT_COOLED = f"""{SELECT_EXPIRED}
    AND connection <> '{ANCHORS}'
    AND (connection, exchange_id) IN (SELECT (connection, exchange_id) FROM log.scores)
    AND (connection, exchange_id) NOT IN (SELECT (connection, exchange_id) FROM log.scores SEMI JOIN ({_FOR_REVIEW}) USING (score_id))
    AND {_IS_IN_LAKE}
ORDER BY occurred_at
LIMIT {MAX_ROWS}"""
"""Selects a batch of the exchanges that cooling deletes: scored ones that the lake has, without those for which people give scores."""
DELETED_WITH_EXCHANGES = {
    "Review": f"""
        SELECT {POSITION_COLUMNS} FROM log.reviews
        SEMI JOIN (SELECT score_id AS subject_id FROM log.scores SEMI JOIN expired USING (connection, exchange_id)) USING (subject_id)
        WHERE kind IN ('human_score', 'queue_item')""",
    "Score": f"SELECT score_id, {POSITION_COLUMNS} FROM log.scores SEMI JOIN expired USING (connection, exchange_id)",
    "ScoringTask": f"SELECT {POSITION_COLUMNS} FROM log.scoring_tasks SEMI JOIN expired USING (connection, exchange_id)",
    "JudgingRequest": f"SELECT {POSITION_COLUMNS} FROM log.judging_requests SEMI JOIN expired USING (connection, exchange_id)",
    # Delete reservations before judgements: a reservation without a judgement would look like an interrupted call.
    "Reservation": f"SELECT {POSITION_COLUMNS} FROM log.reservations SEMI JOIN ({_SUBJECTS_IN} expired) USING (connection, subject_id)",
    "Judgement": f"SELECT {POSITION_COLUMNS} FROM log.judgements SEMI JOIN ({_SUBJECTS_IN} expired) USING (connection, subject_id)",
    "Exchange": f"SELECT connection, session_id, exchange_id, {POSITION_COLUMNS} FROM expired",
}
"""Records that are deleted with exchanges, in this order."""
_JOIN_CUTOFFS = "JOIN cutoffs USING (project)"
_WITHOUT_SUBJECT = (
    f"ANTI JOIN ({_SUBJECTS_IN} log.exchanges) USING (connection, subject_id) "
    "ANTI JOIN (SELECT connection, evaluation_id AS subject_id FROM log.evaluation_requests) USING (connection, subject_id)"
)
DELETED_BY_AGE = {
    "Review": f"SELECT {POSITION_COLUMNS} FROM log.reviews {_JOIN_CUTOFFS} ANTI JOIN (SELECT score_id AS subject_id FROM log.scores) USING (subject_id) "
    "WHERE kind IN ('human_score', 'queue_item') AND occurred_at < cutoff",
    "Score": f"SELECT score_id, {POSITION_COLUMNS} FROM log.scores {_JOIN_CUTOFFS} ANTI JOIN log.exchanges USING (connection, exchange_id) "
    "WHERE exchange_at < cutoff",
    # A re-evaluation may reuse older answers, so the later time of request and evaluation counts.
    "Evaluation": f"SELECT {POSITION_COLUMNS} FROM log.evaluations {_JOIN_CUTOFFS} "
    "LEFT JOIN (SELECT request_id, requested_at FROM log.evaluation_requests) USING (request_id) "
    "WHERE greatest(evaluated_at, requested_at) < cutoff",
    "EvaluationRequest": f"SELECT {POSITION_COLUMNS} FROM log.evaluation_requests {_JOIN_CUTOFFS} "
    "ANTI JOIN (SELECT request_id FROM log.evaluations) USING (request_id) WHERE requested_at < cutoff AND _offset < $requests",
    "Reservation": f"SELECT {POSITION_COLUMNS} FROM log.reservations {_JOIN_CUTOFFS} {_WITHOUT_SUBJECT} WHERE reserved_at < cutoff",
    "Judgement": f"SELECT {POSITION_COLUMNS} FROM log.judgements {_JOIN_CUTOFFS} {_WITHOUT_SUBJECT} WHERE judged_at < cutoff",
    "AgentEvent": f"SELECT connection, session_id, {POSITION_COLUMNS} FROM log.agent_events {_JOIN_CUTOFFS} WHERE occurred_at < cutoff AND _offset < $events",
    # Spans of an assembled trace are needed only to merge late spans. Its exchanges and events are kept.
    "Span": f"SELECT {POSITION_COLUMNS} FROM log.spans WHERE ingested_at < $spans",
    "TraceAssembly": f"SELECT {POSITION_COLUMNS} FROM log.trace_assemblies {_JOIN_CUTOFFS} WHERE started_at < cutoff",
    "Heartbeat": f"SELECT {POSITION_COLUMNS} FROM log.heartbeats {_JOIN_CUTOFFS} WHERE occurred_at < cutoff",
    "Diagnosis": f"SELECT {POSITION_COLUMNS} FROM log.diagnoses {_JOIN_CUTOFFS} WHERE closed_at < cutoff",
    "SessionClosed": f"SELECT {POSITION_COLUMNS} FROM log.session_closings {_JOIN_CUTOFFS} ANTI JOIN log.exchanges USING (connection, session_id) "
    "ANTI JOIN log.agent_events USING (connection, session_id) WHERE closed_at < cutoff",
    "DeadLetter": f"SELECT {POSITION_COLUMNS} FROM log.dead_letters WHERE rejected_at < $otherwise",
}
"""Records that are deleted by their own time, in this order: leftovers of exchanges, and records without an exchange."""
ORPHANED_LETTER_REVIEWS = (
    f"SELECT {POSITION_COLUMNS} FROM log.reviews ANTI JOIN (SELECT dead_letter_id AS subject_id FROM log.dead_letters) USING (subject_id) "
    "WHERE kind = 'dead_letter' AND occurred_at < $otherwise"
)
ORPHANED_TASKS = """
SELECT project, exchange, {positions} FROM log.{table}
ANTI JOIN (SELECT hash(connection, exchange_id) AS stored FROM log.exchanges) ON hash(connection, exchange_id) = stored
WHERE _offset < $unread
"""
"""Compares hashes, which need a fraction of the memory. A collision would only keep a row."""
EMPTY_SESSIONS = """
WITH truncated AS (
    SELECT key, split_part(key, '/', 1) AS connection, substr(key, instr(key, '/') + 1) AS session_id
    FROM log.stage_state
    WHERE stage = $stage
)
SELECT key FROM truncated
ANTI JOIN log.exchanges USING (connection, session_id)
ANTI JOIN log.agent_events USING (connection, session_id)
"""

MAX_ROWS_PER_COMMIT = 100_000
"""Maximum number of rows to delete in one transaction, which takes 0.1 to 0.2 s including the sums."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_HAS_WITHDRAWN = "SELECT EXISTS (SELECT 1 FROM log.exchanges WHERE withdrawn)"
_WITHDRAWN_SCORES = (
    f"SELECT {', '.join(POSITION)}, project, exchange_at FROM log.scores "
    "SEMI JOIN (SELECT connection, exchange_id FROM log.exchanges WHERE withdrawn) USING (connection, exchange_id)"
)


@dataclass(frozen=True)
class Unread:
    """The position of the first record of each topic that its stage has not read."""

    exchanges: int = NOTHING_UNREAD
    tasks: int = NOTHING_UNREAD
    events: int = NOTHING_UNREAD
    requests: int = NOTHING_UNREAD
    """Requests for evaluations."""


@dataclass
class PurgeCounts:
    """The numbers of deleted exchanges and scores, each counted once for all revisions, and of deleted rows by record type."""

    exchanges: int = 0
    scores: int = 0
    rows: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Cutoffs:
    """The cutoffs, in UTC: of each project, of records without a project (`otherwise`), and of spans."""

    of: Callable[[str], datetime]
    otherwise: datetime
    spans: datetime
    """The cutoff of spans, by their time of ingestion."""


class Retention:
    """One retention run over a store. `unread` is None if the database runs no stages and so has no states.

    With `in_lake`, the offsets of each partition that a lake has, the run cools: it deletes only rows that the lake has, except those
    of `NOT_COOLED` and those that SELECT_COOLED leaves, and days before the cutoffs keep all of their sums.
    """

    def __init__(
        self, store: Store, cutoffs: Cutoffs, unread: Unread | None, in_lake: Mapping[Partition, range] | None = None
    ) -> None:
        self._store = store
        self._cutoffs = cutoffs
        self._has_states = unread is not None
        self._unread = unread or Unread()
        self._in_lake = None if in_lake is None else _frame_of_ranges(in_lake)
        self._counts = PurgeCounts()

    def run(self) -> PurgeCounts:
        """Delete all records before their cutoff."""
        with contextlib.closing(self._store.cursor()) as cursor:
            by_project = self._cutoffs_of_projects(cursor)
            self._record_cutoffs(by_project)
            if self._in_lake is not None:
                with registered(cursor, self._in_lake):
                    cursor.execute(f"CREATE OR REPLACE TEMP TABLE lake_ranges AS SELECT * FROM {BATCH}")
            while self._delete_exchanges(cursor):
                pass
            values = {
                "events": self._unread.events,
                "requests": self._unread.requests,
                "otherwise": self._cutoffs.otherwise,
                "spans": self._cutoffs.spans,
            }
            for name, statement in [*DELETED_BY_AGE.items(), ("Review", ORPHANED_LETTER_REVIEWS)]:
                if self._in_lake is not None:
                    if name in NOT_COOLED:
                        continue
                    # Before the limit, or rows that the lake does not have would take up every batch.
                    statement = f"FROM ({statement}) WHERE {_IS_IN_LAKE}"  # noqa: PLW2901
                while self._delete_selected(cursor, name, f"{statement} LIMIT {MAX_ROWS}", values) == MAX_ROWS:
                    pass
            for name, table, unread in (
                ("ScoringTask", "scoring_tasks", self._unread.tasks),
                ("JudgingRequest", "judging_requests", self._unread.exchanges),
            ):
                statement = ORPHANED_TASKS.format(table=table, positions=POSITION_COLUMNS)
                if _has_rows(cursor, statement, {"unread": unread}):
                    self._remove(name, _select_expired(fetch(cursor, statement, {"unread": unread}), by_project))
            if self._has_states:
                self._forget_sessions(cursor)
        return self._counts

    def _cutoffs_of_projects(self, cursor: duckdb.DuckDBPyConnection) -> dict[str, datetime]:
        """Return the cutoff of each project with records, and store them in the temporary table `cutoffs`."""
        names = [name for (name,) in cursor.execute(SELECT_PROJECTS).fetchall()]
        by_project = {name: self._cutoffs.of(name) for name in names}
        values = {"projects": names, "cutoffs": [by_project[name].replace(tzinfo=None) for name in names]}
        cursor.execute(CREATE_CUTOFFS, values)
        return by_project

    def _record_cutoffs(self, by_project: Mapping[str, datetime]) -> None:
        """Record the time from which each project's history is complete, or its details are in the database."""
        consumer = RETENTION if self._in_lake is None else COLD
        with self._store.transaction() as transaction:
            before = transaction.watermarks(consumer)
            starts = {(name, 0): _microseconds(cutoff) for name, cutoff in by_project.items() if cutoff > KEEP_FOREVER}
            later = {partition: start for partition, start in starts.items() if start > before.get(partition, 0)}
            if len(later) > MAX_SINGLE_WATERMARKS:
                transaction.set_watermarks(consumer, later)
                return
            for partition, start in later.items():
                transaction.set_watermarks(consumer, {partition: start})

    def _delete_exchanges(self, cursor: duckdb.DuckDBPyConnection) -> bool:
        """Delete a batch of the oldest exchanges with all their records; tell whether there may be more."""
        positions = {"tasks": self._unread.tasks, "exchanges": self._unread.exchanges}
        cursor.begin()
        try:
            cursor.execute(SELECT_BATCH if self._in_lake is None else SELECT_COOLED, positions)
            if not _has_rows(cursor, "FROM expired"):
                return False
            related = {name: fetch(cursor, statement) for name, statement in DELETED_WITH_EXCHANGES.items()}
        finally:
            cursor.commit()
        for name, frame in related.items():
            self._remove(name, frame)
        return related["Exchange"].height == MAX_ROWS

    def _delete_selected(self, cursor: duckdb.DuckDBPyConnection, name: str, statement: str, values: Mapping[str, Any]) -> int:
        used = {key: value for key, value in values.items() if f"${key}" in statement}
        return self._remove(name, fetch(cursor, statement, used)) if _has_rows(cursor, statement, used) else 0

    def _remove(self, name: str, rows: pl.DataFrame) -> int:
        """Delete rows of a record type, after marking the sessions that lose records as truncated; return their number.

        Cooling leaves rows that the lake does not have, or not yet.
        """
        if self._in_lake is not None:
            rows = rows.join(self._in_lake, left_on=["_topic", "_partition"], right_on=["topic", "partition"])
            rows = rows.filter(pl.col("_offset").is_between("first_offset", "position", closed="left"))
        if self._has_states and "session_id" in rows.columns and rows.height:
            keys = rows.select(pl.concat_str("connection", pl.lit("/"), "session_id")).to_series().unique().to_list()
            with self._store.transaction() as transaction:
                transaction.set_states(TRUNCATED_STAGE, dict.fromkeys(keys, b""), 0)
        removed = delete_rows(self._store, name, rows)
        self._counts.rows[name] += removed
        self._counts.exchanges += rows.n_unique(["connection", "exchange_id"]) if name == "Exchange" and rows.height else 0
        self._counts.scores += rows["score_id"].n_unique() if name == "Score" else 0
        return rows.height

    def _forget_sessions(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete the states of sessions without any record left."""
        ends = {topic: self._store.end_of(topic) for topic in ("exchanges", "agent-events")}
        keys = {key for (key,) in cursor.execute(EMPTY_SESSIONS, {"stage": TRUNCATED_STAGE}).fetchall()}
        if not keys:
            return
        with self._store.transaction() as transaction:
            for topic, end in ends.items():
                # Keep the state of a session with new records.
                for frame in self._store.read(topic, end, transaction.end_of(topic) - end).values():
                    keys -= set(frame.select(pl.concat_str("connection", pl.lit("/"), "session_id")).to_series())
            transaction.delete_states_of(sorted(keys), SESSION_STAGES)


def _has_rows(cursor: duckdb.DuckDBPyConnection, statement: str, values: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a statement returns any row, which is mostly false, without building a frame."""
    return bool(cursor.execute(f"SELECT EXISTS ({statement})", dict(values or {})).fetchall()[0][0])


def _select_expired(rows: pl.DataFrame, by_project: Mapping[str, datetime]) -> pl.DataFrame:
    """Return the rows whose encoded exchange is older than its project's cutoff."""
    batch = decode_batch(rows["exchange"].to_list())
    exchanges = batch.frames.get("Exchange", pl.DataFrame())
    expired = [
        index
        for index, project, at in exchanges.select("_index", "project", "occurred_at").iter_rows()
        if at < by_project.get(project, KEEP_FOREVER)
    ]
    return rows[expired]


def _frame_of_ranges(ranges: Mapping[Partition, range]) -> pl.DataFrame:
    rows = [(topic, number, offsets.start, offsets.stop) for (topic, number), offsets in ranges.items()]
    columns = {"topic": pl.String, "partition": pl.Int32, "first_offset": pl.Int64, "position": pl.Int64}
    return pl.DataFrame(rows, columns, orient="row")


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def delete_rows(store: Store, name: str, positions: pl.DataFrame) -> int:
    """Delete the rows of a record type at these positions; return how many existed."""
    removed = 0
    for part in positions.sort("_offset").iter_slices(MAX_ROWS_PER_COMMIT):
        with store.transaction() as transaction:
            removed += transaction.delete_at(name, part)
    return removed


def delete_scores(store: Store, positions: pl.DataFrame) -> int:
    """Delete the scores at these positions and recompute their days; return their number.

    `positions` also has the columns `project` and `exchange_at`.
    """
    since = complete_since(store)
    removed = 0
    for part in positions.sort("_offset").iter_slices(MAX_ROWS_PER_COMMIT):
        days = {(project, at.date()) for project, at in part.select("project", "exchange_at").iter_rows()}
        with store.transaction() as transaction:
            removed += transaction.delete_at("Score", part)
            recompute_days(
                transaction, ((project, day) for project, day in days if _midnight(day) >= since.get(project, _EPOCH))
            )
    return removed


def complete_since(store: Store) -> dict[str, datetime]:
    """Return the time from which the database has a project's complete history, for projects with deleted or cold records."""
    starts: dict[str, int] = {}
    with store.transaction() as transaction:
        for consumer in (RETENTION, COLD):
            for (project, _), at in transaction.watermarks(consumer).items():
                starts[project] = max(at, starts.get(project, 0))
    return {project: datetime.fromtimestamp(at / 1_000_000, UTC) for project, at in starts.items()}


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


@dataclass(frozen=True, slots=True)
class ExpiredProject:
    """The exchanges of a project that retention would delete."""

    project: str
    kept_from: datetime
    """The cutoff: midnight (UTC) of the first day to keep."""
    exchanges: int
    first: date
    last: date


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The rows that a retention run would delete now.

    Records that become deletable only during the run are not counted, such as the end of a session that loses its last exchange.
    """

    projects: tuple[ExpiredProject, ...]
    rows: dict[str, int]
    """Rows by table, for tables with any."""


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """The rows that an erasure would delete. Only the erasure itself finds mentions in incidents, alerts and dead letters, and replays."""

    rows: dict[str, int]
    """Rows by table, for tables with any."""
    sessions: int
    projects: tuple[str, ...]
    first: datetime | None
    """Time of the first exchange or event."""
    last: datetime | None


def plan_retention(store: Store, cutoffs: Cutoffs, unread: Unread) -> RetentionPlan:
    """Count the rows that a retention run would delete."""
    values = {
        "tasks": unread.tasks,
        "exchanges": unread.exchanges,
        "events": unread.events,
        "requests": unread.requests,
        "otherwise": cutoffs.otherwise,
        "spans": cutoffs.spans,
    }
    with contextlib.closing(store.cursor()) as cursor:
        names = [name for (name,) in cursor.execute(SELECT_PROJECTS).fetchall()]
        by_project = [cutoffs.of(name).replace(tzinfo=None) for name in names]
        cursor.execute(CREATE_CUTOFFS, {"projects": names, "cutoffs": by_project})
        cursor.execute(SELECT_EXPIRED, {name: values[name] for name in ("tasks", "exchanges")})
        expired = cursor.execute(
            "SELECT project, count(*), min(occurred_at)::DATE, max(occurred_at)::DATE FROM expired GROUP BY project ORDER BY project"
        ).fetchall()
        rows = Counter[str]()
        for name, statement in [*DELETED_WITH_EXCHANGES.items(), *DELETED_BY_AGE.items(), ("Review", ORPHANED_LETTER_REVIEWS)]:
            used = {key: value for key, value in values.items() if f"${key}" in statement}
            ((count,),) = cursor.execute(f"SELECT count(*) FROM ({statement})", used).fetchall()
            rows[schema_of(name).table] += count
    return RetentionPlan(
        tuple(ExpiredProject(project, cutoffs.of(project), count, first, last) for project, count, first, last in expired),
        {table: count for table, count in rows.items() if count},
    )


def plan_erasure(store: Store, connection: str, session_id: str | None) -> ErasurePlan:
    """Count the records of a session, or of a whole connection without a session id."""
    condition = "connection = $connection AND ($session IS NULL OR session_id = $session)"
    values = {"connection": connection, "session": session_id}
    with contextlib.closing(store.cursor()) as cursor:
        rows = {schema.table: _count(cursor, full_name(schema), condition, values) for schema in schemas_of_sessions()}
        ((sessions, projects, first, last),) = cursor.execute(
            "SELECT count(DISTINCT (connection, session_id)), list_sort(list(DISTINCT project)), min(occurred_at), max(occurred_at) "
            f"FROM (SELECT connection, session_id, project, occurred_at FROM log.exchanges WHERE {condition} UNION ALL "
            f"SELECT connection, session_id, project, occurred_at FROM log.agent_events WHERE {condition})",
            values,
        ).fetchall()
    return ErasurePlan({table: count for table, count in rows.items() if count}, sessions, tuple(projects or ()), first, last)


def _count(cursor: duckdb.DuckDBPyConnection, table: str, condition: str, values: dict[str, str | None]) -> int:
    ((count,),) = cursor.execute(f"SELECT count(*) FROM {table} WHERE {condition}", values).fetchall()
    return int(count)


def delete_withdrawn_scores(store: Store) -> int:
    """Delete the scores of withdrawn exchanges; return the number of rows."""
    with contextlib.closing(store.cursor()) as cursor:
        if not cursor.execute(_HAS_WITHDRAWN).fetchall()[0][0]:
            return 0
        scores = fetch(cursor, _WITHDRAWN_SCORES)
    return delete_scores(store, scores)


MAX_IDS = 10_000
"""Maximum number of session ids to search for in unreadable bytes and paths."""
MAX_INCIDENTS = 1_000
"""Maximum number of incident revisions in memory, each with some ten kilobytes of evidence."""
_POSITION = ", ".join(POSITION)


def _is_erased_sql(erased: str) -> str:
    """Return the condition that a row belongs to a session or connection in the table `erased`."""
    return (
        f"(connection IN (SELECT connection FROM {erased} WHERE session_id IS NULL) "
        f"OR (connection, session_id) IN (SELECT (connection, session_id) FROM {erased} WHERE session_id IS NOT NULL))"
    )


_IS_ERASED = _is_erased_sql("erased")
_SUBJECTS = (
    f"SELECT score_id AS subject_id FROM log.scores WHERE {_IS_ERASED} "
    f"UNION ALL SELECT evaluation_id FROM log.evaluations WHERE {_IS_ERASED}"
)
_REVIEWS = f"SELECT {_POSITION}, subject_id FROM log.reviews SEMI JOIN ({_SUBJECTS}) USING (subject_id)"
ANCHOR_COPIES = {
    "ScoringTask": "exchange_id",
    "JudgingRequest": "exchange_id",
    "Reservation": "subject_id",
    "Judgement": "subject_id",
    "Score": "exchange_id",
    "Exchange": "exchange_id",
}
"""Record types of the copies of an anchor's exchange, and the column with the copy's id: the anchor's id, an at sign and the round."""
_IS_COPY = "list_contains($ids, split_part({}, '@', 1))"
_DELETED_LAST = ("Reservation", "Judgement", "Score", "Exchange")
"""Records of a session that are deleted after all others, in this order."""
_SPANS = (
    f"SELECT {_POSITION}, connection || '/' || trace_id AS trace FROM log.spans WHERE {_IS_ERASED} OR (session_id = trace_id AND (connection, trace_id) IN ("
    f"SELECT (connection, trace_id) FROM log.spans WHERE {_IS_ERASED} "
    f"UNION SELECT (connection, trace_id) FROM log.trace_assemblies WHERE {_IS_ERASED}))"
)
"""Spans of erased sessions, and spans of their traces that name no session and therefore have the trace id as session id."""
_SUMS_OF_SESSIONS = tuple(
    schema.table
    for sums in ALL_SUMS
    for schema in map(schema_of, sums.tables)
    if {"connection", "session_id"} <= {field["name"] for field in schema.fields}
)
"""Sums that name sessions. On hot days they are recomputed, and cold days have no records to compute them from."""
_IS_ERASED_KEY = _is_erased_sql("erased_keys")
_DELETE_FAILURES = (
    "DELETE FROM log.daily_failures WHERE rowid IN (SELECT row FROM "
    "(SELECT rowid AS row, unnest(examples, recursive := true) FROM log.daily_failures) "
    f"WHERE {_IS_ERASED_KEY})"
)
"""Failures with an example that was erased: the wording of their error may be of it."""
_DELETE_STATES = (
    "DELETE FROM log.stage_state WHERE key IN (SELECT connection || '/' || session_id FROM erased_keys) "
    "OR split_part(key, '/', 1) IN (SELECT connection FROM erased_keys WHERE session_id IS NULL)"
)
_DELETE_PROGRESS = (
    "DELETE FROM log.import_progress WHERE EXISTS (SELECT 1 FROM (SELECT unnest($ids) AS id) WHERE contains(path, id))"
)
_SELECT_IDS = (
    f"SELECT session_id FROM log.exchanges WHERE {_IS_ERASED} UNION SELECT session_id FROM log.agent_events WHERE {_IS_ERASED} "
    "UNION SELECT session_id FROM erased WHERE session_id IS NOT NULL LIMIT $most"
)


class ErasureRun:
    """One erasure run over a store."""

    def __init__(self, store: Store, erased: ErasureScope, forget_texts: ForgetTexts | None = None) -> None:
        """`forget_texts` is called before records are deleted that are not of these sessions, but about them."""
        self._store = store
        self._erased = erased
        self._forget_texts = forget_texts
        self._deleted: Counter[str] = Counter()
        self._mentions = ErasedMentions(erased, ())
        self._is_marked = False

    def run(self) -> Counter[str]:
        """Erase; return the number of rows deleted or redacted, by table."""
        with contextlib.closing(self._store.cursor()) as cursor:
            with registered(cursor, self._erased.frame()):
                cursor.execute(f"CREATE OR REPLACE TEMP TABLE erased AS SELECT * FROM {BATCH}")
            ids = cursor.execute(_SELECT_IDS, {"most": MAX_IDS}).fetchall()
            self._mentions = ErasedMentions(self._erased, [session for (session,) in ids])
            self._redact_incidents(cursor)
            self._delete_alerts(cursor)
            self._delete_anchors(cursor)
            self._delete_dead_letters(cursor)
            reviews = fetch(cursor, _REVIEWS)
            self._forget(reviews["subject_id"])
            self._remove("Review", reviews)
            spans = fetch(cursor, _SPANS)
            self._forget(spans["trace"])
            self._remove("Span", spans)
            names = [schema.name for schema in schemas_of_sessions()]
            for name in [*(name for name in names if name not in _DELETED_LAST), *_DELETED_LAST]:
                days = ", project, exchange_at" if name == "Score" else ""
                statement = f"SELECT {_POSITION}{days} FROM {full_name(schema_of(name))} WHERE {_IS_ERASED}"
                self._remove(name, fetch(cursor, statement))
        self._delete_states()
        self._store.checkpoint()
        return self._deleted

    def _forget(self, names: pl.Series) -> None:
        if self._forget_texts is not None and len(names):
            self._forget_texts(names.unique().sort().to_list())

    def _mark_for_compaction(self) -> None:
        """Mark the file for compaction before the first deletion, because free space will hold the erased data."""
        if not self._is_marked:
            with self._store.transaction() as transaction:
                transaction.set_watermark(COMPACTION, "", 1)
            self._is_marked = True

    def _remove(self, name: str, positions: pl.DataFrame) -> None:
        if positions.height:
            self._mark_for_compaction()
        removed = delete_scores(self._store, positions) if name == "Score" else delete_rows(self._store, name, positions)
        self._deleted[schema_of(name).table] += removed

    def _redact_incidents(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Redact the erased sessions in the evidence of incidents, in every revision."""
        incidents = cursor.execute(f"SELECT {_POSITION}, metadata FROM log.incidents")
        while rows := incidents.fetchmany(MAX_INCIDENTS):
            for *position, metadata in rows:
                redacted = self._mentions.redact(metadata)
                if redacted != metadata:
                    self._rewrite_incident(position, redacted)

    def _rewrite_incident(self, position: Sequence[object], evidence: str) -> None:
        self._mark_for_compaction()
        with self._store.transaction() as transaction:
            transaction.connection.execute(
                "UPDATE log.incidents SET metadata = ? WHERE _topic = ? AND _partition = ? AND _offset = ?",
                [evidence, *position],
            )
            rebuild_outline(transaction.connection, position)
        self._deleted["incidents"] += 1

    def _delete_alerts(self, cursor: duckdb.DuckDBPyConnection) -> None:
        rows = cursor.execute("SELECT alert_id, subject_id, body FROM log.alerts").fetchall()
        mentioning = [
            alert
            for alert, subject, body in rows
            if self._mentions.is_named(subject) or self._mentions.is_in_record(body.encode())
        ]
        if mentioning:
            self._mark_for_compaction()
            with self._store.transaction() as transaction:
                transaction.connection.execute("DELETE FROM log.alerts WHERE alert_id IN (SELECT unnest(?))", [mentioning])
            self._deleted["alerts"] += len(mentioning)

    def _delete_anchors(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete the anchors made from erased exchanges, after the copies of every round with their scores and judgements."""
        rows = fetch(cursor, f"SELECT {_POSITION}, anchor_id, exchange FROM log.anchors")
        erased = rows.filter(pl.Series([self._mentions.is_in_record(body) for body in rows["exchange"]], dtype=pl.Boolean))
        self._forget(erased["anchor_id"])
        if erased.height:
            for name, column in ANCHOR_COPIES.items():
                days = ", project, exchange_at" if name == "Score" else ""
                statement = f"SELECT {_POSITION}{days} FROM {full_name(schema_of(name))} WHERE connection = $anchors AND {_IS_COPY.format(column)}"
                self._remove(name, fetch(cursor, statement, {"anchors": ANCHORS, "ids": erased["anchor_id"].to_list()}))
            self._remove("Anchor", erased)

    def _delete_dead_letters(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete dead letters that hold erased records, and the reviews of these letters."""
        rows = fetch(cursor, f"SELECT {_POSITION}, dead_letter_id, source, body, detail FROM log.dead_letters")
        erased = rows.filter(
            pl.Series(
                [
                    self._mentions.is_in_letter(source, body, detail)
                    for source, body, detail in rows.select("source", "body", "detail").iter_rows()
                ],
                dtype=pl.Boolean,
            )
        )
        self._forget(erased["dead_letter_id"])
        with registered(cursor, erased.select("dead_letter_id")):
            self._remove(
                "Review", fetch(cursor, f"SELECT {_POSITION} FROM log.reviews SEMI JOIN {BATCH} ON subject_id = dead_letter_id")
            )
        self._remove("DeadLetter", erased)

    def _delete_states(self) -> None:
        """Delete the stage states of erased sessions, their sums of cold days, and the import progress of their files."""
        with self._store.transaction() as transaction, registered(transaction.connection, self._erased.frame()):
            transaction.connection.execute(f"CREATE OR REPLACE TEMP TABLE erased_keys AS SELECT * FROM {BATCH}")
            of_cold_days = [f"DELETE FROM log.{table} WHERE {_IS_ERASED_KEY}" for table in _SUMS_OF_SESSIONS]
            for statement in (*of_cold_days, _DELETE_FAILURES):
                ((deleted,),) = transaction.connection.execute(statement).fetchall()
                if deleted:
                    transaction.set_watermark(COMPACTION, "", 1)
            for table, statement, values in (
                ("stage_state", _DELETE_STATES, {}),
                ("import_progress", _DELETE_PROGRESS, {"ids": list(self._mentions.ids)}),
            ):
                ((deleted,),) = transaction.connection.execute(statement, values).fetchall()
                self._deleted[table] += deleted
                if deleted:
                    transaction.set_watermark(COMPACTION, "", 1)
