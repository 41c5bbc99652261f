"""The keys of texts outside of the database: one key per session, which an erasure makes underivable.

1. No key is stored. The key of a session is derived from a secret of the installation and from two *leaves*, the numbers that stand for its
   session and for its connection. The value of a leaf is derived from the remaining *seeds* of a tree: the seed of a node gives the seeds of
   its two children, by SHA-256. The secret also decides which leaf a name has: otherwise a sender could choose a session id that shares its
   leaf with another session, and have that one erased with its own.
2. To forget a leaf, the tree is *punctured*: the node that covers the leaf is replaced by the siblings along the path to it. Every other leaf
   can still be derived, this one never again. So the tree grows by up to `LEAF_BITS - BUCKET_BITS` seeds with each erasure, and not with the
   number of sessions.
3. The seeds are stored in `BUCKETS` parts, each of which is replaced as a whole. Two processes may replace the same part without knowing of
   each other's erasure. So the erased leaves are stored too, and every reader of a part punctures it at all of them: this converges, in any order.
4. Two processes may each create a tree. Both stay valid, values name the tree of their key, and all processes use the tree with the lowest id
   for new values.
5. Neither the secret without the seeds nor the seeds without the secret derive a key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from schemas.errors import RecordError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ENCRYPTED = b"\xc1\x01"
"""The first bytes of an encrypted value: no record, no framing of a registry, no state (MessagePack never uses C1) and no text begins so."""
SECRET_BYTES = 32
SEED_BYTES = 16
LEAF_BITS = 64
BUCKET_BITS = 10
BUCKETS = 1 << BUCKET_BITS
TREE_ID_BYTES = 4
_SEED = struct.Struct(f">QB{SEED_BYTES}s")
"""A seed in a bucket: the first leaf below its node, the depth of the node, and the seed."""
_HEADER = struct.Struct(f">2s{TREE_ID_BYTES}sH")
"""The header of a value: `ENCRYPTED`, the id of the tree, and the length of the name that follows."""
_SIDES = (b"\0", b"\1")
_NONCE_BYTES, _TAG_BYTES = 12, 16
_MAX_CIPHERS = 20_000
"""Sessions whose ciphers are cached."""


ForgetTexts = Callable[[Sequence[str]], None]
"""Makes the keys of names underivable, durable on return: of dead letters, anchors, subjects of reviews, and `CONNECTION/TRACE` of traces."""


class UnknownTreeError(RecordError):
    """Raised for a value that was encrypted with a tree that was not read; its key may exist."""

    code = "unknown_tree"


class UnreadableTextError(RecordError):
    """Raised for an encrypted value that was changed, or that belongs to another record."""

    code = "unreadable_text"


def is_encrypted(value: bytes | None) -> bool:
    """Tell whether a value is encrypted."""
    return value is not None and value[: len(ENCRYPTED)] == ENCRYPTED


class KeyTree:
    """A tree of seeds; see the module. A bucket is a text of seeds, in the order of their leaves."""

    def __init__(self, tree_id: bytes, buckets: Mapping[int, bytes] | None = None) -> None:
        self.id = tree_id
        self.buckets = dict(buckets or {})

    @classmethod
    def create(cls) -> Self:
        """Return a new tree with random seeds."""
        seeds = {
            number: _SEED.pack(number << (LEAF_BITS - BUCKET_BITS), BUCKET_BITS, os.urandom(SEED_BYTES))
            for number in range(BUCKETS)
        }
        return cls(os.urandom(TREE_ID_BYTES), seeds)

    @property
    def is_complete(self) -> bool:
        """Tell whether all parts are there. Some are missing if the process that created the tree was killed meanwhile."""
        return len(self.buckets) == BUCKETS

    def value(self, leaf: int) -> bytes | None:
        """Return the value of a leaf; None if it was forgotten."""
        node = self._covering_node(leaf)
        if node is None:
            return None
        _, depth, seed = node
        for shift in range(LEAF_BITS - depth - 1, -1, -1):
            seed = _child(seed, leaf >> shift & 1)
        return seed

    def puncture(self, leaf: int) -> bool:
        """Forget a leaf. Return whether the bucket has changed."""
        node = self._covering_node(leaf)
        if node is None:
            return False
        _, depth, seed = node
        siblings = []
        for shift in range(LEAF_BITS - depth - 1, -1, -1):
            bit = leaf >> shift & 1
            siblings.append(_SEED.pack((leaf >> shift ^ 1) << shift, LEAF_BITS - shift, _child(seed, bit ^ 1)))
            seed = _child(seed, bit)
        number = bucket_of(leaf)
        others = [entry for entry in _split(self.buckets[number]) if entry != _SEED.pack(*node)]
        self.buckets[number] = b"".join(sorted(others + siblings))
        return True

    def _covering_node(self, leaf: int) -> tuple[int, int, bytes] | None:
        bucket = self.buckets.get(bucket_of(leaf), b"")
        seeds = range(len(bucket) // _SEED.size)
        index = bisect_right(seeds, leaf, key=lambda index: _SEED.unpack_from(bucket, index * _SEED.size)[0]) - 1
        if index < 0:
            return None
        start, depth, seed = _SEED.unpack_from(bucket, index * _SEED.size)
        shift = LEAF_BITS - depth
        return (start, depth, seed) if leaf >> shift == start >> shift else None


def bucket_of(leaf: int) -> int:
    """Return the bucket with the seed of a leaf."""
    return leaf >> (LEAF_BITS - BUCKET_BITS)


def is_bucket(value: bytes) -> bool:
    """Tell whether bytes have the form of a bucket. Erasures leave seeds in every bucket, so an empty one is damaged."""
    return bool(value) and not len(value) % _SEED.size and all(_SEED.unpack(seed)[1] <= LEAF_BITS for seed in _split(value))


def _split(bucket: bytes) -> list[bytes]:
    return [bucket[index : index + _SEED.size] for index in range(0, len(bucket), _SEED.size)]


def _child(seed: bytes, bit: int) -> bytes:
    return hashlib.sha256(seed + _SIDES[bit]).digest()[:SEED_BYTES]


class TextKeys:
    """The keys of an installation, from the trees that were read; encrypts and decrypts. May be used by several threads.

    `name` is always the key of a session, `CONNECTION/SESSION`, or another name without a slash for what belongs to no session.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.trees: dict[bytes, KeyTree] = {}
        """Every tree that was read, by id."""
        self._usable: set[bytes] = set()
        """The ids of the complete trees that belong to the secret."""
        self._erased: dict[int, set[int]] = {}
        """The leaves that were forgotten, by bucket."""
        self._lock = threading.Lock()
        self._ciphers: dict[tuple[bytes, bytes], AESGCM | None] = {}
        """By tree and session."""
        self._connection_values: dict[tuple[bytes, int], bytes | None] = {}
        """The values of the leaves of connections, by tree and leaf."""

    @property
    def are_usable(self) -> bool:
        """Tell whether there is a complete tree."""
        return bool(self._usable)

    def session_leaf(self, name: bytes) -> int:
        """Return the leaf of a session."""
        return self._leaf(b"session\0" + name)

    def erased_leaf(self, connection: str, session_id: str | None) -> int:
        """Return the leaf that an erasure forgets: that of a session, or of a whole connection if there is no session."""
        if session_id is None:
            return self._connection_leaf(connection.encode())
        return self.session_leaf(f"{connection}/{session_id}".encode())

    def proof(self, tree_id: bytes) -> bytes:
        """Return the value that shows that a tree belongs to this secret."""
        return hmac.digest(self._secret, b"proof" + tree_id, "sha256")[:SEED_BYTES]

    def set_bucket(self, tree_id: bytes, number: int, bucket: bytes) -> bool:
        """Take over a bucket that was read, without the erased leaves. Return whether it had one."""
        with self._lock:
            tree = self.trees.setdefault(tree_id, KeyTree(tree_id))
            tree.buckets[number] = bucket
            self._clear_cache()
            changed = False
            for leaf in self._erased.get(number, ()):
                changed |= tree.puncture(leaf)
            return changed

    def use_tree(self, tree_id: bytes) -> None:
        """Use a tree that belongs to the secret, if it is complete."""
        if tree_id in self.trees and self.trees[tree_id].is_complete:
            self._usable.add(tree_id)

    def forget(self, leaves: Iterable[int]) -> set[tuple[bytes, int]]:
        """Make the keys of these leaves underivable. Nothing that was encrypted with them can be read again.

        Return the buckets that have changed, each as the id of its tree and its number.
        """
        changed = set()
        with self._lock:
            for leaf in leaves:
                number = bucket_of(leaf)
                self._erased.setdefault(number, set()).add(leaf)
                changed |= {(tree.id, number) for tree in self.trees.values() if tree.puncture(leaf)}
            self._clear_cache()
        return changed

    def is_forgotten(self, leaf: int) -> bool:
        """Tell whether a leaf was forgotten."""
        return leaf in self._erased.get(bucket_of(leaf), ())

    def is_erased(self, name: bytes) -> bool:
        """Tell whether a session or its connection was erased."""
        return bool(self._erased) and (self.is_forgotten(self.session_leaf(name)) or self.is_forgotten(self._owner_leaf(name)))

    def encrypt(self, name: bytes, text: bytes, context: bytes, *, is_named: bool = False) -> bytes | None:
        """Encrypt a text with the key of a session; None if the session was erased.

        `context` must be the same when the value is decrypted: it ties a value to its origin. With `is_named`, the value itself has the name.
        """
        tree_id = min(self._usable)
        cipher = self._cipher(tree_id, name)
        if cipher is None:
            return None
        header = _HEADER.pack(ENCRYPTED, tree_id, len(name)) + name if is_named else _HEADER.pack(ENCRYPTED, tree_id, 0)
        nonce = os.urandom(_NONCE_BYTES)
        return header + nonce + cipher.encrypt(nonce, text, context)

    def decrypt(self, value: bytes, context: bytes, name: bytes = b"") -> bytes | None:
        """Decrypt a value; None if its session was erased. `name` is that of the session if the value does not have it.

        Raises UnknownTreeError if the tree of its key was not read, and UnreadableTextError if it was changed.
        """
        if len(value) < _HEADER.size:
            raise UnreadableTextError("the encrypted value is truncated")
        _, tree_id, length = _HEADER.unpack_from(value)
        start = _HEADER.size + length
        if tree_id not in self._usable:
            raise UnknownTreeError(f"encrypted with the keys of tree {tree_id.hex()}, which are not on the topic text-keys")
        if len(value) < start + _NONCE_BYTES + _TAG_BYTES:
            raise UnreadableTextError("the encrypted value is truncated")
        cipher = self._cipher(tree_id, value[_HEADER.size : start] or name)
        if cipher is None:
            return None
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - loaded only where texts are encrypted

        try:
            return cipher.decrypt(value[start : start + _NONCE_BYTES], value[start + _NONCE_BYTES :], context)
        except InvalidTag:
            raise UnreadableTextError("the encrypted value was changed, or belongs to another record") from None

    def _leaf(self, name: bytes) -> int:
        return int.from_bytes(hmac.digest(self._secret, name, "sha256")[:8], "big")

    def _connection_leaf(self, connection: bytes) -> int:
        return self._leaf(b"connection\0" + connection)

    def _owner_leaf(self, name: bytes) -> int:
        """Return the leaf of a session's connection; names without a slash share one that no erasure forgets."""
        connection, slash, _ = name.partition(b"/")
        return self._connection_leaf(connection) if slash else self._leaf(b"no connection")

    def _clear_cache(self) -> None:
        self._ciphers.clear()
        self._connection_values.clear()

    def _cipher(self, tree_id: bytes, name: bytes) -> AESGCM | None:
        """Return the cipher of a session; None if the session was erased."""
        key = (tree_id, name)
        # Another thread may clear the cache at any time.
        cipher = self._ciphers.get(key)
        if cipher is not None:
            return cipher
        with self._lock:
            if key in self._ciphers:
                return self._ciphers[key]
            cipher = self._derive_cipher(self.trees[tree_id], name)
            if len(self._ciphers) >= _MAX_CIPHERS:
                self._clear_cache()
            self._ciphers[key] = cipher
            return cipher

    def _derive_cipher(self, tree: KeyTree, name: bytes) -> AESGCM | None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - loaded only where texts are encrypted

        owner = (tree.id, self._owner_leaf(name))
        if owner not in self._connection_values:
            self._connection_values[owner] = tree.value(owner[1])
        connection_value, session_value = self._connection_values[owner], tree.value(self.session_leaf(name))
        if connection_value is None or session_value is None or self.is_erased(name):
            return None
        return AESGCM(hmac.digest(self._secret, b"text" + connection_value + session_value + name, "sha256"))


def parse_secret(text: str) -> bytes:
    """Return the secret that a text holds in hexadecimal. Raises ValueError if it holds none."""
    secret = bytes.fromhex(text.strip())
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"holds {len(secret)} bytes where a key of texts has {SECRET_BYTES}")
    return secret
