"""The terms of a text: what can be recognised when it comes again, and the figures that an answer states.

1. **Marks** are figures of two digits or more and identifiers: words with digits, underscores or inner capitals, paths, addresses. Of
   what is joined by points, slashes, colons and the like, each part that is a mark counts, too. A time of day is none.
2. **Words** are other words of four letters or more that English does not need for its grammar, by their stems, so that `adapters`
   and `adapter` are one. Letters are folded.
3. A figure of two digits that are not zero stands for every longer one that rounds to it: `about 69k` and `1.2 s` take up `68701` and
   `1234`.

Outputs are long and answers are short: so it is the terms of an answer that are looked for in an output, and not the other way round.
All of it is linear in the text, of which MAX_TEXT characters are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

MAX_TEXT = 16 * 1024
"""Characters of one text that are read."""
MAX_TRIES = 64
"""The number of times that a term is looked for in one text."""
MAX_TOKEN = 200
"""Characters of the longest token that is looked at."""
_KEPT_TOKENS = 16 * 1024
"""Tokens whose terms are kept: at most a few megabytes."""
_KEPT_STRETCH = 40
"""Characters of a stretch whose terms are kept."""
_KEPT_TEXTS = 32
"""Texts whose terms are kept: those of one exchange."""

# Bounded repetitions: rows of points or dashes would otherwise be read once from each of them.
TOKEN = re.compile(r"[^\W_](?:(?:[\w.:/@+=\-]|,(?=\d)){0,200}\w)?|[_/~.][\w./\-]{0,200}\w")
_PART = re.compile(r"[^\W_]+")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TIME = re.compile(
    r"\d{4}-\d\d(?!\d)(?:-\d\d(?:t[\d:.,]*z?)?)?|(?<![\d.])\d{1,2}:\d\d(?::\d\d)?(?!\d)(?:[.,]\d+)?z?", re.IGNORECASE
)
ESCAPES = re.compile(r"\\[nrtu\"\\/]")
_ROUND = re.compile(r"(\d{1,15}(?:[.,]\d{1,3})*)([kmg])?", re.IGNORECASE | re.ASCII)
_CHAIN = re.compile(r"[0-9](?<![^\W_][0-9])[0-9]*(?:[.,][0-9]+)*(?![^\W_])")
"""A figure with no letter or digit beside it, or several with points and commas between. What begins with a set of characters is
found by looking for those; a look behind at the start would be tried at each character.
"""
_SEPARATOR = re.compile(r"([.,])")
_MAX_PARTS = 6
_LONG = re.compile(r"(?<![\d.,])[1-9]\d{3,}", re.ASCII)
ROUNDED = "~"
"""The first character of the mark of a round figure."""
_ENDINGS = ("ing", "ed", "es", "ly", "s")
GRAMMAR = frozenset(
    [
        "a",
        "about",
        "above",
        "after",
        "again",
        "all",
        "also",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "because",
        "been",
        "before",
        "being",
        "below",
        "between",
        "both",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "doing",
        "down",
        "during",
        "each",
        "few",
        "for",
        "from",
        "further",
        "had",
        "has",
        "have",
        "having",
        "he",
        "her",
        "here",
        "hers",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "me",
        "more",
        "most",
        "my",
        "no",
        "nor",
        "not",
        "now",
        "of",
        "off",
        "on",
        "once",
        "only",
        "or",
        "other",
        "our",
        "ours",
        "out",
        "over",
        "own",
        "same",
        "she",
        "should",
        "so",
        "some",
        "such",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "through",
        "to",
        "too",
        "under",
        "until",
        "up",
        "very",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
        "yours",
    ]
)
"""Words that English sentences are held together by; the same list tells prose from lists."""


Listed = tuple[str, bool]
"""A term, and whether it is a word."""


class Terms(NamedTuple):
    """The marks and words of a text; `marks` has figures and identifiers, `words` the stems of the rest."""

    marks: frozenset[str]
    words: frozenset[str]


def terms_of(text: str) -> Terms:
    """The terms of the first MAX_TEXT characters."""
    return _terms_of_start(text[:MAX_TEXT])


@lru_cache(_KEPT_TEXTS)
def _terms_of_start(text: str) -> Terms:
    """The terms of a text; kept, because an answer is looked at for several reasons."""
    marks: set[str] = set()
    words: set[str] = set()
    for token in set(TOKEN.findall(_without_escapes(text))):
        own = _terms_of_token(token)
        marks |= own.marks
        words |= own.words
    return Terms(frozenset(marks), frozenset(words))


def terms_in(text: str) -> Iterator[Sequence[Listed]]:
    """The same terms in the order of the text, some of them several times, by its stretches without white space: no token has any."""
    for stretch in _without_escapes(text[:MAX_TEXT]).split():
        yield _terms_of_stretch(stretch) if len(stretch) <= _KEPT_STRETCH else _listed_terms(stretch)


def _without_escapes(text: str) -> str:
    return ESCAPES.sub(" ", text) if "\\" in text else text


@lru_cache(_KEPT_TOKENS)
def _terms_of_token(token: str) -> Terms:
    """The terms of one token; kept, because the same tokens come again and again."""
    marks: set[str] = set()
    words: set[str] = set()
    if len(token) <= MAX_TOKEN:
        _take(token, marks, words)
    return Terms(frozenset(marks), frozenset(words))


def _listed_terms(stretch: str) -> tuple[Listed, ...]:
    """The terms of the tokens in a stretch of text, marks of a token first, each with whether it is a word."""
    found = [_terms_of_token(token) for token in TOKEN.findall(stretch)]
    return tuple(
        (term, is_word) for terms in found for is_word, listed in ((False, terms.marks), (True, terms.words)) for term in listed
    )


_terms_of_stretch = lru_cache(_KEPT_TOKENS)(_listed_terms)
"""The same of a short stretch; kept, because the same words come again and again."""


def _take(token: str, marks: set[str], words: set[str]) -> None:
    if token.isalpha():
        _take_word(token, marks, words)
    elif TIME.fullmatch(token):
        marks.add(token.casefold())
    elif NUMBER.fullmatch(token):
        _take_figure(token, marks)
    elif token.replace("-", "").isalpha():
        for word in token.split("-"):
            _take_word(word, marks, words)
    else:
        marks.add(token.casefold())
        for part in _PART.findall(TIME.sub(" ", token)):
            _take_part(part, marks, words)
        _take_rounded(token, marks)


def _take_part(part: str, marks: set[str], words: set[str]) -> None:
    if part.isdigit():
        _take_figure(part, marks)
    elif part.isalpha():
        _take_word(part, marks, words)
    elif len(part) > 1:
        marks.add(part.casefold())


def _take_word(word: str, marks: set[str], words: set[str]) -> None:
    folded = word.casefold()
    if len(word) > 1 and not (word.islower() or word.isupper() or word.istitle()):
        marks.add(folded)
    elif len(folded) >= 4 and folded not in GRAMMAR:
        words.add(stem(folded))


def _take_figure(figure: str, marks: set[str]) -> None:
    if len(figure) >= 2:
        marks.update((figure, figure.replace(",", "")))
        _take_rounded(figure, marks)


def _take_rounded(token: str, marks: set[str]) -> None:
    match = _ROUND.fullmatch(token)
    if match is None:
        return
    digits = match[1].replace(",", "").replace(".", "").strip("0")
    if len(digits) in (1, 2) and (match[2] or not match[1].isdigit() or len(match[1]) > 2):
        marks.add(f"{ROUNDED}{digits:0<2}")


def occurs(mark: str, folded: str) -> bool:
    """Tell whether a mark is in a folded text, and not as a part of a longer word or figure."""
    return stands_alone(mark, folded) or any(stands_alone(form, folded) for form in forms_of(mark)[1:])


def forms_of(mark: str) -> list[str]:
    """Return the spellings of a mark: a figure with thousands set apart, too."""
    is_long_figure = len(mark) > 3 and mark.isascii() and mark.isdigit() and mark[0] != "0"
    return [mark, f"{int(mark):,}"] if is_long_figure else [mark]


def stated_figures(text: str) -> set[str]:
    """Every figure that stands alone in a text, as it is written; of `1,234.5` its parts, too, which stand apart."""
    found: set[str] = set()
    for chain in _CHAIN.findall(text):
        parts = _SEPARATOR.split(chain)
        # Parts and separators take turns.
        for first in range(0, len(parts), 2):
            found.update(
                "".join(parts[first:last]) for last in range(first + 1, min(first + 2 * _MAX_PARTS, len(parts) + 1), 2)
            )
    return found


def has_word(word: str, folded: str) -> bool:
    """Tell whether a word with this stem is in a folded text."""
    return stands_alone(word, folded, only_begins=True)


def stands_alone(form: str, text: str, *, only_begins: bool = False) -> bool:
    """Tell whether a text has this with no letter or digit before it and, unless it only has to begin a word, after it.

    A text that has it MAX_TRIES times as a part of something longer is believed to have it alone, too.
    """
    at = -1
    for _ in range(MAX_TRIES):
        at = text.find(form, at + 1)
        if at < 0:
            return False
        end = at + len(form)
        if not (at and text[at - 1].isalnum()) and (only_begins or not text[end : end + 1].isalnum()):
            return True
    return True


def rounded_figures(folded: str) -> set[str]:
    """The marks of round figures that stand for the figures of four digits or more in a text."""
    return {f"{ROUNDED}{f'{float(figure[:17]):.1e}'.replace('.', '')[:2]}" for figure in _LONG.findall(folded)}


def folded(text: str) -> str:
    """The text as terms are looked for in it."""
    return _without_escapes(text[:MAX_TEXT]).casefold()


def stem(word: str) -> str:
    """The word without its ending, five letters at most."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:5]


def grammar_words(text: str) -> int:
    """Count the different words of grammar in the text: prose has many, a list, a log or another language few."""
    return len(GRAMMAR.intersection(_PART.findall(text[:MAX_TEXT].casefold())))
