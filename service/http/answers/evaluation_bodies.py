"""Bodies of evaluation requests: cases and a profile in their file format, and the runs to evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from audit.evaluation.cases import MAX_SYSTEM_PROMPT_BYTES, Case, Plan, Profile, plans, shipped_system_prompt
from audit.surrogates import json_bytes
from schemas.bounds import NAME
from service.setup.access.access import Holder
from service.web.authentication import require_project
from service.web.errors import ApiError, problems_in_words
from service.web.examples import EXAMPLES
from service.web.models import Id, Moment, OperatorBody, Text
from streams.evaluations.finished_sessions import Wanted

MAX_CASES = 100
MAX_SESSIONS = 1000
"""Sessions that one call can choose."""
MAX_EVALUATIONS = 1000
"""Maximum number of evaluations per call: each is in memory with its prompts until it is requested."""
Model = TypeVar("Model", bound=BaseModel)
_TAGS = frozenset({"union_tag_invalid", "union_tag_not_found"})


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

    def wanted(self, caller: Holder) -> Wanted:
        """Return the requested sessions that the caller may see; 403 for another project."""
        if self.project is not None:
            require_project(caller, self.project)
        return Wanted(
            sessions=self.sessions,
            tags=self.tags,
            project=self.project or caller.project,
            is_confined=caller.project is not None,
            since=self.since,
            limit=self.limit,
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """The cases and judges of an evaluation."""

    cases: Sequence[Case]
    plans: Sequence[Plan]
    system_prompt: str


def terms_of(body: EvaluateBody) -> Terms:
    """Return cases, plans and prompt of a body; ApiError (400) names the field of every problem."""
    cases = [_read(Case, value, "cases", index) for index, value in enumerate(body.cases)]
    profile = _read(Profile, body.profile, "profile")
    if profile.judge_system_prompt_path is not None:
        raise _refusal("profile.judge_system_prompt_path", "the server does not read your files; send the text as systemPrompt")
    return Terms(cases, _chosen(profile, body.judge_runs), _system_prompt(body.system_prompt))


def _chosen(profile: Profile, judge_runs: Sequence[str] | None) -> list[Plan]:
    every = {plan.judge_run_id: plan for plan in plans(profile)}
    for index, name in enumerate(judge_runs or ()):
        if name not in every:
            raise _refusal(f"judgeRuns[{index}]", f"the profile has no such judge run; its judge runs are {', '.join(every)}")
    found = [every[name] for name in dict.fromkeys(judge_runs or every)]
    for index, judge in enumerate(profile.judges):
        if judge.type == "batch" and any(plan.judge.judge_id == judge.judge_id for plan in found):
            words = "the server does not ask in batches, which take hours; choose live, or evaluate with the command over the database"
            raise _refusal(f"profile.judges[{index}].type", words)
    return found


def _system_prompt(text: str | None) -> str:
    if text is None:
        return shipped_system_prompt()
    if not text.strip():
        raise _refusal("systemPrompt", "is blank: without instructions the judge cannot answer")
    if len(text.encode()) > MAX_SYSTEM_PROMPT_BYTES:
        raise _refusal("systemPrompt", f"is larger than {MAX_SYSTEM_PROMPT_BYTES} bytes")
    return text


def _read(model: type[Model], value: Mapping[str, Any], *place: str | int) -> Model:
    """Return the model parsed from JSON text: only from text do strict models accept lists for tuples."""
    try:
        return model.model_validate_json(json_bytes(value))
    except ValidationError as error:
        problems = [{**one, "loc": (*place, *_own(one, value))} for one in error.errors(include_url=False)]
        raise ApiError(400, "invalid", problems_in_words(problems)) from None


def _own(problem: Mapping[str, Any], value: Any) -> tuple[str | int, ...]:
    """Return the path of a problem in the sender's body, without elements that pydantic adds for the chosen kind of a union."""
    *around, last = problem["loc"] or ("",)
    own: list[str | int] = []
    for element in around:
        if (isinstance(value, dict) and element in value) or (isinstance(value, list) and isinstance(element, int)):
            value = value[element]
            own.append(element)
    if problem["type"] in _TAGS:
        return (*own, last, problem["ctx"]["discriminator"].strip("'"))
    return tuple(own) if last in ("", "[key]") else (*own, last)


def _refusal(field: str, words: str) -> ApiError:
    return ApiError(400, "invalid", f"{field}: {words}")
