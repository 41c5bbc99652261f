"""Input and output of a stage: batches of one topic as columns, and the outcome of a step over them."""

from __future__ import annotations

import contextlib
import functools
import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from schemas.codec.rows import rows_as_records
from schemas.codec.single_object import decode, encode
from schemas.errors import RecordError
from schemas.lazy.polars import pl
from schemas.records import Exchange, Record, ScoringTask
from schemas.registry import schema_of

if TYPE_CHECKING:
    from audit.prompts.exchange_prompts import ExchangeQuestions

OFFSET = "_offset"
MESSAGE = "_message"
"""Each row's record as it was delivered, encoded; a frame that was read from tables has no such column."""
KEY = "_key"
"""Key of everything that belongs to a session: connection, slash, session id. Connection names hold no slash."""


@functools.cache
def key_column() -> pl.Expr:
    """Return `KEY` of the rows of a frame that has both columns."""
    return pl.concat_str("connection", pl.lit("/"), "session_id")


@dataclass(frozen=True)
class StageBatch:
    """Consecutive records of one partition: one frame a record type that has rows, with `_offset` and `_key`, rows by offset."""

    topic: str
    frames: Mapping[str, pl.DataFrame]

    @classmethod
    def of(cls, topic: str, frames: Mapping[str, pl.DataFrame]) -> StageBatch:
        """A batch from frames that have `connection`, `session_id` and `_offset`; those without rows are left out."""
        return cls(topic, {name: frame.with_columns(key_column().alias(KEY)) for name, frame in frames.items() if frame.height})

    def keys(self) -> list[str]:
        """The sessions in the batch, each once, in no promised order."""
        return list({key for frame in self.frames.values() for key in frame[KEY].unique().to_list()})

    def of_session(self, key: str) -> StageBatch:
        """The part of the batch that belongs to one session."""
        return self.filtered(pl.col(KEY) == key)

    def unseen(self, seen: Mapping[str, int]) -> StageBatch:
        """The part that is not seen yet: of each session the records from its offset in `seen` on."""
        first = min((frame[OFFSET][0] for frame in self.frames.values()), default=0)
        farther = {key: offset for key, offset in seen.items() if offset > first}
        if not farther:
            return self
        return self.filtered(pl.col(OFFSET) >= pl.col(KEY).replace_strict(farther, default=0, return_dtype=pl.Int64))

    def ends(self) -> dict[str, int]:
        """By session, the offset after its last record."""
        found: dict[str, int] = {}
        for frame in self.frames.values():
            for key, last in frame.group_by(KEY).agg(pl.col(OFFSET).max()).iter_rows():
                found[key] = max(found.get(key, 0), last + 1)
        return found

    def filtered(self, wanted: pl.Expr) -> StageBatch:
        """The rows for which the expression is true."""
        frames = {name: frame.filter(wanted) for name, frame in self.frames.items()}
        return StageBatch(self.topic, {name: frame for name, frame in frames.items() if frame.height})

    def records(self) -> Iterator[tuple[int, str, Record]]:
        """Offset, session key and record, in the order of the topic whatever the record type."""
        streams = [
            zip(frame[OFFSET].to_list(), frame[KEY].to_list(), rows_as_records(name, frame), strict=True)
            for name, frame in self.frames.items()
        ]
        if len(streams) == 1:
            return streams[0]
        return heapq.merge(*streams, key=lambda row: row[0])

    def encodings(self) -> dict[int, bytes]:
        """By offset, the encodings of those records that were delivered in the one that `encode` would give them."""
        found: dict[int, bytes] = {}
        for name, frame in self.frames.items():
            if MESSAGE in frame.columns:
                current = frame.filter(pl.col(MESSAGE).bin.starts_with(schema_of(name).prefix))
                found |= zip(current[OFFSET].to_list(), current[MESSAGE].to_list(), strict=True)
        return found


@dataclass(frozen=True)
class RecordBatch:
    """Consecutive records of one partition that never were columns: offset, session key and record of each, in order."""

    rows: Sequence[tuple[int, str, Record]]
    encoded: Sequence[bytes] = ()
    """Their encodings, if they are there already."""

    def records(self) -> Iterator[tuple[int, str, Record]]:
        """Yield offset, session key and record, in the order of the topic."""
        return iter(self.rows)

    def keys(self) -> list[str]:
        """See `StageBatch.keys`."""
        return list({key for _, key, _ in self.rows})

    def of_session(self, key: str) -> RecordBatch:
        """See `StageBatch.of_session`."""
        chosen = [index for index, (_, of, _) in enumerate(self.rows) if of == key]
        encoded = [self.encoded[index] for index in chosen] if self.encoded else ()
        return RecordBatch([self.rows[index] for index in chosen], encoded)

    def encodings(self) -> dict[int, bytes]:
        """See `StageBatch.encodings`."""
        return {offset: message for (offset, _, _), message in zip(self.rows, self.encoded, strict=bool(self.encoded))}


@dataclass
class StepOutcome:
    """The answer of a step: records to publish, in order, by topic, and the states that changed, by session key."""

    records: list[tuple[str, Record]] = field(default_factory=list)
    states: dict[str, bytes] = field(default_factory=dict)
    failed: list[tuple[int, Record, Exception]] = field(default_factory=list)
    """Records that the step could not get over, with their offsets: to be set aside."""


class Step(Protocol):
    """A stage's logic: pure, over a batch and the states of the sessions in it.

    The same batches in any split, with the states carried from one to the next, give the same records. Records whose offset
    a state has already seen change nothing, so a redelivery is harmless.
    """

    def __call__(self, batch: StageBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """Fold the batch; `states` holds the state of each session of the batch that has one."""
        ...


def session_key(record: Exchange | ScoringTask) -> str:
    """The key of a record's session, as `KEY` has it."""
    return named_session(record.connection, record.session_id)


def named_session(connection: str, session_id: str) -> str:
    """The key of the session of this name, as `KEY` has it."""
    return f"{connection}/{session_id}"


@dataclass(slots=True)
class KnownExchange:
    """An exchange at hand while its batch is worked on, and what is known of it already."""

    exchange: Exchange
    tampering: tuple[str, ...] | None = None
    """The answer of `tamper_reasons`."""
    questions: ExchangeQuestions | None = None
    """Its questions, by the policy of the revision before: most revisions ask the same."""


class _Known(NamedTuple):
    """The exchanges of a batch, by what stands for them in a task; `by_name`: their names and not their encodings."""

    by_name: bool
    exchanges: dict[bytes, KnownExchange]


_known: ContextVar[_Known | None] = ContextVar("known", default=None)
_NAME = b"@"
"""The start of a name; no encoded record begins so."""
_NAMED_CHARACTERS = 50_000
"""Characters of the texts of the longest exchange for which a name may stand: a task with one of these can be written for certain."""


@contextlib.contextmanager
def decoded_kept(*, by_name: bool = False) -> Iterator[None]:
    """Keep the exchanges that tasks carry meanwhile, so that a stage after this one need not decode them: for one batch.

    `by_name`: tasks carry names of exchanges. They are for callers who write no task: `written_task` gives what would be written.
    """
    token = _known.set(_Known(by_name, {}))
    try:
        yield
    finally:
        _known.reset(token)


def name_of(offset: int) -> bytes:
    """The name of the exchange at an offset, within its batch."""
    return b"%b%d" % (_NAME, offset)


def is_named(task: ScoringTask) -> bool:
    """Tell whether a task carries the name of an exchange."""
    return task.exchange.startswith(_NAME)


def may_be_named(exchange: Exchange) -> bool:
    """Tell whether tasks may carry the exchange's name: in a batch where they carry names, unless it is that long that it may not fit into a task."""
    known = _known.get()
    if known is None or not known.by_name:
        return False
    texts = (exchange.user_message, exchange.agent_response, exchange.agent_thinking or "", exchange.raw_user_message or "")
    return sum(map(len, texts)) <= _NAMED_CHARACTERS


def keep(carried: bytes, exchange: Exchange, tampering: tuple[str, ...] | None = None) -> None:
    """Note what a task carries for an exchange, its encoding or its name; `tampering` is what `tamper_reasons` says of it, if that is known."""
    known = _known.get()
    if known is not None and carried not in known.exchanges:
        known.exchanges[carried] = KnownExchange(exchange, tampering)


def written_task(task: ScoringTask) -> ScoringTask:
    """The task as it is written: with the encoding of its exchange."""
    return msgspec.structs.replace(task, exchange=encode(encoded_exchange(task.exchange))) if is_named(task) else task


def known_exchange(carried: bytes) -> KnownExchange:
    """The exchange that a task or a state carries, and what is known of it; RecordError when it carries something else."""
    known = _known.get()
    at_hand = None if known is None else known.exchanges.get(carried)
    if at_hand is not None:
        return at_hand
    record = decode(carried)
    if not isinstance(record, Exchange):
        raise RecordError(f"an exchange was expected, not a {type(record).__name__}")
    return KnownExchange(record)


def encoded_exchange(carried: bytes) -> Exchange:
    """The exchange that a task or a state carries; RecordError when it carries something else."""
    return known_exchange(carried).exchange
