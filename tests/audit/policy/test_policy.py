"""Policies: defaults, overrides by project, and bad files that are refused with their lines."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from audit.anchors import anchor_project
from audit.cost import NANO
from audit.policy import Anchors, Policy, ProjectSettings, RedactionSettings, Sampling, SecretPattern, load_policy
from audit.spending import has_shared_caps, limits_of
from schemas.bounds import NAME
from schemas.errors import PolicyError

EXAMPLE = Path(__file__).parents[3] / "examples" / "policy.yaml"
THRESHOLDS: dict[str, Any] = {
    "loopCalls": 3,
    "criticalLoopCalls": 5,
    "criticalRetries": 3,
    "pollingTools": (),
    "lostMemories": 1,
    "severeLostMemories": 3,
    "unusedOutputs": 1,
    "severeUnusedOutputs": 2,
    "saturation": 85.0,
    "severeSaturation": 95.0,
    "pollutedContexts": 1,
    "sessionTokens": 12_000,
    "criticalSessionTokens": 30_000,
    "exchangeTokens": None,
    "criticalExchangeTokens": None,
    "duplicateCalls": 3,
    "failedSkills": 1,
    "severeFailedSkills": 2,
    "alternatingRounds": None,
    "nearDuplicateCalls": None,
    "nearDuplicateSimilarity": 0.9,
}
DEFAULTS = {
    "enabled": True,
    "judgeModel": "claude-haiku-4-5",
    "tierJudges": {},
    "gateCascade": True,
    "combineTiers": False,
    "sampling": {
        "enabled": True,
        "routineInterval": 3,
        "alwaysScoreFirst": 5,
        "alwaysScoreLast": 3,
        "alwaysScoreDisagreement": True,
        "alwaysScoreLongResponses": True,
        "longResponseThreshold": 500,
        "alwaysScoreToolTrouble": True,
    },
    "context": {"turns": 2, "toolCalls": True, "maxTokens": 800},
    "thinkingBlockAnalysis": True,
    "bidirectionalScoring": False,
    "wrapQualityScoring": None,
    "costCapPerSession": 1.0,
    "costCaps": {"day": None, "month": None},
    "judgeWithinHours": None,
    "heartbeatInterval": 300000,
    "baselineWindowDays": 14,
    "watchedLabels": ("agent_version", "prompt_version", "tool_version", "task", "language"),
    "minAlertedChange": {"sigmas": 0.5, "share": 0.02, "points": {}},
    "alertOnSuspected": False,
    "alertFrom": "warning",
    "maintenance": (),
    "incidentRules": ("sequential", "consecutive_days", "rate_ratio", "runs", "sessions", "behaviour"),
    "retentionDays": 90,
    "anchors": {"enabled": True, "count": 20, "intervalHours": 24},
    "sessionJudging": {"sample": 0, "costCap": 0.5, "judge": None},
    "traces": {
        "settleSeconds": 10,
        "idleSeconds": 180,
        "labels": {
            "agent_version": ("gen_ai.agent.version", "langfuse.version", "service.version"),
            "prompt_version": ("langfuse.observation.prompt.version", "gen_ai.prompt.version"),
            "deployment": ("deployment.environment.name", "deployment.environment", "langfuse.environment"),
        },
        "ratings": {"lowest": 0, "highest": 1},
    },
    "detectors": {
        "events": THRESHOLDS,
        "transcripts": THRESHOLDS
        | {
            "sessionTokens": None,
            "criticalSessionTokens": None,
            "exchangeTokens": 50_000,
            "criticalExchangeTokens": 150_000,
        },
        "tools": {"allowed": None, "denied": (), "approvalRequired": (), "approvals": (), "external": (), "definitions": False},
        "agents": {},
    },
    "methodology": "default",
}


def write(tmp_path: Path, text: str, name: str = "p.yaml") -> Path:
    """Return a policy file with this text."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path: Path, text: str) -> list[str]:
    """Return the problems reported for this text, without the folder."""
    with pytest.raises(PolicyError) as caught:
        load_policy(write(tmp_path, text))
    assert caught.value.hint
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


def test_the_defaults_are_the_documented_ones() -> None:
    """Field names and defaults are a published reference that migrations rely on."""
    assert Policy().for_project("any").settings.model_dump(by_alias=True) == DEFAULTS
    assert Policy().for_project("any").session_gap_minutes == 30


def test_the_example_is_valid_and_shows_the_defaults() -> None:
    """People copy the example, so its values must be the defaults."""
    policy = load_policy(EXAMPLE)
    assert policy.defaults.model_dump(by_alias=True) == DEFAULTS
    assert {field.strip().split(":")[0] for field in EXAMPLE.read_text().splitlines() if _is_default(field)} == set(DEFAULTS)
    checkout = policy.for_project("checkout-agent")
    assert checkout.settings.sampling.routine_interval == 5
    assert checkout.settings.sampling.always_score_first == 5
    assert checkout.settings.cost_cap_per_session == 0.25
    assert checkout.methodology.name == "prawduct"
    assert not policy.for_project("sandbox").settings.enabled
    assert Policy().for_project("any").price == policy.for_project("any").price
    assert policy.prices["my-local-judge"].input == 0


def _is_default(line: str) -> bool:
    return line.startswith("  ") and line[2].isalpha() and line.strip().split(":")[0] in DEFAULTS


def test_a_cap_of_zero_stays_zero(tmp_path: Path) -> None:
    """0 means that no call may be paid for; read as "not set" it would allow a dollar a session."""
    for text in ("version: 1\ndefaults: {costCapPerSession: 0}", "version: 1\nprojects: {a: {costCapPerSession: 0.0}}"):
        assert load_policy(write(tmp_path, text)).for_project("a").settings.cost_cap_per_session == 0


def test_null_is_no_cap_and_a_cap_is_counted_in_nano_dollars(tmp_path: Path) -> None:
    """Only an explicit null removes the cap; a missing field does not."""
    policy = load_policy(
        write(tmp_path, "version: 1\nprojects: {a: {costCapPerSession: null}, b: {costCapPerSession: 0.1}, c: {}}")
    )
    assert tuple(policy.for_project(name).cap for name in "abc") == (None, 100_000_000, 1_000_000_000)


def test_the_price_is_that_of_the_projects_judge(tmp_path: Path) -> None:
    """Projects may have different judges; an unknown price stays unknown."""
    text = """
version: 1
prices:
  house: {source: our own machine, readOn: 2026-11-21, input: 0, output: 0}
  claude-haiku-4-5: {source: the contract, readOn: "2026-11-20", input: 0.9, output: 4.5}
projects:
  a: {judgeModel: house}
  b: {judgeModel: claude-haiku-4-5-20251001}
  c: {judgeModel: claude-haiku-5-5}
  d: {judgeModel: gossip-7b}
"""
    policy = load_policy(write(tmp_path, text))
    prices = [policy.for_project(name).price for name in "abcd"]
    assert [price and price.input for price in prices] == [0.0, 0.9, 0.1, None]


def test_the_digest_depends_on_the_price_but_not_on_its_source(tmp_path: Path) -> None:
    """Another price reaches the cap at another point, so other tiers are skipped; the date of a price changes nothing."""
    line = "version: 1\nprices: {claude-haiku-4-5: {source: %s, readOn: 2026-11-%d, input: 1, output: %s}}"
    digests = [
        load_policy(write(tmp_path, line % values)).digest
        for values in (("here", 20, "5"), ("there", 21, "5.0"), ("here", 20, "5.5"))
    ]
    assert digests[0] == digests[1] != digests[2]
    other = "version: 1\nprices: {other: {source: here, readOn: 2026-11-20, input: 1, output: 5}}"
    assert Policy().digest == load_policy(write(tmp_path, other)).digest


def test_false_stays_false(tmp_path: Path) -> None:
    """A disabled project stays disabled, although it inherits everything else."""
    policy = load_policy(write(tmp_path, "version: 1\nprojects: {a: {enabled: false}}"))
    assert not policy.for_project("a").settings.enabled
    assert policy.for_project("b").settings.enabled


def test_a_project_overrides_only_its_own_fields(tmp_path: Path) -> None:
    """A project that repeats a shipped default overrides the file's own default."""
    text = "version: 1\ndefaults: {sampling: {alwaysScoreFirst: 9}, retentionDays: 7}\nprojects: {a: {sampling: {routineInterval: 2}}}"
    settings = load_policy(write(tmp_path, text)).for_project("a").settings
    assert settings.sampling.routine_interval == 2
    assert settings.sampling.always_score_first == 9
    assert settings.retention_days == 7


def test_a_policy_may_be_json(tmp_path: Path) -> None:
    """Other systems write configuration as JSON."""
    text = json.dumps({"version": 1, "defaults": DEFAULTS}, indent=2)
    assert Policy().digest == load_policy(write(tmp_path, text, "p.json")).digest


def test_policies_cannot_be_changed() -> None:
    """A policy is immutable, so a recorded digest stays valid."""
    with pytest.raises(ValidationError):
        Policy().session_gap_minutes = 5  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Policy().defaults.enabled = False  # type: ignore[misc]


def test_the_digest_depends_on_every_effective_setting() -> None:
    """Two scores have the same digest if and only if their rules were the same."""
    variants = [
        Policy(),
        Policy(session_gap_minutes=31),
        Policy(redaction=RedactionSettings(enabled=False)),
        Policy(redaction=RedactionSettings(patterns=(SecretPattern(kind="a", pattern="b"),))),
        Policy(defaults=ProjectSettings(sampling=Sampling(routine_interval=4))),
        Policy(defaults=ProjectSettings(cost_cap_per_session=0)),
        Policy(defaults=ProjectSettings(methodology="tilt")),
    ]
    assert len(variants) == len({policy.for_project("a").digest for policy in variants})
    assert len(variants) == len({policy.digest for policy in variants})
    assert all(len(policy.digest) == 16 for policy in variants)


def test_an_explicit_default_does_not_change_the_digest() -> None:
    """The digest covers the resolved values, not their notation."""
    explicit = Policy(projects={"a": ProjectSettings(retention_days=90, sampling=Sampling(routine_interval=3))})
    assert Policy().for_project("a").digest == explicit.for_project("a").digest


def test_projects_are_resolved_once() -> None:
    """Every record asks for its project's policy, so it must be fast."""
    policy = Policy(projects={"a": ProjectSettings(retention_days=3)})
    assert policy.for_project("a") is policy.for_project("a")
    assert policy.for_project("b") is policy.for_project("c")


def test_a_methodology_is_found_beside_the_policy(tmp_path: Path) -> None:
    """A policy and its methodologies are stored and reviewed together."""
    write(tmp_path, 'schemaVersion: "7"\ntier2: [{id: wit, description: witty}]', "house.yaml")
    text = "version: 1\ndefaults: {methodology: tilt}\nprojects: {a: {methodology: house.yaml}}"
    policy = load_policy(write(tmp_path, text))
    assert policy.for_project("a").methodology.name == "house"
    assert policy.for_project("a").methodology.version == "7"
    assert policy.for_project("b").methodology.name == "tilt"
    original_digest = policy.for_project("a").digest
    write(tmp_path, 'schemaVersion: "7"\ntier2: [{id: wit, description: wittier}]', "house.yaml")
    assert original_digest != load_policy(write(tmp_path, text)).for_project("a").digest


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("defaults: {}", ["p.yaml:1: version: is required"]),
        ("version: 2", ["p.yaml:1: version: must be 1 (it is 2)"]),
        (
            "version: 1\ndefaults:\n  sampling:\n    routineIntervall: 4\n",
            ["p.yaml:4: defaults.sampling.routineIntervall: unknown field; did you mean routineInterval?"],
        ),
        (
            "version: 1\ndefaults:\n  gate_cascade: true\n",
            ["p.yaml:3: defaults.gate_cascade: unknown field; did you mean gateCascade?"],
        ),
        (
            "version: 1\nprojects:\n  a:\n    costCapPerSession: -1\n    enabled: 'yes'\n",
            [
                "p.yaml:4: projects.a.costCapPerSession: must be 0 or more (it is -1)",
                "p.yaml:5: projects.a.enabled: must be true or false (it is 'yes')",
            ],
        ),
        (
            "version: 1\nprojects:\n  ../etc: {}\n",
            [
                "p.yaml:3: projects.../etc: not a project name",
            ],
        ),
        (
            "version: 1\nsessionGapMinutes: 5\nsessionGapMinutes: 6\n",
            ["p.yaml:3: sessionGapMinutes: given twice, first on line 2"],
        ),
        (
            "version: 1\ndefaults:\n  methodology: agile\n",
            [
                "p.yaml:3: defaults.methodology: no methodology 'agile': shipped are default, prawduct, tilt",
            ],
        ),
        (
            "version: 1\ndefaults: {methodology: no.yaml}\n",
            [
                "p.yaml:2: defaults.methodology: the methodology 'no.yaml' ",
                "no.yaml: does not exist",
            ],
        ),
        (
            "version: 1\nredaction:\n  patterns:\n  - {kind: a, pattern: '('}\n  - {kind: b, pattern: 'x*'}\n",
            [
                "p.yaml:4: redaction.patterns[0].pattern: pattern '(' ",
                "p.yaml:5: redaction.patterns[1].pattern: matches the empty text",
            ],
        ),
        (
            "version: 1\ndefaults: {costCapPerSession: .nan}",
            ["p.yaml:2: defaults.costCapPerSession: must be a finite number (it is nan)"],
        ),
        (
            "version: 1\nprices:\n  a:\n    input: -1\n    source: x\n    readOn: 2026-11-21\n    inptu: 1\n",
            [
                "p.yaml:3: prices.a.output: is required",
                "p.yaml:4: prices.a.input: must be 0 or more (it is -1)",
                "p.yaml:7: prices.a.inptu: unknown field; did you mean input?",
            ],
        ),
        (
            (
                "version: 1\nprices:\n  a:\n    {source: x, readOn: 2026-11-21, input: 1, output: 1,\n"
                "    steps: [{above: 9, input: 1, output: 1}, {above: 8, input: 1, output: 1}]}\n"
            ),
            ["p.yaml:5: prices.a.steps: "],
        ),
        (
            "version: 1\nprices:\n  a b: {source: x, readOn: 2026-11-21, input: 1, output: 1}\n",
            ["p.yaml:3: prices.a b: is not a valid name of a model"],
        ),
        ("- 1\n", ["p.yaml:1: document: fields are expected here"]),
    ],
)
def test_a_bad_policy_is_refused_with_lines_and_fields(tmp_path: Path, text: str, problems: list[str]) -> None:
    """A setting that is misread or ignored would audit the fleet by rules that nobody chose."""
    reported = refusal(tmp_path, text)
    assert len(reported) == len(problems)
    for actual, expected_start in zip(reported, problems, strict=True):
        assert actual.startswith(expected_start)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "p.yaml:1: document: the file is empty"),
        ("version: 1\n\tx: 2", "p.yaml:2: document: found character"),
        ("a: &a 1\nb: *a", "p.yaml:2: document: aliases"),
        ("version: 1\nx: " + "[" * 40 + "]" * 40, "p.yaml:2: document: nested deeper than 32"),
        ("[" * 100_000, "p.yaml:1: document: nested deeper than 32"),
        ("version: 1\nx: !!python/object:os.system a", "p.yaml:2: document: could not determine a constructor"),
        ("version: 1\nx: !!set {a}", "p.yaml:2: document: the tag"),
        ("version: 1\n1: 2", "p.yaml:2: document: a field name must be text"),
        ("version: 1\n? [a]\n: 2", "p.yaml:2: document: a field name must be text"),
        ("version: 1\nx: " + "9" * 5000, "p.yaml:2: document: not a value"),
        ("version: 1\n<<: {a: 1}", "p.yaml:2: document: could not determine a constructor"),
        ("version: 1\nx: \x07", "p.yaml:2: document: control character"),
        ("version: 1\n---\nversion: 1", "p.yaml:2: document: but found another document"),
        ("#" + "x" * 1024 * 1024, "p.yaml:1: document: larger than"),
    ],
)
def test_a_hostile_or_broken_file_ends_in_a_policy_error(tmp_path: Path, text: str, reason: str) -> None:
    """Any file gives a message with a line: no traceback, no endless loop, no code execution."""
    (problem,) = refusal(tmp_path, text)
    assert problem.startswith(reason)


def test_a_file_that_is_no_text_ends_in_a_policy_error(tmp_path: Path) -> None:
    """Somebody will name the wrong file."""
    path = tmp_path / "p.yaml"
    path.write_bytes(b"version: 1\n\xff\xfe")
    with pytest.raises(PolicyError, match=r"p\.yaml:2: document: not UTF-8"):
        load_policy(path)
    with pytest.raises(PolicyError, match=r":1: document: is a folder"):
        load_policy(tmp_path)


def test_an_unknown_methodology_in_code_is_refused_too() -> None:
    """A policy made in code has no folder for relative paths."""
    with pytest.raises(PolicyError, match=r"no methodology 'x\.yaml'"):
        Policy(defaults=ProjectSettings(methodology="x.yaml")).for_project("a")


@pytest.mark.parametrize("name", ["ops", "x" * 63])
def test_all_anchors_are_judged_by_the_settings_of_their_project(name: str) -> None:
    """A round that is thinned out by sampling or the gate would compare other exchanges each time."""
    own = ProjectSettings(judge_model="claude-sonnet-4-5", cost_cap_per_session=0.5)
    policy = Policy(projects={name: own}, defaults=ProjectSettings(thinking_block_analysis=False))
    project = policy.for_project(name)
    anchors = policy.for_project(anchor_project(name))
    settings = anchors.settings
    assert settings.sampling.enabled is False
    assert settings.gate_cascade is False
    assert settings.judge_model == "claude-sonnet-4-5"
    assert anchors.cap == project.cap
    assert settings.thinking_block_analysis is False
    assert anchors.methodology == project.methodology
    assert anchors.digest != project.digest
    assert re.fullmatch(NAME, anchor_project(name))


def test_the_anchor_interval_does_not_change_the_digest() -> None:
    """It does not affect how an exchange is judged, and every score carries the digest."""
    often = Policy(defaults=ProjectSettings(anchors=Anchors(interval_hours=1)))
    assert Policy().digest == often.digest


def test_incident_rules_do_not_change_the_digest() -> None:
    """Switching off a rule must not make all scores look as if they were made under another policy."""
    one_rule = Policy(defaults=ProjectSettings(incident_rules=("sequential",)))
    assert Policy().for_project("ops").digest == one_rule.for_project("ops").digest


@pytest.mark.parametrize("name", ["anchors", "anchors.ops"])
def test_a_project_with_a_name_of_anchors_is_refused(tmp_path: Path, name: str) -> None:
    """Its exchanges would be taken for anchors and left out of every sum."""
    (problem,) = refusal(tmp_path, f"version: 1\nprojects:\n  {name}: {{enabled: true}}\n")
    assert problem.startswith(f"p.yaml:3: projects.{name}: is reserved for anchors")


def test_caps_of_a_day_and_a_month_change_no_digest(tmp_path: Path) -> None:
    """They limit how much is judged, not how: scores before and after a change stay comparable."""
    text = "version: 1\ncostCaps: {month: 100}\ndefaults: {costCaps: {day: 5}}\nprojects: {a: {costCaps: {month: 20}}}\n"
    capped = load_policy(write(tmp_path, text))
    assert capped.digest == load_policy(write(tmp_path, "version: 1\nprojects: {a: {}}\n")).digest
    assert limits_of(capped, "a") == (5 * NANO, 20 * NANO, None, 100 * NANO)
    assert limits_of(capped, "b") == (5 * NANO, None, None, 100 * NANO)
    assert has_shared_caps(capped)
    assert not has_shared_caps(Policy())
    with pytest.raises(PolicyError, match=r"defaults\.costCaps\.week: unknown field"):
        load_policy(write(tmp_path, "version: 1\ndefaults: {costCaps: {week: 5}}\n"))


@pytest.mark.parametrize(
    ("moment", "end"),
    [
        ("2026-12-05T21:59:59Z", None),
        ("2026-12-05T22:00:00Z", "2026-12-06T02:00:00+00:00"),
        ("2026-12-06T02:00:00Z", None),
        ("2026-12-20T00:30:00Z", "2026-12-20T02:00:00+00:00"),
        ("2026-11-29T00:30:00Z", None),
    ],
)
def test_maintenance_recurs_weekly_from_its_start_on(moment: str, end: str | None) -> None:
    """A weekly window must hold in each later week, across midnight, and never before it was planned to begin."""
    window = {"from": "2026-12-05T23:00:00+01:00", "until": "2026-12-06T02:00:00Z", "reason": "move", "weekly": True}
    policy = Policy.model_validate({"defaults": {"maintenance": (window,)}})
    time = datetime.fromisoformat(moment)
    holding = policy.maintenance_at("ops", time)
    expected = None if end is None else datetime.fromisoformat(end)
    assert (None if holding is None else holding.end_of(time)) == expected
