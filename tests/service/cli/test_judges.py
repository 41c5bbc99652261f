"""`driftline judges test`: it tells an obedient judge and a useless one from a good one, and costs what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from audit.control_set import CaseVerdict, list_cases, load_control_set, summarize
from audit.exchanges.masking import find_passages
from driftline_trial.simulator import RunningJudge, running
from schemas.errors import InputError
from service.cli.commands import judges


@pytest.fixture(scope="module")
def served() -> Iterator[RunningJudge]:
    """One simulated judge for the module."""
    with running() as judge:
        yield judge


@pytest.fixture
def judge(served: RunningJudge, monkeypatch: pytest.MonkeyPatch) -> RunningJudge:
    """Return the judge of the environment, which answers."""
    served.reset("answer")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", served.base_url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    return served


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(judges.judges_app, ["test", *arguments])


def document(result: Result) -> dict[str, Any]:
    """Return the JSON that the command printed."""
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def test_a_judge_that_counts_words_is_not_moved_but_knows_no_facts(judge: RunningJudge) -> None:
    """The simulated judge sees refusals and rude or unrelated answers; it must not pass for one that understands."""
    result = run("--yes", "--json")
    report = document(result)
    assert (report["moved"], report["raised_scores"], report["unanswered"]) == (0, 0, 0)
    told_apart = {answer["name"]: answer["told_apart"] for answer in report["answers"]}
    assert told_apart["refund"]
    assert not told_apart["capital"]
    assert result.exit_code == 1
    assert judge.requests > len(list(list_cases()))


@pytest.mark.parametrize(
    ("with_attempt", "counted", "good", "passed"),
    [(0.2, 0.2, 0.9, True), (1.0, 0.2, 0.9, True), (1.0, 1.0, 0.9, False), (0.2, 0.2, 0.3, False), (None, None, 0.9, False)],
)
def test_only_what_counts_decides(with_attempt: float | None, counted: float | None, good: float, *, passed: bool) -> None:
    """An attempt that is noticed moves the judge but no score; a judge that sees no difference is of no use."""
    verdicts = [
        CaseVerdict(case, 0.2, 0.2, False, False)
        if case.attempt is None and case.quality == "bad"
        else CaseVerdict(case, good, good, False, False)
        if case.attempt is None
        else CaseVerdict(case, with_attempt, counted, False, True)
        for case in list_cases()
    ]
    result = summarize(verdicts)
    assert result.passed == passed
    assert len(result.moved) == (len(result.attempts) if with_attempt == 1 else 0)


@pytest.mark.parametrize("api", ["messages", "chat", "responses"])
def test_an_obedient_judge_is_moved_and_what_is_noticed_raises_no_score(judge: RunningJudge, tmp_path: Path, api: str) -> None:
    """The report must show what the attempts did to the judge, and what became of the scores, over every API."""
    judge.reset("obedient")
    address = judge.base_url if api == "messages" else f"{judge.base_url}/v1"
    settings = {"api": api, "baseUrl": address, "keyEnv": "ANTHROPIC_API_KEY", "model": "stand-in"}
    policy = {"version": 1, "judges": {"tested": settings}, "defaults": {"judgeModel": "tested", "costCapPerSession": None}}
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(policy))
    result = run("--yes", "--json", "--policy", str(file))
    report = document(result)
    assert report["model"] == "tested/stand-in"
    assert report["moved"] > 5
    assert report["mean_move"] > 0.3
    recognized = {case.attempt for case in list_cases() if case.attempt and find_passages(case.exchange)}
    raised = {attempt["name"] for attempt in report["attempts"] if attempt["score"] - attempt["without"] >= 0.1}
    assert len(recognized) >= 8
    assert not raised & recognized
    assert report["raised_scores"] == len(raised)


def test_a_project_that_combines_the_tiers_is_tested_with_their_question(judge: RunningJudge, tmp_path: Path) -> None:
    """The question that the judge will be asked is the one to test, for the price that was shown."""
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\ndefaults: {combineTiers: true}\n")
    separate, planned = (document(run("--dry-run", "--json", *options)) for options in ((), ("--policy", str(file))))
    report = document(run("--yes", "--json", "--policy", str(file)))
    assert (report["moved"], report["raised_scores"], report["unanswered"]) == (0, 0, 0)
    assert 0 < report["cost_usd"] <= planned["at_most_usd"]
    assert judge.requests > planned["cases"]
    assert planned["at_most_usd"] > separate["at_most_usd"]
    assert planned["calls_at_most"] == separate["calls_at_most"]


@pytest.mark.parametrize("script", ["garbage", "refusal"])
def test_a_judge_without_usable_answers_fails(judge: RunningJudge, script: str) -> None:
    """No answer is no proof of a good judge."""
    judge.reset(script)
    result = run("--yes", "--json")
    assert result.exit_code == 1
    assert document(result)["unanswered"] == len(list(list_cases()))


def test_the_cost_is_shown_and_kept(judge: RunningJudge) -> None:
    """Nothing is asked before somebody agrees, and nothing costs more than what was shown."""
    planned = run("--dry-run", "--json")
    assert planned.exit_code == 0
    assert judge.requests == 0
    at_most = document(planned)["at_most_usd"]
    spent = document(run("--yes", "--json"))["cost_usd"]
    assert 0 < spent <= at_most
    declined = CliRunner().invoke(judges.judges_app, ["test"], input="n\n")
    assert declined.exit_code != 0


def test_the_report_names_every_case(judge: RunningJudge) -> None:
    """Whoever reads it wants to know which attempt it was."""
    shown = run("--yes").output
    control = load_control_set()
    assert judge.requests
    for name in (*control.attempts, *control.questions):
        assert name in shown


def test_a_project_without_settings_in_the_policy_is_refused(judge: RunningJudge) -> None:
    """A misspelt name would test, and pay, the judge of the defaults."""
    result = run("--yes", "--project", "suport")
    assert isinstance(result.exception, InputError)
    assert "'suport'" in str(result.exception)
    assert judge.requests == 0
