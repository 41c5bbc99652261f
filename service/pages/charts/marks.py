"""Marks of charts: deployments, and changes of the scoring itself, which may look like a change of the agent.

1. A deployment is marked at its time.
2. A change of judge, policy, methodology or rules is marked at the first hour with scores made with the new one. Each hour or day is
   represented by the version behind most of its scores, so that a few rejudged scores are no change, and compared with the previous
   hour or day that has scores.
3. Runs have no judge. A change of the policy that diagnosed them is marked in the same way.
4. A judge that answers differently under the same name leaves no trace in scores, but anchors detect it. It is marked on the first day
   of an incident whose cause is the judge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from typing import Any

from analytics.queries import query_rows
from analytics.sums.hours import read_hours
from schemas.lazy import duckdb
from schemas.records import Incident
from service.read.versions import DeployedVersion, deployed_versions
from streams.watch.lifecycle import DISMISSED

KINDS = {"deployment": "Deployment", "policy": "Policy changed", "judge": "Judge changed"}
"""The kinds of marks, as a legend names them."""
_BACK = timedelta(days=14)
"""The time before a chart that is searched for the last scores made with an earlier version."""
_LONGEST = timedelta(days=365)
_DIGEST = 8
"""Characters of a digest: enough to tell two policies apart."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that readers of a chart have to know."""

    at: datetime
    kind: str
    words: str


def marks_within(
    cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime, step: timedelta
) -> list[Mark]:
    """Return the marks in a period, oldest first; `step` is the length of a chart's points, an hour or a day."""
    found = [_deployment(deployed) for deployed in deployed_versions(cursor, project, start, end)]
    rows = _made_with(cursor, project, start - _BACK, end)
    for kind, name in _MADE_WITH.items():
        found += [one for one in _changes(kind, rows, name, step) if start <= one.at < end]
    return sorted(found, key=lambda one: (one.at, one.kind, one.words))


def _made_with(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """Return, by hour within a period, the versions that scores were made with; empty if they never changed."""
    # Cutting the last day would mean adding up its single scores, which is not needed if the whole day has the same versions.
    night = datetime.combine(end.astimezone(UTC).date() + timedelta(days=1), time(), UTC)
    for until in (night, end):
        hours = read_hours(cursor, [project], start.date(), until, _COLUMNS)
        rows = [] if hours is None else hours.to_dicts()
        if not any(_is_changed(rows, name) for name in _MADE_WITH.values()):
            return []
    return rows


def run_policies(cursor: duckdb.DuckDBPyConnection, project: str, agent: str, start: datetime, end: datetime) -> list[Mark]:
    """Return the changes of policy among an agent's runs in a period; runs depend on no other part of the scoring."""
    asked = {"project": project, "agent": agent, "since": start - _BACK, "until": end}
    rows = [{**row, "exchanges": row["runs"]} for row in query_rows(cursor, "run_policies", asked)]
    found = _changes("policy", rows, lambda row: row["policy_digest"][:_DIGEST], timedelta(days=1))
    return [one for one in found if start <= one.at < end]


def judge_moves(incidents: Iterable[Incident], start: datetime, end: datetime) -> list[Mark]:
    """Return the marks of judge changes found by anchors in a period, one per day, without dismissed incidents."""
    days = {
        one.first_day for one in incidents if one.cause == "judge" and one.first_day is not None and one.status != DISMISSED
    }
    return [Mark(day, "judge", "judge answers anchors differently") for day in sorted(days) if start <= day < end]


def marks_between(cursor: duckdb.DuckDBPyConnection, project: str, moments: Sequence[datetime]) -> list[Mark]:
    """Return the marks between the first and the last of some moments, over at most a year; empty for fewer than two moments."""
    if len(moments) < 2:
        return []
    last = max(moments)
    return marks_within(cursor, project, max(min(moments), last - _LONGEST), last, timedelta(days=1))


def place_of(mark: Mark, times: Sequence[datetime], step: timedelta | None) -> float | None:
    """Return the position of a mark among points with these start times; 0 is the middle of the first point, None is outside.

    With `step` the points are periods. Without it they are moments, and a mark is placed before the next one.
    """
    point = bisect_right(times, mark.at) - 1
    if step is None:
        return point + 0.5 if 0 <= point < len(times) - 1 else None
    if point < 0 or mark.at >= times[point] + step:
        return None
    return point - 0.5 + (mark.at - times[point]) / step


def _deployment(deployed: DeployedVersion) -> Mark:
    of = f" of {deployed.agent}" if deployed.agent else ""
    return Mark(deployed.at, "deployment", f"deployed {deployed.label} {deployed.version}{of}")


def _is_changed(rows: Sequence[Row], name: Callable[[Row], str]) -> bool:
    return len(set(map(name, rows)) - {None, ""}) > 1


def _changes(kind: str, rows: Sequence[Row], name: Callable[[Row], str], step: timedelta) -> Iterator[Mark]:
    """Yield the changes of one part of the scoring."""
    if not _is_changed(rows, name):
        return
    counts: dict[datetime, Counter[str]] = defaultdict(Counter)
    first: dict[tuple[datetime, str], datetime] = {}
    for row in rows:
        hour = row["hour"].replace(tzinfo=UTC)
        if value := name(row):
            period = datetime.fromtimestamp(hour.timestamp() // step.total_seconds() * step.total_seconds(), UTC)
            counts[period][value] += row["exchanges"]
            first.setdefault((period, value), hour)
            first[period, value] = min(hour, first[period, value])
    most = [(period, max(sorted(found), key=found.__getitem__)) for period, found in sorted(counts.items())]
    for (period, was), (following, now) in pairwise(most):
        if was != now:
            begun = first.get((period, now), first[following, now])
            yield Mark(begun, kind, f"{kind} changed from {was} to {now}")


def _judge(row: Row) -> str:
    simulated = " (simulated)" if row["simulated"] else ""
    return f"{row['judge_model']}{simulated}" if row["judge_model"] else ""


def _policy(row: Row) -> str:
    methodology = f"{row['methodology']} {row['methodology_version']}".strip()
    digest = row["policy_digest"][:_DIGEST]
    return f"{digest} ({methodology})" if methodology else digest


_COLUMNS = ("hour", "judge_model", "simulated", "policy_digest", "methodology", "methodology_version", "exchanges")
_MADE_WITH: Mapping[str, Callable[[Row], str]] = {"policy": _policy, "judge": _judge}
