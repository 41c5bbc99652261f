"""The fleet as a list: its parameters, its orders, and the projects on a page.

Health depends on the policy and on the connections, so no query can order by it: all projects are read and sorted here. A cursor of
the fleet is a position, not a project, so that a refreshing page keeps showing, say, the 61st to the 120th.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from service.pages.lists.listing import Asked, Column, Filter, Last, Listing, ListOf, encoded
from service.read.project import WORST, Project, Standing, badness
from service.text.words import TERMS

SHOWN = 60
"""Projects of a page."""
VIEWS = {"cards": "Cards", "table": "Table"}
"""How projects may be shown: as cards, or as a table of narrow rows."""
_ORDERS = {
    "worst": ("Worst first", "Best first"),
    "anomalies": ("Most anomalies", "Fewest anomalies"),
    "incidents": ("Most incidents", "Fewest incidents"),
    "exchanges": ("Most exchanges", "Fewest exchanges"),
    "last": ("Newest first", "Oldest first"),
    "name": ("By name", "By name, backwards"),
}
"""The orders in words, and the words when reversed."""
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
    """How many projects come before the page."""
    total: int
    """How many projects match."""


def page_of_fleet(projects: Sequence[Project], asked: Asked, places: Mapping[str, Standing]) -> Found:
    """Return the requested page; `places` are the `standings` of the projects with an incident."""
    found = in_order([project for project in projects if _fits(project, asked)], asked, places)
    start = 0 if asked.last is None else max(0, int(asked.last.number or 0))
    end = start + SHOWN
    listing = Listing(
        asked=asked,
        rows=[],
        following=page_from(end, asked) if end < len(found) else None,
        first=asked.address() if start else None,
        previous=page_from(start - SHOWN, asked) if start > SHOWN else None,
    )
    return Found(listing, found[start:end], start, len(found))


def orders(asked: Asked) -> dict[str, str]:
    """Return the orders in words; the current one can be reversed."""
    turned = asked.down != FLEET.sorts[asked.sort].down
    return {name: words[turned and name == asked.sort] for name, words in _ORDERS.items()}


def in_order(projects: Sequence[Project], asked: Asked, places: Mapping[str, Standing]) -> list[Project]:
    """Sort projects, which come by name. Ties stay in order of name, and projects without a value come last."""
    keys: Mapping[str, Callable[[Project], Any]] = {
        "worst": partial(badness, places),
        "anomalies": attrgetter("recent.anomaly_rate"),
        "incidents": attrgetter("open_incidents"),
        "exchanges": attrgetter("recent.scores"),
        "last": _newest,
        "name": attrgetter("project"),
    }
    key = keys[asked.sort]
    keyed = [(key(project), project) for project in projects]
    known = sorted((one for one in keyed if one[0] is not None), key=itemgetter(0), reverse=asked.down)
    return [project for _, project in known] + [project for value, project in keyed if value is None]


def _newest(project: Project) -> datetime | None:
    """Return the time of the newest exchange or end of a run; None without either."""
    return max((at for at in (project.last_exchange_at, project.last_run_at) if at), default=None)


def _fits(project: Project, asked: Asked) -> bool:
    text, health = asked.values["q"], asked.values["health"]
    return (not text or text in project.project) and health in (None, project.health)


def page_from(start: int, asked: Asked) -> str:
    """Return the address of the page that begins after this number of projects."""
    return asked.address(cursor=encoded(Last(asked.sort, asked.down, start, None, "")))
