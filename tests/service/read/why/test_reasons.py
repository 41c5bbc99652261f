"""Reasons of an incident: what its evidence says in sentences, with counts, and nothing that chance explains."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.incident_evidence import build_count, build_incident, build_slice, deployment_evidence, slice_evidence

from service.read.why import why
from service.text.answers import document

FLAGS = {
    "flags": [
        build_count("constraint_disclosure", 0, 149, 11, 32, label="flag"),
        build_count("silent_refusal", 0, 149, 4, 32, label="flag"),
        build_count("self_identification", 1, 149, 1, 32, label="flag"),
    ]
}
FLAGGED = {"reasons": [build_count("", 0, 149, 15, 32, kind="flagged")]}
DIMENSION = {
    "dimension": "scope_compliance", "judged_before": 147, "judged_after": 31, "sessions_before": 30, "sessions_after": 5,
    "mean_before": 0.9, "mean_after": 0.48, "error_before": 0.01, "error_after": 0.05,
}  # fmt: skip


def texts(evidence: dict[str, Any], **fields: Any) -> list[str]:
    """The sentences of an incident with this evidence."""
    return [one.text for one in why(build_incident(evidence, **fields)).reasons]


def test_the_first_sentence_counts_what_was_flagged() -> None:
    """It is the sentence that a person on call asked for; a check that chance explains is not named."""
    summary = why(build_incident(FLAGS | FLAGGED)).summary
    assert texts(FLAGS | FLAGGED)[0] == summary
    assert "15 of 32" in summary
    assert "before 0 of 149" in summary
    assert "11 unexplained refusals, 4 empty answers" in summary


def test_an_incident_of_an_earlier_version_gets_as_much_as_it_has() -> None:
    """It has no count of exchanges with any flag: an exchange may have two, so the counts are not added up."""
    (first, *_) = texts(FLAGS)
    assert "11 unexplained refusals in 32 exchanges, before 0 in 149" in first
    assert "4 empty answers, before 0" in first


def test_what_fell_with_an_improvement_is_counted_the_other_way() -> None:
    """A tier that rose because refusals ended has a reason, too."""
    fewer = {"reasons": [build_count("", 15, 32, 0, 149, kind="flagged")]}
    (first, *_) = texts(fewer, direction="up")
    assert re.search("0 of 149 .* before 15 of 32", first)
    assert "no reason" in texts(fewer)[0]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (build_count("", 0, 149, 2, 32, kind="flagged"), False),  # two may be chance
        (build_count("", 70, 149, 18, 32, kind="flagged"), False),  # within three standard errors
        (build_count("", 0, 0, 15, 32, kind="flagged"), False),  # nothing to compare with
        (build_count("", 0, 149, 15, 32, kind="flagged"), True),
    ],
)
def test_what_chance_may_explain_is_no_reason(reason: dict[str, Any], told: bool) -> None:
    """A change within chance would mislead the reader."""
    found = why(build_incident({"reasons": [reason]}))
    assert found.is_explained == told
    assert (found.reasons[0].kind == "tier1_flags") == told


def test_the_judge_is_quoted_with_turns_and_means() -> None:
    """Dimensions that moved more than their own noise, those that moved most first."""
    less = DIMENSION | {"dimension": "relevance", "mean_after": 0.8, "error_after": 0.01}
    noise = DIMENSION | {"dimension": "noise", "error_after": 0.5}
    few = DIMENSION | {"dimension": "few", "sessions_after": 2}
    rose = DIMENSION | {"dimension": "rose", "mean_before": 0.1}
    steady = DIMENSION | {"dimension": "steady", "mean_after": 0.87, "error_after": 0.02}
    (first, *_) = texts({"dimensions": [less, noise, few, rose, steady, DIMENSION]})
    assert "0.90 → 0.48 (31 judged turns" in first
    assert "relevance 0.90 → 0.80" in first
    assert not {"noise", "few", "rose", "steady"} & set(first.replace(",", " ").split())


def test_failures_come_first_for_runs() -> None:
    """The reason of an incident about runs is the diagnosis of the runs."""
    failures = [
        build_count("cost_explosion", 1, 42, 15, 17, label="failure"),
        build_count("loop_x", 0, 42, 9, 17, label="failure"),
        build_count("rare", 1, 42, 1, 17, label="failure"),
    ]
    found = texts({"failures": failures, **FLAGS, **FLAGGED}, rule="runs", tier="unsafe", direction="up")
    assert found[0].endswith("in 15 of 17 runs, before 1 of 42; loop x in 9, before 0.")
    assert "flagged by checks" in found[1]


def test_anomalies_come_by_reason_for_a_spike() -> None:
    """Anomalies are counted by reason, for those that rose."""
    reasons = [
        build_count("", 0, 271, 22, 47, kind="anomalous"),
        build_count("the agent refused", 0, 271, 11, 47, kind="anomaly"),
        build_count("tone scored low", 3, 271, 1, 47, kind="anomaly"),
    ]
    spike = {"type": "anomaly_spike", "tier": None, "direction": "up", "rule": "rate_ratio"}
    (first, *_) = texts({"reasons": reasons}, **spike)
    assert "22 of 47" in first
    assert "before 0 of 271" in first
    assert "refused (11)" in first


def test_a_spike_of_an_earlier_version_is_counted_by_its_rule() -> None:
    """It has no reasons by kind; the rule's own numbers are the same."""
    seen = {
        "since": "2026-10-28",
        "until": "2026-11-01",
        "anomalies": 22,
        "exchanges": 47,
        "baselineRate": 0.0,
        "baselineAnomalies": 0,
        "baselineExchanges": 271,
    }
    spike = {"type": "anomaly_spike", "tier": None, "direction": "up", "rule": "rate_ratio"}
    (first, *_) = texts({"rules": {"rate_ratio": seen}, **FLAGS}, **spike)
    assert "22 of 47" in first
    assert "before 0 of 271" in first
    assert "11 unexplained refusals, 4 empty answers" in first


def test_a_part_and_a_deployment_coincide_and_are_called_no_cause() -> None:
    """A coincidence of two counts does not prove a cause."""
    found = " ".join(texts({**slice_evidence(build_slice("7")), "deployments": [deployment_evidence("7")]}))
    assert "agent_version: 7 explains 97%" in found
    assert "0% → 50% (25 judged turns" in found
    assert "agent_version 7 (2026-10-27 09:00 UTC, by dana)" in found
    assert "because" not in found.lower()


def test_the_first_symptom_and_what_comes_nearest_to_a_cause_lead() -> None:
    """The symptom comes first, then the version and its deployment. If the judge changed, no version is named."""
    evidence = {**FLAGS, **FLAGGED, **slice_evidence(build_slice("7")), "deployments": [deployment_evidence("7")]}
    found = why(build_incident(evidence))
    assert [one.kind for one in found.lead] == ["tier1_flags", "slice", "deployments"]
    assert found.others == []
    assert found.lead[1].text.startswith("agent_version: 7 explains 97% of the change")
    more = why(build_incident({**evidence, "failures": {}, "cause": {"words": "The rules did not change."}}, cause="agent"))
    assert tuple([one.kind for one in part] for part in (more.lead, more.others)) == (
        ["tier1_flags", "slice", "deployments"],
        ["cause"],
    )
    judge = why(build_incident({**evidence, "cause": {"words": "The judge explains most of it."}}, cause="judge"))
    assert judge.summary == "The judge explains most of it."
    assert len(judge.lead) == 1
    assert judge.lead[0].kind == "cause"
    alone = why(build_incident({"cause": {"words": "The judge explains most of it."}}, cause="judge"))
    assert alone.is_explained is True
    assert [one.kind for one in alone.reasons] == ["cause"]
    agent = why(build_incident({**evidence, "slices": None, "cause": {"words": "The rules did not change."}}, cause="agent"))
    assert [one.kind for one in agent.reasons] == ["tier1_flags", "deployments", "cause"]


def test_another_mix_of_judged_turns_is_a_caution() -> None:
    """A mean is weighted by the sampling probability, and a rate of anomalies is not."""
    mix = {
        "samplingMix": [
            {"sampling_reason": "tier1_flags", "before": 0, "after": 13},
            {"sampling_reason": "routine_sample", "before": 147, "after": 18},
        ]
    }
    assert texts(mix)[-1].startswith(
        "The mix of judged turns changed: Flagged by a check 13 of 31, before 0 of 147. Scores are weighted by"
    )
    spike = {"type": "anomaly_spike", "tier": None, "direction": "up", "rule": "rate_ratio"}
    assert texts(mix, **spike)[-1].endswith("that only the judge detects.")
    assert not [one for one in texts(mix, tier="tier1") if "mix of judged turns" in one]


def test_evidence_that_says_nothing_is_said_to_say_nothing() -> None:
    """Without a sentence, the incident would look harmless."""
    found = why(build_incident({}))
    assert found.is_explained is False
    assert [one.kind for one in found.reasons] == ["unexplained"]
    assert "shows no reason" in found.summary


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PARTS = ("flags", "reasons", "dimensions", "failures", "samplingMix", "exchanges", "usual", "runs", "slices", "deployments")
OTHERS = ("cause", "note", "moved", "rules")


@given(
    evidence=st.dictionaries(
        st.sampled_from([*PARTS, *OTHERS]),
        JUNK
        | st.lists(
            st.dictionaries(st.sampled_from(["before", "after", "flag", "sampling_reason", "reason", "kind"]), JUNK), max_size=2
        ),
    )
)
def test_no_evidence_breaks_the_explanation(evidence: dict[str, Any]) -> None:
    """Records of other versions, and those of a hand, have a page all the same."""
    found = build_incident()
    json.dumps(document(why(build_incident(evidence, rule=found.rule))))
