"""The language of documents, pages, commands, errors and docstrings: plain, active and idiomatic English."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST_LINE = 120
TURNS = {
    r"\b[Ww]hoever\b": "name the person: you, the reader, a caller",
    r"\b[Nn]obody\b": "say what does not happen: no alert is sent, no judge is asked",
    r"\b[Ss]omebody\b": "name the person: you, a colleague, an operator",
    r"\bof before\b": "earlier, older",
    r"\bdearest\b": "most expensive",
    r"\bas ever\b": "as before",
    r"\banew\b": "again",
    r"\bin the place of\b": "instead of",
    r"\bof which nothing\b": "that nothing …",
    r"\b(?:is|are|be) told\b": "say who is alerted, or what is reported",
    r"\b[Tt]old of\b": "reported",
    r"(?:(?<=[.!?:] )|^)What (?!to\b)[a-z][^?]*?\.(?=\s|$)": "begin with the thing, not with a clause about it",
    r"(?:(?<=[.!?] )|^)(?:Who|Whose) [^?]*?\.(?=\s|$)": "begin with the person",
    r"\bdearer\b": "more expensive",
    r"\bunless told otherwise\b": "by default",
    r"\bso many\b": "this many, a number, at most",
    r"\bof one's own\b": "your own",
    r"\b(?:came|comes?) to nothing\b": "failed, fails",
    r"\bis like that\b": "matches",
    r"\bone (?:row|line|object|file|point|document) an? [a-z]": "one row per …",
    r"\b(?:held|holds?|holding) (?:\w+ ){0,3}against (?:an?|the|each|every|its|your) ": "compare with, evaluate against",
    r"\bmend(?:s|ed|ing)?\b": "correct, repair, fix",
}
"""Turns that read as if they were translated, and what to write instead."""
LONE = re.compile(r"\b(?:[Ww]hoever|[Nn]obody|[Ss]omebody|of before|as ever|anew|[Tt]old of|of which nothing|dearer|dearest)\b")
"""Turns that no docstring has."""
CLAUSES = re.compile(r"(?:What|How|Whether|Who|Whose|Where|When|Which|Why) (?!to\b)")
"""Beginnings of a docstring that is a clause about the thing, and neither names it nor says what is done."""
PACKAGES = ("schemas", "audit", "analytics", "streams", "service")
UNFINISHED = ("streams/engine/", "streams/log/", "streams/judging/", "streams/kafka/")
"""Rooms whose docstrings are still to be rewritten."""
ROOMS = ("docs", "examples", "analytics", "audit", "schemas", "service", "streams")
LEFT_OUT = ("docs/decisions/", "docs/reference/", "audit/evaluation/")
"""Decisions are history, the reference is made from the code, and prompts are versioned."""
BLOCKS = re.compile(r"```.*?```", re.DOTALL)
CODE = re.compile(r"`[^`]*`", re.DOTALL)


def documents() -> list[Path]:
    """Every document that is written by hand."""
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(path for room in ROOMS for path in (ROOT / room).rglob("*.md"))]
    found = (path.relative_to(ROOT) for path in texts)
    return sorted(path for path in found if not f"{path}".startswith(LEFT_OUT) and "node_modules" not in path.parts)


def sentences(text: str) -> Iterator[str]:
    """The sentences of Markdown, those of lists and tables as well, without code."""
    prose = CODE.sub("code", BLOCKS.sub("\n", text))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-|] |\s*\d+\. |\||#)", prose):
        yield from re.split(r"(?<=[.!?])\s+|\s\|\s", " ".join(paragraph.split()))


def turns_in(text: str) -> list[str]:
    """Each sentence with a turn that is avoided, and what to write."""
    return [f"{one!r}: {better}" for one in sentences(text) for turn, better in TURNS.items() if re.search(turn, one)]


@pytest.mark.parametrize("document", documents(), ids=str)
def test_a_document_is_idiomatic(document: Path) -> None:
    """A reader who has to translate a sentence back stops reading."""
    assert [] == turns_in((ROOT / document).read_text("utf-8"))


def docstrings() -> Iterator[tuple[str, str]]:
    """Each docstring of a module, class or function with its place; those of attributes are left out."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            place = f"{path.relative_to(ROOT)}"
            if not place.startswith(UNFINISHED):
                for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{place}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""


def test_a_docstring_begins_with_a_verb_or_the_thing() -> None:
    """A reader looks for what a function does; a clause has to be read to its end for that."""
    assert [] == [(place, text) for place, text in docstrings() if CLAUSES.match(text)]


def test_a_docstring_is_idiomatic() -> None:
    """Docstrings are read more often than documents, in the editor and in the reference."""
    assert [] == [(place, found.group()) for place, text in docstrings() if (found := LONE.search(text))]


@pytest.mark.parametrize("document", documents(), ids=str)
def test_lines_of_a_document_are_short(document: Path) -> None:
    """A change of one sentence is a change of a line or two, not of a paragraph."""
    prose = BLOCKS.sub("", (ROOT / document).read_text("utf-8"))
    without_links = re.sub(r"\]\([^)]*\)", "]", prose)
    assert [] == [
        line for line in without_links.splitlines() if len(line) > LONGEST_LINE and not line.lstrip().startswith(("|", "`"))
    ]


@pytest.mark.parametrize(
    ("avoided", "written"),
    [
        ("Whoever knows it can post.", "With this address anyone can post."),
        ("It is told when it is confirmed.", "It sends an alert when it is confirmed."),
        ("Stop. What came late changes the past.", "Stop. Late records change the past."),
        ("| a | nobody is asked |", "| a | no judge is asked |"),
        ("It has one row a run.", "It has one row per run."),
        ("Every run is held against a case.", "Every run is evaluated against a case."),
    ],
)
def test_turns_are_found_and_plain_sentences_are_not(avoided: str, written: str) -> None:
    """The test would be worth nothing if it found nothing."""
    assert turns_in(avoided)
    assert not turns_in(written)


def test_questions_and_code_may_begin_with_what() -> None:
    """A question is no clause in the place of a thing; names in code are not language."""
    assert not turns_in("What would it have said? Ask `nobody`.\n```\nwhoever\n```\n")
