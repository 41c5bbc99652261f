"""Labels: what is accepted, what is refused, and that columns and single values have the same rules."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.exchanges.labels import labels_json, read_labels
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.contract import Labels
from schemas.errors import BoundsError
from schemas.registry import schema_of

REDACTOR = Redactor(RedactionSettings())
NAMES = st.one_of(st.sampled_from(["tenant", "agent_version", "model", "Tenant", "", "a" * 65, "x.y_1"]), st.text(max_size=3))
VALUES = st.one_of(st.sampled_from(["acme", "", " ", "a" * 257, "a\nb"]), st.text(max_size=3))


def test_labels_are_sorted_by_name() -> None:
    """The order of labels does not matter."""
    assert [label.name for label in read_labels({"b": "2", "a": "1"}, REDACTOR)] == ["a", "b"]


def test_a_missing_value_has_no_labels() -> None:
    """A record from before labels equals one without labels."""
    assert read_labels(None, REDACTOR) == read_labels({}, REDACTOR) == ()


def test_validating_labels_twice_changes_nothing() -> None:
    """Validating stored labels again changes nothing."""
    once = read_labels({"tenant": "acme", "api_key": "abcdefgh12345678"}, REDACTOR)
    assert read_labels(labels_json(once), REDACTOR) == once


@pytest.mark.parametrize("wrong", [["a"], "a", 7, {"a": None}, {"a": {"b": "c"}}, {"agent": "x"}])
def test_an_invalid_label_is_refused_with_its_name(wrong: Any) -> None:
    """The sender must be able to find the label."""
    with pytest.raises(BoundsError, match=r"^here[.:]"):
        read_labels(wrong, REDACTOR, "here")


@given(st.lists(st.tuples(NAMES, VALUES), max_size=18))
def test_a_column_follows_the_rules_of_single_values(pairs: list[tuple[str, str]]) -> None:
    """Topics are checked by columns and request bodies one by one, with one definition."""
    labels = [{"name": name, "value": value} for name, value in pairs]
    kind = pl.List(pl.Struct({"name": pl.String, "value": pl.String}))
    column = pl.Series("labels", [labels], dtype=kind).to_frame().select(Labels().broken(pl.col("labels"))).to_series()
    assert (Labels().fault(labels) is not None) == bool(column[0])


def test_exchanges_and_events_have_the_same_labels() -> None:
    """Both schemas spell out the type."""
    kinds = [
        next(field["type"] for field in schema_of(name).fields if field["name"] == "labels")
        for name in ("Exchange", "AgentEvent")
    ]
    assert kinds[0] == kinds[1]
