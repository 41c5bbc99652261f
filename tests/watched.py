"""What tests of the watch share: histories of scores of which it is known what happened in them, and a watch over a store."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from builders import score

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import Record, Score

END = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
"""The moment as of which things are checked."""


def history(
    quality: Callable[[int], float],
    days: int,
    *,
    project: str = "ops",
    a_day: int = 10,
    seed: int = 7,
    name: str = "",
    end: datetime = END,
    **fields: object,
) -> list[Score]:
    """Scores of so many days up to `end`, a session a score, of a Tier 2 around `quality(days before the end)`, with a spread of 0.1."""
    chance = random.Random(seed)
    made = []
    for back in range(days, -1, -1):
        for number in range(a_day):
            at = end - timedelta(days=back, minutes=10 * number + 5)
            session = f"{project}{name}-{back}-{number}"
            tier2 = round(min(1.0, max(0.0, chance.gauss(quality(back), 0.1))), 3)
            values = {"project": project, "exchange_at": at, "scored_at": at, "tier2_score": tier2, **JUDGED, **fields}
            made.append(score(session, 1, **values))
    return made


JUDGED: dict[str, object] = {
    "disposition": "scored",
    "tier2_state": "scored",
    "tier2_reason": "always",
    "tier3_state": "skipped_gate",
    "tier3_reason": "routine",
    "judge_model": "claude-haiku-4-5",
}
"""What a score has whose Tier 2 was judged."""


def fallen(since: int, to: float = 0.45, before: float = 0.85) -> Callable[[int], float]:
    """A quality that fell so many days before the end."""
    return lambda back: to if back < since else before


def steady(_back: int) -> float:
    """A quality that stays as it is."""
    return 0.85


def put(store: Store, topic: str, records: Iterable[Record]) -> None:
    """Append records to a topic."""
    with store.transaction() as transaction:
        transaction.append(topic, [encode(one) for one in records], skip_known=True)
