"""Evaluation in the embedded engine: each request becomes one result, whatever the judge does and whenever the process ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from support import builders as build
from support import evaluation_builders as evaluated
from support.clocks import NOW, TickingClock
from support.engines import MoodyJudge, engine_over, policy_of, rows, runner_over

from analytics.store.store import Store
from audit.cost import Usage, nano_of
from audit.evaluation.evaluating import next_attempt
from audit.evaluation.results import EvaluationResult
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json, stable_id
from audit.policy import Policy
from driftline_trial.simulator.answers import simulated_answer
from schemas.codec.single_object import decode
from schemas.records import DeadLetter, EvaluationRequest
from streams.engine.engine import Engine
from streams.judges.protocol import CallBudget, Judge, Verdict
from streams.judging.call_budget import StoppedError
from streams.judging.judged_stages import EVALUATION, JUDGED, judgement_reader
from streams.log.dead_letters import Retry, plan_retry
from streams.log.log import CommitResult, Submission
from streams.topology import TOPOLOGY
from streams.upkeep.deletion import erasure, request_erasure

T = TypeVar("T")
WHOLE = "* EXCLUDE (_offset)"
OPEN = "SELECT reservation_id FROM reservations WHERE reservation_id NOT IN (SELECT unnest(reservation_ids) FROM judgements)"


@pytest.fixture
def store() -> Iterator[Store]:
    """Return a database in memory."""
    with Store(None) as opened:
        yield opened


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with a generous time limit."""
    return asyncio.run(asyncio.wait_for(work, 60))


def wanted(session: str, case_id: str, *, model: str = "claude-haiku-4-5", **plan: Any) -> EvaluationRequest:
    """Return the first request to evaluate a session by a case."""
    evaluation_id = stable_id("evaluation", session, case_id)
    case, by = evaluated.case(case_id=case_id), evaluated.plan(model, **plan)
    return next_attempt(evaluated.make_request(case, by, session_id=session, evaluation_id=evaluation_id), 0, ())


def several(sessions: int = 3, cases: int = 2, **plan: Any) -> list[EvaluationRequest]:
    """Return a request for each case and session."""
    return [wanted(f"s{session}", f"case-{case}", **plan) for session in range(sessions) for case in range(cases)]


def answer(question: Question) -> str:
    """Return the judge's answer: always the same to the same question."""
    if question.purpose in EVALUATION.purposes:
        return canonical_json(evaluated.answer(1 + int(question.fingerprint[:4], 16) % 9))
    return canonical_json(
        simulated_answer(question.schema, {material.name: material.literal for material in question.materials})
    )


class CountingJudge:
    """Answers every question at the same price, except those in `fails`, and counts the calls for each."""

    def __init__(self, fails: Callable[[Question], bool] = lambda _: False) -> None:
        self.asked: Counter[str] = Counter()
        self._fails = fails

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Answer with one call."""
        if not await budget.reserve():
            return Verdict(outcome="cost_cap", attempts=0)
        self.asked[question.fingerprint] += 1
        usage = Usage(100, 10)
        budget.spend(usage, question.model)
        if self._fails(question):
            return Verdict(outcome="timeout", attempts=1)
        return Verdict(outcome="answered", answer=answer(question), attempts=1, usage=usage, model=question.model)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


async def evaluate(engine: Engine, requests: Sequence[EvaluationRequest]) -> None:
    """Request evaluations and wait for them."""
    await engine.publish(EVALUATION.source, requests)
    await engine.wait_until_drained()


def evaluate_all(
    store: Store, requests: Sequence[EvaluationRequest], judge: Judge | None, policy: Policy | None = None
) -> None:
    """Request evaluations from a new engine and wait for them."""

    async def work() -> None:
        async with engine_over(store, policy, judge) as engine:
            await evaluate(engine, requests)

    run(work())


def nano(store: Store, table: str, where: str = "true") -> int:
    """Return the sum of a table's costs in nano-USD."""
    costs = store.cursor().execute(f"SELECT cost_usd FROM {table} WHERE cost_usd IS NOT NULL AND {where}").fetchall()
    return sum(nano_of(cost) for (cost,) in costs)


def check_rebuild(store: Store, policy: Policy | None = None) -> None:
    """Assert that a rebuild derives the same records, byte by byte."""
    tables = {"evaluations": WHOLE, "scores": WHOLE, "stage_state": "* EXCLUDE (_offset, next_position)"}
    before = {table: rows(store, table, columns) for table, columns in tables.items()}
    runner_over(store, policy).rebuild()
    assert {table: rows(store, table, columns) for table, columns in tables.items()} == before


def test_exchanges_and_runs_are_judged_concurrently_and_pay_separately(store: Store) -> None:
    """Scores and evaluations are paid for separately; their sums equal the recorded costs."""

    async def work() -> None:
        async with engine_over(store, judge=CountingJudge()) as engine:
            for turn in range(1, 4):
                await engine.ingest_exchange(build.exchange("s0", turn))
            await evaluate(engine, several())
            assert engine.state().queues == {"commits": 0, "tasks": 0, "evaluations": 0, "sessions": 0}

    run(work())
    assert rows(store, "evaluations", "status, successful_iterations") == [("completed", 3)] * 6
    assert nano(store, "evaluations") == nano(store, "judgements", "purpose = 'evaluation'") > 0
    assert nano(store, "scores") == nano(store, "judgements", "purpose <> 'evaluation'") > 0
    assert store.cursor().execute(OPEN).fetchall() == []
    assert store.count("dead_letters") == 0
    check_rebuild(store)


@pytest.mark.parametrize("seed", range(6))
def test_a_rebuild_gives_the_same_evaluations(store: Store, seed: int) -> None:
    """Results depend on the topics alone: not on a judge, a clock or randomness."""
    policy = policy_of(cost_cap_per_session=0.05)

    async def work() -> None:
        async with engine_over(store, policy, MoodyJudge(seed, answer)) as engine:
            await engine.ingest_exchange(build.exchange("s0", 1))
            first = several(cost_cap_usd=0.05, repetitions=5)
            await evaluate(engine, first)
            recorded = judgement_reader(store)([EVALUATION.subject_of(one) for one in first])
            await evaluate(engine, [next_attempt(one, 1, recorded[EVALUATION.subject_of(one)]) for one in first])

    run(work())
    assert set(rows(store, "evaluations", "revision")) == {(0,), (1,)}
    assert nano(store, "evaluations") == nano(store, "judgements", "purpose = 'evaluation'")
    check_rebuild(store, policy)


def test_each_evaluation_has_its_own_cap(store: Store) -> None:
    """A cap in a profile applies to one evaluation; the session's exchanges have their own budget."""
    cap = 0.045

    async def work() -> None:
        async with engine_over(store, policy_of(cost_cap_per_session=0.0), MoodyJudge(3, answer)) as engine:
            await evaluate(engine, several(2, 4, cost_cap_usd=cap, repetitions=9))
            requests = [next_attempt(one, 1, ()) for one in several(2, 4, cost_cap_usd=cap, repetitions=9)]
            await evaluate(engine, requests)

    run(work())
    spent = "SELECT sum(cost_usd) FROM judgements GROUP BY subject_id"
    totals = [nano_of(total) for (total,) in store.cursor().execute(spent).fetchall()]
    assert len(totals) == 8
    assert nano_of(cap) / 2 < max(totals) <= nano_of(cap)
    assert {"cost_cap"} < {
        outcome for (outcome,) in store.cursor().execute("SELECT unnest(iterations).outcome FROM evaluations").fetchall()
    }


def test_a_call_without_a_known_price_is_refused_under_a_cap(store: Store) -> None:
    """Under a cap, a call without a known price is forbidden; without a cap it is allowed."""
    judge = CountingJudge()
    unpriced = {"model": "somebody-else-s-model", "repetitions": 1}
    evaluate_all(store, [wanted("s", "capped", **unpriced), wanted("s", "free", **unpriced, cost_cap_usd=None)], judge)
    answers = (
        store.cursor().execute("SELECT case_id, status, iterations[1].outcome, cost_usd FROM evaluations ORDER BY 1").fetchall()
    )
    assert answers == [("capped", "failed", "unknown_price", 0.0), ("free", "completed", "answered", None)]
    assert judge.asked.total() == 1


def test_without_a_judge_an_evaluation_fails_with_a_reason(store: Store) -> None:
    """The evaluation fails with a reason, and can be requested again."""
    evaluate_all(store, [wanted("s", "case")], None)
    expected = [("failed", None, ["no_judge"] * 3)]
    statement = "SELECT status, final_score, list_transform(iterations, lambda one: one.outcome) FROM evaluations"
    assert store.cursor().execute(statement).fetchall() == expected
    check_rebuild(store)


def test_an_import_calls_no_judge(store: Store) -> None:
    """Imports and rebuilds may not pay for calls, so they evaluate from recorded answers."""
    with store.transaction() as transaction:
        transaction.append(EVALUATION.source, [build.encode(wanted("s", "case"))])
    runner_over(store).run()
    assert rows(store, "evaluations", "status") == [("failed",)]
    assert store.count("judgements") == 0


def test_a_repeated_request_changes_nothing(store: Store) -> None:
    """A caller may safely repeat a request."""
    judge = CountingJudge()

    async def work() -> None:
        async with engine_over(store, judge=judge) as engine:
            await evaluate(engine, several())
            repeated = await engine.publish(EVALUATION.source, several())
            assert repeated.written == 0
            assert repeated.known == 6
            assert repeated.conflicts == []
            await engine.wait_until_drained()

    run(work())
    assert set(judge.asked.values()) == {1}
    assert len(rows(store, "evaluations")) == 6


def test_another_attempt_asks_only_the_failed_questions(store: Store) -> None:
    """A recorded answer counts in every attempt."""
    broken: list[str] = []

    def fails(question: Question) -> bool:
        if len(broken) < 2 and question.fingerprint not in broken:
            broken.append(question.fingerprint)
            return True
        return False

    first = wanted("s", "case")
    evaluate_all(store, [first], CountingJudge(fails))
    recorded = judgement_reader(store)([EVALUATION.subject_of(first)])[EVALUATION.subject_of(first)]
    second = CountingJudge()
    evaluate_all(store, [next_attempt(first, 1, recorded)], second)
    assert dict.fromkeys(broken, 1) == dict(second.asked)
    assert rows(store, "evaluations", "revision, successful_iterations", "revision") == [(0, 1), (1, 3)]
    assert nano(store, "evaluations") == nano(store, "judgements")
    check_rebuild(store)


def test_answers_of_a_batch_are_not_asked_again(store: Store) -> None:
    """The judgements of a batch are recorded before the request exists."""
    first, judge = wanted("s", "case"), CountingJudge()

    async def work() -> None:
        async with engine_over(store, judge=judge) as engine:
            judging_task = EVALUATION.open(first, Policy(), (), batched=True)
            fields = {"session_id": "s", "subject_id": first.evaluation_id}
            answer_text = canonical_json(evaluated.answer(5))
            await engine.publish("judgements", [evaluated.judgement(next(judging_task.judging()), answer_text, **fields)])
            await evaluate(engine, [first])

    run(work())
    assert len(judge.asked) == 2
    assert max(judge.asked.values()) == 1
    assert rows(store, "evaluations", "status, successful_iterations") == [("completed", 3)]


def test_an_answer_reused_from_another_evaluation_costs_nothing(store: Store) -> None:
    """A reused answer was paid for elsewhere: only calls made here are charged to this cap and shown in this result."""
    first, judge = wanted("s", "case"), CountingJudge()
    question = next(EVALUATION.open(first, Policy(), ()).judging())
    answer_text = canonical_json(evaluated.answer(5))
    earlier = evaluated.judgement(question, answer_text, session_id="s", subject_id="other", subject_revision=4, cost_usd=0.9)
    request = next_attempt(first, 0, [earlier])
    assert EVALUATION.open(request, Policy(), ()).ledger.spent == 0
    assert tuple(EVALUATION.open(request, Policy(), ()).reused) == (earlier,)

    evaluate_all(store, [request], judge)
    assert len(judge.asked) == 2
    assert max(judge.asked.values()) == 1
    ((status, answers, ids, result),) = rows(store, "evaluations", "status, successful_iterations, judgement_ids, result")
    assert status == "completed"
    assert answers == 3
    assert ids[0] == earlier.judgement_id
    assert nano(store, "evaluations") == nano(store, "judgements") > 0
    iterations = EvaluationResult.model_validate_json(str(result)).judge_result.iterations
    assert [
        (iterations[0].taken_over_from, iterations[0].attempts, iterations[0].cost_usd, iterations[0].answer),
        *((iteration.taken_over_from, iteration.attempts) for iteration in iterations[1:]),
    ] == [("other", 0, 0.0, answer_text), (None, 1), (None, 1)]
    check_rebuild(store)


def test_a_question_missing_in_a_batch_fails_instead_of_a_single_call(store: Store) -> None:
    """Single calls cost twice as much as a batch, and the estimate did not include them."""
    batched = wanted("s", "case", judge={"judge_id": "x", "model": "claude-haiku-4-5", "type": "batch"})
    poor = wanted("s", "other", judge={"judge_id": "x", "model": "claude-haiku-4-5", "type": "batch"}, cost_cap_usd=0.000001)
    judge = CountingJudge()
    evaluate_all(store, [batched, poor], judge)
    assert not judge.asked
    reasons = {
        iteration.reason
        for (result,) in rows(store, "evaluations", "result")
        for iteration in EvaluationResult.model_validate_json(str(result)).judge_result.iterations
    }
    capped, unanswered = sorted(map(str, reasons), key=lambda reason: "batch" in reason)
    assert "cost cap" in capped
    assert "no batch" in unanswered
    assert rows(store, "evaluations", "status") == [("failed",)] * 2


class MortalEngine(Engine):
    """Dies after a number of durable commits: later writes do not reach the log."""

    def __init__(self, store: Store, judge: Judge, lives: int) -> None:
        super().__init__(store, Policy(), runner_over(store)._redactor, TickingClock(), judge=judge)
        self.died = asyncio.Event()
        self._lives = lives

    async def _submit(self, submission: Submission) -> CommitResult:
        if not submission.records:
            if not self._lives:
                self.died.set()
                raise StoppedError
            self._lives -= 1
        return await super()._submit(submission)


def outcomes(store: Store) -> list[tuple[object, ...]]:
    """Return the results of evaluations, without their costs."""
    return rows(store, "evaluations", "evaluation_id, revision, status, final_score, successful_iterations, dimensions")


def test_a_kill_after_any_commit_repeats_no_answered_question(store: Store) -> None:
    """An interrupted call is charged in full and repeated; a recorded answer is not requested again."""
    requests = several(1, 2)
    evaluate_all(store, requests, CountingJudge())
    expected, ends = outcomes(store), []
    while not ends or ends[-1]:
        judge = CountingJudge()
        with Store(None) as other:
            ends.append(run(killed(other, judge, len(ends), requests)))
            answered_fingerprints = {fingerprint for (fingerprint,) in rows(other, "judgements", "fingerprint")}
            before = Counter(judge.asked)

            async def second(other: Store = other, judge: Judge = judge) -> None:
                async with engine_over(other, judge=judge, now=TickingClock(NOW + timedelta(hours=1))) as engine:
                    await engine.wait_until_drained()

            run(second())
            assert outcomes(other) == expected
            assert all(judge.asked[one] == before[one] for one in answered_fingerprints)
            assert judge.asked.total() <= 7
            assert other.cursor().execute(OPEN).fetchall() == []
            assert nano(other, "evaluations") == nano(other, "judgements")
            check_rebuild(other)
    assert len(ends) > 14  # two requests, each with two records of three calls, and a result


async def killed(store: Store, judge: Judge, lives: int, requests: Sequence[EvaluationRequest]) -> bool:
    """Return whether an engine died within this number of commits."""
    engine = MortalEngine(store, judge, lives)
    await engine.start()
    await engine.publish(EVALUATION.source, requests)
    ends = [asyncio.create_task(engine.died.wait()), asyncio.create_task(engine.wait_until_drained())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
    for commit_count in ends:
        commit_count.cancel()
    await engine.stop(grace=0)
    return engine.died.is_set()


def test_a_stop_lets_the_running_call_end_and_the_next_start_continues(store: Store) -> None:
    """An orderly stop must not waste a paid call."""
    gate, began = asyncio.Event(), asyncio.Event()

    class SlowJudge(CountingJudge):
        async def ask(self, question: Question, budget: CallBudget) -> Verdict:
            verdict = await super().ask(question, budget)
            began.set()
            await gate.wait()
            return verdict

    first, second = SlowJudge(), CountingJudge()

    async def work() -> None:
        async with engine_over(store, judge=first) as engine:
            await engine.publish(EVALUATION.source, [wanted("s", "case")])
            await began.wait()
            stopping = asyncio.create_task(engine.stop())
            gate.set()
            await stopping

    run(work())
    assert rows(store, "judgements", "outcome") == [("answered",)]
    assert rows(store, "evaluations") == []
    evaluate_all(store, [], second)
    assert (first.asked + second.asked).total() == 3
    assert set((first.asked + second.asked).values()) == {1}
    assert rows(store, "evaluations", "status, successful_iterations") == [("completed", 3)]


def test_an_unreadable_request_becomes_a_dead_letter_that_can_be_requeued(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad request affects no other, with or without a judge; putting it back is another attempt."""
    broken = msgspec.structs.replace(wanted("s", "broken"), profile='{"profile_id": 1}')
    evaluate_all(store, [broken, wanted("s", "sound")], CountingJudge())
    assert broken.evaluation_id in caplog.text
    assert rows(store, "evaluations", "case_id, status") == [("sound", "completed")]
    assert rows(store, "dead_letters", "source, stage, reason") == [("evaluation-requests", "evaluation", "stage_failed")]
    check_rebuild(store)
    [letter] = store.read("dead-letters", 0, 10)["DeadLetter"].to_dicts()
    back = plan_retry(DeadLetter(**{name: letter[name] for name in DeadLetter.__struct_fields__}))
    assert isinstance(back, Retry)
    assert (back.topic, back.record.request_id) == (EVALUATION.source, next_attempt(broken, 1, ()).request_id)  # type: ignore[attr-defined]
    assert decode(back.message) == back.record


@pytest.mark.parametrize(
    "said", [{}, {"session_id": "s", "outcome": "refused"}, {"session_id": "s", "purpose": "tier3"}], ids=str
)
def test_a_request_may_carry_only_judgements_of_its_own_evaluation(
    store: Store, caplog: pytest.LogCaptureFixture, said: dict[str, str]
) -> None:
    """A judgement of another run must not score this one, and failures elsewhere must not count here."""
    question = next(EVALUATION.open(wanted("s", "case"), Policy(), ()).judging())
    foreign = evaluated.judgement(question, "{}", **({"subject_id": "other"} | said))
    evaluate_all(store, [next_attempt(wanted("s", "case"), 1, [foreign])], CountingJudge())
    assert "earlier_judgements" in caplog.text
    assert rows(store, "dead_letters", "reason") == [("stage_failed",)]


def test_an_erased_session_is_no_longer_judged(store: Store) -> None:
    """The request contains the session's texts: after an erasure no further call is made and no result is kept."""

    class Interrupted(CountingJudge):
        """Erases the session while its first call is in progress."""

        async def ask(self, question: Question, budget: CallBudget) -> Verdict:
            if not self.asked:
                await request_erasure(engines[0], erasure("local", "s0", "somebody", None, NOW))
            return await super().ask(question, budget)

    judge, engines = Interrupted(), list[Engine]()

    async def work() -> None:
        async with engine_over(store, judge=judge) as engine:
            engines.append(engine)
            await evaluate(engine, several(1, 2))
            await evaluate(engine, [wanted("s1", "case")])

    run(work())
    for table in ("evaluation_requests", "evaluations", "judgements", "reservations"):
        assert set(rows(store, table, "session_id")) == {("s1",)}
    assert store.cursor().execute("SELECT key FROM log.stage_state WHERE stage = 'evaluation'").fetchall() == [("local/s1",)]
    assert store.count("dead_letters") == 0
    assert judge.asked.total() == 3


def test_every_judged_stage_is_in_the_topology_with_distinct_task_ids() -> None:
    """The topology and the judged stages must agree."""
    assert [stage.judged for stage in TOPOLOGY if stage.judged is not None] == list(JUDGED)
    assert len(JUDGED) == len({stage.queue for stage in JUDGED}) == len({stage.source for stage in JUDGED})
    assert not frozenset.intersection(*(stage.purposes for stage in JUDGED))
