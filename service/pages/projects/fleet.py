"""The fleet: every project as a card or a row, the worst first, and all of them at a glance."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.documents.project_checks import RECENT_DAYS, check_words
from service.documents.project_health import anomalous_share, unscored_share
from service.http.context import Services
from service.http.routes.projects import project_rows
from service.pages.links import Links
from service.pages.projects.wording import reason_words
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.pages.words import TERMS

router = APIRouter(include_in_schema=False)
View = Literal["cards", "table"]
_WORST = {"critical": 4, "warning": 3, "unknown": 2, "ok": 1, "empty": 0}
_GLANCE = 24
"""Beyond this many projects, each has a square of its colour above the list."""
BEGINNING = 60
"""Projects in the first answer, the worst ones; the browser asks for all of them at once afterwards."""


@router.get("/")
async def fleet(
    request: Request,
    viewer: Viewer,
    services: Services,
    view: Annotated[View, Query(description="As cards, or as a table of narrow rows.")] = "cards",
    *,
    whole: Annotated[bool, Query(description="Every project, not only the worst ones.")] = False,
) -> HTMLResponse:
    """Show the projects that the operator may see: a square of each, and the worst, or all, with their figures."""
    found = await project_rows(services, viewer.project)
    rows = sorted(({**row, "rate": anomalous_share(row)} for row in found), key=_worst_first)
    last = len(rows) if whole else BEGINNING
    has_judge = services.engine.has_judge
    values = {
        "cards": [_card(row, len(rows) - place, has_judge=has_judge) for place, row in enumerate(rows[:last])],
        "projects": len(rows),
        "days": RECENT_DAYS,
        "totals": _totals(rows),
        "healths": tuple(_WORST),
        "view": view,
        "glance": [_square(row, has_judge=has_judge) for row in rows] if len(rows) > _GLANCE else [],
    }
    return page(request, "fleet.html", values)


def _card(row: dict[str, Any], worst: int, *, has_judge: bool) -> dict[str, Any]:
    """Return the values of a card; `worst` is larger the worse the project is."""
    return {
        **row,
        "worst": worst,
        "unscored_rate": unscored_share(row),
        "why": reason_words(row, RECENT_DAYS, has_judge=has_judge),
        "tiers": _tiers(row),
        "check": check_words(row) if row["scores"] and "unchecked" not in row["reasons"] else "",
        "newest": max([at for at in (row["last_exchange_at"], row["last_run_at"]) if at], default=None),
        "link": Links().project(row["project"]),
    }


def _square(row: dict[str, Any], *, has_judge: bool) -> tuple[str, str, str]:
    """Return the values of a project's square: its link, its health, and its words."""
    incidents = f", {row['open_incidents']} open" if row["open_incidents"] else ""
    incidents += f", {row['suspected_incidents']} suspected" if row["suspected_incidents"] else ""
    why = reason_words(row, RECENT_DAYS, has_judge=has_judge) if row["reasons"] else []
    words = "; ".join((f"{row['project']}: {TERMS[row['health']]}{incidents}", *why))
    return Links().project(row["project"]), row["health"], words


def _worst_first(card: dict[str, Any]) -> tuple[Any, ...]:
    """Order by health, then open incidents, then number of reasons, then share of anomalies."""
    grave = (
        _WORST[card["health"]],
        card["critical_incidents"],
        card["open_incidents"],
        len(card["reasons"]),
        card["rate"] or 0,
    )
    return (*(-one for one in grave), card["project"])


def _tiers(row: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the means of the last days: of the judge's tiers, or of Tier 1 if no judge was asked."""
    judged = [(name, row[f"recent_{tier}"]) for name, tier in (("Tier 2", "tier2"), ("Tier 3", "tier3"))]
    known = [(name, mean) for name, mean in judged if mean is not None]
    return known or ([("Tier 1", row["recent_tier1"])] if row["recent_tier1"] is not None else [])


def _totals(cards: list[dict[str, Any]]) -> dict[str, int]:
    counts = {health: sum(card["health"] == health for card in cards) for health in _WORST}
    sums = {
        name: sum(card[name] for card in cards)
        for name in ("open_incidents", "suspected_incidents", "exchanges", "scored", "anomalies", "simulated")
    }
    return counts | sums
