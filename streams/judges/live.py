"""The live judge: asks a model over its API, and returns a verdict on each question within its deadline.

1. The number of concurrent questions is limited, and no question is asked while the API demands a pause. The deadline of a question
   starts after this wait. It covers everything that follows: slots, reservations, calls, backoffs.
2. A call that fails temporarily is retried after a backoff that grows from 0.5 to 8 s, or after the delay that the server requests.
3. If a server rejects or ignores structured output, requests to that model have the schema in the prompt for an hour.
4. An unusable answer is sent back once, with its problems. If the second one is unusable, too, its usable dimensions are kept. An empty one is asked for once more, and one that was cut off is asked for
   once more with twice the room, if the cap allows it. A refusal is final, in prose too: a second call could not help.
5. The largest possible cost of a call is reserved before the call. The bound on its prompt uses the API's token count if there is one
   (`PromptBounds`).
6. A model with unreadable answers is paused, and its questions wait (see `streams.judges.rate_limits`).
7. Every question ends in exactly one verdict. The only exceptions raised are cancellation and the errors of the call budget.

Upper bounds on the tokens of a prompt (`PromptBounds`):

8. Instructions, schema and settings are the same for thousands of questions, so the API counts them once, which is free. In the messages,
   each byte counts as one token, which is an upper bound for every tokenizer.
9. If the cap forbids the call by that bound, the API counts the whole prompt.
10. A server that failed to count is asked again after a minute, one that does not support counting after an hour. Until then, each byte
    counts as one token.
11. An implausible count is ignored. After a call that used more tokens than were counted, all counts for its model are ignored.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import httpx2

from audit.answer_text import AnswerText, extract_answer, is_object
from audit.cost import MAX_BYTES_PER_TOKEN, OVERHEAD_TOKENS, PromptBound, Usage, is_plausible
from audit.exchanges.questions import ANSWERED, PARTIAL, Invalid, Question, byte_tokens
from audit.fingerprints import canonical_json
from audit.judges import CLOUDS, ApiName
from streams.judges.failures import PROVIDER_ERROR, TIMEOUT, Failure, one_line
from streams.judges.http_client import MAX_BODY_BYTES, ClientOptions, find_apis
from streams.judges.messages_api import MessagesApi, open_bedrock_client, open_vertex_client
from streams.judges.messages_api import open_client as open_messages_client
from streams.judges.model_api import (
    JudgeRequest,
    Message,
    ModelApi,
    OutputMode,
    Repair,
    Turn,
    build_request,
    is_simulated,
)
from streams.judges.protocol import CallBudget, ModelTraits, Verdict
from streams.judges.rate_limits import CircuitBreaker, Clock, Limiter, PausedError, seconds_until_refill

TraitsLookup = Callable[[str], ModelTraits]
"""Returns the traits of a model by its name."""
DEADLINE_SECONDS = 120.0
"""Default time limit of a question."""
CONCURRENCY = 16
"""Default limit on concurrent questions."""
MAX_ATTEMPTS = 4
"""Default limit on the calls of a question."""
PROMPT_MODE_SECONDS = 3600.0
"""Seconds for which a model is asked with the schema in the prompt, after it rejected or ignored structured output."""
_FIRST_BACKOFF_SECONDS = 0.5
_MAX_BACKOFF_SECONDS = 8.0
COUNT_SECONDS = 10.0
"""Timeout in seconds of a request to count tokens."""
MARGIN = 64
"""Tokens added to a count, because the API documents its count as an estimate."""
MARGIN_SHARE = 20
"""One further token is added per this many counted tokens."""
_RETRY_AFTER_FAILURE = 60.0
"""Seconds until the next count after a temporary failure."""
_RETRY_AFTER_UNSUPPORTED = 3600.0
"""Seconds until the next count if the server does not support counting."""
_MAX_PREFIXES = 1000
"""Maximum number of prefixes whose counts are cached."""
MAX_ANSWER_LENGTH = 64 * 1024
"""Maximum length of an answer in characters; a longer one is invalid, and only this many characters of it are stored."""
_NOT_FOUND = 404
_LOG = logging.getLogger(__name__)
INVALID = "invalid"
REFUSED = "refused"
CUT_OFF = "cut_off"
_MAX_TOKENS_REACHED = "max_tokens"
_FAILURE_STOP_REASONS = {
    "refusal": (REFUSED, "the judge refused to answer"),
    _MAX_TOKENS_REACHED: (CUT_OFF, "the answer was cut off at max_tokens"),
    "model_context_window_exceeded": (CUT_OFF, "the answer was cut off at the end of the context window"),
}
"""The stop reasons of messages without an answer, with the outcome and error of their verdicts."""
_REFUSAL = re.compile(
    r"\bi(?:.m| am) (?:sorry|unable|not able)\b|\bi (?:cannot|can.t|can not|won.t|will not|must decline)\b", re.IGNORECASE
)
"""How refusals in prose begin. Only a text without an object is tested."""
_MAX_REFUSAL_START = 200
"""Characters at the beginning of a text in which a refusal is looked for."""


@dataclass(slots=True)
class OpenQuestion:
    """A question in progress: its calls so far, and what they returned."""

    question: Question
    budget: CallBudget
    ends_at: float
    """The deadline, by `Clock.now`."""
    attempts: int = 0
    """Number of calls."""
    errors: list[str] = field(default_factory=list)
    """The error of each failed call."""
    failure_outcome: str = PROVIDER_ERROR
    """The outcome of the verdict if no later call succeeds."""
    is_unreadable: bool = False
    """True if the last error is an unreadable answer."""
    usages: list[Usage] = field(default_factory=list)
    """The usage of each call that reported a valid one."""
    seconds: float = 0.0
    """Total duration of the calls."""
    simulated: bool = False
    """True if a simulated judge answered a call."""
    last_message: Message | None = None
    answer_tokens: int | None = None
    """The room of the next answer after one was cut off; None is the question's."""
    was_empty: bool = False
    """True if an answer had no text."""
    bound: PromptBound | None = None
    """The upper bound on the last call's prompt by which its cost was reserved; None means one token per byte."""

    def note_failure(self, outcome: str, error: str, *, unreadable: bool = False) -> None:
        """Note a failed call."""
        self.failure_outcome = outcome
        self.is_unreadable = unreadable or outcome == INVALID
        self.errors.append(error)

    def exceeds_bound(self, message: Message) -> bool:
        """Return whether the last call used more prompt tokens than its bound, by a plausible usage."""
        usage = message.usage
        return (
            self.bound is not None
            and usage is not None
            and is_plausible(usage, self.question, self.answer_tokens)
            and usage.prompt_tokens > self.bound.tokens
        )

    def charge(self, response: Message | Failure) -> None:
        """Charge a call to the budget, unless it was not billed."""
        if isinstance(response, Failure):
            if response.billed:
                self.budget.spend(None, self.question.model)
            return
        self.last_message = response
        if response.usage is not None:
            self.usages.append(response.usage)
        self.budget.spend(response.usage, response.model)

    def verdict_without_answer(self, message: Message) -> Verdict | None:
        """Return the verdict on a message without a usable answer: refused, cut off, empty or too long. Return None for any other."""
        if message.stop_reason in _FAILURE_STOP_REASONS:
            outcome, error = _FAILURE_STOP_REASONS[message.stop_reason]
            return self.verdict(outcome, error)
        text = (message.text or "").strip()
        if "{" not in text and _REFUSAL.search(text[:_MAX_REFUSAL_START]):
            return self.verdict(REFUSED, "the judge refused to answer, in prose")
        if text and len(text) <= MAX_ANSWER_LENGTH:
            return None
        self.note_failure(INVALID, "the answer is too long" if text else "the answer has no text")
        return self.failure_verdict()

    def read_answer(self, message: Message) -> AnswerText | Invalid:
        """Return the answer in a message. If it is unusable, note a failed call and return its problems."""
        question = self.question
        materials = () if question.verbatim else question.materials
        answer = extract_answer((message.text or "").strip(), question.schema, question.read, materials)
        if isinstance(answer, Invalid):
            self.note_failure(INVALID, one_line(f"the answer cannot be used: {'; '.join(answer.problems)}"))
        return answer

    def unusable_verdict(self, message: Message) -> Verdict:
        """Return the verdict on an unusable answer that is not sent back: partial if some of its dimensions are usable."""
        question = self.question
        if question.read_dimensions is not None:
            text = (message.text or "").strip()
            answer = extract_answer(text, question.schema, question.read_dimensions, question.materials)
            if not isinstance(answer, Invalid):
                return self.verdict(PARTIAL.reason, self.errors[-1], answer)
        return self.failure_verdict()

    def verdict(self, outcome: str, error: str | None = None, answer: AnswerText | None = None) -> Verdict:
        """Return the verdict with this outcome; without an answer, it has the text of the last message."""
        message = self.last_message
        text = None if message is None or message.text is None else message.text[:MAX_ANSWER_LENGTH]
        return Verdict(
            outcome=outcome,
            answer=text if answer is None else answer.text,
            repairs=() if answer is None else answer.repairs,
            model=message.model if message else None,
            stop_reason=message.stop_reason if message else None,
            error=error,
            attempts=self.attempts,
            attempt_errors=tuple(self.errors),
            usage=_sum_usages(self.usages),
            latency_ms=round(self.seconds * 1000),
            simulated=self.simulated,
        )

    def needs_another_call(self, message: Message, verdict: Verdict) -> bool:
        """Return whether another call may help where a message has no answer, and prepare it; each kind is tried once."""
        if message.stop_reason == _MAX_TOKENS_REACHED and self.answer_tokens is None:
            self.note_failure(CUT_OFF, verdict.error or "")
            self.answer_tokens = 2 * self.question.max_tokens
            return True
        is_empty = not (message.text or "").strip()
        if verdict.outcome == INVALID and is_empty and not self.was_empty:
            self.was_empty = True
            return True
        return False

    def unfunded_verdict(self) -> Verdict:
        """Return the verdict if the cap leaves no room for a call: that of the cut-off answer if the call was to have more room."""
        return self.cost_cap_verdict() if self.answer_tokens is None else self.failure_verdict()

    def cost_cap_verdict(self) -> Verdict:
        """Return the verdict if the call budget forbids the next call."""
        return self.verdict("cost_cap", "the session's cost cap leaves no room for another call")

    def failure_verdict(self) -> Verdict:
        """Return the verdict for the last error."""
        return self.verdict(self.failure_outcome, self.errors[-1])


class OutputModes:
    """The output mode of each model: structured output, except for an hour after the model rejected or ignored it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._prompt_mode_until: dict[str, float] = {}

    def __getitem__(self, model: str) -> OutputMode:
        is_in_prompt = self._now() < self._prompt_mode_until.get(model, -math.inf)
        return OutputMode.IN_PROMPT if is_in_prompt else OutputMode.STRUCTURED

    def switch_to_prompt(self, model: str, reason: str) -> None:
        """Put the schema into the prompt of the requests to the model for an hour."""
        if self[model] is OutputMode.STRUCTURED:
            self._prompt_mode_until[model] = self._now() + PROMPT_MODE_SECONDS
            _LOG.warning("requests to %s have the schema in the prompt for an hour: %s", model, reason)


class LiveJudge:
    """A judge over one API, as the module describes. Belongs to one event loop."""

    def __init__(
        self,
        api: ModelApi,
        traits: TraitsLookup,
        *,
        deadline: float,
        concurrency: int,
        max_attempts: int,
        clock: Clock,
        find_apis: Callable[[], Awaitable[list[str]]] | None,
    ) -> None:
        self.limiter = Limiter(concurrency, clock)
        """The number of calls in progress, and its limit."""
        self.base_url = api.base_url
        """The address of the API."""
        self._api = api
        self._traits = traits
        self._deadline = deadline
        self._max_attempts = max_attempts
        self._clock = clock
        self._breaker = CircuitBreaker(clock)
        self._prompts = PromptBounds(api, clock.now)
        self._output_modes = OutputModes(clock.now)
        self._admission = asyncio.Semaphore(concurrency)
        self._find_apis = find_apis
        self._found_apis: str | None = None

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Ask one question; see `streams.judges.protocol.Judge`."""
        model = question.model
        while True:
            async with self._breaker.admitted(model) as is_probe, self._admission:
                await self.limiter.resumed()
                if self._breaker.may_ask(model, is_probe=is_probe):
                    open_question = OpenQuestion(question, budget, ends_at=self._clock.now() + self._deadline)
                    verdict = await self._ask(open_question)
                    if verdict.outcome == ANSWERED:
                        self._breaker.note_readable(model)
                    elif open_question.is_unreadable:
                        self._breaker.note_unreadable(model)
                    return verdict

    async def _ask(self, open_question: OpenQuestion) -> Verdict:
        try:
            async with asyncio.timeout(self._deadline) as timeout:
                return await self._call_until_verdict(open_question)
        except TimeoutError:
            if not timeout.expired():
                raise
            return open_question.verdict(TIMEOUT, f"no answer within {self._deadline:g} s")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._api.aclose()

    async def _call_until_verdict(self, open_question: OpenQuestion) -> Verdict:
        model = open_question.question.model
        repair: Repair | None = None
        while True:
            output_mode = self._output_modes[model]
            response = await self._request_message(open_question, output_mode, repair)
            if isinstance(response, Failure):
                self._output_modes.switch_to_prompt(model, response.error)
                continue
            if isinstance(response, Verdict):
                return response
            verdict_or_repair = self._evaluate_message(open_question, response, output_mode, repair)
            if isinstance(verdict_or_repair, Verdict):
                return verdict_or_repair
            repair = verdict_or_repair

    async def _request_message(
        self, open_question: OpenQuestion, output_mode: OutputMode, repair: Repair | None
    ) -> Message | Failure | Verdict:
        """Return the judge's message, a failure that rejects the output format, or the verdict if no further call may be made."""
        while open_question.attempts < self._max_attempts:
            try:
                await self.limiter.acquire(open_question.ends_at)
            except PausedError as error:
                return open_question.verdict(PROVIDER_ERROR, str(error))
            try:
                request = self._build_request(open_question, output_mode, repair)
                max_tokens = await self._reserve(open_question, request)
                if not max_tokens:
                    return open_question.unfunded_verdict()
                response = await self._call(open_question, request, max_tokens)
            finally:
                self.limiter.release()
            if isinstance(response, Message):
                return response
            open_question.note_failure(response.outcome, response.error, unreadable=response.unreadable)
            if response.rejects_format and output_mode is OutputMode.STRUCTURED:
                return response
            delay = self._retry_delay(open_question, response)
            if delay is None:
                break
            await self._clock.sleep(delay)
        return open_question.failure_verdict()

    def _build_request(self, open_question: OpenQuestion, output_mode: OutputMode, repair: Repair | None) -> JudgeRequest:
        question = open_question.question
        traits = self._traits(question.model)
        return build_request(question, traits, secrets.token_hex(8), repair, output_mode=output_mode)

    def _retry_delay(self, open_question: OpenQuestion, failure: Failure) -> float | None:
        """Return the seconds to wait before the call is retried; None if it must not be retried."""
        delay = self._backoff_seconds(open_question.attempts) if failure.retry_after is None else failure.retry_after
        if not failure.is_retryable or open_question.attempts >= self._max_attempts:
            return None
        return delay if self._clock.now() + delay < open_question.ends_at else None

    async def _reserve(self, open_question: OpenQuestion, request: JudgeRequest) -> int:
        """Reserve the cost of a call, by the loosest bound that the cap allows. Return the answer's maximum tokens; 0 forbids the call."""
        async with aclosing(self._prompts.bounds(open_question.question, request)) as bounds:
            async for bound in bounds:
                max_tokens = await open_question.budget.reserve(bound, answer_tokens=open_question.answer_tokens)
                if max_tokens:
                    open_question.bound = bound
                    return max_tokens
        return 0

    async def _call(self, open_question: OpenQuestion, request: JudgeRequest, max_tokens: int) -> Message | Failure:
        """Make one call, charge it, and report it to the limiter."""
        open_question.attempts += 1
        started = self._clock.now()
        headers: Mapping[str, str] = {}
        outcome: Message | Failure
        try:
            # The client's own read timeout restarts with every byte, so it does not limit the whole call.
            async with asyncio.timeout(self._deadline / 2):
                response = await self._api.call(request, max_tokens)
            headers = response.headers
            outcome = self._api.read(response.content)
        except Exception as error:  # noqa: BLE001 - any error of the client is an outcome of this one call
            outcome = self._api.classify(error, self._clock.wall)
            headers = outcome.headers
            if outcome.status == _NOT_FOUND:
                outcome = replace(outcome, error=f"{outcome.error}{await self._describe_apis()}")
        except BaseException:
            open_question.note_failure(TIMEOUT, "no answer in time")
            open_question.budget.spend(None, open_question.question.model)
            raise
        finally:
            open_question.seconds += self._clock.now() - started
        open_question.simulated |= is_simulated(headers, outcome.model if isinstance(outcome, Message) else None)
        if isinstance(outcome, Message) and open_question.exceeds_bound(outcome):
            self._prompts.distrust(request.model)
        open_question.charge(outcome)
        self._update_limiter(outcome, headers, started)
        return outcome

    async def _describe_apis(self) -> str:
        """Say which APIs the server seems to speak, because a wrong address is a common mistake. It is looked up once."""
        if self._found_apis is None:
            self._found_apis = ""
            apis = [] if self._find_apis is None else await self._find_apis()
            self._found_apis = f" (the server seems to speak {', '.join(apis)})" if apis else ""
        return self._found_apis

    def _update_limiter(self, outcome: Message | Failure, headers: Mapping[str, str], started: float) -> None:
        """Report the outcome of a call to the limiter."""
        pause = seconds_until_refill(headers, self._clock.wall)
        if isinstance(outcome, Message):
            self.limiter.grow()
        elif outcome.overloaded:
            self.limiter.shrink(started)
            pause = max(pause, outcome.retry_after or 0.0)
        self.limiter.pause(pause)

    def _evaluate_message(
        self, open_question: OpenQuestion, message: Message, output_mode: OutputMode, repair: Repair | None
    ) -> Verdict | Repair | None:
        """Return the verdict on a message, or the repair for the next call.

        Return None to ask again without a repair: there was no text, or too little room, or the model ignored structured output, so that
        the next request has the schema in its prompt.
        """
        model = open_question.question.model
        verdict = open_question.verdict_without_answer(message)
        if verdict is not None:
            may_ask_again = open_question.attempts < self._max_attempts and not self._breaker.is_paused(model)
            return None if may_ask_again and open_question.needs_another_call(message, verdict) else verdict
        text = (message.text or "").strip()
        answer = open_question.read_answer(message)
        ignores_format = output_mode is OutputMode.STRUCTURED and not is_object(text)
        if ignores_format:
            self._output_modes.switch_to_prompt(model, "the answer is not a single JSON object")
        if not isinstance(answer, Invalid):
            return open_question.verdict(ANSWERED, answer=answer)
        if repair is not None or self._breaker.is_paused(model):
            return open_question.unusable_verdict(message)
        return None if ignores_format else Repair(text, answer.problems)

    def _backoff_seconds(self, attempts: int) -> float:
        """Return a random delay below an exponentially growing limit (full jitter)."""
        max_delay: float = min(_FIRST_BACKOFF_SECONDS * 2 ** (attempts - 1), _MAX_BACKOFF_SECONDS)
        return max_delay * self._clock.jitter()


def open_live_judge(
    api_key: str | None,
    base_url: str | None,
    traits: TraitsLookup,
    *,
    api: ApiName = "messages",
    setting: str | None = None,
    region: str | None = None,
    cloud_project: str | None = None,
    deadline: float = DEADLINE_SECONDS,
    concurrency: int = CONCURRENCY,
    max_attempts: int = MAX_ATTEMPTS,
    max_body: int = MAX_BODY_BYTES,
    clock: Clock | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> LiveJudge:
    """Return a judge over the API at `base_url` (None is the default address). Raises SettingsError if the key or address is invalid.

    `setting` is where the address is set, for error messages. `region` and `cloud_project` are those of a cloud; None is the
    environment's. A question may take `deadline` seconds, one call half of that. `max_attempts` is the maximum number of calls per question.
    """
    options = ClientOptions(deadline / 2, concurrency, max_body, transport, setting, region, cloud_project)
    opened = _open_api(api, api_key, base_url, options)
    return LiveJudge(
        opened,
        traits,
        deadline=deadline,
        concurrency=concurrency,
        max_attempts=max_attempts,
        clock=clock or Clock(),
        # A cloud answers 404 for a model that it does not have, and refuses unknown paths as if it knew them.
        find_apis=None if api in CLOUDS else lambda: find_apis(opened.base_url, transport),
    )


def _open_api(api: ApiName, api_key: str | None, base_url: str | None, options: ClientOptions) -> ModelApi:
    if api == "messages":
        return MessagesApi(open_messages_client(api_key, base_url, options))
    if api == "bedrock":
        return MessagesApi(open_bedrock_client(api_key, base_url, options))
    if api == "vertex":
        return MessagesApi(open_vertex_client(api_key, base_url, options))
    from streams.judges.openai_apis import ChatApi, ResponsesApi, open_client  # noqa: PLC0415 - the client takes half a second to load

    client = open_client(api_key, base_url, options)
    return ChatApi(client) if api == "chat" else ResponsesApi(client)


class PromptBounds:
    """Upper bounds on the tokens of prompts, as the module describes. Belongs to one event loop; `now` is a monotonic clock in seconds."""

    def __init__(self, api: ModelApi, now: Callable[[], float]) -> None:
        self._api = api
        self._now = now
        self._prefix_tokens: dict[bytes, int] = {}
        self._retry_at: dict[str, float] = {}
        self._counting = asyncio.Lock()

    async def bounds(self, question: Question, request: JudgeRequest) -> AsyncGenerator[PromptBound]:
        """Yield one or two upper bounds on the prompt of a request, the second one tighter (see `build_request`)."""
        byte_bound = question.texts_size + OVERHEAD_TOKENS
        prefix = await self._prefix_bound(request)
        if prefix is None:
            # A server that does not count tokens may cache any part of the prompt.
            yield PromptBound(byte_bound, byte_bound)
            return
        message_bound = sum(byte_tokens(turn.text) for turn in request.turns)
        prompt_bound = min(byte_bound, prefix + message_bound)
        written = prompt_bound
        if not self._api.caches_unmarked:
            written = min(prompt_bound, prefix) if request.marks_cache else 0
        yield PromptBound(prompt_bound, written)
        counted = await self._count(request)
        if counted is not None and counted < prompt_bound:
            yield PromptBound(counted, min(written, counted))

    def distrust(self, model: str) -> None:
        """Ignore all counts for a model from now on, because a call used more tokens than the API had counted."""
        if self._retry_at.get(model) != math.inf:
            _LOG.error("%s used more tokens than the API had counted; from now on, each byte counts as one token", model)
        self._retry_at[model] = math.inf

    async def _prefix_bound(self, request: JudgeRequest) -> int | None:
        """Return an upper bound on the tokens of everything before the messages; None without a count."""
        if self._retry_at.get(request.model) == math.inf:
            return None
        prefix = replace(request, turns=(Turn("user", "."),))
        parts = [prefix.model, prefix.instructions, prefix.schema, prefix.marks_cache, list(prefix.traits)]
        key = hashlib.sha256(canonical_json(parts).encode("utf-8", "surrogatepass")).digest()
        if key not in self._prefix_tokens:
            async with self._counting:
                await self._count_prefix(key, prefix)
        return self._prefix_tokens.get(key)

    async def _count_prefix(self, key: bytes, prefix: JudgeRequest) -> None:
        if key in self._prefix_tokens:
            return  # another task counted it while this one waited for the lock
        tokens = await self._count(prefix)
        if tokens is not None:
            if len(self._prefix_tokens) >= _MAX_PREFIXES:
                self._prefix_tokens.clear()
            self._prefix_tokens[key] = tokens

    async def _count(self, request: JudgeRequest) -> int | None:
        """Return an upper bound on the tokens of a request by the API's count; None without a plausible count."""
        model = request.model
        if self._now() < self._retry_at.get(model, -math.inf):
            return None
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                tokens = await self._api.count_tokens(request)
        except Exception as error:  # noqa: BLE001 - after any error, each byte counts as a token
            self._note_failure(model, error)
            return None
        instruction_bytes = len(request.instructions.encode())
        if type(tokens) is not int or tokens < instruction_bytes // MAX_BYTES_PER_TOKEN:
            self._note_failure(model, ValueError(f"{tokens!r} tokens for {instruction_bytes} bytes of instructions"))
            return None
        return tokens + tokens // MARGIN_SHARE + MARGIN

    def _note_failure(self, model: str, error: Exception) -> None:
        is_temporary = self._api.classify(error, lambda: 0.0).is_retryable
        self._retry_at[model] = self._now() + (_RETRY_AFTER_FAILURE if is_temporary else _RETRY_AFTER_UNSUPPORTED)
        _LOG.info("%s: tokens cannot be counted, so each byte counts as one: %s", model, type(error).__name__)


def _sum_usages(usages: list[Usage]) -> Usage | None:
    """Return the total tokens of several calls; None if there are no usages."""
    if not usages:
        return None
    return Usage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cache_write_tokens=sum(usage.cache_write_tokens for usage in usages),
        cache_read_tokens=sum(usage.cache_read_tokens for usage in usages),
    )
