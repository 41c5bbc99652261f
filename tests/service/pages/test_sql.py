"""The SQL page: views and examples from their definitions, and only for users with the scope."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from support.api_server import Call, Tokens
from support.pages import cookie, from_page, signed_in

from analytics.snapshots import readable_catalogue
from service.pages.sql import FIRST, worked_examples
from service.setup.access import AccessStore, Holder

SQL = "/sql"
HOSTILE = "</textarea><script>alert(1)</script> $x"


def editor(page: str) -> str:
    """The statement in the editor."""
    (found,) = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    return html.unescape(found)


def test_every_view_is_there_with_its_columns_and_comments(call: Call, tokens: Tokens) -> None:
    """The page lists every view and column, because users cannot remember them."""
    page = call("GET", SQL, headers=cookie(signed_in(call, tokens.root))).text
    named = re.findall(r'data-insert="([^"]+)"', page)
    assert [column.name for one in readable_catalogue() for column in one.columns] == named
    assert "Judge: scope and completeness, 0 to 1." in page
    assert editor(page) == FIRST


def test_the_examples_are_those_of_the_guide_and_links_of_their_own(call: Call, tokens: Tokens) -> None:
    """The page uses the guide's tested examples."""
    value = signed_in(call, tokens.root)
    page = call("GET", SQL, headers=cookie(value)).text
    links = re.findall(r'data-use href="([^"]+)"', page)
    assert len(worked_examples()) == len(links)
    first = worked_examples()[0]
    assert first.title == "Which agent got worse?"
    assert first.sql.startswith("WITH dated AS (")
    assert [one.sql for one in worked_examples()] == [
        editor(call("GET", html.unescape(link), headers=cookie(value)).text) for link in links
    ]


def test_what_is_the_readers_own_in_an_example_is_a_parameter_that_its_link_fills(call: Call, tokens: Tokens) -> None:
    """Examples have parameters with neutral defaults, so that they run unchanged."""
    page = call("GET", SQL, headers=cookie(signed_in(call, tokens.root))).text
    link = next(one for one in re.findall(r'data-use href="([^"]+)"', page) if "p.project" in one)
    assert {name: value for name, value in parse_qs(urlsplit(html.unescape(link)).query).items() if name != "q"} == {
        "p.project": ["%"],
        "p.agent": ["%"],
    }
    assert [one.parameters for one in worked_examples() if one.title == "What came late?"] == [{}]
    assert "/* $" not in " ".join(one.sql for one in worked_examples())


def test_a_shared_statement_is_text_and_is_not_run(call: Call, tokens: Tokens) -> None:
    """A link can fill the editor but must not run the statement."""
    page = call("GET", SQL, headers=cookie(signed_in(call, tokens.root)), params={"q": HOSTILE, "rows": 100}).text
    assert editor(page) == HOSTILE
    assert "<script>alert" not in page
    assert '<option value="100" selected>' in page


def test_the_page_asks_the_api_with_the_cookie_and_its_mark(call: Call, tokens: Tokens) -> None:
    """The same rules as for every program; without the mark another site could ask."""
    value = signed_in(call, tokens.root)
    body = {"sql": "SELECT 1 AS one", "format": "json", "limit": 100}
    asked = call("POST", "/api/audit/query", json=body, headers=from_page(value))
    assert asked.status_code == 200
    assert asked.json()["rows"] == [{"one": 1}]
    assert call("POST", "/api/audit/query", json=body, headers=cookie(value)).status_code == 403


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (
            Holder("operator", "reader", None, scopes=frozenset({"read", "review"})),
            "the scope <code>query</code>, which reader",
        ),
        (Holder("operator", "opsonly", "ops"), "opsonly is limited to the project ops"),
    ],
)
def test_whoever_may_not_ask_is_told_why(call: Call, access: AccessStore, holder: Holder, words: str) -> None:
    """Users without the scope see the reason, but neither editor nor columns."""
    answer = call("GET", SQL, headers=cookie(signed_in(call, access.add(holder))))
    assert answer.status_code == 403
    assert words in answer.text
    assert "<textarea" not in answer.text
    assert ">SQL</a>" not in answer.text


@pytest.mark.parametrize("sql", ["SELECT 1,\n  oops FROM turns", "SELECT 1\nFROM no_such_table", "SELECT 1,\n  , 2"])
def test_a_refusal_says_in_which_line(call: Call, tokens: Tokens, sql: str) -> None:
    """The error names the line, to which the editor jumps."""
    told = call("POST", "/api/audit/query", tokens.root, json={"sql": sql}).json()["error"]
    assert re.search(r"^LINE 2: ", told, re.MULTILINE)


@pytest.mark.parametrize("query", [f"q={'x' * 50_001}", "rows=many"])
def test_an_address_that_cannot_be_read_is_a_page(call: Call, tokens: Tokens, query: str) -> None:
    """A link that was cut, or made longer than a statement may be."""
    answer = call("GET", f"{SQL}?{query}", headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_the_page_says_how_old_the_snapshot_is(call: Call, tokens: Tokens) -> None:
    """A statement answers of that time; the part of the page is asked for again and again, and has no snapshot made."""
    value = signed_in(call, tokens.root)
    assert "No snapshot" in call("GET", f"{SQL}/snapshot", headers=cookie(value)).text
    body = {"sql": "SELECT 1 AS one", "format": "json", "limit": 100}
    assert call("POST", "/api/audit/query", json=body, headers=from_page(value)).status_code == 200
    for path in (SQL, f"{SQL}/snapshot"):
        page = call("GET", path, headers=cookie(value)).text
        assert re.search(r"Snapshot of <time [^>]*>[-\d]+ [:\d]+</time>, [a-z0-9 ]+ old\.", page), path


def test_the_snapshots_part_is_for_those_who_may_ask(call: Call, access: AccessStore) -> None:
    """The part may contain the reason of a failed snapshot, so it needs the scope."""
    token = access.add(Holder("operator", "reader", None, scopes=frozenset({"read", "review"})))
    assert call("GET", f"{SQL}/snapshot", headers=cookie(signed_in(call, token))).status_code == 403
