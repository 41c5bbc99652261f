"""The computing stages, intake and diagnosis, on the chunks of a partition.

For each chunk: decode; skip records that the states have seen, and duplicates; run the step; produce its records and the dead letters;
write the states; done. After a kill in between, the same records come again and give the same outputs with the same ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from audit.redaction import Redactor
from schemas.errors import BrokerError, StoreError
from schemas.lazy import pl
from streams.engine.stage_runs import StageOutcome, StageRuns, failures, stage_failed
from streams.kafka.decoding import CONFLICT, Reframe, batch_of, letter_of
from streams.kafka.deduplication import Sifted, sift
from streams.kafka.producing import Message, Sender, keyed
from streams.kafka.reading import Chunk
from streams.kafka.states import MAX_STATE_BYTES, StateTopic, StoredState, is_too_large
from streams.log.admission import DEAD_LETTERS, Refusal
from streams.stage_batches import KEY, StageBatch
from streams.topology import Stage

AT_ONCE = 2
"""Most chunks of a stage that are computed at once in this process."""
TOO_LARGE = "state_too_large"
OURS = (BrokerError, StoreError, MemoryError, OSError)
"""Errors of this process or the broker, not of a record."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Computing:
    """The resources that all partitions of a stage share."""

    stage: Stage
    runs: StageRuns
    redactor: Redactor
    producer: Sender
    states: StateTopic
    reframe: Reframe | None = None
    """Applied to values before decoding; the partition waits for it."""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def open_partition(self, number: int) -> ComputedPartition:
        """Start the work on a partition."""
        return ComputedPartition(number, self)


class Worked(NamedTuple):
    """The results of a chunk: messages by topic, and the states that changed."""

    made: Mapping[str, Sequence[Message]]
    states: Mapping[str, StoredState]


class ComputedPartition:
    """See the module; a `streams.kafka.partitions.PartitionWork`."""

    def __init__(self, number: int, means: Computing) -> None:
        self._number = number
        self._means = means
        self._stage = means.stage
        self._has_states = False

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Process a chunk; returns when all of its results are durable."""
        if not self._has_states:
            await self._means.states.load(self._number)
            self._has_states = True
        if self._means.reframe is not None:
            chunk.values = await self._means.reframe(chunk.values)
        await self._finish(chunk)
        done()

    async def end(self, grace: float) -> None:
        """Return at once: no work is left when `take` has returned."""

    async def _finish(self, chunk: Chunk) -> None:
        """Make all results of a chunk durable. A failing chunk is halved until the failing record is isolated."""
        means = self._means
        try:
            async with means.slots:
                worked = await asyncio.to_thread(self._work, chunk)
        except OURS:
            raise
        except failures() as error:
            message = "stage %s failed on the positions %d to %d of %s, partition %d"
            ends = chunk.first_offset, chunk.next_offset - 1
            log.exception(message, self._stage.name, *ends, chunk.topic, chunk.partition)
            if middle := len(chunk.records) // 2:
                await self._finish(chunk.part(0, middle))
                await self._finish(chunk.part(middle, len(chunk.records)))
                return
            letters = self._letters(chunk, {chunk.first_offset}, stage_failed(self._stage.name, error))
            worked = Worked({DEAD_LETTERS: keyed(letters)}, {})
        await asyncio.gather(*(means.producer.send(topic, messages) for topic, messages in worked.made.items()))
        await means.states.save(self._number, worked.states)

    def _work(self, chunk: Chunk) -> Worked:
        """The CPU-bound part, run in a thread."""
        means = self._means
        batch, letters = batch_of(chunk, means.states.partitions, means.redactor)
        carried = means.states.get(self._number, batch.keys())
        sifted = sift(
            batch.unseen({key: state.next_offset for key, state in carried.items()}),
            {key: state.identities for key, state in carried.items()},
        )
        letters += self._letters(chunk, sifted.conflicts, CONFLICT)
        outcome, states = self._run(sifted.batch, sifted, carried)
        if too_large := [key for key, state in states.items() if is_too_large(state)]:
            for key in too_large:
                letters += self._too_large(chunk, sifted.batch.of_session(key), key)
            outcome, states = self._run(sifted.batch.filtered(~pl.col(KEY).is_in(too_large)), sifted, carried)
        letters += outcome.dead.messages.get(DEAD_LETTERS, ())
        made = {**outcome.made.messages, DEAD_LETTERS: letters}
        return Worked({topic: keyed(messages) for topic, messages in made.items() if messages}, states)

    def _run(
        self, batch: StageBatch, sifted: Sifted, carried: Mapping[str, StoredState]
    ) -> tuple[StageOutcome, dict[str, StoredState]]:
        """Run the step over a batch; also returns the new state of each session whose state changed."""
        before, ends = {key: carried[key].state for key in batch.keys() if key in carried}, batch.ends()  # noqa: SIM118 - it is no dict
        outcome = self._means.runs.run(self._stage, batch, before, self._number)
        states = {
            key: StoredState(ends[key], sifted.windows[key].packed(), state)
            for key, state in outcome.states.items()
            if key in ends
        }
        return outcome, states

    def _too_large(self, chunk: Chunk, batch: StageBatch, key: str) -> Sequence[bytes]:
        """The dead letters of a session's records that would make its state too large."""
        log.error("stage %s: the state of session %s would pass %d bytes", self._stage.name, key, MAX_STATE_BYTES)
        detail = f"the state of session {key} would pass {MAX_STATE_BYTES} bytes with this record"
        return self._letters(chunk, {offset for offset, *_ in batch.records()}, Refusal(self._stage.name, TOO_LARGE, detail))

    def _letters(self, chunk: Chunk, offsets: Collection[int], refusal: Refusal) -> list[bytes]:
        """The dead letters of the chunk's records at some offsets."""
        refused = [record for record in chunk.records if record.offset in offsets] if offsets else ()
        return [letter_of(chunk.topic, self._number, record, refusal, self._means.redactor) for record in refused]
