"""Scoring history again from tables, Parquet and Kafka, beside a loop that only consumes and decodes.

Apache Kafka is started for it, or found where DRIFTLINE_TEST_KAFKA says. DRIFTLINE_BENCH_RECORDS sets how many records there are. Each
replay is the command as it is called, from its start to its digest, and must come to the scores that are there.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from analytics.store.store import Store
from audit.cost import Ledger
from audit.exchanges.cascade import drive
from audit.exchanges.questions import Question, Reply
from audit.fingerprints import canonical_json
from audit.policy import Policy
from audit.redaction import Redactor
from benchmarks.bench_judging import exchanges
from benchmarks.measure import print_table, process_cost
from benchmarks.streams.running import environment, kafka, make_topics, measured
from driftline_trial.simulator.answers import simulated_answer
from schemas.codec.single_object import encode
from schemas.records import Exchange, Judgement, Record, ScoringTask
from service.write.replays import list_replays
from streams.engine.embedded import EmbeddedRunner
from streams.judging.judged_stages import SCORING
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer
from streams.log.admission import EncodedRecords
from streams.replay.plan import Outcome
from streams.stage_batches import StageBatch

RECORDS = int(os.environ.get("DRIFTLINE_BENCH_RECORDS", "10000"))
PARTITIONS = 4
TOPICS = ("exchanges", "judgements", "scores")
NOW = datetime(2026, 11, 28, tzinfo=UTC)


def judged(task: ScoringTask, policy: Policy, number: Iterator[int]) -> list[Judgement]:
    """Return the judgements on a task of a judge that answers by simple rules."""
    judging_task = SCORING.open(task, policy, (), ledger=Ledger(None))
    said: list[Judgement] = []

    def answer(question: Question) -> Reply:
        text = canonical_json(simulated_answer(question.schema, {one.name: one.literal for one in question.materials}))
        one = Judgement(
            judgement_id=f"{next(number):032x}",
            fingerprint=question.fingerprint,
            connection=task.connection,
            project=task.project,
            session_id=task.session_id,
            subject_id=task.exchange_id,
            subject_revision=task.revision,
            purpose=question.purpose,
            requested_model=question.model,
            answering_model=question.model,
            outcome="answered",
            answer=text,
            attempts=1,
            input_tokens=1500,
            output_tokens=200,
            cost_usd=0.0001,
            judged_at=NOW,
        )
        said.append(one)
        return Reply(text=text, judgements=(one,))

    drive(judging_task.judging(), answer)
    return said


def fill(database: Path) -> int:
    """Fill a database with exchanges, what was said of them, and their scores; answers how many exchanges there are."""
    policy, number, accepted = Policy(), count(), EncodedRecords()
    said = exchanges(RECORDS)
    for record in said:
        accepted.add("exchanges", encode(record))
    with Store(database) as store:
        runner = EmbeddedRunner(store, policy, Redactor(policy.redaction), lambda: NOW)
        runner.publish(accepted)
        runner.run()
        # Judged as if a judge had been there, then everything derived is made from that.
        tasks = [one for one in records_in(store, "scoring-tasks") if isinstance(one, ScoringTask)]
        judgements = [one for task in tasks for one in judged(task, policy, number)]
        with store.transaction() as transaction:
            transaction.append("judgements", [encode(one) for one in judgements])
        runner.rebuild()
        store.checkpoint()
    return sum(isinstance(one, Exchange) for one in said)


def records_in(store: Store, topic: str) -> list[Record]:
    """Return the records of a topic."""
    return [record for _, _, record in StageBatch.of(topic, store.read(topic, 0, store.end_of(topic))).records()]


async def produce(connection: KafkaConnection, database: Path) -> None:
    """Produce to the topics what the database has."""
    producer = RecordProducer(connection)
    await producer.start()
    try:
        with Store(database) as store:
            for topic in TOPICS:
                batch = StageBatch.of(topic, store.read(topic, 0, store.end_of(topic)))
                messages = [(key.encode(), encode(record)) for _, key, record in batch.records()]
                for start in range(0, len(messages), 2000):
                    await producer.send(topic, messages[start : start + 2000])
    finally:
        await producer.stop()


def replay(database: Path, label: str, *arguments: str) -> tuple[float, float]:
    """Seconds and peak MB of a replay; RuntimeError when its scores are others."""
    command = [sys.executable, "-m", "service.cli.main", "replay", "--db", str(database), "--label", label, *arguments]
    cost = process_cost(command)
    found = [one for one in list_replays(database) if isinstance(one, Outcome) and one.plan.label == label]
    if not found or not found[0].is_equal:
        raise RuntimeError(f"replay {label} did not come to the scores that are there")
    return cost


def row(way: str, said: int, seconds: float, memory: float) -> list[str]:
    """Return a row of the table."""
    return [way, f"{seconds:.1f}", f"{said / seconds:,.0f}", f"{memory:,.0f}"]


def main() -> None:
    """Print exchanges per second and memory of each source and number of processes, beside the bare loop."""
    os.environ.update(environment())
    with tempfile.TemporaryDirectory() as folder, kafka() as bootstrap:
        database, parquet = Path(folder) / "history.duckdb", Path(folder) / "parquet"
        said = fill(database)
        connection = KafkaConnection(bootstrap, prefix=f"replay-{os.getpid()}-")
        make_topics(connection, PARTITIONS)
        asyncio.run(produce(connection, database))
        os.environ |= {"DRIFTLINE_KAFKA": bootstrap, "DRIFTLINE_KAFKA_PREFIX": connection.prefix}
        process_cost([sys.executable, "-m", "service.cli.main", "export", str(parquet), "--db", str(database)])
        bare = measured(sys.executable, "bare", [bootstrap, connection.topic("exchanges"), str(RECORDS), "proven"])
        rows = [row("consume and decode, nothing else", said, bare["seconds"], bare["memory"])]
        for source, place in (("tables", "tables"), ("Parquet", str(parquet)), ("topics", "topics")):
            for workers in dict.fromkeys((1, os.cpu_count() or 1)):
                label = f"{source.lower()}-{workers}"
                cost = replay(database, label, "--from", place, "--workers", str(workers))
                rows.append(row(f"replay from {source}, {workers} at once", said, *cost))
    print(f"{said:,} exchanges, every sampled one with recorded answers; {PARTITIONS} partitions.\n")
    print_table(["way", "seconds", "exchanges/s", "peak MB of a process"], rows)
