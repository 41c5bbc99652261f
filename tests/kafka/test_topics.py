"""The topics: all that schemas and stages need, created as specified, and never changed without consent."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from support.servers import until
from typer.testing import CliRunner

from schemas.errors import BrokerError
from schemas.registry import topics
from service.cli.main import application
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.topics import SPENDING, TEXT_KEYS, TOPICS, specs_of, state_topic
from streams.topology import TOPOLOGY, Stage, stage_named

PARTITIONS = 2


@pytest.fixture
def administration(kafka: KafkaConnection) -> Iterator[TopicAdministration]:
    """Return the administration of the test's topics."""
    with TopicAdministration(kafka) as opened:
        yield opened


@pytest.fixture
def quiet_library() -> Iterator[None]:
    """Restore the logger that the command silences."""
    logger = logging.getLogger("kafka")
    level = logger.level
    yield
    logger.setLevel(level)


def later_stage() -> Stage:
    """Return a stage that does not exist yet."""
    return Stage("weather", "scores", stage_named("intake").make_step, ("incidents",), dict, 100)


def driftline(connection: KafkaConnection, *arguments: str) -> tuple[int, str]:
    """Run the command line in this process; return its exit code and output."""
    environment = {"DRIFTLINE_KAFKA": connection.bootstrap, "DRIFTLINE_KAFKA_PREFIX": connection.prefix}
    result = CliRunner().invoke(application(), ["topics", *arguments], env=environment)
    return result.exit_code, result.output


def test_every_record_type_has_a_topic_in_the_table() -> None:
    """A topic without a specification would not be created, and its producer would wait forever."""
    assert {*topics()} | {state_topic(stage.name) for stage in TOPOLOGY} | {SPENDING, TEXT_KEYS} == {*TOPICS}


def test_a_new_stage_gets_its_state_topic() -> None:
    """Adding a stage must not require changing this table."""
    assert specs_of([*TOPOLOGY, later_stage()])["weather-state"].config["cleanup.policy"] == "compact"


def test_topics_that_cannot_be_rebuilt_are_kept_forever() -> None:
    """The default retention of seven days would silently delete a fleet's history."""
    source = {"exchanges", "agent-events", "judgements", "reviews", "evaluation-requests", "dead-letters"}

    assert {TOPICS[name].config["retention.ms"] for name in source} == {"-1"}
    assert {TOPICS[name].config["retention.bytes"] for name in source} == {"-1"}


def test_topics_of_a_session_have_equal_numbers_of_partitions() -> None:
    """A session must be on the same partition number of every topic, where its state is."""
    of_sessions = {
        "exchanges",
        "scoring-tasks",
        "scores",
        "judgements",
        "agent-events",
        "diagnoses",
        "heartbeats",
        "evaluations",
    }
    states = {state_topic(stage.name) for stage in TOPOLOGY}

    assert {TOPICS[name].partitions(12) for name in of_sessions | states} == {12}
    assert {TOPICS[name].partitions(12) for name in ("reviews", "incidents", "baselines", "dead-letters")} == {3}
    assert TOPICS[SPENDING].partitions(12) == 1


def test_created_topics_match_the_table(administration: TopicAdministration) -> None:
    """The cluster's actual configuration matters, not the request."""
    created = administration.create(partitions=PARTITIONS)
    described = administration.describe()

    assert created == sorted(TOPICS)
    assert administration.check(PARTITIONS) == []
    assert {name: spec.partitions(PARTITIONS) for name, spec in TOPICS.items()} == {
        name: state.partitions for name, state in described.items()
    }
    assert {name: {key: described[name].config[key] for key in spec.config} for name, spec in TOPICS.items()} == {
        name: dict(spec.config) for name, spec in TOPICS.items()
    }


def test_creating_again_changes_nothing(administration: TopicAdministration) -> None:
    """An installation runs it at every start."""
    administration.create(partitions=PARTITIONS)
    before = administration.describe()

    assert administration.create(partitions=PARTITIONS + 1) == []
    assert administration.describe() == before


def test_a_new_topic_gets_the_partitions_of_the_existing_ones(kafka: KafkaConnection) -> None:
    """An upgrade that adds a topic does not know the original number of partitions."""
    with TopicAdministration(kafka) as administration:
        administration.create(partitions=PARTITIONS)
    with TopicAdministration(kafka, specs_of([*TOPOLOGY, later_stage()])) as later:
        assert later.create() == ["weather-state"]
        assert later.describe()["weather-state"].partitions == PARTITIONS


def test_a_missing_topic_is_reported(administration: TopicAdministration) -> None:
    """A worker without its topic would wait forever."""
    assert {(found.topic, found.what) for found in administration.check()} == {(name, "is missing") for name in TOPICS}


def test_another_number_of_partitions_is_reported(administration: TopicAdministration, make_topics: object) -> None:
    """The default partitioner would put a session on another partition number."""
    make_topics("scores", partitions=3, configs=dict(TOPICS["scores"].config))  # type: ignore[operator]
    administration.create(partitions=PARTITIONS)

    (problem,) = administration.check()
    assert problem.topic == "scores"
    assert problem.what.startswith("has 3 partitions ")
    assert administration.describe()["scores"].partitions == 3


def test_another_configuration_is_reported_and_kept(
    kafka: KafkaConnection, administration: TopicAdministration, admin: KafkaAdminClient
) -> None:
    """The difference may be intended; otherwise the operator must know before records are deleted."""
    administration.create(partitions=PARTITIONS)
    changed = ConfigResource(ConfigResourceType.TOPIC, kafka.topic("exchanges"), {"retention.ms": "1000"})
    admin.alter_configs([changed])
    until(lambda: bool(administration.check()), "the broker to know of the change")

    administration.create(partitions=PARTITIONS)
    (problem,) = administration.check()

    assert problem.topic == "exchanges"
    assert problem.what == "has retention.ms=1000 instead of -1"
    assert "--add-config retention.ms=-1" in problem.advice
    assert administration.describe()["exchanges"].config["retention.ms"] == "1000"


def test_a_refusal_by_the_cluster_is_quoted(administration: TopicAdministration) -> None:
    """Requesting more copies than brokers is a common mistake."""
    with pytest.raises(BrokerError, match="replication factor") as refused:
        administration.create(partitions=PARTITIONS, replication=9)

    assert "exchanges" in str(refused.value)
    assert str(refused.value).count("replication factor of 9") == 1


def test_installations_share_a_cluster(administration: TopicAdministration, kafka: KafkaConnection) -> None:
    """Topics with another prefix belong to another installation."""
    administration.create(partitions=PARTITIONS)
    other = KafkaConnection(kafka.bootstrap, prefix=f"{kafka.prefix}other-")
    with TopicAdministration(other) as theirs:
        assert theirs.describe() == {}


@pytest.mark.usefixtures("quiet_library")
def test_the_commands_create_describe_and_check(kafka: KafkaConnection) -> None:
    """These are an operator's commands, in order."""
    code, printed = driftline(kafka, "check", "--json")
    assert code == 1
    assert {json.loads(line)["topic"] for line in printed.splitlines()} == {*TOPICS}

    code, printed = driftline(kafka, "create", "--partitions", str(PARTITIONS), "--json")
    assert code == 0
    assert json.loads(printed) == {"created": sorted(TOPICS), "mismatches": []}

    code, printed = driftline(kafka, "describe", "--json")
    described = [json.loads(line) for line in printed.splitlines()]
    ours, collected = (
        [topic["topic"] for topic in described if "holds" in topic],
        [topic for topic in described if "signal" in topic],
    )
    assert code == 0
    assert ours == sorted(TOPICS)
    assert [(topic["signal"], topic["partitions"]) for topic in collected] == [("traces", 0), ("logs", 0)]
    description = driftline(kafka, "describe")[1]
    assert all(f"there is no topic {topic['topic']}" in description for topic in collected)

    assert driftline(kafka, "check") == (0, f"{len(TOPICS)} topics: all are configured correctly\n")
    assert driftline(kafka, "check", "--partitions", "7")[0] == 1


@pytest.mark.usefixtures("quiet_library")
def test_the_doctor_checks_the_cluster(administration: TopicAdministration, kafka: KafkaConnection, tmp_path: Path) -> None:
    """Operators run the doctor first."""
    settings = {
        "DRIFTLINE_KAFKA": kafka.bootstrap,
        "DRIFTLINE_KAFKA_PREFIX": kafka.prefix,
        "DRIFTLINE_DATABASE": str(tmp_path / "a.duckdb"),
    }

    def told(**others: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(application(), ["doctor", "--json"], env=settings | others)
        (kafka_finding,) = [finding for finding in json.loads(result.output) if finding["subject"] == "Kafka"]
        return result.exit_code, kafka_finding["state"], kafka_finding["detail"]

    assert told() == (1, "problem", f"{kafka.bootstrap}: agent-events is missing, and {len(TOPICS) - 1} more")
    administration.create(partitions=PARTITIONS)
    assert told() == (0, "ok", f"{kafka.bootstrap}: all topics are configured correctly")
    assert (*(nobody := told(DRIFTLINE_KAFKA="127.0.0.1:1"))[:2], nobody[2][:22]) == (1, "problem", "Kafka at 127.0.0.1:1: ")


def test_an_unreachable_address_is_named() -> None:
    """A mistyped address is reported at once, and the attempt leaves nothing behind."""
    with pytest.raises(BrokerError, match=r"Kafka at 127\.0\.0\.1:1: .*refused"):
        TopicAdministration(KafkaConnection("127.0.0.1:1"))
