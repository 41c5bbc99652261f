# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are parameters or literals, quoted
"""Sealing of an export of the log: the lines about the records that are new in it, and about those that it no longer has.

The digest of a record is computed once, by the first export that has it. Later exports only count the records that earlier lines cover,
because computing digests again would take longer than the export, and would sign a record that was changed since.

If fewer records are left than lines cover, the missing ones are looked up in the files of the previous export, which are still there,
and get a reason: an erasure that covers their session, the withdrawal of their exchange, or retention. Records without a reason are
reported, and the chain says so for good.
"""

from __future__ import annotations

import bisect
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from analytics.store.positions import COLD, RETENTION, read_watermarks
from analytics.store.store import Store
from analytics.store.tables import EVENT_TIMES, full_name, literal, quote
from audit.anchors import ANCHORS
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.registry import RecordSchema, current_schemas
from service.export.manifest import (
    NEW_FOLDER,
    Columns,
    Expired,
    Manifest,
    ManifestWriter,
    RecordLine,
    Records,
    Redacted,
    Removed,
    count_offsets,
    digest_file,
    runs_of,
)
from service.export.record_digests import (
    SUBJECT,
    columns_of,
    line_digests_sql,
    record_sql,
    select_digests,
    subject_digest_sql,
    subject_sql,
)

UNSEALED_TABLES = ("spans",)
"""Tables whose records have no line, because retention deletes them after a day."""
REDACTED_TABLES = ("incidents",)
"""The tables of which an erasure changes records in place."""
_ERASED_WITHOUT_SESSION = ("anchors", "dead_letters", "reviews")
"""The tables from which an erasure deletes records although no column names their session."""
_DELETED_WITH = {
    "judgements": ("exchanges", "exchange_id", "subject_id", "occurred_at"),
    "judging_requests": ("exchanges", "exchange_id", "exchange_id", "occurred_at"),
    "reservations": ("exchanges", "exchange_id", "subject_id", "occurred_at"),
    "reviews": ("scores", "score_id", "subject_id", "exchange_at"),
    "scoring_tasks": ("exchanges", "exchange_id", "exchange_id", "occurred_at"),
}
"""Tables whose records are deleted with another record: its table, its id, the column that refers to it, and its time."""


def sealed_schemas() -> Iterator[RecordSchema]:
    """Yield the record types whose records have a line."""
    return (schema for schema in current_schemas().values() if schema.topics and schema.table not in UNSEALED_TABLES)


@dataclass
class Sealed:
    """The result of sealing: the numbers of new records, and of removed and changed ones by table and reason."""

    new: int = 0
    removed: Counter[tuple[str, str]] = field(default_factory=Counter)


class _MissingRow(NamedTuple):
    """A record that the previous export had, with its digest and the reason why it is gone."""

    line: RecordLine
    partition: int
    offset: int
    connection: str
    session: str
    digest: str
    reason: str
    erasures: tuple[str, ...]


class LineIndex:
    """The lines of records of a manifest by the positions of their records."""

    def __init__(self, manifest: Manifest) -> None:
        self._runs: dict[tuple[str, int], list[tuple[int, int, RecordLine]]] = defaultdict(list)
        for line in manifest.records:
            for partition, first, last in runs_of(line.records):
                self._runs[line.records.topic, partition].append((first, last, line))
        for runs in self._runs.values():
            runs.sort(key=lambda run: run[0])

    def find(self, topic: str, partition: int, offset: int) -> RecordLine | None:
        """Return the line that has a record; None if no line has it."""
        runs = self._runs.get((topic, partition), [])
        index = bisect.bisect_right(runs, offset, key=lambda run: run[0]) - 1
        return runs[index][2] if index >= 0 and offset <= runs[index][1] else None


def seal(store: Store, folder: Path, manifest: Manifest, writer: ManifestWriter, report: Callable[[str], None]) -> Sealed:
    """Write the lines of an export whose files are not in the folder yet. `report` is called with each table's name first.

    Raises InputError if records are gone that the files of the previous export do not have.
    """
    with closing(store.cursor()) as cursor:
        sealing = _Sealing(cursor, folder, manifest, writer)
        for schema in sealed_schemas():
            report(schema.table)
            sealing.seal_table(schema)
        sealing.write_expired()
    return sealing.sealed


class _Sealing:
    """Sealing of one export."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, folder: Path, manifest: Manifest, writer: ManifestWriter) -> None:
        self._cursor = cursor
        self._folder = folder
        self._manifest = manifest
        self._writer = writer
        self._ends = manifest.ends()
        self._gone = manifest.gone()
        self._live = Counter({line.digest: line.records.count for line in manifest.records})
        self._live_parts: Counter[tuple[str, str, int]] = Counter()
        """Numbers of records that the previous export had, by topic, table and partition."""
        self._expired: list[RecordLine] = []
        self._erasures: list[str] | None = None
        self._files: dict[str, Path | None] = {}
        for line in manifest.records:
            for partition, runs in line.records.positions:
                if line.digest not in manifest.expired:
                    self._live_parts[line.records.topic, line.records.table, partition] += count_offsets(runs)
        for topic, partition, offset in self._gone:
            owner = self._index.find(topic, partition, offset)
            if owner is not None and owner.digest not in manifest.expired:
                self._live[owner.digest] -= 1
                self._live_parts[topic, owner.records.table, partition] -= 1
        self.sealed = Sealed()

    @functools.cached_property
    def _index(self) -> LineIndex:
        return LineIndex(self._manifest)

    def seal_table(self, schema: RecordSchema) -> None:
        """Write the lines about a table."""
        counts = self._count_rows(schema)
        parts = sorted(counts.keys() | {(topic, part) for topic, table, part in self._ends if table == schema.table})
        differing = [
            (topic, part)
            for topic, part in parts
            if counts.get((topic, part), (0, 0))[0] != self._live_parts[topic, schema.table, part]
        ]
        late = self._write_missing(schema, differing, counts) if differing else []
        if schema.table in REDACTED_TABLES and self._find_erasures():
            self._write_redacted(schema)
        self._write_new(schema, [part for part, (covered, total) in counts.items() if total > covered], late)

    def _count_rows(self, schema: RecordSchema) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the number of rows that lines may cover, and of all rows, by topic and partition."""
        table = full_name(schema)
        counts = {}
        # DuckDB knows the smallest and largest values of a table. Grouping would read the columns.
        ((topic, last_topic, part, last_part, *size),) = self._cursor.execute(
            f"SELECT min(_topic), max(_topic), min(_partition), max(_partition), count(*), max(_offset) FROM {table}"
        ).fetchall()
        parts = [(topic, part, *size)] if topic is not None else []
        if (topic, part) != (last_topic, last_part):
            parts = self._cursor.execute(
                f"SELECT _topic, _partition, count(*), max(_offset) FROM {table} GROUP BY ALL"
            ).fetchall()
        for name, partition, total, last in parts:
            end = self._ends.get((name, schema.table, partition), 0)
            new = 0
            if last >= end:
                ((new,),) = self._cursor.execute(
                    f"SELECT count(*) FROM {table} WHERE _topic = $topic AND _partition = $part AND _offset >= $end",
                    {"topic": name, "part": partition, "end": end},
                ).fetchall()
            counts[name, partition] = (total - new, total)
        return counts

    def _lines_of(self, table: str) -> list[RecordLine]:
        return [line for line in self._manifest.records if line.records.table == table]

    def _write_new(self, schema: RecordSchema, parts: Sequence[tuple[str, int]], late: Sequence[tuple[str, int]]) -> None:
        """Write lines of records that no line has yet: those after the covered ones, and in the parts `late` any others."""
        for topic in sorted({topic for topic, _ in (*parts, *late)}):
            columns = columns_of(schema, topic, EVENT_TIMES[schema.table])
            sources = []
            for part in sorted(part for name, part in {*parts, *late} if name == topic):
                end = self._ends.get((topic, schema.table, part), 0)
                source = f"{full_name(schema)} WHERE _topic = {literal(topic)} AND _partition = {part} AND "
                sources.append(f"{source} _offset >= {end}")
                if (topic, part) in late:
                    sources.append(
                        f"{source} _offset < {end} AND NOT EXISTS (SELECT 1 FROM runs WHERE runs._topic = {literal(topic)} "
                        f"AND runs._partition = {part} AND _offset BETWEEN runs.first AND runs.last)"
                    )
            rows = " UNION ALL ".join(select_digests(columns, source) for source in sources)
            self._cursor.execute(f"CREATE OR REPLACE TEMP TABLE new_records AS {rows}")
            self._write_lines(schema, columns)

    def _write_lines(self, schema: RecordSchema, columns: Columns) -> None:
        runs: dict[str | None, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        islands = "SELECT day, _partition, _offset, _offset - row_number() OVER (PARTITION BY day, _partition ORDER BY _offset) AS island FROM new_records"
        for day, partition, first, last in self._cursor.execute(
            f"SELECT day, _partition, min(_offset), max(_offset) FROM ({islands}) GROUP BY day, _partition, island ORDER BY ALL"
        ).fetchall():
            runs[day][partition] += [first, last]
        digests = line_digests_sql("new_records", "day", subject_digest_sql("connection"), subject_digest_sql("session_id"))
        previous = self._manifest.columns.get((columns.topic, columns.table))
        if previous is None or (previous.columns, previous.day) != (columns.columns, columns.day):
            self._writer.add(columns)
        for day, count, digest, checks in self._cursor.execute(f"{digests} ORDER BY day NULLS FIRST").fetchall():
            self.sealed.new += count
            self._writer.add(
                Records(
                    topic=columns.topic,
                    table=schema.table,
                    day=day,
                    count=count,
                    positions=[*runs[day].items()],
                    digest=digest,
                    checks=checks,
                )
            )

    def _write_missing(
        self, schema: RecordSchema, parts: Sequence[tuple[str, int]], counts: Mapping[tuple[str, int], tuple[int, int]]
    ) -> list[tuple[str, int]]:
        """Write lines about records of a table that are gone. Return the parts that have uncovered records before their end."""
        self._create_runs(schema, parts)
        rows = self._find_missing(schema)
        by_line = Counter(row.line.digest for row in rows)
        forgotten = {
            digest
            for digest, count in by_line.items()
            if count == self._live[digest] and all(row.reason == "retention" for row in rows if row.line.digest == digest)
        }
        groups: dict[tuple[str, str, str, str, tuple[str, ...]], list[tuple[int, int, str]]] = defaultdict(list)
        for row in rows:
            self.sealed.removed[schema.table, row.reason] += 1
            if row.line.digest not in forgotten:
                key = (row.line.records.topic, row.connection, row.session, row.reason, row.erasures)
                groups[key].append((row.partition, row.offset, row.digest))
        for (topic, connection, session, reason, erasures), positions in sorted(groups.items()):
            self._writer.add(
                Removed(
                    topic=topic,
                    table=schema.table,
                    connection=connection,
                    session=session,
                    rows=sorted(positions),
                    reason=reason,
                    erasures=list(erasures),
                )
            )
        self._expired += [line for line in self._lines_of(schema.table) if line.digest in forgotten]
        missing = Counter((row.line.records.topic, row.partition) for row in rows)
        return [
            (topic, part)
            for topic, part in parts
            if counts.get((topic, part), (0, 0))[0] > self._live_parts[topic, schema.table, part] - missing[topic, part]
        ]

    def write_expired(self) -> None:
        """Write the lines about days of which retention has left nothing."""
        for line in self._expired:
            records = line.records
            self._writer.add(
                Expired(topic=records.topic, table=records.table, records=line.digest, count=self._live[line.digest])
            )

    def _create_runs(self, schema: RecordSchema, parts: Sequence[tuple[str, int]]) -> None:
        """Create the tables of the positions that lines of records cover, and of those that later lines name as gone."""
        runs = [
            (number, line.records.topic, *run)
            for number, line in enumerate(self._lines_of(schema.table))
            for run in runs_of(line.records)
            if (line.records.topic, run[0]) in parts
        ]
        expired = [number for number, line in enumerate(self._lines_of(schema.table)) if line.digest in self._manifest.expired]
        fill_table(self._cursor, "runs", "line INTEGER, _topic VARCHAR, _partition INTEGER, first BIGINT, last BIGINT", runs)
        fill_table(self._cursor, "gone", "_topic VARCHAR, _partition INTEGER, _offset BIGINT", sorted(self._gone))
        fill_table(self._cursor, "expired", "line INTEGER", [(number,) for number in expired])

    def _find_missing(self, schema: RecordSchema) -> list[_MissingRow]:
        """Return the records that lines cover and the database no longer has, with what the previous export says of them."""
        positions = "_topic, _partition, _offset"
        self._cursor.execute(
            "CREATE OR REPLACE TEMP TABLE missing AS SELECT * FROM (SELECT line, _topic, _partition, unnest(range(first, last + 1)) AS _offset "
            f"FROM runs ANTI JOIN expired USING (line)) ANTI JOIN {full_name(schema)} USING ({positions}) ANTI JOIN gone USING ({positions})"
        )
        ((count,),) = self._cursor.execute("SELECT count(*) FROM missing").fetchall()
        if not count:
            return []
        rows: list[_MissingRow] = []
        file = self._find_file(schema.table)
        if file is not None:
            lines = self._lines_of(schema.table)
            for columns in {repr(line.columns): line.columns for line in lines}.values():
                numbers = [number for number, line in enumerate(lines) if line.columns == columns]
                for number, *values, erasures in self._read_reasons(schema, columns, file, numbers):
                    partition, offset, connection, session, digest, reason = values
                    rows.append(
                        _MissingRow(lines[number], partition, offset, connection, session, digest, reason, tuple(erasures))
                    )
        if len(rows) != count:
            raise InputError(
                f"{self._folder / schema.table}.parquet: {count} records are gone from the database, and the file of the previous "
                f"export is missing, was changed, or has {len(rows)} of them",
                hint=NEW_FOLDER,
            )
        return rows

    def _read_reasons(self, schema: RecordSchema, columns: Columns, file: Path, lines: Sequence[int]) -> list[Any]:
        """Return the missing rows of these lines from a file of the previous export.

        A row is its line, partition, offset, the digests of connection, session and record, the reason, and the ids of erasures.
        """
        connection, session = subject_sql(columns)
        names = {name for name, _ in columns.columns}
        time = f"epoch_us(coalesce({', '.join(map(quote, columns.day))}))" if columns.day else "NULL::BIGINT"
        project = "project" if "project" in names else "NULL::VARCHAR"
        watermarks = [*read_watermarks(self._cursor, RETENTION).items(), *read_watermarks(self._cursor, COLD).items()]
        cutoffs = [
            (project, max(at for (name, _), at in watermarks if name == project))
            for project in {name for (name, _), _ in watermarks}
        ]
        fill_table(self._cursor, "cutoffs", "project VARCHAR, cutoff BIGINT", cutoffs)
        erased = "NULL::VARCHAR[]"
        if set(SUBJECT) <= names:
            named = f"e.connection = r.{SUBJECT[0]} AND (e.session_id IS NULL OR e.session_id = r.{SUBJECT[1]})"
            erased = f"(SELECT list(e.erasure_id ORDER BY e.erasure_id) FROM log.erasures AS e WHERE {named})"
        # No column names the session, so these records go with the erasures since the previous export.
        is_nameless = f"{schema.table in _ERASED_WITHOUT_SESSION} OR coalesce({connection} = {literal(ANCHORS)}, false)"
        withdrawn = "SELECT (connection, exchange_id) FROM log.exchanges WHERE withdrawn"
        return self._cursor.execute(
            f"""
            WITH old AS (
                SELECT line, _partition, _offset, {subject_digest_sql(connection)} AS c, {subject_digest_sql(session)} AS s,
                    {record_sql(columns)} AS digest, {erased} AS erased, {is_nameless} AS is_nameless,
                    {f"(connection, exchange_id) IN ({withdrawn})" if schema.table == "scores" else "false"} AS is_withdrawn,
                    least({time}, {self._parent_time(schema)}) AS dated, {project} AS project, {self._parent_is_gone(schema)} AS is_orphan
                FROM read_parquet({literal(str(file))}) AS r
                JOIN missing USING (_topic, _partition, _offset)
                WHERE list_contains($lines, line)
            ), explained AS (
                SELECT old.*, cutoff, CASE WHEN len(erased) > 0 THEN erased WHEN is_nameless THEN $erasures::VARCHAR[] END AS erasures,
                    (SELECT max(cutoff) FROM cutoffs) AS last_cutoff
                FROM old LEFT JOIN cutoffs USING (project)
            ), reasons AS (
                SELECT *, CASE
                    WHEN len(erased) > 0 THEN 'erasure'
                    WHEN is_withdrawn THEN 'withdrawal'
                    WHEN dated < coalesce(cutoff, if(project IS NULL, last_cutoff, NULL)) OR (is_orphan AND cutoff > 0) THEN 'retention'
                    WHEN len(erasures) > 0 THEN 'erasure'
                    ELSE 'unexplained'
                END AS reason
                FROM explained
            )
            SELECT line, _partition, _offset, c, s, digest, reason, if(reason = 'erasure', erasures, []) FROM reasons ORDER BY ALL
            """,
            {"lines": list(lines), "erasures": self._find_erasures()},
        ).fetchall()

    def _parent_time(self, schema: RecordSchema) -> str:
        """Return the SQL expression of the time of the record with which a record is deleted."""
        parent = self._parent_file(schema)
        if parent is None:
            return "NULL"
        _, identity, reference, time = _DELETED_WITH[schema.table]
        return f"(SELECT min(epoch_us(p.{time})) FROM {parent} AS p WHERE p.{identity} = r.{reference})"

    def _parent_is_gone(self, schema: RecordSchema) -> str:
        parent = self._parent_file(schema)
        if parent is None:
            return "false"
        _, identity, reference, _ = _DELETED_WITH[schema.table]
        is_child = "r.kind IN ('human_score', 'queue_item')" if schema.table == "reviews" else "true"
        return f"{is_child} AND NOT EXISTS (SELECT 1 FROM {parent} AS p WHERE p.{identity} = r.{reference})"

    def _parent_file(self, schema: RecordSchema) -> str | None:
        file = self._find_file(_DELETED_WITH[schema.table][0]) if schema.table in _DELETED_WITH else None
        return None if file is None else f"read_parquet({literal(str(file))})"

    def _find_file(self, table: str) -> Path | None:
        """Return the file of a table, None if there is none or no export wrote it: a changed file could give a false reason."""
        if table not in self._files:
            path = self._folder / f"{table}.parquet"
            is_ours = path.exists() and (path.name, digest_file(path)) in self._manifest.earlier_files
            self._files[table] = path if is_ours else None
        return self._files[table]

    def _find_erasures(self) -> list[str]:
        """Return the ids of the erasures that no line covers yet; of all, if there is no such erasure, because an erasure takes time."""
        if self._erasures is None:
            rows = self._cursor.execute(
                "SELECT _topic, _partition, _offset, erasure_id FROM log.erasures ORDER BY ALL"
            ).fetchall()
            ids = [erasure for *_, erasure in rows]
            self._erasures = [erasure for *position, erasure in rows if self._index.find(*position) is None] or ids
        return self._erasures

    def _write_redacted(self, schema: RecordSchema) -> None:
        """Write a line about the records of a table that were changed in place since the previous export."""
        file = self._find_file(schema.table)
        if file is None:
            return
        changed: dict[str, list[tuple[int, int, str, str]]] = defaultdict(list)
        for columns in {repr(line.columns): line.columns for line in self._lines_of(schema.table)}.values():
            digests = select_digests(columns, full_name(schema))
            before = select_digests(columns, f"read_parquet({literal(str(file))})")
            rows = self._cursor.execute(
                f"SELECT _topic, _partition, _offset, old.digest, new.digest FROM ({before}) AS old JOIN ({digests}) AS new "
                "USING (_topic, _partition, _offset) WHERE old.digest <> new.digest ORDER BY ALL"
            ).fetchall()
            for topic, partition, offset, old, new in rows:
                line = self._index.find(topic, partition, offset)
                if line is not None and line.columns == columns:
                    changed[topic].append((partition, offset, old, new))
        for topic, redacted in changed.items():
            self.sealed.removed[schema.table, "redaction"] += len(redacted)
            self._writer.add(Redacted(topic=topic, table=schema.table, rows=redacted, erasures=self._find_erasures()))


def fill_table(cursor: duckdb.DuckDBPyConnection, name: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Create a temporary table with these rows."""
    names = [column.split()[0] for column in columns.split(", ")]
    types = [column.split()[1] for column in columns.split(", ")]
    lists = ", ".join(
        f"unnest($v{index}::{kind}[]) AS {column}" for index, (column, kind) in enumerate(zip(names, types, strict=True))
    )
    values = {f"v{index}": [row[index] for row in rows] for index in range(len(names))}
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {lists}", values)
