"""Folding: the evidence does not depend on batches, interleaving or restarts, and stays small."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.detectors.detectors import DETECTORS
from audit.detectors.thresholds import EVENTS as AS_EVENTS
from audit.diagnosis.events import MAX_TOKENS, normalise_event
from audit.diagnosis.evidence import FOLD_COLUMNS, Row, SessionEvidence, fold_columns, fold_row

EVENTS = st.fixed_dictionaries(
    {
        "event": st.sampled_from(
            [
                "tool_call",
                "tool_output",
                "memory_event",
                "context_event",
                "skill_event",
                "token_usage",
                "retry_event",
                "decision",
            ]
        )
    },
    optional={
        "tool": st.sampled_from(["a", "b"]),
        "args": st.sampled_from([{}, {"q": 1}, {"q": 2}]),
        "action": st.sampled_from(["miss", "stored", "compaction"]),
        "status": st.sampled_from(["lost", "ignored", "failed", "ok"]),
        "used": st.booleans(),
        "referenced": st.booleans(),
        "invoked": st.booleans(),
        "saturation": st.sampled_from([84, 85, 94.9, 95]),
        "usage": st.fixed_dictionaries({"total": st.integers(0, 20_000)}),
    },
)
SESSIONS = st.dictionaries(st.sampled_from(["s1", "s2", "s3"]), st.lists(EVENTS, max_size=12), min_size=1)
LIMITS = st.sampled_from([None, 0, 1, 2, 100])


def rows_of(session: str, raw_events: list[dict[str, Any]]) -> list[Row]:
    """Return the session's events as rows."""
    return [fold_row(session, normalise_event(raw, seq), seq) for seq, raw in enumerate(raw_events)]


def folded(raw_events: list[dict[str, Any]], limit: int | None = None) -> SessionEvidence:
    """Return the evidence of one session, folded at once."""
    evidence = SessionEvidence(reference_limit=limit)
    fold_columns({"s": evidence}, rows_of("s", raw_events))
    return evidence


def round_trip(evidence: SessionEvidence) -> SessionEvidence:
    """Return the evidence after storing it as a stage's state."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(evidence), type=SessionEvidence)


def test_rows_have_the_documented_columns() -> None:
    """Runners build rows from Arrow columns by name, so AgentEvent must have all of them except the session."""
    row = fold_row("s", normalise_event({"event": "tool_output", "used": False}, 4), 4)
    assert {name: value for name, value in zip(FOLD_COLUMNS, row, strict=True) if value is not None} == {
        "session": "s",
        "seq": 4,
        "event_id": "event_4",
        "event": "tool_output",
        "used": False,
    }


@settings(deadline=None)
@given(sessions=SESSIONS, limit=LIMITS, seed=st.randoms(use_true_random=False))
def test_batches_interleaving_and_stored_state_change_nothing(
    sessions: dict[str, list[dict[str, Any]]], limit: int | None, seed: random.Random
) -> None:
    """A worker sees sessions mixed, in arbitrary batches, and may restart in between; the evidence must be the same."""
    expected = {name: folded(raw_events, limit) for name, raw_events in sessions.items() if raw_events}
    queues = [rows_of(name, raw_events) for name, raw_events in sessions.items() if raw_events]
    mixed: list[Row] = []
    while queues:
        queue = seed.choice(queues)
        mixed.append(queue.pop(0))
        queues = [queue for queue in queues if queue]
    evidence: dict[str, SessionEvidence] = {}
    while mixed:
        size = seed.randint(1, len(mixed))
        fold_columns(evidence, mixed[:size], reference_limit=limit)
        mixed = mixed[size:]
        evidence = {name: round_trip(item) for name, item in evidence.items()}
    assert evidence == expected
    assert {name: list(item.calls) for name, item in evidence.items()} == {
        name: list(item.calls) for name, item in expected.items()
    }


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS, max_size=20))
def test_folding_single_events_equals_folding_columns(raw_events: list[dict[str, Any]]) -> None:
    """The embedded runner adds single events, the fleet adds columns."""
    evidence = SessionEvidence()
    for seq, raw in enumerate(raw_events):
        evidence.add(normalise_event(raw, seq), seq)
    assert folded(raw_events) == evidence


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS, max_size=30), limit=st.integers(0, 5))
def test_a_reference_limit_truncates_only_references(raw_events: list[dict[str, Any]], limit: int) -> None:
    """Counts stay exact and the first references are kept, so only the evidence of a finding differs."""
    complete, limited = folded(raw_events), folded(raw_events, limit)
    assert complete.event_counts == limited.event_counts
    assert complete.total_tokens == limited.total_tokens
    assert complete.context_full == limited.context_full
    assert complete.duplicate_calls == limited.duplicate_calls
    for name, problem in complete.problems.items():
        assert problem.count == limited.problems[name].count
        assert problem.references[:limit] == limited.problems[name].references
    for key, calls in complete.calls.items():
        assert calls.count == limited.calls[key].count
        assert calls.references[:limit] == limited.calls[key].references
    assert complete.retries[:limit] == limited.retries
    assert complete.largest == limited.largest


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS, max_size=30))
def test_references_are_in_the_order_of_the_session(raw_events: list[dict[str, Any]]) -> None:
    """Evidence is read from top to bottom, so it is in order."""
    evidence = folded(raw_events)
    lists = [problem.references for problem in evidence.problems.values()] + [
        calls.references for calls in evidence.calls.values()
    ]
    for references in [*lists, evidence.retries]:
        assert sorted(references) == references


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS, max_size=30))
def test_duplicates_are_calls_minus_distinct_labels(raw_events: list[dict[str, Any]]) -> None:
    """The number of duplicate calls drives the cost, so it is compared with its definition."""
    calls = [raw for raw in raw_events if raw["event"] == "tool_call"]
    labels = {(raw.get("tool"), str(raw.get("args") or {})) for raw in calls}
    assert folded(raw_events).duplicate_calls == len(calls) - len(labels)


def test_the_action_of_a_memory_event_takes_precedence_over_its_status() -> None:
    """The action decides: a status about something else must not turn a success into a failure."""
    raw = [
        {"event": "memory_event", "action": "recall", "status": "miss"},
        {"event": "memory_event", "status": "miss"},
        {"event": "memory_event", "action": "", "status": "LOST"},
        {"event": "memory_event", "action": "Ignored", "status": "ok"},
    ]
    assert folded(raw).problem("memory_event").references == [(1, "event_1"), (2, "event_2"), (3, "event_3")]


def test_a_call_without_a_key_repeats_nothing() -> None:
    """Calls without a key must not look like a loop."""
    evidence = SessionEvidence()
    empty: Row = (None,) * (len(FOLD_COLUMNS) - 5)
    fold_columns({"s": evidence}, [("s", seq, f"e{seq}", "tool_call", None, *empty) for seq in range(5)])
    assert evidence.count("tool_call") == 5
    assert evidence.duplicate_calls == 0
    assert evidence.calls == {}


def test_token_totals_are_bounded() -> None:
    """A sum beyond 64 bits could be neither stored nor sent."""
    evidence = folded([{"event": "token_usage", "usage": {"total": 10**30}}] * 3000)
    assert evidence.total_tokens == MAX_TOKENS
    assert round_trip(evidence) == evidence


def test_a_hundred_thousand_identical_calls_are_fast_and_small() -> None:
    """The worst loop of an agent must not slow down or fill the stage that reports it."""
    row = fold_row("s", normalise_event({"event": "tool_call", "tool": "t", "event_id": "x"}, 0), 0)
    evidence: dict[str, SessionEvidence] = {}
    started = time.process_time()
    fold_columns(evidence, [row] * 100_000, reference_limit=100)
    assert time.process_time() - started < 5
    assert next(iter(evidence["s"].calls.values())).count == 100_000
    assert len(msgspec.msgpack.encode(evidence["s"])) < 2000
    assert all(isinstance(detector.detect(evidence["s"], AS_EVENTS), list) for detector in DETECTORS)


@pytest.mark.parametrize("event", ["brand_new", "process_output", "decision", "tool_call\u202e"])
def test_unknown_types_are_counted_under_their_own_name(event: str) -> None:
    """An event of an unknown type is counted although no detector reads it."""
    evidence = folded([{"event": event, "used": False, "invoked": False, "status": "ignored", "saturation": 99}] * 2)
    assert evidence.event_counts == {event: 2}
    assert evidence.problems == {}
    assert evidence.calls == {}
