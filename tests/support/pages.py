"""Pages without a browser: requests of somebody who has signed in, and the elements, charts and projects in the HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import Any

from support.api_server import Call

from service.setup.access import mark_of
from service.web.authentication import PAGE_MARK, cookie_name

SIGN_IN, SIGN_OUT = "/api/audit/sign-in", "/api/audit/sign-out"
OURS = "http://localhost:8321"
COOKIE = cookie_name(8321, encrypted=False)
HTML = {"accept": "text/html"}
SENTENCES = {
    "there is no project nope; there are ops and web": "There is no project nope; there are ops and web.",
    "The project has no incident with this id.": "The project has no incident with this id.",
    "comment: is missing": "Not valid: comment: is missing.",
    "projects.shop: unknown field; see /docs": "Not valid: projects.shop: unknown field; see /docs.",
    "Parser Error: syntax error\nLINE 1: SELEC 1": "Parser Error: syntax error\nLINE 1: SELEC 1",
    "401 is no answer": "401 is no answer.",
}
"""Errors as programs get them, and as a page says them."""


def signed_in(call: Call, token: str) -> str:
    """Return the cookie of a new sign-in."""
    answer = call("POST", SIGN_IN, token, json={})
    assert answer.status_code == 204
    return SimpleCookie(answer.headers["set-cookie"])[COOKIE].value


def cookie(value: str) -> dict[str, str]:
    """Return the headers of a browser that views a page."""
    return {"cookie": f"theme=dark; {COOKIE}={value}", **HTML}


def from_page(value: str, **other: str) -> dict[str, str]:
    """Return the headers of a page that submits a form."""
    return {**cookie(value), PAGE_MARK: mark_of(value.encode(), ""), "sec-fetch-site": "same-origin", "origin": OURS} | other


class Elements(HTMLParser):
    """The elements of a page, as a browser would find them: each name with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """Record the element."""
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def active(self) -> list[str]:
        """Return the elements and attributes that could run, load or style foreign content."""
        return [
            f"{tag} {name}={value}"
            for tag, attributes in self.found
            for name, value in [("", ""), *attributes.items()]
            if tag in {"iframe", "object", "embed", "style", "base", "foreignobject"}
            or (
                tag in {"script", "img", "link"}
                and not attributes.get("src", attributes.get("href", "")).startswith("/static/")
            )
            or name.startswith("on")
            or name in {"style", "srcdoc"}
            or (name in {"href", "src", "action"} and not value.startswith(("/", "#")))
        ]


class _Texts(HTMLParser):
    """The text within each element that has an id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.by_id: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """Open the element; an element without content cannot hold text."""
        identity = dict(attrs).get("id")
        if identity:
            self.by_id[identity] = ""
        if tag not in _VOID:
            self._open.append((tag, identity))

    def handle_endtag(self, tag: str) -> None:
        """Close the element and its open children: the end tag of a paragraph or cell is optional."""
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Add the text to every enclosing element."""
        for _, identity in self._open:
            if identity:
                self.by_id[identity] += data


_VOID = frozenset({"area", "br", "col", "hr", "img", "input", "link", "meta", "wbr"})


def texts_by_id(page: str) -> Mapping[str, str]:
    """Return the text within each element of a page that has an id."""
    return _Texts(page).by_id


def drawn_charts(page: str) -> dict[str, dict[str, Any]]:
    """Return what each chart of a page shows, by its key."""
    charts = re.findall(r'<figure class="drawn" id="([^"]*)-chart" data-chart="([^"]*)"', page)
    return {key: json.loads(unescape(told)) for key, told in charts}


def chart_table(page: str, key: str) -> list[dict[str, str]]:
    """Return the table of a chart; each row is keyed by the headings."""
    table = page.split(f'id="{key}-table"')[1].split("</table>", maxsplit=1)[0]
    head, *rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    names = _cells(head)
    return [dict(zip(names, _cells(row), strict=True)) for row in rows]


def _cells(row: str) -> list[str]:
    return [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]


def cards_of(page: str) -> dict[str, str]:
    """Return each listed project, in order, with its card or row."""
    cards = re.split(r'(?=<li class="card |<tr class="\w+">)', page)[1:]
    return {
        re.findall(r'<a href="/projects/[^"]+">([^<]+)</a>', card)[0]: re.split("</li>\n<|</tr>", card)[0] for card in cards
    }


def projects_of(page: str) -> list[str]:
    """Return the names of the listed projects, in order."""
    return list(cards_of(page))


def text_of(page: str) -> str:
    """Return the text of a page without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())
