"""Classification of SQL statements: DuckDB names only the outer type of one that explains or contains another.

`EXPLAIN ANALYZE COPY …` runs the copy and counts as an explanation, `COPY (PIVOT …) TO …` as several statements, and
`WITH x AS (DELETE … RETURNING *) SELECT …` as one that reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from schemas.lazy.duckdb import duckdb

READING = frozenset({"select", "from", "values", "table", "pivot", "unpivot", "show", "describe", "desc", "summarize"})
"""The words that begin statements that read."""
WRITING = frozenset({"copy", "insert", "update", "delete", "merge", "truncate"})
"""The words that begin the parts of a WITH that change something."""
_ANALYZE = frozenset({"analyze", "analyse"})
_OF_A_PART = frozenset({",", "as", "using"})
"""The words that follow a parenthesis within the list of a WITH; the statement itself begins with something else."""


def only_reads(statement: str) -> bool:
    """Tell whether a statement that DuckDB can parse, or the one that it explains, reads and does nothing else."""
    words = _words(statement)
    return _main_word(_explained(words)) in READING and not _writes_in_parts(words)


def _words(statement: str) -> list[str]:
    """The statement's words and operators in lower case, one character an operator, without comments."""
    encoded = statement.encode()
    found = duckdb.tokenize(statement)
    ends = [start for start, _ in found[1:]] + [len(encoded)]
    words: list[str] = []
    for (start, kind), end in zip(found, ends, strict=True):
        text = encoded[start:end].decode().strip().lower()
        if kind == duckdb.token_type.operator:
            words += text
        elif kind != duckdb.token_type.comment:
            words.append(text)
    return words


def _explained(words: Sequence[str]) -> Sequence[str]:
    """The words of what an EXPLAIN explains; those of any other statement as they are."""
    if words[:1] != ["explain"]:
        return words
    rest = words[1:]
    if rest[:1] and rest[0] in _ANALYZE:
        return rest[1:]
    if rest[:1] == ["("] and _main_word(rest) not in READING:  # options, not a statement in parentheses
        return rest[_end_of_parentheses(rest, 0) :]
    return rest


def _main_word(words: Sequence[str]) -> str:
    """The word that says what a statement does, after parentheses and the list of a WITH."""
    place = 0
    while place < len(words) and words[place] == "(":
        place += 1
    if words[place : place + 1] != ["with"]:
        return "".join(words[place : place + 1])
    while place < len(words):
        if words[place] != "(":
            place += 1
            continue
        place = _end_of_parentheses(words, place)
        if place < len(words) and words[place] not in _OF_A_PART:
            return _main_word(words[place:])
    return ""


def _end_of_parentheses(words: Sequence[str], place: int) -> int:
    """The place after the parenthesis that closes the one at a place."""
    depth = 0
    for end in range(place, len(words)):
        depth += {"(": 1, ")": -1}.get(words[end], 0)
        if depth == 0:
            return end + 1
    return len(words)


def _writes_in_parts(words: Sequence[str]) -> bool:
    opened = [word for word in words if word not in {"not", "materialized"}]
    return any(
        before == "as" and word == "(" and _main_word(opened[place + 1 :]) in WRITING
        for place, (before, word) in enumerate(pairwise(opened))
    )
