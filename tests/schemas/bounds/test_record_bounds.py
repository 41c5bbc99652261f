"""Bounds: single values and columns are refused for the same reasons, at any depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.bounds import CLOCK_TOLERANCE, EARLIEST, LATEST, MAX_DEPTH, check_fields, is_too_deep
from schemas.codec.arrow import bounds_of, decode_batch
from schemas.codec.single_object import encode
from schemas.errors import BoundsError
from schemas.records import Record
from schemas.registry import schema_of

JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    """Return the number of nested levels of lists and objects."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def fields_of(record: Any) -> dict[str, Any]:
    """Return a record's fields as the codec passes them to the checks."""
    fields: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(datetime, bytes))
    return fields


@given(JSON, st.integers(0, 5))
def test_depth_is_refused_beyond_the_limit_and_not_before(value: Any, limit: int) -> None:
    """A limit that is off by one would refuse valid records."""
    assert (depth_of([value]) > limit) == is_too_deep([value], limit)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: {"a": [1, inner]}])
def test_depth_is_found_without_recursion(wrap: Callable[[Any], Any]) -> None:
    """A body of a hundred thousand brackets must not overflow the stack."""
    value: Any = None
    for _ in range(100_000):
        value = wrap(value)
    assert is_too_deep(value, MAX_DEPTH)
    # Freeing the nested value at once would recurse as well.
    while value:
        value = value.pop() if isinstance(value, list) else value.popitem()[1]


def find_values(fields: dict[str, Any], value_type: type) -> list[tuple[Any, Any, str]]:
    """Return container, key and path of every value of the type in a record's fields."""
    matches: list[tuple[Any, Any, str]] = []

    def visit(node: Any, path: str) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            value_path = f"{path}.{key}" if isinstance(node, dict) else path
            if type(value) is value_type:
                matches.append((node, key, value_path))
            elif isinstance(value, (dict, list, tuple)):
                visit(value, value_path)

    visit(fields, "")
    return matches


@pytest.mark.parametrize(
    ("value_type", "invalid"),
    [
        (float, math.nan),
        (float, math.inf),
        (datetime, datetime(1970, 1, 1, tzinfo=UTC)),
        (datetime, EARLIEST - timedelta(microseconds=1)),
        (datetime, LATEST + timedelta(microseconds=1)),
        (datetime, datetime.max.replace(tzinfo=UTC)),
        (datetime, datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_every_time_and_number_of_every_record_has_bounds(
    record_name: str, samples: Any, value_type: type, invalid: Any
) -> None:
    """An invalid value in an unchecked field would reach the tables."""
    schema = schema_of(record_name)
    checked_count = 0
    for record in samples.records(record_name, 10):
        fields = fields_of(record)
        check_fields(schema, fields)
        for container, key, path in find_values(fields, value_type):
            good, container[key] = container[key], invalid
            with pytest.raises(BoundsError) as caught:
                check_fields(schema, fields)
            assert str(caught.value).startswith(f"{record_name}{path}: ")
            container[key] = good
            checked_count += 1
    assert checked_count or not any(str(avro_name) in str(schema.fields) for avro_name in _avro_names(value_type))


def _avro_names(value_type: type) -> list[str]:
    return ["double"] if value_type is float else ["timestamp-micros"]


@settings(max_examples=25)
@given(st.data())
def test_columns_are_within_bounds_when_their_records_are(
    record_name: str, strategies: dict[str, st.SearchStrategy[Record]], data: st.DataObject
) -> None:
    """The columnar check must accept every record that the single check accepts."""
    messages = [encode(data.draw(strategies[record_name])) for _ in range(3)]
    batch = decode_batch(messages)
    assert batch.rejected == []
    frame = batch.frames[record_name]
    for name, broken in bounds_of(schema_of(record_name).prefix).items():
        assert not frame.select(broken.alias(name)).to_series().any()


@pytest.mark.parametrize("nested", [False, True])
def test_columns_are_out_of_bounds_where_their_values_are(
    nested: bool, samples: Any, encode_all: Callable[[Iterable[Record]], list[bytes]]
) -> None:
    """A NaN in a nested record would spoil means as one in a column does."""
    name, path = ("Evaluation", "dimensions") if nested else ("AgentEvent", "saturation")
    frame = decode_batch(encode_all(samples.records(name, 30))).frames[name]
    checks = bounds_of(schema_of(name).prefix)
    assert not frame.select(checks[path].alias("broken"))["broken"].any()
    nan = pl.lit(math.nan)
    element = pl.element().struct.with_fields(judge=nan)
    changed = frame.with_columns(pl.col(path).list.eval(element) if nested else nan.alias(path))
    expected = frame[path].list.len() > 0 if nested else pl.repeat(True, frame.height, eager=True)
    assert expected.any()
    assert expected.to_list() == changed.select(checks[path].alias("broken"))["broken"].to_list()


def test_the_clock_tolerance_is_a_day_in_columns_too() -> None:
    """A record that only one of both checks accepts would be in one runner's tables only."""
    schema = schema_of("Heartbeat")
    late = datetime(2026, 10, 1, tzinfo=UTC)
    frame = pl.DataFrame(
        {
            "occurred_at": [late + CLOCK_TOLERANCE, late + CLOCK_TOLERANCE + timedelta(microseconds=1)],
            "ingested_at": [late] * 2,
        },
        schema=dict.fromkeys(("occurred_at", "ingested_at"), pl.Datetime("us", "UTC")),
    )
    assert frame.select(bounds_of(schema.prefix)["occurred_at"].alias("broken"))["broken"].to_list() == [False, True]
