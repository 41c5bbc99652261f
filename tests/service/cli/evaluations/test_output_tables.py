"""What `driftline evaluate` prints: the same at every width, with nothing left out, and as JSON by its schema."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import statistics
from pathlib import Path

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.evaluation_builders import published_schema
from support.sample_evaluations import HOSTILE, MINIMAX, REFUND, SET, Made, evaluated

from audit.evaluation.report import Report, mean_interval, report_of
from service.cli.evaluation_files import readable_json
from service.cli.evaluation_tables import SIMULATED_NOTE, UNKNOWN, evaluation_view, share_width, usd

GOLDEN = Path(__file__).parents[3] / "golden" / "evaluation"
HEADERS = [
    *("MODEL", "CASE", "RUN", "EVAL", "SCORE", "LATENCY_S", "IN_TOK", "OUT_TOK"),
    *("RUN_COST", "EVAL_COST", "TOTAL_COST", "WARNINGS"),
]


@pytest.fixture(scope="module")
def report() -> Report:
    """Return a report on two models and two cases."""
    return report_of([evaluated(one) for one in SET], fail_under=8.0)


def print_report(report: Report, width: int) -> str:
    """Return the report as printed on a terminal of this width."""
    console = Console(width=width, file=io.StringIO(), highlight=False, emoji=False)
    console.print(evaluation_view(report, width))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 200])
def test_the_printed_report_equals_the_reviewed_file(report: Report, width: int) -> None:
    """Any change of the text shows up in a diff."""
    assert (GOLDEN / f"table_{width}.txt").read_text("utf-8") == print_report(report, width)


def test_the_json_equals_the_reviewed_file(report: Report) -> None:
    """Scripts read the fields by name."""
    assert (GOLDEN / "report.json").read_text("utf-8") == readable_json(report)


def test_the_json_matches_its_published_schema(report: Report) -> None:
    """The schema also covers an empty report."""
    schema = published_schema("evaluation-report")
    for sample_report in (report, report_of([])):
        jsonschema_rs.validator_for(schema).validate(json.loads(readable_json(sample_report)))


def test_a_wide_table_keeps_the_order_of_its_columns(report: Report) -> None:
    """Users refer to the columns by name in their own documents."""
    assert print_report(report, 200).splitlines()[1].split() == HEADERS


@pytest.mark.parametrize("width", [80, 100, 120, 160, 200])
def test_no_width_cuts_a_number_or_breaks_a_line(report: Report, width: int) -> None:
    """Names may be shortened, but a truncated score or cost would be a different one."""
    text = print_report(report, width)
    assert {*HEADERS} <= set(text.split())
    assert {"$0.0193", "<$0.0001", "88.8", "failed", "6.50", "reuse", UNKNOWN} <= set(text.split())
    assert not [line for line in text.splitlines() if len(line) > width]


def test_a_missing_score_has_no_bar(report: Report) -> None:
    """An empty bar looks like a score of 0."""
    none = {"mean": None, "evaluations": 0}
    models = tuple(
        one.model_copy(update={"dimensions": {name: found.model_copy(update=none) for name, found in one.dimensions.items()}})
        for one in report.models
    )
    table = print_report(report.model_copy(update={"models": models}), 80)
    assert 6 * len(report.models) == table.count("    n/a\n")
    assert "░" not in table


def test_the_reason_of_an_uncounted_answer_is_beside_the_scores(report: Report) -> None:
    """With `failed` alone, a typo in the model's name would look like a judge that is down."""
    reasons = [one.reason for row in report.evaluations for one in row.result.judge_result.iterations if one.scores is None]
    assert set(reasons) == {"the API answered 529: overloaded"}
    assert re.search(rf"{len(reasons)} answers of the judge: .*529: overloaded\n", print_report(report, 80))


def test_a_simulated_judge_is_named_above_the_scores() -> None:
    """Simulated scores must not pass for a judgement."""
    text = print_report(report_of([evaluated(dataclasses.replace(SET[0], simulated=True))]), 80)
    assert text.splitlines()[0] == SIMULATED_NOTE
    assert SIMULATED_NOTE not in print_report(report_of([evaluated(SET[0])]), 80)


def test_hostile_names_stay_in_their_cells() -> None:
    """A session id may contain anything that its gateway accepts."""
    for name in HOSTILE:
        text = print_report(report_of([evaluated(Made(name, REFUND, name, (7.0, 7.0, 7.0)))]), 200)
        assert len([line for line in text.splitlines() if " exec " in line]) == 1
        assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_sums_of_costs_exclude_unknown_ones(report: Report) -> None:
    """An unknown cost is not zero: a total with one is unknown, and a sum gives the number of missing ones."""
    claude, minimax = report.models
    assert claude.unknown_costs == 1
    assert minimax.unknown_costs == 0
    reused = next(row for row in report.evaluations if row.evaluation == "reuse")
    assert reused.run_cost_usd is None
    assert reused.total_cost_usd is None
    assert reused.evaluation_cost_usd == pytest.approx(0.02175)
    assert report.spent_usd == pytest.approx(3 * 0.00725 * 2 + 0.00725)
    assert [usd(None), usd(0.0), usd(0.00009), usd(0.0001)] == [UNKNOWN, "$0.0000", "<$0.0001", "$0.0001"]


def test_a_failed_evaluation_is_excluded_from_the_mean(report: Report) -> None:
    """A missing score is not a score of zero."""
    claude = report.models[0]
    assert claude.evaluations == 2
    assert claude.failed == 1
    assert claude.mean == 9.5
    assert claude.low is None
    assert report.failed == 1
    assert report.below == 2


@given(st.lists(st.floats(0, 10), min_size=2, max_size=30))
def test_an_interval_contains_the_mean_and_stays_on_the_scale(scores: list[float]) -> None:
    """This holds for any scores."""
    low, high = mean_interval(scores) or (math.nan, math.nan)
    assert 0 <= low <= statistics.fmean(scores) + 1e-9
    assert statistics.fmean(scores) - 1e-9 <= high <= 10


def test_the_interval_uses_students_t() -> None:
    """For 7, 7.5 and 8: half a standard deviation over the root of three, times 4.3027 for two degrees of freedom."""
    assert mean_interval([7.0, 7.5, 8.0]) == pytest.approx((7.5 - 4.302653 * 0.5 / 3**0.5, 7.5 + 4.302653 * 0.5 / 3**0.5))
    assert mean_interval([7.0]) is None


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 150))
def test_width_is_shared_among_columns(needs: dict[str, int], room: int) -> None:
    """No column gets more than it needs, and all get what they need if there is room for four characters each."""
    rooms = share_width(needs, room)
    assert all(rooms[name] <= max(4, need) for name, need in needs.items())
    if sum(needs.values()) <= room:
        assert all(rooms[name] >= need for name, need in needs.items())
    if room >= 4 * len(needs):
        assert sum(rooms.values()) <= max(room, 4 * len(needs))


def test_two_judge_runs_have_separate_tables() -> None:
    """The scores of two judges are not repetitions: each judge has its own table, summary and bars."""
    evaluation = evaluated(SET[0])
    other = dataclasses.replace(
        evaluation, evaluation=msgspec.structs.replace(evaluation.evaluation, judge_run_id="once", evaluation_id="other")
    )
    text = print_report(report_of([evaluation, other]), 200)
    assert text.count("\nMODEL ") - 1 == 2
    assert re.findall("^Judge run (\\w+), by claude-haiku-4-5$", text, re.MULTILINE) == ["once", "three_times"]
    assert f"Dimensions of {MINIMAX}, judge run once" in text
