"""The charts of a project over a window: each tier with its baseline, anomalies, exchanges, and the cost of judging."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any

from markupsafe import Markup

from analytics.queries import query_rows
from analytics.sums.daily import query_days
from audit.drift.consecutive_days import MIN_SIGMA
from schemas.lazy import duckdb
from schemas.records import Baseline, Incident, TierStatistics
from service.pages.charts import Band, Chart, Mark, Point, bars, line, stacked_bars
from service.pages.incident_figures import find_level_before, find_shown_incidents, merge_labels
from service.pages.rendering import number, usd
from service.text.links import Links
from service.text.window import Window
from service.text.words import TERMS

Row = Mapping[str, Any]
TIERS = {"tier1": (0.0, 1.0), "tier2": (0.0, 1.0), "tier2_5": (0.0, 1.0), "tier3": (1.0, 5.0)}
"""The tiers with the bounds of their scores."""
_REACHES = {"tier1": (0.8, 1.0), "tier2": (0.6, 1.0), "tier2_5": (0.6, 1.0), "tier3": (3.0, 5.0)}
"""Numbers that the charts always include, so that a change by a hundredth looks small."""
SPIKE = "anomaly_spike"
BEFORE = "Before the change"
"""The name of the line at a tier's level before a change."""
_UNWEIGHTED = "tier1"
"""Tiers of every exchange; in other tiers an exchange is weighted by 1 / its sampling probability."""
_UNKNOWN_MODEL = "unknown model"


@dataclass(frozen=True)
class Stretch:
    """A window shared by charts: its points, its marks, and the links of its points."""

    window: Window
    marks: Sequence[Mark]
    address: Callable[[Window], str]
    """The page of another window."""
    exchanges: Callable[[Window, bool], str] = lambda _window, _anomalous: ""
    """The address of the list of a window's exchanges, or only of its anomalous ones."""

    @property
    def unit(self) -> str:
        """The name of a point: hour or day."""
        return "hour" if self.window.is_hourly else "day"

    def chart(self, measure: str, **fields: Any) -> Chart:
        """Describe a chart of a measure over the window."""
        return Chart(
            title=f"{measure} by {self.unit}",
            first=self.unit.capitalize(),
            marks=self.marks,
            step=self.window.step,
            group="window",
            **fields,
        )

    def points(self, values: Mapping[datetime, float | None], of: Mapping[datetime, Row] | None = None) -> list[Point]:
        """Return the points with these values; `of` are the numbers of values behind the means."""
        rows = of or {}
        return [
            Point(label, values.get(slot), short, at=slot, count=row.get("scores"), half=row.get("half"), link=link)
            for slot, label, short, link in self._places
            for row in [rows.get(slot, {})]
        ]

    @cached_property
    def _places(self) -> list[tuple[datetime, str, str, str]]:
        """Each slot with its label, its axis label and its link, which are the same in all charts of a page."""
        form = "%m-%d" if not self.window.is_hourly else "%H:%M" if self.window.length != "3d" else "%m-%d %H:%M"
        return [(slot, self.window.label(slot), f"{slot:{form}}", self._link(slot)) for slot in self.window.slots()]

    def listed(self, slot: datetime, *, anomalous: bool) -> str:
        """Return the address of a day's exchanges, or of its anomalous ones; None for an hour."""
        if self.window.is_hourly:
            return ""
        return self.exchanges(Window("24h", slot + self.window.step, is_pinned=True), anomalous)

    def before(
        self, values: Mapping[datetime, float | None] | None, otherwise: float | None = None
    ) -> list[float | None] | None:
        """Return the preceding period's values, aligned with the points; None if they are not to be shown."""
        return None if values is None else [values.get(slot, otherwise) for slot in self.window.before.slots()]

    def _link(self, slot: datetime) -> str:
        """Return the address of a closer view: a day by hour, or the hours around an hour; None if there is no closer one."""
        if self.window.length == "6h":
            return ""
        if self.window.is_hourly:
            return self.address(Window("6h", slot + timedelta(hours=3), is_pinned=True, compare=self.window.compare))
        return self.address(Window("24h", slot + self.window.step, is_pinned=True, compare=self.window.compare))


@dataclass(frozen=True, slots=True)
class TierTrend:
    """A tier over the days of a window."""

    name: str
    normal: str
    """A description of the window's newest baseline; empty without one."""
    before: float | None
    """The mean of the days before the open change; None without one."""
    since: date | None
    """The first day of that change."""
    drift_days: int
    incidents: Sequence[Incident]
    """The incidents that cover its days of drift."""
    chart: Markup


def tier_trends(
    stretch: Stretch,
    rows: Sequence[Row],
    baselines: Sequence[Baseline],
    incidents: Sequence[Incident],
    past: Sequence[Row] | None = None,
) -> list[TierTrend]:
    """Return a chart for each tier with scores; points without a score are gaps.

    `baselines` are the baselines in force, oldest first; each applies until the next one, and the first also applies before it.
    `past` are the rows of the preceding period, if it is to be shown.
    """
    held = [_join_baselines(baselines, slot.date()) for slot in stretch.window.slots()]
    return [
        _draw_tier_trend(tier, stretch, rows, held, incidents, past=past)
        for tier in TIERS
        if any(tier in row["tiers"] for row in rows)
    ]


def tier_points(rows: Sequence[Row], tier: str) -> dict[datetime, Row]:
    """Return the points of a tier that have a score, by their beginning."""
    return {row["period"]: row["tiers"][tier] for row in rows if tier in row["tiers"]}


def mean_of(points: Mapping[datetime, Row]) -> float | None:
    """Return the weighted mean over all points; None without points."""
    weight = sum(one["weight"] for one in points.values())
    return sum(one["weight"] * one["mean"] for one in points.values()) / weight if weight else None


def _join_baselines(baselines: Sequence[Baseline], day: date) -> Baseline | None:
    """Return the baseline in force at the end of a day."""
    so_far = [one for one in baselines if one.computed_at.date() <= day]
    return next(iter([*so_far[-1:], *baselines[:1]]), None)


def _draw_tier_trend(
    tier: str,
    stretch: Stretch,
    rows: Sequence[Row],
    held: Sequence[Baseline | None],
    incidents: Sequence[Incident],
    *,
    past: Sequence[Row] | None,
) -> TierTrend:
    window, points = stretch.window, tier_points(rows, tier)
    values = {window.label(slot): points[slot]["mean"] if slot in points else None for slot in window.slots()}
    shown = find_shown_incidents(tier, incidents, values)
    drifted = merge_labels(shown)
    since, before, sigma = find_level_before(tier, incidents) or (None, None, None)
    usual = None if before is None else Band(before, max(sigma or 0.0, MIN_SIGMA))
    usually, moved = _freeze_baselines(held, since, window)
    statistics: list[TierStatistics | None] = [getattr(one, tier) if one else None for one in usually]
    remarks = [
        "" if moved[-1] else _describe_normal(tier, usually[-1]),
        f"{BEFORE}: {number(before, 2)}" if before is not None else "",
    ]
    remarks += [f"Drift on {', '.join(sorted(drifted))}"] if drifted else []
    chart = stretch.chart(
        f"{TERMS[tier]}: mean",
        key=f"trend-{tier}",
        words=". ".join(part for part in remarks if part),
        column="Mean" if tier == _UNWEIGHTED else "Weighted mean",
        limits=TIERS[tier],
        reaches=_REACHES[tier],
        marked="drift",
    )
    drawn = line(
        chart,
        stretch.points(_read_means(points), points),
        band=[usual if has_change else _build_band(one) for one, has_change in zip(statistics, moved, strict=True)],
        marked=drifted,
        before=[before if since and slot.date() >= since else None for slot in window.slots()],
        previous=stretch.before(None if past is None else _read_means(tier_points(past, tier))),
    )
    days = {label[: len("2026-11-26")] for label in drifted}
    return TierTrend(tier, remarks[0], before, since, len(days), [one.incident for one in shown], drawn)


def _freeze_baselines(
    held: Sequence[Baseline | None], since: date | None, window: Window
) -> tuple[list[Baseline | None], list[bool]]:
    """Return the baseline of each point, and whether a baseline covers days of an open change.

    From the first day of the change on it is the baseline from before: later baselines would follow the fall and present it as
    normal.
    """
    levels = list(held)
    before = [one for one in levels if since and one and one.computed_at.date() <= since]
    if before:
        levels = [
            before[-1] if since and slot.date() >= since else one for slot, one in zip(window.slots(), levels, strict=True)
        ]
    return levels, [bool(since and one and one.computed_at.date() > since) for one in levels]


def _read_means(points: Mapping[datetime, Row]) -> dict[datetime, float | None]:
    return {at: row["mean"] for at, row in points.items()}


def _describe_normal(tier: str, baseline: Baseline | None) -> str:
    """Describe the baseline of a tier with the days it covers; it describes the sampled scores, not the exchanges that they represent."""
    statistics: TierStatistics | None = getattr(baseline, tier) if baseline else None
    if baseline is None or statistics is None or statistics.mean is None:
        return ""
    last = (baseline.window_end - timedelta(microseconds=1)).date()
    sentence = f"{'' if tier == _UNWEIGHTED else ', as sampled'}, {baseline.window_start.date()} to {last}"
    band = _build_band(statistics)
    if band is None:
        return f"Baseline so far {number(statistics.mean, 2)}, of 1 score{sentence}"
    return f"Baseline {number(band.mean, 2)} ± {number(band.sigma, 2)} over {number(statistics.count)} scores{sentence}"


def _build_band(statistics: TierStatistics | None) -> Band | None:
    """Return the band of a baseline; None without a spread, as for a single score."""
    if statistics is None or statistics.mean is None or statistics.count == 1:
        return None
    return Band(statistics.mean, max(statistics.stddev or 0.0, MIN_SIGMA))


def anomaly_days(stretch: Stretch, rows: Sequence[Row], spikes: Collection[str], past: Sequence[Row] | None = None) -> Markup:
    """Return the number of anomalous exchanges by hour or day; points of a spike stand out."""
    chart = stretch.chart("Anomalies", key="anomalies", column="Anomalies", digits=0, marked="spike")
    return _count_days(chart, stretch, rows, "anomaly_count", past=past, marked=spikes)


def anomaly_shares(window: Window, rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the share of anomalous exchanges by hour or day."""
    return {window.label(row["period"]): row["anomaly_count"] / row["exchange_count"] for row in rows if row["exchange_count"]}


def exchange_days(stretch: Stretch, rows: Sequence[Row], past: Sequence[Row] | None = None) -> Markup:
    """Return the number of exchanges by hour or day."""
    chart = stretch.chart("Exchanges", key="exchanges", column="Exchanges", digits=0)
    return _count_days(chart, stretch, rows, "exchange_count", past=past)


def cost_days(stretch: Stretch, costs: Sequence[Row], past: Sequence[Row] | None = None) -> Markup:
    """Return the cost of judging each hour's or day's exchanges by model, with gaps for unknown costs."""
    slots = stretch.window.slots()
    models = {row["model"]: row["model"] or _UNKNOWN_MODEL for row in costs}
    spent = {(row["model"], row["period"]): row["cost_usd"] for row in costs}
    series = {
        name: [spent.get((model, slot), 0.0) for slot in slots]
        for model, name in sorted(models.items(), key=lambda one: one[1])
    }
    before: dict[datetime, float | None] = defaultdict(float)
    for row in past or ():
        before[row["period"]] = (before[row["period"]] or 0.0) + (row["cost_usd"] or 0.0)
    chart = stretch.chart("Cost of judging", key="costs", form=usd, column="Cost")
    return stacked_bars(chart, stretch.points({}), series, previous=stretch.before(None if past is None else before, 0.0))


def model_costs(costs: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the cost of each model over the window, most expensive first; None without a known cost."""
    by_model: dict[str, list[Row]] = defaultdict(list)
    for row in costs:
        by_model[row["model"] or _UNKNOWN_MODEL].append(row)
    summed = [{"model": model, "cost_usd": known_sum(rows)} | _sum_tokens(rows) for model, rows in by_model.items()]
    return sorted(summed, key=lambda one: (-(one["cost_usd"] or 0.0), one["model"]))


def known_sum(costs: Sequence[Row]) -> float | None:
    """Return the sum of the known costs; 0 without costs, None if all are unknown."""
    amounts = [row["cost_usd"] for row in costs if row["cost_usd"] is not None]
    return round(sum(amounts), 9) if amounts or not costs else None


def _sum_tokens(rows: Sequence[Row]) -> dict[str, int]:
    names = (
        "judgements",
        "calls",
        "input_tokens",
        "output_tokens",
        "cache_write_tokens",
        "cache_read_tokens",
        "unknown_costs",
        "simulated",
    )
    return {name: sum(row[name] for row in rows) for name in names}


def _count_days(
    chart: Chart,
    stretch: Stretch,
    rows: Sequence[Row],
    name: str,
    *,
    past: Sequence[Row] | None,
    marked: Collection[str] = (),
) -> Markup:
    """Return bars of a count, 0 where a point has no row."""
    values = dict.fromkeys(stretch.window.slots(), 0) | {row["period"]: row[name] for row in rows}
    before = None if past is None else {row["period"]: row[name] for row in past}
    anomalous = name == "anomaly_count"
    points = [replace(one, listed=stretch.listed(one.at, anomalous=anomalous)) for one in stretch.points(values) if one.at]
    return bars(chart, points, marked=marked, previous=stretch.before(before, 0))


_EMPTY_COUNTS = {"anomalies": 0, "runs": 0, "unsafe_runs": 0, "incidents": 0, "evaluations": 0, "mean_score": None}


def points_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the hours or days of a window that have scores, with the tiers by name."""
    query = "points_by_hour" if window.is_hourly else "points_by_day"
    rows = query_days(cursor, query, {"project": project, "from": window.start, "to": window.end})
    return [{**row, "tiers": {one["tier"]: one for one in row["tiers"]}} for row in rows]


def newest_event(cursor: duckdb.DuckDBPyConnection, project: str, since: datetime, now: datetime) -> date | None:
    """Return the day of a project's newest event if it comes after the day of a moment; otherwise None."""
    rows = query_rows(cursor, "last_heard", {"project": project, "as_of": now})
    at = max((row["last_at"] for row in rows if row["kind"] == "event"), default=None)
    return at.date() if at is not None and at.date() > since.date() else None


def costs_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the cost of judging the exchanges of the window by point and model, by the time of the exchange."""
    by = "hour" if window.is_hourly else "day"
    return query_days(cursor, "window_costs", {"project": project, "by": by, "from": window.start, "to": window.end})


def stretch_of(project: str, window: Window, marks: Sequence[Mark]) -> Stretch:
    """Return the common values of a window's charts.

    Points link to the project's page of that period, counts to the counted records.
    """
    return Stretch(
        window,
        marks,
        lambda other: Links(other.asked).project(project),
        lambda other, anomalous: Links(other.asked).exchanges(project, anomalies="yes" if anomalous else None),
    )


def sampling_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the reasons why exchanges of the window were judged or not."""
    return query_days(cursor, "project_sampling", {"project": project, "from": window.start, "to": window.end})


def counts_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> list[dict[str, Any]]:
    """Return the project's counts in a window and in the preceding period; empty if they are not to be compared."""
    if window is None or not window.compare:
        return []
    counts = []
    for period in (window, window.before):
        rows = query_days(cursor, "period_counts", {"project": project, "from": period.start, "to": period.end})
        counts.append(rows[0] if rows else _EMPTY_COUNTS)
    return counts
