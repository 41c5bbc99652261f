"""Tables of `driftline evaluate`: a line per evaluation, then each model's scores, overall and by dimension."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from audit.evaluation.dimensions import DIMENSIONS, HIGHEST
from audit.evaluation.report import EvaluationRow, ModelSummary, Report
from service.cli.terminal import bar, table
from service.text.formats import counted, plain

UNKNOWN = "\u2013"
"""Shown for an unknown value."""
SIMULATED_NOTE = "Simulated judge: it rates by simple rules, not by understanding."
_GAP = 3
"""Columns between two columns of a table."""
_MIN_NAME_WIDTH = 14
"""Minimum columns of a name. With less space, the table is shown in two parts."""
_MAX_ATTEMPTS = 5
"""Maximum number of attempts to sway the judge that are shown."""
_MAX_REASONS = 3
"""Maximum number of reasons for invalid answers that are shown, the most frequent first."""
_MIN_COST = 0.0001
"""The smallest cost that is shown as a number."""

Cell = str | Text
Columns = dict[str, Callable[[EvaluationRow], Cell]]


def usd(cost: float | None) -> str:
    """Format a cost, so that a small one never looks like zero."""
    if cost is None:
        return UNKNOWN
    return f"<${_MIN_COST}" if 0 < cost < _MIN_COST else f"${cost:.4f}"


def model_name(model: str | None) -> str:
    """Return the name to show for an agent's model."""
    return plain(model) if model is not None else UNKNOWN


def _format_number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def _format_score(row: EvaluationRow) -> Cell:
    return Text("failed", style="red") if row.score is None else f"{row.score:.2f}"


_NAMES: Columns = {
    "MODEL": lambda row: model_name(row.model),
    "CASE": lambda row: plain(row.case_id),
    "RUN": lambda row: plain(row.run),
}
_RESULTS: Columns = {"EVAL": lambda row: row.evaluation, "SCORE": _format_score}
_FIGURES: Columns = {
    "LATENCY_S": lambda row: _format_number(row.latency_s, ",.1f"),
    "IN_TOK": lambda row: _format_number(row.input_tokens, ","),
    "OUT_TOK": lambda row: _format_number(row.output_tokens, ","),
    "RUN_COST": lambda row: usd(row.run_cost_usd),
    "EVAL_COST": lambda row: usd(row.evaluation_cost_usd),
    "TOTAL_COST": lambda row: usd(row.total_cost_usd),
}
_WARNINGS: Columns = {"WARNINGS": lambda row: str(len(row.warnings))}
_LEFT_ALIGNED = (*_NAMES, "EVAL")


def evaluation_view(report: Report, width: int) -> RenderableType:
    """Show the report on a terminal with this number of columns."""
    parts: list[RenderableType] = [Text(SIMULATED_NOTE, style="yellow"), ""] if report.simulated else []
    for judge_run_id, rows in groupby(report.evaluations, key=lambda row: row.judge_run_id):
        run_rows = list(rows)
        parts += [Text(_format_heading(judge_run_id, run_rows), style="bold"), *_tabulate_rows(run_rows, width), ""]
    parts += [Text("By model", style="bold"), *_tabulate_models(report.models, width), ""]
    for summary in report.models:
        parts += [Text(f"Dimensions of {_name_model(summary, report)}", style="bold"), *_draw_bars(summary), ""]
    parts += [
        Text(line, style="yellow")
        for line in (*_count_invalid_answers(report.evaluations), *_list_attempts(report.evaluations))
    ]
    return Group(*parts, Text(summarize(report)))


def summarize(report: Report) -> str:
    """Describe the number of evaluations, what was paid for them now, and whether they pass."""
    parts = [f"{counted(report.executed, 'evaluation')} made", f"{report.reused} reused"]
    if report.executed:
        parts[0] += ", at an unknown cost" if report.spent_usd is None else f" for {report.spent_usd:.4f} USD"
    if report.failed:
        parts.append(f"{report.failed} failed: the judge gave no valid answer")
    if report.fail_under is not None:
        parts.append(f"{report.below} below {report.fail_under:g}")
    return "; ".join(parts)


def _format_heading(judge_run_id: str, rows: Sequence[EvaluationRow]) -> str:
    models = ", ".join(sorted({plain(row.judge_model) for row in rows}))
    return f"Judge run {plain(judge_run_id)}, by {models}"


def _name_model(summary: ModelSummary, report: Report) -> str:
    several = len({model.judge_run_id for model in report.models}) > 1
    return model_name(summary.model) + (f", judge run {summary.judge_run_id}" if several else "")


def _tabulate_rows(rows: Sequence[EvaluationRow], width: int) -> Iterator[RenderableType]:
    """Show the evaluations of a judge run in one table, or for lack of room in two whose lines share numbers."""
    values = _RESULTS | _FIGURES | _WARNINGS
    room = width - sum(_widest(name, values[name], rows) + _GAP for name in values) - _GAP * (len(_NAMES) - 1)
    natural = {name: _widest(name, make, rows) for name, make in _NAMES.items()}
    if room >= sum(min(need, _MIN_NAME_WIDTH) for need in natural.values()):
        yield _table(_NAMES | values, rows, share_width(natural, room))
        return
    number: Columns = {"#": lambda row: str(rows.index(row) + 1)}
    values = _RESULTS | _WARNINGS
    room = width - sum(_widest(name, make, rows) + _GAP for name, make in (number | values).items())
    yield _table(number | _NAMES | values, rows, share_width(natural, room - _GAP * (len(_NAMES) - 1)))
    yield ""
    yield _table(number | _FIGURES, rows, {})


def _table(columns: Columns, rows: Sequence[EvaluationRow], rooms: Mapping[str, int]) -> RenderableType:
    cells = [[_cut(make(row), rooms.get(name)) for name, make in columns.items()] for row in rows]
    return table([*columns], cells, right=[name for name in columns if name not in _LEFT_ALIGNED])


def share_width(needs: Mapping[str, int], room: int) -> dict[str, int]:
    """Divide the width among columns. A column that needs less than an equal share leaves the rest to others; each gets at least four."""
    rooms: dict[str, int] = {}
    for left, (name, need) in zip(range(len(needs), 0, -1), sorted(needs.items(), key=lambda item: item[1]), strict=True):
        rooms[name] = min(need, max(4, (room - sum(rooms.values())) // left))
    return rooms


def _cut(cell: Cell, room: int | None) -> Cell:
    """Return the cell, shortened in the middle if it is wider than the room."""
    if room is None or isinstance(cell, Text) or len(cell) <= room:
        return cell
    tail = (room - 1) // 2
    return f"{cell[: room - 1 - tail]}…{cell[len(cell) - tail :]}"


def _widest(name: str, make: Callable[[EvaluationRow], Cell], rows: Sequence[EvaluationRow]) -> int:
    return max(len(name), *(len(make(row)) for row in rows))


def _tabulate_models(models: Sequence[ModelSummary], width: int) -> Iterator[RenderableType]:
    """Show the results of each model, in one table or two."""
    several = len({summary.judge_run_id for summary in models}) > 1
    names = [[model_name(summary.model), *([plain(summary.judge_run_id)] if several else [])] for summary in models]
    headers = ["MODEL", *(["JUDGE_RUN"] if several else [])]
    scores = ["N", "FAILED", "MEAN", "95% INTERVAL"]
    score_cells = [
        [str(summary.evaluations), str(summary.failed), _format_number(summary.mean, ".2f"), _format_interval(summary)]
        for summary in models
    ]
    costs = ["RUN_COST", "EVAL_COST", "TOTAL_COST"]
    cost_cells = [_cost_cells(summary) for summary in models]
    needed = sum(_GAP + max(map(len, column)) for column in zip(scores, *score_cells, strict=True))
    cost_width = sum(_GAP + max(map(len, column)) for column in zip(costs, *cost_cells, strict=True))
    whole = width - needed - cost_width >= _MIN_NAME_WIDTH * len(headers)
    room = (width - needed - (cost_width if whole else 0)) // len(headers) - (_GAP if several else 0)
    cut = [[_cut(name, max(room, _MIN_NAME_WIDTH)) for name in of_model] for of_model in names]
    if whole:
        cells = [[*a, *b, *c] for a, b, c in zip(cut, score_cells, cost_cells, strict=True)]
        yield table([*headers, *scores, *costs], cells, right=[*scores, *costs])
        return
    yield table([*headers, *scores], [[*a, *b] for a, b in zip(cut, score_cells, strict=True)], right=scores)
    yield ""
    yield table([*headers, *costs], [[*a, *c] for a, c in zip(cut, cost_cells, strict=True)], right=costs)


def _format_interval(summary: ModelSummary) -> str:
    return UNKNOWN if summary.low is None or summary.high is None else f"{summary.low:.2f} to {summary.high:.2f}"


def _cost_cells(summary: ModelSummary) -> list[str]:
    unknown = f" + {summary.unknown_costs} unknown" if summary.unknown_costs else ""
    return [usd(summary.run_cost_usd), usd(summary.evaluation_cost_usd), usd(summary.total_cost_usd) + unknown]


def _draw_bars(summary: ModelSummary) -> Iterator[Text]:
    """Show a bar per dimension: the mean of its final scores, and the number of evaluations if some have none."""
    longest = max(map(len, DIMENSIONS))
    for dimension in DIMENSIONS:
        estimate = summary.dimensions[dimension]
        if estimate.mean is None:
            # an empty bar would look like a score of 0
            yield Text(f"{dimension:<{longest}}  {'':<{len(bar(0, HIGHEST))}}    n/a", style="dim")
            continue
        count_note = (
            f"  ({estimate.evaluations} of {summary.evaluations})" if estimate.evaluations < summary.evaluations else ""
        )
        yield Text(f"{dimension:<{longest}}  {bar(estimate.mean, HIGHEST)}  {estimate.mean:5.2f}{count_note}")


def _count_invalid_answers(rows: Sequence[EvaluationRow]) -> Iterator[str]:
    """Count the judge's invalid answers by reason."""
    iterations = [iteration for row in rows for iteration in row.result.judge_result.iterations if iteration.scores is None]
    reasons = Counter(plain(iteration.reason or iteration.outcome, 160) for iteration in iterations)
    for reason, count in reasons.most_common(_MAX_REASONS):
        yield f"Not counted, {counted(count, 'answer')} of the judge: {reason}"
    if len(reasons) > _MAX_REASONS:
        yield f"… and {counted(len(reasons) - _MAX_REASONS, 'more reason')}"
    if reasons:
        yield ""


def _list_attempts(rows: Sequence[EvaluationRow]) -> Iterator[str]:
    """Name the runs with attempts to sway the judge or the agent."""
    attempts = [
        f"Attempt to sway the judge or the agent in {plain(row.run, 64)}: {plain(reason, 160)}"
        for row in rows
        for reason in row.anomaly_reasons
    ]
    yield from attempts[:_MAX_ATTEMPTS]
    if len(attempts) > _MAX_ATTEMPTS:
        yield f"… and {counted(len(attempts) - _MAX_ATTEMPTS, 'more attempt')}"
    if attempts:
        yield ""
