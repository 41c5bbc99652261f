# ruff: noqa: S608 - statements are made of our own text
"""The queries that come with the program over ten million scores, beside adding up the single scores.

Two databases: a fleet of a thousand projects, and one project that has all of it: scores over ninety days in sessions of twenty, a tenth of
them made again, with their exchanges and a judgement for every third. DRIFTLINE_BENCH_SCORES says how many scores.
"""

import os
import resource
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from analytics.adhoc import fetch_frame
from analytics.queries import queries
from analytics.store.connection import connect
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from benchmarks.measure import print_table

SCORES = int(os.environ.get("DRIFTLINE_BENCH_SCORES", "10000000"))
DAYS = 90
VERSION_DAYS = 14
FIRST = datetime(2026, 8, 1)  # noqa: DTZ001 - tables hold naive UTC
AS_OF = datetime(2026, 10, 29, 15)  # noqa: DTZ001 - as above
FLEETS = {"1 000 projects": 1000, "one project": 1}
ROUNDS = 3
MEMORY = "5GB"
"""The memory that DuckDB may take while a file is made."""
MAX_SECONDS = 1.0
"""Seconds that a query may take."""
WINDOW = {"as_of": AS_OF, "days": 14}
PAGE: Mapping[str, Any] = {
    "from": None, "to": None, "since": None, "session": None, "anomalies": False, "limit": 100,
    "after_at": None, "after_turn": None, "after_id": None, "agent": None, "version": None, "tool": None, "tool_error": None,
    "text": None, "blocks": None,
}  # fmt: skip
WATCHED = {"since": AS_OF - timedelta(days=90), "until": AS_OF, "coarse_until": AS_OF - timedelta(days=14)}
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "baseline": WINDOW,
    "daily_averages": WINDOW | {"agent": None},
    "trends": WINDOW,
    "drift_runs": WINDOW | {"days": 7},
    "anomaly_spikes": {"as_of": AS_OF},
    "drift_units": WINDOW,
    "sampling_mix": {},
    "tier_trend": {},
    "tier_change": {"since": AS_OF},
    "project_summary": {},
    "project_scores": PAGE,
    "project_scores, anomalies": PAGE | {"anomalies": True},
    "project_scores, since an hour before": PAGE | {"since": AS_OF - timedelta(hours=1)},
    "score_by_id": {"at": None},
    "agreement_pairs": {"from": None, "to": None, "times": None},
    "review_queue": {"rater": "rater", "skip": [], "class": None, "is_sampled": None},
    "review_queue, one stratum": {"rater": "rater", "skip": [], "class": "routine", "is_sampled": True},
    "review_strata": {"from": None, "to": None},
    "verdicts": {"scores": None, "judgements": None, "from": None, "to": None, "times": None},
    "anchor_candidates": {"count": 20},
    "watched_projects": {"since": AS_OF},
    "watched_hours": {"projects": ["project-0"]} | WATCHED,
    "watched_hours, fifty projects": {"projects": [f"project-{number}" for number in range(50)]} | WATCHED,
    "incident_exchanges": {
        "agent": None, "slice": None,
        "tier": "tier2", "since": AS_OF - timedelta(days=7), "until": AS_OF, "expected": 0.9, "direction": "down", "limit": 10,
    },
    "sampling_change": {
        "before_since": AS_OF - timedelta(days=21), "before_until": AS_OF - timedelta(days=7),
        "after_since": AS_OF - timedelta(days=7), "after_until": AS_OF,
    },
    "projects": {"as_of": AS_OF, "days": 7, "from": None, "to": None},
    "anomaly_reasons": {"from": None, "to": None},
    "daily_costs": WINDOW,
    "judge_costs": {"by": "day", "from": None, "to": None},
    "wrap_quality": {"limit": 100},
    "wrap_exchanges": {"projects": None, "limit": 100, "after_at": None, "after_id": None, "from": None, "to": None},
    "run_history": {"limit": 100, "from": None, "to": None},
    "trust_over_time": {},
}  # fmt: skip
"""The queries with their parameters, the project left out; after a comma, what is asked of them."""
NAIVE = f"""
    SELECT project, exchange_at::DATE AS day, count(*), avg(tier1_score), stddev_pop(tier1_score), avg(tier2_score), avg(tier3_score)
    FROM (SELECT * FROM log.scores QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1)
    WHERE ($project IS NULL OR project = $project) AND exchange_at >= TIMESTAMP '{AS_OF}' - INTERVAL 14 DAYS
        AND exchange_at < TIMESTAMP '{AS_OF}'
    GROUP BY ALL
"""
"""Two weeks of daily averages out of the current scores, as one would write it first."""
ROWS = """
    SELECT
        i, i // 20 AS session, hash(i) AS h, (i % 20)::INTEGER AS turn,
        if(hash(i // 20 + 1) % 100 < $share, 0, hash(i // 20) % $projects)::INTEGER AS p,
        $first::TIMESTAMP + to_microseconds((i * $step)::BIGINT) AS happened_at, md5(i::VARCHAR) AS digest,
        CASE WHEN turn < 5 THEN 'first_turns' WHEN turn % 3 = 0 THEN 'routine_sample' WHEN h % 50 = 0 THEN 'disagreement'
            ELSE 'sampling_skip' END AS reason,
        if(p % 10 = 0, 1 + (i * $step) // $version_lasts, NULL) AS version, p = 0 AND version >= 7 AND h % 4 = 0 AS refused
    FROM range($from::BIGINT, $to::BIGINT) AS numbers(i)
"""
"""The exchanges. Those of every tenth project name the version of their agent; the seventh of project-0's refuses every fourth."""
NAMED = "'c' || p AS connection, 'project-' || p AS project, 'agent-' || (p % 3) AS agent, 'session-' || session AS session_id"
FILLING = {
    "scores": f"""
        INSERT INTO log.scores BY NAME
        SELECT
            'scores' AS _topic, 0 AS _partition, $from + i AS _offset, digest::UUID::VARCHAR AS score_id, 0 AS revision,
            'exchange-' || i AS exchange_id, {NAMED}, turn + 1 AS turn_number, happened_at AS exchange_at, happened_at + INTERVAL 5 SECOND AS scored_at,
            if(reason = 'sampling_skip', reason, 'scored') AS disposition, reason AS sampling_reason,
            CASE reason WHEN 'sampling_skip' THEN NULL WHEN 'routine_sample' THEN 1 / 3 ELSE 1 END AS sampling_probability,
            1 - (h % 97 = 0 OR refused)::INTEGER / 3 AS tier1_score, if(refused, ['constraint_disclosure'], []) AS tier1_flags,
            if(reason = 'sampling_skip', 'skipped_sampling', 'scored') AS tier2_state,
            CASE WHEN reason <> 'sampling_skip' THEN 0.7 + (h % 300) / 1000 - if(refused, 0.5, 0) END AS tier2_score, [] AS tier2_dimensions,
            if(refused AND reason <> 'sampling_skip', 'It refuses without a reason.', NULL) AS tier2_flag_reason,
            'not_applicable' AS tier2_5_state, if(turn < 5, 'scored', 'skipped_gate') AS tier3_state,
            CASE WHEN turn < 5 THEN 2 + (h % 10) / 3.5 END AS tier3_score, [] AS tier3_dimensions, h % 97 = 0 AS anomaly,
            [] AS anomaly_reasons, 'judge' AS judge_model, false AS simulated, [] AS judgement_ids, 0.001 AS cost_usd,
            'default' AS methodology, '1' AS methodology_version, 'd' AS methodology_digest, '1' AS rule_version,
            'p' AS policy_digest, 'e' AS evidence_digest, 0 AS dropped_quotes
        FROM ({ROWS})""",
    "scores that are made again": """
        INSERT INTO log.scores BY NAME
        SELECT * REPLACE (
            1 AS revision, $from + $to - 1 + row_number() OVER (ORDER BY _offset) AS _offset, 'last_turns' AS sampling_reason,
            'scored' AS disposition, 1.0 AS sampling_probability, 'scored' AS tier2_state, 0.8 AS tier2_score)
        FROM log.scores WHERE turn_number >= 19 AND _offset >= 2 * $from::BIGINT""",
    "exchanges": f"""
        INSERT INTO log.exchanges BY NAME
        SELECT
            'exchanges' AS _topic, 0 AS _partition, i AS _offset, 'exchange-' || i AS exchange_id, {NAMED}, happened_at AS occurred_at,
            happened_at AS ingested_at, 'Is the backup of table ' || h % 1000 || ' healthy?' AS user_message,
            if(refused, 'I cannot help with that.', 'It is. Changelog and next steps are written down.') AS agent_response, 'answered' AS outcome,
            false AS multi_user, [] AS tags, if(version IS NULL, [], [{{'name': 'agent_version', 'value': version::VARCHAR}}]) AS labels, [] AS redactions,
            digest AS content_digest
        FROM ({ROWS})""",
    "judgements": f"""
        INSERT INTO log.judgements BY NAME
        SELECT
            'judgements' AS _topic, 0 AS _partition, i AS _offset, digest AS judgement_id, digest AS fingerprint, {NAMED.replace("'agent-' || (p % 3) AS agent, ", "")},
            'exchange-' || i AS subject_id, 0 AS subject_revision, [] AS reservation_ids, [] AS attempt_errors, 'tier2' AS purpose, 'judge' AS requested_model, 'answered' AS outcome, 1 AS attempts,
            1000 AS input_tokens, 100 AS output_tokens, 0.001 AS cost_usd, false AS batched, false AS simulated, happened_at AS judged_at
        FROM ({ROWS}) WHERE h % 3 = 0""",
    "reviews": """
        INSERT INTO log.reviews BY NAME
        SELECT
            'reviews' AS _topic, 0 AS _partition, _offset, 'review-' || _offset AS review_id, project, 'human_score' AS kind,
            score_id AS subject_id, 'rater' AS reviewer, 1 + _offset % 5 AS score, exchange_at AS occurred_at, exchange_at AS ingested_at
        FROM log.scores WHERE _offset % 5000 = 0 AND _offset >= 2 * $from::BIGINT""",
    "baselines": """
        INSERT INTO log.baselines BY NAME
        SELECT
            'baselines' AS _topic, 0 AS _partition, p AS _offset, 'b' || p AS baseline_id, 'project-' || p AS project,
            $first::TIMESTAMP AS computed_at, $first::TIMESTAMP AS window_start, $first::TIMESTAMP AS window_end,
            {'mean': 0.99, 'stddev': 0.04, 'count': 100} AS tier1, {'mean': 0.9, 'stddev': 0.01, 'count': 100} AS tier2,
            {'mean': NULL, 'stddev': NULL, 'count': 0} AS tier2_5, {'mean': 3.2, 'stddev': 0.8, 'count': 100} AS tier3,
            0.01 AS anomaly_rate, 100 AS exchange_count, 'p' AS policy_digest, '' AS yardstick
        FROM range($projects) AS numbers(p) WHERE $from = 0""",
}


def fill(
    path: Path, projects: int, scores: int = SCORES, first: datetime = FIRST, *, share: int = 0, part: range | None = None
) -> None:
    """Fill a database with so many scores of so many projects, over ninety days from the first, or with a part of them.

    `share` percent of all are the first project's.
    """
    part = part or range(scores)
    with Store(path) as store, store.transaction() as transaction:
        transaction.connection.execute(f"SET GLOBAL memory_limit = '{MEMORY}'")
        values = {
            "projects": projects,
            "from": part.start,
            "to": part.stop,
            "first": first,
            "step": DAYS * 86_400_000_000 // scores,
            "version_lasts": VERSION_DAYS * 86_400_000_000,
            "share": share,
        }
        for statement in FILLING.values():
            used = {name: value for name, value in values.items() if f"${name}" in statement}
            transaction.connection.execute(statement, used)


class Cost(NamedTuple):
    """The time that asking once took, in seconds.

    The processor's time is that of all threads, and does not grow with other load on the machine.
    """

    wall: float
    processor: float


def cost(connection: duckdb.DuckDBPyConnection, statement: str, values: Mapping[str, Any]) -> Cost:
    """Measure a statement until its answer is a frame."""
    start, used = time.perf_counter(), time.process_time()
    fetch_frame(connection.sql(statement, params=dict(values)))
    return Cost(time.perf_counter() - start, time.process_time() - used)


def timed(path: Path, statement: str, values: Mapping[str, Any]) -> tuple[Cost, Cost]:
    """Return the first time in a database that was just opened, and the fastest of the next ones."""
    with connect(path) as connection:
        first = cost(connection, statement, values)
        return first, min(cost(connection, statement, values) for _ in range(ROUNDS))


def one_score(path: Path) -> str:
    """Return the id of a score of the project that is asked about."""
    with connect(path) as connection:
        ((score_id,),) = connection.execute("SELECT max(score_id) FROM log.scores WHERE project = 'project-0'").fetchall()
    return str(score_id)


def measure_queries(path: Path, projects: int) -> list[list[str]]:
    """Return a row for each query: for one project and, where it can be asked so and there are several, for all."""
    rows = [_row("two weeks by day, out of the single scores", timed(path, NAIVE, {"project": "project-0"}))]
    for label, values in PARAMETERS.items():
        name, _, how = label.partition(",")
        query = queries()[name]
        extra = {"score": one_score(path)} if "score" in query.parameters else {}
        of_one = {"project": "project-0"} if "project" in query.parameters else {}
        rows.append(_row(f"`{name}`{how and ','}{how}", timed(path, query.text, {**values, **extra, **of_one})))
        if projects > 1 and "project" in query.optional:
            rows.append(
                _row(f"`{name}`{how and ','}{how}, all projects", timed(path, query.text, {**values, **extra, "project": None}))
            )
    return rows


def _row(label: str, costs: tuple[Cost, Cost]) -> list[str]:
    first_run, best_run = costs
    milliseconds = [f"{seconds * 1000:,.0f}" for seconds in (first_run.wall, best_run.wall, best_run.processor)]
    return [label, *milliseconds, "yes" if best_run.wall < MAX_SECONDS else "no"]


def main() -> None:
    """Print how long it takes to add the days up, and the milliseconds of every query, the first time and again."""
    for name, projects in FLEETS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fleet.duckdb"
            fill(path, projects)
            with Store(path) as store:
                start = time.perf_counter()
                days = len(refresh_daily(store))
                first_refresh = time.perf_counter() - start
                start = time.perf_counter()
                refresh_daily(store)
                second_refresh = time.perf_counter() - start
                sums = store.cursor().execute("SELECT count(*) FROM log.daily_scores").fetchall()[0][0]
                store.checkpoint()
            size = path.stat().st_size / 1e6
            rows = measure_queries(path, projects)
        print(f"### {name}\n")
        print(
            f"{SCORES:,} scores, {size:,.0f} MB. Adding up {days:,} days of projects into {sums:,} rows took {first_refresh:.1f} s; "
            f"finding that nothing came since {second_refresh * 1000:.0f} ms.\n"
        )
        print_table(["query", "first, ms", "again, ms", "of the processor, ms", "under a second"], rows)
        print(flush=True)
    print(f"Peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB, load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
