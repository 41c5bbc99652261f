"""Scoring on Kafka for tests: tasks, judges that are watched, and what must hold of the scores on the topics."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import builders as build
from engines import runner_over
from invariants import encoded
from kafka_judging import PARTITIONS, Rig, topics_of

from analytics.store.store import Store
from audit.cost import nano_of
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from audit.policy.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import Exchange, Judgement, Score, ScoringTask
from service.simulator.scoring import simulated_answer
from streams.judges.protocol import CallBudget, Judge, Verdict
from streams.judging.judged_stages import SCORING, STATE
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer
from streams.kafka.states import StateTopic
from streams.steps.intake import IntakeStep

TOPICS = topics_of(SCORING)
TASKS = SCORING.source


def answer(question: Question) -> str:
    """What the simulated judge says, without a server."""
    return canonical_json(simulated_answer(question.schema, {one.name: one.literal for one in question.materials}))


def tasks_of(policy: Policy, exchanges: Sequence[Exchange]) -> list[ScoringTask]:
    """The tasks that intake makes of exchanges."""
    outcome = IntakeStep(policy)(build.batch("exchanges", exchanges), {})
    return [record for _, record in outcome.records if isinstance(record, ScoringTask)]


def dialogue(session: str, turns: int) -> list[Exchange]:
    """Exchanges of a session; each says which it is, so that a judge can be watched."""
    return [
        build.exchange(session, turn, f"It is done, number {session}:{turn}, today.", turn_number=turn)
        for turn in range(1, turns + 1)
    ]


def subject_of(question: Question) -> str:
    """The exchange that a question is about."""
    found = re.search(r"number (\w+:\d+), today", " ".join(one.literal for one in question.materials))
    assert found is not None
    return found[1]


class WatchedJudge:
    """Notes which exchanges it is asked about, in order, and asks another judge; about those of some sessions it says nothing, ever."""

    def __init__(self, inner: Judge, *silent_about: str) -> None:
        self.inner = inner
        self.silent_about = silent_about
        self.subjects: list[str] = []
        self.hanging: list[str] = []
        """The exchanges about which calls hang: money is set aside for each."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Note and pass on."""
        subject = subject_of(question)
        self.subjects.append(subject)
        if subject.split(":")[0] in self.silent_about:
            assert await budget.reserve()
            self.hanging.append(subject)
            await asyncio.Event().wait()
        return await self.inner.ask(question, budget)

    async def aclose(self) -> None:
        """Nothing to give back."""


class ScoringRig(Rig):
    """A rig of the scoring stage."""

    async def scores(self) -> list[Score]:
        """The scores, each revision once; that repetitions are equal is checked."""
        found: dict[tuple[str, str, int], Score] = {}
        for score in await self.decoded("scores"):
            assert isinstance(score, Score)
            assert score == found.setdefault((score.connection, score.exchange_id, score.revision), score)
        return list(found.values())

    async def check(self, exchanges: Sequence[Exchange]) -> None:
        """What must hold once everything is done, whatever happened on the way."""
        scores, (judgements, reservations) = await self.scores(), await self.calls()
        assert sorted(one.exchange_id for one in exchanges) == sorted(one.exchange_id for one in scores)
        self.check_calls(judgements, reservations)
        spent: Counter[str] = Counter()
        for one in judgements:
            spent[f"{one.connection}/{one.session_id}"] += nano_of(one.cost_usd or 0)
        cap = self.policy.for_project("ops").cap
        assert cap is None or all(cost <= cap for cost in spent.values()), "beyond the cap"
        assert sum(spent.values()) == sum(nano_of(one.cost_usd) for one in scores)
        assert {key: cost for key, cost in spent.items() if cost} == await self._spent_in_states()
        assert self._embedded(exchanges, judgements) == sorted(map(encode, scores))

    async def _spent_in_states(self) -> dict[str, int]:
        states = StateTopic(self.kafka, "scoring", self.producer)
        found: dict[str, int] = {}
        for partition, records in self.records.items():
            await states.load(partition)
            keys = {record.key.decode() for record in records}
            found |= {key: STATE.decode(one.state).spent for key, one in states.get(partition, keys).items()}
        states.close()
        return {key: cost for key, cost in found.items() if cost}

    def _embedded(self, exchanges: Sequence[Exchange], judgements: Sequence[Judgement]) -> list[bytes]:
        """The scores that the embedded runner makes of the same exchanges from the same judgements."""
        with Store(None) as store:
            with store.transaction() as transaction:
                transaction.append("exchanges", [encode(one) for one in exchanges])
                transaction.append("judgements", [encode(one) for one in judgements])
            runner_over(store, self.policy).run()
            return encoded(store, "scores")


@asynccontextmanager
async def scoring_on(kafka: KafkaConnection, policy: Policy, partitions: int = PARTITIONS) -> AsyncIterator[ScoringRig]:
    """A rig over topics that are there."""
    producer = RecordProducer(kafka)
    await producer.start()
    try:
        yield ScoringRig(SCORING, kafka, policy, producer, partitions)
    finally:
        await producer.stop()
