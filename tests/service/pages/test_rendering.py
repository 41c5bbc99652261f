"""Rules for every page: agents' texts are escaped, hidden characters are shown, and nothing is loaded from other hosts."""

from __future__ import annotations

import re
import unicodedata
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_server import Call, Tokens
from support.pages import HTML, SENTENCES, Elements, cookie, signed_in

from audit.prompt_quoting import hidden_parts
from service.pages.rendering import excerpt, moment, number, sentence, share, usd
from service.pages.untrusted import render_markdown, shown


@given(st.text())
def test_no_text_is_markup(text: str) -> None:
    """Texts of agents are shown as text, whatever they contain."""
    html = str(shown(text))
    bare = re.sub(r'<span class="code-point">U\+[0-9A-F]{4,6}</span>', "", html)
    assert not set("<>\"'") & set(bare)


@given(st.text())
def test_the_parts_of_a_text_add_up_to_the_text(text: str) -> None:
    """Nothing may be lost or added."""
    assert "".join(seen + hidden for seen, hidden in hidden_parts(text)) == text


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\u2066", "\ufeff", "\x1b", "\x00", "\u00ad", "\U000e0041", "\u2028"])
def test_a_hidden_or_reversing_character_is_shown_as_its_code(hidden: str) -> None:
    """`exe.fdp` must not look like `pdf.exe`."""
    assert str(shown(f"a{hidden}b")) == f'a<span class="code-point">U+{ord(hidden):04X}</span>b'


_FRAGMENTS = st.sampled_from(
    [
        *(
            "<script>alert(1)</script>",
            "<img src=x onerror=alert(1)>",
            "<!--",
            "&#x202e;",
            "&lt;script&gt;",
            "\u202e",
            "\x00",
            '"',
        ),
        *(
            "[a](javascript:alert(1))",
            "[a](JaVa&Tab;script:x)",
            "[a](data:text/html,x)",
            "[a](//e.example)",
            "![a](https://e.example/p.png)",
        ),
        *(
            "<https://e.example>",
            '[a](https://e.example "title")',
            "[a](mailto:a@e.example)",
            '[a](http://e.example/"onclick=x)',
            "[b]",
        ),
        *(
            "[b]: https://e.example",
            "**",
            "*",
            "_",
            "~~",
            "`",
            '```py "x',
            "> ",
            "- ",
            "1. ",
            "# ",
            "|a\n|-|\n",
            "\n",
            "|",
            "    ",
            "\\",
        ),
    ]
)


@given(st.lists(_FRAGMENTS | st.text(max_size=5), max_size=30).map("".join))
def test_rendered_markdown_has_no_tag_attribute_or_address_of_the_agent(text: str) -> None:
    """Its answers are hostile: a script would act as the operator, an image would report who reads, and a link must show where it leads."""
    rendered = render_markdown(text)
    elements = Elements(str(rendered or "")).found
    assert {name for name, _ in elements} <= _MARKDOWN_TAGS
    for name, attributes in elements:
        assert set(attributes) <= _MARKDOWN_ATTRIBUTES.get(name, set())
        if name == "a":
            assert attributes["href"].lower().startswith(("http://", "https://", "mailto:"))
            assert attributes["rel"] == "noopener nofollow"
    assert len(hidden_parts(str(rendered or ""))) == 1


_MARKDOWN_TAGS = {
    *("p", "br", "hr", "em", "strong", "s", "code", "pre", "ul", "ol", "li", "blockquote", "a", "span"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
_MARKDOWN_ATTRIBUTES = {
    "p": {"class"},
    "pre": {"class", "tabindex"},
    "span": {"class"},
    "ol": {"start"},
    "a": {"href", "rel"},
}


def test_markdown_of_any_shape_takes_little_time() -> None:
    """A page reads the beginning of a text of a megabyte, whose nesting the agent chooses."""
    for shape in ("[", "[a](", "> ", "*a_", "`" * 9 + "a", "- - ", "|", "|a\n|-\n", "<", "![[", "**a ", "\\"):
        text = excerpt(shape * (1_000_000 // len(shape)), "").text
        start = process_time()
        render_markdown(text)
        assert process_time() - start < 5


def test_a_link_shows_its_target_and_raw_html_stays_text() -> None:
    """The text of a link may name another address than it opens."""
    rendered = str(render_markdown("# Plan\n[bank.example](https://evil.example/x) <b>now</b>"))
    assert rendered == (
        '<p class="heading">Plan</p>\n<p><a href="https://evil.example/x" rel="noopener nofollow">bank.example</a> '
        '<span class="target">(https://evil.example/x)</span> &lt;b&gt;now&lt;/b&gt;</p>\n'
    )


def test_ordinary_text_is_unchanged() -> None:
    """Line breaks, tabs, other scripts and emoji are harmless."""
    text = "Grüße,\n\tשם, 你好 ❤️"
    assert str(shown(text)) == text
    assert not [one for one in text if unicodedata.category(one) == "Cf"]


def test_figures_are_readable() -> None:
    """Unknown values are named and never shown as 0."""
    assert number(None) == "\u2013"
    assert share(None) == "\u2013"
    assert usd(None) == "\u2013"
    assert str(moment(None)) == "\u2013"
    assert number(12_345) == "12,345"
    assert number(0.5, 2) == "0.50"
    assert share(0.1234) == "12.3%"
    assert usd(0.0012) == "$0.0012"
    assert usd(3.5) == "$3.50"
    assert usd(0.0) == "$0.00"


def test_a_page_may_load_only_our_files(call: Call, tokens: Tokens) -> None:
    """Without inline scripts, inline styles and other hosts, injected markup has no effect."""
    answer = call("GET", "/telemetry", headers=cookie(signed_in(call, tokens.root)))
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert re.findall(r"\son\w+=|\sstyle=|<style|<script(?! src=\"/static/)|(?:src|href)=\"(?!/|#)", answer.text) == []
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_an_unchanged_page_is_not_sent_again(call: Call, tokens: Tokens) -> None:
    """Pages poll every few seconds."""
    value = signed_in(call, tokens.root)
    first = call("GET", "/", headers=cookie(value))
    repeated = call("GET", "/", headers=cookie(value) | {"if-none-match": first.headers["etag"]})
    assert repeated.status_code == 304
    assert repeated.content == b""


@pytest.mark.parametrize("name", ["pages.js", "pages.css", "icon.svg", "vendor/uplot-1.6.32/uPlot.iife.min.js"])
def test_static_files_need_no_sign_in(call: Call, name: str) -> None:
    """The sign-in page loads them, and they contain no secret."""
    answer = call("GET", f"/static/{name}")
    assert answer.status_code == 200
    assert call("GET", f"/static/{name}", headers={"if-none-match": answer.headers["etag"]}).status_code == 304
    assert call("GET", "/static/..%2fpages.js").status_code == 404


@pytest.mark.parametrize(("error", "read"), SENTENCES.items())
def test_an_error_on_a_page_is_a_sentence(error: str, read: str) -> None:
    """Programs read the field and the problem, people need a complete sentence."""
    assert sentence(error) == read


def test_errors_of_pages_are_pages_and_errors_of_the_api_are_json(call: Call, tokens: Tokens) -> None:
    """People read pages, programs read codes."""
    value = signed_in(call, tokens.root)
    page = call("GET", "/nowhere", headers=cookie(value))
    assert page.status_code == 404
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<p>This path does not exist.</p>" in page.text
    assert call("GET", "/nowhere").json() == {"error": "this path does not exist", "code": "not_found"}
    assert call("GET", "/api/audit/nowhere", headers=cookie(value) | HTML).json()["code"] == "not_found"
