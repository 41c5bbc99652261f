"""The embedded runner: the whole topology in one process, with the store's tables as topics.

Each stage reads its topic from its watermark and commits its records, the changed states and the new watermark in one
transaction. After a kill at any moment the store is in the state of its last commit, and the next run continues from there.

`StageRunner` runs a stage's step over a batch, here and in the workers on Kafka. A session that fails affects no other session.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from analytics.deletion.deleting import STAGE as ERASURE
from analytics.deletion.retention import TRUNCATED_STAGE, delete_withdrawn_scores
from analytics.store.store import AppendResult, Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import decode, encode
from schemas.lazy import pl
from schemas.records import ImportProgress, Record
from streams.judging.call_budget import settle_interrupted_calls
from streams.judging.judged_stages import JudgementReader, judgement_reader
from streams.log.admission import Admission, EncodedRecords, RecordOrigin, Refusal, encode_all
from streams.stage_batches import RecordBatch, StageBatch
from streams.stage_progress import StageProgress, stage_progress
from streams.topology import ASSEMBLING, TOPOLOGY, Stage, derived_tables, stage_named

BATCH_POSITIONS = 20_000
INTAKE = stage_named("intake")
log = logging.getLogger(__name__)
UNFINISHED = "unjudged work"
"""Consumer whose watermark is 1 while an import or a rebuild is in progress, else 0. Its unfinished tasks must not be paid for."""


class EmbeddedRunner:
    """Runs the topology over a store. `now` is only used to stamp dead letters."""

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
        self._runner = StageRunner(policy, judgement_reader(store), redactor, now)
        self._gathers_writes = False

    def publish(
        self, accepted: EncodedRecords, progress: Sequence[ImportProgress] = (), *, are_own: bool = False
    ) -> dict[str, AppendResult]:
        """Append accepted records to their topics and store the import's progress in one transaction. Return the outcomes by topic.

        Known records are skipped, so that delivering twice changes nothing. A record in conflict with the log becomes one dead letter,
        even if it is delivered again. `are_own` means that this program has just encoded the records, so that they need no validation.
        """
        outcomes: dict[str, AppendResult] = {}
        dead_letters = EncodedRecords()
        if are_own and not self._gathers_writes:
            self._store.checkpoint_rarely()
            self._gathers_writes = True
        with self._store.transaction() as transaction:
            for topic, messages in accepted.messages.items():
                outcome = transaction.append(topic, messages, skip_known=True, are_own=are_own)
                outcomes[topic] = outcome
                for index in outcome.conflicts:
                    admission = Admission(self._redactor, self._now())
                    admission.add_conflict(dead_letters, topic, decode(messages[index]), outcome.differing[index])
            for topic, messages in dead_letters.messages.items():
                added = transaction.append(topic, messages, skip_known=True)
                outcome = outcomes.setdefault(topic, AppendResult())
                outcome.known += added.known
                outcome.written = dict(Counter(outcome.written) + Counter(added.written))
            transaction.set_progress(progress)
            if any(stage.source in accepted.messages for stage in TOPOLOGY):
                transaction.set_watermark(UNFINISHED, "", 1)
        return outcomes

    def run(self, report: Callable[[StageProgress], None] | None = None) -> int:
        """Run every stage to the end of its topic; returns the number of positions read."""
        total = 0
        settle_interrupted_calls(self._store, self._now())
        for stage in TOPOLOGY:
            # Only later stages read a stage's sinks, so a single pass in order is enough.
            position = stage_progress(self._store, stage).position
            while read := self.advance(stage):
                total += read
                position += read
                if report is not None:
                    report(StageProgress(stage.name, position, self._store.end_of(stage.source)))
        delete_withdrawn_scores(self._store)
        with self._store.transaction() as transaction:
            if transaction.watermark(UNFINISHED, ""):
                transaction.set_watermark(UNFINISHED, "", 0)
        return total

    def finish(self) -> bool:
        """Run the stages to the end, without a judge, if an import or a rebuild was interrupted; returns whether one was."""
        with self._store.transaction() as transaction:
            unfinished = bool(transaction.watermark(UNFINISHED, ""))
        if unfinished:
            self.run()
        return unfinished

    def catch_up(self) -> None:
        """Let intake and diagnosis process the records that the last process committed but did not read.

        After an interrupted import or rebuild the judged stages run, too, but without a judge: nobody has agreed to pay for calls.
        """
        if self.finish():
            log.warning("finished an interrupted import or rebuild, without a judge")
        for stage in (INTAKE, stage_named("diagnosis")):
            while self.advance(stage):
                pass

    def rebuild(self, report: Callable[[StageProgress], None] | None = None) -> None:
        """Drop all derived records, and derive them again from the records that came from outside.

        A session whose first records were deleted keeps its results, because its remaining records would give different ones.
        """
        with self._store.transaction() as transaction:
            transaction.clear_derived(derived_tables(), but=TRUNCATED_STAGE, stages=[ERASURE, ASSEMBLING.name])
            transaction.set_watermark(UNFINISHED, "", 1)
        self.run(report)

    def advance(self, stage: Stage) -> int:
        """Let a stage process its next batch; returns the number of positions read, 0 at the end of its topic."""
        start = stage_progress(self._store, stage).position
        batch, end = read_next_batch(self._store, stage.source, start, min(self._batch_positions, stage.records_at_once))
        if start >= end:
            return 0
        with self._store.transaction() as transaction:
            states = transaction.states(stage.name, batch.keys())
            outcome = self._runner.run(stage, batch, states)
            for topic, messages in outcome.output.messages.items():
                transaction.append(topic, messages, are_own=True)
            for topic, messages in outcome.dead_letters.messages.items():
                transaction.append(topic, messages, skip_known=True)
            transaction.set_states(stage.name, outcome.states, end)
            transaction.set_watermark(stage.name, stage.source, end)
        return end - start


def step_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that a step may raise; a panic of polars is not an Exception."""
    return Exception, pl.exceptions.PanicException


@dataclass
class StageOutcome:
    """A stage's results for a batch: encoded records, changed states by session key, and dead letters."""

    output: EncodedRecords = field(default_factory=EncodedRecords)
    states: dict[str, bytes] = field(default_factory=dict)
    dead_letters: EncodedRecords = field(default_factory=EncodedRecords)
    records: list[tuple[str, Record]] = field(default_factory=list)
    """The records in `output` before encoding, with their topics."""

    def extend(self, other: StageOutcome) -> None:
        """Add the results for another part of the batch."""
        self.output.extend(other.output)
        self.states |= other.states
        self.dead_letters.extend(other.dead_letters)
        self.records += other.records


class StageRunner:
    """Runs the steps of some stages. `now` is only used to stamp dead letters."""

    def __init__(
        self,
        policy: Policy,
        recorded: JudgementReader,
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
        """Run the step over the batch. If that fails, run it session by session, so that only the bad session fails.

        `partition` is the origin of the batch, for dead letters.
        """
        try:
            return self._run_step(stage, batch, states, partition)
        except step_errors():
            log.exception("stage %s failed on a batch of %s; running it session by session", stage.name, stage.source)
        outcome = StageOutcome()
        for key in sorted(batch.keys()):
            session_batch = batch.of_session(key)
            session_states = {key: states[key]} if key in states else {}
            try:
                outcome.extend(self._run_step(stage, session_batch, session_states, partition))
            except step_errors() as error:
                failed = [(offset, record, error) for offset, _, record in session_batch.records()]
                self._add_dead_letters(stage, failed, outcome.dead_letters, partition)
        return outcome

    def _run_step(
        self, stage: Stage, batch: StageBatch | RecordBatch, states: Mapping[str, bytes], partition: int
    ) -> StageOutcome:
        """Run the step and encode its records, so that a record that breaks its contract fails here, too."""
        # Steps that get records instead of columns use only the methods that both kinds of batch share.
        result = self._steps[stage.name](cast("StageBatch", batch), states)
        outcome = StageOutcome(encode_all(result.records), result.states, records=result.records)
        self._add_dead_letters(stage, result.failed, outcome.dead_letters, partition)
        return outcome

    def _add_dead_letters(
        self,
        stage: Stage,
        failed: Sequence[tuple[int, Record, BaseException]],
        dead_letters: EncodedRecords,
        partition: int,
    ) -> None:
        admission = Admission(self._redactor, self._now())
        for offset, record, error in failed:
            log.error("stage %s failed on offset %d of %s", stage.name, offset, stage.source, exc_info=error)
            origin = RecordOrigin(stage.source, offset, partition)
            admission.add_dead_letter(dead_letters, origin, stage_failure(stage.name, error), encode(record))


def read_next_batch(store: Store, source: str, start: int, limit: int) -> tuple[StageBatch, int]:
    """Return a stage's next batch of at most `limit` positions, and the position after it.

    If all of these records were deleted, the batch is empty and the position is that of the next record.
    """
    end = min(start + limit, store.end_of(source))
    if start >= end:
        return StageBatch(source, {}), start
    frames = store.read(source, start, end - start)
    if not frames:
        end = store.next_position(source, end)
    return StageBatch.of(source, frames), end


def stage_failure(stage: str, error: BaseException) -> Refusal:
    """Return the refusal of a record on which the named stage failed."""
    return Refusal(stage, "stage_failed", f"{type(error).__name__}: {error}")
