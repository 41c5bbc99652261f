"""The contract of ingested records, beyond schema and bounds: one definition for HTTP, files and topics.

1. A field with the same name has the same rule in all record types, except for the rules in `_OWN`.
2. Derived records follow the contract too, because they contain ids of ingested sessions and projects.
3. An error names the record type, the field and the fault, in the same words everywhere.
4. On a topic, no time may be more than a day after the broker received the record: a record cannot describe the future.
5. Each rule has two forms: `fault` describes the fault of a value, and `broken` is true where a value of a column has a fault. A test
   compares the two.
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
    MAX_TOOL_CALLS,
    MAX_TOOL_TEXT_BYTES,
    NAME,
    NO_LABELS,
    NOT_UNICODE,
    OUTCOMES,
    SHOWN,
    TOOL_OUTCOMES,
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

_EMBEDDED_EXCHANGES = {
    "Anchor": ("connection", "project", "exchange_id"),
    "JudgingRequest": ("connection", "project", "session_id", "exchange_id"),
}
"""Record types with an embedded exchange for a stage, and the fields in which both must agree."""

_IS_NAME = re.compile(NAME).fullmatch
_BRACKETS = r"[\[{]"
_EXTREME = r"[0-9]{300}|[0-9][eE][+-]?[0-9]{3}"
"""Pattern of a number that may exceed the range of our readers. The match may also be part of a string."""
_READ = msgspec.json.Decoder(dict[str, Any]).decode


@functools.cache
def rules_of(name: str) -> dict[str, Rule]:
    """Return the rules of a record type by field."""
    fields = [field["name"] for field in schema_of(name).fields]
    rules = _SHARED | _OWN.get(name, {})
    return {field: rules[field] for field in fields if field in rules}


@functools.cache
def times_of(name: str) -> tuple[str, ...]:
    """Return the time fields of a record type, none of which may be in the future."""
    return tuple(field["name"] for field in schema_of(name).fields if "timestamp-micros" in str(field["type"]))


def check_contract(name: str, fields: Mapping[str, Any], received_at: datetime | None = None) -> None:
    """Check the fields of a record. Raises BoundsError naming the record type and the first field that breaks the contract.

    `received_at` is the time at which the broker received the record, for records from a topic.
    """
    _check_rules(name, fields.__getitem__)
    for field in times_of(name) if received_at is not None else ():
        value = fields[field]
        if value is not None and received_at is not None and value > received_at + CLOCK_TOLERANCE:
            reason = f"{value.isoformat()} is more than a day after the record was received, at {received_at.isoformat()}"
            raise BoundsError(f"{name}.{field}: {reason}")
    if name in _EMBEDDED_EXCHANGES:
        _check_embedded_exchange(name, fields)


def _check_rules(name: str, value_of: Callable[[str], Any]) -> None:
    for field, rule in _rules_in_order(name):
        value = value_of(field)
        if value is not None and (fault := rule.fault(value)):
            raise BoundsError(f"{name}.{field}{fault}" if fault[0] in ".[" else f"{name}.{field}: {fault}")


@functools.cache
def _rules_in_order(name: str) -> tuple[tuple[str, Rule], ...]:
    return tuple(rules_of(name).items())


def _check_embedded_exchange(name: str, fields: Mapping[str, Any]) -> None:
    """Check the embedded exchange. Raises BoundsError unless it is a valid exchange that agrees with the record."""
    try:
        kind, exchange = decode_fields(fields["exchange"])
        if kind != "Exchange":
            raise BoundsError(f"is a {kind}, not an Exchange")
        check_contract(kind, exchange)
    except RecordError as error:
        raise BoundsError(f"{name}.exchange: {error}") from error
    for field in _EMBEDDED_EXCHANGES[name]:
        if exchange[field] != fields[field]:
            raise BoundsError(f"{name}.exchange: its {field} differs from that of the record")


def check_record(record: Record, received_at: datetime | None = None) -> None:
    """Check a record like `check_contract`."""
    name = type(record).__name__
    if received_at is None and name not in _EMBEDDED_EXCHANGES:
        _check_rules(name, record.__getattribute__)  # building a dictionary would take as long as the rules
    else:
        check_contract(name, msgspec.structs.asdict(record), received_at)


def breaches(name: str, frame: pl.DataFrame, received_at: pl.Series) -> dict[int, BoundsError]:
    """Return the errors of the rows of a decoded frame that break the contract, by row, as `check_contract` raises them.

    `received_at` is the time at which the broker received each row, null if unknown.
    """
    late = [(pl.col(field) > received_at + CLOCK_TOLERANCE).fill_null(value=False) for field in times_of(name)]
    embeds = [pl.lit(value=True)] if name in _EMBEDDED_EXCHANGES else []
    suspects = frame.select(pl.any_horizontal(*_broken(name), *late, *embeds, pl.lit(value=False))).to_series()
    if not suspects.any():
        return {}
    rows = suspects.arg_true()
    return _broken_rows(name, rows.to_list(), frame[rows], received_at[rows])


@functools.cache
def _broken(name: str) -> tuple[pl.Expr, ...]:
    return tuple(rule.broken(pl.col(field)).fill_null(value=False) for field, rule in rules_of(name).items())


def _broken_rows(name: str, indexes: Sequence[int], frame: pl.DataFrame, received_at: pl.Series) -> dict[int, BoundsError]:
    """Return the errors of the rows that break the contract, by row."""
    errors: dict[int, BoundsError] = {}
    for row, fields, received in zip(indexes, frame.iter_rows(named=True), received_at.to_list(), strict=True):
        try:
            check_contract(name, fields, received)
        except BoundsError as error:
            errors[row] = error
    return errors


class Rule(Protocol):
    """A rule for the values of a field."""

    def fault(self, value: Any) -> str | None:
        """Return the fault of a value, as the end of a sentence; None for a valid value."""
        ...

    def broken(self, column: pl.Expr) -> pl.Expr:
        """Return an expression that is true where a value has a fault, and null where it is null."""
        ...


@dataclass(frozen=True)
class Named:
    """The name of a project or connection. With `optional` it may be empty."""

    optional: bool = False

    def fault(self, value: str) -> str | None:
        """See `Rule`."""
        if _IS_NAME(value) or (self.optional and not value):
            return None
        if has_surrogates(value):  # no column can store it
            return NOT_UNICODE
        return f"{value[:SHOWN]!r} is not a valid name: use at most 63 of a-z, 0-9, _ . and -"

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`."""
        return ~column.str.contains(rf"\A(?:{NAME})\z") & ~((column == "") & self.optional)


@dataclass(frozen=True)
class Identifier:
    """An id or name from a source: not blank, without control characters, of at most `longest` characters.

    With `optional` it may be empty.
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

    derived: bool = False
    """Whether they are of a score, where other fields of the exchange, such as its model, are labels too."""

    def fault(self, value: Sequence[Any]) -> str | None:
        """See `Rule`."""
        return labels_fault(value, derived=self.derived)

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`."""
        name, text = pl.element().struct.field("name"), pl.element().struct.field("value").str
        wrong = ~name.str.contains(rf"\A(?:{LABEL_NAME})\z")
        if not self.derived:
            wrong |= name.is_in(NO_LABELS) | (text.len_chars() > MAX_LABEL) | ~text.contains(r"\S") | text.contains(CONTROL)
        repeated = column.list.eval(name).list.n_unique() < column.list.len()
        return (column.list.len() > MAX_LABELS) | repeated | column.list.eval(wrong).list.any()


@dataclass(frozen=True)
class ToolCalls:
    """Tool calls of an exchange: few, with valid names and outcomes, and excerpts for texts."""

    def fault(self, value: Sequence[Any]) -> str | None:
        """See `Rule`."""
        if len(value) > MAX_TOOL_CALLS:
            return f"has {len(value)} tool calls; at most {MAX_TOOL_CALLS} are allowed"
        for index, call in enumerate(value):
            name, outcome, *texts = (
                call[field] if isinstance(call, Mapping) else getattr(call, field)
                for field in ("name", "outcome", "arguments", "result")
            )
            if fault := IDENTIFIER.fault(name):
                return f"[{index}].name: {fault}"
            if fault := _TOOL_OUTCOME.fault(outcome):
                return f"[{index}].outcome: {fault}"
            for field, text in zip(("arguments", "result"), texts, strict=True):
                if text is not None and len(text.encode()) > MAX_TOOL_TEXT_BYTES:
                    return f"[{index}].{field}: has {len(text.encode())} bytes; at most {MAX_TOOL_TEXT_BYTES} are allowed"
        return None

    def broken(self, column: pl.Expr) -> pl.Expr:
        """See `Rule`."""
        call = pl.element().struct
        wrong = IDENTIFIER.broken(call.field("name"))
        unknown = _TOOL_OUTCOME.broken(call.field("outcome"))
        long = pl.any_horizontal(
            (call.field(field).str.len_bytes() > MAX_TOOL_TEXT_BYTES).fill_null(value=False)
            for field in ("arguments", "result")
        )
        return (column.list.len() > MAX_TOOL_CALLS) | column.list.eval(wrong | unknown | long).list.any()


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
        return all(map(_SKIP_OBJECT, texts))
    except (msgspec.DecodeError, RecursionError):
        return False


NAMED, IDENTIFIER, MADE_ID, COUNT = Named(), Identifier(), Identifier(MAX_MADE_ID), Between(0, MAX_COUNT)
_TOOL_OUTCOME = OneOf(TOOL_OUTCOMES)
_SHARE = Between(0, 1)
_ADDED_ID = Identifier(MAX_MADE_ID, optional=True)
"""An id that earlier versions of the schema lack, so that it may be empty."""
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
"""Rules by field name."""
JUDGEMENT_OUTCOMES = (
    *("answered", "refused", "cut_off", "provider_error", "timeout", "invalid", "awaiting_batch", "partial", "interrupted"),
    *("cost_cap", "project_day_cap", "project_month_cap", "installation_day_cap", "installation_month_cap"),
)
_OWN: dict[str, dict[str, Rule]] = {
    "AgentEvent": {"event": MADE_ID, "source": IDENTIFIER, "payload": JsonObject()},
    "Deployment": {"label": IDENTIFIER, "version": IDENTIFIER, "deployed_by": MADE_ID},
    "Evaluation": {"judge_run_id": _ADDED_ID},
    "EvaluationRequest": {"evaluation_id": _ADDED_ID, "judge_run_id": _ADDED_ID, "case": JsonObject(), "profile": JsonObject()},
    "Exchange": {"outcome": OneOf(OUTCOMES), "tool_calls": ToolCalls(), "omitted_tool_calls": COUNT},
    "Judgement": {"outcome": OneOf(JUDGEMENT_OUTCOMES)},
    # A dead letter may have no project, and neither may its review.
    "Review": {
        "project": Named(optional=True),
        "kind": OneOf(
            (
                "human_score",
                "incident_decision",
                "incident_assignment",
                "incident_comment",
                "incident_snooze",
                "annotation",
                "dead_letter",
                "review_queue",
                "queue_item",
            )
        ),
        "status": OneOf(
            (
                *("open", "acknowledged", "resolved", "new_normal", "dismissed", "accepted", "retried", "deleted"),
                *("closed", "added", "removed"),
            )
        ),
        "score": Between(1, 5),
    },
    "Score": {"labels": Labels(derived=True)},
    "SessionClosed": {"reason": OneOf(("explicit", "idle"))},
}


class _AnyObject(msgspec.Struct):
    """Any JSON object. Its members are skipped."""


_SKIP_OBJECT = msgspec.json.Decoder(_AnyObject).decode
