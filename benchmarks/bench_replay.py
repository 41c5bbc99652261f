"""Replays from tables, Parquet and Kafka, beside a loop that only consumes and decodes.

Starts Apache Kafka, or uses the broker that DRIFTLINE_TEST_KAFKA names. DRIFTLINE_BENCH_RECORDS sets the number of records. Each replay runs
the command from its start to its digest, and must produce the stored scores.
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


def build_judgements(task: ScoringTask, policy: Policy, number: Iterator[int]) -> list[Judgement]:
    """Return the judgements of the simulated judge on a task."""
    judging_task = SCORING.open(task, policy, (), ledger=Ledger(None))
    judgements: list[Judgement] = []

    def answer(question: Question) -> Reply:
        text = canonical_json(
            simulated_answer(question.schema, {judgement.name: judgement.literal for judgement in question.materials})
        )
        judgement = Judgement(
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
        judgements.append(judgement)
        return Reply(text=text, judgements=(judgement,))

    drive(judging_task.judging(), answer)
    return judgements


def fill(database: Path) -> int:
    """Fill a database with exchanges, judgements and scores; return the number of exchanges."""
    policy, number, accepted = Policy(), count(), EncodedRecords()
    records = exchanges(RECORDS)
    for record in records:
        accepted.add("exchanges", encode(record))
    with Store(database) as store:
        runner = EmbeddedRunner(store, policy, Redactor(policy.redaction), lambda: NOW)
        runner.publish(accepted)
        runner.run()
        # Store the judgements of a simulated judge, then rebuild the scores from them.
        tasks = [record for record in records_in(store, "scoring-tasks") if isinstance(record, ScoringTask)]
        judgements = [record for task in tasks for record in build_judgements(task, policy, number)]
        with store.transaction() as transaction:
            transaction.append("judgements", [encode(record) for record in judgements])
        runner.rebuild()
        store.checkpoint()
    return sum(isinstance(record, Exchange) for record in records)


def records_in(store: Store, topic: str) -> list[Record]:
    """Return the records of a topic."""
    return [record for _, _, record in StageBatch.of(topic, store.read(topic, 0, store.end_of(topic))).records()]


async def produce(connection: KafkaConnection, database: Path) -> None:
    """Produce the records of the database to the topics."""
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
    """Return seconds and peak MB of a replay; RuntimeError if its scores differ from the stored ones."""
    command = [sys.executable, "-m", "service.cli.main", "replay", "--db", str(database), "--label", label, *arguments]
    cost = process_cost(command)
    outcomes = [outcome for outcome in list_replays(database) if isinstance(outcome, Outcome) and outcome.plan.label == label]
    if not outcomes or not outcomes[0].is_equal:
        raise RuntimeError(f"replay {label}: its scores differ from the stored ones")
    return cost


def row(label: str, exchange_count: int, seconds: float, memory: float) -> list[str]:
    """Return a row of the table."""
    return [label, f"{seconds:.1f}", f"{exchange_count / seconds:,.0f}", f"{memory:,.0f}"]


def main() -> None:
    """Print exchanges per second and memory of each source and number of processes, beside the bare loop."""
    os.environ.update(environment())
    with tempfile.TemporaryDirectory() as folder, kafka() as bootstrap:
        database, parquet = Path(folder) / "history.duckdb", Path(folder) / "parquet"
        exchange_count = fill(database)
        connection = KafkaConnection(bootstrap, prefix=f"replay-{os.getpid()}-")
        make_topics(connection, PARTITIONS)
        asyncio.run(produce(connection, database))
        os.environ |= {"DRIFTLINE_KAFKA": bootstrap, "DRIFTLINE_KAFKA_PREFIX": connection.prefix}
        process_cost([sys.executable, "-m", "service.cli.main", "export", str(parquet), "--db", str(database)])
        bare = measured(sys.executable, "bare", [bootstrap, connection.topic("exchanges"), str(RECORDS), "proven"])
        rows = [row("consume and decode, nothing else", exchange_count, bare["seconds"], bare["memory"])]
        for source, origin in (("tables", "tables"), ("Parquet", str(parquet)), ("topics", "topics")):
            for workers in dict.fromkeys((1, os.cpu_count() or 1)):
                label = f"{source.lower()}-{workers}"
                cost = replay(database, label, "--from", origin, "--workers", str(workers))
                rows.append(row(f"replay from {source}, {workers} at once", exchange_count, *cost))
    print(f"{exchange_count:,} exchanges, every sampled one with recorded answers; {PARTITIONS} partitions.\n")
    print_table(["way", "seconds", "exchanges/s", "peak MB of a process"], rows)
