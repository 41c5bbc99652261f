"""Parity: the embedded runner, workers on Kafka and a replay give the same records for the same input.

The bytes of every task, score and diagnosis are compared. The input has duplicates and late and disordered records, the number of workers
varies, and workers are killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from support import evaluation_builders as evaluated
from support.clocks import TickingClock
from support.effort import SOAK
from support.engines import MoodyJudge, engine_over, runner_over
from support.fleet_histories import EVENTS, EXCHANGES, History, build_history
from support.servers import Child, Home, Nursery, nursery
from support.servers import until as wait_until

from analytics.store.store import Store
from audit.evaluation.evaluating import next_attempt
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json, stable_id
from audit.policy import Policy, load_policy
from driftline_trial.simulator.answers import simulated_answer
from schemas.codec.single_object import decode, encode
from schemas.records import DeadLetter, EvaluationRequest, Record
from streams.judging.judged_stages import EVALUATION
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer, key_of
from streams.log.admission import DEAD_LETTERS, EncodedRecords
from streams.stage_batches import StageBatch

pytestmark = pytest.mark.slow

POLICY = "version: 1\ndefaults:\n  costCapPerSession: 0.2\n"
DERIVED = ("scoring-tasks", "scores", "diagnoses", "evaluations")
PARTITIONS = 4
PATIENCE = 120.0
"""Seconds to wait for the next record, which include a rebalance or a start on a busy machine."""
Records = Mapping[str, frozenset[bytes]]
"""By topic, every record that was derived, as bytes."""


def answer(question: Question) -> str:
    """Return the simulated judge's answer without a server; for runs always the same to the same question."""
    if question.purpose in EVALUATION.purposes:
        return canonical_json(evaluated.answer(1 + int(question.fingerprint[:4], 16) % 9))
    return canonical_json(
        simulated_answer(question.schema, {material.name: material.literal for material in question.materials})
    )


def read_records(store: Store, topic: str) -> list[Record]:
    """Return a topic's records in a store, in order."""
    return [record for _, _, record in StageBatch.of(topic, store.read(topic, 0, store.end_of(topic))).records()]


def derived(store: Store) -> Records:
    """Return the records of the stages' topics in a store, each once."""
    records_by_topic = {topic: [encode(record) for record in read_records(store, topic)] for topic in DERIVED}
    for topic, records in records_by_topic.items():
        assert len(records) == len(set(records)), topic
    return {topic: frozenset(records) for topic, records in records_by_topic.items()}


def refused(records: Sequence[Record]) -> Counter[tuple[str, str]]:
    """Return the dead letters by origin and reason; repeated ones count once."""
    letters = {(record.source, record.reason, record.digest) for record in records if isinstance(record, DeadLetter)}
    return Counter((source, reason) for source, reason, _ in letters)


class Embedded:
    """The results of one process for a history with an unreliable judge, and the judge's recorded calls."""

    def __init__(self, inputs: History, policy: Policy) -> None:
        with Store(None) as store:
            self.refused = asyncio.run(self._live(store, inputs, policy))
            runner_over(store, policy).run()
            self.records = derived(store)
            self.judgements = read_records(store, "judgements")
            reasons = (
                "SELECT tier2_reason FROM scores UNION ALL SELECT unnest(iterations).outcome || ' of a run' FROM evaluations"
            )
            self.reasons = Counter(row[0] for row in store.cursor().execute(reasons).fetchall())

    @staticmethod
    async def _live(store: Store, inputs: History, policy: Policy) -> Counter[tuple[str, str]]:
        """Score all records; returns the number of rejected records by topic, each counted once."""
        refusals: Counter[tuple[str, str]] = Counter()
        async with engine_over(store, policy, MoodyJudge(7, answer), TickingClock()) as engine:
            for topic, records in inputs.topics.items():
                conflicts = (await engine.publish(topic, records)).conflicts
                refusals[topic, "conflicting_id"] += len({encode(records[index]) for index in conflicts})
            await engine.wait_until_drained()
        return +refusals


@pytest.fixture(scope="module")
def inputs() -> History:
    """Return the history with evaluation requests for some sessions, some of them repeated."""
    requests = [build_request(f"s{number % 16}", number // 16) for number in range(32)]
    return replace(build_history(20261122), requests=[*requests, *requests[::3]])


def build_request(session: str, number: int) -> EvaluationRequest:
    """Return a request to evaluate a session by a case."""
    case = evaluated.case(case_id=f"case-{number}")
    evaluation_id = stable_id("evaluation", session, number)
    return next_attempt(evaluated.make_request(case, session_id=session, evaluation_id=evaluation_id), 0, ())


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Return the policy that workers read from a file."""
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(POLICY)
    return load_policy(path)


@pytest.fixture(scope="module")
def embedded(inputs: History, policy: Policy) -> Embedded:
    """Return the embedded runner's results."""
    return Embedded(inputs, policy)


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of processes."""
    with nursery() as opened:
        yield opened


def test_the_history_is_hard(inputs: History, embedded: Embedded) -> None:
    """The history contains duplicates, conflicts, revisions, caps and judge failures; parity over an easy one would prove little."""
    assert len({encode(exchange) for exchange in inputs.exchanges}) < len(inputs.exchanges)
    assert embedded.refused.keys() == {(EXCHANGES, "conflicting_id"), (EVENTS, "conflicting_id")}
    assert {"always", "cost_cap", "timeout", "provider_error"} <= embedded.reasons.keys()
    assert {"answered of a run", "timeout of a run", "provider_error of a run"} <= embedded.reasons.keys()
    assert any(getattr(decode(diagnosis), "revision", 0) for diagnosis in embedded.records["diagnoses"])


def test_running_again_from_what_was_recorded_gives_the_same(inputs: History, policy: Policy, embedded: Embedded) -> None:
    """This runs the embedded runner without a judge, with batches of any size."""
    for size in (1, 97):
        with Store(None) as store:
            runner = runner_over(store, policy)
            runner.publish(accepted("judgements", embedded.judgements))
            for topic, records in inputs.topics.items():
                for start in range(0, len(records), size * 50):
                    runner.publish(accepted(topic, records[start : start + size * 50]))
                    if size > 1:
                        runner.run()
            runner.run()
            assert embedded.records == derived(store)


def accepted(topic: str, records: Sequence[Record]) -> EncodedRecords:
    """Return records for a topic."""
    encoded_records = EncodedRecords()
    for record in records:
        encoded_records.add(topic, encode(record))
    return encoded_records


class Fleet:
    """Workers as processes, and the records that they produce."""

    def __init__(self, children: Nursery, home: Home, kafka: KafkaConnection) -> None:
        self._children = children
        self._home = home
        self._kafka = kafka
        self.workers: list[Child] = []

    def start(self, processes: int = 1) -> None:
        """Start a worker with this number of processes."""
        command = ("worker", "--kafka", self._kafka.bootstrap, "--processes", str(processes))
        self.workers.append(self._children.start(self._home, *command))

    def kill(self, worker: Child) -> None:
        """Kill the worker processes and their supervisor."""
        for pid in processes_of(worker.pid):
            kill_process(pid)
        worker.kill()
        self.workers.remove(worker)

    def replayed(self) -> frozenset[bytes]:
        """Return the scores of a replay of the topics, after asserting that they equal the workers' scores."""
        replay = self._children.start(self._home, "replay", "--from", "topics", "--kafka", self._kafka.bootstrap, "--json")
        code = replay.wait()
        outcome = json.loads(replay.printed)
        assert code == 0
        assert outcome["equal"] is True
        with Store(Path(outcome["file"])) as store:
            return frozenset(encode(record) for record in read_records(store, "scores"))

    def stop(self, worker: Child) -> None:
        """Stop cleanly."""
        wait_until(lambda: bool(processes_of(worker.pid)), "a worker to start its process")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.logged[-4000:]
        self.workers.remove(worker)


def processes_of(parent: int) -> list[int]:
    """Return a supervisor's worker processes."""
    with suppress(FileNotFoundError, ProcessLookupError):
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in pids if b"--child" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return []


def kill_process(pid: int) -> None:
    """Kill a process, which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def fleet(children: Nursery, folder: Path, kafka: KafkaConnection) -> Iterator[Fleet]:
    """Return a fleet that is stopped at the end."""
    home = Home(folder, POLICY, DRIFTLINE_KAFKA_PREFIX=kafka.prefix)
    opened = Fleet(children, home, kafka)
    try:
        yield opened
    finally:
        for worker in [*opened.workers]:
            opened.kill(worker)


class Topics:
    """Reads the stages' topics from the beginning."""

    def __init__(self, kafka: KafkaConnection) -> None:
        self._kafka = kafka
        self._consumer = AIOKafkaConsumer(**kafka.for_aiokafka(), enable_auto_commit=False, auto_offset_reset="earliest")
        self.values: dict[str, list[bytes]] = defaultdict(list)

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        names = [self._kafka.topic(name) for name in (*DERIVED, DEAD_LETTERS)]
        self._consumer.assign([TopicPartition(name, number) for name in names for number in range(PARTITIONS)])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def read(self) -> None:
        """Read the available records."""
        for partition, records in (await self._consumer.getmany(timeout_ms=200)).items():
            self.values[partition.topic.removeprefix(self._kafka.prefix)] += [record.value for record in records]

    @property
    def records(self) -> Records:
        """Return the stages' records, each once."""
        return {name: frozenset(self.values[name]) for name in DERIVED}

    async def until(self, expected: Records, refusals: Counter[tuple[str, str]]) -> None:
        """Read until all expected records are there; fail with the missing ones if no more arrive."""
        last_count = -1
        last_new_at = time.monotonic()
        while any(expected[name] - self.records[name] for name in DERIVED) or self.refused != refusals:
            if self.count > last_count:
                last_count = self.count
                last_new_at = time.monotonic()
            elif time.monotonic() > last_new_at + PATIENCE:
                assert {name: len(expected[name] - self.records[name]) for name in DERIVED} == dict.fromkeys(DERIVED, 0)
                assert self.refused == refusals
            await self.read()

    @property
    def count(self) -> int:
        """Return the number of records, including duplicates."""
        return sum(map(len, self.values.values()))

    @property
    def refused(self) -> Counter[tuple[str, str]]:
        """Return the dead letters."""
        return refused([decode(letter) for letter in self.values[DEAD_LETTERS]])


async def produce(producer: RecordProducer, topic: str, records: Sequence[Record]) -> None:
    """Produce records with their keys."""
    await producer.send(topic, [(key_of(record), encode(record)) for record in records])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3] if SOAK else [3])
def test_workers_make_what_the_embedded_runner_makes(
    inputs: History, embedded: Embedded, children: Nursery, kafka: KafkaConnection, tmp_path: Path, *, workers: int
) -> None:
    """This uses three undisturbed processes, and also one in a soak run."""
    with TopicAdministration(kafka) as administration:
        administration.create(PARTITIONS, 1)

    async def work(running: Fleet) -> Records:
        producer = RecordProducer(kafka)
        await producer.start()
        try:
            await produce(producer, "judgements", embedded.judgements)
            running.start(workers)
            for topic, records in inputs.topics.items():
                await produce(producer, topic, records)
        finally:
            await producer.stop()
        async with Topics(kafka) as topics:
            await topics.until(embedded.records, embedded.refused)
            return topics.records

    with fleet(children, tmp_path, kafka) as running:
        assert asyncio.run(work(running)) == embedded.records
        for worker in [*running.workers]:
            running.stop(worker)


@pytest.mark.slow
def test_kills_and_rebalances_change_nothing(
    inputs: History, embedded: Embedded, children: Nursery, kafka: KafkaConnection, tmp_path: Path
) -> None:
    """With kills and rebalances the bytes are the same, possibly duplicated on the topics, and so is a replay."""
    with TopicAdministration(kafka) as administration:
        administration.create(PARTITIONS, 1)
    rng = random.Random(4)

    async def disturb(running: Fleet, topics: Topics, number: int) -> None:
        """Wait for the first results, then kill or stop a worker and start another."""
        earlier_count = topics.count
        async with asyncio.timeout(4 * PATIENCE):
            while topics.count == earlier_count:
                await topics.read()
        victim = rng.choice(running.workers)
        if number % 2:
            await asyncio.to_thread(running.stop, victim)
        else:
            await asyncio.to_thread(running.kill, victim)
        running.start()

    async def work(running: Fleet) -> Topics:
        producer = RecordProducer(kafka)
        await producer.start()
        running.start()
        running.start()
        async with Topics(kafka) as topics:
            try:
                await produce(producer, "judgements", embedded.judgements)
                parts = 4
                for number in range(parts):
                    for topic, records in inputs.topics.items():
                        size = len(records) // parts + 1
                        await produce(producer, topic, records[number * size : (number + 1) * size])
                    await disturb(running, topics, number)
            finally:
                await producer.stop()
            await topics.until(embedded.records, embedded.refused)
            return topics

    with fleet(children, tmp_path, kafka) as running:
        topics = asyncio.run(work(running))
        for worker in [*running.workers]:
            running.kill(worker)
        assert running.replayed() == embedded.records["scores"]
    assert topics.records == embedded.records


def test_a_worker_ends_on_sigterm(children: Nursery, kafka: KafkaConnection, tmp_path: Path) -> None:
    """This sends SIGTERM right after the start, when there is no work."""
    with TopicAdministration(kafka) as administration:
        administration.create(PARTITIONS, 1)
    with fleet(children, tmp_path, kafka) as running:
        running.start()
        running.stop(running.workers[0])
