"""The fleet: projects as cards or rows, worst first, and all of them at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from audit.drift.watched_series import TIERS
from service.pages.charts.spark import spark
from service.pages.lists.listing import asked_of
from service.pages.projects.fleet_list import FLEET, VIEWS, orders, page_of_fleet
from service.pages.projects.wording import age_words, reason_words
from service.pages.rendering import number, page, share
from service.pages.viewing import Viewer
from service.read.project import (
    LEVEL_DAYS,
    RECENT_DAYS,
    WORST,
    Change,
    Project,
    check_words,
    standings,
    with_blind_spots,
    worst_first,
)
from service.text.links import Links
from service.text.window import RECENT
from service.text.words import TERMS
from service.web.context import Services
from service.web.projects import projects_of, with_their_changes, worst_of

router = APIRouter(include_in_schema=False)
SCALES = {"tier1": "0 to 1", "tier2": "0 to 1", "tier2_5": "0 to 1", "tier3": "1 to 5"}
"""The scales of the tiers."""
_GLANCE = 24
"""Above this many projects, squares in the colour of their health are shown above the list."""


@router.get("/")
async def fleet(request: Request, viewer: Viewer, services: Services) -> HTMLResponse:
    """Show a page of the projects that the operator may see, with what changed, and sums and a square of all of them."""
    asked = asked_of(FLEET, request.query_params, request.url.path)
    projects = await projects_of(services, viewer.project)
    places = standings(projects, await worst_of(services, projects, viewer.project))
    found = page_of_fleet(projects, asked, places)
    has_judge = services.engine.has_judge
    shown = await with_their_changes(services, found.projects, viewer.project)
    told = await services.ask(lambda cursor: with_blind_spots(cursor, shown, viewer.project))
    now = services.engine.now()
    cards = [_card(project, now, has_judge=has_judge) for project in told]
    newest = max((project.newest for project in projects if project.newest is not None), default=None)
    values = {
        "cards": cards,
        "listing": found.listing,
        "asked": asked,
        "start": found.start,
        "found": found.total,
        "tiers": TIERS,
        "scales": [(tier, SCALES[tier]) for tier in TIERS if any(tier in _terms(card) for card in cards)],
        "projects": len(projects),
        "days": RECENT_DAYS,
        "newest": newest,
        "newest_age": age_words(newest, now),
        "totals": _totals(projects),
        "healths": tuple(WORST),
        "orders": orders(asked),
        "views": VIEWS,
        "view": asked.values["view"] or "cards",
        "glance": _glance(worst_first(projects, places), has_judge=has_judge) if len(projects) > _GLANCE else [],
    }
    return page(request, "fleet.html", values, forms=True)


def _card(project: Project, now: datetime, *, has_judge: bool) -> dict[str, Any]:
    """Return the values of a card."""
    last = project.recent.last_until
    return {
        "of": project,
        "changed": change_view(project, project.change),
        "mixed": days_before(project.change, project.recent.until),
        "age": age_words(project.newest, now),
        "last_address": None if last is None else Links({"window": RECENT, "until": f"{last}"}).project(project.project),
        "why": reason_words(project, has_judge=has_judge),
        "tiers": _tiers(project),
        "check": check_words(project) if project.scores and "unchecked" not in project.reasons else "",
        "link": Links().project(project.project),
    }


def _terms(card: dict[str, Any]) -> set[str]:
    """Return the tiers that a card names."""
    changed = card["changed"]
    return {tier for tier, _mean, _before in card["tiers"]} | ({changed["term"]} if changed else set())


def _glance(projects: Sequence[Project], *, has_judge: bool) -> list[tuple[str, str, str]]:
    """Return the values of the projects' squares."""
    links = Links()
    return [_square(project, links, has_judge=has_judge) for project in projects]


def _square(project: Project, links: Links, *, has_judge: bool) -> tuple[str, str, str]:
    """Return the values of a project's square: its link, its health, and its description."""
    incidents = f", {project.open_incidents} open" if project.open_incidents else ""
    incidents += f", {project.suspected_incidents} suspected" if project.suspected_incidents else ""
    why = reason_words(project, has_judge=has_judge)
    words = "; ".join((f"{project.project}: {TERMS[project.health]}{incidents}", *why))
    return links.project(project.project), project.health, words


def change_view(project: Project, change: Change | None) -> dict[str, Any] | None:
    """Return a project's change in words, with a small chart and a link to the incident; None without a change."""
    if change is None:
        return None
    digits = 1 if change.series == "trust" else 2
    before, after = (share(one) if change.is_share else number(one, digits) for one in (change.before, change.after))
    since = None if change.since is None else day_words(change.since, project.recent.until)
    words = f"{TERMS.get(change.series) or 'The series'} by day, {LEVEL_DAYS} days to {project.recent.until}: {_ends(change)}"
    return {
        "name": change.name,
        "term": change.series if change.series in TIERS else None,
        "levels": after if before == after else f"{before} → {after}",
        "since": since,
        "now": "" if change.now is None else share(change.now) if change.is_share else number(change.now, digits),
        "worse": change.incident is not None and change.worse > 0 and not change.is_back,
        "is_back": change.is_back,
        "link": change.incident and Links().incident(project.project, change.incident),
        "spark": spark(change.levels, words),
    }


def _ends(change: Change) -> str:
    known = [one for one in change.levels if one is not None]
    first, last = (share(one) if change.is_share else number(one, 2) for one in (known[0], known[-1])) if known else ("", "")
    return f"first {first}, last {last}"


def days_before(change: Change | None, until: date | None) -> str:
    """Describe how many of the last days lie before an incident's first day, so that their mean mixes both; empty if none or all do."""
    if change is None or change.since is None or until is None:
        return ""
    after = (until - change.since).days + 1
    before = RECENT_DAYS - after
    return f"{before} of them before the change" if 0 < before < RECENT_DAYS else ""


def day_words(day: date, newest: date | None) -> str:
    """Format a day as in 28 Oct, with the year if it differs from the newest day's."""
    return f"{day.day} {day:%b}" if newest is not None and day.year == newest.year else f"{day.day} {day:%b %Y}"


def _tiers(project: Project) -> list[tuple[str, float, float | None]]:
    """Return the means of the last days and of the days before, for the judge's tiers, or for Tier 1 without a judge."""
    means = [(tier, project.recent.level(tier), project.before.level(tier)) for tier in ("tier1", "tier2", "tier3")]
    known = [(tier, mean, before) for tier, mean, before in means if mean is not None]
    return [one for one in known if one[0] != "tier1"] or known


def _totals(projects: Sequence[Project]) -> dict[str, int]:
    """Count the projects of each health, and add up their numbers."""
    counts = Counter(project.health for project in projects)
    sums = ("open_incidents", "acknowledged_incidents", "suspected_incidents", "simulated")
    return {
        **{health: counts[health] for health in WORST},
        **{name: sum(getattr(project, name) for project in projects) for name in sums},
        "recent_scores": sum(project.recent.scores for project in projects),
        "before_scores": sum(project.before.scores for project in projects),
        "recent_anomalies": sum(project.recent.anomalies for project in projects),
        "before_anomalies": sum(project.before.anomalies for project in projects),
    }
