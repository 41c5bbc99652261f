"""docs/sql.md: every worked example runs, over HTTP's snapshot and over the file, and finds what it is said to find."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.sample_evaluations import CLAUDE, MINIMAX, REFUND, SET, Made, evaluated

from analytics.adhoc import FORMATS, fetch_limited, fetch_rows, open_snapshot
from analytics.snapshots import build_snapshot, copy_database
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import DimensionScore, Exchange, Incident, Judgement, Record, Review, Score
from service.pages.sql import worked_examples

PAGE = (Path(__file__).parents[1] / "docs" / "sql.md").read_text("utf-8")
EXAMPLES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
FIRST = datetime(2026, 9, 1, 9, tzinfo=UTC)
DAYS = 28
CHANGE = 20
"""Days before the agent deployer gets worse."""
MIX = 13
"""Days before more of the agent helper's weaker turns are sampled."""
SPOKEN = "It left out what was asked."
RUNS = (
    *SET,
    Made(CLAUDE, REFUND, "s-0006", (9.0, 9.0, 9.0), answer="Done."),
)
"""Runs that were evaluated: two cases by two models."""


def score(day: int, number: int, agent: str, tier2: float | None, **said: Any) -> Score:
    """A score of a turn of a day."""
    at = FIRST + timedelta(days=day, minutes=number)
    judged = tier2 is not None
    dimensions = [("scope_compliance", tier2), ("information_completeness", tier2 - 0.1)] if tier2 is not None else []
    neutral: dict[str, Any] = {
        "score_id": f"{agent}-{day}-{number}", "revision": 0, "exchange_id": f"{agent}-{day}-{number}", "connection": "north",
        "project": "ops", "agent": agent, "session_id": f"{agent}-{day}", "turn_number": number, "exchange_at": at,
        "scored_at": at + timedelta(minutes=1), "disposition": "scored" if judged else "sampling_skip",
        "sampling_reason": "routine_sample" if judged else "sampling_skip", "sampling_probability": 1 / 3 if judged else None,
        "tier1_score": 1.0, "tier1_flags": [], "tier2_state": "scored" if judged else "skipped_sampling", "tier2_score": tier2,
        "tier2_dimensions": [DimensionScore(dimension=name, score=value, reasoning=SPOKEN) for name, value in dimensions],
        "tier2_5_state": "not_applicable", "tier3_state": "scored" if judged else "skipped_sampling",
        "tier3_score": 1 + 4 * tier2 if tier2 is not None else None, "anomaly": judged and tier2 < 0.5,
        "anomaly_reasons": [], "judge_model": "judge-1", "cost_usd": 0.002, "methodology": "default", "methodology_version": "1",
        "methodology_digest": "d", "rule_version": "1", "policy_digest": "p", "evidence_digest": "e",
    }  # fmt: skip
    return Score(**neutral | said)


def fleet() -> Iterator[tuple[str, Record]]:
    """Four weeks of two agents, anchors beside them, one incident, one rater; each record with its topic."""
    for day in range(DAYS):
        for number in range(1, 10):
            sampled = number % 3 == 0
            level = 0.9 if day < CHANGE else 0.5
            yield from judged(score(day, number, "deployer", level + 0.01 * (day % 3) if sampled else None))
            weak = number <= 3  # weak turns are always weak; from MIX on they are sampled three times as often
            chosen = number in (3, 6, 9) if day < MIX else weak or number in (6, 9)
            reason = {"sampling_reason": "first_turns", "sampling_probability": 1.0} if weak and day >= MIX else {}
            yield from judged(
                score(day, number, "helper", (0.6 if weak else 0.9) if chosen else None, **(reason if chosen else {}))
            )
        yield "scores", score(day, 99, "deployer", 0.8, project="anchors.ops", connection="anchors", score_id=f"anchor-{day}")
    late = FIRST + timedelta(days=12)
    yield "scores", score(5, 50, "helper", 0.9, scored_at=late, methodology_version="2")
    evidence = {"exchanges": [{"scoreId": "deployer-21-3", "exchangeId": "deployer-21-3"}]}
    yield "incidents", Incident(
        incident_id="i1", revision=0, project="ops", type="drift", tier="tier2", direction="down", status="open",
        severity="critical", title="Tier 2 fell", description="", metadata=json.dumps(evidence), detected_at=FIRST + timedelta(days=23),
        rule="sequential", cause="agent",
    )  # fmt: skip
    for made in RUNS:
        yield "evaluations", evaluated(made).evaluation
    for number, given in ((3, 2), (6, 3)):
        at = FIRST + timedelta(days=26)
        yield "reviews", Review(
            review_id=f"r{number}", project="ops", kind="human_score", subject_id=f"deployer-22-{number}", reviewer="ann",
            score=given, occurred_at=at, ingested_at=at,
        )  # fmt: skip


def judged(one: Score) -> Iterator[tuple[str, Record]]:
    """A score with its exchange, and the judge's calls it rests on: one more where the agent does badly."""
    yield "exchanges", Exchange(
        exchange_id=one.exchange_id, connection=one.connection, project=one.project, agent=one.agent, session_id=one.session_id,
        occurred_at=one.exchange_at, ingested_at=one.exchange_at, user_message="Deploy it.", agent_response="Done.", content_digest="d",
    )  # fmt: skip
    yield "scores", one
    tiers = () if one.tier2_score is None else ("tier2",) if one.tier2_score > 0.7 else ("tier2", "tier3")
    for tier in tiers:
        yield "judgements", Judgement(
            judgement_id=f"{one.score_id}-{tier}", fingerprint="f", connection=one.connection, project=one.project,
            session_id=one.session_id, subject_id=one.exchange_id, purpose=tier, requested_model="judge-1", outcome="answered",
            attempts=1, cost_usd=0.001, batched=False, simulated=False, judged_at=one.scored_at,
        )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The fleet's database, and a snapshot of it."""
    folder = tmp_path_factory.mktemp("examples")
    topics: dict[str, list[bytes]] = {}
    for topic, record in fleet():
        topics.setdefault(topic, []).append(encode(record))
    with Store(folder / "fleet.duckdb") as store:
        with store.transaction() as transaction:
            for topic, messages in topics.items():
                transaction.append(topic, messages)
        copy_database(store, folder / "copy.duckdb")
    build_snapshot(folder / "copy.duckdb", folder / "snapshot.duckdb", folder / "spill")
    return folder / "fleet.duckdb", folder / "snapshot.duckdb"


@pytest.fixture(scope="module")
def answers(files: tuple[Path, Path]) -> list[pl.DataFrame]:
    """What the snapshot answers to every example."""
    with open_snapshot(str(files[1]), memory=512 * 1024 * 1024, seconds=30) as connection:
        return [fetch_limited(connection, example, {}, 1000).frame for example in EXAMPLES]


def test_the_page_has_fourteen_examples() -> None:
    """Each question with a statement of its own."""
    assert len(re.findall(r"^### \d+\.", PAGE, re.MULTILINE)) == 14
    assert len(EXAMPLES) == 14


def of_agent(answer: pl.DataFrame, agent: str) -> pl.DataFrame:
    """The rows of an agent."""
    return answer.filter(pl.col("agent") == agent)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_file_answers_what_the_snapshot_answers(number: int, files: tuple[Path, Path], answers: list[pl.DataFrame]) -> None:
    """An analyst takes a statement from one to the other."""
    names, rows, _ = fetch_rows(files[0], EXAMPLES[number], 1000)

    assert answers[number].columns == names
    assert answers[number].height == len(rows)
    assert rows
    assert all(one.encode(answers[number]) for one in FORMATS.values())


def test_the_page_sql_finds_the_same_with_the_values_as_parameters(
    files: tuple[Path, Path], answers: list[pl.DataFrame]
) -> None:
    """There each value with a name beside it is a field."""
    shown = worked_examples()
    with open_snapshot(str(files[1]), memory=512 * 1024 * 1024, seconds=30) as connection:
        found = [fetch_limited(connection, one.sql, one.parameters, 1000).frame for one in shown]
    assert {name for one in shown for name in one.parameters} == {"agent", "case", "project"}
    assert [one.equals(other) for one, other in zip(answers, found, strict=True)] == [True] * len(answers)


def test_the_agent_that_got_worse_comes_first_and_the_other_did_not(answers: list[pl.DataFrame]) -> None:
    """Example 1: weighted, so that the helper's other mix is no change."""
    assert answers[0].select("project", "agent", "change").rows() == [("ops", "deployer", -0.38), ("ops", "helper", 0.0)]


def test_the_first_day_of_the_change_is_found(answers: list[pl.DataFrame]) -> None:
    """Example 2: the other agent has none, and is listed all the same."""
    assert (answers[1].select("project", "agent", "since", "days").rows()) == [
        ("ops", "deployer", date(2026, 9, 21), 8),
        ("ops", "helper", None, 0),
    ]


def test_the_agent_that_got_worse_costs_more(answers: list[pl.DataFrame]) -> None:
    """Example 3: two calls an exchange instead of one."""
    assert of_agent(answers[2], "deployer")["usd_an_exchange"].to_list() == [0.001, 0.001, 0.001, 0.002, 0.002]


def test_the_change_of_the_mix_is_seen(answers: list[pl.DataFrame]) -> None:
    """Example 4: from the third week on most judged turns are first ones."""
    weeks = of_agent(answers[3], "helper").filter(pl.col("sampling_reason") == "first_turns")
    assert weeks.select("week", "share").rows()[:2] == [(date(2026, 9, 14), 0.6), (date(2026, 9, 21), 0.6)]


def test_only_the_unweighted_mean_moves_with_the_mix(answers: list[pl.DataFrame]) -> None:
    """Example 5: nobody got worse."""
    assert [
        (round(row[0], 2), round(row[1], 1)) for row in of_agent(answers[4], "helper").select("unweighted", "weighted").rows()
    ] == [(0.81, 0.8), (0.8, 0.8), (0.72, 0.8), (0.72, 0.8), (0.72, 0.8)]


def test_what_came_late_stands_on_its_own_day(answers: list[pl.DataFrame]) -> None:
    """Example 6: the other days have none."""
    assert answers[5].with_columns(pl.col("most_days_late").round(0)).rows()[0] == (date(2026, 9, 6), "ops", 19, 1, 7.0)
    assert answers[5]["late"].to_list()[1:] == [0] * (DAYS - 1)


def test_methodologies_stand_side_by_side(answers: list[pl.DataFrame]) -> None:
    """Example 7."""
    assert (answers[6].select("methodology", "first_day", "last_day").rows()) == [
        ("default 1", date(2026, 9, 1), date(2026, 9, 28)),
        ("default 2", date(2026, 9, 6), date(2026, 9, 6)),
    ]


def test_anchors_stand_still_while_the_agent_falls(answers: list[pl.DataFrame]) -> None:
    """Example 8: it was not the judge."""
    weeks = of_agent(answers[7], "deployer")
    assert set(weeks["anchors"]) == {0.8}
    assert [weeks["agents"][0] >= 0.9, weeks["agents"][-1] >= 0.9] == [True, False]


def test_an_open_incident_shows_its_exchanges(answers: list[pl.DataFrame]) -> None:
    """Example 9."""
    assert (answers[8].select("title", "severity", "cause", "exchange_id", "tier2").rows()) == [
        ("Tier 2 fell", "critical", "agent", "deployer-21-3", 0.5)
    ]


def test_people_and_the_judge_are_compared(answers: list[pl.DataFrame]) -> None:
    """Example 10: who has scored, and how many exchanges nobody has scored yet."""
    assert answers[9].rows()[:1] == [("ops", "ann", 2, 2.5, 3.04, 0.54)]
    assert answers[9]["rater"].to_list()[1:] == ["nobody yet"]


def test_the_sessions_of_the_worst_day_are_shown_with_the_judge_s_words(answers: list[pl.DataFrame]) -> None:
    """Example 11."""
    assert (answers[10].rows()) == [
        (date(2026, 9, 22), "ops", "deployer", "deployer-21", 6, 0.45, "information_completeness", SPOKEN)
    ]


def test_models_are_set_beside_each_other_case_by_case(answers: list[pl.DataFrame]) -> None:
    """Example 12: one whose judge failed counts as failed, and in no mean."""
    shown = answers[11].select("case_id", "model", "runs", "failed", "mean", "judge_spread")
    assert shown.rows() == [
        ("monthly-report", MINIMAX, 1, 0, 6.5, 0.0),
        ("monthly-report", CLAUDE, 0, 1, None, None),
        ("refund-policy", CLAUDE, 2, 0, 9.25, 0.25),
        ("refund-policy", MINIMAX, 2, 0, 7.75, 0.75),
    ]


def test_the_dimension_that_pulls_a_score_down_comes_with_its_checks(answers: list[pl.DataFrame]) -> None:
    """Example 13: two answers do not name the amount."""
    weakest = answers[12].filter(pl.col("case_id") == "refund-policy").select("case_id", "dimension", "runs", "failing").rows()
    assert weakest[:1] == [("refund-policy", "task", 4, ["names-the-amount"])]
    assert [failing for *_, failing in weakest[1:]] == [None] * 5


def test_a_statement_from_tangleclaw_finds_the_worse_days(answers: list[pl.DataFrame]) -> None:
    """Example 14: unweighted, so the helper's other mix also counts, and exchanges that nobody sampled count nowhere."""
    days = answers[13].filter(pl.col("day").is_in(["2026-09-20", "2026-09-21"])).drop("usd").rows()
    assert days == [("ops", "2026-09-20", 8, 1.0, 0.79, 0), ("ops", "2026-09-21", 8, 1.0, 0.65, 0)]
    assert answers[13].height == DAYS
