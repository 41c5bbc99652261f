"""Evaluations by a batch judge: every question of every request in one go, before the stage takes the requests up.

The answers are recorded as judgements of their evaluations, so the stage finds them and asks no judge. It runs while no engine does: an
engine takes a reservation that nothing settles for a call that was cut off, and here it may be of a batch that is still under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime

from analytics.queries import query_records
from analytics.store.store import Store
from audit.exchanges.questions import Question
from audit.policy import Policy
from schemas.records import EvaluationRequest, Judgement, Reservation
from streams.evaluations.preparing import is_batched, judging_task_of, settled_questions
from streams.judges.batch_judge import Asked, BatchJudge
from streams.judges.batch_plans import BatchJournal
from streams.judging.call_budget import CallRecorder, DurableBudget, append_calls, interrupted
from streams.judging.judged_stages import EVALUATION, JudgingTask, recorded_in
from streams.replay.rescoring import ask_all

Call = Judgement | Reservation
"""A record of a call."""
Note = Callable[[Call], None]
"""Called with every record of a call, as soon as it is durable."""


async def ask_in_batches(
    store: Store,
    policy: Policy,
    requests: Sequence[EvaluationRequest],
    judge: BatchJudge,
    journal: BatchJournal,
    *,
    now: Callable[[], datetime],
    note: Note,
) -> None:
    """Ask the questions of requests for a batch judge that have no answer yet. StoppedError if the judge was cancelled.

    Batches of a process that was killed are found again, by the same journal.
    """
    batched = [request for request in requests if is_batched(request)]
    planned = {fingerprint for plan in await journal.unfinished() for fingerprint in plan.fingerprints}
    reserved = _under_way(store, planned, now())
    recorder = CallRecorder(store)

    async def publish(record: Call) -> None:
        await recorder.publish(record)
        note(record)

    def budget(question: Question, judging_task: JudgingTask) -> DurableBudget:
        reservation_id = reserved.pop(question.fingerprint, None)
        return DurableBudget(question, judging_task, publish, now, lambda: True, reservation_id=reservation_id)

    while questions := _open(store, policy, batched, budget):
        await ask_all(judge, questions, lambda: None)


def _open(
    store: Store,
    policy: Policy,
    requests: Sequence[EvaluationRequest],
    budget: Callable[[Question, JudgingTask], DurableBudget],
) -> list[Asked]:
    """Collect the questions that are still to be asked.

    A batch takes a question once, so evaluations that ask the same have to be gone through again.
    """
    recorded = recorded_in(store)([EVALUATION.subject_of(request) for request in requests])
    questions: dict[str, Asked] = {}
    for request in requests:
        judging_task = judging_task_of(request, policy, recorded.get(EVALUATION.subject_of(request), ()))
        for question, reply in settled_questions(request, judging_task):
            if reply is None and question.fingerprint not in questions:
                paying = budget(question, judging_task)
                questions[question.fingerprint] = Asked(question, paying, paying)
    return list(questions.values())


def _under_way(store: Store, planned: set[str], now: datetime) -> dict[str, str]:
    """Ids of the reservations for batches that an earlier process made, by fingerprint. Any other open one is charged in full."""
    with closing(store.cursor()) as cursor:
        reservations = list(query_records(cursor, "open_reservations", Reservation))
    lost = [reservation for reservation in reservations if reservation.fingerprint not in planned]
    append_calls(store, [interrupted(reservation, now) for reservation in lost])
    return {row.fingerprint: row.reservation_id for row in reservations if row.fingerprint in planned}
