"""The charts of a project over a window: each tier with its baseline, anomalies, exchanges, and the cost of judging."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from typing import Any, Literal, get_args

from markupsafe import Markup

from analytics.queries import query_rows
from analytics.sums.daily import query_days, read_hours
from audit.drift.consecutive_days import MIN_SIGMA
from audit.evaluation.dimensions import HIGHEST, LOWEST
from schemas.lazy import duckdb, pl
from schemas.records import Baseline, Incident, TierStatistics
from service.pages.charts import MAX_SERIES, Band, Chart, Mark, Point, bars, line, lines, marks_within, stacked_bars, visible
from service.pages.incident_figures import find_level_before, find_shown_incidents, merge_labels
from service.pages.rendering import number, usd
from service.read.versions import VERSION_NAMES
from service.text.links import Links
from service.text.window import Window
from service.text.words import TERMS
from service.text.zone import local
from streams.upkeep.annotations import VERSIONS
from streams.watch.lifecycle import is_live
from streams.watch.measures import OVERALL

Row = Mapping[str, Any]
TIERS = {"tier1": (0.0, 1.0), "tier2": (0.0, 1.0), "tier2_5": (0.0, 1.0), "tier3": (1.0, 5.0)}
"""The tiers with the bounds of their scores."""
_AXIS_RANGES = {"tier1": (0.8, 1.0), "tier2": (0.6, 1.0), "tier2_5": (0.6, 1.0), "tier3": (3.0, 5.0)}
"""Ranges that the charts always include, so that a change by a hundredth looks small."""
SPIKE = "anomaly_spike"
LEVEL_BEFORE = "Before the change"
"""Label of the line at a tier's level before a change."""
_UNSAMPLED_TIER = "tier1"
"""The tier that scores every exchange. In other tiers an exchange is weighted by the inverse of its sampling probability."""
_UNKNOWN_MODEL = "unknown model"
_NO_NAME = "(no name)"


@dataclass(frozen=True)
class ChartWindow:
    """What the charts of a page share: the window, the marks, and the links of the points."""

    window: Window
    marks: Sequence[Mark]
    address: Callable[[Window], str]
    """Returns the address of the page for another window."""
    exchanges: Callable[[Window, bool], str] = lambda _window, _anomalous: ""
    """Returns the address of the list of a window's exchanges, or only of its anomalous ones."""

    @property
    def unit(self) -> str:
        """The unit of a point: hour or day."""
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

    def points(self, values: Mapping[datetime, float | None], rows: Mapping[datetime, Row] | None = None) -> list[Point]:
        """Return the points with these values. `rows` have the counts and intervals of means."""
        points = []
        for slot, label, axis_label, link in self._slots:
            row = (rows or {}).get(slot, {})
            points.append(
                Point(label, values.get(slot), axis_label, at=slot, count=row.get("scores"), half=row.get("half"), link=link)
            )
        return points

    @cached_property
    def _slots(self) -> list[tuple[datetime, str, str, str]]:
        """Each slot with its label, its axis label and its link. They are the same in all charts of a page."""
        return [(slot, self.window.label(slot), self._label_on_axis(slot), self._link(slot)) for slot in self.window.slots()]

    def _label_on_axis(self, slot: datetime) -> str:
        """Return the day of a slot, or its hour in the reader's zone; midnight has the day."""
        if not self.window.is_hourly:
            return f"{slot:%m-%d}"
        return f"{local(slot):%H:%M}" if local(slot).hour else f"{local(slot):%m-%d}"

    def link_exchanges(self, slot: datetime, *, anomalous: bool) -> str:
        """Return the address of a day's exchanges, or of its anomalous ones; empty for an hour."""
        if self.window.is_hourly:
            return ""
        return self.exchanges(Window("24h", slot + self.window.step, is_pinned=True), anomalous)

    def align_previous(
        self, values: Mapping[datetime, float | None] | None, default: float | None = None
    ) -> list[float | None] | None:
        """Return the preceding period's values in the order of the points; None if they are not shown."""
        return None if values is None else [values.get(slot, default) for slot in self.window.before.slots()]

    def _link(self, slot: datetime) -> str:
        """Return the address of a closer view: a day by hour, or the hours around an hour; empty if there is none."""
        if self.window.span <= timedelta(hours=6):
            return ""
        if self.window.is_hourly:
            return self.address(Window("6h", slot + timedelta(hours=3), is_pinned=True, compare=self.window.compare))
        return self.address(Window("24h", slot + self.window.step, is_pinned=True, compare=self.window.compare))


@dataclass(frozen=True, slots=True)
class TierTrend:
    """A tier over the days of a window."""

    name: str
    baseline: str
    """A description of the newest baseline; empty without one."""
    before: float | None
    """The mean before the live change; None without one."""
    since: date | None
    """The first day of the live change."""
    drift_days: int
    """Days of drift; changes that only the judge caused do not count."""
    incidents: Sequence[Incident]
    """The incidents that its days show."""
    elsewhere: Sequence[Incident]
    """The other live incidents of the tier, each in an agent or version that the mean of all hardly shows."""
    chart: Markup


def draw_tier_trends(
    chart_window: ChartWindow,
    rows: Sequence[Row],
    baselines: Sequence[Baseline],
    incidents: Sequence[Incident],
    previous: Sequence[Row] | None = None,
) -> list[TierTrend]:
    """Return a chart for each tier with scores. Points without a score are gaps.

    `baselines` are oldest first. Each applies until the next one, and the first also applies to the days before it. `previous` are the
    rows of the preceding period, if the page shows it.
    """
    baselines_by_slot = [_find_baseline(baselines, slot.date()) for slot in chart_window.window.slots()]
    return [
        _draw_tier_trend(tier, chart_window, rows, baselines_by_slot, incidents, previous=previous)
        for tier in TIERS
        if any(tier in row["tiers"] for row in rows)
    ]


Split = Literal["agent", "version", "model"]
"""What the charts of a project are split by."""
SPLITS: tuple[Split, ...] = get_args(Split)
_MAX_PARTS = MAX_SERIES - 1
"""Parts with a line of their own; the others are drawn together."""
_SPLIT_SUMS = ("exchanges", "anomalies", *(f"{tier}_{column}" for tier in TIERS for column in ("weight", "total")))


@dataclass(frozen=True, slots=True)
class PartTrends:
    """The charts of a project with a line or a stack for each agent, version or model, in the same colors."""

    charts: Mapping[str, Markup]
    """By tier; those without scores are missing."""
    exchanges: Markup
    anomalies: Markup
    shown: int
    """Parts with a line of their own, those with most exchanges."""
    folded: int
    """Parts that are drawn together."""


def read_split(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, split: Split) -> pl.DataFrame | None:
    """Return the sums of each part and point of a window, with their `slot` (naive UTC) and `part`; None without scores.

    They are the hourly sums, where a session counts whole in the hour of its last turn of a day, and with the labels of that turn.
    """
    hours = read_hours(cursor, [project], window.start.date(), window.end, ("hour", "agent", "labels", *_SPLIT_SUMS))
    if hours is None:
        return None
    start = window.start.replace(tzinfo=None)
    hours = hours.filter((pl.col("hour") >= start) & (pl.col("hour") < window.end.replace(tzinfo=None)))
    kinds = hours.select("agent", "labels").unique().rows()
    names = pl.DataFrame(
        [(*kind, name) for kind, name in _name_parts(kinds, split).items()],
        {"agent": pl.String, "labels": pl.String, "part": pl.String},
        orient="row",
    )
    return (
        hours.join(names, on=["agent", "labels"], nulls_equal=True)
        .with_columns(slot=pl.col("hour").dt.truncate("1h" if window.is_hourly else "1d"))
        .group_by("part", "slot")
        .agg(pl.col(*_SPLIT_SUMS).sum())
    )


def _name_parts(kinds: Iterable[tuple[str | None, str]], split: Split) -> dict[tuple[str | None, str], str]:
    """Return the name of the part of each agent with labels.

    A version is named by the labels that changed for its agent, such as "prompt 3", and with its agent if there are several.
    """
    labels = {kind: dict(json.loads(kind[1])) if kind[1] else {} for kind in kinds}
    values: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for (agent, _), pairs in labels.items():
        for label in VERSIONS:
            values[agent, label].add(pairs.get(label, ""))
    agents = {agent for agent, _ in labels}
    names = {}
    for kind, pairs in labels.items():
        agent = kind[0] or _NO_NAME
        if split == "agent":
            names[kind] = agent
        elif split == "model":
            names[kind] = pairs.get("model", _UNKNOWN_MODEL)
        else:
            changed = [label for label in VERSIONS if len(values[kind[0], label]) > 1] or VERSIONS
            present = [f"{VERSION_NAMES[label].lower()} {pairs[label]}" for label in changed if label in pairs]
            version = ", ".join(present) or "no version"
            names[kind] = f"{agent}, {version}" if len(agents) > 1 else version
    return names


def draw_parts(chart_window: ChartWindow, sums: pl.DataFrame, split: Split) -> PartTrends:
    """Draw each tier, exchanges and anomalies by part. Those with fewest exchanges are drawn together."""
    volumes = sums.group_by("part").agg(pl.col("exchanges").sum()).sort(["exchanges", "part"], descending=[True, False])
    parts: list[str] = volumes["part"].to_list()
    # A single part that is left over has a line of its own.
    kept = parts if len(parts) <= MAX_SERIES else parts[:_MAX_PARTS]
    folded = len(parts) - len(kept)
    other = f"Other ({folded})"
    named = sums.with_columns(part=pl.when(pl.col("part").is_in(kept)).then(pl.col("part")).otherwise(pl.lit(other)))
    rows = {(row["part"], row["slot"]): row for row in named.group_by("part", "slot").agg(pl.all().sum()).iter_rows(named=True)}
    names = [*kept, other] if folded else kept
    slots = [slot.replace(tzinfo=None) for slot in chart_window.window.slots()]
    points = chart_window.points({})

    def collect(value: Callable[[Row], float | None], default: float | None) -> dict[str, list[float | None]]:
        return {
            visible(name): [value(rows[name, slot]) if (name, slot) in rows else default for slot in slots] for name in names
        }

    def draw_tier(tier: str) -> Markup:
        chart = chart_window.chart(
            f"{TERMS[tier]} by {split}: mean", key=f"trend-{tier}", limits=TIERS[tier], reaches=_AXIS_RANGES[tier]
        )
        means = collect(lambda row: row[f"{tier}_total"] / row[f"{tier}_weight"] if row[f"{tier}_weight"] else None, None)
        return lines(chart, points, means)

    def draw_counts(name: str, column: str) -> Markup:
        chart = chart_window.chart(f"{name} by {split}", key=name.lower(), digits=0)
        return stacked_bars(chart, points, collect(lambda row: row[column], 0))

    return PartTrends(
        {tier: draw_tier(tier) for tier in TIERS if sums[f"{tier}_weight"].sum()},
        draw_counts("Exchanges", "exchanges"),
        draw_counts("Anomalies", "anomalies"),
        len(kept),
        folded,
    )


def select_tier(rows: Sequence[Row], tier: str) -> dict[datetime, Row]:
    """Return a tier's figures of each point that has a score, by the start of the point."""
    return {row["period"]: row["tiers"][tier] for row in rows if tier in row["tiers"]}


def compute_mean(points: Mapping[datetime, Row]) -> float | None:
    """Return the weighted mean over all points; None without points."""
    weight = sum(point["weight"] for point in points.values())
    return sum(point["weight"] * point["mean"] for point in points.values()) / weight if weight else None


def _find_baseline(baselines: Sequence[Baseline], day: date) -> Baseline | None:
    """Return the baseline that applies at the end of a day: the newest by then, or the first of all."""
    if not baselines:
        return None
    by_then = [baseline for baseline in baselines if baseline.computed_at.date() <= day]
    return by_then[-1] if by_then else baselines[0]


def _draw_tier_trend(
    tier: str,
    chart_window: ChartWindow,
    rows: Sequence[Row],
    baselines_by_slot: Sequence[Baseline | None],
    incidents: Sequence[Incident],
    *,
    previous: Sequence[Row] | None,
) -> TierTrend:
    window = chart_window.window
    points = select_tier(rows, tier)
    values = {window.label(slot): points[slot]["mean"] if slot in points else None for slot in window.slots()}
    shown = find_shown_incidents(tier, incidents, values)
    shown_ids = {entry.incident.incident_id for entry in shown}
    elsewhere = [
        incident
        for incident in incidents
        if incident.tier == tier and incident.agent and is_live(incident) and incident.incident_id not in shown_ids
    ]
    drift_labels = merge_labels(entry for entry in shown if entry.incident.severity != "notice")
    since, before, sigma = find_level_before(tier, incidents) or (None, None, None)
    band_before = None if before is None else Band(before, max(sigma or 0.0, MIN_SIGMA))
    baselines, covers_change = _choose_baselines(baselines_by_slot, since, window)
    statistics: list[TierStatistics | None] = [getattr(baseline, tier) if baseline else None for baseline in baselines]
    baseline_text = "" if covers_change[-1] else _describe_baseline(tier, baselines[-1])
    remarks = [baseline_text]
    if before is not None:
        remarks.append(f"{LEVEL_BEFORE}: {number(before, 2)}")
    if drift_labels:
        remarks.append(f"Drift on {', '.join(sorted(drift_labels))}")
    chart = chart_window.chart(
        f"{TERMS[tier]}: mean",
        key=f"trend-{tier}",
        words=". ".join(remark for remark in remarks if remark),
        column="Mean" if tier == _UNSAMPLED_TIER else "Weighted mean",
        limits=TIERS[tier],
        reaches=_AXIS_RANGES[tier],
        marked="drift",
    )
    drawing = line(
        chart,
        chart_window.points(_read_means(points), points),
        band=[
            band_before if has_change else _build_band(row) for row, has_change in zip(statistics, covers_change, strict=True)
        ],
        marked=drift_labels,
        before=[before if since and slot.date() >= since else None for slot in window.slots()],
        previous=chart_window.align_previous(None if previous is None else _read_means(select_tier(previous, tier))),
    )
    days = {label[: len("2026-11-26")] for label in drift_labels}
    return TierTrend(tier, baseline_text, before, since, len(days), [entry.incident for entry in shown], elsewhere, drawing)


def _choose_baselines(
    baselines_by_slot: Sequence[Baseline | None], since: date | None, window: Window
) -> tuple[list[Baseline | None], list[bool]]:
    """Return the baseline of each point, and whether that baseline includes days of the live change since `since`.

    From the first day of the change on, the points keep the last baseline from before it, because later ones would follow the change and
    present it as normal.
    """
    if since is None:
        return list(baselines_by_slot), [False] * len(baselines_by_slot)
    before = [baseline for baseline in baselines_by_slot if baseline and baseline.computed_at.date() <= since]
    baselines = [
        before[-1] if before and slot.date() >= since else baseline
        for slot, baseline in zip(window.slots(), baselines_by_slot, strict=True)
    ]
    return baselines, [bool(baseline and baseline.computed_at.date() > since) for baseline in baselines]


def _read_means(points: Mapping[datetime, Row]) -> dict[datetime, float | None]:
    return {start: row["mean"] for start, row in points.items()}


def _describe_baseline(tier: str, baseline: Baseline | None) -> str:
    """Describe the baseline of a tier and its days. It is about the sampled scores, not about the exchanges that they represent."""
    statistics: TierStatistics | None = getattr(baseline, tier) if baseline else None
    if baseline is None or statistics is None or statistics.mean is None:
        return ""
    last = (baseline.window_end - timedelta(microseconds=1)).date()
    period = f"{'' if tier == _UNSAMPLED_TIER else ', as sampled'}, {baseline.window_start.date()} to {last}"
    band = _build_band(statistics)
    if band is None:
        return f"Baseline so far {number(statistics.mean, 2)}, of 1 score{period}"
    return f"Baseline {number(band.mean, 2)} ± {number(band.sigma, 2)} over {number(statistics.count)} scores{period}"


def _build_band(statistics: TierStatistics | None) -> Band | None:
    """Return the band of a baseline; None if a single score has no spread."""
    if statistics is None or statistics.mean is None or statistics.count == 1:
        return None
    return Band(statistics.mean, max(statistics.stddev or 0.0, MIN_SIGMA))


def draw_anomalies(
    chart_window: ChartWindow, rows: Sequence[Row], spikes: Collection[str], previous: Sequence[Row] | None = None
) -> Markup:
    """Draw the number of anomalous exchanges by hour or day. Points of a spike stand out."""
    chart = chart_window.chart("Anomalies", key="anomalies", column="Anomalies", digits=0, marked="spike")
    return _draw_counts(chart, chart_window, rows, "anomaly_count", previous=previous, marked=spikes)


def compute_anomaly_shares(window: Window, rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the share of anomalous exchanges by hour or day."""
    return {window.label(row["period"]): row["anomaly_count"] / row["exchange_count"] for row in rows if row["exchange_count"]}


def draw_exchanges(chart_window: ChartWindow, rows: Sequence[Row], previous: Sequence[Row] | None = None) -> Markup:
    """Draw the number of exchanges by hour or day."""
    chart = chart_window.chart("Exchanges", key="exchanges", column="Exchanges", digits=0)
    return _draw_counts(chart, chart_window, rows, "exchange_count", previous=previous)


def draw_session_scores(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, marks: Sequence[Mark]) -> Markup:
    """Draw the overall score by day of the sessions that were judged as a whole."""
    last = window.end - timedelta(microseconds=1)
    dates = [window.start.date() + timedelta(days=number) for number in range((last.date() - window.start.date()).days + 1)]
    values = {"project": project, "series": OVERALL, "as_of": window.end, "days": len(dates)}
    rows = {row["day"]: row for row in query_rows(cursor, "session_score_days", values)}
    chart = Chart(
        key="whole-sessions",
        title="Session judge: overall",
        words="Weighted mean of the overall score of judged sessions, day by day.",
        column="Mean",
        counted="Judged sessions",
        limits=(LOWEST, HIGHEST),
        marks=marks,
        step=timedelta(days=1),
    )
    return line(chart, [_build_session_point(day, rows.get(day)) for day in dates])


def _build_session_point(day: date, row: Row | None) -> Point:
    midnight = datetime.combine(day, time(), UTC)
    if row is None:
        return Point(f"{day}", None, f"{day:%m-%d}", at=midnight)
    return Point(f"{day}", row["mean"], f"{day:%m-%d}", at=midnight, count=row["sessions"], half=row["half"])


def draw_costs(
    chart_window: ChartWindow, costs: Sequence[Row], previous: Sequence[Row] | None = None, *, title: str = "Cost of judging"
) -> Markup:
    """Draw the costs of each hour or day, by model. Unknown costs are gaps."""
    slots = chart_window.window.slots()
    models = {row["model"]: row["model"] or _UNKNOWN_MODEL for row in costs}
    cost_of = {(row["model"], row["period"]): row["cost_usd"] for row in costs}
    series = {
        name: [cost_of.get((model, slot), 0.0) for slot in slots]
        for model, name in sorted(models.items(), key=lambda item: item[1])
    }
    before: dict[datetime, float | None] = defaultdict(float)
    for row in previous or ():
        before[row["period"]] = (before[row["period"]] or 0.0) + (row["cost_usd"] or 0.0)
    chart = chart_window.chart(title, key="costs", form=usd, column="Cost")
    return stacked_bars(
        chart, chart_window.points({}), series, previous=chart_window.align_previous(None if previous is None else before, 0.0)
    )


def sum_costs_by_model(costs: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the cost and tokens of each model, most expensive first. A cost is None if it is unknown."""
    by_model: dict[str, list[Row]] = defaultdict(list)
    for row in costs:
        by_model[row["model"] or _UNKNOWN_MODEL].append(row)
    totals = [{"model": model, "cost_usd": sum_known_costs(rows)} | _sum_tokens(rows) for model, rows in by_model.items()]
    return sorted(totals, key=lambda total: (-(total["cost_usd"] or 0.0), total["model"]))


def sum_known_costs(costs: Sequence[Row]) -> float | None:
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


def _draw_counts(
    chart: Chart,
    chart_window: ChartWindow,
    rows: Sequence[Row],
    name: str,
    *,
    previous: Sequence[Row] | None,
    marked: Collection[str] = (),
) -> Markup:
    """Draw a count as bars. It is 0 at a point without a row."""
    values = dict.fromkeys(chart_window.window.slots(), 0) | {row["period"]: row[name] for row in rows}
    before = None if previous is None else {row["period"]: row[name] for row in previous}
    anomalous = name == "anomaly_count"
    points = [
        replace(point, records_link=chart_window.link_exchanges(point.at, anomalous=anomalous))
        for point in chart_window.points(values)
        if point.at
    ]
    return bars(chart, points, marked=marked, previous=chart_window.align_previous(before, 0))


_EMPTY_COUNTS = {"anomalies": 0, "runs": 0, "unsafe_runs": 0, "incidents": 0, "evaluations": 0, "mean_score": None}


def read_points(
    cursor: duckdb.DuckDBPyConnection, project: str, window: Window, agent: str | None = None
) -> list[dict[str, Any]]:
    """Return the hours or days of a window that have scores, each with its tiers by name; days can be those of an agent."""
    values = {"project": project, "from": window.start, "to": window.end}
    query = "points_by_hour" if window.is_hourly else "points_by_day"
    rows = query_days(cursor, query, values if window.is_hourly else {**values, "agent": agent})
    return [{**row, "tiers": {tier["tier"]: tier for tier in row["tiers"]}} for row in rows]


def draw_agent_quality(cursor: duckdb.DuckDBPyConnection, project: str, agent: str, window: Window) -> Markup | None:
    """Return the chart of an agent's answer quality by day in a window of days; None without scores."""
    points = select_tier(read_points(cursor, project, window, agent), "tier2")
    if not points:
        return None
    chart_window = build_chart_window(project, window, marks_within(cursor, project, window.start, window.end, window.step))
    chart = chart_window.chart(
        f"{TERMS['tier2']}: mean",
        key=f"quality-{project}",
        words="",
        column="Weighted mean",
        limits=TIERS["tier2"],
        reaches=_AXIS_RANGES["tier2"],
    )
    return line(chart, chart_window.points(_read_means(points), points))


def find_newest_event(cursor: duckdb.DuckDBPyConnection, project: str, since: datetime, now: datetime) -> date | None:
    """Return the day of a project's newest event if it is after the day of `since`; otherwise None."""
    rows = query_rows(cursor, "last_heard", {"project": project, "as_of": now})
    newest = max((row["last_at"] for row in rows if row["kind"] == "event"), default=None)
    return newest.date() if newest is not None and newest.date() > since.date() else None


def read_costs(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the cost of judging a window's exchanges, by hour or day of the exchange and by model."""
    unit = "hour" if window.is_hourly else "day"
    return query_days(cursor, "window_costs", {"project": project, "by": unit, "from": window.start, "to": window.end})


def build_chart_window(project: str, window: Window, marks: Sequence[Mark], split: Split | None = None) -> ChartWindow:
    """Return what the charts of a project share.

    Points link to the project's page for their period, split in the same way, and counts to the list of the counted exchanges.
    """
    return ChartWindow(
        window,
        marks,
        lambda other: Links(other.params).project(project, split=split),
        lambda other, anomalous: Links(other.params).exchanges(project, anomalies="yes" if anomalous else None),
    )


def read_sampling(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the reasons why a window's exchanges were judged or not, with counts."""
    return query_days(cursor, "project_sampling", {"project": project, "from": window.start, "to": window.end})


def read_counts(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> list[dict[str, Any]]:
    """Return the project's counts in a window and in the preceding period; empty if the page does not compare them."""
    if window is None or not window.compare:
        return []
    counts = []
    for period in (window, window.before):
        rows = query_days(cursor, "period_counts", {"project": project, "from": period.start, "to": period.end})
        counts.append(rows[0] if rows else _EMPTY_COUNTS)
    return counts
