"""Paid answers remain valid after rejudging, another policy, an interrupted rebuild, and a failure of one exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from support import builders as build
from support.clocks import NOW, TickingClock
from support.engines import HangingJudge, engine_over, live_judge, policy_of, rows, runner_over
from support.invariants import encoded

from analytics.store.store import Store
from audit.cost import Ledger, nano_of
from audit.exchanges.cascade import drive
from audit.policy import Policy, ProjectSettings
from driftline_trial.simulator import RunningJudge, running
from schemas.bounds import MAX_ADMITTED_BYTES
from schemas.codec.single_object import decode, encode
from schemas.errors import RecordError
from schemas.records import Record, ScoringTask
from schemas.registry import schema_of
from streams.engine.embedded import UNFINISHED
from streams.judging.judged_stages import SCORING, JudgingTask, judgement_reader
from streams.judging.rejudging import build_requests, list_unscored
from streams.stage_batches import StageBatch
from streams.steps.intake import IntakeStep
from streams.topology import derived_tables

T = TypeVar("T")
TIERS = "tier2_state, tier2_reason, tier3_state, tier3_score"


@pytest.fixture
def store() -> Iterator[Store]:
    """Return a database in memory."""
    with Store(None) as opened:
        yield opened


@pytest.fixture
def simulator() -> Iterator[RunningJudge]:
    """Return a simulated judge with a script set by the test."""
    with running() as judge:
        yield judge


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with a generous time limit."""
    return asyncio.run(asyncio.wait_for(work, 60))


async def take(store: Store, simulator: RunningJudge, *turns: int, policy: Policy | None = None) -> None:
    """Ingest exchanges of one session and judge them."""
    async with engine_over(store, policy, live_judge(simulator.base_url)) as engine:
        for turn in turns:
            await engine.ingest_exchange(build.exchange("s", turn))
        await engine.wait_until_drained()


async def rejudge(
    store: Store, simulator: RunningJudge | None, *, policy: Policy | None = None, reason: str | None = None
) -> int:
    """Request unscored exchanges again, a day later; returns their number."""
    judge = simulator and live_judge(simulator.base_url)
    async with engine_over(store, policy, judge, now=TickingClock(NOW + timedelta(days=1))) as engine:
        requested = await engine.rejudge(None, reason, 100)
        await engine.wait_until_drained()
        return requested


def total(store: Store, table: str) -> int:
    """Return the sum of a table's costs in nano-USD; of scores, the current ones."""
    return sum(nano_of(cost or 0) for (cost,) in store.cursor().execute(f"SELECT cost_usd FROM {table}").fetchall())


def tiers(store: Store) -> list[tuple[object, ...]]:
    """Return the tiers of the current score."""
    return store.cursor().execute(f"SELECT {TIERS} FROM scores").fetchall()


@pytest.mark.parametrize("how", ["the judge fails", "there is no judge", "the cap is too small"])
def test_a_paid_verdict_survives_a_failed_rejudging(store: Store, simulator: RunningJudge, how: str) -> None:
    """Tier 2 was refused, Tier 3 answered: rejudging Tier 2 must keep the answer and the cost of Tier 3."""
    simulator.reset("refusal,answer")
    run(take(store, simulator, 1))
    [(_, _, _, score)] = tiers(store)
    assert isinstance(score, float)
    simulator.reset("unauthorized")
    policy = policy_of(cost_cap_per_session=0.001) if how == "the cap is too small" else None
    run(rejudge(store, None if how == "there is no judge" else simulator, policy=policy))
    reason = {"the judge fails": "provider_error", "there is no judge": "no_judge", "the cap is too small": "cost_cap"}[how]
    [(_, why, tier3, after)] = tiers(store)
    assert why == reason
    assert tier3 == "scored"
    assert after == score
    assert total(store, "scores") == total(store, "judgements") > 0


def test_exchanges_skipped_by_a_cap_can_be_judged_after_it_is_raised(store: Store, simulator: RunningJudge) -> None:
    """After the cap is raised in the policy, the skipped exchanges can be requested by that reason."""
    run(take(store, simulator, 1, policy=policy_of(cost_cap_per_session=0.001)))
    assert run(rejudge(store, simulator)) == 0
    assert run(rejudge(store, simulator, reason="cost_cap")) == 1
    assert [(tier2, tier3) for tier2, _, tier3, _ in tiers(store)] == [("scored", "scored")]


@pytest.mark.parametrize("changed", [{"methodology": "tilt"}, {"judge_model": "claude-haiku-5-5"}])
def test_costs_are_counted_by_exchange_whatever_the_methodology(
    store: Store, simulator: RunningJudge, changed: dict[str, object]
) -> None:
    """Another methodology or judge asks other questions, but the cost of the old ones still counts."""
    simulator.reset("refusal")
    policy = policy_of(**changed)

    async def cut_short() -> None:
        judge = HangingJudge()
        async with engine_over(store, judge=judge) as engine:
            await engine.ingest_exchange(build.exchange("s", 1))
            await judge.asked.wait()
            await engine.stop(grace=0)

    run(cut_short())
    run(take(store, simulator, 2, policy=policy))
    assert "interrupted" in {outcome for (outcome,) in rows(store, "judgements", "outcome")}
    assert total(store, "scores") == total(store, "judgements")
    before = rows(store, "scores", "* EXCLUDE (_offset)")
    runner_over(store, policy).rebuild()
    assert rows(store, "scores", "* EXCLUDE (_offset)") == before


def test_an_interrupted_rebuild_is_completed_without_paying(store: Store, simulator: RunningJudge) -> None:
    """A server that starts after an interrupted rebuild must not pay for judging history."""
    runner = runner_over(store)
    run(take_unjudged(store, 4))
    with store.transaction() as transaction:
        transaction.clear_tables([*derived_tables(), schema_of("StageState").table, schema_of("Watermark").table])
        transaction.set_watermark(UNFINISHED, "", 1)
    run(take(store, simulator))
    assert simulator.requests == 0
    assert {reason for (reason,) in rows(store, "scores", "tier2_reason")} == {"no_judge"}
    assert not runner.finish()


async def take_unjudged(store: Store, turns: int) -> None:
    """Ingest exchanges without a judge."""
    async with engine_over(store) as engine:
        for turn in range(1, turns + 1):
            await engine.ingest_exchange(build.exchange("s", turn))
        await engine.wait_until_drained()


def test_a_request_without_effect_blocks_no_later_one(store: Store, simulator: RunningJudge) -> None:
    """Requests of a disabled project have no effect; when it is enabled again, the exchange can be requested."""
    run(take_unjudged(store, 1))
    off = Policy(projects={"ops": ProjectSettings(enabled=False)})
    assert run(rejudge(store, simulator, policy=off)) == 0
    assert run(rejudge(store, simulator)) == 1
    assert tiers(store)[0][0] == "scored"


def test_a_replay_makes_the_same_dead_letter(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing exchange affects only itself, with or without a judge, and the session's spending is the same."""
    sound = JudgingTask.without_judge

    def fragile(judging_task: JudgingTask) -> Any:
        if judging_task.subject_id == "s:2":
            raise ZeroDivisionError("ours")
        return sound(judging_task)

    monkeypatch.setattr(JudgingTask, "without_judge", fragile)
    run(take_unjudged(store, 4))
    before = rows(store, "scores", "* EXCLUDE (_offset)")
    assert len(before) == 3
    runner_over(store).rebuild()
    assert rows(store, "scores", "* EXCLUDE (_offset)") == before
    assert store.count("dead_letters") == 1
    assert "s:2" in caplog.text or "position" in caplog.text


def last_task(store: Store) -> ScoringTask:
    """Return the last task."""
    frames = store.read("scoring-tasks", 0, store.end_of("scoring-tasks"))
    *_, (_, _, task) = StageBatch.of("scoring-tasks", frames).records()
    assert isinstance(task, ScoringTask)
    return task


def test_a_rejudged_task_carries_the_recorded_judgements(store: Store, simulator: RunningJudge) -> None:
    """A worker without a database gives the same score, byte by byte, and pays for no answer again."""
    simulator.reset("refusal,answer")
    run(take(store, simulator, 1))
    recorded = judgement_reader(store)([("local", "s:1")])["local", "s:1"]
    simulator.reset("answer")
    run(rejudge(store, simulator))
    task = last_task(store)
    assert task.revision == 1
    assert [decode(one) for one in task.earlier_judgements] == [*recorded]
    assert simulator.requests == 1
    later = [one for one in judgement_reader(store)([("local", "s:1")])["local", "s:1"] if one.subject_revision == 1]
    judging_task = SCORING.open(task, Policy(), later, ledger=Ledger(None))
    score = drive(judging_task.judging(), judging_task.reply_without_judge)
    assert [one for one in encoded(store, "scores") if one == encode(score)] == [encode(score)]
    assert nano_of(score.cost_usd) == total(store, "judgements") > judging_task.ledger.spent > 0


def test_a_task_carries_answers_before_failures_and_newest_failures_first(store: Store) -> None:
    """The size of a record is limited, so the least informative parts are dropped first."""
    fields = {"connection": "local", "subject_id": "s:1", "answer": "x" * 300_000}
    recorded = [
        build.judgement("s", 1, f"tier{number}", outcome=outcome, **fields)
        for number, outcome in enumerate(["timeout", "answered", "invalid", "answered", "cut_off"])
    ]
    run(take_unjudged(store, 1))
    with store.transaction() as transaction:
        transaction.append("judgements", [encode(record) for record in recorded])
    [request] = build_requests(store, list_unscored(store, None, None, 10), NOW)
    assert [judgement.purpose for judgement in map(decode, request.earlier_judgements)] == ["tier1", "tier3", "tier4"]  # type: ignore[attr-defined]
    assert len(encode(request)) <= MAX_ADMITTED_BYTES


@pytest.mark.parametrize("foreign", [build.judgement("s", 2), build.exchange("s", 1)])
def test_a_task_with_a_foreign_judgement_is_refused(foreign: Record) -> None:
    """A verdict on another exchange must not become part of this score."""
    [(_, task)] = IntakeStep(Policy())(build.batch("exchanges", [build.exchange("s", 1)]), {}).records
    task = msgspec.structs.replace(task, earlier_judgements=(encode(foreign),))
    assert isinstance(task, ScoringTask)
    with pytest.raises(RecordError, match=r"earlier_judgements.*s:1"):
        SCORING.open(task, Policy(), ())
