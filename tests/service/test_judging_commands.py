"""The commands on judging, run on databases that hold records of the judge."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.builders import exchange, judgement, score

from analytics.store.store import Store
from audit.policy import Policy, ProjectSettings
from driftline_trial.simulator.server import running
from schemas.codec.single_object import encode
from schemas.records import Incident, Label, Record
from service.cli.views import scores_table
from service.read.scores import ScoreFilter, project_scores
from service.setup.judge_setup import unpriced_note, unpriced_projects

Command = Callable[..., tuple[int, str, str]]
TOPICS = {"Exchange": "exchanges", "Score": "scores", "Judgement": "judgements", "Incident": "incidents"}


def database_of(folder: Path, records: Sequence[Record]) -> None:
    """A database in the folder with these records."""
    with Store(folder / "driftline.duckdb") as store, store.transaction() as transaction:
        for record in records:
            transaction.append(TOPICS[type(record).__name__], [encode(record)])


@pytest.fixture
def spent(tmp_path: Path) -> None:
    """A database in which three calls were paid for, one of them in another project, and one has no known price."""
    next_day = datetime(2026, 10, 2, tzinfo=UTC)
    database_of(
        tmp_path,
        [
            judgement("s", 1, cost_usd=0.25),
            judgement("s", 1, "tier3", cost_usd=0.5, attempts=3, judged_at=next_day),
            judgement("t", 1, cost_usd=0.125, project="web", simulated=True, judged_at=next_day),
            judgement("t", 2, cost_usd=None, project="web", requested_model="local-model"),
        ],
    )


@pytest.mark.usefixtures("spent")
@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("session", [("ops", "local", "s", 0.75, 0, 0), ("web", "local", "t", 0.125, 1, 1)]),
        ("project", [("ops", 0.75, 0, 0), ("web", 0.125, 1, 1)]),
        ("day", [("2026-10-02", 0.625, 0, 1), ("2026-10-01", 0.25, 1, 0)]),
        ("model", [("claude-haiku-4-5", 0.875, 0, 1), ("local-model", None, 1, 0)]),
    ],
)
def test_costs_are_grouped_as_requested(driftline: Command, by: str, expected: list[Any]) -> None:
    """Each row names its group and has no other grouping."""
    code, out, _ = driftline("costs", "--by", by, "--json")
    rows = [json.loads(line) for line in out.splitlines()]

    assert code == 0
    groups = {"session": ("project", "connection", "sessionId")}.get(by, (by,))
    assert [tuple(row[name] for name in (*groups, "costUsd", "unknownCosts", "simulated")) for row in rows] == expected


@pytest.mark.usefixtures("spent")
def test_costs_can_be_limited_to_a_project(driftline: Command) -> None:
    """The costs of other projects are not shown."""
    _, out, _ = driftline("costs", "--project", "ops", "--json")
    [row] = [json.loads(line) for line in out.splitlines()]
    assert row["project"] == "ops"
    assert row["judgements"] == 2
    assert row["calls"] == 4
    assert row["inputTokens"] == 1000
    assert row["outputTokens"] == 200
    assert row["costUsd"] == 0.75


@pytest.mark.usefixtures("spent")
def test_the_table_of_costs_marks_simulated_and_unknown_ones(driftline: Command) -> None:
    """They must not look like money that was spent."""
    code, out, _ = driftline("costs", "--by", "session")
    header, _, ops, web = (" ".join(line.split()) for line in out.splitlines())

    assert code == 0
    assert header.startswith("project connection session ")
    assert ops.endswith(" $0.7500 -")
    assert web.endswith(" $0.1250 + 1 unknown simulated judge (1 of 2)")


@pytest.mark.usefixtures("spent")
def test_a_model_without_a_known_price_has_no_cost(driftline: Command) -> None:
    """Unknown is not zero."""
    _, out, _ = driftline("costs", "--by", "model")
    [line] = [line for line in out.splitlines() if line.startswith("local-model")]
    assert "$" not in line
    assert line.split()[-3:] == ["1", "unknown", "-"]


def test_costs_of_agents_are_grouped_beside_those_of_judging(driftline: Command, tmp_path: Path) -> None:
    """A version that needs twice the tokens costs more than all judging; what is unknown is counted, and anchors are no agent's."""
    day = datetime(2026, 10, 1, 12, tzinfo=UTC)
    tokens = {"agent_model": "claude-haiku-4-5", "input_tokens": 1_000_000, "output_tokens": 100_000, "occurred_at": day}
    database_of(
        tmp_path,
        [
            exchange("s", 1, agent="scout", labels=(Label(name="agent_version", value="7"),), **tokens),
            exchange("s", 2, agent="scout", **{**tokens, "input_tokens": None}),
            exchange("t", 1, agent="odd", **{**tokens, "agent_model": "house-model"}),
            exchange("u", 1, project="anchors.ops", **tokens),
            judgement("s", 1, cost_usd=0.25, judged_at=day),
        ],
    )
    period = ("--since", "2026-10-01", "--until", "2026-10-02")
    _, out, _ = driftline("costs", "--agents", "--by", "agent", *period, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["agent"], row["costUsd"], row["unknownTokens"], row["unknownPrices"]) for row in rows] == [
        ("scout", 1.5, 1, 0),
        ("odd", None, 0, 1),
    ]
    for by, names in (("version", {"7", None}), ("model", {"claude-haiku-4-5", "house-model"}), ("day", {"2026-10-01"})):
        _, out, _ = driftline("costs", "--agents", "--by", by, *period, "--json")
        assert {json.loads(line)[by] for line in out.splitlines()} == names
    *_, last = driftline("costs", "--agents", *period)[1].splitlines()
    assert last.startswith("Agents: at most 1.5000 USD, without 2 exchanges of unknown cost. Judging: 0.2500 USD.")
    assert driftline("costs", "--by", "agent")[0] == 2


def test_without_judgements_the_command_says_so(driftline: Command, tmp_path: Path) -> None:
    """A newcomer's database has no judgements yet."""
    database_of(tmp_path, [])
    assert driftline("costs", "--json")[:2] == (0, "")
    code, out, err = driftline("costs")
    assert code == 0
    assert out == ""
    assert "no cost" in err


def test_an_unknown_grouping_is_refused(driftline: Command, tmp_path: Path) -> None:
    """The message lists the groupings."""
    database_of(tmp_path, [])
    code, _, err = driftline("costs", "--by", "hour")
    assert code == 2
    assert "session" in err


def open_incident(number: int, project: str) -> Incident:
    """An incident that nobody has decided on."""
    return Incident(
        incident_id=f"i{number}",
        revision=0,
        project=project,
        type="drift",
        status="open",
        severity="warning",
        title="t",
        description="d",
        metadata="{}",
        detected_at=datetime(2026, 10, 1, tzinfo=UTC),
    )


def test_the_banner_has_the_projects_settings_and_open_incidents(driftline: Command, tmp_path: Path) -> None:
    """It must show neither the defaults nor a constant zero."""
    database_of(tmp_path, [open_incident(1, "ops"), open_incident(2, "ops"), open_incident(3, "web")])
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nprojects:\n  ops:\n    costCapPerSession: null\n    sampling:\n      routineInterval: 4\n")
    code, out, _ = driftline("banner", "ops", "--policy", str(policy))

    assert code == 0
    assert out.splitlines() == [
        "Eval Audit Mode: Active",
        "Judge model: none; only Tier 1 runs",
        "Tiers: 1 (structural)",
        "Sampling: every 4th routine, always first 5 / last 3",
        "Cost cap: none",
        "Open incidents: 2",
    ]


def test_the_banner_names_the_judge_if_there_is_a_key(
    driftline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown before a project's first record."""
    database_of(tmp_path, [])
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    _, out, _ = driftline("banner", "ops", "--json")
    document = json.loads(out)

    assert document["project"] == "ops"
    assert "Judge model: claude-haiku-4-5\n" in document["banner"]
    assert document["banner"].endswith("Open incidents: 0. Not checked yet: there are no scores to check.")


def test_the_banner_names_no_judge_if_none_is_wanted(
    driftline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing key does not override the settings."""
    database_of(tmp_path, [])
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("DRIFTLINE_JUDGE", "none")
    _, out, _ = driftline("banner", "ops")
    assert "Judge model: none; only Tier 1 runs" in out.splitlines()


def test_the_banner_marks_a_simulated_judge(driftline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers like a real judge, and only the judge itself can tell."""
    database_of(tmp_path, [])
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        _, out, _ = driftline("banner", "ops")
    assert "Judge model: claude-haiku-4-5 (simulated judge)" in out.splitlines()


def test_the_table_of_scores_shows_each_tier_or_its_reason(driftline: Command, tmp_path: Path) -> None:
    """Each state reads differently and unlike a score, and simulated scores are marked."""
    judged = {"disposition": "scored", "tier2_state": "scored", "tier2_score": 0.75, "tier2_5_alignment": 0.5}
    records = [
        score("s", 4, **judged, tier2_5_state="scored", tier3_state="scored", tier3_score=4.5, simulated=True),
        score("s", 3, **judged, tier2_5_state="not_applicable", tier3_state="skipped_gate"),
        score("s", 2, disposition="sampling_skip", tier2_state="skipped_sampling", tier3_state="skipped_sampling"),
        score("s", 1, disposition="skipped_cost_cap", tier2_state="skipped_cost_cap", tier3_state="unscored"),
    ]
    database_of(tmp_path, records)
    code, out, _ = driftline("scores")
    header, _, *score_lines = out.splitlines()

    assert code == 0
    assert "project agent session turn sampling tiers 1, 2, 2.5, 3 judged, anomalies" in " ".join(header.split())
    assert shown_tiers(score_lines[0]) == ["0.75", "0.50", "4.50"]
    assert shown_tiers(score_lines[1]) == ["0.75", "n/a", "gate"]
    assert shown_tiers(score_lines[2]) == ["-", "n/a", "-"]
    assert shown_tiers(score_lines[3]) == ["cap", "n/a", "unsc"]
    assert ["scored, simulated judge" in line for line in score_lines] == [True, False, False, False]


def test_the_table_of_scores_gives_the_reasons_of_unscored_exchanges() -> None:
    """Each reason is given once."""
    spoiled = {"tier2_5_state": "unscored", "tier2_5_reason": "invalid"}
    session = "0193a7c2-1e4f-7f60-a2f4-6f5e7a0b9c3d"
    console = Console(width=130, file=io.StringIO())
    with Store(None) as store:
        with store.transaction() as transaction:
            for turn, states in ((1, spoiled), (2, {})):
                transaction.append("scores", [encode(score(session, turn, agent="support-desk", **states))])
        console.print(scores_table(project_scores(store.cursor(), None, ScoreFilter())), soft_wrap=True)
    header, _, first, *second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    assert " ".join(header.split()) == "exchange at project agent session turn sampling tiers 1, 2, 2.5, 3 judged, anomalies"
    assert "2026-10-01" in first
    assert first.rstrip().endswith("1.00 unsc  n/a unsc  unscored: no_judge")
    assert "unscored: no_judge, invalid" in " ".join(" ".join(second).split())


def test_json_scores_have_the_reason_of_every_tier(driftline: Command, tmp_path: Path) -> None:
    """A script should not need another query."""
    database_of(tmp_path, [score("s", 1)])
    document = json.loads(driftline("scores", "--full")[1])
    assert document["project"] == "ops"
    assert document["connection"] == "local"
    assert [document[f"{tier}Reason"] for tier in ("tier2", "tier2_5", "tier3")] == ["no_judge", "no_thinking", "no_judge"]


def test_an_invalid_project_has_no_banner(driftline: Command, tmp_path: Path) -> None:
    """A mistyped name must not get the settings of other projects."""
    database_of(tmp_path, [])
    for name in ("No/Project", "ops\n", ""):
        code, out, err = driftline("banner", name)
        assert code == 2
        assert out == ""
        assert "is not a valid project name" in err


UNPRICED = """version: 1
defaults: {judgeModel: claude-haiku-4-5}
projects:
  capped: {judgeModel: house-model}
  free: {judgeModel: house-model, costCapPerSession: null}
  silent: {judgeModel: house-model, enabled: false}
"""


@pytest.fixture
def unpriced(tmp_path: Path) -> str:
    """A policy in which one project of several has a cap and no price."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(UNPRICED)
    return str(policy)


def test_a_project_without_a_cap_hides_none_that_has_one() -> None:
    """Both may use one model, but only the capped one is not judged. Unaudited projects do not matter."""
    projects = {
        "capped": ProjectSettings(judge_model="house-model"),
        "free": ProjectSettings(judge_model="house-model", cost_cap_per_session=None),
        "silent": ProjectSettings(judge_model="house-model", enabled=False),
    }
    assert unpriced_projects(Policy(projects=projects)) == ["capped"]
    assert unpriced_projects(Policy(projects=dict(reversed(projects.items())))) == ["capped"]
    assert unpriced_note(Policy()) == ""
    assert unpriced_projects(Policy(defaults=projects["capped"], projects={"ops": projects["free"]})) == [""]
    assert "(others) (house-model)" in unpriced_note(Policy(defaults=projects["capped"]))


def test_a_note_on_many_projects_is_short() -> None:
    """A policy may name ten thousand projects."""
    projects = {f"p{number}": ProjectSettings(judge_model="house-model") for number in range(12)}
    assert unpriced_note(Policy(projects=projects)).endswith("p9 (house-model) and 2 more")


def test_policy_check_shows_judge_cap_price_and_unjudged_projects(driftline: Command, unpriced: str) -> None:
    """The author of a policy sees them before a server uses it."""
    code, out, err = driftline("policy", "check", unpriced)
    assert code == 0
    other_projects, capped, free, *_ = [" ".join(line.split()) for line in out.splitlines()[2:]]
    assert "(others) on default 1.0 1 routine turn in 3 claude-haiku-4-5 1 USD 1 / 5 USD" in other_projects
    assert " house-model 1 USD not known " in capped
    assert " house-model none not known " in free
    assert "unknown_price): capped (house-model)" in err
    assert "free" not in err
    assert json.loads(driftline("policy", "check", unpriced, "--json")[1])["capped"]["price"] == "not known"


def test_doctor_names_unjudged_projects(driftline: Command, unpriced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their owners believe that they are judged. The judge's address is shown."""
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        code, out, _ = driftline("doctor", "--policy", unpriced, "--json")
    findings = [(one["subject"], one["state"], one["detail"]) for one in json.loads(out)]
    assert code == 1
    assert ("judge", "note", f"simulated judge at {judge.base_url}") in findings
    [problem] = [detail for subject, state, detail in findings if (subject, state) == ("price", "problem")]
    assert problem.endswith(": capped (house-model)")


def test_doctor_reports_a_judge_that_does_not_answer(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody would notice before the first exchange."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # nothing listens there, and nobody else is given the port
        address = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
        code, out, _ = driftline("doctor", "--json")
    [judge] = [one for one in json.loads(out) if one["subject"] == "judge"]
    assert code == 0
    assert judge["state"] == "note"
    assert judge["detail"].startswith(f"the judge at {address} does not answer")


def shown_tiers(line: str) -> list[str]:
    """The cells of Tiers 2, 2.5 and 3: they follow that of Tier 1, which is 1.00."""
    return line.split("1.00", 1)[1].split()[:3]
