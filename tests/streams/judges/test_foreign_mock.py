"""The live judge against aimock, a mock of the makers' APIs that was not written here. Without npm the tests are skipped; in CI they fail."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.npm import node, or_skip, package

from audit.answers import Tier2Answer, read_tier2, tier2_schema
from audit.exchanges.questions import Question
from audit.judges import CLOUDS, ApiName
from streams.judges.live import open_live_judge
from streams.judges.protocol import ModelTraits, Verdict

VERSION = "1.43.0"
APIS: list[ApiName] = ["messages", "chat", "responses", "bedrock"]
"""The APIs that it mocks; of Vertex AI it has the models of Google alone."""
DIMENSIONS = ("scope_compliance", "information_completeness")
TASK = "Do this."
"""The task of the question, by which the mock finds its answer."""
SCORE = 0.75
ASSESSMENT = {"quote": "", "reasoning": "Fine.", "score": SCORE}
ANSWER = {"dimensions": dict.fromkeys(DIMENSIONS, ASSESSMENT), "flag_quote": "", "flag_reason": "", "flagged": False}
REFUSED = "a text that is refused"
FIXTURES = [
    {"match": {"userMessage": REFUSED}, "response": {"error": {"message": "no such key"}, "status": 401}},
    {"match": {"userMessage": TASK}, "response": {"content": json.dumps(ANSWER)}},
]
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the mock on loopback, and return its address."""
    program = or_skip(lambda: package("@copilotkit/aimock", VERSION)) / "dist" / "cli.js"
    fixtures = tmp_path_factory.mktemp("aimock") / "answers.json"
    fixtures.write_text(json.dumps({"fixtures": FIXTURES}), "utf-8")
    command = [str(node()), str(program), "--port", "0", "--fixtures", str(fixtures)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            yield next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        finally:
            process.terminate()


@pytest.fixture
def tier2(build_question: Build) -> Question:
    """Return a question about two dimensions."""
    question: Question = build_question(
        task=TASK, schema=tier2_schema(DIMENSIONS), read=lambda text: read_tier2(text, dimensions=DIMENSIONS, materials=())
    )
    return question


def ask(api: ApiName, address: str, question: Question, budget: Any) -> Verdict:
    """Ask one question over an API."""
    base_url = address if api in {"messages", "bedrock"} else f"{address}/v1"
    region = "eu-west-1" if api in CLOUDS else None
    judge = open_live_judge("sk-a-key-of-a-test", base_url, lambda _model: ModelTraits(), api=api, region=region)

    async def work() -> Verdict:
        try:
            return await judge.ask(question, budget)
        finally:
            await judge.aclose()

    return asyncio.run(work())


@pytest.mark.parametrize("api", APIS)
def test_a_foreign_mock_is_read_as_our_own(api: ApiName, address: str, tier2: Question, budget_for: Build) -> None:
    """Our simulated judge and our client could share a misunderstanding of an API; another author's would show it."""
    verdict = ask(api, address, tier2, budget_for(tier2))
    assert (verdict.outcome, verdict.attempts, verdict.stop_reason) == ("answered", 1, "end_turn"), verdict.error
    answer = tier2.read(verdict.answer or "")
    assert isinstance(answer, Tier2Answer)
    assert answer.score == SCORE
    assert not verdict.simulated


@pytest.mark.parametrize("api", APIS)
def test_its_refusal_is_a_refusal_that_costs_nothing(
    api: ApiName, address: str, build_question: Build, budget_for: Build
) -> None:
    """An error of the API is not billed and not repeated in vain."""
    question = build_question(task=REFUSED, schema=tier2_schema(DIMENSIONS))
    budget = budget_for(question)
    verdict = ask(api, address, question, budget)
    assert (verdict.outcome, verdict.attempts) == ("provider_error", 1)
    assert (verdict.error or "").startswith("unauthorized: ")
    assert budget.usages == []
