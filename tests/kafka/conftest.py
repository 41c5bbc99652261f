"""Fixtures: a broker for the tests of this folder, and separate topics for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient
from support.kafka_brokers import Broker, Cluster, Found, broker, quick, running_cluster
from support.maven import UnavailableError
from support.processes import skip_or_fail
from support.servers import until

from streams.kafka.connection import KafkaConnection

MakeTopics = Callable[..., None]


@pytest.fixture(scope="session")
def any_broker() -> Iterator[Found]:
    """Return the broker of this run."""
    try:
        with broker() as running:
            yield running
    except UnavailableError as error:
        skip_or_fail(str(error))


@pytest.fixture(scope="session")
def admin(any_broker: Found) -> Iterator[KafkaAdminClient]:
    """Return a client that creates and removes topics."""
    client = KafkaAdminClient(bootstrap_servers=any_broker.bootstrap)
    yield client
    client.close()


@pytest.fixture
def kafka(request: pytest.FixtureRequest, any_broker: Found, admin: KafkaAdminClient) -> Iterator[KafkaConnection]:
    """Return a connection with the test's own prefix; its topics are removed at the end.

    Tests that work with any Kafka-compatible broker are marked `any_broker`; the others need Apache Kafka.
    """
    if not any_broker.is_apache and not request.node.get_closest_marker("any_broker"):
        skip_or_fail("this test needs Apache Kafka, and the broker is Tansu: install Java 17 and Maven")
    connection = KafkaConnection(any_broker.bootstrap, prefix=f"t{uuid.uuid4().hex[:12]}-")
    yield connection
    topic_names = [name for name in admin.list_topics() if name.startswith(connection.prefix)]
    if topic_names:
        admin.delete_topics(topic_names)


@pytest.fixture
def make_topics(kafka: KafkaConnection, admin: KafkaAdminClient) -> MakeTopics:
    """Return a function that creates topics: `make_topics("exchanges", "scores", partitions=3, configs={"retention.ms": "-1"})`."""

    def make(*names: str, partitions: int = 3, configs: dict[str, str] | None = None) -> None:
        topic_options = {"num_partitions": partitions, "replication_factor": 1, "configs": configs or {}}
        admin.create_topics({kafka.topic(name): topic_options for name in names}, wait_for_metadata=True)

    return make


@pytest.fixture(scope="session")
def spare_broker(any_broker: Found, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a second broker, shared by the tests that stop it."""
    if any_broker.kind != "java":
        skip_or_fail("tests that kill a broker need Java and Maven: install them")
    started = Broker(tmp_path_factory.mktemp("spare") / "kafka", options=quick())
    started.start()
    yield started
    started.kill()


@pytest.fixture
def own_broker(spare_broker: Broker) -> Broker:
    """Return a started broker without topics that the test may stop, start, kill and freeze."""
    if spare_broker.runs:
        spare_broker.thaw()
    else:
        spare_broker.start()
    with KafkaAdminClient(bootstrap_servers=spare_broker.bootstrap) as client:
        remaining_topics = [name for name in client.list_topics() if not name.startswith("__")]
        if remaining_topics:
            client.delete_topics(remaining_topics)
            until(lambda: not {*remaining_topics} & {*client.list_topics()}, "the topics of the last test to be deleted")
    return spare_broker


@pytest.fixture(scope="session")
def three_brokers() -> Iterator[Cluster]:
    """Return three brokers that the tests of this process share."""
    try:
        with running_cluster() as started:
            yield started
    except UnavailableError as error:
        skip_or_fail(f"tests with three brokers need Java and Maven: {error}")


@pytest.fixture
def cluster(three_brokers: Cluster) -> Cluster:
    """Return three running brokers that the test may stop, kill, freeze and start."""
    three_brokers.settle()
    return three_brokers


@pytest.fixture
def replicated_kafka(cluster: Cluster) -> Iterator[KafkaConnection]:
    """Return a connection to three brokers, with the test's own prefix."""
    connection = KafkaConnection(cluster.bootstrap, prefix=f"t{uuid.uuid4().hex[:12]}-")
    yield connection
    cluster.settle()
    with KafkaAdminClient(bootstrap_servers=connection.servers) as client:
        topic_names = [name for name in client.list_topics() if name.startswith(connection.prefix)]
        if topic_names:
            client.delete_topics(topic_names)
