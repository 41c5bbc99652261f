"""The table of topics: content, number of partitions, retention and compaction of each.

The table repeats nothing from elsewhere: the topics of records are those of the schemas, and every stage has a state topic.

1. A topic is keyed by session if all of its records belong to sessions. These topics and the state topics have the same number of
   partitions, so that a session is on the same partition number everywhere. More partitions let more workers share the work.
2. The other topics are keyed by project or id and see few records: a few partitions are enough.
   The topic of spending has one partition, because the order of its entries decides; that of the keys of texts has little.
3. Records are kept indefinitely unless the table says otherwise. Exchanges, events, judgements and reviews are the sources of everything
   else and cannot be derived again. Derived records are kept so that the tables can be rebuilt without running a stage.
4. Only the last state of a session counts, so state topics are compacted. A worker reads the states of a newly assigned partition from
   the beginning: small segments and an early cleaner keep that short. A replaced state is kept for another hour, for readers.
5. A record's timestamp on the topic is the time when the broker received it; the time of the event is a field. Otherwise a wrong
   producer clock could make the broker drop new records.

The committed offsets of a worker group are not in this table but in the cluster's own offsets topic. They are kept while the group has
a member, idle or not, and for the brokers' `offsets.retention.minutes` after the last member has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.registry import current_schemas, topics
from streams.topology import TOPOLOGY, Stage

DEFAULT_PARTITIONS = 12
OTHER_PARTITIONS = 3
"""Partitions of topics that are not keyed by session: they see few records."""
REPLICATION = 3
"""Copies of a partition, if there are that many brokers."""
GROUP = "driftline"
"""The consumer group of every worker, whichever stages it runs: a source topic belongs to one stage, so stages share no offset."""
COLLECTOR = "collector"
"""The stage that reads an OpenTelemetry Collector's topics. It has neither step nor state, and these topics are the Collector's: they
are in no table, and their partitions and configuration are its own.
"""
SPENDING = "spending"
"""The topic of what judging costs under the caps that sessions share; see `streams.kafka.spending_topic`."""
TEXT_KEYS = "text-keys"
"""The topic of the seeds from which the keys of texts are derived; see `streams.kafka.encryption`."""
KEYS_SEGMENT_SECONDS = 60 * 60.0
"""Seconds after which a replaced seed may be compacted away."""
SPANS = "spans"
"""The topic that this stage writes to."""
REFERENCE = "exchanges"
"""The keyed topic that sets the default number of partitions of the others."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest message: the state of the longest session, or a task with an exchange of a megabyte and all of its judgements."""
_MINUTE = 60_000
_DAY = 24 * 60 * _MINUTE
_FOR_EVER = -1
_KEPT = {"heartbeats": 7 * _DAY, "spans": 7 * _DAY}
"""Retention by topic, in milliseconds, if it is limited: an old heartbeat has no use, and a span is in its trace's exchanges."""

Role = Literal["session", "other", "state", "single"]


@dataclass(frozen=True)
class TopicSpec:
    """The intended form of a topic. `config` has Kafka's own names and values, all as text."""

    name: str
    role: Role
    holds: str
    config: Mapping[str, str]

    @property
    def is_keyed(self) -> bool:
        """True if it must have as many partitions as the other topics keyed by session."""
        return self.role in {"session", "state"}

    def partitions(self, keyed: int) -> int:
        """Return its number of partitions, given that of the topics keyed by session."""
        if self.role == "single":
            return 1
        return keyed if self.is_keyed else min(OTHER_PARTITIONS, keyed)


def state_topic(stage: str) -> str:
    """Return the state topic of a stage."""
    return f"{stage}-state"


def specs_of(stages: Iterable[Stage]) -> dict[str, TopicSpec]:
    """Return every topic that the schemas, these stages and the shared caps need, by name."""
    records = {name: _records(name, types) for name, types in topics().items()}
    return records | {spec.name: spec for spec in (*map(_state, stages), _spending(), _text_keys())}


def _records(name: str, types: tuple[str, ...]) -> TopicSpec:
    fields = [{field["name"] for field in current_schemas()[record].fields if field["type"] == "string"} for record in types]
    role: Role = "session" if all({"connection", "session_id"} <= names for names in fields) else "other"
    config = {"cleanup.policy": "delete", "retention.ms": _KEPT.get(name, _FOR_EVER), "retention.bytes": _FOR_EVER}
    return TopicSpec(name, role, ", ".join(types), _config(config))


def _state(stage: Stage) -> TopicSpec:
    config = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": 60 * _MINUTE,
        "min.cleanable.dirty.ratio": 0.1,
        "segment.bytes": 4 * MAX_MESSAGE_BYTES,
        "segment.ms": 60 * _MINUTE,
    }
    return TopicSpec(state_topic(stage.name), "state", f"state of {stage.name}", _config(config))


def _spending() -> TopicSpec:
    """Return the topic of spending: one partition, because the order of its entries decides. It needs the current month."""
    config = {"cleanup.policy": "delete", "retention.ms": 62 * _DAY, "retention.bytes": _FOR_EVER}
    return TopicSpec(SPENDING, "single", "spending under shared caps", _config(config))


def _text_keys() -> TopicSpec:
    """Return the topic of seeds. A replaced seed opens texts that were erased since, so its broker must delete it soon."""
    milliseconds = int(KEYS_SEGMENT_SECONDS * 1000)
    config = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": 0,
        "max.compaction.lag.ms": milliseconds,
        "min.cleanable.dirty.ratio": 0.01,
        "segment.ms": milliseconds,
        "delete.retention.ms": 0,
    }
    return TopicSpec(TEXT_KEYS, "single", "seeds of the keys of texts", _config(config))


def _config(own: Mapping[str, object]) -> dict[str, str]:
    """Return the configuration of a topic, including the options that all topics share."""
    shared = {"max.message.bytes": MAX_MESSAGE_BYTES, "message.timestamp.type": "LogAppendTime"}
    return {name: str(value) for name, value in {**shared, **own}.items()}


TOPICS = specs_of(TOPOLOGY)
