"""The contract of records from outside, beyond schema and bounds: one definition for HTTP, files and topics.

1. A field that is named alike in all records has the same rule in all of them; `_OWN` has what a type adds or does otherwise.
2. Our own records keep the contract, too, because they quote sessions and projects that came from outside.
3. Whatever is refused is refused with the record type, the field and what is wrong with it, in the same words everywhere.
4. On a topic no time lies more than a day after the broker took the record in: a record cannot describe the future.
5. Each rule is defined once for a value and for a column: `fault` says what is wrong with a value that is not null; `broken` is
   true where a value of a column has a fault. A test compares the two.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec

from schemas.bounds import (
    CLOCK_TOLERANCE,
    CONTROL,
    LABEL_NAME,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_ID,
    MAX_LABEL,
    MAX_LABELS,
    MAX_MADE_ID,
    NAME,
    NO_LABELS,
    NOT_UNICODE,
    OUTCOMES,
    SHOWN,
    has_surrogates,
    identifier_fault,
    is_too_deep,
    labels_fault,
)
from schemas.codec.single_object import decode_fields
from schemas.errors import BoundsError, RecordError
from schemas.lazy import pl
from schemas.records import Record
from schemas.registry import schema_of

_CARRIED = {
    "Anchor": ("connection", "project", "exchange_id"),
    "JudgingRequest": ("connection", "project", "session_id", "exchange_id"),
}
"""Records that carry an exchange for a stage to take up, and what both must say alike."""

_IS_NAME = re.compile(NAME).fullmatch
_BRACKETS = r"[\[{]"
_EXTREME = r"[0-9]{300}|[0-9][eE][+-]?[0-9]{3}"
"""A pattern for a possible number that none of our readers accepts; the match may as well be text."""
_READ = msgspec.json.Decoder(dict[str, Any]).decode


@functools.cache
def rules_of(name: str) -> dict[str, Rule]:
    """Return the rule of each field of a record type that has one."""
    fields = [field["name"] for field in schema_of(name).fields]
    rules = _SHARED | _OWN.get(name, {})
    return {field: rules[field] for field in fields if field in rules}


@functools.cache
def times_of(name: str) -> tuple[str, ...]:
    """Return the fields of a record type that are times; none of them may lie in the future."""
    return tuple(field["name"] for field in schema_of(name).fields if "timestamp-micros" in str(field["type"]))


def check_contract(name: str, fields: Mapping[str, Any], taken_at: datetime | None = None) -> None:
    """BoundsError naming the record type and the first field that breaks the contract.

    `taken_at` is when the broker took the record in, where it came on a topic.
    """
    _check_rules(name, fields.__getitem__)
    for field in times_of(name) if taken_at is not None else ():
        value = fields[field]
        if value is not None and taken_at is not None and value > taken_at + CLOCK_TOLERANCE:
            reason = f"{value.isoformat()} lies more than a day after the record came, at {taken_at.isoformat()}"
            raise BoundsError(f"{name}.{field}: {reason}")
    if name in _CARRIED:
        _check_carried(name, fields)


def _check_rules(name: str, value_of: Callable[[str], Any]) -> None:
    for field, rule in _rules_in_order(name):
        value = value_of(field)
        if value is not None and (fault := rule.fault(value)):
            raise BoundsError(f"{name}.{field}{fault}" if fault.startswith(".") else f"{name}.{field}: {fault}")


@functools.cache
def _rules_in_order(name: str) -> tuple[tuple[str, Rule], ...]:
    return tuple(rules_of(name).items())


def _check_carried(name: str, fields: Mapping[str, Any]) -> None:
    """BoundsError where the exchange that a record carries is none, breaks the contract itself, or is another one than it says."""
    try:
        kind, carried = decode_fields(fields["exchange"])
        if kind != "Exchange":
            raise BoundsError(f"is a {kind}, no Exchange")
        check_contract(kind, carried)
    except RecordError as error:
        raise BoundsError(f"{name}.exchange: {error}") from error
    for field in _CARRIED[name]:
        if carried[field] != fields[field]:
            raise BoundsError(f"{name}.exchange: its {field} is not that of the record")


def check_record(record: Record, taken_at: datetime | None = None) -> None:
    """`check_contract` of a record."""
    name = type(record).__name__
    if taken_at is None and name not in _CARRIED:
        _check_rules(name, record.__getattribute__)  # a dictionary of the fields would take as long as the rules
    else:
        check_contract(name, msgspec.structs.asdict(record), taken_at)


def breaches(name: str, frame: pl.DataFrame, taken_at: pl.Series) -> dict[int, BoundsError]:
    """Return the rows of a decoded frame that break the contract, by row, each with the error that `check_contract` raises for it.

    `taken_at` is when the broker took in the record of each row, null where that is unknown.
    """
    late = [(pl.col(field) > taken_at + CLOCK_TOLERANCE).fill_null(value=False) for field in times_of(name)]
    carries = [pl.lit(value=True)] if name in _CARRIED else []
    suspects = frame.select(pl.any_horizontal(*_broken(name), *late, *carries, pl.lit(value=False))).to_series()
    if not suspects.any():
        return {}
    rows = suspects.arg_true()
    return _broken_rows(name, rows.to_list(), frame[rows], taken_at[rows])


@functools.cache
def _broken(name: str) -> tuple[pl.Expr, ...]:
    return tuple(rule.broken(pl.col(field)).fill_null(value=False) for field, rule in rules_of(name).items())


def _broken_rows(name: str, places: Sequence[int], frame: pl.DataFrame, taken_at: pl.Series) -> dict[int, BoundsError]:
    """Return the rows that break the contract, by place."""
    errors: dict[int, BoundsError] = {}
    for row, fields, taken in zip(places, frame.iter_rows(named=True), taken_at.to_list(), strict=True):
        try:
            check_contract(name, fields, taken)
        except BoundsError as error:
            errors[row] = error
    return errors


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
        is_broken = (text.len_chars() > self.longest) | ~text.contains(r"\S") | text.contains(CONTROL)
        return is_broken & (column != "") if self.optional else is_broken


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


@dataclass(frozen=True)
class JsonObject:
    """A JSON object, nested no deeper than records may be."""

    def fault(self, value: str) -> str | None:
        """See `Rule`."""
        try:
            decoded = _READ(value)
        except msgspec.ValidationError as error:
            return f"is not a readable JSON object: {error}"
        except (msgspec.DecodeError, RecursionError) as error:
            return f"is not JSON: {error}"
        # Counting brackets is cheap and rules out depth for most texts; the walk is for the rest.
        may_be_deep = value.count("{") + value.count("[") > MAX_DEPTH
        return f"nests deeper than {MAX_DEPTH} levels" if may_be_deep and is_too_deep(decoded) else None

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


NAMED, IDENTIFIER, MADE_ID, COUNT = Named(), Identifier(), Identifier(MAX_MADE_ID), Between(0, MAX_COUNT)
_SHARE = Between(0, 1)
_ADDED_ID = Identifier(MAX_MADE_ID, optional=True)
"""An id that earlier versions of a schema had no field for: their records have the empty default."""
_SHARED: dict[str, Rule] = {
    **dict.fromkeys(("connection", "project"), NAMED),
    **dict.fromkeys(("session_id", "agent"), IDENTIFIER),
    **dict.fromkeys(
        (
            "anchor_id",
            "baseline_id",
            "case_id",
            "chosen_by",
            "dead_letter_id",
            "deployment_id",
            "erasure_id",
            "evaluation_id",
            "event_id",
            "exchange_id",
            "incident_id",
            "judge_run_id",
            "judgement_id",
            "request_id",
            "requested_by",
            "reservation_id",
            "review_id",
            "reviewer",
            "score_id",
            "subject_id",
        ),
        MADE_ID,
    ),
    **dict.fromkeys(
        (
            "attempt",
            "attempts",
            "cached_tokens",
            "cache_read_tokens",
            "cache_write_tokens",
            "event_count",
            "input_tokens",
            "latency_ms",
            "output_tokens",
            "position",
            "prompt_tokens",
            "repetition",
            "revision",
            "run_input_tokens",
            "run_output_tokens",
            "seq",
            "size",
            "subject_revision",
            "tokens",
            "turn_number",
        ),
        COUNT,
    ),
    **dict.fromkeys(("amount_usd", "cost_usd", "run_cost_usd", "run_seconds"), COUNT),
    "sampling_probability": _SHARE,
    "labels": Labels(),
}
"""Rules by the name of a field."""
_OWN: dict[str, dict[str, Rule]] = {
    "AgentEvent": {"event": MADE_ID, "source": IDENTIFIER, "payload": JsonObject()},
    "Deployment": {"label": IDENTIFIER, "version": IDENTIFIER, "deployed_by": MADE_ID},
    "Evaluation": {"judge_run_id": _ADDED_ID},
    "EvaluationRequest": {"evaluation_id": _ADDED_ID, "judge_run_id": _ADDED_ID, "case": JsonObject(), "profile": JsonObject()},
    "Exchange": {"outcome": OneOf(OUTCOMES)},
    "Judgement": {
        "outcome": OneOf(
            ("answered", "refused", "cut_off", "provider_error", "timeout", "invalid", "cost_cap", "interrupted"),
        )
    },
    # A dead letter need not be of a project, and what is said of it is not either.
    "Review": {
        "project": Named(optional=True),
        "kind": OneOf(("human_score", "incident_decision", "incident_assignment", "incident_comment", "dead_letter")),
        "status": OneOf(("open", "acknowledged", "resolved", "new_normal", "dismissed", "accepted", "retried")),
        "score": Between(1, 5),
    },
    "SessionClosed": {"reason": OneOf(("explicit", "idle"))},
}


class _AnyObject(msgspec.Struct):
    """Any JSON object; its members are read over, not made."""


_READ_OVER = msgspec.json.Decoder(_AnyObject).decode
