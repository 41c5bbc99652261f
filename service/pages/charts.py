"""Charts: a table of their numbers, the data for the script that draws them (`static/charts.js`), and marks of changes."""

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
from service.pages.rendering import NOTHING, moment, number, share, usd
from service.pages.untrusted import shown
from service.read.annotations import Annotation, read_annotations
from service.read.versions import VERSION_NAMES, DeployedVersion, deployed_versions
from service.setup.access import Holder
from service.text.links import API
from service.text.zone import is_utc
from streams.upkeep.annotations import MAX_ANNOTATION
from streams.watch.lifecycle import DISMISSED

Form = Callable[[float | None], str]
Limits = tuple[float | None, float | None]
FORMS: Mapping[Form | None, str] = {None: "number", usd: "usd", share: "share"}
"""Number formats of charts, with their names in the script."""
MAX_SERIES = 7
"""Maximum number of drawn parts of a bar, which is the number of colours. The last part stands for all remaining ones."""
_OTHER = "Other"
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Point:
    """A number with its label."""

    label: str
    value: float | None
    """None for an unknown value, which is drawn as a gap."""
    axis_label: str = ""
    """The shorter label on the axis."""
    at: datetime | None = None
    """The start of the point, which places marks."""
    count: int | None = None
    """Number of values behind a mean; None for other numbers."""
    half: float | None = None
    """Half of the width of the 95% interval."""
    link: str = ""
    """The address opened by a click."""
    records_link: str = ""
    """Address of the counted records, linked from the table's cell."""


@dataclass(frozen=True, slots=True)
class Band:
    """The normal range: the mean, and one sigma on either side of it."""

    mean: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The description of a chart."""

    key: str
    """Id of the chart on its page."""
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
    """The bounds of the measure."""
    reaches: tuple[float, ...] = ()
    """Values that the axis always includes, so that small changes look small."""
    marked: str = "marked"
    """What a marked point means, such as drift."""
    marks: Sequence[Mark] = ()
    step: timedelta | None = None
    """The duration of a point; None if points are moments."""
    group: str = ""
    """Charts of a group have the same points and share the crosshair."""

    def format(self, value: float | None) -> str:
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
    """Draw a line of numbers, with gaps for unknown ones, over a band for all points or one band per point.

    `marked` are the labels of points that stand out, such as days of drift. They get their own shape and a remark in the table.
    `before` has the level before a change at each point that shows it. `previous` are the numbers of the preceding period.
    """
    values = [drawable(point.value) for point in points]
    if not any(value is not None for value in (*values, *(previous or ()))):
        return _draw_empty(chart)
    bands = band if isinstance(band, Sequence) else [band] * len(points)
    is_marked = [point.label in marked for point in points]
    columns = [
        (chart.column, [chart.format(value) for value in values]),
        *_count_columns(chart, points),
        *_previous_column(chart, previous),
        *_mark_column(chart, is_marked),
    ]
    drawn = {
        "kind": "line",
        "series": [[round_value(value) for value in values]],
        "half": [round_value(point.half) for point in points] if any(point.half is not None for point in points) else [],
        "band": list(_band_levels(bands)),
        "before": [round_value(level) for level in before] if any(level is not None for level in before) else [],
    }
    legend = []
    if previous is not None:
        legend += [("line", chart.column), ("previous", "The period before")]
    if drawn["band"]:
        legend.append(("band", "Baseline ± one sigma"))
    if drawn["before"]:
        legend.append(("before", "Before the change"))
    if any(is_marked):
        legend.append(("marked", chart.marked.capitalize()))
    return _build_figure(chart, points, drawn, columns, legend, marked=is_marked, previous=previous)


def lines(chart: Chart, points: Sequence[Point], series: Mapping[str, Sequence[float | None]]) -> Markup:
    """Draw a line for each of `series` by name, at most MAX_SERIES. The values of `points` are ignored."""
    exact = {name: [drawable(value) for value in values] for name, values in series.items()}
    if not any(value is not None for values in exact.values() for value in values):
        return _draw_empty(chart)
    columns: list[Column] = [(name, [chart.format(value) for value in values]) for name, values in exact.items()]
    drawn = {"kind": "line", "series": [[round_value(value) for value in values] for values in exact.values()]}
    legend = [(f"part-{number}", name) for number, name in enumerate(exact)]
    return _build_figure(chart, points, drawn, columns, legend, marked=[False] * len(points), previous=None)


def bars(
    chart: Chart, points: Sequence[Point], *, marked: Collection[str] = (), previous: Sequence[float | None] | None = None
) -> Markup:
    """Draw a bar for each number. Bars whose labels are in `marked` get the colour of bad values."""
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
    """Draw stacked bars of `series` by name. The values of `points` are ignored.

    If there are more than MAX_SERIES parts, the last ones are drawn as one, but the table has all of them. `previous` are the sums of the
    preceding period.
    """
    exact = {name: [drawable(value) for value in values] for name, values in series.items()}
    parts = _merge_parts(exact)
    if not any(value is not None for values in (*exact.values(), previous or ()) for value in values):
        return _draw_empty(chart)
    columns: list[Column] = [(name, [chart.format(value) for value in values]) for name, values in exact.items()]
    is_marked = [point.label in marked for point in points]
    columns += [*_previous_column(chart, previous), *_mark_column(chart, is_marked)]
    drawn = {"kind": "bars", "series": [[round_value(value) for value in values] for values in parts.values()]}
    legend = []
    if len(parts) > 1 or previous is not None:
        legend += [(f"part-{number}", name) for number, name in enumerate(parts)]
    if previous is not None:
        legend.append(("previous", "The period before"))
    if any(is_marked):
        legend.append(("bad", chart.marked.capitalize()))
    return _build_figure(chart, points, drawn, columns, legend, marked=is_marked, previous=previous)


def _count_columns(chart: Chart, points: Sequence[Point]) -> Iterator[Column]:
    """Yield columns for the number of values behind each mean and its interval, if any point has them."""
    if any(point.count is not None for point in points):
        yield chart.counted, [NOTHING if point.count is None else number(point.count) for point in points]
    if any(point.half is not None for point in points):
        yield "95% interval", [_format_interval(chart, point) for point in points]


def _format_interval(chart: Chart, point: Point) -> str:
    if point.half is None or point.value is None:
        return NOTHING
    minimum, maximum = chart.limits
    low = point.value - point.half
    high = point.value + point.half
    if minimum is not None:
        low = max(low, minimum)
    if maximum is not None:
        high = min(high, maximum)
    return f"{chart.format(low)} to {chart.format(high)}"


def _mark_column(chart: Chart, is_marked: Sequence[bool]) -> Iterator[Column]:
    if any(is_marked):
        yield chart.marked.capitalize(), [chart.marked if marked else "" for marked in is_marked]


def _previous_column(chart: Chart, previous: Sequence[float | None] | None) -> Iterator[Column]:
    if previous is not None:
        yield "Period before", [chart.format(drawable(value)) for value in previous]


def _band_levels(bands: Sequence[Band | None]) -> Iterator[list[float]]:
    """Yield each stretch of points with the same band: its first and last point, and the lower, middle and upper level."""
    position = 0
    for band, run in groupby(bands):
        count = len(list(run))
        if band is not None:
            levels = (round_value(level) for level in (band.mean - band.sigma, band.mean, band.mean + band.sigma))
            yield [position, position + count - 1, *(level or 0.0 for level in levels)]
        position += count


def _merge_parts(series: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
    """Return the parts to draw. If there are too many, the last ones are merged."""
    names = list(series)
    if len(names) <= MAX_SERIES:
        return {name: list(series[name]) for name in names}
    separate = names[: MAX_SERIES - 1]
    merged = [series[name] for name in names[MAX_SERIES - 1 :]]
    sums = [
        None if all(value is None for value in values) else sum(value or 0.0 for value in values)
        for values in zip(*merged, strict=True)
    ]
    return {name: list(series[name]) for name in separate} | {f"{_OTHER} ({len(merged)})": sums}


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
    """Build the figure with the data for the script, the legend and the table."""
    placed = _place_marks(chart, points)
    data = {
        **drawn,
        "title": visible(chart.title),
        "labels": [visible(point.axis_label or point.label) for point in points],
        "marked": [index for index, is_out in enumerate(marked) if is_out],
        "marks": [_format_mark(mark, position, end) for mark, position, end in placed],
        "previous": None if previous is None else [round_value(value) for value in previous],
        "limits": chart.limits,
        "reaches": chart.reaches,
        "form": FORMS[chart.form],
        "digits": chart.digits,
        "group": chart.group,
        "times": _build_times(chart, points),
    }
    compact = {name: value for name, value in data.items() if value not in (None, [], "", ())}
    kinds = [(f"mark {kind}", name) for kind, name in MARK_KINDS.items() if any(mark.kind == kind for mark, *_ in placed)]
    return Markup(
        '<figure class="drawn" id="{}-chart" data-chart="{}" aria-label="{}"><p class="visually-hidden">{}</p>{}{}</figure>'
    ).format(
        chart.key,
        json.dumps(compact, separators=(",", ":"), ensure_ascii=False),
        visible(chart.title),
        visible(chart.words),
        _build_legend([*legend, *kinds]),
        _build_table(chart, points, [*columns, *_build_change_columns(points, placed)]),
    )


def _build_times(chart: Chart, points: Sequence[Point]) -> dict[str, Any] | None:
    """Return the times of the points in seconds, with which the script selects a period; None if some have none."""
    times = [int(point.at.timestamp()) for point in points if point.at is not None]
    if not times or len(times) < len(points):
        return None
    step = 0 if chart.step is None else int(chart.step.total_seconds())
    if step and all(after - before == step for before, after in pairwise(times)):
        return {"from": times[0], "step": step}
    return {"at": times, "step": step}


def _format_mark(mark: Mark, position: float, end: float | None) -> list[float | str]:
    values: list[float | str] = [round(position, 3), mark.kind, visible(mark.name)]
    return values if end is None else [*values, round(end, 3)]


def _place_marks(chart: Chart, points: Sequence[Point]) -> list[tuple[Mark, float, float | None]]:
    """Return the marks of a chart with their positions among its points, and the position of the end of a range."""
    times = [point.at for point in points if point.at is not None]
    if len(times) < len(points) or not points:
        return []
    placed: list[tuple[Mark, float, float | None]] = []
    for mark in chart.marks:
        position = locate_mark(mark.at, times, chart.step)
        if mark.until is None:
            if position is not None:
                placed.append((mark, position, None))
            continue
        end = locate_mark(mark.until, times, chart.step)
        if mark.at <= (times[-1] + (chart.step or timedelta())) and mark.until > times[0]:
            # A range that is cut off by the chart reaches to its edge.
            placed.append((mark, -0.5 if position is None else position, len(times) - 0.5 if end is None else end))
    return placed


def _build_change_columns(points: Sequence[Point], placed: Sequence[tuple[Mark, float, float | None]]) -> Iterator[Column]:
    """Yield a column with the marks at each point, earliest first."""
    if placed:
        marks: dict[int, list[str]] = defaultdict(list)
        for mark, position, _ in placed:
            marks[int(position + 0.5)].append(visible(mark.words))
        yield "Changes", ["; ".join(marks[index]) for index in range(len(points))]


def _build_legend(entries: Sequence[tuple[str, str]]) -> Markup:
    entry = Markup('<li><span class="swatch {}"></span> {}</li>')
    items = Markup("").join(entry.format(kind, shown(name)) for kind, name in entries)
    return Markup('<ul class="legend">{}</ul>').format(items) if entries else Markup("")


def _build_label(chart: Chart, point: Point) -> str:
    text = shown(point.label)
    if chart.step == _HOUR and point.at is not None:
        text = moment(point.at)
    elif chart.step is not None and not is_utc():
        text += " UTC"
    return f'<a href="{escape(point.link)}">{text}</a>' if point.link else text


def _build_cells(points: Sequence[Point], texts: Sequence[str], *, is_first: bool) -> list[str]:
    """Return the cells of a column as markup. Only cells of the first column link to their records."""
    return [
        f'<td class="number"><a href="{escape(point.records_link)}">{escape(text)}</a></td>'
        if is_first and point.records_link and point.value
        else f'<td class="number">{escape(text)}</td>'
        for point, text in zip(points, texts, strict=True)
    ]


def _build_table(chart: Chart, points: Sequence[Point], columns: Sequence[Column]) -> Markup:
    """Build the table of a chart, one row per point."""
    # A table has hundreds of cells and Markup.format is slow, so plain text is built from escaped parts.
    head = "".join(f'<th scope="col" class="number">{shown(name)}</th>' for name, _ in columns)
    cells = [_build_cells(points, texts, is_first=number == 0) for number, (_, texts) in enumerate(columns)]
    rows = zip(points, zip(*cells, strict=True), strict=True)
    body = "".join(f'<tr><th scope="row">{_build_label(chart, point)}</th>{"".join(row)}</tr>' for point, row in rows)
    return Markup(
        '<details class="table" id="{}-table" open><summary>As a table<span class="visually-hidden">: {}</span></summary>'
        '<div class="scroll" tabindex="0" role="group" aria-label="{}"><table><thead><tr><th scope="col">{}</th>{}</tr></thead>'
        "<tbody>{}</tbody></table></div></details>"
    ).format(chart.key, shown(chart.title), visible(chart.title), chart.first, Markup(head), Markup(body))  # noqa: S704


def spark(values: Sequence[float | None], description: str, bounds: tuple[float, float] | None = None) -> Markup:
    """Return the element of a sparkline with `description` as its label; empty for fewer than two numbers.

    With `bounds`, the lowest and the highest possible value, sparklines can be compared; otherwise the line fills its height.
    """
    if sum(drawable(value) is not None for value in values) < 2:
        return Markup("")
    scale = "" if bounds is None else Markup(' data-bounds="{}"').format(json.dumps(bounds))
    return Markup('<span class="spark" data-spark="{}"{} role="img" aria-label="{}"></span>').format(
        json.dumps([round_value(value) for value in values], separators=(",", ":")), scale, visible(description)
    )


def share_bar(value: float | None, kind: str = "") -> Markup:
    """Return a share as a bar. It is hidden from screen readers, which read the number beside it. `kind` is a CSS class."""
    if value is None:
        return Markup("")
    return Markup('<progress class="share {}" max="1" value="{}" aria-hidden="true"></progress>').format(
        kind, round(min(max(value, 0.0), 1.0), 4)
    )


_MAX_MAGNITUDE, _MIN_MAGNITUDE = 1e300, 1e-300
_SIGNIFICANT_DIGITS = 7
"""Significant digits of a drawn number, more than a screen can show."""


def drawable(value: float | None) -> float | None:
    """Return a number that can be drawn; None for one that is not finite or too large."""
    if value is None or not math.isfinite(value) or abs(value) > _MAX_MAGNITUDE:
        return None
    return float(value) if abs(value) > _MIN_MAGNITUDE else 0.0


def round_value(value: float | None) -> float | None:
    """Round a number to the digits that a chart can show, the same on every machine."""
    finite = drawable(value)
    return None if finite is None else float(f"{finite:.{_SIGNIFICANT_DIGITS}g}")


def visible(text: str) -> str:
    """Return a text as plain text, with invisible characters as their codes."""
    parts = ((seen, f"U+{ord(hidden):04X}" if hidden else "") for seen, hidden in hidden_parts(text))
    return " ".join("".join(part for pair in parts for part in pair).split())


MARK_KINDS = {"deployment": "Deployment", "policy": "Policy changed", "judge": "Judge changed", "annotation": "Annotation"}
"""Labels of the kinds of marks."""
_LOOKBACK = timedelta(days=14)
"""Time before a chart that is searched for scores by an earlier judge or policy."""
_MAX_MARKS_PERIOD = timedelta(days=365)
_DIGEST_LENGTH = 8
"""Shown characters of a policy digest, enough to tell policies apart."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that explains a change in a chart."""

    at: datetime
    kind: str
    words: str
    name: str = ""
    """The short text beside the mark, such as the version that was deployed."""
    until: datetime | None = None
    """The end of a range."""


def marks_within(
    cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime, step: timedelta
) -> list[Mark]:
    """Return the marks in a period, oldest first. `step` is the duration of a chart's points, an hour or a day."""
    marks = [_mark_deployment(deployed) for deployed in deployed_versions(cursor, project, start, end)]
    marks += [_mark_annotation(annotation) for annotation in read_annotations(cursor, project, start, end)]
    rows = _read_scoring_versions(cursor, project, start - _LOOKBACK, end)
    for kind, name in _SCORING_PARTS.items():
        marks += [mark for mark in _find_changes(kind, rows, name, step) if start <= mark.at < end]
    return sorted(marks, key=lambda mark: (mark.at, mark.kind, mark.words))


def _read_scoring_versions(
    cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime
) -> list[dict[str, Any]]:
    """Return the judge and policy of scores by hour within a period; empty if neither changed."""
    # Sums of whole days are stored, but part of a day is added up from single scores. So try whole days first.
    night = datetime.combine(end.astimezone(UTC).date() + timedelta(days=1), time(), UTC)
    for until in (night, end):
        hours = read_hours(cursor, [project], start.date(), until, _COLUMNS)
        rows = [] if hours is None else hours.to_dicts()
        if not any(_is_changed(rows, name) for name in _SCORING_PARTS.values()):
            return []
    return rows


def find_run_policy_changes(
    cursor: duckdb.DuckDBPyConnection, project: str, agent: str, start: datetime, end: datetime
) -> list[Mark]:
    """Return the changes of the policy among an agent's runs in a period. Runs depend on the policy only, not on a judge."""
    params = {"project": project, "agent": agent, "since": start - _LOOKBACK, "until": end}
    rows = [{**row, "exchanges": row["runs"]} for row in query_rows(cursor, "run_policies", params)]
    changes = _find_changes("policy", rows, lambda row: row["policy_digest"][:_DIGEST_LENGTH], timedelta(days=1))
    return [mark for mark in changes if start <= mark.at < end]


def find_judge_changes(incidents: Iterable[Incident], start: datetime, end: datetime) -> list[Mark]:
    """Return the judge changes that incidents report in a period, one mark per day. Dismissed incidents do not count."""
    days = {
        incident.first_day
        for incident in incidents
        if incident.cause == "judge" and incident.first_day is not None and incident.status != DISMISSED
    }
    return [Mark(day, "judge", "the judge rates anchors differently") for day in sorted(days) if start <= day < end]


def marks_between(cursor: duckdb.DuckDBPyConnection, project: str, moments: Sequence[datetime]) -> list[Mark]:
    """Return the marks between the earliest and latest of some moments, over at most a year; empty for fewer than two moments."""
    if len(moments) < 2:
        return []
    last = max(moments)
    return marks_within(cursor, project, max(min(moments), last - _MAX_MARKS_PERIOD), last, timedelta(days=1))


def locate_mark(at: datetime, times: Sequence[datetime], step: timedelta | None) -> float | None:
    """Return the position of a time among points that start at `times`; None if it is outside. 0 is the middle of the first point.

    With `step`, points are periods. Without it they are moments, and the time is placed halfway to the next one.
    """
    point = bisect_right(times, at) - 1
    if step is None:
        return point + 0.5 if 0 <= point < len(times) - 1 else None
    if point < 0 or at >= times[point] + step:
        return None
    return point - 0.5 + (at - times[point]) / step


def _mark_deployment(deployed: DeployedVersion) -> Mark:
    agent = f" of {deployed.agent}" if deployed.agent else ""
    name = f"{VERSION_NAMES.get(deployed.label, deployed.label).lower()} {deployed.version}"
    return Mark(deployed.at, "deployment", f"deployed {deployed.label} {deployed.version}{agent}", name)


def _mark_annotation(annotation: Annotation) -> Mark:
    return Mark(annotation.at, "annotation", f"{annotation.text} ({annotation.by})", annotation.text, annotation.until)


def build_annotation_form(viewer: Holder, project: str) -> dict[str, Any]:
    """Return a template's values for the form of annotations, which charts open for people who may review."""
    return {
        "can_annotate": "review" in viewer.scopes,
        "annotations_api": f"{API}/{project}/annotations",
        "max_annotation": MAX_ANNOTATION,
    }


def _is_changed(rows: Sequence[Row], name: Callable[[Row], str]) -> bool:
    return len(set(map(name, rows)) - {None, ""}) > 1


def _find_changes(kind: str, rows: Sequence[Row], name: Callable[[Row], str], step: timedelta) -> Iterator[Mark]:
    """Yield the changes of the judge or the policy: the points where another one scored most exchanges."""
    if not _is_changed(rows, name):
        return
    counts: dict[datetime, Counter[str]] = defaultdict(Counter)
    first: dict[tuple[datetime, str], datetime] = {}
    for row in rows:
        hour = row["hour"].replace(tzinfo=UTC)
        value = name(row)
        if value:
            period = datetime.fromtimestamp(hour.timestamp() // step.total_seconds() * step.total_seconds(), UTC)
            counts[period][value] += row["exchanges"]
            first.setdefault((period, value), hour)
            first[period, value] = min(hour, first[period, value])
    dominant = [(period, max(sorted(by_value), key=by_value.__getitem__)) for period, by_value in sorted(counts.items())]
    for (period, old), (next_period, new) in pairwise(dominant):
        if old != new:
            changed_at = first.get((period, new), first[next_period, new])
            yield Mark(changed_at, kind, f"{kind} changed from {old} to {new}")


def _name_judge(row: Row) -> str:
    simulated = " (simulated)" if row["simulated"] else ""
    return f"{row['judge_model']}{simulated}" if row["judge_model"] else ""


def _name_policy(row: Row) -> str:
    methodology = f"{row['methodology']} {row['methodology_version']}".strip()
    digest = row["policy_digest"][:_DIGEST_LENGTH]
    return f"{digest} ({methodology})" if methodology else digest


_COLUMNS = ("hour", "judge_model", "simulated", "policy_digest", "methodology", "methodology_version", "exchanges")
_SCORING_PARTS: Mapping[str, Callable[[Row], str]] = {"policy": _name_policy, "judge": _name_judge}
