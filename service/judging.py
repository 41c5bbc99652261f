"""Who judges: the one place where settings and the environment become a judge."""

from __future__ import annotations

from collections.abc import Mapping

from audit.policy import Policy
from audit.prices import price_of
from service.settings import Settings
from streams.judges.protocol import SIMULATED_HEADER, Judge

NONE, LIVE, SIMULATED = "none", "live", "simulated judge"
"""What a judge is called where it is named to people."""


async def open_judge(settings: Settings, policy: Policy, environ: Mapping[str, str]) -> tuple[Judge | None, str]:
    """The judge that the settings ask for, and what it is called; None for nobody. SettingsError without credentials."""
    # Late, because the client of the API takes a second to load, and most commands ask nobody.
    from streams.judges.live import open_live_judge  # noqa: PLC0415
    from streams.judges.transport import credentials  # noqa: PLC0415

    found = credentials(environ)
    if settings.judge == "none" or (settings.judge == "auto" and found == (None, None)):
        return None, NONE
    judge = open_live_judge(
        *found,
        lambda model: _traits(policy, model),
        deadline=settings.judge_deadline,
        concurrency=settings.judge_concurrency,
    )
    return judge, SIMULATED if found.base_url and await _is_simulated(found.base_url) else LIVE


def _traits(policy: Policy, model: str) -> tuple[int | None, bool]:
    """The smallest prefix that the model caches, and whether it thinks unless told otherwise."""
    price = price_of(model, policy.prices)
    return (price.cache_minimum, price.switch_off_thinking) if price else (None, False)


async def _is_simulated(base_url: str) -> bool:
    """Whether the server says of itself that it only simulates a judge. Such a one is on this machine, where no proxy leads."""
    import httpx2  # noqa: PLC0415 - it takes a while to load

    try:
        async with httpx2.AsyncClient(timeout=2.0, trust_env=False) as client:
            answer = await client.get(base_url)
    except httpx2.HTTPError:
        return False
    return SIMULATED_HEADER in answer.headers
