"""Laws every detector obeys, whoever adds one: registered, silent without cause, deterministic, bounded and monotone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from audit.detectors.detectors import DETECTORS, FAILURE_TYPES, Cause, Detector
from audit.detectors.thresholds import EVENTS as AS_EVENTS
from audit.diagnosis.events import normalise_session
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row

CAPS = {
    "infinite_tool_loop": 30,
    "ignoring_tool_outputs": 30,
    "cost_explosion": 30,
    "memory_degradation": 25,
    "skill_failure": 24,
    "context_pollution": 22,
}
CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "infinite_tool_loop": (
        [{"event": "tool_call", "tool": "t"}] * 3,
        [{"event": "tool_call", "tool": "t", "args": n} for n in range(1, 9)],
    ),
    "memory_degradation": ([{"event": "memory_event", "action": "miss"}], [{"event": "memory_event", "action": "stored"}]),
    "ignoring_tool_outputs": ([{"event": "tool_output", "used": False}], [{"event": "tool_output", "used": True}]),
    "context_pollution": ([{"event": "context_event", "saturation": 85}], [{"event": "context_event", "saturation": 84}]),
    "cost_explosion": ([{"event": "token_usage", "total": 12_000}], [{"event": "token_usage", "total": 11_999}]),
    "skill_failure": ([{"event": "skill_event", "invoked": False}], [{"event": "skill_event", "invoked": True}]),
}
"""A session in which each failure type is found, and one of the same kind in which it is not."""
EVENTS = st.sampled_from(
    [event for positive, negative in CASES.values() for event in (*positive, *negative)]
    + [
        {"event": "retry_event"},
        {"event": "context_event", "saturation": 97},
        {"event": "new"},
        {"event": "tool_call", "tool": "u"},
    ]
)
EACH = pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.failure_type)


def evidence_of(raw_events: list[dict[str, Any]], limit: int | None = None) -> SessionEvidence:
    """The evidence of a session with these events."""
    evidence = SessionEvidence(reference_limit=limit)
    fold_columns({"s": evidence}, [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))])
    return evidence


def worst(causes: list[Cause]) -> int:
    """The largest penalty, 0 without a cause."""
    return max((-cause.impact_score for cause in causes), default=0)


def test_every_failure_type_has_one_detector_one_cap_and_cases() -> None:
    """A failure type without a detector scores 100 for ever; one without cases is untested."""
    names = [detector.failure_type for detector in DETECTORS]
    assert sorted(FAILURE_TYPES) == sorted(names) == sorted(CASES) == sorted(CAPS)


def test_detectors_run_in_the_documented_order() -> None:
    """The order decides which of two equal causes is primary."""
    assert [
        "infinite_tool_loop",
        "memory_degradation",
        "ignoring_tool_outputs",
        "context_pollution",
        "cost_explosion",
        "skill_failure",
    ] == [detector.failure_type for detector in DETECTORS]


def test_weights_sum_to_a_hundred_and_dimensions_differ() -> None:
    """Otherwise a flawless session would not score 100."""
    assert 100 == sum(failure.weight for failure in FAILURE_TYPES.values())
    assert len(FAILURE_TYPES) == len({failure.dimension for failure in FAILURE_TYPES.values()})
    assert {"loop_control": 20, "tool_output_utilization": 20, "memory_integrity": 15} | dict.fromkeys(
        ("context_health", "cost_efficiency", "skill_adherence"), 15
    ) == {failure.dimension: failure.weight for failure in FAILURE_TYPES.values()}


@EACH
def test_a_detector_is_documented_and_versioned(detector: Detector) -> None:
    """A finding must say by which rule it was made."""
    assert detector.detect.__doc__
    assert 1 <= detector.version
    failure = FAILURE_TYPES[detector.failure_type]
    assert failure.name == detector.failure_type == detector.detect.__name__
    assert 3 <= len(failure.causal_chain)
    assert failure.remediation


@EACH
def test_a_detector_finds_its_positive_case_and_only_that(detector: Detector) -> None:
    """The threshold itself fires, just below it is silence, and so is an empty session."""
    positive, negative = CASES[detector.failure_type]
    assert [detector.failure_type] == [cause.type for cause in detector.detect(evidence_of(positive), AS_EVENTS)]
    assert [] == detector.detect(evidence_of(negative), AS_EVENTS)
    assert [] == detector.detect(SessionEvidence(), AS_EVENTS)


@EACH
def test_a_detector_is_silent_on_the_other_failures(detector: Detector) -> None:
    """Detectors are independent: one failure is not reported twice."""
    for failure_type, (positive, _) in CASES.items():
        if failure_type != detector.failure_type:
            assert [] == detector.detect(evidence_of(positive), AS_EVENTS)


@EACH
@settings(deadline=None, max_examples=examples(60))
@given(raw_events=st.lists(EVENTS, max_size=30), limit=st.sampled_from([None, 0, 3]))
def test_causes_are_well_formed_and_the_evidence_is_left_alone(
    detector: Detector, raw_events: list[dict[str, Any]], limit: int | None
) -> None:
    """Readers rely on the ranges; a detector that changed the evidence would change the next one's finding."""
    evidence = evidence_of(raw_events, limit)
    causes = detector.detect(evidence, AS_EVENTS)
    assert evidence_of(raw_events, limit) == evidence
    assert causes == detector.detect(evidence, AS_EVENTS)
    whole = detector.detect(evidence_of(raw_events), AS_EVENTS)
    assert [(cause.evidence_count, cause.description) for cause in whole] == [
        (cause.evidence_count, cause.description) for cause in causes
    ]
    for cause, unlimited in zip(causes, whole, strict=True):
        assert detector.failure_type == cause.type
        assert cause.severity in {"medium", "high", "critical"}
        assert -CAPS[cause.type] <= cause.impact_score < 0
        assert len(unlimited.evidence) == unlimited.evidence_count
        assert len(set(unlimited.evidence)) == len(unlimited.evidence)
        assert len(cause.evidence) <= cause.evidence_count
        assert cause.description.isprintable()


@EACH
@settings(deadline=None, max_examples=examples(60))
@given(raw_events=st.lists(EVENTS, max_size=20), more=EVENTS)
def test_another_event_never_lowers_a_penalty(
    detector: Detector, raw_events: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    """An agent must not be able to make a finding milder by doing more."""
    before, after = (
        detector.detect(evidence_of(raw_events), AS_EVENTS),
        detector.detect(evidence_of([*raw_events, more]), AS_EVENTS),
    )
    assert worst(before) <= worst(after)
    ranks = {"medium": 1, "high": 2, "critical": 3}
    assert max((ranks[cause.severity] for cause in before), default=0) <= max(
        (ranks[cause.severity] for cause in after), default=0
    )
