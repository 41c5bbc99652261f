"""Scores as columns: those of exchanges that were not judged are put together column by column, without a record or a message each.

The columns are those that decoding the encoded records would give (`schemas.codec.arrow`). Every value is one that the exchange, the
policy or the sampling brought, so there is nothing to check again; scores that are records are encoded first, which checks them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from audit.exchanges.outcomes import PlainScore
from schemas.codec.arrow import INDEX, decode_own, empty_frame
from schemas.codec.writers import EPOCH
from schemas.lazy.polars import pl
from schemas.records import Score

_MICROSECOND = timedelta(microseconds=1)
_OWN: dict[str, Callable[[PlainScore], Any]] = {
    "score_id": attrgetter("score_id"),
    "revision": attrgetter("sampled.revision"),
    "exchange_id": attrgetter("exchange.exchange_id"),
    "connection": attrgetter("exchange.connection"),
    "project": attrgetter("exchange.project"),
    "agent": attrgetter("exchange.agent"),
    "session_id": attrgetter("exchange.session_id"),
    "turn_number": attrgetter("sampled.turn_number"),
    "exchange_at": attrgetter("exchange.occurred_at"),
    "scored_at": attrgetter("exchange.ingested_at"),
    "sampling_reason": attrgetter("sampled.sampling_reason"),
    "sampling_probability": attrgetter("probability"),
    "tier1_score": attrgetter("sampled.tier1_score"),
    "tier1_flags": attrgetter("sampled.tier1_flags"),
    "anomaly": lambda one: bool(one.reasons),
    "anomaly_reasons": attrgetter("reasons"),
    "evidence_digest": attrgetter("exchange.content_digest"),
}
"""The fields that `PlainScore.score` does not take from its template."""
CheckedScore = PlainScore | bytes
"""A score in parts, or the encoding of one that was judged or could have been."""


def score_columns(scores: Sequence[CheckedScore]) -> pl.DataFrame:
    """The scores as columns, in their order."""
    groups: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(scores):
        groups[id(one.template) if isinstance(one, PlainScore) else 0].append(place)
    parts = [_part([scores[place] for place in places]) for places in groups.values()]
    if len(parts) == 1:
        return parts[0]
    placed = [
        part.with_columns(pl.Series(INDEX, places, dtype=pl.Int64)) for part, places in zip(parts, groups.values(), strict=True)
    ]
    return pl.concat(placed).sort(INDEX).drop(INDEX)


def _part(scores: Sequence[CheckedScore]) -> pl.DataFrame:
    """Scores that have one template, or that are all encoded."""
    plain = [one for one in scores if isinstance(one, PlainScore)]
    if not plain:
        return decode_own([one for one in scores if isinstance(one, bytes)]).frames[Score.__name__].drop(INDEX)
    schema = empty_frame(Score.__name__).schema
    own = [_column(name, schema[name], list(map(value_of, plain))) for name, value_of in _OWN.items()]
    shared = [column.new_from_index(0, len(plain)) for column in _shared(plain[0].template)]
    return pl.DataFrame([*own, *shared]).select(schema.names())


def _column(name: str, kind: pl.DataType, values: list[Any]) -> pl.Series:
    if isinstance(kind, pl.Datetime):  # a third of the time that polars takes for a time in a zone
        return pl.Series(name, [(one - EPOCH) // _MICROSECOND for one in values], dtype=pl.Int64).cast(kind)
    if isinstance(kind, pl.List) and not any(values):  # a list of empty lists takes as long as one of full ones
        return pl.Series(name, [[]], dtype=kind).new_from_index(0, len(values))
    return pl.Series(name, values, dtype=kind)


@lru_cache(256)
def _shared(template: Score) -> list[pl.Series]:
    """The fields that scores share with their template, each as a column of one row."""
    row = pl.DataFrame([msgspec.structs.asdict(template)], schema=empty_frame(Score.__name__).schema)
    return row.drop(list(_OWN)).get_columns()
