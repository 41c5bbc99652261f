"""The call budget of one question, with durable reservations: a crash costs no more than was reserved.

The largest possible cost of a call is recorded as a reservation before the call, and settled by the judgement after it. A reservation
without a judgement belongs to a call with an unknown outcome, which is charged in full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from analytics.queries import query_records
from analytics.store.store import Store
from audit.cost import PromptBound, Usage, is_plausible, min_budget, usd_of
from audit.exchanges.questions import COST_CAP, INTERRUPTED, Question
from audit.fingerprints import stable_id
from audit.spending import SHARED_CAPS, Reserved
from schemas.codec.single_object import encode
from schemas.records import Judgement, Reservation
from streams.judges.batch_plans import BatchJournal, BatchQuestion
from streams.judges.protocol import Verdict
from streams.judging.judged_stages import JudgingTask
from streams.judging.shared_caps import SharedCaps

Publish = Callable[[Judgement | Reservation], Awaitable[object]]
"""Makes a record durable, then returns. Raises StoppedError if no more calls may be made."""
NOT_CHARGED = "the process was stopped before the call was retried; nothing was charged"
CHARGED_IN_FULL = "the process ended before the outcome of the call was recorded, so the call is charged in full"
log = logging.getLogger(__name__)


class StoppedError(Exception):
    """The process is stopping, so no call was made; the next process resumes the task."""


class ErasedError(StoppedError):
    """The task's session was erased, so no call was made; the task gets no record."""


class _OpenReservation(NamedTuple):
    """The reservation for the next or the current call."""

    amount: int | None
    """Nano-USD; None if the price is unknown."""
    max_tokens: int
    """The maximum number of tokens of the answer."""


class _Refusal(NamedTuple):
    """The refusal of a call by a shared cap."""

    cap: str
    """One of `SHARED_CAPS`."""
    entry: Reserved
    """The reservation that did not fit."""


class DurableBudget:
    """The call budget of one question; see `streams.judges.protocol.CallBudget`.

    `reservation_id` names a reservation of an earlier process. The first call uses it instead of a new reservation.
    """

    def __init__(
        self,
        question: Question,
        judging_task: JudgingTask,
        publish: Publish,
        now: Callable[[], datetime],
        is_open: Callable[[], bool],
        *,
        shared_caps: SharedCaps | None = None,
        reservation_id: str | None = None,
    ) -> None:
        self._question = question
        self._judging_task = judging_task
        self._publish = publish
        self._now = now
        self._is_open = is_open
        self._shared_caps = shared_caps
        self._refusal: _Refusal | None = None
        self._unused_reservation_id = reservation_id
        self._open_reservation: _OpenReservation | None = None
        self._reservation_ids: list[str] = []
        self._reserved_in_total = 0
        self._is_billed = False
        self._spent: int | None = 0

    @property
    def has_cost(self) -> bool:
        """True if money was reserved or spent, so that it is wasted if the question is abandoned."""
        return self._open_reservation is not None or bool(self._reservation_ids)

    async def reserve(self, prompt: PromptBound | None = None, *, answer_tokens: int | None = None) -> int:
        """Reserve the largest possible cost of one call; see `streams.judges.protocol.CallBudget.reserve`.

        Raises StoppedError if the process is stopping. A question that has been billed is finished nevertheless.
        """
        if not self._is_open() and not self._is_billed and self._unused_reservation_id is None:
            await self._abandon()
        self._refusal = None
        lengths = (self._question.max_tokens, self._question.min_tokens) if answer_tokens is None else (answer_tokens,)
        open_reservation = self._open_reservation
        if (
            open_reservation is not None
            and open_reservation.max_tokens >= lengths[-1]
            and self._is_sufficient(open_reservation, prompt)
        ):
            return open_reservation.max_tokens
        self._release()
        reservation = self._try_reserve(prompt, lengths)
        if reservation is None:
            return 0
        self._open_reservation = reservation
        if self._unused_reservation_id is not None:
            reservation_id = self._unused_reservation_id
            self._unused_reservation_id = None
            self._note_reservation(reservation_id, reservation)
            return reservation.max_tokens
        record = self._build_reservation(reservation.amount)
        if not await self._fits_shared_caps(record, reservation):
            self._release()
            return 0
        self._note_reservation(record.reservation_id, reservation)
        await self._publish(record)
        return reservation.max_tokens

    def spend(self, usage: Usage | None, model: str | None) -> None:
        """Charge the reported usage, or the whole reservation if the usage is missing or implausible."""
        reservation = self._open_reservation
        self._open_reservation = None
        self._is_billed = True
        if reservation is None or reservation.amount is None:
            self._spent = None
            return
        reserved = reservation.amount
        cost = self._cost(usage) if usage is not None and is_plausible(usage, self._question, reservation.max_tokens) else None
        charge = reserved if cost is None else cost
        self._judging_task.ledger.settle(reserved, min(charge, reserved))
        if charge > reserved:
            log.error("a call to %s cost %d nano-USD, but only %d were reserved", model, charge, reserved)
            self._judging_task.ledger.charge(charge - reserved)
        self._spent = (self._spent or 0) + charge

    def write_off(self) -> None:
        """Charge the open reservation in full, because its call may have been made."""
        if self._open_reservation is not None:
            self.spend(None, None)

    async def record_judgement(self, verdict: Verdict) -> Judgement:
        """Record the verdict durably, and release the open reservation."""
        record = self._build_judgement(verdict)
        try:
            await self._publish(record)
        except ErasedError:  # the record is dropped, but the money is spent
            await self._settle_shared_caps()
            raise
        await self._settle_shared_caps()
        self._release()
        return record

    def close(self) -> None:
        """Make no more calls: other questions do not wait for this one's. Reservations that are not settled count in full."""
        if self._shared_caps is not None:
            self._shared_caps.forget(self._reservation_ids)

    def is_exhausted(self) -> bool:
        """Return whether a shared cap has no room for even the cheapest call, whatever the running calls will cost."""
        if self._shared_caps is None or not self._judging_task.has_shared_cap or self.has_cost:
            return False
        price = self._judging_task.price_of(self._question.model)
        if price is None or self._unused_reservation_id is not None:
            return False
        amount = min_budget(self._question, price)
        entry = self._shared_caps.entry("", self._judging_task.project, self._now(), amount)
        cap = self._shared_caps.refusing_cap(entry, counting_reserved=False)
        self._refusal = None if cap is None else _Refusal(cap, entry)
        return cap is not None

    async def wait_for_room(self) -> bool:
        """After a shared cap refused the first call, wait until it may fit. Return False if it cannot fit for now.

        Only a question without a reservation waits, so those for which it waits never wait themselves.
        """
        if self._shared_caps is None or self._refusal is None or self.has_cost:
            return False
        return await self._shared_caps.wait_for_room(self._refusal.entry)

    async def _abandon(self) -> None:
        """Raise StoppedError. An open reservation, whose call was rejected free of charge, is settled with zero first."""
        if self._open_reservation is not None:
            await self.record_judgement(Verdict(outcome=INTERRUPTED, error=NOT_CHARGED))
        raise StoppedError

    def _note_reservation(self, reservation_id: str, reservation: _OpenReservation) -> None:
        self._reservation_ids.append(reservation_id)
        self._reserved_in_total += reservation.amount or 0

    async def _fits_shared_caps(self, record: Reservation, reservation: _OpenReservation) -> bool:
        """Reserve a call under the shared caps; return False if one refuses it."""
        if self._shared_caps is None or reservation.amount is None:
            return True
        entry = self._shared_caps.entry(record.reservation_id, record.project, record.reserved_at, reservation.amount)
        cap = await self._shared_caps.reserve(entry, batched=self._judging_task.batched)
        self._refusal = None if cap is None else _Refusal(cap, entry)
        return cap is None

    async def _settle_shared_caps(self) -> None:
        if self._shared_caps is not None:
            await self._shared_caps.settle(self._reservation_ids, self._spent or 0)

    def _is_sufficient(self, reservation: _OpenReservation, prompt: PromptBound | None) -> bool:
        max_cost = self._max_cost(prompt, reservation.max_tokens)
        return reservation.amount is None or max_cost is None or max_cost <= reservation.amount

    def _release(self) -> None:
        reservation = self._open_reservation
        self._open_reservation = None
        if reservation is not None and reservation.amount is not None:
            self._judging_task.ledger.release(reservation.amount)

    def _try_reserve(self, prompt: PromptBound | None, lengths: Sequence[int]) -> _OpenReservation | None:
        """Reserve the largest possible cost in the ledger, for the first length of the answer that the cap allows; None for none.

        The cap must hold even if the process dies before the judgement is recorded. All calls of the question are charged as reserved
        then, although this process already knows the smaller costs of some. Their difference is `at_risk`.
        """
        ledger = self._judging_task.ledger
        at_risk = self._reserved_in_total - (self._spent or 0)
        for max_tokens in lengths:
            max_cost = self._max_cost(prompt, max_tokens)
            if max_cost is None:
                return _OpenReservation(None, max_tokens)
            if ledger.can_reserve(max_cost + at_risk) and ledger.reserve(max_cost):
                return _OpenReservation(max_cost, max_tokens)
            if self._judging_task.batched:
                break
        return None

    def _max_cost(self, prompt: PromptBound | None, max_tokens: int) -> int | None:
        """Return the largest possible cost of a call in nano-USD; None if the price is unknown."""
        price = self._judging_task.price_of(self._question.model)
        batched = self._judging_task.batched
        if price is None:
            return None
        if prompt is None:
            return price.max_cost(self._question.texts_size, max_tokens, batched=batched)
        return price.max_prompt_cost(prompt, max_tokens, batched=batched)

    def _cost(self, usage: Usage) -> int | None:
        price = self._judging_task.price_of(self._question.model)
        return None if price is None else price.cost(usage, batched=self._judging_task.batched)

    def _shared_fields(self) -> dict[str, Any]:
        """Return the fields that reservations and judgements share: the question and its subject."""
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

    def _build_id(self, record_type: str, time: datetime) -> str:
        revision = self._judging_task.revision
        call_number = len(self._reservation_ids)
        return stable_id(record_type, self._question.fingerprint, revision, call_number, time.isoformat())

    def _build_reservation(self, amount: int | None) -> Reservation:
        now = self._now()
        return Reservation(
            reservation_id=self._build_id("reservation", now),
            **self._shared_fields(),
            amount_usd=None if amount is None else usd_of(amount),
            reserved_at=now,
        )

    def _build_judgement(self, verdict: Verdict) -> Judgement:
        now = self._now()
        usage = verdict.usage
        outcome, error, judged_at = verdict.outcome, verdict.error, now
        if outcome == COST_CAP.reason and self._refusal is not None:
            judged_at = self._refusal.entry.at  # of the day whose cap was reached
            outcome, error = self._refusal.cap, f"{SHARED_CAPS[self._refusal.cap]} leaves no room for another call"
        return Judgement(
            judgement_id=self._build_id("judgement", now),
            **self._shared_fields(),
            answering_model=verdict.model,
            outcome=outcome,
            answer=verdict.answer,
            stop_reason=verdict.stop_reason,
            error=error,
            attempts=verdict.attempts,
            attempt_errors=verdict.attempt_errors,
            repairs=verdict.repairs,
            input_tokens=usage.input_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cache_write_tokens=usage.cache_write_tokens if usage else None,
            cache_read_tokens=usage.cache_read_tokens if usage else None,
            cost_usd=None if self._spent is None else usd_of(self._spent),
            latency_ms=verdict.latency_ms,
            batched=self._judging_task.batched,
            simulated=verdict.simulated,
            reservation_ids=tuple(self._reservation_ids),
            judged_at=judged_at,
            part=self._question.part,
            masked_passages=self._question.masked_passages,
        )


def batch_question(  # noqa: PLR0917 - see `DurableBudget`
    question: Question,
    judging_task: JudgingTask,
    publish: Publish,
    now: Callable[[], datetime],
    reservations: dict[str, str],
    shared_caps: SharedCaps | None,
) -> BatchQuestion:
    """Return a question for the batch judge, tagged with its budget.

    `reservations` are the ids of unsettled reservations for batches of earlier processes, by fingerprint. That of the question is removed,
    because it pays for one call.
    """
    reservation_id = reservations.pop(question.fingerprint, None)
    budget = DurableBudget(
        question, judging_task, publish, now, lambda: True, shared_caps=shared_caps, reservation_id=reservation_id
    )
    return BatchQuestion(question, budget, tag=budget)


class CallRecorder:
    """Records judge calls in a store without an engine, for replays and batch evaluations.

    Records from the same iteration of the event loop share a transaction (group commit), because committing one record takes as long as
    committing hundreds.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._group: list[Judgement | Reservation] = []
        self._committed: asyncio.Future[None] | None = None

    async def publish(self, record: Judgement | Reservation) -> None:
        """Record a call durably; see `Publish`. The record is written even if the caller is cancelled."""
        if self._committed is None:
            loop = asyncio.get_running_loop()
            self._committed = loop.create_future()
            loop.call_soon(self._commit, self._committed)
        self._group.append(record)
        await asyncio.shield(self._committed)

    def _commit(self, committed: asyncio.Future[None]) -> None:
        records = self._group
        self._group = []
        self._committed = None
        try:
            append_calls(self._store, records)
        except Exception as error:  # noqa: BLE001 - raised in every caller of the group
            committed.set_exception(error)
        else:
            committed.set_result(None)


def append_calls(store: Store, records: Sequence[Judgement | Reservation]) -> None:
    """Append records of judge calls to a store in one transaction."""
    with store.transaction() as transaction:
        transaction.append("judgements", [encode(record) for record in records])


def batch_journal_path(database: Path) -> Path:
    """Return the path of the journal of the batches that exchanges wait for."""
    return database.with_name(f"{database.name}.batches.jsonl")


def planned_questions(store: Store) -> set[str]:
    """Return the fingerprints of the questions in batches that exchanges wait for. Raises StoreError if their journal is damaged."""
    return set() if store.path is None else BatchJournal(batch_journal_path(store.path)).fingerprints()


def settle_interrupted_calls(store: Store, now: datetime, planned: Iterable[str] = ()) -> None:
    """Record a judgement for every unsettled reservation, except those of batches: their answers are still to come.

    `planned` has the fingerprints of the caller's own batches. No call may be in progress meanwhile, because its reservation is
    unsettled, too.
    """
    if not store.end_of("judgements"):
        return
    reservations = query_records(store.cursor(), "open_reservations", Reservation)
    spared = planned_questions(store).union(planned)
    judgements = interrupted_judgements((row for row in reservations if row.fingerprint not in spared), now)
    if judgements:
        append_calls(store, judgements)


def interrupted_judgements(reservations: Iterable[Reservation], now: datetime) -> list[Judgement]:
    """Return the judgements that settle the reservations of calls with an unknown outcome, and log their number."""
    judgements = [interrupted_judgement(reservation, now) for reservation in reservations]
    if judgements:
        log.warning("%d judge calls were in progress when their process ended; they are charged in full", len(judgements))
    return judgements


def interrupted_judgement(reservation: Reservation, now: datetime) -> Judgement:
    """Return the judgement of a call with an unknown outcome. Its id is derived from the reservation, so duplicates count once."""
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
        error=CHARGED_IN_FULL,
        attempts=1,
        cost_usd=reservation.amount_usd,
        reservation_ids=(reservation.reservation_id,),
        judged_at=now,
    )
