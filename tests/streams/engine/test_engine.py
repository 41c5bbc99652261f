"""The engine: records are durable and decided on return, scored in the background, and reproducible from the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support import builders as build
from support.clocks import NOW, TickingClock
from support.engines import HangingJudge, MoodyJudge, engine_over, live_judge, policy_of, rows, runner_over

from analytics.store.store import Store
from audit.cost import Ledger, nano_of
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from driftline_trial.simulator.answers import simulated_answer
from schemas.codec.single_object import encode
from schemas.errors import BoundsError, BusyError
from schemas.records import Exchange, Judgement, Record
from streams.engine import engine as engine_module
from streams.engine.engine import Engine
from streams.engine.record_intake import EngineLimits
from streams.judges.protocol import CallBudget, Judge, Verdict
from streams.judging import judging_partition
from streams.judging.judged_stages import SCORING, JudgingTask
from streams.judging.judging_partition import TaskJudge
from streams.log.admission import EncodedRecords
from streams.stage_batches import StageBatch
from streams.steps.intake import IntakeStep

T = TypeVar("T")
SCORE_COLUMNS = "* EXCLUDE (_offset)"


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Return a database in memory, or one in a file with a write-ahead log."""
    with Store(None if request.param == "memory" else tmp_path / "store.duckdb") as opened:
        yield opened


@pytest.fixture(scope="module")
def simulator() -> Iterator[RunningJudge]:
    """Return a simulated judge that answers."""
    with running() as judge:
        yield judge


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with a generous time limit."""
    return asyncio.run(asyncio.wait_for(work, 60))


def answer(question: Question) -> str:
    """Return the simulated judge's answer without a server."""
    return canonical_json(
        simulated_answer(question.schema, {material.name: material.literal for material in question.materials})
    )


def dialogue(session: str, turns: int, **fields: object) -> list[Exchange]:
    """Return a session's exchanges, every third with thinking."""
    return [
        build.exchange(
            session, turn, f"The backup of night {turn} is healthy.", agent_thinking=None if turn % 3 else "It is.", **fields
        )
        for turn in range(1, turns + 1)
    ]


async def take_all(engine: Engine, sessions: list[list[Exchange]]) -> None:
    """Deliver sessions concurrently, the exchanges of each in order, and wait for the scores."""

    async def deliver(session: list[Exchange]) -> None:
        for exchange in session:
            await engine.ingest_exchange(exchange)

    await asyncio.gather(*(deliver(session) for session in sessions))
    await engine.wait_until_drained()


def nano_sum(store: Store, table: str) -> int:
    """Return the sum of a table's costs in nano-USD; of scores, the current ones."""
    costs = store.cursor().execute(f"SELECT cost_usd FROM {table} WHERE cost_usd IS NOT NULL").fetchall()
    return sum(nano_of(cost) for (cost,) in costs)


def test_an_exchange_is_durable_and_decided_when_take_exchange_returns(store: Store) -> None:
    """The answer to the sender matches the log."""

    async def work() -> None:
        async with engine_over(store) as engine:
            result = await engine.ingest_exchange(build.exchange("s", 1, "I can't."))
            assert result.outcome == "written"
            assert result.sampled is True
            assert result.reason == "first_turns"
            assert result.tier1_flags == ("constraint_disclosure",)
            assert result.anomaly is True
            assert result.capped is False
            await engine.flush()
            assert store.count("exchanges") == 1
            assert store.count("scoring_tasks") == 1

    run(work())


def test_a_repetition_gets_the_first_outcome_and_other_content_is_a_conflict(store: Store) -> None:
    """A repeated webhook gets the same answer; a contradicting one gets a conflict."""

    async def work() -> None:
        async with engine_over(store, policy_of(sampling={"always_score_first": 0})) as engine:  # type: ignore[arg-type]
            exchange = build.exchange("s2", 1)
            first = await engine.ingest_exchange(exchange)
            repetition = await engine.ingest_exchange(exchange)
            other = await engine.ingest_exchange(build.exchange("s2", 1, content_digest="f" * 16))
            assert first.outcome == "written"
            assert repetition.outcome == "known"
            assert other.outcome == "conflict"
            assert first.sampled == repetition.sampled
            assert first.reason == repetition.reason
            assert first.tier1_score == repetition.tier1_score
            assert repetition.sampled is False
            assert repetition.reason == "sampling_skip"
            assert store.count("exchanges") == 1

    run(work())


def test_each_of_a_hundred_concurrent_senders_gets_its_own_outcome(store: Store) -> None:
    """A group commit must give each sender its own outcome."""

    async def work() -> None:
        async with engine_over(store) as engine:
            exchanges = [build.exchange(f"s{number}", 1, "I can't." if number % 2 else "Done.") for number in range(100)]
            repeated = [*exchanges, *exchanges[:20]]
            results = await asyncio.gather(*map(engine.ingest_exchange, repeated))
            assert [bool(number % 2) for number in [*range(100), *range(20)]] == [result.anomaly for result in results]
            assert [result.outcome for result in results].count("written") == 100
            await engine.flush()
            assert store.count("exchanges") == 100

    run(work())


def test_an_invalid_exchange_is_refused_and_not_stored(store: Store) -> None:
    """The error names the invalid field."""

    async def work() -> None:
        async with engine_over(store) as engine:
            with pytest.raises(BoundsError, match="Exchange"):
                await engine.ingest_exchange(build.exchange("s", 1, "x" * 995_000))
            with pytest.raises(BoundsError, match="occurred_at"):
                await engine.ingest_exchange(build.exchange("s", 1, occurred_at=NOW + timedelta(days=100 * 365)))
            assert store.count("exchanges") == 0

    run(work())


def test_a_full_queue_refuses_exchanges(store: Store) -> None:
    """A 503 is better than a queue that grows until the process dies."""

    async def work() -> None:
        async with engine_over(store, limits=EngineLimits(max_waiting=0)) as engine:
            with pytest.raises(BusyError):
                await engine.ingest_exchange(build.exchange("s", 1))
            assert not engine.state().ready

    run(work())


def test_without_a_judge_only_tier_1_is_scored(store: Store) -> None:
    """Without a key, a user gets Tier 1 and the reason why the other tiers are unscored."""

    async def work() -> None:
        async with engine_over(store) as engine:
            await take_all(engine, [dialogue("s", 3)])

    run(work())
    assert list(
        {
            (state, tier2, tier25 if tier25 != "no_thinking" else "no_judge", tier3)
            for state, tier2, tier25, tier3 in rows(store, "scores", "disposition, tier2_reason, tier2_5_reason, tier3_reason")
        }
    ) == [("unscored", "no_judge", "no_judge", "no_judge")]


def test_the_costs_of_the_scores_add_up_to_the_ledger(store: Store, simulator: RunningJudge) -> None:
    """The ledger's total equals the sum of the scores' costs, and no reservation remains."""

    async def work() -> None:
        async with engine_over(store, judge=live_judge(simulator.base_url)) as engine:
            await take_all(engine, [dialogue(f"s{number}", 9) for number in range(8)])
            assert engine.state().queues == {"commits": 0, "tasks": 0, "evaluations": 0, "sessions": 0}

    run(work())
    assert store.count("dead_letters") == 0
    assert {state for (state,) in rows(store, "scores", "disposition")} == {"scored", "sampling_skip"}
    assert nano_sum(store, "scores") == nano_sum(store, "judgements") > 0
    assert (
        store.cursor()
        .execute(
            "SELECT reservation_id FROM reservations WHERE reservation_id NOT IN (SELECT unnest(reservation_ids) FROM judgements)"
        )
        .fetchall()
        == []
    )
    assert set(rows(store, "judgements", "simulated")) == {(True,)}


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_from_recorded_topics_gives_the_same_bytes(store: Store, seed: int) -> None:
    """The topics alone give the same scores, without a judge, a clock or randomness."""
    policy = policy_of(cost_cap_per_session=0.06)

    async def work() -> None:
        async with engine_over(store, policy, MoodyJudge(seed, answer)) as engine:
            await take_all(engine, [dialogue(f"s{number}", 12) for number in range(4)])
            await engine.rejudge(None, None, 1000)
            await engine.wait_until_drained()

    run(work())
    before = rows(store, "scores", SCORE_COLUMNS)
    states = rows(store, "stage_state", "* EXCLUDE (_offset, next_position)")
    runner_over(store, policy).rebuild()
    assert rows(store, "scores", SCORE_COLUMNS) == before
    assert states == rows(store, "stage_state", "* EXCLUDE (_offset, next_position)")
    assert nano_sum(store, "scores") == nano_sum(store, "judgements")


def test_any_interleaving_of_sessions_gives_the_same_scores(store: Store) -> None:
    """Partitions interleave sessions, which must not influence each other."""
    policy = policy_of(cost_cap_per_session=0.06)
    sessions = [dialogue(f"s{number}", 10) for number in range(5)]

    async def work() -> None:
        async with engine_over(store, policy, MoodyJudge(1, answer)) as engine:
            await take_all(engine, sessions)

    run(work())
    judgements = [record for frame in store.read("judgements", 0, 10_000).values() for record in frame.to_dicts()]
    assert judgements
    expected = rows(store, "scores", "* EXCLUDE (_offset)")
    for seed in range(3):
        with Store(None) as other:
            copy_judgements(store, other)
            runner = runner_over(other, policy)
            for part in shuffled(sessions, seed):
                runner.publish(part)
                runner.run()
            assert rows(other, "scores", "* EXCLUDE (_offset)") == expected


def copy_judgements(source: Store, target: Store) -> None:
    """Copy the topic of judgements into another store, in the same order."""
    records = [record for _, _, record in StageBatch.of("judgements", source.read("judgements", 0, 100_000)).records()]
    with target.transaction() as transaction:
        transaction.append("judgements", [encode(record) for record in records])


def shuffled(sessions: list[list[Exchange]], seed: int) -> Iterator[EncodedRecords]:
    """Return the exchanges in another interleaving and in random batches; each session keeps its order."""
    chance = random.Random(seed)
    remaining = [list(session) for session in sessions]
    while any(remaining):
        part = EncodedRecords()
        for _ in range(chance.randrange(1, 12)):
            if waiting := [session for session in remaining if session]:
                part.add("exchanges", encode(chance.choice(waiting).pop(0)))
        yield part


@pytest.mark.parametrize("seed", range(4))
def test_no_session_exceeds_its_cap_with_64_concurrent_exchanges(seed: int) -> None:
    """The cap must hold with many concurrent calls."""
    recorded: list[Record] = []

    async def publish(record: Record) -> None:
        await asyncio.sleep(0)
        recorded.append(record)

    task_judge = TaskJudge(SCORING, policy_of(), MoodyJudge(seed, answer), publish, TickingClock())
    # One ledger for all of the session's exchanges at once, as if its order were not kept.
    ledger = Ledger(nano_of(0.10))

    async def work() -> None:
        await asyncio.gather(*(task_judge.judge(task, (), ledger) for task in tasks(64)))

    run(work())
    spent = sum(nano_of(record.cost_usd or 0) for record in recorded if isinstance(record, Judgement))
    assert spent == ledger.spent
    assert nano_of(0.05) < spent <= nano_of(0.10)
    assert ledger.reserved == 0


class CostlyJudge:
    """Spends the whole reservation of its first question when released, without an answer, and counts its calls."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.calls = 0

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Spend the reservation."""
        assert question.purpose
        if not await budget.reserve():
            return Verdict(outcome="cost_cap")
        self.calls += 1
        self.asked.set()
        await self.go_on.wait()
        budget.spend(None, None)
        return Verdict(outcome="timeout", attempts=1)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def test_unflushed_spending_counts_toward_the_cap(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may be read while the previous task's state is only in the write-ahead log."""
    monkeypatch.setattr(judging_partition, "WINDOW_TASKS", 1)  # the second is read when the first is done

    async def work() -> None:
        judge, policy = CostlyJudge(), policy_of(cost_cap_per_session=0.02, sampling={"enabled": False})
        async with engine_over(store, policy, judge, limits=EngineLimits(flush_seconds=1e9)) as engine:
            first, second = dialogue("s", 2)
            await engine.ingest_exchange(first)
            await engine.flush()
            await judge.asked.wait()
            await engine.ingest_exchange(second)
            await engine.flush()
            judge.go_on.set()
            await engine.wait_until_drained()
            assert judge.calls == 1

    run(work())
    assert [turn for (turn,) in rows(store, "scores", "turn_number")] == [1, 2]
    assert 0 < nano_sum(store, "judgements") <= nano_of(0.02) < 2 * nano_sum(store, "judgements")


def tasks(count: int) -> list[Any]:
    """Return scoring tasks of one session."""
    batch = build.batch("exchanges", dialogue("s", count))
    outcome = IntakeStep(policy_of(sampling={"enabled": False}))(batch, {})  # type: ignore[arg-type]
    return [record for _, record in outcome.records]


def test_an_interrupted_call_is_charged_in_full_and_repeated(store: Store) -> None:
    """It may have been billed, so the score and the cap include its cost."""

    async def first() -> None:
        judge = HangingJudge()
        engine = Engine(store, Policy(), runner_over(store)._redactor, TickingClock(), judge=judge)
        await engine.start()
        await engine.ingest_exchange(build.exchange("s", 1))
        await judge.asked.wait()
        await engine.stop(grace=0)

    run(first())
    assert store.count("scores") == 0
    assert store.count("judgements") == 0
    [(reserved,)] = rows(store, "reservations", "amount_usd")

    async def second() -> None:
        async with engine_over(store, judge=MoodyJudge(0, answer), now=TickingClock(NOW + timedelta(hours=1))) as engine:
            await engine.wait_until_drained()

    run(second())
    outcomes = [outcome for (outcome,) in rows(store, "judgements", "outcome", "_offset")]
    assert outcomes[0] == "interrupted"
    assert len(outcomes) > 1
    [(cost,)] = rows(store, "scores", "cost_usd")
    assert isinstance(cost, float)
    assert isinstance(reserved, float)
    assert cost > reserved
    assert nano_sum(store, "scores") == nano_sum(store, "judgements")
    before = rows(store, "scores", SCORE_COLUMNS)
    runner_over(store).rebuild()
    assert rows(store, "scores", SCORE_COLUMNS) == before


def test_a_cap_of_zero_allows_no_paid_call(store: Store, simulator: RunningJudge) -> None:
    """A cap of 0 is a valid choice, and the sender is informed."""

    async def work() -> None:
        requests = simulator.requests
        async with engine_over(store, policy_of(cost_cap_per_session=0.0), live_judge(simulator.base_url)) as engine:
            result = await engine.ingest_exchange(build.exchange("s", 1))
            assert result.capped is True
            assert result.spent_usd == 0.0
            assert result.cap_usd == 0.0
            await engine.wait_until_drained()
            repetition = await engine.ingest_exchange(build.exchange("s", 1))
            assert repetition.outcome == "known"
            assert repetition.capped is True
        assert requests == simulator.requests

    run(work())
    assert rows(store, "scores", "disposition, tier2_state, tier2_5_state, tier3_state") == [
        ("skipped_cost_cap", "skipped_cost_cap", "not_applicable", "skipped_cost_cap")
    ]


def test_an_unscored_exchange_can_be_judged_later_under_the_same_id(store: Store, simulator: RunningJudge) -> None:
    """A key may be added later: the unscored exchanges can then be judged, once."""

    async def without() -> None:
        async with engine_over(store) as engine:
            await take_all(engine, [dialogue("s", 4)])

    async def later() -> tuple[int, int]:
        async with engine_over(
            store, judge=live_judge(simulator.base_url), now=TickingClock(NOW + timedelta(days=1))
        ) as engine:
            first = await engine.rejudge(None, "no_judge", 100)
            rejudged = await engine.rejudge(None, "no_judge", 100)
            await engine.wait_until_drained()
            return first, rejudged

    run(without())
    assert run(later()) == (4, 0)
    assert store.count("scores") == 4
    assert list(set(store.cursor().execute("SELECT disposition, revision FROM scores").fetchall())) == [("scored", 1)]
    before = rows(store, "scores", SCORE_COLUMNS)
    runner_over(store).rebuild()
    assert rows(store, "scores", SCORE_COLUMNS) == before


def test_the_last_turns_are_judged_when_the_session_is_finalized(store: Store, simulator: RunningJudge) -> None:
    """The last turns of a session are unknown until it ends."""

    async def work() -> tuple[bool, bool]:
        async with engine_over(store, judge=live_judge(simulator.base_url)) as engine:
            await take_all(engine, [dialogue("s", 8)])
            is_known = await engine.finalize("local", "s")
            unknown = await engine.finalize("local", "nobody")
            await engine.wait_until_drained()
            return is_known, unknown

    assert run(work()) == (True, False)
    last = store.cursor().execute("SELECT turn_number, sampling_reason, revision FROM scores ORDER BY 1").fetchall()
    assert last[5:] == [(6, "last_turns", 1), (7, "last_turns", 1), (8, "last_turns", 1)]


def test_memory_holds_a_bounded_number_of_session_states(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory must stay bounded over months; sessions whose states were dropped continue where they were."""
    monkeypatch.setattr(engine_module, "MAX_CACHED_SESSIONS", 5)

    async def work() -> None:
        async with engine_over(store) as engine:
            for turn in (1, 2):
                for number in range(20):
                    await engine.ingest_exchange(build.exchange(f"s{number}", turn))
                    assert all(len(states) <= 6 for states in engine._states._states.values())
            await engine.wait_until_drained()

    run(work())
    turns = [(f"s{number}", [1, 2]) for number in range(20)]
    scored = "SELECT session_id, list(turn_number ORDER BY turn_number) FROM log.scores GROUP BY ALL"
    assert sorted(turns) == sorted(store.cursor().execute(scored).fetchall())


class PausedJudge:
    """Answers when the test releases it."""

    def __init__(self, inner: Judge) -> None:
        self._inner = inner
        self.go_on = asyncio.Event()

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Wait until released, then ask."""
        await self.go_on.wait()
        return await self._inner.ask(question, budget)

    async def aclose(self) -> None:
        """Close the other judge."""
        await self._inner.aclose()


@pytest.mark.parametrize("combine", [False, True], ids=["separate", "combined"])
@pytest.mark.parametrize("closes_early", [True, False])
def test_a_routine_sample_that_becomes_a_last_turn_is_judged_in_full_without_paying_twice(
    store: Store, simulator: RunningJudge, *, closes_early: bool, combine: bool
) -> None:
    """It was a routine sample until the session closed: Tier 2 has its answer, or will have, and Tier 3 is opened by its new reason.

    In the demo 30% of the last turns missed Tier 3 because their number was a multiple of three.
    """

    async def work() -> None:
        judge = PausedJudge(live_judge(simulator.base_url))
        if not closes_early:
            judge.go_on.set()
        async with engine_over(store, policy_of(combine_tiers=combine), judge) as engine:
            for exchange in dialogue("s1", 10):
                await engine.ingest_exchange(exchange)
            if not closes_early:
                await engine.wait_until_drained()
            assert await engine.finalize("local", "s1")
            judge.go_on.set()
            await engine.wait_until_drained()

    run(work())
    scores = store.cursor().execute(
        "SELECT revision, sampling_reason, sampling_probability, tier3_state, tier3_reason FROM log.scores WHERE turn_number = 10 ORDER BY 1"
    )
    assert scores.fetchall() == [
        (0, "routine_sample", 1 / 3, "skipped_gate", "routine"),
        (1, "last_turns", 1.0, "scored", "last_turns"),
    ]
    (judgement_count, different) = rows(store, "judgements", "count(*), count(DISTINCT fingerprint)")[0]
    assert judgement_count == different, "an answer was paid for twice"
    assert nano_sum(store, "judgements") == nano_sum(store, "scores")
    purposes = store.cursor().execute("SELECT purpose FROM log.judgements WHERE subject_id LIKE '%10' ORDER BY 1").fetchall()
    assert {"tier2", "tier3"} <= {purpose for (purpose,) in purposes} <= {"tier2", "tier2_5", "tier3"}


def test_rejudging_a_routine_sample_keeps_it_a_last_turn(store: Store, simulator: RunningJudge) -> None:
    """The exchange was unscored and then rejudged before the session closed: its weight must not stay three."""

    async def without() -> None:
        async with engine_over(store) as engine:
            await take_all(engine, [dialogue("s1", 10)])

    async def later() -> None:
        async with engine_over(
            store, judge=live_judge(simulator.base_url), now=TickingClock(NOW + timedelta(hours=1))
        ) as engine:
            await engine.rejudge(None, "no_judge", 100)
            await engine.wait_until_drained()
            await engine.finalize("local", "s1")
            await engine.wait_until_drained()

    run(without())
    run(later())
    scores = store.cursor().execute("SELECT revision, sampling_reason FROM log.scores WHERE turn_number = 10 ORDER BY 1")
    assert scores.fetchall() == [(0, "routine_sample"), (1, "routine_sample"), (2, "last_turns")]


def test_an_exchange_that_cannot_be_scored_becomes_a_dead_letter_and_stops_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in one exchange affects only that exchange, whose bytes are kept."""
    sound = JudgingTask.without_judge

    def fragile(judging_task: JudgingTask) -> Any:
        if judging_task.subject_id == "s:2":
            raise ZeroDivisionError("ours")
        return sound(judging_task)

    monkeypatch.setattr(JudgingTask, "without_judge", fragile)

    async def work() -> None:
        async with engine_over(store) as engine:
            await take_all(engine, [dialogue("s", 3), dialogue("t", 2)])

    run(work())
    assert "offset 2 of scoring-tasks" in caplog.text
    assert store.count("scores") == 4
    assert rows(store, "dead_letters", "source, stage, reason") == [("scoring-tasks", "scoring", "stage_failed")]


class BrokenJudge:
    """A judge with a bug."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Fail after the reservation."""
        assert question.purpose
        await budget.reserve()
        raise KeyError("ours")

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def test_a_bug_in_the_judge_is_an_outcome_charged_in_full(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """It is unknown whether the call was sent."""

    async def work() -> None:
        judge: Judge = BrokenJudge()
        async with engine_over(store, judge=judge) as engine:
            await take_all(engine, [dialogue("s", 1)])

    run(work())
    assert "KeyError" in caplog.text
    assert rows(store, "judgements", "outcome, error") == [("provider_error", "a bug in Driftline: KeyError")]
    assert rows(store, "judgements", "cost_usd") == rows(store, "reservations", "amount_usd")
