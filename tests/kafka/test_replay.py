"""Replays from the topics: despite duplicates, disorder and gaps, scores are the same as live."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.fleet_histories import two_project_exchanges
from support.replays import Command, configured_variables, create_scored_database, read_scores, replay_path, run_replay

from analytics.store.store import Store
from schemas.codec.single_object import decode, encode
from schemas.records import Exchange, Judgement, JudgingRequest, Record, Score, SessionClosed
from service.cli.exit_codes import ExitCode
from service.cli.main import run
from service.setup.text_key import make_text_key
from streams.kafka.connection import KafkaConnection
from streams.kafka.encryption import open_encryption
from streams.kafka.producing import RecordProducer
from streams.kafka.topics import TEXT_KEYS
from streams.stage_batches import StageBatch

pytestmark = pytest.mark.slow

PARTITIONS = 3
SESSIONS = 6
MakeTopics = Callable[..., None]


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with a history; no test changes it."""
    return create_scored_database(
        tmp_path_factory.mktemp("live") / "driftline.duckdb", records=two_project_exchanges(2, SESSIONS)
    )


@pytest.fixture
def driftline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kafka: KafkaConnection
) -> Command:
    """Return a function that runs a command on the test's topics, and returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    for name in configured_variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("DRIFTLINE_KAFKA", kafka.bootstrap)
    monkeypatch.setenv("DRIFTLINE_KAFKA_PREFIX", kafka.prefix)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def records_of(path: Path, topic: str) -> list[Record]:
    """Return a topic's records in order."""
    with Store(path) as store:
        return [record for _, _, record in StageBatch.of(topic, store.read(topic, 0, store.end_of(topic))).records()]


def key_of(record: Record) -> bytes:
    """Return the key of a session record."""
    assert isinstance(record, (Exchange, SessionClosed, JudgingRequest, Judgement, Score))
    return f"{record.connection}/{record.session_id}".encode()


async def produce(kafka: KafkaConnection, topics: dict[str, Sequence[Record]]) -> None:
    """Produce the records, some of them twice, among invalid values."""
    producer = RecordProducer(kafka)
    await producer.start()
    try:
        for topic, records in topics.items():
            messages = [(key_of(record), encode(record)) for record in records]
            repeated = []
            for index, message in enumerate(messages):
                copies = 2 if index % 5 == 0 else 1
                repeated += [message] * copies
            invalid = (b"local/s1", b"\xc3\x01 this is no record")
            await producer.send(topic, [*repeated[:10], invalid, *repeated[10:], *repeated[5:15]])
    finally:
        await producer.stop()


@pytest.fixture
def produced(kafka: KafkaConnection, make_topics: MakeTopics, live: Path) -> Path:
    """Produce the history as workers do; returns its database."""
    make_topics("exchanges", "judgements", "scores", partitions=PARTITIONS)
    topics = {topic: records_of(live, topic) for topic in ("exchanges", "scores")}
    # Reservations are no part of what a replay looks up.
    judgements = [record for record in records_of(live, "judgements") if isinstance(record, Judgement)]
    asyncio.run(produce(kafka, topics | {"judgements": judgements}))
    return live


@pytest.mark.parametrize(("workers", "window"), [("1", 50), ("3", 2000)])
def test_scores_are_the_live_ones(
    driftline: Command, produced: Path, monkeypatch: pytest.MonkeyPatch, workers: str, window: int
) -> None:
    """Duplicates, invalid values, partitions and fetch sizes make no difference."""
    monkeypatch.setattr("streams.replay.topics.WINDOW_RECORDS", window)
    document = run_replay(driftline, "--from", "topics", "--workers", workers, "--label", "again")
    assert document["equal"]
    replayed_scores = read_scores(Path(document["file"]))
    assert replayed_scores == read_scores(produced)
    assert document["scores"] == len(replayed_scores)
    assert document["live_scores"] == len(replayed_scores)


def test_encrypted_topics_are_replayed(
    driftline: Command,
    kafka: KafkaConnection,
    make_topics: MakeTopics,
    live: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key file is enough to read them; without it the command names the setting."""
    make_topics("exchanges", "judgements", "scores", partitions=PARTITIONS)
    make_topics(TEXT_KEYS, partitions=1, configs={"cleanup.policy": "compact"})
    topics = {topic: records_of(live, topic) for topic in ("exchanges", "scores", "judgements")}
    topics["judgements"] = [record for record in topics["judgements"] if isinstance(record, Judgement)]
    secret = make_text_key(Path("text-key"))

    async def produce_encrypted() -> None:
        connection = dataclasses.replace(kafka, text_secret=secret)
        async with open_encryption(connection) as encryption:
            producer = RecordProducer(connection, encryption=encryption)
            for topic, records in topics.items():
                await producer.send(topic, [(key_of(record), encode(record)) for record in records])
            await producer.stop()

    asyncio.run(produce_encrypted())
    code, _, errors = driftline("replay", "--from", "topics", "--workers", "1", "--label", "keyless")
    assert code != 0
    assert "DRIFTLINE_TEXT_KEY_FILE" in errors
    monkeypatch.setenv("DRIFTLINE_TEXT_KEY_FILE", str(Path("text-key")))
    document = run_replay(driftline, "--from", "topics", "--workers", "1", "--label", "again")
    assert read_scores(Path(document["file"])) == read_scores(live)


def test_a_range_of_offsets_is_scored_by_itself(driftline: Command, produced: Path, tmp_path: Path) -> None:
    """Each partition has its own end, beyond which nothing is read."""
    arguments = ("--from", "topics", "--workers", "1", "--label", "some", "--to-offset", "0:40,1:0,2:25")
    document = run_replay(driftline, *arguments)
    replayed_scores = read_scores(replay_path(tmp_path / "driftline.duckdb", "some"))
    assert 0 < len(replayed_scores) < len(read_scores(produced))
    revisions = {score.revision for score in map(decode, replayed_scores) if isinstance(score, Score)}
    assert 0 in revisions
    assert document["range"] == "0:40,1:0,2:25"
    code, _, err = driftline("replay", "--from", "topics", "--label", "none", "--from-offset", "2099-01-01")
    assert code == 2
    assert "has no records in this range" in err


def test_a_cut_replay_goes_on_in_the_middle_of_a_partition(
    driftline: Command, produced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The identities of earlier records are read again, so a duplicate after the interruption is recognized."""
    monkeypatch.setattr("streams.replay.topics.WINDOW_RECORDS", 30)
    from streams.replay.part import PartFile

    commit, committed = PartFile.commit, []

    def fails_in_the_middle(self: PartFile, result: object) -> None:
        committed.append(result)
        if len(committed) == 3:
            raise KeyboardInterrupt
        commit(self, result)  # type: ignore[arg-type]

    arguments = ("replay", "--from", "topics", "--workers", "1", "--label", "cut", "--json")
    monkeypatch.setattr(PartFile, "commit", fails_in_the_middle)
    code, _, err = driftline(*arguments)
    assert code == ExitCode.INTERRUPTED
    assert "run the same command to continue" in err
    monkeypatch.setattr(PartFile, "commit", commit)
    code, out, err = driftline(*arguments)
    assert code == 0, err
    assert json.loads(out)["equal"]
    assert read_scores(produced) == read_scores(replay_path(tmp_path / "driftline.duckdb", "cut"))


def test_an_offset_of_a_partition_that_is_not_there_is_refused(driftline: Command, make_topics: MakeTopics) -> None:
    """A mistyped partition must not score, and pay for, all other partitions."""
    make_topics("exchanges", "judgements", "scores", partitions=PARTITIONS)
    code, _, error = driftline("replay", "--from", "topics", "--from-offset", f"{PARTITIONS}:1")
    assert code == 2
    assert f"has no partition {PARTITIONS}" in error
    code, _, error = driftline("replay", "--from", "topics", "--from-offset", "0:1")
    assert code == 2
    assert "topic exchanges ends at offset 0" in error


def test_a_cluster_without_the_topics_is_said_to_have_none(driftline: Command) -> None:
    """The usual reason is a wrong prefix or address."""
    code, _, err = driftline("replay", "--from", "topics")
    assert code == 2
    assert "there is no topic" in err
    assert "DRIFTLINE_KAFKA_PREFIX" in err
