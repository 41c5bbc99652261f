"""Actions of an incident: each only where its evidence is, with a link or a command that can be copied."""

from __future__ import annotations

import re
import shlex
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.incident_evidence import RULE, build_example, build_incident, build_slice, deployment_evidence, slice_evidence

from service.cli.main import run
from service.read.incident_actions import ACTION_RULES, MAX_EXAMPLES, Action
from service.read.why import why

OLD = build_slice("6", shares=(1.0, 0.5), meanBefore=0.9, meanAfter=0.9, exchangesBefore=271, exchangesAfter=22)
ROLL_BACK = slice_evidence(build_slice("7"), OLD)
INSIDE = slice_evidence(build_slice("acme", label="tenant", shares=(0.2, 0.2), meanBefore=0.9))
MIX = {"label": "agent", "shares": "a 20% → 70%", "words": "The mix of agents changed, and the mean with it."}
MIXED = {"slices": {**ROLL_BACK["slices"], "mix": MIX}}
CAUSE = {"cause": None, "words": "The anchors cannot tell."}
LIFE: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("check_judge", {"cause": {"cause": "judge", "words": "The judge explains most of it."}}, {"cause": "judge"}),
    ("check_both", {"cause": {**CAUSE, "reason": "contradiction"}}, {}),
    ("check_mix", MIXED, {"cause": "mix"}),
    ("roll_back", ROLL_BACK, {}),
    ("read_sessions", {"exchanges": [build_example("a", "s")]}, {}),
    (
        "read_runs",
        {"runs": [{"runId": "run_001", "sessionId": "s"}]},
        {"rule": "runs", "tier": "unsafe", "direction": "up", "agent": "scout"},
    ),
    ("look_at_part", INSIDE, {}),
    ("check_deployment", {"deployments": [deployment_evidence("7")]}, {}),
    ("new_normal", {}, {"direction": "up"}),
    ("compare_policies", {"note": "The policy differs before and after."}, {}),
    ("anchors", {"cause": {**CAUSE, "reason": "no_anchors"}}, {}),
    ("widen_sampling", {"rules": {"sequential": RULE | {"sessionsAfter": 5}}}, {}),
    ("send_labels", slice_evidence(build_slice("7"), state="no_labels"), {}),
    ("check_again", {}, {"confidence": "suspected"}),
)
"""Each rule with evidence for which it holds."""


def actions(evidence: dict[str, Any], **fields: Any) -> dict[str, Action]:
    """The actions of an incident by their ids."""
    return {one.id: one for one in why(build_incident(evidence, **fields)).actions}


def test_every_rule_has_evidence_in_these_tests() -> None:
    """Every rule needs evidence in these tests, or it may never apply."""
    assert [name for name, *_ in LIFE] == list(ACTION_RULES)


@pytest.mark.parametrize(("name", "evidence", "fields"), LIFE, ids=list(ACTION_RULES))
def test_a_rule_applies_to_its_evidence_and_has_a_link_or_command(
    name: str, evidence: dict[str, Any], fields: dict[str, Any]
) -> None:
    """Every recommended action needs a link or a command."""
    action = actions(evidence, **fields)[name]
    assert action.links or action.command
    assert action.because


def test_a_changed_mix_gives_no_advice_against_an_agent() -> None:
    """A change explained by the mix must not be attributed to a version."""
    advice = actions(MIXED, cause="mix")
    assert {"roll_back", "look_at_part"}.isdisjoint(advice)


@pytest.mark.parametrize("name", list(ACTION_RULES))
def test_no_rule_applies_without_its_evidence(name: str) -> None:
    """An action must depend on the incident's evidence."""
    assert name not in actions({})


@pytest.mark.parametrize(("name", "evidence", "fields"), LIFE, ids=list(ACTION_RULES))
def test_a_command_exists_with_its_options(
    name: str, evidence: dict[str, Any], fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A command copied at night must work."""
    action = actions(evidence, **fields)[name]
    for command in filter(None, [action.command, *(one.command for one in action.links)]):
        program, *arguments = shlex.split(command)
        names = [word.split("=")[0] for word in arguments if word.startswith("--")]
        option_index = next((at for at, word in enumerate(arguments) if word.startswith("--")), len(arguments))
        groups = [arguments[:at] for at in (min(option_index, 2), 1)]
        assert program == "driftline"
        assert any(run([*group, "--help"]) == 0 for group in groups)
        help_text = capsys.readouterr().out
        assert [one for one in names if one not in help_text] == [], command


def test_a_new_version_is_rolled_back_to_the_last_good_one() -> None:
    """The advice has the figures of both versions and says that they prove no cause."""
    found = actions(ROLL_BACK | {"deployments": [deployment_evidence("7", url="https://ci.example/7")]})
    back = found["roll_back"]
    assert back.title == "Roll back agent_version from 7 to 6"
    because = back.because
    assert re.search("agent_version 7 .*0.05 .*25 judged turns", because)
    assert re.search("agent_version 6 .*0.90 .*271 judged turns", because)
    assert "do not prove" in back.because
    assert "in your own deployment system" in because
    assert "only records" in back.command_note
    assert back.links[0].path == "https://ci.example/7"
    assert back.command == "driftline deployments add 6 --project ops --label agent_version"
    assert not {"check_deployment", "look_at_part"} & found.keys()


@pytest.mark.parametrize(
    "best",
    [
        build_slice("7", shares=(0.5, 0.5), meanBefore=0.9),  # it was there before, and well
        build_slice("acme", label="tenant"),  # nobody rolls a customer back
        build_slice("", kind="not_given"),
    ],
)
def test_what_is_no_new_version_is_looked_at_and_not_rolled_back(best: dict[str, Any]) -> None:
    """A rollback that cannot undo the change must not be recommended."""
    found = actions(slice_evidence(best, OLD))
    assert found.keys() & {"look_at_part", "roll_back"} == {"look_at_part"}


def test_a_better_version_is_not_rolled_back() -> None:
    """The change is for the better."""
    assert "roll_back" not in actions(ROLL_BACK, direction="up")


def test_three_sessions_are_named_each_another_one_and_usual_ones_beside_them() -> None:
    """Three turns of one session are one example."""
    moved = [build_example(f"m{number}", f"s{number // 2}") for number in range(12)]
    read = actions({"exchanges": moved, "usual": [build_example("before", "u", 0.95)]})["read_sessions"]
    assert len(read.links) == MAX_EXAMPLES + 1
    asked = [urlsplit(one.path) for one in read.links[:MAX_EXAMPLES]]
    assert [one.path for one in asked] == [f"/projects/ops/sessions/s{number}" for number in range(MAX_EXAMPLES)]
    assert [one.fragment for one in asked] == ["score-m0", "score-m2", "score-m4"]
    assert read.links[-1].title.startswith("Before the change: Answer quality 0.95")


@pytest.mark.parametrize(
    ("usual", "title", "because"),
    [
        (
            ["u", "v"],
            "Read these 5 turns",
            "first 3 moved answer quality most since 2026-10-28; the last 2 ",
        ),
        (
            ["u", "u"],
            "Read these 4 turns",
            "first ones moved answer quality most since 2026-10-28; the last one ",
        ),
        (["s0"], "Read these 3 turns", "moved answer quality most since 2026-10-28"),
        ([], "Read these 3 turns", "moved answer quality most since 2026-10-28"),
    ],
)
def test_the_heading_counts_the_sessions_that_are_listed(usual: list[str], title: str, because: str) -> None:
    """Three in the heading and five below it make one look for the three."""
    moved = [build_example(f"m{number}", f"s{number}") for number in range(3)]
    before = [build_example(f"b{number}", session, 0.95) for number, session in enumerate(usual)]
    read = actions({"exchanges": moved, "usual": before})["read_sessions"]
    assert read.title == title
    assert because in read.because
    assert len(read.links) == int(title.split()[2])


def test_a_rollback_stands_before_what_is_only_read() -> None:
    """It ends the harm; whether the judge changed comes before it, because then there is nothing to undo."""
    evidence = ROLL_BACK | {"exchanges": [build_example("a", "s")], "cause": {"cause": "judge", "words": "The judge."}}
    assert list(actions(evidence))[:2] == ["roll_back", "read_sessions"]
    assert list(actions(evidence, cause="judge"))[:3] == ["check_judge", "roll_back", "read_sessions"]


@pytest.mark.parametrize("status", ["resolved", "dismissed"])
def test_an_incident_that_is_over_is_only_read(status: str) -> None:
    """A decided incident needs no rollback any more."""
    evidence = {
        "exchanges": [build_example("a", "s")],
        **ROLL_BACK,
        "note": "differs",
        "cause": {**CAUSE, "reason": "no_anchors"},
    }
    assert list(actions(evidence, status=status)) == ["read_sessions"]


def test_anchors_are_missed_for_judged_tiers_even_if_rules_tell_of_runs() -> None:
    """The cause of runs is known by rules; whether the judge moved Tier 2 is not."""
    tiers = {"tier2": {"reason": "few_rounds_before"}, "unsafe of scout": {"reason": "rules", "cause": "agent"}}
    found = actions({"cause": {"cause": "agent", "reason": "rules", "words": "By rules.", "tiers": tiers}}, cause="agent")
    assert found["anchors"].command == "driftline anchors run --project ops"
    assert "anchors" not in actions({"cause": {"reason": "rules", "tiers": {"tier1": {"reason": "no_anchors"}}}})


def test_what_senders_named_is_quoted_and_opens_no_script() -> None:
    """A version may be called anything, and a deployment's address is only opened if it is of the web."""
    hostile = "7'; rm -rf / #\u202e"
    found = actions(
        {
            **slice_evidence(build_slice("8"), OLD | {"value": hostile}),
            "deployments": [deployment_evidence("8", url="javascript:alert(1)")],
        }
    )
    back = found["roll_back"]
    assert shlex.split(back.command or "")[:4] == ["driftline", "deployments", "add", hostile]
    assert "\u202e" not in back.title
    assert all(one.path.startswith("/") for one in back.links)
