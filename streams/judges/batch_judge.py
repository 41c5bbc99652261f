"""The batch judge: asks thousands of questions through the Message Batches API, at half the price, within a day.

How a caller drives it, round by round (each exchange's cascade asks its next question when it has the verdict on the one before):

    judge = open_batch_judge(key, url, traits, BatchJournal(path))
    async for asked, verdict in judge.ask_all([BatchQuestion(question, call budget, tag), ...]):
        await make_durable(verdict)          # before the next one is asked for

1. `ask_all` gives exactly one verdict for each question, in any order, with the outcomes of the live judge. A fingerprint stands once in
   what it is given (ValueError). `BatchQuestion.tag` comes back untouched.
2. Money: `purse.reserve()` is awaited for each question before the batch that holds it is made, in the order of the questions; the
   `DurableBudget` of a `JudgedStage.open(..., batched=True)` reserves and charges at the batch's price. `budget.spend` is called with the outcome of a question; a
   request that ended in an error, expired or was cancelled is not billed and not charged. A result that never came is charged in full.
3. Durability: the plan of a batch is in the journal before the batch is made, and its id before it is waited for. After a kill -9 the
   caller asks the same questions again (those without a recorded judgement), with the same journal and call budgets that were given the
   `reservation_id` of then: a question whose batch was made is not asked again, its result is fetched. A batch that was made but not
   recorded is found by its custom ids. A journal belongs to one run.
4. A verdict counts as durable when the next one is asked for, the last one when the iteration ends.
5. Outcomes: errored → provider_error; expired → timeout; cancelled → provider_error with the error `CANCELLED`, which a caller that
   wants to go on later does not record. An answer that cannot be used is `invalid`: there is no turn of repair, for with structured
   output there is next to nothing to repair, and a round for it may take a day. Where a model refuses the output format, which is
   free, its questions are asked once more with the schema in the prompt.
6. An API that cannot be reached for an hour, or does not let us in, raises JudgeUnavailableError; nothing is lost or paid for by it.
   So does a model whose last answers, as many as open a circuit of the live judge, cannot be read, once the batches under way have
   ended: a batch is too much to pay for to find out whether that is over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec

from audit.exchanges.questions import ANSWERED, Invalid
from streams.judges.batch_plans import CANCELLED, BatchJournal, BatchPlan, BatchQuestion, custom_id, newest_plans
from streams.judges.live import Asking, Traits
from streams.judges.message_batches import Batch, BatchCalls, BatchMaker, JudgeUnavailableError, Patience
from streams.judges.messages_api import (
    MAX_BODY_BYTES,
    PROVIDER_ERROR,
    TIMEOUT,
    Failure,
    Format,
    Message,
    Rung,
    is_simulated,
    open_client,
    parameters,
)
from streams.judges.protocol import Verdict
from streams.judges.rate_limits import MAX_UNREADABLE, Waiting


@dataclass(slots=True, eq=False)
class Pending:
    """A question that waits for its verdict."""

    asked: BatchQuestion
    asking: Asking
    rung: Rung = Rung.STRUCTURED
    """The format that it was asked for last; not known of a question that an earlier process asked."""

    @property
    def fingerprint(self) -> str:
        """Of the question."""
        return self.asking.question.fingerprint

    def without_money(self) -> Verdict:
        """The verdict when the call budget refuses."""
        return self.asking.verdict("cost_cap", "the session's cost cap leaves no room for another call")

    def failed(self, failure: Failure) -> Verdict:
        """The verdict on a request that came to no message; charged in full unless it is known to be free."""
        self.asking.attempts += 1
        self.asking.settle(failure)
        self.asking.failed(failure.outcome, failure.words, unreadable=failure.unreadable)
        return self.asking.gives_up()

    def answered(self, message: Message) -> Verdict:
        """The verdict on a message; what it used is charged, whatever it says."""
        asking = self.asking
        asking.attempts += 1
        asking.simulated |= is_simulated({}, message.model)
        asking.settle(message)
        if (verdict := asking.unanswered(message)) is not None:
            return verdict
        answer = asking.read(message)
        return asking.gives_up() if isinstance(answer, Invalid) else asking.verdict("answered", answer=answer)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch under way, and those of its questions that are waited for, by custom id."""

    plan: BatchPlan
    batch_id: str
    pending: dict[str, Pending]
    began: float
    """The time when this process began to wait, on the clock of `Waiting.now`."""
    patience: Patience
    taken_up: bool = False
    """True if an earlier process made it."""
    cancelled: bool = False
    """True if the API was asked to cancel it."""
    seconds: float = 0.0
    """Seconds that it took."""
    lost: str | None = None
    """The reason why its results will never come."""
    is_whole: bool = True
    """True if all of its questions are waited for: it is not needed afterwards."""


async def reserved(group: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Those of the questions for which money is set aside now, and those for which there is none. What a call budget raises is raised."""
    granted = await asyncio.gather(*(one.asking.budget.reserve() for one in group), return_exceptions=True)
    for answer in granted:
        if isinstance(answer, BaseException):
            raise answer
    funded = [one for one, answer in zip(group, granted, strict=True) if answer]
    return funded, [one for one, answer in zip(group, granted, strict=True) if not answer]


_LOG = logging.getLogger(__name__)
API_MOST_REQUESTS, API_MOST_BYTES = 100_000, 256_000_000
"""The API's limits for one batch."""
_RESERVED_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits on the size of batches and on the wait for them."""

    requests: int = 10_000
    """Most in one batch."""
    size: int = 32_000_000
    """Most bytes of one batch's requests; they are in memory until it is made."""
    open: int = 16
    """Most batches under way."""
    deadline: float = 25 * 3600.0
    """Seconds after which a batch is cancelled; the API lets it expire after 24 hours."""
    grace: float = 3600.0
    """Seconds after the cancellation in which it must end. Later its questions are charged in full."""
    patience: float = 3600.0
    """Seconds for which the API may fail without a break."""
    first_poll: float = 5.0
    """Seconds until a batch is looked at; they grow by half each time,"""
    last_poll: float = 60.0
    """to so many."""


class BatchOpener:
    """Takes up batches and makes new ones, and remembers how the models are to be asked."""

    def __init__(self, maker: BatchMaker, traits: Traits, journal: BatchJournal, limits: BatchLimits, waiting: Waiting) -> None:
        self._maker = maker
        self._traits = traits
        self._journal = journal
        self._limits = limits
        self._waiting = waiting
        self._rungs: dict[str, Rung] = {}

    async def take_up(self, todo: deque[Pending]) -> tuple[list[OpenBatch], list[Pending]]:
        """Earlier batches that hold questions of `todo`, and those of them for which the call budget has no money. Both leave `todo`."""
        plans = newest_plans(await self._journal.unfinished())
        members: dict[str, list[Pending]] = {}
        for one in todo:
            if (plan := plans.get(one.fingerprint)) is not None:
                members.setdefault(plan.plan_id, []).append(one)
        opened, refused, gone = [], [], set()
        for plan in {plan.plan_id: plan for plan in plans.values() if plan.plan_id in members}.values():
            batch_id = plan.batch_id or await self._found(plan)
            if batch_id is not None:
                funded, poor = await reserved(members[plan.plan_id])
                opened.append(self._open(plan, batch_id, funded, taken_up=True))
                refused += poor
                gone |= set(funded) | set(poor)
        kept = [one for one in todo if one not in gone]
        todo.clear()
        todo.extend(kept)
        return opened, refused

    async def _found(self, plan: BatchPlan) -> str | None:
        """The id of a plan's batch that was made and not recorded; None when there is none."""
        batch = await self._maker.find(plan)
        if batch is None:
            await self._journal.record_finished(plan.plan_id)
            return None
        await self._journal.record_created(plan.plan_id, batch.batch_id)
        return batch.batch_id

    def _open(self, plan: BatchPlan, batch_id: str, pending: Sequence[Pending], *, taken_up: bool = False) -> OpenBatch:
        _LOG.info("batch %s: waiting for %d of %d questions", batch_id, len(pending), len(plan.fingerprints))
        named = {custom_id(one.fingerprint, plan.plan_id): one for one in pending}
        patience = Patience(self._waiting, self._limits.patience)
        is_whole = len(named) == len(plan.fingerprints)
        began = self._waiting.now()
        return OpenBatch(plan, batch_id, named, began, patience, taken_up=taken_up, is_whole=is_whole)

    async def make(self, todo: deque[Pending]) -> tuple[list[OpenBatch], list[tuple[BatchQuestion, Verdict]]]:
        """A batch of the first questions of `todo`, at most one; and the verdicts on those that are not asked after all."""
        plan_id = secrets.token_hex(8)
        chosen, requests, refused = await self._fill(todo, plan_id)
        ended = [(one.asked, one.without_money()) for one in refused]
        if not chosen:
            return [], ended
        now = datetime.fromtimestamp(self._waiting.wall(), UTC)
        plan = BatchPlan(plan_id=plan_id, fingerprints=tuple(one.fingerprint for one in chosen), planned_at=now)
        await self._journal.record_planned(plan)
        made = await self._maker.make(plan, requests)
        if isinstance(made, Failure):
            await self._journal.record_finished(plan_id)
            return [], [*ended, *((one.asked, one.failed(made)) for one in chosen)]
        await self._journal.record_created(plan_id, made.batch_id)
        return [self._open(plan, made.batch_id, chosen)], ended

    async def _fill(self, todo: deque[Pending], plan_id: str) -> tuple[list[Pending], list[dict[str, Any]], list[Pending]]:
        """The questions of the next batch with their requests, money set aside; and those for which there is none."""
        chosen: list[Pending] = []
        requests: list[dict[str, Any]] = []
        refused: list[Pending] = []
        size, most = 0, min(self._limits.requests, API_MOST_REQUESTS)
        while todo and len(chosen) < most:
            group = [todo.popleft() for _ in range(min(len(todo), _RESERVED_AT_ONCE, most - len(chosen)))]
            funded, poor = await reserved(group)
            refused += poor
            for place, one in enumerate(funded):
                request = self._request(one, plan_id)
                size += len(msgspec.json.encode(request)) + 1
                if chosen and size > min(self._limits.size, API_MOST_BYTES):
                    todo.extendleft(reversed(funded[place:]))
                    return chosen, requests, refused
                chosen.append(one)
                requests.append(request)
        return chosen, requests, refused

    def _request(self, one: Pending, plan_id: str) -> dict[str, Any]:
        question = one.asking.question
        one.rung = self._rungs.get(question.model, Rung.STRUCTURED)
        asked = parameters(question, Format(one.rung, *self._traits(question.model)), secrets.token_hex(8))
        return {"custom_id": custom_id(one.fingerprint, plan_id), "params": asked}

    def step_down(self, model: str, why: str) -> None:
        """From now on the model is asked with the schema in the prompt."""
        if self._rungs.get(model) is not Rung.IN_PROMPT:
            self._rungs[model] = Rung.IN_PROMPT
            _LOG.warning("%s is asked with the schema in the prompt from now on: %s", model, why)


__all__ = [
    "CANCELLED",
    "BatchJournal",
    "BatchJudge",
    "BatchLimits",
    "BatchQuestion",
    "JudgeUnavailableError",
    "open_batch_judge",
]
CALL_SECONDS, RESULTS_SECONDS = 300.0, 900.0
_GONE = 404
_OVERDUE = Failure(words="the batch did not end in time and was cancelled", outcome=TIMEOUT, billed=False)
_READS = 3
"""The number of times that results are read if some are missing."""


class BatchJudge:
    """A judge over the Message Batches API; see the module. Belongs to one event loop; `aclose` gives its connections back."""

    def __init__(self, calls: BatchCalls, traits: Traits, journal: BatchJournal, limits: BatchLimits, waiting: Waiting) -> None:
        self._calls = calls
        self._opener = BatchOpener(BatchMaker(calls, waiting, limits.patience), traits, journal, limits, waiting)
        self._journal = journal
        self._limits = limits
        self._waiting = waiting
        self._cancelled = False
        self._unreadable: Counter[str] = Counter()
        """Answers in a row that cannot be read, by model."""

    def cancel(self) -> None:
        """Ask nothing more. What was answered still comes; every other question comes to an end as CANCELLED, at no cost."""
        self._cancelled = True

    async def aclose(self) -> None:
        """Give back connections."""
        await self._calls.aclose()

    async def ask_all(self, asked: Iterable[BatchQuestion]) -> AsyncGenerator[tuple[BatchQuestion, Verdict]]:
        """A verdict for each question, as they come; see the module."""
        todo = deque(Pending(one, Asking(one.question, one.budget, ends_at=math.inf)) for one in asked)
        if len({one.asking.question.fingerprint for one in todo}) < len(todo):
            raise ValueError("a question stands twice in what is to be asked")
        under_way, refused = await self._opener.take_up(todo)
        for poor in refused:
            yield poor.asked, poor.without_money()
        interval = self._limits.first_poll
        while todo or under_way:
            is_unreadable = bool(todo) and self._unreadable[todo[0].asking.question.model] >= MAX_UNREADABLE
            if is_unreadable and not under_way and not self._cancelled:
                raise _unreadable_error(todo[0].asking)
            if todo and len(under_way) < self._limits.open and (self._cancelled or not is_unreadable):
                opened, failed = self._given_up(todo) if self._cancelled else await self._opener.make(todo)
                under_way += opened
                for pair in failed:
                    yield pair
                continue
            ended = [one for one in under_way if await self._has_ended(one)]
            for one in ended:
                async with aclosing(self._verdicts(one, todo)) as verdicts:
                    async for pair in verdicts:
                        yield pair
                under_way.remove(one)
            interval = self._limits.first_poll if ended else min(interval * 1.5, self._limits.last_poll)
            if under_way and not ended:
                await self._waiting.sleep(interval)

    def _given_up(self, todo: deque[Pending]) -> tuple[list[OpenBatch], list[tuple[BatchQuestion, Verdict]]]:
        """No batch, and the verdicts on questions that are not asked any more."""
        cancelled = [(one.asked, one.asking.verdict(PROVIDER_ERROR, CANCELLED)) for one in todo]
        todo.clear()
        return [], cancelled

    async def _has_ended(self, one: OpenBatch) -> bool:
        """Look at a batch; cancel it when it is time or on request. True when nothing more is to be waited for."""
        batch = await self._calls.retrieve(one.batch_id)
        if isinstance(batch, Failure):
            if batch.status != _GONE:
                await one.patience.bear(batch, f"batch {one.batch_id} cannot be looked at")
                return False
            one.lost = f"the API no longer knows the batch: {batch.words}"
            return True
        one.patience.over()
        one.seconds = batch.seconds
        waited = self._waiting.now() - one.began
        if not batch.ended and waited > self._limits.deadline + self._limits.grace:
            one.lost = "the batch did not end in time"
        elif not batch.ended and not one.cancelled and (self._cancelled or waited > self._limits.deadline):
            one.cancelled = isinstance(await self._calls.cancel(one.batch_id), Batch)
        return batch.ended or one.lost is not None

    async def _verdicts(self, one: OpenBatch, todo: deque[Pending]) -> AsyncGenerator[tuple[BatchQuestion, Verdict]]:
        """The verdicts of a batch that has ended; a question that is to be asked again goes back to `todo`."""
        reads = 0
        while one.pending and one.lost is None and reads < _READS:
            failure: Failure | None = None
            async with aclosing(self._calls.results(one.batch_id)) as results:
                async for result in results:
                    if isinstance(result, Failure):
                        failure = result
                    elif (pending := one.pending.pop(result.custom_id, None)) is not None:
                        verdict = self._settled(one, pending, result.came)
                        self._note_readability(pending.asking, verdict)
                        if verdict is None:
                            todo.append(pending)
                        else:
                            yield pending.asked, verdict
            if failure is None:
                reads += 1
                if one.pending and reads < _READS:
                    await self._waiting.sleep(self._limits.first_poll)
            elif failure.status == _GONE:
                one.lost = f"the batch's results are no longer available: {failure.words}"
            else:
                await one.patience.bear(failure, f"the results of batch {one.batch_id} cannot be read")
        missing = Failure(words=one.lost or "there was no result for this question", unreadable=one.lost is None)
        for pending in one.pending.values():
            verdict = pending.failed(missing)
            self._note_readability(pending.asking, verdict)
            yield pending.asked, verdict
        if one.is_whole:
            await self._journal.record_finished(one.plan.plan_id)

    def _note_readability(self, asking: Asking, verdict: Verdict | None) -> None:
        if asking.is_unreadable:
            self._unreadable[asking.question.model] += 1
        elif verdict is not None and verdict.outcome == ANSWERED:
            self._unreadable[asking.question.model] = 0

    def _settled(self, one: OpenBatch, pending: Pending, came: Message | Failure) -> Verdict | None:
        """The verdict; None where the question is to be asked again, which has cost nothing so far."""
        asking = pending.asking
        asking.simulated |= self._calls.simulated
        asking.seconds = one.seconds
        if isinstance(came, Message):
            return pending.answered(came)
        if came.billed:
            return pending.failed(came)
        if came.blames_format and pending.rung is Rung.STRUCTURED:
            self._opener.step_down(asking.question.model, came.words)
            return None
        if came.words == CANCELLED and one.cancelled and not self._cancelled:
            return pending.failed(_OVERDUE)
        # Another process let the batch expire or cancelled it, and who asks now wants an answer.
        return None if one.taken_up else pending.failed(came)


def _unreadable_error(asking: Asking) -> JudgeUnavailableError:
    model = asking.question.model
    hint = "The calls of the answers tell what came: driftline costs, and the pages of their exchanges. The same command goes on from here."
    return JudgeUnavailableError(f"the last answers of {model} cannot be read, so no further batch is made", hint=hint)


def open_batch_judge(
    api_key: str | None,
    base_url: str | None,
    traits: Traits,
    journal: BatchJournal,
    *,
    limits: BatchLimits | None = None,
    waiting: Waiting | None = None,
    call_seconds: float = CALL_SECONDS,
    results_seconds: float = RESULTS_SECONDS,
    max_body: int = MAX_BODY_BYTES,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> BatchJudge:
    """A batch judge at `base_url` (None: the default one). SettingsError where key or address cannot be used.

    `call_seconds` bounds one call, `results_seconds` the waiting for the bytes of a batch's results, `max_body` the bytes of one
    response, and of one result.
    """
    client = open_client(api_key, base_url, call_seconds=call_seconds, connections=2, max_body=max_body, transport=transport)
    waiting = waiting or Waiting()
    calls = BatchCalls(client, waiting, seconds=call_seconds, results_seconds=results_seconds, max_line=max_body)
    return BatchJudge(calls, traits, journal, limits or BatchLimits(), waiting)
