"""Score against cost as a picture: a point per model and case, with good and cheap ones at the upper left."""

from __future__ import annotations

import importlib.util
import io
import statistics
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from audit.evaluation.dimensions import HIGHEST
from audit.evaluation.results.report import EvaluationRow, Report
from schemas.errors import SettingsError
from service.cli.reports.result_files import write_file
from service.text.plain import counted, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

SUFFIX = ".png"
LABELLED = 20
"""Points that are labelled with their case if there is room; else they carry its number, and the cases are listed."""
LISTED = 25
"""Models and cases that are listed together; of more the lists would be longer than the picture is high."""
_SIZE, _DPI = (9.0, 6.0), 150
"""Inches, and points per inch."""
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c564b", "#4d4d4d")
"""Distinguishable for people who see red and green alike (Okabe and Ito)."""
_SHAPES = "osD^vP*X"
_NAME = 32
"""Characters of a name."""
_BESIDE = {"bbox_to_anchor": (1.0, 0.0, 0.0, 1.0), "fontsize": 9, "frameon": False, "handletextpad": 0.1}
"""Position and style of legends."""
_WIDE = 50.0
"""From this ratio of the largest cost to the smallest on, costs are shown on a logarithmic axis."""
_OFFSETS = [
    (x, y) for reach in (1, 2, 3) for x, y in ((8, 0), (8, 9 * reach), (8, -9 * reach), (-8, 9 * reach), (-8, -9 * reach))
]
"""Positions of a label, in points from its own; the first free one is used."""


@dataclass(frozen=True)
class Point:
    """The result of a model on a case, over all runs with both a score and a known cost."""

    series: str
    """The model, and its judge run if there are several."""
    case_id: str
    score: float
    cost_usd: float
    runs: int


def require_charts(path: Path) -> None:
    """SettingsError if no picture can be drawn: the library is missing, or the file is not named as a PNG."""
    if path.suffix.lower() != SUFFIX:
        raise SettingsError(f"--chart {path}: a chart must be a PNG", hint="Choose a name that ends in .png.")
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingsError("--chart: matplotlib is not installed", hint="Install it: pip install matplotlib")


def write_chart(report: Report, path: Path) -> None:
    """Draw the report's chart into a PNG. SettingsError when that cannot be done."""
    require_charts(path)
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that no font at hand draws is shown as boxes; the report has the name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawn(report).savefig(picture, format="png", metadata={"Software": None})
    write_file(path, picture.getvalue())


def points_of(report: Report) -> list[Point]:
    """Return the points of the chart, by series and case."""
    found: dict[tuple[str, str], list[EvaluationRow]] = defaultdict(list)
    several = len({row.judge_run_id for row in report.evaluations}) > 1
    for row in report.evaluations:
        if row.score is not None and row.total_cost_usd is not None:
            name = plain(row.model or "unknown model", _NAME)
            found[f"{name} · {row.judge_run_id}" if several else name, row.case_id].append(row)
    return [
        Point(
            series,
            case_id,
            statistics.fmean(row.score for row in rows if row.score is not None),
            statistics.fmean(row.total_cost_usd for row in rows if row.total_cost_usd is not None),
            len(rows),
        )
        for (series, case_id), rows in sorted(found.items())
    ]


def drawn(report: Report) -> Figure:
    """Draw the chart. It looks the same whatever a user has configured for matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415 - most commands draw nothing, and it takes a second to load
    from matplotlib.figure import Figure  # noqa: PLC0415 - the same

    with mpl.rc_context():
        mpl.rcdefaults()
        figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
        axes, points = figure.subplots(), points_of(report)
        who = ", simulated judge" if report.simulated else ""
        axes.set_title(f"Score against cost of run and evaluation{who}", loc="left", fontsize=13)
        _plot(axes, points)
        _measure(axes, points)
        caption = _caption(report, points)
        _write_below(figure, caption)
        if not _name_cases(figure, axes, points):
            _write_below(figure, f"{caption} There are too many cases to name them.")
    return figure


def _write_below(figure: Figure, caption: str) -> None:
    figure.supxlabel(textwrap.fill(caption, 130), fontsize=8, color="#555555", parse_math=False)


def _plot(axes: Axes, points: Sequence[Point]) -> None:
    """Draw the points, and the models in a legend."""
    series = sorted({point.series for point in points})
    for place, name in enumerate(series):
        of_series = [point for point in points if point.series == name]
        axes.plot(
            [point.cost_usd for point in of_series],
            [point.score for point in of_series],
            linestyle="",
            marker=_SHAPES[place % len(_SHAPES)],
            color=_COLOURS[place % len(_COLOURS)],
            markersize=10,
            # A label that begins with an underscore would be left out of the legend.
            label=f" {name}",
        )
    if series:
        _as_written(axes.legend(loc="upper left", **_BESIDE))


def _name_cases(figure: Figure, axes: Axes, points: Sequence[Point]) -> bool:
    """Write its case beside each point; without room, its number, and list the cases. False: there are too many."""
    if len(points) <= LABELLED:
        labels = [_label(axes, point, plain(point.case_id, _NAME) + _runs(point)) for point in points]
        figure.draw_without_rendering()
        if _spread_out(axes, labels):
            return True
        for label in labels:
            label.remove()
    cases = _listed(points)
    if not cases:
        return False
    for point in points:
        label = _label(axes, point, str(1 + cases.index(point.case_id)))
        label.set(
            color="white", fontsize=6.5, fontweight="bold", horizontalalignment="center", verticalalignment="center_baseline"
        )
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as where the chart is drawn

    models = axes.get_legend()
    listed = [Line2D([], [], linestyle="", label=f"{number}  {plain(case, _NAME)}") for number, case in enumerate(cases, 1)]
    _as_written(axes.legend(handles=listed, loc="lower left", handlelength=0, **_BESIDE))
    if models is not None:
        # What is cut off at the axes gets no room beside them.
        models.set_clip_on(b=False)
        axes.add_artist(models)
    return True


def _listed(points: Sequence[Point]) -> list[str]:
    """Return the cases in the order of their numbers; none if they are too many to list."""
    cases = sorted({point.case_id for point in points})
    return cases if len(cases) + len({point.series for point in points}) <= LISTED else []


def _label(axes: Axes, point: Point, text: str) -> Annotation:
    """Place a text on its point for now."""
    place = (point.cost_usd, point.score)
    return axes.annotate(text, place, xytext=(0, 0), textcoords="offset points", fontsize=8.5, parse_math=False)


def _runs(point: Point) -> str:
    return f" ({point.runs} runs)" if point.runs > 1 else ""


def _as_written(legend: Legend) -> None:
    """Show names as they are written, not as formulas."""
    for text in legend.get_texts():
        text.set_parse_math(parse_math=False)


def _measure(axes: Axes, points: Sequence[Point]) -> None:
    """Set the axes: the whole scale of scores, and costs from zero unless they differ too much."""
    axes.set_ylim(-0.3, HIGHEST + 0.3)
    axes.set_ylabel(f"final score, 0 to {HIGHEST:g}")
    costs = [point.cost_usd for point in points]
    smallest, largest = min(costs, default=0.0), max(costs, default=0.0)
    if smallest > 0 and largest / smallest >= _WIDE:
        axes.set_xscale("log")
        axes.set_xlim(smallest / 2, largest * 3)
        axes.set_xlabel("cost of run and evaluation together, USD (logarithmic)")
    else:
        axes.set_xlim(0, largest * 1.25 or 1)
        axes.set_xlabel("cost of run and evaluation together, USD")
        axes.xaxis.set_major_formatter("{x:.4g}")
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _caption(report: Report, points: Sequence[Point]) -> str:
    """Say what the picture shows, and what it leaves out."""
    scored = [row for row in report.evaluations if row.score is not None]
    unknown = sum(row.total_cost_usd is None for row in scored)
    parts = [f"{counted(len(report.evaluations), 'evaluation')}; a point is the mean of a model's runs on a case."]
    if unknown:
        parts.append(f"Not shown: {unknown} of unknown cost.")
    if failed := len(report.evaluations) - len(scored):
        parts.append(f"Not shown: {failed} without a score.")
    if not points:
        parts.append("There is nothing to show.")
    return " ".join(parts)


def _spread_out(axes: Axes, labels: Sequence[Annotation]) -> bool:
    """Move each label to a place where it hides no other and no point; return whether there was one for each."""
    whole = axes.get_window_extent()
    taken: list[Bbox] = [_around(axes, label) for label in labels]
    for label in labels:
        for x, y in _OFFSETS:
            label.xyann = (x, y)
            label.set(horizontalalignment="left" if x > 0 else "right", verticalalignment="center")
            box = label.get_window_extent()
            if not any(box.overlaps(other) for other in taken) and whole.x0 <= box.x0 and box.x1 <= whole.x1:
                taken.append(box)
                break
        else:
            return False
    return True


def _around(axes: Axes, label: Annotation) -> Bbox:
    """Return the room of a label's point, in pixels."""
    from matplotlib.transforms import Bbox  # noqa: PLC0415 - as where the chart is drawn

    x, y = axes.transData.transform(label.xy)
    return Bbox.from_extents(x - 9, y - 9, x + 9, y + 9)
