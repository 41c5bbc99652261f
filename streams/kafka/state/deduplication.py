"""Records that came before in their session: the same content again changes nothing, another content is set aside.

A session's state carries the hashes of the newest records' identities and contents. A record is told by its session, its type, its
identity and, where it has one, its revision. What a record says is the field that `analytics.store.transaction.CONTENT` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple, Self

import xxhash

from analytics.identity.identity_index import identity_of
from analytics.identity.repetitions import CONTENT
from schemas.lazy.polars import pl
from schemas.registry import schema_of
from streams.stage_batches import KEY, OFFSET, StageBatch

WINDOW = 512
"""Records of a session whose identities are kept."""
ENTRY_BYTES = 16
"""Of one record in a window."""
_SEPARATOR = "\x1f"
_FEW = 8
"""Up to so many look-ups, searching the bytes takes less time than making a table of them."""


@dataclass(slots=True)
class Window:
    """The newest identities of a session: eight bytes of the identity's hash, eight of the content's, oldest first."""

    entries: bytearray
    _looks: int = 0
    _table: dict[bytes, bytes] | None = None

    @classmethod
    def of(cls, entries: bytes) -> Self:
        """The window that a state carries."""
        return cls(bytearray(entries))

    def content_of(self, identity: bytes) -> bytes | None:
        """The content that came with this identity, or None where it is new."""
        self._looks += 1
        if self._table is None and self._looks > _FEW:
            entries = bytes(self.entries)
            self._table = {
                entries[at : at + 8]: entries[at + 8 : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES)
            }
        if self._table is not None:
            return self._table.get(identity)
        at = self.entries.find(identity)
        while at >= 0 and at % ENTRY_BYTES:
            at = self.entries.find(identity, at + 1)
        return None if at < 0 else bytes(self.entries[at + 8 : at + ENTRY_BYTES])

    def add(self, identity: bytes, content: bytes) -> None:
        """Enter a new record."""
        self.entries += identity + content
        if self._table is not None:
            self._table[identity] = content

    def packed(self) -> bytes:
        """Return the entries that the state is to carry."""
        return bytes(self.entries[-WINDOW * ENTRY_BYTES :])


@dataclass
class Sifted:
    """A batch without repetitions, the windows of its sessions, and what has another content than the first record of its identity."""

    batch: StageBatch
    windows: dict[str, Window] = field(default_factory=dict)
    conflicts: frozenset[int] = frozenset()
    """Their offsets."""


class _Rows(NamedTuple):
    """Offset, session, and hashes of identity and content of each record of a batch."""

    offsets: list[int]
    keys: list[str]
    identities: list[bytes]
    contents: list[bytes]


def sift(batch: StageBatch, carried: Mapping[str, bytes]) -> Sifted:
    """Leave out what came before. `carried` has the windows of the sessions' states; records a state has seen are not in the batch."""
    rows = _in_order(batch)
    if not _repeat(rows, carried.values()):
        return Sifted(batch, _entered(batch, rows, carried))
    windows = {key: Window.of(carried.get(key, b"")) for key in batch.keys()}  # noqa: SIM118 - a batch is no dict
    repeated: set[int] = set()
    conflicting: set[int] = set()
    for offset, key, identity, content in zip(rows.offsets, rows.keys, rows.identities, rows.contents, strict=True):
        window = windows[key]
        before = window.content_of(identity)
        if before is None:
            window.add(identity, content)
        elif before == content:
            repeated.add(offset)
        else:
            conflicting.add(offset)
    if not repeated and not conflicting:
        return Sifted(batch, windows)
    return Sifted(batch.filtered(~pl.col(OFFSET).is_in(list(repeated | conflicting))), windows, frozenset(conflicting))


def _repeat(rows: _Rows, carried: Iterable[bytes]) -> bool:
    """Tell whether any of the records may have come before: a guess that is wrong only if two sessions have the same hash."""
    known = set(_numbers(rows.identities))
    if len(known) < len(rows.identities):
        return True
    return any(not known.isdisjoint(memoryview(entries).cast("Q")[::2].tolist()) for entries in carried if entries)


def _numbers(hashes: Sequence[bytes]) -> list[int]:
    """Hashes as numbers, in the order of this machine's bytes."""
    return memoryview(b"".join(hashes)).cast("Q").tolist()


def _entered(batch: StageBatch, rows: _Rows, carried: Mapping[str, bytes]) -> dict[str, Window]:
    """The windows with every record entered, none of which they had."""
    entries: dict[str, list[bytes]] = {key: [carried.get(key, b"")] for key in batch.keys()}  # noqa: SIM118 - a batch is no dict
    for key, entry in zip(rows.keys, map(add, rows.identities, rows.contents), strict=True):
        entries[key].append(entry)
    return {key: Window.of(b"".join(parts)) for key, parts in entries.items()}


def _in_order(batch: StageBatch) -> _Rows:
    """Offset, session and hashes of each record, in the order of the topic."""
    parts = [_hashes(name, frame) for name, frame in batch.frames.items()]
    if len(parts) == 1:
        return parts[0]
    ordered = sorted(row for part in parts for row in zip(*part, strict=True))
    return _Rows(*(list(column) for column in zip(*ordered, strict=True))) if ordered else _Rows([], [], [], [])


def _hashes(name: str, frame: pl.DataFrame) -> _Rows:
    schema = schema_of(name)
    texts = [_text(frame, column, name) for column in identity_of(schema)]
    named = frame.select(pl.concat_str([pl.lit(name), *texts], separator=_SEPARATOR, ignore_nulls=True).cast(pl.Binary))
    digest = xxhash.xxh3_64_digest
    content = CONTENT.get(name)
    said = [b""] * frame.height if content is None else frame[content].cast(pl.Binary).fill_null(b"").to_list()
    identities = list(map(digest, named.to_series().to_list()))
    return _Rows(frame[OFFSET].to_list(), frame[KEY].to_list(), identities, list(map(digest, said)))


def _text(frame: pl.DataFrame, column: str, name: str) -> pl.Expr:
    """A column of the identity as text; times in microseconds since 1970."""
    expression = pl.col(column)
    if column == "revision" and name == "Exchange":
        # The first revision of an exchange is left out: states of versions in which it had no other know it so.
        expression = pl.when(expression > 0).then(expression)
    return (expression.dt.epoch("us") if frame.schema[column].is_temporal() else expression).cast(pl.String)
