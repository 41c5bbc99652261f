"""Workers produce the same records as one process, despite chunk sizes and kills; bad records become dead letters."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import builders as build
from support.clocks import NOW, TickingClock
from support.fleet_histories import build_history
from support.kafka_workers import EVENTS, STAGES, Collecting, contents, keyed, processing, produce, until_committed
from support.servers import Home, Nursery, nursery, until

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import decode, encode
from schemas.records import DeadLetter, Diagnosis, Record
from streams.engine.embedded import EmbeddedRunner
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.partitions import KafkaStage, Watchdog
from streams.kafka.reading import Chunk
from streams.kafka.topics import TOPICS as SPECS
from streams.kafka.topics import state_topic
from streams.log.admission import DEAD_LETTERS, EncodedRecords
from streams.stage_batches import StageBatch

MakeTopics = Callable[..., None]
PARTITIONS = 3
POLICY = Policy()
RESULT_TOPICS = ("scoring-tasks", "scores", "diagnoses", DEAD_LETTERS)
TOPICS = (*(stage.source for stage in STAGES), *(state_topic(stage.name) for stage in STAGES), *RESULT_TOPICS)
NAMES = ",".join(stage.name for stage in STAGES)


async def read_results(kafka: KafkaConnection, partitions: int = PARTITIONS) -> dict[str, set[bytes]]:
    """Return the stages' records by topic, each once."""
    return {topic: {record.value for record in await contents(kafka, topic, partitions)} for topic in RESULT_TOPICS}


def embedded(topics: dict[str, Sequence[Record]]) -> dict[str, set[bytes]]:
    """Return the embedded runner's results for the same records."""
    results: dict[str, set[bytes]] = defaultdict(set)
    with Store(None) as store:
        runner = EmbeddedRunner(store, POLICY, Redactor(POLICY.redaction), TickingClock(NOW))
        for topic, records in topics.items():
            accepted = EncodedRecords()
            for record in records:
                accepted.add(topic, encode(record))
            runner.publish(accepted)
        for stage in STAGES:
            while runner.advance(stage):
                pass
        for topic in RESULT_TOPICS:
            batch = StageBatch.of(topic, store.read(topic, 0, store.end_of(topic))) if topic != DEAD_LETTERS else None
            for _, _, record in batch.records() if batch else ():
                results[topic].add(encode(record))
        results[DEAD_LETTERS] = {b"%d" % store.end_of(DEAD_LETTERS)}
    return results


@pytest.mark.parametrize("records_at_once", [1, 13, 5000])
def test_chunks_of_any_size_give_the_records_of_the_embedded_runner(
    kafka: KafkaConnection, make_topics: MakeTopics, records_at_once: int
) -> None:
    """Chunk boundaries must make no difference, including for duplicates, conflicts and late records."""
    make_topics(*TOPICS, partitions=PARTITIONS)
    inputs = build_history(7, sessions=4 if records_at_once == 1 else 16)
    expected = embedded(dict(inputs.topics))

    async def run() -> None:
        for topic, records in inputs.topics.items():
            await produce(kafka, topic, keyed(records))
        async with processing(kafka, [dataclasses.replace(stage, records_at_once=records_at_once) for stage in STAGES]):
            for stage in STAGES:
                await until_committed(kafka, stage.source, PARTITIONS)
        derived = await read_results(kafka)
        letters = {decode(message).digest for message in derived.pop(DEAD_LETTERS)}  # type: ignore[attr-defined]
        assert expected.pop(DEAD_LETTERS) == {b"%d" % len(letters)}
        assert {topic: messages for topic, messages in derived.items() if messages} == expected

    asyncio.run(run())


def test_an_unreadable_record_is_a_dead_letter_with_its_offset(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The bytes and the origin of an unreadable record must be kept."""
    make_topics(*TOPICS, partitions=PARTITIONS)

    async def run() -> None:
        good = [build.event("s", number) for number in range(50)]
        await produce(
            kafka, EVENTS.source, [*keyed(good), (b"local/s", b"poison"), (b"local/s", b""), *keyed([build.closing("s", 1)])]
        )
        await produce(
            kafka, EVENTS.source, [(b"local/s", encode(build.exchange("s", 1))), (b"local/s", encode(build.event("t", 1)))]
        )
        async with processing(kafka):
            await until_committed(kafka, EVENTS.source, PARTITIONS)
        derived = await read_results(kafka)
        letters = [decode(message) for message in derived[DEAD_LETTERS]]
        (partition,) = {record.partition for record in await contents(kafka, EVENTS.source, PARTITIONS)}
        assert {
            (letter.position, letter.reason)
            for letter in letters
            if isinstance(letter, DeadLetter) and letter.partition == partition
        } == {
            (50, "framing"),
            (51, "framing"),
            (53, "unexpected_type"),
            (54, "wrong_key"),
        }
        (diagnosis,) = map(decode, derived["diagnoses"])
        assert isinstance(diagnosis, Diagnosis)
        assert diagnosis.event_count == 50

    asyncio.run(run())


def test_a_session_with_an_oversized_state_is_set_aside(
    kafka: KafkaConnection, make_topics: MakeTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state topic accepts 16 MB; a larger session must not block its partition."""
    make_topics(*TOPICS, partitions=1)
    monkeypatch.setattr("streams.kafka.states.MAX_STATE_BYTES", 4000)

    async def run() -> None:
        large = [build.event("large", number) for number in range(400)]
        small = [build.event("small", 0), build.closing("small", 1)]
        await produce(kafka, EVENTS.source, keyed([*large, *small, build.closing("large", 1)]))
        async with processing(kafka, [EVENTS]):
            await until_committed(kafka, EVENTS.source, 1)
        derived = await read_results(kafka, 1)
        letters = [record for record in map(decode, derived[DEAD_LETTERS]) if isinstance(record, DeadLetter)]
        assert {letter.reason for letter in letters} == {"state_too_large"}
        assert {letter.position for letter in letters} == {*range(400), 402}
        assert [record.session_id for record in map(decode, derived["diagnoses"]) if isinstance(record, Diagnosis)] == ["small"]

    asyncio.run(run())


STUCK_PARTITION = (EVENTS.source, 0)
BUSY_PARTITION = (EVENTS.source, 1)
RECORD = SimpleNamespace(offset=0, key=b"", value=b"")


@pytest.mark.parametrize(
    ("waiting", "is_under_way", "patient_topics", "reason"),
    [
        ({STUCK_PARTITION: 5}, False, [], "5 records wait, 0 chunks are unfinished"),
        ({STUCK_PARTITION: 0}, True, [], "0 records wait, 1 chunks are unfinished"),
        ({STUCK_PARTITION: 0}, True, [EVENTS.source], ""),
        ({STUCK_PARTITION: 0}, False, [], ""),
        ({STUCK_PARTITION: None}, False, [], "an unknown number of records wait"),
        ({STUCK_PARTITION: None}, False, [EVENTS.source], "an unknown number of records wait"),
    ],
)
def test_a_stuck_partition_ends_the_worker(
    waiting: dict[tuple[str, int], int | None], is_under_way: bool, patient_topics: Sequence[str], reason: str
) -> None:
    """A client may silently stop delivering a partition; a judge may be slow."""
    clock = SimpleNamespace(time=0.0)
    ends: list[str] = []
    stage = KafkaStage(EVENTS.source, Collecting().open_partition, records_at_once=1, now=lambda: clock.time)
    stage.assign([0, 1])
    watchdog = Watchdog(
        [stage],
        lambda: waiting | {BUSY_PARTITION: 7},
        patient=patient_topics,
        limit=120,
        end=ends.append,
        now=lambda: clock.time,
    )
    if is_under_way:
        stage.partitions[0].fetch([RECORD])
        list(stage.partitions[0].deliver())
    for second in range(0, 122, 10):
        clock.time = float(second)
        stage.partitions[1].note_progress()
        watchdog.check()
    assert ends == []
    clock.time = 121.0
    watchdog.check()
    if reason:
        (message,) = ends
        assert message.startswith(f"{EVENTS.source}, partition 0: {reason}")
    else:
        assert ends == []


def test_a_partition_that_waits_again_has_the_full_time() -> None:
    """A partition that was idle for an hour is not stuck when its next record arrives."""
    clock = SimpleNamespace(time=0.0)
    waiting = {STUCK_PARTITION: 5}
    ends: list[str] = []
    watchdog = Watchdog([], lambda: waiting, limit=120, end=ends.append, now=lambda: clock.time)
    watchdog.check()
    clock.time = 100.0
    waiting[STUCK_PARTITION] = 0
    watchdog.check()
    clock.time = 3600.0
    waiting[STUCK_PARTITION] = 1
    watchdog.check()
    assert ends == []


def test_an_error_of_a_stage_ends_the_worker() -> None:
    """Continuing would lose the chunk, or silently stop its partition."""

    class Panic(BaseException):
        """An error that no exception handler catches."""

    class Broken:
        """A step that always fails."""

        async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:  # noqa: ARG002 - as the protocol has it
            raise Panic(chunk.topic)

        async def end(self, grace: float) -> None:
            """Do nothing."""

    async def run() -> list[BaseException]:
        failures = list[BaseException]()
        stage = KafkaStage(EVENTS.source, lambda _: Broken(), records_at_once=1, fail=failures.append)
        stage.assign([0])
        stage.partitions[0].fetch([RECORD])
        (chunk,) = stage.partitions[0].deliver()
        await stage.run(chunk)
        assert stage.partitions[0].committable() is None
        assert stage.partitions[0].has_room is False
        return failures

    (failure,) = asyncio.run(run())
    assert isinstance(failure, Panic)


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of processes."""
    with nursery() as opened:
        yield opened


def home_of(folder: Path, kafka: KafkaConnection) -> Home:
    """Return the settings of a worker process."""
    return Home(folder, DRIFTLINE_KAFKA=kafka.bootstrap, DRIFTLINE_KAFKA_PREFIX=kafka.prefix, DRIFTLINE_JUDGE="none")


def test_without_topics_a_worker_says_how_to_create_them(children: Nursery, tmp_path: Path, kafka: KafkaConnection) -> None:
    """Topics are never created automatically."""
    worker = children.start(home_of(tmp_path, kafka), "worker")
    assert worker.wait() == 2
    assert "driftline topics create" in worker.logged


def test_a_worker_refuses_topics_with_different_numbers_of_partitions(
    children: Nursery, tmp_path: Path, kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """A session would be on another partition number than its state."""
    make_topics(*(name for name in SPECS if name != "exchanges"), partitions=2)
    make_topics("exchanges", partitions=1)
    worker = children.start(home_of(tmp_path, kafka), "worker")
    assert worker.wait() == 2
    assert f"{kafka.topic('exchanges')} has 1" in worker.logged
    assert "driftline topics check" in worker.logged


def processes_of(parent: int) -> list[int]:
    """Return the children of a process."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_kills_lose_nothing_and_the_supervisor_restarts_the_workers(
    children: Nursery, tmp_path: Path, kafka: KafkaConnection
) -> None:
    """All worker processes are killed with open chunks; each diagnosis counts every event once."""
    sessions, events = 40, 60
    with TopicAdministration(kafka) as administration:
        administration.create(PARTITIONS, 1)
    supervisor = children.start(home_of(tmp_path, kafka), "worker", "--stages", "diagnosis", "-c", "2")
    records: list[Record] = [build.event(f"s{session}", number) for number in range(events) for session in range(sessions)]
    until(lambda: '"assigned: ' in supervisor.logged, "a process with partitions")
    asyncio.run(produce(kafka, EVENTS.source, keyed(records[: len(records) // 2])))
    until(lambda: len(processes_of(supervisor.pid)) == 2, "both processes")
    for pid in processes_of(supervisor.pid):
        os.kill(pid, signal.SIGKILL)
    asyncio.run(produce(kafka, EVENTS.source, keyed(records[len(records) // 2 :])))
    asyncio.run(produce(kafka, EVENTS.source, keyed([build.closing(f"s{session}", 1) for session in range(sessions)])))
    asyncio.run(until_committed(kafka, EVENTS.source, PARTITIONS))
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0
    diagnoses = {record.value for record in asyncio.run(contents(kafka, "diagnoses", PARTITIONS))}
    counts = [(record.session_id, record.event_count) for record in map(decode, diagnoses) if isinstance(record, Diagnosis)]
    assert sorted((f"s{session}", events) for session in range(sessions)) == sorted(counts)
    assert supervisor.logged.count("ended with -9") == 2


def test_a_worker_ends_with_its_supervisor(children: Nursery, tmp_path: Path, kafka: KafkaConnection) -> None:
    """Otherwise a second set of workers would run beside it."""
    with TopicAdministration(kafka) as administration:
        administration.create(PARTITIONS, 1)
    supervisor = children.start(home_of(tmp_path, kafka), "worker", "--stages", NAMES)
    until(lambda: '"assigned: ' in supervisor.logged, "its process")
    pids = processes_of(supervisor.pid)
    assert len(pids) == 1
    supervisor.kill()
    until(
        lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids),
        "them to end",
    )
