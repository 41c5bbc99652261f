"""The money of one question, kept so that a crash costs no more than was set aside.

The worst case of a call becomes a record before the call is made, and the judgement that follows settles it. A reservation that no
judgement settles belongs to a call whose outcome nobody knows: it is charged in full.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from audit.fingerprints import stable_id
from audit.prices import Usage, believable, usd_of, worst_case
from audit.questions import Question
from schemas.records import Judgement, Reservation
from streams.docket import Docket
from streams.judges.protocol import Verdict

Publish = Callable[[Judgement | Reservation], Awaitable[object]]
"""Makes a record durable; it is when the call returns. StoppedError where no call is to be made any more."""


class StoppedError(Exception):
    """No more calls are made because the process is about to stop; the task is taken up by the next start."""


class ErasedError(StoppedError):
    """No more calls are made for this task because its session was erased; nothing becomes of it."""


class DurablePurse:
    """The purse of one question; see `streams.judges.protocol.Purse`.

    `reservation_id` is of a reservation that a process before this one recorded, and whose call is looked for or made now: it is used
    up before another one is made.
    """

    def __init__(
        self,
        question: Question,
        docket: Docket,
        publish: Publish,
        now: Callable[[], datetime],
        is_open: Callable[[], bool],
        *,
        reservation_id: str | None = None,
    ) -> None:
        self._question = question
        self._docket = docket
        self._publish = publish
        self._now = now
        self._is_open = is_open
        self._unused = reservation_id
        price = docket.price
        self._amount = None if price is None else worst_case(question, price, batched=docket.batched)
        self._held = False
        self._reservations: list[str] = []
        self._spent: int | None = 0

    async def reserve(self) -> bool:
        """Set aside the worst case of one call; durable when it answers True. False: the cap forbids the call.

        StoppedError when the process is about to stop; a question that has cost something is brought to its end.
        """
        if not self._is_open() and not self._reservations and self._unused is None:
            raise StoppedError
        if self._held:
            return True
        if self._amount is not None and not self._set_aside(self._amount):
            return False
        self._held = True
        if self._unused is not None:
            self._reservations.append(self._unused)
            self._unused = None
            return True
        record = self._reservation()
        self._reservations.append(record.reservation_id)
        await self._publish(record)
        return True

    def spend(self, usage: Usage | None, model: str | None) -> None:  # noqa: ARG002 - the model that was asked is what is paid for
        """Charge what the usage says, or the whole reservation where it is missing or cannot be true."""
        self._held = False
        if self._amount is None:
            self._spent = None
            return
        cost = self._cost(usage) if usage is not None and believable(usage, self._question) else None
        charge = self._amount if cost is None else min(cost, self._amount)
        self._docket.ledger.settle(self._amount, charge)
        self._spent = (self._spent or 0) + charge

    def write_off(self) -> None:
        """Charge what is reserved in full, where a call may have been made with it."""
        if self._held:
            self.spend(None, None)

    async def judgement(self, verdict: Verdict) -> Judgement:
        """The verdict as a record, durable; what was set aside and not spent is free again."""
        record = self._record(verdict)
        await self._publish(record)
        if self._held and self._amount is not None:
            self._docket.ledger.release(self._amount)
        self._held = False
        return record

    def _set_aside(self, amount: int) -> bool:
        """Reserve the amount, where the cap would hold even if the process died before the judgement was recorded.

        Then each of the question's calls is charged in full, those too whose smaller cost was known to this process alone.
        """
        at_risk = amount * len(self._reservations) - (self._spent or 0)
        return self._docket.ledger.can_reserve(amount + at_risk) and self._docket.ledger.reserve(amount)

    def _cost(self, usage: Usage) -> int | None:
        price = self._docket.price
        return None if price is None else price.cost(usage, batched=self._docket.batched)

    def _asked(self) -> dict[str, Any]:
        """What both records say of the question and of whom it is about."""
        docket = self._docket
        return {
            "fingerprint": self._question.fingerprint,
            "connection": docket.connection,
            "project": docket.project,
            "session_id": docket.session_id,
            "subject_id": docket.subject_id,
            "subject_revision": docket.revision,
            "purpose": self._question.purpose,
            "requested_model": self._question.model,
        }

    def _id(self, kind: str, at: datetime) -> str:
        revision, number = self._docket.revision, len(self._reservations)
        return stable_id(kind, self._question.fingerprint, revision, number, at.isoformat())

    def _reservation(self) -> Reservation:
        at = self._now()
        return Reservation(
            reservation_id=self._id("reservation", at),
            **self._asked(),
            amount_usd=None if self._amount is None else usd_of(self._amount),
            reserved_at=at,
        )

    def _record(self, verdict: Verdict) -> Judgement:
        at, usage = self._now(), verdict.usage
        return Judgement(
            judgement_id=self._id("judgement", at),
            **self._asked(),
            answering_model=verdict.model,
            outcome=verdict.outcome,
            answer=verdict.answer,
            stop_reason=verdict.stop_reason,
            error=verdict.error,
            attempts=verdict.attempts,
            attempt_errors=verdict.attempt_errors,
            input_tokens=usage.input_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cache_write_tokens=usage.cache_write_tokens if usage else None,
            cache_read_tokens=usage.cache_read_tokens if usage else None,
            cost_usd=None if self._spent is None else usd_of(self._spent),
            latency_ms=verdict.latency_ms,
            batched=self._docket.batched,
            simulated=verdict.simulated,
            reservation_ids=tuple(self._reservations),
            judged_at=at,
        )
