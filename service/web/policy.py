"""The policy file of a server as it stands, and what another text would do in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from audit.policy.policy import Policy, load_policy
from audit.policy.settings_files import MAX_FILE_BYTES
from schemas.errors import PolicyError
from service.read.known_projects import known_projects, named_projects
from service.web.context import ApiContext
from service.web.models import OperatorBody
from service.web.response_models import Answer
from service.write.policies.changes import Change, changes
from service.write.policies.effect import DAYS, Effect, effects
from service.write.policies.policy_file import PolicyFile, Problem, check, compared

Text = Annotated[str, Field(max_length=MAX_FILE_BYTES, description="The policy as YAML.", examples=["version: 1\n"])]


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


class TrialBody(OperatorBody):
    """A text to try."""

    text: Text


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
    found = await asyncio.to_thread(check, file, text, known_files(services, now.policy))
    comparison = compared(now.text, text)
    if isinstance(found, list):
        return TrialAnswer(
            valid=False, problems=list(map(problem_answer, found)), comparison=comparison, changes=[], effects=[]
        )
    before = now.policy or services.engine.policy
    differences = await asyncio.to_thread(changes, before, found)

    def estimated(cursor: Any) -> list[Effect]:
        projects = known_projects(cursor, named_projects(before, services.access))
        return effects(cursor, before, found, found=differences, projects=projects, now=services.engine.now())

    return TrialAnswer(
        valid=True,
        problems=[],
        comparison=comparison,
        changes=list(map(change_answer, differences)),
        effects=[_effect(one) for one in await services.ask(estimated)],
    )


def known_files(services: ApiContext, standing_policy: Policy | None) -> frozenset[str]:
    """The methodology files that are named already, wherever they lie."""
    present = frozenset() if standing_policy is None else standing_policy.methodology_files
    return present | services.engine.policy.methodology_files


def problem_answer(problem: Problem) -> ProblemAnswer:
    """Return a problem as the API tells it."""
    return ProblemAnswer(line=problem.line, problem=problem.words)


def change_answer(change: Change) -> ChangeAnswer:
    """Return a change as the API tells it."""
    return ChangeAnswer(setting=change.setting, before=change.before, after=change.after, projects=list(change.projects))


def _effect(one: Effect) -> EffectAnswer:
    return EffectAnswer(
        project=one.project,
        exchanges=one.exchanges,
        judged_before=one.judged_before,
        judged_after=one.judged_after,
        usd_per_month_before=one.month_before,
        usd_per_month_after=one.month_after,
    )
