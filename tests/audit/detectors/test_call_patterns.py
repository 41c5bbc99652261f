"""Findings about calls: alternating ones and near-duplicates. Off by default, and never part of a score."""

from __future__ import annotations

import itertools
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.detectors.call_patterns import BITS, MAX_COMPARED_CHARACTERS, WINDOW, sketch_of
from audit.detectors.detectors import DETECTORS, FAILURE_TYPES, FINDERS, FINDING_TYPES, Cause, Detector
from audit.detectors.thresholds import DEFAULTS, Profile
from audit.diagnosis.diagnosis import diagnose, diagnose_events, evidence_digest, rule_version
from audit.diagnosis.events import normalise_session
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row

ON = Profile.of("events", {"alternating_rounds": 3, "near_duplicate_calls": 2})
QUESTION = "Where is the parcel of the customer Miller, order 4711, sent on Monday"
Raw = dict[str, Any]


def call(tool: str, args: Any = None, **fields: Any) -> Raw:
    """Return a tool call."""
    return {"event": "tool_call", "tool": tool, "args": args, **fields}


A, B, C = call("read", {"path": "a"}), call("edit", {"path": "a"}), call("test")


def evidence_of(raw_events: list[Raw], profile: Profile = ON, limit: int | None = None) -> SessionEvidence:
    """Return the evidence of a session with these events."""
    evidence = SessionEvidence.held_to(profile, limit)
    fold_columns({"s": evidence}, [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))])
    return evidence


def find_causes(raw_events: list[Raw], profile: Profile = ON) -> dict[str, Cause]:
    """Return the findings in a session by type."""
    evidence = evidence_of(raw_events, profile)
    return {cause.type: cause for detector in FINDERS for cause in detector.detect(evidence, profile.thresholds)}


def seqs(cause: Cause) -> list[int]:
    """Return the positions of a cause's evidence."""
    return [seq for seq, _ in cause.evidence]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([A, B] * 3, [0, 1, 2, 3, 4, 5]),
        ([A, B] * 2 + [A], None),
        ([C, A, B, A, B, A, B, A, C], [1, 2, 3, 4, 5, 6, 7]),
        ([A, A, B, A, B, A, B, B], [1, 2, 3, 4, 5, 6]),
        ([A, B, C] * 5, None),
        ([A] * 9, None),
        ([A, B, A, B, C, A, B, A, B], None),
        ([A, call("edit", {"path": "b"})] * 2 + [A, B], None),
        ([A, B] * 3 + [C] + [C, A] * 5, [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16][1:]),
    ],
)
def test_alternating_calls_are_found_with_every_call_of_the_longest_run(calls: list[Raw], expected: list[int] | None) -> None:
    """Alternating calls make no progress, but another call in between, or other arguments, may be progress."""
    cause = find_causes(calls).get("alternating_calls")
    assert (None if cause is None else seqs(cause)) == expected


def test_the_description_of_alternation_names_rounds_and_tools_in_order() -> None:
    """Agents choose the names of tools, so they are shown without control characters."""
    cause = find_causes([C, *[call("write\u202e"), A] * 3, call("write\u202e")])["alternating_calls"]
    description = "Two tool calls alternated for 3 rounds with unchanged arguments. Tools: write, read."
    assert cause.description == description
    assert cause.severity == "medium"
    assert cause.impact_score == 0
    assert cause.evidence_count == 7


@pytest.mark.parametrize(
    ("arguments", "is_near"),
    [
        ({"q": QUESTION.upper()}, True),
        ({"q": f"  {QUESTION.replace(' ', '   ')}?!"}, True),
        ({"q": " ".join(reversed(QUESTION.split()))}, True),
        ({"q": QUESTION.replace("Where", "Whence")}, False),
        ({"q": f"{QUESTION} please"}, True),
        ({"q": QUESTION.replace("4711", "4712")}, False),
        ({"q": QUESTION, "page": 2}, False),
        ({"query": QUESTION.upper()}, False),
        ({"q": QUESTION.upper(), "force": True}, False),
        ({"q": "Refund it"}, False),
        ({"q": QUESTION}, False),
        (None, False),
    ],
)
def test_nearly_equal_arguments_are_near_duplicates(arguments: Any, is_near: bool) -> None:
    """Other words, order or case are not progress; another number, key or switch is. Equal calls are a loop instead."""
    evidence = evidence_of([call("search", {"q": QUESTION}), call("search", arguments)])
    assert evidence.patterns is not None
    assert int(is_near) == evidence.patterns.near_duplicates
    other_tool = evidence_of([call("search", {"q": QUESTION}), call("ask", arguments)])
    assert other_tool.patterns is not None
    assert other_tool.patterns.near_duplicates == 0


def test_arguments_within_json_text_are_parsed() -> None:
    """Many programs send the arguments as JSON text, whose keys are not words of the call."""
    texts = [msgspec.json.encode({"question": QUESTION, "page": page}).decode() for page in (1, 1, 2)]
    near = evidence_of([call("search", texts[0]), call("search", texts[1].upper().replace("QUESTION", "question"))])
    assert near.patterns is not None
    assert near.patterns.near_duplicates == 0  # PAGE is another key
    assert sketch_of(call("search", texts[0])) == sketch_of(call("search", {"question": QUESTION, "page": 1}))
    assert sketch_of(call("search", texts[0])) != sketch_of(call("search", texts[2]))


def test_near_duplicates_are_searched_among_recent_calls_only() -> None:
    """A similar question after an hour of work is not a finding; and time stays linear."""
    between = [call("search", {"q": f"{'abcdefghijkl'[n]} something else"}) for n in range(WINDOW)]
    for earlier_calls, expected in ((between[:-1], 1), (between, 0)):
        patterns = evidence_of(
            [call("search", {"q": QUESTION}), *earlier_calls, call("search", {"q": QUESTION.upper()})]
        ).patterns
        assert patterns is not None
        assert patterns.near_duplicates == expected


def test_the_description_of_near_duplicates_counts_the_repeats() -> None:
    """The first call was right, so the evidence is the calls after it."""
    wordings = [QUESTION, QUESTION.upper(), QUESTION.title()]
    cause = find_causes([call("search", {"q": wording}) for wording in wordings])["near_duplicate_calls"]
    assert cause.description.startswith("2 tool calls ")
    assert "First tool: search." in cause.description
    assert cause.impact_score == 0
    assert seqs(cause) == [1, 2]


def test_polling_is_no_finding() -> None:
    """Repeatedly checking on a process, among other calls, is how an agent waits."""
    polling = Profile.of("events", {"alternating_rounds": 3, "near_duplicate_calls": 1, "polling_tools": ("status",)})
    calls = [call("status", {"q": QUESTION}), call("status", {"q": QUESTION.upper()})]
    assert find_causes([*calls, A] * 5, polling) == {}
    assert set(find_causes([step for pair in [(A, calls[0]), (B, calls[1])] * 3 for step in pair], polling)) == {
        "alternating_calls"
    }
    transcript = [
        call("process", {"action": "poll", "id": "x"}, source="openclaw", exchange_id="e"),
        {**A, "source": "openclaw", "exchange_id": "e"},
    ]
    recorded = Profile.of("transcripts", {"alternating_rounds": 2, "near_duplicate_calls": 1})
    assert find_causes(transcript * 5, recorded) == {}


def test_a_transcript_is_searched_exchange_by_exchange() -> None:
    """Sessions last for weeks: a request that recurs every morning is not a loop."""
    recorded = Profile.of("transcripts", {"alternating_rounds": 3, "near_duplicate_calls": 2})
    searches = [
        call("search", {"q": QUESTION}),
        call("search", {"q": QUESTION.upper()}),
        call("search", {"q": QUESTION.title()}),
    ]

    def in_exchange(exchange: str, calls: list[Raw]) -> list[Raw]:
        return [{**event, "source": "openclaw", "exchange_id": exchange} for event in calls]

    assert (
        find_causes(
            [event for day in "123" for event in in_exchange(day, [A, B])]
            + [event for n in range(3) for event in in_exchange(f"w{n}", [searches[n]])],
            recorded,
        )
        == {}
    )
    assert set(find_causes(in_exchange("1", [A, B] * 3) + in_exchange("2", searches), recorded)) == {
        "alternating_calls",
        "near_duplicate_calls",
    }


CALLS = st.lists(
    st.sampled_from([A, B, C, call("search", {"q": QUESTION}), call("search", {"q": QUESTION.lower()}), {"event": "decision"}]),
    max_size=40,
)


@settings(deadline=None)
@given(CALLS)
def test_the_findings_are_off_by_default_and_change_no_score(raw_events: list[Raw]) -> None:
    """Enabling findings must not change anything else in the diagnosis."""
    off = diagnose_events("s", raw_events)
    on = diagnose_events("s", raw_events, ON)
    mine = [cause for cause in on["failure_causes"] if cause["type"] in FINDING_TYPES]
    assert [cause for cause in off["failure_causes"] if cause["type"] in FINDING_TYPES] == []
    assert off["failure_causes"] == [cause for cause in on["failure_causes"] if cause not in mine]
    for name in ("trust_score", "readiness_level", "scores", "cost_analysis", "evidence_summary"):
        assert off[name] == on[name]
    if off["failure_causes"]:
        assert off["primary_diagnosis"] == on["primary_diagnosis"]


@settings(deadline=None)
@given(CALLS, st.lists(st.integers(0, 40), max_size=4), st.sampled_from([None, 0, 3]))
def test_batches_stored_state_and_limits_change_only_references(
    raw_events: list[Raw], cuts: list[int], limit: int | None
) -> None:
    """Batch sizes depend on load, so they must not change the evidence."""
    rows = [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))]
    evidence = SessionEvidence.held_to(ON, limit)
    for start, end in itertools.pairwise(sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})):
        evidence = msgspec.msgpack.decode(msgspec.msgpack.encode(evidence), type=SessionEvidence)
        fold_columns({"s": evidence}, rows[start:end])
    assert evidence_of(raw_events, limit=limit) == evidence
    uncut_causes, limited = diagnose(evidence_of(raw_events), ON.thresholds).causes, diagnose(evidence, ON.thresholds).causes
    assert [(cause.type, cause.description, cause.evidence_count) for cause in uncut_causes] == [
        (cause.type, cause.description, cause.evidence_count) for cause in limited
    ]
    if limit is not None:
        assert [cause.evidence[:limit] for cause in uncut_causes if cause.type in FINDING_TYPES] == [
            cause.evidence for cause in limited if cause.type in FINDING_TYPES
        ]


@settings(deadline=None)
@given(CALLS, CALLS)
def test_another_event_removes_no_finding(raw_events: list[Raw], added_events: list[Raw]) -> None:
    """An agent must not be able to make a finding smaller by doing more."""
    before, after = find_causes(raw_events), find_causes([*raw_events, *added_events])
    for name, cause in before.items():
        assert len(cause.evidence) == len(set(cause.evidence)) == cause.evidence_count
        assert cause.evidence_count <= after[name].evidence_count


@settings(deadline=None)
@given(st.recursive(st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12))  # fmt: skip
def test_any_arguments_can_be_compared(arguments: Any) -> None:
    """Arguments may be anything; a sketch is small, equals itself and depends only on them."""
    (event,) = normalise_session([call("t", arguments)])
    sketch = sketch_of(event.payload)
    assert sketch == sketch_of(msgspec.json.encode(event.payload).decode())
    if sketch is not None:
        assert len(sketch.words) == BITS // 8
        assert sketch.similarity(sketch) == 1.0


def test_long_texts_are_not_compared() -> None:
    """Writing a file in several versions is work, not a near-duplicate."""
    assert sketch_of(call("write", {"text": "a" * MAX_COMPARED_CHARACTERS})) is None
    assert sketch_of(call("write", {"text": "a" * (MAX_COMPARED_CHARACTERS - 20)})) is not None


@pytest.mark.parametrize("kind", ["in turn", "nearly alike"])
def test_a_hundred_thousand_calls_take_linear_time_and_a_small_state(kind: str) -> None:
    """The worst session of an agent must not slow down or fill the stage that reports it."""
    alike = [call("t", {"q": f"{QUESTION} {'x' * (n % 40)}"}) for n in range(500)]
    calls = [A, B] if kind == "in turn" else alike
    rows = [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(calls))]
    evidence = SessionEvidence.held_to(ON, 100)
    started = time.process_time()
    fold_columns({"s": evidence}, (rows[n % len(rows)] for n in range(100_000)))
    assert time.process_time() - started < 40
    assert evidence.patterns is not None
    assert len(msgspec.msgpack.encode(evidence.patterns)) < 20_000


def test_rules_are_versioned_and_a_diagnosis_names_the_enabled_ones() -> None:
    """Comparisons over months need to see that a rule was enabled; if none is, the version is unchanged."""
    default = rule_version(DEFAULTS["events"])
    assert rule_version(ON) == f"{default}+alternating_calls-1+near_duplicate_calls-1"
    assert rule_version(Profile.of("events", {"near_duplicate_calls": 1})) == f"{default}+near_duplicate_calls-1"
    off = DEFAULTS["events"]
    assert evidence_digest(evidence_of([A, B], off)) != evidence_digest(evidence_of([A, B]))


@pytest.mark.parametrize("finder", FINDERS, ids=lambda finder: finder.failure_type)
def test_a_finding_is_documented_and_not_part_of_the_score(finder: Detector) -> None:
    """A finding states its rule and a remediation, and its name is not that of a failure type."""
    finding = FINDING_TYPES[finder.failure_type]
    assert finder.failure_type == finding.name == finder.detect.__name__
    assert finding.weight == 0
    assert finding.largest_penalty == 0
    assert finding.dimension == ""
    assert finder.detect.__doc__
    assert finding.remediation
    assert len(finding.causal_chain) >= 3
    assert not FINDING_TYPES.keys() & FAILURE_TYPES.keys()
    assert not {detector.failure_type for detector in DETECTORS} & {detector.failure_type for detector in FINDERS}
