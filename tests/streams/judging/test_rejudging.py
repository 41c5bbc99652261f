"""Paid answers remain valid after rejudging, a policy change, an interrupted rebuild, and a failure of one exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from support import builders
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
TIME_LIMIT = 60.0
"""Seconds that a coroutine of a test may take."""
SESSION = "s"
SUBJECT = ("local", "s:1")
"""Connection and id of the first exchange of the session."""


@pytest.fixture
def store() -> Iterator[Store]:
    """A database in memory."""
    with Store(None) as in_memory_store:
        yield in_memory_store


@pytest.fixture
def simulator() -> Iterator[RunningJudge]:
    """A simulated judge; each test sets the script of its answers."""
    with running() as running_judge:
        yield running_judge


@dataclass(frozen=True)
class TierResults:
    """The judged tiers of a current score."""

    tier2_state: str
    tier2_reason: str | None
    tier3_state: str
    tier3_score: float | None


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result; fail after the time limit."""
    return asyncio.run(asyncio.wait_for(coroutine, TIME_LIMIT))


async def ingest_and_judge(
    store: Store, simulator: RunningJudge, turns: Sequence[int], *, policy: Policy | None = None
) -> None:
    """Ingest exchanges of one session and judge them."""
    async with engine_over(store, policy, live_judge(simulator.base_url)) as engine:
        for turn in turns:
            await engine.ingest_exchange(builders.exchange(SESSION, turn))
        await engine.wait_until_drained()


async def ingest_without_judge(store: Store, turns: Sequence[int]) -> None:
    """Ingest exchanges of one session into an engine without a judge."""
    async with engine_over(store) as engine:
        for turn in turns:
            await engine.ingest_exchange(builders.exchange(SESSION, turn))
        await engine.wait_until_drained()


async def interrupt_judging(store: Store, turn: int) -> None:
    """Ingest an exchange, and stop the engine while the judge has not yet answered."""
    judge = HangingJudge()
    async with engine_over(store, judge=judge) as engine:
        await engine.ingest_exchange(builders.exchange(SESSION, turn))
        await judge.asked.wait()
        await engine.stop(grace=0)


async def rejudge(
    store: Store, simulator: RunningJudge | None, *, policy: Policy | None = None, reason: str | None = None
) -> int:
    """Request the unscored exchanges again, a day later, and return how many were requested."""
    judge = None if simulator is None else live_judge(simulator.base_url)
    async with engine_over(store, policy, judge, now=TickingClock(NOW + timedelta(days=1))) as engine:
        requested = await engine.rejudge(None, reason, 100)
        await engine.wait_until_drained()
        return requested


def sum_costs(store: Store, table: str) -> int:
    """Return the sum of a table's costs in nano-USD. The table `scores` holds current scores only."""
    return sum(nano_of(cost or 0) for (cost,) in store.cursor().execute(f"SELECT cost_usd FROM {table}").fetchall())


def read_tiers(store: Store) -> TierResults:
    """Return the judged tiers of the only current score."""
    [row] = store.cursor().execute("SELECT tier2_state, tier2_reason, tier3_state, tier3_score FROM scores").fetchall()
    return TierResults(*row)


def read_scores(store: Store) -> list[tuple[object, ...]]:
    """Return the current scores without their offsets, which a rebuild may change."""
    return rows(store, "scores", "* EXCLUDE (_offset)")


def check_failed_rejudging_keeps_tier3(
    store: Store, simulator: RunningJudge, *, has_judge: bool = True, policy: Policy | None = None, reason: str
) -> None:
    """Have Tier 2 refused and Tier 3 answered, rejudge without an answer, and check that Tier 3 and all costs are kept.

    `reason` is the expected reason of Tier 2.
    """
    simulator.reset("refusal,answer")
    run(ingest_and_judge(store, simulator, [1]))
    tiers_before = read_tiers(store)
    assert tiers_before.tier3_score is not None

    simulator.reset("unauthorized")
    run(rejudge(store, simulator if has_judge else None, policy=policy))

    tiers_after = read_tiers(store)
    assert tiers_after.tier2_reason == reason
    assert tiers_after.tier3_state == "scored"
    assert tiers_after.tier3_score == tiers_before.tier3_score
    assert sum_costs(store, "scores") == sum_costs(store, "judgements")
    assert sum_costs(store, "judgements") > 0


def test_a_paid_verdict_survives_a_provider_error(store: Store, simulator: RunningJudge) -> None:
    """Rejudging Tier 2 must keep the answer and the cost of Tier 3."""
    check_failed_rejudging_keeps_tier3(store, simulator, reason="provider_error")


def test_a_paid_verdict_survives_rejudging_without_a_judge(store: Store, simulator: RunningJudge) -> None:
    """A server whose API key was removed must not discard what was paid for."""
    check_failed_rejudging_keeps_tier3(store, simulator, has_judge=False, reason="no_judge")


def test_a_paid_verdict_survives_a_cap_that_is_too_small(store: Store, simulator: RunningJudge) -> None:
    """Lowering the cap of a session limits later calls, not earlier answers."""
    check_failed_rejudging_keeps_tier3(store, simulator, policy=policy_of(cost_cap_per_session=0.001), reason="cost_cap")


def test_exchanges_skipped_by_a_cap_can_be_judged_after_it_is_raised(store: Store, simulator: RunningJudge) -> None:
    """They are requested only if the user names the reason."""
    run(ingest_and_judge(store, simulator, [1], policy=policy_of(cost_cap_per_session=0.001)))
    requested_by_default = run(rejudge(store, simulator))
    requested_by_reason = run(rejudge(store, simulator, reason="cost_cap"))
    assert requested_by_default == 0
    assert requested_by_reason == 1
    tiers = read_tiers(store)
    assert tiers.tier2_state == "scored"
    assert tiers.tier3_state == "scored"


@pytest.mark.parametrize("changed_setting", [{"methodology": "tilt"}, {"judge_model": "claude-haiku-5-5"}], ids=str)
def test_scores_include_the_costs_of_an_earlier_policy(
    store: Store, simulator: RunningJudge, changed_setting: dict[str, object]
) -> None:
    """Another methodology or judge asks other questions, but the money for the old ones is spent."""
    simulator.reset("refusal")
    policy = policy_of(**changed_setting)
    run(interrupt_judging(store, 1))
    run(ingest_and_judge(store, simulator, [2], policy=policy))
    assert ("interrupted",) in rows(store, "judgements", "outcome")
    assert sum_costs(store, "scores") == sum_costs(store, "judgements")

    scores_before = read_scores(store)
    runner_over(store, policy).rebuild()
    assert read_scores(store) == scores_before


def test_an_interrupted_rebuild_is_completed_without_paying(store: Store, simulator: RunningJudge) -> None:
    """A server that starts after an interrupted rebuild must not pay for judging history."""
    runner = runner_over(store)
    run(ingest_without_judge(store, range(1, 5)))
    with store.transaction() as transaction:
        transaction.clear_tables([*derived_tables(), schema_of("StageState").table, schema_of("Watermark").table])
        transaction.set_watermark(UNFINISHED, "", 1)
    run(ingest_and_judge(store, simulator, []))
    assert simulator.requests == 0
    assert rows(store, "scores", "tier2_reason") == [("no_judge",)] * 4
    has_unfinished_rebuild = runner.finish()
    assert not has_unfinished_rebuild


def test_a_request_without_effect_blocks_no_later_one(store: Store, simulator: RunningJudge) -> None:
    """Requests of a disabled project have no effect; when it is enabled again, the exchange can be requested."""
    run(ingest_without_judge(store, [1]))
    disabled = Policy(projects={"ops": ProjectSettings(enabled=False)})
    requested_while_disabled = run(rejudge(store, simulator, policy=disabled))
    requested_while_enabled = run(rejudge(store, simulator))
    assert requested_while_disabled == 0
    assert requested_while_enabled == 1
    assert read_tiers(store).tier2_state == "scored"


def test_a_rebuild_repeats_a_failure_without_changing_other_scores(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing exchange affects only itself, and a rebuild must not report it as another dead letter."""
    judge_without_failing = JudgingTask.without_judge

    def fail_second_exchange(judging_task: JudgingTask) -> Any:
        if judging_task.subject_id == "s:2":
            raise ZeroDivisionError("broken detector")
        return judge_without_failing(judging_task)

    monkeypatch.setattr(JudgingTask, "without_judge", fail_second_exchange)
    run(ingest_without_judge(store, range(1, 5)))
    scores_before = read_scores(store)
    assert len(scores_before) == 3
    runner_over(store).rebuild()
    assert read_scores(store) == scores_before
    assert store.count("dead_letters") == 1
    assert "offset 1 of scoring-tasks" in caplog.text


def read_last_task(store: Store) -> ScoringTask:
    """Return the newest record of the topic `scoring-tasks`."""
    frames = store.read("scoring-tasks", 0, store.end_of("scoring-tasks"))
    _, _, task = list(StageBatch.of("scoring-tasks", frames).records())[-1]
    assert isinstance(task, ScoringTask)
    return task


def test_a_rejudged_task_carries_the_recorded_judgements(store: Store, simulator: RunningJudge) -> None:
    """A worker has no database, and must not pay for an answer again."""
    simulator.reset("refusal,answer")
    run(ingest_and_judge(store, simulator, [1]))
    first_judgements = judgement_reader(store)([SUBJECT])[SUBJECT]
    simulator.reset("answer")
    run(rejudge(store, simulator))
    task = read_last_task(store)
    assert task.revision == 1
    assert [decode(judgement) for judgement in task.earlier_judgements] == [*first_judgements]
    assert simulator.requests == 1


def test_a_rejudged_score_can_be_recomputed_from_its_task(store: Store, simulator: RunningJudge) -> None:
    """A worker's score equals that of the engine, byte by byte."""
    simulator.reset("refusal,answer")
    run(ingest_and_judge(store, simulator, [1]))
    simulator.reset("answer")
    run(rejudge(store, simulator))
    judgements = judgement_reader(store)([SUBJECT])[SUBJECT]
    new_judgements = [judgement for judgement in judgements if judgement.subject_revision == 1]
    judging_task = SCORING.open(read_last_task(store), Policy(), new_judgements, ledger=Ledger(None))
    score = drive(judging_task.judging(), judging_task.reply_without_judge)
    assert encoded(store, "scores").count(encode(score)) == 1
    assert nano_of(score.cost_usd) == sum_costs(store, "judgements")
    assert 0 < judging_task.ledger.spent < sum_costs(store, "judgements")


def test_a_task_carries_answers_before_failures_and_newest_failures_first(store: Store) -> None:
    """The size of a record is limited, so the least informative judgements are dropped."""
    outcomes = {"tier0": "timeout", "tier1": "answered", "tier2": "invalid", "tier3": "answered", "tier4": "cut_off"}
    connection, exchange_id = SUBJECT
    fields = {"connection": connection, "subject_id": exchange_id, "answer": "x" * 300_000}
    judgements = [builders.judgement(SESSION, 1, purpose, outcome=outcome, **fields) for purpose, outcome in outcomes.items()]
    run(ingest_without_judge(store, [1]))
    with store.transaction() as transaction:
        transaction.append("judgements", [encode(judgement) for judgement in judgements])
    [request] = build_requests(store, list_unscored(store, None, None, 10), NOW)
    carried = [decode(judgement) for judgement in request.earlier_judgements]
    assert carried == [judgements[1], judgements[3], judgements[4]]
    assert len(encode(request)) <= MAX_ADMITTED_BYTES


@pytest.mark.parametrize("foreign", [builders.judgement("s", 2), builders.exchange("s", 1)])
def test_a_task_with_a_foreign_judgement_is_refused(foreign: Record) -> None:
    """A verdict on another exchange must not become part of this score."""
    [(_, task)] = IntakeStep(Policy())(builders.batch("exchanges", [builders.exchange("s", 1)]), {}).records
    task = msgspec.structs.replace(task, earlier_judgements=(encode(foreign),))
    assert isinstance(task, ScoringTask)
    with pytest.raises(RecordError, match=r"earlier_judgements.*s:1"):
        SCORING.open(task, Policy(), ())
