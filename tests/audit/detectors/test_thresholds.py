"""Thresholds: a policy's values decide when a detector fires, and the defaults for transcripts fit real runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.detectors.detectors import DETECTORS, FINDERS
from audit.detectors.thresholds import DEFAULTS, Detectors, Profile, Thresholds, recorded_profile
from audit.diagnosis.diagnosis import SessionDiagnosis, diagnose, diagnose_events
from audit.diagnosis.events import normalise_session
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row
from audit.policy import Policy, load_policy
from schemas.errors import PolicyError

Json = dict[str, Any]


def diagnose_transcript(*raw_events: Json, **changes: Any) -> SessionDiagnosis:
    """Return the diagnosis of a transcript's events under its profile with changes."""
    profile = Profile.of("transcripts", changes)
    events = normalise_session([{"source": "openclaw", "exchange_id": "e1", **raw} for raw in raw_events])
    evidence = SessionEvidence.held_to(profile)
    fold_columns({"s": evidence}, [fold_row("s", event, seq) for seq, event in enumerate(events)])
    return diagnose(evidence, profile.thresholds)


def failures(*raw_events: Json, **changes: Any) -> list[tuple[str, str]]:
    """Return failure types and severities of a transcript."""
    return [(cause.type, cause.severity) for cause in diagnose_transcript(*raw_events, **changes).causes]


def call(command: str, **fields: Any) -> Json:
    """Return a call of the shell."""
    return {"event": "tool_call", "tool": "exec", "arguments": {"command": command}, **fields}


def usage(plain: int, output: int, *, cache_read: int = 0, cache_write: int = 0, **fields: Any) -> Json:
    """Return the token usage of one request to the model."""
    counts = {"input": plain, "cache_read": cache_read, "cache_write": cache_write, "output": output}
    return {"event": "token_usage", "usage": {"total": sum(counts.values()), **counts}, **fields}


PROMPT = 12_000
"""Tokens of the prompt that OpenClaw really sends with every request."""


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_repeated_prompt_is_not_counted_as_an_expense(*, is_cached: bool) -> None:
    """Real gateways send 12 000 tokens with every request, so by the sum every run would be unsafe for production."""
    requests = [
        usage(0, 200, cache_read=PROMPT + 300 * n, cache_write=300) if is_cached else usage(PROMPT + 300 * (n + 1), 200)
        for n in range(40)
    ]
    assert failures(*requests) == []


def test_events_without_a_source_are_diagnosed_by_the_published_rules() -> None:
    """Delivered events are diagnosed by the published rules, even if they look like a transcript."""
    requests = [{**usage(PROMPT, 200), "source": None} for _ in range(3)]
    (cause,) = diagnose_events("s", requests)["failure_causes"]
    assert cause["type"] == "cost_explosion"
    assert cause["severity"] == "critical"


def test_a_flood_of_new_text_in_one_exchange_is_an_expense() -> None:
    """Outputs that stay in the prompt are read again by every request, which is a real cost explosion."""
    flood = [usage(PROMPT + 20_000 * n, 100) for n in range(4)]
    assert failures(*flood) == [("cost_explosion", "high")]
    assert failures(*flood, *(usage(PROMPT + 20_000 * n, 100) for n in range(4, 9))) == [("cost_explosion", "critical")]
    assert failures(*({**one, "exchange_id": f"e{n}"} for n, one in enumerate(flood))) == []


def test_a_command_repeated_after_another_is_no_loop() -> None:
    """Developers rightly run the same test after every change."""
    work = [step for n in range(6) for step in (call(f"sed -i s/{n}/x/ a.py"), call("pytest -q"))]
    assert failures(*work) == []


def test_the_same_call_again_and_again_is_a_loop() -> None:
    """Nothing happened in between that could change the result."""
    assert failures(*[call("deploy")] * 3) == [("infinite_tool_loop", "high")]
    assert failures(*[call("deploy")] * 5) == [("infinite_tool_loop", "critical"), ("cost_explosion", "high")]


def test_the_same_call_in_several_exchanges_is_no_loop() -> None:
    """Sessions last for weeks, and a request may recur every morning."""
    assert failures(*(call("git status", exchange_id=f"day {n}") for n in range(10))) == []


def test_polling_is_no_loop() -> None:
    """Checking on a background command is polling, but other repeated calls in between still count."""
    poll = {"event": "tool_call", "tool": "process", "arguments": {"action": "poll", "sessionId": "x"}}
    assert failures(*[poll] * 9) == []
    assert failures(*[call("deploy"), poll] * 3) == [("infinite_tool_loop", "high")]
    kill = {**poll, "arguments": {"action": "kill", "sessionId": "x"}}
    assert failures(*[kill] * 3) == [("infinite_tool_loop", "high")]
    assert failures(*[kill] * 3, polling_tools=("process",)) == []


def test_polling_is_not_recognized_in_delivered_events() -> None:
    """The published rules have no polling, so delivered events are diagnosed as before."""
    poll = {"event": "tool_call", "tool": "process", "arguments": {"action": "poll"}}
    assert [cause["type"] for cause in diagnose_events("s", [poll] * 3)["failure_causes"]] == ["infinite_tool_loop"]


def test_retries_of_other_exchanges_make_no_loop_critical() -> None:
    """Retries of a provider that is overloaded once a week must not make today's loop critical."""
    retries = [{"event": "retry_event", "exchange_id": f"week {n}"} for n in range(5)]
    assert failures(*retries, *[call("deploy")] * 3) == [("infinite_tool_loop", "high")]
    assert failures(*[{"event": "retry_event"}] * 3, *[call("deploy")] * 3) == [("infinite_tool_loop", "critical")]


def test_an_unused_output_is_an_ignored_one() -> None:
    """No program reports whether an output was used; values derived from the texts count like reported ones."""
    assert failures({"event": "output_use", "used": False}) == [("ignoring_tool_outputs", "medium")]
    assert failures(*[{"event": "output_use", "used": False}] * 2) == [("ignoring_tool_outputs", "high")]
    assert failures({"event": "output_use", "used": True}, {"event": "output_use"}) == []


MISS, UNUSED = {"event": "memory_event", "action": "miss"}, {"event": "output_use", "used": False}
FULL, SKILL = {"event": "context_event", "saturation": 90}, {"event": "skill_event", "status": "failed"}


@pytest.mark.parametrize(
    ("events", "changes", "expected"),
    [
        ([call("x")] * 3, {"loop_calls": 4}, []),
        ([call("x")] * 3, {"critical_loop_calls": 3}, ["critical"]),
        ([MISS], {"lost_memories": 2}, []),
        ([MISS] * 2, {"severe_lost_memories": 2}, ["high"]),
        ([UNUSED], {"unused_outputs": 2}, []),
        ([UNUSED], {"severe_unused_outputs": 1}, ["high"]),
        ([FULL], {"saturation": 91.0}, []),
        ([FULL], {"severe_saturation": 90.0}, ["high"]),
        ([FULL], {"polluted_contexts": 2}, []),
        ([usage(100, 50)], {"session_tokens": 150}, ["high"]),
        ([usage(100, 50)], {"session_tokens": 150, "critical_session_tokens": 150}, ["critical"]),
        ([usage(100, 50)], {"exchange_tokens": 50}, ["high"]),
        ([usage(100, 50)], {"exchange_tokens": 50, "critical_exchange_tokens": 50}, ["critical"]),
        ([usage(100, 50)], {"exchange_tokens": 51}, []),
        ([call("x")] * 2, {"duplicate_calls": 1}, ["high"]),
        ([SKILL], {"failed_skills": 2}, []),
        ([SKILL], {"severe_failed_skills": 1}, ["high"]),
    ],
)
def test_each_threshold_decides(events: list[Json], changes: Json, expected: list[str]) -> None:
    """Each value of a policy must take effect, for each of the six detectors."""
    assert [severity for _, severity in failures(*events, **changes)] == expected


EVENTS = st.builds(
    lambda kind, exchange: {**kind, "exchange_id": exchange},
    st.sampled_from(
        [call("a"), call("b"), MISS, UNUSED, FULL, SKILL, {"event": "retry_event"}, usage(900, 50), usage(60_000, 9)]
    ),
    st.sampled_from(["e1", "e2"]),
)


@given(st.lists(EVENTS, max_size=30), EVENTS)
def test_another_event_of_a_transcript_never_lowers_a_penalty(events: list[Json], added_event: Json) -> None:
    """More of the same evidence is never better, in a transcript as elsewhere."""
    before = {cause.type: cause.impact_score for cause in diagnose_transcript(*events).causes}
    after = {cause.type: cause.impact_score for cause in diagnose_transcript(*events, added_event).causes}
    assert before.keys() <= after.keys()
    assert all(after[failure] <= impact for failure, impact in before.items() if failure != "infinite_tool_loop")


@given(st.lists(EVENTS, max_size=30), st.integers(0, 30))
def test_a_transcript_in_parts_is_the_same_transcript(events: list[Json], cut: int) -> None:
    """A worker may restart between any two events and continue from the stored state."""
    rows = [
        fold_row("s", event, seq) for seq, event in enumerate(normalise_session([{"source": "codex", **one} for one in events]))
    ]
    at_once = SessionEvidence()
    in_parts = SessionEvidence()
    fold_columns({"s": at_once}, rows)
    fold_columns({"s": in_parts}, rows[:cut])
    fold_columns({"s": in_parts}, rows[cut:])
    assert in_parts == at_once


def test_a_week_of_different_calls_leaves_a_small_state() -> None:
    """Calls that were not repeated are dropped: sessions last for weeks, and each keeps its state."""
    evidence = SessionEvidence(reference_limit=100)
    events = normalise_session([{"source": "openclaw", **call(f"step {n}")} for n in range(5_000)])
    fold_columns({"s": evidence}, [fold_row("s", event, seq) for seq, event in enumerate(events)])
    assert len(evidence.calls) == 1


def test_agents_override_projects_and_projects_override_defaults() -> None:
    """One of many agents has long exchanges: only its own limit is raised."""
    policy = Policy.model_validate(
        {
            "defaults": {"detectors": {"transcripts": {"exchangeTokens": 60_000}}},
            "projects": {"ops": {"detectors": {"agents": {"bob": {"transcripts": {"loopCalls": 4}}}}}},
        }
    )
    profiles = [policy.for_project(project).settings.detectors.profile("transcripts", agent) for project, agent in PLACES]
    assert [(p.thresholds.exchange_tokens, p.thresholds.loop_calls) for p in profiles] == [
        (60_000, 4),
        (60_000, 3),
        (60_000, 3),
    ]
    assert profiles[0].changes_json == '{"exchangeTokens":60000,"loopCalls":4}'
    assert [recorded_profile(p.version, p.changes_json) for p in profiles] == [*profiles]


PLACES = [("ops", "bob"), ("ops", "ann"), ("other", "bob")]


def test_the_thresholds_of_another_version_are_unknown() -> None:
    """The defaults of old versions are not kept."""
    assert recorded_profile("events-0", None) is None
    assert recorded_profile(None, None) is None
    assert recorded_profile("events-1", None) == DEFAULTS["events"]


def test_thresholds_do_not_change_the_policy_of_scores() -> None:
    """Scores carry the digest of their policy, but thresholds of detectors do not affect how an exchange is judged."""
    changed = Policy.model_validate({"defaults": {"detectors": {"events": {"loopCalls": 4}}}})
    assert Policy().digest == changed.digest


def test_thresholds_that_contradict_each_other_are_refused_by_line(tmp_path: Path) -> None:
    """A loop that is critical before it is a loop shows that two numbers were swapped."""
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\ndefaults:\n  detectors:\n    events:\n      loopCalls: 9\n", "utf-8")
    message = "p.yaml:5: defaults.detectors.events.loopCalls: 9 is above criticalLoopCalls, which is 5"
    with pytest.raises(PolicyError, match=re.escape(message)):
        load_policy(path)


def test_every_threshold_belongs_to_a_detector() -> None:
    """A threshold that no detector reads would have no effect, so each one is tested above."""
    tested_thresholds = {
        name for mark in test_each_threshold_decides.pytestmark for _, changes, _ in mark.args[1] for name in changes
    }
    pattern_thresholds = {"alternating_rounds", "near_duplicate_calls", "near_duplicate_similarity"}  # in test_call_patterns.py
    assert tested_thresholds | pattern_thresholds | {"critical_retries", "polling_tools"} == set(Thresholds.model_fields)
    assert {one.threshold for one in (*DETECTORS, *FINDERS)} - {None} <= set(Thresholds.model_fields)
    assert Detectors().profile("events", None) is DEFAULTS["events"]
