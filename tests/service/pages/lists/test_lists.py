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
from schemas.records import Exchange, Label, Score
from service.pages import listing
from service.pages.lists import LISTS
from service.text.links import Links

LINKS = Links()
Look = Callable[..., str]
HOSTILE = "=cmd|' /C calc'!A1<script>alert(1)</script>\u202e"


def fill(store: Store, said: list[Exchange], scores: list[Score]) -> None:
    """Put exchanges in with their scores: no stage has to make them."""
    put(store, "exchanges", said)
    put(store, "scores", scores)
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", len(said))


@pytest.fixture
def fleet(store: Store) -> None:
    """Twelve exchanges of two agents, of which each third has an anomaly, and every second no score of Tier 2."""
    said, scores = [], []
    for number in range(1, 13):
        at = NOW - timedelta(hours=number)
        fields: dict[str, Any] = {"agent": "scout" if number % 2 else "guide", "occurred_at": at, "ingested_at": at}
        version = Label(name="agent_version", value=f"{number % 3}")
        said.append(exchange(f"s{number % 4}", number, **fields, agent_model=f"model-{number % 2}", labels=(version,)))
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
    fill(store, said, scores)


def turns_of(page: str) -> list[int]:
    """The turns that a list of exchanges shows, in its order."""
    return [int(one) for one in re.findall(r'data-label="Turn">(\d+)<', page)]


def links_of(page: str, words: str) -> str:
    """The address of the link of these words."""
    found = re.search(rf'<a href="([^"]*)"[^>]*>(?:<bdi>)?{words}', page)
    assert found, words
    return unescape(found[1])


@pytest.mark.usefixtures("fleet")
def test_the_newest_come_first_and_a_heading_sorts(look: Look) -> None:
    """A click on a heading sorts by it, a second one turns the order round, and screen readers hear which it is."""
    here = LINKS.exchanges("ops")
    page = look(here)
    assert turns_of(page) == list(range(1, 13))
    assert 'aria-sort="descending"' in page
    lowest = look(links_of(page, "Tier 2<"))
    assert turns_of(lowest)[:6] == [2, 4, 6, 8, 10, 12]
    assert re.search(r'aria-sort="ascending"><a [^>]*>Tier 2', lowest)
    highest = look(links_of(lowest, "Tier 2<"))
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
    ],
)
def test_filters_are_in_the_address(look: Look, asked: dict[str, str], turns: list[int]) -> None:
    """A link that is sent to a colleague shows what the sender saw, and says by what it is narrowed."""
    page = look(LINKS.exchanges("ops", **asked))
    assert turns_of(page) == turns
    assert "Clear filters" in page
    for value in asked.values():
        assert value in unescape(page)


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("sort", LISTS["exchanges"].sorts)
@pytest.mark.parametrize("down", ["true", "false"])
def test_pages_have_each_row_once_under_each_order(look: Look, monkeypatch: pytest.MonkeyPatch, sort: str, down: str) -> None:
    """Missing and equal values must not make pages lose or repeat rows."""
    whole = turns_of(look(LINKS.exchanges("ops", sort=sort, down=down)))
    assert set(whole) == set(range(1, 13))
    monkeypatch.setattr(listing, "ROWS_PER_PAGE", 5)
    page = look(LINKS.exchanges("ops", sort=sort, down=down))
    paged = turns_of(page)
    while "Next page" in page:
        page = look(links_of(page, "Next page"))
        paged += turns_of(page)
        assert "First page" in page
    assert paged == whole


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("down", ["true", "false"])
def test_a_page_is_whole_where_the_first_scores_were_replaced(
    look: Look, store: Store, monkeypatch: pytest.MonkeyPatch, down: str
) -> None:
    """A list looks no farther down than a few pages; were all of these judged again, the next ones are its first."""
    monkeypatch.setattr(listing, "ROWS_PER_PAGE", 2)
    monkeypatch.setattr(listing, "_PREFIX_FACTOR", 1)
    monkeypatch.setattr(listing, "_WIDENING_FACTOR", 2)
    worst = range(2, 8, 2) if down == "false" else range(8, 14, 2)
    again = [
        score(f"s{n % 4}", n, revision=1, exchange_at=NOW - timedelta(hours=n), tier2_state="unscored", agent="guide")
        for n in worst
    ]
    put(store, "scores", again)
    left = [n for n in range(2, 14, 2) if n not in worst]
    page = look(LINKS.exchanges("ops", sort="tier2", down=down))
    assert (left if down == "false" else left[::-1])[:2] == turns_of(page)


@pytest.mark.usefixtures("fleet")
def test_the_time_the_order_and_the_filters_stay_when_one_changes(look: Look) -> None:
    """A click changes one parameter and keeps the others."""
    page = look(LINKS.exchanges("ops", agent="guide", window="7d", sort="tier2", down="false"))
    for words in ("Turn<", "guide<", "Exchange<"):
        address = links_of(page, words)
        assert "window=7d" in address
        assert "agent=guide" in address
    assert "window=7d" in links_of(page, "Clear filters")
    assert "agent" not in links_of(page, "Clear filters")
    assert "sort=tier2" in links_of(page, "30 d")


@pytest.mark.usefixtures("fleet")
def test_sessions_are_listed_with_what_they_add_up_to(look: Look, store: Store) -> None:
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
def test_every_order_and_filter_of_every_list_can_be_asked_for(look: Look, name: str) -> None:
    """A column that the query does not know, or a filter that it does not take, would show here."""
    of = LISTS[name]
    here = getattr(LINKS, name)
    for sort in of.sorts:
        page = look(here("ops", sort=sort, window="30d"))
        assert ("<tbody>" in page) == ("aria-sort" in page), sort
    for one in of.filters:
        value = next(iter(one.choices)) if one.choices else "1"
        look(here("ops", **{one.name: value}))


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
def test_an_empty_list_says_so(look: Look, name: str) -> None:
    """An empty project and filters without matches have different messages."""
    here, (empty, narrowed) = getattr(LINKS, name), NOTHING[name]
    assert empty in look(here("ops"))
    assert narrowed in look(here("ops", agent="scout"))


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
def test_an_address_that_is_not_valid_names_what_is_wrong(look: Look, asked: str, words: str) -> None:
    """Users edit addresses by hand."""
    assert words in unescape(look(f"{LINKS.exchanges('ops')}?{asked}", 400))


@pytest.mark.usefixtures("fleet")
def test_a_page_of_one_order_is_none_of_another(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows would be skipped silently."""
    monkeypatch.setattr(listing, "ROWS_PER_PAGE", 5)
    address = links_of(look(LINKS.exchanges("ops")), "Next page")
    assert "another sort order" in look(f"{address}&sort=tier2", 400)


@pytest.mark.usefixtures("fleet")
def test_a_file_has_what_the_list_shows_on_all_its_pages(call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has the filters, order and columns of the page, and all pages."""
    monkeypatch.setattr(listing, "READ_BATCH_SIZE", 2)
    monkeypatch.setattr("service.pages.lists.READ_BATCH_SIZE", 2)
    browser = cookie(signed_in(call, tokens.root))
    asked = "?agent=guide&sort=tier2&down=false"
    answer = call("GET", LINKS.list_file("ops", "exchanges.csv") + asked, headers=browser)
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
    told = call("GET", LINKS.list_file("ops", "exchanges.json") + asked, headers=browser).json()
    assert [row["turn_number"] for row in told] == [2, 4, 6, 8, 10, 12]
    assert list(rows[0]) == list(told[0])


def test_a_file_of_nothing_is_whole(call: Call, tokens: Tokens) -> None:
    """An empty file must be valid, so that programs need no special case."""
    browser = cookie(signed_in(call, tokens.root))
    assert call("GET", LINKS.list_file("ops", "sessions.json"), headers=browser).json() == []
    text = call("GET", LINKS.list_file("ops", "sessions.csv"), headers=browser).text
    assert text.startswith("session_id,last_at,agent")
    assert len(text.splitlines()) == 1


@pytest.mark.usefixtures("fleet")
def test_a_file_is_bounded(call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project has four million exchanges: SQL and the API's pages are for all of them."""
    monkeypatch.setattr(listing, "MAX_EXPORT_ROWS", 5)
    monkeypatch.setattr(listing, "READ_BATCH_SIZE", 2)
    monkeypatch.setattr("service.pages.lists.READ_BATCH_SIZE", 2)
    browser = cookie(signed_in(call, tokens.root))
    assert len(call("GET", LINKS.list_file("ops", "exchanges.json"), headers=browser).json()) == 5


def test_what_an_agent_is_called_is_no_formula_and_no_markup(call: Call, tokens: Tokens, store: Store, look: Look) -> None:
    """Names and reasons come from outside; a spreadsheet would run what begins with an equals sign."""
    at = NOW - timedelta(hours=1)
    said = exchange(HOSTILE, 1, agent=HOSTILE, agent_model=HOSTILE, occurred_at=at, ingested_at=at)
    found = {"anomaly": True, "anomaly_reasons": (HOSTILE,), "tier1_flags": (HOSTILE,)}
    fill(store, [said], [score(HOSTILE, 1, score_id="one", agent=HOSTILE, exchange_at=at, **found)])
    for name in LISTS:
        page = look(getattr(LINKS, name)("ops", agent=HOSTILE))
        assert Elements(page).active() == []
        assert "\u202e" not in page
    browser = cookie(signed_in(call, tokens.root))
    for name in ("exchanges", "anomalies", "sessions"):
        (row,) = csv.DictReader(io.StringIO(call("GET", LINKS.list_file("ops", f"{name}.csv"), headers=browser).text))
        assert row["agent"] == f"'{HOSTILE}"
        assert row["session_id"] == f"'{HOSTILE}"


@pytest.mark.usefixtures("fleet")
def test_a_list_and_its_file_are_for_those_who_may_see_the_project(call: Call, tokens: Tokens) -> None:
    """The rule is the same as for every page of a project."""
    reader = cookie(signed_in(call, tokens.ops_reader))
    for path in (LINKS.exchanges("web"), LINKS.sessions("web"), LINKS.list_file("web", "exchanges.csv")):
        assert call("GET", path, headers=reader).status_code in (403, 404)
    assert call("GET", LINKS.list_file("ops", "exchanges.csv"), headers=reader).status_code == 200
    assert call("GET", LINKS.list_file("ops", "exchanges.xml"), headers=reader).status_code == 404
    assert call("GET", LINKS.list_file("ops", "secrets.csv"), headers=reader).status_code == 404
