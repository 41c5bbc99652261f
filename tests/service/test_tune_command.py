"""`driftline tune`: runs of a database in, a proposal for the policy out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml
from support.builders import incident
from support.watch_histories import put

from analytics.store.store import Store
from audit.policy import load_policy
from service.cli.main import run as run_command


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with sixty runs of an agent, one of which took many tokens, and one run of another agent."""
    events = tmp_path / "events.jsonl"
    with events.open("w", encoding="utf-8") as lines:
        for number in range(61):
            agent = "rare" if number == 60 else "scout"
            tokens = 90_000 if number == 7 else 15_000
            said = [
                {
                    "event": "token_usage",
                    "usage": {"total": tokens},
                    "timestamp": f"2026-10-01T{number // 60:02}:{number % 60:02}:00Z",
                },
                {"event": "session_end", "timestamp": f"2026-10-01T{number // 60:02}:{number % 60:02}:01Z"},
            ]
            lines.write(json.dumps({"session_id": f"s{number}", "agent": agent, "project": "ops", "events": said}) + "\n")
    run_command(["import", "events", str(events), "--db", str(tmp_path / "a.duckdb"), "--project", "ops"])
    return tmp_path / "a.duckdb"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of the command."""
    capsys.readouterr()
    code = run_command(["tune", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_proposal_for_a_noisy_agent_can_be_pasted_into_a_policy(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test follows a user: see the flagged runs, copy the proposal, and see it take effect."""
    arguments = (
        "--project",
        "ops",
        "--agent",
        "scout",
        "--share",
        "0.02",
        "--db",
        str(database),
        "--as-of",
        "2026-10-02T00:00:00Z",
    )
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "60 runs, thresholds events-1" in out
    proposal = yaml.safe_load(out[out.index("projects:") :])
    assert proposal["projects"]["ops"]["detectors"]["agents"]["scout"]["events"] == {"sessionTokens": 16_000}
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"version": 1, **proposal}), "utf-8")
    load_policy(policy)
    code, out, _ = run(capsys, *arguments, "--policy", str(policy))
    assert "16,000" in out
    assert "nothing to change" in out


def test_the_days_of_an_incident_are_not_normal(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A threshold that fits the incident would hide it."""
    opened = incident(
        project="ops",
        agent="scout",
        rule="runs",
        tier="unsafe",
        confidence="confirmed",
        status="open",
        first_day=datetime(2026, 10, 1, tzinfo=UTC),
    )
    arguments = ("--project", "ops", "--agent", "scout", "--db", str(database), "--as-of", "2026-10-02T00:00:00Z", "--json")
    before = json.loads(run(capsys, *arguments)[1])
    with Store(database) as store:
        put(store, "incidents", [opened])
    code, _, error = run(capsys, *arguments)
    with Store(database) as store:
        put(store, "incidents", [msgspec.structs.replace(opened, revision=1, status="dismissed")])
    after = json.loads(run(capsys, *arguments)[1])

    assert before["runs"] == 60
    assert before["left_out"] == []
    assert code == 2
    assert "60 runs" in error
    assert opened.incident_id in error
    assert after["runs"] == 60


def test_json_has_every_threshold_with_its_flagged_runs(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users review the runs that a proposal would no longer flag."""
    _, out, _ = run(
        capsys, "--project", "ops", "--agent", "scout", "--db", str(database), "--as-of", "2026-10-02T00:00:00Z", "--json"
    )
    document = json.loads(out)
    row = next(one for one in document["thresholds"] if one["threshold"] == "critical_session_tokens")
    assert row["flagged"] == 1
    assert row["value"] == 30_000
    assert row["runs"] == [8]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--project", "opps"), "Did you mean ops?"),
        (("--project", "ops", "--agent", "scoutt"), "It has runs of: rare, scout."),
        (
            ("--project", "ops", "--agent", "scout", "--days", "1", "--as-of", "2026-12-01T00:00:00Z"),
            "Change --days or --as-of",
        ),
    ],
)
def test_missing_data_is_reported(
    arguments: tuple[str, ...], words: str, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty table would look like a healthy agent."""
    code, _, err = run(capsys, *arguments, "--db", str(database))
    assert code == 2
    assert words in " ".join(err.split())


def test_an_agent_with_few_runs_is_told_how_many_are_missing(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Silence would look like a proposal to change nothing."""
    _, out, _ = run(capsys, "--project", "ops", "--agent", "rare", "--db", str(database), "--as-of", "2026-10-02T00:00:00Z")
    assert "Too few runs for a proposal: 1 of 50." in out
