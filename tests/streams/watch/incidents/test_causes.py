"""Causes of incidents: the size of a finding, the sentence for each result, and one cause for tiers that moved together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

from audit.anchors import Attribution, IncidentChange
from audit.drift.incident_evidence import Cause, Numbers
from audit.drift.watched_series import Key
from streams.watch.evidence import UNEXPLAINED, Explanation, combine_explanations, explain_by_anchors, measure_change
from streams.watch.findings import Finding, Source

FIRST = date(2026, 11, 10)
MOVED = IncidentChange(direction="down", size=0.1, earliest=FIRST, latest=FIRST)


def finding(numbers: dict[str, Any], **changes: Any) -> Finding:
    """Return a finding about Tier 2."""
    change = Finding(
        key=Key("drift", "tier2", "down"),
        rule="sequential",
        severity="warning",
        since=FIRST,
        until=date(2026, 11, 14),
        size=0.1,
        owner="ops",
        headline="",
        description="",
        numbers=msgspec.convert(numbers, Numbers),
        before=(datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 10, tzinfo=UTC)),
        after=(datetime(2026, 11, 10, tzinfo=UTC), datetime(2026, 11, 15, tzinfo=UTC)),
        expected=0.9,
        source=Source("watched_sessions", {}),
    )
    return replace(change, **changes)


def test_a_finding_with_an_interval_changes_by_its_estimated_size() -> None:
    """The evidence over all sessions estimates size and first day, each with an interval."""
    numbers = {"change": -0.1, "changeInterval": [-0.149, -0.051]}
    change = measure_change(finding(numbers, interval=(date(2026, 11, 8), date(2026, 11, 11))))
    assert change is not None
    assert change.direction == "down"
    assert change.size == 0.1
    assert change.earliest == date(2026, 11, 8)
    assert change.latest == date(2026, 11, 11)
    assert change.error == pytest.approx(0.025, abs=1e-3)


def test_a_run_of_days_changes_by_its_mean_minus_the_baseline() -> None:
    """Days are weighted by their number of scores; the rule gives no interval."""
    days = [{"day": "2026-11-10", "average": 0.8, "count": 1}, {"day": "2026-11-11", "average": 0.6, "count": 3}]
    change = measure_change(finding({"days": days}))
    assert change is not None
    assert change.size == pytest.approx(0.25)
    assert change.error == 0.0
    assert change.earliest == FIRST
    assert change.latest == FIRST


def test_a_finding_that_is_not_about_a_mean_has_no_cause() -> None:
    """A rate of anomalies is counted, not judged."""
    assert measure_change(finding({"rate": 0.3}, key=Key("anomaly_spike", None, "up"))) is None
    assert measure_change(finding({"days": []})) is None
    assert UNEXPLAINED is explain_by_anchors(None, None, Attribution(cause=None, reason="no_size"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Attribution(cause="agent", reason="rules"), "Answer quality comes from fixed rules"),
        (Attribution(cause=None, reason="no_anchors"), "none were judged"),
        (Attribution(cause=None, reason="few_anchors", anchors=5, rounds_before=4, rounds_since=3), "5 of 8"),
        (Attribution(cause=None, reason="few_rounds_before", rounds_before=1), "rounds before the change, 1 of 2"),
        (Attribution(cause=None, reason="few_rounds_since", rounds_before=9, rounds_since=1), "rounds since the change, 1 of 2"),
        (Attribution(cause="judge", reason="explained", judge=-0.09, low=-0.12, high=-0.06), "judge explains most of the change"),
        (Attribution(cause="agent", reason="unexplained", judge=0.01, low=-0.02, high=0.04), "so the agent changed"),
        (Attribution(cause=None, reason="unclear", judge=-0.05, low=-0.12, high=0.02), "the judge or the agent may have changed"),
    ],
)  # fmt: skip
def test_each_result_has_a_sentence_with_the_reason(found: Attribution, words: str) -> None:
    """If the cause is unknown, the sentence says what is missing."""
    explanation = explain_by_anchors("tier2", MOVED, found)
    assert words in explanation.text
    assert found.cause == explanation.cause
    assert found.reason == explanation.numbers.reason
    assert explanation.text == explanation.numbers.words


def one(cause: str | None) -> Explanation:
    """Return the result of a tier."""
    return Explanation(cause, f"words of {cause}", Cause(cause=cause, reason="explained", words=f"words of {cause}"))


@pytest.mark.parametrize(
    ("tiers", "cause"),
    [
        ({"tier2": one("judge"), "tier3": one("judge")}, "judge"),
        ({"tier1": one("agent"), "tier2": one(None)}, "agent"),
        ({"tier2": one(None), "tier3": one("judge")}, "judge"),
        ({"tier2": one(None), "tier3": one(None)}, None),
        ({"tier1": one("agent"), "tier2": one("judge")}, None),
        ({"tier2": one("agent"), "other": UNEXPLAINED}, "agent"),
        ({"other": UNEXPLAINED}, None),
        ({}, None),
    ],
)
def test_tiers_that_changed_together_have_one_cause_or_none(tiers: dict[str, Explanation], cause: str | None) -> None:
    """A tier without a cause contradicts nothing, but agent and judge contradict each other: a judge cannot change rules."""
    assert combine_explanations(tiers).cause == cause


def test_a_contradiction_names_both_causes() -> None:
    """Both may have changed, so a person must decide."""
    combination = combine_explanations({"tier1": one("agent"), "tier2": one("judge")})
    assert all(name in combination.text for name in ("disagree", "answer structure", "agent", "answer quality", "judge"))
    assert combination.numbers.reason == "contradiction"
    assert set(combination.numbers.tiers or ()) == {"tier1", "tier2"}
