"""One part of a replay, from opening its history to its last window: what a process of its own does."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.lazy.polars import pl
from schemas.records import Judgement, Record
from streams.judges.protocol import Judge
from streams.judging.judged_stages import SCORING
from streams.judging.recorded_judgements import Recorded, Subject
from streams.judging.task_judge import TaskJudge
from streams.replay.estimating import Estimate, Estimator
from streams.replay.history.history import History
from streams.replay.part_file import PartFile, States
from streams.replay.plan import Asking, Plan, ReplayFiles
from streams.replay.rescoring import Report, Rescoring
from streams.stop_signals import handled_in_loop

if TYPE_CHECKING:
    from streams.judges.batch.judge import BatchJudge


@dataclass(frozen=True)
class PartWork:
    """The work on a part: the plan, which part, and the means of scoring. `judge` and `batch_judge` as the plan asks."""

    plan: Plan
    number: int
    files: ReplayFiles
    policy: Policy
    redactor: Redactor
    now: Callable[[], datetime]
    judge: Judge | None = None
    batch_judge: BatchJudge | None = None

    @property
    def rescoring(self) -> Rescoring:
        """The scoring of windows, ready to run."""
        return Rescoring(
            self.policy,
            self.plan.scope,
            self.redactor,
            self.now,
            asking=self.plan.asking,
            side_by_side=self.judge is not None,
        )


async def estimate_part(work: PartWork, history: History, report: Report) -> Estimate:
    """Estimate the calls and costs of the part; answers that this replay already has count as answered."""
    asking = work.plan.asking
    estimator = Estimator(work.policy, batched=asking is Asking.BATCH, asks=asking.pays)
    exchanges = 0

    def count(position: int, seen: int) -> None:
        nonlocal exchanges
        exchanges += seen
        report(position, seen)

    path = work.files.part(work.number)
    kept = PartFile(path) if path.exists() else None
    try:
        recorded = history.recorded if kept is None else _both(history.recorded, kept)
        await work.rescoring.run(history, States(), estimator, recorded, count)
    finally:
        if kept is not None:
            kept.close()
    found = estimator.result()
    found.exchanges = exchanges
    return found


async def replay_part(work: PartWork, history: History, report: Report, asked: Callable[[int], None]) -> pl.DataFrame:
    """Score the part to its end, from where it was left; answers the digests of all scores it has made.

    StoppedError when it was asked to stop before.
    """
    kept = PartFile(work.files.part(work.number))
    try:
        if work.batch_judge is not None and kept.position == 0:
            await _ask_in_rounds(work, work.batch_judge, history, kept, asked)
        # No call is under way now: what is open belongs to a process that was killed.
        kept.settle(work.now())
        known = _Known(_both(history.recorded, kept), kept)
        task_judge = TaskJudge(SCORING, work.policy, work.judge, known.publish, work.now)
        with handled_in_loop(lambda _: task_judge.close(), [signal.SIGTERM]):
            await work.rescoring.run(history, kept, task_judge, known.recorded, report)
        return kept.digests()
    finally:
        kept.close()


async def _ask_in_rounds(
    work: PartWork, judge: BatchJudge, history: History, kept: PartFile, asked: Callable[[int], None]
) -> None:
    """Ask everything the part wants to know, pass by pass, until nothing is left."""
    from streams.replay.question_rounds import Clerk, ask_all  # noqa: PLC0415 - the client of the judge's API takes a second to load

    with handled_in_loop(lambda _: judge.cancel(), [signal.SIGTERM]):
        while True:
            clerk = Clerk(work.policy, kept, work.now)
            await work.rescoring.run(history, States(), clerk, _both(history.recorded, kept), lambda _position, _seen: None)
            if not clerk.asked:
                return
            await ask_all(judge, clerk.asked, asked)


class _Known:
    """The judgements of a window's exchanges, including those recorded while it is scored."""

    def __init__(self, recorded: Recorded, kept: PartFile) -> None:
        self._recorded = recorded
        self._kept = kept
        self._found: dict[Subject, list[Judgement]] = {}

    def recorded(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        """Return the judgements of the exchanges.

        The mapping grows while they are scored, so that a later revision finds the answers to an earlier one.
        """
        self._found = {subject: list(found) for subject, found in self._recorded(subjects).items()}
        return self._found

    async def publish(self, record: Record) -> None:
        """Make a record of a call durable."""
        await self._kept.publish(record)
        if isinstance(record, Judgement):
            self._found.setdefault((record.connection, record.subject_id), []).append(record)


def _both(first: Recorded, kept: PartFile) -> Recorded:
    """Return the judgements that the history recorded, and after them those that this replay asked for."""

    def recorded(subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        before, paid = first(subjects), kept.paid(subjects)
        if not paid:
            return before
        found: dict[Subject, list[Judgement]] = defaultdict(list)
        for known in (before, paid):
            for subject, judgements in known.items():
                found[subject] += judgements
        return found

    return recorded
