"""A tuning as a table."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from audit.detectors.thresholds import Thresholds
from service.cli.terminal import MISSING, counted, table
from service.tuning import ProfileTuning


def tuning_view(agent: str | None, tuning: ProfileTuning) -> RenderableType:
    """The thresholds of one profile on a line each: what the runs have, what is flagged now, what is proposed."""
    headers = ["threshold", "now", "median", "p95", "p99", "most", "flags", "proposed", "would flag", "newest flagged runs"]
    fields = Thresholds.model_fields
    rows = [
        [
            str(fields[row.threshold].alias),
            _number(row.value),
            *map(_number, (row.median, row.p95, row.p99, row.most)),
            _share(row.flagged, tuning.runs),
            _number(row.proposed) if row.is_changed else "same",
            _share(row.proposed_flagged, tuning.runs),
            ", ".join(f"run_{number:03d}" for number in row.runs) or MISSING,
        ]
        for row in tuning.rows
        if row.value is not None
    ]
    title = f"{agent or 'runs without an agent'}: {counted(tuning.runs, 'run')}, thresholds {tuning.profile.version}"
    return Group(Text(title, style="bold"), table(headers, rows, right=headers[1:-1]))


def _number(value: float | None) -> str:
    return "off" if value is None else f"{value:,.0f}".replace(",", " ")


def _share(count: int, runs: int) -> str:
    return f"{count} ({count / runs:.1%})"
