# ruff: noqa: S608 - statements are built from the names in a manifest, quoted; values are parameters or literals, quoted
"""Verification of a folder of exports against its manifest. It reads the folder and nothing else.

A check that fails is a problem, which names the line, file, topic, day or record that does not fit. Problems of the chain do not stop the
checks of files and records, so that one look says all that differs.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analytics.store.tables import literal
from schemas.errors import InputError
from schemas.lazy import duckdb
from service.export.manifest import (
    CHECK_LENGTH,
    MANIFEST,
    Columns,
    Manifest,
    RecordLine,
    digest_file,
    positions_of,
    read_manifest,
    runs_of,
    sha256,
)
from service.export.record_digests import line_digests_sql, select_digests, subject_digest_sql
from service.export.sealing import fill_table

MAX_NAMED = 20
"""Maximum number of records of one line that problems name; the others are counted."""
_POSITION = "_topic, _partition, _offset"


@dataclass
class Verification:
    """The result of a verification: what was checked, and the problems."""

    folder: Path
    problems: list[str] = field(default_factory=list)
    head: str | None = None
    keys: list[str] = field(default_factory=list)
    exports: int = 0
    files: int = 0
    records: int = 0
    """Records that are there and fit."""
    days: int = 0
    topics: list[str] = field(default_factory=list)
    removed: Counter[str] = field(default_factory=Counter)
    """Records that are gone, by reason. For `erasure`, the recorded erasure covers their session."""
    redacted: int = 0
    uncovered: dict[str, list[str]] = field(default_factory=dict)
    """Columns by table that some records' digests do not cover, because they were added later."""
    by_day: list[dict[str, Any]] = field(default_factory=list)
    """Records and removed records by topic, table and day."""


STATED_ERASURE = "erasure without a session"
"""Reason of removed records whose session no column names: the exporter states that an erasure covers them."""


def verify_folder(
    folder: Path, key: str | None = None, head: str | None = None, report: Callable[[str], None] = lambda _: None
) -> Verification:
    """Check the chain, signatures, files and records of a folder. `report` is called with each table's name first.

    `key` is the public key that must have signed all exports, and `head` the head of an export that must be in the chain, both in
    hexadecimal characters. Raises InputError if the folder cannot be read or has no manifest.
    """
    manifest = read_manifest(folder)
    if not manifest.content:
        raise InputError(f"{folder}: has no {MANIFEST}", hint="Name the folder of `driftline export`.")
    result = Verification(folder, list(manifest.problems), manifest.head, sorted(manifest.keys), len(manifest.exports))
    _check_origin(result, manifest, key, head)
    _check_files(result, manifest, folder)
    with tempfile.TemporaryDirectory() as temporary, duckdb.connect(config={"temp_directory": temporary}) as connection:
        checker = _RecordChecker(connection, manifest, folder, result)
        for table in sorted({line.records.table for line in manifest.records}):
            report(table)
            checker.check(table)
        checker.check_erasures()
    result.topics = sorted(manifest.heads)
    return result


def _check_origin(result: Verification, manifest: Manifest, key: str | None, head: str | None) -> None:
    if not manifest.exports:
        result.problems.append("no export is in the manifest: it was cut")
    if len(manifest.keys) > 1:
        result.problems.append(f"several keys signed: {', '.join(sorted(manifest.keys))}")
    if key is not None:
        result.problems += [f"signed with the key {other}, not {key}" for other in sorted(manifest.keys - {key.lower()})]
    if head is not None and head.lower() not in manifest.exports:
        result.problems.append(f"head {head} is no export of the chain: the chain was cut or written again")


def _check_files(result: Verification, manifest: Manifest, folder: Path) -> None:
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST}
    for name in sorted(manifest.files.keys() - present):
        result.problems.append(f"{name}: is missing")
    for name in sorted(present - manifest.files.keys()):
        result.problems.append(f"{name}: is not in the manifest")
    for name in sorted(manifest.files.keys() & present):
        try:
            digest = digest_file(folder / name)
        except OSError as error:
            raise InputError(f"{folder / name}: {error.strerror}", hint="Make the folder readable.") from error
        if digest != manifest.files[name]:
            result.problems.append(f"{name}: other bytes than were exported")
        result.files += 1


class _RecordChecker:
    """Checks of the records of the tables against their lines."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, manifest: Manifest, folder: Path, result: Verification) -> None:
        self._connection = connection
        self._manifest = manifest
        self._folder = folder
        self._result = result
        self._before: dict[tuple[str, int, int], tuple[str, str]] = {}
        """By position, the first and the last digest of each record that was redacted."""
        for line in manifest.redacted:
            for partition, offset, before, after in line.rows:
                first, last = self._before.get((line.topic, partition, offset), (before, before))
                if last != before or not line.erasures:
                    self._report(line.topic, line.table, None, f"record {partition}:{offset} was changed without an erasure")
                self._before[line.topic, partition, offset] = (first, after)
        result.redacted = len(self._before)

    def _report(self, topic: str, table: str, day: str | None, problem: str) -> None:
        self._result.problems.append(f"topic {topic}, table {table}, day {day or 'unknown'}: {problem}")

    def check(self, table: str) -> None:
        """Check the records of a table."""
        lines = [line for line in self._manifest.records if line.records.table == table]
        file = self._folder / f"{table}.parquet"
        if not file.is_file():  # a problem already
            return
        self._load_lines(table, lines)
        self._check_runs(table)
        try:
            self._load_rows(file, lines)
        except duckdb.Error as error:
            self._result.problems.append(f"{table}.parquet: cannot be read: {str(error).splitlines()[0]}")
            return
        self._check_order(file)
        self._check_added(table)
        self._check_lines(table, lines)

    def _load_lines(self, table: str, lines: Sequence[RecordLine]) -> None:
        runs = [(number, line.records.topic, *run) for number, line in enumerate(lines) for run in runs_of(line.records)]
        removed = [
            (line.topic, partition, offset, line.connection, line.session, digest)
            for line in self._manifest.removed
            if line.table == table
            for partition, offset, digest in line.rows
        ]
        redacted = [(*position, before, after) for position, (before, after) in self._before.items()]
        fill_table(
            self._connection, "runs", "line INTEGER, _topic VARCHAR, _partition INTEGER, first BIGINT, last BIGINT", runs
        )
        fill_table(
            self._connection,
            "removed",
            "_topic VARCHAR, _partition INTEGER, _offset BIGINT, connection VARCHAR, session_id VARCHAR, digest VARCHAR",
            removed,
        )
        fill_table(
            self._connection,
            "redacted",
            "_topic VARCHAR, _partition INTEGER, _offset BIGINT, before VARCHAR, after VARCHAR",
            redacted,
        )

    def _load_rows(self, file: Path, lines: Sequence[RecordLine]) -> None:
        """Load positions and digests of a file's records, each with the columns that its line covers."""
        source = f"read_parquet({literal(str(file))})"
        versions: dict[str, tuple[Columns, list[int]]] = {}
        for number, line in enumerate(lines):
            columns = line.columns
            versions.setdefault(repr((columns.columns, columns.day)), (columns, []))[1].append(number)
        names = [name for name, *_ in self._connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]
        for columns, _ in versions.values():
            added = [name for name in names if name not in {name for name, _ in columns.columns}]
            if added:
                self._result.uncovered[columns.table] = added
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE file_positions AS SELECT p.*, if(p._offset <= runs.last, runs.line, NULL) AS line "
            f"FROM (SELECT {_POSITION} FROM {source}) AS p ASOF LEFT JOIN runs "
            "ON p._topic = runs._topic AND p._partition = runs._partition AND p._offset >= runs.first"
        )
        parts = []
        for columns, numbers in versions.values():
            chosen = source if len(versions) == 1 else self._choose(source, numbers)
            parts.append(
                f"SELECT {_POSITION}, day, {subject_digest_sql('connection')} AS connection, {subject_digest_sql('session_id')} AS session_id, "
                f"digest FROM ({select_digests(columns, chosen)})"
            )
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE present AS SELECT DISTINCT ON ({_POSITION}) d.*, line, "
            f"(digest = redacted.after) IS TRUE AS is_redacted, if(is_redacted, redacted.before, digest) AS first_digest "
            f"FROM ({' UNION ALL '.join(parts)}) AS d JOIN (SELECT DISTINCT * FROM file_positions) USING ({_POSITION}) LEFT JOIN redacted USING ({_POSITION})"
        )

    def _choose(self, source: str, numbers: Sequence[int]) -> str:
        listed = ", ".join(map(str, numbers))
        return f"(SELECT f.* FROM {source} AS f SEMI JOIN (SELECT * FROM file_positions WHERE line IN ({listed})) USING ({_POSITION}))"

    def _check_order(self, file: Path) -> None:
        ((late, first),) = self._connection.execute(
            f"SELECT count(*), min(n) FROM (SELECT file_row_number AS n, ({_POSITION}) AS here, "
            f"lag(({_POSITION})) OVER (ORDER BY file_row_number) AS before FROM read_parquet({literal(str(file))}, file_row_number = true)) "
            "WHERE here <= before"
        ).fetchall()
        if late:
            self._result.problems.append(
                f"{file.name}: {late} records are out of order or there twice, the first is row {first}"
            )

    def _check_runs(self, table: str) -> None:
        """Check that no position is in two lines."""
        for topic, partition, offset in self._connection.execute(
            "SELECT _topic, _partition, first FROM (SELECT *, lag(last) OVER (PARTITION BY _topic, _partition ORDER BY first, last) AS before "
            "FROM runs) WHERE first <= before OR last < first ORDER BY ALL LIMIT 1"
        ).fetchall():
            self._report(topic, table, None, f"record {partition}:{offset} is in two lines")

    def _check_added(self, table: str) -> None:
        added = self._connection.execute(f"SELECT {_POSITION} FROM file_positions WHERE line IS NULL ORDER BY ALL").fetchall()
        for topic, positions in _by_topic(added):
            self._report(topic, table, None, f"{_list_records(positions)} added")
        again = self._connection.execute(
            f"SELECT {_POSITION} FROM file_positions SEMI JOIN removed USING ({_POSITION}) ORDER BY ALL"
        ).fetchall()
        for topic, positions in _by_topic(again):
            self._report(topic, table, None, f"{_list_records(positions)} there, although the manifest says removed")

    def _check_lines(self, table: str, lines: Sequence[RecordLine]) -> None:
        self._connection.execute(
            "CREATE OR REPLACE TEMP TABLE line_records AS "
            "SELECT line, _topic, _partition, _offset, connection, session_id, first_digest AS digest FROM present WHERE line IS NOT NULL "
            "UNION ALL SELECT runs.line, r._topic, r._partition, r._offset, r.connection, r.session_id, r.digest "
            f"FROM removed AS r ANTI JOIN file_positions USING ({_POSITION}) "
            "ASOF JOIN runs ON r._topic = runs._topic AND r._partition = runs._partition AND r._offset >= runs.first"
        )
        computed = {
            number: (count, digest, checks)
            for number, count, digest, checks in self._connection.execute(
                line_digests_sql("line_records", "line", "connection", "session_id")
            ).fetchall()
        }
        days = defaultdict(list)
        for number, day, count in self._connection.execute(
            "SELECT line, day, count(*) FROM present WHERE line IS NOT NULL GROUP BY ALL"
        ).fetchall():
            days[number].append((day, count))
        for number, line in enumerate(lines):
            here = sum(count for _, count in days[number])
            self._check_line(number, line, computed.get(number, (0, "", "")), here)
            for day, _ in days[number]:
                if day != line.records.day:
                    self._report(line.records.topic, table, line.records.day, f"has records of {day}")
            self._result.by_day.append(
                {
                    "topic": line.records.topic,
                    "table": table,
                    "day": line.records.day,
                    "records": here,
                    "removed": line.records.count - here,
                }
            )
        self._result.days += len({(line.records.topic, line.records.day) for line in lines})

    def _check_line(self, number: int, line: RecordLine, computed: tuple[int, str, str], here: int) -> None:
        records = line.records
        expired = self._manifest.expired.get(line.digest)
        if expired is not None:
            self._result.removed["retention"] += expired.count
            if here:
                self._report(
                    records.topic, records.table, records.day, f"{here} records are there, although the manifest says expired"
                )
            return
        if computed == (records.count, records.digest, records.checks):
            self._result.records += here
            return
        self._report(records.topic, records.table, records.day, self._explain(number, line))

    def _explain(self, number: int, line: RecordLine) -> str:
        """Return which records of a line do not fit."""
        leaves = {
            (partition, offset): digest
            for partition, offset, digest in self._connection.execute(
                "SELECT _partition, _offset, digest FROM line_records WHERE line = ?", [number]
            ).fetchall()
        }
        checks = line.records.checks
        expected = {
            position: checks[index * CHECK_LENGTH : (index + 1) * CHECK_LENGTH]
            for index, position in enumerate(positions_of(line.records))
        }
        missing = [position for position in expected if position not in leaves]
        changed = [
            position
            for position, digest in leaves.items()
            if position in expected and digest[:CHECK_LENGTH] != expected[position]
        ]
        findings = [f"{_list_records(missing)} missing"] * bool(missing) + [f"{_list_records(sorted(changed))} changed"] * bool(
            changed
        )
        return "; ".join(findings) or "a record was changed"

    def check_erasures(self) -> None:
        """Check that recorded erasures cover the removed records, and count these by reason."""
        erasures = self._read_erasures()
        for line in self._manifest.removed:
            reason = line.reason
            day = None
            if reason == "unexplained":
                positions = [(partition, offset) for partition, offset, _ in line.rows]
                self._report(line.topic, line.table, day, f"{_list_records(positions)} missing without an erasure or retention")
            if reason == "erasure":
                unknown = [erasure for erasure in line.erasures if erasure not in erasures]
                if unknown or not line.erasures:
                    self._report(
                        line.topic, line.table, day, f"erasure {', '.join(unknown) or 'without an id'} is not recorded"
                    )
                covers = {erasures[erasure] for erasure in line.erasures if erasure in erasures}
                if not any(connection == line.connection and session in (None, line.session) for connection, session in covers):
                    reason = STATED_ERASURE
            self._result.removed[reason] += len(line.rows)
        for redacted in self._manifest.redacted:
            unknown = [erasure for erasure in redacted.erasures if erasure not in erasures]
            if unknown:
                self._report(redacted.topic, redacted.table, None, f"erasure {', '.join(unknown)} is not recorded")

    def _read_erasures(self) -> dict[str, tuple[str, str | None]]:
        """Return the digests of connection and session of each recorded erasure, by its id."""
        file = self._folder / "erasures.parquet"
        try:
            rows = self._connection.execute(
                f"SELECT erasure_id, connection, session_id FROM read_parquet({literal(str(file))})"
            ).fetchall()
        except duckdb.Error:  # the file is a problem already
            return {}
        return {
            erasure: (_digest_text(connection), None if session is None else _digest_text(session))
            for erasure, connection, session in rows
        }


def _digest_text(text: str) -> str:
    content = text.encode()
    return sha256(b"%d:%s" % (len(content), content))


def _by_topic(rows: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    topics: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for topic, partition, offset in rows:
        topics[topic].append((partition, offset))
    yield from topics.items()


def _list_records(positions: Sequence[tuple[int, int]]) -> str:
    """Name records by partition and offset, with the verb that follows."""
    named = ", ".join(f"{partition}:{offset}" for partition, offset in positions[:MAX_NAMED])
    more = f" and {len(positions) - MAX_NAMED} more" if len(positions) > MAX_NAMED else ""
    return f"record {named} is" if len(positions) == 1 else f"{len(positions)} records ({named}{more}) are"
