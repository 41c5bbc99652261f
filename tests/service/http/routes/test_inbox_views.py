"""Saved views over HTTP and by the forms of the inbox: named, shared, deleted, each within what the token may."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from support.api_server import Call, Tokens
from support.pages import OURS, cookie, signed_in

from service.setup.access import AccessStore, Holder, mark_of

VIEWS = "/api/audit/incidents/views"


def names(call: Call, token: str) -> list[str]:
    """Return the views that a token sees."""
    return [one["name"] for one in call("GET", VIEWS, token).json()["views"]]


def test_a_view_is_saved_replaced_and_deleted(call: Call, tokens: Tokens) -> None:
    """Filters are stored as in the address, without default and blank ones."""
    body = {"name": " Mine ", "query": "?assignee=me&status=open&status=acknowledged&text="}
    assert call("POST", VIEWS, tokens.root, json=body).json() == {
        "name": "Mine",
        "owner": "root",
        "query": "assignee=me",
        "shared": False,
    }
    call("POST", VIEWS, tokens.root, json={**body, "query": "severity=critical", "shared": True})
    assert (
        (answer := call("GET", VIEWS, tokens.root).json())["count"], answer["views"][0]["query"],
    ) == (1, "severity=critical")  # fmt: skip
    assert [call("DELETE", f"{VIEWS}/Mine", tokens.root).status_code for _ in range(2)] == [204, 404]
    assert names(call, tokens.root) == []


def test_a_shared_view_hides_projects_that_the_reader_may_not_see(call: Call, tokens: Tokens) -> None:
    """Even the name of a hidden project must not be disclosed."""
    for name, query in (("ours", "project=ops"), ("theirs", "project=web"), ("all", "severity=critical")):
        call("POST", VIEWS, tokens.root, json={"name": name, "query": query, "shared": True})
    assert names(call, tokens.ops_reader) == ["all", "ours"]
    answer = call("POST", VIEWS, tokens.ops_reader, json={"name": "x", "query": "project=web"})
    assert answer.status_code == 403
    assert call("DELETE", f"{VIEWS}/all", tokens.ops_reader).status_code == 404


def test_a_reader_has_private_views_only(call: Call, access: AccessStore) -> None:
    """Readers may save their own views, but sharing needs the right to decide."""
    token = access.add(Holder("operator", "looker", None, None, frozenset({"read"})))
    assert call("POST", VIEWS, token, json={"name": "mine", "query": ""}).status_code == 200
    answer = call("POST", VIEWS, token, json={"name": "mine", "query": "", "shared": True})
    assert answer.status_code == 403
    assert "shared" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": ""}, "name"),
        ({"name": "", "query": ""}, "name"),
        ({"name": "x" * 65, "query": ""}, "name"),
        ({"name": "a/b", "query": ""}, "name"),
        ({"name": "a", "query": "status=odd"}, "status"),
        ({"name": "a", "query": "&".join("a=b" for _ in range(51))}, "query"),
        ({"name": "a", "query": "x" * 2001}, "query"),
        ({"name": "a", "query": "", "for": "all"}, "for"),
    ],
)
def test_an_invalid_view_is_refused_with_its_field(call: Call, tokens: Tokens, body: dict[str, Any], field: str) -> None:
    """The error names the field."""
    answer = call("POST", VIEWS, tokens.root, json=body)
    assert answer.status_code == 400
    assert field in answer.json()["error"]


def test_the_forms_of_the_inbox_save_and_delete_views(call: Call, tokens: Tokens) -> None:
    """The forms work without a script and redirect to the list; forms of other sites are refused."""
    value = signed_in(call, tokens.root)
    headers = {
        **cookie(value), "sec-fetch-site": "same-origin", "origin": OURS, "content-type": "application/x-www-form-urlencoded",
    }  # fmt: skip

    def submit_form(**form: str) -> Any:
        return call("POST", "/incidents/views", headers=headers, content=urlencode(form))

    mark = mark_of(value.encode(), "")
    answer = submit_form(mark=mark, name="<b>Mine", query="assignee=me", shared="true")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/incidents?assignee=me"
    page = call("GET", "/incidents?assignee=me", headers=cookie(value)).text
    assert re.search(r'href="/incidents\?assignee=me" class="saved" aria-current="true">&lt;b&gt;Mine', page)
    assert submit_form(mark=mark, name=" ", query="").status_code == 400
    assert submit_form(mark="0" * 64, name="x", query="").status_code == 403
    assert submit_form(mark=mark, delete="<b>Mine", query="assignee=me").status_code == 303
    assert submit_form(mark=mark, delete="<b>Mine", query="").status_code == 404
    assert names(call, tokens.root) == []
