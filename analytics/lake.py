"""The lake: the records of all topics in Delta tables, in a folder or an object store; an extra, `driftline[lake]`.

1. Each record type has a table of the name that it has in the database, with the columns of the type, the origin of each row on its topic,
   and the two columns by which the table is partitioned: the project, and the UTC day of the record.
2. The rows of a commit and the next offsets of their partitions are one Delta commit: the offsets are its application transactions, named
   `TOPIC-PARTITION`. A commit on top of another commit of the same partition fails.
3. The partition columns are copies, so that a file holds all of its columns and can be read without the log of its table. A name that
   begins with an underscore is no column of a record.
4. Delta keeps the least and the greatest value of a column beside each file, in a log that outlives the file. So it is told to do that
   only for columns without texts: otherwise erased texts would remain there.
5. Where topics are encrypted, so are the texts of the rows: the column `_encrypted` has the record as it is on its topic, and the columns
   of `TEXTS` say only that they are encrypted.
6. Rows are a history: a revision is a further row, and a topic may hold a record twice. The views that readers get have one row per
   identity, its newest revision.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analytics.store.tables import EVENT_TIMES, literal
from schemas.codec.arrow import empty_frame
from schemas.errors import LakeError, SettingsError
from schemas.lazy import deltalake, pl
from schemas.registry import schema_of, topics

if TYPE_CHECKING:
    from analytics.store.store import Partition

PROJECT, DAY = "_project", "_day"
"""The partition columns. A record of no project has null as its project."""
ORIGIN = ("_topic", "_partition", "_offset")
"""The columns with the origin of a row."""
ENCRYPTED = "_encrypted"
"""The column with the record as it is encrypted on its topic; null if the row has its texts itself."""
HIDDEN, HIDDEN_OBJECT = "[encrypted]", '{"encrypted":true}'
"""What a text, and a text in JSON, is in a row whose record is encrypted."""
TEXTS: Mapping[str, tuple[str, ...]] = {
    "AgentEvent": ("payload",),
    "Anchor": ("exchange",),
    "DeadLetter": ("detail", "body"),
    "Diagnosis": ("failure_causes.description", "failure_causes.remediation"),
    "Evaluation": ("result", "case_title", "checks.detail", "warnings", "anomaly_reasons"),
    "EvaluationRequest": (
        "case",
        "profile",
        "system_prompt",
        "user_prompt",
        "checks",
        "warnings",
        "anomaly_reasons",
        "earlier_judgements",
    ),
    "Exchange": (
        "user_message",
        "agent_response",
        "agent_thinking",
        "raw_user_message",
        "tool_calls.arguments",
        "tool_calls.result",
    ),
    "Incident": ("metadata",),
    "Judgement": ("answer", "error", "attempt_errors", "masked_passages"),
    "JudgingRequest": ("exchange", "earlier_judgements", "earlier_turns"),
    "Review": ("comment", "settings"),
    "Score": (
        "tier2_dimensions.reasoning",
        "tier3_dimensions.reasoning",
        "tier2_flag_reason",
        "tier2_5_reasoning",
        "tier3_anomaly_reason",
        "anomaly_reasons",
    ),
    "ScoringTask": ("exchange", "earlier_judgements", "earlier_turns"),
    "Span": ("content",),
    "TraceAssembly": ("state", "unused_spans.example"),
}
"""The columns with texts of sessions and people by record type; a dot names a member of the structs in a list."""
_OBJECTS = frozenset({"payload", "case", "profile", "result", "settings", "metadata"})
"""The columns with texts in JSON."""
_COMMIT_RETRIES = 50
"""How often Delta tries a commit again when another writer was faster: each writer of a table can be faster once."""
_LOG_KEPT = "interval 7 days"


def require_lake() -> None:
    """Raise SettingsError unless the extra is installed."""
    if importlib.util.find_spec("deltalake") is None:
        raise SettingsError("lake: the package deltalake is not installed", hint="Install it: pip install 'driftline[lake]'")


@functools.cache
def lake_errors() -> tuple[type[Exception], ...]:
    """Return the errors with which deltalake reports a table that it cannot read or write."""
    return deltalake.exceptions.DeltaError, OSError, ValueError


@functools.cache
def record_types() -> dict[str, tuple[str, ...]]:
    """Return the record types of each topic. The last one is the main type, which the topic is named after."""
    return {
        topic: tuple(sorted(names, key=lambda name: schema_of(name).table == topic.replace("-", "_")))
        for topic, names in topics().items()
    }


def transaction_id(partition: Partition) -> str:
    """Return the name under which the commits of a table keep the next offset of a partition."""
    return f"{partition[0]}-{partition[1]}"


def time_column(name: str) -> str | None:
    """Return the column with the time of a record, whose day is its partition; None if the type has no time."""
    if name == "Span":
        return "ingested_at"  # spans are deleted a day after they came
    times = EVENT_TIMES[schema_of(name).table]
    # The last one is in every record.
    return times[-1] if times else None


def rows_of(name: str, topic: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of decoded records of a type.

    The frame has the columns of the record, its partition and offset, and `received_at`, the time when the broker received it, which
    decides the day of a record without a time.
    """
    project = pl.col("project") if "project" in frame.columns else pl.lit("")
    columns = empty_frame(name).columns
    return frame.select(
        *columns,
        pl.lit(topic).alias("_topic"),
        "_partition",
        "_offset",
        *([ENCRYPTED] if ENCRYPTED in frame.columns else []),
        # Delta cannot tell an empty partition value from null.
        pl.when(project != "").then(project).alias(PROJECT),
        pl.col(time_column(name) or "received_at").dt.date().alias(DAY),
    )


def hide_texts(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a type, in which texts say only that they are encrypted if the column `_encrypted` has the record."""
    is_encrypted = pl.col(ENCRYPTED).is_not_null()
    hidden: dict[str, pl.Expr] = {}
    for path in TEXTS.get(name, ()):
        column, _, member = path.partition(".")
        values = hidden.get(column, pl.col(column))
        hidden[column] = _hide(values, column, rows.schema[column], member)
    columns = [
        pl.when(is_encrypted & pl.col(column).is_not_null()).then(values).otherwise(pl.col(column)).alias(column)
        for column, values in hidden.items()
    ]
    return rows.with_columns(columns)


def _hide(values: pl.Expr, column: str, kind: pl.DataType, member: str) -> pl.Expr:
    """Return the values of a column without its texts, or without those of a member of the structs in its lists."""
    if member:
        return values.list.eval(pl.element().struct.with_fields(pl.lit(HIDDEN).alias(member)))
    if isinstance(kind, pl.List):
        return pl.lit([], kind)
    return pl.lit(HIDDEN_OBJECT if column in _OBJECTS else HIDDEN).cast(kind)


def no_records(name: str) -> pl.DataFrame:
    """Return a frame without rows for `rows_of`."""
    return empty_frame(name).with_columns(
        pl.lit(None, pl.Int32).alias("_partition"),
        pl.lit(None, pl.Int64).alias("_offset"),
        pl.lit(None, pl.Datetime("us", "UTC")).alias("received_at"),
    )


class Lake:
    """The tables below a folder, or below a URL of an object store whose access is in the environment."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or root
        self._tables: dict[str, deltalake.DeltaTable] = {}

    @property
    def folder(self) -> Path | None:
        """The folder; None for an object store."""
        return None if "://" in self.root else Path(self.root)

    def uri(self, name: str) -> str:
        """Return the address of the table of a record type."""
        return f"{self.root}/{schema_of(name).table}"

    def table(self, name: str) -> deltalake.DeltaTable:
        """Return the table of a record type as it was when it was opened, or last reloaded. Raises LakeError if there is none."""
        if name not in self._tables:
            try:
                self._tables[name] = deltalake.DeltaTable(self.uri(name))
            except lake_errors() as error:
                raise _explain(self.uri(name), error, hint=_NO_LAKE) from error
        return self._tables[name]

    def reload(self) -> None:
        """Bring each open table up to date with the commits of other processes. Raises LakeError if one cannot be read."""
        for name, table in self._tables.items():
            try:
                table.update_incremental()
            except lake_errors() as error:
                raise _explain(self.uri(name), error) from error

    def exists(self) -> bool:
        """Tell whether there is a lake: whether its first table exists."""
        return _is_table(self.uri(_FIRST))

    def require(self) -> None:
        """Raise LakeError if there is no lake."""
        if not self.exists():
            raise LakeError(f"{self.root}: is not a lake: it has no Delta table {schema_of(_FIRST).table}", hint=_NO_LAKE)

    def create(self) -> None:
        """Create the missing tables; another process may do so at the same time.

        Raises LakeError if the folder has something else in it, or cannot be written.
        """
        if self.folder is not None and self.folder.exists() and not self.exists():
            entries = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
            if set(entries) - {schema_of(name).table for name in all_types()}:
                raise LakeError(
                    f"{self.root}: is not a lake, and not empty: it has {entries[0]}", hint="Name an empty or a new folder."
                )
        for name in all_types():
            self._create_table(name)

    def _create_table(self, name: str) -> None:
        uri = self.uri(name)
        try:
            if deltalake.DeltaTable.is_deltatable(uri):
                return
            deltalake.write_deltalake(
                uri,
                rows_of(name, "", no_records(name)),
                mode="append",
                partition_by=[PROJECT, DAY],
                configuration=_configuration(name),
            )
        except lake_errors() as error:
            # Another process may have created it in the meantime.
            if not _is_table(uri):
                raise _explain(uri, error) from error

    def identity(self) -> str:
        """Return an id of the lake that does not depend on the way that leads to it."""
        return str(self.table(_FIRST).metadata().id)

    def columns(self, name: str) -> frozenset[str]:
        """Return the columns that the table of a record type has."""
        return frozenset(field.name for field in self.table(name).schema().fields)

    def read(self, name: str, condition: str) -> pl.DataFrame:
        """Return the rows of a record type that meet a condition in SQL: decoded records with their origin, ordered by it.

        They have the column `_encrypted` if the table has it (`streams.lake.encrypted_rows`).

        Raises LakeError if a file cannot be read: a sink may have replaced files since the table was opened, so reload and try again.
        """
        query = f"SELECT * FROM rows WHERE {condition} ORDER BY {', '.join(ORIGIN)}"  # noqa: S608 - the caller quotes its values
        rows = self._query(name, query)
        defaults = {field["name"]: field.get("default") for field in schema_of(name).fields}
        columns = [_read_column(rows, column, kind, defaults[column]) for column, kind in empty_frame(name).schema.items()]
        encrypted = [pl.col(ENCRYPTED)] if ENCRYPTED in rows.columns else []
        return rows.select(
            *columns, "_topic", pl.col("_partition").cast(pl.Int32), pl.col("_offset").cast(pl.Int64), *encrypted
        )

    def first_offset(self, topic: str) -> int | None:
        """Return the lowest offset of a topic's rows; None without rows. Raises LakeError as `read` does."""
        bounds = [self.offsets(name, f"_topic = {literal(topic)}") for name in record_types()[topic]]
        return min((first for first, _ in filter(None, bounds)), default=None)

    def offsets(self, name: str, condition: str) -> tuple[int, int] | None:
        """Return the lowest and the highest offset of the rows that meet a condition; None without rows. Raises LakeError as `read` does."""
        query = f"SELECT min(_offset), max(_offset) FROM rows WHERE {condition}"  # noqa: S608 - the caller quotes its values
        first, last = self._query(name, query).row(0)
        return None if first is None else (first, last)

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the lowest offset of each partition's rows; a partition without rows is missing. Raises LakeError as `read` does."""
        starts: dict[Partition, int] = {}
        for topic in {topic for topic, _ in partitions}:
            query = f"SELECT _partition, min(_offset) FROM rows WHERE _topic = {literal(topic)} GROUP BY _partition"  # noqa: S608
            for name in record_types()[topic]:
                for number, first in self._query(name, query).iter_rows():
                    starts[topic, number] = min(first, starts.get((topic, number), first))
        return {partition: starts[partition] for partition in partitions if partition in starts}

    def _query(self, name: str, query: str) -> pl.DataFrame:
        """Return the result of a query over the table of a record type, which it calls `rows`."""
        try:
            return pl.DataFrame(deltalake.QueryBuilder().register("rows", self.table(name)).execute(query))
        except lake_errors() as error:
            raise _explain(self.uri(name), error) from error

    def count(self, name: str) -> int:
        """Return the number of rows of the table of a record type, repetitions and all revisions included."""
        return int(pl.DataFrame(self.table(name).get_add_actions())["num_records"].sum())

    def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the next offset of each partition that was read before."""
        positions: dict[Partition, int] = {}
        for partition in partitions:
            version = self.position(record_types()[partition[0]][-1], partition)
            if version is not None:
                positions[partition] = version
        return positions

    def position(self, name: str, partition: Partition) -> int | None:
        """Return the offset up to which a table has the rows of a partition; None if it has none."""
        return self.table(name).transaction_version(transaction_id(partition))

    def commit(self, name: str, rows: pl.DataFrame, positions: Mapping[Partition, int]) -> None:
        """Append rows to the table of a record type, and store the next offset of each partition, all or nothing.

        Raises LakeError if that failed, in particular if another process has committed offsets of these partitions since the table was
        opened or reloaded. The commit may be durable nevertheless: reload, and read the positions.
        """
        transactions = [deltalake.Transaction(transaction_id(partition), position) for partition, position in positions.items()]
        try:
            deltalake.write_deltalake(
                self.table(name),
                rows,
                mode="append",
                # A field that was added to the schema is a new column; rows of earlier versions lack it.
                schema_mode="merge",
                writer_properties=writer_properties(),
                commit_properties=deltalake.CommitProperties(max_commit_retries=_COMMIT_RETRIES, app_transactions=transactions),
            )
        except lake_errors() as error:
            raise _explain(self.uri(name), error) from error


def _read_column(rows: pl.DataFrame, column: str, kind: pl.DataType, default: object) -> pl.Expr:
    """Return a column as a decoded record has it: rows from before a field existed get its default."""
    if column not in rows.columns:
        return pl.lit(default, kind).alias(column)
    value = pl.col(column).cast(kind)
    return value if default is None else value.fill_null(pl.lit(default, kind))


def writer_properties() -> deltalake.WriterProperties:
    """Return the properties of the files of a lake."""
    return deltalake.WriterProperties(compression="ZSTD")


_FIRST = "Exchange"
_NO_LAKE = "Name the folder or URL that `driftline lake sink` writes to."


@functools.cache
def all_types() -> tuple[str, ...]:
    """Return every record type that is on a topic. The first table is created last: a lake exists when all of its tables do."""
    names = {name for types in topics().values() for name in types}
    return tuple(sorted(names, key=lambda name: (name == _FIRST, name)))


def _configuration(name: str) -> dict[str, str | None]:
    columns = [*(["project"] if "project" in empty_frame(name).columns else []), *filter(None, [time_column(name)]), "_offset"]
    return {"delta.dataSkippingStatsColumns": ",".join(columns), "delta.logRetentionDuration": _LOG_KEPT}


def _is_table(uri: str) -> bool:
    try:
        return bool(deltalake.DeltaTable.is_deltatable(uri))
    except lake_errors():
        return False


def _explain(uri: str, error: Exception, hint: str = "") -> LakeError:
    return LakeError(f"{uri}: {' '.join(str(error).split()) or type(error).__name__}", hint=hint)
