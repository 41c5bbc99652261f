"""Evaluations over HTTP: evaluate runs against cases, and read the results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request, Response

from analytics.queries import query_rows
from schemas.errors import SettingsError
from service.http.answers.evaluation_bodies import MAX_EVALUATIONS, EvaluateBody, Terms, terms_of
from service.read.evaluations import Evaluations, OneEvaluation, evaluation_page, evaluation_state
from service.setup.judge_setup import LIVE, refuse_unconfigured
from service.text.answers import Place, after, page_of
from service.text.links import EVALUATIONS
from service.web.audit_trail import name_subject
from service.web.authentication import Admin, Reader, VisibleProject
from service.web.bodies import JsonRoute
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.models import Id
from service.web.parameters import Cursor, Limit
from service.write.evaluating import RequestedEvaluations, requested_evaluations
from streams.evaluations.finished_sessions import FinishedSession, Wanted, finished_sessions
from streams.evaluations.preparing import Prepared, prepare
from streams.judging.judged_stages import EVALUATION

router = APIRouter(route_class=JsonRoute, tags=["evaluations"])
AT_ONCE = 50
"""Requests that are published together; each holds prompts of some hundred kilobytes."""
READ_FIRST = ("exchanges", "agent-events", "judgements", EVALUATION.sink, EVALUATION.source)
"""Topics with the ends of sessions and earlier judgements. They are read first, because a missed judgement would be paid for again."""
DIAGNOSED_SECONDS = 5.0
"""Seconds to wait for the diagnosis of a session that has just ended; later it is evaluated without one."""
_LOOK = 0.1
EvaluationId = Annotated[Id, Path(description="Id of the evaluation.")]
Of = Annotated[Id | None, Query()]


@router.post(EVALUATIONS, status_code=202, responses=documented(408, 409, 413, 415))
async def evaluate(
    caller: Admin, services: Services, body: EvaluateBody, request: Request, response: Response
) -> RequestedEvaluations:
    """Evaluate finished sessions against cases, in the background. 409 if a judge is needed and there is none.

    Earlier evaluations are reused. With dryRun (200) the answer is only an estimate. Batch judges are refused, because a call would
    wait for hours.
    """
    terms = await anyio.to_thread.run_sync(terms_of, body)
    wanted = body.wanted(caller)
    name_subject(request, ", ".join(case.case_id for case in terms.cases))
    # One request at a time, so that the second of two equal requests finds the evaluations of the first.
    async with services.evaluating:
        prepared = await _prepared(services, terms, wanted, retry_failed=body.retry_failed)
        if prepared.estimate.calls or prepared.estimate.not_asked:
            _refuse_unconfigured(services, terms)
        if body.dry_run:
            response.status_code = 200
        elif prepared.estimate.calls and not services.engine.has_judge:
            raise ApiError(409, "no_judge", "this server has no judge; recorded and reused answers need none")
        else:
            with durable_or_refused():
                for start in range(0, len(prepared.requests), AT_ONCE):
                    await services.engine.publish(EVALUATION.source, prepared.requests[start : start + AT_ONCE])
            # A caller may read an evaluation as soon as it has the id.
            await services.engine.wait_for_tables(EVALUATION.source)
    return requested_evaluations(prepared)


@router.get("/api/audit/{project}/evaluations", responses=documented(404))
async def evaluations(
    _: Reader,
    project: VisibleProject,
    services: Services,
    *,
    case: Of = None,
    model: Of = None,
    session: Of = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Evaluations:
    """List the evaluations of a project, the one judged last first; `model` is that of the audited agent."""
    found = await services.ask(
        lambda reading: evaluation_page(
            reading, project, case=case, model=model, session=session, before=after(cursor), limit=limit + 1
        )
    )
    shown, following = page_of(found, limit, lambda run: Place(run.evaluated_at, run.evaluation_id))
    return Evaluations(evaluations=shown, count=len(shown), next_cursor=following)


@router.get(f"{EVALUATIONS}/{{evaluation_id}}", responses=documented(404))
async def evaluation(caller: Reader, services: Services, evaluation_id: EvaluationId, response: Response) -> OneEvaluation:
    """Return one evaluation: its result, every answer of the judge, and the messages to it."""
    found = await services.ask(lambda cursor: evaluation_state(cursor, evaluation_id))
    if found is None or (caller.project is not None and caller.project != found.project):
        raise ApiError(404, "not_found", "there is no evaluation with this id")
    # The prompt quotes agents' conversations, so no cache may store it.
    response.headers["Cache-Control"] = "no-store"
    return found.answer


async def _prepared(services: ApiContext, terms: Terms, wanted: Wanted, *, retry_failed: bool) -> Prepared:
    """Return the evaluations to run; 400 for sessions that cannot be evaluated, and for too many at once."""
    for topic in READ_FIRST:
        await services.engine.wait_for_tables(topic)
    sessions = await services.ask(lambda cursor: finished_sessions(cursor, wanted))
    _check_number(sessions, terms)
    await _diagnosed(services, sessions)
    return await anyio.to_thread.run_sync(
        partial(
            prepare,
            services.engine.store,
            services.engine.policy,
            terms.cases,
            terms.plans,
            terms.system_prompt,
            wanted,
            services.engine.now(),
            retry_failed=retry_failed,
            takes_simulated=services.engine.judge_name != LIVE,
        )
    )


def _refuse_unconfigured(services: ApiContext, terms: Terms) -> None:
    """Refuse with 400 another provider's judge that has no address, because it could never be called."""
    try:
        refuse_unconfigured(terms.plans, services.engine.policy, "")
    except SettingsError as error:
        raise ApiError(400, "invalid", f"profile.judges: {error}. {error.hint}") from None


def _check_number(sessions: Sequence[FinishedSession], terms: Terms) -> None:
    if not sessions:
        raise ApiError(400, "invalid", "sessions: no finished session matches")
    number = len(sessions) * len(terms.cases) * len(terms.plans)
    if number > MAX_EVALUATIONS:
        words = (
            f"{len(sessions)} sessions by {len(terms.cases)} cases and {len(terms.plans)} judge runs are {number} evaluations"
        )
        raise ApiError(400, "invalid", f"limit: {words}; {MAX_EVALUATIONS} can be asked for at once")


async def _diagnosed(services: ApiContext, sessions: Sequence[FinishedSession]) -> None:
    """Wait a while for the sessions' diagnoses, which checks and the subject view use."""
    asked: dict[str, Any] = {"sessions": [{"connection": one.connection, "session_id": one.session_id} for one in sessions]}
    for _ in range(int(DIAGNOSED_SECONDS / _LOOK)):
        if not await services.ask(lambda cursor: query_rows(cursor, "undiagnosed_sessions", asked)):
            return
        await asyncio.sleep(_LOOK)
