"""Charts of known, unknown, odd and hostile numbers, with the same information in text."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from support.pages import drawn_charts

from service.pages.charts import Band, Chart, Mark, Point, bars, line, locate_mark, share_bar, spark, stacked_bars
from service.pages.rendering import NOTHING, share, usd

CHART = Chart(key="tier2", title="Tier 2", words="Means day by day.", limits=(1, 5))
ANY = Chart(key="any", title="Anything")
NUMBERS = st.none() | st.floats(allow_nan=True, allow_infinity=True)
HOSTILE = '"><script>alert(1)</script>\u202e\x00&'
FIRST, DAY = datetime(2026, 10, 1, tzinfo=UTC), timedelta(days=1)


def days(*values: float | None, **fields: Any) -> list[Point]:
    """Return points of consecutive days."""
    return [
        Point(f"{FIRST + place * DAY:%Y-%m-%d}", value, at=FIRST + place * DAY, **fields) for place, value in enumerate(values)
    ]


def parse_markup(markup: Markup) -> ET.Element:
    """Return the markup, parsed strictly: every element is closed, every text escaped."""
    text = str(markup).replace('" open>', '" open="">')
    return ET.fromstring(f"<x>{text}</x>")  # noqa: S314 - markup of ours


def table(markup: Markup) -> list[list[str]]:
    """Return the rows of a chart's table, the headings first."""
    return [["".join(cell.itertext()) for cell in row] for row in parse_markup(markup).iter("tr")]


def drawn(markup: Markup) -> dict[str, Any]:
    """Return the values that the script draws."""
    [values] = drawn_charts(markup).values()
    return values


def legend(markup: Markup) -> list[str]:
    """Return the names in a legend."""
    return ["".join(one.itertext()).strip() for one in parse_markup(markup).iter("li")]


def test_a_chart_has_a_summary_and_a_table() -> None:
    """Readers without sight or scripts must get the same information; tooltips are rows of the table."""
    chart = line(CHART, days(4.0, None, 3.5), marked={"2026-10-03"})
    figure = parse_markup(chart)[0]
    assert figure.get("aria-label") == "Tier 2"
    assert figure[0].text == "Means day by day."
    assert table(chart) == [
        ["Day", "Value", "Marked"], ["2026-10-01", "4.00", ""], ["2026-10-02", NOTHING, ""], ["2026-10-03", "3.50", "marked"]
    ]  # fmt: skip


def test_a_mean_has_its_count_and_its_interval() -> None:
    """As dots, two scores and two hundred look alike; no interval exceeds the scale."""
    points = [Point("a", 4.9, count=2, half=0.3), Point("b", None), Point("c", 3.0, count=1)]
    assert table(line(CHART, points)) == [
        ["Day", "Value", "Scores", "95% interval"],
        ["a", "4.90", "2", "4.60 to 5.00"], ["b", NOTHING, NOTHING, NOTHING], ["c", "3.00", "1", NOTHING],
    ]  # fmt: skip


def test_the_previous_period_is_a_second_line_and_a_column() -> None:
    """A fall that recurs every week is normal."""
    for chart in (line(CHART, days(4.0, 2.0), previous=[3.0, None]), bars(CHART, days(4.0, 2.0), previous=[3.0, None])):
        assert [row[-1] for row in table(chart)] == ["Period before", "3.00", NOTHING]
        assert drawn(chart)["previous"] == [3.0, None]
        assert "The period before" in legend(chart)
    assert "Period before" not in line(CHART, days(4.0, 2.0))


def test_a_day_without_values_is_a_gap() -> None:
    """A day without scores must not be drawn as zero."""
    assert drawn(line(CHART, days(4.0, 3.0, None, 2.0)))["series"] == [[4.0, 3.0, None, 2.0]]


def test_the_band_follows_the_baseline() -> None:
    """Each day is compared with the baseline in force on that day."""
    chart = line(CHART, days(4.0, 2.0, 3.0), band=[Band(3.5, 0.5), Band(3.5, 0.5), Band(2.0, 0.25)])
    assert drawn(chart)["band"] == [[0, 1, 3.0, 3.5, 4.0], [2, 2, 1.75, 2.0, 2.25]]
    assert drawn(line(CHART, days(4.0, 2.0), band=Band(3.5, 0.5)))["band"] == [[0, 1, 3.0, 3.5, 4.0]]


@pytest.mark.parametrize(("form", "name"), [(None, "number"), (usd, "usd"), (share, "share")])
def test_axis_and_table_use_the_same_format(form: Any, name: str) -> None:
    """The axis and the table must use the same unit."""
    assert drawn(line(Chart(key="x", title="x", form=form), days(1.0)))["form"] == name


def test_too_many_parts_are_combined() -> None:
    """Twelve colours cannot be told apart; the table lists every part."""
    chart = stacked_bars(ANY, days(None), {f"m{place}": [1.0] for place in range(12)})
    assert legend(chart) == ["m0", "m1", "m2", "m3", "m4", "m5", "Other (6)"]
    assert drawn(chart)["series"] == [[1.0]] * 6 + [[6.0]]
    assert len(table(chart)[0]) == 1 + 12


@pytest.mark.parametrize("values", [(), (None,), (math.nan, math.inf)])
def test_without_values_there_is_no_chart(values: tuple[float | None, ...]) -> None:
    """An empty chart would look like an error."""
    for chart in (line(CHART, days(*values)), bars(CHART, days(*values))):
        assert "".join(parse_markup(chart).itertext()) == "Tier 2: There are no numbers to show."


def test_marks_are_drawn_at_their_time_and_listed_in_the_row_of_their_point() -> None:
    """Noon of the second day is the middle of that day, and marks outside the chart are omitted."""
    marks = [
        Mark(FIRST + 1.5 * DAY, "deployment", "deployed version 2", "version 2"),
        Mark(FIRST + 2 * DAY, "judge", "judge changed from a to b"),
        Mark(FIRST - DAY, "policy", "long ago"),
        Mark(FIRST + 9 * DAY, "policy", "later"),
    ]
    chart = bars(Chart(key="x", title="x", marks=marks, step=DAY), days(1.0, 2.0, 3.0))
    assert drawn(chart)["marks"] == [[1.0, "deployment", "version 2"], [1.5, "judge", ""]]
    assert [row[-1] for row in table(chart)] == ["Changes", "", "deployed version 2", "judge changed from a to b"]
    assert legend(chart) == ["Deployment", "Judge changed"]


def test_a_mark_between_two_moments_is_drawn_between_them() -> None:
    """A deployment between two runs is between them."""
    times = [FIRST, FIRST + 3 * DAY]
    places = [locate_mark(FIRST + hours * DAY / 24, times, None) for hours in (-1, 1, 71, 73)]
    assert places == [None, 0.5, 0.5, None]


def test_a_point_has_a_link_without_a_script() -> None:
    """A click on a day shows that day, and the table has the same link."""
    [link] = parse_markup(line(ANY, [Point("2026-10-01", 1.0, link="/projects/ops?window=24h&until=2026-10-01")])).iter("a")
    assert link.get("href") == "/projects/ops?window=24h&until=2026-10-01"
    assert link.text == "2026-10-01"


def test_no_label_is_markup() -> None:
    """Names of models, agents and columns come from outside."""
    marks = [Mark(FIRST, "deployment", HOSTILE, HOSTILE)]
    chart = Chart(key="x", title=HOSTILE, words=HOSTILE, column=HOSTILE, first="What", marks=marks, step=DAY)
    for made in (
        line(chart, [Point(HOSTILE, 1.0, HOSTILE, at=FIRST)], marked={HOSTILE}),
        stacked_bars(chart, [Point(HOSTILE, None, at=FIRST)], {HOSTILE: [1.0], "b": [2.0]}),
        spark([1, 2], HOSTILE),
    ):
        assert not list(parse_markup(made).iter("script"))
        assert "\u202e" not in made
        assert "\x00" not in made
        assert not [one for one in parse_markup(made).iter() for name in one.attrib if name == "style" or name.startswith("on")]


@given(st.lists(NUMBERS, max_size=40), st.none() | st.tuples(st.floats(-9, 9), st.floats(0, 9)))
def test_any_numbers_give_valid_json(values: list[float | None], band: tuple[float, float] | None) -> None:
    """NaN is not JSON, and one such number would remove all charts of a page."""
    points = [Point(f"{place}", value) for place, value in enumerate(values)]
    for chart in (line(ANY, points, band=Band(*band) if band else None), bars(ANY, points)):
        for data in drawn_charts(chart).values():
            json.dumps(data, allow_nan=False)
            assert all(len(points) == len(series) for series in data["series"])


def test_a_small_line_has_a_description_and_at_least_two_numbers() -> None:
    """A line needs at least two numbers."""
    assert (
        spark([0.9, None, 0.6], "falling")
        == '<span class="spark" data-spark="[0.9,null,0.6]" role="img" aria-label="falling"></span>'
    )
    assert spark([None, 1.0, math.nan], "one") == ""


def test_a_bar_of_a_share_is_hidden_from_screen_readers() -> None:
    """Screen readers read the number beside the bar."""
    assert share_bar(0.25, "bad") == '<progress class="share bad" max="1" value="0.25" aria-hidden="true"></progress>'
    assert share_bar(None) == ""


def test_equal_numbers_give_the_same_chart() -> None:
    """An unchanged page must have the same bytes, so that it is not sent again."""
    assert line(CHART, days(1.0, 2.0), band=Band(2, 1)) == line(CHART, days(1.0, 2.0), band=Band(2, 1))
