"""The contract of records from outside, beyond schema and bounds: one definition for HTTP, files and topics.

1. A field that is named alike in all records has the same rule in all of them; `_OWN` has what a type adds or has otherwise.
2. Records of ours keep the contract, too, for they say of sessions and projects what came from outside.
3. Whatever is refused is refused with the record type, the field and what is wrong with it, by the same words everywhere.
4. On a topic no time lies more than a day after the broker took the record in: a record cannot describe the future.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from schemas.bounds.field_rules import Between, Identifier, JsonObject, Labels, Named, OneOf, Rule
from schemas.bounds.limits import CLOCK_TOLERANCE, MAX_COUNT, MAX_MADE_ID, OUTCOMES
from schemas.codec.single_object import decode_fields
from schemas.errors import BoundsError, RecordError
from schemas.lazy.polars import pl
from schemas.records import Record
from schemas.registry import schema_of

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
_CARRIED = {
    "Anchor": ("connection", "project", "exchange_id"),
    "JudgingRequest": ("connection", "project", "session_id", "exchange_id"),
}
"""Records that carry an exchange for a stage to take up, and what both must say alike."""


@functools.cache
def rules_of(name: str) -> dict[str, Rule]:
    """The rule of each field of a record type that has one."""
    fields = [field["name"] for field in schema_of(name).fields]
    rules = _SHARED | _OWN.get(name, {})
    return {field: rules[field] for field in fields if field in rules}


@functools.cache
def _rules_in_order(name: str) -> tuple[tuple[str, Rule], ...]:
    return tuple(rules_of(name).items())


@functools.cache
def times_of(name: str) -> tuple[str, ...]:
    """The fields of a record type that are times; none of them may lie in the future."""
    return tuple(field["name"] for field in schema_of(name).fields if "timestamp-micros" in str(field["type"]))


def check_contract(name: str, fields: Mapping[str, Any], taken_at: datetime | None = None) -> None:
    """BoundsError naming the record type and the first field that breaks the contract.

    `taken_at` is when the broker took the record in, where it came on a topic.
    """
    _check_rules(name, fields.__getitem__)
    for field in times_of(name) if taken_at is not None else ():
        value = fields[field]
        if value is not None and taken_at is not None and value > taken_at + CLOCK_TOLERANCE:
            words = f"{value.isoformat()} lies more than a day after the record came, at {taken_at.isoformat()}"
            raise BoundsError(f"{name}.{field}: {words}")
    if name in _CARRIED:
        _check_carried(name, fields)


def check_record(record: Record, taken_at: datetime | None = None) -> None:
    """`check_contract` of a record."""
    name = type(record).__name__
    if taken_at is None and name not in _CARRIED:
        _check_rules(name, record.__getattribute__)  # a dictionary of the fields would take as long as the rules
    else:
        check_contract(name, msgspec.structs.asdict(record), taken_at)


def _check_rules(name: str, value_of: Callable[[str], Any]) -> None:
    for field, rule in _rules_in_order(name):
        value = value_of(field)
        if value is not None and (fault := rule.fault(value)):
            raise BoundsError(f"{name}.{field}{fault}" if fault.startswith(".") else f"{name}.{field}: {fault}")


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


@functools.cache
def _broken(name: str) -> tuple[pl.Expr, ...]:
    return tuple(rule.broken(pl.col(field)).fill_null(value=False) for field, rule in rules_of(name).items())


def breaches(name: str, frame: pl.DataFrame, taken_at: pl.Series) -> dict[int, BoundsError]:
    """The rows of a decoded frame that break the contract, by row, each with the error that `check_contract` raises for it.

    `taken_at` is when the broker took in the record of each row, null where that is unknown.
    """
    late = [(pl.col(field) > taken_at + CLOCK_TOLERANCE).fill_null(value=False) for field in times_of(name)]
    carries = [pl.lit(value=True)] if name in _CARRIED else []
    suspects = frame.select(pl.any_horizontal(*_broken(name), *late, *carries, pl.lit(value=False))).to_series()
    if not suspects.any():
        return {}
    rows = suspects.arg_true()
    return _broken_rows(name, rows.to_list(), frame[rows], taken_at[rows])


def _broken_rows(name: str, places: Sequence[int], frame: pl.DataFrame, taken_at: pl.Series) -> dict[int, BoundsError]:
    """The rows that break the contract, by place."""
    found: dict[int, BoundsError] = {}
    for row, fields, taken in zip(places, frame.iter_rows(named=True), taken_at.to_list(), strict=True):
        try:
            check_contract(name, fields, taken)
        except BoundsError as error:
            found[row] = error
    return found
