"""The batch judge: asks thousands of questions through the batch API of each judge, at half the price, within a day.

A caller works in rounds, because each exchange's cascade asks its next question after the previous verdict:

    judge = BatchJudge(open_calls, traits, BatchJournal(path))
    async for question, verdict in judge.ask_all([BatchQuestion(question, call budget, tag), ...]):
        await make_durable(verdict)          # before the next verdict is requested

1. `ask_all` yields exactly one verdict for each question, in any order, with the same outcomes as the live judge. The fingerprints of
   the questions must be unique (ValueError). `BatchQuestion.tag` is returned unchanged. A batch has the questions to one model.
2. Costs: `budget.reserve()` is awaited for each question before its batch is created, in the order of the questions to each model. The
   `DurableBudget` of a task that was opened with `batched=True` uses batch prices. `budget.spend` charges the outcome of a question.
   The API does not bill requests that ended in an error, expired or were cancelled. A missing result is charged in full.
3. Durability: the journal has the plan of a batch before the batch is created, and its id before the judge waits for it. After a crash,
   the caller asks the questions that have no recorded judgement again, with the same journal and with call budgets for the earlier
   `reservation_id`s. If the batch of a question was created, the judge fetches its result instead of asking again. It finds a batch
   that was created but not recorded by its custom ids. Each run needs its own journal.
4. A verdict must be durable when the caller requests the next one, and the last verdict when the iteration ends.
5. Outcomes: errored → provider_error; expired → timeout; cancelled → provider_error with the error `CANCELLED`, which a caller that
   wants to resume later does not record. An unusable answer is `invalid`, or `partial` if some of its dimensions are usable, without a
   repair: structured output rarely needs one, and another round may take a day. If a model rejects the output format, which is not billed,
   its questions are asked once more with the schema in the prompt, and so are all for an hour.
6. JudgeUnavailableError is raised if the API is unreachable for an hour or denies access; nothing is lost or paid for. It is also
   raised after `MAX_UNREADABLE` consecutive unreadable answers, once the open batches have ended, because a batch is too expensive to
   probe whether answers are readable again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec

from audit.exchanges.questions import ANSWERED, Invalid
from audit.judges import ApiName
from streams.judges.batch_api import Batch, BatchCalls, BatchCreator, JudgeUnavailableError, OutageBackoff, Result
from streams.judges.batch_plans import CANCELLED, BatchJournal, BatchPlan, BatchQuestion, custom_id, newest_plans
from streams.judges.failures import PROVIDER_ERROR, TIMEOUT, Failure
from streams.judges.http_client import MAX_BODY_BYTES, ClientOptions
from streams.judges.live import OpenQuestion, OutputModes, TraitsLookup
from streams.judges.message_batches import MessageBatches
from streams.judges.messages_api import open_client
from streams.judges.model_api import Message, OutputMode, build_request, is_simulated
from streams.judges.protocol import Verdict
from streams.judges.rate_limits import MAX_UNREADABLE, Clock

__all__ = [
    "CANCELLED",
    "BatchJournal",
    "BatchJudge",
    "BatchLimits",
    "BatchQuestion",
    "JudgeUnavailableError",
    "open_batch_calls",
]
CALL_SECONDS = 300.0
RESULTS_SECONDS = 900.0
_POLL_GROWTH = 1.5
_NOT_FOUND = 404
_OVERDUE_FAILURE = Failure(error="the batch did not end in time and was cancelled", outcome=TIMEOUT, billed=False)
_MAX_READS = 3
"""How many times the results are read if some are missing."""
_RESERVATION_GROUP_SIZE = 256
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits on the size of batches, on their number, and on the wait for them."""

    max_requests: int = 10_000
    """Requests per batch."""
    max_bytes: int = 32_000_000
    """Bytes of a batch's requests, which are in memory until the batch is created."""
    max_open: int = 16
    """Batches in progress."""
    deadline: float = 25 * 3600.0
    """Seconds until a batch is cancelled; the API lets it expire after 24 hours."""
    grace: float = 3600.0
    """Seconds after the deadline until the judge gives up on a batch and charges its questions in full."""
    max_outage: float = 3600.0
    """Seconds for which the API may fail without interruption."""
    first_poll: float = 5.0
    """Seconds until a batch is first polled; each later interval is 1.5 times as long."""
    max_poll: float = 60.0
    """The longest interval between polls, in seconds."""


CallsLookup = Callable[[str], BatchCalls]
"""Returns the batch API of a judge by its name."""


class BatchJudge:
    """A judge over batch APIs, as the module describes. Belongs to one event loop.

    `open_calls` opens the batch API of a judge by its name, and raises SettingsError.
    """

    def __init__(
        self,
        open_calls: CallsLookup,
        traits: TraitsLookup,
        journal: BatchJournal,
        limits: BatchLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._open_calls = open_calls
        self._calls: dict[str, BatchCalls] = {}
        limits = limits or BatchLimits()
        clock = clock or Clock()
        self._opener = BatchOpener(self._calls_of, traits, journal, limits, clock)
        self._journal = journal
        self._limits = limits
        self._clock = clock
        self._cancelled = False
        self._unreadable: Counter[str] = Counter()
        """The number of consecutive unreadable answers by model."""

    @property
    def planned(self) -> set[str]:
        """The fingerprints of the questions in batches that were planned and whose answers were not read to the end."""
        return self._journal.fingerprints()

    def cancel(self) -> None:
        """Create no further batch and cancel the open ones. Results that exist are still returned; other questions end as CANCELLED."""
        self._cancelled = True

    async def aclose(self) -> None:
        """Close the connections."""
        for calls in self._calls.values():
            await calls.aclose()

    def _calls_of(self, model: str) -> BatchCalls:
        if model not in self._calls:
            self._calls[model] = self._open_calls(model)
        return self._calls[model]

    async def ask_all(
        self, questions: Iterable[BatchQuestion], seconds: float = math.inf
    ) -> AsyncGenerator[tuple[BatchQuestion, Verdict]]:
        """Yield a verdict for each question, as the module describes. Raises ValueError if two questions have the same fingerprint.

        Batches that have not ended after `seconds`, or after the deadline of the limits, are cancelled.
        """
        ends_at = self._clock.now() + min(seconds, self._limits.deadline)
        unasked_questions = (
            PendingQuestion(item, OpenQuestion(item.question, item.budget, ends_at=math.inf)) for item in questions
        )
        todo = deque(sorted(unasked_questions, key=lambda pending: pending.model))
        if len({pending.fingerprint for pending in todo}) < len(todo):
            raise ValueError("two questions have the same fingerprint")
        open_batches, unfunded = await self._opener.resume(todo)
        for pending in unfunded:
            yield pending.batch_question, pending.open_question.cost_cap_verdict()
        interval = self._limits.first_poll
        while todo or open_batches:
            is_paused = bool(todo) and not self._cancelled and self._unreadable[todo[0].model] >= MAX_UNREADABLE
            if is_paused and not open_batches:
                raise _unreadable_error(todo[0].model)
            if todo and not is_paused and len(open_batches) < self._limits.max_open:
                if self._cancelled:
                    unasked = _cancel_questions(todo)
                else:
                    opened, unasked = await self._opener.create(todo)
                    open_batches += opened
                for question, verdict in unasked:
                    yield question, verdict
                continue
            ended = [batch for batch in open_batches if await self._has_ended(batch, ends_at)]
            for batch in ended:
                async with aclosing(self._read_verdicts(batch, todo)) as verdicts:
                    async for question, verdict in verdicts:
                        yield question, verdict
                open_batches.remove(batch)
            interval = self._limits.first_poll if ended else min(interval * _POLL_GROWTH, self._limits.max_poll)
            if open_batches and not ended:
                await self._clock.sleep(interval)

    async def _has_ended(self, open_batch: OpenBatch, ends_at: float) -> bool:
        """Poll a batch, and cancel it if it is overdue or the judge was cancelled. Return True if no more results will come."""
        batch = await open_batch.calls.retrieve(open_batch.batch_id)
        if isinstance(batch, Failure):
            if batch.status != _NOT_FOUND:
                await open_batch.backoff.wait(batch, f"batch {open_batch.batch_id} cannot be polled")
                return False
            open_batch.lost_reason = f"the API no longer has the batch: {batch.error}"
            return True
        open_batch.backoff.reset()
        open_batch.seconds = batch.seconds
        open_batch.rejection = batch.rejection
        if batch.ended:
            return True
        overdue = self._clock.now() - ends_at
        if overdue > self._limits.grace:
            open_batch.lost_reason = "the batch did not end in time"
            return True
        if not open_batch.cancelled and (self._cancelled or overdue > 0):
            open_batch.cancelled = isinstance(await open_batch.calls.cancel(open_batch.batch_id), Batch)
        return False

    async def _read_verdicts(
        self, open_batch: OpenBatch, todo: deque[PendingQuestion]
    ) -> AsyncGenerator[tuple[BatchQuestion, Verdict]]:
        """Yield the verdicts of a batch that has ended. Questions that must be asked again are appended to `todo`."""
        reads = 0
        while open_batch.pending and open_batch.lost_reason is None and reads < _MAX_READS:
            failure: Failure | None = None
            async with aclosing(_read_results(open_batch)) as results:
                async for result in results:
                    if isinstance(result, Failure):
                        failure = result
                        continue
                    pending = open_batch.pending.pop(result.custom_id, None)
                    if pending is None:
                        continue
                    verdict = self._build_verdict(open_batch, pending, result.response)
                    self._note_readability(pending.open_question, verdict)
                    if verdict is None:
                        todo.append(pending)
                    else:
                        yield pending.batch_question, verdict
            if failure is None:
                reads += 1
                if open_batch.pending and reads < _MAX_READS:
                    await self._clock.sleep(self._limits.first_poll)
            elif failure.status == _NOT_FOUND:
                open_batch.lost_reason = f"the batch's results are no longer available: {failure.error}"
            else:
                await open_batch.backoff.wait(failure, f"the results of batch {open_batch.batch_id} cannot be read")
        for question, verdict in self._fail_missing(open_batch):
            yield question, verdict
        if open_batch.is_complete:
            await self._journal.record_finished(open_batch.plan.plan_id)
            await open_batch.calls.discard(open_batch.batch_id)

    def _fail_missing(self, open_batch: OpenBatch) -> Iterator[tuple[BatchQuestion, Verdict]]:
        """Yield the verdicts on questions without a result. They are charged in full."""
        if open_batch.lost_reason is None:
            failure = Failure(error="the batch has no result for this question", unreadable=True)
        else:
            failure = Failure(error=open_batch.lost_reason)
        for pending in open_batch.pending.values():
            verdict = pending.failure_verdict(failure)
            self._note_readability(pending.open_question, verdict)
            yield pending.batch_question, verdict

    def _note_readability(self, open_question: OpenQuestion, verdict: Verdict | None) -> None:
        model = open_question.question.model
        if open_question.is_unreadable:
            self._unreadable[model] += 1
        elif verdict is not None and verdict.outcome == ANSWERED:
            self._unreadable[model] = 0

    def _build_verdict(self, open_batch: OpenBatch, pending: PendingQuestion, response: Message | Failure) -> Verdict | None:
        """Return the verdict on a question; None if it must be asked again, which happens only if it has cost nothing."""
        open_question = pending.open_question
        open_question.simulated |= open_batch.calls.simulated
        open_question.seconds = open_batch.seconds
        if isinstance(response, Message):
            return pending.answer_verdict(response)
        if response.billed:
            return pending.failure_verdict(response)
        if response.rejects_format and pending.output_mode is OutputMode.STRUCTURED:
            self._opener.output_modes.switch_to_prompt(pending.model, response.error)
            return None
        if response.error == CANCELLED and open_batch.cancelled and not self._cancelled:
            return pending.failure_verdict(_OVERDUE_FAILURE)
        # If an earlier process cancelled the batch or let it expire, this caller still wants an answer.
        return None if open_batch.resumed else pending.failure_verdict(response)


async def _read_results(open_batch: OpenBatch) -> AsyncGenerator[Result | Failure]:
    """Yield the results of a batch that has ended; see `BatchCalls.results`."""
    if open_batch.rejection is not None:
        for request_id in tuple(open_batch.pending):
            yield Result(request_id, open_batch.rejection)
        return
    async with aclosing(open_batch.calls.results(open_batch.batch_id)) as results:
        async for result in results:
            yield result


def _cancel_questions(todo: deque[PendingQuestion]) -> list[tuple[BatchQuestion, Verdict]]:
    """Remove all questions from `todo`, and return their verdicts."""
    cancelled = [(pending.batch_question, pending.open_question.verdict(PROVIDER_ERROR, CANCELLED)) for pending in todo]
    todo.clear()
    return cancelled


def _unreadable_error(model: str) -> JudgeUnavailableError:
    hint = "driftline costs and the pages of the exchanges show the calls with their answers. The same command resumes the run."
    return JudgeUnavailableError(f"the last answers of {model} cannot be read, so no further batch is created", hint=hint)


def open_batch_calls(
    api_key: str | None,
    base_url: str | None,
    *,
    api: ApiName = "messages",
    setting: str | None = None,
    clock: Clock | None = None,
    call_seconds: float = CALL_SECONDS,
    results_seconds: float = RESULTS_SECONDS,
    max_body: int = MAX_BODY_BYTES,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> BatchCalls:
    """Return the batch API at `base_url` (None is the default address). Raises SettingsError if the key or the address is invalid.

    `setting` is where the address is set, for error messages. A call may take `call_seconds`, and reading the results of a batch
    `results_seconds`. `max_body` is the maximum size in bytes of a response and of a single result.
    """
    options = ClientOptions(call_seconds, 2, max_body, transport, setting)
    clock = clock or Clock()
    if api == "messages":
        client = open_client(api_key, base_url, options)
        return MessageBatches(client, clock, seconds=call_seconds, results_seconds=results_seconds, max_line=max_body)
    from streams.judges.openai_apis import open_client as open_openai_client  # noqa: PLC0415 - it takes half a second to load
    from streams.judges.openai_batches import OpenAIBatches  # noqa: PLC0415 - the same

    return OpenAIBatches(
        open_openai_client(api_key, base_url, options),
        clock,
        responses=api == "responses",
        seconds=call_seconds,
        results_seconds=results_seconds,
        max_line=max_body,
    )


@dataclass(slots=True, eq=False)
class PendingQuestion:
    """A question without a verdict."""

    batch_question: BatchQuestion
    open_question: OpenQuestion
    output_mode: OutputMode = OutputMode.STRUCTURED
    """The output mode of its last request; assumed to be structured if an earlier process asked the question."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the question."""
        return self.open_question.question.fingerprint

    @property
    def model(self) -> str:
        """The model that is asked."""
        return self.open_question.question.model

    def failure_verdict(self, failure: Failure) -> Verdict:
        """Return the verdict on a failed request, and charge the request in full if it may have been billed."""
        self.open_question.attempts += 1
        self.open_question.charge(failure)
        self.open_question.note_failure(failure.outcome, failure.error, unreadable=failure.unreadable)
        return self.open_question.failure_verdict()

    def answer_verdict(self, message: Message) -> Verdict:
        """Return the verdict on a message, and charge its usage."""
        open_question = self.open_question
        open_question.attempts += 1
        open_question.simulated |= is_simulated({}, message.model)
        open_question.charge(message)
        verdict = open_question.verdict_without_answer(message)
        if verdict is not None:
            return verdict
        answer = open_question.read_answer(message)
        if isinstance(answer, Invalid):
            return open_question.unusable_verdict(message)
        return open_question.verdict(ANSWERED, answer=answer)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch in progress, with its pending questions by custom id."""

    plan: BatchPlan
    calls: BatchCalls
    batch_id: str
    pending: dict[str, PendingQuestion]
    backoff: OutageBackoff
    resumed: bool = False
    """True if an earlier process created it."""
    cancelled: bool = False
    """True if its cancellation was accepted."""
    seconds: float = 0.0
    """The duration in seconds."""
    rejection: Failure | None = None
    """Why the API processed none of its requests; None if it did."""
    lost_reason: str | None = None
    """The reason why its results will never be available; None if they may be."""
    is_complete: bool = True
    """True if all questions of the plan are pending here, so that the plan is finished with this batch."""


class BatchOpener:
    """Resumes earlier batches, creates new ones, and remembers the output mode of each model."""

    def __init__(
        self, calls_of: CallsLookup, traits: TraitsLookup, journal: BatchJournal, limits: BatchLimits, clock: Clock
    ) -> None:
        self._calls_of = calls_of
        self._traits = traits
        self._journal = journal
        self._limits = limits
        self._clock = clock
        self.output_modes = OutputModes(clock.now)

    async def resume(self, todo: deque[PendingQuestion]) -> tuple[list[OpenBatch], list[PendingQuestion]]:
        """Remove the questions of earlier batches from `todo`. Return these batches, and the questions that the call budget refuses."""
        newest = newest_plans(await self._journal.unfinished())
        plans: dict[str, BatchPlan] = {}
        members: dict[str, list[PendingQuestion]] = {}
        for pending in todo:
            plan = newest.get(pending.fingerprint)
            if plan is not None:
                plans[plan.plan_id] = plan
                members.setdefault(plan.plan_id, []).append(pending)
        opened: list[OpenBatch] = []
        refused: list[PendingQuestion] = []
        removed: set[PendingQuestion] = set()
        for plan_id, plan in plans.items():
            calls = self._calls_of(members[plan_id][0].model)
            batch_id = plan.batch_id or await self._find_created(plan, calls)
            if batch_id is None:
                continue
            funded, unfunded = await reserve_budgets(members[plan_id])
            opened.append(self._open(plan, calls, batch_id, funded, resumed=True))
            refused += unfunded
            removed.update(members[plan_id])
        remaining = [pending for pending in todo if pending not in removed]
        todo.clear()
        todo.extend(remaining)
        return opened, refused

    async def _find_created(self, plan: BatchPlan, calls: BatchCalls) -> str | None:
        """Return the id of a batch that may have been created without being recorded; None if it was not created."""
        batch = await self._creator(calls).find(plan)
        if batch is None:
            await self._journal.record_finished(plan.plan_id)
            return None
        await self._journal.record_created(plan.plan_id, batch.batch_id)
        return batch.batch_id

    def _creator(self, calls: BatchCalls) -> BatchCreator:
        return BatchCreator(calls, self._clock, self._limits.max_outage)

    def _open(
        self,
        plan: BatchPlan,
        calls: BatchCalls,
        batch_id: str,
        questions: Sequence[PendingQuestion],
        *,
        resumed: bool = False,
    ) -> OpenBatch:
        _LOG.info("batch %s: waiting for %d of %d questions", batch_id, len(questions), len(plan.fingerprints))
        return OpenBatch(
            plan,
            calls,
            batch_id,
            pending={custom_id(pending.fingerprint, plan.plan_id): pending for pending in questions},
            backoff=OutageBackoff(self._clock, self._limits.max_outage),
            resumed=resumed,
            is_complete=len(questions) == len(plan.fingerprints),
        )

    async def create(self, todo: deque[PendingQuestion]) -> tuple[list[OpenBatch], list[tuple[BatchQuestion, Verdict]]]:
        """Create a batch from the first questions of `todo`, unless the call budgets refuse all of them.

        Also return the verdicts on questions that are not asked.
        """
        plan_id = secrets.token_hex(8)
        calls = self._calls_of(todo[0].model)
        chosen, requests, refused = await self._choose_questions(todo, plan_id, calls)
        unasked = [(pending.batch_question, pending.open_question.cost_cap_verdict()) for pending in refused]
        if not chosen:
            return [], unasked
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        plan = BatchPlan(plan_id=plan_id, fingerprints=tuple(pending.fingerprint for pending in chosen), planned_at=now)
        await self._journal.record_planned(plan)
        batch = await self._creator(calls).create(plan, requests)
        if isinstance(batch, Failure):
            await self._journal.record_finished(plan_id)
            unasked += [(pending.batch_question, pending.failure_verdict(batch)) for pending in chosen]
            return [], unasked
        await self._journal.record_created(plan_id, batch.batch_id)
        return [self._open(plan, calls, batch.batch_id, chosen)], unasked

    async def _choose_questions(
        self, todo: deque[PendingQuestion], plan_id: str, calls: BatchCalls
    ) -> tuple[list[PendingQuestion], list[dict[str, Any]], list[PendingQuestion]]:
        """Remove the questions of the next batch from `todo`. Return the funded ones, their requests, and the unfunded ones.

        Each batch has one model: OpenAI requires it, and each judge has an API of its own.
        """
        model = todo[0].model
        chosen: list[PendingQuestion] = []
        requests: list[dict[str, Any]] = []
        refused: list[PendingQuestion] = []
        size = 0
        max_size = min(self._limits.max_bytes, calls.max_bytes)
        max_requests = min(self._limits.max_requests, calls.max_requests)
        while todo and todo[0].model == model and len(chosen) < max_requests:
            group: list[PendingQuestion] = []
            group_size = min(_RESERVATION_GROUP_SIZE, max_requests - len(chosen))
            while todo and todo[0].model == model and len(group) < group_size:
                group.append(todo.popleft())
            funded, unfunded = await reserve_budgets(group)
            refused += unfunded
            for index, pending in enumerate(funded):
                request = self._build_batch_request(pending, plan_id, calls)
                size += len(msgspec.json.encode(request)) + 1
                if chosen and size > max_size:
                    todo.extendleft(reversed(funded[index:]))
                    return chosen, requests, refused
                chosen.append(pending)
                requests.append(request)
        return chosen, requests, refused

    def _build_batch_request(self, pending: PendingQuestion, plan_id: str, calls: BatchCalls) -> dict[str, Any]:
        pending.output_mode = self.output_modes[pending.model]
        question = pending.open_question.question
        traits = self._traits(pending.model)
        request = build_request(question, traits, secrets.token_hex(8), output_mode=pending.output_mode)
        return calls.encode(custom_id(pending.fingerprint, plan_id), request)


async def reserve_budgets(group: Sequence[PendingQuestion]) -> tuple[list[PendingQuestion], list[PendingQuestion]]:
    """Reserve the largest possible cost of each question. Return the funded and the unfunded questions.

    Raises the errors of the call budgets.
    """
    reservations = (pending.open_question.budget.reserve() for pending in group)
    results = await asyncio.gather(*reservations, return_exceptions=True)
    funded: list[PendingQuestion] = []
    unfunded: list[PendingQuestion] = []
    for pending, max_tokens in zip(group, results, strict=True):
        if isinstance(max_tokens, BaseException):
            raise max_tokens
        (funded if max_tokens else unfunded).append(pending)
    return funded, unfunded
