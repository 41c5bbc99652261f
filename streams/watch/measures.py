"""Measures of a project: its comparable scores by day and by hour, and its finished runs by agent.

Scores (`Measured`):

1. Scores by another judge, another methodology or other rules are another measure. Only those are compared that were made as most of
   the last seven days were; history that was judged again counts as it stands now. Versions of the rules that ask and read alike,
   and differ in what they sample only, are one measure: weights tell for how much each score stands.
2. Days are UTC days of the exchanges, whenever they arrived and whenever they were scored.

Runs (`ProjectRuns`), measured by trust, share of unsafe runs, and share of each failure type:

1. A run counts on the day on which it ended, in its latest revision; a run without evidence has no trust and does not count.
2. Diagnoses by other rules or other thresholds are another measure. Of each agent only those are compared that were made as most of its
   runs of the last seven days were.
3. Types of failure that hardly occur in a period are no series: what occurs once cannot have changed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from analytics.queries import query_tuples
from analytics.sums.daily import read_hours
from audit.drift.anomaly_rate import Day
from audit.drift.change_detector import Unit
from audit.drift.consecutive_days import DAYS, DailyAverage
from audit.drift.series import Cells, Flags, Ints
from audit.drift.watched_series import TIERS
from audit.exchanges.outcomes import COMPARABLE_RULES
from audit.fingerprints import canonical_json, digest
from schemas.lazy import duckdb, pl
from schemas.lazy_numpy import np
from schemas.records import TierStatistics

if TYPE_CHECKING:
    from schemas.lazy_numpy import NDArray

SCORES_QUERY = "watched_hours"
FINE_DAYS = 14
_COARSE_INTERVAL_HOURS = 6
"""So many days come hour by hour, those before them by six hours: that is enough for how hours differ, and for when a change began."""
MAX_SCORE_DELAY = timedelta(days=1)
"""An exchange that waits for its score holds back what is compared by so much at most: one that is never scored stops nothing."""
_SUMS = ("units", "count", "weight", "total", "unit_squares", "unit_mixed", "unit_totals")
RULES = ("methodology", "methodology_version", "methodology_digest", "rule_version")
JUDGE = ("judge_model", "simulated")


class ScoringMeans(NamedTuple):
    """The means that made the scores of a row, in the order of `RULES` and `JUDGE`.

    Versions of the rules that are one measure are one.
    """

    rules: tuple[Any, ...]
    judge: tuple[Any, ...]

    @property
    def is_judged(self) -> bool:
        """True if a judge was asked."""
        return bool(self.judge[0])


@dataclass(frozen=True, slots=True)
class JudgeUse:
    """The use of a judge within some days."""

    judge: tuple[Any, ...]
    """In the order of `JUDGE`."""
    first_day: date
    last_day: date
    days: int
    """Days with scores of it."""
    recent: int
    """Judged exchanges of the last seven days."""

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.judge[0])


@dataclass(frozen=True, slots=True)
class Statistics:
    """The sums of a window of scores."""

    tiers: Mapping[str, TierStatistics]
    exchanges: int
    anomalies: int


class ProjectScores:
    """The comparable scores of one project, from rows of the query `watched_hours`, or parts of such rows, in order of their hours."""

    def __init__(self, project: str, rows: pl.DataFrame, as_of: datetime, waits_since: datetime | None = None) -> None:
        self.project = project
        self.as_of = as_of
        self.waits_since = waits_since
        made_with = _read_means(rows)
        first = np.searchsorted(rows["day"].to_numpy(), np.datetime64(as_of.date() - timedelta(days=DAYS)), side="right")
        lately = list(zip(made_with, rows["exchanges"].to_list(), rows["last_at"].to_list(), strict=True))[int(first) :]
        rules = find_most_common((made.rules, *rest) for made, *rest in lately)
        judge = find_most_common((made.judge, *rest) for made, *rest in lately if made.is_judged)
        self.rules = dict(zip(RULES, rules, strict=False))
        self.judge = dict(zip(JUDGE, judge, strict=False))
        same = np.array(
            [(not rules or made.rules == rules) and (made.judge == judge or not made.is_judged) for made in made_with],
            dtype=bool,
        )
        self._all, self._made_with = rows, made_with
        self._rows = rows if same.all() else rows.filter(same)
        self._cells: dict[str, Cells] = {}
        self.judge_key = judge
        """The judge whose scores are compared, in the order of `JUDGE`; empty without one."""

    @property
    def has_scores(self) -> bool:
        """True if there is anything of the last seven days to look at."""
        return bool(self.rules)

    @property
    def days_with_data(self) -> int:
        """The number of UTC days with comparable scores."""
        return self._rows["day"].n_unique()

    def judges(self, days: int) -> list[JudgeUse]:
        """Return the judges that were used within so many days, compared or not."""
        as_of, uses = self.as_of.date(), dict[tuple[Any, ...], list[tuple[date, int]]]()
        for made, day, exchanges in zip(
            self._made_with, self._all["day"].to_list(), self._all["exchanges"].to_list(), strict=True
        ):
            if made.is_judged and (as_of - day).days < days:
                uses.setdefault(made.judge, []).append((day, exchanges))
        return [
            JudgeUse(
                judge,
                min(day for day, _ in used),
                max(day for day, _ in used),
                len({day for day, _ in used}),
                sum(count for day, count in used if (as_of - day).days < DAYS),
            )
            for judge, used in uses.items()
        ]

    @property
    def days_covered(self) -> int:
        """The number of UTC days looked at, the as-of's included, over which comparable scores reach back; 0 without any."""
        first = self._rows["day"].min()
        return (self.as_of.date() - first).days + 1 if isinstance(first, date) else 0

    @property
    def made_with(self) -> dict[str, Any]:
        """The means that made the scores, in words for people."""
        versions = ", ".join(sorted(self._rows["rule_version"].unique()))
        return {**self.rules, **({"rule_version": versions} if versions else {}), **self.judge}

    def policies(self, start: date, end: date) -> list[str]:
        """The digests of the policies that were in force, from `start` to `end`, both included."""
        return sorted(self._between(start, end)["policy_digest"].unique().to_list())

    def yardstick(self, start: date, end: date) -> str:
        """Digest of what the scores between two days were made with, the policies included; nothing where there are none."""
        policies = self.policies(start, end)
        return digest(canonical_json([self.rules, self.judge, policies])) if policies else ""

    def statistics(self, start: date, end: date) -> Statistics:
        """Return the sums of the scores between two days, both included; deviations are of the population."""
        return _sum_statistics(self._between(start, end))

    def window(self, days: int) -> Statistics:
        """Return the sums of the scores of so many times 24 hours before the as-of."""
        first = self.as_of.date() - timedelta(days=days)
        return _sum_statistics(self._rows.filter((pl.col("day") > first) | ((pl.col("day") == first) & pl.col("later"))))

    def days(self, tier: str) -> dict[DailyAverage, int]:
        """The average of a tier on each day that has any, oldest first, and how many scores it is of."""
        sums = self._by_day(f"{tier}_sum", f"{tier}_count")
        return {DailyAverage(day, total / count): round(count) for day, total, count in sums if count}

    def anomalies(self) -> list[Day]:
        """Return the number of exchanges with an anomaly on each day, oldest first."""
        return [Day(*row) for row in self._by_day("anomalies", "exchanges")]

    def cells(self, tier: str) -> Cells:
        """Return the hourly sums of the sessions with scores of a tier, oldest first; times are UTC and naive.

        There are none from the first hour in which an exchange still waits for its score: late scores may be worse than the
        rest.
        """
        if tier not in self._cells:
            self._cells[tier] = self._added_up(tier)
        return self._cells[tier]

    def _added_up(self, tier: str) -> Cells:
        is_scored = (self._rows[f"{tier}_units"].to_numpy() > 0) & self._is_settled()
        hour, last, low, high, *sums = (
            self._rows[name].to_numpy()[is_scored]
            for name in ("hour", "last_at", *(f"{tier}_{name}" for name in ("low", "high", *_SUMS)))
        )
        starts = _find_run_starts(hour)
        columns = [np.add.reduceat(column.astype(np.float64), starts) for column in sums]
        columns += [np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)]
        return Cells(np.maximum.reduceat(last, starts), *columns)

    def _by_day(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Each day, oldest first, with the sums of some columns."""
        days = self._rows["day"].to_numpy()
        starts = _find_run_starts(days)
        sums = (np.add.reduceat(self._rows[name].to_numpy(), starts).tolist() for name in columns)
        return zip(days[starts].tolist(), *sums, strict=True)

    def _is_settled(self) -> Flags:
        """Tell for each row whether everything of its hour, and of those before it, has a score."""
        hour = self._rows["hour"].to_numpy()
        if self.waits_since is None:
            return np.ones(len(hour), dtype=bool)
        first = self.waits_since.astimezone(UTC).replace(minute=0, second=0, microsecond=0, tzinfo=None)
        return hour < np.datetime64(first)

    def _between(self, start: date, end: date) -> pl.DataFrame:
        return self._rows.filter(pl.col("day").is_between(start, end))


def measure_scores(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], since: date, as_of: datetime
) -> tuple[dict[str, ProjectScores], dict[str, Any]]:
    """Measure the scores of some projects from a day on, until a moment; return the query's parameters, too.

    A project that has none is left out.
    """
    coarse_until = midnight(as_of.date() - timedelta(days=FINE_DAYS))
    values: dict[str, Any] = {
        "projects": list(projects),
        "since": midnight(since),
        "until": as_of,
        "coarse_until": coarse_until,
    }
    hours = read_hours(cursor, projects, since, as_of)
    if hours is None:
        return {}, values
    rows = _add_intervals(hours, as_of, coarse_until.date())
    waits = _read_waiting_since(cursor, projects, as_of)
    parts = rows.partition_by("project", as_dict=True, maintain_order=True)
    return {str(name): ProjectScores(str(name), part, as_of, waits.get(name)) for (name,), part in parts.items()}, values


def _add_intervals(hours: pl.DataFrame, as_of: datetime, coarse_until: date) -> pl.DataFrame:
    """The rows of `SCORES_QUERY` before those of one hour, or of six, are added up; judge_model is empty where no judge was asked."""
    at = hours["hour"].to_numpy().astype("datetime64[h]")
    day = at.astype("datetime64[D]")
    of_day = (at - day).astype(np.int64)
    coarse = np.where(day < np.datetime64(coarse_until), of_day % _COARSE_INTERVAL_HOURS, 0)
    added = {"day": day, "hour": (at - coarse).astype("datetime64[us]"), "later": of_day >= as_of.hour}
    return hours.drop("hour").hstack([pl.Series(name, values) for name, values in added.items()])


def _read_waiting_since(cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime) -> dict[str, datetime]:
    """Since when exchanges of the last `WAITED` wait for their scores, by project; what waits for longer is not waited for."""
    values = {"projects": list(projects), "since": as_of - MAX_SCORE_DELAY, "until": as_of}
    rows = query_tuples(cursor, "waiting_exchanges", values)
    return {project: since.replace(tzinfo=UTC) for project, since, _ in rows}


def midnight(day: date) -> datetime:
    """The first moment of a day, UTC."""
    return datetime.combine(day, time(), UTC)


def find_most_common(rows: Iterable[tuple[tuple[Any, ...], int, datetime]]) -> tuple[Any, ...]:
    """The key that most of the rows share, given each row's key, count and time: the newest among equals; empty where there are no rows."""
    sums: dict[tuple[Any, ...], tuple[int, datetime]] = {}
    for key, count, last in rows:
        total, newest = sums.get(key, (0, last))
        sums[key] = total + count, max(newest, last)
    most = max(sums.values(), default=None)
    return min((key for key, found in sums.items() if found == most), default=())


def _find_run_starts(keys: NDArray[Any]) -> Ints:
    """Return the places where each run of equal keys begins."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


def _read_means(rows: pl.DataFrame) -> list[ScoringMeans]:
    """Return the means that made the scores of each row.

    It does not use Polars, which would wake its threads: that costs more than the rows do.
    """
    *rules, versions = (rows[name].to_list() for name in RULES)
    comparable = (COMPARABLE_RULES.get(version, version) for version in versions)
    by_judge = zip(*(rows[name].to_list() for name in JUDGE), strict=True)
    return list(map(ScoringMeans, zip(*rules, comparable, strict=True), by_judge))


def _sum_statistics(rows: pl.DataFrame) -> Statistics:
    tiers = {tier: _sum_tier_statistics(rows, tier) for tier in TIERS}
    return Statistics(tiers, int(rows["exchanges"].sum()), int(rows["anomalies"].sum()))


def _sum_tier_statistics(rows: pl.DataFrame, tier: str) -> TierStatistics:
    count = int(rows[f"{tier}_count"].sum())
    if not count:
        return TierStatistics(count=0)
    mean = float(rows[f"{tier}_sum"].sum()) / count
    # Sums of floats leave a hair below zero where all scores are the same.
    variance = max(0.0, float(rows[f"{tier}_squares"].sum()) / count - mean * mean)
    stddev = math.sqrt(variance)
    return TierStatistics(mean=mean, stddev=0.0 if stddev < 1e-7 else stddev, count=count)


RUNS_QUERY = "watched_runs"
MADE_BY = ("rule_version", "threshold_profile", "threshold_changes")
TRUST, UNSAFE, FAILURE = "trust", "unsafe", "failure:"
MAX_AGENTS = 20
"""So many agents of a project are watched, those with the most runs."""
MIN_FAILED_RUNS = 2
"""So many runs have a type of failure where it is a series."""


class RunRow(NamedTuple):
    """A row of the query `watched_runs`; times are UTC and naive."""

    project: str
    agent: str
    day: date
    connection: str
    session_id: str
    rule_version: str
    threshold_profile: str
    threshold_changes: str
    last_at: datetime
    runs: int
    trust: int
    unsafe: int
    failures: Sequence[str]

    @property
    def made_by(self) -> tuple[str, ...]:
        """Return what the runs were diagnosed by, in the order of `MADE_BY`."""
        return self.rule_version, self.threshold_profile, self.threshold_changes

    def total(self, series: str) -> int:
        """Return the sum of a series over the runs."""
        if series.startswith(FAILURE):
            return self.failures.count(series.removeprefix(FAILURE))
        return self.trust if series == TRUST else self.unsafe


class AgentRuns:
    """The comparable runs of one agent, from its rows, oldest first."""

    def __init__(self, agent: str | None, rows: Sequence[RunRow], as_of: datetime) -> None:
        self.agent = agent
        first = as_of.date() - timedelta(days=DAYS)
        most = find_most_common((row.made_by, row.runs, row.last_at) for row in rows if row.day > first)
        self.made_by = dict(zip(MADE_BY, most, strict=False))
        """What the runs of the last days were diagnosed by; nothing without any."""
        self._rows = [row for row in rows if row.made_by == most]

    @cached_property
    def series(self) -> tuple[str, ...]:
        """The series that these runs have."""
        if not self._rows:
            return ()
        found = Counter(chain.from_iterable(row.failures for row in self._rows))
        types = sorted(name for name, count in found.items() if count >= MIN_FAILED_RUNS)
        return (TRUST, UNSAFE, *(f"{FAILURE}{name}" for name in types))

    def units(self, series: str) -> list[Unit]:
        """The runs as units of a series, oldest first; times are UTC and naive."""
        return [Unit(row.last_at, row.runs, float(row.runs), float(row.total(series))) for row in self._rows]

    def units_below(self, trust: int) -> list[Unit]:
        """The runs as units of the share whose trust is below a level; times are UTC and naive."""
        return [
            Unit(row.last_at, row.runs, float(row.runs), float(row.runs * (row.trust < trust * row.runs))) for row in self._rows
        ]

    def usual_trust(self, until: datetime) -> int | None:
        """The trust that at least half of the runs before a moment have exactly; None if there is none."""
        found = Counter(row.trust / row.runs for row in self._rows if row.last_at < until)
        ((trust, count),) = found.most_common(1) or [(0.0, 0)]
        return int(trust) if count and 2 * count >= found.total() and trust == int(trust) else None

    def days(self, series: str) -> dict[date, tuple[float, int]]:
        """The mean of a series on each day with runs, oldest first, and of how many runs it is."""
        sums: dict[date, tuple[int, int]] = {}
        for row in self._rows:
            total, runs = sums.get(row.day, (0, 0))
            sums[row.day] = total + row.total(series), runs + row.runs
        return {day: (total / runs, runs) for day, (total, runs) in sorted(sums.items())}

    @property
    def first_day(self) -> date | None:
        """The first day with comparable runs."""
        return min((row.day for row in self._rows), default=None)


@dataclass(frozen=True, slots=True)
class ProjectRuns:
    """The runs of one project."""

    project: str
    as_of: datetime
    agents: tuple[AgentRuns, ...]
    """Those with comparable runs of the last seven days."""
    watched_agents: int
    """The number of agents with runs in the window, at most `MOST_AGENTS`."""

    @property
    def days_covered(self) -> int:
        """The number of UTC days, the as-of's included, over which comparable runs reach back; 0 without any."""
        firsts = [one.first_day for one in self.agents if one.first_day is not None]
        return (self.as_of.date() - min(firsts)).days + 1 if firsts else 0


def measure_runs(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], since: date, as_of: datetime
) -> tuple[dict[str, ProjectRuns], dict[str, Any]]:
    """Measure the runs of some projects from a day on, until a moment; return the query's parameters, too.

    A project without runs of the last seven days is left out.
    """
    values: dict[str, Any] = {"projects": list(projects), "since": midnight(since), "until": as_of, "most_agents": MAX_AGENTS}
    rows = [RunRow(*row) for row in query_tuples(cursor, RUNS_QUERY, values)]
    agents: dict[str, list[AgentRuns]] = {}
    watched = Counter(project for project, _ in {(row.project, row.agent) for row in rows})
    for (project, agent), part in groupby(rows, lambda row: (row.project, row.agent)):
        runs = AgentRuns(agent or None, list(part), as_of)
        if runs.made_by:
            agents.setdefault(project, []).append(runs)
    return {project: ProjectRuns(project, as_of, tuple(found), watched[project]) for project, found in agents.items()}, values
