"""The embedded runner: the whole topology in one process, with the store's tables as topics.

Each stage reads its topic from its watermark and commits its records, the changed states and the new watermark in one
transaction. After a kill at any moment the store is in the state of its last commit, and the next run continues from there.

A stage's step runs over a batch so that one bad session stops no other (`StageRuns`); workers on Kafka run theirs the same way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from analytics.deletion.deleting import STAGE as ERASURE
from analytics.deletion.retention import CUT, forget_withdrawn
from analytics.store.store import Appended, Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import decode, encode
from schemas.lazy import pl
from schemas.records import ImportProgress, Record
from streams.judging.call_budget import settle_interrupted
from streams.judging.judged_stages import Recorded, recorded_in
from streams.log.admission import Accepted, Admission, Place, Refusal, encode_all
from streams.stage_batches import RecordBatch, StageBatch
from streams.stage_progress import StageProgress, stage_progress
from streams.topology import ASSEMBLING, TOPOLOGY, Stage, derived_tables, stage_named

BATCH_POSITIONS = 20_000
INTAKE = stage_named("intake")
log = logging.getLogger(__name__)
UNFINISHED = "unjudged work"
"""Consumer whose watermark is 1 while an import or a rebuild is in progress, else 0: its unfinished tasks must not be paid for."""


class EmbeddedRunner:
    """Runs the topology over a store. `now` stamps dead letters and nothing else."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        batch_positions: int = BATCH_POSITIONS,
    ) -> None:
        self._batch_positions = batch_positions
        self._store = store
        self._redactor = redactor
        self._now = now
        self._runs = StageRuns(policy, recorded_in(store), redactor, now)
        self._gathers = False

    def publish(
        self, accepted: Accepted, progress: Sequence[ImportProgress] = (), *, are_own: bool = False
    ) -> dict[str, Appended]:
        """Append accepted records to their topics and note the import's progress, in one transaction; durable on return.

        Known records are skipped, so that delivering twice changes nothing. A record whose identity the log has with other content
        becomes one dead letter, however often it is delivered. Returns the outcomes by topic. `are_own` means that this
        program has just encoded the records, so that they need no validation.
        """
        done, letters = {}, Accepted()
        if are_own and not self._gathers:
            self._store.gather_writes()
            self._gathers = True
        with self._store.transaction() as transaction:
            for topic, messages in accepted.messages.items():
                done[topic] = transaction.append(topic, messages, skip_known=True, are_own=are_own)
                for place in done[topic].conflicts:
                    admission = Admission(self._redactor, self._now())
                    admission.set_aside_conflict(letters, topic, decode(messages[place]), done[topic].differing[place])
            for topic, messages in letters.messages.items():
                added = transaction.append(topic, messages, skip_known=True)
                before = done.setdefault(topic, Appended())
                before.known += added.known
                before.written = dict(Counter(before.written) + Counter(added.written))
            transaction.set_progress(progress)
            transaction.set_watermark(UNFINISHED, "", 1)
        return done

    def run(self, report: Callable[[StageProgress], None] | None = None) -> int:
        """Run every stage to the end of its topic; returns the number of positions read."""
        total = 0
        settle_interrupted(self._store, self._now())
        for stage in TOPOLOGY:
            # Only later stages read a stage's sinks, so a single pass in order is enough.
            position = stage_progress(self._store, stage).position
            while read := self.advance(stage):
                total, position = total + read, position + read
                if report is not None:
                    report(StageProgress(stage.name, position, self._store.end_of(stage.source)))
        forget_withdrawn(self._store)
        with self._store.transaction() as transaction:
            if transaction.watermark(UNFINISHED, ""):
                transaction.set_watermark(UNFINISHED, "", 0)
        return total

    def finish(self) -> bool:
        """Run the stages to the end without a judge if an import or a rebuild was interrupted; returns whether one was."""
        with self._store.transaction() as transaction:
            unfinished = bool(transaction.watermark(UNFINISHED, ""))
        if unfinished:
            self.run()
        return unfinished

    def catch_up(self) -> None:
        """Let intake and diagnosis process the records that the last process committed but did not read.

        After an interrupted import or rebuild the judged stages run, too, without a judge: nobody has agreed to pay for them.
        """
        if self.finish():
            log.warning("an import or a rebuild was cut short; finishing it first, without a judge")
        for stage in (INTAKE, stage_named("diagnosis")):
            while self.advance(stage):
                pass

    def rebuild(self, report: Callable[[StageProgress], None] | None = None) -> None:
        """Drop all derived records and derive them again from the records that came from outside.

        The results of a session whose first records were deleted are kept: the remaining records would give other results.
        """
        with self._store.transaction() as transaction:
            transaction.forget_derived(derived_tables(), but=CUT, stages=[ERASURE, ASSEMBLING.name])
            transaction.set_watermark(UNFINISHED, "", 1)
        self.run(report)

    def advance(self, stage: Stage) -> int:
        """Let a stage process its next batch; returns the number of positions read, 0 at the end of its topic."""
        start = stage_progress(self._store, stage).position
        batch, end = next_batch(self._store, stage.source, start, min(self._batch_positions, stage.records_at_once))
        if start >= end:
            return 0
        with self._store.transaction() as transaction:
            states = transaction.states(stage.name, batch.keys())
            outcome = self._runs.run(stage, batch, states)
            for topic, messages in outcome.made.messages.items():
                transaction.append(topic, messages, are_own=True)
            for topic, messages in outcome.dead.messages.items():
                transaction.append(topic, messages, skip_known=True)
            transaction.set_states(stage.name, outcome.states, end)
            transaction.set_watermark(stage.name, stage.source, end)
        return end - start


def failures() -> tuple[type[BaseException], ...]:
    """Return the errors that a step may raise: a panic of the columnar library is not an Exception."""
    return Exception, pl.exceptions.PanicException


@dataclass
class StageOutcome:
    """A stage's results for a batch: encoded records, changed states, and dead letters."""

    made: Accepted = field(default_factory=Accepted)
    states: dict[str, bytes] = field(default_factory=dict)
    dead: Accepted = field(default_factory=Accepted)
    records: list[tuple[str, Record]] = field(default_factory=list)
    """The records in `made`, before encoding."""

    def extend(self, other: StageOutcome) -> None:
        """Add the results for another part of the batch."""
        self.made.extend(other.made)
        self.states |= other.states
        self.dead.extend(other.dead)
        self.records += other.records


class StageRuns:
    """The steps of some stages, ready to run. `now` stamps dead letters and nothing else."""

    def __init__(
        self,
        policy: Policy,
        recorded: Recorded,
        redactor: Redactor,
        now: Callable[[], datetime],
        stages: Sequence[Stage] = TOPOLOGY,
    ) -> None:
        self._redactor = redactor
        self._now = now
        self._steps = {stage.name: stage.make_step(policy, recorded) for stage in stages if stage.make_step is not None}

    def run(
        self, stage: Stage, batch: StageBatch | RecordBatch, states: Mapping[str, bytes], partition: int = 0
    ) -> StageOutcome:
        """Run the step over the batch, and if that fails session by session, so that one bad session stops no other.

        `partition` is the origin of the batch, for dead letters.
        """
        try:
            return self._attempt(stage, batch, states, partition)
        except failures():
            log.exception("stage %s failed on a batch of %s; taking its sessions one by one", stage.name, stage.source)
        whole = StageOutcome()
        for key in sorted(batch.keys()):
            part = batch.of_session(key)
            try:
                whole.extend(self._attempt(stage, part, {key: states[key]} if key in states else {}, partition))
            except failures() as error:  # any error: the session's records become dead letters and the other sessions continue
                failed = [(offset, record, error) for offset, _, record in part.records()]
                self._bury(stage, failed, whole.dead, partition)
        return whole

    def _attempt(
        self, stage: Stage, batch: StageBatch | RecordBatch, states: Mapping[str, bytes], partition: int
    ) -> StageOutcome:
        """Run the step and encode its records, so that a record that may not be written fails here, too."""
        # Steps that get records instead of columns use only the methods that both kinds of batch share.
        outcome = self._steps[stage.name](cast("StageBatch", batch), states)
        made = StageOutcome(encode_all(outcome.records), outcome.states, records=outcome.records)
        self._bury(stage, outcome.failed, made.dead, partition)
        return made

    def _bury(self, stage: Stage, failed: Sequence[tuple[int, Record, BaseException]], dead: Accepted, partition: int) -> None:
        admission = Admission(self._redactor, self._now())
        for offset, record, error in failed:
            log.error("stage %s could not get over position %d of %s", stage.name, offset, stage.source, exc_info=error)
            admission.set_aside(dead, Place(stage.source, offset, partition), stage_failed(stage.name, error), encode(record))


def next_batch(store: Store, source: str, start: int, most: int) -> tuple[StageBatch, int]:
    """Return a stage's next batch of at most `most` positions, and the position after it; if all were deleted, that of the next record."""
    end = min(start + most, store.end_of(source))
    if start >= end:
        return StageBatch(source, {}), start
    frames = store.read(source, start, end - start)
    return StageBatch.of(source, frames), end if frames else store.next_position(source, end)


def stage_failed(stage: str, error: BaseException) -> Refusal:
    """Return the refusal of a record that the stage of this name fails on."""
    return Refusal(stage, "stage_failed", f"{type(error).__name__}: {error}")
