"""The policy file over HTTP: seen, tried, saved, taken back and put in force by admins of every project.

A text is tried before it is saved, and what it would change is said. A methodology file that a text names lies in the folder of the
policy: a token opens no other file of the server's machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from pydantic import Field

from audit.policy.policy import Policy, load_policy
from audit.policy.settings_files import MAX_FILE_BYTES
from schemas.errors import PolicyError
from service.http.auth.audit_trail import name_subject
from service.http.auth.authentication import FleetAdmin
from service.http.bounds import POLICY, POLICY_TRIAL
from service.http.context import ApiContext, Services
from service.http.documents.bodies import JsonRoute
from service.http.documents.models import ConnectionName, OperatorBody
from service.http.documents.response_models import Answer
from service.http.errors import ApiError, documented
from service.known_projects import known_projects, named_projects
from service.policies.changes import Change, changes, effective
from service.policies.effect import DAYS, Effect, effects
from service.policies.policy_file import PolicyFile, Problem, ReadOnlyError, StaleError, check, compared, fingerprint

router = APIRouter(route_class=JsonRoute, tags=["policy"])
WRITES = (400, 408, 413, 415)
Text = Annotated[str, Field(max_length=MAX_FILE_BYTES, description="The policy as YAML.", examples=["version: 1\n"])]
Base = Annotated[
    str,
    Field(
        pattern="^[0-9a-f]{64}$",
        description="`fingerprint` of the text that was changed: 409 if the file has another one meanwhile.",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ),
]


class PolicyAnswer(Answer):
    """The policy file, and whether the server judges by it."""

    path: str | None = Field(description="null: the server has no policy file.", examples=["policy.yaml"])
    text: str
    fingerprint: str = Field(description="SHA-256 of the text.")
    read_only_because: str | None = Field(description="null: it can be saved.")
    has_previous: bool = Field(description="Whether the text before the last save can be taken back.")
    in_force: bool = Field(description="Whether the server judges by this text; if not, it does from its next start.")
    problems: list[ProblemAnswer] = Field(description="What keeps the server from starting with this text.")


class ProblemAnswer(Answer):
    """A problem of a text."""

    line: int | None = Field(examples=[4])
    problem: str = Field(examples=["defaults.sampling.routineIntervall: unknown field; did you mean routineInterval?"])


class ChangeAnswer(Answer):
    """A setting that would be another one."""

    setting: str = Field(examples=["sampling.routineInterval"])
    before: Any = Field(examples=[3])
    after: Any = Field(examples=[5])
    projects: list[str] = Field(description='Of projects; "" stands for all that are not named, "*" for the whole server.')


class EffectAnswer(Answer):
    """A rough estimate for a project, from its exchanges of the last days."""

    project: str
    exchanges: int
    judged_before: float = Field(description="Share of the exchanges.")
    judged_after: float
    usd_per_month_before: float | None = Field(description="null: the price or the use is unknown.")
    usd_per_month_after: float | None


class TrialAnswer(Answer):
    """The result of a trial; nothing was saved."""

    valid: bool
    problems: list[ProblemAnswer]
    comparison: list[str] = Field(description="Lines of a unified diff against the file.")
    changes: list[ChangeAnswer] = Field(description="Against the file, by setting.")
    effects: list[EffectAnswer] = Field(description=f"From the last {DAYS} days.")


class SavedAnswer(Answer):
    """The file after a change."""

    fingerprint: str
    changes: list[ChangeAnswer]
    in_force: bool


class EffectiveAnswer(Answer):
    """The settings in force for a project."""

    project: str | None
    digest: str = Field(description="As in every score.")
    settings: dict[str, Any] = Field(examples=[{"sampling.routineInterval": 3}])


class AppliedAnswer(Answer):
    """The server starts again."""

    restarting: bool


class TrialBody(OperatorBody):
    """A text to try."""

    text: Text


class SaveBody(OperatorBody):
    """A text to save."""

    text: Text
    base: Base


class RestoreBody(OperatorBody):
    """The text to replace by the one before it."""

    base: Base


class Standing(NamedTuple):
    """The file as it stands: its text, and the policy that it is, or its problems."""

    text: str
    policy: Policy | None
    problems: Sequence[Problem]


def policy_file(services: ApiContext) -> PolicyFile:
    """Return the policy file of the server."""
    return PolicyFile(services.settings.policy_file)


def standing(file: PolicyFile) -> Standing:
    """Return the text of the file. Its owner may name methodologies anywhere."""
    try:
        text = file.text()
        return Standing(text, load_policy(file.place, text.encode()), ())
    except PolicyError as error:
        return Standing("", None, [Problem(None, str(error))])


def is_in_force(services: ApiContext, policy: Policy | None) -> bool:
    """Tell whether the server judges by a policy."""
    return policy is not None and not changes(services.engine.policy, policy)


async def tried(services: ApiContext, text: str) -> TrialAnswer:
    """Say what a text would do in place of the file."""
    file = policy_file(services)
    now = await asyncio.to_thread(standing, file)
    found = await asyncio.to_thread(check, file, text, _known(services, now.policy))
    comparison = compared(now.text, text)
    if isinstance(found, list):
        return TrialAnswer(valid=False, problems=list(map(_problem, found)), comparison=comparison, changes=[], effects=[])
    before = now.policy or services.engine.policy
    differences = await asyncio.to_thread(changes, before, found)

    def estimated(cursor: Any) -> list[Effect]:
        projects = known_projects(cursor, named_projects(before, services.access))
        return effects(cursor, before, found, found=differences, projects=projects, now=services.engine.now())

    return TrialAnswer(
        valid=True,
        problems=[],
        comparison=comparison,
        changes=list(map(_change, differences)),
        effects=[_effect(one) for one in await services.ask(estimated)],
    )


@router.get(POLICY, responses=documented(400))
def policy(_: FleetAdmin, services: Services) -> PolicyAnswer:
    """Return the policy file, and whether it can be saved and is in force."""
    file = policy_file(services)
    now = standing(file)
    return PolicyAnswer(
        path=None if file.path is None else str(file.path),
        text=now.text,
        fingerprint=fingerprint(now.text),
        read_only_because=file.why_read_only() or None,
        has_previous=file.previous() is not None,
        in_force=is_in_force(services, now.policy),
        problems=list(map(_problem, now.problems)),
    )


@router.get(f"{POLICY}/effective", responses=documented(400))
def effective_policy(
    _: FleetAdmin,
    services: Services,
    project: Annotated[
        ConnectionName | None, Query(description="A project; by default what holds for all that are not named.")
    ] = None,
) -> EffectiveAnswer:
    """Return the settings that the server judges a project by, defaults included."""
    running = services.engine.policy
    return EffectiveAnswer(
        project=project, digest=running.for_project(project or "").digest, settings=effective(running, project or "")
    )


@router.post(POLICY_TRIAL, responses=documented(*WRITES))
async def try_policy(_: FleetAdmin, services: Services, body: TrialBody) -> TrialAnswer:
    """Check a text, compare it with the file, and estimate its effect. Nothing is saved."""
    return await tried(services, body.text)


@router.put(POLICY, responses=documented(*WRITES, 409))
async def save_policy(_: FleetAdmin, services: Services, request: Request, body: SaveBody) -> SavedAnswer:
    """Save a text that can be used; the one before is kept beside it. It is in force from the next start of the server on."""
    return await _saved(services, request, body.text, body.base)


@router.post(f"{POLICY}/restore", responses=documented(*WRITES, 409))
async def restore_policy(_: FleetAdmin, services: Services, request: Request, body: RestoreBody) -> SavedAnswer:
    """Take back the text before the last save; the present one is then the one before."""
    before = await asyncio.to_thread(policy_file(services).previous)
    if before is None:
        raise ApiError(409, "conflict", "there is no policy from before to take back")
    return await _saved(services, request, before, body.base)


@router.post(f"{POLICY}/apply", status_code=202, responses=documented(*WRITES, 409))
async def apply_policy(_: FleetAdmin, services: Services) -> AppliedAnswer:
    """Start the server again in its process, with the policy of the file. Calls wait meanwhile; open calls to the judge end first.

    Workers on Kafka read a policy file of their own at their start.
    """
    now = await asyncio.to_thread(standing, policy_file(services))
    if now.policy is None:
        raise ApiError(409, "invalid_policy", f"the policy cannot be used: {now.problems[0].words}")
    if services.restart is None:
        raise ApiError(409, "conflict", "this server cannot start itself again; restart it by hand")
    services.restart()
    return AppliedAnswer(restarting=True)


async def _saved(services: ApiContext, request: Request, text: str, base: str) -> SavedAnswer:
    file = policy_file(services)
    now = await asyncio.to_thread(standing, file)
    found = await asyncio.to_thread(check, file, text, _known(services, now.policy))
    if isinstance(found, list):
        raise ApiError(400, "invalid_policy", "; ".join(_in_words(one) for one in found))
    try:
        await asyncio.to_thread(file.save, text, base)
    except StaleError as error:
        raise ApiError(409, "conflict", f"{error}. {error.hint}") from None
    except ReadOnlyError as error:
        raise ApiError(409, "read_only", f"{error} {error.hint}") from None
    differences = changes(now.policy or services.engine.policy, found)
    name_subject(request, ", ".join(one.setting for one in differences) or "no setting")
    return SavedAnswer(
        fingerprint=fingerprint(text), changes=list(map(_change, differences)), in_force=is_in_force(services, found)
    )


def _known(services: ApiContext, standing_policy: Policy | None) -> frozenset[str]:
    """The methodology files that are named already, wherever they lie."""
    present = frozenset() if standing_policy is None else standing_policy.methodology_files
    return present | services.engine.policy.methodology_files


def _problem(one: Problem) -> ProblemAnswer:
    return ProblemAnswer(line=one.line, problem=one.words)


def _in_words(one: Problem) -> str:
    return one.words if one.line is None else f"line {one.line}: {one.words}"


def _change(one: Change) -> ChangeAnswer:
    return ChangeAnswer(setting=one.setting, before=one.before, after=one.after, projects=list(one.projects))


def _effect(one: Effect) -> EffectAnswer:
    return EffectAnswer(
        project=one.project,
        exchanges=one.exchanges,
        judged_before=one.judged_before,
        judged_after=one.judged_after,
        usd_per_month_before=one.month_before,
        usd_per_month_after=one.month_after,
    )
