"""What the models of a project's agents cost, by agent, version and model: the tokens of exchanges at the list price.

The tokens that a model read include those from a cache, which are cheaper, and sources do not tell their number: a cost is at most that sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analytics.sums.daily import query_days
from audit.cost import ModelPrice, Usage, price_of, usd_of
from schemas.lazy import duckdb
from service.text.window import Window

Row = Mapping[str, Any]


class AgentCost(NamedTuple):
    """The exchanges of a version of an agent with a model in a period. Each name is None where the source does not tell it."""

    agent: str | None
    version: str | None
    model: str | None
    exchanges: int
    unknown_tokens: int
    """Exchanges without known tokens, which the sums leave out."""
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None if the price of the model is unknown."""


def read_agent_costs(
    cursor: duckdb.DuckDBPyConnection, project: str, window: Window, prices: Mapping[str, ModelPrice]
) -> list[dict[str, Any]]:
    """Return the rows of the query `agent_tokens` in a window, each with `cost_usd`; `prices` override the shipped ones."""
    unit = "hour" if window.is_hourly else "day"
    rows = query_days(cursor, "agent_tokens", {"project": project, "by": unit, "from": window.start, "to": window.end})
    known_prices = {model: price_of(model, prices) for model in {row["model"] for row in rows} if model is not None}
    return [{**row, "cost_usd": _price_tokens(row, known_prices.get(row["model"]))} for row in rows]


def sum_by_agent(rows: Sequence[Row]) -> list[AgentCost]:
    """Sum rows over their periods, most expensive first; unknown costs come last."""
    groups: dict[tuple[str | None, str | None, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["agent"], row["version"], row["model"]].append(row)
    counts = ("exchanges", "unknown_tokens", "input_tokens", "output_tokens")
    costs = [
        AgentCost(*names, **{count: sum(row[count] for row in group) for count in counts}, cost_usd=_sum_costs(group))
        for names, group in groups.items()
    ]
    return sorted(costs, key=lambda cost: (-(cost.cost_usd or 0.0), -cost.input_tokens, str(cost[:3])))


def _price_tokens(row: Row, price: ModelPrice | None) -> float | None:
    cost = None if price is None else price.cost_of_calls(Usage(row["input_tokens"], row["output_tokens"]))
    return None if cost is None else usd_of(cost)


def _sum_costs(rows: Sequence[Row]) -> float | None:
    """Return the sum of costs of one model, which are all known or all unknown."""
    costs = [row["cost_usd"] for row in rows]
    return None if None in costs else sum(costs)
