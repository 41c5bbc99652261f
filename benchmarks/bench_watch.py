# ruff: noqa: S608 - statements are made of our own text
"""Drift checks from hourly sums, beside checks that sum the single scores.

One project with 100 days of 100 000 scores, one with 90 days of 50, and a fleet of a thousand of the latter; four tiers, sessions of
twenty and of five, one score in twenty made again. DRIFTLINE_BENCH_SHARE makes all of them smaller.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from analytics.store.connection import fetch
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from analytics.sums.kept import current_scores_sql, daily_sums_sql
from audit.policy import Policy
from benchmarks.measure import print_table
from benchmarks.one_by_one import ONE_BY_ONE
from streams.watch.checking import Checker
from streams.watch.evidence import UNEXPLAINED
from streams.watch.measures import ProjectScores, measure_scores
from streams.watch.rounds import PROJECT_BATCH_SIZE
from streams.watch.rules import ALL_RULES, LOOK_BACK_DAYS, RuleInput
from streams.watch.watching import KnownRecords

SHARE = float(os.environ.get("DRIFTLINE_BENCH_SHARE", "1"))
FIRST = datetime(2026, 1, 5, tzinfo=UTC)
DAYS_READ_BEFORE = 97
"""Days that a check of single scores read."""
ROUNDS = 3
MEMORY = "5GB"
"""Memory limit of DuckDB."""
NEW_SCORES = 100_000
"""New scores of a refresh."""
PENDING_SCORES = 500
"""Scores that arrived after the last refresh."""
_NORMAL = "sqrt(-2 * ln((hash(i, {seed}) % 999983 + 1) / 999984)) * cos(2 * pi() * (hash(i, {seed} + 100) % 999983) / 999983)"
_FILL = f"""
    INSERT INTO log.scores BY NAME
    SELECT
        'scores' AS _topic, 0 AS _partition, $offset + i AS _offset, md5(($offset + i)::VARCHAR)::UUID::VARCHAR AS score_id, 0 AS revision,
        'exchange-' || ($offset + i) AS exchange_id, 'c' || p AS connection, 'project-' || p AS project,
        'session-' || day || '-' || k // $length AS session_id, k % $length + 1 AS turn_number, happened_at AS exchange_at,
        happened_at + INTERVAL 5 SECOND AS scored_at, 'scored' AS disposition, 'routine_sample' AS sampling_reason, 1 / 3 AS sampling_probability,
        1 - (hash(i, 5) % 97 = 0)::INTEGER / 3 AS tier1_score, [] AS tier1_flags,
        'scored' AS tier2_state, greatest(0, least(1, 0.7 + 0.1 * {_NORMAL.format(seed=1)})) AS tier2_score, [] AS tier2_dimensions,
        'scored' AS tier2_5_state, greatest(0, least(1, 0.6 + 0.1 * {_NORMAL.format(seed=2)})) AS tier2_5_alignment,
        'scored' AS tier3_state, greatest(1, least(5, 3 + 0.5 * {_NORMAL.format(seed=3)})) AS tier3_score, [] AS tier3_dimensions,
        hash(i, 5) % 97 = 0 AS anomaly, [] AS anomaly_reasons, 'judge' AS judge_model, false AS simulated, [] AS judgement_ids, 0.001 AS cost_usd,
        'default' AS methodology, '1' AS methodology_version, 'd' AS methodology_digest, 'eval-4' AS rule_version,
        'p' AS policy_digest, 'e' AS evidence_digest
    FROM (
        SELECT i, p, k, day, $first::TIMESTAMP + to_days(day) + to_microseconds((k * 86400000000 // $a_day)::BIGINT) AS happened_at
        FROM (
            SELECT i, i % $projects AS p, (i // $projects) % $a_day AS k, (i // ($projects * $a_day))::INTEGER AS day
            FROM range($projects * $a_day * $days) AS numbers(i)
        )
    )"""
_AGAIN = """
    INSERT INTO log.scores BY NAME
    SELECT * REPLACE (1 AS revision, $end + row_number() OVER (ORDER BY _offset) AS _offset, 1.0 AS sampling_probability)
    FROM log.scores WHERE _offset % 20 = 19"""


class Project(NamedTuple):
    """The size of each of some projects."""

    days: int
    a_day: int
    length: int
    """Scores of a session."""

    @property
    def as_of(self) -> datetime:
        """Return the last microsecond of its last day."""
        return FIRST + timedelta(days=self.days) - timedelta(microseconds=1)


class Cost(NamedTuple):
    """The seconds of a call. The processor time is that of all threads and does not depend on other load."""

    wall: float
    processor: float

    @property
    def shown(self) -> list[str]:
        """Return both times in milliseconds."""
        return [f"{seconds * 1000:,.0f}" for seconds in self]


def fill(store: Store, project: Project, projects: int = 1) -> None:
    """Fill a store with the scores of some projects."""
    with store.transaction() as transaction:
        transaction.connection.execute(f"SET GLOBAL memory_limit = '{MEMORY}'")
        values = project._asdict() | {"projects": projects, "first": FIRST.replace(tzinfo=None), "offset": 0}
        transaction.connection.execute(_FILL, values)
        transaction.connection.execute(_AGAIN, {"end": 2 * project.days * project.a_day * projects})


def publish(store: Store, project: Project, count: int) -> None:
    """Append scores of the first project: many on the day after its last day, few late on the last day."""
    with store.transaction() as transaction:
        day = FIRST + timedelta(days=project.days if count >= NEW_SCORES else project.days - 1)
        values = {"projects": 1, "a_day": count, "days": 1, "length": project.length, "first": day.replace(tzinfo=None)}
        end = transaction.connection.execute("SELECT max(_offset) + 1 FROM log.scores").fetchall()[0][0]
        transaction.connection.execute(_FILL, values | {"offset": end})


def cost(run: Callable[[], object], rounds: int = ROUNDS) -> Cost:
    """Return the smallest cost of some rounds."""
    costs = []
    for _ in range(rounds):
        start, used = time.perf_counter(), time.process_time()
        run()
        costs.append(Cost(time.perf_counter() - start, time.process_time() - used))
    return min(costs, key=lambda cost_of_round: cost_of_round.processor)


def count_findings(measured: ProjectScores, parameters: dict[str, Any]) -> int:
    """Count the findings of the rules in a measurement."""
    case = RuleInput(measured, None, {}, parameters)
    return sum(1 for rule in ALL_RULES.values() for _ in rule(case))


def from_scores(
    cursor: duckdb.DuckDBPyConnection, project: str, as_of: datetime, days: int = DAYS_READ_BEFORE
) -> ProjectScores:
    """Measure a project from its single scores."""
    values = query_parameters(project, as_of, days)
    return ProjectScores(project, fetch(cursor, ONE_BY_ONE, values), as_of)


def from_sums(cursor: duckdb.DuckDBPyConnection, project: str, as_of: datetime) -> ProjectScores:
    """Measure a project as a check does."""
    return measure_scores(cursor, [project], _since(as_of, LOOK_BACK_DAYS), as_of)[0][project]


def query_parameters(project: str, as_of: datetime, days: int) -> dict[str, Any]:
    """Return the parameters of the query over some days."""
    since = datetime.combine(_since(as_of, days), datetime.min.time())
    return {"projects": [project], "since": since, "until": as_of, "coarse_until": as_of - timedelta(days=14)}


def _since(as_of: datetime, days: int) -> date:
    return as_of.date() - timedelta(days=days)


def compare_checks(store: Store, project: Project) -> list[list[str]]:
    """Return rows that compare checks of a project: from single scores, from hourly sums, and with pending scores."""
    as_of, name = project.as_of, "project-0"
    with closing(store.cursor()) as cursor:
        from_single_scores = cost(lambda: count_findings(from_scores(cursor, name, as_of), {}))
        reading = cost(lambda: from_sums(cursor, name, as_of))
        from_hours = cost(lambda: count_findings(from_sums(cursor, name, as_of), {}))
    publish(store, project, PENDING_SCORES)
    with closing(store.cursor()) as cursor:
        with_pending = cost(lambda: count_findings(from_sums(cursor, name, as_of), {}))
    rows = {
        "adding up single scores, 97 days (before)": from_single_scores,
        "sums by the hour, 406 days": from_hours,
        "of it reading": reading,
        f"with {PENDING_SCORES} scores of the last day not yet added up": with_pending,
    }
    return [
        [label, *cost_of_check.shown, f"{cost_of_check.processor / from_single_scores.processor:.3f}"]
        for label, cost_of_check in rows.items()
    ]


def compare_refreshes(store: Store, project: Project) -> list[list[str]]:
    """Return rows that compare a refresh of a day with many new scores with its daily sums alone."""
    refresh_daily(store)
    publish(store, project, NEW_SCORES)
    day = project.as_of.date() + timedelta(days=1)
    of_day = current_scores_sql(f"log.scores WHERE exchange_at >= '{day}' AND project IN ('project-0')")
    with closing(store.cursor()) as cursor:
        alone = cost(lambda: cursor.execute(f"CREATE OR REPLACE TEMP TABLE alone AS {daily_sums_sql(f'({of_day})')}"))
    both = cost(lambda: refresh_daily(store), rounds=1)
    rows = {"sums by day alone (before), nothing written": alone, "sums by day and hour": both}
    return [[label, *one.shown, f"{one.processor / alone.processor:.2f}"] for label, one in rows.items()]


def measure_reading(store: Store, project: Project, names: Sequence[str]) -> Cost:
    """Return the cost of reading the hours of some projects at once."""
    with closing(store.cursor()) as cursor:
        return cost(lambda: measure_scores(cursor, names, _since(project.as_of, LOOK_BACK_DAYS), project.as_of))


def measure_round(store: Store, project: Project, names: Sequence[str]) -> tuple[Cost, int]:
    """Return the cost of one round of checks of a fleet, and its number of findings."""
    checker = Checker(Policy(), lambda *_: UNEXPLAINED)
    finding_counts: list[int] = []

    def check(part: Sequence[str]) -> None:
        with closing(store.cursor()) as cursor:
            finding_counts.extend(
                len(check.findings) for check in checker.check(cursor, part, project.as_of, KnownRecords({}, {}))
            )

    spent = cost(
        lambda: [check(names[start : start + PROJECT_BATCH_SIZE]) for start in range(0, len(names), PROJECT_BATCH_SIZE)],
        rounds=1,
    )
    return spent, sum(finding_counts)


def print_project(title: str, project: Project, *, fresh: bool = False) -> None:
    """Print the table of one project."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.duckdb"
        with Store(path) as store:
            fill(store, project)
            store.checkpoint()
            scores = path.stat().st_size
            filling = cost(lambda: refresh_daily(store), rounds=1)
            store.checkpoint()
            hour_count = store.cursor().execute("SELECT count(*) FROM log.hourly_scores").fetchall()[0][0]
            print(f"### {title}\n")
            print(
                f"{project.days * project.a_day:,} scores and {hour_count:,} hours; the sums take {(path.stat().st_size - scores) / 1e6:,.1f} MB"
                f" of {path.stat().st_size / 1e6:,.0f}. Filling them took {filling.processor:.1f} s of processor.\n"
            )
            header = ["check", "wall, ms", "processor, ms", "times before"]
            print_table(header, compare_checks(store, project))
            print()
            if fresh:
                print_table([f"adding up a day of {NEW_SCORES:,} new scores", *header[1:]], compare_refreshes(store, project))
                print()


def print_fleet(project: Project, projects: int) -> None:
    """Print the cost of a round of checks of a fleet."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "fleet.duckdb") as store:
        fill(store, project, projects)
        refresh_daily(store)
        store.checkpoint()
        with closing(store.cursor()) as cursor:
            single_scores = cost(lambda: from_scores(cursor, "project-0", project.as_of))
        names = [f"project-{number}" for number in range(projects)]
        reading_cost = measure_reading(store, project, names[:PROJECT_BATCH_SIZE])
        spent, finding_count = measure_round(store, project, names)
    print(f"### A fleet: {projects:,} projects x {project.days} days of {project.a_day} scores\n")
    print(
        f"A round of checks takes {spent.wall:.1f} s, {spent.processor:.1f} s of processor: {1000 * spent.processor / projects:.1f} ms a"
        f" project, {finding_count} findings. Reading {len(names[:PROJECT_BATCH_SIZE])} of them at once takes {1000 * reading_cost.processor / len(names[:PROJECT_BATCH_SIZE]):.1f} ms a project. Adding up the single scores of one of them took {1000 * single_scores.processor:.0f} ms alone.\n"
    )


def main() -> None:
    """Print the cost of checks."""
    print_project("One project, 100 days of 100 000 scores", Project(100, max(2000, round(100_000 * SHARE)), 20), fresh=True)
    small = Project(90, 50, 5)
    print_project("One project, 90 days of 50 scores", small)
    print_fleet(small, max(2, round(1000 * SHARE)))
    print(f"Load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
