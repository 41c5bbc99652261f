"""The rules of `audit` applied to what was measured of one project: what they find, in one form and in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from audit import drift, spikes
from audit.reference import NO_DECISION, Reference
from audit.sequential import Change, find_change
from schemas.records import Baseline, TierStatistics
from streams.watch.baselines import is_comparable
from streams.watch.findings import DOWN, DRIFT, SPIKE, UP, Finding, Key, Looked
from streams.watch.measured import QUERY, TIERS, Measured, midnight

CONSECUTIVE, SEQUENTIAL, RATIO = "consecutive_days", "sequential", "rate_ratio"
_FELL = {UP: "rose", DOWN: "fell"}
_SHOWN = 3
"""Decimals of what is shown."""


@dataclass(frozen=True, slots=True)
class Case:
    """What the rules are asked about."""

    measured: Measured
    baseline: Baseline | None
    references: Mapping[str, Reference]
    """For a series which of its days count; all of them where it is not named."""
    parameters: Mapping[str, Any]
    """Of the query that the measures come from."""

    @property
    def looked(self) -> Looked:
        """Where the rules look."""
        return Looked(QUERY, {**self.parameters, "projects": [self.measured.project]})

    def reference(self, series: str) -> Reference:
        """Which days of a series count."""
        return self.references.get(series, NO_DECISION)


Rule = Callable[[Case], Iterator[Finding]]


def by_consecutive_days(case: Case) -> Iterator[Finding]:
    """Runs of days whose averages lie off the baseline; of two runs on one side the later one. Needs a comparable baseline."""
    if case.baseline is None or not is_comparable(case.baseline, case.measured):
        return
    for tier, name in TIERS.items():
        known: TierStatistics = getattr(case.baseline, tier)
        if known.mean is None or known.stddev is None:
            continue
        reference = case.reference(tier)
        if reference.cuts_into(case.baseline.window_start.date(), case.baseline.window_end.date()):
            continue  # what it calls normal was measured in part on days of a change that is over
        counts = {one: count for one, count in case.measured.days(tier).items() if not reference.cuts(one.day)}
        found = drift.consecutive_days(list(counts), known.mean, known.stddev, case.measured.as_of.date())
        for one in {one.direction: one for one in found}.values():
            yield _run(case, case.baseline, (tier, name), one, counts)


def _run(
    case: Case, baseline: Baseline, tier: tuple[str, str], found: drift.Drift, counts: Mapping[drift.DailyAverage, int]
) -> Finding:
    column, name = tier
    known: TierStatistics = getattr(baseline, column)
    first, last = found.days[0].day, found.days[-1].day
    averages = [one.average for one in found.days if one.average is not None]
    farthest = (min if found.direction == DOWN else max)(averages)
    length, mean, stddev = len(found.days), known.mean or 0.0, known.stddev or 0.0
    return Finding(
        key=Key(DRIFT, column, found.direction),
        rule=CONSECUTIVE,
        severity=found.severity,
        since=first,
        until=last,
        size=found.deviation,
        title=f"{name} {_FELL[found.direction]} to {farthest:.2f} from {mean:.2f}: {length} days in a row",
        description=(
            f"From {first} to {last} the daily averages of {name} were {length} times in a row more than one standard deviation "
            f"({max(stddev, drift.SMALLEST_SIGMA):.3f}) {_off(found.direction)} the baseline of {mean:.3f} ({known.count} scores); "
            f"the farthest was {farthest:.3f}, {found.deviation:.1f} standard deviations off."
        ),
        numbers={
            "days": _days({one: counts[one] for one in found.days}),
            "deviation": _shown(found.deviation),
            "mean": _shown(mean),
            "stddev": _shown(stddev),
            "baselineScores": known.count,
            "baselineId": baseline.baseline_id,
        },
        before=(baseline.window_start, min(midnight(first), baseline.window_end)),
        after=(midnight(first), _end(last, case.measured.as_of)),
        expected=mean,
        looked=case.looked,
    )


def by_evidence(case: Case) -> Iterator[Finding]:
    """Changes of a tier's mean that are more than chance, by the weighted scores of sessions; needs no baseline record."""
    as_of = case.measured.as_of.date()
    for tier, name in TIERS.items():
        cells = case.measured.cells(tier)
        found = find_change(cells, as_of, reference=case.reference(tier)) if len(cells.last) else None
        if found is not None:
            yield _change(case, (tier, name), found, case.reference(tier).since or cells.last[0].astype(datetime).date())


def _change(case: Case, tier: tuple[str, str], found: Change, start: date) -> Finding:
    column, name = tier
    counts, earliest, latest = case.measured.days(column), found.earliest_day, found.latest_day
    until = found.seen_at.date()
    shown = {one: count for one, count in counts.items() if earliest <= one.day <= until}
    return Finding(
        key=Key(DRIFT, column, found.direction),
        rule=SEQUENTIAL,
        severity=found.severity,
        since=found.first_day,
        until=until,
        size=abs(found.size),
        title=f"{name} {_FELL[found.direction]} to {found.mean_after:.2f} from {found.mean_before:.2f} on {found.first_day}",
        description=_in_words(name, found),
        numbers={
            "days": _days(shown),
            "firstDay": f"{found.first_day}",
            "firstDayInterval": [f"{earliest}", f"{latest}"],
            "change": _shown(found.size),
            "changeInterval": [_shown(found.size_interval.low), _shown(found.size_interval.high)],
            "meanBefore": _shown(found.mean_before),
            "meanAfter": _shown(found.mean_after),
            "scoresBefore": found.scores_before,
            "scoresAfter": found.scores_after,
            "sessionsBefore": found.units_before,
            "sessionsAfter": found.units_after,
            "sigma": _shown(found.sigma),
            "logEvidence": round(found.log_evidence, 1),
        },
        before=(midnight(start), midnight(found.first_day)),
        after=(midnight(found.first_day), _end(until, case.measured.as_of)),
        expected=found.mean_before,
        looked=case.looked,
        interval=(earliest, latest),
        confirmed=found.confirmed_at is not None,
        known_level=case.reference(column).since is not None,
    )


def _in_words(name: str, found: Change) -> str:
    low, high = sorted(abs(one) for one in (found.size_interval.low, found.size_interval.high))
    earliest, latest = found.earliest_day, found.latest_day
    return (
        f"The mean of {name} {_FELL[found.direction]} by {abs(found.size):.3f} (95 % interval {low:.3f} to {high:.3f}), from "
        f"{found.mean_before:.3f} over {found.scores_before} scores to {found.mean_after:.3f} over {found.scores_after}. The first "
        f"day of the change is most likely {found.first_day} (95 % interval {earliest} to {latest}). Scores count by their sampling "
        "probability, so a change in what is sampled is not taken for one in quality."
    )


def by_rate(case: Case) -> Iterator[Finding]:
    """A rate of anomalies over the last days that is a multiple of the baseline's. Needs a comparable baseline."""
    baseline, measured = case.baseline, case.measured
    if baseline is None or baseline.anomaly_rate is None or not is_comparable(baseline, measured):
        return
    today = measured.as_of.date()
    lately = measured.statistics(today - timedelta(days=spikes.DAYS - 1), today)
    found = spikes.anomaly_spike(
        anomalies=lately.anomalies,
        scores=lately.exchanges,
        baseline_rate=baseline.anomaly_rate,
        baseline_scores=baseline.exchange_count,
    )
    if found is not None:
        yield _spike(case, baseline, found)


def _spike(case: Case, baseline: Baseline, found: spikes.Spike) -> Finding:
    today = case.measured.as_of.date()
    days = [today - timedelta(days=number) for number in reversed(range(spikes.DAYS))]
    daily = {day: case.measured.statistics(day, day) for day in days}
    times = "" if found.ratio is None else f", so it is {found.ratio:.1f} times as high"
    return Finding(
        key=Key(SPIKE, None, UP),
        rule=RATIO,
        severity=found.severity,
        since=days[0],
        until=max(day for day, one in daily.items() if one.exchanges),
        size=found.rate,
        title=f"{found.rate:.0%} of the exchanges have an anomaly, {found.baseline_rate:.1%} had one before",
        description=(
            f"From {days[0]} to {today} {found.anomalies} of {found.scores} exchanges had an anomaly ({found.rate:.1%}). In the "
            f"baseline, {baseline.window_start:%Y-%m-%d} to {baseline.window_end:%Y-%m-%d}, the rate is {found.baseline_rate:.1%} "
            f"of {baseline.exchange_count}{times}."
        ),
        numbers={
            "days": [
                {"day": f"{day}", "anomalies": one.anomalies, "count": one.exchanges}
                for day, one in daily.items()
                if one.exchanges
            ],
            "anomalies": found.anomalies,
            "exchanges": found.scores,
            "rate": _shown(found.rate),
            "baselineRate": _shown(found.baseline_rate),
            "baselineExchanges": baseline.exchange_count,
            "baselineId": baseline.baseline_id,
            "ratio": _shown(found.ratio),
        },
        before=(baseline.window_start, min(midnight(days[0]), baseline.window_end)),
        after=(midnight(days[0]), case.measured.as_of),
        expected=found.baseline_rate,
        looked=case.looked,
    )


ALL_RULES: Mapping[str, Rule] = {SEQUENTIAL: by_evidence, CONSECUTIVE: by_consecutive_days, RATIO: by_rate}
"""The rules by name; of several that see one change the first is the one that tells of it."""
LOOK_BACK = 406
"""How many days of scores the rules are given: what the first look of a week sees. Sums by the hour are kept for so long, scores or not."""


def _days(counts: Mapping[drift.DailyAverage, int]) -> list[dict[str, Any]]:
    return [{"day": f"{one.day}", "average": _shown(one.average), "count": count} for one, count in counts.items()]


def _off(direction: str) -> str:
    return "below" if direction == DOWN else "above"


def _end(last: date, as_of: datetime) -> datetime:
    return min(midnight(last + timedelta(days=1)), as_of)


def _shown(value: float | None) -> float | None:
    return None if value is None else round(value, _SHOWN)
