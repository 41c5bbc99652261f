"""Laws every detector obeys, whoever adds one: registered, silent without cause, deterministic, bounded and monotone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

import audit.detectors
from audit.detectors import registry
from audit.detectors.detectors import DETECTORS, FAILURE_TYPES, FINDERS, FINDING_TYPES
from audit.detectors.registry import Cases, Cause, Detector, FailureType, Rule
from audit.detectors.thresholds import DEFAULTS, Profile, Thresholds, ToolRules
from audit.diagnosis.diagnosis import diagnose
from audit.diagnosis.events import normalise_session
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row

ALL = (*DETECTORS, *FINDERS)
THRESHOLDS = Thresholds.model_validate({one.threshold: 2 for one in ALL if one.threshold})
"""The defaults of sessions that are delivered as events, with every detector looking."""
RULES = {field: getattr(one.cases.rules, field) for one in ALL for field in one.cases.rules.model_fields_set}
PROFILE = Profile("events", THRESHOLDS, rules=ToolRules.model_validate(RULES))
EVENTS = st.sampled_from(
    [event for one in ALL for event in (*one.cases.found, *one.cases.silent)]
    + [
        {"event": "retry_event"},
        {"event": "context_event", "saturation": 97},
        {"event": "new"},
        {"event": "tool_call", "tool": "u"},
    ]
)
EACH = pytest.mark.parametrize("detector", ALL, ids=lambda detector: detector.failure_type)


def evidence_of(raw_events: Sequence[Mapping[str, Any]], limit: int | None = None) -> SessionEvidence:
    """The evidence of a session with these events."""
    evidence = SessionEvidence.held_to(PROFILE, limit)
    fold_columns({"s": evidence}, [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))])
    return evidence


def worst(causes: list[Cause]) -> int:
    """The largest penalty, 0 without a cause."""
    return max((-cause.impact_score for cause in causes), default=0)


def test_every_module_that_registers_is_loaded() -> None:
    """A detector that is not loaded finds nothing, and its dimension scores nothing for ever."""
    modules = {path.stem: path.read_text("utf-8") for path in Path(audit.detectors.__path__[0]).glob("*.py")}
    registering = {name for name, text in modules.items() if re.search(r"^@detector\(", text, re.MULTILINE)}
    assert registering == {one.detect.__module__.rpartition(".")[2] for one in ALL}
    assert sorted(one.failure_type for one in registry.registered()) == sorted(FAILURE_TYPES | FINDING_TYPES)


def test_detectors_run_in_the_documented_order() -> None:
    """The order decides which of two equal causes is primary: the first six have an order, later ones follow by name."""
    assert (
        [one.failure_type for one in DETECTORS if one.order is not None]
        == [one.failure_type for one in DETECTORS[:6]]
        == [
            "infinite_tool_loop",
            "memory_degradation",
            "ignoring_tool_outputs",
            "context_pollution",
            "cost_explosion",
            "skill_failure",
        ]
    )
    assert [one.order for one in DETECTORS[:6]] == [1, 2, 3, 4, 5, 6]
    for others in (DETECTORS[6:], FINDERS):
        assert sorted(one.failure_type for one in others) == [one.failure_type for one in others]


def test_weights_sum_to_a_hundred_and_dimensions_differ() -> None:
    """Otherwise a flawless session would not score 100."""
    assert sum(failure.weight for failure in FAILURE_TYPES.values()) == 100
    assert len({failure.dimension for failure in FAILURE_TYPES.values()}) == len(FAILURE_TYPES)
    assert {failure.dimension: failure.weight for failure in FAILURE_TYPES.values() if failure.weight} == {
        "loop_control": 20,
        "tool_output_utilization": 20,
        "memory_integrity": 15,
    } | dict.fromkeys(("context_health", "cost_efficiency", "skill_adherence"), 15)


def test_the_dimensions_of_the_trust_score_come_in_one_order() -> None:
    """Documents and records list them so: the largest weight first, then the order of the detectors."""
    names = [failure.dimension for failure in FAILURE_TYPES.values()]
    assert names[:6] == [
        "loop_control",
        "tool_output_utilization",
        "memory_integrity",
        "context_health",
        "cost_efficiency",
        "skill_adherence",
    ]


@pytest.mark.parametrize(
    ("name", "dimension", "order", "conflict"),
    [
        ("skill_failure", "mood", None, "failure type skill_failure"),
        ("mood", "skill_adherence", None, "dimension skill_adherence"),
        ("mood", "mood", 6, "order 6"),
    ],
)
def test_what_is_registered_already_is_refused(name: str, dimension: str, order: int | None, conflict: str) -> None:
    """Otherwise the second of two detectors would silently replace the first one in every score."""
    failure = FailureType(name=name, title="t", dimension=dimension, causal_chain=(), remediation="r")
    rule, cases = Rule(fires="f", severity="s", penalty="p"), Cases(found=[], silent=[])
    register = registry.detector(failure, version=1, order=order, rule=rule, cases=cases)
    before = registry.registered()

    with pytest.raises(ValueError, match=rf"^{conflict} is already registered by audit\.detectors\.skill_failure$"):
        register(DETECTORS[0].detect)

    assert registry.registered() == before


@EACH
def test_a_detector_is_documented_and_versioned(detector: Detector) -> None:
    """A finding must say by which rule it was made, and pages what it is in words."""
    failure = detector.failure
    assert detector.detect.__doc__
    assert detector.version >= 1
    assert failure.name == detector.failure_type == detector.detect.__name__
    assert len(failure.causal_chain) >= 3
    assert failure.remediation
    assert failure.title
    assert bool(failure.dimension) == bool(failure.dimension_title) == bool(failure.largest_penalty)
    assert 0 <= failure.largest_penalty <= 100
    assert all((detector.rule.fires, detector.rule.severity, detector.rule.penalty))


@EACH
def test_a_detector_finds_its_positive_case_and_only_that(detector: Detector) -> None:
    """The threshold itself fires, just below it is silence, and so is an empty session."""
    assert [cause.type for cause in detector.detect(evidence_of(detector.cases.found), THRESHOLDS)] == [detector.failure_type]
    assert detector.detect(evidence_of(detector.cases.silent), THRESHOLDS) == []
    assert detector.detect(evidence_of([]), THRESHOLDS) == []


@EACH
def test_a_detector_is_disabled_unless_its_settings_enable_it(detector: Detector) -> None:
    """The version of the rules says what was looked for, and what is off must not be said to have been."""
    assert detector.is_enabled(PROFILE)
    assert detector.is_enabled(DEFAULTS["events"]) == (detector in DETECTORS)


@EACH
def test_a_detector_is_silent_on_the_other_failures(detector: Detector) -> None:
    """Detectors are independent: one failure is not reported twice. Findings are about calls that may be a failure, too."""
    for other in DETECTORS if detector in DETECTORS else ():
        if other is not detector:
            assert detector.detect(evidence_of(other.cases.found), THRESHOLDS) == []


@settings(deadline=None, max_examples=examples(60))
@given(raw_events=st.lists(EVENTS, min_size=1, max_size=30))
def test_what_has_no_weight_changes_no_trust_score(raw_events: list[dict[str, Any]]) -> None:
    """A detector on trial and a finding are seen and not counted: the trust of sessions that were scored before stays as it was."""
    result = diagnose(evidence_of(raw_events), THRESHOLDS)
    weighted = [one for one in FAILURE_TYPES.values() if one.weight]
    lost = {
        one.name: max((-cause.impact_score for cause in result.causes if cause.type == one.name), default=0) for one in weighted
    }
    assert result.trust_score is not None
    assert abs(result.trust_score - sum((100 - lost[one.name]) * one.weight for one in weighted) / 100) <= 0.5


@EACH
@settings(deadline=None, max_examples=examples(60))
@given(raw_events=st.lists(EVENTS, max_size=30), limit=st.sampled_from([None, 0, 3]))
def test_causes_are_well_formed_and_the_evidence_is_left_alone(
    detector: Detector, raw_events: list[dict[str, Any]], limit: int | None
) -> None:
    """Readers rely on the ranges; a detector that changed the evidence would change the next one's finding."""
    evidence = evidence_of(raw_events, limit)
    causes = detector.detect(evidence, THRESHOLDS)
    assert evidence_of(raw_events, limit) == evidence
    assert causes == detector.detect(evidence, THRESHOLDS)
    whole = detector.detect(evidence_of(raw_events), THRESHOLDS)
    assert [(cause.evidence_count, cause.description) for cause in whole] == [
        (cause.evidence_count, cause.description) for cause in causes
    ]
    for cause, unlimited in zip(causes, whole, strict=True):
        assert detector.failure_type == cause.type
        assert cause.severity in {"medium", "high", "critical"}
        assert -detector.failure.largest_penalty <= cause.impact_score
        assert bool(detector.failure.dimension) == (cause.impact_score < 0)
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
        detector.detect(evidence_of(raw_events), THRESHOLDS),
        detector.detect(evidence_of([*raw_events, more]), THRESHOLDS),
    )
    assert worst(before) <= worst(after)
    ranks = {"medium": 1, "high": 2, "critical": 3}
    assert max((ranks[cause.severity] for cause in before), default=0) <= max(
        (ranks[cause.severity] for cause in after), default=0
    )
