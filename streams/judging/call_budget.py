"""The budget of one question, kept so that a crash costs no more than was reserved.

The worst case of a call becomes a record before the call is made, and the judgement that follows settles it. A reservation that no
judgement settles belongs to a call with an unknown outcome, which is charged in full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from analytics.queries import query_records
from analytics.store.store import Store
from audit.cost import PromptBound, Usage, is_plausible, usd_of
from audit.exchanges.questions import INTERRUPTED, Question
from audit.fingerprints import stable_id
from schemas.codec.single_object import encode
from schemas.records import Judgement, Reservation
from streams.judges.protocol import Verdict
from streams.judging.judged_stages import JudgingTask

Publish = Callable[[Judgement | Reservation], Awaitable[object]]
"""Makes a record durable before it returns. Raises StoppedError if no more calls may be made."""


NOT_CHARGED = "the process was stopped before the call was made again; nothing was charged"
CUT_OFF = "the process ended before the outcome of the call was recorded: the call is charged in full"
log = logging.getLogger(__name__)


class StoppedError(Exception):
    """Raised instead of making a call because the process is about to stop; the next start resumes the task."""


class ErasedError(StoppedError):
    """Raised instead of making a call because the task's session was erased; the task gets no record."""


class _Held(NamedTuple):
    """The reservation for one call."""

    amount: int | None
    """Nano-USD; None if the price is unknown."""
    tokens: int
    """The most tokens that the answer may have."""


class DurableBudget:
    """The call budget of one question; see `streams.judges.protocol.CallBudget`.

    `reservation_id` is that of a reservation from an earlier process, whose call is now looked up or made: it is used before a new
    reservation is made.
    """

    def __init__(
        self,
        question: Question,
        judging_task: JudgingTask,
        publish: Publish,
        now: Callable[[], datetime],
        is_open: Callable[[], bool],
        *,
        reservation_id: str | None = None,
    ) -> None:
        self._question = question
        self._judging_task = judging_task
        self._publish = publish
        self._now = now
        self._is_open = is_open
        self._unused = reservation_id
        self._held: _Held | None = None
        self._reservations: list[str] = []
        self._recorded = 0
        self._is_billed = False
        self._spent: int | None = 0

    @property
    def is_at_stake(self) -> bool:
        """True if money was reserved or spent, so that giving the question up costs something."""
        return self._held is not None or bool(self._reservations)

    async def reserve(self, prompt: PromptBound | None = None) -> int:
        """Reserve the worst case of one call; see `streams.judges.protocol.CallBudget.reserve`.

        Raises StoppedError if the process is about to stop, unless the question has already cost something: then it is finished.
        """
        if not self._is_open() and not self._is_billed and self._unused is None:
            await self._give_up()
        if self._held is not None and self._holds_enough(self._held, prompt):
            return self._held.tokens
        self._release()
        held = self._set_aside(prompt)
        if held is None:
            return 0
        self._held = held
        self._recorded += held.amount or 0
        if self._unused is not None:
            self._reservations.append(self._unused)
            self._unused = None
            return held.tokens
        record = self._reservation(held)
        self._reservations.append(record.reservation_id)
        await self._publish(record)
        return held.tokens

    def spend(self, usage: Usage | None, model: str | None) -> None:
        """Charge the reported usage, or the whole reservation if the usage is missing or impossible."""
        held, self._held = self._held, None
        self._is_billed = True
        if held is None or held.amount is None:
            self._spent = None
            return
        cost = self._cost(usage) if usage is not None and is_plausible(usage, self._question) else None
        charge = held.amount if cost is None else cost
        self._judging_task.ledger.settle(held.amount, min(charge, held.amount))
        if charge > held.amount:
            log.error("a call to %s cost %d nano-USD, and %d were reserved for it", model, charge, held.amount)
            self._judging_task.ledger.charge(charge - held.amount)
        self._spent = (self._spent or 0) + charge

    def write_off(self) -> None:
        """Charge the reservation in full if a call may have been made with it."""
        if self._held is not None:
            self.spend(None, None)

    async def judgement(self, verdict: Verdict) -> Judgement:
        """Make the verdict a durable record; releases the unspent rest of the reservation."""
        record = self._record(verdict)
        await self._publish(record)
        self._release()
        return record

    async def _give_up(self) -> None:
        """Make no call: settle the reservation of a call that the API refused free of charge with zero."""
        if self._held is not None:
            await self.judgement(Verdict(outcome=INTERRUPTED, error=NOT_CHARGED))
        raise StoppedError

    def _holds_enough(self, held: _Held, prompt: PromptBound | None) -> bool:
        most = self._most(prompt, held.tokens)
        return held.amount is None or most is None or most <= held.amount

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None and held.amount is not None:
            self._judging_task.ledger.release(held.amount)

    def _set_aside(self, prompt: PromptBound | None) -> _Held | None:
        """Reserve the worst case, with the longest answer that fits the budget; None if none fits.

        The cap must hold even if the process dies before the judgement is recorded. Then each of the question's calls is charged as
        reserved, even if this process knew a smaller cost.
        """
        at_risk = self._recorded - (self._spent or 0)
        for tokens in (self._question.max_tokens, self._question.min_tokens):
            amount = self._most(prompt, tokens)
            if amount is None:
                return _Held(None, tokens)
            if self._judging_task.ledger.can_reserve(amount + at_risk) and self._judging_task.ledger.reserve(amount):
                return _Held(amount, tokens)
            if self._judging_task.batched:
                break
        return None

    def _most(self, prompt: PromptBound | None, tokens: int) -> int | None:
        """Return the most that a call can cost, in nano-USD; None if the price is unknown."""
        price, batched = self._judging_task.price, self._judging_task.batched
        if price is None:
            return None
        if prompt is None:
            return price.max_cost(self._question.texts_size, tokens, batched=batched)
        return price.max_prompt_cost(prompt, tokens, batched=batched)

    def _cost(self, usage: Usage) -> int | None:
        price = self._judging_task.price
        return None if price is None else price.cost(usage, batched=self._judging_task.batched)

    def _asked(self) -> dict[str, Any]:
        """Return the fields about the question and its subject, which reservations and judgements share."""
        judging_task = self._judging_task
        return {
            "fingerprint": self._question.fingerprint,
            "connection": judging_task.connection,
            "project": judging_task.project,
            "session_id": judging_task.session_id,
            "subject_id": judging_task.subject_id,
            "subject_revision": judging_task.revision,
            "purpose": self._question.purpose,
            "requested_model": self._question.model,
        }

    def _id(self, kind: str, at: datetime) -> str:
        revision, number = self._judging_task.revision, len(self._reservations)
        return stable_id(kind, self._question.fingerprint, revision, number, at.isoformat())

    def _reservation(self, held: _Held) -> Reservation:
        at = self._now()
        return Reservation(
            reservation_id=self._id("reservation", at),
            **self._asked(),
            amount_usd=None if held.amount is None else usd_of(held.amount),
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
            batched=self._judging_task.batched,
            simulated=verdict.simulated,
            reservation_ids=tuple(self._reservations),
            judged_at=at,
        )


class CallRecorder:
    """Makes records of judge calls durable in a store without an engine, such as that of a replay or of batch evaluations.

    The records of one turn of the event loop share a transaction, because a commit takes as long for one record as for hundreds.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._group: list[Judgement | Reservation] = []
        self._durable: asyncio.Future[None] | None = None

    async def publish(self, record: Judgement | Reservation) -> None:
        """See `Publish`. A record is written even if its caller no longer waits for it."""
        if self._durable is None:
            loop = asyncio.get_running_loop()
            self._durable = loop.create_future()
            loop.call_soon(self._commit, self._durable)
        self._group.append(record)
        await asyncio.shield(self._durable)

    def _commit(self, durable: asyncio.Future[None]) -> None:
        records, self._group, self._durable = self._group, [], None
        try:
            append_calls(self._store, records)
        except Exception as error:  # noqa: BLE001 - every caller of the group gets it
            durable.set_exception(error)
        else:
            durable.set_result(None)


def append_calls(store: Store, records: Sequence[Judgement | Reservation]) -> None:
    """Append records of judge calls to a store in one transaction."""
    with store.transaction() as transaction:
        transaction.append("judgements", [encode(record) for record in records])


def settle_interrupted(store: Store, now: datetime) -> None:
    """Record a judgement for every unsettled reservation.

    Call it only while no judge is being asked: a running call has an unsettled reservation, too.
    """
    if not store.end_of("judgements"):
        return
    if judgements := all_interrupted(query_records(store.cursor(), "open_reservations", Reservation), now):
        append_calls(store, judgements)


def all_interrupted(reservations: Iterable[Reservation], now: datetime) -> list[Judgement]:
    """Return the judgements of calls with an unknown outcome, and log their number."""
    judgements = [interrupted(reservation, now) for reservation in reservations]
    if judgements:
        log.warning("%d judge calls were under way when their process ended: charged in full", len(judgements))
    return judgements


def interrupted(reservation: Reservation, now: datetime) -> Judgement:
    """Return the judgement of a call with an unknown outcome. Its id is derived from the reservation, so repetitions count once."""
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
        error=CUT_OFF,
        attempts=1,
        cost_usd=reservation.amount_usd,
        reservation_ids=(reservation.reservation_id,),
        judged_at=now,
    )
