"""The batch judge: asks thousands of questions through the Message Batches API, at half the price, within a day.

A caller drives it round by round, because each exchange's cascade asks its next question after the previous verdict:

    judge = open_batch_judge(key, url, traits, BatchJournal(path))
    async for question, verdict in judge.ask_all([BatchQuestion(question, call budget, tag), ...]):
        await make_durable(verdict)          # before the next one is asked for

1. `ask_all` gives exactly one verdict for each question, in any order, with the outcomes of the live judge. A fingerprint may occur
   only once among the questions (ValueError). `BatchQuestion.tag` is returned unchanged.
2. Money: `budget.reserve()` is awaited for each question before its batch is created, in the order of the questions; the
   `DurableBudget` of a `JudgedStage.open(..., batched=True)` reserves and charges at the batch's price. `budget.spend` is called with the outcome of a question; a
   request that ended in an error, expired or was cancelled is not billed and not charged. A result that never came is charged in full.
3. Durability: the plan of a batch is in the journal before the batch is created, and its id before it is waited for. After a kill -9
   the caller asks the same questions again (those without a recorded judgement), with the same journal and with call budgets for the
   earlier `reservation_id`s. A question whose batch was created is not asked again; its result is fetched. A batch that was created
   but not recorded is found by its custom ids. A journal belongs to one run.
4. A verdict counts as durable when the next one is asked for, the last one when the iteration ends.
5. Outcomes: errored → provider_error; expired → timeout; cancelled → provider_error with the error `CANCELLED`, which a caller that
   wants to go on later does not record. An unusable answer is `invalid`, without a turn of repair: with structured output there is
   almost nothing to repair, and another round may take a day. If a model refuses the output format, which costs nothing, its
   questions are asked once more with the schema in the prompt.
6. JudgeUnavailableError is raised if the API is unreachable for an hour or refuses access; nothing is lost or paid for. It is also
   raised after `MAX_UNREADABLE` unreadable answers in a row, once the open batches have ended: a whole batch would be too expensive
   as a probe.
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
from streams.judges.live import OpenQuestion, Traits
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
    open_question: OpenQuestion
    rung: Rung = Rung.STRUCTURED
    """The output format of its last request; unknown for a question that an earlier process asked."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the question."""
        return self.open_question.question.fingerprint

    def without_money(self) -> Verdict:
        """Return the verdict of a question that the call budget refuses."""
        return self.open_question.verdict("cost_cap", "the session's cost cap leaves no room for another call")

    def failure_verdict(self, failure: Failure) -> Verdict:
        """Return the verdict on a request without a message; charged in full unless it is known to be free."""
        self.open_question.attempts += 1
        self.open_question.charge(failure)
        self.open_question.note_failure(failure.outcome, failure.words, unreadable=failure.unreadable)
        return self.open_question.failure_verdict()

    def answer_verdict(self, message: Message) -> Verdict:
        """Return the verdict on a message; its tokens are charged, whatever it says."""
        open_question = self.open_question
        open_question.attempts += 1
        open_question.simulated |= is_simulated({}, message.model)
        open_question.charge(message)
        if (verdict := open_question.verdict_without_answer(message)) is not None:
            return verdict
        answer = open_question.read(message)
        return (
            open_question.failure_verdict() if isinstance(answer, Invalid) else open_question.verdict("answered", answer=answer)
        )


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch in progress, with its open questions by custom id."""

    plan: BatchPlan
    batch_id: str
    pending: dict[str, Pending]
    began: float
    """The time when this process began to wait, on the clock of `Waiting.now`."""
    patience: Patience
    taken_up: bool = False
    """True if an earlier process created it."""
    cancelled: bool = False
    """True if the API was asked to cancel it."""
    seconds: float = 0.0
    """Its duration in seconds."""
    lost: str | None = None
    """The reason why its results will never come."""
    is_whole: bool = True
    """True if `pending` has all questions of its plan, so that the plan is finished afterwards."""


async def reserve_budgets(group: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Reserve the worst case of each question; returns the funded and the unfunded questions. Raises what a call budget raises."""
    answers = await asyncio.gather(*(pending.open_question.budget.reserve() for pending in group), return_exceptions=True)
    funded: list[Pending] = []
    unfunded: list[Pending] = []
    for pending, answer in zip(group, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        (funded if answer else unfunded).append(pending)
    return funded, unfunded


_LOG = logging.getLogger(__name__)
API_MOST_REQUESTS = 100_000
API_MOST_BYTES = 256_000_000
"""The API's limits for one batch."""
_RESERVATION_GROUP_SIZE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits on the size of batches and on the wait for them."""

    requests: int = 10_000
    """Most requests of a batch."""
    size: int = 32_000_000
    """Most bytes of a batch's requests, which are in memory until it is created."""
    open: int = 16
    """Most batches in progress."""
    deadline: float = 25 * 3600.0
    """Seconds after which a batch is cancelled; the API lets it expire after 24 hours."""
    grace: float = 3600.0
    """Seconds after the cancellation in which it must end. Later its questions are charged in full."""
    patience: float = 3600.0
    """Seconds for which the API may fail without interruption."""
    first_poll: float = 5.0
    """Seconds until the first poll of a batch; each later interval is 1.5 times as long."""
    last_poll: float = 60.0
    """Longest interval between polls, in seconds."""


class BatchOpener:
    """Continues earlier batches, creates new ones, and remembers the output format of each model."""

    def __init__(self, maker: BatchMaker, traits: Traits, journal: BatchJournal, limits: BatchLimits, waiting: Waiting) -> None:
        self._maker = maker
        self._traits = traits
        self._journal = journal
        self._limits = limits
        self._waiting = waiting
        self._rungs: dict[str, Rung] = {}

    async def take_up(self, todo: deque[Pending]) -> tuple[list[OpenBatch], list[Pending]]:
        """Remove the questions of earlier batches from `todo`; returns these batches, and the questions that the call budget refuses."""
        plans = newest_plans(await self._journal.unfinished())
        members: dict[str, list[Pending]] = {}
        for pending in todo:
            plan = plans.get(pending.fingerprint)
            if plan is not None:
                members.setdefault(plan.plan_id, []).append(pending)
        opened: list[OpenBatch] = []
        refused: list[Pending] = []
        removed = set[Pending]()
        for plan in {plan.plan_id: plan for plan in plans.values() if plan.plan_id in members}.values():
            batch_id = plan.batch_id or await self._find_created(plan)
            if batch_id is None:
                continue
            funded, unfunded = await reserve_budgets(members[plan.plan_id])
            opened.append(self._open(plan, batch_id, funded, taken_up=True))
            refused += unfunded
            removed.update(members[plan.plan_id])
        remaining = [pending for pending in todo if pending not in removed]
        todo.clear()
        todo.extend(remaining)
        return opened, refused

    async def _find_created(self, plan: BatchPlan) -> str | None:
        """Return the id of a plan's batch that was created but not recorded; None if it was not created."""
        batch = await self._maker.find(plan)
        if batch is None:
            await self._journal.record_finished(plan.plan_id)
            return None
        await self._journal.record_created(plan.plan_id, batch.batch_id)
        return batch.batch_id

    def _open(self, plan: BatchPlan, batch_id: str, pending: Sequence[Pending], *, taken_up: bool = False) -> OpenBatch:
        _LOG.info("batch %s: waiting for %d of %d questions", batch_id, len(pending), len(plan.fingerprints))
        by_custom_id = {custom_id(question.fingerprint, plan.plan_id): question for question in pending}
        patience = Patience(self._waiting, self._limits.patience)
        is_whole = len(by_custom_id) == len(plan.fingerprints)
        began = self._waiting.now()
        return OpenBatch(plan, batch_id, by_custom_id, began, patience, taken_up=taken_up, is_whole=is_whole)

    async def make(self, todo: deque[Pending]) -> tuple[list[OpenBatch], list[tuple[BatchQuestion, Verdict]]]:
        """Create a batch of the first questions of `todo`, if any is funded; also returns the verdicts on questions that are not asked."""
        plan_id = secrets.token_hex(8)
        chosen, requests, refused = await self._fill(todo, plan_id)
        ended = [(pending.asked, pending.without_money()) for pending in refused]
        if not chosen:
            return [], ended
        now = datetime.fromtimestamp(self._waiting.wall(), UTC)
        plan = BatchPlan(plan_id=plan_id, fingerprints=tuple(pending.fingerprint for pending in chosen), planned_at=now)
        await self._journal.record_planned(plan)
        batch = await self._maker.make(plan, requests)
        if isinstance(batch, Failure):
            await self._journal.record_finished(plan_id)
            return [], [*ended, *((pending.asked, pending.failure_verdict(batch)) for pending in chosen)]
        await self._journal.record_created(plan_id, batch.batch_id)
        return [self._open(plan, batch.batch_id, chosen)], ended

    async def _fill(self, todo: deque[Pending], plan_id: str) -> tuple[list[Pending], list[dict[str, Any]], list[Pending]]:
        """Return the funded questions of the next batch, their requests, and the unfunded questions."""
        chosen: list[Pending] = []
        requests: list[dict[str, Any]] = []
        refused: list[Pending] = []
        size = 0
        max_size = min(self._limits.size, API_MOST_BYTES)
        max_requests = min(self._limits.requests, API_MOST_REQUESTS)
        while todo and len(chosen) < max_requests:
            group = [todo.popleft() for _ in range(min(len(todo), _RESERVATION_GROUP_SIZE, max_requests - len(chosen)))]
            funded, unfunded = await reserve_budgets(group)
            refused += unfunded
            for index, pending in enumerate(funded):
                request = self._build_request(pending, plan_id)
                size += len(msgspec.json.encode(request)) + 1
                if chosen and size > max_size:
                    todo.extendleft(reversed(funded[index:]))
                    return chosen, requests, refused
                chosen.append(pending)
                requests.append(request)
        return chosen, requests, refused

    def _build_request(self, pending: Pending, plan_id: str) -> dict[str, Any]:
        question = pending.open_question.question
        pending.rung = self._rungs.get(question.model, Rung.STRUCTURED)
        params = parameters(question, Format(pending.rung, *self._traits(question.model)), secrets.token_hex(8))
        return {"custom_id": custom_id(pending.fingerprint, plan_id), "params": params}

    def step_down(self, model: str, why: str) -> None:
        """Ask the model with the schema in the prompt from now on."""
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
CALL_SECONDS = 300.0
RESULTS_SECONDS = 900.0
_GONE = 404
_OVERDUE = Failure(words="the batch did not end in time and was cancelled", outcome=TIMEOUT, billed=False)
_READS = 3
"""How many times results are read if some are missing."""


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
        """Ask nothing more. Answers that are there are still returned; every other question ends as CANCELLED, at no cost."""
        self._cancelled = True

    async def aclose(self) -> None:
        """Give back connections."""
        await self._calls.aclose()

    async def ask_all(self, questions: Iterable[BatchQuestion]) -> AsyncGenerator[tuple[BatchQuestion, Verdict]]:
        """Yield a verdict for each question, as they come; see the module. Raises ValueError if a question occurs twice."""
        todo = deque(Pending(item, OpenQuestion(item.question, item.budget, ends_at=math.inf)) for item in questions)
        if len({pending.fingerprint for pending in todo}) < len(todo):
            raise ValueError("a question occurs twice")
        under_way, refused = await self._opener.take_up(todo)
        for pending in refused:
            yield pending.asked, pending.without_money()
        interval = self._limits.first_poll
        while todo or under_way:
            is_unreadable = bool(todo) and self._unreadable[todo[0].open_question.question.model] >= MAX_UNREADABLE
            if is_unreadable and not under_way and not self._cancelled:
                raise _unreadable_error(todo[0].open_question)
            if todo and len(under_way) < self._limits.open and (self._cancelled or not is_unreadable):
                opened, failed = self._cancel_questions(todo) if self._cancelled else await self._opener.make(todo)
                under_way += opened
                for pair in failed:
                    yield pair
                continue
            ended = [batch for batch in under_way if await self._has_ended(batch)]
            for batch in ended:
                async with aclosing(self._read_verdicts(batch, todo)) as verdicts:
                    async for pair in verdicts:
                        yield pair
                under_way.remove(batch)
            interval = self._limits.first_poll if ended else min(interval * 1.5, self._limits.last_poll)
            if under_way and not ended:
                await self._waiting.sleep(interval)

    def _cancel_questions(self, todo: deque[Pending]) -> tuple[list[OpenBatch], list[tuple[BatchQuestion, Verdict]]]:
        """Return no batch, and the verdicts on questions that are no longer asked."""
        cancelled = [(pending.asked, pending.open_question.verdict(PROVIDER_ERROR, CANCELLED)) for pending in todo]
        todo.clear()
        return [], cancelled

    async def _has_ended(self, open_batch: OpenBatch) -> bool:
        """Poll a batch, and cancel it when it is overdue or on request. Returns whether nothing more will come of it."""
        batch = await self._calls.retrieve(open_batch.batch_id)
        if isinstance(batch, Failure):
            if batch.status != _GONE:
                await open_batch.patience.bear(batch, f"batch {open_batch.batch_id} cannot be looked at")
                return False
            open_batch.lost = f"the API no longer knows the batch: {batch.words}"
            return True
        open_batch.patience.over()
        open_batch.seconds = batch.seconds
        waited = self._waiting.now() - open_batch.began
        if not batch.ended and waited > self._limits.deadline + self._limits.grace:
            open_batch.lost = "the batch did not end in time"
        elif not batch.ended and not open_batch.cancelled and (self._cancelled or waited > self._limits.deadline):
            open_batch.cancelled = isinstance(await self._calls.cancel(open_batch.batch_id), Batch)
        return batch.ended or open_batch.lost is not None

    async def _read_verdicts(
        self, open_batch: OpenBatch, todo: deque[Pending]
    ) -> AsyncGenerator[tuple[BatchQuestion, Verdict]]:
        """Yield the verdicts of a batch that has ended; a question that must be asked again goes back to `todo`."""
        reads = 0
        while open_batch.pending and open_batch.lost is None and reads < _READS:
            failure: Failure | None = None
            async with aclosing(self._calls.results(open_batch.batch_id)) as results:
                async for result in results:
                    if isinstance(result, Failure):
                        failure = result
                    elif (pending := open_batch.pending.pop(result.custom_id, None)) is not None:
                        verdict = self._verdict_of(open_batch, pending, result.came)
                        self._note_readability(pending.open_question, verdict)
                        if verdict is None:
                            todo.append(pending)
                        else:
                            yield pending.asked, verdict
            if failure is None:
                reads += 1
                if open_batch.pending and reads < _READS:
                    await self._waiting.sleep(self._limits.first_poll)
            elif failure.status == _GONE:
                open_batch.lost = f"the batch's results are no longer available: {failure.words}"
            else:
                await open_batch.patience.bear(failure, f"the results of batch {open_batch.batch_id} cannot be read")
        missing = Failure(words=open_batch.lost or "there was no result for this question", unreadable=open_batch.lost is None)
        for pending in open_batch.pending.values():
            verdict = pending.failure_verdict(missing)
            self._note_readability(pending.open_question, verdict)
            yield pending.asked, verdict
        if open_batch.is_whole:
            await self._journal.record_finished(open_batch.plan.plan_id)

    def _note_readability(self, open_question: OpenQuestion, verdict: Verdict | None) -> None:
        if open_question.is_unreadable:
            self._unreadable[open_question.question.model] += 1
        elif verdict is not None and verdict.outcome == ANSWERED:
            self._unreadable[open_question.question.model] = 0

    def _verdict_of(self, open_batch: OpenBatch, pending: Pending, came: Message | Failure) -> Verdict | None:
        """Return the verdict; None if the question must be asked again, having cost nothing so far."""
        open_question = pending.open_question
        open_question.simulated |= self._calls.simulated
        open_question.seconds = open_batch.seconds
        if isinstance(came, Message):
            return pending.answer_verdict(came)
        if came.billed:
            return pending.failure_verdict(came)
        if came.blames_format and pending.rung is Rung.STRUCTURED:
            self._opener.step_down(open_question.question.model, came.words)
            return None
        if came.words == CANCELLED and open_batch.cancelled and not self._cancelled:
            return pending.failure_verdict(_OVERDUE)
        # An earlier process cancelled the batch or let it expire; the caller still wants an answer.
        return None if open_batch.taken_up else pending.failure_verdict(came)


def _unreadable_error(open_question: OpenQuestion) -> JudgeUnavailableError:
    model = open_question.question.model
    hint = "driftline costs and the pages of the exchanges show the calls with their answers. The same command continues from here."
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
    """Return a batch judge at `base_url` (None: the default one). Raises SettingsError if key or address cannot be used.

    `call_seconds` bounds one call, `results_seconds` the waiting for the bytes of a batch's results, `max_body` the bytes of one
    response, and of one result.
    """
    client = open_client(api_key, base_url, call_seconds=call_seconds, connections=2, max_body=max_body, transport=transport)
    waiting = waiting or Waiting()
    calls = BatchCalls(client, waiting, seconds=call_seconds, results_seconds=results_seconds, max_line=max_body)
    return BatchJudge(calls, traits, journal, limits or BatchLimits(), waiting)
