"""The moments of slices of exchanges in memory; `analytics/sql/slices.sql` computes the same in a database."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from audit.drift.slices import NOT_GIVEN, VALUE, Key, Moments


class Scored(NamedTuple):
    """A scored exchange, the input of `moments_of`."""

    session: str
    labels: dict[str, str]
    score: float
    weight: float = 1.0


def moments_of(exchanges: Iterable[Scored], names: Sequence[str]) -> tuple[dict[Key, Moments], Moments]:
    """Return the moments of each slice of these labels, and of all exchanges. Exact sums make the order irrelevant."""
    sessions: dict[str, list[Scored]] = defaultdict(list)
    for exchange in exchanges:
        sessions[exchange.session].append(exchange)
    rows: dict[Key | None, list[tuple[int, float, float, float, float]]] = defaultdict(list)
    for scored in sessions.values():
        weight, total = _added(scored)
        rows[None].append((len(scored), weight, total, weight, total))
        for name in names:
            slices: dict[Key, list[Scored]] = defaultdict(list)
            for exchange in scored:
                value = exchange.labels.get(name)
                slices[Key(name, NOT_GIVEN, "") if value is None else Key(name, VALUE, value)].append(exchange)
            for key, slice_exchanges in slices.items():
                rows[key].append((len(slice_exchanges), *_added(slice_exchanges), weight, total))
    total_moments = _moments(rows.pop(None, []))
    return {key: _moments(slice_rows) for key, slice_rows in rows.items() if key is not None}, total_moments


def _added(scored: Iterable[Scored]) -> tuple[float, float]:
    exchanges = list(scored)
    return math.fsum(exchange.weight for exchange in exchanges), math.fsum(
        exchange.weight * exchange.score for exchange in exchanges
    )


def _moments(rows: Sequence[tuple[int, float, float, float, float]]) -> Moments:
    def added(first_column: int, second_column: int) -> float:
        return math.fsum(row[first_column] * row[second_column] for row in rows)

    return Moments(
        sessions=len(rows),
        exchanges=sum(row[0] for row in rows),
        w=math.fsum(row[1] for row in rows),
        t=math.fsum(row[2] for row in rows),
        ww=added(1, 1),
        wt=added(1, 2),
        tt=added(2, 2),
        w_all=added(1, 3),
        wt_all=added(1, 4),
        tw_all=added(2, 3),
        t_all=added(2, 4),
    )
