"""The moments of slices for exchanges at hand: what `analytics/sql/slices.sql` does in a database."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from audit.drift.slices import NOT_GIVEN, VALUE, Key, Moments


class Scored(NamedTuple):
    """One exchange with a score, as `moments_of` adds it up."""

    session: str
    labels: dict[str, str]
    score: float
    weight: float = 1.0


def moments_of(exchanges: Iterable[Scored], names: Sequence[str]) -> tuple[dict[Key, Moments], Moments]:
    """Return the moments of each slice of these labels and of all.

    Sums are exact before they are rounded, so the order changes nothing.
    """
    sessions: dict[str, list[Scored]] = defaultdict(list)
    for one in exchanges:
        sessions[one.session].append(one)
    rows: dict[Key | None, list[tuple[int, float, float, float, float]]] = defaultdict(list)
    for scored in sessions.values():
        weight, total = _added(scored)
        rows[None].append((len(scored), weight, total, weight, total))
        for name in names:
            slices: dict[Key, list[Scored]] = defaultdict(list)
            for one in scored:
                value = one.labels.get(name)
                slices[Key(name, NOT_GIVEN, "") if value is None else Key(name, VALUE, value)].append(one)
            for key, held in slices.items():
                rows[key].append((len(held), *_added(held), weight, total))
    whole = _moments(rows.pop(None, []))
    return {key: _moments(found) for key, found in rows.items() if key is not None}, whole


def _added(scored: Iterable[Scored]) -> tuple[float, float]:
    held = list(scored)
    return math.fsum(one.weight for one in held), math.fsum(one.weight * one.score for one in held)


def _moments(rows: Sequence[tuple[int, float, float, float, float]]) -> Moments:
    def added(first: int, second: int) -> float:
        return math.fsum(row[first] * row[second] for row in rows)

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
