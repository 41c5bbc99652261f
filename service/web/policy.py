"""The policy file of a server, and the effect of another text in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from audit.policy import Policy, load_policy
from audit.settings_files import MAX_FILE_BYTES
from schemas.errors import PolicyError
from service.read.known_projects import known_projects, named_projects
from service.web.context import ApiContext
from service.web.models import OperatorBody
from service.write.policies import PolicyEffect, PolicyFile, PolicyProblem, PolicyTrial, changes, check, compared, effects

Text = Annotated[str, Field(max_length=MAX_FILE_BYTES, description="The policy as YAML.", examples=["version: 1\n"])]


class TrialBody(OperatorBody):
    """A text to try."""

    text: Text


class Standing(NamedTuple):
    """The present file: its text, and the policy in it, or its problems."""

    text: str
    policy: Policy | None
    problems: Sequence[PolicyProblem]


def policy_file(services: ApiContext) -> PolicyFile:
    """Return the policy file of the server."""
    return PolicyFile(services.settings.policy_file)


def standing(file: PolicyFile) -> Standing:
    """Return the present file. Its owner may refer to methodologies anywhere."""
    try:
        text = file.text()
        return Standing(text, load_policy(file.place, text.encode()), ())
    except PolicyError as error:
        return Standing("", None, [PolicyProblem(None, str(error))])


def is_in_force(services: ApiContext, policy: Policy | None) -> bool:
    """Return whether a policy is the one in force."""
    return policy is not None and not changes(services.engine.policy, policy)


async def tried(services: ApiContext, text: str) -> PolicyTrial:
    """Describe the effect of a text in place of the file."""
    file = policy_file(services)
    now = await asyncio.to_thread(standing, file)
    policy = await asyncio.to_thread(check, file, text, known_files(services, now.policy))
    comparison = compared(now.text, text)
    if isinstance(policy, list):
        return PolicyTrial(valid=False, problems=policy, comparison=comparison, changes=[], effects=[])
    before = now.policy or services.engine.policy
    differences = await asyncio.to_thread(changes, before, policy)

    def estimate(cursor: Any) -> list[PolicyEffect]:
        projects = known_projects(cursor, named_projects(before, services.access))
        return effects(cursor, before, policy, found=differences, projects=projects, now=services.engine.now())

    return PolicyTrial(
        valid=True, problems=[], comparison=comparison, changes=differences, effects=await services.ask(estimate)
    )


def known_files(services: ApiContext, standing_policy: Policy | None) -> frozenset[str]:
    """Return the methodology files, in any folder, that the policy in the file or the policy in force refers to."""
    present = frozenset() if standing_policy is None else standing_policy.methodology_files
    return present | services.engine.policy.methodology_files
