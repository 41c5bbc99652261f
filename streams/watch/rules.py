"""The rules about scores: they find drift in the scores of one project, and describe it.

They find changes of a tier's mean or spread (`find_changes`), consecutive days off the baseline (`find_consecutive_days`), and spikes of
anomalies (`find_anomaly_spike`). The rule about runs is in `streams.watch.run_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import NamedTuple

from audit.drift import consecutive_days
from audit.drift.anomaly_rate import Day as AnomalyDay
from audit.drift.anomaly_rate import Spike, anomaly_spike
from audit.drift.change_detector import SUSPECTED, Change, find_change
from audit.drift.discoveries import family_penalty
from audit.drift.incident_evidence import Day, Numbers
from audit.drift.series import Cells, Reference, merge_spans
from audit.drift.spread import SpreadChange, find_spread
from audit.drift.watched_series import DOWN, DRIFT, FURTHER, MEAN, SPIKE, SPREAD, TIERS, UP, VERBS, Key, bounds_of
from schemas.lazy_numpy import np
from schemas.records import Baseline, TierStatistics
from streams.watch.baselines import is_comparable
from streams.watch.findings import UNNAMED_AGENT, Comparison, Finding, OpenChange, Rule, RuleInput, Wording, build_finding, list_days
from streams.watch.measures import Segment, midnight

CONSECUTIVE = "consecutive_days"
SEQUENTIAL = "sequential"
FURTHER_DAYS = 7
"""Minimum number of days between a change and a further one: a full week, so that both are not averaged as one level."""


def find_consecutive_days(data: RuleInput) -> Iterator[Finding]:
    """Yield the latest streak of consecutive days off the baseline in each direction. A comparable baseline is required."""
    if data.baseline is None or not is_comparable(data.baseline, data.measured):
        return
    for tier, name in TIERS.items():
        statistics: TierStatistics = getattr(data.baseline, tier)
        if statistics.mean is None or statistics.stddev is None:
            continue
        reference = data.reference(tier)
        if reference.cuts_into(data.baseline.window_start.date(), data.baseline.window_end.date()):
            continue  # the baseline includes days of a change that is over
        segment = data.measured.segment(tier)
        if segment is None:
            continue
        counts = {day: count for day, count in segment.days.items() if not reference.cuts(day.day)}
        as_of = data.measured.as_of.date()
        mean = _mean_at_same_mix(data.baseline, statistics.mean, segment)
        streaks = consecutive_days.consecutive_days(list(counts), mean, statistics.stddev, as_of)
        latest_by_direction = {streak.direction: streak for streak in streaks}
        for streak in latest_by_direction.values():
            yield _build_streak_finding(data, data.baseline, (tier, name), mean, streak, counts)


def _mean_at_same_mix(baseline: Baseline, mean: float, segment: Segment) -> float:
    """Return the mean of the baseline's days at the mix of the segment, so that a change of the mix is no drift from the baseline."""
    if len(segment.strata) == 1:
        return mean
    first, last = baseline.window_start.date(), baseline.window_end.date()
    days = [(day.average, count) for day, count in segment.days.items() if first <= day.day <= last and day.average is not None]
    scores = sum(count for _, count in days)
    return math.fsum(average * count for average, count in days) / scores if scores else mean


def _build_streak_finding(
    data: RuleInput,
    baseline: Baseline,
    tier: tuple[str, str],
    mean: float,
    streak: consecutive_days.Drift,
    counts: Mapping[consecutive_days.DailyAverage, int],
) -> Finding:
    column, name = tier
    statistics: TierStatistics = getattr(baseline, column)
    first = streak.days[0].day
    last = streak.days[-1].day
    averages = [day.average for day in streak.days if day.average is not None]
    farthest = min(averages) if streak.direction == DOWN else max(averages)
    length = len(streak.days)
    stddev = statistics.stddev or 0.0
    side = "below" if streak.direction == DOWN else "above"
    return Finding(
        key=Key(DRIFT, column, streak.direction),
        rule=CONSECUTIVE,
        severity=streak.severity,
        since=first,
        until=last,
        size=streak.deviation,
        title=f"{name} {VERBS[streak.direction]} to {farthest:.2f} from {mean:.2f}: {length} days in a row",
        description=(
            f"From {first} to {last} the daily averages of {name} were {length} times in a row more than one standard deviation "
            f"({max(stddev, consecutive_days.MIN_SIGMA):.3f}) {side} the baseline of {mean:.3f} ({statistics.count} scores); "
            f"the farthest was {farthest:.3f}, {streak.deviation:.1f} standard deviations off."
        ),
        numbers=Numbers(
            days=list_days({day: counts[day] for day in streak.days}),
            deviation=streak.deviation,
            mean=mean,
            stddev=stddev,
            baseline_scores=statistics.count,
            baseline_id=baseline.baseline_id,
        ),
        before=(baseline.window_start, min(midnight(first), baseline.window_end)),
        after=data.window(first, last),
        expected=mean,
        source=data.source,
    )


def find_changes(data: RuleInput) -> Iterator[Finding]:
    """Yield the significant changes of the mean of each tier, or else of its spread: of the whole project, and of each of its agents.

    It needs no baseline. A project has few series, and each is decided by itself. It may have many agents, so their series are decided
    together (`audit.drift.discoveries`).
    """
    agent_changes = _find_agent_changes(data)
    for tier in TIERS:
        agents = data.measured.agents(tier)
        changed = {agent: change for (of_tier, agent), change in agent_changes.items() if of_tier == tier}
        project = _Series(data, tier, None, len(agents), len(changed))
        yield from _find_segment_changes(project, project.find_change(), finds_spread=not changed)
        for agent in agents if len(agents) > 1 else ():
            series = _Series(data, tier, agent, len(agents), len(changed))
            yield from _find_segment_changes(series, changed.get(agent), finds_spread=False)


@dataclass(frozen=True, slots=True)
class _Series:
    """The series of a tier: of one agent, or of the whole project."""

    data: RuleInput
    tier: str
    agent: str | None
    agents: int
    """The number of agents with scores of the tier."""
    changed_agents: int

    @property
    def key(self) -> Key:
        return Key(DRIFT, self.tier, None, self.agent)

    @property
    def name(self) -> str:
        """The name of the series in a sentence."""
        return TIERS[self.tier] if self.agent is None else f"{TIERS[self.tier]} of {self.agent or UNNAMED_AGENT}"

    @property
    def cells(self) -> Cells:
        return self.data.measured.cells(self.tier, self.agent)

    @property
    def days(self) -> Mapping[consecutive_days.DailyAverage, int]:
        segment = self.data.measured.segment(self.tier, self.agent)
        return {} if segment is None else segment.days

    @property
    def reference(self) -> Reference:
        return self.data.reference(self.key.series)

    @property
    def opened(self) -> OpenChange | None:
        """The change of the series whose incident is open."""
        return self.data.open_changes.get(self.key.series)

    @property
    def first_reference(self) -> Reference:
        """The reference for the first change: without the days of a further one, so that its level is not an average of both."""
        if self.opened is None or self.opened.further_since is None:
            return self.reference
        return _exclude_days_from(self.reference, self.opened.further_since, self.as_of)

    @property
    def as_of(self) -> date:
        return self.data.measured.as_of.date()

    def find_change(self, reference: Reference | None = None, log_penalty: float = 0.0) -> Change | None:
        """Return the change of the mean, by default the first one."""
        segment = self.data.measured.segment(self.tier, self.agent)
        if segment is None:
            return None
        change = find_change(
            segment.cells,
            self.as_of,
            reference=self.first_reference if reference is None else reference,
            bounds=bounds_of(self.tier),
            log_penalty=log_penalty,
        )
        return None if change is None else segment.standardised.discount(change)


def _find_agent_changes(data: RuleInput) -> dict[tuple[str, str], Change]:
    """Return the changes of the agents' means by tier and agent, as many as can be believed together."""
    agents_of = {tier: data.measured.agents(tier) for tier in TIERS}
    family = {
        (tier, agent): _Series(data, tier, agent, len(agents), 0)
        for tier, agents in agents_of.items()
        if len(agents) > 1
        for agent in agents
    }
    changes = {key: change for key, series in family.items() if (change := series.find_change()) is not None}
    penalty = family_penalty([change.log_evidence - math.log(SUSPECTED) for change in changes.values()], len(family))
    believed = {key: family[key].find_change(log_penalty=penalty) for key in changes}
    return {key: change for key, change in believed.items() if change is not None}


def _find_segment_changes(series: _Series, change: Change | None, *, finds_spread: bool) -> Iterator[Finding]:
    """Yield the change of a series' mean and a further one, or else that of its spread.

    While the incident of a change is open, its days are the reference for a further change. The first change then ends where the further
    one begins.
    """
    cells = series.cells
    if not len(cells.last):
        return
    opened = series.opened
    if change is not None:
        first_day = cells.last[0].astype(datetime).date()
        yield _build_change_finding(series, change, _ComparedDays(series.first_reference, first_day))
    if opened is not None:
        further_start = max(opened.since, series.reference.since or opened.since)
        further_reference = Reference(further_start, series.reference.cut, FURTHER_DAYS)
        further = series.find_change(further_reference)
        if further is not None and further.direction == opened.direction:
            yield _build_change_finding(series, further, _ComparedDays(further_reference, opened.since), FURTHER)
    elif change is None and finds_spread:
        spread = find_spread(cells, series.as_of, reference=series.reference)
        if spread is not None:
            yield _build_spread_finding(series, spread)


class _ComparedDays(NamedTuple):
    """The reference days of a change, and the first day of the series."""

    reference: Reference
    first_day: date


def _exclude_days_from(reference: Reference, day: date, as_of: date) -> Reference:
    """Return the reference without the days since a day."""
    return replace(reference, cut=merge_spans((*reference.cut, (day, max(day, as_of)))))


def _build_change_finding(series: _Series, change: Change, days_compared: _ComparedDays, kind: str = MEAN) -> Finding:
    data = series.data
    verb = VERBS[change.direction] + (" further" if kind == FURTHER else "")
    title = f"{series.name} {verb} to {change.mean_after:.2f} from {change.mean_before:.2f} on {change.first_day}"
    wording = Wording(
        title=title + _describe_other_agents(series),
        description=_describe_change(series.name, change),
        days=list_days(
            {day: count for day, count in series.days.items() if change.earliest_day <= day.day <= change.seen_at.date()}
        ),
        numbers=Numbers(
            scores_before=change.scores_before,
            scores_after=change.scores_after,
            sessions_before=change.units_before,
            sessions_after=change.units_after,
            agent=series.agent,
            agents=series.agents if series.agents > 1 else None,
            agents_changed=series.changed_agents if series.agents > 1 else None,
        ),
    )
    compared = Comparison(SEQUENTIAL, data.source, days_compared.reference, days_compared.first_day, data.measured.as_of)
    finding = build_finding(series.key._replace(direction=change.direction), change, compared, wording)
    is_worth_waking = data.min_alerted.is_reached(change.size, change.sigma, bounds_of(series.tier))
    return replace(finding, kind=kind, confirmed=finding.confirmed and is_worth_waking)


def _describe_other_agents(series: _Series) -> str:
    """Return that the other agents did not change, for the end of a title; empty if another one changed as well."""
    others = series.agents - 1
    if series.agent is None or series.changed_agents != 1 or others < 1:
        return ""
    return "; the other agent as before" if others == 1 else f"; the other {others} agents as before"


def _describe_change(name: str, change: Change) -> str:
    low, high = sorted(math.copysign(1, change.size) * end for end in (change.size_interval.low, change.size_interval.high))
    earliest, latest = change.earliest_day, change.latest_day
    return (
        f"The mean of {name} {VERBS[change.direction]} by {abs(change.size):.3f} (95 % interval {low:.3f} to {high:.3f}), from "
        f"{change.mean_before:.3f} over {change.scores_before} scores to {change.mean_after:.3f} over {change.scores_after}. The first "
        f"day of the change is most likely {change.first_day} (95 % interval {earliest} to {latest}). Scores count by their sampling "
        "probability, so a change in what is sampled is not taken for one in quality."
    )


def _build_spread_finding(series: _Series, change: SpreadChange) -> Finding:
    data, cells, name = series.data, series.cells, series.name
    verb = "grew" if change.direction == UP else "shrank"
    amount = "more" if change.direction == UP else "less"
    counts = {day: count for day, count in series.days.items() if change.first_day <= day.day <= change.until}
    before = cells.last < np.datetime64(change.first_day)
    return Finding(
        key=series.key._replace(direction=change.direction),
        kind=SPREAD,
        rule=SEQUENTIAL,
        severity=change.severity,
        since=change.first_day,
        until=change.until,
        size=max(change.ratio, 1 / change.ratio),
        title=f"Spread of {name} {verb} to {change.after:.3f} from {change.before:.3f} on {change.first_day}",
        description=(
            f"Since {change.first_day}, most likely the first day, sessions of a day differ {amount} from each other in "
            f"{name}: their standard deviation is {change.after:.3f} over {change.sessions_after} sessions; from {change.start} to the day "
            f"before it was {change.before:.3f} over {change.sessions_before}. The mean of {name} has not changed by more than chance."
        ),
        numbers=Numbers(
            days=list_days(counts),
            first_day=change.first_day,
            first_day_interval=(change.earliest_day, change.latest_day),
            spread_before=change.before,
            spread_after=change.after,
            ratio=change.ratio,
            sessions_before=change.sessions_before,
            sessions_after=change.sessions_after,
            log_evidence=change.log_evidence,
        ),
        before=data.window(change.start, change.first_day - timedelta(days=1)),
        after=data.window(change.first_day, change.until),
        expected=float(cells.total[before].sum() / cells.weight[before].sum()),
        source=data.source,
        interval=(change.earliest_day, change.latest_day),
        confirmed=change.is_confirmed,
        known_level=series.reference.since is not None,
    )


RATE_RATIO = "rate_ratio"
_SPIKE_KEY = Key(SPIKE, None, UP)


def find_anomaly_spike(data: RuleInput) -> Iterator[Finding]:
    """Yield the rise of the rate of anomalies within the last two weeks, compared with the days before. It needs no baseline."""
    reference = data.reference(_SPIKE_KEY.series)
    days = [day for day in data.measured.anomalies() if reference.counts(day.day)]
    spike = anomaly_spike(days, data.measured.as_of.date())
    if spike is not None:
        spike_days = [day for day in days if day.day >= spike.first_day]
        yield _build_spike_finding(data, spike, spike_days, known_level=reference.since is not None)


def _build_spike_finding(data: RuleInput, spike: Spike, days: Sequence[AnomalyDay], *, known_level: bool) -> Finding:
    last = spike.first_day - timedelta(days=1)
    until = max(day.day for day in days)
    return Finding(
        key=_SPIKE_KEY,
        rule=RATE_RATIO,
        severity=spike.severity,
        since=spike.first_day,
        until=until,
        size=spike.rate,
        title=f"{spike.rate:.0%} of the exchanges since {spike.first_day} have an anomaly, {spike.rate_before:.1%} had one before",
        description=_describe_spike(spike),
        numbers=Numbers(
            days=[Day(day=day.day, anomalies=day.anomalies, count=day.exchanges) for day in days],
            first_day=spike.first_day,
            anomalies=spike.anomalies,
            exchanges=spike.exchanges,
            rate=spike.rate,
            baseline_rate=spike.rate_before,
            baseline_anomalies=spike.anomalies_before,
            baseline_exchanges=spike.exchanges_before,
            baseline_from=spike.start,
            baseline_until=last,
            ratio=spike.ratio,
            log_evidence=spike.log_evidence,
        ),
        before=data.window(spike.start, last),
        after=data.window(spike.first_day, until),
        expected=spike.rate_before,
        source=data.source,
        confirmed=spike.is_confirmed,
        known_level=known_level,
    )


def _describe_spike(spike: Spike) -> str:
    times = "" if spike.ratio is None else f", so it is {spike.ratio:.1f} times as high"
    return (
        f"Since {spike.first_day}, most likely the first day, {spike.anomalies} of {spike.exchanges} exchanges had an anomaly "
        f"({spike.rate:.1%}). From {spike.start} to the day before, {spike.anomalies_before} of {spike.exchanges_before} had one "
        f"({spike.rate_before:.1%}){times}."
    )


ALL_RULES: Mapping[str, Rule] = {SEQUENTIAL: find_changes, CONSECUTIVE: find_consecutive_days, RATE_RATIO: find_anomaly_spike}
"""The rules about scores by name. If several rules find the same change, the first one leads."""
LOOK_BACK_DAYS = 406
"""Days of scores that the rules get. Hourly sums are kept as long, even if the scores themselves are deleted."""
