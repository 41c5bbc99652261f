"""Judges of other makers: the judge is asked over Anthropic's Messages API, so another model needs a gateway, and a price of its own."""

from __future__ import annotations

from collections.abc import Iterable

from audit.cost.prices import price_of
from audit.evaluation.cases.profile import Plan
from audit.policy.policy import Policy
from schemas.errors import SettingsError

ANTHROPIC = "https://api.anthropic.com"
"""Address that serves models of Anthropic alone."""
_OWN = "claude"
"""What the names of Anthropic's models hold, whichever cloud they come from."""


def refuse_unconfigured(plans: Iterable[Plan], policy: Policy, address: str) -> None:
    """SettingsError for a model of another maker that would never be asked; `address` is that of the judge, empty if not known.

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
