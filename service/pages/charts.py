"""Charts: their numbers as a table, the same numbers for the script that draws them (`static/charts.js`), and marks of what changed."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import groupby, pairwise
from typing import Any

from markupsafe import Markup, escape

from analytics.queries import query_rows
from analytics.sums.daily import read_hours
from audit.prompt_quoting import hidden_parts
from schemas.lazy import duckdb
from schemas.records import Incident
from service.pages.rendering import NOTHING, number, share, shown, usd
from service.read.versions import DeployedVersion, deployed_versions
from streams.watch.lifecycle import DISMISSED

Form = Callable[[float | None], str]
Limits = tuple[float | None, float | None]
FORMS: Mapping[Form | None, str] = {None: "number", usd: "usd", share: "share"}
"""The number formats of charts, by their names in the script."""
_SERIES = 7
"""Colours of the parts of bars; the last one is for all remaining parts together."""
_OTHER = "Other"


@dataclass(frozen=True, slots=True)
class Point:
    """A number and its label."""

    label: str
    value: float | None
    """None for an unknown value, which is a gap and never 0."""
    short: str = ""
    """The label on the axis."""
    at: datetime | None = None
    """The beginning of the point, to place marks."""
    count: int | None = None
    """The number of values behind the mean; None if the number is not a mean."""
    half: float | None = None
    """Half the width of the 95 % interval."""
    link: str = ""
    """The address opened by a click."""
    records_link: str = ""
    """Address of the counted records, linked from the table's cell."""


@dataclass(frozen=True, slots=True)
class Band:
    """The normal range: the mean, and one sigma on either side."""

    mean: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The description of a chart."""

    key: str
    """Id on its page."""
    title: str
    words: str = ""
    """A summary of the chart in a sentence."""
    column: str = "Value"
    """The heading of the numbers in the table."""
    first: str = "Day"
    """The heading of the labels."""
    counted: str = "Scores"
    """The heading of the counts."""
    form: Form | None = None
    """The number format; without it, numbers have `digits` digits."""
    digits: int = 2
    limits: Limits = (None, None)
    """The bounds of the measure itself."""
    reaches: tuple[float, ...] = ()
    """Numbers that the axis always includes, so that small changes look small."""
    marked: str = "marked"
    """The meaning of a marked point, such as drift."""
    marks: Sequence[Mark] = ()
    step: timedelta | None = None
    """The length of a point; None where points are moments."""
    group: str = ""
    """Charts of one group on a page have the same points and share their crosshair."""

    def written(self, value: float | None) -> str:
        """Format a number of the chart."""
        if value is None:
            return NOTHING
        return self.form(value) if self.form else number(value, self.digits)


Column = tuple[str, Sequence[str]]
"""A heading of the table, and a cell for each point."""


def line(
    chart: Chart,
    points: Sequence[Point],
    *,
    band: Band | Sequence[Band | None] | None = None,
    marked: Collection[str] = (),
    before: Sequence[float | None] = (),
    previous: Sequence[float | None] | None = None,
) -> Markup:
    """Draw a line of numbers, with gaps for unknown ones, over the normal band, which is one for all points or one per point.

    `marked` are the labels of points that stand out, such as days of drift; they get their own shape and a remark in the table.
    `before` is the level before a change, for each point at which to show it. `previous` are the numbers of the preceding period.
    """
    values = [drawable(point.value) for point in points]
    if not any(value is not None for value in (*values, *(previous or ()))):
        return _draw_empty(chart)
    bands = band if isinstance(band, Sequence) else [band] * len(points)
    stands_out = [point.label in marked for point in points]
    columns = [
        (chart.column, [chart.written(value) for value in values]),
        *_count_columns(chart, points),
        *_previous_column(chart, previous),
        *([(chart.marked.capitalize(), [chart.marked if out else "" for out in stands_out])] if any(stands_out) else []),
    ]
    drawn = {
        "kind": "line",
        "series": [[short(value) for value in values]],
        "band": list(_band_levels(bands)),
        "before": [short(level) for level in before] if any(level is not None for level in before) else [],
    }
    legend = [("line", chart.column)] * (previous is not None)
    legend += [("previous", "The period before")] * (previous is not None)
    legend += [("band", "Baseline ± one sigma")] * bool(drawn["band"]) + [("before", "Before the change")] * bool(
        drawn["before"]
    )
    legend += [("marked", chart.marked.capitalize())] * any(stands_out)
    return _build_figure(chart, points, drawn, columns, legend, marked=stands_out, previous=previous)


def bars(
    chart: Chart, points: Sequence[Point], *, marked: Collection[str] = (), previous: Sequence[float | None] | None = None
) -> Markup:
    """Draw a bar for each number, starting at 0; labels in `marked` get the colour of bad values."""
    series = {chart.column: [point.value for point in points]}
    return stacked_bars(chart, points, series, marked=marked, previous=previous)


def stacked_bars(
    chart: Chart,
    points: Sequence[Point],
    series: Mapping[str, Sequence[float | None]],
    *,
    marked: Collection[str] = (),
    previous: Sequence[float | None] | None = None,
) -> Markup:
    """Draw stacked bars of `series` by name; the values of `points` are ignored.

    Beyond seven parts the last ones are drawn as one, but the table has all of them. `previous` are the sums of the preceding
    period.
    """
    exact = {name: [drawable(value) for value in values] for name, values in series.items()}
    parts = _merge_parts(exact)
    if not any(value is not None for values in (*exact.values(), previous or ()) for value in values):
        return _draw_empty(chart)
    columns: list[Column] = [(name, [chart.written(value) for value in values]) for name, values in exact.items()]
    stands_out = [point.label in marked for point in points]
    columns += [*_previous_column(chart, previous)]
    columns += [(chart.marked.capitalize(), [chart.marked if out else "" for out in stands_out])] if any(stands_out) else []
    drawn = {"kind": "bars", "series": [[short(value) for value in values] for values in parts.values()]}
    legend = [(f"part-{place}", name) for place, name in enumerate(parts)] if len(parts) > 1 or previous is not None else []
    legend += [("previous", "The period before")] * (previous is not None)
    legend += [("bad", chart.marked.capitalize())] * any(stands_out)
    return _build_figure(chart, points, drawn, columns, legend, marked=stands_out, previous=previous)


def _count_columns(chart: Chart, points: Sequence[Point]) -> Iterator[Column]:
    """Yield the columns with the number behind each mean and with its interval, if any point has them."""
    if any(point.count is not None for point in points):
        yield chart.counted, [NOTHING if point.count is None else number(point.count) for point in points]
    if any(point.half is not None for point in points):
        yield "95 % interval", [_format_interval(chart, point) for point in points]


def _format_interval(chart: Chart, point: Point) -> str:
    if point.half is None or point.value is None:
        return NOTHING
    low, high = (
        end if limit is None else limit if (end - limit) * side < 0 else end
        for end, limit, side in (
            (point.value - point.half, chart.limits[0], 1),
            (point.value + point.half, chart.limits[1], -1),
        )
    )
    return f"{chart.written(low)} to {chart.written(high)}"


def _previous_column(chart: Chart, previous: Sequence[float | None] | None) -> Iterator[Column]:
    if previous is not None:
        yield "Period before", [chart.written(drawable(value)) for value in previous]


def _band_levels(bands: Sequence[Band | None]) -> Iterator[list[float]]:
    """Yield the bands: first and last point, lower end, middle and upper end; there is a step where the band changes."""
    position = 0
    for band, run in groupby(bands):
        count = len(list(run))
        if band is not None:
            levels = (short(level) for level in (band.mean - band.sigma, band.mean, band.mean + band.sigma))
            yield [position, position + count - 1, *(level or 0.0 for level in levels)]
        position += count


def _merge_parts(series: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
    """Return the parts to draw; if there are too many, the last ones are merged."""
    names = list(series)
    if len(names) <= _SERIES:
        return {name: list(series[name]) for name in names}
    own, rest = names[: _SERIES - 1], [series[name] for name in names[_SERIES - 1 :]]
    others = [
        None if all(one is None for one in stack) else sum(one or 0.0 for one in stack) for stack in zip(*rest, strict=True)
    ]
    return {name: list(series[name]) for name in own} | {f"{_OTHER} ({len(rest)})": others}


def _draw_empty(chart: Chart) -> Markup:
    return Markup('<p class="soft"><span class="visually-hidden">{}: </span>There are no numbers to show.</p>').format(
        shown(chart.title)
    )


def _build_figure(
    chart: Chart,
    points: Sequence[Point],
    drawn: Mapping[str, Any],
    columns: Sequence[Column],
    legend: Sequence[tuple[str, str]],
    *,
    marked: Sequence[bool],
    previous: Sequence[float | None] | None,
) -> Markup:
    """Return the figure: the data for the script, the legend and the table."""
    placed = _place_marks(chart, points)
    drawn_values = {
        **drawn,
        "title": visible(chart.title),
        "labels": [visible(point.short or point.label) for point in points],
        "marked": [place for place, out in enumerate(marked) if out],
        "marks": [[round(place, 3), mark.kind] for mark, place in placed],
        "previous": None if previous is None else [short(value) for value in previous],
        "limits": chart.limits,
        "reaches": chart.reaches,
        "form": FORMS[chart.form],
        "digits": chart.digits,
        "group": chart.group,
    }
    kept = {name: value for name, value in drawn_values.items() if value not in (None, [], "", ())}
    kinds = [(f"mark {kind}", name) for kind, name in KINDS.items() if any(mark.kind == kind for mark, _ in placed)]
    return Markup(
        '<figure class="drawn" id="{}-chart" data-chart="{}" aria-label="{}"><p class="visually-hidden">{}</p>{}{}</figure>'
    ).format(
        chart.key,
        json.dumps(kept, separators=(",", ":"), ensure_ascii=False),
        visible(chart.title),
        visible(chart.words),
        _build_legend([*legend, *kinds]),
        _build_table(chart, points, [*columns, *_build_change_columns(points, placed)]),
    )


def _place_marks(chart: Chart, points: Sequence[Point]) -> list[tuple[Mark, float]]:
    """Return the marks of a chart with their places among its points."""
    times = [point.at for point in points if point.at is not None]
    if len(times) < len(points):
        return []
    positions = [(mark, place_of(mark, times, chart.step)) for mark in chart.marks]
    return [(mark, place) for mark, place in positions if place is not None]


def _build_change_columns(points: Sequence[Point], placed: Sequence[tuple[Mark, float]]) -> Iterator[Column]:
    """Yield the column with the marks at each point, the earliest first."""
    if placed:
        at = [(int(place + 0.5), mark) for mark, place in placed]
        yield (
            "Changes",
            ["; ".join(visible(mark.words) for place, mark in at if place == point) for point in range(len(points))],
        )


def _build_legend(entries: Sequence[tuple[str, str]]) -> Markup:
    entry = Markup('<li><span class="swatch {}"></span> {}</li>')
    items = Markup("").join(entry.format(kind, shown(name)) for kind, name in entries)
    return Markup('<ul class="legend">{}</ul>').format(items) if entries else Markup("")


def _label(point: Point) -> str:
    return f'<a href="{escape(point.link)}">{shown(point.label)}</a>' if point.link else shown(point.label)


def _build_cells(points: Sequence[Point], written: Sequence[str], *, is_first: bool) -> list[str]:
    """Return the cells of a column as markup."""
    return [
        f'<td class="number"><a href="{escape(point.records_link)}">{escape(text)}</a></td>'
        if is_first and point.records_link and point.value
        else f'<td class="number">{escape(text)}</td>'
        for point, text in zip(points, written, strict=True)
    ]


def _build_table(chart: Chart, points: Sequence[Point], columns: Sequence[Column]) -> Markup:
    """Return the numbers of a chart as a table, one point per row."""
    # Build plain text from escaped parts: a table has hundreds of cells, and Markup.format is slow.
    head = "".join(f'<th scope="col" class="number">{shown(name)}</th>' for name, _ in columns)
    cells = [_build_cells(points, written, is_first=place == 0) for place, (_, written) in enumerate(columns)]
    rows = zip(points, zip(*cells, strict=True), strict=True)
    body = "".join(f'<tr><th scope="row">{_label(point)}</th>{"".join(row)}</tr>' for point, row in rows)
    return Markup(
        '<details class="table" id="{}-table" open><summary>As a table<span class="visually-hidden">: {}</span></summary>'
        '<div class="scroll" tabindex="0" role="group" aria-label="{}"><table><thead><tr><th scope="col">{}</th>{}</tr></thead>'
        "<tbody>{}</tbody></table></div></details>"
    ).format(chart.key, shown(chart.title), visible(chart.title), chart.first, Markup(head), Markup(body))  # noqa: S704


def spark(values: Sequence[float | None], description: str) -> Markup:
    """Return the element in which a script draws a small line without axes; `description` is its label.

    Empty for fewer than two numbers.
    """
    if sum(drawable(value) is not None for value in values) < 2:
        return Markup("")
    return Markup('<span class="spark" data-spark="{}" role="img" aria-label="{}"></span>').format(
        json.dumps([short(value) for value in values], separators=(",", ":")), visible(description)
    )


def share_bar(value: float | None, kind: str = "") -> Markup:
    """Return a share as a bar beside its number, which screen readers read; `kind` is a class such as bad or left."""
    if value is None:
        return Markup("")
    return Markup('<progress class="share {}" max="1" value="{}" aria-hidden="true"></progress>').format(
        kind, round(min(max(value, 0.0), 1.0), 4)
    )


_LARGEST, _SMALLEST = 1e300, 1e-300
_DIGITS = 7
"""Significant digits of a drawn number: a screen shows four."""


def drawable(value: float | None) -> float | None:
    """Return a number that can be drawn; None for one that is not finite or far too large."""
    if value is None or not math.isfinite(value) or abs(value) > _LARGEST:
        return None
    return float(value) if abs(value) > _SMALLEST else 0.0


def short(value: float | None) -> float | None:
    """Round a number to the digits that a chart can show, the same on every machine."""
    finite = drawable(value)
    return None if finite is None else float(f"{finite:.{_DIGITS}g}")


def visible(text: str) -> str:
    """Return a text without markup; invisible characters become their codes."""
    parts = ((seen, f"U+{ord(hidden):04X}" if hidden else "") for seen, hidden in hidden_parts(text))
    return " ".join("".join(part for pair in parts for part in pair).split())


KINDS = {"deployment": "Deployment", "policy": "Policy changed", "judge": "Judge changed"}
"""The kinds of marks, as a legend names them."""
_BACK = timedelta(days=14)
"""The time before a chart that is searched for the last scores made with an earlier version."""
_LONGEST = timedelta(days=365)
_DIGEST = 8
"""Characters of a digest: enough to tell two policies apart."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that explains a change in a chart."""

    at: datetime
    kind: str
    words: str


def marks_within(
    cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime, step: timedelta
) -> list[Mark]:
    """Return the marks in a period, oldest first; `step` is the length of a chart's points, an hour or a day."""
    marks = [_mark_deployment(deployed) for deployed in deployed_versions(cursor, project, start, end)]
    rows = _read_scoring_versions(cursor, project, start - _BACK, end)
    for kind, name in _MADE_WITH.items():
        marks += [one for one in _find_changes(kind, rows, name, step) if start <= one.at < end]
    return sorted(marks, key=lambda one: (one.at, one.kind, one.words))


def _read_scoring_versions(
    cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime
) -> list[dict[str, Any]]:
    """Return, by hour within a period, the versions that scores were made with; empty if they never changed."""
    # Cutting the last day would mean adding up its single scores, which is not needed if the whole day has the same versions.
    night = datetime.combine(end.astimezone(UTC).date() + timedelta(days=1), time(), UTC)
    for until in (night, end):
        hours = read_hours(cursor, [project], start.date(), until, _COLUMNS)
        rows = [] if hours is None else hours.to_dicts()
        if not any(_is_changed(rows, name) for name in _MADE_WITH.values()):
            return []
    return rows


def run_policies(cursor: duckdb.DuckDBPyConnection, project: str, agent: str, start: datetime, end: datetime) -> list[Mark]:
    """Return the changes of policy among an agent's runs in a period; runs depend on no other part of the scoring."""
    params = {"project": project, "agent": agent, "since": start - _BACK, "until": end}
    rows = [{**row, "exchanges": row["runs"]} for row in query_rows(cursor, "run_policies", params)]
    changes = _find_changes("policy", rows, lambda row: row["policy_digest"][:_DIGEST], timedelta(days=1))
    return [one for one in changes if start <= one.at < end]


def judge_moves(incidents: Iterable[Incident], start: datetime, end: datetime) -> list[Mark]:
    """Return the marks of judge changes found by anchors in a period, one per day, without dismissed incidents."""
    days = {
        one.first_day for one in incidents if one.cause == "judge" and one.first_day is not None and one.status != DISMISSED
    }
    return [Mark(day, "judge", "judge answers anchors differently") for day in sorted(days) if start <= day < end]


def marks_between(cursor: duckdb.DuckDBPyConnection, project: str, moments: Sequence[datetime]) -> list[Mark]:
    """Return the marks between the first and the last of some moments, over at most a year; empty for fewer than two moments."""
    if len(moments) < 2:
        return []
    last = max(moments)
    return marks_within(cursor, project, max(min(moments), last - _LONGEST), last, timedelta(days=1))


def place_of(mark: Mark, times: Sequence[datetime], step: timedelta | None) -> float | None:
    """Return the position of a mark among points with these start times; 0 is the middle of the first point, None is outside.

    With `step` the points are periods. Without it they are moments, and a mark is placed before the next one.
    """
    point = bisect_right(times, mark.at) - 1
    if step is None:
        return point + 0.5 if 0 <= point < len(times) - 1 else None
    if point < 0 or mark.at >= times[point] + step:
        return None
    return point - 0.5 + (mark.at - times[point]) / step


def _mark_deployment(deployed: DeployedVersion) -> Mark:
    of = f" of {deployed.agent}" if deployed.agent else ""
    return Mark(deployed.at, "deployment", f"deployed {deployed.label} {deployed.version}{of}")


def _is_changed(rows: Sequence[Row], name: Callable[[Row], str]) -> bool:
    return len(set(map(name, rows)) - {None, ""}) > 1


def _find_changes(kind: str, rows: Sequence[Row], name: Callable[[Row], str], step: timedelta) -> Iterator[Mark]:
    """Yield the changes of one part of the scoring."""
    if not _is_changed(rows, name):
        return
    counts: dict[datetime, Counter[str]] = defaultdict(Counter)
    first: dict[tuple[datetime, str], datetime] = {}
    for row in rows:
        hour = row["hour"].replace(tzinfo=UTC)
        if value := name(row):
            period = datetime.fromtimestamp(hour.timestamp() // step.total_seconds() * step.total_seconds(), UTC)
            counts[period][value] += row["exchanges"]
            first.setdefault((period, value), hour)
            first[period, value] = min(hour, first[period, value])
    most = [(period, max(sorted(found), key=found.__getitem__)) for period, found in sorted(counts.items())]
    for (period, was), (following, now) in pairwise(most):
        if was != now:
            begun = first.get((period, now), first[following, now])
            yield Mark(begun, kind, f"{kind} changed from {was} to {now}")


def _name_judge(row: Row) -> str:
    simulated = " (simulated)" if row["simulated"] else ""
    return f"{row['judge_model']}{simulated}" if row["judge_model"] else ""


def _name_policy(row: Row) -> str:
    methodology = f"{row['methodology']} {row['methodology_version']}".strip()
    digest = row["policy_digest"][:_DIGEST]
    return f"{digest} ({methodology})" if methodology else digest


_COLUMNS = ("hour", "judge_model", "simulated", "policy_digest", "methodology", "methodology_version", "exchanges")
_MADE_WITH: Mapping[str, Callable[[Row], str]] = {"policy": _name_policy, "judge": _name_judge}
