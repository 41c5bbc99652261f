"""The fleet: projects as cards or rows, worst first, and all of them at a glance.

The address has its parameters and its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from audit.drift.watched_series import TIERS
from service.pages.charts import spark
from service.pages.listing import Column, Filter, Last, Listing, ListOf, ListRequest, asked_of, encoded
from service.pages.rendering import number, page, share
from service.pages.viewing import Viewer
from service.read.project import (
    ENOUGH,
    LEVEL_DAYS,
    RECENT_DAYS,
    WORST,
    Change,
    Project,
    Reason,
    Standing,
    badness,
    check_words,
    moment_words,
    standings,
    with_blind_spots,
    worst_first,
)
from service.text.formats import grouped_count
from service.text.links import Links
from service.text.window import RECENT
from service.text.words import TERMS
from service.web.context import Services, projects_of, with_their_changes, worst_of

router = APIRouter(include_in_schema=False)
SCALES = {"tier1": "0 to 1", "tier2": "0 to 1", "tier2_5": "0 to 1", "tier3": "1 to 5"}
"""The scales of the tiers."""
_GLANCE = 24
"""Above this many projects, squares in the colour of their health are shown above the list."""


@router.get("/")
async def fleet(request: Request, viewer: Viewer, services: Services) -> HTMLResponse:
    """Show a page of the projects that the operator may see, with what changed, and sums and a square of all of them."""
    list_request = asked_of(FLEET, request.query_params, request.url.path)
    projects = await projects_of(services, viewer.project)
    places = standings(projects, await worst_of(services, projects, viewer.project))
    listed = page_of_fleet(projects, list_request, places)
    has_judge = services.engine.has_judge
    shown = await with_their_changes(services, listed.projects, viewer.project)
    with_spots = await services.ask(lambda cursor: with_blind_spots(cursor, shown, viewer.project))
    now = services.engine.now()
    cards = [_build_card(project, now, has_judge=has_judge) for project in with_spots]
    newest = max((project.newest for project in projects if project.newest is not None), default=None)
    values = {
        "cards": cards,
        "listing": listed.listing,
        "asked": list_request,
        "start": listed.start,
        "found": listed.total,
        "tiers": TIERS,
        "scales": [(tier, SCALES[tier]) for tier in TIERS if any(tier in _list_terms(card) for card in cards)],
        "projects": len(projects),
        "days": RECENT_DAYS,
        "newest": newest,
        "newest_age": age_words(newest, now),
        "totals": _count_health(projects),
        "healths": tuple(WORST),
        "orders": orders(list_request),
        "views": VIEWS,
        "view": list_request.values["view"] or "cards",
        "glance": _build_glance(worst_first(projects, places), has_judge=has_judge) if len(projects) > _GLANCE else [],
    }
    return page(request, "fleet.html", values, forms=True)


def _build_card(project: Project, now: datetime, *, has_judge: bool) -> dict[str, Any]:
    """Return the values of a card."""
    last = project.recent.last_until
    return {
        "of": project,
        "changed": change_view(project, project.change),
        "mixed": days_before(project.change, project.recent.until),
        "age": age_words(project.newest, now),
        "last_address": None if last is None else Links({"window": RECENT, "until": f"{last}"}).project(project.project),
        "why": reason_words(project, has_judge=has_judge),
        "tiers": _compare_tiers(project),
        "check": check_words(project) if project.scores and "unchecked" not in project.reasons else "",
        "link": Links().project(project.project),
    }


def _list_terms(card: dict[str, Any]) -> set[str]:
    """Return the tiers that a card names."""
    changed = card["changed"]
    return {tier for tier, _mean, _before in card["tiers"]} | ({changed["term"]} if changed else set())


def _build_glance(projects: Sequence[Project], *, has_judge: bool) -> list[tuple[str, str, str]]:
    """Return the values of the projects' squares."""
    links = Links()
    return [_build_square(project, links, has_judge=has_judge) for project in projects]


def _build_square(project: Project, links: Links, *, has_judge: bool) -> tuple[str, str, str]:
    """Return the values of a project's square: its link, its health, and its description."""
    incidents = f", {project.open_incidents} open" if project.open_incidents else ""
    incidents += f", {project.suspected_incidents} suspected" if project.suspected_incidents else ""
    why = reason_words(project, has_judge=has_judge)
    description = "; ".join((f"{project.project}: {TERMS[project.health]}{incidents}", *why))
    return links.project(project.project), project.health, description


def change_view(project: Project, change: Change | None) -> dict[str, Any] | None:
    """Return a project's change in words, with a small chart and a link to the incident; None without a change."""
    if change is None:
        return None
    digits = 1 if change.series == "trust" else 2
    before, after = (share(one) if change.is_share else number(one, digits) for one in (change.before, change.after))
    since = None if change.since is None else day_words(change.since, project.recent.until)
    description = f"{TERMS.get(change.series) or 'The series'} by day, {LEVEL_DAYS} days to {project.recent.until}: {_describe_ends(change)}"
    return {
        "name": change.name,
        "term": change.series if change.series in TIERS else None,
        "levels": after if before == after else f"{before} → {after}",
        "since": since,
        "now": "" if change.now is None else share(change.now) if change.is_share else number(change.now, digits),
        "worse": change.incident is not None and change.worse > 0 and not change.is_back,
        "is_back": change.is_back,
        "link": change.incident and Links().incident(project.project, change.incident),
        "spark": spark(change.levels, description),
    }


def _describe_ends(change: Change) -> str:
    levels = [one for one in change.levels if one is not None]
    first, last = (share(one) if change.is_share else number(one, 2) for one in (levels[0], levels[-1])) if levels else ("", "")
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


def _compare_tiers(project: Project) -> list[tuple[str, float, float | None]]:
    """Return the means of the last days and of the days before, for the judge's tiers, or for Tier 1 without a judge."""
    means = [(tier, project.recent.level(tier), project.before.level(tier)) for tier in ("tier1", "tier2", "tier3")]
    measured = [(tier, mean, before) for tier, mean, before in means if mean is not None]
    return [one for one in measured if one[0] != "tier1"] or measured


def _count_health(projects: Sequence[Project]) -> dict[str, int]:
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


SHOWN = 60
"""Projects per page."""
VIEWS = {"cards": "Cards", "table": "Table"}
"""The views of the fleet: cards, or a table of narrow rows."""
_ORDERS = {
    "worst": ("Worst first", "Best first"),
    "anomalies": ("Most anomalies", "Fewest anomalies"),
    "incidents": ("Most incidents", "Fewest incidents"),
    "exchanges": ("Most exchanges", "Fewest exchanges"),
    "last": ("Newest first", "Oldest first"),
    "name": ("By name", "By name, backwards"),
}
"""The names of the orders, and of the reversed ones."""
FLEET = ListOf(
    name="fleet",
    query="projects",
    sort="worst",
    filters=(
        Filter(name="q", label="Find a project", read=lambda text: text.strip().lower(), hint="Name; press / to type"),
        Filter(name="health", label="Health", choices={health: TERMS[health] for health in WORST}),
        Filter(name="view", label="View", choices=VIEWS),
    ),
    columns=(
        Column(key="project", title="Project", sort="name", down=False),
        Column(key="health", title="Health", sort="worst"),
        Column(key="open_incidents", title="Open", sort="incidents"),
        Column(key="change", title="Change"),
        Column(key="recent_scores", title="Exchanges", sort="exchanges", is_number=True),
        Column(key="recent_tier2", title="Tier 2", is_number=True),
        Column(key="rate", title="Anomalous", sort="anomalies", is_number=True),
        Column(key="unscored_rate", title="Unscored", is_number=True),
        Column(key="recent_unsafe_runs", title="Unsafe", is_number=True),
        Column(key="recent_cost_usd", title="Cost", is_number=True),
        Column(key="newest", title="Newest record", sort="last"),
    ),
)
"""The fleet: its filters, and the columns of its table."""


class Found(NamedTuple):
    """A page of the fleet."""

    listing: Listing
    projects: Sequence[Project]
    start: int
    """The number of projects before the page."""
    total: int
    """The number of matching projects."""


def page_of_fleet(projects: Sequence[Project], list_request: ListRequest, places: Mapping[str, Standing]) -> Found:
    """Return the requested page; `places` are the `standings` of the projects with an incident."""
    matching = in_order([project for project in projects if _is_match(project, list_request)], list_request, places)
    start = 0 if list_request.last is None else max(0, int(list_request.last.number or 0))
    end = start + SHOWN
    listing = Listing(
        asked=list_request,
        rows=[],
        following=page_from(end, list_request) if end < len(matching) else None,
        first=list_request.address() if start else None,
        previous=page_from(start - SHOWN, list_request) if start > SHOWN else None,
    )
    return Found(listing, matching[start:end], start, len(matching))


def orders(list_request: ListRequest) -> dict[str, str]:
    """Return the names of the orders; the current one can be reversed."""
    turned = list_request.down != FLEET.sorts[list_request.sort].down
    return {name: words[turned and name == list_request.sort] for name, words in _ORDERS.items()}


def in_order(projects: Sequence[Project], list_request: ListRequest, places: Mapping[str, Standing]) -> list[Project]:
    """Sort projects, which come by name. Ties stay in order of name, and projects without a value come last."""
    keys: Mapping[str, Callable[[Project], Any]] = {
        "worst": partial(badness, places),
        "anomalies": attrgetter("recent.anomaly_rate"),
        "incidents": attrgetter("open_incidents"),
        "exchanges": attrgetter("recent.scores"),
        "last": _find_newest,
        "name": attrgetter("project"),
    }
    key = keys[list_request.sort]
    keyed = [(key(project), project) for project in projects]
    with_value = sorted((one for one in keyed if one[0] is not None), key=itemgetter(0), reverse=list_request.down)
    return [project for _, project in with_value] + [project for value, project in keyed if value is None]


def _find_newest(project: Project) -> datetime | None:
    """Return the time of the newest exchange or end of a run; None without either."""
    return max((at for at in (project.last_exchange_at, project.last_run_at) if at), default=None)


def _is_match(project: Project, list_request: ListRequest) -> bool:
    text, health = list_request.values["q"], list_request.values["health"]
    return (not text or text in project.project) and health in (None, project.health)


def page_from(start: int, list_request: ListRequest) -> str:
    """Return the address of the page that begins after this number of projects."""
    return list_request.address(cursor=encoded(Last(list_request.sort, list_request.down, start, None, "")))


_DAY = timedelta(days=1)


def age_words(newest: datetime | None, now: datetime) -> str:
    """Describe the age of the newest record in days; empty if it came within the last day, and without records."""
    return "" if newest is None or now - newest < 2 * _DAY else f"{(now - newest).days} days ago"


def reason_words(project: Project, *, has_judge: bool) -> list[str]:
    """Explain why a project is not healthy; its incidents are shown elsewhere."""
    return [_WORDS[reason](project, has_judge) for reason in project.reasons if reason in _WORDS]


def _describe_unscored(project: Project, has_judge: bool) -> str:
    recent = project.recent
    due = number(recent.scored + recent.unscored)
    sentence = f"{number(recent.unscored)} of {due} exchanges due to be judged in {RECENT_DAYS} days are unscored"
    return sentence if has_judge else f"{sentence}: this server has no judge"


def _describe_unsafe(project: Project, _: bool) -> str:
    unsafe = project.recent.unsafe_runs
    verb = "is" if unsafe == 1 else "are"
    return f"{number(unsafe)} of {grouped_count(project.recent.runs, 'run')} in {RECENT_DAYS} days {verb} unsafe for production"


def _describe_anomalies(project: Project, _: bool) -> str:
    recent = project.recent
    has = "has" if recent.anomalies == 1 else "have"
    exchanges = f"{number(recent.anomalies)} of {grouped_count(recent.scores, 'exchange')} in {RECENT_DAYS} days"
    return f"{exchanges} {has} an anomaly, {share(recent.anomaly_rate)}"


def _describe_few(project: Project) -> str:
    """Describe how much of the required data exists: exchanges, or runs if there are only runs."""
    if project.scores or not project.runs_with_evidence:
        return f"{number(project.recent.scores)} of {ENOUGH} exchanges in {RECENT_DAYS} days"
    return f"{number(project.runs_with_evidence)} of {ENOUGH} runs"


_WORDS: Mapping[Reason, Callable[[Project, bool], str]] = {
    "unscored": _describe_unscored,
    "unsafe_runs": _describe_unsafe,
    "anomalies": _describe_anomalies,
    "too_few": lambda project, _: f"Not enough data: {_describe_few(project)}",
    "unchecked": lambda project, _: check_words(project),
}


def silence_words(days: Sequence[datetime], last_at: datetime | None, now: datetime) -> str:
    """Describe the time of the last exchange, and whether such a pause is usual by earlier days; empty without exchanges.

    An agent that works on weekdays, or once a month, is silent for a while without anything being wrong.
    """
    if not days:
        return ""
    # Retention may have deleted the exchanges and kept their sums: then only the day is known.
    ago = now - (last_at or days[-1])
    came = f"The last exchange came {moment_words(last_at) or f'on {days[-1]:%Y-%m-%d}'}, {ago.days} days ago."
    pauses = [later - earlier for earlier, later in pairwise(days)]
    if not pauses:
        return f"{came} There is nothing to compare with: no earlier day of that quarter has exchanges."
    longest = max(pauses)
    usual = f"the longest time between two days with exchanges was {grouped_count(longest.days, 'day')} that quarter"
    return f"{came} That is {'usual' if ago <= longest + _DAY else 'unusual'}: {usual}."
