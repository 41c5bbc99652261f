"""The live judge over every API: one question, one answer and one bill, whichever API carries them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import anthropic.lib.aws._auth as aws_auth
import httpx2
import msgspec
import pytest

from audit.answers import UsableDimensions, read_dimensions, read_tier2, tier2_schema
from audit.cost import PromptBound, Usage
from audit.exchanges.questions import Invalid, Question
from audit.judges import CLOUDS, ApiName
from driftline_trial.simulator.server import RunningJudge, running
from schemas.errors import SettingsError
from streams.judges import messages_api
from streams.judges.live import LiveJudge, open_live_judge
from streams.judges.model_api import build_request
from streams.judges.protocol import ModelTraits, Verdict
from streams.judges.rate_limits import seconds_until_refill

KEY = "sk-proj-a-key-that-must-not-be-shown"
API_NAMES: tuple[ApiName, ...] = get_args(ApiName)
MAKERS_APIS = [api for api in API_NAMES if api not in CLOUDS]
DIMENSIONS = ("scope_compliance", "information_completeness")
CASES = json.loads((Path(__file__).parent / "judge_answers.json").read_text())
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def simulator() -> Iterator[RunningJudge]:
    """Return the simulated judge that all tests share."""
    with running() as served:
        yield served


def address_of(api: ApiName, root: str) -> str:
    """Return the base URL for an API, as its users write it."""
    return root if api in {"messages", "bedrock"} else f"{root}/v1"


def open_api(api: ApiName, base_url: str | None, key: str | None = KEY, **options: Any) -> LiveJudge:
    """Open a judge over an API; a cloud is asked in a region and for a project."""
    region = "eu-west-1" if api in CLOUDS else None
    project = "my-project" if api == "vertex" else None
    return open_live_judge(
        key, base_url, lambda _model: ModelTraits(), api=api, region=region, cloud_project=project, **options
    )


def ask(judge: LiveJudge, question: Question, budget: Any) -> Verdict:
    """Ask one question and close the judge."""

    async def work() -> Verdict:
        try:
            return await judge.ask(question, budget)
        finally:
            await judge.aclose()

    return asyncio.run(work())


@pytest.fixture
def tier2(build_question: Build) -> Question:
    """Return a question about two dimensions, with the reader of Tier 2."""
    question: Question = build_question(
        schema=tier2_schema(DIMENSIONS), read=lambda text: read_tier2(text, dimensions=DIMENSIONS, materials=())
    )
    return question


def test_one_question_has_one_answer_and_one_usage_over_every_api(
    simulator: RunningJudge, tier2: Question, budget_for: Build
) -> None:
    """Scores must not depend on the API that carries them, and neither must the bill."""
    verdicts = {}
    for api in API_NAMES:
        simulator.reset("answer")
        judge = open_api(api, address_of(api, simulator.base_url))
        verdicts[api] = ask(judge, tier2, budget_for(tier2))
    assert {verdict.outcome for verdict in verdicts.values()} == {"answered"}
    assert len({verdict.answer for verdict in verdicts.values()}) == 1
    assert {verdict.stop_reason for verdict in verdicts.values()} == {"end_turn"}
    assert all(verdict.simulated for verdict in verdicts.values())
    outputs = {verdict.usage.output_tokens for verdict in verdicts.values() if verdict.usage}
    assert len(outputs) == 1


class ScriptedServer(httpx2.AsyncBaseTransport):
    """Returns one body to every call, and keeps the requests."""

    def __init__(self, body: Any, status: int = 200) -> None:
        self._body = body
        self._status = status
        self.requests: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a call; counts of tokens are refused."""
        if request.url.path.endswith(("/count_tokens", "/input_tokens", "/count-tokens:rawPredict")):
            return httpx2.Response(404, json={"error": {"message": "no counts here"}})
        self.requests.append(request)
        return httpx2.Response(self._status, json=self._body)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of the requests."""
        return [json.loads(request.content) for request in self.requests]


def body_of(api: ApiName, text: str | None, stop_reason: str, usage: dict[str, int] | None) -> dict[str, Any]:
    """Return a response with this text as an API sends it."""
    if api == "messages":
        content = [] if text is None else [{"type": "text", "text": text}]
        return {"content": content, "model": "m", "stop_reason": stop_reason, "usage": usage}
    if api == "chat":
        finish = {"max_tokens": "length", "refusal": "content_filter"}.get(stop_reason, "stop")
        counts = usage and {"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]}
        message = {"role": "assistant", "content": text}
        return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "model": "m", "usage": counts}
    reasons = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}
    details = {"reason": reasons[stop_reason]} if stop_reason in reasons else None
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "output": [] if text is None else [item],
        "status": "incomplete" if details else "completed",
        "incomplete_details": details,
        "model": "m",
        "usage": usage,
    }


def case_parts(answer: str | dict[str, Any]) -> tuple[str | None, str]:
    """Return the text and the stop reason of a case, whose blocks are joined as every API joins them."""
    if isinstance(answer, str):
        return answer, "end_turn"
    texts = [
        json.dumps(block["input"]) if block["type"] == "tool_use" else block.get("text") for block in answer["content"] or ()
    ]
    return "".join(filter(None, texts)) or None, answer.get("stop_reason", "end_turn")


@pytest.mark.parametrize("api", MAKERS_APIS)
def test_answers_that_lose_nothing_are_read_with_one_call(api: ApiName, tier2: Question, budget_for: Build, clock: Any) -> None:
    """Of 64 answers as models give them, at least 30 are read at once; none is read wrongly. A second call costs as much as the first."""
    read_at_once = []
    for case in CASES:
        text, stop_reason = case_parts(case["answer"])
        server = ScriptedServer(body_of(api, text, stop_reason, {"input_tokens": 100, "output_tokens": 20}))
        judge = open_live_judge(
            KEY, "http://127.0.0.1:9", lambda _model: ModelTraits(), api=api, clock=clock.judge_clock, transport=server
        )
        verdict = ask(judge, tier2, budget_for(tier2))
        if verdict.outcome == "answered":
            answer = tier2.read(verdict.answer or "")
            assert not isinstance(answer, Invalid)
            assert [part.score for part in answer.dimensions] in ([0.9, 0.8], [1.0, 0.8]), case["name"]
            assert answer.flagged is False
        if verdict.outcome == "answered" and verdict.attempts == 1:
            read_at_once.append(case["name"])
            assert "scored" in case["should"] or "last" in case["should"], case["name"]
    assert len(read_at_once) >= 30


@pytest.mark.parametrize(("scores", "outcome"), [((7, 0.8), "partial"), ((7, 8), "invalid")])
def test_usable_dimensions_outlive_a_second_failure(
    scores: tuple[float, float], outcome: str, tier2: Question, budget_for: Build
) -> None:
    """Both calls were paid for, and what can be read of the second answer is worth keeping."""
    dimensions = {
        name: {"quote": "", "reasoning": "Fine.", "score": score} for name, score in zip(DIMENSIONS, scores, strict=True)
    }
    text = json.dumps({"dimensions": dimensions, "flag_quote": "", "flag_reason": "", "flagged": False})
    server = ScriptedServer(body_of("messages", text, "end_turn", {"input_tokens": 100, "output_tokens": 20}))
    read = partial(read_dimensions, dimensions=DIMENSIONS, low=0, high=1, materials=())
    question = msgspec.structs.replace(tier2, read_dimensions=read)
    verdict = ask(open_api("messages", "http://127.0.0.1:9", transport=server), question, budget_for(question))
    assert (verdict.outcome, verdict.attempts) == (outcome, 2)
    if outcome == "partial":
        usable = read(verdict.answer or "")
        assert isinstance(usable, UsableDimensions)
        assert [(item.dimension, item.score) for item in usable.dimensions] == [(DIMENSIONS[1], 0.8)]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_cached_tokens_are_no_part_of_the_uncached_ones(api: ApiName, tier2: Question, budget_for: Build) -> None:
    """These APIs count cached tokens as a part of the prompt; adding both would charge them twice."""
    body = body_of(api, None, "end_turn", {"input_tokens": 100, "output_tokens": 20})
    details = "prompt_tokens_details" if api == "chat" else "input_tokens_details"
    body["usage"][details] = {"cached_tokens": 60, "cache_write_tokens": 10}
    server = ScriptedServer(body)
    judge = open_live_judge(KEY, "http://127.0.0.1:9", lambda _model: ModelTraits(), api=api, transport=server)
    budget = budget_for(tier2)
    ask(judge, tier2, budget)
    assert budget.usages[0] == Usage(30, 20, 10, 60)


@pytest.mark.parametrize(
    ("api", "path", "limit", "schema"),
    [
        ("chat", "/chat/completions", "max_tokens", ("response_format", "json_schema", "schema")),
        ("responses", "/responses", "max_output_tokens", ("text", "format", "schema")),
    ],
)
def test_a_request_has_the_question_and_nothing_that_changes_where_it_goes(
    *,
    api: ApiName,
    path: str,
    limit: str,
    schema: tuple[str, ...],
    tier2: Question,
    budget_for: Build,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Variables of the environment that the client reads must not send texts elsewhere or name an account."""
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-elsewhere")
    server = ScriptedServer(body_of(api, None, "refusal", None))
    judge = open_live_judge(KEY, "http://127.0.0.1:9/v1", lambda _model: ModelTraits(effort="low"), api=api, transport=server)
    ask(judge, tier2, budget_for(tier2))
    (request,) = server.requests
    assert str(request.url) == f"http://127.0.0.1:9/v1{path}"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert not request.headers.get("openai-organization")
    body: Any = server.bodies[0]
    assert body[limit] == tier2.max_tokens
    assert body.get("reasoning_effort", body.get("reasoning", {}).get("effort")) == "low"
    for name in schema:
        body = body[name]
    assert body == tier2.schema


def test_a_server_that_knows_only_the_other_limit_is_asked_with_it(tier2: Question, budget_for: Build) -> None:
    """OpenAI's reasoning models refuse max_tokens; many local servers know nothing else. A refusal is free."""

    class Strict(ScriptedServer):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            await super().handle_async_request(request)
            if "max_tokens" in json.loads(request.content):
                message = (
                    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
                )
                return httpx2.Response(400, json={"error": {"message": message, "code": "unsupported_parameter"}})
            return httpx2.Response(200, json=body_of("chat", None, "refusal", None))

    server = Strict(None)
    judge = open_live_judge(KEY, "http://127.0.0.1:9/v1", lambda _model: ModelTraits(), api="chat", transport=server)
    verdict = ask(judge, tier2, budget_for(tier2))
    assert verdict.outcome == "refused"
    assert [("max_tokens" in body, "max_completion_tokens" in body) for body in server.bodies] == [(True, False), (False, True)]


def test_concurrent_calls_that_are_refused_for_the_limit_all_find_the_other_name(tier2: Question, budget_for: Build) -> None:
    """Many questions start together, and each refusal must lead to the other name, not back and forth."""

    class Strict(ScriptedServer):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            await super().handle_async_request(request)
            await asyncio.sleep(0.01)
            if "max_tokens" in json.loads(request.content):
                message = "Unsupported parameter: 'max_tokens' is not supported with this model."
                return httpx2.Response(400, json={"error": {"message": message}})
            return httpx2.Response(200, json=body_of("chat", None, "refusal", None))

    judge = open_live_judge(KEY, "http://127.0.0.1:9/v1", lambda _model: ModelTraits(), api="chat", transport=Strict(None))

    async def work() -> list[Verdict]:
        try:
            return await asyncio.gather(*(judge.ask(tier2, budget_for(tier2)) for _ in range(4)))
        finally:
            await judge.aclose()

    assert {verdict.outcome for verdict in asyncio.run(work())} == {"refused"}


@pytest.mark.parametrize("api", ["messages", "responses"])
def test_a_bound_covers_what_an_api_caches_without_being_asked(
    api: ApiName, tier2: Question, simulator: RunningJudge, budget_for: Build
) -> None:
    """Writing to the cache may cost more than reading, so an API that caches any prefix is reserved for as if all were written."""
    simulator.reset("answer")
    bounds: list[PromptBound] = []

    class Recording:
        def __init__(self) -> None:
            self._budget = budget_for(tier2)

        async def reserve(self, prompt: PromptBound | None = None, *, answer_tokens: int | None = None) -> int:
            assert prompt is not None
            bounds.append(prompt)
            reserved: int = await self._budget.reserve(prompt, answer_tokens=answer_tokens)
            return reserved

        def spend(self, usage: Usage | None, model: str | None) -> None:
            self._budget.spend(usage, model)

    judge = open_live_judge(KEY, address_of(api, simulator.base_url), lambda _model: ModelTraits(), api=api)
    ask(judge, tier2, Recording())
    assert (bounds[0].written == bounds[0].tokens) == (api == "responses")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://llm.example/v1/chat/completions", "ends in /chat/completions"),
        ("https://llm.example/v1/responses", "ends in /responses"),
        ("https://me:secret@llm.example/v1", "password"),
        (None, "no key"),
    ],
)
def test_an_address_that_cannot_work_is_refused_at_start_up(url: str | None, message: str) -> None:
    """Invalid settings must fail at startup, not at the first call."""
    with pytest.raises(SettingsError, match=message) as refused:
        open_live_judge(None, url, lambda _model: ModelTraits(), api="chat")
    assert "secret" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize("api", MAKERS_APIS)
def test_an_address_that_speaks_another_api_is_named(
    api: ApiName, simulator: RunningJudge, tier2: Question, budget_for: Build
) -> None:
    """A wrong base URL is the most common mistake of set-up, and a 404 alone explains nothing."""
    judge = open_live_judge(KEY, f"{simulator.base_url}/nowhere", lambda _model: ModelTraits(), api=api)
    verdict = ask(judge, tier2, budget_for(tier2))
    assert verdict.outcome == "provider_error"
    address = simulator.base_url if api == "messages" else f"{simulator.base_url}/v1"
    assert (verdict.error or "").startswith("not found")
    assert f"at {address}" in (verdict.error or "")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m2.5s"}, 62.5),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "250ms"}, 0.25),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2"}, 2.0),
        ({"x-ratelimit-remaining-tokens": "7", "x-ratelimit-reset-tokens": "6m0s"}, 0.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "soon"}, 0.0),
        ({"x-ratelimit-remaining-tokens": "0"}, 0.0),
    ],
)
def test_an_exhausted_limit_pauses_until_it_is_refilled(headers: dict[str, str], seconds: float) -> None:
    """OpenAI's headers give a duration, where Anthropic's give a time."""
    assert seconds_until_refill(headers, lambda: 0.0) == seconds


@pytest.fixture
def no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Hide the credentials of this machine, and keep the clouds' clients from looking for them in its network."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CLOUD_ML_REGION", "ANTHROPIC_VERTEX_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "google.json"))
    aws_auth._get_session.cache_clear()  # type: ignore[attr-defined]
    return monkeypatch


def test_bedrock_is_asked_with_a_signature_and_the_secret_stays_here(
    no_cloud: pytest.MonkeyPatch, tier2: Question, budget_for: Build
) -> None:
    """The client signs with the credentials that AWS's own tools would find; the secret key itself is sent nowhere."""
    no_cloud.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    no_cloud.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    server = ScriptedServer(body_of("messages", None, "refusal", None))
    judge = open_api("bedrock", None, None, transport=server)
    assert judge.base_url.startswith("https://bedrock-runtime.eu-west-1.amazonaws.com")
    assert ask(judge, tier2, budget_for(tier2)).outcome == "refused"
    (request,) = server.requests
    assert request.url.path == f"/model/{tier2.model}/invoke"
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert KEY not in str(request.headers)
    assert {"model", "anthropic_version"} & server.bodies[0].keys() == {"anthropic_version"}


def test_vertex_is_asked_for_the_project_in_the_region(tier2: Question, budget_for: Build) -> None:
    """Both are part of the path, so a wrong one would send texts to another region or charge another project."""
    server = ScriptedServer(body_of("messages", None, "refusal", None))
    ask(open_api("vertex", None, transport=server), tier2, budget_for(tier2))
    (request,) = server.requests
    models = "projects/my-project/locations/eu-west-1/publishers/anthropic/models"
    assert str(request.url) == f"https://eu-west-1-aiplatform.googleapis.com/v1/{models}/{tier2.model}:rawPredict"
    assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("api", sorted(CLOUDS))
def test_a_cloud_without_credentials_costs_nothing(
    api: ApiName, no_cloud: pytest.MonkeyPatch, simulator: RunningJudge, tier2: Question, budget_for: Build
) -> None:
    """Nothing was sent, so nothing may be charged; the error says what is missing."""
    del no_cloud
    simulator.reset("answer")
    budget = budget_for(tier2)
    verdict = ask(open_api(api, address_of(api, simulator.base_url), None), tier2, budget)
    assert verdict.outcome == "provider_error"
    assert (verdict.error or "").startswith("no credentials: ")
    assert (simulator.requests, budget.usages) == (0, [])


@pytest.mark.parametrize("api", sorted(CLOUDS))
def test_a_model_that_a_cloud_does_not_have_is_no_wrong_address(api: ApiName, tier2: Question, budget_for: Build) -> None:
    """A cloud answers 404 for a model, too; asking it which APIs it speaks would only send requests that it refuses."""
    server = ScriptedServer({"message": "no such model"}, status=404)
    verdict = ask(open_api(api, None, transport=server), tier2, budget_for(tier2))
    assert (verdict.error or "").startswith("not found")
    assert len(server.requests) == 1


@pytest.mark.parametrize("api", sorted(CLOUDS))
def test_a_cloud_without_its_extra_or_region_says_what_to_do(api: ApiName, no_cloud: pytest.MonkeyPatch) -> None:
    """The default installation has no cloud's packages, so this is the first thing that its users meet."""
    with pytest.raises(SettingsError, match="region") as refused:
        open_live_judge(None, None, lambda _model: ModelTraits(), api=api)
    assert "region:" in (refused.value.hint or "")
    no_cloud.setattr(messages_api, "find_spec", lambda _module: None)
    with pytest.raises(SettingsError, match=f"the extra {api}") as refused:
        open_api(api, None)
    assert f"pip install 'driftline[{api}]'" in (refused.value.hint or "")


def test_vertex_counts_tokens_and_bedrock_does_not(simulator: RunningJudge, tier2: Question) -> None:
    """Without a count, each byte is reserved as a token, so a cap is reached earlier."""
    simulator.reset("answer")

    async def count(api: ApiName) -> int | None:
        judge = open_api(api, address_of(api, simulator.base_url))
        request = build_request(tier2, ModelTraits(), "boundary")
        try:
            return await judge._prompts._count(request)
        finally:
            await judge.aclose()

    assert asyncio.run(count("bedrock")) is None
    assert asyncio.run(count("vertex")) == asyncio.run(count("messages"))
