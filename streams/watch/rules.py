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
from audit.drift.change_detector import Change, find_change
from audit.drift.evidence_bounds import FamilySums, find_family_changes
from audit.drift.incident_evidence import Day, Numbers
from audit.drift.segments import find_agreed_change
from audit.drift.series import Reference, merge_spans
from audit.drift.spread import SpreadChange, find_spread
from audit.drift.versions import VersionChange, compare_versions
from audit.drift.watched_series import (
    DOWN,
    DRIFT,
    FURTHER,
    MEAN,
    SPIKE,
    SPREAD,
    TIERS,
    UP,
    VERBS,
    VERSION,
    Key,
    Series,
    bounds_of,
    describe_change,
    describe_difference,
    lower_first,
    name_slice,
)
from schemas.lazy_numpy import np
from schemas.records import Baseline, TierStatistics
from streams.watch.baselines import is_comparable
from streams.watch.findings import (
    NEW_VERSION_DAYS,
    UNNAMED_AGENT,
    VERSIONS,
    Comparison,
    Finding,
    OpenChange,
    Rule,
    RuleInput,
    Wording,
    build_finding,
    list_days,
)
from streams.watch.measures import Bridge, ProjectScores, Segment, midnight

CONSECUTIVE = "consecutive_days"
SEQUENTIAL = "sequential"
FURTHER_DAYS = 7
"""Minimum number of days between a change and a further one: a full week, so that both are not averaged as one level."""


def name_owner(measured: ProjectScores, tier: str, agent: str | None) -> str:
    """Return the agent of a series of a tier, or the project for all of its agents. The only agent is named even then."""
    agents = measured.agents(tier) if agent is None else [agent]
    if len(agents) == 1:
        return agents[0] or (measured.project if agent is None else UNNAMED_AGENT)
    return measured.project


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
            yield _build_streak_finding(data, data.baseline, _NormalTier(tier, name, mean, statistics), streak, counts)


def _mean_at_same_mix(baseline: Baseline, mean: float, segment: Segment) -> float:
    """Return the mean of the baseline's days at the mix of the segment, so that a change of the mix is no drift from the baseline."""
    if len(segment.strata) == 1:
        return mean
    first, last = baseline.window_start.date(), baseline.window_end.date()
    days = [(day.average, count) for day, count in segment.days.items() if first <= day.day <= last and day.average is not None]
    scores = sum(count for _, count in days)
    return math.fsum(average * count for average, count in days) / scores if scores else mean


class _NormalTier(NamedTuple):
    """A tier and its normal level."""

    column: str
    name: str
    mean: float
    """The mean of the baseline, at the mix of the days that are compared with it."""
    statistics: TierStatistics


def _build_streak_finding(
    data: RuleInput,
    baseline: Baseline,
    tier: _NormalTier,
    streak: consecutive_days.Drift,
    counts: Mapping[consecutive_days.DailyAverage, int],
) -> Finding:
    column, name, mean, statistics = tier
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
        owner=name_owner(data.measured, column, None),
        headline=f"{lower_first(name)} {VERBS[streak.direction]} on {length} days in a row ({mean:.2f} → {farthest:.2f})",
        description=(
            f"From {first} to {last} the daily averages of {lower_first(name)} were {length} times in a row more than one standard deviation "
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
    """Yield the significant changes of each tier's mean, or else of its spread: of the project, its agents, and slices of these.

    It needs no baseline. A project has few series, and each is decided by itself. Agents and slices may be many, so their series are decided
    together (`audit.drift.discoveries`). A slice is only named if the agent or project to which it belongs has not changed as a whole;
    otherwise the evidence of that change tells which slices did.
    """
    projects = {tier: series for tier in TIERS if (series := _Series.of(data, Key(DRIFT, tier, None))) is not None}
    agents = {
        series.key: series
        for tier in projects
        if len(names := data.measured.agents(tier)) > 1
        for name in names
        if (series := _Series.of(data, Key(DRIFT, tier, None, name))) is not None
    }
    owners = [*agents.values(), *(series for tier, series in projects.items() if len(data.measured.agents(tier)) == 1)]
    slices = {series.key: series for owner in owners for series in owner.slices()}
    project_changes = {series.key: series.find_change() for series in projects.values()}
    changes, per_believed = _find_family_changes(data, agents | slices)
    for tier, project in projects.items():
        changed = [key for key in agents if key.tier == tier and key in changes]
        of_project = _Family(sum(key.tier == tier for key in agents), len(changed))
        yield from _find_series_changes(project, project_changes[project.key], of_project, finds_spread=not changed)
        for series in agents.values():
            if series.key.tier == tier:
                yield from _find_series_changes(series, changes.get(series.key), of_project._replace(series=per_believed))
    for owner in owners:
        yield from _compare_versions(owner)
    for series in slices.values():
        owner_key = series.key._replace(slice=None)
        if owner_key not in changes and project_changes.get(owner_key) is None:
            yield from _find_series_changes(series, changes.get(series.key), _Family(series=per_believed))


@dataclass(frozen=True, slots=True)
class _Series:
    """The series of a tier: of the whole project, of one agent, or of a slice of these."""

    data: RuleInput
    key: Key
    """Without a direction."""
    segment: Segment

    @classmethod
    def of(cls, data: RuleInput, key: Key) -> _Series | None:
        """Return the series of a project or an agent; None without scores."""
        segment = data.measured.segment(key.tier or "", key.agent)
        return None if segment is None else cls(data, key, segment)

    def slices(self) -> Iterator[_Series]:
        """Yield the series of the slices."""
        for name, segment in self.data.measured.slices(self.key.tier or "", self.key.agent).items():
            yield _Series(self.data, self.key._replace(slice=name), segment)

    @property
    def name(self) -> str:
        """The name of the series in a sentence."""
        name = lower_first(TIERS[self.key.tier or ""])
        name = name if self.key.agent is None else f"{name} of {self.key.agent or UNNAMED_AGENT}"
        return name if self.key.slice is None else f"{name} with {name_slice(self.key.slice)}"

    @property
    def owner(self) -> str:
        """The agent, or the project for all of its agents."""
        return name_owner(self.data.measured, self.key.tier or "", self.key.agent)

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
        """Return the change of the mean, by default the first one. It is found whatever the shifts of bridges are within their intervals."""
        changes: list[Change | None] = []
        for standardised in (self.segment.standardised, *self.segment.at_ends):
            change = find_change(
                standardised.cells,
                self.as_of,
                reference=self.first_reference if reference is None else reference,
                bounds=bounds_of(self.key.tier),
                log_penalty=log_penalty,
            )
            if change is None:
                return None
            changes.append(standardised.discount(change))
        return find_agreed_change(changes)


class _Family(NamedTuple):
    """The series beside which a series was compared."""

    agents: int = 0
    """The number of agents with the tier; 0 for a single one."""
    changed_agents: int = 0
    series: int | None = None
    """The number of series that were decided together for each one that was believed; None if it was decided by itself."""


_BY_ITSELF = _Family()


def _find_family_changes(data: RuleInput, family: Mapping[Key, _Series]) -> tuple[dict[Key, Change], int]:
    """Return the changes of the means of many series, as many as can be believed together, and the number of series for each of them."""
    changes, penalty = find_family_changes(
        [*family],
        FamilySums.of_cells(
            [series.segment.cells for series in family.values()], [series.first_reference for series in family.values()]
        ),
        data.measured.as_of.date(),
        lambda key, log_penalty: family[key].find_change(log_penalty=log_penalty),
    )
    return changes, round(math.exp(penalty))


def _find_series_changes(
    series: _Series, change: Change | None, family: _Family = _BY_ITSELF, *, finds_spread: bool = False
) -> Iterator[Finding]:
    """Yield the change of a series' mean and a further one, or else that of its spread.

    While the incident of a change is open, its days are the reference for a further change. The first change then ends where the further
    one begins.
    """
    cells = series.segment.cells
    opened = series.opened
    if change is not None:
        first_day = cells.last[0].astype(datetime).date()
        yield _build_change_finding(series, change, _ComparedDays(series.first_reference, first_day), family)
    if opened is not None:
        further_start = max(opened.since, series.reference.since or opened.since)
        further_reference = Reference(further_start, series.reference.cut, FURTHER_DAYS)
        further = series.find_change(further_reference)
        if further is not None and further.direction == opened.direction:
            yield _build_change_finding(series, further, _ComparedDays(further_reference, opened.since), family, FURTHER)
    elif change is None and finds_spread:
        # The spread of one judge's scores is not that of another's, and anchors do not tell how much they differ.
        same_judges = (series.segment.unbridged or series.segment.standardised).cells
        spread = find_spread(same_judges, series.as_of, reference=series.reference)
        if spread is not None:
            yield _build_spread_finding(series, spread)


def _compare_versions(owner: _Series) -> Iterator[Finding]:
    """Yield the differences of an agent's new versions from its other versions on the same days."""
    data, as_of, tier = owner.data, owner.as_of, owner.key.tier or ""
    versions = data.measured.versions(tier, owner.key.agent, as_of - timedelta(days=NEW_VERSION_DAYS))
    for name, (version, others) in versions.items():
        difference = compare_versions(version, others, as_of)
        if difference is not None:
            yield _build_version_finding(_Series(data, owner.key._replace(slice=name), owner.segment), difference)


def _build_version_finding(series: _Series, difference: VersionChange) -> Finding:
    data, key, as_of = series.data, series.key, series.as_of
    low, high = sorted((difference.size_interval.low, difference.size_interval.high))
    label = (key.slice or "").partition(" ")[0]
    is_worth_waking = data.min_alerted.is_reached(key.tier or "", difference.size, difference.sigma, bounds_of(key.tier))
    return Finding(
        key=key._replace(direction=difference.direction),
        kind=VERSION,
        rule=VERSIONS,
        severity=difference.severity,
        since=difference.first_day,
        until=as_of,
        size=abs(difference.size),
        owner=series.owner,
        headline=describe_difference(key, difference.mean, difference.others_mean),
        description=(
            f"Since {difference.first_day}, on {difference.days} days with sessions of both, the mean of {series.name} is {difference.mean:.3f} "
            f"over {difference.sessions} sessions. With other values of {label} it is {difference.others_mean:.3f} over "
            f"{difference.others_sessions} sessions on the same days, a difference of {difference.size:+.3f} (95% interval {low:+.3f} to "
            f"{high:+.3f}). What a day does to all versions is not part of it."
        ),
        numbers=Numbers(
            first_day=difference.first_day,
            change=difference.size,
            change_interval=(low, high),
            mean_before=difference.others_mean,
            mean_after=difference.mean,
            sigma=difference.sigma,
            sessions_before=difference.others_sessions,
            sessions_after=difference.sessions,
            log_evidence=difference.log_evidence,
            agent=key.agent,
        ),
        before=(midnight(difference.first_day), midnight(difference.first_day)),
        after=data.window(difference.first_day, as_of),
        expected=difference.others_mean,
        source=data.source,
        confirmed=difference.is_confirmed and is_worth_waking,
    )


class _ComparedDays(NamedTuple):
    """The reference days of a change, and the first day of the series."""

    reference: Reference
    first_day: date


def _exclude_days_from(reference: Reference, day: date, as_of: date) -> Reference:
    """Return the reference without the days since a day."""
    return replace(reference, cut=merge_spans((*reference.cut, (day, max(day, as_of)))))


def _build_change_finding(
    series: _Series, change: Change, days_compared: _ComparedDays, family: _Family, kind: str = MEAN
) -> Finding:
    data = series.data
    wording = Wording(
        owner=series.owner,
        remark="" if series.key.agent is None else _describe_other_agents(family),
        description=_describe_change(series.name, change) + _describe_bridges(series.segment.bridges),
        days=list_days(
            {
                day: count
                for day, count in series.segment.days.items()
                if change.earliest_day <= day.day <= change.seen_at.date()
            }
        ),
        numbers=Numbers(
            scores_before=change.scores_before,
            scores_after=change.scores_after,
            sessions_before=change.units_before,
            sessions_after=change.units_after,
            agent=series.key.agent,
            agents=family.agents or None,
            agents_changed=family.changed_agents or None,
            series=family.series,
        ),
    )
    compared = Comparison(SEQUENTIAL, data.source, days_compared.reference, days_compared.first_day, data.measured.as_of)
    finding = build_finding(series.key._replace(direction=change.direction), change, compared, wording, kind)
    is_worth_waking = data.min_alerted.is_reached(series.key.tier or "", change.size, change.sigma, bounds_of(series.key.tier))
    return replace(finding, confirmed=finding.confirmed and is_worth_waking)


def _describe_other_agents(family: _Family) -> str:
    """Return that the other agents did not change, for the end of a title; empty if another one changed as well."""
    others = family.agents - 1
    if family.changed_agents != 1 or others < 1:
        return ""
    return "; the other agent as before" if others == 1 else f"; the other {others} agents as before"


def _describe_change(name: str, change: Change) -> str:
    low, high = sorted(math.copysign(1, change.size) * end for end in (change.size_interval.low, change.size_interval.high))
    earliest, latest = change.earliest_day, change.latest_day
    return (
        f"The mean of {name} {VERBS[change.direction]} by {abs(change.size):.3f} (95% interval {low:.3f} to {high:.3f}), from "
        f"{change.mean_before:.3f} over {change.scores_before} scores to {change.mean_after:.3f} over {change.scores_after}. The first "
        f"day of the change is most likely {change.first_day} (95% interval {earliest} to {latest}). Scores count by their sampling "
        "probability, so a change in what is sampled is not taken for one in quality."
    )


def _describe_bridges(bridges: Sequence[Bridge]) -> str:
    """Return by how much the scores of replaced judges were moved, for the end of a description; empty without a bridge."""
    shifts = {(bridge.earlier.judge[0], bridge.later.judge[0], bridge.shift) for bridge in bridges}
    return "".join(
        f" The scores of the judge {earlier} were moved by {shift.size:+.3f} (95% interval {shift.low:+.3f} to {shift.high:+.3f}), "
        f"because {shift.anchors} anchors that both judged differ so much in the scores of {later}. The change is found with both ends of "
        "the interval."
        for earlier, later, shift in sorted(shifts)
    )


def _build_spread_finding(series: _Series, change: SpreadChange) -> Finding:
    data, cells, name = series.data, (series.segment.unbridged or series.segment.standardised).cells, series.name
    verb = "grew" if change.direction == UP else "shrank"
    amount = "more" if change.direction == UP else "less"
    counts = {day: count for day, count in series.segment.days.items() if change.first_day <= day.day <= change.until}
    before = cells.last < np.datetime64(change.first_day)
    return Finding(
        key=series.key._replace(direction=change.direction),
        kind=SPREAD,
        rule=SEQUENTIAL,
        severity=change.severity,
        since=change.first_day,
        until=change.until,
        size=max(change.ratio, 1 / change.ratio),
        owner=series.owner,
        headline=f"{lower_first(Series(series.key, SPREAD).measure)} {verb} ({change.before:.3f} → {change.after:.3f})",
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
        owner=name_owner(data.measured, "tier1", None),
        headline=describe_change(Series(_SPIKE_KEY), spike.rate_before, spike.rate),
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
