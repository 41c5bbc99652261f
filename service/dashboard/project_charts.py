"""The charts of a project: how each tier does beside its baseline, what was anomalous, what came, and what judging it cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from markupsafe import Markup

from audit.drift import SMALLEST_SIGMA
from schemas.records import Baseline, Incident, TierStatistics
from service.dashboard.charts import Band, Chart, Point, bars, line, stacked_bars
from service.dashboard.rendering import number, usd
from service.dashboard.window import Window
from service.dashboard.words import TERMS
from streams.watch.incidents import seen_by_rules

Row = Mapping[str, Any]
Marked = Mapping[str, frozenset[str]]
TIERS = {"tier1": (0.0, 1.0), "tier2": (0.0, 1.0), "tier2_5": (0.0, 1.0), "tier3": (1.0, 5.0)}
"""The tiers, and where the scores of each begin and end."""
_REACHES = {"tier1": (0.8, 1.0), "tier2": (0.6, 1.0), "tier2_5": (0.6, 1.0), "tier3": (3.0, 5.0)}
"""What the charts show in any case: what moves by a hundredth is to look like that."""
SPIKE = "anomaly_spike"
_MOST_DAYS = 1000
"""More days than any window has."""
_UNKNOWN_MODEL = "unknown model"


@dataclass(frozen=True, slots=True)
class TierTrend:
    """A tier over the days of a window."""

    name: str
    normal: str
    """What the newest baseline of the window says, in words; empty without one."""
    drift_days: int
    incidents: Sequence[Incident]
    """Those that tell of its days of drift."""
    chart: Markup


def marked_days(incidents: Sequence[Incident]) -> dict[str, frozenset[str]]:
    """The days that incidents are about, by tier, those of spikes under their type; dismissed ones were none."""
    found: dict[str, set[str]] = defaultdict(set)
    for incident in incidents:
        if incident.status != "dismissed":
            found[incident.tier or incident.type].update(*map(_days_of, seen_by_rules(incident).values()))
    return {name: frozenset(days) for name, days in found.items()}


def _days_of(seen: Row) -> list[str]:
    """The days from the first to the last that a rule tells of."""
    first, last = date.fromisoformat(seen["since"]), date.fromisoformat(seen["until"])
    return [f"{first + timedelta(days=later)}" for later in range(min((last - first).days, _MOST_DAYS) + 1)]


def tier_trends(
    window: Window, rows: Sequence[Row], baselines: Sequence[Baseline], incidents: Sequence[Incident]
) -> list[TierTrend]:
    """A chart of each tier that has a score; where a day has none of it the line has a gap.

    `baselines` are those that held, oldest first; each stands until the next one, and before the first one it is the first that counts.
    """
    by_day = {row["day"]: row for row in rows}
    held = [_held(baselines, day) for day in window.days()]
    return [
        _tier_trend(tier, window, by_day, held, incidents)
        for tier in TIERS
        if any(row[f"{tier}_mean"] is not None for row in rows)
    ]


def _held(baselines: Sequence[Baseline], day: date) -> Baseline | None:
    """The baseline at the end of a day."""
    so_far = [one for one in baselines if one.computed_at.date() <= day]
    return next(iter([*so_far[-1:], *baselines[:1]]), None)


def _tier_trend(
    tier: str, window: Window, rows: Mapping[date, Row], held: Sequence[Baseline | None], incidents: Sequence[Incident]
) -> TierTrend:
    points = [_point(day, rows[day][f"{tier}_mean"] if day in rows else None) for day in window.days()]
    statistics: list[TierStatistics | None] = [getattr(one, tier) if one else None for one in held]
    bands = [_band(one) for one in statistics]
    normal, band, newest = "", bands[-1], statistics[-1]
    if band and newest:
        normal = f"Baseline {number(band.mean, 2)} ± {number(band.sigma, 2)} over {number(newest.count)} scores"
    marked = marked_days(incidents).get(tier, frozenset())
    drifted = frozenset(point.label for point in points if point.label in marked and point.value is not None)
    words = ". ".join(part for part in (normal, f"Drift on {', '.join(sorted(drifted))}" if drifted else "") if part)
    chart = Chart(
        key=f"trend-{tier}",
        title=f"{TERMS[tier]}: mean by day",
        words=words,
        column="Mean",
        limits=TIERS[tier],
        reaches=_REACHES[tier],
        marked="drift",
    )
    return TierTrend(
        tier, normal, len(drifted), telling(tier, incidents, drifted), line(chart, points, band=bands, marked=drifted)
    )


def _band(statistics: TierStatistics | None) -> Band | None:
    if statistics is None or statistics.mean is None:
        return None
    return Band(statistics.mean, max(statistics.stddev or 0.0, SMALLEST_SIGMA))


def telling(name: str, incidents: Sequence[Incident], days: Collection[str]) -> list[Incident]:
    """The incidents of a tier, or of a type that has none, that are about some of these days."""
    return [one for one in incidents if not marked_days([one]).get(name, frozenset()).isdisjoint(days)]


def anomaly_days(window: Window, rows: Sequence[Row], marked: Marked) -> Markup:
    """How many exchanges of each day were anomalous; days of a spike stand out."""
    chart = Chart(key="anomalies", title="Anomalies by day", column="Anomalies", digits=0)
    return bars(chart, _counts(window, rows, "anomaly_count"), marked=marked.get(SPIKE, frozenset()))


def exchange_days(window: Window, rows: Sequence[Row]) -> Markup:
    """How many exchanges each day had."""
    chart = Chart(key="exchanges", title="Exchanges by day", column="Exchanges", digits=0)
    return bars(chart, _counts(window, rows, "exchange_count"))


def cost_days(window: Window, costs: Sequence[Row]) -> Markup:
    """What judging cost each day, by model; a day on which no cost of a model is known has a gap."""
    days = list(window.days())
    models = {row["model"]: row["model"] or _UNKNOWN_MODEL for row in costs}
    spent = {(row["model"], row["day"]): row["cost_usd"] for row in costs}
    series = {
        name: [spent.get((model, day), 0.0) for day in days] for model, name in sorted(models.items(), key=lambda one: one[1])
    }
    chart = Chart(key="costs", title="Cost of judging by day", form=usd, column="Cost")
    return stacked_bars(chart, [_point(day, None) for day in days], series)


def model_costs(costs: Sequence[Row]) -> list[dict[str, Any]]:
    """What each model cost over the window, the dearest first; None where no cost is known."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in costs:
        found[row["model"] or _UNKNOWN_MODEL].append(row)
    summed = [{"model": model, "cost_usd": known_sum(rows)} | _sums(rows) for model, rows in found.items()]
    return sorted(summed, key=lambda one: (-(one["cost_usd"] or 0.0), one["model"]))


def known_sum(costs: Sequence[Row]) -> float | None:
    """The known costs together; 0 where there were none, None where there were and none is known."""
    known = [row["cost_usd"] for row in costs if row["cost_usd"] is not None]
    return round(sum(known), 9) if known or not costs else None


def _sums(rows: Sequence[Row]) -> dict[str, int]:
    names = ("judgements", "calls", "input_tokens", "output_tokens", "cache_read_tokens", "unknown_costs", "simulated")
    return {name: sum(row[name] for row in rows) for name in names}


def _counts(window: Window, rows: Sequence[Row], name: str) -> list[Point]:
    by_day = {row["day"]: row[name] for row in rows}
    return [_point(day, by_day.get(day, 0)) for day in window.days()]


def _point(day: date, value: float | None) -> Point:
    return Point(f"{day}", value, f"{day:%m-%d}")
