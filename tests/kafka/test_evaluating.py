"""Evaluation on Kafka: each request becomes one result and is paid for once, despite kills."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import builders as build
from support import evaluation_builders as evaluated
from support.effort import times
from support.engines import MoodyJudge, engine_over, runner_over
from support.invariants import encoded
from support.kafka_judging import PARTITIONS, Mortal, Rig, SoundJudge, came, topics_of
from support.servers import PATIENCE, Home, Nursery, nursery, until

from analytics.store.store import Store
from audit.cost import nano_of
from audit.evaluation.evaluating import next_attempt, questions_of
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json, stable_id
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from schemas.codec.single_object import decode, encode
from schemas.records import Evaluation, EvaluationRequest, Judgement
from streams.judges.protocol import CallBudget, Judge, Verdict
from streams.judging.judged_stages import EVALUATION, SCORING, JudgedStage
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import deduplicate
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.stages import NO_CONTENT, task_identity
from streams.steps.intake import IntakeStep

POLICY = Policy()
SOON_MISSED = """
import os
from streams.kafka import agents, partitions
os.dup2(os.pipe()[0], 0)
partitions.SURE_SECONDS = 2.0
agents.SETTINGS |= {"broker_session_timeout": 3.0, "broker_heartbeat_interval": 0.5}
"""
"""Run before a worker: it needs no supervisor, and the broker gives its partitions away three seconds after it was last heard of."""
BY_CLOCK = {"evaluated_at", "judged_at", "judgement_id", "judgement_ids"}
"""What depends on when the judge was asked: times, and ids that are made of them."""


@pytest.fixture
def topics(make_topics: Any) -> None:
    """Return the topics of a test."""
    make_topics(
        *topics_of(EVALUATION),
        partitions=PARTITIONS,
        configs={"message.timestamp.type": "LogAppendTime", "max.message.bytes": "16777216"},
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine with a generous time limit."""
    asyncio.run(asyncio.wait_for(work, 2 * PATIENCE))


def build_request(
    session: str, case_id: str = "rotate-key", *, model: str = "claude-haiku-4-5", **plan: Any
) -> EvaluationRequest:
    """Return the first request to evaluate a session by a case."""
    evaluation_id = stable_id("evaluation", session, case_id)
    evaluation_plan = evaluated.plan(model, **plan)
    return next_attempt(
        evaluated.make_request(
            evaluated.case(case_id=case_id), evaluation_plan, session_id=session, evaluation_id=evaluation_id
        ),
        0,
        (),
    )


def build_requests(sessions: int = 4, **plan: Any) -> list[EvaluationRequest]:
    """Return two requests for each of several sessions, with different system prompts so that a judge can tell them apart."""
    requests = [build_request(f"s{session}", f"case-{case}", **plan) for session in range(sessions) for case in range(2)]
    return [
        msgspec.structs.replace(request, system_prompt=f"Judge {request.session_id}, {request.case_id}.")
        for request in requests
    ]


def answer(question: Question) -> str:
    """Return the judge's answer: always the same to the same question."""
    return canonical_json(evaluated.answer(1 + int(question.fingerprint[:4], 16) % 9))


class CountingJudge:
    """Counts the calls for each question and forwards them; `silent` questions are paid for and never answered."""

    def __init__(self, inner: Judge | None = None, silent: Callable[[Question], bool] = lambda _: False) -> None:
        self._inner = inner or SoundJudge(answer)
        self._silent = silent
        self.asked: Counter[str] = Counter()
        self.hangs = asyncio.Event()

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Count the call and forward it."""
        self.asked[question.fingerprint] += 1
        if self._silent(question):
            assert await budget.reserve()
            self.hangs.set()
            await asyncio.Event().wait()
        return await self._inner.ask(question, budget)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


class EvaluationRig(Rig):
    """A rig for the evaluation stage."""

    async def evaluations(self) -> dict[tuple[str, int], Evaluation]:
        """Return the evaluations by id and revision, and assert that duplicates have the same content."""
        evaluations: dict[tuple[str, int], Evaluation] = {}
        for evaluation in await self.decoded("evaluations"):
            assert isinstance(evaluation, Evaluation)
            assert evaluation == evaluations.setdefault((evaluation.evaluation_id, evaluation.revision), evaluation)
        return evaluations

    async def check(self, requests: Sequence[EvaluationRequest]) -> list[Evaluation]:
        """Assert the invariants at the end, and return the evaluations."""
        evaluations = await self.evaluations()
        judgements, reservations = await self.calls()
        assert evaluations.keys() == {(request.evaluation_id, request.attempt) for request in requests}
        self.check_calls(judgements, reservations)
        newest = {evaluation_id: evaluation for (evaluation_id, _), evaluation in sorted(evaluations.items())}
        paid: Counter[str] = Counter()
        for judgement in judgements:
            paid[judgement.subject_id] += nano_of(judgement.cost_usd or 0)
        assert {evaluation_id: cost for evaluation_id, cost in paid.items() if cost} == {
            evaluation_id: nano_of(evaluation.cost_usd) for evaluation_id, evaluation in newest.items() if evaluation.cost_usd
        }
        assert self._embedded(requests, judgements) == sorted(map(encode, evaluations.values()))
        return list(evaluations.values())

    async def work_off(self, judge: Judge | None) -> None:
        """Start a new process, wait until all work is done, and end it."""
        process = self.process(judge)
        await process.work(*self.records)
        await process.wait_until_drained()
        await process.stop()

    def _embedded(self, requests: Sequence[EvaluationRequest], judgements: Sequence[Judgement]) -> list[bytes]:
        """Return the embedded runner's evaluations of the same requests and judgements."""
        with Store(None) as store:
            with store.transaction() as transaction:
                transaction.append(EVALUATION.source, [encode(request) for request in dict.fromkeys(requests)])
                transaction.append("judgements", [encode(judgement) for judgement in judgements])
            runner_over(store, self.policy).run()
            return encoded(store, "evaluations")


@asynccontextmanager
async def evaluation_on(kafka: KafkaConnection) -> AsyncIterator[EvaluationRig]:
    """Return a rig over existing topics."""
    producer = RecordProducer(kafka)
    await producer.start()
    try:
        yield EvaluationRig(EVALUATION, kafka, POLICY, producer)
    finally:
        await producer.stop()


def without_times(value: Any) -> Any:
    """Return a value without fields that depend on the time of the calls, including those in nested JSON."""
    if isinstance(value, dict):
        return {name: without_times(item) for name, item in value.items() if name not in BY_CLOCK}
    if isinstance(value, list | tuple):
        return [without_times(item) for item in value]
    return without_times(json.loads(value)) if isinstance(value, str) and value.startswith("{") else value


@pytest.mark.usefixtures("topics")
def test_equal_answers_give_equal_evaluations_embedded_and_on_kafka(kafka: KafkaConnection) -> None:
    """Both runners agree on answers, failures, caps, unknown prices and recorded answers."""
    requests = [
        *build_requests(),
        build_request("s0", "no-room", cost_cap_usd=0.0001),
        build_request("s1", "who-knows", model="claude-of-tomorrow"),
        build_request("s2", "looked-up", judge={"judge_id": "haiku", "model": "claude-haiku-4-5", "type": "recorded"}),
    ]

    class Fickle(SoundJudge):
        async def ask(self, question: Question, budget: CallBudget) -> Verdict:
            mood = int(question.fingerprint[4:8], 16) % 4
            if mood:
                return await super().ask(question, budget)
            if not await budget.reserve():
                return Verdict(outcome="cost_cap")
            budget.spend(None, None)
            return Verdict(outcome="timeout", attempts=1)

    async def embedded() -> list[Any]:
        with Store(None) as store:
            async with engine_over(store, POLICY, Fickle(answer)) as engine:
                await engine.publish(EVALUATION.source, requests)
                await engine.wait_until_drained()
            return [without_times(msgspec.to_builtins(decode(record))) for record in encoded(store, "evaluations")]

    async def work() -> None:
        async with evaluation_on(kafka) as rig:
            await rig.publish(requests)
            await rig.work_off(Fickle(answer))
            evaluations = await rig.check(requests)
        outcomes = {step.outcome for evaluation in evaluations for step in evaluation.iterations}
        assert outcomes == {"answered", "timeout", "cost_cap", "unknown_price", "not_recorded"}
        on_kafka = [without_times(msgspec.to_builtins(evaluation)) for evaluation in evaluations]
        assert sorted(await embedded(), key=by_id) == sorted(on_kafka, key=by_id)

    run(work())


def by_id(evaluation: dict[str, Any]) -> str:
    """Return the id of an evaluation."""
    return str(evaluation["evaluation_id"])


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("seed", range(times(1, soak=10)))
def test_a_kill_at_any_record_repeats_no_answered_question(kafka: KafkaConnection, seed: int) -> None:
    """After a kill before or after each kind of record, the next process uses recorded answers and charges unknown calls."""

    async def work() -> None:
        requests = build_requests(3)
        rng = random.Random(seed)
        async with evaluation_on(kafka) as rig:
            await rig.publish(requests)
            judge = MoodyJudge(seed, answer)
            deaths = 0
            while not rig.is_done():
                process = rig.process(judge, Mortal(rig.producer, rng.randrange(1, 24), having_sent=rng.random() < 0.5))
                await process.work(*range(PARTITIONS))
                await came(lambda process=process: process.mortal.dead.is_set() or rig.is_done(), "a death or the end")
                deaths += process.mortal.dead.is_set()
                await process.kill()
            assert deaths > 1
            await rig.check(requests)

    run(work())


@pytest.mark.usefixtures("topics")
def test_after_a_kill_only_unanswered_repetitions_are_asked_again(kafka: KafkaConnection) -> None:
    """Each answer is paid for once, the interrupted call is charged in full, and calls of other stages are ignored."""
    request = build_request("s", repetitions=4)
    first, second, third, fourth = (question.fingerprint for question in questions_of(request))

    async def work() -> None:
        async with evaluation_on(kafka) as rig:
            await rig.publish([request])
            [partition] = rig.records
            score_reservation = build.reservation("s", 1, purpose="tier2")
            await rig.producer.send("judgements", [(key_of(score_reservation), encode(score_reservation))], partition=partition)
            judge = CountingJudge(silent=lambda question: question.fingerprint == third)
            killed = rig.process(judge)
            await killed.work(partition)
            await judge.hangs.wait()
            await killed.kill()
            second_judge = CountingJudge()
            await rig.work_off(second_judge)
            assert judge.asked == Counter([first, second, third])
            assert second_judge.asked == Counter([third, fourth])
            judgements, reservations = await rig.calls()
            (interrupted,) = (judgement for judgement in judgements if judgement.outcome == "interrupted")
            amounts = {reservation.reservation_id: reservation.amount_usd for reservation in reservations}
            assert interrupted.fingerprint == third
            assert interrupted.cost_usd == amounts[interrupted.reservation_ids[0]]
            (evaluation,) = (await rig.evaluations()).values()
            assert evaluation.status == "completed"
            assert evaluation.successful_iterations == 4
            settled_ids = {reservation_id for judgement in judgements for reservation_id in judgement.reservation_ids}
            assert amounts.keys() - settled_ids == {score_reservation.reservation_id}

    run(work())


@pytest.mark.slow
@pytest.mark.usefixtures("topics")
def test_a_killed_workers_successor_pays_for_no_answer_again(kafka: KafkaConnection, tmp_path: Path) -> None:
    """This uses real processes, a judge over HTTP, and kill -9 while the second of three calls hangs."""
    request = build_request("s")
    fingerprints = [question.fingerprint for question in questions_of(request)]
    command = ("worker", "--stages", "evaluation", "--child", "--kafka", kafka.bootstrap)

    async def work(judge: RunningJudge, children: Nursery, home: Home) -> None:
        async with evaluation_on(kafka) as rig:
            await rig.publish([request])
            worker = children.start(home, *command, before=SOON_MISSED)
            await asyncio.to_thread(until, lambda: judge.requests == 2 or worker.ended, "the second call")
            assert not worker.ended, worker.logged[-4000:]
            worker.kill()
            judge.reset("answer")
            successor = children.start(home, *command, before=SOON_MISSED)
            async with asyncio.timeout(PATIENCE):
                while not await rig.evaluations():
                    assert not successor.ended, successor.logged[-4000:]
            judgements, reservations = await rig.calls()
            rig.check_calls(judgements, reservations)
            assert judge.requests == 2
            outcomes = [(fingerprints.index(judgement.fingerprint), judgement.outcome) for judgement in judgements]
            assert outcomes == [(0, "answered"), (1, "interrupted"), (1, "answered"), (2, "answered")]
            assert [evaluation.status for evaluation in (await rig.evaluations()).values()] == ["completed"]
            successor.send(signal.SIGTERM)
            assert await asyncio.to_thread(successor.wait) == 0

    with running("answer,hang") as judge, nursery() as children:
        settings = {"ANTHROPIC_BASE_URL": judge.base_url, "DRIFTLINE_KAFKA_PREFIX": kafka.prefix}
        asyncio.run(work(judge, children, Home(tmp_path, **settings)))


@pytest.mark.usefixtures("topics")
def test_a_repeated_request_changes_nothing(kafka: KafkaConnection) -> None:
    """Requests may be repeated and topics deliver at least once; a judge makes no difference."""

    async def work() -> None:
        requests = build_requests(2)
        async with evaluation_on(kafka) as rig:
            judge = CountingJudge()
            await rig.publish([*requests, *requests])
            await rig.work_off(judge)
            for judge_or_none in (judge, None):
                await rig.publish(requests)
                await rig.work_off(judge_or_none)
            assert [*judge.asked.values()] == [1] * 12
            assert len(await rig.decoded("evaluations")) == 4
            await rig.check(requests)

    run(work())


@pytest.mark.usefixtures("topics")
def test_another_attempt_asks_only_the_failed_questions(kafka: KafkaConnection) -> None:
    """The request carries the recorded answers; the last result includes the costs of all attempts."""
    request = build_request("s")
    _, second, _ = (question.fingerprint for question in questions_of(request))

    class Refusing(SoundJudge):
        async def ask(self, question: Question, budget: CallBudget) -> Verdict:
            verdict = await super().ask(question, budget)
            return Verdict(outcome="refused", attempts=1, usage=verdict.usage) if question.fingerprint == second else verdict

    async def work() -> None:
        async with evaluation_on(kafka) as rig:
            await rig.publish([request])
            await rig.work_off(Refusing(answer))
            earlier, _ = await rig.calls()
            second_attempt = next_attempt(request, 1, earlier)
            await rig.publish([second_attempt])
            judge = CountingJudge()
            await rig.work_off(judge)
            assert judge.asked == Counter([second])
            first, last = sorted(await rig.check([request, second_attempt]), key=lambda evaluation: evaluation.revision)
            assert first.successful_iterations == 2
            assert first.warnings == ("Judge iteration 2 failed and was excluded.",)
            assert last.successful_iterations == 3
            assert last.warnings == ()

    run(work())


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("judge", [SoundJudge(answer), None], ids=["judge", "no judge"])
def test_an_invalid_request_is_a_dead_letter_and_stops_no_other(kafka: KafkaConnection, judge: Judge | None) -> None:
    """A bad record becomes a dead letter with its bytes and offset; without a judge the others fail with a reason."""
    first, second = build_request("s"), build_request("s", "another")
    bad = next_attempt(msgspec.structs.replace(first, profile="{}", evaluation_id="of no profile"), 0, ())

    async def work() -> None:
        async with evaluation_on(kafka) as rig:
            values = [encode(first), b"poison", encode(bad), encode(build.exchange("s", 1)), encode(second)]
            await rig.produce(EVALUATION.source, [(b"local/s", value) for value in values])
            await rig.work_off(judge)
            [partition] = rig.records
            letters = sorted(await rig.letters(), key=lambda letter: letter.position)
            assert [(letter.stage, letter.reason, letter.source, letter.partition, letter.position) for letter in letters] == [
                ("decoding", "framing", EVALUATION.source, partition, 1),
                ("evaluation", "stage_failed", EVALUATION.source, partition, 2),
                ("decoding", "unexpected_type", EVALUATION.source, partition, 3),
            ]
            assert letters[1].detail.startswith("RecordError: EvaluationRequest.profile: ")
            evaluations = await rig.check([first, second])
        status = "completed" if judge else "failed"
        outcome = "answered" if judge else "no_judge"
        assert [evaluation.status for evaluation in evaluations] == [status] * 2
        assert [evaluation.final_score is None for evaluation in evaluations] == [judge is None] * 2
        assert {step.outcome for evaluation in evaluations for step in evaluation.iterations} == {outcome}

    run(work())


@pytest.mark.parametrize(
    ("stage", "record"),
    [
        (SCORING, IntakeStep(POLICY)(build.batch("exchanges", [build.exchange("s", 1)]), {}).records[0][1]),
        (EVALUATION, next_attempt(build_request("s"), 2, ())),
    ],
    ids=["scoring", "evaluation"],
)
def test_judged_tasks_and_records_have_the_same_identities(stage: JudgedStage[Any], record: Any) -> None:
    """Both kinds of stages keep their windows in the same format."""
    window = deduplicate(build.batch(stage.source, [record]), {}).windows["local/s"]
    identity = task_identity(stage, *stage.subject_of(record), stage.revision_of(record))
    assert window.contents[identity] == NO_CONTENT
