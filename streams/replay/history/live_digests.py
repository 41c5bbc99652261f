# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""The digests of the scores that a source has, beside those that a replay made: scores that are the same are not encoded again.

1. DuckDB compares both, field by field. Fields that are the same are encoded to the same bytes, so such scores have one digest. 0.0 equals
   -0.0 and is written otherwise, so the signs of numbers are compared, too.
2. Scores are joined in ranges of time, so that memory does not grow with history. One that lies elsewhere in the replay differs.
3. Any other score is read and encoded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from analytics.store.connection import fetch
from analytics.store.inserting import BATCH, registered
from analytics.store.tables import columns_of, full_name, quote
from schemas.lazy.polars import pl
from schemas.registry import NAMESPACE, Json, schema_of
from streams.replay.digests import KEY, digests_of, digests_together
from streams.replay.history.table_history import SCORES_AT_ONCE, Tables, of_scores
from streams.replay.plan import Part, Scope

_WITHIN = "($first::TIMESTAMP IS NULL OR exchange_at >= $first::TIMESTAMP) AND ($end::TIMESTAMP IS NULL OR exchange_at < $end::TIMESTAMP)"


def live_digests(tables: Tables, scope: Scope, part: Part | None, path: Path, made: pl.DataFrame) -> pl.DataFrame:
    """The digests of the source's scores in a scope, of a part's sessions alone where one is given; see `digests_of`.

    `path` is the file of the scores that the replay made, `made` has the digests of all of them.
    """
    where, values = of_scores(scope, part)
    if made[KEY].is_duplicated().any():  # nothing tells which digest is whose
        return digests_of(tables.scores(scope, part))
    with tables.beside(path) as name:
        return digests_together(
            [
                _within(tables, name, where, values | {"first": first, "end": end}, made)
                for first, end in _ranges(tables, where, values)
            ]
        )


def _ranges(tables: Tables, where: str, values: dict[str, Any]) -> Iterator[tuple[str | None, str | None]]:
    """Times between which there are some thousands of scores each, first and end; None is without bound."""
    places = f"SELECT exchange_at, row_number() OVER (ORDER BY exchange_at) AS place FROM scores WHERE {where}"
    statement = (
        f"SELECT DISTINCT exchange_at::TIMESTAMP::VARCHAR FROM ({places}) WHERE place % {SCORES_AT_ONCE} = 0 ORDER BY ALL"
    )
    return pairwise([None, *(first for (first,) in tables.rows(statement, values)), None])


def _within(tables: Tables, name: str, where: str, values: dict[str, Any], made: pl.DataFrame) -> pl.DataFrame:
    """The digests of the scores in a range."""
    where = f"{where} AND {_WITHIN}"
    statement = (
        f"SELECT live.score_id, live.revision, coalesce({_sameness()}, false) AS is_same "
        f"FROM (SELECT * FROM scores WHERE {where}) AS live "
        f"LEFT JOIN (SELECT * FROM {name}.{full_name(schema_of('Score'))} WHERE {_WITHIN}) AS made "
        "ON live.score_id = made.score_id AND live.revision = made.revision"
    )
    found = fetch(tables.connection, statement, values).with_columns(pl.col("revision").cast(pl.Int64))
    is_known = pl.col("is_same") & ~pl.struct(KEY).is_duplicated()
    known = found.filter(is_known).select(KEY).join(made, on=KEY, how="inner")
    others = found.join(known, on=KEY, how="anti").select(KEY).unique()
    if others.is_empty():
        return known
    with registered(tables.connection, others):
        frame = tables.frame("Score", f"SEMI JOIN {BATCH} USING (score_id, revision) WHERE {where}", values, "_offset")
    return digests_together([known, digests_of([frame])])


@functools.cache
def _sameness() -> str:
    """The condition that two scores are the same, to the bit."""
    schema, named = schema_of("Score"), dict[str, Json]()
    types = columns_of(schema)
    terms: list[str] = []
    for field in schema.fields:
        name = quote(field["name"])
        for term in ("{}", *_signs(field["type"], "{}", named)):
            live, made = term.format(f"live.{name}::{types[field['name']]}"), term.format(f"made.{name}")
            terms.append(f"{live} IS NOT DISTINCT FROM {made}")
    return " AND ".join(terms)


def _signs(kind: Any, value: str, named: dict[str, Json]) -> Iterator[str]:
    """Expressions for the signs of the numbers in a value of an Avro type; `named` collects the record types met so far."""
    if isinstance(kind, list):
        yield from _signs(kind[1], value, named)
    elif kind == "double":
        yield f"signbit({value})"
    elif isinstance(kind, dict) and kind["type"] == "array":
        for sign in _signs(kind["items"], "item", named):
            yield f"list_transform({value}, lambda item: {sign})"
    elif isinstance(kind, dict) and kind["type"] == "record":
        named[f"{NAMESPACE}.{kind['name']}"] = kind
        for field in kind["fields"]:
            yield from _signs(field["type"], f"({value}).{quote(field['name'])}", named)
    elif isinstance(kind, str) and kind in named:
        yield from _signs(named[kind], value, named)
