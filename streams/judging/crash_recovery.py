"""Calls whose process died: their reservations are charged in full, and that becomes a record before anything is scored."""

from __future__ import annotations

from datetime import datetime

from analytics.queries import query_records
from analytics.store.store import Store
from audit.exchanges.judgements import INTERRUPTED
from audit.fingerprints import stable_id
from schemas.codec.single_object import encode
from schemas.records import Judgement, Reservation

WHY = "the process ended before the outcome of the call was recorded: the call is charged in full"


def settle_interrupted(store: Store, now: datetime) -> int:
    """Record a judgement for every reservation that none settles; answers how many there were.

    To be called while no judge is being asked: a call that is under way has an open reservation, too.
    """
    if not store.end_of("judgements"):
        return 0
    found = list(query_records(store.cursor(), "open_reservations", Reservation))
    if found:
        with store.transaction() as transaction:
            transaction.append("judgements", [encode(interrupted(one, now)) for one in found])
    return len(found)


def interrupted(reservation: Reservation, now: datetime) -> Judgement:
    """The judgement of a call whose outcome nobody knows. It has one id, so it counts once however often it is made."""
    return Judgement(
        judgement_id=stable_id("judgement", reservation.reservation_id),
        fingerprint=reservation.fingerprint,
        connection=reservation.connection,
        project=reservation.project,
        session_id=reservation.session_id,
        subject_id=reservation.subject_id,
        subject_revision=reservation.subject_revision,
        purpose=reservation.purpose,
        requested_model=reservation.requested_model,
        outcome=INTERRUPTED,
        error=WHY,
        attempts=1,
        cost_usd=reservation.amount_usd,
        reservation_ids=(reservation.reservation_id,),
        judged_at=now,
    )
