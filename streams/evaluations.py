"""Preparing evaluations: sessions, cases and plans become requests; existing evaluations are found, and the rest is estimated.

1. An evaluation is known by its id, which depends on everything that a score depends on. A completed one is reused.
2. A failed one is requested again, as the next attempt: what the judge has answered before counts, so only the rest is asked.
3. One whose requesting process was cut off is taken up as it is, and not requested twice.
4. Questions that the judge was asked about the same run for another evaluation (another aggregation, another policy, fewer repetitions)
   are not asked again: the answers are taken over.

With a batch judge, every question of every request is asked in one go, before the stage takes the requests up (`ask_in_batches`). The
answers are recorded as judgements of their evaluations, so the stage finds them and asks no judge. It runs while no engine does: an engine
takes a reservation that nothing settles for a call that was cut off, and here it may be of a batch that is still under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.cost import usd_of, worst_case
from audit.evaluation.cases import Case, Plan
from audit.evaluation.evaluating import evaluation_request, next_attempt
from audit.evaluation.questions import Terms, questions_of
from audit.evaluation.report import Evaluated
from audit.exchanges.questions import ANSWERED, Question, Reply, estimate
from audit.policy import Policy
from schemas.errors import BoundsError, InputError
from schemas.lazy import duckdb
from schemas.records import Evaluation, EvaluationRequest, Judgement, Reservation
from streams.finished_sessions import ReadRun, Wanted, finished_sessions, read_runs
from streams.judges.batch_plans import Asked, BatchJournal
from streams.judging.call_budget import CallRecorder, DurableBudget, append_calls, interrupted
from streams.judging.judged_stages import EVALUATION, JudgingTask, Subject, recorded_in
from streams.replay.rescoring import ask_all
from streams.stage_progress import stage_progress

if TYPE_CHECKING:
    from streams.judges.batch_judge import BatchJudge


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Counts of what is to be evaluated, and what that is expected to cost."""

    evaluations: int = 0
    """Evaluations that will be made."""
    reused: int = 0
    """Evaluations that are there."""
    taken_up: int = 0
    """Of those that will be made: how many were asked for before, by a process that did not come to its end."""
    left_over: int = 0
    """Evaluations beside these that were asked for before and are not made: the next worker makes them, too, within its own caps."""
    calls: int = 0
    """Questions that the judge will be asked about those that will be made."""
    answered: int = 0
    """Questions that it has answered before, for this evaluation or for another one of the run."""
    not_asked: int = 0
    """Questions that will not be asked: only recorded answers count, the cap leaves no room, or it needs an unknown price."""
    unpriced: int = 0
    """Calls without a known price; they count in no sum."""
    expected_usd: float = 0.0
    at_most_usd: float = 0.0
    """With every answer as long as it may be, and no evaluation beyond its cap."""


def estimate_of(
    requests: Sequence[tuple[EvaluationRequest, Sequence[Judgement]]],
    policy: Policy,
    *,
    reused: int,
    taken_up: int,
    left_over: int,
) -> Estimate:
    """Estimate the calls and costs of the requests, each with the judgements recorded of it."""
    counts = dict.fromkeys(("calls", "answered", "not_asked", "unpriced"), 0)
    expected = most = 0
    models: set[str] = set()
    for request, recorded in requests:
        judging_task = judging_task_of(request, policy, recorded)
        room = None if judging_task.ledger.cap is None else max(0, judging_task.ledger.cap - judging_task.ledger.spent)
        questions = settled_questions(request, judging_task)
        calls = [question for question, reply in questions if reply is None]
        answered = sum(reply is not None and reply.text is not None for _, reply in questions)
        counts["calls"] += len(calls)
        counts["answered"] += answered
        counts["not_asked"] += len(questions) - len(calls) - answered
        counts["unpriced"] += len(calls) if judging_task.price is None else 0
        if judging_task.price is not None and calls:
            price, batched = judging_task.price, judging_task.batched
            at_most = sum(worst_case(one, price, batched=batched) for one in calls)
            likely = sum(
                estimate(one, price, cached=bool(place) or one.model in models, batched=batched).nano or 0
                for place, one in enumerate(calls)
            )
            most += _within(at_most, room)
            expected += _within(likely, room)
            models.add(calls[0].model)
    return Estimate(
        evaluations=len(requests),
        reused=reused,
        taken_up=taken_up,
        left_over=left_over,
        expected_usd=usd_of(expected),
        at_most_usd=usd_of(most),
        **counts,
    )


def judging_task_of(request: EvaluationRequest, policy: Policy, recorded: Sequence[Judgement]) -> JudgingTask:
    """The judging task of a request, at the prices of the way in which its judge is asked."""
    return EVALUATION.open(request, policy, recorded, batched=is_batched(request))


def settled_questions(request: EvaluationRequest, judging_task: JudgingTask) -> list[tuple[Question, Reply | None]]:
    """The questions of a request, each with the reply to it; None where the judge is to be asked."""
    return [(one, judging_task.settle(one, judging_task.earlier(one))) for one in questions_of(request)]


def is_batched(request: EvaluationRequest) -> bool:
    """Tell whether the judge of a request is asked through the batch API."""
    return Terms.of(request).plan.judge.type == "batch"


def _within(amount: int, room: int | None) -> int:
    return amount if room is None else min(amount, room)


COMPLETED = "completed"
_TEXTS = ("case", "profile", "system_prompt", "user_prompt", "checks")
"""Fields whose texts requests have in common."""


@dataclass(frozen=True)
class Prepared:
    """The evaluations to make, by where they stand."""

    requests: Sequence[EvaluationRequest] = ()
    """To be published."""
    taken_up: Sequence[EvaluationRequest] = ()
    """In the log already and not answered yet: not to be published again."""
    reused: Sequence[Evaluated] = ()
    """There already."""
    estimate: Estimate = field(default_factory=Estimate)
    sessions: int = 0
    """The number of sessions that were selected."""
    order: Mapping[str, int] = field(default_factory=dict)
    """The place of each evaluation by its id: sessions as they ended, of each the cases, of each the plans, both as they were given."""

    @property
    def asked(self) -> list[EvaluationRequest]:
        """Everything that is to be evaluated, published or not."""
        return [*self.requests, *self.taken_up]


class _Fate(NamedTuple):
    """The fate of an evaluation: it is there, it was asked for, or it is to be asked for."""

    attempt: int | None
    """None: it is there."""
    carried: tuple[bytes, ...] | None = None
    """The judgements that the request carries, if this attempt was asked for already."""


def prepare(  # noqa: PLR0917 - what is held against what, in the order in which it is read
    store: Store,
    policy: Policy,
    cases: Sequence[Case],
    plans: Sequence[Plan],
    system_prompt: str,
    wanted: Wanted,
    at: datetime,
    *,
    retry_failed: bool = False,
    takes_simulated: bool = True,
) -> Prepared:
    """Work out what it takes to hold the wanted sessions against each case by each plan.

    It writes nothing and asks no judge.

    `at` is when it is asked for. With `retry_failed`, completed evaluations that lack successful iterations are asked for
    again, too. Without `takes_simulated`, answers of a simulated judge do not count. InputError for sessions that cannot be
    evaluated, for two cases of one id, and if a case and a view together exceed what a record may hold.
    """
    _check_ids("case", [case.case_id for case in cases])
    _check_ids("judge run", [plan.judge_run_id for plan in plans])
    plans = [plan.model_copy(update={"takes_simulated": takes_simulated}) for plan in plans]
    is_good = partial(_is_good, retry_failed=retry_failed, takes_simulated=takes_simulated)
    with closing(store.cursor()) as cursor:
        sessions = finished_sessions(cursor, wanted)[::-1]
        runs = read_runs(cursor, sessions, policy)
        found = _by_id(_requests(runs, cases, plans, system_prompt, at))
        known = _known(cursor, list(found))
        passed = stage_progress(store, EVALUATION).position
        fates = _fates(cursor, found, known, passed, is_good)
        waiting = query_rows(cursor, "open_evaluations", {"position": passed})
        left_over = sum(row["evaluation_id"] not in found for row in waiting)
        asked_for = [EVALUATION.subject_of(found[one]) for one, fate in fates.items() if fate.attempt is not None]
        recorded = {
            subject: [one for one in judgements if takes_simulated or not one.simulated]
            for subject, judgements in recorded_in(store)(asked_for).items()
        }
        new, old = _asked(cursor, found, fates, recorded, takes_simulated=takes_simulated)
    reused = [_reused(found[one], known[one]) for one, fate in fates.items() if fate.attempt is None]
    asked = [(one, recorded.get(EVALUATION.subject_of(one), ())) for one in (*new, *old)]
    whole = estimate_of(asked, policy, reused=len(reused), taken_up=len(old), left_over=left_over)
    return Prepared(new, old, reused, whole, len(sessions), {one: place for place, one in enumerate(found)})


def _asked(
    cursor: duckdb.DuckDBPyConnection,
    found: Mapping[str, EvaluationRequest],
    fates: Mapping[str, _Fate],
    recorded: Mapping[Subject, Sequence[Judgement]],
    *,
    takes_simulated: bool,
) -> tuple[list[EvaluationRequest], list[EvaluationRequest]]:
    """Return the new requests with what was recorded of them, and the earlier requests as they were."""
    new = {one: fate.attempt for one, fate in fates.items() if fate.attempt is not None and fate.carried is None}
    taken_over = _answers_of_others(cursor, [found[one] for one in new], recorded, takes_simulated=takes_simulated)
    requests = [
        next_attempt(request, attempt, [*recorded.get(EVALUATION.subject_of(request), ()), *taken_over[one]])
        for one, attempt in new.items()
        for request in [found[one]]
    ]
    old = [
        msgspec.structs.replace(next_attempt(found[one], fate.attempt or 0, ()), earlier_judgements=fate.carried)
        for one, fate in fates.items()
        if fate.carried is not None
    ]
    return requests, old


def _answers_of_others(
    cursor: duckdb.DuckDBPyConnection,
    requests: Sequence[EvaluationRequest],
    recorded: Mapping[Subject, Sequence[Judgement]],
    *,
    takes_simulated: bool,
) -> dict[str, list[Judgement]]:
    """By evaluation: the answers to its questions that were given to others, where it has none of its own."""
    missing: dict[str, list[str]] = {}
    wanted = []
    for request in requests:
        own = {one.fingerprint for one in recorded.get(EVALUATION.subject_of(request), ()) if one.outcome == ANSWERED}
        open_ones = [one.fingerprint for one in questions_of(request) if one.fingerprint not in own]
        missing[request.evaluation_id] = open_ones
        about = {"connection": request.connection, "session_id": request.session_id}
        wanted += [about | {"fingerprint": fingerprint} for fingerprint in open_ones]
    values = {"questions": wanted, "simulated": takes_simulated}
    rows = query_records(cursor, "answers_of_sessions", Judgement, values) if wanted else ()
    answers = {one.fingerprint: one for one in rows}
    return {name: [answers[one] for one in asked if one in answers] for name, asked in missing.items()}


def _check_ids(kind: str, ids: Sequence[str]) -> None:
    """InputError where two have one id: their results could not be told apart."""
    twice = [one for one, count in Counter(ids).items() if count > 1]
    if twice:
        raise InputError(f"two {kind}s are called {twice[0]!r}", hint=f"Give each {kind} its own id.")


def _requests(
    runs: Iterable[ReadRun], cases: Sequence[Case], plans: Sequence[Plan], system_prompt: str, at: datetime
) -> Iterator[EvaluationRequest]:
    """A request for each run, case and plan, as if nothing had been asked for before. Runs come one after the other, oldest first."""
    repetitions: Counter[str | None] = Counter()
    texts: dict[str, str] = {}
    for run, warnings in runs:
        repetitions[run.model] += 1
        for case in cases:
            for plan in plans:
                try:
                    request = evaluation_request(
                        case,
                        plan,
                        system_prompt,
                        run,
                        repetition=repetitions[run.model],
                        attempt=0,
                        earlier=(),
                        at=at,
                        warnings=warnings,
                    )
                except BoundsError as error:
                    raise InputError(
                        f"case {case.case_id!r} and session {run.session_id!r} are together larger than a record may be",
                        hint=error.hint,
                    ) from error
                shared = {name: texts.setdefault(text, text) for name in _TEXTS for text in [getattr(request, name)]}
                yield msgspec.structs.replace(request, **shared)


def _by_id(requests: Iterable[EvaluationRequest]) -> dict[str, EvaluationRequest]:
    """Each evaluation once: plans that measure alike are one."""
    found: dict[str, EvaluationRequest] = {}
    for request in requests:
        found.setdefault(request.evaluation_id, request)
    return found


def _known(cursor: duckdb.DuckDBPyConnection, ids: Sequence[str]) -> dict[str, Evaluation]:
    rows = query_records(cursor, "evaluations_by_id", Evaluation, {"evaluations": list(ids)})
    return {one.evaluation_id: one for one in rows}


def _fates(
    cursor: duckdb.DuckDBPyConnection,
    ids: Iterable[str],
    known: Mapping[str, Evaluation],
    passed: int,
    is_good: Callable[[Evaluation], bool],
) -> dict[str, _Fate]:
    """Decide the fate of each evaluation.

    Requests that became dead letters, or that the stage has `passed` without a result, are made again.
    """
    rows = query_rows(cursor, "evaluation_attempts", {"evaluations": list(ids)})
    asked: dict[str, dict[str, Any]] = {row["evaluation_id"]: row for row in rows}
    fates = {}
    for one in ids:
        evaluation, last = known.get(one), asked.get(one, {"attempt": -1, "position": 0, "made": -1})
        # What is current need not be the newest: a later attempt that failed hides nothing.
        done = max(last["made"], evaluation.revision if evaluation else -1)
        if last["attempt"] > done and last["position"] >= passed and not last["is_set_aside"]:
            fates[one] = _Fate(last["attempt"], tuple(last["carried"]))
        elif evaluation and done >= last["attempt"] and is_good(evaluation):
            fates[one] = _Fate(None)
        else:
            fates[one] = _Fate(max(done, last["attempt"]) + 1)
    return fates


def _is_good(evaluation: Evaluation, *, retry_failed: bool, takes_simulated: bool) -> bool:
    """Tell whether an evaluation is good enough to be reused."""
    whole = evaluation.successful_iterations >= evaluation.configured_repetitions
    counts = takes_simulated or not evaluation.simulated
    return evaluation.status == COMPLETED and counts and (whole or not retry_failed)


def _reused(request: EvaluationRequest, evaluation: Evaluation) -> Evaluated:
    """An evaluation that is there, numbered as in this selection, its run at today's prices; of one id the prompts are those of then."""
    told = msgspec.structs.replace(evaluation, repetition=request.repetition, run_cost_usd=request.run_cost_usd)
    return Evaluated(told, request.system_prompt, request.user_prompt, reused=True)


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
