"""Setup of the judge: opening it as settings and environment select it, or explaining why there is none.

Judges of other providers are called through Anthropic's Messages API as well, so they need a gateway, and a price in the policy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from audit.cost import price_of
from audit.evaluation.cases import Plan
from audit.policy import Policy, ProjectPolicy
from schemas.errors import SettingsError
from service.setup.server_link import ServerLink
from service.setup.settings import Settings
from service.text.links import LOOPBACK_NAMES
from streams.judges.protocol import DEFAULT_BASE_URL, SIMULATED_HEADER, Judge, ModelTraits, credentials

ANTHROPIC = "https://api.anthropic.com"
"""An address that serves only Anthropic's models."""
_CLAUDE = "claude"
"""Part of the name of every Anthropic model, on any cloud."""


def check_judges_configured(plans: Iterable[Plan], policy: Policy, address: str) -> None:
    """Raise a SettingsError for a model of another provider that could never be called.

    Anthropic's own address does not serve the model, and a model without a price is not called under a cap. `address` is the address
    of the judge, empty if unknown.
    """
    for plan in plans:
        model = plan.judge.model
        if plan.judge.type == "recorded" or _CLAUDE in model.lower():
            continue
        if address == ANTHROPIC or (plan.cost_cap_usd is not None and price_of(model, policy.prices) is None):
            raise SettingsError(
                f"judge {plan.judge.judge_id}: judges are called over Anthropic's Messages API, and {model} is a model of another provider",
                hint=(
                    "Name a Claude model. Or use a gateway that offers the model over the Messages API, such as LiteLLM: "
                    f"set ANTHROPIC_BASE_URL to its address, and give {model} a price under prices: in the policy "
                    "(or set cost_cap_usd: null in the profile)."
                ),
            )


NONE = "none"
LIVE = "live"
SIMULATED = "simulated judge"
WORKERS = "called by the workers"
OTHERS = "(others)"
"""Label of all projects that the policy does not name."""
PRICE_HINT = "Give the model a price under prices: in the policy, or set costCapPerSession: null."
JUDGE_HINT = "Set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to a server of your own."
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


async def open_judge(settings: Settings, policy: Policy, environ: Mapping[str, str]) -> OpenedJudge:
    """Open the judge that the settings select; the caller closes it. Raises SettingsError without credentials.

    The API is not called. A custom address gets one call, which shows whether it is a simulated judge.
    """
    api_credentials = credentials(environ)
    if settings.judge == "none" or (settings.judge == "auto" and api_credentials == (None, None)):
        return OpenedJudge(None, NONE)
    from streams.judges.live import open_live_judge  # noqa: PLC0415 - the client of the API takes a second and 40 MB

    judge = open_live_judge(
        *api_credentials,
        lambda model: traits_of(policy, model),
        deadline=settings.judge_deadline,
        concurrency=settings.judge_concurrency,
    )
    if api_credentials.base_url is None:
        return OpenedJudge(judge, LIVE, DEFAULT_BASE_URL)
    simulates = await _simulates(api_credentials.base_url)
    note = _describe_outage(api_credentials.base_url) if simulates is None else ""
    return OpenedJudge(judge, SIMULATED if simulates else LIVE, api_credentials.base_url, note)


def describe_judge(settings: Settings, policy: Policy) -> OpenedJudge:
    """Return the name, address and problem of the judge that the settings and the environment select, without a client."""

    async def open_and_close() -> OpenedJudge:
        opened = await open_judge(settings, policy, os.environ)
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
    return project.settings.enabled and project.cap is not None and project.price is None


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


def traits_of(policy: Policy, model: str) -> ModelTraits:
    """Return the traits of a model that its requests depend on."""
    price = price_of(model, policy.prices)
    if price is None:
        return ModelTraits()
    return ModelTraits(cache_minimum=price.cache_minimum, switch_off_thinking=price.switch_off_thinking)


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
