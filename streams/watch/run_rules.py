"""The rule about runs: it finds changes of each agent's trust, share of unsafe runs and share of each type of failure.

1. Each run is a unit. `audit.drift.change_detector` finds changes of a series' mean, of any size and in both directions, and dates them.
2. All series of all agents of a project are one family (`audit.drift.discoveries`): together they raise no more false alarms than one tier.
   `audit.drift.evidence_bounds` selects the few series that are examined.
3. If at least half of an agent's runs have the same trust, usually 100, their spread does not predict how far the next run may deviate.
   The certainty of a change of trust is then limited to that of a change in the counts of runs below certain levels
   (`docs/decisions/0082-shares-of-few-runs.md`).
4. Shares are described by counts, such as 2 of 13 runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from audit.drift.change_detector import SUSPECTED, Change, find_change
from audit.drift.discoveries import believe_changes
from audit.drift.evidence_bounds import FamilySums, find_family_changes
from audit.drift.incident_evidence import Day, Numbers
from audit.drift.series import NO_DECISION, REFERENCE_DAYS, Reference
from audit.drift.watched_series import DRIFT, VERBS, Key, bounds_of, name_series
from schemas.lazy_numpy import np
from streams.watch.findings import UNNAMED_AGENT, Comparison, Finding, Source, Wording, build_finding
from streams.watch.measures import (
    RUNS_QUERY,
    SESSION_SERIES,
    SESSIONS_QUERY,
    TRUST,
    AgentRuns,
    ProjectRuns,
    ProjectSessions,
)

RUNS = "runs"
"""The name of the rule about runs."""
SESSIONS = "sessions"
"""The name of the rule about sessions that were judged as a whole."""
TRUST_LEVELS = (40, 60, 80)
"""Levels of trust below which runs are counted, in addition to the usual trust and the level above it."""
USUAL_TRUST_WEIGHT = 0.5
"""Weight of the counts below the usual trust. The other levels share the remaining weight."""


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
    family = [(agent, series) for agent in data.runs.agents for series in agent.series]
    if not family:
        return
    sums = FamilySums(
        np.repeat(np.arange(len(family)), [agent.hours.size for agent, _ in family]),
        np.concatenate([agent.hours for agent, _ in family]),
        np.concatenate([agent.sums(series) for agent, series in family], axis=1),
        [data.reference(agent, series) for agent, series in family],
        [series != TRUST for _, series in family],
    )
    changes, penalty = find_family_changes(
        family, sums, data.runs.as_of.date(), lambda series, log_penalty: _find_run_change(data, *series, log_penalty)
    )
    for (agent, series), change in sorted(changes.items(), key=lambda item: -item[1].log_evidence):
        yield _build_agent_finding(data, agent, series, change, penalty)


def _find_run_change(data: RunRuleInput, agent: AgentRuns, series: str, log_penalty: float) -> Change | None:
    """Return the change of a series of an agent; None without one. See `audit.drift.discoveries.believe_changes`."""
    as_of = data.runs.as_of.date()
    if agent.first_day is None or (as_of - agent.first_day).days < REFERENCE_DAYS:
        return None
    reference = data.reference(agent, series)
    units, is_share = agent.units(series), series != TRUST
    change = find_change(
        units, as_of, reference=reference, is_share=is_share, bounds=bounds_of(series), log_penalty=log_penalty
    )
    if change is None:
        return None
    if series == TRUST:
        change = _limit_by_counts(data, agent, change, log_penalty)
    return change if change.log_evidence >= math.log(SUSPECTED) + log_penalty else None


def _limit_by_counts(data: RunRuleInput, agent: AgentRuns, change: Change, log_penalty: float) -> Change:
    """Limit the evidence for a change of trust to a weighted average of the evidence from the counts of runs below each level.

    The average of e-values is an e-value, even if they are dependent.
    """
    usual = agent.usual_trust(change.first_hour)
    if usual is None:
        return change
    levels = {*TRUST_LEVELS, usual + 1} - {usual}
    weights = dict.fromkeys(levels, (1 - USUAL_TRUST_WEIGHT) / len(levels)) | {usual: USUAL_TRUST_WEIGHT}
    reference = data.reference(agent, TRUST)
    log_terms: list[float] = []
    confirmations: list[datetime] = []
    for level, weight in weights.items():
        count_change = find_change(
            agent.units_below(level), data.runs.as_of.date(), reference=reference, is_share=True, log_penalty=log_penalty
        )
        if count_change is None:
            continue
        log_terms.append(count_change.log_evidence + math.log(weight))
        if count_change.confirmed_at is not None:
            confirmations.append(count_change.confirmed_at)
    log_average = float(np.logaddexp.reduce(log_terms)) if log_terms else -math.inf
    confirmed_at = None
    if change.confirmed_at is not None and confirmations:
        confirmed_at = max(change.confirmed_at, min(confirmations))
    return replace(change, log_evidence=min(change.log_evidence, log_average), confirmed_at=confirmed_at)


def _build_agent_finding(data: RunRuleInput, agent: AgentRuns, series: str, change: Change, log_penalty: float) -> Finding:
    days = {
        day: averages for day, averages in agent.days(series).items() if change.earliest_day <= day <= change.seen_at.date()
    }
    agent_suffix = "" if agent.agent is None else f" of {agent.agent}"
    wording = Wording(
        owner=data.runs.project if agent.agent is None else agent.agent or UNNAMED_AGENT,
        description=_describe_run_change(series, agent_suffix, change),
        days=[Day(day=day, average=mean, count=count) for day, (mean, count) in days.items()],
        numbers=Numbers(
            agent=agent.agent,
            runs_before=change.scores_before,
            runs_after=change.scores_after,
            having_before=None if series == TRUST else _count_having(change.mean_before, change.scores_before),
            having_after=None if series == TRUST else _count_having(change.mean_after, change.scores_after),
            series=round(math.exp(log_penalty)),
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
        f"{_format_runs(series, change.mean_after, change.scores_after)}, by {_format_value(series, abs(change.size))} (95% interval "
        f"{_format_value(series, low)} to {_format_value(series, high)}). The first day of the change is most likely {change.first_day} (95% "
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


@dataclass(frozen=True, slots=True)
class SessionRuleInput:
    """The judged sessions of a project, for the rule about them."""

    sessions: ProjectSessions
    references: Mapping[str, Reference]
    """The reference days by series; a missing series has all days."""
    parameters: Mapping[str, Any]
    """The parameters of the query that read the sessions."""

    @property
    def source(self) -> Source:
        """The query that read the sessions, for this project alone."""
        return Source(SESSIONS_QUERY, {**self.parameters, "projects": [self.sessions.project]})


def find_session_changes(data: SessionRuleInput) -> Iterator[Finding]:
    """Yield the significant changes in the scores of judged sessions, those with most evidence first."""
    as_of = data.sessions.as_of.date()
    if (as_of - data.sessions.first_day).days < REFERENCE_DAYS:
        return

    def find(series: str, log_penalty: float) -> Change | None:
        reference = data.references.get(series, NO_DECISION)
        units = data.sessions.units(series)
        return find_change(units, as_of, reference=reference, bounds=bounds_of(series), log_penalty=log_penalty)

    changes, penalty = believe_changes(find, SESSION_SERIES, len(SESSION_SERIES))
    for series, change in sorted(changes.items(), key=lambda item: -item[1].log_evidence):
        yield _build_session_finding(data, series, change, penalty)


def _build_session_finding(data: SessionRuleInput, series: str, change: Change, log_penalty: float) -> Finding:
    name = name_series(series)
    verb = VERBS[change.direction]
    low, high = sorted(math.copysign(1, change.size) * end for end in (change.size_interval.low, change.size_interval.high))
    days = data.sessions.days(series)
    wording = Wording(
        owner=data.sessions.project,
        description=(
            f"{name} {verb} from {change.mean_before:.1f} over {change.scores_before} judged sessions to {change.mean_after:.1f} over "
            f"{change.scores_after}, by {abs(change.size):.1f} of 10 (95% interval {low:.1f} to {high:.1f}). The first day of the change is "
            f"most likely {change.first_day} (95% interval {change.earliest_day} to {change.latest_day}). No case was written for "
            "these sessions, so this is the judge's view alone. Sessions count by their sampling probability."
        ),
        days=[
            Day(day=day, average=mean, count=count)
            for day, (mean, count) in days.items()
            if change.earliest_day <= day <= change.seen_at.date()
        ],
        numbers=Numbers(
            scores_before=change.scores_before,
            scores_after=change.scores_after,
            sessions_before=change.units_before,
            sessions_after=change.units_after,
            series=round(math.exp(log_penalty)),
            made_with=dict(data.sessions.made_by),
        ),
    )
    reference = data.references.get(series, NO_DECISION)
    compared = Comparison(SESSIONS, data.source, reference, data.sessions.first_day, data.sessions.as_of)
    return build_finding(Key(DRIFT, series, change.direction), change, compared, wording)
