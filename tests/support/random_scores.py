"""What tests of kept sums share: scores that chance makes up, as they land in the log."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from support.builders import score

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from schemas.codec.single_object import encode
from schemas.records import Score


def publish(store: Store, *scores: Score) -> None:
    """Append scores to the log."""
    with store.transaction() as transaction:
        transaction.append("scores", [encode(one) for one in scores])


def score_by_chance(chance: random.Random, number: int, *, session_id: str, **fields: Any) -> Score:
    """Return a random score of the exchange of that number, judged or left out by sampling; `fields` override."""
    judged = chance.random() < 0.6
    values: dict[str, Any] = {
        "score_id": f"id-{number}",
        "disposition": "scored" if judged else "sampling_skip",
        "sampling_reason": "routine_sample" if judged else "sampling_skip",
        "sampling_probability": chance.choice([1 / 3, 0.25, 1.0]) if judged else None,
        "tier1_score": chance.choice([1.0, 2 / 3, 1 / 3]),
        "anomaly": chance.random() < 0.2,
        "tier2_state": "scored" if judged else "skipped_sampling",
        "tier2_score": chance.random() if judged else None,
        "judge_model": chance.choice(["first", "second"]) if judged else None,
    }
    return score(session_id, number, **values | fields)


def publish_by_chance(
    store: Store, chance: random.Random, known_count: int, make_score: Callable[..., Score], *, most: int, refreshed: float
) -> int:
    """Publish up to `most` new scores, repeat some known ones, and sometimes refresh the sums; return the number of known scores."""
    first, known_count = known_count, known_count + chance.randrange(1, most)
    fresh = [make_score(chance, number) for number in range(first, known_count)]
    repeats = [make_score(chance, chance.randrange(known_count), chance.randrange(1, 4)) for _ in range(chance.randrange(10))]
    publish(store, *fresh, *repeats)
    if chance.random() < refreshed:
        refresh_daily(store)
    return known_count


def same(first: Any, second: Any) -> bool:
    """Return whether two answers agree except for the last bits of sums, whose order depends on DuckDB's threads."""
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-12, abs_tol=1e-12)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)
