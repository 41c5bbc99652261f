"""Lists: sorted by heading, filtered by the address, paged under each order, and exported as they are shown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import event, exchange, score
from support.pages import Elements, cookie, signed_in
from support.watch_histories import put

from analytics.store.store import Store
from schemas.records import Exchange, Label, Score, ToolCall
from service.pages import listing
from service.pages.lists import LISTS
from service.text.links import Links

LINKS = Links()
Look = Callable[..., str]
HOSTILE = "=cmd|' /C calc'!A1<script>alert(1)</script>\u202e"


def fill(store: Store, said: list[Exchange], scores: list[Score]) -> None:
    """Store exchanges with their scores, without running a stage."""
    put(store, "exchanges", said)
    put(store, "scores", scores)
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", len(said))


@pytest.fixture
def fleet(store: Store) -> None:
    """Store twelve exchanges of two agents: every third is anomalous, and every second has no Tier 2."""
    exchanges, scores = [], []
    for number in range(1, 13):
        at = NOW - timedelta(hours=number)
        fields: dict[str, Any] = {"agent": "scout" if number % 2 else "guide", "occurred_at": at, "ingested_at": at}
        version = Label(name="agent_version", value=f"{number % 3}")
        call = ToolCall(name=f"tool-{number % 3}", arguments=None, result=None, outcome="error" if number % 6 == 0 else "ok")
        fields |= {"agent_model": f"model-{number % 2}", "labels": (version,), "tool_calls": (call,)}
        fields["user_message"] = f"Question {number} about a café"
        exchanges.append(exchange(f"s{number % 4}", number, **fields))
        bad = number % 3 == 0
        scores.append(
            score(
                f"s{number % 4}",
                number,
                agent=fields["agent"],
                exchange_at=at,
                anomaly=bad,
                anomaly_reasons=("It left out what was asked.",) if bad else (),
                tier2_state="unscored" if number % 2 else "scored",
                tier2_score=None if number % 2 else number / 20,
            )
        )
    fill(store, exchanges, scores)


def turns_of(page: str) -> list[int]:
    """Return the turns in a list of exchanges, in its order."""
    return [int(one) for one in re.findall(r">turn (\d+)<", page)]


def links_of(page: str, words: str) -> str:
    """Return the address of the link with this text."""
    match = re.search(rf'<a href="([^"]*)"[^>]*>(?:<bdi>)?{words}', page)
    assert match, words
    return unescape(match[1])


@pytest.mark.usefixtures("fleet")
def test_the_newest_come_first_and_a_heading_sorts(look: Look) -> None:
    """A second click reverses the order, and screen readers announce the current one."""
    list_path = LINKS.exchanges("ops")
    page = look(list_path)
    assert turns_of(page) == list(range(1, 13))
    assert 'aria-sort="descending"' in page
    lowest = look(links_of(page, "Answer quality<"))
    assert turns_of(lowest)[:6] == [2, 4, 6, 8, 10, 12]
    assert re.search(r'aria-sort="ascending"><a [^>]*>Answer<', lowest)
    highest = look(links_of(lowest, "Answer quality<"))
    assert turns_of(highest)[:6] == [12, 10, 8, 6, 4, 2]
    assert set(turns_of(highest)[6:]) == {1, 3, 5, 7, 9, 11}


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize(
    ("asked", "turns"),
    [
        ({"agent": "guide"}, [2, 4, 6, 8, 10, 12]),
        ({"agent": "-"}, []),
        ({"anomalies": "yes"}, [3, 6, 9, 12]),
        ({"anomalies": "no", "agent": "scout"}, [1, 5, 7, 11]),
        ({"reason": "LEFT OUT"}, [3, 6, 9, 12]),
        ({"least": "0.25", "most": "0.4"}, [6, 8]),
        ({"model": "model-0"}, [2, 4, 6, 8, 10, 12]),
        ({"label": "agent_version=2"}, [2, 5, 8, 11]),
        ({"session": "s3"}, [3, 7, 11]),
        ({"version": "2", "agent": "scout"}, [5, 11]),
        ({"text": "CAFE 7"}, [7]),
        ({"text": "tool 2", "agent": "scout"}, [5, 11]),
        ({"tool": "tool-0"}, [3, 6, 9, 12]),
        ({"tool_error": "yes"}, [6, 12]),
        ({"tool_error": "yes", "tool": "tool-1"}, []),
    ],
)
def test_filters_are_in_the_address(look: Look, asked: dict[str, str], turns: list[int]) -> None:
    """A shared link shows the same list, and the page names its filters."""
    page = look(LINKS.exchanges("ops", **asked))
    assert turns_of(page) == turns
    assert "Clear filters" in page
    for value in asked.values():
        assert value in unescape(page)


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize(
    ("asked", "turns"),
    [
        ({"agent": "scout", "version": "2"}, [5, 11]),
        ({"tool": "tool-0", "toolError": "true"}, [6, 12]),
        ({"toolError": "true"}, [6, 12]),
        ({"text": "CAFE 7"}, [7]),
        ({"text": "?!"}, None),
    ],
)
def test_the_api_has_the_filters_of_pages(call: Call, tokens: Tokens, asked: dict[str, str], turns: list[int] | None) -> None:
    """A script finds what a person found."""
    answer = call("GET", "/api/audit/ops/scores", tokens.root, params=asked)
    if turns is None:
        assert answer.status_code == 400
    else:
        assert [entry["turnNumber"] for entry in answer.json()["scores"]] == turns
        if "text" not in asked:
            sessions = call("GET", "/api/audit/ops/sessions", tokens.root, params=asked | {"to": NOW.isoformat()}).json()[
                "sessions"
            ]
            assert {entry["sessionId"] for entry in sessions} == {f"s{turn % 4}" for turn in turns}
            pages, cursor = [], None
            while cursor is not None or not pages:
                page = call(
                    "GET",
                    "/api/audit/ops/sessions",
                    tokens.root,
                    params=asked | {"limit": "1"} | ({"cursor": cursor} if cursor else {}),
                ).json()
                pages.append([entry["sessionId"] for entry in page["sessions"]])
                cursor = page["nextCursor"]
            assert pages == [[entry["sessionId"]] for entry in sessions]
            assert all(entry["question"].startswith("Question") for entry in sessions)


@pytest.mark.usefixtures("fleet")
def test_a_list_has_a_range_of_days_of_its_own(look: Look) -> None:
    """Both days are included, and the control of the period shows them."""
    day = f"{NOW.date()}"
    before = [number for number in range(1, 13) if (NOW - timedelta(hours=number)).date() < NOW.date()]
    page = look(LINKS.exchanges("ops", since=f"{NOW.date() - timedelta(days=3)}", until=f"{NOW.date() - timedelta(days=1)}"))
    assert turns_of(page) == before
    assert re.search(
        r'<details class="popover custom" id="custom-range"><summary aria-current="true">.*28 Sep \u2013 30 Sep 2026', page
    )
    assert turns_of(look(LINKS.exchanges("ops", since=day))) == [number for number in range(1, 13) if number not in before]
    assert "since: must not be after until" in look(LINKS.exchanges("ops", since=day, until="2020-01-01"), 400)


@pytest.mark.usefixtures("fleet")
def test_the_sessions_of_an_agent_with_a_failed_tool_call_are_four_clicks_away(look: Look) -> None:
    """From any page: the sessions of all projects, a period, the agent, the failed call. A fifth click leads to the agent."""
    address = links_of(look(LINKS.fleet), "Sessions")
    address = links_of(look(address), "24 h")
    address = links_of(look(address).split("guide</bdi>")[1], "filter")
    page = look(links_of(look(address), "With a failed tool call"))
    agents = re.findall(r'href="/agents/([^"?]*)', page)
    assert agents == ["guide", "guide"]
    assert "Exchanges" in look(links_of(page, "guide<"))


@pytest.mark.usefixtures("fleet")
def test_lists_of_the_fleet_and_agents_show_only_visible_projects(call: Call, tokens: Tokens, store: Store) -> None:
    """A reader of one project must not learn of another one."""
    at = NOW - timedelta(hours=1)
    foreign = exchange("secret", 1, project="web", agent="spy", user_message="hidden question", occurred_at=at, ingested_at=at)
    put(store, "exchanges", [foreign])
    put(store, "scores", [score("secret", 1, project="web", agent="spy", score_id="secret", exchange_at=at)])
    reader, root = cookie(signed_in(call, tokens.ops_reader)), cookie(signed_in(call, tokens.root))
    for path in (LINKS.fleet_exchanges(), LINKS.fleet_sessions(), LINKS.list_file(None, "exchanges.csv")):
        assert "hidden question" not in call("GET", path, headers=reader).text
        assert "hidden question" in call("GET", path, headers=root).text
        assert call("GET", f"{path}?project=web", headers=reader).status_code in (403, 404)
    assert call("GET", LINKS.agent("spy"), headers=reader).status_code == 404
    assert "hidden question" in call("GET", LINKS.agent("spy"), headers=root).text


@pytest.mark.usefixtures("fleet")
def test_a_list_counts_all_its_rows(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page shows some of the rows; readers want to know of how many, and a wrong total would be worse than none."""
    filters: list[dict[str, str]] = [{}, {"agent": "guide"}, {"anomalies": "no"}, {"anomalies": "yes"}, {"version": "2"}]

    def read_totals() -> list[str]:
        pages = "".join(look(LINKS.exchanges("ops", **texts)) for texts in filters)
        return re.findall(r'class="summary"><span>([^<]*)', pages)

    whole = read_totals()
    assert whole == [
        "12 exchanges, 4 with an anomaly",
        "6 exchanges, 2 with an anomaly",
        "8 exchanges",
        "4 exchanges, 4 with an anomaly",
        "4 exchanges",
    ]
    monkeypatch.setattr(listing, "ROWS_PER_PAGE", 2)
    # The sums of days know no versions.
    assert read_totals() == [*whole[:-1], ""]


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("sort", LISTS["exchanges"].sorts)
@pytest.mark.parametrize("down", ["true", "false"])
def test_pages_have_each_row_once_in_every_order(look: Look, monkeypatch: pytest.MonkeyPatch, sort: str, down: str) -> None:
    """Missing and equal values must not make pages lose or repeat rows."""
    full_list = turns_of(look(LINKS.exchanges("ops", sort=sort, down=down)))
    assert set(full_list) == set(range(1, 13))
    monkeypatch.setattr(listing, "ROWS_PER_PAGE", 5)
    page = look(LINKS.exchanges("ops", sort=sort, down=down))
    paged = turns_of(page)
    while "Next page" in page:
        page = look(links_of(page, "Next page"))
        paged += turns_of(page)
        assert "First page" in page
    assert paged == full_list


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("down", ["true", "false"])
def test_a_page_is_full_although_its_first_scores_were_replaced(
    look: Look, store: Store, monkeypatch: pytest.MonkeyPatch, down: str
) -> None:
    """A list reads a bounded prefix; if all of it was judged again, the prefix is widened."""
    monkeypatch.setattr(listing, "ROWS_PER_PAGE", 2)
    monkeypatch.setattr(listing, "_PREFIX_FACTOR", 1)
    monkeypatch.setattr(listing, "_WIDENING_FACTOR", 2)
    worst = range(2, 8, 2) if down == "false" else range(8, 14, 2)
    rejudged = [
        score(f"s{n % 4}", n, revision=1, exchange_at=NOW - timedelta(hours=n), tier2_state="unscored", agent="guide")
        for n in worst
    ]
    put(store, "scores", rejudged)
    remaining = [n for n in range(2, 14, 2) if n not in worst]
    page = look(LINKS.exchanges("ops", sort="tier2", down=down))
    assert (remaining if down == "false" else remaining[::-1])[:2] == turns_of(page)


@pytest.mark.usefixtures("fleet")
def test_changing_one_parameter_keeps_the_others(look: Look) -> None:
    """A click changes one parameter and keeps the others."""
    page = look(LINKS.exchanges("ops", agent="guide", window="7d", sort="tier2", down="false"))
    for heading in ("Turn<", "filter<", "Time<"):
        address = links_of(page, heading)
        assert "window=7d" in address
        assert "agent=guide" in address
    assert "window=7d" in links_of(page, "Clear filters")
    assert "agent" not in links_of(page, "Clear filters")
    assert "sort=tier2" in links_of(page, "30 d")


@pytest.mark.usefixtures("fleet")
def test_sessions_are_listed_with_their_totals(look: Look, store: Store) -> None:
    """The list leads to conversations, of sessions with exchanges or with events only."""
    at = NOW - timedelta(hours=1)
    put(store, "agent-events", [event("alone", 0, event="tool_call", tool="search")])
    page = look(LINKS.sessions("ops", window="30d"))
    for session in ("s0", "s1", "s2", "s3", "alone"):
        assert LINKS.session("ops", session, "local", window="30d").replace("&", "&amp;") in page, session
    worst = look(LINKS.sessions("ops", sort="anomalies", anomalies="yes"))
    assert "alone" not in worst
    assert at


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.usefixtures("fleet")
def test_every_order_and_filter_of_every_list_works(look: Look, name: str) -> None:
    """A column unknown to the query, or a filter that it ignores, would fail here."""
    of = LISTS[name]
    list_link = getattr(LINKS, name)
    for sort in of.sorts:
        page = look(list_link("ops", sort=sort, window="30d")).rpartition("<h2>Judging</h2>")[2]
        assert ("<tbody>" in page and of.sorts[sort].is_shown) == ("aria-sort" in page), sort
    for filter_name in of.filters:
        value = next(iter(filter_name.choices)) if filter_name.choices else "1"
        look(list_link("ops", **{filter_name.name: value}))


NOTHING = {
    "exchanges": ("There are none", "match the filters"),
    "sessions": ("There are none", "match the filters"),
    "anomalies": ("No stored exchange has an anomaly", "No anomaly matches the filters"),
    "runs": ("No runs yet", "No runs match"),
    "costs": ("was judged", "match the filters"),
    "evaluations": ("No run has been evaluated yet", "No evaluation matches"),
    "wrap_quality": ("There are no exchanges.", "No session matches the filters."),
}


@pytest.mark.parametrize("name", LISTS)
def test_an_empty_list_explains_why(look: Look, name: str) -> None:
    """An empty project and filters without matches have different messages."""
    list_link, (empty, narrowed) = getattr(LINKS, name), NOTHING[name]
    assert empty in look(list_link("ops"))
    assert narrowed in look(list_link("ops", agent="scout"))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("sort=odd", "sort: must be one of at, agent"),
        ("down=perhaps", "down: must be true or false"),
        ("least=low", "least: must be a number"),
        ("least=nan", "least: must be a number"),
        ("anomalies=maybe", "anomalies: must be one of yes, no"),
        ("agent=" + "x" * 600, "agent: must have at most 512 characters"),
        ("cursor=odd", "cursor: must be the nextCursor"),
        ("cursor=é", "cursor: must be the nextCursor"),
    ],
)
def test_an_invalid_address_names_the_problem(look: Look, asked: str, words: str) -> None:
    """Users edit addresses by hand."""
    assert words in unescape(look(f"{LINKS.exchanges('ops')}?{asked}", 400))


@pytest.mark.usefixtures("fleet")
def test_a_cursor_of_one_order_is_refused_in_another(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows would be skipped silently."""
    monkeypatch.setattr(listing, "ROWS_PER_PAGE", 5)
    address = links_of(look(LINKS.exchanges("ops")), "Next page")
    assert "another sort order" in look(f"{address}&sort=tier2", 400)


@pytest.mark.usefixtures("fleet")
def test_a_file_has_the_rows_of_all_pages(call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has the filters, order and columns of the page, and all pages."""
    monkeypatch.setattr(listing, "READ_BATCH_SIZE", 2)
    monkeypatch.setattr("service.pages.lists.READ_BATCH_SIZE", 2)
    browser = cookie(signed_in(call, tokens.root))
    query = "?agent=guide&sort=tier2&down=false"
    answer = call("GET", LINKS.list_file("ops", "exchanges.csv") + query, headers=browser)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="ops-exchanges.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["turn_number"] for row in rows] == ["2", "4", "6", "8", "10", "12"]
    assert [rows[0][name] for name in ("tier2_score", "exchange_at", "agent_model")] == [
        "0.1",
        "2026-10-01T10:00:00Z",
        "model-0",
    ]
    told = call("GET", LINKS.list_file("ops", "exchanges.json") + query, headers=browser).json()
    assert [row["turn_number"] for row in told] == [2, 4, 6, 8, 10, 12]
    assert list(rows[0]) == list(told[0])


def test_an_empty_file_is_valid(call: Call, tokens: Tokens) -> None:
    """An empty file must be valid, so that programs need no special case."""
    browser = cookie(signed_in(call, tokens.root))
    assert call("GET", LINKS.list_file("ops", "sessions.json"), headers=browser).json() == []
    text = call("GET", LINKS.list_file("ops", "sessions.csv"), headers=browser).text
    assert text.startswith("session_id,question,readiness_level,trust_score,last_at,agent")
    assert len(text.splitlines()) == 1


@pytest.mark.usefixtures("fleet")
def test_a_file_has_a_maximum_length(call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project may have four million exchanges; SQL and the API's pages give all of them."""
    monkeypatch.setattr(listing, "MAX_EXPORT_ROWS", 5)
    monkeypatch.setattr(listing, "READ_BATCH_SIZE", 2)
    monkeypatch.setattr("service.pages.lists.READ_BATCH_SIZE", 2)
    browser = cookie(signed_in(call, tokens.root))
    assert len(call("GET", LINKS.list_file("ops", "exchanges.json"), headers=browser).json()) == 5


def test_an_agents_name_is_neither_a_formula_nor_markup(call: Call, tokens: Tokens, store: Store, look: Look) -> None:
    """Names and reasons are foreign texts, and a spreadsheet would run a text that begins with an equals sign."""
    at = NOW - timedelta(hours=1)
    texts = {
        "agent": HOSTILE,
        "agent_model": HOSTILE,
        "user_message": HOSTILE,
        "agent_response": f"{HOSTILE}\n\n{'long ' * 100}",
    }
    hostile_exchange = exchange(HOSTILE, 1, **texts, occurred_at=at, ingested_at=at)
    anomaly_fields = {"anomaly": True, "anomaly_reasons": (HOSTILE,), "tier1_flags": (HOSTILE,)}
    fill(store, [hostile_exchange], [score(HOSTILE, 1, score_id="one", agent=HOSTILE, exchange_at=at, **anomaly_fields)])
    for name in LISTS:
        page = look(getattr(LINKS, name)("ops", agent=HOSTILE))
        assert Elements(page).active() == []
        assert "\u202e" not in page
    agent_page = look(LINKS.agent(HOSTILE))
    assert Elements(agent_page).active() == []
    assert "\u202e" not in agent_page
    browser = cookie(signed_in(call, tokens.root))
    for name in ("exchanges", "anomalies", "sessions"):
        (row,) = csv.DictReader(io.StringIO(call("GET", LINKS.list_file("ops", f"{name}.csv"), headers=browser).text))
        assert row["agent"] == f"'{HOSTILE}"
        assert row["session_id"] == f"'{HOSTILE}"
        assert row["question"] == f"'{HOSTILE}"
        # An excerpt is one line of bounded length.
        assert len(row.get("answer", "").splitlines()) <= 1
        assert len(row.get("answer", "")) <= 201


@pytest.mark.usefixtures("fleet")
def test_a_list_and_its_file_require_access_to_the_project(call: Call, tokens: Tokens) -> None:
    """The rule is the same as for every page of a project."""
    reader = cookie(signed_in(call, tokens.ops_reader))
    for path in (LINKS.exchanges("web"), LINKS.sessions("web"), LINKS.list_file("web", "exchanges.csv")):
        assert call("GET", path, headers=reader).status_code in (403, 404)
    assert call("GET", LINKS.list_file("ops", "exchanges.csv"), headers=reader).status_code == 200
    assert call("GET", LINKS.list_file("ops", "exchanges.xml"), headers=reader).status_code == 404
    assert call("GET", LINKS.list_file("ops", "secrets.csv"), headers=reader).status_code == 404
