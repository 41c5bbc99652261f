"""What judging cost, agent by agent, and what it would have cost with each saving off: tables for the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from audit.policy import ProjectSettings
from schemas.records import Exchange, SessionClosed
from service.report import heading
from service.savings import VARIANTS, Answers, Bill, bill
from service.terminal import table
from service.views import SIMULATED

_TIERS = ("tier2", "tier2_5", "tier3")
Ledger = Sequence[Mapping[str, Any]]
"""Rows of the query `judge_costs`, by project."""


def cost_report(
    ledger: Ledger, agents: Mapping[str, str], records: Sequence[Exchange | SessionClosed], settings: ProjectSettings
) -> RenderableType:
    """What the recorded calls cost and what they would have cost; `agents` has the agent of each project of the ledger."""
    answers: Answers = {}
    bills = {name: bill(records, settings, savings, answers) for name, savings in VARIANTS.items()}
    configured = bills["as configured"]
    return Group(
        heading(f"What judging cost at the prices of {settings.judge_model}; {SIMULATED}, so nothing was paid"),
        _agents_table(ledger, agents, configured),
        heading("What it would have cost (the same exchanges in the same order, each saving on or off)"),
        _variants_table(bills),
        Text(_compared(ledger, configured), style="dim"),
    )


def _agents_table(ledger: Ledger, agents: Mapping[str, str], configured: Bill) -> RenderableType:
    """What is counted is from the ledger.

    The cost is that of the exchanges in order. Side by side they may come in another, and who comes first pays for filling the
    cache, so by agent the ledger differs a little from run to run.
    """
    cells = [
        [
            agents[row["project"]],
            f"{row['calls']:,}",
            f"{_prompt(row):,}",
            f"{row['output_tokens']:,}",
            f"${configured.by_agent[agents[row['project']]].usd:.4f}",
        ]
        for row in sorted(ledger, key=lambda row: agents[row["project"]])
    ]
    calls, prompt, output = _recorded(ledger)
    cells.append(["all", f"{calls:,}", f"{prompt:,}", f"{output:,}", f"${configured.usd:.4f}"])
    numbers = ["calls", "input tokens", "output tokens", "cost"]
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
    numbers = ["calls", "tier 2", "tier 2.5", "tier 3", "input tokens", "from cache", "output tokens", "cost", "times as much"]
    return table(["", *numbers], cells, right=numbers)


def _compared(ledger: Ledger, configured: Bill) -> str:
    """Whether the bill is that of the ledger."""
    worked_out = (configured.calls.total(), configured.input_tokens, configured.output_tokens)
    usd = sum(row["cost_usd"] or 0.0 for row in ledger)
    calls = f"The server's ledger has {_recorded(ledger)[0]:,} calls for ${usd:.4f}"
    same = worked_out == _recorded(ledger) and f"{usd:.4f}" == f"{configured.usd:.4f}"
    return f"{calls}: " + ("the bill as configured agrees with it, to the token." if same else "some calls went another way.")


def _prompt(row: Mapping[str, Any]) -> int:
    """Every token that was read, from the cache or not."""
    return int(row["input_tokens"] + row["cache_write_tokens"] + row["cache_read_tokens"])


def _recorded(ledger: Ledger) -> tuple[int, int, int]:
    """Calls, tokens read and tokens written."""
    return (
        sum(row["calls"] for row in ledger),
        sum(map(_prompt, ledger)),
        sum(row["output_tokens"] for row in ledger),
    )
