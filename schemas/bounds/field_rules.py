"""Rules of single fields, each defined once for a value and for a column.

`fault` says in words what is wrong with a value that is not null; `broken` is true where a value of a column has a fault. A test
holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from schemas.bounds.limits import (
    LABEL_NAME,
    MAX_DEPTH,
    MAX_ID,
    MAX_LABEL,
    MAX_LABELS,
    NAME,
    NO_LABELS,
    NOT_UNICODE,
    has_surrogates,
    is_too_deep,
)
from schemas.bounds.name_rules import CONTROL, SHOWN, identifier_fault, labels_fault
from schemas.lazy.polars import pl

_IS_NAME = re.compile(NAME).fullmatch


class Rule(Protocol):
    """A kind of rule."""

    def fault(self, value: Any) -> str | None:
        """Return the fault of a value, as the end of a sentence, or None for a good one."""
        ...

    def broken(self, column: pl.Expr) -> pl.Expr:
        """True where a value has a fault; null where it is null."""
        ...


@dataclass(frozen=True)
class Named:
    """The name of a project or connection; `optional` also takes the empty text."""

    optional: bool = False

    def fault(self, value: str) -> str | None:
        """See `Rule`."""
        if _IS_NAME(value) or (self.optional and not value):
            return None
        if has_surrogates(value):  # no column can hold one
            return NOT_UNICODE
        return f"{value[:SHOWN]!r} is not a valid name: use at most 63 of a-z, 0-9, _ . and -"

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`."""
        return ~column.str.contains(rf"\A(?:{NAME})\z") & ~((column == "") & self.optional)


@dataclass(frozen=True)
class Identifier:
    """An id or a name that a source gave: not blank, without control characters, of at most `longest` characters.

    `optional` also takes the empty text.
    """

    longest: int = MAX_ID
    optional: bool = False

    def fault(self, value: str) -> str | None:
        """See `Rule`."""
        if self.optional and not value:
            return None
        return identifier_fault(value, self.longest)

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`."""
        text = column.str
        found = (text.len_chars() > self.longest) | ~text.contains(r"\S") | text.contains(CONTROL)
        return found & (column != "") if self.optional else found


@dataclass(frozen=True)
class Between:
    """A number from `low` to `high`, both included."""

    low: int
    high: int

    def fault(self, value: float) -> str | None:
        """See `Rule`."""
        return None if self.low <= value <= self.high else f"{value} is not from {self.low} to {self.high}"

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`."""
        return ~column.is_between(self.low, self.high)


@dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def fault(self, value: str) -> str | None:
        """See `Rule`."""
        return None if value in self.words else f"{value[:SHOWN]!r} is none of {', '.join(self.words)}"

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`."""
        return ~column.is_in(self.words)


@dataclass(frozen=True)
class Labels:
    """Labels of an exchange or event: few, with names that differ, and values that can be shown in a table.

    A fault of one label begins with a dot and its name, so that it can stand behind the name of the field.
    """

    def fault(self, value: Sequence[Any]) -> str | None:
        """See `Rule`."""
        return labels_fault(value)

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`."""
        name, text = pl.element().struct.field("name"), pl.element().struct.field("value").str
        wrong = ~name.str.contains(rf"\A(?:{LABEL_NAME})\z") | name.is_in(NO_LABELS)
        unfit = (text.len_chars() > MAX_LABEL) | ~text.contains(r"\S") | text.contains(CONTROL)
        repeated = column.list.eval(name).list.n_unique() < column.list.len()
        return (column.list.len() > MAX_LABELS) | repeated | column.list.eval(wrong | unfit).list.any()


class _AnyObject(msgspec.Struct):
    """Any JSON object; its members are read over, not made."""


_READ_OVER = msgspec.json.Decoder(_AnyObject).decode
_BRACKETS = r"[\[{]"
_EXTREME = r"[0-9]{300}|[0-9][eE][+-]?[0-9]{3}"
"""A pattern for a possible number that none of our readers accepts; the match may as well be text."""
_READ = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True)
class JsonObject:
    """A JSON object, nested no deeper than records may be."""

    def fault(self, value: str) -> str | None:
        """See `Rule`."""
        try:
            found = _READ(value)
        except msgspec.ValidationError as error:
            return f"is not a readable JSON object: {error}"
        except (msgspec.DecodeError, RecursionError) as error:
            return f"is not JSON: {error}"
        # Counting brackets is cheap and rules out depth for most texts; the walk is for the rest.
        may_be_deep = value.count("{") + value.count("[") > MAX_DEPTH
        return f"nests deeper than {MAX_DEPTH} levels" if may_be_deep and is_too_deep(found) else None

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`. Reading over a text takes half the time of reading it, so only what may be odd is read."""
        odd = (column.str.count_matches(_BRACKETS) > MAX_DEPTH) | column.str.contains(_EXTREME)
        return pl.struct(column.alias("text"), odd.alias("odd")).map_batches(self._broken, return_dtype=pl.Boolean)

    def _broken(self, columns: pl.Series) -> pl.Series:
        texts, odd = columns.struct.field("text"), columns.struct.field("odd")
        suspects = odd if _are_objects(texts.filter(~odd)) else texts.is_not_null()
        faults = [self.fault(text) is not None for text in texts.filter(suspects)]
        return pl.repeat(value=False, n=len(texts), dtype=pl.Boolean, eager=True).scatter(suspects.arg_true(), faults)


def _are_objects(texts: Iterable[str]) -> bool:
    try:
        return all(map(_READ_OVER, texts))
    except (msgspec.DecodeError, RecursionError):
        return False
