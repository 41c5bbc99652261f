"""State topics: a stage's session states, in a compacted topic with the same partitions as the stage's source.

1. A state is durable before the offset that it covers is committed, so after a kill the records that it lacks are read again.
2. Of several values of one key, the one with the highest next offset is valid: a frozen worker may write after its successor. If a stale
   value is the last one, compaction would keep it, so the reader that finds it writes the newest value again.
3. A value and the state inside it must be readable, and must not go beyond the source's end at the time of reading. A value that is not a
   state is ignored, logged and becomes a dead letter, which is the same in every process. Its session continues from a valid state if
   the topic has one, or else starts from nothing.
4. A single value beyond the source's end may be a stray mistake. If there are several, the source is another topic of that name, and
   the worker refuses all of them.
5. States that were read stay on local disk when their partition is revoked. When it is assigned again, only newer states are read.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from analytics.deletion.text_keys import UnreadableTextError
from audit.redaction import Redactor
from schemas.errors import BrokerError, StoreError
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import ENTRY_BYTES, build_dead_letter
from streams.kafka.producing import Sender, keyed
from streams.kafka.reading import PartitionReader, RawRecord, keep_encrypted, require_plain
from streams.kafka.topics import state_topic
from streams.log.admission import DEAD_LETTERS, Refusal
from streams.log.dead_letters import NO_STATE, STATE

if TYPE_CHECKING:
    from streams.kafka.encryption import TextEncryption

MAX_STATE_BYTES = 15_000_000
"""Largest state of one session in bytes; the topic takes 16 MiB, framing included."""
FETCH_BYTES = 16 * 1024 * 1024
"""Bytes in one answer of the broker."""
BUFFER_BYTES = 16 * 1024 * 1024
"""Bytes of writes that are buffered in memory before they go to a file."""
AHEAD_SHARE = 0.01
"""The share of values, plus one, that may go beyond the source before it counts as another topic."""
_MAX_KEY_LENGTH = 600
"""Characters of a key in a dead letter."""
_TOMBSTONE_OFFSET = -1
"""Stands for the offset of a tombstone: any state is newer."""
_INVALID_OFFSET = -2
"""Stands for the offset of an invalid state: everything else is newer."""
log = logging.getLogger(__name__)


class StoredState(msgspec.Struct, frozen=True, array_like=True):
    """The value for one session in a state topic."""

    next_offset: Annotated[int, msgspec.Meta(ge=0)]
    """Offset in the source topic up to which records are included, exclusive."""
    identities: bytes
    """Hashes of the newest records' identities and contents (see `streams.kafka.decoding`)."""
    state: bytes
    """The state of the stage's step."""


ENCODE = msgspec.msgpack.Encoder().encode
DECODE = msgspec.msgpack.Decoder(StoredState).decode


def is_too_large(state: StoredState) -> bool:
    """Return whether the state is too large for a state topic."""
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
        state_type: type[Any] | None = None,
        redactor: Redactor | None = None,
        encryption: TextEncryption | None = None,
    ) -> None:
        """`source` is the topic that the stage reads, `state_type` the type of the stage's own states; None disables the check.

        `redactor` is for the dead letters of invalid states; without it there are none. With `encryption`, states are encrypted on the
        topic and on local disk; an erased session has no state, and none is saved.
        """
        self.name = state_topic(stage)
        self._connection = connection
        self._source = source
        self._producer = producer
        self._local = local or LocalStates()
        self._decode_inner = (lambda state: state) if state_type is None else msgspec.msgpack.Decoder(state_type).decode
        self._redactor = redactor
        self._encryption = encryption
        self._decrypt = require_plain if encryption is None else keep_encrypted
        self.partitions = 0
        """Number of partitions of the source; 0 if it is not checked."""
        self._next_offsets: dict[int, int] = {}
        """By partition: the next offset to read in the state topic."""
        self._max_source_offsets: dict[int, int] = {}
        """By partition: the highest source offset of any state that was read."""

    async def load(self, partition: int) -> None:
        """Read the partition's new states. Raises BrokerError if it cannot be read.

        Call it before reading the first records of an assigned partition: from then on no other process writes to the partition.
        """
        name = f"topic {self._connection.topic(self.name)}, partition {partition}"
        try:
            if self._encryption is not None:
                await self._encryption.catch_up()  # states may be encrypted with keys that were created since
            async with PartitionReader(self._connection, self._decrypt, max_partition_fetch_bytes=FETCH_BYTES) as reader:
                loading = await self._load(reader, partition)
        except BrokerError as error:
            raise BrokerError(f"{name}: the states cannot be read: {error}") from error
        if loading.overwritten:
            log.warning("%s: %d states were overwritten by older ones, restoring them", name, len(loading.overwritten))
            newest = await asyncio.to_thread(self._local.get, partition, loading.overwritten)
            await self._producer.send(self.name, list(newest.items()), partition=partition)
        self._require_source_covers(loading)
        if loading.count:
            log.info("%s: %d states read", name, loading.count)
        dead_letters = keyed(self._build_dead_letters(loading))
        if dead_letters:
            await self._producer.send(DEAD_LETTERS, dead_letters)

    def get(self, partition: int, keys: Iterable[str]) -> dict[str, StoredState]:
        """Return the states of the sessions; sessions without a state are missing."""
        values = self._local.get(partition, [key.encode() for key in keys])
        decrypted = {key: self._decrypt_value(key, value) for key, value in values.items()}
        return {key.decode(): DECODE(value) for key, value in decrypted.items() if value is not None}

    async def save(self, partition: int, states: Mapping[str, StoredState]) -> None:
        """Write states; durable on return. Raises BrokerError if they cannot be written. A state that `is_too_large` cannot be written."""
        messages = [(key.encode(), ENCODE(state)) for key, state in states.items()]
        encrypted = messages if self._encryption is None else self._encryption.encrypt(self.name, messages)
        values = dict(filter(None, encrypted))
        if values:
            await self._producer.send(self.name, list(values.items()), partition=partition)
            await asyncio.to_thread(self._local.put, partition, values)

    def close(self) -> None:
        """Remove the files on local disk."""
        self._local.close()

    async def _load(self, reader: PartitionReader, partition: int) -> _Loading:
        # Ask for offsets before reading: on one connection a broker answers only after it has answered the fetch before.
        states = (self.name, partition)
        if self._source is None:
            ranges = await reader.ranges([states])
            source_end = None
        else:
            source = (self._source, partition)
            ranges = await reader.ranges([states, source])
            source_end = ranges[source].end
            self.partitions = len(reader.partitions_of(self._source))
        # No state written before now can go beyond the source's end.
        loading = _Loading(partition, source_end)
        start = max(self._next_offsets.get(partition, 0), ranges[states].beginning)
        end = ranges[states].end
        async for records, _ in reader.read_until(states, start, end):
            await asyncio.to_thread(self._store_newest, loading, records)
        self._next_offsets[partition] = max(end, start)
        return loading

    def _store_newest(self, loading: _Loading, records: Sequence[RawRecord]) -> None:
        """Store the newest value of each key, and note the keys whose last value is an older one."""
        partition = loading.partition
        local = self._local.get(partition, {record.key for record in records if record.key is not None})
        decrypted = {key: self._decrypt_value(key, value) for key, value in local.items()}
        ends = {key: DECODE(value).next_offset for key, value in decrypted.items() if value is not None}
        newest: dict[bytes, bytes | None] = {}
        for record in records:
            loading.count += 1
            if record.key is None:
                continue
            end = self._next_offset(loading, record)
            if record.value is not None and end < ends.get(record.key, _TOMBSTONE_OFFSET):
                loading.overwritten.add(record.key)
                continue
            ends[record.key] = end
            newest[record.key] = record.value
            loading.overwritten.discard(record.key)
        self._local.put(partition, newest)
        self._max_source_offsets[partition] = max(self._max_source_offsets.get(partition, 0), *ends.values(), 0)

    def _next_offset(self, loading: _Loading, record: RawRecord) -> int:
        """Return the source offset that a record's state covers; invalid states are added to `loading.refused`."""
        try:
            value = None if record.value is None else self._decrypt_value(record.key or b"", record.value)
            return _TOMBSTONE_OFFSET if value is None else self._validate(value, loading.source_end)
        except InvalidStateError as error:
            message = "%s, partition %d, offset %d: skipping invalid state: %s"
            log.warning(message, self.name, loading.partition, record.offset, error)
            loading.refused.append((record, error))
            return _INVALID_OFFSET

    def _decrypt_value(self, key: bytes, value: bytes) -> bytes | None:
        """Return the decrypted value; None if the session was erased. Raises InvalidStateError if the value was changed."""
        if self._encryption is None:
            return value
        try:
            return self._encryption.decrypt_value(self.name, key, value)
        except UnreadableTextError as error:
            raise InvalidStateError(str(error)) from error

    def _validate(self, value: bytes, source_end: int | None) -> int:
        """Return the source offset that a state covers. Raises InvalidStateError if the value is not a state."""
        try:
            stored = DECODE(value)
            covered_offset = getattr(self._decode_inner(stored.state), "next_offset", 0)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidStateError(f"it cannot be read: {error}") from error
        if len(stored.identities) % ENTRY_BYTES:
            raise InvalidStateError(f"its identities are {len(stored.identities)} bytes, not a multiple of {ENTRY_BYTES}")
        if covered_offset > stored.next_offset:
            raise InvalidStateError(f"it covers offsets up to {stored.next_offset}, but its content up to {covered_offset}")
        if source_end is not None and stored.next_offset > source_end:
            reason = f"it covers offsets up to {stored.next_offset}, but its source ends at {source_end}"
            raise InvalidStateError(reason, ahead=stored.next_offset)
        return stored.next_offset

    def _require_source_covers(self, loading: _Loading) -> None:
        """Raise BrokerError if states go beyond their source: its next records would be skipped as already processed."""
        if self._source is None or loading.source_end is None:
            return
        max_offset = max(self._max_source_offsets.get(loading.partition, 0), loading.max_offset_ahead())
        if max_offset > loading.source_end:
            raise BrokerError(
                f"topic {self._connection.topic(self._source)}, partition {loading.partition}, ends at offset "
                f"{loading.source_end}, but {self.name} has states up to {max_offset}: the states belong to another topic, "
                "or brokers have lost records",
                hint="Start again under another prefix, or delete and recreate the state topics; then every session starts from nothing.",
            )

    def _build_dead_letters(self, loading: _Loading) -> list[bytes]:
        """Return the dead letters of invalid states."""
        if self._redactor is None:
            return []
        dead_letters = []
        for record, error in loading.refused:
            session = (record.key or b"").decode("utf-8", "replace")[:_MAX_KEY_LENGTH]
            refusal = Refusal(STATE, NO_STATE, f"session {session!r}: {error}")
            dead_letters.append(build_dead_letter(self.name, loading.partition, record, refusal, self._redactor))
        return dead_letters


class InvalidStateError(Exception):
    """Raised for a value that is not a state; the message says why. `ahead` is the offset that it claims, if the offset is the fault."""

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
    overwritten: set[bytes] = field(default_factory=set)
    """Keys whose last value so far is older than an earlier one."""
    refused: list[tuple[RawRecord, InvalidStateError]] = field(default_factory=list)

    def max_offset_ahead(self) -> int:
        """Return the highest offset that states claim beyond the source's end; 0 if there are so few that it may be a stray mistake."""
        ahead = {record.key: error.ahead for record, error in self.refused if error.ahead}
        if len(ahead) <= 1 + AHEAD_SHARE * self.count:
            return 0
        return max(ahead.values())


class LocalStates:
    """Values by partition and key, in a folder that is removed with the process, so that memory use stays constant with millions of sessions.

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
        without_log.disable_wal = True  # type: ignore[method-assign, assignment]  # the stubs declare a method, but it is an attribute
        self._files.set_write_options(without_log)

    def get(self, partition: int, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of the keys; keys without a value are missing."""
        keys = list(keys)
        if not keys:
            return {}
        local_keys: list[str | int | float | bytes | bool] = [_local_key(partition, key) for key in keys]
        try:
            values = cast("list[bytes | None]", self._files[local_keys])
        except Exception as error:
            raise StoreError(
                f"{self._folder.name}: the states cannot be read: {error}",
                hint="Check the disk of the worker's temporary folder (TMPDIR) and start it again: the states are read from their topic.",
            ) from error
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

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
