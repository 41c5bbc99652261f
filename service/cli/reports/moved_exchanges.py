"""The exchanges that changed most between two scorings: each side's scores, and its reason for the largest change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from audit.exchanges.states import SCORED
from service.cli.reports.comparison_wording import SPANS
from service.cli.views import TIER_STATES
from service.text.plain import plain

Row = Mapping[str, Any]
Labels = tuple[str, str]
TIERS = ("tier1", "tier2", "tier2_5", "tier3")
REASON = 160
"""Characters of a reason that are shown."""
SIDES = ("a", "b")


def moved_view(moved: Sequence[Row], labels: Labels) -> Iterator[RenderableType]:
    """Show each exchange with its place, and below it each side's scores with the reason for the largest change."""
    width = max(map(len, labels))
    for row in moved:
        place = f"{plain(row['project'], 64)}  session {plain(row['session_id'], 64)} turn {row['turn_number']}"
        yield Text(
            f"{row['moved']:.2f}  {place}  exchange {plain(row['exchange_id'], 64)}  {row['exchange_at']:%Y-%m-%d %H:%M}"
        )
        for label, side, reason in zip(labels, SIDES, _reasons(row), strict=True):
            tiers = " ".join(f"{_tier(row, tier, side):>4}" for tier in TIERS)
            flag = "anomalous" if row[f"anomaly_{side}"] else ""
            yield Text(
                f"      {label:<{width}}  tiers 1, 2, 2.5, 3: {tiers}  {flag:<9}  {plain(reason, REASON)}".rstrip(), style="dim"
            )


def _tier(row: Row, tier: str, side: str) -> str:
    state = row.get(f"{tier}_state_{side}", SCORED)
    value = row[f"{tier}_{side}"]
    return f"{value:.2f}" if state == SCORED and value is not None else TIER_STATES.get(state, plain(state))


def _reasons(row: Row) -> tuple[str, str]:
    """Return each side's reason for the largest change."""
    tier = max(TIERS, key=lambda one: _shift(row, one))
    if not _shift(row, tier):
        return _side_words(lambda side: "; ".join(row[f"anomaly_reasons_{side}"]))
    if tier == "tier1":
        return _side_words(lambda side: ", ".join(row[f"tier1_flags_{side}"]))
    if tier == "tier2_5":
        return _side_words(lambda side: row[f"tier2_5_reasoning_{side}"] or "")
    return _dimension_words(row, tier)


def _shift(row: Row, tier: str) -> float:
    """Return the change of a tier as a fraction of its scale; 0 if one side has no number."""
    values = [row[f"{tier}_{side}"] for side in SIDES if row.get(f"{tier}_state_{side}", SCORED) == SCORED]
    if len(values) < 2 or None in values:
        return 0.0
    return float(abs(values[1] - values[0])) / SPANS.get(tier.removeprefix("tier"), 1.0)


def _side_words(words: Callable[[str], str]) -> tuple[str, str]:
    """Describe the scores of each side."""
    first, second = map(words, SIDES)
    return first, second


def _dimension_words(row: Row, tier: str) -> tuple[str, str]:
    """Quote each side on the dimension that changed most, with its score."""
    sides = [{one["dimension"]: one for one in row[f"{tier}_dimensions_{side}"]} for side in SIDES]
    both = [name for name in sides[0] if name in sides[1]]
    if not both:
        return "", ""
    most = max(both, key=lambda name: abs(sides[1][name]["score"] - sides[0][name]["score"]))
    first, second = (f"{most} {side[most]['score']:g}: {side[most]['reasoning'] or ''}".rstrip(": ") for side in sides)
    return first, second
