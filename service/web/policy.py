"""The policy file of a server, and the effect of replacing its text."""

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
from service.write.policy_file import (
    PolicyFile,
    PolicyProblem,
    PolicyTrial,
    check_text,
    compare_policies,
    compare_policy_diagnoses,
    diff_lines,
    estimate_effects,
    find_lost_incidents,
)

Text = Annotated[str, Field(max_length=MAX_FILE_BYTES, description="The policy as YAML.", examples=["version: 1\n"])]


class TrialBody(OperatorBody):
    """A text to try."""

    text: Text


class CurrentFile(NamedTuple):
    """The text of the file, and the policy in it or its problems."""

    text: str
    policy: Policy | None
    problems: Sequence[PolicyProblem]


def policy_file(services: ApiContext) -> PolicyFile:
    """Return the policy file of the server."""
    return PolicyFile(services.settings.policy_file)


def read_current(file: PolicyFile) -> CurrentFile:
    """Read the file. It may refer to methodologies in any folder."""
    try:
        text = file.text()
        return CurrentFile(text, load_policy(file.display_path, text.encode()), ())
    except PolicyError as error:
        return CurrentFile("", None, [PolicyProblem(None, str(error))])


def is_in_force(services: ApiContext, policy: Policy | None) -> bool:
    """Return whether a policy is the one in force."""
    return policy is not None and not compare_policies(services.engine.policy, policy)


async def try_text(services: ApiContext, text: str) -> PolicyTrial:
    """Check a text, compare it with the file, and estimate its effect."""
    file = policy_file(services)
    current = await asyncio.to_thread(read_current, file)
    policy = await asyncio.to_thread(check_text, file, text, known_files(services, current.policy))
    diff = diff_lines(current.text, text)
    if isinstance(policy, list):
        return PolicyTrial(valid=False, problems=policy, comparison=diff, changes=[], effects=[], diagnoses=[], incidents=[])
    before = current.policy or services.engine.policy
    differences = await asyncio.to_thread(compare_policies, before, policy)

    def compare(cursor: Any) -> PolicyTrial:
        projects = known_projects(cursor, named_projects(before, services.access))
        now = services.engine.now()
        return PolicyTrial(
            valid=True,
            problems=[],
            comparison=diff,
            changes=differences,
            effects=estimate_effects(cursor, before, policy, changes=differences, projects=projects, now=now),
            diagnoses=compare_policy_diagnoses(cursor, before, policy, changes=differences, projects=projects, now=now),
            incidents=find_lost_incidents(cursor, before, policy, changes=differences, projects=projects),
        )

    return await services.ask(compare)


def known_files(services: ApiContext, file_policy: Policy | None) -> frozenset[str]:
    """Return the methodology files, in any folder, that the policy in the file or the policy in force refers to."""
    in_force = services.engine.policy.methodology_files
    return in_force if file_policy is None else in_force | file_policy.methodology_files
