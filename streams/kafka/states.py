"""State topics: a stage's session states, in a compacted topic of ours with the partitions of the stage's source.

1. A state is durable before the offset that it covers is committed, so after any kill the records that it lacks come again.
2. Of several values of one key the one with the highest next offset counts: a frozen worker may write after its successor. If such a
   stale value is the last one, compaction would keep it, so the reader that finds it writes the right value again.
3. A value must be readable, outside and inside, and must not go beyond the source's end at the time of reading. A value that is not a
   state is ignored, logged and becomes a dead letter, which is the same in every process. Its session continues from a right state if
   the topic has one, else it starts afresh.
4. A single value that goes too far may be a stray mistake. If several do, the source is another topic of that name, and no worker
   continues from any of them.
5. States that were read stay on local disk when their partition is revoked. When it is assigned again, only newer states are read.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from audit.redaction import Redactor
from schemas.errors import BrokerError, StoreError
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import ENTRY_BYTES, letter_of
from streams.kafka.producing import Sender, keyed
from streams.kafka.reading import PartitionReader, RawRecord
from streams.kafka.topics import state_topic
from streams.log.admission import DEAD_LETTERS, Refusal
from streams.log.dead_letters import NO_STATE, STATE

MAX_STATE_BYTES = 15_000_000
"""Largest state of one session in bytes; the topic takes 16 MiB, framing included."""
FETCH_BYTES = 16 * 1024 * 1024
"""Bytes in one answer of the broker."""
BUFFER_BYTES = 16 * 1024 * 1024
"""Bytes of writes that are buffered in memory before they go to a file."""
AHEAD_SHARE = 0.01
"""The share of values, plus one, that may go beyond the source before it is taken for another topic."""
_TAKEN_AWAY, _NO_STATE = -1, -2
"""Stand-ins for an offset: of a tombstone, after which any state is new, and of an invalid state, which is older than any other."""
log = logging.getLogger(__name__)


class StoredState(msgspec.Struct, frozen=True, array_like=True):
    """The value for one session in a state topic."""

    next_offset: Annotated[int, msgspec.Meta(ge=0)]
    """Offset in the source topic up to which records are in it, exclusive."""
    identities: bytes
    """Hashes of the newest records' identities and contents (see `streams.kafka.decoding`)."""
    state: bytes
    """The state of the stage's step."""


ENCODE = msgspec.msgpack.Encoder().encode
DECODE = msgspec.msgpack.Decoder(StoredState).decode


def is_too_large(state: StoredState) -> bool:
    """Tell whether the state is too large for a state topic."""
    return len(state.state) + len(state.identities) > MAX_STATE_BYTES


class StateTopic:
    """The states of one stage. Belongs to one event loop; `get` may be called from any thread."""

    def __init__(
        self,
        connection: KafkaConnection,
        stage: str,
        producer: Sender,
        local: LocalStates | None = None,
        *,
        source: str | None = None,
        holds: type[Any] | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        """`source` is the topic that the stage reads, `holds` the type of the stage's own states; None means that it is not checked.

        `redactor` is for the dead letters of invalid states; without it none are made.
        """
        self.name = state_topic(stage)
        self._connection = connection
        self._source = source
        self._producer = producer
        self._local = local or LocalStates()
        self._decode_inner = (lambda state: state) if holds is None else msgspec.msgpack.Decoder(holds).decode
        self._redactor = redactor
        self.partitions = 0
        """Number of partitions of the source; 0 if it is not checked."""
        self._read: dict[int, int] = {}
        """By partition: the next offset to read in the state topic."""
        self._farthest: dict[int, int] = {}
        """By partition: the highest source offset of any state that was read."""

    async def load(self, partition: int) -> None:
        """Read the partition's new states; BrokerError when it cannot be read.

        Call it before the first records of an assigned partition: no other process writes to the partition from then on.
        """
        name = f"topic {self._connection.topic(self.name)}, partition {partition}"
        try:
            async with PartitionReader(self._connection, max_partition_fetch_bytes=FETCH_BYTES) as reader:
                loading = await self._load(reader, partition)
        except BrokerError as error:
            raise BrokerError(f"{name}: the states cannot be read: {error}") from error
        if loading.outlived:
            log.warning("%s: %d states were overwritten, such as by a late worker", name, len(loading.outlived))
            right = await asyncio.to_thread(self._local.get, partition, loading.outlived)
            await self._producer.send(self.name, list(right.items()), partition=partition)
        self._check(loading)
        if loading.count:
            log.info("%s: %d states read", name, loading.count)
        if letters := keyed(self._letters(loading)):
            await self._producer.send(DEAD_LETTERS, letters)

    def get(self, partition: int, keys: Iterable[str]) -> dict[str, StoredState]:
        """The states of the sessions; a session without a state is missing."""
        values = self._local.get(partition, [key.encode() for key in keys])
        return {key.decode(): DECODE(value) for key, value in values.items()}

    async def save(self, partition: int, states: Mapping[str, StoredState]) -> None:
        """Write states; durable on return. BrokerError when they may not be. A state that `is_too_large` cannot be written."""
        values = {key.encode(): ENCODE(state) for key, state in states.items()}
        if values:
            await self._producer.send(self.name, list(values.items()), partition=partition)
            await asyncio.to_thread(self._local.put, partition, values)

    def close(self) -> None:
        """Remove the files on local disk."""
        self._local.close()

    async def _load(self, reader: PartitionReader, partition: int) -> _Loading:
        # Ask for offsets before reading: on one connection a broker answers only after it has answered the fetch before.
        states = (self.name, partition)
        source = [] if self._source is None else [(self._source, partition)]
        ranges = await reader.ranges([states, *source])
        self.partitions = 0 if self._source is None else len(reader.partitions_of(self._source))
        # No state written before now can go beyond the source's end.
        loading = _Loading(partition, source_end=ranges[source[0]].end if source else None)
        start, end = max(self._read.get(partition, 0), ranges[states].beginning), ranges[states].end
        async for records, _ in reader.read_until(states, start, end):
            await asyncio.to_thread(self._take_in, loading, records)
        self._read[partition] = max(end, start)
        return loading

    def _take_in(self, loading: _Loading, records: Sequence[RawRecord]) -> None:
        """Keep the newest values, and note the keys whose last value is not the newest."""
        partition = loading.partition
        local = self._local.get(partition, {record.key for record in records if record.key is not None})
        ends = {key: DECODE(value).next_offset for key, value in local.items()}
        newest: dict[bytes, bytes | None] = {}
        for record in records:
            loading.count += 1
            if record.key is None:
                continue
            end = self._next_offset(loading, record)
            if record.value is not None and end < ends.get(record.key, _TAKEN_AWAY):
                loading.outlived.add(record.key)
                continue
            ends[record.key], newest[record.key] = end, record.value
            loading.outlived.discard(record.key)
        self._local.put(partition, newest)
        self._farthest[partition] = max(self._farthest.get(partition, 0), *ends.values(), 0)

    def _next_offset(self, loading: _Loading, record: RawRecord) -> int:
        """The offset of the source that a record's value goes up to; invalid states are noted."""
        if record.value is None:
            return _TAKEN_AWAY
        try:
            return self._checked(record.value, loading.source_end)
        except NoStateError as error:
            message = "%s, partition %d, offset %d: this is no state and is passed over: %s"
            log.warning(message, self.name, loading.partition, record.offset, error)
            loading.refused.append((record, error))
            return _NO_STATE

    def _checked(self, value: bytes, source_end: int | None) -> int:
        try:
            stored = DECODE(value)
            inside = getattr(self._decode_inner(stored.state), "next_offset", 0)
        except (msgspec.DecodeError, RecursionError) as error:
            raise NoStateError(f"it cannot be read: {error}") from error
        if len(stored.identities) % ENTRY_BYTES:
            raise NoStateError(f"its identities are {len(stored.identities)} bytes, which is no multiple of {ENTRY_BYTES}")
        if inside > stored.next_offset:
            raise NoStateError(f"it goes to offset {stored.next_offset}, and what it holds to {inside}")
        if source_end is not None and stored.next_offset > source_end:
            reason = f"it goes to offset {stored.next_offset}, and its source ends at {source_end}"
            raise NoStateError(reason, ahead=stored.next_offset)
        return stored.next_offset

    def _check(self, loading: _Loading) -> None:
        """BrokerError if states go beyond their source: its next records would count as seen."""
        farthest = max(self._farthest.get(loading.partition, 0), loading.farthest_ahead())
        if self._source is not None and loading.source_end is not None and farthest > loading.source_end:
            raise BrokerError(
                f"topic {self._connection.topic(self._source)}, partition {loading.partition}, ends at offset "
                f"{loading.source_end}, and {self.name} has states up to {farthest}: it is not the topic that they were made from, "
                "or brokers have lost records",
                hint="Start again under another prefix; or delete the state topics and create them again, and every session starts again.",
            )

    def _letters(self, loading: _Loading) -> list[bytes]:
        """The dead letters of invalid states."""
        letters = []
        for record, error in loading.refused if self._redactor is not None else ():
            session = (record.key or b"").decode("utf-8", "replace")[:600]
            refusal = Refusal(STATE, NO_STATE, f"session {session!r}: {error}")
            letters.append(letter_of(self.name, loading.partition, record, refusal, cast("Redactor", self._redactor)))
        return letters


class NoStateError(Exception):
    """A value is not a state; the message says why. `ahead` is the offset that it claims, if the offset is the fault."""

    def __init__(self, reason: str, ahead: int = 0) -> None:
        super().__init__(reason)
        self.ahead = ahead


@dataclass
class _Loading:
    """A single pass over a partition."""

    partition: int
    source_end: int | None
    """None if the source is not checked."""
    count: int = 0
    outlived: set[bytes] = field(default_factory=set)
    """Keys whose last value so far is not the newest."""
    refused: list[tuple[RawRecord, NoStateError]] = field(default_factory=list)

    def farthest_ahead(self) -> int:
        """The highest offset that states claim beyond the end, if too many do to be a stray mistake; else 0."""
        ahead = {record.key: error.ahead for record, error in self.refused if error.ahead}
        return max(ahead.values()) if len(ahead) > 1 + AHEAD_SHARE * self.count else 0


class LocalStates:
    """Values by partition and key, in a folder that is removed with the process: memory stays flat with millions of sessions.

    The values can always be read again from the topic.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="driftline-states-", dir=folder)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(BUFFER_BYTES)
        options.set_max_write_buffer_number(2)
        self._files = Rdict(self._folder.name, options)
        without_log = WriteOptions()
        without_log.disable_wal = True  # type: ignore[method-assign, assignment]  # an attribute, whatever the stubs say
        self._files.set_write_options(without_log)

    def get(self, partition: int, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of the keys; a key without a value is missing."""
        wanted = list(keys)
        places: list[str | int | float | bytes | bool] = [_local_key(partition, key) for key in wanted]
        try:
            values = cast("list[bytes | None]", self._files[places]) if places else []
        except Exception as error:
            raise StoreError(
                f"{self._folder.name}: the states cannot be read: {error}",
                hint="Check the disk of the worker's temporary folder (TMPDIR) and start it again: the states are read from their topic.",
            ) from error
        return {key: value for key, value in zip(wanted, values, strict=True) if value is not None}

    def put(self, partition: int, values: Mapping[bytes, bytes | None]) -> None:
        """Store values; None deletes a key."""
        batch = WriteBatch(raw_mode=True)
        for key, value in values.items():
            if value is None:
                batch.delete(_local_key(partition, key))
            else:
                batch.put(_local_key(partition, key), value)
        self._files.write(batch)

    def close(self) -> None:
        """Remove the folder."""
        self._files.close()
        self._folder.cleanup()


def _local_key(partition: int, key: bytes) -> bytes:
    return partition.to_bytes(4, "big") + key
