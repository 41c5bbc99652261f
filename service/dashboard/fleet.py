"""The fleet: every project as a card or a row, the worst first, and all of them at a glance."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.api.context import Services
from service.api.projects import RECENT_DAYS, health_of, project_rows
from service.dashboard.links import Links
from service.dashboard.rendering import page
from service.dashboard.viewing import Viewer

router = APIRouter(include_in_schema=False)
View = Literal["cards", "table"]
_WORST = {"critical": 3, "warning": 2, "ok": 1, "empty": 0}
_GLANCE = 24
"""Beyond so many projects each has a square of its colour above the list."""


@router.get("/")
async def fleet(
    request: Request,
    viewer: Viewer,
    services: Services,
    view: Annotated[View, Query(description="As cards, or as a table of narrow rows.")] = "cards",
) -> HTMLResponse:
    """The projects that the operator may see."""
    rows = await project_rows(services, viewer.project)
    cards = sorted((_card(row) for row in rows), key=lambda card: (-card["worst"], card["project"]))
    values = {
        "cards": cards,
        "days": RECENT_DAYS,
        "totals": _totals(cards),
        "healths": tuple(_WORST),
        "view": view,
        "glance": len(cards) > _GLANCE,
    }
    return page(request, "fleet.html", values)


def _card(row: dict[str, Any]) -> dict[str, Any]:
    """What a card shows; `worst` orders: health, then open incidents, then the share of anomalies."""
    recent, anomalies = row["recent_scores"], row["recent_anomalies"]
    rate = anomalies / recent if recent else None
    health = health_of(row)
    worst = _WORST[health] * 1_000_000 + row["critical_incidents"] * 10_000 + row["open_incidents"] * 100 + 99 * (rate or 0)
    link = Links().project(row["project"])
    return {**row, "health": health, "rate": rate, "worst": round(worst, 3), "tiers": _tiers(row), "link": link}


def _tiers(row: dict[str, Any]) -> list[tuple[str, float]]:
    """The means of the last days: of the judge's tiers, or of Tier 1 where no judge was asked."""
    judged = [(name, row[f"recent_{tier}"]) for name, tier in (("Tier 2", "tier2"), ("Tier 3", "tier3"))]
    known = [(name, mean) for name, mean in judged if mean is not None]
    return known or ([("Tier 1", row["recent_tier1"])] if row["recent_tier1"] is not None else [])


def _totals(cards: list[dict[str, Any]]) -> dict[str, int]:
    counts = {health: sum(card["health"] == health for card in cards) for health in _WORST}
    sums = {
        name: sum(card[name] for card in cards) for name in ("open_incidents", "exchanges", "scored", "anomalies", "simulated")
    }
    return counts | sums
