"""Rules for every page: agents' texts are escaped, hidden characters are shown, and nothing is loaded from other hosts."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_server import Call, Tokens
from support.pages import HTML, SENTENCES, cookie, signed_in

from audit.prompt_quoting import hidden_parts
from service.pages.rendering import moment, number, sentence, share, shown, usd


@given(st.text())
def test_no_text_is_markup(text: str) -> None:
    """Texts of agents are shown as text, whatever they contain."""
    html = str(shown(text))
    bare = re.sub(r'<span class="code-point">U\+[0-9A-F]{4,6}</span>', "", html)
    assert not set("<>\"'") & set(bare)


@given(st.text())
def test_the_parts_of_a_text_are_the_text(text: str) -> None:
    """Nothing is lost, nothing is added."""
    assert "".join(seen + hidden for seen, hidden in hidden_parts(text)) == text


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\u2066", "\ufeff", "\x1b", "\x00", "\u00ad", "\U000e0041", "\u2028"])
def test_what_turns_or_hides_text_is_shown_as_its_code(hidden: str) -> None:
    """`exe.fdp` that reads as `pdf.exe` must not."""
    assert str(shown(f"a{hidden}b")) == f'a<span class="code-point">U+{ord(hidden):04X}</span>b'


def test_ordinary_writing_is_left_alone() -> None:
    """Lines, tabs, other scripts and emoji are no attack."""
    text = "Grüße,\n\tשם, 你好 ❤️"
    assert str(shown(text)) == text
    assert not [one for one in text if unicodedata.category(one) == "Cf"]


def test_figures_are_for_people() -> None:
    """Unknown values are named and never shown as 0."""
    assert number(None) == "\u2013"
    assert share(None) == "\u2013"
    assert usd(None) == "\u2013"
    assert str(moment(None)) == "\u2013"
    assert number(12_345) == "12\u202f345"
    assert number(0.5, 2) == "0.50"
    assert share(0.1234) == "12.3%"
    assert usd(0.0012) == "$0.0012"
    assert usd(3.5) == "$3.50"
    assert usd(0.0) == "$0.00"


def test_a_page_may_load_our_files_and_nothing_else(call: Call, tokens: Tokens) -> None:
    """No inline script, no inline style, no other host: what an agent smuggles in cannot run."""
    answer = call("GET", "/telemetry", headers=cookie(signed_in(call, tokens.root)))
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert re.findall(r"\son\w+=|\sstyle=|<style|<script(?! src=\"/static/)|(?:src|href)=\"(?!/|#)", answer.text) == []
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_page_that_says_nothing_new_is_not_sent_again(call: Call, tokens: Tokens) -> None:
    """Pages ask every few seconds."""
    value = signed_in(call, tokens.root)
    first = call("GET", "/", headers=cookie(value))
    again = call("GET", "/", headers=cookie(value) | {"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""


@pytest.mark.parametrize("name", ["pages.js", "pages.css", "icon.svg", "vendor/uplot-1.6.32/uPlot.iife.min.js"])
def test_files_of_pages_are_there_for_everybody(call: Call, name: str) -> None:
    """The sign-in needs them, too; they hold no secret."""
    answer = call("GET", f"/static/{name}")
    assert answer.status_code == 200
    assert call("GET", f"/static/{name}", headers={"if-none-match": answer.headers["etag"]}).status_code == 304
    assert call("GET", "/static/..%2fpages.js").status_code == 404


@pytest.mark.parametrize(("error", "read"), SENTENCES.items())
def test_an_error_on_a_page_is_a_sentence(error: str, read: str) -> None:
    """Programs get half a sentence, or a field with what is wrong with it; people read whole ones."""
    assert sentence(error) == read


def test_an_error_of_a_page_is_a_page_and_one_of_the_api_is_not(call: Call, tokens: Tokens) -> None:
    """People read words, programs read codes."""
    value = signed_in(call, tokens.root)
    page = call("GET", "/nowhere", headers=cookie(value))
    assert page.status_code == 404
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<p>This path does not exist.</p>" in page.text
    assert call("GET", "/nowhere").json() == {"error": "this path does not exist", "code": "not_found"}
    assert call("GET", "/api/audit/nowhere", headers=cookie(value) | HTML).json()["code"] == "not_found"
