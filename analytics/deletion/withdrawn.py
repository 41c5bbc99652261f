# ruff: noqa: S608 - statements are built from names of ours
"""Scores of exchanges that were withdrawn: they go, and their days are added up again.

What was decided of an exchange before it was withdrawn may be scored after that: so this is done again and again. What judging it has
cost stays with the judgements, which were paid for.
"""

from __future__ import annotations

import contextlib

from analytics.deletion.removing import remove_scores
from analytics.store.connection import fetch
from analytics.store.positions import PLACE
from analytics.store.store import Store

_ANY = "SELECT EXISTS (SELECT 1 FROM log.exchanges WHERE withdrawn)"
_SCORES = (
    f"SELECT {', '.join(PLACE)}, project, exchange_at FROM log.scores "
    "SEMI JOIN (SELECT connection, exchange_id FROM log.exchanges WHERE withdrawn) USING (connection, exchange_id)"
)


def forget_withdrawn(store: Store) -> int:
    """Delete the scores of exchanges that were withdrawn; answers how many rows."""
    with contextlib.closing(store.cursor()) as cursor:
        if not cursor.execute(_ANY).fetchall()[0][0]:
            return 0
        scores = fetch(cursor, _SCORES)
    return remove_scores(store, scores)
