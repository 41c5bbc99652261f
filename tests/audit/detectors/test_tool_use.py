"""Rules for tools: forbidden calls, calls without approval, and secrets that are sent out. Off by default, and never part of the trust score."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.detectors.detectors import FINDERS, Cause
from audit.detectors.thresholds import DEFAULTS, Profile, matches_name, recorded_profile
from audit.detectors.tool_use import GRANTED, LASTING
from audit.diagnosis.diagnosis import diagnose, diagnose_events, rule_version
from audit.diagnosis.events import normalise_session
from audit.diagnosis.evidence import SessionEvidence, fold_columns, fold_row
from audit.policy import Policy, RedactionSettings, load_policy
from audit.redaction import Redactor
from schemas.errors import PolicyError

Raw = dict[str, Any]
RULES: dict[str, Any] = {
    "denied": ("shell", "db_*"),
    "approval_required": ("refund*",),
    "approvals": ("ask_person",),
    "external": ("http_*",),
}
PASSWORD = "hunter2hunter2"


def call(tool: str | None, args: Any = None) -> Raw:
    """Return a tool call."""
    return {"event": "tool_call", "tool": tool, "args": args}


def approval(decision: str, tool: str | None = None, field: str = "action") -> Raw:
    """Return a decision on an approval."""
    return {"event": "approval", "tool": tool, field: decision}


def profile_with(**rules: Any) -> Profile:
    """Return a profile with these rules."""
    return Profile.of("events", {}, rules)


def evidence_of(raw_events: list[Raw], profile: Profile, limit: int | None = None) -> SessionEvidence:
    """Return the evidence of a session with these events."""
    evidence = SessionEvidence.held_to(profile, limit)
    fold_columns({"s": evidence}, [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))])
    return evidence


def find_causes(raw_events: list[Raw], **rules: Any) -> dict[str, Cause]:
    """Return the findings in a session by type."""
    profile = profile_with(**rules)
    causes = diagnose(evidence_of(raw_events, profile), profile.thresholds).causes
    return {cause.type: cause for cause in causes if cause.impact_score == 0}


def places(raw_events: list[Raw], finding: str, **rules: Any) -> list[int]:
    """Return the positions of a finding's events."""
    cause = find_causes(raw_events, **rules).get(finding)
    return [] if cause is None else [seq for seq, _ in cause.evidence]


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("shell", "shell", True),
        ("shell", "shells", False),
        ("shell", "Shell", False),
        ("*", "", True),
        ("db_*", "db_", True),
        ("db_*", "my_db_x", False),
        ("mcp__*__delete", "mcp__github__delete", True),
        ("*delete*", "do_delete_all", True),
        ("a[b]?", "a[b]?", True),
        ("a[b]?", "abc", False),
    ],
)
def test_only_the_asterisk_is_special_in_a_pattern(pattern: str, name: str, *, matches: bool) -> None:
    """Names of tools may contain any characters, and a pattern must not match more than it says."""
    assert matches_name(pattern, name) is matches


@given(st.lists(st.sampled_from(["a", "b", "*", "aa"]), max_size=12).map("".join), st.text("ab", max_size=40))
def test_a_pattern_means_the_same_as_its_regular_expression(pattern: str, name: str) -> None:
    """The asterisk stands for any text, wherever it is and however many there are."""
    expression = ".*".join(map(re.escape, re.sub(r"\*+", "*", pattern).split("*")))
    assert matches_name(pattern, name) == bool(re.fullmatch(expression, name))


@pytest.mark.parametrize(
    ("rules", "forbidden"),
    [
        ({"denied": ("shell", "db_*")}, [1, 2]),
        ({"allowed": ("search", "shell")}, [2]),
        ({"allowed": ("*",), "denied": ("search",)}, [0]),
        ({"allowed": ()}, [0, 1, 2]),
        ({"denied": ()}, []),
    ],
)
def test_a_call_that_is_denied_or_not_allowed_is_a_finding(rules: dict[str, Any], forbidden: list[int]) -> None:
    """A list of what is allowed holds for tools that nobody thought of; denial wins. A call without a name cannot be decided."""
    assert places([call("search"), call("shell"), call("db_drop"), call(None)], "forbidden_calls", **rules) == forbidden


def test_a_finding_says_how_many_calls_and_which_tools() -> None:
    """A person must see at a glance what happened; agents choose the names, so they are shown without control characters."""
    cause = find_causes([call("shell\u202e"), call("db_drop"), call("shell\u202e")], denied=("shell*", "db_*"))[
        "forbidden_calls"
    ]
    assert cause.description == "3 tool calls broke the policy. First tools: shell, db_drop."
    assert (cause.severity, cause.impact_score, cause.evidence_count) == ("high", 0, 3)


@pytest.mark.parametrize(
    ("events", "unapproved"),
    [
        ([call("refund")], [0]),
        ([approval("approved", "refund"), call("refund"), call("refund")], [2]),
        ([approval("approved", "refund"), approval("approved", "refund"), call("refund"), call("refund")], []),
        ([approval("approved"), call("refund_all"), call("refund")], [2]),
        ([call("refund"), approval("approved", "refund")], [0]),
        ([approval("approved", "refund_all"), call("refund")], [1]),
        ([approval("approved"), approval("approved", "refund"), call("refund"), call("refund_all")], []),
        ([approval("denied", "refund"), call("refund")], [1]),
        ([approval("", "refund"), call("refund")], [1]),
        ([approval("Allow-Always", "refund"), call("refund"), call("refund"), call("refund_all")], [3]),
        ([approval("approved", "refund", field="status"), call("refund")], []),
        ([call("ask_person"), call("search"), call("refund"), call("refund")], [3]),
    ],
)
def test_an_approval_counts_for_one_call_after_it(events: list[Raw], unapproved: list[int]) -> None:
    """Otherwise one yes at the beginning would open everything for weeks. A decision that is no approval opens nothing."""
    assert places(events, "unapproved_calls", **RULES) == unapproved


@pytest.mark.parametrize("decision", sorted(GRANTED | LASTING))
def test_every_decision_of_real_programs_that_approves_counts(decision: str) -> None:
    """Programs have different words for yes."""
    assert places([approval(decision), call("refund")], "unapproved_calls", **RULES) == []


@pytest.mark.parametrize(
    ("tool", "arguments", "kinds"),
    [
        ("http_post", {"body": f"password: {PASSWORD}"}, "password"),
        ("http_post", {"password": PASSWORD}, "secret_field"),
        ("http_post", f'{{"token": "{PASSWORD}"}}', "password"),
        ("http_post", {"headers": [["Authorization", "Bearer abcdef0123456789"]]}, "secret_field"),
        ("http_post", {"file": "1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms"}, None),
        ("http_post", {"body": "all is well"}, None),
        ("http_post", None, None),
        ("note", {"password": PASSWORD}, None),
    ],
)
def test_a_secret_in_the_arguments_of_an_external_tool_is_a_finding(tool: str, arguments: Any, kinds: str | None) -> None:
    """Stored events are redacted and files are not; the finding is the same, and has no part of the secret."""
    raw = call(tool, arguments)
    redacted, _ = Redactor(RedactionSettings(), b"another key").redact_json(raw)
    for events in ([raw], [redacted]):
        cause = find_causes(events, **RULES).get("secrets_sent_out")
        assert (cause and cause.description) == (
            kinds and f"1 tool call sent a secret to an external tool ({kinds}). Tool: {tool}."
        )


def test_personal_data_of_a_kind_that_the_policy_names_is_a_finding() -> None:
    """Redaction replaces the kinds of the policy before events are stored, so their markers are the evidence."""
    patterns = [{"kind": "employee_number", "pattern": r"\bEMP-[0-9]{6}\b"}]
    redaction = Policy.model_validate({"redaction": {"patterns": tuple(patterns)}}).redaction
    redacted, _ = Redactor(redaction).redact_json(call("http_post", {"body": "for EMP-123456"}))
    assert "(employee_number)" in find_causes([redacted], **RULES)["secrets_sent_out"].description


def described(agent: str | None = None, **tools: Any) -> Raw:
    """Return the descriptions of an agent's tools."""
    return {"event": "tool_definitions", "agent": agent, "tools": tools}


@pytest.mark.parametrize(
    ("events", "changed"),
    [
        ([described(search="a"), described(search="b")], [1]),
        ([described(search="a"), described(search="a", mail="b"), described(mail="b")], []),
        ([described(search="a"), described(mail="a"), described(search="b"), described(search="a")], [2, 3]),
        ([described("x", search="a"), described("y", search="b"), described("y", search="c")], [2]),
        ([described(search="a"), described(search=None), described(search=7), {"event": "tool_definitions"}], []),
    ],
)
def test_a_description_that_changes_is_a_finding_by_agent_and_tool(events: list[Raw], changed: list[int]) -> None:
    """A server may describe a tool harmlessly until it is trusted. Agents of a session may have tools of the same name."""
    assert places(events, "changed_tool_descriptions", definitions=True) == changed
    assert places(events, "changed_tool_descriptions", definitions=False) == []


EVENTS = st.sampled_from(
    [
        *(call(tool) for tool in ("shell", "search", "db_drop", "refund", "refund_all", "ask_person")),
        *(approval(decision, tool) for decision in ("approved", "denied", "allow_always") for tool in (None, "refund")),
        call("http_post", {"password": PASSWORD}),
        *(described(search=text) for text in "ab"),
    ]
)


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=30), st.lists(st.integers(0, 30), max_size=4), st.sampled_from([None, 0, 3]))
def test_batches_stored_state_and_limits_change_only_references(
    raw_events: list[Raw], cuts: list[int], limit: int | None
) -> None:
    """Batch sizes depend on load, so they must not change the evidence; an approval in an earlier batch still counts."""
    rules = {**RULES, "definitions": True}
    profile = profile_with(**rules)
    rows = [fold_row("s", event, seq) for seq, event in enumerate(normalise_session(raw_events))]
    evidence = SessionEvidence.held_to(profile, limit)
    for start, end in itertools.pairwise(sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})):
        evidence = msgspec.msgpack.decode(msgspec.msgpack.encode(evidence), type=SessionEvidence)
        fold_columns({"s": evidence}, rows[start:end])
    assert evidence_of(raw_events, profile, limit) == evidence
    for cause in diagnose(evidence, profile.thresholds).causes:
        whole = find_causes(raw_events, **rules).get(cause.type, cause)
        assert (cause.description, cause.evidence_count) == (whole.description, whole.evidence_count)


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_rules_change_neither_the_trust_score_nor_other_causes(raw_events: list[Raw]) -> None:
    """Trust must stay comparable whatever a policy forbids. A severe finding calls for a review."""
    off, on = diagnose_events("s", raw_events), diagnose_events("s", raw_events, profile_with(**RULES))
    findings = [cause for cause in on["failure_causes"] if cause["impact_score"] == 0]
    assert off["failure_causes"] == [cause for cause in on["failure_causes"] if cause not in findings]
    for name in ("trust_score", "scores", "cost_analysis", "evidence_summary"):
        assert off[name] == on[name]
    if findings and off["readiness_level"] == "ready_for_runtime":
        assert on["readiness_level"] == "review_recommended"
    else:
        assert on["readiness_level"] == off["readiness_level"]
    assert PASSWORD not in str([{**cause, "evidence": []} for cause in findings])


def test_a_diagnosis_names_the_rules_that_it_was_made_with() -> None:
    """A page marks the events of a finding by running the same rules again; without rules nothing changes."""
    profile = profile_with(**RULES)
    assert recorded_profile(profile.version, profile.changes_json) == profile
    assert profile.changes_json == (
        '{"tools":{"approvalRequired":["refund*"],"approvals":["ask_person"],"denied":["shell","db_*"],"external":["http_*"]}}'
    )
    default = rule_version(DEFAULTS["events"])
    assert rule_version(profile) == f"{default}+forbidden_calls-1+secrets_sent_out-1+unapproved_calls-1"
    assert rule_version(profile_with(allowed=())) == f"{default}+forbidden_calls-1"
    assert profile_with(denied=()) == DEFAULTS["events"]
    assert {finder.failure_type for finder in FINDERS if finder.is_enabled(DEFAULTS["events"])} == set()


def test_rules_are_set_by_project_and_by_agent_and_hold_for_every_source() -> None:
    """Sessions of one agent may come from a plugin and from transcripts; a rule for only one of them would be a hole."""
    policy = Policy.model_validate(
        {
            "defaults": {"detectors": {"tools": {"denied": ("shell",)}}},
            "projects": {
                "ops": {
                    "detectors": {
                        "tools": {"external": ("http_*",)},
                        "agents": {
                            "support-1": {"tools": {"allowed": ("search",)}},
                            "support-*": {"tools": {"denied": ("refund",), "allowed": ("*",)}, "events": {"loopCalls": 4}},
                        },
                    }
                }
            },
        }
    )

    def rules(project: str, agent: str | None) -> dict[str, Any]:
        detectors = policy.for_project(project).settings.detectors
        of_events, of_transcripts = (detectors.profile(name, agent) for name in ("events", "transcripts"))
        assert of_events.rules == of_transcripts.rules
        return {name: getattr(of_events.rules, name) for name in of_events.changes.get("tools", {})}

    assert rules("other", "support-1") == {"denied": ("shell",)}
    assert rules("ops", "coder") == rules("ops", None) == {"denied": ("shell",), "external": ("http_*",)}
    assert rules("ops", "support-2") == {"denied": ("refund",), "allowed": ("*",), "external": ("http_*",)}
    assert rules("ops", "support-1") == {"denied": ("refund",), "allowed": ("search",), "external": ("http_*",)}
    assert policy.for_project("ops").settings.detectors.profile("events", "support-1").thresholds.loop_calls == 4


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("denied: shell", "defaults.detectors.tools.denied: "),
        ('denied: [""]', "defaults.detectors.tools.denied[0]: "),
        ("denied: [7]", "defaults.detectors.tools.denied[0]: "),
        ("forbidden: [shell]", "defaults.detectors.tools.forbidden: unknown field"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_by_line_and_field(rule: str, problem: str, tmp_path: Path) -> None:
    """A rule that silently did nothing would look like an agent that keeps it."""
    path = tmp_path / "p.yaml"
    path.write_text(f"version: 1\ndefaults:\n  detectors:\n    tools:\n      {rule}\n", "utf-8")
    with pytest.raises(PolicyError, match=re.escape(f"p.yaml:5: {problem}")):
        load_policy(path)
