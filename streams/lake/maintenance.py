# ruff: noqa: S608 - statements are built from the names in the schemas; values are quoted literals
"""Upkeep of the lake: erasure, retention, compaction, and the removal of files that no version of a table refers to.

1. Everything that the `erasures` table names is deleted, each time: also what arrived since. The rules are those of a database
   (`analytics/deletion/README.md`, rule 10): rows of the sessions, anchors and their copies, dead letters and reviews about them; the
   evidence of incidents is redacted.
2. A deletion writes the remaining rows of a file again. The old file still has the erased rows, so after an erasure each replaced file of
   the table is removed at once. Readers that opened the table before then fail, and open it again.
3. Retention drops whole partitions, by the project and the day. A judgement goes by its own day, not by that of its exchange.
4. Small files are rewritten as larger ones. Replaced files stay for `KEPT_HOURS`, for readers that have opened the table. The same holds
   for files that no commit refers to, which a killed sink leaves: a sink takes far less time to write and to commit a file.
5. Every step may run beside sinks and in several processes. Where two conflict, one of them begins again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from typing import TypeVar

from tenacity import Retrying, before_sleep_log, retry_if_exception_type, stop_after_attempt

from analytics.deletion.deleting import ErasedMentions, ErasureScope, schemas_of_sessions
from analytics.deletion.retention import (
    ANCHOR_COPIES,
    DELETED_BY_AGE,
    DELETED_WITH_EXCHANGES,
    MAX_IDS,
)
from analytics.lake import DAY, ENCRYPTED, ORIGIN, PROJECT, Lake, all_types, lake_errors, writer_properties
from analytics.store.tables import literal
from audit.anchors import ANCHORS
from audit.policy import Policy
from schemas.codec.arrow import empty_frame
from schemas.errors import LakeError
from schemas.lazy import deltalake, pl
from schemas.registry import schema_of
from streams.kafka.encryption import TextEncryption
from streams.lake.encrypted_rows import DecryptedRows, decrypt_rows
from streams.log.admission import DEAD_LETTERS
from streams.upkeep.deletion import KEPT_SPANS, cutoff

KEPT_HOURS = 1
"""Hours for which replaced and unreferenced files are kept."""
TRIES = 20
"""How often a step begins again after a conflict with another process."""
FILE_BYTES = 256 * 1024 * 1024
"""The size to which files are compacted."""
_KEPT_REVIEWS = "kind NOT IN ('human_score', 'queue_item')"
"""Reviews that are decisions on incidents and the like: they stay."""
Result = TypeVar("Result")
log = logging.getLogger(__name__)


@dataclass
class MaintenanceReport:
    """What a run has changed."""

    erased: Counter[str] = field(default_factory=Counter)
    """Rows that were deleted or redacted because their session was erased, by table."""
    expired: Counter[str] = field(default_factory=Counter)
    """Rows that were deleted by retention, by table."""
    compacted: int = 0
    """Files that were replaced by larger ones."""
    removed: int = 0
    """Files that were removed."""


class LakeMaintenance:
    """See the module. Opens the tables of its own, so a sink of the same process may write meanwhile."""

    def __init__(self, root: str, policy: Policy, now: Callable[[], datetime]) -> None:
        self._root = root
        self._policy = policy
        self._now = now

    def run(self, encryption: TextEncryption | None = None) -> MaintenanceReport:
        """Do everything; `encryption` is for rows that are encrypted. Raises LakeError if there is no lake, or a table cannot be read or written."""
        report = MaintenanceReport()
        lake = Lake(self._root)
        lake.require()
        _erase(lake, report, encryption)
        for name in all_types():
            self._expire(lake, name, report)
            report.compacted += _repeat(lake, name, _compact)
            report.removed += _repeat(lake, name, _remove_files)
            _repeat(lake, name, deltalake.DeltaTable.create_checkpoint)
            _repeat(lake, name, deltalake.DeltaTable.cleanup_metadata)
        report.expired = +report.expired
        return report

    def erase(self, encryption: TextEncryption | None = None) -> MaintenanceReport:
        """Delete only what was erased."""
        report = MaintenanceReport()
        _erase(Lake(self._root), report, encryption)
        return report

    def _expire(self, lake: Lake, name: str, report: MaintenanceReport) -> None:
        """Drop the partitions that are past the retention of their project."""
        if name == "Review":
            return self._expire_reviews(lake, report)
        if name not in DELETED_WITH_EXCHANGES and name not in DELETED_BY_AGE:
            return None
        projects = {partition[PROJECT] for partition in lake.table(name).partitions()}
        report.expired[schema_of(name).table] += _delete(lake, name, self._past(name, projects))
        return None

    def _expire_reviews(self, lake: Lake, report: MaintenanceReport) -> None:
        projects = {partition[PROJECT] for partition in lake.table("Review").partitions()}
        past = self._past("Review", projects)
        if past:
            report.expired["reviews"] += _delete(lake, "Review", f"({past}) AND NOT ({_KEPT_REVIEWS})")

    def _past(self, name: str, projects: Iterable[str | None]) -> str:
        """Return the condition of rows that are past their retention; empty if there is no retention."""
        conditions = []
        for project in projects:
            first_day = self._first_day(name, project)
            if first_day is not None:
                owner = f"{PROJECT} IS NULL" if project is None else f"{PROJECT} = {literal(project)}"
                conditions.append(f"({owner} AND {DAY} < '{first_day}')")
        return " OR ".join(conditions)

    def _first_day(self, name: str, project: str | None) -> date | None:
        """Return the first day whose records are kept; None if all are."""
        if name == "Span":
            return (self._now() - KEPT_SPANS).date()
        days = self._policy.for_project(project or "").settings.retention_days
        return None if days is None else cutoff(self._now(), days).date()


def _erase(lake: Lake, report: MaintenanceReport, encryption: TextEncryption | None) -> None:
    """Delete the rows of erased sessions, and what mentions them; remove the files that had them."""
    pairs = _select(lake, "Erasure", "SELECT DISTINCT connection, session_id FROM t").rows()
    if not pairs:
        return
    erased = ErasureScope.from_pairs(pairs)
    condition = _is_erased(erased)
    ids = _select_column(lake, "AgentEvent", f"SELECT DISTINCT session_id FROM t WHERE {condition} LIMIT {MAX_IDS}")
    ids += _select_column(lake, "Exchange", f"SELECT DISTINCT session_id FROM t WHERE {condition} LIMIT {MAX_IDS}")
    sessions = {session for _, session in erased.sessions}
    mentions = ErasedMentions(erased, sorted({*sessions, *ids})[:MAX_IDS])

    def delete(name: str, rows: str) -> None:
        if rows:
            report.erased[schema_of(name).table] += _delete(lake, name, rows)

    def forget(names: Iterable[str]) -> None:
        if encryption is not None and (unique := sorted({*names})):
            encryption.forget_in_loop(unique)

    report.erased["incidents"] += _redact_incidents(lake, mentions)
    anchors = _read_rows(lake, "Anchor", "anchors", encryption)
    anchor_ids = anchors.forgotten["anchor_id"].to_list()
    anchor_ids += [
        anchor for anchor, body in anchors.rows.select("anchor_id", "exchange").iter_rows() if mentions.is_in_record(body)
    ]
    forget(anchor_ids)
    for name, column in ANCHOR_COPIES.items():
        delete(name, _among(f"split_part({column}, '@', 1)", anchor_ids, f"connection = {literal(ANCHORS)} AND "))
    delete("Anchor", _among("anchor_id", anchor_ids))
    letters = _read_rows(lake, "DeadLetter", DEAD_LETTERS, encryption)
    letter_ids = letters.forgotten["dead_letter_id"].to_list()
    letter_ids += [
        letter
        for letter, source, body, detail in letters.rows.select("dead_letter_id", "source", "body", "detail").iter_rows()
        if mentions.is_in_letter(source, body, detail)
    ]
    subjects = letter_ids + _select_column(lake, "Score", f"SELECT DISTINCT score_id FROM t WHERE {condition}")
    subjects += _select_column(lake, "Evaluation", f"SELECT DISTINCT evaluation_id FROM t WHERE {condition}")
    reviewed = {*_select_column(lake, "Review", "SELECT DISTINCT subject_id FROM t")}
    forget([*letter_ids, *reviewed.intersection(subjects)])
    delete("Review", _among("subject_id", subjects))
    delete("DeadLetter", _among("dead_letter_id", letter_ids))
    traces = {
        *_select(lake, "Span", f"SELECT DISTINCT connection, trace_id FROM t WHERE {condition}").rows(),
        *_select(lake, "TraceAssembly", f"SELECT DISTINCT connection, trace_id FROM t WHERE {condition}").rows(),
    }
    if traces:
        forget(f"{connection}/{trace}" for connection, trace in traces)
        named = _is_erased(ErasureScope(frozenset(), frozenset(traces)), "trace_id")
        delete("Span", f"session_id = trace_id AND {named}")
    for schema in sorted(schemas_of_sessions(), key=lambda schema: schema.name in {"Score", "Exchange"}):
        delete(schema.name, condition)
    for name in all_types():
        if report.erased[schema_of(name).table]:
            report.removed += _repeat(lake, name, _remove_replaced_files)
    report.erased = +report.erased


def _is_erased(erased: ErasureScope, session: str = "session_id") -> str:
    """Return the condition of the rows of erased sessions."""
    conditions = [_among("connection", sorted(erased.connections))]
    by_connection: dict[str, list[str]] = {}
    for connection, session_id in sorted(erased.sessions):
        by_connection.setdefault(connection, []).append(session_id)
    for connection, session_ids in by_connection.items():
        conditions.append(_among(session, session_ids, f"connection = {literal(connection)} AND "))
    return f"({' OR '.join(filter(None, conditions))})"


def _among(column: str, values: Iterable[str], condition: str = "") -> str:
    """Return the condition that the column has one of the values; empty without values."""
    listed = ", ".join(literal(value) for value in dict.fromkeys(values))
    return f"({condition}{column} IN ({listed}))" if listed else ""


def _redact_incidents(lake: Lake, mentions: ErasedMentions) -> int:
    """Redact erased sessions in the evidence of incidents, in every revision; return the number of changed revisions."""
    changed = 0
    incidents = _select(lake, "Incident", f"SELECT {', '.join(ORIGIN)}, metadata FROM t")
    for topic, partition, offset, metadata in incidents.iter_rows():
        redacted = mentions.redact(metadata)
        if redacted != metadata:
            _repeat(lake, "Incident", partial(_set_metadata, (topic, partition, offset), redacted))
            changed += 1
    return changed


def _set_metadata(origin: tuple[str, int, int], metadata: str, table: deltalake.DeltaTable) -> None:
    topic, partition, offset = origin
    table.update(
        predicate=f"_topic = {literal(topic)} AND _partition = {partition} AND _offset = {offset}",
        updates={"metadata": literal(metadata)},
        writer_properties=writer_properties(),
    )


def _delete(lake: Lake, name: str, condition: str) -> int:
    """Delete rows; return their number."""
    if not condition:
        return 0
    metrics = _repeat(lake, name, lambda table: table.delete(condition, writer_properties=writer_properties()))
    return int(metrics.get("num_deleted_rows", 0))


def _compact(table: deltalake.DeltaTable) -> int:
    """Rewrite small files as larger ones; return the number of files that were replaced."""
    metrics = table.optimize.compact(target_size=FILE_BYTES, writer_properties=writer_properties())
    return int(metrics["numFilesRemoved"])


def _remove_files(table: deltalake.DeltaTable) -> int:
    """Remove files that were replaced, or written and never committed, more than `KEPT_HOURS` ago; return their number."""
    return len(table.vacuum(KEPT_HOURS, dry_run=False, enforce_retention_duration=False, full=True))


def _remove_replaced_files(table: deltalake.DeltaTable) -> int:
    """Remove every replaced file at once; return their number. Files that a sink has not committed yet are left alone."""
    return len(table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=False))


def _read_rows(lake: Lake, name: str, topic: str, encryption: TextEncryption | None) -> DecryptedRows:
    """Return all rows of a table with their texts."""

    def read(table: deltalake.DeltaTable) -> pl.DataFrame:
        rows = pl.DataFrame(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t"))
        return rows.select(*empty_frame(name).columns, *([ENCRYPTED] if ENCRYPTED in rows.columns else []))

    return decrypt_rows(name, topic, _repeat(lake, name, read), encryption)


def _select(lake: Lake, name: str, statement: str) -> pl.DataFrame:
    """Return the result of a statement over a table, which it names `t`."""

    def query(table: deltalake.DeltaTable) -> pl.DataFrame:
        return pl.DataFrame(deltalake.QueryBuilder().register("t", table).execute(statement))

    return _repeat(lake, name, query)


def _select_column(lake: Lake, name: str, statement: str) -> list[str]:
    return [str(value) for (value,) in _select(lake, name, statement).rows()]


def _repeat(lake: Lake, name: str, step: Callable[[deltalake.DeltaTable], Result]) -> Result:
    """Run a step on the newest version of a table; again if another process changed the table meanwhile."""

    def run_step() -> Result:
        table = lake.table(name)
        table.update_incremental()
        return step(table)

    retrying = Retrying(
        retry=retry_if_exception_type(lake_errors()),
        stop=stop_after_attempt(TRIES),
        before_sleep=before_sleep_log(log, logging.INFO),
        reraise=True,
    )
    try:
        return retrying(run_step)
    except lake_errors() as error:
        raise LakeError(f"{lake.uri(name)}: {' '.join(str(error).split())}") from error
