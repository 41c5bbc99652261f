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
_THERE_ALREADY = 36
_IN_SYNC = "min.insync.replicas"
_ADD_PARTITIONS = (
    "A session's partition changes with the count. Stop producers and workers once all is read, then add partitions, or begin anew "
    "under another prefix."
)


@dataclass(frozen=True)
class TopicState:
    """A topic as it is on the cluster; None for anything that it lacks. `name` is without the prefix."""

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
        with self._explained():
            # The library leaks its thread and its sockets when no broker answers, so look for a broker before it starts.
            _find_a_broker(connection)
            self._client = KafkaAdminClient(bootstrap_timeout_ms=int(CONNECT_SECONDS * 1000), **connection.for_kafka_python())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._client.close()

    def create(self, partitions: int | None = None, replication: int | None = None) -> list[str]:
        """Create the missing topics; returns their names.

        `partitions` is for the topics keyed by session; None means the present number, or the default. `replication` None
        means three copies, or one per broker if there are fewer. BrokerError names each topic that the cluster refused, and why.
        """
        there = self.describe()
        missing = {self._connection.topic(name): spec for name, spec in self._specs.items() if name not in there}
        if not missing:
            return []
        keyed = partitions or self._keyed(there)
        with self._explained():
            copies = replication or min(REPLICATION, len(self._client.describe_cluster()["brokers"]))
            wanted = {name: _wanted(spec, keyed, copies) for name, spec in missing.items()}
            answer = self._client.create_topics(wanted, raise_errors=False)
            made = [topic["name"] for topic in answer["topics"] if not topic["error_code"]]
            self._client.wait_for_topics(made)
        # Another process may have created the topic since we looked.
        refused = [topic for topic in answer["topics"] if topic["error_code"] not in {0, _THERE_ALREADY}]
        if refused:
            raise BrokerError(
                _refusals(refused),
                hint="Fix the problem that the cluster reports and run create again; existing topics are unchanged.",
            )
        return sorted(missing[name].name for name in made)

    def describe(self) -> dict[str, TopicState]:
        """Return our topics that exist on the cluster, by name."""
        with self._explained():
            named = {self._connection.topic(name): name for name in self._specs}
            present = {topic["name"]: topic for topic in self._client.describe_topics() if topic["name"] in named}
            configs = self._configs([*present])
        return {named[name]: _state(named[name], present[name], configs[name]) for name in sorted(present)}

    def check(self, partitions: int | None = None) -> list[Mismatch]:
        """Return each difference from the table of topics.

        With `partitions` None, the topics keyed by session must agree with each other.
        """
        there = self.describe()
        keyed = partitions or self._keyed(there)
        return [mismatch for spec in self._specs.values() for mismatch in _compare(spec, there.get(spec.name), keyed)]

    def foreign(self, names: Iterable[str]) -> dict[str, int]:
        """Return the topics of other programs that exist on the cluster, by their names there, with their numbers of partitions."""
        wanted = set(names)
        with self._explained():
            counts = {topic["name"]: len(topic["partitions"]) for topic in self._client.describe_topics()}
        return {name: count for name, count in sorted(counts.items()) if name in wanted}

    def unread(self, topics: Mapping[str, int]) -> dict[str, int | None]:
        """Return the number of messages that the workers have not read in topics of other programs; None for a topic that was never read.

        `topics` is the result of `foreign`.
        """
        tps = [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]
        group = self._connection.topic(GROUP)
        with self._explained():
            try:
                committed = self._client.list_group_offsets({group: tps})[group] if tps else {}
            except CoordinatorNotAvailableError:  # a cluster without any group so far answers like this
                committed = {}
            ends = self._client.list_partition_offsets(dict.fromkeys(tps, OffsetSpec.LATEST)) if tps else {}
        return {name: _left(name, committed, ends) for name in topics}

    def _keyed(self, there: Mapping[str, TopicState]) -> int:
        """Return the number of partitions that the topics keyed by session have, or are to have."""
        of_sessions = [state.partitions for name, state in there.items() if self._specs[name].is_keyed]
        reference = there.get(REFERENCE)
        return reference.partitions if reference else max(of_sessions, default=DEFAULT_PARTITIONS)

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, None) for name in names]
        answer = self._client.describe_configs(resources, config_filter="all")["topic"]
        return {name: {key: str(entry["value"]) for key, entry in config.items()} for name, config in answer.items()}

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the library's errors as ours."""
        try:
            yield
        except KafkaError as error:
            message = f"Kafka at {self._connection.bootstrap}: {error}"
            raise BrokerError(
                message, hint="Check address, security and login (DRIFTLINE_KAFKA…), and that the brokers run."
            ) from error


def _find_a_broker(connection: KafkaConnection) -> None:
    """Return when one of the addresses accepts a connection; KafkaConnectionError with the last reason if none does."""
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


def _refusals(refused: Iterable[Mapping[str, Any]]) -> str:
    """Describe the refusals of the cluster: each reason once, with its topics."""
    named = defaultdict[str, list[str]](list)
    for topic in refused:
        named[topic["error_message"] or for_code(topic["error_code"]).__name__].append(topic["name"])
    return "; ".join(f"{', '.join(sorted(names))}: {reason}" for reason, names in named.items())


def _wanted(spec: TopicSpec, keyed: int, copies: int) -> dict[str, Any]:
    """Return the library's arguments for a new topic.

    With three copies, a record is acknowledged when two have it, so one broker may be lost.
    """
    config = {**spec.config, _IN_SYNC: "2" if copies >= REPLICATION else "1"}
    return {"num_partitions": spec.partitions(keyed), "replication_factor": copies, "configs": config}


def _state(name: str, topic: Mapping[str, Any], config: Mapping[str, str]) -> TopicState:
    partitions = topic["partitions"]
    return TopicState(
        name,
        len(partitions),
        min(len(partition["replica_nodes"]) for partition in partitions),
        tuple(sorted(partition["partition_index"] for partition in partitions if partition["leader_id"] < 0)),
        config,
    )


def _left(name: str, committed: Mapping[Any, Any], ends: Mapping[Any, Any]) -> int | None:
    """Return the number of unread messages of a topic; None if none was ever read."""
    read = {tp: position.offset for tp, position in committed.items() if tp.topic == name and position.offset >= 0}
    left = (end.offset - read.get(tp, 0) for tp, end in ends.items() if tp.topic == name)
    return sum(max(0, count) for count in left) if read else None


def _compare(spec: TopicSpec, state: TopicState | None, keyed: int) -> Iterator[Mismatch]:
    """Yield the differences of one topic."""
    name = spec.name
    if state is None:
        yield Mismatch(name, "is missing", "Run driftline topics create.")
        return
    if spec.is_keyed and state.partitions != keyed:
        yield Mismatch(name, f"has {state.partitions} partitions where topics keyed by session have {keyed}", _ADD_PARTITIONS)
    if state.without_leader:
        numbers = ", ".join(map(str, state.without_leader))
        yield Mismatch(name, f"has no leader for partition {numbers}", "Start the brokers that hold it.")
    for key, wanted in spec.config.items():
        if (value := state.config.get(key)) != wanted:
            advice = (
                f"Set it with kafka-configs --alter --entity-type topics --entity-name … --add-config {key}={wanted}, "
                "or keep it on purpose."
            )
            yield Mismatch(name, f"has {key}={value} where {wanted} is meant", advice)
    if state.replication >= REPLICATION and state.config.get(_IN_SYNC) == "1":
        advice = f"Set {_IN_SYNC}=2, or what was accepted can be lost with one broker."
        yield Mismatch(name, f"has {state.replication} copies and takes a record as soon as one has it", advice)


def partitions_on(connection: KafkaConnection, names: Collection[str]) -> list[tuple[str, int]]:
    """Return every partition of these topics. Raises SettingsError, which names missing topics."""
    with TopicAdministration(connection) as administration:
        there = administration.describe()
    if missing := [connection.topic(name) for name in names if name not in there]:
        raise SettingsError(f"topics are missing: {', '.join(missing)}", hint="Create them with `driftline topics create`.")
    return [(name, number) for name in names for number in range(there[name].partitions)]
