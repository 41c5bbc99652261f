"""The commands on judging, run on databases that hold records of the judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from builders import judgement, score

from analytics.store import Store
from schemas.codec import encode
from schemas.records import Incident, Record
from service.simulator.serving import running

Command = Callable[..., tuple[int, str, str]]
TOPICS = {"Score": "scores", "Judgement": "judgements", "Incident": "incidents"}


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
        ("day", [("2026-10-01", 0.25, 1, 0), ("2026-10-02", 0.625, 0, 1)]),
        ("model", [("claude-haiku-4-5", 0.875, 0, 1), ("local-model", None, 1, 0)]),
    ],
)
def test_costs_are_summed_by_what_is_asked_for(driftline: Command, by: str, expected: list[Any]) -> None:
    """Each row says which group it is of, and nothing of the other groupings."""
    code, out, _ = driftline("costs", "--by", by, "--json")
    rows = [json.loads(line) for line in out.splitlines()]

    assert 0 == code
    groups = list(rows[0])[: list(rows[0]).index("judgements")]
    assert expected == [tuple(row[name] for name in (*groups, "cost_usd", "unknown_costs", "simulated")) for row in rows]


@pytest.mark.usefixtures("spent")
def test_costs_of_one_project(driftline: Command) -> None:
    """What others spent is nobody's business."""
    _, out, _ = driftline("costs", "--project", "ops", "--json")
    [row] = [json.loads(line) for line in out.splitlines()]
    assert ("ops", 2, 4, 1000, 200, 0.75) == tuple(
        row[name] for name in ("project", "judgements", "calls", "input_tokens", "output_tokens", "cost_usd")
    )


@pytest.mark.usefixtures("spent")
def test_the_table_of_costs_marks_what_is_simulated_or_unknown(driftline: Command) -> None:
    """Money that was not spent, and money nobody knows of, must not look like the rest."""
    code, out, _ = driftline("costs", "--by", "session")
    header, _, ops, web = (" ".join(line.split()) for line in out.splitlines())

    assert 0 == code
    assert header.startswith("project connection session ")
    assert ops.endswith(" $0.7500 -")
    assert web.endswith(" $0.1250 + 1 unknown simulated judge (1 of 2)")


@pytest.mark.usefixtures("spent")
def test_a_model_nobody_knows_the_price_of_has_no_cost(driftline: Command) -> None:
    """Unknown is not 0."""
    _, out, _ = driftline("costs", "--by", "model")
    [line] = [line for line in out.splitlines() if line.startswith("local-model")]
    assert "$" not in line
    assert line.split()[-3:] == ["1", "unknown", "-"]


def test_no_judgement_is_said_and_is_no_error(driftline: Command, tmp_path: Path) -> None:
    """The first thing a newcomer has is a database that no judge has seen."""
    database_of(tmp_path, [])
    assert (0, "") == driftline("costs", "--json")[:2]
    code, out, err = driftline("costs", "--project", "ops")
    assert (0, "") == (code, out)
    assert "the judge was never asked of project ops: nothing was spent" == err.strip()


def test_an_unknown_grouping_is_refused(driftline: Command, tmp_path: Path) -> None:
    """The message names those there are."""
    database_of(tmp_path, [])
    code, _, err = driftline("costs", "--by", "hour")
    assert 2 == code
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


def test_the_banner_has_the_project_s_settings_and_open_incidents(driftline: Command, tmp_path: Path) -> None:
    """Not the defaults, and not a zero that is never anything else."""
    database_of(tmp_path, [open_incident(1, "ops"), open_incident(2, "ops"), open_incident(3, "web")])
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nprojects:\n  ops:\n    costCapPerSession: null\n    sampling:\n      routineInterval: 4\n")
    code, out, _ = driftline("banner", "ops", "--policy", str(policy))

    assert 0 == code
    assert [
        "Eval Audit Mode: Active",
        "Judge model: none; only Tier 1 runs",
        "Tiers: 1 (structural)",
        "Sampling: every 4th routine, always first 5 / last 3",
        "Cost cap: none",
        "Open incidents: 2",
    ] == out.splitlines()


def test_the_banner_names_the_judge_where_there_is_a_key(
    driftline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project without records has a banner, too: it is shown before the first of them."""
    database_of(tmp_path, [])
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    _, out, _ = driftline("banner", "ops", "--json")
    document = json.loads(out)

    assert "ops" == document["project"]
    assert "Judge model: claude-haiku-4-5\n" in document["banner"]
    assert document["banner"].endswith("Open incidents: 0")


def test_the_banner_names_no_judge_where_none_is_wanted(
    driftline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that lies about is not used against the settings."""
    database_of(tmp_path, [])
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("DRIFTLINE_JUDGE", "none")
    _, out, _ = driftline("banner", "ops")
    assert "Judge model: none; only Tier 1 runs" in out.splitlines()


def test_the_banner_says_that_a_judge_is_simulated(driftline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers at the address of a judge and in its words; only it knows that it is none, and is asked."""
    database_of(tmp_path, [])
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        _, out, _ = driftline("banner", "ops")
    assert "Judge model: claude-haiku-4-5 (simulated judge)" in out.splitlines()


def test_the_table_of_scores_shows_every_tier_or_why_it_has_no_score(driftline: Command, tmp_path: Path) -> None:
    """Each state reads differently, and none like a score; what a simulated judge said is marked."""
    judged = {"disposition": "scored", "tier2_state": "scored", "tier2_score": 0.75, "tier2_5_alignment": 0.5}
    records = [
        score("s", 4, **judged, tier2_5_state="scored", tier3_state="scored", tier3_score=4.5, simulated=True),
        score("s", 3, **judged, tier2_5_state="not_applicable", tier3_state="skipped_gate"),
        score("s", 2, disposition="sampling_skip", tier2_state="skipped_sampling", tier3_state="skipped_sampling"),
        score("s", 1, disposition="skipped_cost_cap", tier2_state="skipped_cost_cap", tier3_state="unscored"),
    ]
    database_of(tmp_path, records)
    code, out, _ = driftline("scores")
    header, _, *shown = out.splitlines()

    assert 0 == code
    assert "turn sampling tier 1 tier 2 tier 2.5 tier 3 flags judged anomaly" in " ".join(header.split())
    assert ["0.75", "0.50", "4.50"] == shown_tiers(shown[0])
    assert ["0.75", "n/a", "gate"] == shown_tiers(shown[1])
    assert ["-", "n/a", "-"] == shown_tiers(shown[2])
    assert ["cap", "n/a", "unscored"] == shown_tiers(shown[3])
    assert [True, False, False, False] == ["scored, simulated judge" in line for line in shown]


def shown_tiers(line: str) -> list[str]:
    """The cells of Tiers 2, 2.5 and 3: they follow that of Tier 1, which is 1.00."""
    return line.split("1.00", 1)[1].split()[:3]
