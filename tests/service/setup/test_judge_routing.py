"""Judges of several makers at once: each question goes to its own, and what is missing is said."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml
from support import builders
from support.repository_copy import ROOT

from audit.exchanges.prompts import thinking_question, tier2_question, tier3_question
from audit.exchanges.questions import Question
from audit.policy import Policy
from driftline_trial.simulator.server import RunningJudge, running
from schemas.errors import SettingsError
from service.setup import judge_setup
from service.setup.judge_setup import LIVE, NONE, SIMULATED, OpenedJudge, open_judge
from service.setup.settings import Settings
from streams.judges.protocol import Verdict

EXCHANGE = builders.exchange("s", 1, "It is done.", agent_thinking="I doubt it.")
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def simulator() -> Iterator[RunningJudge]:
    """Return a simulated judge of all three APIs."""
    with running() as served:
        yield served


class FreeBudget:
    """A budget without a cap."""

    def __init__(self, question: Question) -> None:
        self._question = question

    async def reserve(self, prompt: Any = None, *, answer_tokens: int | None = None) -> int:  # noqa: ARG002 - see CallBudget
        """Allow every call."""
        return answer_tokens or self._question.max_tokens

    def spend(self, usage: Any, model: str | None) -> None:
        """Charge nothing."""


def questions_of(policy: Policy) -> list[Question]:
    """Return the questions of all tiers about one exchange."""
    project = policy.for_project("ops")
    return [
        tier2_question(EXCHANGE, project),
        thinking_question(EXCHANGE, project),
        tier3_question(EXCHANGE, project, project.methodology.tier3),
    ]


def ask_all(policy: Policy, environ: Mapping[str, str]) -> list[Verdict]:
    """Open the judges of a policy and ask the questions of all tiers."""

    async def work() -> list[Verdict]:
        opened = await open_judge(Settings(judge="live"), policy, environ)
        assert opened.judge is not None
        assert opened.name == SIMULATED
        try:
            return [await opened.judge.ask(question, FreeBudget(question)) for question in questions_of(policy)]
        finally:
            await opened.judge.aclose()

    return asyncio.run(work())


def requested_models(simulator: RunningJudge) -> list[str]:
    """Return the models of the newest requests."""
    return [json.loads(body)["model"] for body in simulator.received]


def test_each_tier_is_asked_of_its_own_judge(simulator: RunningJudge) -> None:
    """A project may use a cheap judge for most and a good one for what counts, over any API."""
    simulator.reset("answer")
    root = simulator.base_url
    judges = {
        "cheap": {"api": "chat", "baseUrl": f"{root}/v1", "model": "small"},
        "good": {"api": "responses", "baseUrl": f"{root}/v1", "keyEnv": "GOOD_KEY"},
    }
    tiers = {"tier3": "good/large", "tier2_5": "claude-haiku-4-5"}
    policy = Policy.model_validate({"judges": judges, "defaults": {"judgeModel": "cheap", "tierJudges": tiers}})
    verdicts = ask_all(policy, {"ANTHROPIC_BASE_URL": root, "GOOD_KEY": "secret"})
    assert [verdict.outcome for verdict in verdicts] == ["answered"] * 3
    assert requested_models(simulator) == ["small", "claude-haiku-4-5", "large"]
    assert [question.model for question in questions_of(policy)] == ["cheap/small", "claude-haiku-4-5", "good/large"]


def test_a_built_in_judge_needs_its_key_and_nothing_in_the_policy(simulator: RunningJudge) -> None:
    """The address is that of the maker, or the one that the maker's own client would use."""
    simulator.reset("answer")
    policy = Policy.model_validate({"defaults": {"judgeModel": "openai/gpt-5.4-mini"}})
    environ = {"OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": f"{simulator.base_url}/v1"}
    assert [verdict.outcome for verdict in ask_all(policy, environ)] == ["answered"] * 3
    assert requested_models(simulator) == ["gpt-5.4-mini"] * 3


def guide_policies() -> list[tuple[str, dict[str, Any]]]:
    """Return the policies of the guide, by the titles of their blocks."""
    text = (ROOT / "docs/how-to/judges.md").read_text("utf-8")
    return [(title, yaml.safe_load(block)) for title, block in re.findall(r'```yaml title="(.*?)"\n(.*?)```', text, re.DOTALL)]


@pytest.mark.parametrize(("title", "written"), guide_policies(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_policy_of_the_guide_works(
    title: str, written: dict[str, Any], simulator: RunningJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide promises that each block is a whole policy. Only the address is replaced, by that of a server on loopback.

    Vertex AI gets an access token, because Google's own credentials would be looked up in its network.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    simulator.reset("answer")
    policy = Policy.model_validate(written)
    variables = {"ANTHROPIC_API_KEY": "secret", "ANTHROPIC_BASE_URL": simulator.base_url}
    judges = {}
    for judge in policy.used_judges:
        if judge.settings is not None:
            path = "" if judge.settings.api == "bedrock" else "/v1"
            settings = judge.settings.model_dump(by_alias=True, exclude_defaults=True) | {
                "baseUrl": f"{simulator.base_url}{path}"
            }
            if judge.settings.api == "vertex":
                settings["keyEnv"] = "ACCESS_TOKEN"
            judges[judge.judge_id] = settings
            variables |= {judge.settings.key_env or "UNUSED": "secret", "ACCESS_TOKEN": "secret"}
    verdicts = ask_all(Policy.model_validate(written | {"judges": judges}), variables)
    assert [verdict.outcome for verdict in verdicts] == ["answered"] * 3, title
    assert policy.for_project("").judge.price is not None, title


def test_a_cloud_has_no_listed_price() -> None:
    """Its price depends on the region, and with a price that is too low a cap would be passed."""
    judges: dict[str, dict[str, Any]] = {"own": {"api": "bedrock", "region": "eu-west-1", "model": "claude-haiku-4-5"}}
    assert Policy.model_validate({"judges": judges}).resolve_judge("own").price is None
    judges["own"]["price"] = {"input": 1.1, "output": 5.5}
    assert Policy.model_validate({"judges": judges}).resolve_judge("own").price is not None


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"api": "chat", "region": "eu-west-1"}, "region"),
        ({"api": "bedrock", "cloudProject": "mine"}, "cloudProject"),
    ],
)
def test_a_setting_of_another_cloud_is_refused(entry: dict[str, Any], field: str) -> None:
    """It would have no effect, and its writer believes that texts stay in a region."""
    with pytest.raises(ValueError, match=f"{field} is only for api: "):
        Policy.model_validate({"judges": {"mine": entry}})


def test_a_judge_without_its_key_fails_alone(simulator: RunningJudge) -> None:
    """The other judges go on, and the error says which variable to set."""
    judges = {"mine": {"baseUrl": f"{simulator.base_url}/v1", "model": "m"}, "other": {"keyEnv": "OTHER_KEY", "model": "m"}}
    policy = Policy.model_validate({"judges": judges, "defaults": {"judgeModel": "mine", "tierJudges": {"tier3": "other"}}})
    tier2, _, tier3 = ask_all(policy, {})
    assert tier2.outcome == "answered"
    assert tier3.outcome == "provider_error"
    assert "OTHER_KEY" in (tier3.error or "")


def test_without_any_key_nobody_judges() -> None:
    """Whoever sets nothing gets the checks alone, and no error."""
    policy = Policy.model_validate({"defaults": {"judgeModel": "openai/gpt-5.4-mini"}})
    opened = asyncio.run(open_judge(Settings(judge="auto"), policy, {}))
    assert opened.judge is None
    assert opened.name == NONE


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({"defaults": {"judgeModel": "openai/gpt-5.4-mini"}}, "https://api.openai.com/v1"),
        ({"defaults": {"judgeModel": "mine/m"}, "judges": {"mine": {"keyEnv": "OPENAI_API_KEY"}}}, "https://api.openai.com/v1"),
    ],
)
def test_a_provider_is_named_by_its_own_address_and_not_called_when_it_is_opened(
    settings: dict[str, Any], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server must start without the network; only an address of one's own may be a simulated judge's."""
    monkeypatch.setattr(judge_setup, "_simulates", None)

    async def work() -> OpenedJudge:
        opened = await open_judge(Settings(judge="live"), Policy.model_validate(settings), {"OPENAI_API_KEY": "secret"})
        assert opened.judge is not None
        await opened.judge.aclose()
        return opened

    opened = asyncio.run(work())
    assert opened.address == address
    assert opened.name == LIVE


def test_a_missing_key_of_the_only_judge_is_named() -> None:
    """Whoever chose OpenAI must not be told to set the key of another provider."""
    policy = Policy.model_validate({"defaults": {"judgeModel": "openai/gpt-5.4-mini"}})
    with pytest.raises(SettingsError) as refused:
        asyncio.run(open_judge(Settings(judge="live"), policy, {}))
    assert "OPENAI_API_KEY" in refused.value.hint


def test_a_judge_that_was_asked_for_and_cannot_be_opened_is_an_error() -> None:
    """`--judge live` is a demand."""
    with pytest.raises(SettingsError, match="key"):
        asyncio.run(open_judge(Settings(judge="live"), Policy(), {}))
