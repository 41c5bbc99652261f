"""The rules of drift: they find changes in the measures of one project, and describe them.

Scores: changes of a tier's mean or spread (`find_changes`), consecutive days off the baseline (`find_consecutive_days`), and spikes of
anomalies (`find_anomaly_spike`). Runs of each agent (`find_run_changes`): trust, the share of unsafe runs, and the share of each type of
failure.

1. Each run is a unit. `audit.drift.change_detector` finds changes of a series' mean, of any size and in both directions, and dates them.
2. An agent has several series, each of which could raise a false alarm. So the evidence that a series needs is multiplied by the number
   of series of the agent (Bonferroni correction): all series of an agent together raise no more false alarms than one tier.
3. If at least half of an agent's runs have the same trust, usually 100, their spread does not predict how far the next run may deviate.
   The certainty of a change of trust is then limited to that of a change in the counts of runs below certain levels
   (`docs/decisions/0082-shares-of-few-runs.md`).
4. Shares are described by counts, such as 2 of 13 runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from audit.drift import consecutive_days
from audit.drift.anomaly_rate import Day as AnomalyDay
from audit.drift.anomaly_rate import Spike, anomaly_spike
from audit.drift.change_detector import SUSPECTED, Change, find_change
from audit.drift.incident_evidence import Day, Numbers
from audit.drift.series import NO_DECISION, REFERENCE_DAYS, Cells, Reference, merge_spans
from audit.drift.spread import SpreadChange, find_spread
from audit.drift.watched_series import DOWN, DRIFT, FURTHER, MEAN, SPIKE, SPREAD, TIERS, UP, VERBS, Key, bounds_of
from schemas.lazy_numpy import np
from schemas.records import Baseline, TierStatistics
from streams.watch.baselines import is_comparable
from streams.watch.findings import Comparison, Finding, Rule, RuleInput, Source, Wording, build_finding, list_days
from streams.watch.measures import FAILURE, RUNS_QUERY, TRUST, UNSAFE, AgentRuns, ProjectRuns, midnight

CONSECUTIVE, SEQUENTIAL = "consecutive_days", "sequential"
FURTHER_DAYS = 7
"""The smallest number of days of the first change before a further one: a full week, so that both are not averaged as one level."""


def find_consecutive_days(data: RuleInput) -> Iterator[Finding]:
    """Yield the latest run of consecutive days off the baseline in each direction. Needs a comparable baseline."""
    if data.baseline is None or not is_comparable(data.baseline, data.measured):
        return
    for tier, name in TIERS.items():
        statistics: TierStatistics = getattr(data.baseline, tier)
        if statistics.mean is None or statistics.stddev is None:
            continue
        reference = data.reference(tier)
        if reference.cuts_into(data.baseline.window_start.date(), data.baseline.window_end.date()):
            continue  # the baseline includes days of a change that is over
        counts = {day: count for day, count in data.measured.days(tier).items() if not reference.cuts(day.day)}
        as_of = data.measured.as_of.date()
        runs = consecutive_days.consecutive_days(list(counts), statistics.mean, statistics.stddev, as_of)
        for run in {run.direction: run for run in runs}.values():
            yield _build_run_finding(data, data.baseline, (tier, name), run, counts)


def _build_run_finding(
    data: RuleInput,
    baseline: Baseline,
    tier: tuple[str, str],
    run: consecutive_days.Drift,
    counts: Mapping[consecutive_days.DailyAverage, int],
) -> Finding:
    column, name = tier
    statistics: TierStatistics = getattr(baseline, column)
    first, last = run.days[0].day, run.days[-1].day
    averages = [day.average for day in run.days if day.average is not None]
    farthest = min(averages) if run.direction == DOWN else max(averages)
    length, mean, stddev = len(run.days), statistics.mean or 0.0, statistics.stddev or 0.0
    side = "below" if run.direction == DOWN else "above"
    return Finding(
        key=Key(DRIFT, column, run.direction),
        rule=CONSECUTIVE,
        severity=run.severity,
        since=first,
        until=last,
        size=run.deviation,
        title=f"{name} {VERBS[run.direction]} to {farthest:.2f} from {mean:.2f}: {length} days in a row",
        description=(
            f"From {first} to {last} the daily averages of {name} were {length} times in a row more than one standard deviation "
            f"({max(stddev, consecutive_days.MIN_SIGMA):.3f}) {side} the baseline of {mean:.3f} ({statistics.count} scores); "
            f"the farthest was {farthest:.3f}, {run.deviation:.1f} standard deviations off."
        ),
        numbers=Numbers(
            days=list_days({day: counts[day] for day in run.days}),
            deviation=run.deviation,
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
    """Yield the significant changes of each tier's mean, or else of its spread, by the weighted scores of sessions.

    It needs no baseline. While the incident of a change is open, its days are the reference for a further change. The first change then
    ends where the further one begins, so that its level is not an average of both.
    """
    as_of = data.measured.as_of.date()
    for tier, name in TIERS.items():
        cells = data.measured.cells(tier)
        if not len(cells.last):
            continue
        reference = data.reference(tier)
        opened = data.open_changes.get(tier)
        first_reference = reference
        if opened is not None and opened.further_since is not None:
            first_reference = _exclude_days_from(reference, opened.further_since, as_of)
        change = find_change(cells, as_of, reference=first_reference, bounds=bounds_of(tier))
        first_day = cells.last[0].astype(datetime).date()
        if change is not None:
            yield _build_change_finding(data, (tier, name), change, _ComparedDays(first_reference, first_day))
        if opened is not None:
            further_start = max(opened.since, reference.since or opened.since)
            further_reference = Reference(further_start, reference.cut, FURTHER_DAYS)
            further = find_change(cells, as_of, reference=further_reference, bounds=bounds_of(tier))
            if further is not None and further.direction == opened.direction:
                yield _build_change_finding(
                    data, (tier, name), further, _ComparedDays(further_reference, opened.since), FURTHER
                )
        elif change is None and (spread := _find_spread_change(data, tier, cells, SEQUENTIAL)) is not None:
            yield spread


class _ComparedDays(NamedTuple):
    """The reference days of a change, and the first day of the series."""

    reference: Reference
    first_day: date


def _exclude_days_from(reference: Reference, day: date, as_of: date) -> Reference:
    """Return the reference without the days since a day."""
    return replace(reference, cut=merge_spans((*reference.cut, (day, max(day, as_of)))))


def _build_change_finding(
    data: RuleInput, tier: tuple[str, str], change: Change, days_compared: _ComparedDays, kind: str = MEAN
) -> Finding:
    column, name = tier
    verb = VERBS[change.direction] + (" further" if kind == FURTHER else "")
    days = data.measured.days(column)
    wording = Wording(
        title=f"{name} {verb} to {change.mean_after:.2f} from {change.mean_before:.2f} on {change.first_day}",
        description=_describe_change(name, change),
        days=list_days({day: count for day, count in days.items() if change.earliest_day <= day.day <= change.seen_at.date()}),
        numbers=Numbers(
            scores_before=change.scores_before,
            scores_after=change.scores_after,
            sessions_before=change.units_before,
            sessions_after=change.units_after,
        ),
    )
    compared = Comparison(SEQUENTIAL, data.source, days_compared.reference, days_compared.first_day, data.measured.as_of)
    return replace(build_finding(Key(DRIFT, column, change.direction), change, compared, wording), kind=kind)


def _describe_change(name: str, change: Change) -> str:
    low, high = sorted(math.copysign(1, change.size) * end for end in (change.size_interval.low, change.size_interval.high))
    earliest, latest = change.earliest_day, change.latest_day
    return (
        f"The mean of {name} {VERBS[change.direction]} by {abs(change.size):.3f} (95 % interval {low:.3f} to {high:.3f}), from "
        f"{change.mean_before:.3f} over {change.scores_before} scores to {change.mean_after:.3f} over {change.scores_after}. The first "
        f"day of the change is most likely {change.first_day} (95 % interval {earliest} to {latest}). Scores count by their sampling "
        "probability, so a change in what is sampled is not taken for one in quality."
    )


_SPREAD_WORDS = {True: "more", False: "less"}


def _find_spread_change(data: RuleInput, tier: str, cells: Cells, rule: str) -> Finding | None:
    """Return the change of a tier's spread, for a rule that found no change of its mean; None without one."""
    reference = data.reference(tier)
    change = find_spread(cells, data.measured.as_of.date(), reference=reference)
    return None if change is None else _build_spread_finding(data, tier, change, cells, rule)


def _build_spread_finding(data: RuleInput, tier: str, change: SpreadChange, cells: Cells, rule: str) -> Finding:
    name, way = TIERS[tier], "grew" if change.direction == UP else "shrank"
    counts = {day: count for day, count in data.measured.days(tier).items() if change.first_day <= day.day <= change.until}
    before = cells.last < np.datetime64(change.first_day)
    return Finding(
        key=Key(DRIFT, tier, change.direction),
        kind=SPREAD,
        rule=rule,
        severity=change.severity,
        since=change.first_day,
        until=change.until,
        size=max(change.ratio, 1 / change.ratio),
        title=f"Spread of {name} {way} to {change.after:.3f} from {change.before:.3f} on {change.first_day}",
        description=(
            f"Since {change.first_day}, most likely the first day, sessions of a day differ {_SPREAD_WORDS[change.direction == UP]} from each other in "
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
        known_level=data.reference(tier).since is not None,
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


RUNS = "runs"
"""The name of the rule about runs."""
TRUST_LEVELS = (40, 60, 80)
"""Levels of trust below which runs are counted, besides the usual trust and the next higher one."""
USUAL_TRUST_WEIGHT = 0.5
"""The weight of the counts below the usual trust; the other levels share the remaining weight."""


@dataclass(frozen=True, slots=True)
class RunRuleInput:
    """The runs of a project, for the rule about runs."""

    runs: ProjectRuns
    references: Mapping[str, Reference]
    """The reference days by series; a missing series has all days."""
    parameters: Mapping[str, Any]
    """The parameters of the query that read the runs."""

    @property
    def source(self) -> Source:
        """The query that read the runs, for this project alone."""
        return Source(RUNS_QUERY, {**self.parameters, "projects": [self.runs.project]})

    def reference(self, agent: AgentRuns, series: str) -> Reference:
        """Return the reference days of a series of an agent."""
        return self.references.get(Key(DRIFT, series, None, agent.agent).series, NO_DECISION)


def find_run_changes(data: RunRuleInput) -> Iterator[Finding]:
    """Yield the significant changes in the series of each agent's runs, those with most evidence first."""
    for agent in data.runs.agents:
        changes: dict[str, Change] = {}
        for series in agent.series:
            change = _find_run_change(data, agent, series)
            if change is not None:
                changes[series] = change
        for series, change in sorted(changes.items(), key=lambda item: -item[1].log_evidence):
            yield _build_agent_finding(data, agent, series, change)


def name_series(series: str) -> str:
    """Return the name of a series for people."""
    names = {TRUST: "Trust", UNSAFE: "Share of unsafe runs"}
    return names.get(series) or f"Share of runs with {series.removeprefix(FAILURE).replace('_', ' ')}"


def _find_run_change(data: RunRuleInput, agent: AgentRuns, series: str) -> Change | None:
    as_of, first = data.runs.as_of.date(), agent.first_day
    if first is None or (as_of - first).days < REFERENCE_DAYS:
        return None
    change = find_change(
        agent.units(series), as_of, reference=data.reference(agent, series), is_share=series != TRUST, bounds=bounds_of(series)
    )
    if change is not None and series == TRUST:
        change = _limit_by_counts(data, agent, change)
    needed = math.log(SUSPECTED) + math.log(len(agent.series))
    return change if change is not None and change.log_evidence >= needed else None


def _limit_by_counts(data: RunRuleInput, agent: AgentRuns, change: Change) -> Change:
    """Limit the evidence for a change of trust to a weighted average of the evidence from the counts of runs below each level.

    The average of e-values is an e-value, even if they are dependent.
    """
    usual = agent.usual_trust(change.first_hour)
    if usual is None:
        return change
    levels = {*TRUST_LEVELS, usual + 1} - {usual}
    weights = dict.fromkeys(levels, (1 - USUAL_TRUST_WEIGHT) / len(levels)) | {usual: USUAL_TRUST_WEIGHT}
    reference, as_of = data.reference(agent, TRUST), data.runs.as_of.date()
    changes = {level: find_change(agent.units_below(level), as_of, reference=reference, is_share=True) for level in weights}
    count_changes = {level: count_change for level, count_change in changes.items() if count_change is not None}
    log_terms = [count_change.log_evidence + math.log(weights[level]) for level, count_change in count_changes.items()]
    log_average = float(np.logaddexp.reduce(log_terms)) if log_terms else -math.inf
    confirmations = [
        count_change.confirmed_at for count_change in count_changes.values() if count_change.confirmed_at is not None
    ]
    confirmed_at = None
    if change.confirmed_at is not None and confirmations:
        confirmed_at = max(change.confirmed_at, min(confirmations))
    return replace(change, log_evidence=min(change.log_evidence, log_average), confirmed_at=confirmed_at)


def _build_agent_finding(data: RunRuleInput, agent: AgentRuns, series: str, change: Change) -> Finding:
    days = {
        day: averages for day, averages in agent.days(series).items() if change.earliest_day <= day <= change.seen_at.date()
    }
    agent_suffix = "" if agent.agent is None else f" of {agent.agent}"
    before, after = _format_value(series, change.mean_before), _format_value(series, change.mean_after)
    counts_having = (
        _count_having(change.mean_before, change.scores_before),
        _count_having(change.mean_after, change.scores_after),
    )
    wording = Wording(
        title=f"{name_series(series)}{agent_suffix} {VERBS[change.direction]} to {after} from {before} on {change.first_day}",
        description=_describe_run_change(series, agent_suffix, change),
        days=[Day(day=day, average=mean, count=count) for day, (mean, count) in days.items()],
        numbers=Numbers(
            agent=agent.agent,
            runs_before=change.scores_before,
            runs_after=change.scores_after,
            having_before=None if series == TRUST else counts_having[0],
            having_after=None if series == TRUST else counts_having[1],
            series=len(agent.series),
            made_with=dict(agent.made_by),
        ),
    )
    compared = Comparison(
        RUNS, data.source, data.reference(agent, series), agent.first_day or change.first_day, data.runs.as_of
    )
    finding = build_finding(Key(DRIFT, series, change.direction, agent.agent), change, compared, wording)
    # Split the periods at the hour in which the change begins, so that the evidence counts the same runs before and after as the rule.
    first_hour = change.first_hour.replace(tzinfo=UTC)
    return replace(finding, before=(finding.before[0], first_hour), after=(first_hour, finding.after[1]))


def _describe_run_change(series: str, agent_suffix: str, change: Change) -> str:
    low, high = sorted(math.copysign(1, change.size) * end for end in (change.size_interval.low, change.size_interval.high))
    return (
        f"{name_series(series)}{agent_suffix} {VERBS[change.direction]} from {_format_runs(series, change.mean_before, change.scores_before)} to "
        f"{_format_runs(series, change.mean_after, change.scores_after)}, by {_format_value(series, abs(change.size))} (95 % interval "
        f"{_format_value(series, low)} to {_format_value(series, high)}). The first day of the change is most likely {change.first_day} (95 % "
        f"interval {change.earliest_day} to {change.latest_day}). Only runs that were diagnosed by the same rules and thresholds are compared."
    )


def _format_runs(series: str, mean: float, runs: int) -> str:
    if series == TRUST:
        return f"{mean:.1f} over {runs} runs"
    return f"{_count_having(mean, runs)} of {runs} runs"


def _count_having(share: float, runs: int) -> int:
    """Return the number of runs that make up a share; it is a whole number except for rounding errors."""
    return round(share * runs)


def _format_value(series: str, value: float) -> str:
    return f"{value:.1f}" if series == TRUST else f"{value:.0%}"
