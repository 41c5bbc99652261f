"""Encryption of texts on the topics, each with the key of its session, so that an erasure reaches records that cannot be deleted.

1. A value is encrypted when it is produced and decrypted when it is read, so nothing else deals with it. The key of the record, and with it
   the ids of connection and session, stays readable: it decides the partition.
2. Encrypted are the values of all topics keyed by session, the states of sessions, anchors, dead letters and reviews. Reviews, copies of
   anchors, and dead letters that do not name their session have keys of their own: the erasure of the database or the lake names them
   (`forget`). The evidence of incidents mentions several sessions: each of its objects that names a session is encrypted with the key of
   that session. The other topics have no texts of sessions and stay readable.
3. Values that are not encrypted are read, too: older ones, and those of other producers.
4. A record of an erased session is skipped and counted, whether it is encrypted or not, and none is produced. It is not a dead letter.
5. The seeds of the keys (`analytics.deletion.text_keys`) are on the compacted topic `text-keys`, which every process follows. A process that
   was not told of an erasure yet can still decrypt what the others cannot any more; never the other way.
6. A process with `keeps_keys` also follows the erasures. First it stores that a leaf is erased, and then the punctured part. If it is
   killed in between, the next one finds a part that has an erased leaf, and stores it again without that leaf.
7. A broker compacts a segment only after a later record has begun another one. So an hour after the last erasure, a process with
   `keeps_keys` writes a record that does this, and repeats it until the clock of the broker agrees that an hour has passed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from analytics.deletion.deleting import ERASURES, REDACTED
from analytics.deletion.retention import ANCHOR_COPIES
from analytics.deletion.text_keys import (
    BUCKETS,
    TREE_ID_BYTES,
    KeyTree,
    TextKeys,
    UnknownTreeError,
    UnreadableTextError,
    is_bucket,
    is_encrypted,
)
from analytics.store.store import Partition
from audit.anchors import ANCHORS
from audit.fingerprints import canonical_json
from schemas.codec.single_object import decode, encode
from schemas.errors import BrokerError, RecordError, SettingsError
from schemas.records import Anchor, DeadLetter, Erasure, Incident, Review
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import Message, RecordProducer
from streams.kafka.reading import (
    POLL_SECONDS,
    Decrypter,
    OutOfRangeError,
    PartitionReader,
    RawRecord,
    keep_encrypted,
    require_plain,
)
from streams.kafka.topics import KEYS_SEGMENT_SECONDS, TEXT_KEYS, TOPICS
from streams.log.admission import DEAD_LETTERS
from streams.stage_batches import session_key

_PARTITION = (TEXT_KEYS, 0)
_BUCKET, _PROOF, _ERASED, _ROLL = b"S", b"P", b"E", b"R"
"""The first bytes of the keys on the topic: a part of a tree, the proof of its secret, an erased leaf, and a record without content."""
_BUCKET_KEY = struct.Struct(f">1s{TREE_ID_BYTES}sH")
_LEAF_KEY = struct.Struct(">1sQ")
_RETRY_SECONDS = 0.5
_START_SECONDS = 60.0
_SENT_AT_ONCE = 500
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class DecryptedRecord:
    """A record of the broker with its decrypted value; a `streams.kafka.reading.RawRecord`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    encrypted: bytes
    """The value on the topic."""


class TextEncryption:
    """See the module. Belongs to one event loop; `encrypt_value` and `decrypt_value` may be called from any thread."""

    def __init__(self, connection: KafkaConnection, secret: bytes, *, keeps_keys: bool = False) -> None:
        self.erased: Counter[str] = Counter()
        """Records of erased sessions that were skipped, by topic."""
        self.keys = TextKeys(secret)
        self._connection = connection
        self._keeps_keys = keeps_keys
        self._producer = RecordProducer(connection)
        self._partitions: Sequence[Partition] = [_PARTITION]
        self._positions: dict[Partition, int] = {}
        self._progressed = asyncio.Event()
        self._stored_leaves: set[int] = set()
        self._unstored_leaves: set[int] = set()
        self._unstored_buckets: set[tuple[bytes, int]] = set()
        self._proven: set[bytes] = set()
        """The ids of the trees that belong to the secret."""
        self._changed_at = 0.0
        """The Unix time of the last change on the topic of keys, by the clock of the broker."""
        self._rolls_at: float | None = None
        """The Unix time from which on a record begins another segment; None if none is needed."""
        self._problem = ""
        """Why the topics cannot be read at present."""
        self._is_started = False
        self._following: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, connection: KafkaConnection, *, keeps_keys: bool = False) -> TextEncryption | None:
        """Return the encryption of an installation; None if it has no secret, so texts are not encrypted."""
        if connection.text_secret is None:
            return None
        return cls(connection, connection.text_secret, keeps_keys=keeps_keys)

    async def start(self) -> None:
        """Read the seeds, and create them if there are none.

        Raises SettingsError if the topic is missing, lacks parts or belongs to another secret, BrokerError if no broker answers.
        """
        erasures = [ERASURES] if self._keeps_keys else []
        self._loop = asyncio.get_running_loop()
        self._partitions = await asyncio.to_thread(partitions_on, self._connection, [TEXT_KEYS, *erasures])
        self._following = asyncio.create_task(self._follow(), name="text keys")
        self._following.add_done_callback(lambda _: self._progressed.set())
        try:
            await self.catch_up()
            if not self.keys.are_usable:
                self._require_no_damage()
                await self._create_tree()
                await self.catch_up()
            self._is_started = True
            await self._store()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop following the topics."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._producer.stop()

    async def catch_up(self) -> None:
        """Return when everything was read that is on the topics now. Raises BrokerError if that takes too long."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                async with PartitionReader(self._connection, keep_encrypted) as reader:
                    ranges = await reader.ranges(self._partitions)
                while any(self._positions.get(partition, -1) < bounds.end for partition, bounds in ranges.items()):
                    self._require_following()
                    await self._progressed.wait()
        except TimeoutError as error:
            raise BrokerError(f"topic {self._connection.topic(TEXT_KEYS)}: it was not read in {_START_SECONDS:g} s") from error

    def _require_following(self) -> None:
        """Raise the error that ended following: this process would not learn of erasures any more."""
        if self._following is not None and self._following.done() and not self._following.cancelled():
            self._following.result()

    async def forget(self, names: Iterable[str]) -> None:
        """Make the keys of these names underivable, for good; durable on return. Raises BrokerError if that cannot be stored.

        The names of erased sessions need not be named: their erasure is on its topic.
        """
        self._forget([self.keys.session_leaf(name.encode()) for name in names])
        await self._store()

    def forget_in_loop(self, names: Sequence[str]) -> None:
        """Do what `forget` does, from another thread than that of the event loop."""
        asyncio.run_coroutine_threadsafe(self.forget(names), self._loop).result()

    def encrypt(self, topic: str, messages: Iterable[Message]) -> list[Message | None]:
        """Encrypt the values of a topic, named without prefix; None in place of the messages of erased sessions."""
        self._require_following()
        encrypted = ((key, self.encrypt_value(topic, key, value)) for key, value in messages)
        return [None if value is None else (key, value) for key, value in encrypted]

    def encrypt_value(self, topic: str, key: bytes, value: bytes) -> bytes | None:
        """Encrypt a value under its key on a topic, unless it has no texts or is encrypted; None if its session was erased."""
        if is_encrypted(value):
            return value
        if topic == _INCIDENTS:
            return self._encrypt_incident(value)
        spec = TOPICS[topic]
        context = _context(topic, key)
        if topic in {DEAD_LETTERS, _ANCHORS_TOPIC, _REVIEWS}:
            return self.keys.encrypt(_owner_of(value) or key, value, context, is_named=True)
        if not spec.is_keyed:
            return value
        if spec.role == "session" and key.startswith(_ANCHOR_KEY) and (anchor := _anchor_of(value)):
            return self.keys.encrypt(anchor, value, context, is_named=True)
        return self.keys.encrypt(key, value, context)

    async def decrypt(self, topic: str, records: Sequence[RawRecord]) -> Sequence[RawRecord]:
        """Return the records of a topic, named without prefix, with decrypted values, and without those of erased sessions.

        A value that was changed is left as it is: it is not a record, so its reader makes a dead letter of it. Raises SettingsError if the
        topic of keys lacks the tree of a value, and BrokerError if that topic cannot be read.
        """
        self._require_following()
        try:
            return await asyncio.to_thread(self._decrypt_records, topic, records)
        except UnknownTreeError:
            await self.catch_up()
        try:
            return await asyncio.to_thread(self._decrypt_records, topic, records)
        except UnknownTreeError as error:
            raise SettingsError(
                f"topic {self._connection.topic(topic)}: {error}",
                hint=f"The topic {self._connection.topic(TEXT_KEYS)} must be the one with which the records were encrypted.",
            ) from error

    def decrypt_value(self, topic: str, key: bytes, value: bytes) -> bytes | None:
        """Decrypt a value under its key on a topic, or the evidence of an incident; None if its session was erased.

        Raises UnknownTreeError if its tree was not read, and UnreadableTextError if it was changed.
        """
        if not is_encrypted(value):
            return self._decrypt_incident(value) if topic == _INCIDENTS else value
        return self.keys.decrypt(value, _context(topic, key), key)

    def _decrypt_records(self, topic: str, records: Sequence[RawRecord]) -> Sequence[RawRecord]:
        has_sessions = TOPICS[topic].role == "session"
        decrypted: list[RawRecord] = []
        for record in records:
            key, value = record.key or b"", record.value
            if value is None:
                plain: bytes | None = b""
            elif has_sessions and not is_encrypted(value) and self.keys.is_erased(key):
                plain = None
            else:
                try:
                    plain = self.decrypt_value(topic, key, value)
                except UnreadableTextError as error:
                    log.warning("topic %s, offset %d: %s", topic, record.offset, error)
                    plain = value
            if plain is not None:
                decrypted.append(
                    record
                    if plain is value or value is None
                    else DecryptedRecord(record.offset, record.timestamp, record.key, plain, record.headers, value)
                )
        skipped = len(records) - len(decrypted)
        if skipped:
            self.erased[topic] += skipped
            log.info("topic %s: %d records of erased sessions were skipped", topic, skipped)
        return decrypted

    def _encrypt_incident(self, value: bytes) -> bytes:
        """Return an incident in which each object of the evidence that names a session is encrypted."""
        try:
            incident = decode(value)
            evidence = msgspec.json.decode(incident.metadata) if isinstance(incident, Incident) else None
        except (RecordError, msgspec.DecodeError):  # it names no session that could be erased
            return value
        encrypted = _replace_objects(evidence, self._encrypt_object)
        if encrypted == evidence:
            return value
        return encode(msgspec.structs.replace(incident, metadata=canonical_json(encrypted)))

    def _encrypt_object(self, value: dict[str, Any]) -> Any:
        name = _session_in(value)
        if name is None:
            return _UNCHANGED
        encrypted = self.keys.encrypt(name, canonical_json(value).encode(), _INCIDENTS.encode(), is_named=True)
        return REDACTED if encrypted is None else {_ENCRYPTED: base64.b64encode(encrypted).decode()}

    def _decrypt_incident(self, value: bytes) -> bytes:
        """Return an incident with its evidence; what belongs to erased sessions is redacted."""
        try:
            incident = decode(value)
            if not isinstance(incident, Incident) or _ENCRYPTED not in incident.metadata:
                return value
            evidence = msgspec.json.decode(incident.metadata)
        except (RecordError, msgspec.DecodeError):  # the reader makes a dead letter of it
            return value
        decrypted = _replace_objects(evidence, self._decrypt_object)
        return encode(msgspec.structs.replace(incident, metadata=canonical_json(decrypted)))

    def _decrypt_object(self, value: dict[str, Any]) -> Any:
        encrypted = value.get(_ENCRYPTED)
        if len(value) != 1 or not isinstance(encrypted, str):
            return _UNCHANGED
        try:
            plain = self.keys.decrypt(base64.b64decode(encrypted), _INCIDENTS.encode())
        except (UnreadableTextError, ValueError):
            return _UNCHANGED
        return REDACTED if plain is None else msgspec.json.decode(plain)

    async def _follow(self) -> None:
        """Read the topics until this task is cancelled. Raises SettingsError if they belong to another secret."""
        while True:
            try:
                await self._read()
            except OutOfRangeError:
                self._positions.clear()
            except BrokerError as error:
                if str(error) != self._problem:
                    log.warning("the keys of texts cannot be read or stored: %s; trying again", error)
                self._problem = str(error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self) -> None:
        async with PartitionReader(self._connection, keep_encrypted) as reader:
            beginnings = {partition: bounds.beginning for partition, bounds in (await reader.ranges(self._partitions)).items()}
            self._positions = beginnings | self._positions
            reader.read_from(self._positions)
            while True:
                self._progressed.set()
                self._progressed = asyncio.Event()
                await self._store()
                read = await reader.read(None, POLL_SECONDS)
                self._problem = ""
                for chunk in read.chunks:
                    if chunk.topic == TEXT_KEYS:
                        self._add_keys(chunk.records)
                    else:
                        self._add_erasures(chunk.records)
                self._positions |= read.positions

    def _add_keys(self, records: Iterable[RawRecord]) -> None:
        forgotten = []
        for record in records:
            key, value = record.key or b"", record.value or b""
            self._note_change(record.timestamp / 1000, is_roll=key == _ROLL)
            if key[:1] == _BUCKET and len(key) == _BUCKET_KEY.size and is_bucket(value):
                _, tree_id, number = _BUCKET_KEY.unpack(key)
                if self.keys.set_bucket(tree_id, number, value):
                    self._unstored_buckets.add((tree_id, number))
                else:
                    self._unstored_buckets.discard((tree_id, number))
            elif key[:1] == _ERASED and len(key) == _LEAF_KEY.size:
                forgotten.append(_LEAF_KEY.unpack(key)[1])
            elif key[:1] == _PROOF and len(key) == 1 + TREE_ID_BYTES:
                self._require_proof(key[1:], value)
            elif key != _ROLL:
                log.warning("topic %s, offset %d: not a part of the keys", TEXT_KEYS, record.offset)
        self._stored_leaves.update(forgotten)
        self._unstored_buckets |= self.keys.forget(forgotten)
        for tree_id in self._proven:
            self.keys.use_tree(tree_id)

    def _note_change(self, at: float, *, is_roll: bool) -> None:
        """Note when a record begins another segment, given the time of a record by the clock of the broker."""
        if not is_roll:
            self._changed_at = at
            self._rolls_at = at + KEYS_SEGMENT_SECONDS
        elif at > self._changed_at + KEYS_SEGMENT_SECONDS:
            self._rolls_at = None
        else:  # our clock is ahead of the broker's, or there was another change since, so the record has begun no segment
            self._rolls_at = max(self._changed_at + KEYS_SEGMENT_SECONDS, _roll_retry())

    def _require_proof(self, tree_id: bytes, proof: bytes) -> None:
        """Raise SettingsError unless a tree belongs to our secret."""
        if proof != self.keys.proof(tree_id):
            raise SettingsError(
                f"topic {self._connection.topic(TEXT_KEYS)}: its keys belong to another secret than that in DRIFTLINE_TEXT_KEY_FILE",
                hint="Give every process of an installation the same file; `driftline text-key FILE` prints its fingerprint.",
            )
        self._proven.add(tree_id)

    def _add_erasures(self, records: Iterable[RawRecord]) -> None:
        for record in records:
            with contextlib.suppress(RecordError):  # the sink makes a dead letter of it
                erasure = decode(record.value or b"")
                if isinstance(erasure, Erasure):
                    self._forget([self.keys.erased_leaf(erasure.connection, erasure.session_id)])

    def _forget(self, leaves: Iterable[int]) -> None:
        new = set(leaves) - self._stored_leaves
        self._unstored_leaves |= new
        self._unstored_buckets |= self.keys.forget(new)

    async def _store(self) -> None:
        """Store what was erased, first the leaves and then the parts without them. Raises BrokerError if that fails; it is then repeated."""
        if not self._keeps_keys or not self._is_started:
            return
        leaves = self._unstored_leaves - self._stored_leaves
        await self._send([(_LEAF_KEY.pack(_ERASED, leaf), b"\1") for leaf in sorted(leaves)])
        self._stored_leaves |= leaves
        self._unstored_leaves -= leaves
        buckets = {part: self._bucket(part) for part in sorted(self._unstored_buckets)}
        await self._send([(_BUCKET_KEY.pack(_BUCKET, *part), bucket) for part, bucket in buckets.items()])
        # A bucket that another erasure has changed meanwhile is still to be stored.
        self._unstored_buckets -= {part for part, bucket in buckets.items() if self._bucket(part) == bucket}
        if self._rolls_at is not None and time.time() >= self._rolls_at:
            self._rolls_at = _roll_retry()  # until the record itself is read: see `_note_change`
            await self._send([(_ROLL, b"")])

    def _bucket(self, part: tuple[bytes, int]) -> bytes:
        tree_id, number = part
        return self.keys.trees[tree_id].buckets[number]

    def _require_no_damage(self) -> None:
        """Raise SettingsError if there was a complete tree: with a new one, the records so far would look as if their keys never existed."""
        if self._proven:
            tree = self.keys.trees.get(min(self._proven))
            missing = BUCKETS - (0 if tree is None else len(tree.buckets))
            raise SettingsError(
                f"topic {self._connection.topic(TEXT_KEYS)}: {missing} of the {BUCKETS} parts of its keys are missing",
                hint="Its records were deleted, so records encrypted with them cannot be read. Begin again under another prefix.",
            )

    async def _create_tree(self) -> None:
        """Create a tree. The proof comes last, so that nobody uses a tree whose creation was interrupted."""
        tree = KeyTree.create()
        log.info("topic %s: creating the keys of texts", TEXT_KEYS)
        await self._send([(_BUCKET_KEY.pack(_BUCKET, tree.id, number), bucket) for number, bucket in tree.buckets.items()])
        await self._send([(_PROOF + tree.id, self.keys.proof(tree.id))])

    async def _send(self, messages: Sequence[Message]) -> None:
        for start in range(0, len(messages), _SENT_AT_ONCE):
            await self._producer.send(TEXT_KEYS, messages[start : start + _SENT_AT_ONCE], partition=0)


@contextlib.asynccontextmanager
async def open_encryption(connection: KafkaConnection, *, keeps_keys: bool = False) -> AsyncIterator[TextEncryption | None]:
    """Yield the started encryption of an installation; None if it has no secret."""
    encryption = TextEncryption.of(connection, keeps_keys=keeps_keys)
    if encryption is None:
        yield None
        return
    await encryption.start()
    try:
        yield encryption
    finally:
        await encryption.stop()


def decrypter_of(encryption: TextEncryption | None) -> Decrypter:
    """Return what decrypts the records that a reader reads."""
    return require_plain if encryption is None else encryption.decrypt


def _roll_retry() -> float:
    """Return the Unix time at which to write a record again that begins a segment."""
    return time.time() + KEYS_SEGMENT_SECONDS / 60


_INCIDENTS, _ANCHORS_TOPIC, _REVIEWS = "incidents", "anchors", "reviews"
_ANCHOR_KEY = f"{ANCHORS}/".encode()
_ENCRYPTED = "encrypted"
"""The only member of an object of the evidence that stands for an encrypted one."""
_UNCHANGED = object()


def _context(topic: str, key: bytes) -> bytes:
    # On the other topics a key is not checked, and a row of a lake does not have it.
    return topic.encode() + b"\0" + (key if TOPICS[topic].is_keyed else b"")


def _owner_of(value: bytes) -> bytes | None:
    """Return the name of the key of a dead letter, an anchor or a review; None for the key of its record.

    It is the session whose bytes a dead letter or an anchor holds, an anchor's own id otherwise, and the subject of a review.
    """
    try:
        record = decode(value)
    except RecordError:
        return None
    if isinstance(record, DeadLetter):
        return _session_of(record.body)
    if isinstance(record, Review):
        return record.subject_id.encode() or None
    # The record of an anchor has the project as its key.
    return _session_of(record.exchange) or record.anchor_id.encode() if isinstance(record, Anchor) else None


def _session_of(body: bytes) -> bytes | None:
    """Return the key of the session that bytes belong to; None if they name none."""
    try:
        value: Any = msgspec.to_builtins(decode(body))
    except RecordError:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
    return _session_in(value) if isinstance(value, dict) else None


def _session_in(value: dict[str, Any]) -> bytes | None:
    """Return the key of the session that an object names; None if it names none."""
    connection = value.get("connection", value.get("connectionId", value.get("connection_id")))
    session = value.get("sessionId", value.get("session_id"))
    return session_key(connection, session).encode() if isinstance(connection, str) and isinstance(session, str) else None


def _anchor_of(value: bytes) -> bytes | None:
    """Return the id of the anchor whose copy a record is about; None if it is about a whole round."""
    try:
        record = decode(value)
    except RecordError:
        return None
    column = ANCHOR_COPIES.get(type(record).__name__)
    return None if column is None else str(getattr(record, column)).partition("@")[0].encode()


def _replace_objects(value: Any, replace: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a copy of a JSON value with every object replaced for which `replace` does not return `_UNCHANGED`."""
    if isinstance(value, dict):
        replaced = replace(value)
        return {key: _replace_objects(inner, replace) for key, inner in value.items()} if replaced is _UNCHANGED else replaced
    return [_replace_objects(inner, replace) for inner in value] if isinstance(value, list) else value
