"""Texts of others in Markdown: rendered they read as they were written, and are nothing else."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support.sample_evaluations import HOSTILE

from service.text.formats import MAX_SHOWN, fenced, inline, plain

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKS = st.text(alphabet="\\`*_{}[]()<>#+-.!|~&;:/@$=\"' \n\t\x1b\u202e19aw", max_size=60)


def visible_text(rendered: str) -> str:
    """Return the visible text of a rendered document."""
    return html.unescape(re.sub(r"<[^>]*>", "", rendered)).strip()


def expected_text(text: str) -> str:
    """Return a text as the rendered document should show it."""
    return plain(" ".join(text.split()), MAX_SHOWN).strip()


def tags(rendered: str) -> set[str]:
    """The tags of a rendered document."""
    return set(re.findall(r"</?([a-z0-9]+)", rendered))


@given(MARKS | st.text(max_size=60))
@example("\n".join(HOSTILE))
@example("a@b.c`d@e.f")
@example("\\`x://y\\")
def test_an_item_contains_the_text_without_markup(text: str) -> None:
    """An agent's Markdown must not become a heading, list, link or tag."""
    rendered = RENDERER.render(f"- {inline(text)}\n")
    assert tags(rendered) <= {"ul", "li", "code"}
    assert rendered.count("<li>") == 1
    assert expected_text(text) == visible_text(rendered)


@given(MARKS)
@example("a | b || c \\| d")
@example("x://y|z")
def test_a_cell_contains_the_whole_text(text: str) -> None:
    """A pipe or a line break in the text must not add columns or rows."""
    rendered = RENDERER.render(f"| one | two |\n| --- | --- |\n| {inline(text)} | end |\n")
    assert tags(rendered) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    cells = re.findall(r"<td[^>]*>(.*?)</td>", rendered, re.DOTALL)
    assert [visible_text(cell) for cell in cells] == [expected_text(text), "end"]


@given(st.text(max_size=80))
@example("".join(HOSTILE))
def test_the_file_contains_no_control_characters(text: str) -> None:
    """Users also print a summary with cat."""
    assert inline(text) == plain(inline(text), 100_000)


@pytest.mark.parametrize("address", ["https://evil.example/x", "www.evil.example", "me@evil.example", "HTTP://evil.example"])
def test_an_address_becomes_code(address: str) -> None:
    """Some renderers link bare addresses, but not code."""
    assert inline(f"see {address} there") == f"see `{address}` there"


def test_names_of_tools_stay_readable() -> None:
    """Only necessary characters are escaped, because people also read the source."""
    assert (
        inline("Used exec_shell, write_file (2 x) and read-file: 3.5 s.")
        == "Used exec_shell, write_file (2 x) and read-file: 3.5 s."
    )


@given(st.text(alphabet="`~a\n\r ", max_size=30))
def test_a_fence_preserves_the_text(text: str) -> None:
    """The prompts in the debug file must equal the sent bytes."""
    document = f"before\n\n{fenced(text, 'json')}\nafter `````` x\n"
    fence, rest = document.removeprefix("before\n\n").split("json\n", 1)
    assert set(fence) == {"`"}
    assert rest[: rest.index(f"\n{fence}\n")] == text
    (token,) = [one for one in RENDERER.parse(document) if one.type == "fence"]
    assert token.info == "json"
