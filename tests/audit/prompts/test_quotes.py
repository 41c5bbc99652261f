"""Quotes are found in any retyped form, and only in the texts that contain them."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from audit.answers import QuotableTexts, fold
from audit.exchanges.questions import Material
from audit.prompt_quoting import literal

ALIKE = {
    "-": ["-", "\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2212", "--", " - ", " \u2013 "],
    '"': ['"', "\u201c", "\u201d", "\u201e", "\u00ab", "'", "\u2019"],
    "'": ["'", "\u2018", "\u2019", "\u02bc", "`", "\u00b4"],
    " ": [" ", "\n", "\t", "\u00a0", "  ", "\u2009", " \u200b"],
    "a": ["a", "A", "\uff41", "\u00ad" + "a"],
    "ß": ["ß", "ss", "ẞ"],
    "é": ["é", "e\u0301", "É"],
}
"""Characters of a text, with what a judge may type instead."""
ELISIONS = ["…", "...", " … ", "[...]", " [...] ", " (…) ", ". . .", "...."]
SOURCE = (
    "It is “done” \u2014 she said so, didn\u2019t she? All 3 workers \u2013 every one \u2013 are up… "
    "and C:\\new is <b>there</b>."
)
WORDS = st.lists(
    st.text([*ALIKE, *"bcdxyz", ",", "\u4e16", "1"], min_size=1, max_size=6).filter(lambda word: bool(word.strip())), min_size=1
)


def build_quotable(*texts: str) -> QuotableTexts:
    """Return the texts in the form in which the judge sees them."""
    return QuotableTexts([Material(f"text{number}", literal(text).text) for number, text in enumerate(texts)])


def retype(text: str, data: st.DataObject) -> str:
    """Return the text with each character replaced by one of its look-alikes."""
    return "".join(data.draw(st.sampled_from(ALIKE[character])) if character in ALIKE else character for character in text)


@pytest.mark.parametrize(
    "quote",
    [
        'it is "done" - she said so',
        "It is 'done'—she said so, didn't she?",
        "All 3 workers - every one - are up",
        "It is … every one",
        "All 3 workers … are up…",
        "It is “done”...",
        "…every one",
        "[...] workers [...] up [...]",
        "are up... and",
        r"C:\\new … \u003cb\u003ethere",
        "\uff21LL \uff13 workers",
        "are\u200b up",
    ],
)
def test_a_quote_is_found_despite_look_alikes_and_elisions(quote: str) -> None:
    """Each of these differences once made a tier fail twice."""
    assert build_quotable("Is it?", SOURCE).contains(quote)


@pytest.mark.parametrize(
    "quote",
    [
        "it is not done",
        "every one … It is",
        "It is … nowhere … up",
        "It is … Is it?",
        "[…] …",
        "[...]",
        "\u200b",
        "All 4 workers",
        "done - he said",
    ],
)
def test_absent_or_reordered_words_are_not_found(quote: str) -> None:
    """The parts of a quote must come from one text, in order."""
    assert not build_quotable("Is it?", SOURCE).contains(quote)


@given(WORDS, st.data())
def test_any_part_of_a_text_is_found_however_it_is_retyped(words: list[str], data: st.DataObject) -> None:
    """Differences that no reader would notice do not matter."""
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    quote = retype(" ".join(words[start:end]), data)
    assert build_quotable("something else", retype(" ".join(words), data)).contains(quote)


@given(WORDS, st.data())
def test_words_may_be_left_out_at_an_elision(words: list[str], data: st.DataObject) -> None:
    """Parts in order are found, with any sign of elision. Adjacent dashes count as one."""
    assume(fold(" ".join(words)).count("-") == sum(fold(word).count("-") for word in words))
    kept_indexes = sorted(data.draw(st.sets(st.integers(0, len(words) - 1), min_size=1)))
    quote = words[kept_indexes[0]] + "".join(data.draw(st.sampled_from(ELISIONS)) + words[index] for index in kept_indexes[1:])
    quote += data.draw(st.sampled_from(["", *ELISIONS]))
    assert build_quotable(" ".join(words)).contains(retype(quote, data))


@given(WORDS, st.text(string.ascii_letters + " -…'", max_size=20), st.text(string.ascii_letters + " -…'", max_size=20))
def test_a_word_that_is_in_no_text_is_never_found(words: list[str], before: str, after: str) -> None:
    """Tolerance for looks must not become tolerance for content."""
    assert not build_quotable(" ".join(words)).contains(f"{before}nowhere{after}")


@given(st.text())
def test_folding_is_idempotent(text: str) -> None:
    """Quotes and texts may be folded again before they are compared."""
    folded = fold(text)
    assert fold(folded) == folded


@given(st.text([*" -'\"`.\\\n\tAa1\x1c\x00"], min_size=1), st.data())
def test_a_part_of_ascii_text_is_a_part_once_both_are_folded(text: str, data: st.DataObject) -> None:
    """A quote that was copied unchanged needs no folding."""
    start = data.draw(st.integers(0, len(text) - 1))
    part = text[start : data.draw(st.integers(start + 1, len(text)))]
    assert fold(part) in fold(text)
