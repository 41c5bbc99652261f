"""Setup of the judge: the one place where settings and the environment become a judge, or the reason there is none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import NamedTuple

from audit.cost.prices import price_of
from audit.policy.policy import Policy, ProjectPolicy
from service.remote.server_link import ServerLink
from service.settings import Settings
from streams.judges.credentials import DEFAULT_BASE_URL, credentials
from streams.judges.protocol import SIMULATED_HEADER, Judge

NONE, LIVE, SIMULATED, WORKERS = "none", "live", "simulated judge", "asked by the workers"
"""What a judge is called where it is named to people."""
OTHERS = "(others)"
"""Stands for every project that a policy does not name."""
PRICE_IT = "Give the model a price under prices: in the policy, or set costCapPerSession: null."
NAME_A_JUDGE = "Set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to a server of your own."
PROBE_SECONDS = 2.0
"""What a server of one's own has to answer at all."""
_NAMED = 10
"""Projects that a message names; the others are counted."""


class OpenedJudge(NamedTuple):
    """Who judges: the judge (None for no judge), what it is called, the address that is asked, what is wrong with it (or nothing)."""

    judge: Judge | None
    name: str
    address: str = ""
    note: str = ""


async def open_judge(settings: Settings, policy: Policy, environ: Mapping[str, str]) -> OpenedJudge:
    """The judge that the settings ask for; the caller closes it. SettingsError without credentials.

    Whether the API answers is not tried: only an address of one's own is called, once, to hear whether it simulates.
    """
    found = credentials(environ)
    if settings.judge == "none" or (settings.judge == "auto" and found == (None, None)):
        return OpenedJudge(None, NONE)
    from streams.judges.live import open_live_judge  # noqa: PLC0415 - the client of the API takes a second and 40 MB

    judge = open_live_judge(
        *found,
        lambda model: traits_of(policy, model),
        deadline=settings.judge_deadline,
        concurrency=settings.judge_concurrency,
    )
    if found.base_url is None:
        return OpenedJudge(judge, LIVE, DEFAULT_BASE_URL)
    simulates = await _simulates(found.base_url)
    note = _silent(found.base_url) if simulates is None else ""
    return OpenedJudge(judge, SIMULATED if simulates else LIVE, found.base_url, note)


def who_judges(settings: Settings, policy: Policy) -> OpenedJudge:
    """Who would judge by the settings and the environment; nobody is left open."""

    async def look() -> OpenedJudge:
        opened = await open_judge(settings, policy, os.environ)
        if opened.judge is not None:
            await opened.judge.aclose()
        return opened._replace(judge=None)

    return asyncio.run(look())


def paid_note(server: ServerLink | None) -> str:
    """What exchanges cost that go into a server with a live judge, in words; nothing elsewhere: without a server, none is asked."""
    if server is None or server.call("describe") != LIVE:
        return ""
    return "the server has a live judge and judges what comes in: calls are paid for, under each session's cap"


def is_unpriced(project: ProjectPolicy) -> bool:
    """Whether the project's judge is asked nothing, because a cap needs a price and none is known of its model."""
    return project.settings.enabled and project.cap is not None and project.price is None


def unpriced_projects(policy: Policy) -> list[str]:
    """The projects whose judge is asked nothing for want of a price, in the policy's order; "" is every one it does not name."""
    return [name for name in ("", *policy.projects) if is_unpriced(policy.for_project(name))]


def unpriced_note(policy: Policy) -> str:
    """Which projects' judge is asked nothing for want of a price, in words; nothing where there is none."""
    found = unpriced_projects(policy)
    named = [f"{name or OTHERS} ({policy.for_project(name).settings.judge_model})" for name in found[:_NAMED]]
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    if not found:
        return ""
    return f"no price is known of the judge's model, so under a cap nothing is asked (unknown_price): {', '.join(named)}{more}"


def traits_of(policy: Policy, model: str) -> tuple[int | None, bool]:
    """The smallest prefix that the model caches, and whether it thinks unless told otherwise."""
    price = price_of(model, policy.prices)
    return (price.cache_minimum, price.switch_off_thinking) if price else (None, False)


async def _simulates(base_url: str) -> bool | None:
    """Whether the server says of itself that it only simulates a judge; None where nothing answers."""
    import httpx2  # noqa: PLC0415 - it takes a while to load

    from service.http.bounds import LOOPBACK_NAMES  # noqa: PLC0415 - what the server needs, commands do not

    # A proxy of the environment cannot reach this machine's own loopback.
    beyond = httpx2.URL(base_url).host not in LOOPBACK_NAMES
    try:
        async with httpx2.AsyncClient(timeout=PROBE_SECONDS, trust_env=beyond) as client:
            answer = await client.get(base_url)
    except httpx2.HTTPError:
        return None
    return SIMULATED_HEADER in answer.headers


def _silent(address: str) -> str:
    """What it means that a judge does not answer."""
    return (
        f"{address} does not answer: until it does, nothing is judged (provider_error, timeout); "
        "`driftline rejudge` takes exchanges up later, the same `driftline evaluate` its runs"
    )
