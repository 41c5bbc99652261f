"""Slices of an incident: its exchanges by every label, ranked, as JSON for the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any

from analytics.queries import query_rows
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
from audit.times import iso_time
from schemas.lazy.duckdb import duckdb
from streams.upkeep.deployments import deployments
from streams.upkeep.seen_versions import VERSIONS
from streams.watch.rules.findings import Finding

QUERY = "slices"
SHOWN = 10
"""Slices that an incident carries, the best explanations."""
_NAMED = 3
"""Slices that the title of a changed mix names."""
_SAME = 5
"""Slices with the same exchanges that are named with each."""
MOST_DEPLOYMENTS = 10
"""Deployments that an incident names, the newest of the days on which it may have begun."""
NO_LABELS, TOO_FEW, EVERYWHERE, FOUND = "no_labels", "too_few_sessions", "everywhere", "found"
"""States: nothing cuts the exchanges; too few sessions; no slice stands out; one does."""


def parameters_of(
    project: str, tier: str | None, before: tuple[datetime, datetime], after: tuple[datetime, datetime]
) -> dict[str, Any]:
    """The parameters of the query."""
    return {
        "project": project,
        "tier": tier,
        "before_since": before[0],
        "before_until": before[1],
        "after_since": after[0],
        "after_until": after[1],
    }


def which_part(cursor: duckdb.DuckDBPyConnection, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Explain a change by slices, with the state of the answer; slices that explain nothing are left out."""
    sides: dict[str, dict[Key, Moments]] = {"before": {}, "after": {}}
    ends: dict[Key, datetime] = {}
    whole = {"before": Moments(*[0] * len(Moments._fields)), "after": Moments(*[0] * len(Moments._fields))}
    for row in query_rows(cursor, QUERY, parameters):
        moments = Moments(*(row[name] for name in Moments._fields))
        if row["label"] is None:
            whole[row["side"]] = moments
            continue
        key = Key(row["label"], row["kind"], row["value"])
        sides[row["side"]][key] = moments
        if row["side"] == "before" and row["last_at"] is not None:
            ends[key] = row["last_at"]
    found = explain(sides["before"], sides["after"], (whole["before"], whole["after"]), (*VERSIONS, "model"))
    if found is None:
        sessions = {side: one.sessions for side, one in whole.items()}
        return {"state": TOO_FEW, "sessions": sessions, "needed": FEWEST_SESSIONS, "slices": []}
    return _document(found, ends)


def began_with(cursor: duckdb.DuckDBPyConnection, project: str, finding: Finding) -> list[dict[str, Any]]:
    """The deployments of the days on which a change may have begun: the interval of its first day, else the day it was first seen."""
    first, last = finding.first_days
    start = datetime.combine(first, time(), UTC)
    rows = deployments(cursor, project, start, datetime.combine(last, time(), UTC) + timedelta(days=1), MOST_DEPLOYMENTS)
    return [
        {
            "id": row["deployment_id"],
            "label": row["label"],
            "version": row["version"],
            "agent": row["agent"],
            "at": iso_time(row["occurred_at"]),
            "by": row["deployed_by"],
            "comment": row["comment"],
            "url": row["url"],
        }
        for row in rows
    ]


def _document(found: Explanation, ends: Mapping[Key, datetime]) -> dict[str, Any]:
    best = found.slices[0] if found.slices else None
    state = NO_LABELS if best is None else FOUND if best.stands_out else EVERYWHERE
    return {
        "state": state,
        "change": _part(found.change),
        "tried": found.tried,
        "unexplained": found.unexplained,
        "usual": _usual(found.slices, best, ends) if best is not None and best.stands_out else None,
        "slices": [_slice(one) for one in _worth_showing(found.slices)],
        "mix": None if found.mix is None else _mix(found.mix, found.change),
    }


def _mix(mix: Mix, change: Part) -> dict[str, Any]:
    return {
        "label": mix.label,
        "within": _part(mix.within),
        "allBetter": mix.all_better,
        "slices": [_slice(one) for one in mix.moved],
        "shares": ", ".join(f"{_value(one.key)} {one.share_before:.0%} → {one.share_after:.0%}" for one in mix.moved[:_NAMED]),
        "words": _mix_words(mix, change),
    }


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


def _usual(slices: Iterable[Slice], best: Slice, ends: Mapping[Key, datetime]) -> dict[str, Any] | None:
    """The slice of the best one's label to go back to; None without another.

    Of those that were still there in the last day before the change, it is that with most exchanges: earlier versions may have had more.
    """
    others = [one for one in slices if one.key.label == best.key.label and one.key != best.key and one.exchanges_before]
    newest = max((ends[one.key] for one in others if one.key in ends), default=None)
    lasting = [one for one in others if newest is None or ends.get(one.key, newest) > newest - timedelta(days=1)]
    return _slice(max(lasting, key=lambda one: (one.share_before, one.key))) if lasting else None


def _slice(one: Slice) -> dict[str, Any]:
    return {
        **_key(one.key),
        "shareBefore": one.share_before,
        "shareAfter": one.share_after,
        "meanBefore": one.mean_before,
        "meanAfter": one.mean_after,
        "exchangesBefore": one.exchanges_before,
        "exchangesAfter": one.exchanges_after,
        "mix": _part(one.mix),
        "within": _part(one.within),
        "explained": one.explained,
        "standsOut": one.stands_out,
        "sameAs": [_key(other) for other in one.same_as[:_SAME]],
    }


def _key(key: Key) -> dict[str, str]:
    return {"label": key.label, "kind": key.kind, "value": key.value}


def _part(part: Part) -> dict[str, float]:
    return {"amount": part.amount, "low": part.low, "high": part.high}
