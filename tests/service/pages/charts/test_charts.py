"""Charts: what they show for known, unknown, odd and hostile numbers, and that nobody needs to see them to know what they say."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markupsafe import Markup

from service.pages.charts.axes import HEIGHT, WIDTH, known, scale_of, ticks_between
from service.pages.charts.charts import Band, Chart, Point, bars, line, share_bar, sparkline, stacked_bars

CHART = Chart(key="tier2", title="Tier 2", words="Means day by day.", limits=(1, 5))
ANY = Chart(key="any", title="Anything")
NUMBERS = st.none() | st.floats(allow_nan=True, allow_infinity=True)
HOSTILE = '"><script>alert(1)</script>\u202e\x00&'


def days(*values: float | None) -> list[Point]:
    """Points of days in a row."""
    return [Point(f"2026-10-{place:02d}", value) for place, value in enumerate(values, start=1)]


def read(markup: Markup) -> ET.Element:
    """The markup, read strictly: every element is closed, every text escaped."""
    return ET.fromstring(f"<x>{markup}</x>")  # noqa: S314 - markup of ours


def of_class(markup: Markup, kind: str) -> list[ET.Element]:
    """The elements with a class."""
    return [one for one in read(markup).iter() if kind in one.get("class", "").split()]


def drawn_parts(markup: Markup) -> list[ET.Element]:
    """The parts of bars, without the swatches of the legend."""
    return [one for one in read(markup).iter("rect") if one.get("class", "").startswith("part-") and one.get("x")]


def test_a_chart_says_what_it_shows_in_words_and_as_a_table() -> None:
    """Who cannot see it must not know less."""
    drawn = line(CHART, days(4.0, None, 3.5), marked={"2026-10-03"})
    found = read(drawn)
    assert ["Tier 2", "Means day by day."] == [
        one.text for one in found.iter() if one.get("id") in ("tier2-title", "tier2-words")
    ]
    rows = [["".join(cell.itertext()) for cell in row] for row in found.iter("tr")]
    assert [
        ["Day", "Value", "Marked"], ["2026-10-01", "4.00", ""], ["2026-10-02", "\u2013", ""], ["2026-10-03", "3.50", "marked"]
    ] == rows  # fmt: skip


def test_where_nothing_is_known_the_line_has_a_gap() -> None:
    """A day without scores is not a day of zero."""
    drawn = line(CHART, days(4.0, 3.0, None, 2.0, 3.0))
    assert [2, 2] == [len(one.get("points", "").split()) for one in of_class(drawn, "line")]
    assert 4 == len(of_class(drawn, "dot"))


def test_a_number_without_neighbours_is_seen_among_many() -> None:
    """A line needs two ends; of ninety days most have no dot."""
    values = [None if place in (40, 42) else 3.0 for place in range(90)]
    drawn = line(CHART, [Point(f"{place}", value) for place, value in enumerate(values)])
    assert 1 == len(of_class(drawn, "dot"))


def test_drift_has_a_shape_of_its_own() -> None:
    """Red alone says nothing to one man in twelve."""
    drawn = line(CHART, days(4.0, 2.0), marked={"2026-10-02"})
    assert ["polygon"] == [one.tag for one in of_class(drawn, "bad")]
    assert 1 == len(of_class(drawn, "drift"))


def test_the_band_lies_around_the_mean() -> None:
    """What is normal is what the line is held against."""
    drawn = line(CHART, days(4.0, 2.0), band=Band(3.5, 0.5))
    [band], [mean] = of_class(drawn, "band"), of_class(drawn, "mean")
    middle = float(band.get("y", "")) + float(band.get("height", "")) / 2
    assert math.isclose(middle, float(mean.get("y1", "")), abs_tol=0.11)


def test_the_axis_does_not_go_beyond_the_measure() -> None:
    """There is no 5.5 of 5."""
    scale = scale_of([4.9, 5.0], 2, (1, 5), None)
    assert max(scale.ticks) <= 5
    assert scale.high == 5


def test_counts_have_whole_ticks() -> None:
    """There is no half anomaly."""
    drawn = bars(Chart(key="n", title="Anomalies", digits=0), days(0, 1, 0))
    texts = [one.text for one in read(drawn).iter("text")]
    assert not [text for text in texts if text and "." in text]


def test_numbers_beyond_the_measure_stand_at_its_end() -> None:
    """A fault in the data must not push everything else off the chart."""
    assert (1, 5) == ((scale := scale_of([1e16, -3.0], 2, (1, 5), None)).low, scale.high)
    assert scale_of([1e16], 1, (1, 5), None).high == 5


def test_bars_stand_on_nothing() -> None:
    """A bar that began at 90 would make 95 look like half of 100."""
    drawn = bars(Chart(key="n", title="Exchanges", digits=0), days(90, 100))
    low, high = (float(one.get("height", "")) for one in of_class(drawn, "part-0"))
    assert math.isclose(0.9, low / high, rel_tol=0.01)


def test_what_is_below_nothing_hangs_from_it() -> None:
    """A statement may answer with negative numbers."""
    up, down = of_class(bars(ANY, days(2.0, -2.0)), "part-0")
    assert math.isclose(float(up.get("y", "")) + float(up.get("height", "")), float(down.get("y", "")), abs_tol=0.2)


def test_the_parts_of_a_bar_stand_on_each_other() -> None:
    """Their sum is what is read off."""
    drawn = stacked_bars(ANY, days(None), {"a": [1.0], "b": [2.0]})
    below, above = drawn_parts(drawn)
    assert math.isclose(float(below.get("y", "")), float(above.get("y", "")) + float(above.get("height", "")), abs_tol=0.2)
    assert ["a", "b"] == [(one.text or "") + "".join(one.itertext()).strip() for one in read(drawn).iter("li")]


def test_too_many_parts_are_one() -> None:
    """Nobody tells twelve colours apart; the table still has each."""
    drawn = stacked_bars(ANY, days(None), {f"m{place}": [1.0] for place in range(12)})
    assert 7 == len(list(read(drawn).iter("li")))
    assert 1 + 12 == len(next(read(drawn).iter("tr")))
    heights = [float(one.get("height", "")) for one in drawn_parts(drawn)]
    assert math.isclose(6, heights[-1] / heights[0], rel_tol=0.02)


@pytest.mark.parametrize("values", [(), (None,), (math.nan, math.inf)])
def test_where_nothing_is_known_there_is_no_chart(values: tuple[float | None, ...]) -> None:
    """Axes without numbers look like a fault."""
    for drawn in (line(CHART, days(*values)), bars(CHART, days(*values))):
        assert "Tier 2: There are no numbers to show." == "".join(read(drawn).itertext())


def test_no_label_is_markup() -> None:
    """Names of models, agents and columns come from outside."""
    chart = Chart(key="x", title=HOSTILE, words=HOSTILE, column=HOSTILE, first="What")
    for drawn in (
        line(chart, [Point(HOSTILE, 1.0)], marked={HOSTILE}),
        stacked_bars(chart, [Point(HOSTILE, None)], {HOSTILE: [1.0], "b": [2.0]}),
        sparkline([1, 2], HOSTILE),
    ):
        assert not list(read(drawn).iter("script"))
        assert "\u202e" not in drawn
        assert not re.search(r"\s(?:style|on\w+)=", drawn)


@given(st.lists(NUMBERS, max_size=120), st.none() | st.tuples(st.floats(-9, 9), st.floats(0, 9)))
def test_whatever_the_numbers_a_chart_stays_within_its_frame(
    values: list[float | None], band: tuple[float, float] | None
) -> None:
    """Pages show what statements answer: any number, and none."""
    points = [Point(f"{place}", value) for place, value in enumerate(values)]
    normal = Band(*band) if band else None
    for drawn in (line(ANY, points, band=normal), line(CHART, points, band=normal), bars(ANY, points), sparkline(values, "x")):
        for one in read(drawn).iter():
            for name, most in (("x", WIDTH), ("y", HEIGHT), ("cx", WIDTH), ("cy", HEIGHT), ("y1", HEIGHT), ("y2", HEIGHT)):
                assert -0.1 <= float(one.get(name, 0)) <= most + 0.1
        assert "nan" not in drawn
        assert "inf" not in drawn


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.booleans())
def test_ticks_hold_the_numbers_and_are_few(low: float, span: float, whole: bool) -> None:
    """An axis of a hundred ticks is as useless as one without any."""
    assume(span > 1e-9 * abs(low) and low == known(low))
    found = ticks_between(low, low + span, whole=whole)
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-6 * abs(low)
    assert found[-1] >= low + span - 1e-6 * abs(low + span)
    assert all(one < other for one, other in pairwise(found))


def test_labels_leave_each_other_room() -> None:
    """Ninety dates below one axis are a black bar."""
    points = [
        Point(f"2026-{1 + place // 28:02d}-{1 + place % 28:02d}", 1.0, f"{1 + place // 28:02d}-{1 + place % 28:02d}")
        for place in range(90)
    ]
    labels = [one for one in read(line(ANY, points)).iter("text") if one.get("y") == str(HEIGHT - 6)]
    assert 4 <= len(labels) <= 12
    assert points[-1].short == labels[-1].text


def test_a_share_is_a_bar_that_is_not_read_out() -> None:
    """The number beside it is."""
    assert ["64", "16"] == [one.get("width") for one in read(share_bar(0.25)).iter("rect")]
    assert "" == share_bar(None)


def test_the_same_numbers_are_the_same_chart() -> None:
    """A page that says nothing new is not sent again."""
    assert line(CHART, days(1.0, 2.0), band=Band(2, 1)) == line(CHART, days(1.0, 2.0), band=Band(2, 1))
