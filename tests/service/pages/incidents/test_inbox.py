"""The inbox as a page: the incidents of all projects, narrowed, ordered and paged by its address alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_server import Call, Tokens
from support.builders import START, incident
from support.pages import OURS, Elements, cookie, projects_of, signed_in
from support.watch_histories import put

from analytics.store.store import Store
from schemas.errors import InputError
from schemas.records import Incident
from service.pages.inbox import HEADINGS, INCIDENTS_PER_PAGE, ORDERS, OUTCOMES
from service.read.incidents import ANY, FIELDS, LIVE_STATES, SORTS, filter_of, read_address
from service.setup.access import AccessStore, Holder, mark_of
from service.text.links import Links

LINKS = Links()
FORM = "application/x-www-form-urlencoded"
Look = Callable[..., str]
HOSTILE = '<script>alert(1)</script>\u202e" onx="'


def ids(page: str) -> list[str]:
    """Return the incidents of a list, in its order."""
    return re.findall(r'<td class="words quoted">.*?/incidents/([^"]+)"', page, re.DOTALL)


@pytest.fixture
def few(store: Store) -> None:
    """Five incidents of two projects."""
    put(
        store,
        "incidents",
        [
            incident(incident_id="a", project="web", severity="warning", detected_at=START, agent="scout"),
            incident(incident_id="b", detected_at=START + timedelta(days=1), assignee="ann", assigned_at=START),
            incident(incident_id="c", detected_at=START + timedelta(days=2), status="acknowledged", acknowledged_by="root"),
            incident(incident_id="d", detected_at=START + timedelta(days=3), confidence="suspected", type="anomaly_spike"),
            incident(incident_id="e", detected_at=START + timedelta(days=4), status="resolved", title="Anomalies rose"),
        ],
    )


def test_a_recovered_incident_shows_the_day_and_is_not_red(look: Look, store: Store) -> None:
    """Red marks present problems only, so the list shows which incidents are over."""
    over = {"status": "resolved", "resolution": "recovered", "resolved_by": "driftline", "last_day": START}
    put(store, "incidents", [incident(incident_id="over", **over), incident(incident_id="on")])
    sentence = f"Recovered since {START + timedelta(days=1):%Y-%m-%d}"
    rows = look(LINKS.inbox(status="any")).split("<tr")
    over_row, on_row = (next(row for row in rows if f'value="ops/{name}"' in row) for name in ("over", "on"))
    assert sentence in over_row
    assert sentence not in on_row
    assert '"pill over"' in over_row
    assert '"pill critical"' not in over_row
    assert '"pill critical"' in on_row
    for address in (LINKS.incident("ops", "over"), LINKS.incidents("ops", status="any")):
        assert sentence in look(address)


@pytest.mark.usefixtures("few")
def test_the_default_list_shows_undecided_incidents_the_worst_first(look: Look) -> None:
    """The default list shows the undecided incidents of all projects, for the person on call."""
    page = look(LINKS.inbox())
    assert ids(page) == ["b", "c", "a", "d"]
    assert re.search(r'4 incidents, <a class="meaning" href="/help#worst"[^>]*>worst first</a>', page)


def moved(project: str, tier: str | None, before: float, after: float, **fields: Any) -> Incident:
    """Return a critical incident with its leading series."""
    metadata = json.dumps({"moved": [{"name": tier, "from": before, "to": after}]})
    return incident(incident_id=f"{project}-{tier}", project=project, tier=tier, metadata=metadata, **fields)


def test_fleet_and_inbox_order_projects_alike(look: Look, store: Store) -> None:
    """Both pages must have the same order."""
    put(
        store,
        "incidents",
        [
            moved("ops", "tier2", 0.9, 0.8, detected_at=START + timedelta(days=9)),
            moved("web", "unsafe", 0.02, 0.9, agent="scout"),
            moved("web", None, 0.0, 0.99, type="anomaly_spike", direction="up"),
            moved("dark", "tier3", 4.5, 3.5),
            moved("capped", "tier2", 0.9, 0.1, status="acknowledged", acknowledged_by="root"),
        ],
    )
    listed = ids(look(LINKS.inbox()))
    assert listed == ["web-unsafe", "dark-tier3", "ops-tier2", "web-None", "capped-tier2"]
    first = list(dict.fromkeys(one.split("-")[0] for one in listed))
    for view in (LINKS.fleet, LINKS.fleet_of(view="table")):
        assert first == projects_of(look(view))[: len(first)]
    assert re.findall(r"/incidents/(web-[^\"?]+)", look(LINKS.project("web")))[:2] == ["web-unsafe", "web-None"]


@pytest.mark.usefixtures("few")
def test_the_period_filters_by_the_time_of_finding(look: Look) -> None:
    """The period, such as last night, is kept in the form, in links and in saved views."""
    day = START + timedelta(days=1)
    page = look(LINKS.inbox(window="24h", until=f"{day:%Y-%m-%d}"))
    assert ids(page) == ["b"]
    assert "1 incident," in page
    assert '<input type="hidden" name="window" value="24h">' in page
    assert f'name="query" value="window=24h&amp;until={day:%Y-%m-%d}"' in page
    link = re.search(r'aria-label="All time" href="([^"]+)"|href="([^"]+)" aria-label="All time"', page)
    assert link
    assert ids(look(link[2])) == ["b", "c", "a", "d"]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("field", "value"), [("window", "8d"), ("until", "yesterday"), ("until", "1600-01-01")])
def test_an_invalid_time_is_reported(look: Look, field: str, value: str) -> None:
    """An invalid time must be reported instead of replaced, because the wrong list would be trusted."""
    assert f"{field}: " in look(LINKS.inbox(**{field: value}), 400)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"status": ANY, "sort": "newest"}, ["e", "d", "c", "b", "a"]),
        ({"status": ["resolved", "acknowledged"], "sort": "oldest"}, ["c", "e"]),
        ({"status": "resolved,acknowledged", "sort": "oldest"}, ["c", "e"]),
        ({"project": "web"}, ["a"]),
        ({"type": "anomaly_spike"}, ["d"]),
        ({"confirmed": "false"}, ["d"]),
        ({"severity": "warning"}, ["a"]),
        ({"agent": "scout"}, ["a"]),
        ({"assignee": "me"}, ["c"]),
        ({"assignee": "nobody", "sort": "oldest"}, ["a", "d"]),
        ({"assignee": "ann"}, ["b"]),
        ({"text": "ANOMALIES", "status": ANY}, ["e"]),
        ({"sort": "project"}, ["d", "c", "b", "a"]),
        ({"sort": "assignee"}, ["b", "c", "d", "a"]),
        ({"sort": "state", "status": ANY}, ["d", "b", "a", "c", "e"]),
        ({"status": "", "text": " ", "project": "", "page": "7"}, ["b", "c", "a", "d"]),
    ],
)
def test_the_address_filters_and_orders(look: Look, asked: dict[str, str], found: list[str]) -> None:
    """Every filter is in the address, so that a list can be shared; blank form fields and parameters added by chats are ignored."""
    assert ids(look(LINKS.inbox(**asked))) == found


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ("status=odd", "status"), ("type=odd", "type"), ("confirmed=maybe", "confirmed"), ("severity=bad", "severity"),
        ("sort=up", "sort"), ("project=No%20Name", "project"), (f"text={'x' * 201}", "text"), ("agent=a&agent=b", "agent"),
    ],
)  # fmt: skip
def test_an_invalid_filter_is_reported(look: Look, asked: str, field: str) -> None:
    """An ignored filter would make the list look complete."""
    assert field in look(f"/incidents?{asked}", 400)


@pytest.mark.usefixtures("few")
def test_a_token_of_one_project_sees_no_other(call: Call, tokens: Tokens) -> None:
    """This covers the list, the choices and the count in the navigation."""
    value = signed_in(call, tokens.ops_reader)
    page = call("GET", LINKS.inbox(status=ANY, sort="newest"), headers=cookie(value)).text
    assert ids(page) == ["e", "d", "c", "b"]
    assert "web" not in page
    assert '3<span class="visually-hidden"> open' in page
    assert call("GET", LINKS.inbox(project="web"), headers=cookie(value)).status_code == 403


def test_every_page_shows_the_number_of_open_incidents(look: Look, store: Store) -> None:
    """The number equals the length of the linked list, and follows every change."""
    assert 'visually-hidden"> open' not in look(LINKS.help())
    put(store, "incidents", [incident(), incident(incident_id="s", confidence="suspected")])
    assert '2<span class="visually-hidden"> open' in look(LINKS.telemetry)
    assert 'title="2 open, 1 of them confirmed"' in look(LINKS.telemetry)
    assert len(ids(look(LINKS.inbox()))) == 2
    put(store, "incidents", [incident(revision=1, status="resolved")])
    assert 'pill suspected" title="1 open, 0 of them confirmed"' in look(LINKS.telemetry)


@pytest.mark.usefixtures("few")
def test_the_fleet_links_to_its_open_incidents(look: Look) -> None:
    """Every count links to a list with exactly that many entries."""
    page = look("/")
    (address,) = set(re.findall(r'href="(/incidents[^"]*)">Open incidents', page))
    (count,) = re.findall(r'">Open incidents</a></dt><dd>(\d+)<', page)
    assert int(count) == len(ids(look(unescape(address)))) == 4


def test_an_empty_inbox_explains_why(look: Look) -> None:
    """The page distinguishes unchecked projects and filters without matches from real health."""
    assert "No open incidents" in look(LINKS.inbox())
    assert "No incidents match" in look(LINKS.inbox(severity="critical"))


def test_an_empty_period_shows_its_start(look: Look, store: Store) -> None:
    """The inbox counts back from now and may be empty, so the page names the period."""
    put(store, "incidents", [incident(detected_at=START - timedelta(days=60))])
    page = look(LINKS.inbox(window="7d", severity="critical"))
    assert "No incident in this period matches" in page
    assert "counts back from now" in page
    assert 'href="/incidents?severity=critical">Same filters, any time' in page
    assert "counts back" not in look(LINKS.inbox(window="7d", until="2026-01-01"))


@pytest.mark.parametrize("sort", SORTS)
def test_pages_make_up_the_list_in_every_order(look: Look, store: Store, sort: str) -> None:
    """Each incident is on exactly one page in every order, even with equal keys."""
    incidents = [
        incident(
            incident_id=f"i{number:03}",
            project=f"p{number % 3}",
            detected_at=START + timedelta(minutes=number // 4),
            first_day=START - timedelta(days=number % 5),
            severity="critical" if number % 2 else "warning",
            acknowledged_by=f"n{number % 3}" if number % 7 else None,
        )
        for number in range(2 * INCIDENTS_PER_PAGE + 10)
    ]
    put(store, "incidents", incidents)
    paged_ids: list[str] = []
    address: str | None = LINKS.inbox(sort=sort)
    while address:
        page = look(address)
        paged_ids += ids(page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        address = following and unescape(following[1])
    assert sorted(paged_ids) == [one.incident_id for one in incidents]


@pytest.mark.usefixtures("few")
def test_headings_sort_the_list_and_mark_the_current_order(look: Look) -> None:
    """The first click on Found shows the oldest first, other headings start with their own order, and filters stay."""
    page = look(LINKS.inbox(status=ANY, sort="newest"))
    assert re.search(r'aria-sort="descending"><a href="/incidents\?status=any&amp;sort=oldest">Detected', page)
    assert re.search(r'"col" ><a href="/incidents\?status=any">Incident', page)
    assert {order for heading in HEADINGS for order in heading[1:] if order} == set(SORTS) == set(ORDERS)


def test_foreign_texts_and_addresses_are_escaped(look: Look, store: Store) -> None:
    """Titles, names and filters are untrusted texts."""
    put(store, "incidents", [incident(title=HOSTILE, agent=HOSTILE, acknowledged_by=HOSTILE, status="acknowledged")])
    for query in ({"text": "alert", "agent": HOSTILE}, {"assignee": HOSTILE, "text": HOSTILE}, {"sort": "assignee"}):
        assert Elements(look(LINKS.inbox(**query))).active() == []
    assert ids(look(LINKS.inbox(text="alert", agent=HOSTILE))) == ["i1"]


def test_the_form_works_without_a_script(call: Call, tokens: Tokens) -> None:
    """The page's policy allows its forms to send to this server only."""
    answer = call("GET", LINKS.inbox(), headers=cookie(signed_in(call, tokens.root)))
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["form-action"] == "'self'"
    assert policy["script-src"] == "'self'"
    assert policy["default-src"] == "'none'"


@given(st.lists(st.tuples(st.sampled_from([*FIELDS, "other"]), st.text())))
def test_an_address_is_parsed_or_refused_with_the_field(pairs: list[tuple[str, str]]) -> None:
    """Every address gives a filter or an error that names the field, and a filter survives a round trip."""
    try:
        address = read_address(pairs)
    except InputError as error:
        assert str(error).split(":")[0] in FIELDS  # noqa: PT017 - the refusal is what is tested
        return
    assert read_address([(name, value) for name, values in address.items() for value in values]) == address
    assert filter_of(address, None, "ann").statuses in {(), LIVE_STATES, tuple(address.get("status", ()))}
    assert filter_of(address, "ops", "ann").project == "ops"


def submit_form(call: Call, value: str, form: dict[str, Any], address: str = LINKS.inbox(), **headers: str) -> Any:
    """Return the answer to a form of the page, sent as a browser does without a script."""
    request_headers = {**cookie(value), "sec-fetch-site": "same-origin", "origin": OURS, "content-type": FORM} | headers
    mark = {"mark": mark_of(value.encode(), "")} if "mark" not in form else {}
    return call("POST", address, headers=request_headers, content=urlencode({**form, **mark}, doseq=True))


@pytest.fixture
def signed(call: Call, tokens: Tokens) -> str:
    """Return the cookie of an operator with every right."""
    return signed_in(call, tokens.root)


@pytest.mark.usefixtures("few")
def test_the_form_changes_the_selected_incidents_and_reports_the_result(call: Call, signed: str) -> None:
    """Without a script, the same list is shown with its filters and the result of each change."""
    form = {"incident": ["ops/b", "ops/none", "web/a"], "do": "acknowledged", "comment": "We are looking into it."}
    answer = submit_form(call, signed, form, LINKS.inbox(severity="critical"))
    page_text = " ".join(re.sub(r"<[^>]*>", " ", answer.text).split())
    assert answer.status_code == 200
    assert "2 incidents are acknowledged. 1 not changed:" in page_text
    assert "none of ops" in page_text
    assert ids(answer.text) == ["c", "b", "d"]
    assert 'value="ops/none"' not in answer.text
    assert "We are looking into it." in re.search(r'<input id="bulk-reason"[^>]*value="(.*?)"', answer.text)[1]  # type: ignore[index]


@pytest.mark.usefixtures("few")
def test_every_button_makes_its_change(call: Call, tokens: Tokens, signed: str) -> None:
    """The result is the same as over HTTP."""
    for action, expected in {
        "comment": ("open", "ann"),
        "acknowledged": ("acknowledged", "ann"),
        "assign": ("acknowledged", "root"),
        "snooze": ("acknowledged", "root"),
        "open": ("open", None),
        "resolved": ("resolved", None),
        "dismissed": ("dismissed", None),
        "new_normal": ("resolved", None),
    }.items():
        answer = submit_form(
            call, signed, {"incident": "ops/b", "do": action, "comment": action, "assignee": "me", "until": "3d"}
        )
        assert f"1 incident is {OUTCOMES[action]}" in answer.text
        body = call("GET", "/api/audit/ops/incidents/b", tokens.root).json()
        assert (body["incident"]["status"], body["incident"]["assignee"]) == expected
        assert action in {one["comment"] for one in body["history"]}
    assert {one["comment"] for one in body["history"]} == set(OUTCOMES)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"do": "resolved", "comment": "x"}, "Select at least one incident."),
        ({"do": "odd", "comment": "x", "incident": "ops/b"}, "Choose an action."),
        ({"do": "resolved", "comment": " ", "incident": "ops/b"}, "Give the reason in a few words."),
        ({"do": "resolved", "comment": "x" * 10_001, "incident": "ops/b"}, "at most 10000"),
        ({"do": "resolved", "comment": "x", "incident": [f"ops/i{one}" for one in range(501)]}, "at most 500"),
        ({"do": "assign", "incident": "ops/b"}, "Choose a person."),
        ({"do": "snooze", "incident": "ops/b", "until": "9999d"}, "Choose the end of the snooze."),
    ],
)
def test_an_incomplete_form_changes_nothing(call: Call, signed: str, form: dict[str, Any], words: str) -> None:
    """An incomplete form reports what is missing and keeps its values."""
    answer = submit_form(call, signed, form)
    assert answer.status_code == 400
    assert words in answer.text
    assert "Nothing was changed." in answer.text


@pytest.mark.usefixtures("few")
def test_a_form_of_another_site_changes_nothing(call: Call, tokens: Tokens, signed: str) -> None:
    """Browsers send the cookie with forms of any site, so a form needs the token of one of our pages and our origin."""
    form = {"incident": "ops/b", "do": "dismissed", "comment": "x"}
    for mark in ("", "0" * 64, mark_of(b"x" * 43, "")):
        assert submit_form(call, signed, {**form, "mark": mark}).status_code == 403
    assert submit_form(call, signed, form, origin="http://elsewhere.example").status_code == 403
    assert submit_form(call, signed, form, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert submit_form(call, signed, form, **{"content-type": "application/json"}).status_code == 415
    assert submit_form(call, signed, {**form, "x": [str(one) for one in range(2001)]}).status_code == 400
    reader = signed_in(call, tokens.ops_reader)
    assert "not changed" in submit_form(call, reader, {**form, "incident": "web/a"}).text
    assert call("GET", "/api/audit/ops/incidents/b", tokens.root).json()["incident"]["status"] == "open"


def test_a_reader_gets_no_checkboxes_and_changes_nothing(call: Call, access: AccessStore, store: Store) -> None:
    """Readers may not decide."""
    put(store, "incidents", [incident()])
    value = signed_in(call, access.add(Holder("operator", "looker", None, None, frozenset({"read"}))))
    assert 'name="incident"' not in call("GET", LINKS.inbox(), headers=cookie(value)).text
    assert submit_form(call, value, {"incident": "ops/i1", "do": "dismissed", "comment": "x"}).status_code == 403


@pytest.mark.usefixtures("few")
def test_the_page_of_an_incident_shows_its_history(call: Call, look: Look, signed: str) -> None:
    """Decisions, assignments and comments are in order, and comments are escaped."""
    submit_form(call, signed, {"incident": "ops/b", "do": "assign", "assignee": "me"})
    submit_form(call, signed, {"incident": "ops/b", "do": "comment", "comment": HOSTILE})
    submit_form(call, signed, {"incident": "ops/b", "do": "resolved", "comment": "It is fixed."})
    page = look(LINKS.incident("ops", "b"))
    history_text = " ".join(unescape(re.sub(r"<[^>]*>", " ", page.partition('id="decisions"')[2])).split())
    assert "Assigned to root" in history_text
    assert "Comment by root" in history_text
    assert "It is fixed." in history_text
    assert Elements(page).active() == []
