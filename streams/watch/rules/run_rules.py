"""Drift of runs: trust, the share of unsafe runs and each type of failure, agent by agent, by the rule that watches the tiers.

1. One run is one unit. `audit.drift.change_detector` finds a change of a series' mean, of any size, in either direction, and since when.
2. An agent has several series, and each could raise a false alarm. So the evidence of each has to be as many times as large as one
   series needs as the agent has series (a union bound): all series of an agent together raise as few false alarms as one tier does.
3. Where at least half of an agent's runs have the same trust, most often 100, their spread says nothing of how far the next one may
   lie off. Then a change of trust is no more certain than a change of the counts of runs below certain levels
   (`docs/decisions/0082-shares-of-few-runs.md`).
4. Shares are told as shares: 2 of 13 runs, 13 of 15.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any

from audit.drift.change_detector import SUSPECTED, Change, find_change
from audit.drift.incident_evidence import Day, Numbers
from audit.drift.reference import NO_DECISION, REFERENCE_DAYS, Reference
from audit.drift.watched_series import DRIFT, VERBS, Key, bounds_of
from schemas.lazy.numpy import np
from streams.watch.rules.changes import Asked, Told, change_finding
from streams.watch.rules.findings import Finding, Looked
from streams.watch.run_measures import FAILURE, QUERY, TRUST, UNSAFE, AgentRuns, ProjectRuns

RUNS = "runs"
"""Name of the rule."""
LEVELS = (40, 60, 80)
"""Levels of trust below which runs are counted, beside the usual one and the one above it."""
USUAL = 0.5
"""The weight of the counts below the usual trust; the other levels share the rest."""


@dataclass(frozen=True, slots=True)
class RunCase:
    """The data that the rule is asked about."""

    runs: ProjectRuns
    references: Mapping[str, Reference]
    """The days that count, by series; all of them if a series is not named."""
    parameters: Mapping[str, Any]
    """Of the query that the measures come from."""

    @property
    def looked(self) -> Looked:
        """The place where the rule looks: the named query and its parameters."""
        return Looked(QUERY, {**self.parameters, "projects": [self.runs.project]})

    def reference(self, agent: AgentRuns, series: str) -> Reference:
        """Return the days of a series of an agent that count."""
        return self.references.get(Key(DRIFT, series, None, agent.agent).series, NO_DECISION)


def by_runs(case: RunCase) -> Iterator[Finding]:
    """Changes of the series of each agent's runs that are more than chance, those with the most evidence first."""
    for agent in case.runs.agents:
        found = [(one, change) for one in agent.series if (change := _change(case, agent, one)) is not None]
        for series, change in sorted(found, key=lambda pair: -pair[1].log_evidence):
            yield _finding(case, agent, series, change)


def series_name(series: str) -> str:
    """Return the everyday name of a series."""
    names = {TRUST: "Trust", UNSAFE: "Share of unsafe runs"}
    return names.get(series) or f"Share of runs with {series.removeprefix(FAILURE).replace('_', ' ')}"


def _change(case: RunCase, agent: AgentRuns, series: str) -> Change | None:
    as_of, first = case.runs.as_of.date(), agent.first_day
    if first is None or (as_of - first).days < REFERENCE_DAYS:
        return None
    found = find_change(
        agent.units(series), as_of, reference=case.reference(agent, series), is_share=series != TRUST, bounds=bounds_of(series)
    )
    if found is not None and series == TRUST:
        found = _as_counted(case, agent, found)
    needed = math.log(SUSPECTED) + math.log(len(agent.series))
    return found if found is not None and found.log_evidence >= needed else None


def _as_counted(case: RunCase, agent: AgentRuns, found: Change) -> Change:
    """Return a change of trust with no more evidence than the counts of runs below each level have, on a weighted average.

    An average of e-values is one, however alike the levels are.
    """
    usual = agent.usual_trust(found.first_hour)
    if usual is None:
        return found
    levels = {*LEVELS, usual + 1} - {usual}
    weights = dict.fromkeys(levels, (1 - USUAL) / len(levels)) | {usual: USUAL}
    reference, as_of = case.reference(agent, TRUST), case.runs.as_of.date()
    looked = {level: find_change(agent.units_below(level), as_of, reference=reference, is_share=True) for level in weights}
    counted = {level: one for level, one in looked.items() if one is not None}
    terms = [one.log_evidence + math.log(weights[level]) for level, one in counted.items()]
    evidence = float(np.logaddexp.reduce(terms)) if terms else -math.inf
    sure = [one.confirmed_at for one in counted.values() if one.confirmed_at is not None]
    return replace(
        found,
        log_evidence=min(found.log_evidence, evidence),
        confirmed_at=max(found.confirmed_at, min(sure)) if sure and found.confirmed_at is not None else None,
    )


def _finding(case: RunCase, agent: AgentRuns, series: str, found: Change) -> Finding:
    days = {day: one for day, one in agent.days(series).items() if found.earliest_day <= day <= found.seen_at.date()}
    named = "" if agent.agent is None else f" of {agent.agent}"
    before, after = _value(series, found.mean_before), _value(series, found.mean_after)
    having = _count_having(found.mean_before, found.scores_before), _count_having(found.mean_after, found.scores_after)
    told = Told(
        title=f"{series_name(series)}{named} {VERBS[found.direction]} to {after} from {before} on {found.first_day}",
        description=_in_words(series, named, found),
        days=[Day(day=day, average=mean, count=count) for day, (mean, count) in days.items()],
        numbers=Numbers(
            agent=agent.agent,
            runs_before=found.scores_before,
            runs_after=found.scores_after,
            having_before=None if series == TRUST else having[0],
            having_after=None if series == TRUST else having[1],
            series=len(agent.series),
            made_with=dict(agent.made_by),
        ),
    )
    asked = Asked(RUNS, case.looked, case.reference(agent, series), agent.first_day or found.first_day, case.runs.as_of)
    finding = change_finding(Key(DRIFT, series, found.direction, agent.agent), found, asked, told)
    # A run counts at the hour in which it ended, so what the evidence counts before and since are the same runs.
    at = found.first_hour.replace(tzinfo=UTC)
    return replace(finding, before=(finding.before[0], at), after=(at, finding.after[1]))


def _in_words(series: str, named: str, found: Change) -> str:
    low, high = sorted(math.copysign(1, found.size) * one for one in (found.size_interval.low, found.size_interval.high))
    return (
        f"{series_name(series)}{named} {VERBS[found.direction]} from {_of_runs(series, found.mean_before, found.scores_before)} to "
        f"{_of_runs(series, found.mean_after, found.scores_after)}, by {_value(series, abs(found.size))} (95 % interval "
        f"{_value(series, low)} to {_value(series, high)}). The first day of the change is most likely {found.first_day} (95 % "
        f"interval {found.earliest_day} to {found.latest_day}). Only runs that were diagnosed by the same rules and thresholds are compared."
    )


def _of_runs(series: str, mean: float, runs: int) -> str:
    if series == TRUST:
        return f"{mean:.1f} over {runs} runs"
    return f"{_count_having(mean, runs)} of {runs} runs"


def _count_having(share: float, runs: int) -> int:
    """Return how many of the runs have it; their share is exact, so their number is whole but for the representation of floats."""
    return round(share * runs)


def _value(series: str, value: float) -> str:
    return f"{value:.1f}" if series == TRUST else f"{value:.0%}"
