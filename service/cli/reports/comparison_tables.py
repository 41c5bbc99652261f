"""Tables of `driftline compare`: origin of the scores, headline, measures, states, exchanges and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from audit.exchanges.states import SCORED
from service.cli.reports.comparison_wording import (
    ESTIMATED,
    asked,
    change,
    headline,
    how_sure,
    in_common,
    judged_by,
    level,
    made_by,
    measure_name,
    verdict,
)
from service.cli.reports.moved_exchanges import moved_view
from service.cli.terminal import table
from service.cli.views import TIER_STATES
from service.text.plain import MISSING

Row = Mapping[str, Any]
Labels = tuple[str, str]
STYLES = {"lower": "yellow", "higher": "cyan"}


def comparison_view(document: Row) -> RenderableType:
    """Show the whole comparison; equal parts are left out."""
    labels = (document["a"]["label"], document["b"]["label"])
    parts: list[RenderableType] = [Text(line) for line in (*made_by(document), *in_common(document))]
    parts += ["", Text(headline(document), style="bold")]
    if any(row["changed"] for row in document["measures"]):
        parts += [Text(how_sure(document)), "", _measures_table(document["measures"], labels), Text(ESTIMATED, style="dim")]
    changed = {row["tier"] for row in document["states"] if row["state_a"] != row["state_b"]}
    if changed:
        states = [row for row in document["states"] if row["tier"] in changed]
        parts += ["", Text(f"States of the tiers: {labels[0]} down, {labels[1]} across", style="bold"), _states_table(states)]
    if document["moved"]:
        parts += ["", Text("Exchanges that moved most, on a scale of 1", style="bold"), *moved_view(document["moved"], labels)]
    heading = Text("Cost of judging the exchanges in both", style="bold")
    costs = _costs_table(document["exchanges"], labels)
    return Group(*parts, "", heading, costs, *(Text(line) for line in asked(document)))


def _measures_table(measures: Sequence[Row], labels: Labels) -> RenderableType:
    numbers = ["exchanges", "sessions", *labels, "change", "95 % interval"]
    return table(["project", "measure", *numbers, "moved"], map(_measure_cells, measures), right=numbers, cut_last=True)


def _measure_cells(row: Row) -> list[object]:
    word = verdict(row)
    shown = [row["project"], measure_name(row), f"{row['exchanges']:,}", f"{row['sessions']:,}"]
    shown += [level(row, row["mean_a"]), level(row, row["mean_b"])]
    if word == "same":
        return [*shown, MISSING, MISSING, Text(word, style="dim")]
    ends = MISSING if row["low"] is None else f"{change(row, row['low'])} to {change(row, row['high'])}"
    return [*shown, change(row, row["change"]), ends, Text(word, style=STYLES.get(word, "dim"))]


def _states_table(states: Sequence[Row]) -> RenderableType:
    """Show a line per state of a tier on the first side, a column per state on the second."""
    found = {row["state_a"] for row in states} | {row["state_b"] for row in states}
    order = [state for state in (SCORED, *TIER_STATES) if state in found]
    across = [state for state in order if state in {row["state_b"] for row in states}]
    counts = {(row["tier"], row["state_a"], row["state_b"]): row["exchanges"] for row in states}
    down = sorted({(tier, state) for tier, state, _ in counts}, key=lambda one: (one[0], order.index(one[1])))
    cells = [[f"tier {tier}", state, *(f"{counts.get((tier, state, other), 0):,}" for other in across)] for tier, state in down]
    return table(["tier", "state", *across], cells, right=across, cut_last=True)


def _costs_table(exchanges: Sequence[Row], labels: Labels) -> RenderableType:
    """Show the cost per project and side on a line; with several projects, the sum of each side below."""
    rows = [*exchanges, *([_sum_of(exchanges)] if len(exchanges) > 1 else [])]
    cells = [_cost_cells(row, label, side) for row in rows for label, side in zip(labels, ("a", "b"), strict=True)]
    numbers = ["exchanges", "judged", "anomalous", "cost", "an exchange"]
    return table(["project", "side", *numbers, "judge"], cells, right=numbers, cut_last=True)


def _cost_cells(row: Row, label: str, side: str) -> list[object]:
    usd, unknown, exchanges = row[f"cost_usd_{side}"], row[f"unknown_costs_{side}"], row["in_both"]
    known = exchanges - unknown
    cost = f"${usd:.4f}" if known or not exchanges else MISSING
    return [
        row["project"],
        label,
        f"{exchanges:,}",
        f"{row[f'judged_{side}']:,}",
        f"{row[f'anomalies_{side}']:,}",
        cost + (f" + {unknown:,} unknown" if unknown else ""),
        f"${usd / known:.5f}" if known else MISSING,
        judged_by(row, side),
    ]


def _sum_of(exchanges: Sequence[Row]) -> Row:
    return {name: sum(row[name] for row in exchanges) for name in exchanges[0] if name != "project"} | {"project": "all"}
