"""Deduplication within a session: the same content again changes nothing; other content becomes a dead letter.

A session's state carries the hashes of the newest records' identities and contents. A record is identified by its session, its type, its
identity and its revision, if it has one. `analytics.identity.duplicate_matching.CONTENT` names the field with a record's content.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Self

import xxhash

from analytics.identity.duplicate_matching import CONTENT
from analytics.identity.identity_index import identity_of
from schemas.lazy import pl
from schemas.registry import schema_of
from streams.stage_batches import KEY, OFFSET, StageBatch

WINDOW = 512
"""Records of a session whose identities are kept."""
ENTRY_BYTES = 16
"""Of one record in a window: eight of the identity's hash, eight of the content's."""
_SEPARATOR = "\x1f"


@dataclass(slots=True)
class Window:
    """The hashes of a session's newest identities and of their contents, oldest first."""

    contents: dict[int, int]

    @classmethod
    def of(cls, entries: bytes) -> Self:
        """The window in a state."""
        hashes = array("Q", entries)
        return cls(dict(zip(hashes[::2], hashes[1::2], strict=True)))

    def packed(self) -> bytes:
        """Return the entries for the state."""
        return array("Q", chain.from_iterable([*self.contents.items()][-WINDOW:])).tobytes()


@dataclass
class Sifted:
    """A batch without repetitions, the windows of its sessions, and the records that conflict with the first record of their identity."""

    batch: StageBatch
    windows: dict[str, Window] = field(default_factory=dict)
    conflicts: frozenset[int] = frozenset()
    """Offsets of conflicting records."""


class _Rows(NamedTuple):
    """Offset, session, and hashes of identity and content of each record of a batch."""

    offsets: list[int]
    keys: list[str]
    identities: list[int]
    contents: list[int]


def sift(batch: StageBatch, carried: Mapping[str, bytes]) -> Sifted:
    """Drop duplicates. `carried` has the windows of the sessions' states; the batch has no record that a state has seen."""
    windows = {key: Window.of(carried.get(key, b"")) for key in batch.keys()}  # noqa: SIM118 - a batch is no dict
    repeated, conflicting = set[int](), set[int]()
    for offset, key, identity, content in zip(*_in_order(batch), strict=True):
        contents = windows[key].contents
        if identity not in contents:
            contents[identity] = content
        elif contents[identity] == content:
            repeated.add(offset)
        else:
            conflicting.add(offset)
    if repeated or conflicting:
        batch = batch.filtered(~pl.col(OFFSET).is_in(list(repeated | conflicting)))
    return Sifted(batch, windows, frozenset(conflicting))


def hashes_of(texts: Sequence[bytes]) -> list[int]:
    """The hashes of texts as numbers in native byte order, so that they are packed without conversion."""
    return array("Q", b"".join(map(xxhash.xxh3_64_digest, texts))).tolist()


def _in_order(batch: StageBatch) -> _Rows:
    """Offset, session and hashes of each record, in the order of the topic."""
    parts = [_hashed(name, frame) for name, frame in batch.frames.items()]
    if len(parts) == 1:
        return parts[0]
    ordered = sorted(row for part in parts for row in zip(*part, strict=True))
    return _Rows(*(list(column) for column in zip(*ordered, strict=True))) if ordered else _Rows([], [], [], [])


def _hashed(name: str, frame: pl.DataFrame) -> _Rows:
    schema = schema_of(name)
    texts = [_text(frame, column, name) for column in identity_of(schema)]
    named = frame.select(pl.concat_str([pl.lit(name), *texts], separator=_SEPARATOR, ignore_nulls=True).cast(pl.Binary))
    content = CONTENT.get(name)
    contents = [b""] * frame.height if content is None else frame[content].cast(pl.Binary).fill_null(b"").to_list()
    identities = hashes_of(named.to_series().to_list())
    return _Rows(frame[OFFSET].to_list(), frame[KEY].to_list(), identities, hashes_of(contents))


def _text(frame: pl.DataFrame, column: str, name: str) -> pl.Expr:
    """A column of the identity as text; times in microseconds since 1970."""
    expression = pl.col(column)
    if column == "revision" and name == "Exchange":
        # The first revision of an exchange has no revision in its identity: states of versions without revisions know it that way.
        expression = pl.when(expression > 0).then(expression)
    return (expression.dt.epoch("us") if frame.schema[column].is_temporal() else expression).cast(pl.String)
