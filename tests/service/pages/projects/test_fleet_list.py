"""The fleet as a list: its address narrows it, orders it, and says which page of it is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode

import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import exchange, incident, score
from support.pages import cookie, projects_of, signed_in, text_of
from support.watch_histories import JUDGED, put

from analytics.store.store import Store
from audit.policy import Policy
from service.pages.projects.fleet import FLEET, PROJECTS_PER_PAGE
from service.read.project import build_project, rank_projects
from service.text.links import Links

OWN = 4
"""Projects that the server's connections have."""
Look = Callable[..., str]


@pytest.fixture
def look(call: Call, tokens: Tokens) -> Look:
    """Answers the fleet of an address."""
    value = signed_in(call, tokens.root)

    def looked(path: str = "", status: int = 200, **asked: str) -> str:
        answer = call("GET", path or f"/?{urlencode(asked)}", headers=cookie(value))
        assert answer.status_code == status, answer.text
        return answer.text

    return looked


def project_scores(project: str, count: int, *, anomalies: int = 0, ago: int = 0) -> list[object]:
    """Return judged scores of a project from this many days ago."""
    at = NOW - timedelta(days=ago)
    return [
        score(f"{project}-{number}", 1, project=project, exchange_at=at, scored_at=at, anomaly=number < anomalies, **JUDGED)
        for number in range(count)
    ]


@pytest.fixture
def many(store: Store) -> None:
    """Store a large fleet: one critical project, and more than two pages of others."""
    names = [f"team-{place:03}" for place in range(2 * PROJECTS_PER_PAGE)]
    put(store, "scores", [score(name, 1, project=name, exchange_at=NOW, scored_at=NOW) for name in names])
    put(store, "incidents", [incident(project=names[-1])])


def linked(page: str, words: str) -> str | None:
    """Return the address of the link to another page of the list, or None without a link."""
    places = re.findall(r'<nav class="pages".*?</nav>', page, re.DOTALL)
    addresses = re.findall(rf'<a href="([^"]+)"[^>]*>{words}</a>', "".join(places))
    return unescape(addresses[0]) if addresses else None


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("view", ["", "table"])
def test_pages_of_the_fleet_leave_nothing_out(look: Look, view: str) -> None:
    """A thousand cards would load too slowly, so the fleet is paged."""
    first = look(view=view)
    total = 2 * PROJECTS_PER_PAGE + OWN
    assert f"{total} of {total} projects, 1 to {PROJECTS_PER_PAGE} on this page" in text_of(first)
    assert total == first.split('class="glance"')[1].split("</p>")[0].count("<a "), "a square each"
    assert linked(first, "First page") is None
    assert linked(first, "Previous page") is None
    second = look(linked(first, "Next page"))
    assert f"{PROJECTS_PER_PAGE + 1} to {2 * PROJECTS_PER_PAGE} on this page" in text_of(second)
    third = look(linked(second, "Next page"))
    assert f"{2 * PROJECTS_PER_PAGE + 1} to {total} on this page" in text_of(third)
    assert None is linked(third, "Next page")
    listed = [*projects_of(first), *projects_of(second), *projects_of(third)]
    assert total == len(listed)
    assert total == len(set(listed))
    assert listed[0] == f"team-{2 * PROJECTS_PER_PAGE - 1:03}"
    assert projects_of(second) == projects_of(look(linked(third, "Previous page")))
    assert projects_of(first) == projects_of(look(linked(third, "First page")))
    assert (view != "cards") == ("<table" in second)


@pytest.mark.usefixtures("many")
def test_counts_cover_all_projects_and_the_list_only_matching_ones(look: Look) -> None:
    """Filters must not change the figures of the whole fleet."""
    page = look(q=" TEAM-00 ", health="unknown")
    assert projects_of(page) == [f"team-{place:03}" for place in range(10)]
    assert f"10 of {2 * PROJECTS_PER_PAGE + OWN} projects" in text_of(page)
    assert f"Projects {2 * PROJECTS_PER_PAGE + OWN} Critical 1" in text_of(page)
    assert 'value=" TEAM-00 "' in page
    assert '<option value="unknown" selected>' in page
    assert 'href="/?q=%20TEAM-00%20&amp;health=critical">Critical</a>' in page, "the other filters stay"
    assert 'href="/?q=%20TEAM-00%20&amp;health=unknown&amp;view=cards"' in page


def test_a_filter_without_matches_links_to_all_projects(look: Look) -> None:
    """A filter without matches must not look like an empty fleet."""
    page = look(q="nobody", sort="name")
    assert projects_of(page) == []
    assert "No projects match" in text_of(page)
    assert f"0 of {OWN} projects" in text_of(page)
    assert '<a href="/?sort=name">All projects</a>' in page


@pytest.mark.usefixtures("many")
def test_a_page_beyond_the_end_links_back(look: Look) -> None:
    """If the last page disappears, a link leads back."""
    beyond = linked(look(linked(look(), "Next page")), "Next page").replace("/?", "/?health=critical&")  # type: ignore[union-attr]
    page = look(beyond)
    assert "No more projects" in text_of(page)
    assert '<a href="/?health=critical">First page</a>' in page


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["anna", "carl", "bert"]),
        ({"sort": "worst", "down": "false"}, ["bert", "carl", "anna"]),
        ({"sort": "anomalies"}, ["carl", "anna", "bert"]),
        ({"sort": "anomalies", "down": "false"}, ["bert", "anna", "carl"]),
        ({"sort": "incidents"}, ["anna", "bert", "carl"]),
        ({"sort": "exchanges"}, ["bert", "anna", "carl"]),
        ({"sort": "last"}, ["carl", "bert", "anna"]),
        ({"sort": "name"}, ["anna", "bert", "carl"]),
        ({"sort": "name", "down": "false", "health": "", "q": "", "view": "", "page": "7"}, ["anna", "bert", "carl"]),
        ({"sort": "name", "down": "true"}, ["carl", "bert", "anna"]),
    ],
)
def test_the_address_sets_the_order(look: Look, store: Store, asked: dict[str, str], found: list[str]) -> None:
    """A shared link keeps the order, and equal projects are ordered by name."""
    put(store, "exchanges", [exchange("bert", 1, occurred_at=NOW - timedelta(days=1), project="bert")])
    put(store, "exchanges", [exchange("carl", 1, occurred_at=NOW, project="carl")])
    put(
        store,
        "scores",
        [
            *project_scores("anna", 30, anomalies=1, ago=6),
            *project_scores("bert", 40, ago=1),
            *project_scores("carl", 20, anomalies=9),
        ],
    )
    put(store, "incidents", [incident(project="anna")])
    assert [name for name in projects_of(look(**asked)) if name in found] == found


def test_recent_and_then_larger_changes_come_first_among_critical_projects(look: Look, store: Store) -> None:
    """Two runs of a side project must not rank above 40% of the traffic, nor last month's change above today's.

    `few` fell farthest and touches next to nothing; `old` and `large` changed four weeks before.
    """
    for name, count, ago, size in (("few", 2, 0, 9.0), ("new", 40, 0, 2.0), ("old", 40, 28, 5.0), ("large", 300, 28, 2.0)):
        put(store, "scores", project_scores(name, count))
        metadata = json.dumps({"rules": {"sequential": {"size": size}}})
        put(
            store,
            "incidents",
            [
                incident(
                    incident_id=f"i-{name}",
                    project=name,
                    severity="critical",
                    first_day=NOW - timedelta(days=ago),
                    metadata=metadata,
                )
            ],
        )
    put(store, "scores", project_scores("mild", 900))
    put(store, "incidents", [incident(incident_id="i-mild", project="mild", severity="warning", first_day=NOW)])
    names = ["few", "new", "old", "large", "mild"]
    assert [name for name in projects_of(look()) if name in names] == ["new", "few", "large", "old", "mild"]


@pytest.mark.parametrize(("days_ago", "is_new"), [(0, True), (6, True), (7, False), (28, False), (-3, True), (None, True)])
def test_a_change_is_new_for_a_week(days_ago: int | None, is_new: bool) -> None:
    """The age of a change counts from the last day of the figures."""
    projects = [
        build_project("a", {"recent_scores": 40, "recent_unsafe_runs": 2}, Policy(), NOW.date()),
        build_project("b", {}, Policy(), NOW.date()),
    ]
    since = None if days_ago is None else NOW.date() - timedelta(days=days_ago)
    expected = {"b": (1, True, 0, 0), "a": (1, is_new, 42, -1)}
    assert rank_projects(projects, {"b": {"since": NOW.date()}, "a": {"since": since}}) == expected


def test_a_heading_sorts_and_reverses_the_order(look: Look) -> None:
    """It works as in every other list, and a field beside it shows the current order."""
    page = look(view="table")
    assert re.search(
        r'<th scope="col"\s+aria-sort="descending"><a href="/\?view=table&amp;sort=worst&amp;down=false">Health</a>', page
    )
    turned = look(view="table", sort="worst", down="false")
    assert 'aria-sort="ascending"><a href="/?view=table&amp;sort=worst&amp;down=true">Health</a>' in turned
    assert '<option value="" selected>Best first</option>' in turned
    assert '<option value="" selected>Worst first</option>' in page


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"sort": "size"}, f"sort: must be one of {', '.join(FLEET.sorts)}"),
        ({"health": "red"}, "health: must be one of critical, warning, unknown, ok, empty"),
        ({"view": "heap"}, "view: must be one of cards, table"),
        ({"q": "x" * 513}, "q: must have at most 512 characters"),
        ({"down": "up"}, "down: must be true or false"),
        ({"cursor": "!"}, "cursor: must be the nextCursor"),
    ],
)
def test_an_invalid_address_is_explained(look: Look, asked: dict[str, str], words: str) -> None:
    """An invalid filter must not be ignored, which would show all projects."""
    assert words in look(status=400, **asked)


@pytest.mark.usefixtures("many")
def test_a_page_number_belongs_to_one_order(look: Look) -> None:
    """The second page by name is not the second page of the worst."""
    following = linked(look(), "Next page")
    assert "another sort order" in look(f"{following}&sort=name", status=400)


def test_the_form_works_without_a_script(call: Call, tokens: Tokens) -> None:
    """The page's policy allows the form to load this address, and a button is shown if scripts are disabled."""
    answer = call("GET", "/?view=table", headers=cookie(signed_in(call, tokens.root)))
    assert "form-action 'self'" in answer.headers["content-security-policy"]
    form = re.search(r'<form class="filters".*?</form>', answer.text, re.DOTALL)
    assert form
    assert 'method="get" role=' in form[0]
    assert set(re.findall(r' name="(\w+)"', form[0])) == {"q", "health", "sort", "view"}
    assert re.search("<noscript>.*<button type=.submit.", form[0])


def test_old_links_still_show_the_fleet(look: Look) -> None:
    """Bookmarks of `/?whole=true` show the first page."""
    assert len(projects_of(look(Links().fleet_of(whole="true")))) == OWN
