"""Creating, describing and checking the topics. A topic that differs from its specification is reported, never changed."""

from __future__ import annotations

import contextlib
import socket
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import CoordinatorNotAvailableError, KafkaConnectionError, KafkaError, for_code

from schemas.errors import BrokerError, SettingsError
from streams.kafka.connection import KafkaConnection
from streams.kafka.topics import DEFAULT_PARTITIONS, GROUP, REFERENCE, REPLICATION, TOPICS, TopicSpec

CONNECT_SECONDS = 10.0
_TOPIC_ALREADY_EXISTS = 36
"""Kafka's error code for a topic that exists."""
_MIN_IN_SYNC_REPLICAS = "min.insync.replicas"
_ADD_PARTITIONS = (
    "Adding partitions moves sessions to other partitions. Stop the producers, let the workers read everything, stop them and add the "
    "partitions, or start again under another prefix."
)


@dataclass(frozen=True)
class TopicState:
    """A topic as it is on the cluster. `name` is without the prefix."""

    name: str
    partitions: int
    replication: int
    without_leader: tuple[int, ...]
    config: Mapping[str, str]


class Mismatch(NamedTuple):
    """A difference between a topic and its specification, and the remedy."""

    topic: str
    what: str
    advice: str


class TopicAdministration:
    """The topics of an installation on its cluster; a context manager. Raises BrokerError if the cluster does not answer."""

    def __init__(self, connection: KafkaConnection, specs: Mapping[str, TopicSpec] = TOPICS) -> None:
        self._connection = connection
        self._specs = specs
        with self._broker_errors():
            # The library leaks its thread and its sockets when no broker answers, so look for a broker before it starts.
            _require_broker(connection)
            self._client = KafkaAdminClient(bootstrap_timeout_ms=int(CONNECT_SECONDS * 1000), **connection.for_kafka_python())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._client.close()

    def create(self, partitions: int | None = None, replication: int | None = None) -> list[str]:
        """Create the missing topics and return their names.

        `partitions` is for the topics keyed by session; None means the present number, or the default. `replication` None
        means three copies, or one per broker if there are fewer. Raises BrokerError, which names each refused topic and the reason.
        """
        existing = self.describe()
        missing = {self._connection.topic(name): spec for name, spec in self._specs.items() if name not in existing}
        if not missing:
            return []
        keyed_partitions = partitions or self._count_keyed_partitions(existing)
        with self._broker_errors():
            copies = replication or min(REPLICATION, len(self._client.describe_cluster()["brokers"]))
            new_topics = {name: _topic_arguments(spec, keyed_partitions, copies) for name, spec in missing.items()}
            answer = self._client.create_topics(new_topics, raise_errors=False)
            created = [topic["name"] for topic in answer["topics"] if not topic["error_code"]]
            self._client.wait_for_topics(created)
        # Another process may have created the topic since we looked.
        refused = [topic for topic in answer["topics"] if topic["error_code"] not in {0, _TOPIC_ALREADY_EXISTS}]
        if refused:
            raise BrokerError(
                _describe_refusals(refused),
                hint="Fix the problem that the cluster reports and run create again; existing topics are unchanged.",
            )
        return sorted(missing[name].name for name in created)

    def describe(self) -> dict[str, TopicState]:
        """Return our topics that exist on the cluster, by name."""
        with self._broker_errors():
            names = {self._connection.topic(name): name for name in self._specs}
            topics = {topic["name"]: topic for topic in self._client.describe_topics() if topic["name"] in names}
            configs = self._read_configs(list(topics))
        states = [_topic_state(names[name], topics[name], configs[name]) for name in sorted(topics)]
        return {state.name: state for state in states}

    def check(self, partitions: int | None = None) -> list[Mismatch]:
        """Return each difference from the table of topics.

        With `partitions` None, the topics keyed by session must agree with each other.
        """
        existing = self.describe()
        keyed_partitions = partitions or self._count_keyed_partitions(existing)
        return [
            mismatch for spec in self._specs.values() for mismatch in _compare(spec, existing.get(spec.name), keyed_partitions)
        ]

    def foreign(self, names: Iterable[str]) -> dict[str, int]:
        """Return the topics of other programs that exist on the cluster, by their names there, with their numbers of partitions."""
        with self._broker_errors():
            counts = {topic["name"]: len(topic["partitions"]) for topic in self._client.describe_topics()}
        return {name: counts[name] for name in sorted(counts.keys() & set(names))}

    def unread(self, topics: Mapping[str, int]) -> dict[str, int | None]:
        """Return the number of messages that the workers have not read in topics of other programs; None for a topic that was never read.

        `topics` is the result of `foreign`.
        """
        tps = [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]
        group = self._connection.topic(GROUP)
        with self._broker_errors():
            try:
                committed = self._client.list_group_offsets({group: tps})[group] if tps else {}
            except CoordinatorNotAvailableError:  # a cluster without any group so far answers like this
                committed = {}
            ends = self._client.list_partition_offsets(dict.fromkeys(tps, OffsetSpec.LATEST)) if tps else {}
        return {name: _count_unread(name, committed, ends) for name in topics}

    def _count_keyed_partitions(self, existing: Mapping[str, TopicState]) -> int:
        """Return the number of partitions of the topics keyed by session, or the default if none exists yet."""
        if REFERENCE in existing:
            return existing[REFERENCE].partitions
        counts = [state.partitions for name, state in existing.items() if self._specs[name].is_keyed]
        return max(counts, default=DEFAULT_PARTITIONS)

    def _read_configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, None) for name in names]
        answer = self._client.describe_configs(resources, config_filter="all")["topic"]
        return {name: {key: str(entry["value"]) for key, entry in config.items()} for name, config in answer.items()}

    @contextlib.contextmanager
    def _broker_errors(self) -> Iterator[None]:
        """Raise the library's errors as BrokerError."""
        try:
            yield
        except KafkaError as error:
            message = f"Kafka at {self._connection.bootstrap}: {error}"
            raise BrokerError(
                message, hint="Check address, security and login (DRIFTLINE_KAFKA…), and that the brokers run."
            ) from error


def _require_broker(connection: KafkaConnection) -> None:
    """Raise KafkaConnectionError, with the last reason, if none of the addresses accepts a connection."""
    reason: OSError | None = None
    for address in connection.servers:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            reason = error
        else:
            return
    raise KafkaConnectionError(reason.strerror or reason if reason else "no address")


def _describe_refusals(refused: Iterable[Mapping[str, Any]]) -> str:
    """Describe the refusals of the cluster: each reason once, with its topics."""
    topics_by_reason = defaultdict[str, list[str]](list)
    for topic in refused:
        reason = topic["error_message"] or for_code(topic["error_code"]).__name__
        topics_by_reason[reason].append(topic["name"])
    return "; ".join(f"{', '.join(sorted(names))}: {reason}" for reason, names in topics_by_reason.items())


def _topic_arguments(spec: TopicSpec, keyed_partitions: int, copies: int) -> dict[str, Any]:
    """Return the library's arguments for a new topic.

    With three copies, a record is acknowledged when two brokers have it, so that one broker may be lost.
    """
    config = {**spec.config, _MIN_IN_SYNC_REPLICAS: "2" if copies >= REPLICATION else "1"}
    return {"num_partitions": spec.partitions(keyed_partitions), "replication_factor": copies, "configs": config}


def _topic_state(name: str, topic: Mapping[str, Any], config: Mapping[str, str]) -> TopicState:
    partitions = topic["partitions"]
    return TopicState(
        name=name,
        partitions=len(partitions),
        replication=min(len(partition["replica_nodes"]) for partition in partitions),
        without_leader=tuple(sorted(partition["partition_index"] for partition in partitions if partition["leader_id"] < 0)),
        config=config,
    )


def _count_unread(name: str, committed: Mapping[Any, Any], ends: Mapping[Any, Any]) -> int | None:
    """Return the number of unread messages of a topic; None if it was never read."""
    next_offsets = {tp: int(position.offset) for tp, position in committed.items() if tp.topic == name and position.offset >= 0}
    if not next_offsets:
        return None
    counts = [max(0, int(end.offset) - next_offsets.get(tp, 0)) for tp, end in ends.items() if tp.topic == name]
    return sum(counts)


def _compare(spec: TopicSpec, state: TopicState | None, keyed_partitions: int) -> Iterator[Mismatch]:
    """Yield the differences between a topic and its specification."""
    name = spec.name
    if state is None:
        yield Mismatch(name, "is missing", "Run driftline topics create.")
        return
    if spec.is_keyed and state.partitions != keyed_partitions:
        yield Mismatch(
            name, f"has {state.partitions} partitions where topics keyed by session have {keyed_partitions}", _ADD_PARTITIONS
        )
    if state.without_leader:
        numbers = ", ".join(map(str, state.without_leader))
        yield Mismatch(name, f"has no leader for partition {numbers}", "Start the brokers that have it.")
    for key, expected in spec.config.items():
        value = state.config.get(key)
        if value != expected:
            advice = (
                f"Set it with kafka-configs --alter --entity-type topics --entity-name … --add-config {key}={expected}, "
                "or leave it if it is intended."
            )
            yield Mismatch(name, f"has {key}={value} instead of {expected}", advice)
    if state.replication >= REPLICATION and state.config.get(_MIN_IN_SYNC_REPLICAS) == "1":
        advice = f"Set {_MIN_IN_SYNC_REPLICAS}=2, so that the loss of one broker loses no accepted record."
        yield Mismatch(name, f"has {state.replication} copies, but a record is accepted when only one broker has it", advice)


def partitions_on(connection: KafkaConnection, names: Collection[str]) -> list[tuple[str, int]]:
    """Return every partition of these topics. Raises SettingsError, which names missing topics."""
    with TopicAdministration(connection) as administration:
        topics = administration.describe()
    missing = [connection.topic(name) for name in names if name not in topics]
    if missing:
        raise SettingsError(f"topics are missing: {', '.join(missing)}", hint="Create them with `driftline topics create`.")
    return [(name, number) for name in names for number in range(topics[name].partitions)]
