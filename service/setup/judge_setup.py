"""Setup of the judges: opening them as settings, policy and environment select them, or explaining why there is none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from audit.evaluation.cases import Plan
from audit.judges import BUILT_IN, ENVIRONMENT, ApiName, ResolvedJudge
from audit.policy import Policy, ProjectPolicy
from schemas.errors import SettingsError
from service.setup.server_link import ServerLink
from service.setup.settings import Settings
from service.text.links import LOOPBACK_NAMES
from streams.judges.protocol import DEFAULT_BASE_URL, SIMULATED_HEADER, Judge, ModelTraits, credentials

if TYPE_CHECKING:
    from streams.judges.batch_api import BatchCalls
    from streams.judges.batch_judge import BatchJudge
    from streams.judges.batch_plans import BatchJournal
    from streams.judges.live import LiveJudge
    from streams.judges.routing import RoutedJudge

ANTHROPIC = "https://api.anthropic.com"
"""An address that serves only Anthropic's models."""
_CLAUDE = "claude"
"""Part of the name of every Anthropic model, on any cloud."""


def check_judges_configured(plans: Iterable[Plan], policy: Policy, address: str) -> None:
    """Raise a SettingsError for a judge that could never be called.

    Anthropic's own address serves only its own models, a model without a price is not called under a cap, and some servers have no
    batches. `address` has the addresses of the open judges, empty if unknown.
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
        if plan.judge.type == "batch":
            refuse_batches([judge])


def refuse_batches(judges: Iterable[ResolvedJudge]) -> None:
    """Raise a SettingsError for a judge whose server has no batch API."""
    for judge in judges:
        if not judge.has_batches:
            raise SettingsError(
                f"the judge {judge.name} has no batches: judges.{judge.judge_id} is of a cloud, or its batches are false",
                hint="Ask it by single calls: --judge live for a replay, type: llm_probe in a profile.",
            )


_ADDRESS_VARIABLES = {"openai": "OPENAI_BASE_URL"}
"""Variables by which the makers' own clients set the address of a built-in judge."""
_OPENAI_ADDRESS = BUILT_IN["openai"].base_url or ""
_DEFAULT_ADDRESSES: Mapping[ApiName, str] = {"messages": DEFAULT_BASE_URL, "bedrock": "", "vertex": ""}
"""Empty for a cloud, whose client builds the address of the region."""
_PROVIDER_ADDRESSES = {DEFAULT_BASE_URL} | {
    judge.base_url for judge in BUILT_IN.values() if judge.base_url and judge.base_url.startswith("https://")
}
"""The addresses of providers, which are not asked whether a simulated judge answers."""
NONE = "none"
LIVE = "live"
SIMULATED = "simulated judge"
WORKERS = "called by the workers"
OTHERS = "(others)"
"""Label of all projects that the policy does not name."""
PRICE_HINT = "Give the model a price under prices: or judges: in the policy, or set costCapPerSession: null and no costCaps."
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
    used = {judge.judge_id: judge for judge in judges}
    endpoints = {judge_id: _find_endpoint(judge, policy, environ) for judge_id, judge in used.items()}
    usable = [judge_id for judge_id, endpoint in endpoints.items() if not endpoint.missing_variable]
    if not used or (settings.judge == "auto" and not usable):
        return OpenedJudge(None, NONE)
    routed = _route_questions(settings, policy, environ)
    notes = [
        f"{endpoint.missing_variable} is not set, so {judge_id or 'the default judge'} cannot judge"
        for judge_id, endpoint in endpoints.items()
        if endpoint.missing_variable
    ]
    simulates: list[bool | None] = []
    opened = [endpoints[judge_id] for judge_id in usable or used]
    addresses: list[str] = []
    try:
        for judge_id in usable or used:
            live = routed.open(used[judge_id])
            addresses.append(endpoints[judge_id].address or live.base_url)
        for endpoint in opened:
            simulates.append(await _simulates(endpoint.address) if endpoint.is_custom else False)
            if simulates[-1] is None:
                notes.append(_describe_outage(endpoint.address))
    except SettingsError:
        await routed.aclose()
        raise
    return OpenedJudge(routed, SIMULATED if all(simulates) else LIVE, ", ".join(dict.fromkeys(addresses)), "; ".join(notes))


class _Endpoint(NamedTuple):
    """Where a judge is asked, and with which key."""

    address: str
    """Empty for the address of a cloud's region."""
    is_custom: bool
    """True for an address that is not a provider's own: a simulated judge may answer there."""
    setting: str | None
    """Where the address is set; None is the environment."""
    key: str | None
    missing_variable: str = ""
    """The variable that the key is read from, if it is not set; empty if there is a key or none is needed."""


def _find_endpoint(judge: ResolvedJudge, policy: Policy, environ: Mapping[str, str]) -> _Endpoint:
    if judge.settings is None:
        key, address = credentials(environ)
        missing_variable = "" if key or address else "ANTHROPIC_API_KEY"
        return _Endpoint(address or DEFAULT_BASE_URL, address is not None, None, key, missing_variable)
    address = judge.settings.base_url or _DEFAULT_ADDRESSES.get(judge.settings.api, _OPENAI_ADDRESS)
    setting = f"judges.{judge.judge_id}.baseUrl"
    variable = _ADDRESS_VARIABLES.get(judge.judge_id)
    if variable is not None and judge.judge_id not in policy.judges and environ.get(variable, "").strip():
        address, setting = environ[variable].strip(), variable
    key_variable = judge.settings.key_env
    key = environ.get(key_variable, "").strip() if key_variable else ""
    missing_variable = key_variable if key_variable and not key else ""
    return _Endpoint(address, address not in {"", *_PROVIDER_ADDRESSES}, setting, key or None, missing_variable)


def _route_questions(settings: Settings, policy: Policy, environ: Mapping[str, str]) -> RoutedJudge:
    """Return the judges of a policy, none of them open yet."""
    from streams.judges.live import open_live_judge  # noqa: PLC0415 - the client of the API takes a second and 40 MB
    from streams.judges.routing import RoutedJudge  # noqa: PLC0415 - the same

    def open_one(judge: ResolvedJudge) -> LiveJudge:
        endpoint = _require_key(judge, policy, environ)
        return open_live_judge(
            endpoint.key,
            endpoint.address or None,
            partial(traits_of, policy),
            api=_api_of(judge),
            setting=endpoint.setting,
            region=judge.settings.region if judge.settings else None,
            cloud_project=judge.settings.cloud_project if judge.settings else None,
            deadline=settings.judge_deadline,
            concurrency=settings.judge_concurrency,
        )

    return RoutedJudge(policy.resolve_judge, open_one)


def check_waiting(policy: Policy, *, kafka: bool) -> None:
    """Raise a SettingsError if exchanges are to wait for batches that cannot be asked: on Kafka, or of a judge without batches."""
    for name in ("", *policy.projects):
        project = policy.for_project(name)
        if project.settings.judge_within_hours is None:
            continue
        field = f"projects.{name}.judgeWithinHours" if name in policy.projects else "defaults.judgeWithinHours"
        if kafka:
            hint = "Remove it: workers on Kafka judge each exchange at once."
            raise SettingsError(f"{field}: exchanges cannot wait for a batch on Kafka", hint=hint)
        for judge in project.judges.values():
            if not judge.has_batches:
                hint = "Remove it, or name a judge whose server has batches as judgeModel."
                raise SettingsError(f"{field}: the judge {judge.name} has no batches", hint=hint)


def open_batches(policy: Policy, environ: Mapping[str, str], journal: BatchJournal) -> BatchJudge:
    """Return the batch judge of a policy, over the batch API of each judge that is asked. The caller closes it."""
    from streams.judges.batch_judge import BatchJudge, open_batch_calls  # noqa: PLC0415 - the client takes a second to load

    def open_calls(name: str) -> BatchCalls:
        judge = policy.resolve_judge(name)
        refuse_batches([judge])
        endpoint = _require_key(judge, policy, environ)
        return open_batch_calls(endpoint.key, endpoint.address, api=_api_of(judge), setting=endpoint.setting)

    return BatchJudge(open_calls, partial(traits_of, policy), journal)


def _require_key(judge: ResolvedJudge, policy: Policy, environ: Mapping[str, str]) -> _Endpoint:
    """Return the endpoint of a judge. Raises SettingsError if its key is not set."""
    endpoint = _find_endpoint(judge, policy, environ)
    if endpoint.missing_variable and judge.settings is not None:
        raise SettingsError(f"the judge {judge.judge_id} has no key", hint=f"Set {endpoint.missing_variable}.")
    return endpoint


def _api_of(judge: ResolvedJudge) -> ApiName:
    return "messages" if judge.settings is None else judge.settings.api


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
    return project.settings.enabled and (project.cap is not None or project.has_shared_cap) and not project.is_priced


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
    price = judge.price
    return ModelTraits(
        model=judge.model,
        cache_minimum=price.cache_minimum if price else None,
        switch_off_thinking=price.switch_off_thinking if price else False,
        effort=judge.settings.effort if judge.settings else None,
    )


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
