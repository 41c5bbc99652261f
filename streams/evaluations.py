"""Preparing evaluations: sessions, cases and plans become requests; existing evaluations are reused, and the rest is estimated.

1. The id of an evaluation depends on everything that its score depends on. A completed evaluation is reused.
2. A failed evaluation is requested again, as the next attempt. Recorded answers count, so only the missing questions are asked.
3. If the requesting process was killed, its open request is continued, not requested again.
4. Answers that the judge gave about the same run for another evaluation (another aggregation, another policy, fewer repetitions) are
   reused.

With a batch judge, all questions of all requests are asked together, before the stage reads the requests (`ask_in_batches`). The answers
are recorded as judgements of their evaluations, so the stage needs no judge. No engine may run meanwhile: it would charge the open
reservations of a running batch as interrupted calls.
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
from audit.cost import max_cost, usd_of
from audit.evaluation.cases import WHOLE_SESSION, Case, Plan
from audit.evaluation.evaluating import evaluation_request, next_attempt
from audit.evaluation.questions import Terms, questions_of
from audit.evaluation.report import Evaluated
from audit.exchanges.questions import ANSWERED, Question, Reply, estimate
from audit.policy import Policy
from schemas.errors import BoundsError, InputError
from schemas.lazy import duckdb
from schemas.records import Evaluation, EvaluationRequest, Judgement, Reservation
from streams.finished_sessions import ReadRun, SessionSelection, finished_sessions, read_runs
from streams.judges.batch_plans import BatchJournal, BatchQuestion
from streams.judging.call_budget import CallRecorder, batch_question, settle_interrupted_calls
from streams.judging.judged_stages import EVALUATION, JudgingTask, Subject, judgement_reader
from streams.judging.shared_caps import open_shared_caps
from streams.replay.rescoring import ask_all
from streams.stage_progress import stage_progress

if TYPE_CHECKING:
    from streams.judges.batch_judge import BatchJudge


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The number of evaluations and questions, and their expected cost."""

    evaluations: int = 0
    """Evaluations to make."""
    reused: int = 0
    """Evaluations that exist already."""
    taken_up: int = 0
    """Evaluations to make that were requested before, by a process that was interrupted."""
    left_over: int = 0
    """Other evaluations that were requested before and are not finished: the next worker also makes them, within their own caps."""
    calls: int = 0
    """Questions to ask the judge."""
    answered: int = 0
    """Questions that it has answered before, for this evaluation or for another of the same run."""
    not_asked: int = 0
    """Questions that will not be asked: only recorded answers count, the cap is used up, or it needs a price that is unknown."""
    unpriced: int = 0
    """Calls without a known price; the costs do not include them."""
    expected_usd: float = 0.0
    at_most_usd: float = 0.0
    """The cost if every answer has its maximum length; no evaluation exceeds its cap."""


def estimate_of(
    requests: Sequence[tuple[EvaluationRequest, Sequence[Judgement]]],
    policy: Policy,
    *,
    reused: int,
    taken_up: int,
    left_over: int,
) -> Estimate:
    """Estimate the calls and costs of requests, each with its recorded judgements."""
    counts = dict.fromkeys(("calls", "answered", "not_asked", "unpriced"), 0)
    expected = 0
    at_most = 0
    models: set[str] = set()
    for request, recorded in requests:
        judging_task = judging_task_of(request, policy, recorded)
        ledger = judging_task.ledger
        remaining = None if ledger.cap is None else max(0, ledger.cap - ledger.spent)
        questions = settled_questions(request, judging_task)
        calls = [question for question, reply in questions if reply is None]
        answered = sum(reply is not None and reply.text is not None for _, reply in questions)
        counts["calls"] += len(calls)
        counts["answered"] += answered
        counts["not_asked"] += len(questions) - len(calls) - answered
        price = judging_task.price_of(request.judge_model)
        if price is None:
            counts["unpriced"] += len(calls)
        elif calls:
            batched = judging_task.batched
            worst = sum(max_cost(question, price, batched=batched) for question in calls)
            likely = sum(
                estimate(question, price, cached=index > 0 or question.model in models, batched=batched).nano or 0
                for index, question in enumerate(calls)
            )
            at_most += _limit(worst, remaining)
            expected += _limit(likely, remaining)
            models.add(calls[0].model)
    return Estimate(
        evaluations=len(requests),
        reused=reused,
        taken_up=taken_up,
        left_over=left_over,
        expected_usd=usd_of(expected),
        at_most_usd=usd_of(at_most),
        **counts,
    )


def judging_task_of(request: EvaluationRequest, policy: Policy, recorded: Sequence[Judgement]) -> JudgingTask:
    """Return the judging task of a request, at batch prices if its judge is asked in batches."""
    return EVALUATION.open(request, policy, recorded, batched=is_batched(request))


def settled_questions(request: EvaluationRequest, judging_task: JudgingTask) -> list[tuple[Question, Reply | None]]:
    """Return the questions of a request, each with its reply, or None if the judge must be asked."""
    return [(question, judging_task.settle(question, judging_task.earlier(question))) for question in questions_of(request)]


def is_batched(request: EvaluationRequest) -> bool:
    """Return whether the judge of a request is asked through the batch API."""
    return Terms.of(request).plan.judge.type == "batch"


def _limit(amount: int, limit: int | None) -> int:
    return amount if limit is None else min(amount, limit)


COMPLETED = "completed"
_TEXTS = ("case", "profile", "system_prompt", "user_prompt", "checks")
"""Fields whose texts requests share."""


@dataclass(frozen=True)
class Prepared:
    """The selected evaluations, grouped by the remaining work."""

    requests: Sequence[EvaluationRequest] = ()
    """New requests, to be published."""
    taken_up: Sequence[EvaluationRequest] = ()
    """Requests that are in the log and have no result yet; they are not published again."""
    reused: Sequence[Evaluated] = ()
    """Existing results."""
    estimate: Estimate = field(default_factory=Estimate)
    sessions: int = 0
    """Number of selected sessions."""
    order: Mapping[str, int] = field(default_factory=dict)
    """The index of each evaluation by its id: by session in the order of their ends, then by case, then by plan."""

    @property
    def to_evaluate(self) -> list[EvaluationRequest]:
        """All requests to evaluate, published or not."""
        return [*self.requests, *self.taken_up]


class _NextStep(NamedTuple):
    """What to do for an evaluation: reuse it, continue an open request, or request it."""

    attempt: int | None
    """The attempt to continue or to request; None if the evaluation is reused."""
    open_judgements: tuple[bytes, ...] | None = None
    """The judgements in the open request of this attempt; None if there is no open request."""


def prepare(  # noqa: PLR0917 - the order is natural, sessions by cases by plans
    store: Store,
    policy: Policy,
    cases: Sequence[Case],
    plans: Sequence[Plan],
    system_prompt: str,
    wanted: SessionSelection,
    at: datetime,
    *,
    retry_failed: bool = False,
    takes_simulated: bool = True,
) -> Prepared:
    """Return the requests that evaluate the selected sessions against each case by each plan, and the existing evaluations.

    Nothing is written, and no judge is asked.

    `at` is the time of the requests. With `retry_failed`, completed evaluations that lack successful iterations are requested
    again, too. Without `takes_simulated`, answers of a simulated judge do not count. Raises InputError for sessions that cannot be
    evaluated, for two cases with the same id, and if a case and a session together exceed the size of a record.
    """
    case_ids = [case.case_id for case in cases]
    if WHOLE_SESSION in case_ids:
        raise InputError(
            f"no case may be called {WHOLE_SESSION!r}", hint="The name is that of sessions without a written case."
        )
    _check_ids("case", case_ids)
    _check_ids("judge run", [plan.judge_run_id for plan in plans])
    plans = [plan.model_copy(update={"takes_simulated": takes_simulated}) for plan in plans]
    is_reusable = partial(_is_reusable, retry_failed=retry_failed, takes_simulated=takes_simulated)
    with closing(store.cursor()) as cursor:
        sessions = finished_sessions(cursor, wanted)[::-1]
        runs = read_runs(cursor, sessions, policy)
        requests = _unique(_build_requests(runs, cases, plans, system_prompt, at))
        existing = _load_evaluations(cursor, list(requests))
        passed = stage_progress(store, EVALUATION).position
        steps = _decide_steps(cursor, requests, existing, passed, is_reusable)
        waiting = query_rows(cursor, "open_evaluations", {"position": passed})
        left_over = sum(row["evaluation_id"] not in requests for row in waiting)
        unfinished = [EVALUATION.subject_of(requests[name]) for name, step in steps.items() if step.attempt is not None]
        recorded = {
            subject: [judgement for judgement in judgements if takes_simulated or not judgement.simulated]
            for subject, judgements in judgement_reader(store)(unfinished).items()
        }
        new, continued = _split_requests(cursor, requests, steps, recorded, takes_simulated=takes_simulated)
    reused = [_reuse(requests[name], existing[name]) for name, step in steps.items() if step.attempt is None]
    with_recorded = [(request, recorded.get(EVALUATION.subject_of(request), ())) for request in (*new, *continued)]
    estimated = estimate_of(with_recorded, policy, reused=len(reused), taken_up=len(continued), left_over=left_over)
    order = {evaluation_id: index for index, evaluation_id in enumerate(requests)}
    return Prepared(new, continued, reused, estimated, len(sessions), order)


def _split_requests(
    cursor: duckdb.DuckDBPyConnection,
    requests: Mapping[str, EvaluationRequest],
    steps: Mapping[str, _NextStep],
    recorded: Mapping[Subject, Sequence[Judgement]],
    *,
    takes_simulated: bool,
) -> tuple[list[EvaluationRequest], list[EvaluationRequest]]:
    """Return the new requests with their recorded judgements, and the open requests to continue."""
    attempts: dict[str, int] = {}
    continued: list[EvaluationRequest] = []
    for name, step in steps.items():
        if step.attempt is None:
            continue
        if step.open_judgements is None:
            attempts[name] = step.attempt
            continue
        request = next_attempt(requests[name], step.attempt, ())
        continued.append(msgspec.structs.replace(request, earlier_judgements=step.open_judgements))
    reusable = _load_reusable_answers(cursor, [requests[name] for name in attempts], recorded, takes_simulated=takes_simulated)
    new: list[EvaluationRequest] = []
    for name, attempt in attempts.items():
        own = recorded.get(EVALUATION.subject_of(requests[name]), ())
        new.append(next_attempt(requests[name], attempt, [*own, *reusable[name]]))
    return new, continued


def _load_reusable_answers(
    cursor: duckdb.DuckDBPyConnection,
    requests: Sequence[EvaluationRequest],
    recorded: Mapping[Subject, Sequence[Judgement]],
    *,
    takes_simulated: bool,
) -> dict[str, list[Judgement]]:
    """Return, by evaluation, the answers to its open questions that were given for other evaluations."""
    open_questions: dict[str, list[str]] = {}
    keys: list[dict[str, str]] = []
    for request in requests:
        judgements = recorded.get(EVALUATION.subject_of(request), ())
        answered = {judgement.fingerprint for judgement in judgements if judgement.outcome == ANSWERED}
        fingerprints = [question.fingerprint for question in questions_of(request) if question.fingerprint not in answered]
        open_questions[request.evaluation_id] = fingerprints
        session = {"connection": request.connection, "session_id": request.session_id}
        keys += [session | {"fingerprint": fingerprint} for fingerprint in fingerprints]
    answers: dict[str, Judgement] = {}
    if keys:
        values = {"questions": keys, "simulated": takes_simulated}
        for judgement in query_records(cursor, "answers_of_sessions", Judgement, values):
            answers[judgement.fingerprint] = judgement
    return {
        name: [answers[fingerprint] for fingerprint in fingerprints if fingerprint in answers]
        for name, fingerprints in open_questions.items()
    }


def _check_ids(kind: str, ids: Sequence[str]) -> None:
    """Raise InputError if two have the same id, because their results could not be told apart."""
    duplicates = [name for name, count in Counter(ids).items() if count > 1]
    if duplicates:
        raise InputError(f"two {kind}s are called {duplicates[0]!r}", hint=f"Give each {kind} its own id.")


def _build_requests(
    runs: Iterable[ReadRun], cases: Sequence[Case], plans: Sequence[Plan], system_prompt: str, at: datetime
) -> Iterator[EvaluationRequest]:
    """Yield a first request for each run, case and plan, run by run, oldest first."""
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
                        f"case {case.case_id!r} and session {run.session_id!r} together exceed the size of a record",
                        hint=error.hint,
                    ) from error
                shared = {name: texts.setdefault(getattr(request, name), getattr(request, name)) for name in _TEXTS}
                yield msgspec.structs.replace(request, **shared)


def _unique(requests: Iterable[EvaluationRequest]) -> dict[str, EvaluationRequest]:
    """Return each evaluation once, by its id: equivalent plans give the same evaluation."""
    by_id: dict[str, EvaluationRequest] = {}
    for request in requests:
        by_id.setdefault(request.evaluation_id, request)
    return by_id


def _load_evaluations(cursor: duckdb.DuckDBPyConnection, ids: Sequence[str]) -> dict[str, Evaluation]:
    rows = query_records(cursor, "evaluations_by_id", Evaluation, {"evaluations": list(ids)})
    return {evaluation.evaluation_id: evaluation for evaluation in rows}


def _decide_steps(
    cursor: duckdb.DuckDBPyConnection,
    ids: Iterable[str],
    existing: Mapping[str, Evaluation],
    passed: int,
    is_reusable: Callable[[Evaluation], bool],
) -> dict[str, _NextStep]:
    """Decide what to do for each evaluation.

    Requests that became dead letters, or that the stage has `passed` without a result, are requested again.
    """
    rows = query_rows(cursor, "evaluation_attempts", {"evaluations": list(ids)})
    attempts: dict[str, dict[str, Any]] = {row["evaluation_id"]: row for row in rows}
    steps: dict[str, _NextStep] = {}
    for evaluation_id in ids:
        evaluation = existing.get(evaluation_id)
        last = attempts.get(evaluation_id, {"attempt": -1, "position": 0, "made": -1})
        # A failed later attempt does not replace a completed evaluation.
        done = max(last["made"], evaluation.revision if evaluation else -1)
        if last["attempt"] > done and last["position"] >= passed and not last["is_set_aside"]:
            steps[evaluation_id] = _NextStep(last["attempt"], tuple(last["carried"]))
        elif evaluation and done >= last["attempt"] and is_reusable(evaluation):
            steps[evaluation_id] = _NextStep(None)
        else:
            steps[evaluation_id] = _NextStep(max(done, last["attempt"]) + 1)
    return steps


def _is_reusable(evaluation: Evaluation, *, retry_failed: bool, takes_simulated: bool) -> bool:
    """Return whether an evaluation is good enough to be reused."""
    is_complete = evaluation.successful_iterations >= evaluation.configured_repetitions
    counts = takes_simulated or not evaluation.simulated
    return evaluation.status == COMPLETED and counts and (is_complete or not retry_failed)


def _reuse(request: EvaluationRequest, evaluation: Evaluation) -> Evaluated:
    """Return an existing evaluation, numbered as in this selection, with its run at current prices. The same id means the same prompts."""
    renumbered = msgspec.structs.replace(evaluation, repetition=request.repetition, run_cost_usd=request.run_cost_usd)
    return Evaluated(renumbered, request.system_prompt, request.user_prompt, reused=True)


Call = Judgement | Reservation
"""A record of a call."""
Note = Callable[[Call], None]
"""Called with each record of a call, as soon as it is durable."""


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
    """Ask the questions of requests for a batch judge that have no answer yet. Raises StoppedError if the judge was cancelled.

    Batches of a killed process are continued, from the same journal.
    """
    batched = [request for request in requests if is_batched(request)]
    planned = journal.fingerprints()
    settle_interrupted_calls(store, now(), planned)
    with closing(store.cursor()) as cursor:
        reservations = query_records(cursor, "open_reservations", Reservation)
        reserved = {row.fingerprint: row.reservation_id for row in reservations if row.fingerprint in planned}
    recorder = CallRecorder(store)
    shared_caps = open_shared_caps(policy, store, now())

    async def publish(record: Call) -> None:
        await recorder.publish(record)
        note(record)

    fund = partial(batch_question, publish=publish, now=now, reservations=reserved, shared_caps=shared_caps)
    while questions := _collect_open_questions(store, policy, batched, fund):
        await ask_all(judge, questions, lambda: None)


def _collect_open_questions(
    store: Store,
    policy: Policy,
    requests: Sequence[EvaluationRequest],
    fund: Callable[[Question, JudgingTask], BatchQuestion],
) -> list[BatchQuestion]:
    """Return the questions that are still to be asked, each once.

    A batch takes a question once, so evaluations with the same question need another round.
    """
    recorded = judgement_reader(store)([EVALUATION.subject_of(request) for request in requests])
    questions: dict[str, BatchQuestion] = {}
    for request in requests:
        judging_task = judging_task_of(request, policy, recorded.get(EVALUATION.subject_of(request), ()))
        for question, reply in settled_questions(request, judging_task):
            if reply is None and question.fingerprint not in questions:
                questions[question.fingerprint] = fund(question, judging_task)
    return list(questions.values())
