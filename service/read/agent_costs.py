"""What the models of agents cost, by project, agent, version, model or day: the tokens of exchanges at the list price.

The tokens that a model read include those from a cache, which are cheaper, and sources do not tell their number: a cost is at most that sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta

from analytics.sums.daily import query_days
from audit.cost import ModelPrice, Usage, price_of, usd_of
from schemas.lazy import duckdb
from service.read.cold_days import OmittedDays
from service.text.answers import Answer, Moment, NextCursor

Row = Mapping[str, Any]
DEFAULT_PERIOD = timedelta(days=30)
"""The period of sums for which none is requested. Sums are made from the exchanges, not from daily sums."""
GROUPS = ("day", "project", "agent", "version", "model")
"""What costs can be grouped by."""


class AgentCost(Answer, frozen=True):
    """The cost of a group of exchanges for the models that answered; fields that do not identify the group are null, as are unknown ones."""

    day: date | None
    project: str | None
    agent: str | None
    version: Annotated[str | None, Meta(description="The label `agent_version`.")]
    model: str | None
    exchanges: int
    unknown_tokens: Annotated[
        int, Meta(description="Exchanges whose source does not tell their tokens, which the sums leave out.")
    ]
    unknown_prices: Annotated[int, Meta(description="Exchanges of models without a known price, which the cost leaves out.")]
    input_tokens: Annotated[int, Meta(description="Including those from a cache.")]
    output_tokens: int
    cost_usd: Annotated[
        float | None, Meta(description="At most this, because cached tokens are cheaper; null if no price is known.")
    ]


class AgentCostList(Answer, frozen=True):
    """Groups: days in order of time, all other groups by falling cost."""

    costs: list[AgentCost]
    count: int
    next_cursor: NextCursor
    cold_days: OmittedDays
    start: Annotated[Moment, Meta(description="Start of the period, inclusive.")]
    end: Annotated[Moment, Meta(description="End of the period, exclusive.")]
    cost_usd: Annotated[float | None, Meta(description="Cost of all groups, as far as prices are known; null if none is.")]
    judging_usd: Annotated[
        float | None, Meta(description="Cost of judging in the same period; null if there was none or none is known.")
    ]


def read_agent_costs(
    cursor: duckdb.DuckDBPyConnection,
    project: str | None,
    start: datetime,
    end: datetime,
    prices: Mapping[str, ModelPrice],
    *,
    unit: str = "day",
) -> list[dict[str, Any]]:
    """Return the rows of the query `agent_tokens` in a period, each with `cost_usd`; `prices` override the shipped ones.

    `project` None stands for all, and `unit` is hour or day.
    """
    rows = query_days(cursor, "agent_tokens", {"project": project, "by": unit, "from": start, "to": end})
    known_prices = {model: price_of(model, prices) for model in {row["model"] for row in rows} if model is not None}
    return [{**row, "cost_usd": _price_tokens(row, known_prices.get(row["model"]))} for row in rows]


def sum_agent_costs(rows: Sequence[Row], by: Sequence[str]) -> list[AgentCost]:
    """Sum rows by some of GROUPS: days in order of time, other groups most expensive first, unknown costs last."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        named = {**row, "day": row["period"].date()}
        groups[tuple(named[name] if name in by else None for name in GROUPS)].append(row)
    costs = [_sum_group(dict(zip(GROUPS, names, strict=True)), group) for names, group in groups.items()]
    if by == ["day"]:
        return sorted(costs, key=lambda cost: cost.day or date.min)
    return sorted(costs, key=lambda cost: (-(cost.cost_usd or 0.0), -cost.input_tokens, str(cost)))


def sum_known_usd(rows: Sequence[Row]) -> float | None:
    """Return the sum of the known costs; None if none is known."""
    costs = [row["cost_usd"] for row in rows if row["cost_usd"] is not None]
    return sum(costs) if costs else None


def _sum_group(names: Row, rows: Sequence[Row]) -> AgentCost:
    return AgentCost(
        **names,
        **{
            count: sum(row[count] for row in rows) for count in ("exchanges", "unknown_tokens", "input_tokens", "output_tokens")
        },
        unknown_prices=sum(row["exchanges"] for row in rows if row["cost_usd"] is None),
        cost_usd=sum_known_usd(rows),
    )


def _price_tokens(row: Row, price: ModelPrice | None) -> float | None:
    cost = None if price is None else price.cost_of_calls(Usage(row["input_tokens"], row["output_tokens"]))
    return None if cost is None else usd_of(cost)
