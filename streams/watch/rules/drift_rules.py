"""The rules of `audit` applied to what was measured of one project: what they find, in one form and in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from typing import NamedTuple

from audit.drift import consecutive_days
from audit.drift.change_detector import Change, find_change
from audit.drift.incident_evidence import Numbers
from audit.drift.reference import Reference, joined
from audit.drift.watched_series import DOWN, DRIFT, FURTHER, MEAN, TIERS, VERBS, Key, bounds_of
from schemas.records import Baseline, TierStatistics
from streams.watch.baselines import is_comparable
from streams.watch.measured import midnight
from streams.watch.rules.cases import Case, Rule, days_shown
from streams.watch.rules.changes import Asked, Told, change_finding
from streams.watch.rules.findings import Finding
from streams.watch.rules.spike_rules import RATIO, by_rate
from streams.watch.rules.spread_rules import changed_spread

CONSECUTIVE, SEQUENTIAL = "consecutive_days", "sequential"
FURTHER_DAYS = 7
"""A further change has at least so many days of the first one before it: each day of the week, and not two, as both were averaged until then."""


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
        found = consecutive_days.consecutive_days(list(counts), known.mean, known.stddev, case.measured.as_of.date())
        for one in {one.direction: one for one in found}.values():
            yield _run(case, case.baseline, (tier, name), one, counts)


def _run(
    case: Case,
    baseline: Baseline,
    tier: tuple[str, str],
    found: consecutive_days.Drift,
    counts: Mapping[consecutive_days.DailyAverage, int],
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
        title=f"{name} {VERBS[found.direction]} to {farthest:.2f} from {mean:.2f}: {length} days in a row",
        description=(
            f"From {first} to {last} the daily averages of {name} were {length} times in a row more than one standard deviation "
            f"({max(stddev, consecutive_days.SMALLEST_SIGMA):.3f}) {_off(found.direction)} the baseline of {mean:.3f} ({known.count} scores); "
            f"the farthest was {farthest:.3f}, {found.deviation:.1f} standard deviations off."
        ),
        numbers=Numbers(
            days=days_shown({one: counts[one] for one in found.days}),
            deviation=found.deviation,
            mean=mean,
            stddev=stddev,
            baseline_scores=known.count,
            baseline_id=baseline.baseline_id,
        ),
        before=(baseline.window_start, min(midnight(first), baseline.window_end)),
        after=case.window(first, last),
        expected=mean,
        looked=case.looked,
    )


def by_evidence(case: Case) -> Iterator[Finding]:
    """Changes of a tier's mean, or where it holds of its spread, that are more than chance, by the weighted scores of sessions.

    Needs no baseline record. While the incident of a change is open, its own days are the reference for a further one: the level of the
    first is then that of the days between both, not a mean of the two levels.
    """
    as_of = case.measured.as_of.date()
    for tier, name in TIERS.items():
        cells = case.measured.cells(tier)
        if not len(cells.last):
            continue
        reference, opened = case.reference(tier), case.open_changes.get(tier)
        until = reference if opened is None or opened.further_since is None else _until(reference, opened.further_since, as_of)
        found = find_change(cells, as_of, reference=until, bounds=bounds_of(tier))
        first_day = cells.last[0].astype(datetime).date()
        if found is not None:
            yield _change(case, (tier, name), found, Compared(until, first_day))
        if opened is not None:
            since = Reference(max(opened.since, reference.since or opened.since), reference.cut, FURTHER_DAYS)
            further = find_change(cells, as_of, reference=since, bounds=bounds_of(tier))
            if further is not None and further.direction == opened.direction:
                yield _change(case, (tier, name), further, Compared(since, opened.since), FURTHER)
        elif found is None and (spread := changed_spread(case, tier, cells, SEQUENTIAL)) is not None:
            yield spread


class Compared(NamedTuple):
    """The days that a change was compared with."""

    reference: Reference
    first_day: date


def _until(reference: Reference, day: date, as_of: date) -> Reference:
    """The reference without the days from one on."""
    return replace(reference, cut=joined((*reference.cut, (day, max(day, as_of)))))


def _change(case: Case, tier: tuple[str, str], found: Change, compared: Compared, kind: str = MEAN) -> Finding:
    column, name = tier
    verb = VERBS[found.direction] + (" further" if kind == FURTHER else "")
    days = case.measured.days(column)
    told = Told(
        title=f"{name} {verb} to {found.mean_after:.2f} from {found.mean_before:.2f} on {found.first_day}",
        description=_in_words(name, found),
        days=days_shown({one: count for one, count in days.items() if found.earliest_day <= one.day <= found.seen_at.date()}),
        numbers=Numbers(
            scores_before=found.scores_before,
            scores_after=found.scores_after,
            sessions_before=found.units_before,
            sessions_after=found.units_after,
        ),
    )
    asked = Asked(SEQUENTIAL, case.looked, compared.reference, compared.first_day, case.measured.as_of)
    return replace(change_finding(Key(DRIFT, column, found.direction), found, asked, told), kind=kind)


def _in_words(name: str, found: Change) -> str:
    low, high = sorted(math.copysign(1, found.size) * one for one in (found.size_interval.low, found.size_interval.high))
    earliest, latest = found.earliest_day, found.latest_day
    return (
        f"The mean of {name} {VERBS[found.direction]} by {abs(found.size):.3f} (95 % interval {low:.3f} to {high:.3f}), from "
        f"{found.mean_before:.3f} over {found.scores_before} scores to {found.mean_after:.3f} over {found.scores_after}. The first "
        f"day of the change is most likely {found.first_day} (95 % interval {earliest} to {latest}). Scores count by their sampling "
        "probability, so a change in what is sampled is not taken for one in quality."
    )


ALL_RULES: Mapping[str, Rule] = {SEQUENTIAL: by_evidence, CONSECUTIVE: by_consecutive_days, RATIO: by_rate}
"""The rules by name; of several that see one change the first is the one that tells of it."""
LOOK_BACK = 406
"""Days of scores that the rules get: as many as the first look of a week sees. Hourly sums are kept as long, scores or not."""


def _off(direction: str) -> str:
    return "below" if direction == DOWN else "above"
