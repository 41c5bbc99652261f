"""Measures of a project: its comparable scores by day and by hour, and its finished runs by agent.

Scores (`ProjectScores`):

1. Scores of different judges, methodologies or rules are not comparable, and neither are those of different agents, or imported ones with
   live ones. The scores of one agent that were made by the same means and arrived in the same way are a stratum. History that was judged
   again counts with its new scores. Versions of the rules that only differ in what they sample are comparable, because weights correct
   for the sampling.
2. The strata of an agent, and those of the whole project, are standardised to one mix (`audit.drift.segments`): a change of the mix changes
   no level. Strata that never share days cannot be compared, so only those that are connected with most scores of the last days count.
   Scores of a judge that another one replaced are moved by how far apart the anchors say both are (`Bridge`), so that the series goes on.
3. Days are UTC days of the exchanges, independent of when they arrived and when they were scored.
4. The baseline and its statistics are plain ones, of the means that made most scores of the last seven days.

Runs (`ProjectRuns`) are measured by trust, the share of unsafe runs, and the share of each type of failure:

1. A run counts on the day on which it ended, in its latest revision. A run without evidence has no trust and does not count.
2. Diagnoses by different rules or thresholds are not comparable. Only runs of an agent that were diagnosed like most of its runs of the
   last seven days are compared.
3. A type of failure that occurs only once is not a series, because no change can be found in it.

Judged sessions (`ProjectSessions`) are measured by the overall score and the six dimensions. A session counts on the day on which it ended,
with 1 / its sampling probability as its weight, in its newest finished judgement. Only sessions with the yardstick of most of
the last seven days are compared.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property, lru_cache, partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analytics.queries import query_tuples
from analytics.sums.daily import read_hours
from audit.anchors import JudgeShift
from audit.drift.anomaly_rate import Day
from audit.drift.change_detector import Unit
from audit.drift.consecutive_days import DAYS, DailyAverage
from audit.drift.segments import Standardised, merge_cells, shift_cells, standardise
from audit.drift.series import Cells, Flags, Floats, Ints, cells_of
from audit.drift.slices import MAX_VALUES
from audit.drift.watched_series import SESSION, TIERS
from audit.evaluation.dimensions import DIMENSIONS
from audit.exchanges.outcomes import ARRIVAL, LATER, MODEL, find_comparable_rules
from audit.fingerprints import canonical_json, digest
from schemas.lazy import duckdb, pl
from schemas.lazy_numpy import np
from schemas.records import TierStatistics
from streams.upkeep.anchors import judge_shift, name_judge, rounds_of
from streams.upkeep.annotations import VERSIONS

if TYPE_CHECKING:
    from schemas.lazy_numpy import NDArray

SCORES_QUERY = "watched_hours"
VERSION_LABELS = (*VERSIONS, MODEL)
"""The labels of which a new value is another state of the agent."""
FINE_DAYS = 14
_COARSE_INTERVAL_HOURS = 6
"""Recent days have hourly sums; days before the last `FINE_DAYS` have sums over six hours, which is enough to date a change."""
MAX_SCORE_DELAY = timedelta(days=1)
"""The longest time for which an unscored exchange holds back later scores, so that one that is never scored does not block them forever."""
_SUMS = ("units", "count", "weight", "total", "unit_squares", "unit_mixed", "unit_totals")
RULES = ("methodology", "methodology_version", "methodology_digest", "rule_version")
JUDGE = ("judge_model", "simulated")


class ScoringMeans(NamedTuple):
    """The means that made the scores of a row: values of the columns `RULES` and `JUDGE`.

    Comparable versions of the rules are replaced by one of them.
    """

    rules: tuple[Any, ...]
    judge: tuple[Any, ...]

    @property
    def is_judged(self) -> bool:
        """True if the scores come from a judge."""
        return bool(self.judge[0])


class Stratum(NamedTuple):
    """The origin of comparable scores: one agent, one way of arriving, and the means that made the scores."""

    agent: str
    """Empty if the source does not tell it."""
    arrival: str
    """`LATER` for exchanges that arrived more than a day late, such as imported history; else empty."""
    rules: tuple[Any, ...]
    """Values of the columns `RULES`."""
    judge: tuple[Any, ...]
    """Values of the columns `JUDGE`; empty for Tier 1, which asks no judge."""

    @property
    def without_judge(self) -> Stratum:
        """The stratum as it would be without a judge, to find strata that only differ in their judges."""
        return self._replace(judge=())


@dataclass(frozen=True, slots=True)
class Bridge:
    """Scores of a judge that count in a series as scores of another judge, whose days they do not share."""

    earlier: Stratum
    later: Stratum
    shift: JudgeShift
    """What is added to the scores of the earlier judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The comparable scores of a tier: those of one agent, or those of the whole project at one mix."""

    agent: str | None
    """None for the whole project."""
    standardised: Standardised
    days: Mapping[DailyAverage, int]
    """The daily averages at the reference mix with their numbers of scores, oldest first."""
    strata: tuple[Stratum, ...]
    left_out: tuple[Stratum, ...]
    """The strata that share too few days with the others to be compared."""
    bridges: tuple[Bridge, ...] = ()
    at_ends: tuple[Standardised, ...] = ()
    """The series with the shifts of all bridges at either end of their 95% intervals; empty without a bridge."""
    unbridged: Standardised | None = None
    """The series without the scores that were moved; None without a bridge."""

    @property
    def cells(self) -> Cells:
        """The hourly sums at the reference mix, oldest first."""
        return self.standardised.cells


@dataclass(frozen=True, slots=True)
class JudgeUse:
    """The use of a judge within a number of days."""

    judge: tuple[Any, ...]
    """Values of the columns `JUDGE`."""
    first_day: date
    last_day: date
    days: int
    """The number of days with its scores."""
    recent: int
    """The number of exchanges that it judged in the last seven days."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return str(self.judge[0])


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the scores in a window."""

    tiers: Mapping[str, TierStatistics]
    exchanges: int
    anomalies: int


class ProjectScores:
    """The comparable scores of one project, from rows of the query `watched_hours`, oldest first."""

    def __init__(
        self,
        project: str,
        rows: pl.DataFrame,
        as_of: datetime,
        waits_since: datetime | None = None,
        read_anchors: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
    ) -> None:
        self.project = project
        self.as_of = as_of
        self.waits_since = waits_since
        row_means = _read_means(rows)
        last_days = np.datetime64(as_of.date() - timedelta(days=DAYS))
        first_recent = int(np.searchsorted(rows["day"].to_numpy(), last_days, side="right"))
        counted_means = zip(row_means, rows["exchanges"].to_list(), rows["last_at"].to_list(), strict=True)
        recent = list(counted_means)[first_recent:]
        rules = find_most_common((means.rules, count, last_at) for means, count, last_at in recent)
        judge = find_most_common((means.judge, count, last_at) for means, count, last_at in recent if means.is_judged)
        self.rules = dict(zip(RULES, rules, strict=False))
        self.judge = dict(zip(JUDGE, judge, strict=False))
        is_comparable = np.array(
            [(not rules or means.rules == rules) and (means.judge == judge or not means.is_judged) for means in row_means],
            dtype=bool,
        )
        self._all_rows = rows
        self._row_means = row_means
        self._rows = rows if is_comparable.all() else rows.filter(is_comparable)
        self._agents: list[str] = rows["agent"].to_list()
        labels: list[str] = rows["labels"].to_list()
        self._labels = [_parse_labels(text) for text in labels]
        self._arrivals = [LATER if (ARRIVAL, LATER) in row_labels else "" for row_labels in self._labels]
        self._recent = np.arange(len(rows)) >= first_recent
        self._columns: dict[str, NDArray[Any]] = {}
        self._numbered_strata: dict[bool, tuple[dict[Stratum, int], Ints]] = {}
        self._strata_of_tier: dict[str, Mapping[Stratum, Ints]] = {}
        self._segments: dict[tuple[str, str | None], Segment | None] = {}
        self._slices: dict[tuple[str, str | None], dict[str, Segment]] = {}
        self._labelled_rows: dict[tuple[str, str | None], dict[tuple[str, str], Ints]] = {}
        self._read_anchors = read_anchors
        self._shifts: dict[tuple[str, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], JudgeShift | None] = {}
        self.judge_key = judge
        """The judge whose scores are compared, as values of the columns `JUDGE`; empty without one."""

    @property
    def has_scores(self) -> bool:
        """True if there are scores of the last seven days."""
        return bool(self.rules)

    @property
    def days_with_data(self) -> int:
        """The number of UTC days with comparable scores."""
        return self._rows["day"].n_unique()

    def judges(self, days: int) -> list[JudgeUse]:
        """Return all judges that were used within the last `days` days, including those whose scores are not compared."""
        today = self.as_of.date()
        counts: dict[tuple[Any, ...], list[tuple[date, int]]] = {}
        all_days = self._all_rows["day"].to_list()
        for means, day, exchanges in zip(self._row_means, all_days, self._all_rows["exchanges"].to_list(), strict=True):
            if means.is_judged and (today - day).days < days:
                counts.setdefault(means.judge, []).append((day, exchanges))
        return [
            JudgeUse(
                judge,
                first_day=min(day for day, _ in day_counts),
                last_day=max(day for day, _ in day_counts),
                days=len({day for day, _ in day_counts}),
                recent=sum(count for day, count in day_counts if (today - day).days < DAYS),
            )
            for judge, day_counts in counts.items()
        ]

    @property
    def days_covered(self) -> int:
        """The number of UTC days from the first comparable score to the as-of; 0 without scores."""
        first = self._rows["day"].min()
        return (self.as_of.date() - first).days + 1 if isinstance(first, date) else 0

    @property
    def made_with(self) -> dict[str, Any]:
        """The means that made the scores, by column, for people."""
        versions = ", ".join(sorted(self._rows["rule_version"].unique()))
        return {**self.rules, **({"rule_version": versions} if versions else {}), **self.judge}

    def policies(self, start: date, end: date) -> list[str]:
        """Return the digests of the policies of the scores from `start` to `end`, both included."""
        return sorted(self._between(start, end)["policy_digest"].unique().to_list())

    def yardstick(self, start: date, end: date) -> str:
        """Return a digest of the means and the policies of the scores between two days, both included; empty without scores."""
        policies = self.policies(start, end)
        return digest(canonical_json([self.rules, self.judge, policies])) if policies else ""

    def statistics(self, start: date, end: date) -> Statistics:
        """Return the statistics of the scores between two days, both included, with population standard deviations."""
        return _sum_statistics(self._between(start, end))

    def window(self, days: int) -> Statistics:
        """Return the statistics of the scores in the `days` times 24 hours before the as-of."""
        first = self.as_of.date() - timedelta(days=days)
        return _sum_statistics(self._rows.filter((pl.col("day") > first) | ((pl.col("day") == first) & pl.col("later"))))

    def segment(self, tier: str, agent: str | None = None) -> Segment | None:
        """Return the comparable scores of a tier, of one agent or of the whole project; None without scores of the last days."""
        if (tier, agent) not in self._segments:
            self._segments[tier, agent] = self._build_segment(tier, agent)
        return self._segments[tier, agent]

    def agents(self, tier: str) -> list[str]:
        """Return the agents with scores of a tier within the last seven days, sorted; a name is empty if the source does not tell it."""
        return sorted({stratum.agent for stratum, rows in self._strata(tier).items() if self._recent[rows].any()})

    def judged_segments(self) -> list[Segment]:
        """Return the segments of each agent and judged tier: those that the rules compare."""
        segments = []
        for tier in TIERS:
            names: list[str | None] = [*self.agents(tier)] if tier != "tier1" else []
            segments += [self.segment(tier, name) for name in (names if len(names) > 1 else [None] * len(names))]
        return [segment for segment in segments if segment is not None]

    def agent_cells(self, tier: str) -> dict[str, Cells]:
        """Return the hourly sums of each agent's units of a tier, as they are, by the names of the agents."""
        rows_of: dict[str, list[Ints]] = defaultdict(list)
        for stratum, rows in self._strata(tier).items():
            rows_of[stratum.agent].append(rows)
        return {agent: self._sum_cells(tier, np.sort(np.concatenate(rows))) for agent, rows in sorted(rows_of.items())}

    def anomalies(self) -> list[Day]:
        """Return the numbers of anomalies and exchanges of each day, oldest first."""
        return [Day(*row) for row in self._by_day("anomalies", "exchanges")]

    def cells(self, tier: str, agent: str | None = None) -> Cells:
        """Return the hourly sums of a segment's units, oldest first; times are UTC and naive.

        They end before the first hour in which an exchange still waits for its score, because late scores may be worse than the others.
        """
        segment = self.segment(tier, agent)
        return cells_of(()) if segment is None else segment.cells

    def _strata(self, tier: str) -> Mapping[Stratum, Ints]:
        """Return the rows of each stratum of a tier, in order of time."""
        if tier not in self._strata_of_tier:
            is_scored = (self._all_rows[f"{tier}_units"].to_numpy() > 0) & self._is_settled()
            names, numbers = self._number_strata(is_judged=tier != "tier1")
            rows_of = np.where(is_scored, numbers, -1)
            order = np.argsort(rows_of, kind="stable")
            bounds = np.searchsorted(rows_of[order], np.arange(len(names) + 1))
            by_stratum = {stratum: order[bounds[number] : bounds[number + 1]] for stratum, number in names.items()}
            self._strata_of_tier[tier] = {stratum: rows for stratum, rows in by_stratum.items() if len(rows)}
        return self._strata_of_tier[tier]

    def _number_strata(self, *, is_judged: bool) -> tuple[dict[Stratum, int], Ints]:
        """Return the numbers of the strata, and the one of each row. The judged tiers share them."""
        if is_judged not in self._numbered_strata:
            names: dict[Stratum, int] = {}
            numbers = [
                names.setdefault(Stratum(agent, arrival, means.rules, means.judge if is_judged else ()), len(names))
                for agent, arrival, means in zip(self._agents, self._arrivals, self._row_means, strict=True)
            ]
            self._numbered_strata[is_judged] = names, np.array(numbers, dtype=np.int64)
        return self._numbered_strata[is_judged]

    def slices(self, tier: str, agent: str | None) -> dict[str, Segment]:
        """Return the comparable scores of an agent (None: of the project) by slice, such as `agent_version 7`.

        Slices without scores of the last days, and labels with more than `MAX_VALUES` values, are left out.
        """
        if (tier, agent) not in self._slices:
            segments = {
                " ".join(label): self._build_segment(tier, agent, rows)
                for label, rows in self._rows_by_label(tier, agent).items()
                if self._recent[rows].any()
            }
            self._slices[tier, agent] = {name: segment for name, segment in segments.items() if segment is not None}
        return self._slices[tier, agent]

    @property
    def compared_series(self) -> int:
        """The number of series that were compared so far."""
        segments = sum(segment is not None for segment in self._segments.values())
        return segments + sum(len(slices) for slices in self._slices.values())

    def versions(self, tier: str, agent: str | None, since: date) -> dict[str, tuple[Cells, Cells]]:
        """Return the units of each version that is in use and came since a day, with those of the agent's other versions, by slice.

        The labels of versions are those of the agent, its prompts and tools, and its model.
        """
        first_day = np.datetime64(since)
        rows_by_label = self._rows_by_label(tier, agent)
        versions: dict[str, tuple[Cells, Cells]] = {}
        for label, rows in rows_by_label.items():
            is_new = self._column("day")[rows[0]] >= first_day and self._recent[rows].any()
            if label[0] in VERSION_LABELS and is_new:
                others = [other for name, other in rows_by_label.items() if name[0] == label[0] and name != label]
                # Only scores by the same rules and judge are compared: the ones of most of the version's scores.
                strata = self._rows_of(tier, agent).values()
                comparable = max(strata, key=lambda stratum_rows: np.isin(rows, stratum_rows).sum())
                sides = [np.intersect1d(side, comparable) for side in (rows, np.concatenate(others))]
                if len(sides[1]):
                    versions[" ".join(label)] = self._sum_cells(tier, sides[0]), self._sum_cells(tier, sides[1])
        return versions

    def _rows_by_label(self, tier: str, agent: str | None) -> dict[tuple[str, str], Ints]:
        """Return the rows of an agent with each value of a label, for labels with a few values."""
        if (tier, agent) in self._labelled_rows:
            return self._labelled_rows[tier, agent]
        rows_of: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row in np.sort(np.concatenate([np.zeros(0, np.int64), *self._rows_of(tier, agent).values()])).tolist():
            for label in self._labels[row]:
                rows_of[label].append(row)
        values = Counter(name for name, _ in rows_of)
        self._labelled_rows[tier, agent] = {
            label: np.array(rows)
            for label, rows in sorted(rows_of.items())
            if label[0] != ARRIVAL and 1 < values[label[0]] <= MAX_VALUES
        }
        return self._labelled_rows[tier, agent]

    def _rows_of(self, tier: str, agent: str | None) -> dict[Stratum, Ints]:
        return {stratum: rows for stratum, rows in self._strata(tier).items() if agent in (None, stratum.agent)}

    def _build_segment(self, tier: str, agent: str | None, only: Ints | None = None) -> Segment | None:
        strata = self._rows_of(tier, agent)
        if only is not None:
            strata = {stratum: rows[np.isin(rows, only)] for stratum, rows in strata.items()}
            strata = {stratum: rows for stratum, rows in strata.items() if len(rows)}
        unbridged = standardise([self._sum_cells(tier, rows) for rows in strata.values()])
        if unbridged is None:
            return None
        if unbridged.outside:
            joined = _join_history(strata, unbridged)
            if len(joined) < len(strata):
                strata = joined
                unbridged = standardise([self._sum_cells(tier, rows) for rows in strata.values()]) or unbridged
        names = list(strata)
        bridges = self._find_bridges(tier, strata, {names[index] for index in unbridged.outside})
        names = [stratum for stratum in names if stratum not in bridges]
        standardised, at_ends = unbridged, list[Standardised]()
        if bridges:
            cells = {stratum: self._sum_cells(tier, rows) for stratum, rows in strata.items()}
            standardised, *at_ends = filter(None, (_standardise_over(cells, bridges, end) for end in ("size", "low", "high")))
        shifts = {names[level.stratum]: shift for level, shift in zip(standardised.levels, standardised.shifts, strict=True)}
        crossed = [bridge for bridge in bridges.values() if bridge.later in shifts]
        shifts |= {bridge.earlier: shifts[bridge.later] + bridge.shift.size for bridge in crossed}
        rows = np.concatenate([strata[stratum] for stratum in shifts])
        shift = np.concatenate([np.full(len(strata[stratum]), shift) for stratum, shift in shifts.items()])
        order = np.argsort(rows)
        return Segment(
            agent=agent,
            standardised=standardised,
            days=self._average_days(tier, rows[order], shift[order]),
            strata=tuple(shifts),
            left_out=tuple(stratum for stratum in strata if stratum not in shifts),
            bridges=tuple(crossed),
            at_ends=tuple(at_ends) if crossed else (),
            unbridged=unbridged if crossed else None,
        )

    def _find_bridges(self, tier: str, strata: Mapping[Stratum, Ints], outside: Collection[Stratum]) -> dict[Stratum, Bridge]:
        """Return the bridges from replaced judges to the judge with the newest scores of an agent, by the stratum whose scores are moved."""
        if not outside:
            return {}
        groups: dict[Stratum, list[Stratum]] = defaultdict(list)
        for stratum in strata:
            groups[stratum.without_judge].append(stratum)
        bridges: dict[Stratum, Bridge] = {}
        for group in groups.values():
            later = max(group, key=lambda stratum: int(strata[stratum][-1]))
            for earlier in group:
                is_apart = earlier != later and (earlier in outside or later in outside)
                shift = self._measure_shift(tier, earlier, later) if is_apart else None
                if shift is not None:
                    bridges[earlier] = Bridge(earlier, later, shift)
        return bridges

    def _measure_shift(self, tier: str, earlier: Stratum, later: Stratum) -> JudgeShift | None:
        """Return how far apart the judges of two strata are by the anchors that both judged by the same rules."""
        key = tier, earlier.rules, earlier.judge, later.judge
        if key not in self._shifts:
            verdicts = self._verdicts.get(earlier.rules, ())
            names = (name_judge(judge[0], simulated=judge[1]) for judge in (earlier.judge, later.judge))
            self._shifts[key] = judge_shift(verdicts, tier, *names)
        return self._shifts[key]

    @cached_property
    def _verdicts(self) -> Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]]:
        """The verdicts on the project's anchors, by the rules that made them."""
        verdicts: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
        for row in self._read_anchors():
            if row["round_at"] >= self.as_of:
                continue
            *rules, version = (row[name] for name in RULES)
            verdicts[*rules, find_comparable_rules(version)].append(row)
        return verdicts

    def _sum_cells(self, tier: str, rows: Ints) -> Cells:
        """Sum rows by hour."""
        hour, last = (self._column(name)[rows] for name in ("hour", "last_at"))
        low, high, *sums = (self._column(f"{tier}_{name}")[rows] for name in ("low", "high", *_SUMS))
        starts = _find_run_starts(hour)
        columns = [np.add.reduceat(column.astype(np.float64), starts) for column in sums]
        columns += [np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)]
        return Cells(np.maximum.reduceat(last, starts), *columns)

    def _average_days(self, tier: str, rows: Ints, shift: Floats) -> dict[DailyAverage, int]:
        """Return the daily averages of rows with their numbers of scores, oldest first. Days without scores are missing."""
        days = self._column("day")[rows]
        counts = self._column(f"{tier}_count")[rows]
        starts = _find_run_starts(days)
        total = np.add.reduceat(self._column(f"{tier}_sum")[rows] + shift * counts, starts)
        count = np.add.reduceat(counts, starts)
        return {
            DailyAverage(day, mean): scores
            for day, mean, scores in zip(days[starts].tolist(), (total / count).tolist(), count.tolist(), strict=True)
        }

    def _column(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            self._columns[name] = self._all_rows[name].to_numpy()
        return self._columns[name]

    def _by_day(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield each day with the sums of columns, oldest first."""
        days = self._rows["day"].to_numpy()
        starts = _find_run_starts(days)
        sums = (np.add.reduceat(self._rows[name].to_numpy(), starts).tolist() for name in columns)
        return zip(days[starts].tolist(), *sums, strict=True)

    def _is_settled(self) -> Flags:
        """Return for each row whether all exchanges up to the end of its hour have scores."""
        hour = self._column("hour")
        if self.waits_since is None:
            return np.ones(len(hour), dtype=bool)
        first = self.waits_since.astimezone(UTC).replace(minute=0, second=0, microsecond=0, tzinfo=None)
        return hour < np.datetime64(first)

    def _between(self, start: date, end: date) -> pl.DataFrame:
        return self._rows.filter(pl.col("day").is_between(start, end))


def measure_scores(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], since: date, as_of: datetime
) -> tuple[dict[str, ProjectScores], dict[str, Any]]:
    """Measure the scores of projects from a day to a moment, and return them with the parameters of the query.

    Projects without scores are left out.
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
    waiting_since = _read_waiting_since(cursor, projects, as_of)
    by_project = rows.partition_by("project", as_dict=True, maintain_order=True)
    scores = {
        str(project): ProjectScores(
            str(project),
            project_rows,
            as_of,
            waiting_since.get(project),
            partial(rounds_of, cursor, str(project), midnight(since)),
        )
        for (project,), project_rows in by_project.items()
    }
    return scores, values


def _add_intervals(hours: pl.DataFrame, as_of: datetime, coarse_until: date) -> pl.DataFrame:
    """Add the columns of `SCORES_QUERY` that are derived from the hour.

    They are the day, the beginning of the interval, and whether the hour of the day is `later` than, or the same as, the as-of's.
    """
    hour = hours["hour"].to_numpy().astype("datetime64[h]")
    day = hour.astype("datetime64[D]")
    hour_of_day = (hour - day).astype(np.int64)
    offset = np.where(day < np.datetime64(coarse_until), hour_of_day % _COARSE_INTERVAL_HOURS, 0)
    columns = {"day": day, "hour": (hour - offset).astype("datetime64[us]"), "later": hour_of_day >= as_of.hour}
    return hours.drop("hour").hstack([pl.Series(name, values) for name, values in columns.items()])


def _read_waiting_since(cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime) -> dict[str, datetime]:
    """Return the time of each project's oldest unscored exchange within the last `MAX_SCORE_DELAY`."""
    values = {"projects": list(projects), "since": as_of - MAX_SCORE_DELAY, "until": as_of}
    rows = query_tuples(cursor, "waiting_exchanges", values)
    return {project: since.replace(tzinfo=UTC) for project, since, _ in rows}


def midnight(day: date) -> datetime:
    """Return the beginning of a day in UTC."""
    return datetime.combine(day, time(), UTC)


def find_most_common(rows: Iterable[tuple[tuple[Any, ...], int, datetime]]) -> tuple[Any, ...]:
    """Return the key with the largest total count, the newest one among equals; empty without rows. A row has a key, a count and a time."""
    totals: dict[tuple[Any, ...], tuple[int, datetime]] = {}
    for key, count, time_of_row in rows:
        total, newest = totals.get(key, (0, time_of_row))
        totals[key] = total + count, max(newest, time_of_row)
    largest = max(totals.values(), default=None)
    return min((key for key, total_and_time in totals.items() if total_and_time == largest), default=())


def _join_history(strata: Mapping[Stratum, Ints], standardised: Standardised) -> dict[Stratum, Ints]:
    """Return the strata, with imported history joined to the live exchanges with which it shares no days.

    Its level may be another one, which is not known without common days. But it is the only past that live exchanges have, and a change
    at the border is told as history (`audit.drift.slices`).
    """
    names = list(strata)
    outside = {names[index] for index in standardised.outside}
    joined: dict[Stratum, Ints] = {}
    for stratum, rows in strata.items():
        twin = stratum._replace(arrival="" if stratum.arrival else LATER)
        is_joined = twin in strata and (stratum in outside) != (twin in outside)
        name = stratum._replace(arrival="") if is_joined else stratum
        joined[name] = np.sort(np.concatenate([joined[name], rows])) if name in joined else rows
    return joined


@lru_cache(maxsize=10_000)
def _parse_labels(text: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of a row, from the column `labels`."""
    return tuple(json.loads(text).items()) if text else ()


def _standardise_over(
    cells: Mapping[Stratum, Cells], bridges: Mapping[Stratum, Bridge], end: Literal["size", "low", "high"]
) -> Standardised | None:
    """Return the series of strata whose bridges have their estimated shift, or that at an end of its interval."""
    parts = {stratum: [part] for stratum, part in cells.items() if stratum not in bridges}
    for earlier, bridge in bridges.items():
        parts[bridge.later].append(shift_cells(cells[earlier], -getattr(bridge.shift, end)))
    return standardise([merge_cells(group) for group in parts.values()])


def _find_run_starts(keys: NDArray[Any]) -> Ints:
    """Return the indexes at which runs of equal keys start."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


def _read_means(rows: pl.DataFrame) -> list[ScoringMeans]:
    """Return the means that made the scores of each row.

    It works on lists, because waking the threads of Polars takes longer than reading the few rows.
    """
    *rules, versions = (rows[name].to_list() for name in RULES)
    comparable = map(find_comparable_rules, versions)
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
    # Rounding may give a variance slightly below zero if all scores are equal.
    variance = max(0.0, float(rows[f"{tier}_squares"].sum()) / count - mean * mean)
    stddev = math.sqrt(variance)
    return TierStatistics(mean=mean, stddev=0.0 if stddev < 1e-7 else stddev, count=count)


RUNS_QUERY = "watched_runs"
MADE_BY = ("rule_version", "threshold_profile", "threshold_changes")
TRUST, UNSAFE, FAILURE = "trust", "unsafe", "failure:"
MAX_AGENTS = 250
"""Agents of a project with series of their own: those with the most runs, or turns."""
OTHER_AGENTS = "other agents"
"""The name of all further agents, which are compared as one."""
MIN_FAILED_RUNS = 2
"""Runs with a type of failure from which on it is a series."""


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
        """The rules and thresholds that diagnosed the runs: values of the columns `MADE_BY`."""
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
        """The rules and thresholds that diagnosed the runs of the last days, by column; empty without runs."""
        self._rows = [row for row in rows if row.made_by == most]

    @cached_property
    def series(self) -> tuple[str, ...]:
        """The names of the series that these runs have."""
        if not self._rows:
            return ()
        failures = Counter(chain.from_iterable(row.failures for row in self._rows))
        types = sorted(name for name, count in failures.items() if count >= MIN_FAILED_RUNS)
        return (TRUST, UNSAFE, *(f"{FAILURE}{name}" for name in types))

    def units(self, series: str) -> list[Unit]:
        """Return the runs as units of a series, oldest first; times are UTC and naive."""
        return [Unit(row.last_at, row.runs, float(row.runs), float(row.total(series))) for row in self._rows]

    @cached_property
    def hours(self) -> Ints:
        """The hour of each unit, since 1970."""
        return np.array([row.last_at for row in self._rows], dtype="datetime64[h]").astype(np.int64)

    def sums(self, series: str) -> Floats:
        """Return the sums of each unit of a series: (`audit.drift.evidence_bounds.SUMS`, units)."""
        weight = np.array([row.runs for row in self._rows], dtype=np.float64)
        total = np.array([row.total(series) for row in self._rows], dtype=np.float64)
        return np.stack([np.ones_like(weight), weight, total, weight * weight, weight * total, total * total])

    def units_below(self, trust: int) -> list[Unit]:
        """Return the runs as units of the share of runs whose trust is below a level; times are UTC and naive."""
        return [
            Unit(row.last_at, row.runs, float(row.runs), float(row.runs * (row.trust < trust * row.runs))) for row in self._rows
        ]

    def usual_trust(self, until: datetime) -> int | None:
        """Return the trust that at least half of the runs before a moment have exactly; None if there is none."""
        values = Counter(row.trust / row.runs for row in self._rows if row.last_at < until)
        if not values:
            return None
        [(trust, count)] = values.most_common(1)
        is_usual = 2 * count >= values.total() and trust == int(trust)
        return int(trust) if is_usual else None

    def days(self, series: str) -> dict[date, tuple[float, int]]:
        """Return the daily means of a series with their numbers of runs, oldest first."""
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
    """The agents with comparable runs of the last seven days."""

    @property
    def days_covered(self) -> int:
        """The number of UTC days from the first comparable run to the as-of; 0 without runs."""
        first_days = [agent.first_day for agent in self.agents if agent.first_day is not None]
        return (self.as_of.date() - min(first_days)).days + 1 if first_days else 0


def measure_runs(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], since: date, as_of: datetime
) -> tuple[dict[str, ProjectRuns], dict[str, Any]]:
    """Measure the runs of projects from a day to a moment, and return them with the parameters of the query.

    Projects without runs of the last seven days are left out.
    """
    values: dict[str, Any] = {"projects": list(projects), "since": midnight(since), "until": as_of, "most_agents": MAX_AGENTS}
    rows = [RunRow(*row) for row in query_tuples(cursor, RUNS_QUERY, values)]
    by_project: dict[str, list[AgentRuns]] = {}
    for (project, agent), agent_rows in groupby(rows, lambda row: (row.project, row.agent)):
        runs = AgentRuns(agent or None, list(agent_rows), as_of)
        if runs.made_by:
            by_project.setdefault(project, []).append(runs)
    project_runs = {project: ProjectRuns(project, as_of, tuple(agents)) for project, agents in by_project.items()}
    return project_runs, values


SESSIONS_QUERY = "watched_sessions"
OVERALL = "overall"
SESSION_SERIES = tuple(f"{SESSION}{name}" for name in (OVERALL, *DIMENSIONS))
"""The series of judged sessions."""


class SessionRow(NamedTuple):
    """A row of the query `watched_sessions`; times are UTC and naive."""

    project: str
    ended_at: datetime
    yardstick: str
    judge_model: str
    simulated: bool
    weight: float
    scores: Mapping[str, float | None]
    """The overall score and those of the dimensions, by name, 0 to 10."""

    @property
    def made_by(self) -> tuple[Any, ...]:
        """The judge and the scale of the scores."""
        return self.yardstick, self.judge_model, self.simulated


class ProjectSessions:
    """The comparable judged sessions of one project, from its rows, oldest first."""

    def __init__(self, project: str, rows: Sequence[SessionRow], as_of: datetime) -> None:
        self.project = project
        self.as_of = as_of
        first = as_of.date() - timedelta(days=DAYS)
        most = find_most_common((row.made_by, 1, row.ended_at) for row in rows if row.ended_at.date() > first)
        self.made_by = {"judge_model": most[1], "yardstick": most[0]} if most else {}
        """The judge and the scale of the sessions that are compared; empty without judged sessions of the last days."""
        self._rows = [row for row in rows if row.made_by == most]

    def units(self, series: str) -> list[Unit]:
        """Return the sessions as units of a series, oldest first; times are UTC and naive."""
        return [Unit(row.ended_at, 1, row.weight, row.weight * score) for row, score in self._scores(series)]

    def days(self, series: str) -> dict[date, tuple[float, int]]:
        """Return the weighted daily means of a series with their numbers of sessions, oldest first."""
        sums: dict[date, tuple[float, float, int]] = {}
        for row, score in self._scores(series):
            weight, total, count = sums.get(row.ended_at.date(), (0.0, 0.0, 0))
            sums[row.ended_at.date()] = weight + row.weight, total + row.weight * score, count + 1
        return {day: (total / weight, count) for day, (weight, total, count) in sorted(sums.items())}

    @property
    def first_day(self) -> date:
        """The first day with comparable sessions."""
        return min(row.ended_at.date() for row in self._rows)

    def _scores(self, series: str) -> Iterator[tuple[SessionRow, float]]:
        for row in self._rows:
            score = row.scores.get(series.removeprefix(SESSION))
            if score is not None:
                yield row, score


def measure_sessions(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], since: date, as_of: datetime
) -> tuple[dict[str, ProjectSessions], dict[str, Any]]:
    """Measure the judged sessions of projects from a day to a moment, and return them with the parameters of the query.

    Projects without judged sessions of the last seven days are left out.
    """
    values: dict[str, Any] = {"projects": list(projects), "since": midnight(since), "until": as_of}
    rows = [SessionRow(*row) for row in query_tuples(cursor, SESSIONS_QUERY, values)]
    by_project = {
        project: ProjectSessions(project, list(project_rows), as_of)
        for project, project_rows in groupby(rows, lambda row: row.project)
    }
    return {project: sessions for project, sessions in by_project.items() if sessions.made_by}, values
