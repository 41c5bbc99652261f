"""The policy file over HTTP: admins of every project can read, try, save, restore and apply it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from service.text.links import POLICY, POLICY_TRIAL
from service.web.authentication import FleetAdmin
from service.web.context import ApiContext, Services
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.middleware import set_subject
from service.web.models import ConnectionName, OperatorBody
from service.web.policy import (
    Text,
    TrialBody,
    is_in_force,
    known_files,
    policy_file,
    read_current,
    try_text,
)
from service.write.policy_file import (
    AppliedPolicy,
    EffectivePolicy,
    PolicyProblem,
    PolicyTrial,
    ReadOnlyError,
    SavedPolicy,
    StaleError,
    StoredPolicy,
    check_text,
    compare_policies,
    fingerprint,
    settings_in_force,
)

router = APIRouter(route_class=JsonRoute, tags=["policy"])
WRITES = (400, 408, 413, 415)
Base = Annotated[
    str,
    Field(
        pattern="^[0-9a-f]{64}$",
        description="`fingerprint` of the text on which the change is based. 409 if the file has changed since then.",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ),
]


class SaveBody(OperatorBody):
    """A text to save."""

    text: Text
    base: Base


class RestoreBody(OperatorBody):
    """The text to replace by the previous one."""

    base: Base


@router.get(POLICY, responses=documented(400))
def policy(_: FleetAdmin, services: Services) -> StoredPolicy:
    """Return the policy file, and whether it can be saved and is in force."""
    file = policy_file(services)
    current = read_current(file)
    return StoredPolicy(
        path=None if file.path is None else str(file.path),
        text=current.text,
        fingerprint=fingerprint(current.text),
        read_only_because=file.why_read_only() or None,
        has_previous=file.previous() is not None,
        in_force=is_in_force(services, current.policy),
        problems=list(current.problems),
    )


@router.get(f"{POLICY}/effective", responses=documented(400))
def effective_policy(
    _: FleetAdmin,
    services: Services,
    project: Annotated[
        ConnectionName | None,
        Query(description="A project. By default, the settings of all projects that the policy does not name."),
    ] = None,
) -> EffectivePolicy:
    """Return the settings in force for a project, including defaults."""
    running = services.engine.policy
    return EffectivePolicy(
        project=project, digest=running.for_project(project or "").digest, settings=settings_in_force(running, project or "")
    )


@router.post(POLICY_TRIAL, responses=documented(*WRITES))
async def try_policy(_: FleetAdmin, services: Services, body: TrialBody) -> PolicyTrial:
    """Check a text, compare it with the file, and estimate its effect. Nothing is saved."""
    return await try_text(services, body.text)


@router.put(POLICY, responses=documented(*WRITES, 409))
async def save_policy(_: FleetAdmin, services: Services, request: Request, body: SaveBody) -> SavedPolicy:
    """Save a valid text and keep the previous one beside it. It is in force from the server's next start."""
    return await _save_text(services, request, body.text, body.base)


@router.post(f"{POLICY}/restore", responses=documented(*WRITES, 409))
async def restore_policy(_: FleetAdmin, services: Services, request: Request, body: RestoreBody) -> SavedPolicy:
    """Restore the text from before the last save. The present text becomes the previous one."""
    previous = await asyncio.to_thread(policy_file(services).previous)
    if previous is None:
        raise ApiError(409, "conflict", "there is no earlier policy to restore")
    return await _save_text(services, request, previous, body.base)


@router.post(f"{POLICY}/apply", status_code=202, responses=documented(*WRITES, 409))
async def apply_policy(_: FleetAdmin, services: Services) -> AppliedPolicy:
    """Restart the server in its process, with the policy from the file.

    Open calls to the judge are completed first, and requests wait until the restart is done.

    Workers on Kafka read their own policy file when they start.
    """
    current = await asyncio.to_thread(read_current, policy_file(services))
    if current.policy is None:
        raise ApiError(409, "invalid_policy", f"the policy is not valid: {current.problems[0].problem}")
    if services.restart is None:
        raise ApiError(409, "conflict", "this server cannot restart itself; restart it manually")
    services.restart()
    return AppliedPolicy(restarting=True)


async def _save_text(services: ApiContext, request: Request, text: str, base: str) -> SavedPolicy:
    file = policy_file(services)
    current = await asyncio.to_thread(read_current, file)
    policy = await asyncio.to_thread(check_text, file, text, known_files(services, current.policy))
    if isinstance(policy, list):
        raise ApiError(400, "invalid_policy", "; ".join(map(_format_problem, policy)))
    try:
        await asyncio.to_thread(file.save, text, base)
    except StaleError as error:
        raise ApiError(409, "conflict", f"{error}. {error.hint}") from None
    except ReadOnlyError as error:
        raise ApiError(409, "read_only", f"{error} {error.hint}") from None
    differences = compare_policies(current.policy or services.engine.policy, policy)
    set_subject(request, ", ".join(change.setting for change in differences) or "no setting")
    return SavedPolicy(fingerprint=fingerprint(text), changes=differences, in_force=is_in_force(services, policy))


def _format_problem(problem: PolicyProblem) -> str:
    return problem.problem if problem.line is None else f"line {problem.line}: {problem.problem}"
