"""The evidence of an incident: its cause, the tiers that moved with it, and what the tables say of the time before and since.

Cause (`explained`, `combined`, `with_mix`):

1. A finding says how far it moved its tier; anchors say how far the judge moved (`audit.anchors`).
2. An incident may move several tiers, and has one cause. Tiers that say the same agree; tiers that cannot tell are silent; if tiers
   contradict each other the cause is unknown, because a single cause cannot be both.

Companions (`moved_too`): a tier that is judged once a day has too few sessions to raise an alarm on the day its neighbours do, but the
reader of the incident wants to know that it fell as well. It did if its mean since then lies off the mean before, in the incident's
direction, by more than chance (95 %, one-sided). This test wakes nobody, and runs only where an alarm has been raised already.

Counts (`gather`, `gather_runs`):

1. They cover the periods that the rule compared, the same as those of the slices and of the sampling.
2. A share has risen, or a dimension has moved, if the difference is more than three standard errors. It then coincides with the
   change, which is all that counts can say.
3. Sessions are the units of dimensions: the turns of one session are not independent.
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
from audit.drift.watched_series import DOWN, DRIFT, SPREAD, TIERS, UP, VERBS, WARNING, Key
from audit.times import iso_time, time_text
from schemas.lazy import duckdb
from schemas.lazy_numpy import np
from schemas.records import Baseline
from streams.upkeep.annotations import VERSIONS, deployments
from streams.watch.findings import Finding, RuleInput
from streams.watch.lifecycle import Z_95_ONE_SIDED
from streams.watch.measures import ProjectScores, midnight

MIX, HISTORY = "mix", "history"
"""The causes of a change that comes from the shares of the traffic's parts: no part of it explains the change by itself. Of `HISTORY` the
parts are what came when it happened and what was imported later, so nothing happened on the day of the change."""
CAUSES = {
    "judge": "The anchors changed with it: the judge changed, not the agent.",
    "agent": "The judge did not change, as far as anchors or rules show: the agent changed.",
}
"""The cause in words, for incidents that keep no numbers of it."""
_UNKNOWN = "The anchors cannot tell whether the agent or the judge changed"
_NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of an incident, or why it is not known."""

    cause: str | None
    """agent, judge, mix or history."""
    words: str
    numbers: Cause
    """What the anchors say, and the numbers that this rests on."""
    shares: str = ""
    """Of a changed mix, how they changed."""


UNEXPLAINED = Explanation(None, "", Cause())
"""The explanation if the question does not arise, as for a rate of anomalies."""


def measure_change(finding: Finding) -> IncidentChange | None:
    """Return how far a finding moved its tier, on the tier's own scale; None if it is not about the mean of one."""
    if finding.key.type != DRIFT or finding.key.direction is None or finding.expected is None or finding.kind == SPREAD:
        return None
    numbers = finding.numbers
    change, interval = numbers.change, numbers.change_interval
    if change is None:
        change, interval = _mean_of_days(finding), None
    if not change:
        return None
    earliest, latest = finding.first_days
    return IncidentChange(
        direction=finding.key.direction,
        size=abs(change),
        error=0.0 if interval is None else abs(interval[1] - interval[0]) / (2 * _NORMAL),
        earliest=earliest,
        latest=latest,
        until=finding.after[1],
    )


def _mean_of_days(finding: Finding) -> float | None:
    """Return by how much the days of a finding lie off the expected value."""
    days = [(day.average, day.count) for day in finding.numbers.days or () if day.average is not None]
    count = sum(count for _, count in days)
    if not count or finding.expected is None:
        return None
    return math.fsum(average * count for average, count in days) / count - finding.expected


def explain_by_anchors(tier: str | None, moved: IncidentChange | None, attribution: Attribution) -> Explanation:
    """Return the cause of a finding according to the anchors, in words and numbers."""
    if attribution.reason == "no_size":
        return UNEXPLAINED
    description = _describe_cause(TIERS.get(tier or "", "The verdict on runs"), moved, attribution)
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
        tier_change=None if moved is None else _signed_size(moved),
    )
    return Explanation(attribution.cause, description, numbers)


def _describe_cause(name: str, moved: IncidentChange | None, attribution: Attribution) -> str:
    if attribution.reason == "rules":
        return f"{name} comes from fixed rules and not from the judge. The rules did not change, so the agent did."
    lacking = {
        "no_anchors": "none were judged",
        "few_anchors": f"too few anchors were judged before and since, {attribution.anchors} of {MIN_ANCHORS}",
        "few_rounds_before": f"too few rounds before the change, {attribution.rounds_before} of {MIN_ROUNDS}",
        "few_rounds_since": f"too few rounds since the change, {attribution.rounds_since} of {MIN_ROUNDS}",
    }
    if attribution.reason in lacking:
        return f"{_UNKNOWN}: {lacking[attribution.reason]}."
    anchors = (
        f"The anchors moved by {attribution.judge:+.3f} (95 % interval {attribution.low:+.3f} to {attribution.high:+.3f}; {attribution.anchors} anchors, "
        f"{attribution.rounds_before} rounds before and {attribution.rounds_since} since), {name} by {_signed_size(moved):+.3f}"
    )
    if attribution.cause == "judge":
        return f"{anchors}: the judge explains most of the change."
    if attribution.cause == "agent":
        return f"{anchors}: the judge explains less than half of the change, so the agent changed."
    return f"{anchors}: either the judge or the agent may have changed."


def combine_explanations(explanations: Mapping[str, Explanation]) -> Explanation:
    """Return the cause of an incident that moved several tiers, from the explanation of each."""
    applicable = {tier: explanation for tier, explanation in explanations.items() if explanation is not UNEXPLAINED}
    if not applicable:
        return UNEXPLAINED
    tiers = {tier: explanation.numbers for tier, explanation in applicable.items()}
    conclusive = {tier: explanation for tier, explanation in applicable.items() if explanation.cause is not None}
    if len({explanation.cause for explanation in conclusive.values()}) > 1:
        verdicts = ", ".join(f"{TIERS.get(tier, tier)} points to the {found.cause}" for tier, found in conclusive.items())
        description = f"The tiers disagree: {verdicts}. Both may have changed."
        return Explanation(None, description, Cause(cause=None, reason="contradiction", words=description, tiers=tiers))
    best = next(iter(conclusive.values()), next(iter(applicable.values())))
    return best if len(applicable) == 1 else replace(best, numbers=msgspec.structs.replace(best.numbers, tiers=tiers))


def apply_mix(explanation: Explanation, evidence: Evidence) -> Explanation:
    """Return the explanation, or that the mix of the traffic changed if its slices say so and the judge is not the cause."""
    mix = None if evidence.slices is None else evidence.slices.mix
    if mix is None or explanation.cause == "judge":
        return explanation
    return replace(explanation, cause=HISTORY if mix.label == ARRIVAL else MIX, words=mix.words, shares=mix.shares)


def _signed_size(moved: IncidentChange | None) -> float:
    """The change of the tier, below 0 where it fell."""
    return 0.0 if moved is None else moved.size if moved.direction == UP else -moved.size


MIN_SESSIONS_BEFORE = 10
"""Sessions before the change that it takes to know what was normal."""
FindCompanions = Callable[[date, bool, Collection[str]], Sequence[Finding]]
"""Returns the other tiers that moved with a change, given its first day, whether it is for the worse, and the alarmed tiers."""


class _SessionSums(NamedTuple):
    """The sessions on one side of the first day."""

    scores: int
    units: int
    mean: float
    variance: float
    """Of a session's mean, as a population."""

    @property
    def sigma(self) -> float:
        """Standard deviation of a session's mean, by the sample."""
        return math.sqrt(self.variance * self.units / max(self.units - 1, 1))


def companion_finder(case: RuleInput) -> FindCompanions:
    """Return the function that finds the tiers of a project that moved along."""

    def find(first: date, is_worse: bool, alarmed: Collection[str]) -> Sequence[Finding]:
        direction = DOWN if is_worse else UP
        companions = (_find_companion(case, tier, first, direction) for tier in TIERS if tier not in alarmed)
        return [companion for companion in companions if companion is not None]

    return find


def _find_companion(case: RuleInput, tier: str, first: date, direction: str) -> Finding | None:
    cells = case.measured.cells(tier)
    since = cells.last >= np.datetime64(first)
    counted = case.reference(tier).mask(cells.days)
    before, after = _sum_sessions(cells, counted & ~since), _sum_sessions(cells, since)
    if before is None or after is None or before.units < MIN_SESSIONS_BEFORE:
        return None
    off = before.mean - after.mean if direction == DOWN else after.mean - before.mean
    if off <= max(Z_95_ONE_SIDED * before.sigma * math.sqrt(1 / before.units + 1 / after.units), 1e-9):
        return None
    until = cells.last[-1].astype(datetime).date()
    return _build_companion(case, Key(DRIFT, tier, direction), (first, until), (before, after))


def _sum_sessions(cells: Cells, where: Flags) -> _SessionSums | None:
    """Sum up the sessions of some hours; None without any."""
    units, scores, weight, total, squares, mixed, totals = (float(column[where].sum()) for column in cells[1:8])
    if not weight:
        return None
    mean = total / weight
    variance = max(0.0, totals - 2 * mean * mixed + mean * mean * squares) / squares
    return _SessionSums(round(scores), round(units), mean, variance)


def _build_companion(case: RuleInput, key: Key, days: tuple[date, date], sides: tuple[_SessionSums, _SessionSums]) -> Finding:
    (first, until), (before, after) = days, sides
    name, fell = TIERS[key.tier or ""], VERBS[key.direction or DOWN]
    return Finding(
        key=key,
        rule=ALSO_CHANGED,
        severity=WARNING,
        since=first,
        until=until,
        size=abs(after.mean - before.mean),
        title=f"{name} {fell} too, to {after.mean:.2f} from {before.mean:.2f}",
        description=(
            f"Since {first} the mean of {name} is {after.mean:.3f} over {after.scores} scores, {before.mean:.3f} over {before.scores} before. "
            "It raised no alarm of its own."
        ),
        numbers=Numbers(
            mean_before=before.mean,
            mean_after=after.mean,
            scores_before=before.scores,
            scores_after=after.scores,
            sessions_before=before.units,
            sessions_after=after.units,
            sigma=before.sigma,
        ),
        before=(midnight(first - timedelta(days=1)), midnight(first)),
        after=(midnight(first), case.measured.as_of),
        expected=before.mean,
        source=case.source,
        confirmed=False,
        fell_too=True,
    )


MAX_EXCHANGES = 10
"""The number of exchanges that an incident carries, those that moved it most."""
MAX_RUNS = 10
"""The same of runs."""
MAX_REASON_LENGTH = 300
"""Characters of the judge's words that it carries of each; the score has them whole."""
MAX_SLICES = 10
"""Slices that an incident carries, the best explanations."""
MAX_COUNTS = 12
"""Reasons, dimensions or failures that it lists."""
MAX_FLAGS = 8
"""Checks of Tier 1 that it lists."""
MAX_DEPLOYMENTS = 10
"""Deployments that it names, the newest of the days on which it may have begun."""
USUAL_DAYS = timedelta(days=7)
"""The time before the change from which it takes its usual exchanges."""
MAX_USUAL_EXCHANGES = 2
POLICY_CHANGED = "The policy differs before and after: a change of gates or sampling can also move a tier."
_MAX_NAMED_SLICES = 3
"""Slices that the title of a changed mix names."""
_MAX_EQUAL_SLICES = 5
"""Slices with the same exchanges that are named with each."""
_MIN_RATE = 1e-9
_DIMENSIONS = {"tier2": "tier2_dimensions", "tier3": "tier3_dimensions"}
_OPPOSITE = {UP: DOWN, DOWN: UP}
Row = Mapping[str, Any]


def gather_evidence(
    cursor: duckdb.DuckDBPyConnection, finding: Finding, measured: ProjectScores, baseline: Baseline | None
) -> Evidence:
    """Gather the evidence of an incident of this finding about scores, except what the rules saw."""
    project, tier, (start, end) = measured.project, finding.key.tier, finding.after
    before = finding.before if finding.before[0] < finding.before[1] else (start, start)
    sides = {"project": project, "before_since": before[0], "before_until": before[1], "after_since": start, "after_until": end}
    exchanges = {
        "project": project,
        "tier": tier,
        "since": start,
        "until": end,
        "expected": finding.expected,
        "direction": finding.key.direction if finding.kind != SPREAD else None,
        "limit": MAX_EXCHANGES,
    }
    of_tier = {**sides, "tier": tier}
    policies = {
        "before": measured.policies(before[0].date(), before[1].date()),
        "after": measured.policies(start.date(), end.date()),
    }
    moved_most = query_rows(cursor, "incident_exchanges", exchanges)
    failures, of_failures = _count_failures(cursor, sides, finding, None)
    dimensions = _compare_dimensions(cursor, of_tier) if tier in _DIMENSIONS else []
    agent = moved_most[0]["agent"] if moved_most else None
    return Evidence(
        rule=finding.rule,
        note=None if not policies["before"] or policies["before"] == policies["after"] else POLICY_CHANGED,
        baseline=None if baseline is None else _build_baseline(baseline, tier),
        made_with=measured.made_with,
        policies=policies,
        sampling_mix=[parts.SamplingCount(**row) for row in query_rows(cursor, "sampling_change", sides)],
        slices=explain_by_slices(cursor, of_tier),
        deployments=find_deployments(cursor, project, finding),
        exchanges=[_build_exchange(row, finding) for row in moved_most],
        usual=[_build_exchange(row, finding) for row in _find_usual_exchanges(cursor, project, finding, agent)],
        reasons=_count_reasons(cursor, sides),
        failures=failures,
        dimensions=dimensions,
        flags=_count_flags(cursor, project, finding),
        queries=[
            *_daily_averages(finding, measured),
            _named_query(finding.source.query, finding.source.parameters),
            _named_query("incident_exchanges", exchanges),
            _named_query("sampling_change", sides),
            _named_query("slices", of_tier),
            _named_query("reason_change", sides),
            *([_named_query("failure_change", of_failures)] if failures else []),
            *([_named_query("dimension_change", of_tier)] if tier in _DIMENSIONS else []),
        ],
    )


def gather_run_evidence(
    cursor: duckdb.DuckDBPyConnection, finding: Finding, project: str, as_of: datetime, *, has_scores: bool
) -> Evidence:
    """Gather the evidence of an incident of this finding about runs, except what the rule saw."""
    (before, until), (start, end) = finding.before, finding.after
    if before >= until:
        before = until = start
    series = {"project": project, "agent": finding.key.agent or "", "series": finding.key.tier}
    runs = {
        **series,
        "since": start,
        "until": end,
        "expected": finding.expected,
        "direction": finding.key.direction,
        "limit": MAX_RUNS,
    }
    sides = {"project": project, "before_since": before, "before_until": until, "after_since": start, "after_until": end}
    failures, of_failures = _count_failures(cursor, sides, finding, finding.key.agent or "")
    days = {**series, "as_of": as_of, "days": (as_of.date() - finding.before[0].date()).days + 1}
    return Evidence(
        rule=finding.rule,
        made_with={**(finding.numbers.made_with or {})},
        runs=[_build_run(row) for row in query_rows(cursor, "incident_runs", runs)],
        failures=failures,
        flags=_count_flags(cursor, project, finding) if has_scores else [],
        queries=[
            _named_query("run_days", days),
            _named_query(finding.source.query, finding.source.parameters),
            _named_query("incident_runs", runs),
            _named_query("failure_change", of_failures),
        ],
    )


def explain_by_slices(cursor: duckdb.DuckDBPyConnection, parameters: Mapping[str, Any]) -> SliceFindings:
    """Explain a change by slices, with the state of the answer; slices that explain nothing are left out.

    The parameters are those of the query `slices`: the project, the tier, and the time before and after.
    """
    sides: dict[str, dict[SliceKey, Moments]] = {"before": {}, "after": {}}
    ends: dict[SliceKey, datetime] = {}
    whole = {"before": Moments(*[0] * len(Moments._fields)), "after": Moments(*[0] * len(Moments._fields))}
    for row in query_rows(cursor, "slices", parameters):
        moments = Moments(*(row[name] for name in Moments._fields))
        if row["label"] is None:
            whole[row["side"]] = moments
            continue
        key = SliceKey(row["label"], row["kind"], row["value"])
        sides[row["side"]][key] = moments
        if row["side"] == "before" and row["last_at"] is not None:
            ends[key] = row["last_at"]
    explanation = explain(sides["before"], sides["after"], (whole["before"], whole["after"]), (*VERSIONS, "model"))
    if explanation is None:
        sessions = {side: moments.sessions for side, moments in whole.items()}
        return SliceFindings(state=TOO_FEW, sessions=sessions, needed=MIN_SESSIONS)
    return _build_slice_findings(explanation, ends)


def _count_reasons(cursor: duckdb.DuckDBPyConnection, sides: Row) -> list[parts.ReasonCount]:
    """Count what was found wrong before a change and since it."""
    counts = [parts.ReasonCount(**row) for row in query_rows(cursor, "reason_change", sides)]
    anomalies = [count for count in counts if count.kind == "anomaly"]
    return [*(count for count in counts if count.kind != "anomaly"), *anomalies[:MAX_COUNTS]]


def _compare_dimensions(cursor: duckdb.DuckDBPyConnection, of_tier: Row) -> list[parts.Dimension]:
    """Compare the dimensions of a tier, the largest move first."""
    dimensions = [parts.Dimension(**row) for row in query_rows(cursor, "dimension_change", of_tier)]
    return sorted(dimensions, key=lambda dimension: (-abs(dimension.z_score or 0.0), dimension.dimension))[:MAX_COUNTS]


def _count_failures(
    cursor: duckdb.DuckDBPyConnection, sides: Row, finding: Finding, agent: str | None
) -> tuple[list[parts.FailureCount], dict[str, Any]]:
    """Count the failures of the runs of an agent ('' for none named; None: any); return them with the parameters of the query.

    Of a finding about runs they are those that its rule compared: diagnosed alike, without the days of changes that are over.
    """
    made_with = finding.numbers.made_with
    values = {
        **sides,
        "agent": agent,
        "made_with": list(made_with.values()) if made_with else None,
        "cut": _list_cut_days(finding) if made_with else None,
    }
    return [parts.FailureCount(**row) for row in query_rows(cursor, "failure_change", values)[:MAX_COUNTS]], values


def _count_flags(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[parts.FlagCount]:
    """Count the exchanges that each check flagged before a change and since it, the largest change first."""
    (before, until), (since, end) = finding.before, finding.after
    values = {"project": project, "before_since": before, "before_until": until, "after_since": since, "after_until": end}
    return [parts.FlagCount(**row) for row in query_rows(cursor, "flag_change", values)[:MAX_FLAGS]]


def _find_usual_exchanges(
    cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding, agent: str | None
) -> list[dict[str, Any]]:
    """Return a few exchanges of the last days before a change on the good side of what was expected, of the agent if there are any.

    They are to be read beside those that moved the mean. There are none for a change of the spread.
    """
    (before, until), direction = finding.before, finding.key.direction
    if finding.kind == SPREAD or direction not in _OPPOSITE or finding.expected is None or before >= until:
        return []
    values = {
        "project": project,
        "tier": finding.key.tier,
        "since": max(before, until - USUAL_DAYS),
        "until": until,
        # Where there were no anomalies before, every exchange is below the smallest rate.
        "expected": finding.expected or _MIN_RATE,
        "direction": _OPPOSITE[direction],
        "limit": 10 * MAX_USUAL_EXCHANGES,
    }
    rows = query_rows(cursor, "incident_exchanges", values)
    return sorted(rows, key=lambda row: row["agent"] != agent)[:MAX_USUAL_EXCHANGES]


def _list_cut_days(finding: Finding) -> list[str]:
    """Return the days within the time before a change that its rule left out."""
    start, end = (at.date() for at in finding.before)
    cut = ((max(first, start), min(last, end)) for first, last in finding.cut)
    return [f"{first + timedelta(days=number)}" for first, last in cut for number in range((last - first).days + 1)]


def find_deployments(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[parts.Deployment]:
    """The deployments of the days on which a change may have begun: the interval of its first day, else the day it was first seen."""
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
    """Return what was said of an exchange on the subject of the change; an empty text if nothing was."""
    tier = finding.key.tier
    if tier is None:
        return "; ".join(row["anomaly_reasons"])
    if tier == "tier1":
        return ", ".join(row["tier1_flags"])
    if tier == "tier2_5":
        return row["tier2_5_reasoning"] or ""
    flag = row["tier2_flag_reason"] if tier == "tier2" else None
    return flag or _describe_farthest(row[_DIMENSIONS[tier]], finding.key.direction)


def _describe_farthest(dimensions: Sequence[Row], direction: str | None) -> str:
    """The dimension that is lowest, or highest where scores rose, with the judge's words on it."""
    sign = 1 if direction == DOWN else -1
    ordered = sorted(dimensions, key=lambda dimension: (sign * dimension["score"], dimension["dimension"]))
    return next((f"{first['dimension']} {first['score']:g}: {first['reasoning'] or ''}".rstrip(": ") for first in ordered), "")


def _daily_averages(finding: Finding, measured: ProjectScores) -> list[parts.Query]:
    """The query of a tier's daily averages around a change: what people look at first."""
    if finding.key.tier is None or finding.key.agent is not None:
        return []  # series of runs have no daily averages of scores
    days = (measured.as_of.date() - finding.before[0].date()).days + 1
    return [_named_query("daily_averages", {"project": measured.project, "as_of": measured.as_of, "days": days})]


def _named_query(name: str, parameters: Mapping[str, Any]) -> parts.Query:
    values = {key: time_text(value) for key, value in parameters.items()}
    return parts.Query(name=name, parameters=values, sql=queries()[name].text)


def _build_slice_findings(explanation: SliceExplanation, ends: Mapping[SliceKey, datetime]) -> SliceFindings:
    best = explanation.slices[0] if explanation.slices else None
    state = NO_LABELS if best is None else STANDS_OUT if best.stands_out else EVERYWHERE
    return SliceFindings(
        state=state,
        change=_build_amount(explanation.change),
        tried=explanation.tried,
        unexplained=explanation.unexplained,
        usual=_find_usual(explanation.slices, best, ends) if best is not None and best.stands_out else None,
        slices=[_build_slice_row(part) for part in explanation.slices if part.explained > 0][:MAX_SLICES],
        mix=None if explanation.mix is None else _build_mix(explanation.mix, explanation.change),
    )


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
    within = (
        f"inside {'each agent' if mix.label == AGENT else f'each value of {mix.label}'}, all together, it moved by "
        f"{mix.within.amount:+.3f} (95 % interval {mix.within.low:+.3f} to {mix.within.high:+.3f})"
    )
    if mix.label == ARRIVAL and all(part.mean_before is None or part.mean_after is None for part in mix.changed):
        return (
            "History was added at another level: all exchanges before the change were imported later, and all since came when they "
            f"happened, so the change of {change.amount:+.3f} may be a gap between two sources."
        )
    if mix.label == ARRIVAL:
        return (
            "History was added beside the live exchanges, at another level: among exchanges that came when they happened, and among those "
            f"that were imported later, all together, the mean moved by {mix.within.amount:+.3f} (95 % interval {mix.within.low:+.3f} to "
            f"{mix.within.high:+.3f}); with both together by {change.amount:+.3f}."
        )
    first = "The mix of agents changed" if mix.label == AGENT else f"The mix changed by {mix.label}"
    new = [_name_value(part.key) for part in mix.changed[:_MAX_NAMED_SLICES] if part.mean_before is None]
    added = f" New: {', '.join(new)}." if new else ""
    if mix.all_better:
        way = "rose" if change.amount < 0 else "fell"
        return f"{first}: every part {way}, and the mean moved the other way, by {change.amount:+.3f}; {within}.{added}"
    return f"{first}, and the mean with it, by {change.amount:+.3f}; {within}.{added}"


def _name_value(key: SliceKey) -> str:
    return {NOT_GIVEN: "not given", OTHER: "other values"}.get(key.kind, key.value)


def _find_usual(slices: Iterable[Slice], best: Slice, ends: Mapping[SliceKey, datetime]) -> SliceRow | None:
    """Return the slice of the best one's label to go back to; None without another.

    Of those that were still there on the last day before the change, it is the one with most exchanges: earlier versions may have had more.
    """
    others = [part for part in slices if part.key.label == best.key.label and part.key != best.key and part.exchanges_before]
    newest = max((ends[part.key] for part in others if part.key in ends), default=None)
    lasting = [part for part in others if newest is None or ends.get(part.key, newest) > newest - timedelta(days=1)]
    return _build_slice_row(max(lasting, key=lambda part: (part.share_before, part.key))) if lasting else None


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
