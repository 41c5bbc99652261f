"""Charts: SVG made from numbers, and the same numbers as a table for readers who cannot see it or want them exactly.

The same numbers make the same markup. Colours come from the page's style, in light and dark; a shape or words say what colour says. A number that is not known is a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from service.pages.charts.axes import HEIGHT, WIDTH, Form, Limits, Point, Scale, at, frame, known, scale_of, visible
from service.pages.charts.marks import Triple, backgrounds, bands_of, columns, deployed, dot, hit, levels_of, runs
from service.pages.rendering import NOTHING, number, shown

__all__ = ["Band", "Chart", "Point", "bars", "line", "share_bar", "sparkline", "stacked_bars"]
_DOTS = 45
"""Up to this many points are each drawn as a dot; beyond it only marked and isolated ones."""
_SERIES = 7
"""Colours of the parts of bars; the last one is for all further parts together."""
_OTHER = "Other"
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 22


@dataclass(frozen=True, slots=True)
class Band:
    """The normal range: the mean, and one sigma to both sides of it."""

    mean: float
    sigma: float

    @property
    def levels(self) -> Triple:
        """Return its lower end, its middle, its upper end."""
        return self.mean - self.sigma, self.mean, self.mean + self.sigma


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
    form: Form | None = None
    """Writes a number; without it, numbers have `digits` digits."""
    digits: int = 2
    limits: Limits = (None, None)
    """The bounds of the measure itself."""
    reaches: tuple[float, ...] = ()
    """Numbers that the axis of a line includes in any case, so that small changes look small."""
    marked: str = "marked"
    """The meaning of a marked point, such as drift."""
    deployed: Mapping[str, str] = field(default_factory=dict)
    """Deployments in words, by the point's label: a line in the chart, and a column in the table."""

    def written(self, value: float | None) -> str:
        """Write a number of the chart."""
        if value is None:
            return NOTHING
        return self.form(value) if self.form else number(value, self.digits)


def line(
    chart: Chart,
    points: Sequence[Point],
    *,
    band: Band | Sequence[Band | None] | None = None,
    marked: Collection[str] = (),
    before: Sequence[float | None] = (),
) -> Markup:
    """Draw numbers along a line, with gaps for unknown ones, over the normal band: one for all points, or one for each.

    `marked` are the labels of points that stand out, such as days of drift: they have a shape of their own, and the table says so.
    `before` is what held before a change, at each point where that is to be seen.
    """
    values = [known(point.value) for point in points]
    seen = [value for value in values if value is not None]
    if not seen:
        return _empty(chart)
    bands = band if isinstance(band, Sequence) else [band] * len(points)
    normal = [one.levels if one else None for one in bands]
    reached = {level for levels in normal if levels for level in levels}
    reached |= {level for level in before if level is not None}
    scale = scale_of([*seen, *sorted(reached), *chart.reaches], len(points), chart.limits, chart.form, whole=not chart.digits)
    stands_out = [point.label in marked for point in points]
    drawn = [
        frame(scale, points, chart.form),
        *bands_of(scale, normal),
        *backgrounds(scale, stands_out),
        *levels_of(scale, before),
        *runs([None if value is None else (scale.x(place), scale.y(value)) for place, value in enumerate(values)]),
    ]
    drawn += [
        dot(scale.x(place), scale.y(value), marked=stands_out[place])
        for place, value in enumerate(values)
        if value is not None and (len(points) <= _DOTS or stands_out[place] or _stands_alone(values, place))
    ]
    notes = [chart.marked if out else "" for out in stands_out]
    drawn += [hit(scale, place, _said(chart, point, notes[place])) for place, point in enumerate(points)]
    drawn += _deployments(chart, scale, points)
    heads = [chart.column, *([chart.marked.capitalize()] if any(notes) else [])]
    rows = [[chart.written(values[place]), *([notes[place]] if any(notes) else [])] for place in range(len(points))]
    return _figure(chart, drawn, _table(chart, heads, points, rows))


def bars(chart: Chart, points: Sequence[Point], *, marked: Collection[str] = ()) -> Markup:
    """Draw a bar for each number, from 0 on; those with the labels `marked` in the colour of bad values."""
    return stacked_bars(chart, points, {chart.column: [point.value for point in points]}, marked=marked)


def stacked_bars(
    chart: Chart, points: Sequence[Point], series: Mapping[str, Sequence[float | None]], *, marked: Collection[str] = ()
) -> Markup:
    """Draw bars of several parts, one above the other, of `series` by name; the values of `points` do not matter.

    Beyond seven parts the last ones are drawn as one, and the table has all of them.
    """
    exact = {name: [known(value) for value in values] for name, values in series.items()}
    parts = _parts(exact)
    if not any(value is not None for values in exact.values() for value in values):
        return _empty(chart)
    stacks = [[value or 0.0 for value in stack] for stack in zip(*parts.values(), strict=True)]
    ends = [end for stack in stacks for end in (sum(filter(_is_positive, stack)), sum(value for value in stack if value < 0))]
    limits = (0.0, None) if min(ends) >= 0 else (None, None)
    scale = scale_of([0.0, *ends], len(points), limits, chart.form, whole=not chart.digits)
    bad = [point.label in marked for point in points]
    drawn = [frame(scale, points, chart.form), *columns(scale, stacks, bad)]
    for place, point in enumerate(points):
        told = [f"{name} {chart.written(values[place])}" for name, values in exact.items() if values[place] or len(exact) == 1]
        drawn.append(hit(scale, place, f"{point.label}: {', '.join(told) or NOTHING}"))
    drawn += _deployments(chart, scale, points)
    rows = [[chart.written(values[place]) for values in exact.values()] for place in range(len(points))]
    return _figure(chart, drawn, _legend(parts) + _table(chart, list(series), points, rows))


def sparkline(values: Sequence[float | None], words: str, reaches: Sequence[float] = ()) -> Markup:
    """Draw a small line without axes; `words` describe it, `reaches` is as of a chart. Nothing with fewer than two numbers."""
    numbers = [known(value) for value in values]
    seen = [value for value in numbers if value is not None]
    if len(seen) < 2:
        return Markup("")
    scale = scale_of([*seen, *reaches], len(numbers), (None, None), None)
    across, down = _SPARK_WIDTH / WIDTH, _SPARK_HEIGHT / HEIGHT
    places = [
        None if value is None else (scale.x(place) * across, scale.y(value) * down) for place, value in enumerate(numbers)
    ]
    return Markup(
        '<svg class="chart spark" width="{}" height="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_WIDTH, _SPARK_HEIGHT, visible(words), Markup("").join(runs(places)))


def share_bar(value: float | None, kind: str = "") -> Markup:
    """Draw a share of one as a bar beside its number, which is read out; `kind` is a class such as bad or soft."""
    if value is None:
        return Markup("")
    filled = at(64 * min(max(value, 0.0), 1.0))
    return Markup(
        '<svg class="chart share" width="64" height="8" viewBox="0 0 64 8" aria-hidden="true">'
        '<rect class="bar soft" width="64" height="8" rx="2"/><rect class="bar {}" width="{}" height="8" rx="2"/></svg>'
    ).format(kind, filled)


def _is_positive(value: float) -> bool:
    return value > 0


def _stands_alone(values: Sequence[float | None], place: int) -> bool:
    """Tell whether a number has no neighbour, so that no line shows it."""
    return not any(0 <= beside < len(values) and values[beside] is not None for beside in (place - 1, place + 1))


def _said(chart: Chart, point: Point, note: str) -> str:
    return f"{point.label}: {chart.written(known(point.value))}{f', {note}' if note else ''}"


def _parts(series: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
    """Return the parts to draw, each as one."""
    names = list(series)
    if len(names) <= _SERIES:
        return {name: list(series[name]) for name in names}
    own, rest = names[: _SERIES - 1], [series[name] for name in names[_SERIES - 1 :]]
    others = [
        None if all(one is None for one in stack) else sum(one or 0.0 for one in stack) for stack in zip(*rest, strict=True)
    ]
    return {name: list(series[name]) for name in own} | {f"{_OTHER} ({len(rest)})": others}


def _empty(chart: Chart) -> Markup:
    return Markup('<p class="soft"><span class="visually-hidden">{}: </span>There are no numbers to show.</p>').format(
        shown(chart.title)
    )


def _figure(chart: Chart, drawn: Sequence[Markup], below: Markup) -> Markup:
    svg = Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-labelledby="{}-title" aria-describedby="{}-words">'
        '<title id="{}-title">{}</title><desc id="{}-words">{}</desc>{}</svg>'
    )
    key = chart.key
    told = svg.format(
        WIDTH, HEIGHT, key, key, key, visible(chart.title), key, visible(chart.words), Markup("").join(drawn)
    )  # fmt: skip
    return Markup('<figure class="drawn">{}{}</figure>').format(told, below)


def _legend(parts: Mapping[str, object]) -> Markup:
    if len(parts) == 1:
        return Markup("")
    entry = Markup(
        '<li><svg class="chart swatch" width="12" height="12" aria-hidden="true"><rect class="part-{}" width="12" height="12" rx="3"/></svg> {}</li>'
    )
    return Markup('<ul class="legend">{}</ul>').format(
        Markup("").join(entry.format(place, shown(name)) for place, name in enumerate(parts))
    )


def _deployments(chart: Chart, scale: Scale, points: Sequence[Point]) -> list[Markup]:
    """Draw a line at each point with a deployment."""
    return [
        deployed(scale, place, f"{point.label}: deployed {chart.deployed[point.label]}")
        for place, point in enumerate(points)
        if point.label in chart.deployed
    ]


def _table(chart: Chart, heads: Sequence[str], points: Sequence[Point], rows: Sequence[Sequence[str]]) -> Markup:
    """Return the numbers of a chart as a table, one point per row."""
    told = [chart.deployed.get(point.label, "") for point in points]
    if any(told):
        heads = [*heads, "Deployed"]
        rows = [[*row, visible(words)] for row, words in zip(rows, told, strict=True)]
    head = Markup("").join(Markup('<th scope="col" class="number">{}</th>').format(shown(one)) for one in heads)
    body = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            shown(point.label), Markup("").join(Markup('<td class="number">{}</td>').format(cell) for cell in row)
        )
        for point, row in zip(points, rows, strict=True)
    )
    return Markup(
        '<details class="table" id="{}-table"><summary>As a table<span class="visually-hidden">: {}</span></summary>'
        '<div class="scroll" tabindex="0" role="group" aria-label="{}"><table><thead><tr><th scope="col">{}</th>{}</tr></thead>'
        "<tbody>{}</tbody></table></div></details>"
    ).format(chart.key, shown(chart.title), visible(chart.title), chart.first, head, body)
