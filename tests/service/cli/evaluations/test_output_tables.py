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
from service.cli.evaluation_tables import SIMULATED_NOTE, UNKNOWN, evaluation_view, shared, usd

GOLDEN = Path(__file__).parents[3] / "golden" / "evaluation"
HEADERS = [
    *("MODEL", "CASE", "RUN", "EVAL", "SCORE", "LATENCY_S", "IN_TOK", "OUT_TOK"),
    *("RUN_COST", "EVAL_COST", "TOTAL_COST", "WARNINGS"),
]


@pytest.fixture(scope="module")
def report() -> Report:
    """The report on two models and two cases."""
    return report_of([evaluated(one) for one in SET], fail_under=8.0)


def printed(report: Report, width: int) -> str:
    """The report as a terminal of so many columns shows it."""
    console = Console(width=width, file=io.StringIO(), highlight=False, emoji=False)
    console.print(evaluation_view(report, width))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 200])
def test_what_is_printed_is_as_it_was_checked_by_eye(report: Report, width: int) -> None:
    """Any change of what people read shows here."""
    assert (GOLDEN / f"table_{width}.txt").read_text("utf-8") == printed(report, width)


def test_the_json_is_as_it_was_checked_by_eye(report: Report) -> None:
    """Scripts read it by its names."""
    assert (GOLDEN / "report.json").read_text("utf-8") == readable_json(report)


def test_the_json_keeps_its_published_schema(report: Report) -> None:
    """What is printed is what the schema promises, for nothing found, too."""
    schema = published_schema("evaluation-report")
    for one in (report, report_of([])):
        jsonschema_rs.validator_for(schema).validate(json.loads(readable_json(one)))


def test_a_wide_table_has_the_columns_in_their_order(report: Report) -> None:
    """They are found by name in what others have written about it."""
    assert printed(report, 200).splitlines()[1].split() == HEADERS


@pytest.mark.parametrize("width", [80, 100, 120, 160, 200])
def test_no_width_cuts_a_number_or_breaks_a_line(report: Report, width: int) -> None:
    """Names may be shortened; a score or a cost that is cut is another one."""
    text = printed(report, width)
    assert {*HEADERS} <= set(text.split())
    assert {"$0.0193", "<$0.0001", "88.8", "failed", "6.50", "reuse", UNKNOWN} <= set(text.split())
    assert not [line for line in text.splitlines() if len(line) > width]


def test_what_has_no_score_has_no_bar(report: Report) -> None:
    """An empty bar looks like a score of 0."""
    none = {"mean": None, "evaluations": 0}
    models = tuple(
        one.model_copy(update={"dimensions": {name: found.model_copy(update=none) for name, found in one.dimensions.items()}})
        for one in report.models
    )
    shown = printed(report.model_copy(update={"models": models}), 80)
    assert 6 * len(report.models) == shown.count("    n/a\n")
    assert "░" not in shown


def test_why_answers_do_not_count_is_said_where_the_scores_stand(report: Report) -> None:
    """`failed` alone sends people to the files, and a typing error in the model's name looks like a judge that is down."""
    reasons = [one.reason for row in report.evaluations for one in row.result.judge_result.iterations if one.scores is None]
    assert set(reasons) == {"the API answered 529: overloaded"}
    assert re.search(rf"{len(reasons)} answers of the judge: .*529: overloaded\n", printed(report, 80))


def test_a_simulated_judge_is_named_above_the_scores() -> None:
    """Nobody may take them for a judgement."""
    text = printed(report_of([evaluated(dataclasses.replace(SET[0], simulated=True))]), 80)
    assert text.splitlines()[0] == SIMULATED_NOTE
    assert SIMULATED_NOTE not in printed(report_of([evaluated(SET[0])]), 80)


def test_hostile_names_stay_in_their_cells() -> None:
    """A session's id may hold whatever its gateway let through."""
    for name in HOSTILE:
        text = printed(report_of([evaluated(Made(name, REFUND, name, (7.0, 7.0, 7.0)))]), 200)
        assert len([line for line in text.splitlines() if " exec " in line]) == 1
        assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_costs_are_sums_of_what_is_known(report: Report) -> None:
    """An unknown cost is not zero: a total with one is unknown, and a sum says how many are missing."""
    claude, minimax = report.models
    assert claude.unknown_costs == 1
    assert minimax.unknown_costs == 0
    reused = next(row for row in report.evaluations if row.evaluation == "reuse")
    assert reused.run_cost_usd is None
    assert reused.total_cost_usd is None
    assert reused.evaluation_cost_usd == pytest.approx(0.02175)
    assert report.spent_usd == pytest.approx(3 * 0.00725 * 2 + 0.00725)
    assert [usd(None), usd(0.0), usd(0.00009), usd(0.0001)] == [UNKNOWN, "$0.0000", "<$0.0001", "$0.0001"]


def test_a_failed_evaluation_is_in_no_mean(report: Report) -> None:
    """No score is not a score of zero."""
    claude = report.models[0]
    assert claude.evaluations == 2
    assert claude.failed == 1
    assert claude.mean == 9.5
    assert claude.low is None
    assert report.failed == 1
    assert report.below == 2


@given(st.lists(st.floats(0, 10), min_size=2, max_size=30))
def test_an_interval_holds_the_mean_and_stays_on_the_scale(scores: list[float]) -> None:
    """Whatever the scores are."""
    low, high = mean_interval(scores) or (math.nan, math.nan)
    assert 0 <= low <= statistics.fmean(scores) + 1e-9
    assert statistics.fmean(scores) - 1e-9 <= high <= 10


def test_the_interval_is_students() -> None:
    """7, 7.5 and 8: half a standard deviation over the root of three, times 4.3027 for two degrees of freedom."""
    assert mean_interval([7.0, 7.5, 8.0]) == pytest.approx((7.5 - 4.302653 * 0.5 / 3**0.5, 7.5 + 4.302653 * 0.5 / 3**0.5))
    assert mean_interval([7.0]) is None


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 150))
def test_room_is_shared_out(needs: dict[str, int], room: int) -> None:
    """Nobody gets more than is needed, all get it where there is room, and the room is kept where it is enough for four each."""
    rooms = shared(needs, room)
    assert all(rooms[name] <= max(4, need) for name, need in needs.items())
    if sum(needs.values()) <= room:
        assert all(rooms[name] >= need for name, need in needs.items())
    if room >= 4 * len(needs):
        assert sum(rooms.values()) <= max(room, 4 * len(needs))


def test_two_judge_runs_stand_beside_each_other() -> None:
    """The scores of two judges are no repetitions of each other: each has its own table, summary and bars."""
    one = evaluated(SET[0])
    other = dataclasses.replace(
        one, evaluation=msgspec.structs.replace(one.evaluation, judge_run_id="once", evaluation_id="other")
    )
    text = printed(report_of([one, other]), 200)
    assert text.count("\nMODEL ") - 1 == 2
    assert re.findall("^Judge run (\\w+), by claude-haiku-4-5$", text, re.MULTILINE) == ["once", "three_times"]
    assert f"Dimensions of {MINIMAX}, judge run once" in text
