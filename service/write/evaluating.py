"""Evaluating in this process: judges, engine and results; and estimates of requested evaluations.

1. Nothing is written before the judge is open.
2. Batches are sent before the requests are published. Otherwise a process that opens the database while a batch is in progress
   would judge its requests call by call.
3. Evaluating fails after some rounds of calls without an answer, instead of calling an unreachable judge for hours.
4. Recorded results are kept, however it ends. The next attempt continues from them and pays for nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from analytics.queries import query_records, query_rows
from audit.evaluation.report import LATER_ATTEMPT_FAILED, Evaluated
from audit.exchanges.questions import ANSWERED
from schemas.errors import DriftlineError, InputError, SettingsError
from schemas.records import Evaluation, EvaluationRequest
from service.setup.judge_setup import JUDGE_HINT, OpenedJudge, open_batches, open_judge
from service.setup.settings import Settings
from service.setup.wiring import embedded_runner
from service.setup.workspace import Workspace
from service.text.answers import Answer
from streams.engine.engine import Engine
from streams.evaluations import Estimate, Prepared, is_batched
from streams.judges.batch_plans import BatchJournal
from streams.judging.call_budget import StoppedError
from streams.judging.judged_stages import EVALUATION
from streams.judging.judging_partition import JudgeCalls
from streams.process import handled_in_loop

_UNAVAILABLE_OUTCOMES = ("provider_error", "timeout")
"""Outcomes of questions to a judge that is unreachable or refuses access."""
_MAX_FAILED_ROUNDS = 3
"""Rounds of concurrent calls that may fail before the judge counts as unresponsive."""
_PUBLISH_BATCH_SIZE = 50
"""Requests in one commit; each holds prompts of some hundred kilobytes."""
_POLL_SECONDS = 0.2
"""Seconds between checks of the progress."""
_MAX_NAMED_FAILURES = 5
"""Maximum number of failed evaluations in an error message."""


class JudgeUnresponsiveError(DriftlineError):
    """The judge no longer answers, so no further calls are made."""


class JudgeCircuitBreaker:
    """Counts consecutive failed calls.

    Without it, a thousand calls would time out at a dead judge one after another, for hours.
    """

    def __init__(self, calls_at_once: int) -> None:
        self._max_failed = _MAX_FAILED_ROUNDS * calls_at_once
        self._answered = 0
        self._failed_before_answer = 0

    def record(self, calls: Mapping[str, int]) -> None:
        """Record the outcomes of all calls so far. Raises JudgeUnresponsiveError if none of the latest was answered."""
        answered = calls.get(ANSWERED, 0)
        failed = sum(calls.get(outcome, 0) for outcome in _UNAVAILABLE_OUTCOMES)
        if answered != self._answered:
            self._answered = answered
            self._failed_before_answer = failed
        failed_since = failed - self._failed_before_answer
        if failed_since >= self._max_failed:
            raise JudgeUnresponsiveError(
                f"the judge answered none of its last {failed_since} questions",
                hint="`driftline doctor` shows its address. The same command continues from here; "
                "--retry-failed repeats the calls without an answer.",
            )


class EvaluationEstimate(Answer, frozen=True):
    """The estimate of evaluations, made without asking a judge."""

    evaluations: Annotated[int, Meta(description="Evaluations to make.")]
    reused: Annotated[int, Meta(description="Evaluations that exist already.")]
    taken_up: Annotated[int, Meta(description="Those of them that were requested before, and wait for the judge.")]
    left_over: Annotated[int, Meta(description="Other evaluations that were requested before, and wait for the judge.")]
    calls: Annotated[int, Meta(description="Questions to ask the judge.")]
    answered: Annotated[int, Meta(description="Questions that it has answered already, for this evaluation or another.")]
    not_asked: Annotated[
        int, Meta(description="Questions that are not asked: no answer is recorded, no price known, or no room left.")
    ]
    unpriced: Annotated[int, Meta(description="Calls without a known price; the sums leave them out.")]
    expected_usd: Annotated[float | None, Meta(description="null if nothing is known.")]
    at_most_usd: Annotated[float | None, Meta(description="If every answer had its maximum length.")]


class RequestedEvaluation(Answer, frozen=True):
    """A requested evaluation."""

    evaluation_id: Annotated[str, Meta(description="Its id: the same for the same run, case, judge and prompt.")] = field(
        name="id"
    )
    attempt: Annotated[
        int, Meta(description="The revision that its result will have; if it fails, an earlier finished one stays.")
    ]
    connection: str
    project: str
    session_id: str
    case_id: str
    judge_run_id: str
    repetition: Annotated[int, Meta(description="Number of the run among those of its model.")]
    reused: Annotated[bool, Meta(description="Whether the result exists already, so that no judge is asked.")]


class RequestedEvaluations(Answer, frozen=True):
    """The requested evaluations with their estimate."""

    sessions: int
    estimate: EvaluationEstimate
    evaluations: list[RequestedEvaluation]


def requested_evaluations(prepared: Prepared) -> RequestedEvaluations:
    """Return every prepared evaluation, in order, with their estimate."""
    reused = [_describe_requested(known.evaluation, known.evaluation.revision, reused=True) for known in prepared.reused]
    requested = [_describe_requested(request, request.attempt, reused=False) for request in prepared.to_evaluate]
    return RequestedEvaluations(
        sessions=prepared.sessions,
        estimate=evaluation_estimate(prepared.estimate),
        evaluations=sorted((*reused, *requested), key=lambda evaluation: prepared.order[evaluation.evaluation_id]),
    )


def evaluation_estimate(estimate: Estimate) -> EvaluationEstimate:
    """Return an estimate; costs are None without a known price."""
    values = dataclasses.asdict(estimate)
    if estimate.calls and estimate.unpriced == estimate.calls:
        values |= {"expected_usd": None, "at_most_usd": None}
    return EvaluationEstimate.of(values)


def _describe_requested(evaluation: Evaluation | EvaluationRequest, attempt: int, *, reused: bool) -> RequestedEvaluation:
    return RequestedEvaluation.of(msgspec.structs.asdict(evaluation), attempt=attempt, reused=reused)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of evaluations."""

    done: int
    total: int
    calls: Mapping[str, int]
    """Questions to the judge, by outcome."""
    spent_usd: float
    """Their cost, as far as prices are known."""

    @property
    def answered(self) -> int:
        """The number of answered questions."""
        return self.calls.get(ANSWERED, 0)

    @property
    def failed(self) -> int:
        """The number of failed questions."""
        return sum(self.calls.values()) - self.answered


Report = Callable[[Progress], None]


def catch_up(workspace: Workspace) -> None:
    """Run intake and diagnosis over the present records, so that sessions are complete; evaluation requests are not processed."""
    embedded_runner(workspace.settings, workspace.store, workspace.policy, workspace.redactor, workspace.now).catch_up()


def evaluate(workspace: Workspace, settings: Settings, prepared: Prepared, report: Report) -> list[Evaluated]:
    """Run the requested evaluations; return new and reused ones, in the order of `prepared`.

    Raises SettingsError if a judge is needed and none is configured, StoppedError if the process was asked to stop, StoreError
    if the database fails, and InputError for failed requests.
    """
    results = list(prepared.reused)
    if prepared.to_evaluate:
        results += asyncio.run(_EvaluationRun(workspace, settings, prepared, report).run())
    return sorted(results, key=lambda result: prepared.order[result.evaluation.evaluation_id])


def journal_of(database: Path) -> Path:
    """Return the journal of the batches that evaluations of a database wait for."""
    return database.with_name(f"{database.name}.evaluation-batches")


class _EvaluationRun:
    """One call of `evaluate`."""

    def __init__(self, workspace: Workspace, settings: Settings, prepared: Prepared, report: Report) -> None:
        self._workspace = workspace
        self._settings = settings
        self._prepared = prepared
        self._report = report
        self._requests = prepared.to_evaluate
        self._batched = JudgeCalls()
        self._stopping = asyncio.Event()
        self._unpublished = len(prepared.requests)
        self._last_reported: Progress | None = None
        self._circuit_breaker = JudgeCircuitBreaker(settings.judge_concurrency)

    async def run(self) -> list[Evaluated]:
        """Judge, and return the results."""
        with handled_in_loop(_stop_handler(self._stopping)):
            names = {request.judge_model for request in self._requests}
            opened = await open_judge(self._settings, self._workspace.policy, os.environ, names)
            expected = self._prepared.estimate
            if opened.judge is None and (expected.calls or expected.left_over):
                raise SettingsError("there is no judge", hint=JUDGE_HINT)
            try:
                if expected.calls and any(map(is_batched, self._requests)):
                    await self._ask_in_batches()
            except BaseException:
                if opened.judge is not None:
                    await opened.judge.aclose()
                raise
            await self._judge(opened)
        return _load_results(self._workspace, self._requests)

    async def _ask_in_batches(self) -> None:
        """Have batch judges answer their questions. Raises StoppedError on a stop, which cancels open batches."""
        # Imported late, because the API's client takes a second to load.
        from streams.evaluations import ask_in_batches  # noqa: PLC0415

        workspace = self._workspace
        journal = BatchJournal(journal_of(self._settings.database))
        judge = open_batches(workspace.policy, os.environ, journal)
        asking = ask_in_batches(
            workspace.store, workspace.policy, self._requests, judge, journal, now=workspace.now, note=self._batched.note
        )
        try:
            await self._watch(asking, None, judge.cancel)
        finally:
            await judge.aclose()

    async def _judge(self, opened: OpenedJudge) -> None:
        """Publish the requests and wait until the stage has judged them. Raises StoppedError on a stop."""
        workspace = self._workspace
        engine = Engine(
            workspace.store,
            workspace.policy,
            workspace.redactor,
            workspace.now,
            judge=opened.judge,
            judge_name=opened.name,
            stages=[EVALUATION],
        )
        await engine.start()
        try:
            await self._watch(self._publish(engine), engine, None)
        finally:
            await engine.stop(self._settings.judge_grace)

    async def _publish(self, engine: Engine) -> None:
        requests = self._prepared.requests
        for start in range(0, len(requests), _PUBLISH_BATCH_SIZE):
            await engine.publish(EVALUATION.source, requests[start : start + _PUBLISH_BATCH_SIZE])
            self._unpublished = max(0, self._unpublished - _PUBLISH_BATCH_SIZE)
        await engine.wait_until_drained()

    async def _watch(self, work: Coroutine[Any, Any, None], engine: Engine | None, end: Callable[[], None] | None) -> None:
        """Wait for the work and report its progress.

        On a stop, cancel the work, or raise StoppedError if it cannot be cancelled.
        """
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        waits: set[asyncio.Task[Any]] = {working, stopping}
        try:
            while not working.done():
                await asyncio.wait(waits, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                self._report_progress(engine)
                if stopping.done() and stopping in waits:
                    if end is None:
                        raise StoppedError
                    end()
                    waits.remove(stopping)
            working.result()
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def _report_progress(self, engine: Engine | None) -> None:
        """Report progress. Raises JudgeUnresponsiveError if the judge is unresponsive."""
        waiting = len(self._requests)
        calls = self._batched.outcomes
        spent = self._batched.spent_usd
        if engine is not None:
            state = engine.state()
            waiting = state.queues[EVALUATION.queue] + self._unpublished
            calls = dict(Counter(calls) + Counter(state.judge_calls))
            spent += state.spent_usd
        progress = Progress(max(0, len(self._requests) - waiting), len(self._requests), calls, spent)
        if progress != self._last_reported:
            self._last_reported = progress
            self._report(progress)
            if waiting:
                self._circuit_breaker.record(calls)


def _load_results(workspace: Workspace, requests: Sequence[EvaluationRequest]) -> list[Evaluated]:
    """Return the results of the requests, or an earlier finished evaluation for a failed request.

    Raises InputError if there is neither.
    """
    ids = {"evaluations": [request.evaluation_id for request in requests]}
    with contextlib.closing(workspace.store.cursor()) as cursor:
        rows = query_records(cursor, "evaluations_by_id", Evaluation, ids)
        evaluations = {evaluation.evaluation_id: evaluation for evaluation in rows}
        last_attempts = {row["evaluation_id"]: row["made"] for row in query_rows(cursor, "evaluation_attempts", ids)}
    results: list[Evaluated] = []
    missing: list[str] = []
    for request in requests:
        evaluation = evaluations.get(request.evaluation_id)
        if evaluation is None or last_attempts[request.evaluation_id] < request.attempt:
            missing.append(f"{request.case_id} on {request.session_id}")
            continue
        evaluation = numbered(evaluation, request.attempt, request.repetition)
        results.append(Evaluated(evaluation, request.system_prompt, request.user_prompt))
    if missing:
        raise failed_evaluations(missing, len(requests), "`driftline dead-letters list --stage evaluation`")
    return results


def failed_evaluations(missing: Sequence[str], total: int, reasons: str) -> InputError:
    """Return the error that names some failed evaluations and where to find the reasons."""
    more = ", …" if len(missing) > _MAX_NAMED_FAILURES else ""
    return InputError(
        f"{len(missing)} of {total} evaluations failed: {', '.join(missing[:_MAX_NAMED_FAILURES])}{more}",
        hint=f"{reasons} says why; the others are reused by the next call.",
    )


def numbered(evaluation: Evaluation, attempt: int, repetition: int) -> Evaluation:
    """Return the evaluation under the requested number, with a warning if it is an earlier one because the request failed."""
    warnings = evaluation.warnings
    if evaluation.revision < attempt:
        warnings = (*warnings, LATER_ATTEMPT_FAILED)
    return msgspec.structs.replace(evaluation, repetition=repetition, warnings=warnings)


def _stop_handler(stopping: asyncio.Event) -> Callable[[signal.Signals], None]:
    """Return a signal handler: the first signal sets the event, the second ends the process immediately."""

    def handle(_: signal.Signals) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    return handle
