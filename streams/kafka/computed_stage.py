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
from streams.kafka.decoding import CONFLICT, Reframe, batch_of, letter_of
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

    def add_letters(self, letters: Sequence[bytes]) -> None:
        """Add dead letters."""
        if letters:
            self.made[DEAD_LETTERS] += keyed(letters)


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
        if self._means.reframe is not None:
            chunk.values = await self._means.reframe(chunk.values)
        await self._finish(chunk)
        done()

    async def end(self, grace: float) -> None:
        """Return at once: nothing goes on when `take` has returned."""

    async def _finish(self, chunk: Chunk) -> None:
        """Make durable all that comes of a chunk. One that cannot be worked on is halved until the record is found that stops it."""
        means = self._means
        try:
            async with means.slots:
                worked = await asyncio.to_thread(self._work, chunk)
        except OURS:
            raise
        except failures() as error:
            words = "stage %s failed on the positions %d to %d of %s, partition %d"
            ends = chunk.first_offset, chunk.next_offset - 1
            log.exception(words, self._stage.name, *ends, chunk.topic, chunk.partition)
            if middle := len(chunk.records) // 2:
                await self._finish(chunk.part(0, middle))
                await self._finish(chunk.part(middle, len(chunk.records)))
                return
            worked, refusal = Worked(), stage_failed(self._stage.name, error)
            worked.add_letters(
                [letter_of(chunk.topic, self._number, record, refusal, means.redactor) for record in chunk.records]
            )
        await asyncio.gather(*(means.producer.send(topic, messages) for topic, messages in worked.made.items()))
        await means.states.save(self._number, worked.states)

    def _work(self, chunk: Chunk) -> Worked:
        """Everything that takes the processor's time, in a thread of its own."""
        worked, states = Worked(), self._means.states
        batch, letters = batch_of(chunk, states.partitions, self._means.redactor)
        worked.add_letters(letters)
        carried = states.get(self._number, batch.keys())
        sifted = sift(
            batch.unseen({key: state.next_offset for key, state in carried.items()}),
            {key: state.identities for key, state in carried.items()},
        )
        conflicting = [record for record in chunk.records if record.offset in sifted.conflicts] if sifted.conflicts else ()
        worked.add_letters(
            [letter_of(chunk.topic, self._number, record, CONFLICT, self._means.redactor) for record in conflicting]
        )
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
        worked.add_letters(outcome.dead.messages.get(DEAD_LETTERS, ()))
        worked.states = stored

    def _attempt(self, batch: StageBatch, states: dict[str, bytes]) -> StageOutcome:
        wanted = set(batch.keys())
        of_batch = {key: state for key, state in states.items() if key in wanted}
        return self._means.runs.run(self._stage, batch, of_batch, self._number)

    def _too_large(self, chunk: Chunk, batch: StageBatch, keys: Sequence[str]) -> Sequence[bytes]:
        letters = Accepted()
        admission = Admission(self._means.redactor, self._means.now())
        for key in sorted(keys):
            log.error("stage %s: the state of session %s would pass %d bytes", self._stage.name, key, MAX_STATE_BYTES)
            detail = f"the state of session {key} would pass {MAX_STATE_BYTES} bytes with this record"
            for offset, _, record in batch.of_session(key).records():
                place = Place(chunk.topic, offset, self._number)
                admission.set_aside(letters, place, Refusal(self._stage.name, TOO_LARGE, detail), encode(record))
        return letters.messages[DEAD_LETTERS]


def _stored(batch: StageBatch, sifted: Sifted, outcome: StageOutcome) -> dict[str, StoredState]:
    """Return the state to keep of each session whose state changed."""
    ends = batch.ends()
    return {
        key: StoredState(ends[key], sifted.windows[key].packed(), state) for key, state in outcome.states.items() if key in ends
    }
