"""The six detectors below, at and above their thresholds, with severity, impact and evidence."""

from __future__ import annotations

from typing import Any

import pytest

from audit.detectors.context_pollution import context_pollution
from audit.detectors.cost_explosion import cost_explosion
from audit.detectors.ignoring_tool_outputs import ignoring_tool_outputs
from audit.detectors.infinite_tool_loop import infinite_tool_loop
from audit.detectors.memory_degradation import memory_degradation
from audit.detectors.registry import Cause, printable
from audit.detectors.skill_failure import skill_failure
from audit.detectors.thresholds import EVENTS as AS_EVENTS
from audit.detectors.thresholds import TRANSCRIPTS
from audit.diagnosis.events import normalise_session
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row

CALL = {"event": "tool_call", "tool": "search", "args": {"q": "x"}}
RETRY = {"event": "retry_event"}


def evidence_of(*raw_events: dict[str, Any]) -> SessionEvidence:
    """Return the evidence of a session with these events."""
    evidence = SessionEvidence()
    fold_columns({"s": evidence}, [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))])
    return evidence


def summarize(causes: list[Cause]) -> list[tuple[str, int, int]]:
    """Return severity, impact and evidence count of each cause."""
    return [(cause.severity, cause.impact_score, cause.evidence_count) for cause in causes]


def evidence_positions(cause: Cause) -> list[int]:
    """Return the positions of a cause's evidence."""
    return [seq for seq, _ in cause.evidence]


@pytest.mark.parametrize(
    ("calls", "retries", "expected"),
    [
        (2, 3, []),
        (3, 0, [("high", -20, 3)]),
        (4, 0, [("high", -24, 4)]),
        (5, 0, [("critical", -28, 5)]),
        (6, 0, [("critical", -30, 6)]),
        (3, 1, [("high", -23, 4)]),
        (3, 2, [("high", -26, 5)]),
        (3, 3, [("critical", -29, 6)]),
        (3, 4, [("critical", -30, 6)]),
        (4, 2, [("high", -30, 6)]),
    ],
)
def test_loops_by_calls_and_retries(calls: int, retries: int, expected: list[tuple[str, int, int]]) -> None:
    """Three identical calls are a loop; five calls or three retries make it critical; the penalty is capped at 30."""
    assert summarize(infinite_tool_loop(evidence_of(*[CALL] * calls, *[RETRY] * retries), AS_EVENTS)) == expected


def test_a_loop_shows_its_calls_and_then_three_retries() -> None:
    """The evidence shows the repeated calls first, then the retries, wherever the events were."""
    (cause,) = infinite_tool_loop(evidence_of(RETRY, CALL, RETRY, CALL, RETRY, RETRY, CALL), AS_EVENTS)
    assert evidence_positions(cause) == [1, 3, 6, 0, 2, 4]
    assert "repeated 3 times" in cause.description
    assert "Tool: search. 4 retry events" in cause.description


def test_every_looping_call_is_a_cause_in_order_of_first_occurrence() -> None:
    """Two loops in a session are two causes with two remedies."""
    other = {**CALL, "args": {"q": "y"}}
    causes = infinite_tool_loop(evidence_of(CALL, other, other, other, CALL, CALL, {**CALL, "args": 1}), AS_EVENTS)
    assert [evidence_positions(cause) for cause in causes] == [[0, 4, 5], [1, 2, 3]]


def test_calls_without_a_tool_never_loop() -> None:
    """Calls without a tool are not identical, so a source that omits the tool is never accused of loops."""
    assert infinite_tool_loop(evidence_of(*[{"event": "tool_call", "args": {"q": 1}}] * 9), AS_EVENTS) == []


@pytest.mark.parametrize(
    ("n", "expected"), [(0, []), (1, [("medium", -13, 1)]), (2, [("medium", -18, 2)]), (3, [("high", -23, 3)])]
)
@pytest.mark.parametrize("word", ["recall_failed", "IGNORED", " lost", "Miss"])
@pytest.mark.parametrize("field", ["action", "status"])
def test_lost_memories(field: str, word: str, n: int, expected: list[tuple[str, int, int]]) -> None:
    """Each word counts in either field and any case; three are severe."""
    events = [{"event": "memory_event", field: "stored"}, *[{"event": "memory_event", field: word}] * n]
    causes = memory_degradation(evidence_of(*events), AS_EVENTS)
    assert summarize(causes) == expected
    assert [list(range(1, n + 1))] * bool(n) == [evidence_positions(cause) for cause in causes]


@pytest.mark.parametrize(("n", "impact"), [(3, -23), (4, -25), (9, -25)])
def test_memory_penalty_stops_at_25(n: int, impact: int) -> None:
    """No single failure may dominate the score."""
    assert summarize(memory_degradation(evidence_of(*[{"event": "memory_event", "action": "miss"}] * n), AS_EVENTS)) == [
        ("high", impact, n)
    ]


@pytest.mark.parametrize(
    ("n", "expected"),
    [(0, []), (1, [("medium", -17, 1)]), (2, [("high", -24, 2)]), (3, [("high", -30, 3)]), (4, [("high", -30, 4)])],
)
@pytest.mark.parametrize(
    "unused", [{"used": False}, {"referenced": False}, {"status": "Ignored"}, {"used": True, "referenced": False}]
)
def test_unused_outputs(unused: dict[str, Any], n: int, expected: list[tuple[str, int, int]]) -> None:
    """Any sign that an output was dropped counts once per event; the penalty is capped at 30."""
    used = {"event": "tool_output", "used": True, "referenced": True, "status": "ok"}
    assert summarize(ignoring_tool_outputs(evidence_of(used, *[{"event": "tool_output", **unused}] * n), AS_EVENTS)) == expected


@pytest.mark.parametrize(
    ("contexts", "expected"),
    [
        ([{"saturation": 84.999}], []),
        ([{"saturation": 85}], [("medium", -12, 1)]),
        ([{"saturation_score": 86}], [("medium", -12, 1)]),
        ([{"saturation": 94.999}], [("medium", -12, 1)]),
        ([{"saturation": 95}], [("high", -12, 1)]),
        ([{"saturation": 96}, {"saturation": 20}], [("high", -12, 1)]),
        ([{"saturation": 96}, {"saturation": 86}], [("high", -17, 2)]),
        ([{"action": "Compaction", "saturation": 20}], [("medium", -12, 1)]),
        ([{"action": "compaction", "saturation": 95}], [("high", -12, 1)]),
        ([{"action": "compaction"}] * 2, [("medium", -17, 2)]),
        ([{"action": "compaction"}] * 3, [("medium", -22, 3)]),
        ([{"action": "compaction"}] * 4, [("medium", -22, 4)]),
        ([{"status": "compaction"}], []),
    ],
)
def test_polluted_contexts(contexts: list[dict[str, Any]], expected: list[tuple[str, int, int]]) -> None:
    """Saturation from 85% or a compaction counts; 95% is severe; the penalty is capped at 22."""
    assert (
        summarize(context_pollution(evidence_of(*[{"event": "context_event", **context} for context in contexts]), AS_EVENTS))
        == expected
    )


@pytest.mark.parametrize(
    ("tokens", "duplicates", "expected"),
    [
        (11_999, 0, []),
        (12_000, 0, [("high", -12)]),
        (12_001, 0, [("high", -12)]),
        (17_999, 0, [("high", -12)]),
        (18_000, 0, [("high", -13)]),
        (29_999, 0, [("high", -14)]),
        (30_000, 0, [("critical", -15)]),
        (30_001, 0, [("critical", -15)]),
        (0, 2, []),
        (0, 3, [("high", -22)]),
        (0, 4, [("high", -26)]),
        (0, 5, [("high", -30)]),
        (12_000, 2, [("high", -20)]),
        (119_999, 0, [("critical", -29)]),
        (600_000, 0, [("critical", -30)]),
    ],
)
def test_cost_by_tokens_and_duplicates(tokens: int, duplicates: int, expected: list[tuple[str, int]]) -> None:
    """12 000 tokens or three duplicates are a failure, 30 000 tokens are critical; the penalty is capped at 30."""
    events = [{"event": "token_usage", "usage": {"total": tokens}}, *[CALL] * (duplicates + 1)]
    causes = cost_explosion(evidence_of(*events), AS_EVENTS)
    assert [(cause.severity, cause.impact_score) for cause in causes] == expected


def test_calls_without_a_tool_are_duplicates_by_skill_or_type() -> None:
    """Calls without a tool name cost tokens as well; only loops need a name."""
    events = [{"event": "tool_call", "skill": "s"}] * 3 + [{"event": "tool_call"}] * 2 + [{"event": "tool_call", "tool": "s"}]
    assert evidence_of(*events).duplicate_calls == 3


def usage(tokens: int, **fields: Any) -> dict[str, Any]:
    """Return an event that reports this many tokens."""
    return {"event": "token_usage", "usage": {"total": tokens}, **fields}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([usage(100), CALL, usage(13_000), usage(400)], [2]),
        ([usage(4_000), usage(7_000), usage(100), usage(5_000)], [1, 3]),
        ([usage(1_000), usage(6_000), usage(6_000), usage(6_000)], [1, 2]),
        ([usage(600)] * 40, list(range(12))),
        ([usage(100), *[CALL] * 4, {**CALL, "tool": "other"}], [1, 2, 3, 4]),
        ([CALL, *[usage(3_000)] * 4, CALL, CALL], [1, 2, 3, 4]),
        ([CALL, usage(20_000), CALL, CALL, CALL], [1, 0, 2, 3, 4]),
        ([{"event": "tool_call", "tool": name} for name in "abab"] + [CALL] * 2, [0, 2, 1, 3, 4, 5]),
    ],
    ids=[
        "the largest",
        "the fewest",
        "the first of equals",
        "twelve at most",
        "repeated calls",
        "too few repeated",
        "both",
        "several calls",
    ],
)
def test_the_cost_evidence_shows_the_most_expensive_and_repeated_events(
    events: list[dict[str, Any]], expected: list[int]
) -> None:
    """The evidence must show the largest events, not the first ones, which may be harmless."""
    (cause,) = cost_explosion(evidence_of(*events), AS_EVENTS)
    assert set(evidence_positions(cause)) == set(expected)
    assert len(evidence_positions(cause)) == cause.evidence_count == len(expected)


def test_the_cost_of_a_transcript_is_that_of_its_most_expensive_exchange() -> None:
    """A session lasts for weeks, so only the expensive exchange is evidence."""
    transcript = [
        {**event, "source": "codex", "exchange_id": exchange}
        for exchange, event in [
            ("cheap", usage(20_000)), ("cheap", CALL), ("cheap", CALL), ("dear", usage(30_000)), ("dear", usage(90)), ("dear", usage(40_000)),
            ("twice", CALL), ("twice", CALL), ("twice", CALL), ("twice", CALL),
        ]
    ]  # fmt: skip
    (cause,) = cost_explosion(evidence_of(*transcript), TRANSCRIPTS)
    assert evidence_positions(cause) == [3, 5, 6, 7, 8, 9]
    assert cause.evidence_count == 6


def test_the_retries_of_a_transcripts_loop_are_of_one_exchange() -> None:
    """Retries of other weeks are not evidence of this loop."""
    transcript = [
        {**event, "source": "codex", "exchange_id": exchange}
        for exchange, event in [("monday", RETRY), *[("tuesday", CALL)] * 3, ("tuesday", RETRY), ("tuesday", RETRY)]
    ]
    (cause,) = infinite_tool_loop(evidence_of(*transcript), TRANSCRIPTS)
    assert evidence_positions(cause) == [1, 2, 3, 4, 5]
    assert cause.evidence_count == 5


@pytest.mark.parametrize(
    ("n", "expected"),
    [(0, []), (1, [("medium", -14, 1)]), (2, [("high", -20, 2)]), (3, [("high", -24, 3)]), (4, [("high", -24, 4)])],
)
@pytest.mark.parametrize("failed", [{"invoked": False}, {"status": "IGNORED"}, {"status": "mismatch"}, {"status": " failed "}])
def test_failed_skills(failed: dict[str, Any], n: int, expected: list[tuple[str, int, int]]) -> None:
    """An available skill that was not used or failed counts; two are severe; the penalty is capped at 24."""
    events = [{"event": "skill_event", "invoked": True, "status": "ok"}, *[{"event": "skill_event", **failed}] * n]
    assert summarize(skill_failure(evidence_of(*events), AS_EVENTS)) == expected


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("search", "search"),
        ("a" * 81, "a" * 80),
        ("a" * 100_000, "a" * 80),
        ("pay\u202eload\u2066\x1b[31m\x00\n", "payload[31m"),
        ("\u200b" * 90 + "b", "b"),
        ("\ud800", "(unprintable)"),
        ("Suche für Ärzte", "Suche für Ärzte"),
    ],
)
def test_names_from_agents_are_cut_and_cleaned(name: str, fit: str) -> None:
    """Descriptions reach terminals and pages, so a name must not contain control characters."""
    assert printable(name) == fit


def test_a_hostile_tool_name_is_harmless_in_the_description() -> None:
    """Only this description quotes an agent."""
    (cause,) = infinite_tool_loop(evidence_of(*[{**CALL, "tool": "x\u202e" + "y" * 5000}] * 3), AS_EVENTS)
    assert cause.description.endswith(f" Tool: x{'y' * 79}.")
