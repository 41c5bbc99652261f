"""The topics as one table: what each holds, how many partitions it has, how long it is kept and how it is compacted.

Nothing is listed that is known elsewhere: the topics of records are those of the schemas, and every stage has a state topic.

1. A topic whose every record is of a session is keyed by the session. All of these, and the state topics, have the same number of
   partitions, so that a session is on the same partition number everywhere. More partitions let more workers share the work.
2. The other topics are keyed by project or id and see few records: a few partitions do.
3. Records are kept for ever unless the table says otherwise. Exchanges, events, judgements and reviews are where everything else
   comes from and cannot be made again; what is derived is kept so that the tables can be rebuilt without asking a stage.
4. The last state of a session is what counts, so state topics are compacted. A worker that takes up a partition reads its
   states from the beginning: small segments and an early cleaner keep that short. A state that was replaced stays for an hour, for readers.
5. A record's time on the topic is when the broker took it in; when it happened is a field. Otherwise a producer's clock could make
   the broker drop what has just come.

What a group of workers has read is not kept here but in the cluster's own topic of offsets: for as long as a member is there, idle or
not, and after the last has gone for the brokers' `offsets.retention.minutes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.registry import current_schemas, topics
from streams.topology import TOPOLOGY, Stage

DEFAULT_PARTITIONS = 12
OTHER_PARTITIONS = 3
"""Partitions of topics that no session keys: they see few records."""
REPLICATION = 3
"""Copies of a partition, where there are as many brokers."""
GROUP = "driftline"
"""The consumer group of every worker, whichever stages it has: a source topic belongs to one stage, so they share no offset."""
COLLECTOR = "collector"
"""The stage that reads an OpenTelemetry Collector's topics. It has neither step nor state, and these topics are the Collector's: they
are in no table, and their partitions and configuration are its own.
"""
SPANS = "spans"
"""The topic that this stage writes to."""
REFERENCE = "exchanges"
"""The keyed topic that says how many partitions the others have, by default."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest message: the state of the longest session, or a task with an exchange of a megabyte and all that was said of it."""
_MINUTE = 60_000
_DAY = 24 * 60 * _MINUTE
_FOR_EVER = -1
_KEPT = {"heartbeats": 7 * _DAY, "spans": 7 * _DAY}
"""Retention by topic, in milliseconds, if it is not for ever: an old sign of life says nothing, and a span is in its trace's exchanges."""

Role = Literal["session", "other", "state"]


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
        return self.role != "other"

    def partitions(self, keyed: int) -> int:
        """Return its number of partitions, if the topics keyed by session have `keyed`."""
        return keyed if self.is_keyed else min(OTHER_PARTITIONS, keyed)


def state_topic(stage: str) -> str:
    """The topic with the states of a stage."""
    return f"{stage}-state"


def specs_of(stages: Iterable[Stage]) -> dict[str, TopicSpec]:
    """Every topic that the schemas and these stages need, by name."""
    records = {name: _records(name, types) for name, types in topics().items()}
    return records | {spec.name: spec for spec in map(_state, stages)}


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


def _config(own: Mapping[str, object]) -> dict[str, str]:
    """The configuration of a topic, with what all of them have."""
    shared = {"max.message.bytes": MAX_MESSAGE_BYTES, "message.timestamp.type": "LogAppendTime"}
    return {name: str(value) for name, value in {**shared, **own}.items()}


TOPICS = specs_of(TOPOLOGY)
