"""Gathering of an incident's evidence: what moved it, what was found wrong, which part of the traffic it was, and the queries.

1. Counts are of the times that the rule compared: the same as those of the slices and of the sampling.
2. A share has risen, or a dimension has moved, if the difference is more than three standard errors. It then coincides with the
   change, which is all that counts can say.
3. Of dimensions, sessions are the units: the turns of one session are not independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

from analytics.queries import queries, query_rows
from audit.drift import incident_evidence as parts
from audit.drift.incident_evidence import EVERYWHERE, FOUND, NO_LABELS, TOO_FEW, Evidence, SliceName, SliceRow, WhichPart
from audit.drift.slices import (
    AGENT,
    ARRIVAL,
    FEWEST_SESSIONS,
    NOT_GIVEN,
    OTHER,
    Explanation,
    Key,
    Mix,
    Moments,
    Part,
    Slice,
    explain,
)
from audit.drift.watched_series import DOWN, SPREAD, UP
from audit.times import iso_time, time_text
from schemas.lazy.duckdb import duckdb
from schemas.records import Baseline
from streams.upkeep.deployments import deployments
from streams.upkeep.seen_versions import VERSIONS
from streams.watch.measured import Measured
from streams.watch.rules.findings import Finding

EXCHANGES = 10
"""The number of exchanges that an incident carries, those that moved it most."""
RUNS_SHOWN = 10
"""The same of runs."""
REASON = 300
"""Characters of the judge's words that it carries of each; the score has them whole."""
SHOWN = 10
"""Slices that an incident carries, the best explanations."""
MOST = 12
"""Reasons, dimensions or failures that it lists."""
MOST_FLAGS = 8
"""Checks of Tier 1 that it lists."""
MOST_DEPLOYMENTS = 10
"""Deployments that it names, the newest of the days on which it may have begun."""
USUAL_DAYS = timedelta(days=7)
"""The time before the change from which it takes its usual exchanges."""
USUAL_SHOWN = 2
POLICY_CHANGED = "The policy differs before and after: a change of gates or sampling can also move a tier."
_NAMED = 3
"""Slices that the title of a changed mix names."""
_SAME = 5
"""Slices with the same exchanges that are named with each."""
_LEAST = 1e-9
_DIMENSIONS = {"tier2": "tier2_dimensions", "tier3": "tier3_dimensions"}
_OPPOSITE = {UP: DOWN, DOWN: UP}
Row = Mapping[str, Any]


def gather(cursor: duckdb.DuckDBPyConnection, finding: Finding, measured: Measured, baseline: Baseline | None) -> Evidence:
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
        "limit": EXCHANGES,
    }
    of_tier = {**sides, "tier": tier}
    policies = {
        "before": measured.policies(before[0].date(), before[1].date()),
        "after": measured.policies(start.date(), end.date()),
    }
    moved_most = query_rows(cursor, "incident_exchanges", exchanges)
    failures, of_failures = _changed_failures(cursor, sides, finding, None)
    dimensions = _changed_dimensions(cursor, of_tier) if tier in _DIMENSIONS else []
    agent = moved_most[0]["agent"] if moved_most else None
    return Evidence(
        rule=finding.rule,
        note=None if not policies["before"] or policies["before"] == policies["after"] else POLICY_CHANGED,
        baseline=None if baseline is None else _baseline(baseline, tier),
        made_with=measured.made_with,
        policies=policies,
        sampling_mix=[parts.SamplingCount(**row) for row in query_rows(cursor, "sampling_change", sides)],
        slices=which_part(cursor, of_tier),
        deployments=began_with(cursor, project, finding),
        exchanges=[_exchange(row, finding) for row in moved_most],
        usual=[_exchange(row, finding) for row in _usual_exchanges(cursor, project, finding, agent)],
        reasons=_changed_reasons(cursor, sides),
        failures=failures,
        dimensions=dimensions,
        flags=_changed_flags(cursor, project, finding),
        queries=[
            *_daily(finding, measured),
            _named_query(finding.looked.query, finding.looked.parameters),
            _named_query("incident_exchanges", exchanges),
            _named_query("sampling_change", sides),
            _named_query("slices", of_tier),
            _named_query("reason_change", sides),
            *([_named_query("failure_change", of_failures)] if failures else []),
            *([_named_query("dimension_change", of_tier)] if tier in _DIMENSIONS else []),
        ],
    )


def gather_runs(
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
        "limit": RUNS_SHOWN,
    }
    sides = {"project": project, "before_since": before, "before_until": until, "after_since": start, "after_until": end}
    failures, of_failures = _changed_failures(cursor, sides, finding, finding.key.agent or "")
    days = {**series, "as_of": as_of, "days": (as_of.date() - finding.before[0].date()).days + 1}
    return Evidence(
        rule=finding.rule,
        made_with={**(finding.numbers.made_with or {})},
        runs=[_run(row) for row in query_rows(cursor, "incident_runs", runs)],
        failures=failures,
        flags=_changed_flags(cursor, project, finding) if has_scores else [],
        queries=[
            _named_query("run_days", days),
            _named_query(finding.looked.query, finding.looked.parameters),
            _named_query("incident_runs", runs),
            _named_query("failure_change", of_failures),
        ],
    )


def which_part(cursor: duckdb.DuckDBPyConnection, parameters: Mapping[str, Any]) -> WhichPart:
    """Explain a change by slices, with the state of the answer; slices that explain nothing are left out.

    The parameters are those of the query `slices`: the project, the tier, and the time before and after.
    """
    sides: dict[str, dict[Key, Moments]] = {"before": {}, "after": {}}
    ends: dict[Key, datetime] = {}
    whole = {"before": Moments(*[0] * len(Moments._fields)), "after": Moments(*[0] * len(Moments._fields))}
    for row in query_rows(cursor, "slices", parameters):
        moments = Moments(*(row[name] for name in Moments._fields))
        if row["label"] is None:
            whole[row["side"]] = moments
            continue
        key = Key(row["label"], row["kind"], row["value"])
        sides[row["side"]][key] = moments
        if row["side"] == "before" and row["last_at"] is not None:
            ends[key] = row["last_at"]
    explanation = explain(sides["before"], sides["after"], (whole["before"], whole["after"]), (*VERSIONS, "model"))
    if explanation is None:
        sessions = {side: moments.sessions for side, moments in whole.items()}
        return WhichPart(state=TOO_FEW, sessions=sessions, needed=FEWEST_SESSIONS)
    return _which_part(explanation, ends)


def _changed_reasons(cursor: duckdb.DuckDBPyConnection, sides: Row) -> list[parts.ReasonCount]:
    """Count what was found wrong before a change and since it."""
    counts = [parts.ReasonCount(**row) for row in query_rows(cursor, "reason_change", sides)]
    anomalies = [count for count in counts if count.kind == "anomaly"]
    return [*(count for count in counts if count.kind != "anomaly"), *anomalies[:MOST]]


def _changed_dimensions(cursor: duckdb.DuckDBPyConnection, of_tier: Row) -> list[parts.Dimension]:
    """Compare the dimensions of a tier, the largest move first."""
    dimensions = [parts.Dimension(**row) for row in query_rows(cursor, "dimension_change", of_tier)]
    return sorted(dimensions, key=lambda one: (-abs(one.errors_off or 0.0), one.dimension))[:MOST]


def _changed_failures(
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
        "cut": _cut(finding) if made_with else None,
    }
    return [parts.FailureCount(**row) for row in query_rows(cursor, "failure_change", values)[:MOST]], values


def _changed_flags(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[parts.FlagCount]:
    """Count the exchanges that each check flagged before a change and since it, the largest change first."""
    (before, until), (since, end) = finding.before, finding.after
    values = {"project": project, "before_since": before, "before_until": until, "after_since": since, "after_until": end}
    return [parts.FlagCount(**row) for row in query_rows(cursor, "flag_change", values)[:MOST_FLAGS]]


def _usual_exchanges(
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
        "expected": finding.expected or _LEAST,
        "direction": _OPPOSITE[direction],
        "limit": 10 * USUAL_SHOWN,
    }
    rows = query_rows(cursor, "incident_exchanges", values)
    return sorted(rows, key=lambda row: row["agent"] != agent)[:USUAL_SHOWN]


def _cut(finding: Finding) -> list[str]:
    """Return the days within the time before a change that its rule left out."""
    start, end = (at.date() for at in finding.before)
    cut = ((max(first, start), min(last, end)) for first, last in finding.cut)
    return [f"{first + timedelta(days=number)}" for first, last in cut for number in range((last - first).days + 1)]


def began_with(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[parts.Deployed]:
    """The deployments of the days on which a change may have begun: the interval of its first day, else the day it was first seen."""
    first, last = finding.first_days
    start = datetime.combine(first, time(), UTC)
    rows = deployments(cursor, project, start, datetime.combine(last, time(), UTC) + timedelta(days=1), MOST_DEPLOYMENTS)
    return [
        parts.Deployed(
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


def _baseline(baseline: Baseline, tier: str | None) -> parts.BaselineNumbers:
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


def _exchange(row: Row, finding: Finding) -> parts.Exchange:
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
        reason=_reason(row, finding)[:REASON],
    )


def _run(row: Row) -> parts.Run:
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


def _reason(row: Row, finding: Finding) -> str:
    """Return what was said of an exchange on the subject of the change; an empty text if nothing was."""
    tier = finding.key.tier
    if tier is None:
        return "; ".join(row["anomaly_reasons"])
    if tier == "tier1":
        return ", ".join(row["tier1_flags"])
    if tier == "tier2_5":
        return row["tier2_5_reasoning"] or ""
    flag = row["tier2_flag_reason"] if tier == "tier2" else None
    return flag or _farthest(row[_DIMENSIONS[tier]], finding.key.direction)


def _farthest(dimensions: Sequence[Row], direction: str | None) -> str:
    """The dimension that is lowest, or highest where scores rose, with the judge's words on it."""
    sign = 1 if direction == DOWN else -1
    ordered = sorted(dimensions, key=lambda one: (sign * one["score"], one["dimension"]))
    return next((f"{one['dimension']} {one['score']:g}: {one['reasoning'] or ''}".rstrip(": ") for one in ordered), "")


def _daily(finding: Finding, measured: Measured) -> list[parts.Query]:
    """The query of a tier's daily averages around a change: what people look at first."""
    if finding.key.tier is None or finding.key.agent is not None:
        return []  # series of runs have no daily averages of scores
    days = (measured.as_of.date() - finding.before[0].date()).days + 1
    return [_named_query("daily_averages", {"project": measured.project, "as_of": measured.as_of, "days": days})]


def _named_query(name: str, parameters: Mapping[str, Any]) -> parts.Query:
    values = {key: time_text(value) for key, value in parameters.items()}
    return parts.Query(name=name, parameters=values, sql=queries()[name].text)


def _which_part(found: Explanation, ends: Mapping[Key, datetime]) -> WhichPart:
    best = found.slices[0] if found.slices else None
    state = NO_LABELS if best is None else FOUND if best.stands_out else EVERYWHERE
    return WhichPart(
        state=state,
        change=_amount(found.change),
        tried=found.tried,
        unexplained=found.unexplained,
        usual=_usual(found.slices, best, ends) if best is not None and best.stands_out else None,
        slices=[_slice(one) for one in _worth_showing(found.slices)],
        mix=None if found.mix is None else _mix(found.mix, found.change),
    )


def _mix(mix: Mix, change: Part) -> parts.ChangedMix:
    return parts.ChangedMix(
        label=mix.label,
        within=_amount(mix.within),
        all_better=mix.all_better,
        slices=[_slice(one) for one in mix.moved],
        shares=", ".join(f"{_value(one.key)} {one.share_before:.0%} → {one.share_after:.0%}" for one in mix.moved[:_NAMED]),
        words=_mix_words(mix, change),
    )


def _mix_words(mix: Mix, change: Part) -> str:
    within = (
        f"inside {'each agent' if mix.label == AGENT else f'each value of {mix.label}'}, all together, it moved by "
        f"{mix.within.amount:+.3f} (95 % interval {mix.within.low:+.3f} to {mix.within.high:+.3f})"
    )
    if mix.label == ARRIVAL and all(one.mean_before is None or one.mean_after is None for one in mix.moved):
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
    new = [_value(one.key) for one in mix.moved[:_NAMED] if one.mean_before is None]
    added = f" New: {', '.join(new)}." if new else ""
    if mix.all_better:
        way = "rose" if change.amount < 0 else "fell"
        return f"{first}: every part {way}, and the mean moved the other way, by {change.amount:+.3f}; {within}.{added}"
    return f"{first}, and the mean with it, by {change.amount:+.3f}; {within}.{added}"


def _value(key: Key) -> str:
    return {NOT_GIVEN: "not given", OTHER: "other values"}.get(key.kind, key.value)


def _worth_showing(slices: Iterable[Slice]) -> list[Slice]:
    return [one for one in slices if one.explained > 0][:SHOWN]


def _usual(slices: Iterable[Slice], best: Slice, ends: Mapping[Key, datetime]) -> SliceRow | None:
    """The slice of the best one's label to go back to; None without another.

    Of those that were still there in the last day before the change, it is that with most exchanges: earlier versions may have had more.
    """
    others = [one for one in slices if one.key.label == best.key.label and one.key != best.key and one.exchanges_before]
    newest = max((ends[one.key] for one in others if one.key in ends), default=None)
    lasting = [one for one in others if newest is None or ends.get(one.key, newest) > newest - timedelta(days=1)]
    return _slice(max(lasting, key=lambda one: (one.share_before, one.key))) if lasting else None


def _slice(one: Slice) -> SliceRow:
    return SliceRow(
        *one.key,
        share_before=one.share_before,
        share_after=one.share_after,
        mean_before=one.mean_before,
        mean_after=one.mean_after,
        exchanges_before=one.exchanges_before,
        exchanges_after=one.exchanges_after,
        mix=_amount(one.mix),
        within=_amount(one.within),
        explained=one.explained,
        stands_out=one.stands_out,
        same_as=[SliceName(*other) for other in one.same_as[:_SAME]],
    )


def _amount(part: Part) -> parts.Amount:
    return parts.Amount(*part)
