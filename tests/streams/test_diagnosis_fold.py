"""Folding by columns gives the same evidence as folding event by event."""

from __future__ import annotations

import random

import msgspec
import pytest
from support import builders as build

from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row
from audit.policy import Policy
from schemas.records import AgentEvent
from streams.steps.diagnosis import DiagnosisState, DiagnosisStep

KINDS = (
    "tool_call",
    "tool_output",
    "token_usage",
    "memory_event",
    "context_event",
    "skill_event",
    "retry_event",
    "decision",
)


def any_event(chance: random.Random, session: str, number: int) -> AgentEvent:
    """Generate an event of any kind with arbitrary fields."""
    raw: dict[str, object] = {"event": chance.choice(KINDS)}
    if chance.random() < 0.7:
        raw |= {"tool": chance.choice(["exec", "read"]), "args": {"n": chance.randrange(4)}}
    for field, values in {
        "action": ["miss", "Lost", "recalled", "compaction", ""],
        "status": ["ignored", "failed", "ok", ""],
        "used": [True, False],
        "referenced": [True, False],
        "invoked": [True, False],
        "saturation": [10.0, 85.0, 97.5],
        "usage": [{"total": chance.randrange(9000)}],
    }.items():
        if chance.random() < 0.5:
            raw[field] = chance.choice(values)
    return build.event(session, number, **raw)


@pytest.mark.parametrize("seed", range(20))
def test_folding_columns_equals_folding_events(seed: int) -> None:
    """The prefilter must only drop events that the fold ignores."""
    chance = random.Random(seed)
    events = [any_event(chance, f"s{chance.randrange(3)}", number) for number in range(400)]
    expected: dict[str, SessionEvidence] = {}
    fold_columns(expected, [fold_row(f"local/{event.session_id}", event, event.seq) for event in events], reference_limit=100)
    diagnoses = DiagnosisStep(Policy())(build.batch("agent-events", events), {})
    assert {
        key: msgspec.msgpack.decode(state, type=DiagnosisState).evidence for key, state in diagnoses.states.items()
    } == expected
