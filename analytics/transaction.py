# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Changes to the store that are committed together: rows of a batch, states of stages, watermarks, import progress."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
import msgspec
import polars as pl

from analytics.connection import fetch
from analytics.known import KnownIdentities
from analytics.tables import full_name, quote
from schemas.arrow import INDEX, ArrowStream, decode_batch, empty_frame
from schemas.errors import StoreError
from schemas.records import ImportProgress, Record, StageState, Watermark
from schemas.registry import RecordSchema, current_schemas, schema_of, topics

BATCH = "_driftline_batch"
"""Name under which a batch is registered. A table's name would win over it, and no table may be called so."""
PARTITION = 0
"""The embedded log has one partition a topic."""
CONTENT = {"AgentEvent": "payload", "Exchange": "content_digest"}
"""What a record from outside says, by record type: the same identity with another content is another record, and no repetition."""
_HELD = "_held"
FEW = 4
"""Up to so many keys or records, statements with their values take less time than a frame that is registered first."""


@dataclass
class Appended:
    """What an append did: rows written per table, and how many were there already.

    `conflicts` are the places, among the messages, of those that were not taken because their identity has another content.
    `frames` has what was written, by record type: the records' fields, INDEX for the place among the messages, and `_offset`.
    """

    written: dict[str, int] = field(default_factory=dict)
    known: int = 0
    conflicts: list[int] = field(default_factory=list)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict, compare=False, repr=False)


def stored_ends(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """The position the next record of each topic will get."""
    ends = {}
    for topic, names in topics().items():
        tables = " UNION ALL ".join(
            f"SELECT max(_offset) AS last FROM {full_name(schema_of(name))} WHERE _topic = $topic" for name in names
        )
        ((last,),) = connection.execute(f"SELECT max(last) FROM ({tables})", {"topic": topic}).fetchall()
        ends[topic] = 0 if last is None else last + 1
    return ends


class Transaction:
    """Changes that are committed together. Made by `Store.transaction`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, ends: dict[str, int]) -> None:
        self._connection = connection
        self._ends = ends

    def append(
        self, topic: str, messages: Sequence[bytes], *, skip_known: bool = False, seen: KnownIdentities | None = None
    ) -> Appended:
        """Append encoded records to a topic. With `skip_known`, records the topic has already are left out.

        A record is known by its identity and, where it has one, its revision. Where CONTENT tells what it says, a record that
        says something else under a known identity is a conflict and left out, too; within the messages the first one counts. What
        `seen` certainly does not know is not looked up.
        The messages have been accepted: one that does not decode is a fault of ours and raises its RecordError.
        """
        done = Appended()
        if not messages:
            return done
        batch = decode_batch(messages)
        if batch.rejected:
            raise batch.rejected[0].error
        if skip_known:
            if seen is not None:
                seen.read(self._connection, topic, self._ends[topic])
            for name, frame in batch.frames.items():
                batch.frames[name], conflicts = self._unknown(schema_of(name), frame, topic, seen)
                done.conflicts += conflicts
            done.conflicts.sort()
        fresh = sum(frame.height for frame in batch.frames.values())
        done.known = len(messages) - fresh - len(done.conflicts)
        positions = pl.concat([frame[INDEX] for frame in batch.frames.values()]).sort()
        for name, frame in batch.frames.items():
            offsets = positions.search_sorted(frame[INDEX]).cast(pl.Int64) + self._ends[topic]
            done.written[schema_of(name).table] = self._insert(schema_of(name), frame.drop(INDEX), topic, offsets)
            if frame.height:
                done.frames[name] = frame.with_columns(offsets.alias("_offset"))
        self._ends[topic] += fresh
        return done

    def _unknown(
        self, schema: RecordSchema, frame: pl.DataFrame, topic: str, seen: KnownIdentities | None
    ) -> tuple[pl.DataFrame, list[int]]:
        """The rows whose identity is neither in the topic nor earlier in the frame, and the places of those in conflict."""
        identity = [*schema.identity, "revision"] if schema.has_revisions else list(schema.identity)
        first = frame.unique(subset=identity, keep="first", maintain_order=True) if frame.height > 1 else frame
        if seen is not None and first.height == frame.height and not seen.may_have(schema, topic, first):
            return frame, []
        columns = ", ".join(map(quote, identity))
        with self._registered(first.select(identity)):
            statement = (
                f"SELECT {columns}, _offset FROM {full_name(schema)} SEMI JOIN {BATCH} USING ({columns}) WHERE _topic = $topic"
            )
            known = fetch(self._connection, statement, {"topic": topic})
        times = [name for name in identity if first.schema[name].is_temporal()]
        known = known.with_columns(pl.col(name).dt.replace_time_zone("UTC") for name in times)
        fresh = first.join(known, on=identity, how="anti", maintain_order="left") if known.height else first
        content = CONTENT.get(schema.name)
        if content is None or fresh.height == frame.height:
            return fresh, []
        held = pl.concat([self._contents(schema, content, known, topic), fresh.select(*identity, pl.col(content).alias(_HELD))])
        others = frame.join(fresh, on=INDEX, how="anti").join(held, on=identity)
        return fresh, others.filter(pl.col(content) != pl.col(_HELD))[INDEX].to_list()

    def _contents(self, schema: RecordSchema, content: str, known: pl.DataFrame, topic: str) -> pl.DataFrame:
        """The identities of known rows with the content that the topic has. Only these rows are read, by their places."""
        known = known.sort("_offset").unique(subset=known.columns[:-1], keep="first", maintain_order=True)
        with self._registered(known.select("_offset")):
            statement = (
                f"SELECT _offset, {quote(content)} AS {_HELD} FROM {full_name(schema)} SEMI JOIN {BATCH} USING (_offset) "
                "WHERE _topic = $topic AND _offset BETWEEN $first AND $last"
            )
            places = {"first": known["_offset"].min() or 0, "last": known["_offset"].max() or 0}
            contents = fetch(self._connection, statement, {"topic": topic, **places})
        return known.join(contents, on="_offset").drop("_offset")

    def _insert(self, schema: RecordSchema, frame: pl.DataFrame, topic: str, offsets: pl.Series) -> int:
        if not frame.height:
            return 0
        placed = frame.with_columns(
            pl.lit(topic).alias("_topic"), pl.lit(PARTITION, pl.Int32).alias("_partition"), offsets.alias("_offset")
        )
        return self._insert_frame(schema, placed)

    def _insert_frame(self, schema: RecordSchema, frame: pl.DataFrame) -> int:
        if frame.height == 1:
            # One row as values takes half the time of a frame that is registered first.
            columns, values = ", ".join(map(quote, frame.columns)), ", ".join("?" * frame.width)
            statement = f"INSERT INTO {full_name(schema)} ({columns}) VALUES ({values})"
            ((written,),) = self._connection.execute(statement, frame.row(0)).fetchall()
        else:
            with self._registered(frame):
                statement = f"INSERT INTO {full_name(schema)} BY NAME SELECT * FROM {BATCH}"
                ((written,),) = self._connection.execute(statement).fetchall()
        if written != frame.height:
            raise StoreError(f"{schema.table}: {written} of {frame.height} rows were written")
        return frame.height

    @contextlib.contextmanager
    def _registered(self, frame: pl.DataFrame) -> Iterator[None]:
        self._connection.register(BATCH, ArrowStream(frame))
        try:
            yield
        finally:
            self._connection.unregister(BATCH)

    def watermark(self, consumer: str, topic: str) -> int:
        """The position the consumer reads next."""
        # All of the result is fetched: an unfinished one keeps the connection from anything else.
        rows = self._connection.execute(
            f"SELECT next_position FROM {full_name(schema_of('Watermark'))} WHERE consumer = $consumer AND topic = $topic",
            {"consumer": consumer, "topic": topic},
        ).fetchall()
        return rows[0][0] if rows else 0

    def set_watermark(self, consumer: str, topic: str, next_position: int) -> None:
        """Move a consumer's watermark."""
        self._replace([Watermark(consumer=consumer, topic=topic, partition=PARTITION, next_position=next_position)])

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The states of a stage for those of the keys that have one."""
        if len(keys) <= FEW:
            marks = ", ".join("?" * len(keys)) or "NULL"
            statement = f"SELECT key, state FROM {full_name(schema_of('StageState'))} WHERE stage = ? AND key IN ({marks})"
            return dict(self._connection.execute(statement, [stage, *keys]).fetchall())
        with self._registered(pl.DataFrame({"key": pl.Series(keys, dtype=pl.String)})):
            rows = self._connection.execute(
                f"SELECT key, state FROM {full_name(schema_of('StageState'))} SEMI JOIN {BATCH} USING (key) WHERE stage = $stage",
                {"stage": stage},
            ).fetchall()
        return dict(rows)

    def set_states(self, stage: str, states: Mapping[str, bytes], next_position: int) -> None:
        """Replace the states of a stage for the given keys."""
        self._replace(
            [StageState(stage=stage, key=key, next_position=next_position, state=state) for key, state in states.items()]
        )

    def set_progress(self, progress: Sequence[ImportProgress]) -> None:
        """Note how far files have been imported."""
        self._replace(progress)

    def _replace(self, records: Sequence[Record]) -> None:
        """Put records of one internal type in place of those with the same identity."""
        if not records:
            return
        schema = schema_of(type(records[0]).__name__)
        few = len(records) <= FEW
        if few:
            records = [record for record in records if not self._update(schema, record)]
            if not records:
                return
        # These records travel on no topic, so no limit of a message binds them: a state can hold whole exchanges.
        frame = pl.DataFrame(map(msgspec.structs.asdict, records), schema=empty_frame(schema.name).schema)
        frame = frame.unique(subset=schema.identity, keep="last", maintain_order=True)
        if not few:
            matches = " AND ".join(f"old.{quote(name)} = new.{quote(name)}" for name in schema.identity)
            with self._registered(frame):
                self._connection.execute(f"DELETE FROM {full_name(schema)} AS old USING {BATCH} AS new WHERE {matches}")
        self._insert(schema, frame, "", pl.zeros(frame.height, dtype=pl.Int64, eager=True))

    def _update(self, schema: RecordSchema, record: Record) -> bool:
        """Change the row with the record's identity; False where there is none."""
        values = msgspec.structs.asdict(record)
        changed = ", ".join(f"{quote(name)} = ${name}" for name in values if name not in schema.identity)
        same = " AND ".join(f"{quote(name)} = ${name}" for name in schema.identity)
        ((updated,),) = self._connection.execute(f"UPDATE {full_name(schema)} SET {changed} WHERE {same}", values).fetchall()
        return bool(updated)

    def forget(self, tables: Sequence[str]) -> None:
        """Delete every row of the named tables: they are derived and will be made again."""
        by_table = {schema.table: schema for schema in current_schemas().values()}
        for table in tables:
            self._connection.execute(f"DELETE FROM {full_name(by_table[table])}")
        self._ends.update(stored_ends(self._connection))
