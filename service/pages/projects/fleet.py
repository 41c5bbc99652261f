"""The fleet: all projects as cards or table rows, and as coloured squares at a glance. Filters and order come from the address."""

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

from audit.drift.watched_series import TIERS, bounds_of, format_level, is_size
from service.pages.charts import spark
from service.pages.listing import (
    Column,
    Filter,
    ListDefinition,
    Listing,
    ListRequest,
    RowPosition,
    encode_position,
    parse_list_request,
)
from service.pages.rendering import number, page, share
from service.pages.viewing import Viewer
from service.read.project import (
    ENOUGH,
    LEVEL_DAYS,
    RECENT_DAYS,
    WORST,
    Change,
    Project,
    Rank,
    Reason,
    describe_check,
    format_minute,
    rank_key,
    rank_projects,
    sort_worst_first,
    with_remarks,
)
from service.text.formats import counted, grouped_count
from service.text.links import Links
from service.text.window import RECENT
from service.text.words import TERMS
from service.text.zone import local
from service.web.context import Services, projects_of, with_their_changes, worst_of

router = APIRouter(include_in_schema=False)
_MAX_PROJECTS_WITHOUT_GLANCE = 24
"""A larger fleet also shows a colored square for each project."""
_MIN_PROJECTS_OF_TABLE = 12
"""A fleet of this many projects is a table unless the address asks for cards."""


@router.get("/")
async def fleet(request: Request, viewer: Viewer, services: Services) -> HTMLResponse:
    """Show a page of the projects that the operator may see, with totals over all of them."""
    list_request = parse_list_request(FLEET, request.query_params, request.url.path)
    now = services.engine.now()
    projects = await projects_of(services, viewer.project)
    ranks = rank_projects(projects, await worst_of(services, projects, viewer.project))
    fleet_page = select_page(projects, list_request, ranks)
    has_judge = services.engine.has_judge
    with_changes = await with_their_changes(services, fleet_page.projects, viewer.project)
    shown = await services.ask(lambda cursor: with_remarks(cursor, with_changes, viewer.project))
    cards = [_build_card(project, now, has_judge=has_judge) for project in shown]
    newest = max((project.newest for project in projects if project.newest is not None), default=None)
    values = {
        "cards": cards,
        "listing": fleet_page.listing,
        "list_request": list_request,
        "start": fleet_page.start,
        "total_matches": fleet_page.total,
        "projects": len(projects),
        "days": RECENT_DAYS,
        "level_days": LEVEL_DAYS,
        "newest": newest,
        "newest_age": describe_age(newest, now),
        "totals": _count_health(projects),
        "healths": tuple(WORST),
        "orders": list_orders(list_request),
        "views": VIEWS,
        "view": list_request.values["view"] or ("table" if len(projects) >= _MIN_PROJECTS_OF_TABLE else "cards"),
        "glance": _build_glance(sort_worst_first(projects, ranks), has_judge=has_judge)
        if len(projects) > _MAX_PROJECTS_WITHOUT_GLANCE
        else [],
    }
    return page(request, "fleet.html", values, forms=True)


def _build_card(project: Project, now: datetime, *, has_judge: bool) -> dict[str, Any]:
    """Return the values of a card."""
    last = project.recent.last_until
    return {
        "project": project,
        "change": build_change_values(project, project.change),
        "age": describe_age(project.newest, now),
        "newest": project.newest and (format_day(local(project.newest).date(), now.date()), f"{local(project.newest):%H:%M}"),
        "last_address": None if last is None else Links({"window": RECENT, "until": f"{last}"}).project(project.project),
        "level": None if project.change else _find_level(project),
        "why": [
            _REASON_DESCRIPTIONS[reason](project, has_judge) for reason in project.reasons if reason in _REASONS_WITHOUT_FIGURE
        ],
        "link": Links().project(project.project),
    }


def _build_glance(projects: Sequence[Project], *, has_judge: bool) -> list[tuple[str, str, str]]:
    """Return the values of the squares, one per project."""
    links = Links()
    return [_build_square(project, links, has_judge=has_judge) for project in projects]


def _build_square(project: Project, links: Links, *, has_judge: bool) -> tuple[str, str, str]:
    """Return the values of a project's square: its link, its health, and its description."""
    summary = f"{project.project}: {TERMS[project.health]}"
    if project.open_incidents:
        summary += f", {project.open_incidents} open"
    if project.notice_incidents:
        summary += f", {counted(project.notice_incidents, 'notice')}"
    if project.suspected_incidents:
        summary += f", {project.suspected_incidents} suspected"
    description = "; ".join((summary, *explain_health(project, has_judge=has_judge)))
    return links.project(project.project), project.health, description


def build_change_values(project: Project, change: Change | None) -> dict[str, Any] | None:
    """Return the values of a project's change, with a small chart and a link to the incident; None without a change."""
    if change is None:
        return None
    digits = 1 if change.series == "trust" else 2
    before = _format_level(change, change.before, digits)
    after = _format_level(change, change.after, digits)
    since = None if change.since is None else format_day(change.since, project.recent.until)
    description = f"{TERMS.get(change.series) or 'The series'} by day, {LEVEL_DAYS} days to {project.recent.until}: {_describe_levels(change)}"
    return {
        "name": change.name,
        "term": change.series if change.series in TIERS else None,
        "levels": after if before == after else f"{before} → {after}",
        "since": since,
        "now": "" if change.now is None else _format_level(change, change.now, digits),
        "worse": change.incident is not None and change.worse > 0 and not change.is_back and not change.is_notice,
        "is_judge": change.is_notice,
        "is_back": change.is_back,
        "link": change.incident and Links().incident(project.project, change.incident),
        "spark": spark(change.levels, description, None if is_size(change.series) else bounds_of(change.series)),
    }


def _format_level(change: Change, level: float, digits: int) -> str:
    if is_size(change.series):
        return format_level(change.series, level)
    return share(level) if change.is_share else number(level, digits)


def _describe_levels(change: Change) -> str:
    levels = [level for level in change.levels if level is not None]
    if not levels:
        return "first , last "
    return f"first {_format_level(change, levels[0], 2)}, last {_format_level(change, levels[-1], 2)}"


def format_day(day: date, newest: date | None) -> str:
    """Format a day, such as 28 Oct; with its year if the newest day is in another year."""
    return f"{day.day} {day:%b}" if newest is not None and day.year == newest.year else f"{day.day} {day:%b %Y}"


def _find_level(project: Project) -> tuple[str, float] | None:
    """Return the mean of Tier 2 in the last days, or that of Tier 1 without a judge; None without scores."""
    levels = ((tier, project.recent.level(tier)) for tier in ("tier2", "tier1"))
    return next(((tier, level) for tier, level in levels if level is not None), None)


def _count_health(projects: Sequence[Project]) -> dict[str, int]:
    """Return the number of projects by health, and the sums of their figures."""
    counts = Counter(project.health for project in projects)
    sums = ("open_incidents", "acknowledged_incidents", "notice_incidents", "suspected_incidents", "simulated")
    return {
        **{health: counts[health] for health in WORST},
        **{name: sum(getattr(project, name) for project in projects) for name in sums},
        "recent_scores": sum(project.recent.scores for project in projects),
        "before_scores": sum(project.before.scores for project in projects),
        "recent_anomalies": sum(project.recent.anomalies for project in projects),
        "before_anomalies": sum(project.before.anomalies for project in projects),
    }


PROJECTS_PER_PAGE = 60
VIEWS = {"cards": "Cards", "table": "Table"}
"""Views of the fleet, with their labels."""
_ORDERS = {
    "worst": ("Worst first", "Best first"),
    "anomalies": ("Most anomalies", "Fewest anomalies"),
    "incidents": ("Most incidents", "Fewest incidents"),
    "exchanges": ("Most exchanges", "Fewest exchanges"),
    "last": ("Newest first", "Oldest first"),
    "name": ("By name", "By name, backwards"),
}
"""Labels of the sort orders, and of their reverse."""
FLEET = ListDefinition(
    name="fleet",
    noun="project",
    query="projects",
    sort="worst",
    filters=(
        Filter(name="q", label="Find a project", parse=lambda text: text.strip().lower(), hint="Name; press / to type"),
        Filter(name="health", label="Health", choices={health: TERMS[health] for health in WORST}),
        Filter(name="view", label="View", choices=VIEWS),
    ),
    columns=(
        Column(key="project", title="Project", sort="name", down=False),
        Column(key="health", title="Health", sort="worst"),
        Column(key="open_incidents", title="Open", sort="incidents"),
        Column(key="change", title="Change"),
        Column(key="recent_scores", title="Exchanges", sort="exchanges", is_number=True),
        Column(key="recent_tier2", title=TIERS["tier2"], is_number=True),
        Column(key="rate", title="Anomalous", sort="anomalies", is_number=True),
        Column(key="unscored_rate", title="Not judged", is_number=True),
        Column(key="recent_unsafe_runs", title="Unsafe", is_number=True),
        Column(key="recent_cost_usd", title="Cost", is_number=True),
        Column(key="newest", title="Newest", sort="last", is_number=True),
    ),
)
"""Filters of the fleet, and the columns of its table."""


class FleetPage(NamedTuple):
    """A page of the fleet."""

    listing: Listing
    projects: Sequence[Project]
    start: int
    """Number of projects on earlier pages."""
    total: int
    """Number of matching projects on all pages."""


def select_page(projects: Sequence[Project], list_request: ListRequest, ranks: Mapping[str, Rank]) -> FleetPage:
    """Return the requested page. `ranks` come from `rank_projects`."""
    matching = sort_projects([project for project in projects if _is_match(project, list_request)], list_request, ranks)
    start = 0 if list_request.after is None else max(0, int(list_request.after.number or 0))
    end = start + PROJECTS_PER_PAGE
    listing = Listing(
        request=list_request,
        rows=[],
        following=link_page(end, list_request) if end < len(matching) else None,
        first=list_request.address() if start else None,
        previous=link_page(start - PROJECTS_PER_PAGE, list_request) if start > PROJECTS_PER_PAGE else None,
    )
    return FleetPage(listing, matching[start:end], start, len(matching))


def list_orders(list_request: ListRequest) -> dict[str, str]:
    """Return the labels of the sort orders by name. The label of the current one tells if it is reversed."""
    is_reversed = list_request.down != FLEET.sorts[list_request.sort].down
    return {
        name: reverse_label if is_reversed and name == list_request.sort else label
        for name, (label, reverse_label) in _ORDERS.items()
    }


def sort_projects(projects: Sequence[Project], list_request: ListRequest, ranks: Mapping[str, Rank]) -> list[Project]:
    """Sort projects that are in alphabetical order. Ties keep that order, and projects without a value come last."""
    keys: Mapping[str, Callable[[Project], Any]] = {
        "worst": partial(rank_key, ranks),
        "anomalies": attrgetter("recent.anomaly_rate"),
        "incidents": attrgetter("open_incidents"),
        "exchanges": attrgetter("recent.scores"),
        "last": _find_newest,
        "name": attrgetter("project"),
    }
    key = keys[list_request.sort]
    keyed = [(key(project), project) for project in projects]
    with_value = sorted((entry for entry in keyed if entry[0] is not None), key=itemgetter(0), reverse=list_request.down)
    return [project for _, project in with_value] + [project for value, project in keyed if value is None]


def _find_newest(project: Project) -> datetime | None:
    """Return the time of the newest exchange or ended run; None without either."""
    return max((time for time in (project.last_exchange_at, project.last_run_at) if time), default=None)


def _is_match(project: Project, list_request: ListRequest) -> bool:
    text = list_request.values["q"]
    health = list_request.values["health"]
    return (not text or text in project.project) and health in (None, project.health)


def link_page(start: int, list_request: ListRequest) -> str:
    """Return the address of the page that starts after `start` projects."""
    return list_request.address(cursor=encode_position(RowPosition(list_request.sort, list_request.down, start, None, "")))


_DAY = timedelta(days=1)


def describe_age(newest: datetime | None, now: datetime) -> str:
    """Describe the age of the newest record in days; empty if it is under two days old, or without records."""
    return "" if newest is None or now - newest < 2 * _DAY else f"{(now - newest).days} days ago"


def explain_health(project: Project, *, has_judge: bool) -> list[str]:
    """Return the reasons why a project is not healthy, except incidents, which pages show separately."""
    return [_REASON_DESCRIPTIONS[reason](project, has_judge) for reason in project.reasons if reason in _REASON_DESCRIPTIONS]


def _describe_unscored(project: Project, has_judge: bool) -> str:
    recent = project.recent
    due = number(recent.scored + recent.unscored)
    sentence = f"{number(recent.unscored)} of {due} exchanges due to be judged in {RECENT_DAYS} days are not judged"
    return sentence if has_judge else f"{sentence}: this server has no judge"


def _describe_unjudged(project: Project, has_judge: bool) -> str:
    if has_judge:
        return f"The judge has not scored any exchange yet, and should have scored {number(project.recent.unscored)}"
    return "Set up a judge to score answers; the rules of Tier 1 and the diagnosis of runs need none"


def _describe_unsafe(project: Project, _: bool) -> str:
    unsafe = project.recent.unsafe_runs
    verb = "is" if unsafe == 1 else "are"
    return f"{number(unsafe)} of {grouped_count(project.recent.runs, 'run')} in {RECENT_DAYS} days {verb} unsafe for production"


def _describe_anomalies(project: Project, _: bool) -> str:
    recent = project.recent
    has = "has" if recent.anomalies == 1 else "have"
    exchanges = f"{number(recent.anomalies)} of {grouped_count(recent.scores, 'exchange')} in {RECENT_DAYS} days"
    return f"{exchanges} {has} an anomaly, {share(recent.anomaly_rate)}"


def _describe_missing_data(project: Project) -> str:
    """Describe how much of the required data exists, in exchanges, or in runs for a project that has only runs."""
    if project.scores or not project.runs_with_evidence:
        return f"{number(project.recent.scores)} of {ENOUGH} exchanges in {RECENT_DAYS} days"
    return f"{number(project.runs_with_evidence)} of {ENOUGH} runs"


_REASON_DESCRIPTIONS: Mapping[Reason, Callable[[Project, bool], str]] = {
    "unscored": _describe_unscored,
    "unjudged": _describe_unjudged,
    "unsafe_runs": _describe_unsafe,
    "anomalies": _describe_anomalies,
    "too_few": lambda project, _: f"Not enough data: {_describe_missing_data(project)}",
    "unchecked": lambda project, _: describe_check(project),
}

_REASONS_WITHOUT_FIGURE = frozenset({"unscored", "unjudged", "too_few", "unchecked"})
"""Reasons that a card describes; the others are among its figures."""


def describe_silence(days: Sequence[datetime], last_at: datetime | None, now: datetime) -> str:
    """Describe how long a project has been silent, and whether that is usual compared with earlier pauses; empty without exchanges.

    An agent that works only on weekdays, or once a month, pauses regularly without a problem.
    """
    if not days:
        return ""
    # If retention has deleted the exchanges, their daily sums still tell the day.
    silence = now - (last_at or days[-1])
    last_exchange = f"The last exchange came {format_minute(last_at) or f'on {days[-1]:%Y-%m-%d}'}, {silence.days} days ago."
    pauses = [later - earlier for earlier, later in pairwise(days)]
    if not pauses:
        return f"{last_exchange} No earlier day of that quarter has exchanges to compare with."
    longest = max(pauses)
    comparison = f"the longest time between two days with exchanges was {grouped_count(longest.days, 'day')} that quarter"
    return f"{last_exchange} That is {'usual' if silence <= longest + _DAY else 'unusual'}: {comparison}."
