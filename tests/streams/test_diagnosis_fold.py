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
    "approval",
    "tool_definitions",
    "decision",
)
RULES = {"denied": ("exec",), "approvalRequired": ("read",), "approvals": ("e*",), "external": ("*",), "definitions": True}


def any_event(chance: random.Random, session: str, number: int) -> AgentEvent:
    """Generate an event of any kind with arbitrary fields."""
    raw: dict[str, object] = {"event": chance.choice(KINDS)}
    if chance.random() < 0.7:
        raw |= {"tool": chance.choice(["exec", "read"]), "args": {"n": chance.randrange(4)}}
    if raw["event"] == "tool_definitions":
        raw["tools"] = {"read": chance.choice(["a", "b"])}
    for field, values in {
        "action": ["miss", "Lost", "recalled", "compaction", "approved", ""],
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


@pytest.mark.parametrize("rules", [{}, RULES], ids=["without rules", "with rules"])
@pytest.mark.parametrize("seed", range(20))
def test_folding_columns_equals_folding_events(seed: int, rules: dict[str, tuple[str, ...]]) -> None:
    """The prefilter must only drop events that the fold ignores, and keep the order that it reads."""
    policy = Policy.model_validate({"defaults": {"detectors": {"tools": rules}}})
    chance = random.Random(seed)
    events = [any_event(chance, f"s{chance.randrange(3)}", number) for number in range(400)]
    profile = policy.for_project("ops").settings.detectors.profile("events", None)
    expected = {f"local/{event.session_id}": SessionEvidence.held_to(profile, reference_limit=100) for event in events}
    fold_columns(expected, [fold_row(f"local/{event.session_id}", event, event.seq) for event in events])
    diagnoses = DiagnosisStep(policy)(build.batch("agent-events", events), {})
    assert {
        key: msgspec.msgpack.decode(state, type=DiagnosisState).evidence for key, state in diagnoses.states.items()
    } == expected
