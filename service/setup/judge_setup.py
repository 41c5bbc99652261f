"""Setup of the judge: builds a judge from settings and environment, or explains why none is available. No other module does this.

Other providers' judges are called through Anthropic's Messages API, so they need a gateway, and a price in the policy.
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
from streams.judges.protocol import DEFAULT_BASE_URL, SIMULATED_HEADER, Judge, credentials

ANTHROPIC = "https://api.anthropic.com"
"""An address that serves only Anthropic's models."""
_OWN = "claude"
"""Substrings in the names of Anthropic's models, on any cloud."""


def refuse_unconfigured(plans: Iterable[Plan], policy: Policy, address: str) -> None:
    """Raise a SettingsError for another provider's model that could never be called; `address` is the judge's, empty if unknown.

    Anthropic's own address does not serve it, and under a cap a model without a price is not called.
    """
    for plan in plans:
        model = plan.judge.model
        if plan.judge.type == "recorded" or _OWN in model.lower():
            continue
        if address == ANTHROPIC or (plan.cost_cap_usd is not None and price_of(model, policy.prices) is None):
            raise SettingsError(
                f"judge {plan.judge.judge_id}: judges are asked over Anthropic's Messages API, and {model} is a model of another maker",
                hint=(
                    "Name a Claude model. Or put a gateway in between that offers the model over the Messages API, such as LiteLLM: "
                    f"set ANTHROPIC_BASE_URL to its address, and give {model} a price under prices: in the policy "
                    "(or set cost_cap_usd: null in the profile)."
                ),
            )


NONE, LIVE, SIMULATED, WORKERS = "none", "live", "simulated judge", "asked by the workers"
"""Names of a judge for people."""
OTHERS = "(others)"
"""Stands for all projects that the policy does not name."""
PRICE_IT = "Give the model a price under prices: in the policy, or set costCapPerSession: null."
NAME_A_JUDGE = "Set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to a server of your own."
PROBE_SECONDS = 2.0
"""Time limit for the answer of a custom server, in seconds."""
_NAMED = 10
"""Maximum number of projects named in a message; the others are counted."""


class OpenedJudge(NamedTuple):
    """The judge (None for no judge), with its name, its address, and its problem, if any."""

    judge: Judge | None
    name: str
    address: str = ""
    note: str = ""


async def open_judge(settings: Settings, policy: Policy, environ: Mapping[str, str]) -> OpenedJudge:
    """Open the judge that the settings select; the caller closes it. Raises SettingsError without credentials.

    The API is not called to test it. Only a custom address gets one call, to learn whether it is a simulated judge.
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
    note = _silent(api_credentials.base_url) if simulates is None else ""
    return OpenedJudge(judge, SIMULATED if simulates else LIVE, api_credentials.base_url, note)


def who_judges(settings: Settings, policy: Policy) -> OpenedJudge:
    """Describe the judge by the settings and the environment: opened, closed again, and so without a client."""

    async def look() -> OpenedJudge:
        opened = await open_judge(settings, policy, os.environ)
        if opened.judge is not None:
            await opened.judge.aclose()
        return opened._replace(judge=None)

    return asyncio.run(look())


def paid_note(server: ServerLink | None) -> str:
    """Describe the cost of sending exchanges to a server with a live judge; empty otherwise, because only a server asks a judge."""
    if server is None or server.call("judge", str) != LIVE:
        return ""
    return "the server has a live judge and judges incoming exchanges: calls cost money, up to each session's cap"


def is_unpriced(project: ProjectPolicy) -> bool:
    """Return whether the project's judge is never called, because there is a cap and the model has no price."""
    return project.settings.enabled and project.cap is not None and project.price is None


def unpriced_projects(policy: Policy) -> list[str]:
    """Return the projects whose judge is not called because it has no price, in policy order; "" stands for all unnamed ones."""
    return [name for name in ("", *policy.projects) if is_unpriced(policy.for_project(name))]


def unpriced_note(policy: Policy) -> str:
    """Name the projects whose judge is not called because it has no price; empty if there are none."""
    projects = unpriced_projects(policy)
    named = [f"{name or OTHERS} ({policy.for_project(name).settings.judge_model})" for name in projects[:_NAMED]]
    more = f" and {len(projects) - _NAMED} more" if len(projects) > _NAMED else ""
    if not projects:
        return ""
    return (
        f"the judge's model has no known price, so sessions with a cap are not judged (unknown_price): {', '.join(named)}{more}"
    )


def traits_of(policy: Policy, model: str) -> tuple[int | None, bool]:
    """Return the smallest prefix that the model caches, and whether it thinks by default."""
    price = price_of(model, policy.prices)
    return (price.cache_minimum, price.switch_off_thinking) if price else (None, False)


async def _simulates(base_url: str) -> bool | None:
    """Return whether the server reports that it is a simulated judge; None if it does not answer."""
    import httpx2  # noqa: PLC0415 - it takes a while to load

    # Ignore proxies from the environment: they cannot reach this machine's loopback.
    beyond = httpx2.URL(base_url).host not in LOOPBACK_NAMES
    try:
        async with httpx2.AsyncClient(timeout=PROBE_SECONDS, trust_env=beyond) as client:
            answer = await client.get(base_url)
    except httpx2.HTTPError:
        return None
    return SIMULATED_HEADER in answer.headers


def _silent(address: str) -> str:
    """Explain the effect of a judge that does not answer."""
    return (
        f"{address} does not answer: until it does, nothing is judged (provider_error, timeout). "
        "Judge exchanges later with `driftline rejudge`, and runs with the same `driftline evaluate`"
    )
