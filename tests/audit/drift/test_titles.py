"""Titles of changes: plain names, levels in order of time, and a verb of size only where it is true."""

from __future__ import annotations

import math
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.drift.watched_series import FURTHER, MEAN, SPREAD, Key, Series, describe_change, format_date, name_series


@pytest.mark.parametrize(
    ("tier", "kind", "before", "after", "title"),
    [
        ("tier2", MEAN, 0.9, 0.47, "answer quality halved (0.90 → 0.47)"),
        ("tier2", MEAN, 0.9, 0.6, "answer quality fell (0.90 → 0.60)"),
        ("tier2", FURTHER, 0.9, 0.45, "answer quality fell further (0.90 → 0.45)"),
        ("tier3", MEAN, 4.0, 2.0, "behavior quality fell (4.00 → 2.00)"),
        ("unsafe", MEAN, 0.1, 0.3, "unsafe runs tripled (10% → 30%)"),
        ("failure:infinite_tool_loop", MEAN, 0.0, 0.5, "runs with infinite tool loop rose (0% → 50%)"),
        ("behaviour:input_tokens", MEAN, math.log1p(300), math.log1p(600), "input tokens per turn doubled (300 → 600)"),
        ("session:overall", MEAN, 7.5, 6.0, "session judge: overall fell (7.5 → 6.0)"),
    ],
)
def test_a_title_has_the_plain_name_and_a_true_verb(tier: str, kind: str, before: float, after: float, title: str) -> None:
    """Who is woken reads nothing else. A scale from 1 to 5 has no half."""
    assert describe_change(Series(Key("drift", tier, None), kind), before, after) == title


@given(before=st.floats(0.01, 1), after=st.floats(0.01, 1))
def test_a_verb_of_size_is_within_a_tenth_of_the_ratio(before: float, after: float) -> None:
    """A reader divides the levels beside it."""
    verb = describe_change(Series(Key("drift", "tier2", None)), before, after).split()[2]
    size = {"halved": 0.5, "doubled": 2.0, "tripled": 3.0}.get(verb)
    assert verb == ("fell" if after < before else "rose") if size is None else abs(after / before / size - 1) <= 0.1


def test_names_tell_the_agent_the_version_and_the_kind_of_change() -> None:
    """Several series of one incident are listed by name."""
    assert Series(Key("drift", "tier2", None, "bot", "agent_version 7")).name == "Answer quality with version 7 (bot)"
    assert Series(Key("drift", "tier1", None), SPREAD).name == "Spread of answer structure"
    assert [name_series(series) for series in ("trust", "unsafe", "")] == ["Trust", "Unsafe runs", "Anomalies"]
    assert format_date(date(2026, 11, 5)) == "5 November 2026"
