"""The live judge: asks a model over the Messages API, within one deadline, whatever the provider does.

1. The number of concurrent questions is the limit on calls in progress; none is asked while the API demands a pause. This wait is free,
   so the deadline of a question begins after it. The deadline covers all else: slots, reservations, calls, backoffs.
2. A call that failed temporarily is retried after a backoff that grows from 0.5 to 8 s, or after the delay that the server requests.
3. A server that rejects or ignores the output format is asked with the schema in the prompt from then on.
4. An unusable answer is sent back once, with its problems.
5. The worst case of a call is reserved before the call, from the API's own token count if available (`PromptBounds`).
6. A model with unreadable answers is paused, and its questions wait (see `streams.judges.rate_limits`).
7. Every question ends in exactly one verdict; only a cancellation from outside, and the call budget's own errors, are raised.

Upper bounds on the tokens of a prompt (`PromptBounds`):

8. Instructions, schema and settings are the same for thousands of questions: the API counts them once (`POST /v1/messages/count_tokens`,
   which is free). Everything else in the prompt counts one token per byte, which no text exceeds.
9. If the cap would not allow the call by that bound, the API counts the whole prompt.
10. A server that does not count is asked again after an hour, a failing one after a minute; until then each byte counts as a token.
11. An impossible count is ignored. Once a call has used more than was counted, all counts for that model are ignored.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx2
from anthropic import APIConnectionError, APIStatusError, AsyncAnthropic

from audit.answers import answer_in, is_object
from audit.cost import BYTES_A_TOKEN, OVERHEAD_TOKENS, PromptBound, Usage, believable
from audit.exchanges.questions import ANSWERED, Invalid, Question, byte_tokens
from audit.fingerprints import canonical_json
from streams.judges.messages_api import (
    MAX_BODY_BYTES,
    PROVIDER_ERROR,
    TIMEOUT,
    Failure,
    Format,
    Message,
    Repair,
    Rung,
    failure_of,
    is_simulated,
    one_line,
    open_client,
    parameters,
    read_message,
)
from streams.judges.protocol import CallBudget, Verdict
from streams.judges.rate_limits import CircuitBreaker, Limiter, Waiting, exhausted_for

MAX_ANSWER = 64 * 1024
"""Characters of an answer that are kept; a longer answer is invalid."""
INVALID = "invalid"
_ENDINGS = {
    "refusal": ("refused", "the judge refused to answer"),
    "max_tokens": ("cut_off", "the answer was cut off at max_tokens"),
    "model_context_window_exceeded": ("cut_off", "the answer was cut off at the end of the context window"),
}
"""Stop reasons that are failures of the judge: outcome and message."""


@dataclass(slots=True)
class OpenQuestion:
    """One question in progress, with the results so far."""

    question: Question
    budget: CallBudget
    ends_at: float
    """The deadline, on the clock of `Waiting.now`."""
    attempts: int = 0
    """Number of calls."""
    errors: list[str] = field(default_factory=list)
    """The error of each failed call."""
    failure_outcome: str = PROVIDER_ERROR
    """Outcome if no later call succeeds."""
    is_unreadable: bool = False
    """True if the last error is an unreadable answer."""
    usages: list[Usage] = field(default_factory=list)
    """The tokens of each call, as far as known."""
    seconds: float = 0.0
    """Wall time of the calls."""
    simulated: bool = False
    """True if a simulated judge answered any of them."""
    last: Message | None = None
    """The last message received."""
    bound: PromptBound | None = None
    """The assumed upper bound of the last call's prompt; None means one token per byte."""

    def note_failure(self, outcome: str, words: str, *, unreadable: bool = False) -> None:
        """Note a failed call."""
        self.failure_outcome = outcome
        self.is_unreadable = unreadable or outcome == INVALID
        self.errors.append(words)

    def is_beyond_bound(self, came: Message) -> bool:
        """Return whether the last call's prompt exceeded its assumed bound by a believable count."""
        used = came.usage
        return (
            self.bound is not None
            and used is not None
            and believable(used, self.question)
            and used.prompt_tokens > self.bound.tokens
        )

    def charge(self, came: Message | Failure) -> None:
        """Charge a call; a request that the API rejected with an error costs nothing."""
        if isinstance(came, Failure):
            if came.billed:
                self.budget.spend(None, self.question.model)
            return
        self.last = came
        if came.usage is not None:
            self.usages.append(came.usage)
        self.budget.spend(came.usage, came.model)

    def verdict_without_answer(self, message: Message) -> Verdict | None:
        """Return the verdict on a message without an answer: refused, cut off, empty or too long; None if it has an answer."""
        if (ending := _ENDINGS.get(message.stop_reason or "")) is not None:
            return self.verdict(*ending)
        text = (message.text or "").strip()
        if text and len(text) <= MAX_ANSWER:
            return None
        self.note_failure(INVALID, "the answer is too long" if text else "the answer has no text")
        return self.failure_verdict()

    def read(self, message: Message) -> str | Invalid:
        """Return the answer in a message; an unusable one is noted as a failed call."""
        answer = answer_in((message.text or "").strip(), self.question.schema, self.question.read)
        if isinstance(answer, Invalid):
            self.note_failure(INVALID, one_line(f"the answer cannot be used: {'; '.join(answer.problems)}"))
        return answer

    def verdict(self, outcome: str, error: str | None = None, answer: str | None = None) -> Verdict:
        """Return the verdict with this outcome."""
        last = self.last
        came = last.text[:MAX_ANSWER] if last is not None and last.text is not None else None
        return Verdict(
            outcome=outcome,
            answer=came if answer is None else answer,
            model=last.model if last else None,
            stop_reason=last.stop_reason if last else None,
            error=error,
            attempts=self.attempts,
            attempt_errors=tuple(self.errors),
            usage=_sum(self.usages),
            latency_ms=round(self.seconds * 1000),
            simulated=self.simulated,
        )

    def failure_verdict(self) -> Verdict:
        """Return the verdict for the last error."""
        return self.verdict(self.failure_outcome, self.errors[-1])


def _sum(usages: list[Usage]) -> Usage | None:
    """Return the tokens of several calls; None if none is known."""
    if not usages:
        return None
    return Usage(
        input_tokens=sum(one.input_tokens for one in usages),
        output_tokens=sum(one.output_tokens for one in usages),
        cache_write_tokens=sum(one.cache_write_tokens for one in usages),
        cache_read_tokens=sum(one.cache_read_tokens for one in usages),
    )


_LOG = logging.getLogger(__name__)
Traits = Callable[[str], tuple[int | None, bool]]
"""Returns the tokens of a model's shortest cached prefix (None: unknown), and whether to switch its thinking off."""
DEADLINE_SECONDS = 120.0
CONCURRENCY = 16
MAX_ATTEMPTS = 4
_FIRST_BACKOFF, _LAST_BACKOFF = 0.5, 8.0


class LiveJudge:
    """A judge over the Messages API; see the module. Belongs to one event loop; `aclose` closes its connections."""

    def __init__(
        self, client: AsyncAnthropic, traits: Traits, *, deadline: float, concurrency: int, max_attempts: int, waiting: Waiting
    ) -> None:
        self.limiter = Limiter(concurrency, waiting)
        """The number of calls in progress, and its limit."""
        self._client = client
        self._traits = traits
        self._deadline = deadline
        self._max_attempts = max_attempts
        self._waiting = waiting
        self._breaker = CircuitBreaker(waiting)
        self._prompts = PromptBounds(client, waiting.now)
        self._rungs: dict[str, Rung] = {}
        self._admission = asyncio.Semaphore(concurrency)

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Ask one question; see `streams.judges.protocol.Judge`."""
        model = question.model
        while True:
            async with self._breaker.admitted(model) as is_probe, self._admission:
                await self.limiter.resumed()
                if self._breaker.may_ask(model, is_probe=is_probe):
                    open_question = OpenQuestion(question, budget, ends_at=self._waiting.now() + self._deadline)
                    verdict = await self._ask(open_question)
                    if verdict.outcome == ANSWERED:
                        self._breaker.note_readable(model)
                    elif open_question.is_unreadable:
                        self._breaker.note_unreadable(model)
                    return verdict

    async def _ask(self, open_question: OpenQuestion) -> Verdict:
        try:
            async with asyncio.timeout(self._deadline) as whole:
                return await self._converse(open_question)
        except TimeoutError:
            if not whole.expired():
                raise
            return open_question.verdict(TIMEOUT, f"no answer within {self._deadline:g} s")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _converse(self, open_question: OpenQuestion) -> Verdict:
        model, repair = open_question.question.model, None
        while True:
            rung = self._rungs.get(model, Rung.STRUCTURED)
            came = await self._message(open_question, Format(rung, *self._traits(model)), repair)
            if isinstance(came, Failure):
                self._step_down(model, came.words)
                continue
            answer = came if isinstance(came, Verdict) else self._consider(open_question, came, rung, repair)
            if isinstance(answer, Verdict):
                return answer
            repair = answer

    async def _message(self, open_question: OpenQuestion, form: Format, repair: Repair | None) -> Message | Failure | Verdict:
        """Return the judge's message, a failure that blames the output format, or the verdict if all attempts are used up."""
        while open_question.attempts < self._max_attempts:
            pause = await self.limiter.acquire(open_question.ends_at)
            if pause is not None:
                return open_question.verdict(PROVIDER_ERROR, f"rate limited: retry after {math.ceil(pause)} s")
            try:
                asked = parameters(open_question.question, form, secrets.token_hex(8), repair)
                room = await self._reserve(open_question, asked)
                if not room:
                    return open_question.verdict("cost_cap", "the session's cost cap leaves no room for another call")
                came = await self._call(open_question, asked | {"max_tokens": room})
            finally:
                self.limiter.release()
            if isinstance(came, Message):
                return came
            open_question.note_failure(came.outcome, came.words, unreadable=came.unreadable)
            if came.blames_format and form.rung is Rung.STRUCTURED:
                return came
            delay = self._backoff(open_question.attempts) if came.after is None else came.after
            if (
                not came.again
                or open_question.attempts >= self._max_attempts
                or self._waiting.now() + delay >= open_question.ends_at
            ):
                break
            await self._waiting.sleep(delay)
        return open_question.failure_verdict()

    async def _reserve(self, open_question: OpenQuestion, asked: Mapping[str, Any]) -> int:
        """Reserve the worst case of a call, as exactly as needed; returns the most tokens of its answer, 0 for no call."""
        async with aclosing(self._prompts.bounds(open_question.question, asked)) as bounds:
            async for bound in bounds:
                room = await open_question.budget.reserve(bound)
                if room:
                    open_question.bound = bound
                    return room
        return 0

    async def _call(self, open_question: OpenQuestion, asked: Mapping[str, Any]) -> Message | Failure:
        """Make one call, charge it, and report it to the limiter."""
        open_question.attempts += 1
        started = self._waiting.now()
        headers: Mapping[str, str] = {}
        try:
            # The client's read time-out starts again with each byte, so it is not enough.
            async with asyncio.timeout(self._deadline / 2):
                response = await self._client.messages.with_raw_response.create(**asked)
            headers = response.headers
            came = read_message(response.http_response.content)
        except Exception as error:  # noqa: BLE001 - any error of the client is an outcome of this one call
            headers = error.response.headers if isinstance(error, APIStatusError) else headers
            came = failure_of(error, secret=self._client.api_key or "", wall=self._waiting.wall)
        except BaseException:
            open_question.note_failure(TIMEOUT, "no answer in time")
            open_question.budget.spend(None, open_question.question.model)
            raise
        finally:
            open_question.seconds += self._waiting.now() - started
        open_question.simulated |= is_simulated(headers, came.model if isinstance(came, Message) else None)
        if isinstance(came, Message) and open_question.is_beyond_bound(came):
            self._prompts.distrust(open_question.question.model)
        open_question.charge(came)
        self._inform(came, headers, started)
        return came

    def _inform(self, came: Message | Failure, headers: Mapping[str, str], started: float) -> None:
        """Report the outcome of a call to the limiter."""
        pause = exhausted_for(headers, self._waiting.wall)
        if isinstance(came, Message):
            self.limiter.grow()
        elif came.overloaded:
            self.limiter.shrink(started)
            pause = max(pause, came.after or 0.0)
        self.limiter.pause(pause)

    def _consider(
        self, open_question: OpenQuestion, message: Message, rung: Rung, repair: Repair | None
    ) -> Verdict | Repair | None:
        """Return the verdict on a message, or the repair for the next call; None asks again, with the schema in the prompt."""
        if (verdict := open_question.verdict_without_answer(message)) is not None:
            return verdict
        text = (message.text or "").strip()
        answer = open_question.read(message)
        follows_format = is_object(text)
        if rung is Rung.STRUCTURED and not follows_format:
            self._step_down(open_question.question.model, "the answer is not JSON alone")
        if not isinstance(answer, Invalid):
            return open_question.verdict(ANSWERED, answer=answer)
        if repair is not None or self._breaker.is_paused(open_question.question.model):
            return open_question.failure_verdict()
        return None if rung is Rung.STRUCTURED and not follows_format else Repair(text, answer.problems)

    def _step_down(self, model: str, why: str) -> None:
        """Ask the model with the schema in the prompt from now on."""
        if self._rungs.get(model) is not Rung.IN_PROMPT:
            self._rungs[model] = Rung.IN_PROMPT
            _LOG.warning("%s is asked with the schema in the prompt from now on: %s", model, why)

    def _backoff(self, attempts: int) -> float:
        longest: float = min(_FIRST_BACKOFF * 2 ** (attempts - 1), _LAST_BACKOFF)
        return longest * self._waiting.jitter()


def open_live_judge(
    api_key: str | None,
    base_url: str | None,
    traits: Traits,
    *,
    deadline: float = DEADLINE_SECONDS,
    concurrency: int = CONCURRENCY,
    max_attempts: int = MAX_ATTEMPTS,
    max_body: int = MAX_BODY_BYTES,
    waiting: Waiting | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> LiveJudge:
    """Return a judge that asks the API at `base_url` (None: the default one). Raises SettingsError if key or address is invalid.

    `deadline` is the seconds for a whole question; one call may take half of it. `max_attempts` bounds the calls of a question.
    """
    client = open_client(
        api_key, base_url, call_seconds=deadline / 2, connections=concurrency, max_body=max_body, transport=transport
    )
    return LiveJudge(
        client,
        traits,
        deadline=deadline,
        concurrency=concurrency,
        max_attempts=max_attempts,
        waiting=waiting or Waiting(),
    )


COUNT_SECONDS = 10.0
"""Seconds to wait for a count."""
MARGIN = 64
"""Tokens added to a count, because the API calls its count an estimate."""
MARGIN_SHARE = 20
"""One more token is added per this number of counted tokens."""
_RETRY_AFTER_FAILURE = 60.0
"""Seconds until a server that failed is asked again."""
_RETRY_AFTER_UNSUPPORTED = 3600.0
"""Seconds until a server that does not count tokens is asked again."""
_MAX_HEADS = 1000
_TEMPORARY_STATUSES = frozenset([408, 409, 429])
_SERVER_ERROR = 500


class PromptBounds:
    """See the module. Belongs to one event loop; `now` is a monotonic clock, in seconds."""

    def __init__(self, client: AsyncAnthropic, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self._heads: dict[bytes, int] = {}
        self._again_at: dict[str, float] = {}
        self._counting = asyncio.Lock()

    async def bounds(self, question: Question, asked: Mapping[str, Any]) -> AsyncGenerator[PromptBound]:
        """Yield ever tighter bounds of the prompt of a request (see `streams.judges.messages_api.parameters`)."""
        marked = any("cache_control" in block for block in asked["system"])
        by_bytes = question.texts_size + OVERHEAD_TOKENS
        head = await self._head(asked)
        said = sum(byte_tokens(turn["content"]) for turn in asked["messages"])
        most = by_bytes if head is None else min(by_bytes, head + said)
        # A server that does not count may cache anything; the API caches only marked blocks.
        written = most if head is None else min(most, head) * marked
        yield PromptBound(most, written)
        whole = None if head is None else await self._count(asked)
        if whole is not None and whole < most:
            yield PromptBound(whole, min(written, whole))

    def distrust(self, model: str) -> None:
        """Ignore all counts for a model, because a call had more tokens than were counted."""
        if self._again_at.get(model) != math.inf:
            _LOG.error("%s used more tokens than the API counted: from now on each byte counts as one", model)
        self._again_at[model] = math.inf

    async def _head(self, asked: Mapping[str, Any]) -> int | None:
        """Return the most tokens of everything but the messages; None if they are not counted."""
        if self._again_at.get(asked["model"]) == math.inf:
            return None
        alone = {name: value for name, value in asked.items() if name not in {"messages", "max_tokens"}}
        key = hashlib.sha256(canonical_json(alone).encode("utf-8", "surrogatepass")).digest()
        if key not in self._heads:
            async with self._counting:
                await self._count_head(key, alone)
        return self._heads.get(key)

    async def _count_head(self, key: bytes, alone: Mapping[str, Any]) -> None:
        if key in self._heads:
            return  # counted by another task meanwhile
        tokens = await self._count(dict(alone) | {"messages": [{"role": "user", "content": "."}]})
        if tokens is not None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[key] = tokens

    async def _count(self, asked: Mapping[str, Any]) -> int | None:
        """Return the most tokens of a request, by the API's count; None without a believable count."""
        model = asked["model"]
        if self._now() < self._again_at.get(model, -math.inf):
            return None
        request: dict[str, Any] = {name: value for name, value in asked.items() if name != "max_tokens"}
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                tokens = (await self._client.messages.count_tokens(**request)).input_tokens
        except Exception as error:  # noqa: BLE001 - after any error, each byte counts as a token
            self._note_failure(model, error)
            return None
        instructions = sum(len(block["text"].encode()) for block in asked["system"])
        if type(tokens) is not int or tokens < instructions // BYTES_A_TOKEN:
            self._note_failure(model, ValueError(f"{tokens!r} tokens for {instructions} bytes of instructions"))
            return None
        return tokens + tokens // MARGIN_SHARE + MARGIN

    def _note_failure(self, model: str, error: Exception) -> None:
        status = error.status_code if isinstance(error, APIStatusError) else 0
        is_temporary = (
            isinstance(error, APIConnectionError | TimeoutError) or status in _TEMPORARY_STATUSES or status >= _SERVER_ERROR
        )
        self._again_at[model] = self._now() + (_RETRY_AFTER_FAILURE if is_temporary else _RETRY_AFTER_UNSUPPORTED)
        _LOG.info("%s: tokens are not counted, so each byte counts as one: %s", model, type(error).__name__)
