"""Cost report of the demo: costs by agent, and with each saving off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from audit.cost import ModelPrice, shipped_prices
from audit.policy import ProjectSettings
from schemas.records import Exchange, SessionClosed
from service.cli.reports.cost_comparison import VARIANTS, Answers, Bill, Strictness, bill
from service.cli.reports.fleet_report import heading
from service.cli.terminal import table
from service.cli.views import SIMULATED

_TIERS = ("tier2", "tier2_5", "tier3")
_MILLION = 1_000_000
PROJECTED = ("as configured", "without sampling", "without any of them")
"""The variants that are projected to a million exchanges."""
Ledger = Sequence[Mapping[str, Any]]
"""Rows of the query `judge_costs`, by project."""


def cost_report(
    ledger: Ledger,
    agents: Mapping[str, str],
    records: Sequence[Exchange | SessionClosed],
    settings: ProjectSettings,
    strictness: Strictness,
) -> RenderableType:
    """Report the cost of the recorded calls and the cost without each saving; `agents` has the agent of each project."""
    answers: Answers = {}
    bills = {name: bill(records, settings, savings, answers, strictness=strictness) for name, savings in VARIANTS.items()}
    configured = bills["as configured"]
    return Group(
        heading(f"What judging cost at the prices of {settings.judge_model}; {SIMULATED}, so nothing was paid"),
        _agents_table(ledger, agents, configured),
        heading("Cost without each saving (the same exchanges in the same order)"),
        _variants_table(bills),
        Text(_compared(ledger, configured), style="dim"),
        heading("Cost of a million exchanges like these, by the model that judges"),
        _models_table(records, settings, strictness),
    )


def per_million(
    records: Sequence[Exchange | SessionClosed], settings: ProjectSettings, strictness: Strictness
) -> Mapping[str, tuple[str, Mapping[str, float]]]:
    """Return the cost in USD of a million exchanges like these for each model with a known price, and the day of the price.

    The costs are by variant, of `PROJECTED`. Tokens are those of the simulated judge; the prices are the model's.
    """
    exchanges = sum(isinstance(record, Exchange) for record in records)
    found: dict[str, tuple[str, Mapping[str, float]]] = {}
    for model, price in _models().items():
        answers: Answers = {}
        asked = settings.model_copy(update={"judge_model": model})
        bills = {name: bill(records, asked, VARIANTS[name], answers, strictness=strictness) for name in PROJECTED}
        costs = {name: one.usd * _MILLION / exchanges for name, one in bills.items()}
        found[model] = (f"{price.read_on}", costs)
    return found


def _models() -> Mapping[str, ModelPrice]:
    """Return the models with a known price, each by its first name."""
    first = {id(price): name for name, price in reversed([*shipped_prices().items()])}
    return {name: price for name, price in shipped_prices().items() if first[id(price)] == name}


def _models_table(
    records: Sequence[Exchange | SessionClosed], settings: ProjectSettings, strictness: Strictness
) -> RenderableType:
    cells = [
        [model, *(f"${costs[name]:,.0f}" for name in PROJECTED), read_on]
        for model, (read_on, costs) in per_million(records, settings, strictness).items()
    ]
    return table(["model", *PROJECTED, "prices of"], cells, right=PROJECTED)


def _agents_table(ledger: Ledger, agents: Mapping[str, str], configured: Bill) -> RenderableType:
    """Show costs by agent; the counts are from the ledger.

    The cost assumes the exchanges in order. Delivered concurrently they may arrive in another order, and the first one pays for filling
    the cache, so costs by agent differ a little between runs.
    """
    cells = [
        [
            agents[row["project"]],
            f"{row['calls']:,}",
            f"{_prompt(row):,}",
            f"{row['output_tokens']:,}",
            f"${configured.by_agent[agents[row['project']]].usd:.3f}",
        ]
        for row in sorted(ledger, key=lambda row: agents[row["project"]])
    ]
    calls, prompt, output = _recorded(ledger)
    cells.append(["all", f"{calls:,}", f"{prompt:,}", f"{output:,}", f"${configured.usd:.3f}"])
    numbers = ["calls", "tokens read", "written", "cost"]
    return table(["agent", *numbers], cells, right=numbers)


def _variants_table(bills: Mapping[str, Bill]) -> RenderableType:
    least = bills["as configured"].nano
    cells = [
        [
            name,
            f"{one.calls.total():,}",
            *(f"{one.calls[tier]:,}" for tier in _TIERS),
            f"{one.input_tokens:,}",
            f"{one.cached_tokens:,}",
            f"{one.output_tokens:,}",
            f"${one.usd:.4f}",
            f"{one.nano / least:.2f}" if least else "",
        ]
        for name, one in bills.items()
    ]
    numbers = ["calls", "tier 2", "tier 2.5", "tier 3", "tokens read", "from cache", "written", "cost", "times"]
    return table(["", *numbers], cells, right=numbers, cut_last=True)


def _compared(ledger: Ledger, configured: Bill) -> str:
    """Tell whether the bill equals the ledger."""
    usd = sum(row["cost_usd"] or 0.0 for row in ledger)
    calls, *tokens = _recorded(ledger)
    again = calls - sum(row["judgements"] for row in ledger)
    if [calls, *tokens] == [configured.calls.total(), configured.input_tokens, configured.output_tokens]:
        found = "the bill as configured agrees with it, to the token"
    else:
        found = f"{again} of them were made again" if again else "some of them took another path"
    return f"The server's ledger has {calls:,} calls for ${usd:.4f}: {found}."


def _prompt(row: Mapping[str, Any]) -> int:
    """Count every token that was read, cached or not."""
    return int(row["input_tokens"] + row["cache_write_tokens"] + row["cache_read_tokens"])


def _recorded(ledger: Ledger) -> tuple[int, int, int]:
    """Count calls, tokens read and tokens written."""
    return (
        sum(row["calls"] for row in ledger),
        sum(map(_prompt, ledger)),
        sum(row["output_tokens"] for row in ledger),
    )
