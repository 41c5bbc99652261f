"""A replay with a judge pays only for questions without an answer, and for nothing twice."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import builders as build
from support.engines import live_judge
from support.replays import Command, create_scored_database, read_scores, replay_path, run_replay

from analytics.store.store import Store
from audit.cost import nano_of
from driftline_trial.simulator import RunningJudge, running
from schemas.codec.single_object import decode
from schemas.records import Judgement
from service.cli.exit_codes import ExitCode
from streams.judges.batch_judge import BatchLimits
from streams.judges.protocol import Verdict
from streams.judging.call_budget import DurableBudget

TURNS = 8


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch, driftline: Command) -> Iterator[RunningJudge]:
    """Return a simulated judge that is set in the environment."""
    assert driftline
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        yield judge


@pytest.fixture
def judged(tmp_path: Path, simulator: RunningJudge) -> Path:
    """Return three sessions that the simulated judge scored live."""
    exchanges: list[Any] = [
        build.exchange(session, turn, project="ops" if session != "c" else "shop", agent_thinking="The log says so.")
        for session in "abc"
        for turn in range(1, TURNS + 1)
    ]

    async def judge() -> Path:
        return await asyncio.to_thread(
            create_scored_database, tmp_path / "driftline.duckdb", live_judge(simulator.base_url), exchanges
        )

    path = asyncio.run(judge())
    simulator.reset("answer")
    return path


def policy_file(folder: Path, text: str) -> str:
    """Return a policy file with this text."""
    path = folder / "policy.yaml"
    path.write_text(f"version: 1\n{text}\n")
    return str(path)


def test_with_the_same_policy_every_question_is_answered(driftline: Command, judged: Path, simulator: RunningJudge) -> None:
    """Recorded answers cover every question, so a live judge is not called and the scores are the same."""
    document = run_replay(driftline, "--judge", "live", "--yes", "--workers", "1")
    assert simulator.requests == 0
    assert document["calls"] == {}
    assert document["cost_usd"] == 0.0
    assert document["equal"] is True
    assert judged.exists()


def test_only_questions_changed_by_a_policy_are_paid_for(
    driftline: Command, judged: Path, simulator: RunningJudge, tmp_path: Path
) -> None:
    """Only the project with another model has new questions."""
    policy = policy_file(tmp_path, "projects: {shop: {judgeModel: claude-haiku-5-5}}")
    arguments = ("--judge", "live", "--policy", policy, "--label", "newer", "--workers", "1")
    code, out, _ = driftline("replay", *arguments, "--dry-run", "--json")
    expected = json.loads(out)
    assert code == 0
    assert simulator.requests == 0
    assert 2 * TURNS <= expected["calls"] <= 3 * TURNS
    assert not replay_path(judged, "newer").exists()
    assert not replay_path(judged, "newer").with_suffix(".parts").exists()
    document = run_replay(driftline, *arguments, "--yes")
    assert simulator.requests == sum(document["calls"].values())
    assert expected["calls"] <= simulator.requests <= expected["calls"] + expected["tier3_open"]
    assert 0 < document["cost_usd"] <= expected["at_most_usd"]
    assert not document["equal"]
    other_scores = read_scores(judged, lambda score: score.project != "shop")
    replayed = read_scores(replay_path(judged, "newer"))
    assert len(replayed) == len(other_scores) + TURNS


@pytest.mark.parametrize("methodology", ["tilt", "prawduct"])
def test_unused_live_costs_are_not_charged_under_another_methodology(
    driftline: Command, judged: Path, simulator: RunningJudge, tmp_path: Path, methodology: str
) -> None:
    """Unscored exchanges must not carry the costs of the live scores, or a comparison would show a difference."""
    policy = policy_file(tmp_path, f"projects: {{ops: {{methodology: {methodology}}}}}")
    document = run_replay(driftline, "--judge", "recorded", "--policy", policy, "--label", "other", "--workers", "1")
    assert simulator.requests == 0
    assert document["dispositions"]["unscored"] > TURNS
    with Store(judged) as store:
        rows = store.cursor().execute("SELECT judgement_id, cost_usd FROM judgements").fetchall()
    costs = {judgement_id: nano_of(cost) for judgement_id, cost in rows}
    replayed = [decode(score) for score in read_scores(replay_path(judged, "other"))]
    assert [sum(costs[judgement_id] for judgement_id in score.judgement_ids) for score in replayed] == [  # type: ignore[attr-defined]
        nano_of(score.cost_usd or 0)  # type: ignore[attr-defined]
        for score in replayed
    ]
    assert {bool(score.cost_usd) for score in replayed} == {True, False}  # type: ignore[attr-defined]
    code, out, err = driftline("compare", "live", "other", "--json")
    assert code == 0, err
    assert [row["changed"] for row in json.loads(out)["measures"] if row["tier"] == "cost"] == [0, 0]


def test_nothing_is_paid_for_without_consent(
    driftline: Command, judged: Path, simulator: RunningJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal there is no consent."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    policy = policy_file(tmp_path, "defaults: {judgeModel: claude-haiku-5-5}")
    code, _, err = driftline("replay", "--judge", "live", "--policy", policy, "--workers", "1")
    assert code != 0
    assert "Call the judge?" in err
    assert "USD at most" in err
    assert simulator.requests == 0
    assert not replay_path(judged, "newer").exists()


def test_a_session_never_exceeds_its_cap(driftline: Command, judged: Path, simulator: RunningJudge, tmp_path: Path) -> None:
    """Live costs of other questions do not reduce the replay's cap, and the cap holds."""
    policy = policy_file(tmp_path, "defaults: {methodology: tilt, costCapPerSession: 0.03}")
    document = run_replay(driftline, "--judge", "live", "--policy", policy, "--yes", "--label", "capped", "--workers", "1")
    assert "skipped_cost_cap" in document["dispositions"]
    # A question for which the cap left no room may be recorded without a call.
    assert simulator.requests == sum(document["calls"].values()) - document["calls"].get("cost_cap", 0) > 0
    spent: Counter[str] = Counter()
    with Store(replay_path(judged, "capped")) as store:
        for session, cost in store.cursor().execute("SELECT session_id, cost_usd FROM judgements").fetchall():
            spent[session] += nano_of(cost)
    assert nano_of(0.01) < max(spent.values()) <= nano_of(0.03)


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "openai/gpt-5.4-mini", "house/gpt-5.4-mini"])
def test_batches_give_the_same_scores_at_half_the_price(  # noqa: PLR0917 - fixtures
    model: str, driftline: Command, judged: Path, simulator: RunningJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same questions are asked over each API, and the deterministic judge gives the same answers."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{simulator.base_url}/v1")
    monkeypatch.setattr("streams.judges.batch_judge.BatchLimits", lambda: BatchLimits(first_poll=0.02, max_poll=0.05))
    house = f"judges: {{house: {{api: responses, baseUrl: '{simulator.base_url}/v1', keyEnv: OPENAI_API_KEY}}}}"
    policy = policy_file(tmp_path, f"{house}\ndefaults: {{judgeModel: {model}, costCapPerSession: null}}")
    common = ("--policy", policy, "--yes", "--workers", "1")
    live = run_replay(driftline, *common, "--judge", "live", "--label", "live-again")
    live_requests = simulator.requests
    simulator.reset("answer")
    batch = run_replay(driftline, *common, "--judge", "batch", "--label", "in-batches")
    assert sum(live["calls"].values()) == live_requests
    assert sum(batch["calls"].values()) == live_requests
    assert live["dispositions"] == batch["dispositions"]
    assert batch["scores"] == len(read_scores(judged))
    assert batch["cost_usd"] == pytest.approx(live["cost_usd"] / 2, rel=0.2)


def test_a_judge_without_batches_is_refused_before_anything_is_asked(
    driftline: Command, judged: Path, simulator: RunningJudge, tmp_path: Path
) -> None:
    """Its server would answer 404 after the costs were confirmed."""
    house = f"judges: {{house: {{baseUrl: '{simulator.base_url}/v1', batches: false, price: {{input: 0, output: 0}}}}}}"
    policy = policy_file(tmp_path, f"{house}\ndefaults: {{judgeModel: house/qwen}}")
    code, _, err = driftline("replay", "--judge", "batch", "--policy", policy, "--yes", "--workers", "1", "--label", "no")
    assert code == 2
    assert "house/qwen has no batches" in err
    assert simulator.requests == simulator.batch_calls == 0
    assert judged.exists()


def test_an_interrupted_batch_is_resumed_and_not_asked_again(
    driftline: Command, judged: Path, simulator: RunningJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may take a day, and its answers are paid for."""
    monkeypatch.setattr("streams.judges.batch_judge.BatchLimits", lambda: BatchLimits(first_poll=0.02, max_poll=0.05))
    policy = policy_file(tmp_path, "defaults: {judgeModel: claude-haiku-5-5}")
    arguments = ("--policy", policy, "--yes", "--workers", "1", "--judge", "batch", "--label", "cut")
    record_judgement = DurableBudget.record_judgement
    verdicts = []

    async def interrupt_fifth(self: DurableBudget, verdict: Verdict) -> Judgement:
        verdicts.append(verdict)
        if len(verdicts) == 5:
            raise KeyboardInterrupt
        return await record_judgement(self, verdict)

    monkeypatch.setattr(DurableBudget, "record_judgement", interrupt_fifth)
    code, _, err = driftline("replay", *arguments)
    assert code == ExitCode.INTERRUPTED, err
    assert "run the same command to continue" in err
    monkeypatch.setattr(DurableBudget, "record_judgement", record_judgement)
    document = run_replay(driftline, *arguments)
    assert document["calls"] == {"answered": simulator.requests}
    assert document["scores"] == len(read_scores(judged))


def test_without_a_judge_the_error_says_what_to_set(driftline: Command, database: Path) -> None:
    """The error says what to set, before anything is read or written."""
    code, _, err = driftline("replay", "--judge", "live", "--yes")
    assert code == 2
    assert "there is no judge" in err
    assert "ANTHROPIC_API_KEY" in err
    assert not database.with_name(f"{database.name}.replays").exists()
