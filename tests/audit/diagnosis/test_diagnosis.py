"""Scores, readiness and both forms of a diagnosis; equal evidence gives equal bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audit.diagnosis.diagnosis
from audit.detectors.detectors import DETECTORS, FAILURE_TYPES
from audit.detectors.thresholds import DEFAULTS
from audit.detectors.thresholds import EVENTS as AS_EVENTS
from audit.diagnosis.diagnosis import (
    ALL_REFERENCES,
    CAUSES,
    EVENT_TYPES,
    EVIDENCE_REFERENCES,
    LOWEST_TRUST,
    NO_FAILURE,
    SAFE_TRUST,
    SessionDiagnosis,
    _divide_half_even,
    diagnose,
    diagnose_events,
    diagnosis_document,
    evidence_digest,
    rule_version,
    to_record,
)
from audit.diagnosis.events import normalise_event, normalise_session
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row
from audit.fingerprints import canonical_json
from schemas.codec.single_object import encode
from schemas.errors import InputError
from schemas.records import Diagnosis

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "diagnosis"
CALL: dict[str, Any] = {"event": "tool_call", "tool": "search", "args": {"q": "x"}}
MISS: dict[str, Any] = {"event": "memory_event", "action": "miss"}
UNUSED: dict[str, Any] = {"event": "tool_output", "used": False}
FULL: dict[str, Any] = {"event": "context_event", "saturation": 96}
SKILL: dict[str, Any] = {"event": "skill_event", "invoked": False}
MOMENT = datetime(2025, 1, 1, tzinfo=UTC)
EVENTS = st.sampled_from(
    [
        CALL,
        {**CALL, "args": 2},
        MISS,
        UNUSED,
        FULL,
        SKILL,
        {"event": "retry_event"},
        {"event": "decision"},
        {"event": "token_usage", "usage": {"total": 7000}},
        {"event": "context_event", "action": "compaction"},
        {"name": "n"},
    ]
)


def evidence_of(raw_events: list[dict[str, Any]], limit: int | None = None) -> SessionEvidence:
    """Return the evidence of a session with these events."""
    evidence = SessionEvidence(reference_limit=limit)
    fold_columns({"s": evidence}, [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))])
    return evidence


def result_of(*raw_events: dict[str, Any]) -> SessionDiagnosis:
    """Return the diagnosis of a session with these events."""
    return diagnose(evidence_of(list(raw_events)), AS_EVENTS)


def record_of(evidence: SessionEvidence) -> Diagnosis:
    """Return the record of a session's diagnosis."""
    return to_record(
        diagnose(evidence, AS_EVENTS),
        evidence,
        connection="c",
        project="p",
        agent="a",
        session_id="s",
        revision=0,
        started_at=MOMENT,
        ended_at=MOMENT,
        closed_at=MOMENT,
        closed_reason="explicit",
        policy_digest="0" * 16,
        profile=DEFAULTS["events"],
    )


def test_a_session_without_events_has_no_score() -> None:
    """Without evidence a session has no score: neither 100 nor ready."""
    result = result_of()
    assert result.trust_score is None
    assert result.readiness_level == "insufficient_evidence"
    assert result.scores == {failure.dimension: None for failure in FAILURE_TYPES.values()}
    assert msgspec.structs.astuple(result.cost_analysis) == (0, 0, 0, 0, 100)


def test_a_session_without_failures_scores_a_hundred() -> None:
    """A single harmless event is evidence."""
    result = result_of({"event": "decision"})
    assert result.trust_score == 100
    assert result.readiness_level == "ready_for_runtime"
    assert result.primary is None
    assert result.causes == ()
    assert dict.fromkeys(result.scores, 100) == result.scores


def test_trust_is_the_weighted_mean_of_the_dimensions() -> None:
    """Computed by hand: a loop of 3 costs 20 of 100 at 20%, a miss 13 at 15%: 100 - 4 - 1.95 = 94.05."""
    result = result_of(*[CALL] * 3, MISS)
    assert result.scores["loop_control"] == 80
    assert result.scores["memory_integrity"] == 87
    assert result.trust_score == 94


def test_the_worst_cause_of_a_type_counts_wherever_it_comes() -> None:
    """A milder loop after a worse one must not hide the worse one."""
    other_call = {**CALL, "tool": "fetch"}
    for events in ([*[CALL] * 5, *[other_call] * 3], [*[other_call] * 3, *[CALL] * 5]):
        assert result_of(*events).scores["loop_control"] == 72


def test_the_largest_penalty_is_primary_and_the_first_of_equals_wins() -> None:
    """With equal penalties, only the order of the detectors decides."""
    unused_first = result_of(MISS, UNUSED).primary
    assert unused_first is not None
    assert unused_first.type == "ignoring_tool_outputs"
    tied = result_of(*[UNUSED] * 3, *[CALL] * 6)  # loop, unused outputs and cost at -30 each
    assert [cause.impact_score for cause in tied.causes] == [-30, -30, -30]
    assert tied.causes[0] is tied.primary
    assert tied.causes[0].type == "infinite_tool_loop"


@pytest.mark.parametrize(
    ("events", "trust", "level"),
    [
        ([MISS], 98, "ready_for_runtime"),
        ([MISS] * 3, 97, "review_recommended"),
        ([CALL] * 4, 92, "review_recommended"),
        ([CALL] * 5, 90, "unsafe_for_production"),
        ([{"event": "token_usage", "usage": {"total": 30_000}}], 98, "unsafe_for_production"),
        ([*[CALL] * 9, *[UNUSED] * 9, *[MISS] * 9, *[FULL] * 9, *[SKILL] * 9], 73, "unsafe_for_production"),
    ],
)
def test_readiness_follows_from_severity(events: list[dict[str, Any]], trust: int, level: str) -> None:
    """A critical cause is unsafe whatever the score; the six largest penalties together leave 73."""
    result = result_of(*events)
    assert result.trust_score == trust
    assert result.readiness_level == level


@pytest.mark.parametrize(
    ("trust", "level"),
    [
        (59, "unsafe_for_production"),
        (60, "review_recommended"),
        (61, "review_recommended"),
        (79, "review_recommended"),
        (80, "ready_for_runtime"),
        (81, "ready_for_runtime"),
        (None, "insufficient_evidence"),
    ],
)
def test_readiness_thresholds(trust: int | None, level: str) -> None:
    """The current penalties cannot reach these scores, but a new failure type may."""
    from audit.diagnosis.diagnosis import _decide_readiness

    assert _decide_readiness(trust, ()) == level


@given(numerator=st.integers(0, 10**6), denominator=st.integers(1, 1000))
def test_division_rounds_half_to_even(numerator: int, denominator: int) -> None:
    """Integers keep the score independent of the order of additions."""
    assert round(Fraction(numerator, denominator)) == _divide_half_even(numerator, denominator)


def test_cost_analysis_by_hand() -> None:
    """Six calls, four of them duplicates, 9 000 tokens: the penalty is 10 + 16 + 1 = 27, the waste min(9000, 4000 + 3240)."""
    other_call = {**CALL, "args": {"q": "y"}}
    cost = result_of(*[CALL] * 4, *[other_call] * 2, {"event": "token_usage", "usage": {"total": 9000}}).cost_analysis
    assert msgspec.structs.asdict(cost) == {
        "total_tokens": 9000,
        "duplicate_calls": 4,
        "redundancy_score": 67,
        "token_waste": 7240,
        "cost_efficiency": 33,
    }


def test_event_counts_are_sorted_by_name() -> None:
    """The order of arrival must not change the bytes of the document."""
    summary = result_of({"event": "z"}, MISS, {"event": "a"}, CALL).evidence_summary
    assert list(summary["event_counts"]) == ["a", "memory_event", "tool_call", "z"]
    assert tuple(value for value in summary.values() if isinstance(value, int)) == (4, 1, 0, 1, 0, 0, 0)


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS, min_size=1, max_size=30), added_event=EVENTS)
def test_trust_is_bounded_and_never_rises_with_another_event(
    raw_events: list[dict[str, Any]], added_event: dict[str, Any]
) -> None:
    """An agent must not gain trust by adding noise to a bad session."""
    before, after = result_of(*raw_events), result_of(*raw_events, added_event)
    assert before.trust_score is not None
    assert after.trust_score is not None
    assert 0 <= after.trust_score <= before.trust_score <= 100
    levels = ["ready_for_runtime", "review_recommended", "unsafe_for_production"]
    assert levels.index(before.readiness_level) <= levels.index(after.readiness_level)
    cost = after.cost_analysis
    assert 0 <= cost.redundancy_score <= 100
    assert 0 <= cost.token_waste <= cost.total_tokens


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS, max_size=30), data=st.data())
def test_the_order_of_events_changes_no_score(raw_events: list[dict[str, Any]], data: st.DataObject) -> None:
    """Counts decide, not timing; only the evidence and the order of equal causes may differ."""
    shuffled = data.draw(st.permutations(raw_events))
    original, reordered = result_of(*raw_events), result_of(*shuffled)
    assert original.trust_score == reordered.trust_score
    assert original.readiness_level == reordered.readiness_level
    assert original.scores == reordered.scores
    assert original.cost_analysis == reordered.cost_analysis
    assert original.evidence_summary == reordered.evidence_summary


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS, max_size=25), cuts=st.lists(st.integers(0, 25), max_size=3))
def test_stored_state_gives_the_same_record(raw_events: list[dict[str, Any]], cuts: list[int]) -> None:
    """A restart in the middle of a session must not change the diagnosis."""
    evidence = SessionEvidence()
    rows = [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))]
    for seq, row in enumerate(rows):
        fold_columns({"s": evidence}, [row])
        if seq in cuts:
            evidence = msgspec.msgpack.decode(msgspec.msgpack.encode(evidence), type=SessionEvidence)
    assert record_of(evidence_of(raw_events)) == record_of(evidence)


def test_a_record_keeps_the_first_hundred_references_and_exact_counts() -> None:
    """An endless session must not produce an endless record."""
    raw_events = [*[MISS] * 250, *[CALL] * 3, {"event": "a_new_type"}]
    record = record_of(evidence_of(raw_events))
    memory = record.failure_causes[1]
    assert memory.type == "memory_degradation"
    assert memory.evidence_count == 250
    assert [reference.seq for reference in memory.evidence] == list(range(EVIDENCE_REFERENCES))
    assert memory.evidence[0].event_id == "event_0"
    assert [(item.event, item.count) for item in record.event_counts] == [
        ("a_new_type", 1),
        ("memory_event", 250),
        ("tool_call", 3),
    ]
    assert record.event_count == 254
    assert record.primary_failure_type == "memory_degradation"
    assert record.primary_severity == "high"
    assert record.rule_version == rule_version(DEFAULTS["events"])
    assert record.policy_digest == "0" * 16


def test_a_reference_limit_from_a_hundred_up_gives_the_same_record() -> None:
    """Runners may keep different numbers of references, as long as there are enough for the record."""
    raw_events = [*[MISS] * 250, *[CALL] * 250]
    records = [record_of(evidence_of(raw_events, limit)) for limit in (EVIDENCE_REFERENCES, 150, None)]
    assert records[0] == records[1] == records[2]


def test_the_evidence_digest_tells_evidence_apart() -> None:
    """The digest identifies the evidence of a score: any change of the events changes it."""
    sessions: list[list[dict[str, Any]]] = [
        [],
        [MISS],
        [MISS, MISS],
        [UNUSED],
        [{**MISS, "event_id": "x"}],
        [CALL],
        [{**CALL, "args": 1}],
    ]
    sessions += [
        [FULL],
        [{**FULL, "saturation": 85}],
        [{"event": "token_usage", "total": 1}],
        [{"event": "token_usage", "total": 2}],
    ]
    assert len(sessions) == len({evidence_digest(evidence_of(session)) for session in sessions})


def test_the_rule_version_names_every_detector() -> None:
    """A changed detector must change the version in the scores."""
    ordered_versions, *named_versions = rule_version(DEFAULTS["events"]).removeprefix("diagnosis-1:").split("+")
    assert ordered_versions.split(".") == [str(item.version) for item in DETECTORS if item.order is not None]
    assert named_versions == [f"{item.failure_type}-{item.version}" for item in DETECTORS if item.order is None]
    assert ordered_versions == "3.1.2.1.3.1"


def test_records_without_events_keep_null_scores() -> None:
    """Unscored is a state, not a number."""
    record = record_of(SessionEvidence())
    assert record.trust_score is None
    assert record.readiness_level == "insufficient_evidence"
    assert record.scores.loop_control is None
    assert record.failure_causes == ()
    assert [item.score for item in record.dimensions] == [None] * len(FAILURE_TYPES)


def test_a_record_has_every_dimension_with_the_first_six_unchanged() -> None:
    """Readers of the six fixed fields keep working; the list has all dimensions in one order."""
    record = record_of(evidence_of([*[CALL] * 3, MISS]))
    assert [item.dimension for item in record.dimensions] == [failure.dimension for failure in FAILURE_TYPES.values()]
    scores = {item.dimension: item.score for item in record.dimensions}
    assert msgspec.structs.asdict(record.scores) == {name: scores[name] for name in record.scores.__struct_fields__}
    assert scores["loop_control"] == 80
    assert record.scores.memory_integrity == 87


def test_a_document_without_failures_has_null_fields() -> None:
    """Programs test for null, and people read the sentence."""
    document = diagnose_events("s", [{"event": "decision"}])
    assert document["primary_diagnosis"] == {
        "root_cause_failure_type": None,
        "causal_chain_explanation": NO_FAILURE,
        "severity": None,
        "description": None,
        "remediation": None,
    }
    assert document["failure_causes"] == []


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_golden_documents(path: Path) -> None:
    """Whole documents, checked by hand once, so that any change for users shows up here, except for dimensions on trial."""
    case = json.loads(path.read_text(encoding="utf-8"))
    document = diagnose_events(case["session_id"], case["events"])
    for failure in FAILURE_TYPES.values():
        if not failure.weight:
            del document["scores"][failure.dimension]
    assert document == case["document"]


def test_there_are_golden_documents() -> None:
    """A parametrized test over an empty folder would pass."""
    assert len(list(GOLDEN.glob("*.json"))) >= 2


def test_document_from_stored_events_equals_the_one_from_raw_events() -> None:
    """The page builds the document from payloads and the folded result, the command line from raw events."""
    raw_events = [{**CALL, "event_id": "same"}, {**CALL, "event_id": "same"}, CALL, MISS, {"event": "retry_event"}]
    payloads = [normalise_event(raw, seq).payload for seq, raw in enumerate(raw_events)]
    evidence = SessionEvidence()
    for seq, raw in enumerate(raw_events):
        evidence.add(normalise_event(raw, seq), seq)
    assert diagnose_events("s", raw_events) == diagnosis_document("s", payloads, diagnose(evidence, AS_EVENTS))


def test_a_document_with_deleted_events_points_at_the_right_ones() -> None:
    """Positions are those of the log; deleted events appear with only their id."""
    evidence = SessionEvidence()
    for seq in (0, 4, 9):
        evidence.add(normalise_event(CALL, seq), seq)
    payloads = [normalise_event(CALL, seq).payload for seq in (4, 9)]
    document = diagnosis_document("s", payloads, diagnose(evidence, AS_EVENTS), positions=[4, 9])
    assert document["failure_causes"][0]["evidence"] == [{"event_id": "event_0"}, *payloads]
    assert [node["id"] for node in document["causal_graph"]["nodes"]] == ["event_4", "event_9", "failure_infinite_tool_loop"]


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS | st.dictionaries(st.text(max_size=4), st.floats() | st.text(max_size=3)), max_size=12))
def test_documents_are_valid_json(raw_events: list[dict[str, Any]]) -> None:
    """The document is printed, stored and served as JSON, whatever the agent sent."""
    document = diagnose_events("s", raw_events)
    assert json.loads(canonical_json(document).encode()) == document


def test_an_invalid_event_is_refused_with_its_position() -> None:
    """With a thousand events in a file, the message must name the faulty one."""
    with pytest.raises(InputError, match=r"^events\[1\]: is list"):
        diagnose_events("s", [CALL, []])  # type: ignore[list-item]


def test_a_hundred_thousand_identical_calls_are_diagnosed() -> None:
    """The document contains all evidence, so its size must be linear in the events."""
    document = diagnose_events("s", [CALL] * 100_000)
    assert len(document["failure_causes"][0]["evidence"]) == 100_000
    assert document["cost_analysis"]["duplicate_calls"] == 99_999
    assert document["cost_analysis"]["redundancy_score"] == 100


@pytest.mark.slow
def test_documents_do_not_depend_on_the_hash_seed() -> None:
    """The iteration order of sets must not reach the bytes: processes with other hash seeds write the same."""
    program = """
import json
from audit.diagnosis.diagnosis import diagnose_events
events = [
    {"event": f"type_{n % 7}", "zeta": n, "alpha": {"b": n, "a": [n]}} if n % 2 else
    {"event": "tool_call", "tool": f"t{n % 3}", "args": {"y": n % 4, "x": 1}, "event_id": f"e{n % 5}"} for n in range(60)
]
events += [{"event": "memory_event", "action": a} for a in ("recall_failed", "ignored", "lost", "miss")]
print(json.dumps(diagnose_events("s", events)))
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "4242")
    ]
    assert b'"infinite_tool_loop"' in outputs[0]
    assert outputs[0] == outputs[1]


def test_a_record_fits_into_a_message_for_any_session() -> None:
    """With thousands of loops, event types and long ids, lists are cut but counts stay exact."""
    loops = [
        {"event": "tool_call", "tool": "exec", "args": [number], "event_id": "é" * 300 + f"{number}/{turn}"}
        for number in range(3_000)
        for turn in range(3)
    ]
    types = [{"event": f"{'x' * 300}{number}"} for number in range(3_000)]
    record = record_of(evidence_of([*loops, *types], 100))
    assert record.failure_cause_count == 3_001
    assert record.event_type_count == 3_001
    assert len(record.failure_causes) == CAUSES
    assert len(record.event_counts) == EVENT_TYPES
    assert sum(len(cause.evidence) for cause in record.failure_causes) <= ALL_REFERENCES
    assert len(encode(record)) < 600_000


def test_the_causes_with_the_largest_impact_are_kept() -> None:
    """The primary cause is always kept, even if its detector is the last."""
    loops = [{"event": "tool_call", "tool": "exec", "args": [number]} for number in range(60) for _ in range(3)]
    skills = [{"event": "skill_event", "status": "failed"}] * 3
    record = record_of(evidence_of([*loops, *skills], 100))
    assert {cause.type for cause in record.failure_causes} == {"infinite_tool_loop", "cost_explosion", "skill_failure"}
    assert record.primary_failure_type == "cost_explosion"


WORST = [
    CALL,
    MISS,
    UNUSED,
    FULL,
    SKILL,
    {"event": "retry_event"},
    {"event": "token_usage", "usage": {"total": 9_000_000}},
] * 50
"""Every failure at its worst, with every penalty at its limit."""


def test_no_session_is_below_the_minimum_trust() -> None:
    """No session is below 60, the limit of "unsafe", so anybody who gates on it must be told."""
    result = diagnose(evidence_of(WORST), AS_EVENTS)
    assert {item.type: -item.impact_score for item in result.causes if item.failure.weight} == {
        item.name: item.largest_penalty for item in FAILURE_TYPES.values() if item.weight
    }
    assert 73 == LOWEST_TRUST == result.trust_score
    assert SAFE_TRUST < LOWEST_TRUST
    assert result.readiness_level == "unsafe_for_production"
    assert f"never below {LOWEST_TRUST}" in " ".join((audit.diagnosis.diagnosis.__doc__ or "").split())


@given(st.lists(EVENTS, min_size=1, max_size=60), st.integers(1, 40))
def test_trust_stays_within_its_bounds(events: list[dict[str, Any]], times: int) -> None:
    """The bound must hold for all sessions, not only for the worst constructed one."""
    trust = diagnose(evidence_of(events * times), AS_EVENTS).trust_score
    assert trust is not None
    assert LOWEST_TRUST <= trust <= 100


def test_a_refund_made_five_times_is_unsafe_at_a_trust_of_ninety() -> None:
    """Readiness must be shown first, because the trust of this session looks fine."""
    result = diagnose(evidence_of([{"event": "tool_call", "tool": "refund", "args": {"order": 4711}}] * 5), AS_EVENTS)
    assert result.readiness_level == "unsafe_for_production"
    assert result.trust_score == 90
