"""The bound of a prompt's tokens is never below the billed tokens, for any text and tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import builders

from audit.cost import OVERHEAD_TOKENS, PromptBound
from audit.exchanges.prompts import tier2_question
from audit.exchanges.questions import Question, byte_tokens
from audit.policy import Policy
from benchmarks.counting_api import TOKENIZERS, CountingApi, Tokenizer
from streams.judges.http_client import ClientOptions
from streams.judges.live import PromptBounds
from streams.judges.messages_api import MessagesApi, message_parameters, open_client
from streams.judges.model_api import JudgeRequest, OutputMode, Repair, build_request
from streams.judges.protocol import ModelTraits

POLICY = Policy().for_project("ops")
BOUNDARY = "0" * 16
TEXTS = st.text() | st.text("!#%&(*+{|}~^`") | st.text("\u4e00\u9fa5\ufdfa\u33a5") | st.text("\U0001f600\U0001f9d1\u200d\u20dd")


def question_of(text: str) -> Question:
    """Return a question about an exchange with this answer."""
    return tier2_question(builders.exchange("s", 1, text), POLICY)


def bounds_of(
    transport: httpx2.AsyncBaseTransport, *requests: tuple[Question, JudgeRequest], distrusted: str = ""
) -> list[list[PromptBound]]:
    """Return the bounds of each request in order."""

    async def work() -> list[list[PromptBound]]:
        async with open_client(None, "http://127.0.0.1:9", ClientOptions(5, 1, transport=transport)) as client:
            bounds = PromptBounds(MessagesApi(client), asyncio.get_running_loop().time)
            if distrusted:
                bounds.distrust(distrusted)
            return [[bound async for bound in bounds.bounds(question, request)] for question, request in requests]

    return asyncio.run(work())


@pytest.mark.parametrize("tokens", TOKENIZERS.values(), ids=TOKENIZERS)
@given(text=TEXTS, repaired=st.none() | TEXTS.filter(str.strip), output_mode=st.sampled_from(OutputMode))
@example(text="\ufdfa" * 400, repaired=None, output_mode=OutputMode.STRUCTURED)
@example(text="`" * 30_000, repaired="{" * 500, output_mode=OutputMode.IN_PROMPT)
def test_no_prompt_has_more_tokens_than_its_bounds(
    tokens: Tokenizer, text: str, repaired: str | None, output_mode: OutputMode
) -> None:
    """Tokens billed beyond the reservation would pass the cap."""
    question = question_of(text)
    repair = None if repaired is None else Repair(repaired, ("score: missing",))
    request = build_request(question, ModelTraits(cache_minimum=512), BOUNDARY, repair, output_mode=output_mode)
    api = CountingApi(tokens)
    (estimates,) = bounds_of(api, (question, request))

    async def bill_request() -> int:
        async with open_client(None, "http://127.0.0.1:9", ClientOptions(5, 1, transport=api)) as client:
            return (await client.messages.create(**message_parameters(request))).usage.input_tokens

    billed_tokens = asyncio.run(bill_request())
    assert all(billed_tokens <= estimate.tokens for estimate in estimates)
    assert all(estimate.written <= estimate.tokens for estimate in estimates)
    assert estimates == sorted(estimates, key=lambda estimate: -estimate.tokens)


@given(TEXTS)
def test_a_text_is_bounded_by_the_bytes_of_its_longest_normal_form(text: str) -> None:
    """A normalizing tokenizer turns one ligature into eighteen letters, which an adversary may use."""
    assert len(text.encode("utf-8", "surrogatepass")) <= byte_tokens(text)
    assert byte_tokens("\ufdfa") == 33


def test_unchanged_parts_are_counted_once() -> None:
    """A count is free but takes as long as a call."""
    api = CountingApi(TOKENIZERS["four characters a token"])
    requests = [(question, build_request(question, ModelTraits(), BOUNDARY)) for question in map(question_of, ("a", "b", "c"))]
    bounds = bounds_of(api, *requests)
    assert api.counted == 1 + len(requests), "the instructions are counted once, and each prompt once"
    for (question, _), (first, nearest) in zip(requests, bounds, strict=True):
        assert nearest.tokens < first.tokens < question.texts_size / 2


class Refusing(httpx2.AsyncBaseTransport):
    """Answers every count with the same response."""

    def __init__(self, answer: Callable[[], httpx2.Response]) -> None:
        self._answer = answer
        self.requests = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response."""
        assert request.url.path.endswith("/count_tokens")
        self.requests += 1
        return self._answer()


def _lost() -> httpx2.Response:
    raise httpx2.ConnectError("no route")


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx2.Response(404, json={"error": {"message": "unknown"}}),
        lambda: httpx2.Response(529, json={"error": {"message": "overloaded"}}),
        lambda: httpx2.Response(200, text="<html>"),
        lambda: httpx2.Response(200, json={"input_tokens": None}),
        lambda: httpx2.Response(200, json={"input_tokens": 3}),
        lambda: httpx2.Response(200, json={}),
        _lost,
    ],
    ids=["unknown", "overloaded", "html", "null", "too few", "nothing", "unreachable"],
)
def test_without_token_counts_each_byte_counts_as_a_token(answer: Callable[[], httpx2.Response]) -> None:
    """Compatible servers may lack the count or return an impossible one; the cap must hold anyway."""
    api, question = Refusing(answer), question_of("It is done.")
    request = build_request(question, ModelTraits(cache_minimum=512), BOUNDARY)
    most = question.texts_size + OVERHEAD_TOKENS
    assert [[PromptBound(most, most)]] * 2 == bounds_of(api, (question, request), (question, request))
    assert api.requests == 1


def test_counts_of_a_model_that_used_more_tokens_than_counted_are_ignored() -> None:
    """A proxy may count and bill with different tokenizers."""
    api, question = CountingApi(TOKENIZERS["four characters a token"]), question_of("It is done.")
    request = build_request(question, ModelTraits(cache_minimum=10**6), BOUNDARY)
    most = question.texts_size + OVERHEAD_TOKENS
    assert bounds_of(api, (question, request), distrusted=question.model) == [[PromptBound(most, most)]]
    assert api.counted == 0
