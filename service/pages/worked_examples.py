"""The worked examples of SQL on drift, read from the guide itself, of which every installation has a copy."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

_HEADING = re.compile(r"^### \d+\. ", re.MULTILINE)
_STATEMENT = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"[`*]")
_VALUE = re.compile(r"(DATE )?'([^']*)' /\* \$([a-z_]+) \*/")
"""A value to be replaced by the reader's own, with its name."""


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A question, a text about it, and the statement that answers it."""

    title: str
    words: str
    sql: str
    """With `$name` for each value that has a name beside it in the guide."""
    parameters: Mapping[str, str]
    """Those values by name."""


@functools.cache
def worked_examples() -> tuple[WorkedExample, ...]:
    """Return the examples in the order of the guide; a question with two statements appears twice."""
    guide = (resources.files("service") / "worked_examples.md").read_text(encoding="utf-8")
    return tuple(example for part in _HEADING.split(guide)[1:] for example in _examples(part))


def _examples(part: str) -> list[WorkedExample]:
    """Return the examples of a section of the guide, which alternates texts and statements below its title."""
    title, _, rest = part.partition("\n")
    texts = _STATEMENT.split(rest)
    return [
        WorkedExample(title, _MARKS.sub("", words).strip(), _VALUE.sub(_named, sql).strip(), _values(sql))
        for words, sql in zip(texts[::2], texts[1::2], strict=False)
    ]


def _named(value: re.Match[str]) -> str:
    """Return the parameter that replaces a value; a date becomes a text with a cast."""
    return f"${value[3]}::DATE" if value[1] else f"${value[3]}"


def _values(sql: str) -> dict[str, str]:
    return {value[3]: value[2] for value in _VALUE.finditer(sql)}
