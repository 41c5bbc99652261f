"""The terms of a text: what can be recognised when it comes again, and the figures that an answer states.

1. **Marks** are figures of two digits or more and identifiers: words with digits, underscores or inner capitals, paths, addresses. Of
   what is joined by points, slashes, colons and the like, each part that is a mark counts, too. A time of day is none.
2. **Words** are other words of four letters or more that English does not need for its grammar, by their stems, so that `adapters`
   and `adapter` are one. Letters are folded.
3. A figure of four digits or more counts as rounded, too: `about 69k` and `1.2 s` take up `68701` and `1234`.

All of it is linear in the text, of which MAX_TEXT characters are read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_TEXT = 16 * 1024
"""Characters of one text that are read."""
MAX_TOKEN = 200
"""Characters of the longest token that is looked at."""

# Bounded repetitions: rows of points or dashes would otherwise be read once from each of them.
TOKEN = re.compile(r"[^\W_](?:(?:[\w.:/@+=\-]|,(?=\d)){0,200}\w)?|[_/~.][\w./\-]{0,200}\w")
_PART = re.compile(r"[^\W_]+")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TIME = re.compile(
    r"\d{4}-\d\d(?!\d)(?:-\d\d(?:t[\d:.,]*z?)?)?|(?<![\d.])\d{1,2}:\d\d(?::\d\d)?(?!\d)(?:[.,]\d+)?z?", re.IGNORECASE
)
ESCAPES = re.compile(r"\\[nrtu\"\\/]")
_ROUND = re.compile(r"(\d{1,3}(?:[.,]\d{1,2})?)([kmg])?", re.IGNORECASE)
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


class Terms(NamedTuple):
    """The marks and words of a text; `marks` has figures and identifiers, `words` the stems of the rest."""

    marks: frozenset[str]
    words: frozenset[str]


def terms_of(text: str) -> Terms:
    """The terms of the first MAX_TEXT characters."""
    marks: set[str] = set()
    words: set[str] = set()
    for token in TOKEN.findall(ESCAPES.sub(" ", text[:MAX_TEXT])):
        if len(token) <= MAX_TOKEN:
            _take(token, marks, words)
    return Terms(frozenset(marks), frozenset(words))


def _take(token: str, marks: set[str], words: set[str]) -> None:
    if token.isalpha():
        _take_word(token, marks, words)
        return
    moment = TIME.fullmatch(token)
    if moment is not None:
        marks.add(token.casefold())
        return
    if NUMBER.fullmatch(token):
        _take_figure(token, marks)
        return
    if token.replace("-", "").isalpha():
        for word in token.split("-"):
            _take_word(word, marks, words)
        return
    marks.add(token.casefold())
    for part in _PART.findall(TIME.sub(" ", token)):
        if part.isdigit():
            _take_figure(part, marks)
        elif part.isalpha():
            _take_word(part, marks, words)
        elif len(part) > 1:
            marks.add(part.casefold())
            rounded = _ROUND.fullmatch(part)
            if rounded is not None and rounded[2]:
                marks.add(_mantissa(rounded[1]))
    rounded = _ROUND.fullmatch(token)
    if rounded is not None and rounded[2]:
        marks.add(_mantissa(rounded[1]))


def _take_word(word: str, marks: set[str], words: set[str]) -> None:
    folded = word.casefold()
    if len(word) > 1 and not (word.islower() or word.isupper() or word.istitle()):
        marks.add(folded)
    elif len(folded) >= 4 and folded not in GRAMMAR:
        words.add(stem(folded))


def _take_figure(figure: str, marks: set[str]) -> None:
    digits = figure.replace(",", "").replace(".", "")
    if len(digits) < 2:
        return
    marks.add(figure)
    marks.add(figure.replace(",", ""))
    if len(digits) >= 4 and digits.strip("0"):
        marks.add(_mantissa(digits))
    elif any(point in figure for point in ".,"):
        marks.add(_mantissa(figure))


def _mantissa(figure: str) -> str:
    """The first two digits that are not zero, rounded: what is left of a figure that is given in another unit, or roughly."""
    digits = figure.replace(",", "").replace(".", "").lstrip("0")[:17] or "0"
    rounded = f"{float(digits):.1e}"
    return f"~{rounded[0]}{rounded[2]}"


def stem(word: str) -> str:
    """The word without its ending, five letters at most."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:5]


def grammar_words(text: str) -> int:
    """How many different words of grammar the text has: prose has many, a list, a log or another language few."""
    return len(GRAMMAR.intersection(_PART.findall(text[:MAX_TEXT].casefold())))
