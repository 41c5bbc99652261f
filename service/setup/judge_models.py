"""Judges of other providers: asked over Anthropic's Messages API, so they need a gateway, and a price in the policy."""

from __future__ import annotations

from collections.abc import Iterable

from audit.cost import price_of
from audit.evaluation.cases import Plan
from audit.policy.policy import Policy
from schemas.errors import SettingsError

ANTHROPIC = "https://api.anthropic.com"
"""Address that serves models of Anthropic alone."""
_OWN = "claude"
"""Parts of the names of Anthropic's models, on any cloud."""


def refuse_unconfigured(plans: Iterable[Plan], policy: Policy, address: str) -> None:
    """SettingsError for another provider's model that would never be asked; `address` is the judge's, empty if unknown.

    At Anthropic's own address nothing answers for it, and under a cap nothing is asked without a price.
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
