"""The fleet: projects as cards or rows, the worst first, and all of them at a glance."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from service.pages.charts.spark import spark
from service.pages.lists.listing import asked_of
from service.pages.projects.fleet_list import FLEET, VIEWS, orders, page_of_fleet
from service.pages.projects.wording import age_words, newest_of, reason_words
from service.pages.rendering import number, page, share
from service.pages.viewing import Viewer
from service.read.fleet.changes import LEVEL_DAYS, Change
from service.read.fleet.order import WORST, standings, worst_first
from service.read.project_checks import RECENT_DAYS, blind_spots, check_words, last_until
from service.read.project_health import anomalous_share, unscored_share
from service.text.links import Links
from service.text.window import RECENT
from service.text.words import TERMS
from service.web.context import Services
from service.web.projects import project_rows, rows_with_changes, worst_of
from streams.watch.measured import TIERS

router = APIRouter(include_in_schema=False)
SCALES = {"tier1": "0 to 1", "tier2": "0 to 1", "tier2_5": "0 to 1", "tier3": "1 to 5"}
"""The scales of the tiers."""
_GLANCE = 24
"""Beyond this many projects, each has a square of its colour above the list."""
_SUMS = (
    *("open_incidents", "acknowledged_incidents", "suspected_incidents", "simulated"),
    *("recent_scores", "before_scores", "recent_anomalies", "before_anomalies"),
)
"""What is added up over all projects."""


@router.get("/")
async def fleet(request: Request, viewer: Viewer, services: Services) -> HTMLResponse:
    """Show a page of the projects that the operator may see, with what changed, and sums and a square of all of them."""
    asked = asked_of(FLEET, request.query_params, request.url.path)
    rows = await project_rows(services, viewer.project)
    worst = await worst_of(services, rows, viewer.project)
    places = standings(rows, worst)
    found = page_of_fleet(rows, asked, places)
    has_judge = services.engine.has_judge
    shown = await rows_with_changes(services, found.listing.rows, viewer.project)
    now = services.engine.now()
    blind = await services.ask(lambda cursor: blind_spots(cursor, shown, viewer.project))
    cards = [_card(row, now, has_judge=has_judge) | {"blind": blind[row["project"]]} for row in shown]
    newest = max((at for at in map(newest_of, rows) if at is not None), default=None)
    values = {
        "cards": cards,
        "listing": found.listing,
        "asked": asked,
        "start": found.start,
        "found": found.total,
        "tiers": TIERS,
        "scales": [(tier, SCALES[tier]) for tier in TIERS if any(tier in _terms(card) for card in cards)],
        "projects": len(rows),
        "days": RECENT_DAYS,
        "newest": newest,
        "newest_age": age_words(newest, now),
        "totals": _totals(rows),
        "healths": tuple(WORST),
        "orders": orders(asked),
        "views": VIEWS,
        "view": asked.values["view"] or "cards",
        "glance": _glance(worst_first(rows, places), has_judge=has_judge) if len(rows) > _GLANCE else [],
    }
    return page(request, "fleet.html", values, forms=True)


def _card(row: dict[str, Any], now: datetime, *, has_judge: bool) -> dict[str, Any]:
    """Return the values of a card."""
    return {
        **row,
        "rate": anomalous_share(row),
        "changed": change_view(row, row["change"]),
        "mixed": days_before(row["change"], row["recent_until"]),
        "unscored_rate": unscored_share(row),
        "rate_before": anomalous_share(row, "before"),
        "unscored_rate_before": unscored_share(row, "before"),
        "newest": newest_of(row),
        "age": age_words(newest_of(row), now),
        "last_address": _last_address(row),
        "why": reason_words(row, RECENT_DAYS, has_judge=has_judge),
        "tiers": _tiers(row),
        "check": check_words(row) if row["scores"] and "unchecked" not in row["reasons"] else "",
        "link": Links().project(row["project"]),
    }


def _last_address(row: dict[str, Any]) -> str | None:
    """Return the address of the last days with a score, of a project that has none in its recent days; None otherwise."""
    newest = last_until(row)
    return None if newest is None else Links({"window": RECENT, "until": f"{newest}"}).project(row["project"])


def _terms(card: dict[str, Any]) -> set[str]:
    """Return the tiers that a card names."""
    changed = card["changed"]
    return {tier for tier, _mean, _before in card["tiers"]} | ({changed["term"]} if changed else set())


def _glance(rows: list[dict[str, Any]], *, has_judge: bool) -> list[tuple[str, str, str]]:
    """Return the values of the projects' squares."""
    links = Links()
    return [_square(row, links, has_judge=has_judge) for row in rows]


def _square(row: dict[str, Any], links: Links, *, has_judge: bool) -> tuple[str, str, str]:
    """Return the values of a project's square: its link, its health, and its words."""
    incidents = f", {row['open_incidents']} open" if row["open_incidents"] else ""
    incidents += f", {row['suspected_incidents']} suspected" if row["suspected_incidents"] else ""
    why = reason_words(row, RECENT_DAYS, has_judge=has_judge)
    words = "; ".join((f"{row['project']}: {TERMS[row['health']]}{incidents}", *why))
    return links.project(row["project"]), row["health"], words


def change_view(row: dict[str, Any], change: Change | None) -> dict[str, Any] | None:
    """Return the change of a project in words, with its small chart and the link to its incident; None without one."""
    if change is None:
        return None
    digits = 1 if change.series == "trust" else 2
    before, after = (share(one) if change.is_share else number(one, digits) for one in (change.before, change.after))
    since = None if change.since is None else day_words(change.since, row["recent_until"])
    words = f"{TERMS.get(change.series) or 'The series'} by day, {LEVEL_DAYS} days to {row['recent_until']}: {_ends(change)}"
    return {
        "name": change.name,
        "term": change.series if change.series in TIERS else None,
        "levels": after if before == after else f"{before} → {after}",
        "since": since,
        "now": "" if change.now is None else share(change.now) if change.is_share else number(change.now, digits),
        "worse": change.incident is not None and change.worse > 0 and not change.is_back,
        "is_back": change.is_back,
        "link": change.incident and Links().incident(row["project"], change.incident),
        "spark": spark(change.levels, words),
    }


def _ends(change: Change) -> str:
    known = [one for one in change.levels if one is not None]
    first, last = (share(one) if change.is_share else number(one, 2) for one in (known[0], known[-1])) if known else ("", "")
    return f"first {first}, last {last}"


def days_before(change: Change | None, until: date | None) -> str:
    """Say how many of the last days lie before the first day of an incident: their mean then is of both; empty if none or all do."""
    if change is None or change.since is None or until is None:
        return ""
    after = (until - change.since).days + 1
    before = RECENT_DAYS - after
    return f"{before} of them before the change" if 0 < before < RECENT_DAYS else ""


def day_words(day: date, newest: date | None) -> str:
    """Return a day as in 28 Oct, with its year if it is not that of the newest day."""
    return f"{day.day} {day:%b}" if newest is not None and day.year == newest.year else f"{day.day} {day:%b %Y}"


def _tiers(row: dict[str, Any]) -> list[tuple[str, float, float | None]]:
    """Return the means of the last days and of those before: of the judge's tiers, or of Tier 1 if no judge was asked."""
    means = [(tier, row[f"recent_{tier}"], row[f"before_{tier}"]) for tier in ("tier1", "tier2", "tier3")]
    judged = [one for one in means[1:] if one[1] is not None]
    return judged or [one for one in means[:1] if one[1] is not None]


def _totals(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Count the projects of each health, and add up their numbers."""
    counts = dict.fromkeys(WORST, 0) | Counter(row["health"] for row in rows)
    return counts | {name: sum(row[name] for row in rows) for name in _SUMS}
