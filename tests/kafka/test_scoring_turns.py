"""Scoring a backlog with a slow judge: partitions take turns, started exchanges are finished, and offsets advance in small steps."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from support.engines import policy_of
from support.kafka_judging import TOPICS, ScoringRig, SoundJudge, answer, came, dialogue, scoring_on, subject_of, tasks_of

from audit.exchanges.questions import Question
from schemas.codec.single_object import decode
from schemas.records import Exchange
from streams.judges.protocol import CallBudget, Verdict
from streams.judging import judging_partition
from streams.judging.judging_partition import TaskSlots
from streams.kafka.connection import KafkaConnection

POLICY = policy_of(sampling={"enabled": False})
PARTITIONS, AT_ONCE, WINDOW, CHUNK = 6, 4, 12, 3
SESSIONS, TURNS = 36, 3
LAST = "tier3"
"""What each exchange is asked about last."""


class PatientJudge(SoundJudge):
    """Answers the oldest question when released; records its questions and the most concurrent ones."""

    def __init__(self) -> None:
        super().__init__(answer)
        self.asked: list[str] = []
        self.finished: set[str] = set()
        self.most_begun = 0
        self._open: list[asyncio.Event] = []

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Wait until the test releases the question."""
        subject, told = subject_of(question), asyncio.Event()
        self.asked.append(subject)
        self.most_begun = max(self.most_begun, len({*self.asked} - self.finished))
        self._open.append(told)
        verdict = await super().ask(question, budget)
        await told.wait()
        if question.purpose == LAST:
            self.finished.add(subject)
        return verdict

    @property
    def open(self) -> int:
        """Return the number of waiting questions."""
        return len(self._open)

    def answer_one(self) -> None:
        """Answer the oldest question."""
        self._open.pop(0).set()


class Backlog:
    """A rig with a backlog of tasks, one process working on them, and the observations."""

    def __init__(self, rig: ScoringRig, judge: PatientJudge) -> None:
        self.rig = rig
        self.judge = judge
        self.process = rig.process(judge, slots=TaskSlots(AT_ONCE))
        self.partition_of = {
            decode(record.value).exchange_id: number for number, records in rig.records.items() for record in records
        }
        self.steps: dict[int, list[int]] = defaultdict(list)
        self.spreads: list[int] = []
        self.most_waiting = 0
        self._committed = dict.fromkeys(rig.records, 0)

    async def work(self) -> None:
        """Answer one question after another until all work is done."""
        await self.process.work(*self.rig.records, size=CHUNK)
        partitions = self.process.works
        await came(
            lambda: len(partitions) == PARTITIONS and all(partition.tasks.unfinished for partition in partitions.values()),
            "all to be queued",
        )
        await came(self._is_settled, "the judge to be asked")
        while self.judge.open:
            self._look()
            self.judge.answer_one()
            await came(self._is_settled, "the judge to be asked")
        await self.process.wait_until_drained()
        self._look()
        await self.process.stop()

    def _is_settled(self) -> bool:
        """Return whether all running tasks wait for the judge and other results are written."""
        partitions = self.process.works.values()
        under_way = sum(len(partition.tasks._runners) for partition in partitions)
        return under_way == self.judge.open and (under_way > 0 or self.rig.is_done())

    def _look(self) -> None:
        begun = Counter(self.partition_of[one] for one in {*self.judge.asked})
        if all(begun[number] < len(records) for number, records in self.rig.records.items()):
            self.spreads.append(max(begun.values()) - min(begun[number] for number in self.rig.records))
        self.most_waiting = max(self.most_waiting, *(len(one.tasks.unfinished) for one in self.process.works.values()))
        for number in self.rig.records:
            if step := self.rig.committed[number] - self._committed[number]:
                self.steps[number].append(step)
                self._committed[number] += step


def exchanges_side_by_side() -> list[Exchange]:
    """Return exchanges of concurrent sessions, one turn of each after another."""
    dialogues = [dialogue(f"s{number}", TURNS) for number in range(SESSIONS)]
    return [one for turn in zip(*dialogues, strict=True) for one in turn]


def in_order(asked: Sequence[str], session: str) -> list[int]:
    """Return a session's turns in the order of their first questions; a returning turn counts again."""
    return [int(subject.split(":")[1]) for subject, _ in groupby(one for one in asked if one.startswith(f"{session}:"))]


def test_a_backlog_moves_on_evenly_and_in_small_steps_while_the_judge_is_slow(
    kafka: KafkaConnection, make_topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 tasks and a slow judge, only two of six partitions were scored for minutes, without a commit."""
    monkeypatch.setattr(judging_partition, "WINDOW_TASKS", WINDOW)
    make_topics(
        *TOPICS, partitions=PARTITIONS, configs={"message.timestamp.type": "LogAppendTime", "max.message.bytes": "16777216"}
    )

    async def work() -> None:
        exchanges, judge = exchanges_side_by_side(), PatientJudge()
        async with scoring_on(kafka, POLICY, PARTITIONS) as rig:
            await rig.publish(tasks_of(POLICY, exchanges))
            assert len(rig.records) == PARTITIONS
            backlog = Backlog(rig, judge)
            await backlog.work()
            await rig.check(exchanges)

        assert judge.most_begun == AT_ONCE, "more was begun before what was begun was finished"
        assert max(backlog.spreads) <= AT_ONCE + 1, "a partition was passed over"
        assert max(step for steps in backlog.steps.values() for step in steps) <= 2 * CHUNK
        for number, records in rig.records.items():
            assert len(records) == sum(backlog.steps[number])
            assert len(backlog.steps[number]) >= len(records) // (2 * CHUNK)
        for number in range(SESSIONS):
            assert in_order(judge.asked, f"s{number}") == [*range(1, TURNS + 1)]
        assert backlog.most_waiting <= WINDOW + CHUNK - 1

    asyncio.run(asyncio.wait_for(work(), 900))
