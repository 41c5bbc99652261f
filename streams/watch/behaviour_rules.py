"""The rule about behaviour: it finds changes in what agents do, which needs no judge.

1. The series of an agent are shares of its turns (failed, empty, abandoned, refused, with repeated tool calls), the share of each tool's
   calls that failed, and sizes per turn (tool calls, tokens). Sizes are compared by their logarithms, so a change is a factor.
2. A unit is the turns of one session on one UTC day. `audit.drift.change_detector` finds changes of any size and dates them.
3. All series of all agents of a project are one family (`audit.drift.discoveries`): together they raise no more false alarms than a single
   series. `audit.drift.evidence_bounds` selects the few series that the detector examines.
4. A change of a share by less than `MIN_SHARE_CHANGE`, or of a size by less than a factor of about 1 + `MIN_SIZE_CHANGE`, is listed as
   suspected, and alerts nobody. More tokens or calls are never more severe than a warning, and neither is any fall.
5. A new version of an agent (label `agent_version`) is compared with the agent's other versions on the same days
   (`audit.drift.versions`), as a family of its own.
6. Agents beyond the `MAX_AGENTS` with most turns are compared together, as `OTHER_AGENTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, NamedTuple

from analytics.queries import run_query
from audit.drift.change_detector import CHECKED_DAYS, Change, find_change
from audit.drift.discoveries import believe_changes, family_penalty, mask_candidates
from audit.drift.evidence_bounds import SUMS, FamilySums, bound_log_evidence
from audit.drift.incident_evidence import Day, Numbers
from audit.drift.segments import merge_cells
from audit.drift.series import NO_DECISION, REFERENCE_DAYS, Cells, Flags, Floats, Reference, Unit, day_number
from audit.drift.versions import CONFIRMED, DAYS_BEFORE, SUSPECTED, VersionChange, compare_versions
from audit.drift.watched_series import (
    BEHAVIOUR,
    DRIFT,
    SIZES,
    TOOL_ERRORS,
    UP,
    VERBS,
    VERSION,
    WARNING,
    Key,
    describe_difference,
    format_level,
    name_behaviour,
)
from schemas.lazy import duckdb, pl
from schemas.lazy_numpy import np
from streams.watch.findings import NEW_VERSION_DAYS, VERSIONS, Comparison, Finding, Source, Wording, build_finding, days_window
from streams.watch.measures import FINE_DAYS, MAX_AGENTS, OTHER_AGENTS, midnight

BEHAVIOURS = "behaviour"
"""The name of the rule about behaviour."""
BEHAVIOUR_QUERY = "behaviour_days"
LOOK_BACK = timedelta(days=91)
"""The time that a check looks back: thirteen weeks."""
MIN_SHARE_CHANGE = 0.01
MIN_SIZE_CHANGE = 0.1
MAX_VERSIONS = 40
"""New versions of a project that are compared: those with most turns."""
VERSION_LABEL = "agent_version"
MIN_TRAFFIC_FALL = math.log(1.5)
MIN_UNSCORED_RISE = 0.02
_TURNS = "failed"
"""A series that counts every turn."""


class AgentSeries(NamedTuple):
    """A series of an agent's behaviour."""

    agent: str
    """Empty if the source tells no agent."""
    series: str

    @property
    def key(self) -> Key:
        """The key of the series, without a direction."""
        return Key(DRIFT, BEHAVIOUR + self.series, None, self.agent or None)

    @property
    def is_share(self) -> bool:
        """True for a share of turns or calls, False for the logarithm of a size."""
        return self.series not in SIZES


class ProjectBehaviour:
    """The behaviour of one project's agents, from rows of the query `behaviour_days`."""

    def __init__(self, project: str, rows: pl.DataFrame, since: date, as_of: datetime) -> None:
        self.project = project
        self.as_of = as_of
        self._since = since
        turns = rows.filter(pl.col("series") == _TURNS).group_by("agent").agg(pl.col("weight").sum())
        ranked = [agent for agent, _ in sorted(turns.iter_rows(), key=lambda row: (-row[1], row[0]))]
        self._owner = dict.fromkeys(ranked[MAX_AGENTS:], OTHER_AGENTS) | {agent: agent for agent in ranked[:MAX_AGENTS]}
        # Rows are in order of agent and series, and comparing neighbours is much cheaper than looking up a name per row.
        is_first = (rows["agent"] != rows["agent"].shift()) | (rows["series"] != rows["series"].shift())
        starts = is_first.fill_null(value=True).to_numpy()
        self._index: dict[AgentSeries, int] = {}
        indexes = [
            self._index.setdefault(AgentSeries(self._owner[agent], series), len(self._index))
            for agent, series in rows.select("agent", "series").filter(starts).iter_rows()
        ]
        index = np.array(indexes, dtype=np.int64)[np.cumsum(starts) - 1]
        day = rows["day"].to_numpy().astype("datetime64[D]").astype(np.int64)
        columns = np.stack([rows[name].to_numpy().astype(np.float64) for name in SUMS])
        self._rows = index, 24 * day + rows["hour"].to_numpy(), columns
        count, days = len(self._index), (as_of.date() - since).days + 1
        key = index * days + day - day_number(since)
        self._sums: Floats = np.stack([np.bincount(key, column, count * days).reshape(count, days) for column in columns])

    @property
    def series(self) -> tuple[AgentSeries, ...]:
        """The series of the last days."""
        is_recent: Flags = np.any(self._sums[0, :, -CHECKED_DAYS:] > 0, axis=1)
        return tuple(series for series, index in self._index.items() if is_recent[index])

    @property
    def days_covered(self) -> int:
        """The number of UTC days from the first turn to the as-of."""
        return int(self._sums.shape[2] - np.flatnonzero(self._sums[0].sum(axis=0))[0])

    def sessions(self) -> dict[date, int]:
        """Return the number of sessions of each complete day since the first one, oldest first."""
        turns = [index for series, index in self._index.items() if series.series == _TURNS]
        counts = self._sums[0, turns].sum(axis=0)[:-1]
        first = int(np.argmax(counts > 0))
        return {self._since + timedelta(days=day): round(counts[day]) for day in range(first, len(counts))}

    def agents_of(self, agent: str) -> list[str]:
        """Return the agents whose turns the series of an agent have: one, except for `OTHER_AGENTS`."""
        return sorted(member for member, owner in self._owner.items() if owner == agent)

    def find_candidates(self, find_reference: Callable[[AgentSeries], Reference]) -> list[AgentSeries]:
        """Return the series of the last days that may have changed; see `audit.drift.evidence_bounds`."""
        sums = FamilySums(*self._rows, list(map(find_reference, self._index)), [series.is_share for series in self._index])
        bounds = bound_log_evidence(sums, self.as_of.date())
        family = self.series
        mask = mask_candidates(bounds[[self._index[series] for series in family]])
        return [series for series, is_candidate in zip(family, mask, strict=True) if is_candidate]

    def days(self, series: AgentSeries) -> dict[date, tuple[float, float, int]]:
        """Return the mean of a series, the effective number of sessions, and the number of turns or calls by day, oldest first."""
        if series not in self._index:
            return {}
        _, weight, total, squares, _, _ = self._sums[:, self._index[series]]
        return {
            self._since + timedelta(days=int(day)): (
                total[day] / weight[day],
                weight[day] ** 2 / squares[day],
                round(weight[day]),
            )
            for day in np.flatnonzero(weight)
        }


Sides = Mapping[tuple[AgentSeries, str], tuple[Cells, Cells]]
"""The sums of each new version of an agent, and those of its other versions, by series and version."""
ReadCells = Callable[[ProjectBehaviour, Sequence[AgentSeries]], Mapping[AgentSeries, Cells]]
"""Returns the hourly sums of series."""


def measure_behaviour(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime
) -> tuple[dict[str, ProjectBehaviour], dict[str, Any]]:
    """Measure the behaviour of projects up to a moment, and return it with the parameters of the query.

    Projects without turns of the last days are left out.
    """
    since = as_of.date() - LOOK_BACK
    values: dict[str, Any] = {"projects": list(projects), "since": midnight(since), "until": as_of, "by_version": False}
    values["hours_since"] = midnight(as_of.date() - timedelta(days=CHECKED_DAYS - 1))
    rows = run_query(cursor, BEHAVIOUR_QUERY, values)
    by_project = rows.partition_by("project", as_dict=True, maintain_order=True)
    behaviours = (ProjectBehaviour(str(project), part, since, as_of) for (project,), part in by_project.items())
    return {behaviour.project: behaviour for behaviour in behaviours if behaviour.series}, values


def read_cells(
    cursor: duckdb.DuckDBPyConnection, behaviour: ProjectBehaviour, wanted: Sequence[AgentSeries]
) -> dict[AgentSeries, Cells]:
    """Read the hourly sums of series of a project."""
    if not wanted:
        return {}
    owners = {AgentSeries(agent, series.series): series for series in wanted for agent in behaviour.agents_of(series.agent)}
    values = {
        "project": behaviour.project,
        "agents": [member.agent for member in owners],
        "series": [member.series for member in owners],
        "since": midnight(behaviour.as_of.date() - LOOK_BACK),
        "until": behaviour.as_of,
        "coarse_until": midnight(behaviour.as_of.date() - timedelta(days=FINE_DAYS)),
    }
    parts: dict[AgentSeries, list[Cells]] = {}
    for (agent, series), rows in (
        run_query(cursor, "watched_behaviour", values)
        .partition_by("agent", "series", as_dict=True, maintain_order=True)
        .items()
    ):
        parts.setdefault(owners[AgentSeries(agent, series)], []).append(_build_cells(rows))
    return {series: merge_cells(cells) for series, cells in parts.items()}


def read_versions(cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime) -> Mapping[str, Sides]:
    """Read the new versions of the agents of projects, each with the agent's other versions; projects without any are left out."""
    new_since = as_of.date() - timedelta(days=NEW_VERSION_DAYS)
    values = {
        "projects": list(projects),
        "since": midnight(new_since - timedelta(days=DAYS_BEFORE)),
        "until": as_of,
        "new_since": midnight(new_since),
        "recent_since": midnight(as_of.date() - timedelta(days=CHECKED_DAYS)),
        "limit": MAX_VERSIONS,
    }
    rows = run_query(cursor, "behaviour_versions", values)
    sides: dict[str, dict[tuple[AgentSeries, str], tuple[Cells, Cells]]] = {}
    by_series = rows.partition_by("project", "agent", "series", as_dict=True, maintain_order=True)
    for (project, agent, series), of_series in by_series.items():
        for version in of_series.filter(pl.col("is_new"))["version"].unique(maintain_order=True):
            is_version = pl.col("version") == version
            others = of_series.filter(~is_version)
            if others.height:
                key = AgentSeries(agent, series), version
                sides.setdefault(project, {})[key] = (
                    _build_cells(of_series.filter(is_version)),
                    _build_cells(others.sort("last_at")),
                )
    return sides


def _build_cells(rows: pl.DataFrame) -> Cells:
    units, weight, total, squares, mixed, totals, low, high = (
        rows[name].to_numpy().astype(np.float64) for name in (*SUMS, "low", "high")
    )
    return Cells(rows["last_at"].to_numpy(), units, weight, weight, total, squares, mixed, totals, low, high)


@dataclass(frozen=True, slots=True)
class BehaviourRuleInput:
    """The behaviour of a project's agents, for the rule about it."""

    behaviour: ProjectBehaviour
    references: Mapping[str, Reference]
    """The reference days by series; a missing series has all days."""
    parameters: Mapping[str, Any]
    """The parameters of the query that read the behaviour."""
    read_cells: ReadCells
    versions: Sides = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """The query that read the behaviour, for this project alone."""
        return Source(BEHAVIOUR_QUERY, {**self.parameters, "projects": [self.behaviour.project]})

    def reference(self, series: AgentSeries) -> Reference:
        """Return the reference days of a series."""
        return self.references.get(series.key.series, NO_DECISION)

    def find_change(self, series: AgentSeries, cells: Cells, log_penalty: float = 0.0) -> Change | None:
        """Return the change of a series; None without enough evidence or days."""
        as_of = self.behaviour.as_of.date()
        return find_change(cells, as_of, reference=self.reference(series), is_share=series.is_share, log_penalty=log_penalty)


def find_behaviour_changes(data: BehaviourRuleInput) -> Iterator[Finding]:
    """Yield the significant changes in the behaviour of a project's agents, those with most evidence first."""
    family = data.behaviour.series
    if data.behaviour.days_covered <= REFERENCE_DAYS:
        return
    cells = data.read_cells(data.behaviour, sorted(data.behaviour.find_candidates(data.reference)))
    changes, penalty = believe_changes(
        lambda series, log_penalty: data.find_change(series, cells[series], log_penalty), sorted(cells), len(family)
    )
    for series, change in sorted(changes.items(), key=lambda item: -item[1].log_evidence):
        yield _build_behaviour_finding(data, series, change, penalty)


def find_version_changes(data: BehaviourRuleInput) -> Iterator[Finding]:
    """Yield the significant differences of new versions from the other versions of their agent, those with most evidence first.

    All series of all new versions of a project are one family.
    """
    as_of = data.behaviour.as_of.date()
    differences = {key: difference for key, sides in data.versions.items() if (difference := compare_versions(*sides, as_of))}
    excess = [difference.log_evidence - math.log(SUSPECTED) for difference in differences.values()]
    penalty = family_penalty(excess, len(data.versions))
    for (series, version), difference in sorted(differences.items(), key=lambda item: -item[1].log_evidence):
        if difference.log_evidence >= math.log(SUSPECTED) + penalty:
            yield _build_version_finding(data, series, version, difference, penalty)


def _build_version_finding(
    data: BehaviourRuleInput, series: AgentSeries, version: str, difference: VersionChange, log_penalty: float
) -> Finding:
    tier = BEHAVIOUR + series.series
    key = series.key._replace(direction=difference.direction, slice=f"{VERSION_LABEL} {version}")
    first_day, last_day = difference.first_day, data.behaviour.as_of.date()
    name = f"{name_behaviour(series.series)} of {series.agent or 'the agent'} with {VERSION_LABEL} {version}"
    mean, others_mean = (format_level(tier, value) for value in (difference.mean, difference.others_mean))
    counts = [round(float(side.weight[side.days >= day_number(first_day)].sum())) for side in data.versions[series, version]]
    low, high = difference.size_interval.low, difference.size_interval.high
    size = f"{difference.size:+.1%} (95% interval {low:+.1%} to {high:+.1%})"
    if not series.is_share:
        size = f"a factor of {math.exp(difference.size):.2f} (95% interval {math.exp(low):.2f} to {math.exp(high):.2f})"
    is_relevant = abs(difference.size) >= (MIN_SHARE_CHANGE if series.is_share else MIN_SIZE_CHANGE)
    return Finding(
        key=key,
        kind=VERSION,
        rule=VERSIONS,
        severity=difference.severity if series.is_share and difference.direction == UP else WARNING,
        since=first_day,
        until=last_day,
        size=abs(difference.size),
        owner=series.agent or data.behaviour.project,
        headline=describe_difference(key, difference.mean, difference.others_mean),
        description=(
            f"Since {first_day}, on {difference.days} days with sessions of both, {name[0].lower()}{name[1:]} are at {mean} over {difference.sessions} sessions. With the "
            f"other versions they are at {others_mean} over {difference.others_sessions} sessions on the same days, a difference of {size}. What a "
            "day does to all versions is not part of it. No judge is involved."
        ),
        numbers=Numbers(
            first_day=first_day,
            change=difference.size,
            change_interval=(low, high),
            mean_before=difference.others_mean,
            mean_after=difference.mean,
            sigma=difference.sigma,
            scores_before=counts[1],
            scores_after=counts[0],
            sessions_before=difference.others_sessions,
            sessions_after=difference.sessions,
            having_before=round(difference.others_mean * counts[1]) if series.is_share else None,
            having_after=round(difference.mean * counts[0]) if series.is_share else None,
            log_evidence=difference.log_evidence,
            series=round(math.exp(log_penalty)),
            agent=series.agent or None,
        ),
        before=(midnight(first_day), midnight(first_day)),
        after=days_window(first_day, last_day, data.behaviour.as_of),
        expected=difference.others_mean,
        source=Source(BEHAVIOUR_QUERY, {**data.source.parameters, "by_version": True}),
        confirmed=difference.log_evidence >= math.log(CONFIRMED) + log_penalty and is_relevant,
    )


def _build_behaviour_finding(data: BehaviourRuleInput, series: AgentSeries, change: Change, log_penalty: float) -> Finding:
    behaviour = data.behaviour
    name = name_behaviour(series.series) + (f" of {series.agent}" if series.agent else "")
    days = behaviour.days(series)
    wording = Wording(
        owner=series.agent or behaviour.project,
        description=_describe_change(series, name, change),
        days=[
            Day(day=day, average=float(mean), count=count)
            for day, (mean, _, count) in days.items()
            if change.earliest_day <= day <= change.seen_at.date()
        ],
        numbers=Numbers(
            agent=series.agent or None,
            scores_before=change.scores_before,
            scores_after=change.scores_after,
            sessions_before=change.units_before,
            sessions_after=change.units_after,
            having_before=round(change.mean_before * change.scores_before) if series.is_share else None,
            having_after=round(change.mean_after * change.scores_after) if series.is_share else None,
            series=round(math.exp(log_penalty)),
        ),
    )
    first_day = min(days, default=change.first_day)
    compared = Comparison(BEHAVIOURS, data.source, data.reference(series), first_day, behaviour.as_of)
    finding = build_finding(series.key._replace(direction=change.direction), change, compared, wording)
    first_hour = change.first_hour.replace(tzinfo=UTC)
    is_relevant = abs(change.size) >= (MIN_SHARE_CHANGE if series.is_share else MIN_SIZE_CHANGE)
    return replace(
        finding,
        severity=finding.severity if series.is_share and change.direction == UP else WARNING,
        confirmed=finding.confirmed and is_relevant,
        before=(finding.before[0], first_hour),
        after=(first_hour, finding.after[1]),
    )


def _describe_change(series: AgentSeries, name: str, change: Change) -> str:
    counted = "calls" if series.series.startswith(TOOL_ERRORS) else "turns"
    low, high = change.size_interval.low, change.size_interval.high
    if series.is_share:
        before, after = (
            f"{round(mean * count)} of {count} {counted}"
            for mean, count in ((change.mean_before, change.scores_before), (change.mean_after, change.scores_after))
        )
        size = f"by {change.size:+.1%} (95% interval {low:+.1%} to {high:+.1%})"
    else:
        tier = BEHAVIOUR + series.series
        before, after = (
            f"{format_level(tier, mean)} in the typical turn (geometric mean of {count})"
            for mean, count in ((change.mean_before, change.scores_before), (change.mean_after, change.scores_after))
        )
        size = f"by a factor of {math.exp(change.size):.2f} (95% interval {math.exp(low):.2f} to {math.exp(high):.2f})"
    return (
        f"{name} {VERBS[change.direction]} from {before} to {after}, {size}. The first day of the change is most likely {change.first_day} "
        f"(95% interval {change.earliest_day} to {change.latest_day}). No judge is involved."
    )


def find_traffic_fall(behaviour: ProjectBehaviour) -> Change | None:
    """Return a confirmed fall of the project's sessions per day by at least a third; its means are ln(1 + sessions).

    A day is a unit. The last day counts once it is over.
    """
    units = [Unit(datetime.combine(day, time(12)), 1, 1.0, math.log1p(count)) for day, count in behaviour.sessions().items()]
    change = find_change(units, behaviour.as_of.date() - timedelta(days=1))
    return change if change is not None and change.confirmed_at is not None and change.size <= -MIN_TRAFFIC_FALL else None


def find_unscored_rise(days: Iterable[Mapping[str, Any]], as_of: date) -> Change | None:
    """Return a confirmed rise of the share of unscored exchanges by at least `MIN_UNSCORED_RISE`, from rows of the query `unscored_days`."""
    units = [
        Unit(datetime.combine(row["day"], time(12)), row["due"], float(row["due"]), float(row["unscored"])) for row in days
    ]
    change = find_change(units, as_of, is_share=True)
    return change if change is not None and change.confirmed_at is not None and change.size >= MIN_UNSCORED_RISE else None


def cell_reader(cursor: duckdb.DuckDBPyConnection) -> ReadCells:
    """Return the function that reads hourly sums from the tables."""
    return partial(read_cells, cursor)
