"""The chart of score against cost: what is in it, what it says is not, and that names draw nothing else."""

from __future__ import annotations

import dataclasses
import importlib.util
import struct
from pathlib import Path

import pytest
from evaluated import HOSTILE, MINIMAX, REFUND, SET, Made, evaluated

from audit.evaluation.results.report import Report, report_of
from schemas.errors import SettingsError
from service.cli.evaluations.chart import LABELLED, LISTED, Point, drawn, points_of, require_charts, write_chart


@pytest.fixture(scope="module")
def report() -> Report:
    """The report on two models and two cases."""
    return report_of([evaluated(one) for one in SET])


def texts(report: Report) -> list[str]:
    """Every text of the chart, but for the numbers at its axes."""
    from matplotlib.text import Text  # takes a second, in every process that collects tests

    found = [one.get_text() for one in drawn(report).findobj(Text)]
    return [text.strip() for text in found if text.strip(".0123456789\u2212").strip()]


def test_a_point_is_a_model_on_a_case(report: Report) -> None:
    """Its runs are one point, at their mean; what has no score or no known cost is none."""
    first, second = points_of(report)
    assert Point(MINIMAX, "monthly-report", 6.5, pytest.approx(0.0121 + 0.00725), 1) == first
    assert Point(MINIMAX, "refund-policy", 7.75, pytest.approx((0.0121 + 0.00004) / 2 + 0.02175), 2) == second


def test_the_chart_says_what_is_not_in_it(report: Report) -> None:
    """A picture is shown without its table."""
    found = " ".join(" ".join(texts(report)).split())
    for said in (
        "Score against cost",
        "Not shown: 1 of unknown cost.",
        "Not shown: 1 without a score.",
        "refund-policy (2 runs)",
        MINIMAX,
    ):
        assert said in found
    assert "simulated" not in found


def test_a_simulated_judge_is_named_in_the_title() -> None:
    """Nobody may take the picture for a judgement."""
    report = report_of([evaluated(dataclasses.replace(SET[0], simulated=True))])
    assert "Score against cost of run and evaluation, simulated judge" in texts(report)


def test_labels_hide_neither_each_other_nor_points() -> None:
    """Five cases at nearly the same place stay readable."""
    made = [Made(MINIMAX, REFUND | {"case_id": f"case-{place}"}, "s", (8.0, 8.0, 8.0), run_cost=0.01) for place in range(5)]
    figure = drawn(report_of([evaluated(one) for one in made]))
    axes = figure.axes[0]
    boxes = [one.get_window_extent() for one in axes.texts]
    assert 5 == len(boxes)
    assert not [(a, b) for a in range(5) for b in range(a) if boxes[a].overlaps(boxes[b])]


@pytest.mark.parametrize("many", [2, LABELLED, LISTED - 2])
def test_cases_without_room_beside_their_points_are_numbered_and_listed(many: int) -> None:
    """Labels on top of each other say nothing; numbers do, and all of it is in the picture."""
    from matplotlib.legend import Legend  # late, as above

    names = [f"case-{place:02}-with-a-name-that-takes-room" for place in range(many)]
    made = [Made(model, REFUND | {"case_id": name}, "s", (8.0, 8.0, 8.0)) for name in names for model in (MINIMAX, "other" * 6)]
    figure = drawn(report_of([evaluated(one) for one in made]))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    is_listed = many > 2
    assert (
        sorted([str(1 + place) for place in range(many)] * 2) == sorted(one.get_text() for one in axes.texts) or not is_listed
    )
    legends = [one for one in figure.findobj(Legend) if isinstance(one, Legend)]
    assert (2 if is_listed else 1) == len(legends)
    whole = figure.bbox
    boxes = [legend.get_window_extent() for legend in legends]
    assert not is_listed or not boxes[0].overlaps(boxes[1])
    for box in boxes:
        assert (True, True) == (box.x1 <= whole.x1, box.y0 >= whole.y0)


def test_very_many_cases_are_not_named() -> None:
    """A list that is longer than the picture says less than a word that there is none."""
    made = [Made(MINIMAX, REFUND | {"case_id": f"case-{place}"}, "s", (8.0, 8.0, 8.0)) for place in range(LISTED + 1)]
    report = report_of([evaluated(one) for one in made])
    assert not drawn(report).axes[0].texts
    assert "There are too many cases to name them." in " ".join(" ".join(texts(report)).split())


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """Formulas, underscores and direction marks in a model's name neither fail nor change the picture's words."""
    for place, name in enumerate((*HOSTILE, "$\\frac{1}{", "_hidden", "模型")):
        path = tmp_path / f"{place}.png"
        report = report_of([evaluated(Made(name, REFUND, "s", (8.0, 8.0, 8.0)))])
        write_chart(report, path)
        assert b"\x89PNG\r\n\x1a\n" == path.read_bytes()[:8]
    report = report_of([evaluated(Made("_hid$x^2$den", REFUND, "s", (8.0, 8.0, 8.0)))])
    assert "_hid$x^2$den" in texts(report)


def test_the_picture_is_a_png_of_the_same_bytes_each_time(report: Report, tmp_path: Path) -> None:
    """Nothing of the time, the machine or a user's settings of the library is in it."""
    one, other = tmp_path / "one.png", tmp_path / "other.png"
    write_chart(report, one)
    write_chart(report, other)
    assert one.read_bytes() == other.read_bytes()
    assert (1350, 900) == struct.unpack(">II", one.read_bytes()[16:24])


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    """An empty picture without a word looks like a fault."""
    empty = report_of([evaluated(SET[4])])
    assert "There is nothing to show." in " ".join(" ".join(texts(empty)).split())
    write_chart(empty, tmp_path / "empty.png")


def test_costs_that_differ_much_get_a_logarithmic_axis() -> None:
    """Else all cheap ones stand on one line at the left."""
    made = [Made(MINIMAX, REFUND | {"case_id": f"case-{cost}"}, "s", (8.0, 8.0, 8.0), run_cost=cost) for cost in (0.01, 9.0)]
    assert "log" == drawn(report_of([evaluated(one) for one in made])).axes[0].get_xscale()


def test_what_is_missing_is_said_before_anything_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is an extra; the error says how to get it."""
    with pytest.raises(SettingsError, match="a chart must be a PNG"):
        require_charts(Path("chart.pdf"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match="matplotlib is not installed") as caught:
        require_charts(Path("chart.png"))
    assert "pip install matplotlib" in caught.value.hint
