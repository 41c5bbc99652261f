"""Scoring on Kafka: every paid call is recorded and counted once, despite kills."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from itertools import groupby
from typing import Any

import msgspec
import pytest
from support import builders as build
from support.effort import times
from support.engines import MoodyJudge, live_judge, policy_of
from support.kafka_judging import (
    PARTITIONS,
    PATIENCE,
    TASKS,
    TOPICS,
    Mortal,
    WatchedJudge,
    answer,
    came,
    dialogue,
    scoring_on,
    tasks_of,
)
from support.kafka_judging import SoundJudge as Sound

from audit.cost import nano_of
from audit.exchanges.questions import Question
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from schemas.codec.single_object import decode, encode
from schemas.errors import BrokerError
from schemas.records import Exchange, Judgement, ScoringTask
from streams.judges.protocol import CallBudget, Verdict
from streams.judging import judging_partition
from streams.kafka import partitions
from streams.kafka.connection import KafkaConnection
from streams.steps.intake import IntakeStep

ALL = policy_of(sampling={"enabled": False})
CAPPED = policy_of(sampling={"enabled": False}, cost_cap_per_session=0.06)


@pytest.fixture(autouse=True)
def topics(make_topics: Any) -> None:
    """Return the topics of a test."""
    make_topics(
        *TOPICS, partitions=PARTITIONS, configs={"message.timestamp.type": "LogAppendTime", "max.message.bytes": "16777216"}
    )


@pytest.fixture(scope="module")
def simulator() -> Iterator[RunningJudge]:
    """Return a simulated judge that answers."""
    with running() as judge:
        yield judge


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine with a generous time limit."""
    asyncio.run(asyncio.wait_for(work, 2 * PATIENCE))


class SoundJudge(Sound):
    """Answers every question immediately, at a low cost."""

    def __init__(self) -> None:
        super().__init__(answer)


def sessions(count: int, turns: int) -> list[Exchange]:
    """Return interleaved exchanges of several sessions."""
    dialogues = [dialogue(f"s{number}", turns) for number in range(count)]
    return [exchange for turn in zip(*dialogues, strict=True) for exchange in turn]


def test_scores_are_those_of_the_embedded_runner_and_a_session_keeps_its_order(kafka: KafkaConnection) -> None:
    """Both runners derive the same bytes from the same judgements."""

    async def work() -> None:
        exchanges = sessions(6, 8)
        async with scoring_on(kafka, CAPPED) as rig:
            await rig.publish(tasks_of(CAPPED, exchanges))
            judge = WatchedJudge(MoodyJudge(1, answer))
            process = rig.process(judge)
            await process.work(*range(PARTITIONS))
            await process.wait_until_drained()
            await process.stop()
            await rig.check(exchanges)
            assert {exchange.exchange_id for exchange in exchanges if exchange.exchange_id.endswith((":1", ":2"))} <= set(
                judge.subjects
            )
            for session in {exchange.session_id for exchange in exchanges}:
                subjects = [subject for subject in judge.subjects if subject.startswith(f"{session}:")]
                order = [subject for subject, _ in groupby(subjects)]
                assert order == sorted(set(order), key=lambda subject: int(subject.split(":")[1]))

    run(work())


@pytest.mark.parametrize("seed", range(times(1, soak=10)))
def test_whenever_a_process_is_killed_nothing_is_judged_twice_and_the_cap_holds(kafka: KafkaConnection, seed: int) -> None:
    """After a kill before or after each kind of record, the next process uses recorded answers and charges unknown calls."""

    async def work() -> None:
        exchanges = sessions(4, 4)
        rng = random.Random(seed)
        async with scoring_on(kafka, CAPPED) as rig:
            await rig.publish(tasks_of(CAPPED, exchanges))
            judge = MoodyJudge(seed, answer)
            deaths = 0
            while not rig.is_done():
                process = rig.process(judge, Mortal(rig.producer, rng.randrange(1, 20), having_sent=rng.random() < 0.5))
                await process.work(*range(PARTITIONS))
                await came(lambda process=process: process.mortal.dead.is_set() or rig.is_done(), "a death or the end")
                deaths += process.mortal.dead.is_set()
                await process.kill()
            assert deaths > 2
            await rig.check(exchanges)
            judgements, _ = await rig.calls()
            assert "interrupted" in {judgement.outcome for judgement in judgements}

    run(work())


def test_a_partition_that_goes_to_another_process_is_scored_once(kafka: KafkaConnection) -> None:
    """Running calls get time to be recorded; later ones are charged in full by the next process, exactly once."""

    async def work() -> None:
        exchanges = sessions(6, 3)
        async with scoring_on(kafka, CAPPED) as rig:
            await rig.publish(tasks_of(CAPPED, exchanges))
            first_judge = WatchedJudge(SoundJudge(), "s0", "s1", "s2")
            first = rig.process(first_judge)
            await first.work(*range(PARTITIONS))
            await came(lambda: len(first_judge.hanging) == 3, "the calls that hang")
            await first.revoke(0, grace=0.3)
            second = rig.process(SoundJudge())
            await second.work(0)
            await came(lambda: rig.committed[0] > rig.records[0][-1].offset, "the partition to be done")
            await first.revoke(1, grace=0.3)
            await second.work(1)
            await second.wait_until_drained()
            await asyncio.gather(first.stop(), second.stop())
            await rig.check(exchanges)
            judgements, reservations = await rig.calls()
            amounts = {reservation.reservation_id: reservation.amount_usd for reservation in reservations}
            interrupted = [judgement for judgement in judgements if judgement.outcome == "interrupted"]
            assert sorted((judgement.subject_id, judgement.attempts) for judgement in interrupted) == [
                ("s0:1", 1),
                ("s1:1", 1),
                ("s2:1", 1),
            ]
            for judgement in interrupted:
                assert judgement.cost_usd == amounts[judgement.reservation_ids[0]]

    run(work())


def test_revoking_a_partition_waits_for_judgements_being_produced(kafka: KafkaConnection) -> None:
    """If it arrived after the next process read the topic, the call would be charged and paid for twice."""
    is_producing = asyncio.Event()
    release = asyncio.Event()

    class Slow(Mortal):
        """Sends each judgement when the test releases it."""

        async def send(self, topic: str, messages: Any, *, partition: int | None = None) -> object:
            if any(isinstance(decode(value), Judgement) for _, value in messages if topic == "judgements"):
                is_producing.set()
                await release.wait()
            return await super().send(topic, messages, partition=partition)

    async def work() -> None:
        exchanges = dialogue("s", 1)
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish(tasks_of(ALL, exchanges))
            [partition] = rig.records
            first = rig.process(SoundJudge(), Slow(rig.producer))
            await first.work(partition)
            await is_producing.wait()
            partition_work = first.works[partition]
            revoking = asyncio.create_task(first.revoke(partition, grace=0.0))
            await came(lambda: not partition_work.tasks._runners, "the session to be given up")
            finished, _ = await asyncio.wait([revoking], timeout=0.1)
            assert finished == set()
            release.set()
            await revoking
            judgements, _ = await rig.calls()
            assert [judgement.outcome for judgement in judgements] == ["answered"]
            judge = WatchedJudge(SoundJudge())
            second = rig.process(judge)
            await second.work(partition)
            await second.wait_until_drained()
            await asyncio.gather(first.stop(), second.stop())
            assert len(judge.subjects) == 1
            await rig.check(exchanges)

    run(work())


def test_a_running_call_is_recorded_when_the_process_stops(kafka: KafkaConnection) -> None:
    """The call is paid for, so its answer is worth a few seconds. Further calls are left to the next process."""
    release = asyncio.Event()

    class SlowJudge(SoundJudge):
        async def ask(self, question: Question, budget: CallBudget) -> Verdict:
            verdict = await super().ask(question, budget)
            await release.wait()
            return verdict

    async def work() -> None:
        exchanges = dialogue("s", 2)
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish(tasks_of(ALL, exchanges))
            judge = WatchedJudge(SlowJudge())
            process = rig.process(judge)
            await process.work(*rig.records)
            await came(lambda: bool(judge.subjects), "a call")
            stopping = asyncio.create_task(process.stop(20))
            await came(lambda: process.works[next(iter(rig.records))].tasks.is_closed, "the stop")
            release.set()
            await stopping
            judgements, _ = await rig.calls()
            assert len(judgements) == 1
            assert await rig.scores() == []
            successor = rig.process(SoundJudge())
            await successor.work(*rig.records)
            await successor.wait_until_drained()
            await successor.stop()
            judgements, _ = await rig.calls()
            assert [judgement.outcome for judgement in judgements] == ["answered"] * 4
            await rig.check(exchanges)

    run(work())


def test_a_call_that_hangs_stops_neither_other_sessions_nor_later_chunks(kafka: KafkaConnection) -> None:
    """A slow call for one exchange must not delay its partition."""

    async def work() -> None:
        exchanges = sessions(8, 4)
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish(tasks_of(ALL, exchanges))
            process = rig.process(WatchedJudge(SoundJudge(), "s0"))
            await process.work(*range(PARTITIONS), size=2)
            await came(process.has_taken_all, "every chunk to be taken")
            chunks_with_s0 = Counter(
                number
                for number, records in rig.records.items()
                for first in range(0, len(records), 2)
                if any(record.key == b"local/s0" for record in records[first : first + 2])
            )
            expected = {number: -(-len(records) // 2) - chunks_with_s0[number] for number, records in rig.records.items()}
            await came(lambda: dict(process.chunks_done) == expected, "every chunk without that session")
            scored = {score.exchange_id for score in await rig.scores()}
            assert scored == {exchange.exchange_id for exchange in exchanges if exchange.session_id != "s0"}
            assert not rig.is_done()
            await process.stop(0)

    run(work())


def test_a_partition_takes_no_more_than_its_window(kafka: KafkaConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting tasks are in memory, which a silent judge must not fill."""
    monkeypatch.setattr(judging_partition, "WINDOW_TASKS", 3)

    async def work() -> None:
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish(tasks_of(ALL, dialogue("s", 8)))
            judge = WatchedJudge(SoundJudge(), "s")
            process = rig.process(judge)
            await process.work(*rig.records, size=2)
            [partition] = rig.records
            await came(lambda: bool(judge.subjects), "a call")
            await came(lambda: len(process.works[partition].tasks.unfinished) == 4, "two chunks")
            assert not process.has_taken_all()
            await process.stop(0)
            assert len(process.works[partition].tasks.unfinished) == 4

    run(work())


def test_a_task_that_is_repeated_changes_nothing(kafka: KafkaConnection) -> None:
    """Tasks are delivered at least once, and the presence of a judge makes no difference."""

    async def work() -> None:
        exchanges = sessions(2, 3)
        tasks = tasks_of(ALL, exchanges)
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish([*tasks, *tasks])
            judge = WatchedJudge(SoundJudge())
            first = rig.process(judge)
            await first.work(*range(PARTITIONS))
            await first.wait_until_drained()
            call_count = len(judge.subjects)
            await first.stop()
            for judge_or_none in (judge, None):
                await rig.publish(tasks)
                process = rig.process(judge_or_none)
                await process.work(*range(PARTITIONS))
                await process.wait_until_drained()
                await process.stop()
            assert len(judge.subjects) == call_count
            assert len(await rig.decoded("scores")) == 6
            await rig.check(exchanges)

    run(work())


def test_a_task_that_was_scored_without_a_judge_is_not_scored_again_with_one(kafka: KafkaConnection) -> None:
    """A task scored without a judge must not be paid for when it is delivered again."""

    async def work() -> None:
        exchanges = dialogue("s", 3)
        tasks = tasks_of(ALL, exchanges)
        async with scoring_on(kafka, ALL) as rig:
            judge = WatchedJudge(SoundJudge())
            for judge_or_none in (None, judge):
                await rig.publish(tasks)
                process = rig.process(judge_or_none)
                await process.work(*rig.records)
                await process.wait_until_drained()
                await process.stop()
            assert judge.subjects == []
            assert {score.tier2_reason for score in await rig.scores()} == {"no_judge"}
            await rig.check(exchanges)

    run(work())


def test_a_later_revision_pays_for_nothing_that_was_answered(kafka: KafkaConnection) -> None:
    """The task carries the recorded answers; only failed questions are asked again."""

    class RefusingJudge(SoundJudge):
        async def ask(self, question: Question, budget: CallBudget) -> Verdict:
            verdict = await super().ask(question, budget)
            return Verdict(outcome="refused", attempts=1, usage=verdict.usage) if question.purpose == "tier2" else verdict

    async def work() -> None:
        exchanges = dialogue("s", 1)
        [task] = tasks_of(ALL, exchanges)
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish([task])
            first = rig.process(RefusingJudge())
            await first.work(*rig.records)
            await first.wait_until_drained()
            await first.stop()
            earlier, _ = await rig.calls()
            assert {judgement.purpose: judgement.outcome for judgement in earlier} == {"tier2": "refused", "tier3": "answered"}
            revised_task = msgspec.structs.replace(task, revision=1, earlier_judgements=tuple(map(encode, earlier)))
            await rig.publish([revised_task])
            judge = WatchedJudge(SoundJudge())
            second = rig.process(judge)
            await second.work(*rig.records)
            await second.wait_until_drained()
            await second.stop()
            judgements, _ = await rig.calls()
            assert len(judge.subjects) == 1
            assert [judgement.purpose for judgement in judgements if judgement.subject_revision == 1] == ["tier2"]
            last = next(score for score in await rig.scores() if score.revision == 1)
            assert last.tier2_state == "scored"
            assert last.tier3_state == "scored"
            assert nano_of(last.cost_usd) == sum(nano_of(judgement.cost_usd or 0) for judgement in judgements)

    run(work())


def test_a_last_turn_asks_only_new_questions_after_its_partition_moved(kafka: KafkaConnection) -> None:
    """A session may close hours after a routine sample, when another process owns the partition."""

    async def work() -> None:
        exchanges = dialogue("s1", 10)
        closing = build.closing("s1", 11)
        outcome = IntakeStep(Policy())(build.batch("exchanges", [*exchanges, closing]), {})
        tasks = [record for _, record in outcome.records if isinstance(record, ScoringTask)]
        sampled_tasks = [task for task in tasks if not task.revision]
        last_turn_tasks = [task for task in tasks if task.revision]
        assert sampled_tasks[-1].exchange_id == "s1:10"
        assert sampled_tasks[-1].sampling_reason == "routine_sample"
        assert [task.exchange_id for task in last_turn_tasks] == ["s1:8", "s1:9", "s1:10"]
        async with scoring_on(kafka, Policy()) as rig:
            for published_tasks in (sampled_tasks, last_turn_tasks):
                await rig.publish(published_tasks)
                process = rig.process(SoundJudge())
                await process.work(*rig.records)
                await process.wait_until_drained()
                await process.stop()
            judgements, _ = await rig.calls()
            turn_judgements = [judgement for judgement in judgements if judgement.subject_id == "s1:10"]
            assert Counter((judgement.purpose, judgement.subject_revision) for judgement in turn_judgements) == {
                ("tier2", 0): 1,
                ("tier3", 1): 1,
            }
            (final_score,) = [score for score in await rig.scores() if score.exchange_id == "s1:10" and score.revision]
            assert final_score.sampling_reason == "last_turns"
            assert final_score.sampling_probability == 1.0
            assert final_score.tier3_state == "scored"
            assert nano_of(final_score.cost_usd) == sum(nano_of(judgement.cost_usd or 0) for judgement in turn_judgements)

    run(work())


def test_without_a_judge_a_last_turn_uses_recorded_answers_after_its_partition_moved(kafka: KafkaConnection) -> None:
    """A takeover between a turn's score and the end of its session must not lose a paid answer."""

    async def work() -> None:
        exchanges = [*dialogue("s1", 10), build.closing("s1", 11)]
        outcome = IntakeStep(Policy())(build.batch("exchanges", exchanges), {})
        turn_tasks = [
            record for _, record in outcome.records if isinstance(record, ScoringTask) and record.exchange_id == "s1:10"
        ]
        assert [(task.revision, task.sampling_reason) for task in turn_tasks] == [(0, "routine_sample"), (1, "last_turns")]
        async with scoring_on(kafka, Policy()) as rig:
            await rig.publish(turn_tasks[:1])
            judging = rig.process(SoundJudge(), Mortal(rig.producer, 3))  # reservation, judgement, score
            await judging.work(*rig.records)
            await judging.mortal.dead.wait()
            await judging.kill()
            for published_tasks in (), turn_tasks[1:]:
                await rig.publish(published_tasks)
                process = rig.process(None)
                await process.work(*rig.records)
                await process.wait_until_drained()
                await process.stop()
            first, last = sorted(await rig.scores(), key=lambda score: score.revision)
            assert first.tier2_state == "scored"
            assert last.tier2_state == "scored"
            assert last.tier3_reason == "no_judge"
            assert last.tier2_score == first.tier2_score

    run(work())


def test_interrupted_calls_are_charged_even_without_a_judge(kafka: KafkaConnection) -> None:
    """Removing the key does not undo paid calls."""

    async def work() -> None:
        exchanges = sessions(3, 2)
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish(tasks_of(ALL, exchanges))
            judge = WatchedJudge(SoundJudge(), "s0")
            first = rig.process(judge)
            await first.work(*range(PARTITIONS))
            await came(lambda: bool(judge.hanging), "a call that hangs")
            await first.kill()
            second = rig.process(None)
            await second.work(*range(PARTITIONS))
            await second.wait_until_drained()
            await second.stop()
            await rig.check(exchanges)
            judgements, _ = await rig.calls()
            assert "s0:1" in {judgement.subject_id for judgement in judgements if judgement.outcome == "interrupted"}

    run(work())


def test_an_invalid_task_is_a_dead_letter_and_stops_no_other(kafka: KafkaConnection) -> None:
    """A bad record becomes a dead letter with its bytes, and may be sent again."""

    async def work() -> None:
        exchanges = dialogue("s", 3)
        first, second, third = tasks_of(ALL, exchanges)
        bad = msgspec.structs.replace(second, exchange=encode(build.judgement("s", 2)))
        async with scoring_on(kafka, ALL) as rig:
            await rig.produce(TASKS, [(b"local/s", b"poison"), *((b"local/s", encode(task)) for task in (first, bad, third))])
            process = rig.process(SoundJudge())
            await process.work(*rig.records)
            await process.wait_until_drained()
            await process.stop()
            [partition] = rig.records
            assert sorted((letter.stage, letter.reason, letter.position) for letter in await rig.letters()) == [
                ("decoding", "framing", 0),
                ("scoring", "stage_failed", 2),
            ]
            assert {letter.partition for letter in await rig.letters()} == {partition}
            rig.committed.clear()
            await rig.publish([second])
            successor = rig.process(SoundJudge())
            await successor.work(*rig.records)
            await successor.wait_until_drained()
            await successor.stop()
            assert [letter.reason for letter in await rig.letters() if letter.stage == "scoring"] == ["stage_failed"]
            await rig.check(exchanges)

    run(work())


def test_a_process_that_may_have_lost_its_partitions_writes_nothing(kafka: KafkaConnection) -> None:
    """A frozen process may wake up after others took its partitions: its writes would pay and score twice."""

    async def work() -> None:
        is_sure = [True]
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish(tasks_of(ALL, dialogue("s", 2)))
            [partition] = rig.records
            frozen = asyncio.Event()

            class FreezingJudge(SoundJudge):
                async def ask(self, question: Question, budget: CallBudget) -> Verdict:
                    verdict = await super().ask(question, budget)
                    is_sure[0] = False
                    frozen.set()
                    return verdict

            process = rig.process(FreezingJudge(), is_sure=lambda: is_sure[0])
            await process.work(partition)
            await frozen.wait()
            await process.revoke(partition, grace=0)
            await process.take_again(partition)
            await process.stop(0)
            judgements, reservations = await rig.calls()
            assert len(judgements) == 0
            assert len(reservations) == 1
            assert len(await rig.scores()) == 0

    run(work())


def test_a_process_unsure_of_its_partitions_waits_before_it_writes(
    kafka: KafkaConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a broker is silent, others may already own the partitions, and two processes would pay for one call."""
    monkeypatch.setattr(partitions, "RETRY_SECONDS", 0.0)

    async def work() -> None:
        is_sure = [True]
        exchanges = dialogue("s", 2)
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish(tasks_of(ALL, exchanges))
            [partition] = rig.records
            was_asked = asyncio.Event()

            class Interrupted(SoundJudge):
                async def ask(self, question: Question, budget: CallBudget) -> Verdict:
                    verdict = await super().ask(question, budget)
                    is_sure[0] = was_asked.is_set()
                    was_asked.set()
                    return verdict

            process = rig.process(Interrupted(), is_sure=lambda: is_sure[0])
            await process.work(partition)
            await was_asked.wait()
            for _ in range(100):
                await asyncio.sleep(0)
            judgements, reservations = await rig.calls()
            assert len(judgements) == 0
            assert len(reservations) == 1
            assert len(await rig.scores()) == 0
            is_sure[0] = True
            await process.wait_until_drained()
            await process.stop()
            await rig.check(exchanges)

    run(work())


def test_records_that_the_broker_refuses_are_sent_again(kafka: KafkaConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporarily missing broker costs only time."""
    monkeypatch.setattr(partitions, "RETRY_SECONDS", 0.0)

    class Unsteady(Mortal):
        """Fails every second call, sometimes after the broker has accepted the record."""

        calls = 0

        async def send(self, topic: str, messages: Any, *, partition: int | None = None) -> object:
            self.calls += 1
            if self.calls % 4 == 1:
                await super().send(topic, messages, partition=partition)
            if self.calls % 2:
                raise BrokerError("away")
            return await super().send(topic, messages, partition=partition)

    async def work() -> None:
        exchanges = sessions(2, 3)
        async with scoring_on(kafka, CAPPED) as rig:
            await rig.publish(tasks_of(CAPPED, exchanges))
            process = rig.process(MoodyJudge(3, answer), Unsteady(rig.producer))
            await process.work(*range(PARTITIONS))
            await process.wait_until_drained()
            await process.stop()
            await rig.check(exchanges)

    run(work())


def test_a_failing_judge_over_http_is_logged_once_and_scores_after_it_recovers(
    kafka: KafkaConnection, simulator: RunningJudge, caplog: pytest.LogCaptureFixture
) -> None:
    """The log must report a failing judge once, and its recovery once."""

    async def work() -> None:
        exchanges = sessions(2, 3)
        simulator.reset("unauthorized,answer")
        judge = live_judge(simulator.base_url)
        async with scoring_on(kafka, ALL) as rig:
            await rig.publish(tasks_of(ALL, exchanges))
            process = rig.process(judge)
            with caplog.at_level(logging.INFO, logger="streams.judging.judging_partition"):
                await process.work(*range(PARTITIONS))
                await process.wait_until_drained()
            await process.stop()
            await judge.aclose()
            await rig.check(exchanges)
            assert process.calls.outcomes["provider_error"] == 1
            assert process.calls.spent_usd > 0

    run(work())
    messages = [
        log_record.getMessage() for log_record in caplog.records if log_record.name == "streams.judging.judging_partition"
    ]
    failure_message, recovery_message = messages
    assert failure_message.startswith("the judge does not answer")
    assert recovery_message.startswith("the judge answers")
