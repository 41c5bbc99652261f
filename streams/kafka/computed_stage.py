"""A stage that computes, at work on the chunks of a partition: intake and diagnosis.

For each chunk: decode; leave out what the states have seen and what came before; run the step; produce what it made and the dead letters;
write the states; done. So a kill in between brings the same records again, and the same outputs with the same ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from audit.redaction.redactor import Redactor
from schemas.codec.single_object import encode
from schemas.errors import BrokerError, StoreError
from schemas.lazy.polars import pl
from streams.engine.stage_runs import StageOutcome, StageRuns, failures, stage_failed
from streams.kafka.decoding import Reframe, batch_of, conflict_of, unworkable, values_of
from streams.kafka.deduplication import Sifted, sift
from streams.kafka.producing import Message, Sender, key_of, keyed
from streams.kafka.reading import Chunk
from streams.kafka.states import MAX_STATE_BYTES, StateTopic, StoredState, is_too_large
from streams.log.admission import DEAD_LETTERS, Accepted, Admission, Place, Refusal
from streams.stage_batches import KEY, StageBatch
from streams.topology import Stage

AT_ONCE = 2
"""Chunks of a stage that are computed at once in this process."""
TOO_LARGE = "state_too_large"
OURS = (BrokerError, StoreError, MemoryError, OSError)
"""Errors of this process or the broker, not of a record."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Computing:
    """The means with which every partition of a stage is worked on. `now` stamps dead letters and nothing else."""

    stage: Stage
    runs: StageRuns
    redactor: Redactor
    now: Callable[[], datetime]
    producer: Sender
    states: StateTopic
    reframe: Reframe | None = None
    """Applied to values before they are decoded; the partition waits for as long as that takes."""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def open_partition(self, number: int) -> ComputedPartition:
        """Begin the work on a partition."""
        return ComputedPartition(number, self)


@dataclass
class Worked:
    """The results of a chunk: messages by topic, and the states that changed."""

    made: dict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    states: dict[str, StoredState] = field(default_factory=dict)

    def add_letters(self, letters: Accepted) -> None:
        """Add dead letters."""
        if letters.records:
            self.made[DEAD_LETTERS] += keyed(letters.messages[DEAD_LETTERS])


class ComputedPartition:
    """See the module; a `streams.kafka.partitions.PartitionWork`."""

    def __init__(self, number: int, means: Computing) -> None:
        self._number = number
        self._means = means
        self._stage = means.stage
        self._has_states = False

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Work on a chunk until all that came of it is durable."""
        if not self._has_states:
            await self._means.states.load(self._number)
            self._has_states = True
        values = values_of(chunk.records)
        if self._means.reframe is not None:
            values = await self._means.reframe(values)
        await self._finish(chunk, values)
        done()

    async def end(self, grace: float) -> None:
        """Return at once: nothing goes on when `take` has returned."""

    async def _finish(self, chunk: Chunk, values: Sequence[bytes]) -> None:
        """Make durable all that comes of a chunk. One that cannot be worked on is halved until the record is found that stops it."""
        means = self._means
        try:
            async with means.slots:
                worked = await asyncio.to_thread(self._work, chunk, values)
        except OURS:
            raise
        except failures() as error:
            words = "stage %s failed on the positions %d to %d of %s, partition %d"
            ends = chunk.first_offset, chunk.next_offset - 1
            log.exception(words, self._stage.name, *ends, chunk.topic, chunk.partition)
            if middle := len(chunk.records) // 2:
                await self._finish(chunk.part(0, middle), values[:middle])
                await self._finish(chunk.part(middle, len(values)), values[middle:])
                return
            worked = Worked()
            worked.add_letters(unworkable(chunk, stage_failed(self._stage.name, error), means.redactor))
        await asyncio.gather(*(means.producer.send(topic, messages) for topic, messages in worked.made.items()))
        await means.states.save(self._number, worked.states)

    def _work(self, chunk: Chunk, values: Sequence[bytes]) -> Worked:
        """Everything that takes the processor's time, in a thread of its own."""
        worked, states = Worked(), self._means.states
        batch, letters = batch_of(chunk, states.partitions, self._means.redactor, values)
        worked.add_letters(letters)
        carried = states.get(self._number, batch.keys())
        sifted = sift(
            batch.unseen({key: state.next_offset for key, state in carried.items()}),
            {key: state.identities for key, state in carried.items()},
        )
        for record in chunk.records if sifted.conflicts else ():
            if record.offset in sifted.conflicts:
                worked.add_letters(conflict_of(chunk.topic, self._number, record, self._means.redactor))
        self._run(chunk, sifted, {key: state.state for key, state in carried.items()}, worked)
        return worked

    def _run(self, chunk: Chunk, sifted: Sifted, states: dict[str, bytes], worked: Worked) -> None:
        """Run the step; a session whose state has grown too large is left out of it and its records are set aside."""
        batch = sifted.batch
        outcome = self._attempt(batch, states)
        stored = _stored(batch, sifted, outcome)
        too_large = [key for key, state in stored.items() if is_too_large(state)]
        if too_large:
            worked.add_letters(self._too_large(chunk, batch, too_large))
            batch = batch.filtered(~pl.col(KEY).is_in(too_large))
            outcome = self._attempt(batch, states)
            stored = _stored(batch, sifted, outcome)
        for topic, messages in outcome.made.messages.items():
            records = (record for name, record in outcome.records if name == topic)
            for record, message in zip(records, messages, strict=True):
                worked.made[topic].append((key_of(record), message))
        worked.add_letters(outcome.dead)
        worked.states = stored

    def _attempt(self, batch: StageBatch, states: dict[str, bytes]) -> StageOutcome:
        wanted = set(batch.keys())
        of_batch = {key: state for key, state in states.items() if key in wanted}
        return self._means.runs.run(self._stage, batch, of_batch, self._number)

    def _too_large(self, chunk: Chunk, batch: StageBatch, keys: Sequence[str]) -> Accepted:
        letters = Accepted()
        admission = Admission(self._means.redactor, self._means.now())
        for key in sorted(keys):
            log.error("stage %s: the state of session %s would pass %d bytes", self._stage.name, key, MAX_STATE_BYTES)
            detail = f"the state of session {key} would pass {MAX_STATE_BYTES} bytes with this record"
            for offset, _, record in batch.of_session(key).records():
                place = Place(chunk.topic, offset, self._number)
                admission.set_aside(letters, place, Refusal(self._stage.name, TOO_LARGE, detail), encode(record))
        return letters


def _stored(batch: StageBatch, sifted: Sifted, outcome: StageOutcome) -> dict[str, StoredState]:
    """Return the state to keep of each session whose state changed."""
    ends = batch.ends()
    return {
        key: StoredState(ends[key], sifted.windows[key].packed(), state) for key, state in outcome.states.items() if key in ends
    }
