"""Calls whose process died: their reservations are charged in full, and that becomes a record before anything is scored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from analytics.queries import query_rows
from analytics.store import Store
from audit.fingerprints import stable_id
from schemas.codec import encode
from schemas.records import Judgement

WHY = "the process ended before the outcome of the call was recorded: the call is charged in full"


def settle_interrupted(store: Store, now: datetime) -> int:
    """Record a judgement for every reservation that none settles; answers how many there were.

    To be called while no judge is being asked: a call that is under way has an open reservation, too.
    """
    if not store.end_of("judgements"):
        return 0
    rows = query_rows(store.cursor(), "open_reservations")
    if rows:
        with store.transaction() as transaction:
            transaction.append("judgements", [encode(_interrupted(row, now)) for row in rows])
    return len(rows)


def _interrupted(row: dict[str, Any], now: datetime) -> Judgement:
    return Judgement(
        judgement_id=stable_id("judgement", row["reservation_id"]),
        fingerprint=row["fingerprint"],
        connection=row["connection"],
        project=row["project"],
        session_id=row["session_id"],
        subject_id=row["subject_id"],
        subject_revision=row["subject_revision"],
        purpose=row["purpose"],
        requested_model=row["requested_model"],
        outcome="interrupted",
        error=WHY,
        attempts=1,
        cost_usd=row["amount_usd"],
        reservation_ids=(row["reservation_id"],),
        judged_at=now,
    )
