"""The SQL page: views and examples from their definitions, and only for users with the scope."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from support.api_server import Call, Tokens
from support.pages import cookie, from_page, signed_in

from analytics.snapshots import load_catalog
from service.pages.sql import INITIAL_STATEMENT, worked_examples
from service.setup.access import AccessStore, Holder

SQL = "/sql"
HOSTILE = "</textarea><script>alert(1)</script> $x"


def editor(page: str) -> str:
    """Return the statement in the editor."""
    (statement,) = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    return html.unescape(statement)


def test_every_view_is_listed_with_its_columns_and_comments(call: Call, tokens: Tokens) -> None:
    """The page lists every view and column, because users cannot remember them."""
    page = call("GET", SQL, headers=cookie(signed_in(call, tokens.root))).text
    view_names = re.findall(r'data-insert="([^"]+)"', page)
    views = sorted(load_catalog(), key=lambda view: view.name not in {"turns", "runs", "session_summaries"})
    assert [column.name for view in views for column in view.columns] == view_names
    assert "Judge: scope and completeness, 0 to 1." in page
    assert editor(page) == INITIAL_STATEMENT


def test_the_examples_are_those_of_the_guide_with_links(call: Call, tokens: Tokens) -> None:
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


def test_an_example_has_parameters_with_defaults_in_its_link(call: Call, tokens: Tokens) -> None:
    """Examples have parameters with neutral defaults, so that they run unchanged."""
    page = call("GET", SQL, headers=cookie(signed_in(call, tokens.root))).text
    link = next(one for one in re.findall(r'data-use href="([^"]+)"', page) if "p.project" in one)
    assert {name: value for name, value in parse_qs(urlsplit(html.unescape(link)).query).items() if name != "q"} == {
        "p.project": ["%"],
        "p.agent": ["%"],
    }
    assert [one.parameters for one in worked_examples() if one.title == "What came late?"] == [{}]
    assert "/* $" not in " ".join(one.sql for one in worked_examples())


def test_a_shared_statement_is_shown_and_not_run(call: Call, tokens: Tokens) -> None:
    """A link can fill the editor but must not run the statement."""
    page = call("GET", SQL, headers=cookie(signed_in(call, tokens.root)), params={"q": HOSTILE, "rows": 100}).text
    assert editor(page) == HOSTILE
    assert "<script>alert" not in page
    assert '<option value="100" selected>' in page


def test_the_page_queries_the_api_with_cookie_and_form_token(call: Call, tokens: Tokens) -> None:
    """The rules are those for programs; without the form token, another site could query."""
    value = signed_in(call, tokens.root)
    body = {"sql": "SELECT 1 AS one", "format": "json", "limit": 100}
    response = call("POST", "/api/audit/query", json=body, headers=from_page(value))
    assert response.status_code == 200
    assert response.json()["rows"] == [{"one": 1}]
    assert call("POST", "/api/audit/query", json=body, headers=cookie(value)).status_code == 403


def test_without_the_scope_the_page_gives_the_reason(call: Call, access: AccessStore) -> None:
    """Users without the scope see the reason, but neither editor nor columns."""
    holder = Holder("operator", "reader", None, scopes=frozenset({"read", "review"}))
    answer = call("GET", SQL, headers=cookie(signed_in(call, access.add(holder))))
    assert answer.status_code == 403
    assert "the scope <code>query</code>, which reader" in answer.text
    assert "<textarea" not in answer.text
    assert ">SQL</a>" not in answer.text


@pytest.mark.parametrize("sql", ["SELECT 1,\n  oops FROM turns", "SELECT 1\nFROM no_such_table", "SELECT 1,\n  , 2"])
def test_a_refusal_names_the_line(call: Call, tokens: Tokens, sql: str) -> None:
    """The error names the line, to which the editor jumps."""
    error = call("POST", "/api/audit/query", tokens.root, json={"sql": sql}).json()["error"]
    assert re.search(r"^LINE 2: ", error, re.MULTILINE)


@pytest.mark.parametrize("query", [f"q={'x' * 50_001}", "rows=many"])
def test_an_invalid_address_is_an_error_page(call: Call, tokens: Tokens, query: str) -> None:
    """A link may be truncated, or longer than a statement may be."""
    answer = call("GET", f"{SQL}?{query}", headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_the_page_shows_the_age_of_the_snapshot(call: Call, tokens: Tokens) -> None:
    """Results are of that time; polling this part of the page must not create a snapshot."""
    value = signed_in(call, tokens.root)
    assert "No snapshot" in call("GET", f"{SQL}/snapshot", headers=cookie(value)).text
    body = {"sql": "SELECT 1 AS one", "format": "json", "limit": 100}
    assert call("POST", "/api/audit/query", json=body, headers=from_page(value)).status_code == 200
    for path in (SQL, f"{SQL}/snapshot"):
        page = call("GET", path, headers=cookie(value)).text
        assert re.search(r"Snapshot of <time [^>]*>[-\d]+ [:\d]+</time>, [a-z0-9 ]+ old\.", page), path


def test_the_snapshot_part_requires_the_scope(call: Call, access: AccessStore) -> None:
    """The part may contain the reason of a failed snapshot, so it needs the scope."""
    token = access.add(Holder("operator", "reader", None, scopes=frozenset({"read", "review"})))
    assert call("GET", f"{SQL}/snapshot", headers=cookie(signed_in(call, token))).status_code == 403
