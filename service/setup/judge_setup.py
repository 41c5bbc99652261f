"""Setup of the judges: opening them as settings, policy and environment select them, or explaining why there is none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from audit.evaluation.cases import Plan
from audit.judges import ENVIRONMENT
from audit.policy import Policy, ProjectPolicy
from schemas.errors import SettingsError
from service.setup.server_link import ServerLink
from service.setup.settings import Settings
from service.text.links import LOOPBACK_NAMES
from streams.judges.protocol import DEFAULT_BASE_URL, SIMULATED_HEADER, ApiName, Judge, ModelTraits, credentials

if TYPE_CHECKING:
    from streams.judges.live import LiveJudge
    from streams.judges.routing import RoutedJudge

ANTHROPIC = "https://api.anthropic.com"
"""An address that serves only Anthropic's models."""
_CLAUDE = "claude"
"""Part of the name of every Anthropic model, on any cloud."""


def check_judges_configured(plans: Iterable[Plan], policy: Policy, address: str) -> None:
    """Raise a SettingsError for a judge that could never be called.

    Anthropic's own address serves only its own models, and a model without a price is not called under a cap. `address` has the addresses of
    the open judges, empty if unknown.
    """
    for plan in plans:
        if plan.judge.type == "recorded":
            continue
        judge = policy.resolve_judge(plan.judge.model)
        name = f"judge {plan.judge.judge_id}"
        is_claude = _CLAUDE in judge.model.lower()
        if judge.judge_id == ENVIRONMENT and ANTHROPIC in address.split(", ") and not is_claude:
            hint = (
                f"Name the judge before the model, such as openai/{judge.model}, or configure one under judges: in the policy."
            )
            raise SettingsError(f"{name}: {judge.model} is no model of Anthropic, whose API is asked", hint=hint)
        if plan.cost_cap_usd is not None and judge.price is None and not is_claude:
            hint = (
                f"Give {judge.name} a price under prices: or judges: in the policy, or set cost_cap_usd: null in the profile."
            )
            raise SettingsError(f"{name}: the price of {judge.name} is unknown, and there is a cost cap", hint=hint)
        if plan.judge.type == "batch" and judge.settings is not None and judge.settings.api != "messages":
            hint = "Use type: llm_probe, which asks by single calls."
            raise SettingsError(f"{name}: {judge.name} has no batches, which only the Messages API has here", hint=hint)


_ADDRESS_VARIABLES = {"openai": "OPENAI_BASE_URL"}
"""Variables by which the makers' own clients set the address of a built-in judge."""
NONE = "none"
LIVE = "live"
SIMULATED = "simulated judge"
WORKERS = "called by the workers"
OTHERS = "(others)"
"""Label of all projects that the policy does not name."""
PRICE_HINT = "Give the model a price under prices: or judges: in the policy, or set costCapPerSession: null."
JUDGE_HINT = (
    "Set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to a server of your own, or name another judge as judgeModel in the policy."
)
PROBE_TIMEOUT = 2.0
"""Seconds in which a custom server has to answer."""
_MAX_PROJECTS = 10
"""Maximum number of projects named in a message; the others are counted."""


class OpenedJudge(NamedTuple):
    """A judge with its name and address. Without a judge, the name is `NONE`."""

    judge: Judge | None
    name: str
    address: str = ""
    note: str = ""
    """A problem to report."""


async def open_judge(
    settings: Settings, policy: Policy, environ: Mapping[str, str], names: Iterable[str] | None = None
) -> OpenedJudge:
    """Open the judges that settings and policy select; the caller closes them. Raises SettingsError without credentials.

    `names` are the judges that will be asked; None are those of all projects. Others are opened when they are asked. No API is asked to
    judge. Each custom address gets one call, which shows whether it is a simulated judge.
    """
    if settings.judge == "none":
        return OpenedJudge(None, NONE)
    judges = policy.used_judges if names is None else map(policy.resolve_judge, names)
    used = list(dict.fromkeys(judge.judge_id for judge in judges))
    missing = {judge_id: variable for judge_id in used if (variable := _find_missing_key(policy, judge_id, environ))}
    if not used or (settings.judge == "auto" and len(missing) == len(used)):
        return OpenedJudge(None, NONE)
    opened_ids = [judge_id for judge_id in used if judge_id not in missing] or used[:1]
    notes = [
        f"{variable} is not set, so {judge_id or 'the default judge'} cannot judge" for judge_id, variable in missing.items()
    ]
    judge = _route_questions(settings, policy, environ)
    addresses = []
    simulates: list[bool | None] = []
    try:
        for judge_id in opened_ids:
            judge.open(judge_id)
            address = _endpoint(policy, judge_id, environ).address
            addresses.append(address or DEFAULT_BASE_URL)
            simulates.append(False if address is None else await _simulates(address))
            if address is not None and simulates[-1] is None:
                notes.append(_describe_outage(address))
    except SettingsError:
        await judge.aclose()
        raise
    return OpenedJudge(judge, SIMULATED if all(simulates) else LIVE, ", ".join(dict.fromkeys(addresses)), "; ".join(notes))


class _Endpoint(NamedTuple):
    """Where a judge is asked."""

    key: str | None
    address: str | None
    """None is the default address of the API."""
    api: ApiName
    setting: str | None
    """Where the address is set; None is the environment."""


def _endpoint(policy: Policy, judge_id: str, environ: Mapping[str, str]) -> _Endpoint:
    """Return where a judge is asked, and with which key."""
    if judge_id == ENVIRONMENT:
        return _Endpoint(*credentials(environ), "messages", None)
    judge = policy.judge_settings(judge_id)
    key = environ.get(judge.key_env, "").strip() if judge.key_env else ""
    address = judge.base_url
    setting = f"judges.{judge_id}.baseUrl"
    variable = _ADDRESS_VARIABLES.get(judge_id)
    if variable is not None and judge_id not in policy.judges and environ.get(variable, "").strip():
        address, setting = environ[variable].strip(), variable
    return _Endpoint(key or None, address, judge.api, setting)


def _find_missing_key(policy: Policy, judge_id: str, environ: Mapping[str, str]) -> str:
    """Return the variable that a judge needs and that is not set; empty if it needs none."""
    if judge_id == ENVIRONMENT:
        return "" if any(credentials(environ)) else "ANTHROPIC_API_KEY"
    variable = policy.judge_settings(judge_id).key_env or ""
    return variable if variable and not environ.get(variable, "").strip() else ""


def _route_questions(settings: Settings, policy: Policy, environ: Mapping[str, str]) -> RoutedJudge:
    """Return the judges of a policy, none of them open yet."""
    from streams.judges.live import open_live_judge  # noqa: PLC0415 - the client of the API takes a second and 40 MB
    from streams.judges.routing import RoutedJudge  # noqa: PLC0415 - the same

    def open_one(judge_id: str) -> LiveJudge:
        variable = _find_missing_key(policy, judge_id, environ)
        if variable and judge_id != ENVIRONMENT:
            raise SettingsError(f"the judge {judge_id} has no key", hint=f"Set {variable}.")
        endpoint = _endpoint(policy, judge_id, environ)
        return open_live_judge(
            endpoint.key,
            endpoint.address,
            partial(traits_of, policy),
            api=endpoint.api,
            setting=endpoint.setting,
            deadline=settings.judge_deadline,
            concurrency=settings.judge_concurrency,
        )

    return RoutedJudge(lambda name: policy.resolve_judge(name).judge_id, open_one)


def describe_judge(settings: Settings, policy: Policy, names: Iterable[str] | None = None) -> OpenedJudge:
    """Return the name, address and problem of the judge that the settings and the environment select, without a client."""

    async def open_and_close() -> OpenedJudge:
        opened = await open_judge(settings, policy, os.environ, names)
        if opened.judge is not None:
            await opened.judge.aclose()
        return opened._replace(judge=None)

    return asyncio.run(open_and_close())


def paid_note(server: ServerLink | None) -> str:
    """Describe the cost of sending exchanges to a server with a live judge; empty if no live judge will be called."""
    if server is None or server.call("judge", str) != LIVE:
        return ""
    return "the server has a live judge and judges incoming exchanges: calls cost money, up to each session's cap"


def is_unpriced(project: ProjectPolicy) -> bool:
    """Return whether the project's judge is never called, because there is a cap and the model has no price."""
    return project.settings.enabled and project.cap is not None and not project.is_priced


def unpriced_projects(policy: Policy) -> list[str]:
    """Return the projects whose judge is not called because its model has no price, in policy order. "" is all unnamed projects."""
    return [name for name in ("", *policy.projects) if is_unpriced(policy.for_project(name))]


def unpriced_note(policy: Policy) -> str:
    """Name the projects whose judge is not called because its model has no price; empty if there are none."""
    projects = unpriced_projects(policy)
    if not projects:
        return ""
    labels = [f"{name or OTHERS} ({policy.for_project(name).settings.judge_model})" for name in projects[:_MAX_PROJECTS]]
    more = f" and {len(projects) - _MAX_PROJECTS} more" if len(projects) > _MAX_PROJECTS else ""
    return f"the judge's model has no known price, so sessions with a cap are not judged (unknown_price): {', '.join(labels)}{more}"


def traits_of(policy: Policy, name: str) -> ModelTraits:
    """Return the traits of a judge's model, by the name of the judge."""
    judge = policy.resolve_judge(name)
    effort = judge.settings.effort if judge.settings else None
    if judge.price is None:
        return ModelTraits(model=judge.model, effort=effort)
    price = judge.price
    return ModelTraits(judge.model, price.cache_minimum, price.switch_off_thinking, effort)


async def _simulates(base_url: str) -> bool | None:
    """Return whether the server reports that it is a simulated judge; None if it does not answer."""
    import httpx2  # noqa: PLC0415 - it takes a while to load

    # Ignore proxies from the environment: they cannot reach this machine's loopback.
    is_remote = httpx2.URL(base_url).host not in LOOPBACK_NAMES
    try:
        async with httpx2.AsyncClient(timeout=PROBE_TIMEOUT, trust_env=is_remote) as client:
            answer = await client.get(base_url)
    except httpx2.HTTPError:
        return None
    return SIMULATED_HEADER in answer.headers


def _describe_outage(address: str) -> str:
    """Explain the effect of a judge that does not answer."""
    return (
        f"the judge at {address} does not answer, so nothing is judged for now (provider_error, timeout). "
        "Later, `driftline rejudge` judges the exchanges, and the same `driftline evaluate` the runs"
    )
