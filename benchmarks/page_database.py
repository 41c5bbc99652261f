# ruff: noqa: S608 - statements are made of our own text
"""A large database to read pages from: a fleet's scores, and over them runs, incidents and evaluations as the demo's are.

The scores are those of `bench_sql`: a thousand projects over the last ninety days, one of which has more than a third of everything. A
fifth of the sessions are finished runs, with the events and the diagnosis of a run of the demo each; one run has a hundred thousand
events. What is copied keeps its texts, so pages weigh what they weigh in earnest.
"""

import contextlib
import math
import os
import subprocess
import sys
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from analytics.sums.kept import RETENTION
from analytics.sums.list_sums import rebuild_outlines
from benchmarks.bench_sql import DAYS, MEMORY, fill
from service.server.supervisor import serving
from service.setup.workspace import utc_now
from streams.engine.engine import INTAKE

PROJECTS = 1000
SHARE = 40
"""Percent of the sessions that project-0 has."""
EVENTS_OF_HUGE_RUN = 100_000
INCIDENTS = 20_000
"""One in twenty is of project-0, and done with; one in five of the others waits for somebody."""
COOLED = ("scores", "exchanges", "judgements", "reviews")
EXAMPLES = Path("examples/evaluation")
_CHOSEN = """
    CREATE TEMP TABLE chosen AS
    SELECT
        row_number() OVER (ORDER BY min(exchange_at)) - 1 AS n, session_id, any_value(connection) AS connection,
        any_value(project) AS project, any_value(agent) AS agent, min(exchange_at) AS began
    FROM log.scores
    WHERE revision = 0 AND hash(session_id) % 5 = 0
    GROUP BY session_id"""
_TEMPLATES = """
    CREATE TEMP TABLE templates AS
    SELECT
        row_number() OVER (ORDER BY session_id) - 1 AS t, count(*) OVER () AS of, session_id, connection,
        coalesce(started_at, closed_at) AS began
    FROM seed.main.diagnoses
    WHERE session_id NOT IN (SELECT session_id FROM seed.log.evaluations)"""
_HUGE = """
    CREATE TEMP TABLE huge AS
    SELECT c.*, t.session_id AS template
    FROM (SELECT * FROM chosen WHERE project = 'project-0' ORDER BY n DESC LIMIT 1) AS c
    JOIN templates AS t ON t.t = c.n % t.of"""
_MOVED = "c.project AS project, c.connection AS connection, c.agent AS agent, c.session_id AS session_id"
_LATER = "to_microseconds(epoch_us(c.began) - epoch_us(t.began))"
_PAIRED = "FROM chosen AS c JOIN templates AS t ON t.t = c.n % t.of"
_COPIED = {
    "diagnoses": f"""
        INSERT INTO log.diagnoses BY NAME
        SELECT d.* REPLACE (
            {_MOVED}, row_number() OVER (ORDER BY c.n) AS _offset, d.started_at + {_LATER} AS started_at, d.ended_at + {_LATER} AS ended_at,
            d.closed_at + {_LATER} AS closed_at,
            if(c.session_id = (SELECT session_id FROM huge), $huge_events, d.event_count) AS event_count)
        {_PAIRED} JOIN seed.log.diagnoses AS d ON d.session_id = t.session_id AND d.connection = t.connection""",
    "events": f"""
        INSERT INTO log.agent_events BY NAME
        SELECT e.* REPLACE (
            {_MOVED}, c.n || '-' || e.event_id AS event_id, e.occurred_at + {_LATER} AS occurred_at, e.occurred_at + {_LATER} AS ingested_at,
            row_number() OVER (ORDER BY e.occurred_at + {_LATER}, c.n, e._offset) AS _offset)
        {_PAIRED} JOIN seed.log.agent_events AS e ON e.session_id = t.session_id AND e.connection = t.connection
        WHERE c.session_id <> (SELECT session_id FROM huge)
        ORDER BY _offset""",
    "events of the huge run": """
        INSERT INTO log.agent_events BY NAME
        SELECT e.* REPLACE (
            c.project AS project, c.connection AS connection, c.agent AS agent, c.session_id AS session_id,
            round || '-' || e.event_id AS event_id, round * 1000 + e.seq AS seq,
            c.began + to_milliseconds(20 * round) AS occurred_at, c.began + to_milliseconds(20 * round) AS ingested_at,
            (SELECT max(_offset) FROM log.agent_events) + row_number() OVER (ORDER BY round, e._offset) AS _offset)
        FROM huge AS c JOIN seed.log.agent_events AS e ON e.session_id = c.template, range($huge_events) AS rounds(round)
        WHERE round < $huge_events / (SELECT count(*) FROM seed.log.agent_events WHERE session_id = (SELECT template FROM huge))
        ORDER BY _offset
        LIMIT $huge_events""",
    # Without them the server would close half a million sessions at its first start.
    "ends of what was said": """
        INSERT INTO log.session_closings BY NAME
        SELECT
            'exchanges' AS _topic, 0 AS _partition, (SELECT max(_offset) FROM log.exchanges) + row_number() OVER () AS _offset,
            connection, any_value(project) AS project, any_value(agent) AS agent, session_id,
            max(occurred_at) + INTERVAL 12 HOUR AS closed_at, closed_at AS ingested_at, 'idle' AS reason
        FROM log.exchanges
        GROUP BY connection, session_id
        HAVING max(occurred_at) < (SELECT max(occurred_at) FROM log.exchanges) - INTERVAL 12 HOUR""",
    "ends of runs": """
        INSERT INTO log.session_closings BY NAME
        SELECT
            'agent-events' AS _topic, 0 AS _partition, (SELECT max(_offset) FROM log.agent_events) + row_number() OVER () AS _offset,
            connection, project, agent, session_id, closed_at, closed_at AS ingested_at, closed_reason AS reason
        FROM log.diagnoses""",
    "incidents": """
        INSERT INTO log.incidents BY NAME
        SELECT i.* REPLACE (
            md5(k || i.incident_id) AS incident_id, 'project-' || if(k % 20 = 0, 0, k % $projects) AS project,
            row_number() OVER () AS _offset, if(k % 25 < 5 AND k % 20 > 0, i.status, 'dismissed') AS status,
            i.detected_at - to_hours(k::INTEGER % 2000) AS detected_at, if(k % 25 < 5 AND k % 20 > 0, NULL, i.detected_at) AS resolved_at)
        FROM seed.main.incidents AS s JOIN seed.log.incidents AS i USING (incident_id, revision),
            range($incidents // (SELECT count(*) FROM seed.main.incidents)) AS numbers(k)
        ORDER BY i.detected_at - to_hours(k::INTEGER % 2000)""",
    "evaluations": """
        INSERT INTO log.evaluations BY NAME
        SELECT e.* EXCLUDE (place) REPLACE (
            c.project AS project, c.connection AS connection, c.agent AS agent, c.session_id AS session_id,
            md5(e.evaluation_id || c.n) AS evaluation_id, row_number() OVER () AS _offset, c.began AS run_at, c.began AS evaluated_at,
            e.case_id || '-' || c.n % 10 AS case_id)
        FROM (SELECT *, row_number() OVER (ORDER BY session_id) AS place FROM seed.log.evaluations) AS e
        JOIN chosen AS c ON c.n % 20 = 0 AND c.n // 20 % (SELECT count(*) FROM seed.log.evaluations) + 1 = e.place""",
    "requests": """
        INSERT INTO log.evaluation_requests BY NAME
        SELECT r.* REPLACE (
            c.project AS project, c.connection AS connection, c.session_id AS session_id,
            md5(r.evaluation_id || c.n) AS evaluation_id, row_number() OVER () AS _offset)
        FROM (SELECT *, row_number() OVER (ORDER BY session_id) AS place FROM seed.log.evaluations) AS e
        JOIN chosen AS c ON c.n % 20 = 0 AND c.n // 20 % (SELECT count(*) FROM seed.log.evaluations) + 1 = e.place
        JOIN seed.log.evaluation_requests AS r ON r.evaluation_id = e.evaluation_id AND r.attempt = e.revision""",
}


def make_seed(folder: Path) -> Path:
    """Return the demo in a folder, with the example's evaluations; answers its database."""
    database, log = folder / "demo.duckdb", folder.parent / "seed.log"
    _run("demo", "--dir", str(folder))
    with serving(["simulate-judge", "--port", "0"], {}, log) as judge:
        given = {"ANTHROPIC_BASE_URL": judge, "ANTHROPIC_API_KEY": "simulated", "DRIFTLINE_DATABASE": str(database)}
        _run("import", "events", str(EXAMPLES / "events.jsonl"), **given)
        _run("import", "openclaw", str(EXAMPLES), **given)
        for case in sorted((EXAMPLES / "cases").iterdir()):
            tags = {"overnight-alerts": "alerts", "refund-above-limit": "refunds", "rotate-certificate": "certificates"}
            asked = ["--case", str(case), "--profile", str(EXAMPLES / "profile.yaml"), "--tag", tags[case.stem], "--yes"]
            _run("evaluate", *asked, **given)
    return database


def make_large(path: Path, seed: Path, scores: int, hot_days: int = DAYS) -> None:
    """A database of so many scores, whose runs, incidents and evaluations are copies of those of the seed.

    What project-0's newest version does wrong, the rules themselves find. Of all but the last `hot_days`, only the sums are kept.
    """
    now = utc_now().replace(tzinfo=None)
    first = now - timedelta(days=DAYS)
    # Sums are of whole days, so each part but the first begins at midnight.
    midnights = [datetime.combine(now.date() - timedelta(days=days), time()) for days in range(hot_days, DAYS, hot_days)][::-1]
    starts = [0, *(math.ceil((midnight - first) / timedelta(days=DAYS) * scores) for midnight in midnights)]
    for midnight, (start, end) in zip([None, *midnights], pairwise([*starts, scores]), strict=True):
        if midnight is not None:
            _cool(path, midnight)
        fill(path, PROJECTS, scores, first, share=SHARE, part=range(start, end))
    copy_seed(path, seed)
    _run("check-drift", "--project", "project-0", "--db", str(path), "--policy", str(policy_beside(path)))


def _cool(path: Path, border: datetime) -> None:
    """Add up the records of a database, and delete those of them that are in a lake, all at once instead of by position."""
    with Store(path) as store:
        refresh_daily(store)
        with store.transaction() as transaction:
            for table in COOLED:
                transaction.connection.execute(f"DELETE FROM log.{table}")
            since = int(border.replace(tzinfo=UTC).timestamp() * 1_000_000)
            transaction.set_watermarks(RETENTION, {(f"project-{number}", 0): since for number in range(PROJECTS)})
        store.checkpoint()


def policy_beside(path: Path) -> Path:
    """Write the policy of a large database beside it: nothing is deleted."""
    policy = path.with_suffix(".yaml")
    policy.write_text("version: 1\ndefaults: {retentionDays: null, bidirectionalScoring: true}\n", encoding="utf-8")
    return policy


def copy_seed(path: Path, seed: Path) -> None:
    """Put runs, incidents and evaluations over the scores, copies of those of the seed, and add the scores up."""
    with Store(path) as store, contextlib.closing(store.cursor()) as cursor:
        cursor.execute(f"SET GLOBAL memory_limit = '{MEMORY}'")
        cursor.execute(f"ATTACH '{seed}' AS seed (READ_ONLY)")
        for statement in (_CHOSEN, _TEMPLATES, _HUGE):
            cursor.execute(statement)
        values = {"huge_events": EVENTS_OF_HUGE_RUN, "incidents": INCIDENTS, "projects": PROJECTS}
        for statement in _COPIED.values():
            cursor.execute(statement, {name: value for name, value in values.items() if f"${name}" in statement})
        cursor.execute("DETACH seed")
    with Store(path) as store:
        with store.transaction() as transaction:
            transaction.number_all_runs()
            rebuild_outlines(transaction.connection)
            transaction.set_watermark(INTAKE.name, INTAKE.source, store.end_of(INTAKE.source))
            for stage, source in (("diagnosis", "agent-events"), ("evaluation", "evaluation-requests")):
                transaction.set_watermark(stage, source, store.end_of(source))
        refresh_daily(store)
        store.checkpoint()


def _run(*arguments: str, **environment: str) -> None:
    """Run a command of ours to its end; an evaluation that has no score is no fault of it."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "service.cli.main", *arguments], env=os.environ | {"PYTHONPATH": str(Path.cwd())} | environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{arguments}: {done.stderr[-2000:]}")
