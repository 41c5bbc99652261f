"""The fleet: every project as a card, the worst first."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from service.api.context import Services
from service.api.projects import RECENT_DAYS, health_of, project_rows
from service.dashboard.rendering import page
from service.dashboard.viewing import Viewer

router = APIRouter(include_in_schema=False)
_WORST = {"critical": 3, "warning": 2, "ok": 1, "empty": 0}


@router.get("/")
async def fleet(request: Request, viewer: Viewer, services: Services) -> HTMLResponse:
    """The projects that the operator may see."""
    rows = await project_rows(services, viewer.project)
    cards = sorted((_card(row) for row in rows), key=lambda card: (-card["worst"], card["project"]))
    return page(request, "fleet.html", {"cards": cards, "days": RECENT_DAYS, "totals": _totals(cards)})


def _card(row: dict[str, Any]) -> dict[str, Any]:
    """What a card shows; `worst` orders: health, then open incidents, then the share of anomalies."""
    recent, anomalies = row["recent_scores"], row["recent_anomalies"]
    rate = anomalies / recent if recent else None
    health = health_of(row)
    worst = _WORST[health] * 1_000_000 + row["critical_incidents"] * 10_000 + row["open_incidents"] * 100 + 99 * (rate or 0)
    return {**row, "health": health, "rate": rate, "worst": round(worst, 3)}


def _totals(cards: list[dict[str, Any]]) -> dict[str, int]:
    counts = {health: sum(card["health"] == health for card in cards) for health in _WORST}
    sums = {name: sum(card[name] for card in cards) for name in ("open_incidents", "exchanges", "recent_scores")}
    return counts | sums
