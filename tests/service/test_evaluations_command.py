"""`driftline evaluations`: what was evaluated, one of them whole, and what they come to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from support.builders import START, score
from support.sample_evaluations import CLAUDE, MINIMAX, REFUND, SET, Made, evaluated
from support.stored_sessions import filled

from analytics.store.store import Store
from audit.evaluation.report import RaterVerdict, agreement_with_people, on_the_scale_of_people
from schemas.records import Evaluation, Review

Command = Callable[..., tuple[int, str, str]]
RUNS = 32


@pytest.fixture(autouse=True)
def database(tmp_path: Path) -> Path:
    """A database with five evaluations, where commands run."""
    path = tmp_path / "driftline.duckdb"
    with Store(path) as store:
        filled(store, *(("evaluations", evaluated(made).evaluation) for made in SET))
    return path


def more_runs() -> list[Evaluation]:
    """Runs of one case by both models, two days apart: those of one are better by two."""
    samples = [
        Made(model, REFUND, f"run-{number}-{model[:3]}", (level + number % 3,) * 3, simulated=True)
        for number in range(RUNS // 2)
        for model, level in ((MINIMAX, 5.0), (CLAUDE, 7.0))
    ]
    evaluations = [evaluated(one).evaluation for one in samples]
    return [msgspec.structs.replace(one, run_at=START + timedelta(days=2 * number)) for number, one in enumerate(evaluations)]


def test_evaluations_are_listed_newest_first_and_filtered(driftline: Command) -> None:
    """Users want the latest ones, of a case or a run."""
    code, out, _ = driftline("evaluations")
    lines = out.splitlines()
    assert code == 0
    assert sum("shop" in line for line in lines) == 5
    [failed] = [line for line in lines if "failed" in line]
    assert all(word in failed for word in ("monthly-report", CLAUDE, "s-0005", "0 of 3"))
    documents = [json.loads(line) for line in driftline("evaluations", "--output", "json")[1].splitlines()]
    times = [one["evaluatedAt"] for one in documents]
    assert sorted(times, reverse=True) == times
    counts = [
        len(driftline("evaluations", *narrowed, "--output", "json")[1].splitlines())
        for narrowed in (("--case", "refund-policy"), ("--model", CLAUDE), ("--session", "s-0001"), ("--limit", "2"))
    ]
    assert counts == [3, 2, 1, 2]
    code, out, err = driftline("evaluations", "--project", "nowhere")
    assert code == 2
    assert out == ""
    assert "--project: there is no project 'nowhere'" in err
    code, out, err = driftline("evaluations", "--case", "nowhere")
    assert code == 0
    assert out == ""
    assert "no evaluation matches" in err


def test_an_evaluation_is_shown_completely(driftline: Command) -> None:
    """It has the contents of its file, or every answer of the judge as JSON."""
    code, out, _ = driftline("evaluations", "s-0001:refund-policy")
    assert code == 0
    assert out.splitlines()[0] == "# Evaluation result"
    document = json.loads(driftline("evaluations", "s-0001:refund-policy", "--output", "json")[1])
    assert len(document["evaluation"]["judgeResult"]["iterations"]) == 3
    code, _, err = driftline("evaluations", "nothing")
    assert code == 2
    assert "no evaluation 'nothing'" in err


def test_models_are_compared_with_an_interval(driftline: Command, database: Path) -> None:
    """With too few runs, the output gives the reason instead."""
    _, few_runs, _ = driftline("evaluations", "--by", "model")
    assert "not enough runs" in few_runs
    with Store(database) as store:
        filled(store, *(("evaluations", one) for one in more_runs()))
    code, out, err = driftline("evaluations", "--by", "model", "--case", "refund-policy")
    [line] = [line for line in out.splitlines() if "refund-policy" in line]
    assert code == 0
    assert "Simulated judge" in err
    [row] = [
        json.loads(line)
        for line in driftline("evaluations", "--by", "model", "--case", "refund-policy", "--output", "json")[1].splitlines()
    ]
    assert row["modelA"] == CLAUDE
    assert row["modelB"] == MINIMAX
    assert row["runsA"] == 17
    assert row["runsB"] == 18
    assert row["state"] == "enough"
    assert row["low"] < row["difference"] < row["high"] < 0
    assert f"{row['difference']:+.2f}" in line


def test_quality_is_shown_by_case_over_time(driftline: Command, database: Path) -> None:
    """The groups are the days, weeks or months in which the runs ended."""
    with Store(database) as store:
        filled(store, *(("evaluations", one) for one in more_runs()))
    months, weeks = (
        [
            json.loads(line)
            for line in driftline("evaluations", "--by", "case", "--unit", unit, "--output", "json")[1].splitlines()
        ]
        for unit in ("month", "week")
    )
    assert len(months) < len(weeks)
    assert sum(one["evaluations"] for one in months) == sum(one["evaluations"] for one in weeks) == RUNS + len(SET)
    _, out, _ = driftline("evaluations", "--by", "case")
    assert "95% INTERVAL" in out
    code, _, err = driftline("evaluations", "--by", "case", "--model", CLAUDE)
    assert code == 2
    assert re.search("--by .*--model, --session, --since or --until", err)


def test_verdicts_are_compared_with_human_scores(driftline: Command, database: Path) -> None:
    """Agreement with people is measured for the judge of runs as well."""
    runs = more_runs()
    with Store(database) as store:
        for number, run in enumerate(runs):
            stored_score = score(run.session_id, 1, connection=run.connection, project=run.project)
            review = Review(
                review_id=f"r{number}", project=run.project, kind="human_score", subject_id=stored_score.score_id, reviewer="ann",
                score=2 + round((run.final_score or 0) / 4), occurred_at=START, ingested_at=START,
            )  # fmt: skip
            filled(store, ("scores", stored_score), ("reviews", review))
        filled(store, *(("evaluations", one) for one in runs))
    code, out, _ = driftline("evaluations", "--by", "people")
    [row] = [json.loads(line) for line in driftline("evaluations", "--by", "people", "--output", "json")[1].splitlines()]

    assert code == 0
    assert row["judgeModel"] == "claude-haiku-4-5"
    assert row["unjudged"] == 0
    assert row["overall"]["state"] == "enough"
    assert row["overall"]["labels"] == RUNS
    assert row["overall"]["sessions"] == RUNS
    assert [one["rater"] for one in row["raters"]] == ["ann"]
    assert 0 < row["overall"]["kappa"] < 1
    assert "everybody" in out
    assert "ann" in out


@pytest.mark.parametrize(("final", "human"), [(0.0, 1.0), (5.0, 3.0), (10.0, 5.0), (7.5, 4.0)])
def test_verdicts_are_converted_to_the_human_scale(final: float, human: float) -> None:
    """The worst and the best values of both scales correspond."""
    assert on_the_scale_of_people(final) == human


def test_equal_scores_of_people_and_judge_agree() -> None:
    """Too few of them give no kappa."""
    reviews = [
        RaterVerdict(f"e{number}", ("c", f"s{number}"), "ann", 1.0 + number % 5, 2.5 * (number % 5)) for number in range(40)
    ]
    agreed = agreement_with_people(reviews).overall
    assert agreed.kappa == 1.0
    assert agreed.bias == 0.0
    assert agreement_with_people(reviews[:5]).overall.state == "not_enough_labels"
