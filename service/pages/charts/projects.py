"""The charts of a project: each tier with its baseline, anomalies, exchanges, and the cost of judging."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from markupsafe import Markup

from audit.drift.consecutive_days import SMALLEST_SIGMA
from schemas.records import Baseline, Incident, TierStatistics
from service.pages.charts.charts import Band, Chart, Point, bars, line, stacked_bars
from service.pages.incidents.change_days import before_of, marked_days, telling
from service.pages.rendering import number, usd
from service.pages.window import Window
from service.pages.words import TERMS

Row = Mapping[str, Any]
TIERS = {"tier1": (0.0, 1.0), "tier2": (0.0, 1.0), "tier2_5": (0.0, 1.0), "tier3": (1.0, 5.0)}
"""The tiers with the bounds of their scores."""
_REACHES = {"tier1": (0.8, 1.0), "tier2": (0.6, 1.0), "tier2_5": (0.6, 1.0), "tier3": (3.0, 5.0)}
"""Numbers that the charts include in any case, so that a change by a hundredth looks small."""
SPIKE = "anomaly_spike"
BEFORE = "Before the change"
"""The name of the line at a tier's level before a change."""
_UNWEIGHTED = "tier1"
"""Tiers that every exchange has; in the others each exchange counts 1 / its chance of being sampled."""
_UNKNOWN_MODEL = "unknown model"


@dataclass(frozen=True, slots=True)
class TierTrend:
    """A tier over the days of a window."""

    name: str
    normal: str
    """The newest baseline of the window, in words; empty without one."""
    before: float | None
    """The mean before the open change; None without one."""
    drift_days: int
    incidents: Sequence[Incident]
    """Those that cover its days of drift."""
    chart: Markup


def tier_trends(
    window: Window,
    rows: Sequence[Row],
    baselines: Sequence[Baseline],
    incidents: Sequence[Incident],
    deployed: Mapping[str, str],
) -> list[TierTrend]:
    """Return a chart of each tier that has a score; days without a score are gaps.

    `baselines` are those that held, oldest first; each stands until the next one, and before the first one it is the first that counts.
    """
    by_day = {row["day"]: row for row in rows}
    held = [_held(baselines, day) for day in window.days()]
    return [
        _tier_trend(tier, window, by_day, held, incidents, deployed=deployed)
        for tier in TIERS
        if any(row[_mean_of(tier)] is not None for row in rows)
    ]


def _held(baselines: Sequence[Baseline], day: date) -> Baseline | None:
    """Return the baseline at the end of a day."""
    so_far = [one for one in baselines if one.computed_at.date() <= day]
    return next(iter([*so_far[-1:], *baselines[:1]]), None)


def _tier_trend(
    tier: str,
    window: Window,
    rows: Mapping[date, Row],
    held: Sequence[Baseline | None],
    incidents: Sequence[Incident],
    *,
    deployed: Mapping[str, str],
) -> TierTrend:
    days = list(window.days())
    values = {f"{day}": rows[day][_mean_of(tier)] if day in rows else None for day in days}
    statistics: list[TierStatistics | None] = [getattr(one, tier) if one else None for one in held]
    bands = [_band(one) for one in statistics]
    drifted = marked_days(tier, incidents, values)
    since, before = before_of(tier, incidents) or (None, None)
    told = [_normal(tier, statistics[-1]), f"{BEFORE}: {number(before, 2)}" if before is not None else ""]
    told += [f"Drift on {', '.join(sorted(drifted))}"] if drifted else []
    chart = Chart(
        key=f"trend-{tier}",
        title=f"{TERMS[tier]}: mean by day",
        words=". ".join(part for part in told if part),
        column="Mean" if tier == _UNWEIGHTED else "Weighted mean",
        limits=TIERS[tier],
        reaches=_REACHES[tier],
        marked="drift",
        deployed=deployed,
    )
    drawn = line(
        chart,
        [_point(day, values[f"{day}"]) for day in days],
        band=bands,
        marked=drifted,
        before=[before if since and day >= since else None for day in days],
    )
    return TierTrend(tier, told[0], before, len(drifted), telling(tier, incidents, values, drifted), drawn)


def _mean_of(tier: str) -> str:
    """Return the column of the days with the tier's mean."""
    return f"{tier}_mean" if tier == _UNWEIGHTED else f"{tier}_weighted_mean"


def _normal(tier: str, statistics: TierStatistics | None) -> str:
    """Describe a baseline of a tier; it is of the scores as sampled, not of the exchanges they stand for."""
    band = _band(statistics)
    sampled = "" if tier == _UNWEIGHTED else ", as sampled"
    if statistics is not None and statistics.mean is not None and statistics.count == 1:
        return f"Baseline so far {number(statistics.mean, 2)}, of 1 score{sampled}"
    if band is None or statistics is None:
        return ""
    return f"Baseline {number(band.mean, 2)} ± {number(band.sigma, 2)} over {number(statistics.count)} scores{sampled}"


def _band(statistics: TierStatistics | None) -> Band | None:
    """Return the spread of a baseline; None without one, which a single score does not have."""
    if statistics is None or statistics.mean is None or statistics.count == 1:
        return None
    return Band(statistics.mean, max(statistics.stddev or 0.0, SMALLEST_SIGMA))


def anomaly_days(window: Window, rows: Sequence[Row], spikes: Collection[str], deployed: Mapping[str, str]) -> Markup:
    """Return the number of anomalous exchanges by day; days of a spike stand out."""
    chart = Chart(key="anomalies", title="Anomalies by day", column="Anomalies", digits=0, deployed=deployed)
    return bars(chart, _counts(window, rows, "anomaly_count"), marked=spikes)


def anomaly_shares(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the share of anomalous exchanges by day."""
    return {f"{row['day']}": row["anomaly_count"] / row["exchange_count"] for row in rows if row["exchange_count"]}


def exchange_days(window: Window, rows: Sequence[Row], deployed: Mapping[str, str]) -> Markup:
    """Return the number of exchanges by day."""
    chart = Chart(key="exchanges", title="Exchanges by day", column="Exchanges", digits=0, deployed=deployed)
    return bars(chart, _counts(window, rows, "exchange_count"))


def cost_days(window: Window, costs: Sequence[Row], deployed: Mapping[str, str]) -> Markup:
    """Return the cost of judging each day's exchanges, by model; a day without a known cost of a model is a gap."""
    days = list(window.days())
    models = {row["model"]: row["model"] or _UNKNOWN_MODEL for row in costs}
    spent = {(row["model"], row["day"]): row["cost_usd"] for row in costs}
    series = {
        name: [spent.get((model, day), 0.0) for day in days] for model, name in sorted(models.items(), key=lambda one: one[1])
    }
    chart = Chart(key="costs", title="Cost of judging by day", form=usd, column="Cost", deployed=deployed)
    return stacked_bars(chart, [_point(day, None) for day in days], series)


def model_costs(costs: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the cost of each model over the window, most expensive first; None without a known cost."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in costs:
        found[row["model"] or _UNKNOWN_MODEL].append(row)
    summed = [{"model": model, "cost_usd": known_sum(rows)} | _sums(rows) for model, rows in found.items()]
    return sorted(summed, key=lambda one: (-(one["cost_usd"] or 0.0), one["model"]))


def known_sum(costs: Sequence[Row]) -> float | None:
    """Return the sum of the known costs; 0 without any, None if none of them is known."""
    known = [row["cost_usd"] for row in costs if row["cost_usd"] is not None]
    return round(sum(known), 9) if known or not costs else None


def _sums(rows: Sequence[Row]) -> dict[str, int]:
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


def _counts(window: Window, rows: Sequence[Row], name: str) -> list[Point]:
    by_day = {row["day"]: row[name] for row in rows}
    return [_point(day, by_day.get(day, 0)) for day in window.days()]


def _point(day: date, value: float | None) -> Point:
    return Point(f"{day}", value, f"{day:%m-%d}")
