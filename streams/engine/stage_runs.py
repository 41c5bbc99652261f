"""Running a stage's step over a batch so that one bad session stops no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.lazy import pl
from schemas.records import Record
from streams.judging.judged_stages import Recorded
from streams.log.admission import Accepted, Admission, Place, Refusal, encode_all
from streams.stage_batches import RecordBatch, StageBatch
from streams.topology import TOPOLOGY, Stage

log = logging.getLogger(__name__)


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
    """The refusal of a record that the stage of this name fails on."""
    return Refusal(stage, "stage_failed", f"{type(error).__name__}: {error}")
