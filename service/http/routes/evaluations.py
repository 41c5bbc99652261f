"""Evaluations over HTTP: evaluate runs against cases, and read the results. Cases and profiles have the format of their files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from analytics.queries import query_rows
from audit.evaluation.cases import MAX_SYSTEM_PROMPT_BYTES, Case, Plan, Profile, plans, shipped_system_prompt
from audit.surrogates import json_bytes
from schemas.bounds import NAME
from schemas.errors import SettingsError
from service.read.evaluations import Evaluations, OneEvaluation, evaluation_page, evaluation_state
from service.setup.access import Holder
from service.setup.judge_setup import LIVE, check_judges_configured
from service.text.answers import Place, after, page_of
from service.text.links import EVALUATIONS
from service.web.authentication import Admin, Reader, VisibleProject, require_project
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented, problems_in_words
from service.web.json_routes import JsonRoute
from service.web.middleware import set_subject
from service.web.models import EXAMPLES, Cursor, Id, Limit, Moment, OperatorBody, Text
from service.write.evaluating import RequestedEvaluations, requested_evaluations
from streams.evaluations import Prepared, prepare
from streams.finished_sessions import FinishedSession, SessionSelection, finished_sessions
from streams.judging.judged_stages import EVALUATION

MAX_CASES = 100
MAX_SESSIONS = 1000
"""Maximum number of sessions per call."""
MAX_EVALUATIONS = 1000
"""Maximum number of evaluations per call: each is in memory with its prompts until it is requested."""
Model = TypeVar("Model", bound=BaseModel)
_PUBLISH_BATCH_SIZE = 50
"""Requests in one commit. Each holds prompts of some hundred kilobytes."""
PREREQUISITE_TOPICS = ("exchanges", "agent-events", "judgements", EVALUATION.sink, EVALUATION.source)
"""Topics with the ends of sessions and earlier judgements.

Their records must be in the tables first, because a judgement that is missed would be paid for again.
"""
DIAGNOSIS_WAIT_SECONDS = 5.0
"""Seconds to wait for the diagnosis of a session that has just ended; later it is evaluated without one."""
_POLL_SECONDS = 0.1
"""Seconds between checks for diagnoses."""
_UNION_TAG_ERRORS = frozenset({"union_tag_invalid", "union_tag_not_found"})


class EvaluateBody(OperatorBody):
    """The finished sessions, the cases to evaluate them against, and the judges."""

    cases: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_CASES)] = Field(
        description="Test cases, each as its file holds it: docs/schemas/case.schema.json.", examples=[[EXAMPLES["case"]]]
    )
    profile: dict[str, Any] = Field(
        description="A profile, as its file holds it: docs/schemas/profile.schema.json. It names no file, and no batch judge.",
        examples=[EXAMPLES["profile"]],
    )
    system_prompt: Text | None = Field(
        None, alias="systemPrompt", description="Replaces the shipped system prompt; 64 KiB at most."
    )
    judge_runs: list[Id] | None = Field(
        None, alias="judgeRuns", min_length=1, max_length=20, description="Only these judge runs of the profile."
    )
    sessions: list[Annotated[str, StringConstraints(min_length=1, max_length=600)]] = Field(
        default=[], max_length=MAX_SESSIONS, description="These finished sessions, by id or connection/id."
    )
    tags: list[Id] = Field(default=[], max_length=100, description="Only sessions with one of these tags.")
    project: Annotated[str, StringConstraints(pattern=f"^{NAME}$")] | None = Field(
        None, description="Only sessions of this project; every project of the token by default."
    )
    since: Moment | None = Field(None, description="Only sessions that ended at this time or later.")
    limit: Annotated[int, Field(ge=1, le=MAX_SESSIONS)] = Field(100, description="Maximum number of sessions, newest first.")
    retry_failed: bool = Field(False, alias="retryFailed", description="Also ask again if an answer of the judge failed.")
    dry_run: bool = Field(False, alias="dryRun", description="Only estimate; no judge is asked.")

    def select_sessions(self, caller: Holder) -> SessionSelection:
        """Return the requested sessions that the caller may see; 403 for another project."""
        if self.project is not None:
            require_project(caller, self.project)
        return SessionSelection(
            sessions=self.sessions,
            tags=self.tags,
            project=self.project or caller.project,
            is_confined=caller.project is not None,
            since=self.since,
            limit=self.limit,
        )


@dataclass(frozen=True, slots=True)
class EvaluationSetup:
    """The cases, judge runs and system prompt of evaluations."""

    cases: Sequence[Case]
    plans: Sequence[Plan]
    system_prompt: str


def setup_of(body: EvaluateBody) -> EvaluationSetup:
    """Return the cases, judge runs and prompt of a body. Raises ApiError (400) with the fields of all problems."""
    cases = [_parse_model(Case, value, "cases", index) for index, value in enumerate(body.cases)]
    profile = _parse_model(Profile, body.profile, "profile")
    if profile.judge_system_prompt_path is not None:
        raise _build_refusal(
            "profile.judge_system_prompt_path", "the server does not read your files; send the text as systemPrompt"
        )
    return EvaluationSetup(cases, _choose_plans(profile, body.judge_runs), _read_system_prompt(body.system_prompt))


def _choose_plans(profile: Profile, judge_runs: Sequence[str] | None) -> list[Plan]:
    plans_by_id = {plan.judge_run_id: plan for plan in plans(profile)}
    for index, name in enumerate(judge_runs or ()):
        if name not in plans_by_id:
            raise _build_refusal(
                f"judgeRuns[{index}]", f"the profile has no such judge run; its judge runs are {', '.join(plans_by_id)}"
            )
    chosen = [plans_by_id[name] for name in dict.fromkeys(judge_runs or plans_by_id)]
    for index, judge in enumerate(profile.judges):
        if judge.type == "batch" and any(plan.judge.judge_id == judge.judge_id for plan in chosen):
            message = "the server does not ask in batches, which take hours; choose live, or evaluate with the command over the database"
            raise _build_refusal(f"profile.judges[{index}].type", message)
    return chosen


def _read_system_prompt(text: str | None) -> str:
    if text is None:
        return shipped_system_prompt()
    if not text.strip():
        raise _build_refusal("systemPrompt", "is blank: without instructions the judge cannot answer")
    if len(text.encode()) > MAX_SYSTEM_PROMPT_BYTES:
        raise _build_refusal("systemPrompt", f"is larger than {MAX_SYSTEM_PROMPT_BYTES} bytes")
    return text


def _parse_model(model: type[Model], value: Mapping[str, Any], *path: str | int) -> Model:
    """Parse a model. It is parsed from text, because strict models accept lists for tuples only there."""
    try:
        return model.model_validate_json(json_bytes(value))
    except ValidationError as error:
        problems = [{**problem, "loc": (*path, *_sender_path(problem, value))} for problem in error.errors(include_url=False)]
        raise ApiError(400, "invalid", problems_in_words(problems)) from None


def _sender_path(problem: Mapping[str, Any], value: Any) -> tuple[str | int, ...]:
    """Return the path of a problem in the sender's body, without elements that pydantic adds for the chosen kind of a union."""
    *around, last = problem["loc"] or ("",)
    elements: list[str | int] = []
    for element in around:
        if (isinstance(value, dict) and element in value) or (isinstance(value, list) and isinstance(element, int)):
            value = value[element]
            elements.append(element)
    if problem["type"] in _UNION_TAG_ERRORS:
        return (*elements, last, problem["ctx"]["discriminator"].strip("'"))
    return tuple(elements) if last in ("", "[key]") else (*elements, last)


def _build_refusal(field: str, message: str) -> ApiError:
    return ApiError(400, "invalid", f"{field}: {message}")


router = APIRouter(route_class=JsonRoute, tags=["evaluations"])
EvaluationId = Annotated[Id, Path(description="Id of the evaluation.")]
IdFilter = Annotated[Id | None, Query()]


@router.post(EVALUATIONS, status_code=202, responses=documented(408, 409, 413, 415))
async def evaluate(
    caller: Admin, services: Services, body: EvaluateBody, request: Request, response: Response
) -> RequestedEvaluations:
    """Evaluate finished sessions against cases, in the background. 409 if a judge is needed and none is configured.

    Earlier evaluations are reused. With dryRun (200) the answer is only an estimate. Batch judges are refused, because a call would
    wait for hours.
    """
    setup = await anyio.to_thread.run_sync(setup_of, body)
    selection = body.select_sessions(caller)
    set_subject(request, ", ".join(case.case_id for case in setup.cases))
    # One request at a time, so that the second of two equal requests finds the evaluations of the first.
    async with services.evaluating:
        prepared = await _prepare_evaluations(services, setup, selection, retry_failed=body.retry_failed)
        if prepared.estimate.calls or prepared.estimate.not_asked:
            _require_configured_judges(services, setup)
        if body.dry_run:
            response.status_code = 200
        elif prepared.estimate.calls and not services.engine.has_judge:
            raise ApiError(409, "no_judge", "this server has no judge; recorded and reused answers need none")
        else:
            with durable_or_refused():
                for start in range(0, len(prepared.requests), _PUBLISH_BATCH_SIZE):
                    await services.engine.publish(EVALUATION.source, prepared.requests[start : start + _PUBLISH_BATCH_SIZE])
            # A caller may read an evaluation as soon as it has the id.
            await services.engine.wait_for_tables(EVALUATION.source)
    return requested_evaluations(prepared)


@router.get("/api/audit/{project}/evaluations", responses=documented(404))
async def evaluations(
    _: Reader,
    project: VisibleProject,
    services: Services,
    *,
    case: IdFilter = None,
    model: IdFilter = None,
    session: IdFilter = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Evaluations:
    """List the evaluations of a project, most recently judged first; `model` is the model of the audited agent."""
    entries = await services.ask(
        lambda connection: evaluation_page(
            connection, project, case=case, model=model, session=session, before=after(cursor), limit=limit + 1
        )
    )
    page, next_cursor = page_of(entries, limit, lambda entry: Place(entry.evaluated_at, entry.evaluation_id))
    return Evaluations(evaluations=page, count=len(page), next_cursor=next_cursor)


@router.get(f"{EVALUATIONS}/{{evaluation_id}}", responses=documented(404))
async def evaluation(caller: Reader, services: Services, evaluation_id: EvaluationId, response: Response) -> OneEvaluation:
    """Return one evaluation: its result, every answer of the judge, and the messages to it."""
    state = await services.ask(lambda cursor: evaluation_state(cursor, evaluation_id))
    if state is None or (caller.project is not None and caller.project != state.project):
        raise ApiError(404, "not_found", "there is no evaluation with this id")
    # The prompt quotes agents' conversations, so no cache may store it.
    response.headers["Cache-Control"] = "no-store"
    return state.answer


async def _prepare_evaluations(
    services: ApiContext, setup: EvaluationSetup, selection: SessionSelection, *, retry_failed: bool
) -> Prepared:
    """Return the evaluations to run. Raises ApiError (400) if no session matches, or if there are too many evaluations."""
    for topic in PREREQUISITE_TOPICS:
        await services.engine.wait_for_tables(topic)
    sessions = await services.ask(lambda cursor: finished_sessions(cursor, selection))
    _check_number(sessions, setup)
    await _wait_for_diagnoses(services, sessions)
    return await anyio.to_thread.run_sync(
        partial(
            prepare,
            services.engine.store,
            services.engine.policy,
            setup.cases,
            setup.plans,
            setup.system_prompt,
            selection,
            services.engine.now(),
            retry_failed=retry_failed,
            takes_simulated=services.engine.judge_name != LIVE,
        )
    )


def _require_configured_judges(services: ApiContext, setup: EvaluationSetup) -> None:
    """Raise ApiError (400) if a judge of another provider has no address, because it could never be called."""
    try:
        check_judges_configured(setup.plans, services.engine.policy, "")
    except SettingsError as error:
        raise ApiError(400, "invalid", f"profile.judges: {error}. {error.hint}") from None


def _check_number(sessions: Sequence[FinishedSession], setup: EvaluationSetup) -> None:
    if not sessions:
        raise ApiError(400, "invalid", "sessions: no finished session matches")
    number = len(sessions) * len(setup.cases) * len(setup.plans)
    if number > MAX_EVALUATIONS:
        message = (
            f"{len(sessions)} sessions by {len(setup.cases)} cases and {len(setup.plans)} judge runs are {number} evaluations"
        )
        raise ApiError(400, "invalid", f"limit: {message}; at most {MAX_EVALUATIONS} can be requested at once")


async def _wait_for_diagnoses(services: ApiContext, sessions: Sequence[FinishedSession]) -> None:
    """Wait up to DIAGNOSIS_WAIT_SECONDS for the diagnoses of the sessions, which checks and prompts use."""
    params: dict[str, Any] = {
        "sessions": [{"connection": session.connection, "session_id": session.session_id} for session in sessions]
    }
    for _ in range(int(DIAGNOSIS_WAIT_SECONDS / _POLL_SECONDS)):
        if not await services.ask(lambda cursor: query_rows(cursor, "undiagnosed_sessions", params)):
            return
        await asyncio.sleep(_POLL_SECONDS)
