"""The evidence of an incident: its cause, the tiers that changed with it, and counts from before and after the change.

Cause (`explain_by_anchors`, `combine_explanations`, `apply_mix`):

1. A finding has the size of its tier's change. The scores of the anchors show how much the judge changed (`audit.anchors`).
2. An incident has one cause, even if several tiers changed. Tiers whose cause is unknown do not count. If two tiers have different causes,
   the cause of the incident is unknown.

Companions (`companion_finder`): a tier that is judged rarely has too few sessions to raise an alarm of its own, but a reader of the
incident wants to know whether it changed as well. It did if the means before and after differ in the incident's direction by more than
chance (95%, one-sided). This test raises no alert, because it only runs after an alarm.

Counts (`gather_evidence`, `gather_run_evidence`):

1. They cover the two periods that the rule compared, like the slices and the sampling.
2. A share or a dimension has changed if the difference is more than three standard errors. That shows that it coincides with the
   incident, but not that it caused it.
3. Dimensions are counted by session, because the turns of a session are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

import msgspec

from analytics.queries import queries, query_rows
from audit.anchors import MIN_ANCHORS, MIN_ROUNDS, Attribution, IncidentChange
from audit.drift import incident_evidence as parts
from audit.drift.incident_evidence import (
    ALSO_CHANGED,
    EVERYWHERE,
    NO_LABELS,
    STANDS_OUT,
    TOO_FEW,
    Cause,
    Evidence,
    Numbers,
    SliceFindings,
    SliceName,
    SliceRow,
)
from audit.drift.series import Cells, Flags
from audit.drift.slices import (
    AGENT,
    ARRIVAL,
    MIN_SESSIONS,
    NOT_GIVEN,
    OTHER,
    Mix,
    Moments,
    Part,
    Slice,
    explain,
)
from audit.drift.slices import Explanation as SliceExplanation
from audit.drift.slices import Key as SliceKey
from audit.drift.watched_series import (
    BEHAVIOUR,
    DOWN,
    DRIFT,
    SESSION,
    SPREAD,
    TIERS,
    UP,
    WARNING,
    Key,
    Series,
    describe_change,
    lower_first,
    name_series,
)
from audit.times import iso_time, time_text
from schemas.lazy import duckdb
from schemas.lazy_numpy import np
from schemas.records import Baseline
from streams.upkeep.annotations import VERSIONS, deployments
from streams.watch.findings import UNNAMED_AGENT, Finding, RuleInput
from streams.watch.lifecycle import Z_95_ONE_SIDED
from streams.watch.measures import ProjectScores, midnight

JUDGE, MIX, HISTORY = "judge", "mix", "history"
"""Causes of incidents. The last two are those of a change that comes from the shares of the traffic's slices, and not from a slice itself. With `HISTORY`, the slices are the
live exchanges and the imported ones, so nothing happened on the day of the change."""
FULLY_EXPLAINED = "fully_explained"
"""The reason of an attribution to the judge that leaves nothing for the agent."""
CAUSES = {
    JUDGE: "The scores of the anchors changed as well, so the judge changed and not the agent.",
    "agent": "Anchors and rules show no change of the judge, so the agent changed.",
}
"""Descriptions of the cause, for incidents without its numbers."""
_UNKNOWN = "The anchors cannot tell whether the agent or the judge changed"
_Z_95 = 1.96
"""Standard errors of a two-sided 95% interval."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of an incident, or the reason why it is unknown."""

    cause: str | None
    """agent, judge, mix or history; None if unknown."""
    text: str
    """The cause or the reason, for people."""
    numbers: Cause
    """The cause according to the anchors, with their numbers."""
    shares: str = ""
    """The changes of shares in a changed mix, for people."""

    @property
    def is_only_judge(self) -> bool:
        """True if the judge explains all of the change, in each tier whose cause is known: the agent is as before."""
        causes = [cause for cause in (self.numbers.tiers or {"": self.numbers}).values() if cause.cause is not None]
        return self.cause == JUDGE and all(cause.reason == FULLY_EXPLAINED for cause in causes)


UNEXPLAINED = Explanation(None, "", Cause())
"""The explanation of a change for which anchors say nothing, such as a rate of anomalies."""


def measure_change(finding: Finding) -> IncidentChange | None:
    """Return the size of the change of a finding's tier, on the tier's own scale; None if it is not about a mean."""
    if finding.key.type != DRIFT or finding.key.direction is None or finding.expected is None or finding.kind == SPREAD:
        return None
    change = finding.numbers.change
    interval = finding.numbers.change_interval
    if change is None:
        change = _mean_deviation(finding)
        interval = None
    if not change:
        return None
    earliest, latest = finding.first_days
    return IncidentChange(
        direction=finding.key.direction,
        size=abs(change),
        error=0.0 if interval is None else abs(interval[1] - interval[0]) / (2 * _Z_95),
        earliest=earliest,
        latest=latest,
        until=finding.after[1],
    )


def _mean_deviation(finding: Finding) -> float | None:
    """Return the difference between the mean of a finding's days and the expected value; None if there is none."""
    days = [(day.average, day.count) for day in finding.numbers.days or () if day.average is not None]
    count = sum(count for _, count in days)
    if not count or finding.expected is None:
        return None
    return math.fsum(average * count for average, count in days) / count - finding.expected


SIDE_BY_SIDE = Explanation(
    "agent",
    "The versions were judged on the same days by the same judge and rules, so it is the version that differs.",
    Cause(cause="agent", reason="side_by_side"),
)
"""The explanation of a difference between versions."""


def explain_by_anchors(tier: str | None, change: IncidentChange | None, attribution: Attribution) -> Explanation:
    """Return the cause of a finding according to the anchors."""
    if attribution.reason == "no_size":
        return UNEXPLAINED
    description = _describe_cause(_name_tier(tier or ""), change, attribution)
    is_judged = attribution.reason != "rules"
    numbers = Cause(
        cause=attribution.cause,
        reason=attribution.reason,
        words=description,
        anchors=attribution.anchors if is_judged else None,
        rounds_before=attribution.rounds_before if is_judged else None,
        rounds_since=attribution.rounds_since if is_judged else None,
        judge_change=attribution.judge,
        judge_interval=None if attribution.judge is None else (attribution.low, attribution.high),
        tier_change=None if change is None else _signed_size(change),
    )
    return Explanation(attribution.cause, description, numbers)


def _name_tier(tier: str) -> str:
    return name_series(tier) if tier in TIERS or tier.startswith((BEHAVIOUR, SESSION)) else "The verdict on runs"


def _describe_cause(name: str, change: IncidentChange | None, attribution: Attribution) -> str:
    if attribution.reason == "rules":
        return f"{name} comes from fixed rules and not from the judge. The rules did not change, so the agent did."
    missing_evidence = {
        "not_anchored": "anchors are exchanges, and this is the verdict on whole sessions",
        "no_anchors": "none were judged",
        "few_anchors": f"too few anchors were judged before and since, {attribution.anchors} of {MIN_ANCHORS}",
        "few_rounds_before": f"too few rounds before the change, {attribution.rounds_before} of {MIN_ROUNDS}",
        "few_rounds_since": f"too few rounds since the change, {attribution.rounds_since} of {MIN_ROUNDS}",
    }
    if attribution.reason in missing_evidence:
        return f"{_UNKNOWN}: {missing_evidence[attribution.reason]}."
    changes = (
        f"The scores of the anchors changed by {attribution.judge:+.3f} (95% interval {attribution.low:+.3f} to {attribution.high:+.3f}; "
        f"{attribution.anchors} anchors, {attribution.rounds_before} rounds before and {attribution.rounds_since} since), and {lower_first(name)} by "
        f"{_signed_size(change):+.3f}."
    )
    if attribution.moved_judges:
        changes += f" How far {' and '.join(attribution.moved_judges)} is from the present judge is not part of either."
    if attribution.cause == JUDGE:
        if attribution.reason == FULLY_EXPLAINED:
            return f"The judge changed; the agent is as before. {changes} The judge explains the change."
        return f"{changes} The judge explains most of the change; the agent may explain the rest."
    if attribution.cause == "agent":
        return f"{changes} The judge explains less than half of the change, so the agent changed."
    return f"{changes} Either the judge or the agent may have changed."


def combine_explanations(explanations: Mapping[str, Explanation]) -> Explanation:
    """Return the cause of an incident, given the explanation of each of its tiers."""
    applicable = {tier: explanation for tier, explanation in explanations.items() if explanation is not UNEXPLAINED}
    if not applicable:
        return UNEXPLAINED
    tiers = {tier: explanation.numbers for tier, explanation in applicable.items()}
    conclusive = {tier: explanation for tier, explanation in applicable.items() if explanation.cause is not None}
    if len({explanation.cause for explanation in conclusive.values()}) > 1:
        verdicts = ", ".join(
            f"{lower_first(_name_tier(tier))} points to the {explanation.cause}" for tier, explanation in conclusive.items()
        )
        description = f"The tiers disagree: {verdicts}. Both may have changed."
        return Explanation(None, description, Cause(cause=None, reason="contradiction", words=description, tiers=tiers))
    first = next(iter((conclusive or applicable).values()))
    return first if len(applicable) == 1 else replace(first, numbers=msgspec.structs.replace(first.numbers, tiers=tiers))


def apply_mix(explanation: Explanation, evidence: Evidence) -> Explanation:
    """Return the explanation, or that the mix of the traffic changed if its slices say so and the judge is not the cause."""
    mix = None if evidence.slices is None else evidence.slices.mix
    if mix is None or explanation.cause == JUDGE:
        return explanation
    return replace(explanation, cause=HISTORY if mix.label == ARRIVAL else MIX, text=mix.words, shares=mix.shares)


def _signed_size(change: IncidentChange | None) -> float:
    """Return the change of the tier, negative for a fall."""
    if change is None:
        return 0.0
    return change.size if change.direction == UP else -change.size


MIN_SESSIONS_BEFORE = 10
"""Sessions before the change that are needed to know the normal level."""
FindCompanions = Callable[[str | None, date, bool, Collection[str]], Sequence[Finding]]
"""Returns findings about the other tiers that changed along.

It takes the agent (None for the whole project), the first day of the change, whether it is for the worse, and the tiers that raised an
alarm.
"""


class _SessionSums(NamedTuple):
    """The sessions before or after the first day of a change."""

    scores: int
    sessions: int
    mean: float
    variance: float
    """The variance of the sessions' means, as a population."""

    @property
    def sigma(self) -> float:
        """The sample standard deviation of the sessions' means."""
        return math.sqrt(self.variance * self.sessions / max(self.sessions - 1, 1))


def companion_finder(data: RuleInput) -> FindCompanions:
    """Return the function that finds the tiers of a project that changed along."""

    def find_companions(
        agent: str | None, first_day: date, is_worse: bool, alarmed_tiers: Collection[str]
    ) -> Sequence[Finding]:
        keys = [Key(DRIFT, tier, DOWN if is_worse else UP, agent) for tier in TIERS if tier not in alarmed_tiers]
        companions = (_find_companion(data, key, first_day) for key in keys)
        return [companion for companion in companions if companion is not None]

    return find_companions


def _find_companion(data: RuleInput, key: Key, first_day: date) -> Finding | None:
    cells = data.measured.cells(key.tier or "", key.agent)
    is_after = cells.last >= np.datetime64(first_day)
    is_reference = data.reference(key._replace(direction=None).series).mask(cells.days)
    before = _sum_sessions(cells, is_reference & ~is_after)
    after = _sum_sessions(cells, is_after)
    if before is None or after is None or before.sessions < MIN_SESSIONS_BEFORE:
        return None
    change = before.mean - after.mean if key.direction == DOWN else after.mean - before.mean
    standard_error = before.sigma * math.sqrt(1 / before.sessions + 1 / after.sessions)
    if change <= max(Z_95_ONE_SIDED * standard_error, 1e-9):
        return None
    last_day = cells.last[-1].astype(datetime).date()
    return _build_companion(data, key, (first_day, last_day), before, after)


def _sum_sessions(cells: Cells, selected: Flags) -> _SessionSums | None:
    """Sum the sessions of the selected hours; return None without any."""
    units, scores, weight, total, squares, mixed, totals = (float(column[selected].sum()) for column in cells[1:8])
    if not weight:
        return None
    mean = total / weight
    variance = max(0.0, totals - 2 * mean * mixed + mean * mean * squares) / squares
    return _SessionSums(round(scores), round(units), mean, variance)


def _build_companion(data: RuleInput, key: Key, days: tuple[date, date], before: _SessionSums, after: _SessionSums) -> Finding:
    first_day, last_day = days
    name = lower_first(TIERS[key.tier or ""])
    name = name if key.agent is None else f"{name} of {key.agent or UNNAMED_AGENT}"
    return Finding(
        key=key,
        rule=ALSO_CHANGED,
        severity=WARNING,
        since=first_day,
        until=last_day,
        size=abs(after.mean - before.mean),
        owner=data.measured.project if key.agent is None else key.agent or UNNAMED_AGENT,
        headline=describe_change(Series(key), before.mean, after.mean),
        description=(
            f"Since {first_day} the mean of {name} is {after.mean:.3f} over {after.scores} scores; before, it was {before.mean:.3f} over "
            f"{before.scores}. It raised no alarm of its own."
        ),
        numbers=Numbers(
            mean_before=before.mean,
            mean_after=after.mean,
            scores_before=before.scores,
            scores_after=after.scores,
            sessions_before=before.sessions,
            sessions_after=after.sessions,
            sigma=before.sigma,
        ),
        before=(midnight(first_day - timedelta(days=1)), midnight(first_day)),
        after=(midnight(first_day), data.measured.as_of),
        expected=before.mean,
        source=data.source,
        confirmed=False,
        fell_too=True,
    )


MAX_EXCHANGES = 10
"""Exchanges in the evidence: those that contributed most to the change."""
MAX_RUNS = 10
"""Runs in the evidence: those that contributed most to the change."""
MAX_REASON_LENGTH = 300
"""Characters of the judge's reasoning per exchange; the score has all of it."""
MAX_SLICES = 10
"""Slices in the evidence: those that explain most of the change."""
MAX_COUNTS = 12
"""Reasons, dimensions or failures in the evidence."""
MAX_FLAGS = 8
"""Checks of Tier 1 in the evidence."""
MAX_DEPLOYMENTS = 10
"""Deployments in the evidence: the newest ones of the possible first days."""
USUAL_DAYS = timedelta(days=7)
"""The time before the change from which usual exchanges are taken."""
MAX_USUAL_EXCHANGES = 2
POLICY_CHANGED = "The policy differs before and after the change; other gates or another sampling can also change a tier."
_MAX_NAMED_SLICES = 3
"""Slices that the title of a changed mix names."""
_MAX_EQUAL_SLICES = 5
"""Slices with the same exchanges that are named with a slice."""
_MIN_RATE = 1e-9
"""The expected rate of anomalies if there were none before, so that every exchange without one lies below it."""
_DIMENSIONS = {"tier2": "tier2_dimensions", "tier3": "tier3_dimensions"}
_OPPOSITE = {UP: DOWN, DOWN: UP}
Row = Mapping[str, Any]


def gather_evidence(
    cursor: duckdb.DuckDBPyConnection, finding: Finding, measured: ProjectScores, baseline: Baseline | None
) -> Evidence:
    """Gather the evidence for an incident of a finding about scores, except the observations of the rules."""
    project = measured.project
    tier = finding.key.tier
    start, end = finding.after
    before = finding.before if finding.before[0] < finding.before[1] else (start, start)
    periods = {
        "project": project,
        "before_since": before[0],
        "before_until": before[1],
        "after_since": start,
        "after_until": end,
    }
    agent = finding.key.agent
    agent_periods = {**periods, "agent": agent}
    exchange_query = {
        "project": project,
        "agent": agent,
        "slice": finding.key.slice,
        "tier": tier,
        "since": start,
        "until": end,
        "expected": finding.expected,
        "direction": finding.key.direction if finding.kind != SPREAD else None,
        "limit": MAX_EXCHANGES,
    }
    tier_periods = {**agent_periods, "tier": tier}
    policies = {
        "before": measured.policies(before[0].date(), before[1].date()),
        "after": measured.policies(start.date(), end.date()),
    }
    policy_changed = bool(policies["before"]) and policies["before"] != policies["after"]
    exchanges = query_rows(cursor, "incident_exchanges", exchange_query)
    failures, failure_query = _count_failures(cursor, periods, finding, agent)
    dimensions = _compare_dimensions(cursor, tier_periods) if tier in _DIMENSIONS else []
    changed_agent = exchanges[0]["agent"] if exchanges else None
    return Evidence(
        rule=finding.rule,
        note=POLICY_CHANGED if policy_changed else None,
        baseline=None if baseline is None else _build_baseline(baseline, tier),
        made_with=measured.made_with,
        policies=policies,
        sampling_mix=[parts.SamplingCount(**row) for row in query_rows(cursor, "sampling_change", periods)],
        slices=_explain_finding_by_slices(cursor, tier_periods, finding),
        deployments=find_deployments(cursor, project, finding),
        exchanges=[_build_exchange(row, finding) for row in exchanges],
        usual=[_build_exchange(row, finding) for row in _find_usual_exchanges(cursor, project, finding, changed_agent)],
        reasons=_count_reasons(cursor, agent_periods),
        failures=failures,
        dimensions=dimensions,
        flags=_count_flags(cursor, project, finding),
        queries=[
            *_daily_averages(finding, measured),
            _named_query(finding.source.query, finding.source.parameters),
            _named_query("incident_exchanges", exchange_query),
            _named_query("sampling_change", periods),
            _named_query("slices", tier_periods),
            _named_query("reason_change", agent_periods),
            *([_named_query("failure_change", failure_query)] if failures else []),
            *([_named_query("dimension_change", tier_periods)] if tier in _DIMENSIONS else []),
        ],
    )


def gather_run_evidence(
    cursor: duckdb.DuckDBPyConnection, finding: Finding, project: str, as_of: datetime, *, has_scores: bool
) -> Evidence:
    """Gather the evidence for an incident of a finding about runs, except the observations of the rule."""
    start, end = finding.after
    before = finding.before if finding.before[0] < finding.before[1] else (start, start)
    series = {"project": project, "agent": finding.key.agent or "", "series": finding.key.tier}
    run_query = {
        **series,
        "since": start,
        "until": end,
        "expected": finding.expected,
        "direction": finding.key.direction,
        "limit": MAX_RUNS,
    }
    periods = {
        "project": project,
        "before_since": before[0],
        "before_until": before[1],
        "after_since": start,
        "after_until": end,
    }
    failures, failure_query = _count_failures(cursor, periods, finding, finding.key.agent or "")
    day_query = {**series, "as_of": as_of, "days": (as_of.date() - finding.before[0].date()).days + 1}
    return Evidence(
        rule=finding.rule,
        made_with={**(finding.numbers.made_with or {})},
        runs=[_build_run(row) for row in query_rows(cursor, "incident_runs", run_query)],
        failures=failures,
        flags=_count_flags(cursor, project, finding) if has_scores else [],
        queries=[
            _named_query("run_days", day_query),
            _named_query(finding.source.query, finding.source.parameters),
            _named_query("incident_runs", run_query),
            _named_query("failure_change", failure_query),
        ],
    )


def gather_session_evidence(cursor: duckdb.DuckDBPyConnection, finding: Finding, project: str, as_of: datetime) -> Evidence:
    """Gather the evidence for an incident of a finding about judged sessions, except the observations of the rule."""
    start, end = finding.after
    series = {"project": project, "series": (finding.key.tier or "").removeprefix(SESSION)}
    session_query = {
        **series,
        "since": start,
        "until": end,
        "expected": finding.expected,
        "direction": finding.key.direction,
        "limit": MAX_RUNS,
    }
    day_query = {**series, "as_of": as_of, "days": (as_of.date() - finding.before[0].date()).days + 1}
    return Evidence(
        rule=finding.rule,
        made_with={**(finding.numbers.made_with or {})},
        runs=[_build_run(row) for row in query_rows(cursor, "incident_sessions", session_query)],
        deployments=find_deployments(cursor, project, finding),
        queries=[
            _named_query("session_score_days", day_query),
            _named_query(finding.source.query, finding.source.parameters),
            _named_query("incident_sessions", session_query),
        ],
    )


def gather_behaviour_evidence(
    cursor: duckdb.DuckDBPyConnection, finding: Finding, project: str, agents: Sequence[str]
) -> Evidence:
    """Gather the evidence for an incident of a finding about the behaviour of agents, except the observations of the rule."""
    start, end = finding.after
    session_query = {
        "project": project,
        "agents": list(agents),
        "series": (finding.key.tier or "").removeprefix(BEHAVIOUR),
        "version": None if finding.key.slice is None else finding.key.slice.partition(" ")[2],
        "since": start,
        "until": end,
        "expected": finding.expected,
        "direction": finding.key.direction,
        "limit": MAX_RUNS,
    }
    return Evidence(
        rule=finding.rule,
        runs=[_build_run(row) for row in query_rows(cursor, "incident_behaviour", session_query)],
        deployments=find_deployments(cursor, project, finding),
        queries=[
            _named_query(finding.source.query, finding.source.parameters),
            _named_query("incident_behaviour", session_query),
        ],
    )


def explain_by_slices(cursor: duckdb.DuckDBPyConnection, parameters: Mapping[str, Any]) -> SliceFindings:
    """Explain a change by slices. Slices that explain nothing are left out.

    The parameters are those of the query `slices`: the project, the tier, and the periods before and after.
    """
    slices: dict[str, dict[SliceKey, Moments]] = {"before": {}, "after": {}}
    last_times: dict[SliceKey, datetime] = {}
    no_scores = Moments(*[0] * len(Moments._fields))
    totals = {"before": no_scores, "after": no_scores}
    for row in query_rows(cursor, "slices", parameters):
        moments = Moments(*(row[name] for name in Moments._fields))
        if row["label"] is None:
            totals[row["side"]] = moments
            continue
        key = SliceKey(row["label"], row["kind"], row["value"])
        slices[row["side"]][key] = moments
        if row["side"] == "before" and row["last_at"] is not None:
            last_times[key] = row["last_at"]
    explanation = explain(slices["before"], slices["after"], (totals["before"], totals["after"]), (*VERSIONS, "model"))
    if explanation is None:
        sessions = {side: moments.sessions for side, moments in totals.items()}
        return SliceFindings(state=TOO_FEW, sessions=sessions, needed=MIN_SESSIONS)
    return _build_slice_findings(explanation, last_times)


def _explain_finding_by_slices(cursor: duckdb.DuckDBPyConnection, parameters: Row, finding: Finding) -> SliceFindings:
    """Explain a change by slices. A change that was found at one mix of the agents does not come from their mix."""
    slices = explain_by_slices(cursor, parameters)
    if finding.numbers.agents and slices.mix is not None and slices.mix.label == AGENT:
        return msgspec.structs.replace(slices, mix=None)
    return slices


def _count_reasons(cursor: duckdb.DuckDBPyConnection, periods: Row) -> list[parts.ReasonCount]:
    """Count the reasons for low scores before and after a change."""
    counts = [parts.ReasonCount(**row) for row in query_rows(cursor, "reason_change", periods)]
    anomalies = [count for count in counts if count.kind == "anomaly"]
    return [*(count for count in counts if count.kind != "anomaly"), *anomalies[:MAX_COUNTS]]


def _compare_dimensions(cursor: duckdb.DuckDBPyConnection, tier_periods: Row) -> list[parts.Dimension]:
    """Compare the dimensions of a tier before and after a change, the largest change first."""
    dimensions = [parts.Dimension(**row) for row in query_rows(cursor, "dimension_change", tier_periods)]
    return sorted(dimensions, key=lambda dimension: (-abs(dimension.z_score or 0.0), dimension.dimension))[:MAX_COUNTS]


def _count_failures(
    cursor: duckdb.DuckDBPyConnection, periods: Row, finding: Finding, agent: str | None
) -> tuple[list[parts.FailureCount], dict[str, Any]]:
    """Count the failures of an agent's runs ('' for runs without an agent; None for all), and return them with the query's parameters.

    For a finding about runs, only the runs that its rule compared count: those that were diagnosed in the same way, outside excluded days.
    """
    made_with = finding.numbers.made_with
    values = {
        **periods,
        "agent": agent,
        "made_with": list(made_with.values()) if made_with else None,
        "cut": _list_cut_days(finding) if made_with else None,
    }
    return [parts.FailureCount(**row) for row in query_rows(cursor, "failure_change", values)[:MAX_COUNTS]], values


def _count_flags(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[parts.FlagCount]:
    """Count the exchanges that each check flagged before and after a change, the largest difference first."""
    values = {
        "project": project,
        "agent": finding.key.agent if finding.key.tier in TIERS else None,
        "before_since": finding.before[0],
        "before_until": finding.before[1],
        "after_since": finding.after[0],
        "after_until": finding.after[1],
    }
    return [parts.FlagCount(**row) for row in query_rows(cursor, "flag_change", values)[:MAX_FLAGS]]


def _find_usual_exchanges(
    cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding, agent: str | None
) -> list[dict[str, Any]]:
    """Return a few normal exchanges from the last days before a change, preferably of the agent, for comparison with the changed ones.

    There are none for a change of the spread.
    """
    start, end = finding.before
    direction = finding.key.direction
    if finding.kind == SPREAD or direction not in _OPPOSITE or finding.expected is None or start >= end:
        return []
    values = {
        "project": project,
        "agent": finding.key.agent,
        "slice": finding.key.slice,
        "tier": finding.key.tier,
        "since": max(start, end - USUAL_DAYS),
        "until": end,
        "expected": finding.expected or _MIN_RATE,
        "direction": _OPPOSITE[direction],
        "limit": 10 * MAX_USUAL_EXCHANGES,
    }
    rows = query_rows(cursor, "incident_exchanges", values)
    return sorted(rows, key=lambda row: row["agent"] != agent)[:MAX_USUAL_EXCHANGES]


def _list_cut_days(finding: Finding) -> list[str]:
    """Return the days before a change that its rule excluded, as ISO dates."""
    start, end = (moment.date() for moment in finding.before)
    days: list[str] = []
    for first_cut, last_cut in finding.cut:
        first = max(first_cut, start)
        last = min(last_cut, end)
        days += [f"{first + timedelta(days=number)}" for number in range((last - first).days + 1)]
    return days


def find_deployments(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[parts.Deployment]:
    """Return the deployments on the possible first days of a change."""
    first, last = finding.first_days
    start = datetime.combine(first, time(), UTC)
    rows = deployments(cursor, project, start, datetime.combine(last, time(), UTC) + timedelta(days=1), MAX_DEPLOYMENTS)
    return [
        parts.Deployment(
            id=row["deployment_id"],
            label=row["label"],
            version=row["version"],
            agent=row["agent"],
            at=iso_time(row["occurred_at"]),
            by=row["deployed_by"],
            comment=row["comment"],
            url=row["url"],
        )
        for row in rows
    ]


def _build_baseline(baseline: Baseline, tier: str | None) -> parts.BaselineNumbers:
    numbers = None if tier is None else getattr(baseline, tier, None)
    return parts.BaselineNumbers(
        id=baseline.baseline_id,
        computed_at=iso_time(baseline.computed_at),
        window_start=iso_time(baseline.window_start),
        window_end=iso_time(baseline.window_end),
        exchange_count=baseline.exchange_count,
        anomaly_rate=baseline.anomaly_rate,
        mean=None if numbers is None else numbers.mean,
        stddev=None if numbers is None else numbers.stddev,
        count=None if numbers is None else numbers.count,
    )


def _build_exchange(row: Row, finding: Finding) -> parts.Exchange:
    return parts.Exchange(
        score_id=row["score_id"],
        exchange_id=row["exchange_id"],
        connection=row["connection"],
        agent=row["agent"],
        session_id=row["session_id"],
        turn_number=row["turn_number"],
        exchange_timestamp=iso_time(row["exchange_at"]),
        score=row["score"],
        weight=row["weight"],
        moved=row["moved"],
        sampling_reason=row["sampling_reason"],
        reason=_find_reason(row, finding)[:MAX_REASON_LENGTH],
    )


def _build_run(row: Row) -> parts.Run:
    return parts.Run(
        run_id=row["run_id"],
        connection=row["connection"],
        session_id=row["session_id"],
        agent=row["agent"],
        ended_at=iso_time(row["ended_at"]),
        value=row["value"],
        moved=row["moved"],
        trust_score=row["trust_score"],
        readiness_level=row["readiness_level"],
        primary_failure=row["primary_failure_type"],
        failures=list(row["failures"]),
    )


def _find_reason(row: Row, finding: Finding) -> str:
    """Return the reason for an exchange's score that matches the change; empty without one."""
    tier = finding.key.tier
    if tier is None:
        return "; ".join(row["anomaly_reasons"])
    if tier == "tier1":
        return ", ".join(row["tier1_flags"])
    if tier == "tier2_5":
        return row["tier2_5_reasoning"] or ""
    flag = row["tier2_flag_reason"] if tier == "tier2" else None
    return flag or _describe_extreme(row[_DIMENSIONS[tier]], finding.key.direction)


def _describe_extreme(dimensions: Sequence[Row], direction: str | None) -> str:
    """Return the lowest dimension (the highest for a rise) with the judge's reasoning; empty without dimensions."""
    if not dimensions:
        return ""
    sign = 1 if direction == DOWN else -1
    extreme = min(dimensions, key=lambda dimension: (sign * dimension["score"], dimension["dimension"]))
    return f"{extreme['dimension']} {extreme['score']:g}: {extreme['reasoning'] or ''}".rstrip(": ")


def _daily_averages(finding: Finding, measured: ProjectScores) -> list[parts.Query]:
    """Return the query of a tier's daily averages around a change; none for a spike."""
    if finding.key.tier is None:
        return []
    days = (measured.as_of.date() - finding.before[0].date()).days + 1
    parameters = {"project": measured.project, "agent": finding.key.agent, "as_of": measured.as_of, "days": days}
    return [_named_query("daily_averages", parameters)]


def _named_query(name: str, parameters: Mapping[str, Any]) -> parts.Query:
    values = {key: time_text(value) for key, value in parameters.items()}
    return parts.Query(name=name, parameters=values, sql=queries()[name].text)


def _build_slice_findings(explanation: SliceExplanation, last_times: Mapping[SliceKey, datetime]) -> SliceFindings:
    best = explanation.slices[0] if explanation.slices else None
    return SliceFindings(
        state=_summarise_slices(best),
        change=_build_amount(explanation.change),
        tried=explanation.tried,
        unexplained=explanation.unexplained,
        usual=_find_usual_slice(explanation.slices, best, last_times) if best is not None and best.stands_out else None,
        slices=[_build_slice_row(part) for part in explanation.slices if part.explained > 0][:MAX_SLICES],
        mix=None if explanation.mix is None else _build_mix(explanation.mix, explanation.change),
    )


def _summarise_slices(best: Slice | None) -> str:
    """Return the state of a comparison of slices, given the best explanation."""
    if best is None:
        return NO_LABELS
    return STANDS_OUT if best.stands_out else EVERYWHERE


def _build_mix(mix: Mix, change: Part) -> parts.ChangedMix:
    return parts.ChangedMix(
        label=mix.label,
        within=_build_amount(mix.within),
        all_better=mix.all_better,
        slices=[_build_slice_row(part) for part in mix.changed],
        shares=", ".join(
            f"{_name_value(part.key)} {part.share_before:.0%} → {part.share_after:.0%}"
            for part in mix.changed[:_MAX_NAMED_SLICES]
        ),
        words=_describe_mix(mix, change),
    )


def _describe_mix(mix: Mix, change: Part) -> str:
    if mix.label == ARRIVAL:
        return _describe_added_history(mix, change)
    subject = "The mix of agents changed" if mix.label == AGENT else f"The mix of {mix.label} values changed"
    group = "each agent" if mix.label == AGENT else f"each value of {mix.label}"
    mean_change = f"The mean changed by {change.amount:+.3f}"
    if mix.all_better:
        verb = "rose" if change.amount < 0 else "fell"
        mean_change = f"Every slice {verb}, but the overall mean changed by {change.amount:+.3f}"
    description = f"{subject}. {mean_change}; within {group}, the average change is {_format_within(mix)}."
    new_values = [_name_value(part.key) for part in mix.changed[:_MAX_NAMED_SLICES] if part.mean_before is None]
    return f"{description} New: {', '.join(new_values)}." if new_values else description


def _describe_added_history(mix: Mix, change: Part) -> str:
    if all(part.mean_before is None or part.mean_after is None for part in mix.changed):
        return (
            "Imported history has another level than the live exchanges. All exchanges before the change were imported and all later ones "
            f"are live, so the change of {change.amount:+.3f} may be a gap between two sources."
        )
    return (
        f"Imported history has another level than the live exchanges. The mean changed by {change.amount:+.3f}; within the live exchanges "
        f"and within the imported ones, the average change is {_format_within(mix)}."
    )


def _format_within(mix: Mix) -> str:
    return f"{mix.within.amount:+.3f} (95% interval {mix.within.low:+.3f} to {mix.within.high:+.3f})"


def _name_value(key: SliceKey) -> str:
    return {NOT_GIVEN: "not given", OTHER: "other values"}.get(key.kind, key.value)


def _find_usual_slice(slices: Iterable[Slice], best: Slice, last_times: Mapping[SliceKey, datetime]) -> SliceRow | None:
    """Return the slice of the same label to which a user may roll back, such as the previous version; None without one.

    It is the largest slice that was in use on the last day before the change, because an older one may have had more exchanges.
    """
    others = [part for part in slices if part.key.label == best.key.label and part.key != best.key and part.exchanges_before]
    newest = max((last_times[part.key] for part in others if part.key in last_times), default=None)
    if newest is not None:
        others = [part for part in others if last_times.get(part.key, newest) > newest - timedelta(days=1)]
    if not others:
        return None
    return _build_slice_row(max(others, key=lambda part: (part.share_before, part.key)))


def _build_slice_row(part: Slice) -> SliceRow:
    return SliceRow(
        *part.key,
        share_before=part.share_before,
        share_after=part.share_after,
        mean_before=part.mean_before,
        mean_after=part.mean_after,
        exchanges_before=part.exchanges_before,
        exchanges_after=part.exchanges_after,
        mix=_build_amount(part.mix),
        within=_build_amount(part.within),
        explained=part.explained,
        stands_out=part.stands_out,
        same_as=[SliceName(*other) for other in part.same_as[:_MAX_EQUAL_SLICES]],
    )


def _build_amount(part: Part) -> parts.Amount:
    return parts.Amount(*part)
