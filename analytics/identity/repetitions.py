# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Repetitions: finds the records of a batch that the log has already, by identity and, where needed, by content."""

from __future__ import annotations

from analytics.identity.duplicate_matching import PLACE, Met, contradicting, rows_at, twins_in_log
from analytics.identity.identity_index import KnownIdentities, identity_of
from analytics.store.connection import fetch
from analytics.store.inserting import BATCH, registered
from analytics.store.tables import full_name, quote
from schemas.codec.arrow import INDEX
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.registry import RecordSchema

CONTENT = {"AgentEvent": "payload", "Exchange": "content_digest", "Span": "content_digest"}
"""The content field of records from outside. The same identity with other content is another record, not a repetition."""
_HELD = "_held"


def unknown(
    connection: duckdb.DuckDBPyConnection,
    schema: RecordSchema,
    frame: pl.DataFrame,
    topic: str,
    seen: KnownIdentities | None = None,
    *,
    met: Met | None = None,
) -> tuple[pl.DataFrame, dict[int, tuple[str, ...]]]:
    """The rows whose identity is neither in the topic nor earlier in the frame, and the places (INDEX) of those in conflict.

    With each of these go the fields that differ, where they are known.

    What `seen` certainly does not know is not looked up. A row that gives another account of what the topic has is known
    (`analytics.identity.duplicate_matching`), also under another id where the two are twins, which `met` remembers. Without `met` it is not: what
    another log took as a record of its own is one.
    """
    fresh, conflicts = _by_identity(connection, schema, frame, topic, seen, has_landed=met is None)
    if schema.name == "AgentEvent" and fresh.height and met is not None:
        twins = twins_in_log(connection, fresh, topic, met)
        fresh = fresh.filter(~pl.col(INDEX).is_in(twins)) if twins else fresh
    return fresh, conflicts


def _by_identity(
    connection: duckdb.DuckDBPyConnection,
    schema: RecordSchema,
    frame: pl.DataFrame,
    topic: str,
    seen: KnownIdentities | None,
    *,
    has_landed: bool,
) -> tuple[pl.DataFrame, dict[int, tuple[str, ...]]]:
    identity = identity_of(schema)
    first = frame.unique(subset=identity, keep="first", maintain_order=True) if frame.height > 1 else frame
    doubtful = first if seen is None else seen.doubtful(schema, topic, first)
    if first.height == frame.height and doubtful.is_empty():
        return frame, {}
    in_topic = _find_in_topic(connection, schema, doubtful, topic)
    fresh = first.join(in_topic, on=identity, how="anti", maintain_order="left") if in_topic.height else first
    content = CONTENT.get(schema.name)
    if content is None or fresh.height == frame.height:
        return fresh, {}
    contents = _contents(connection, schema, content, in_topic, topic)
    held = pl.concat([contents, fresh.select(*identity, pl.col(content).alias(_HELD))])
    others = frame.join(fresh, on=INDEX, how="anti").join(held, on=identity)
    doubtful = others.filter(pl.col(content) != pl.col(_HELD))
    if has_landed:
        return fresh, dict.fromkeys(doubtful[INDEX].to_list(), ())
    return fresh, contradicting(connection, schema, doubtful, in_topic, topic)


def _find_in_topic(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, doubtful: pl.DataFrame, topic: str
) -> pl.DataFrame:
    """The identities of the frame that the topic has, each with its places."""
    identity = identity_of(schema)
    columns = ", ".join(map(quote, identity))
    with registered(connection, doubtful.select(identity)):
        statement = (
            f"SELECT {columns}, _partition, _offset FROM {full_name(schema)} SEMI JOIN {BATCH} USING ({columns}) "
            "WHERE _topic = $topic"
        )
        in_topic = fetch(connection, statement, {"topic": topic})
    times = [name for name in identity if doubtful.schema[name].is_temporal()]
    return in_topic.with_columns(pl.col(name).dt.replace_time_zone("UTC") for name in times)


def _contents(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, content: str, in_topic: pl.DataFrame, topic: str
) -> pl.DataFrame:
    """The identities of known rows with the content that the topic has. Only these rows are read, by their places."""
    identity = identity_of(schema)
    in_topic = in_topic.sort(PLACE).unique(subset=identity, keep="first", maintain_order=True)
    contents = rows_at(connection, schema, in_topic, topic, [content]).rename({content: _HELD})
    return in_topic.join(contents, on=PLACE).drop(PLACE)
