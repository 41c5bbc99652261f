"""What to ask the demo's database next: commands that can be copied as they stand."""

from __future__ import annotations

import shlex
from pathlib import Path

from service.deliveries import OPERATOR
from service.dialogues import PROJECTS, WORSE_AGENT

QUERIES = (
    "SELECT agent, count(*) AS runs, avg(trust_score)::INT AS trust FROM diagnoses GROUP BY agent ORDER BY trust",
    "SELECT c.type, c.severity, count(*) AS sessions FROM diagnoses, unnest(failure_causes) AS u(c) GROUP BY ALL ORDER BY ALL",
    "SELECT exchange_at::DATE AS day, avg(tier2_score) AS tier2 FROM scores WHERE project = 'support' GROUP BY day ORDER BY day",
)
"""Questions to begin with, without a character that a shell reads inside of double quotes; a test runs each."""


def next_steps(program: str, database: Path, policy: Path, run: str, session: str) -> list[str]:
    """Commands, each below a comment that says what it shows.

    `program` is how the reader starts the command line; the run and the session are those to look at first.
    """
    of, by = f"--db {shlex.quote(str(database))}", f"--policy {shlex.quote(str(policy))}"
    steps = [
        ("one of the failed sessions, with causes and evidence", f"run {run} {of}"),
        ("every finished session", f"runs {of}"),
        (f"what {WORSE_AGENT} did", f"scores --anomalies --project {PROJECTS[WORSE_AGENT]} {of}"),
        ("the drift that was found, with since when and how much", f"incidents list {of}"),
        ("the session of the worst exchange, turn by turn", f"scores --session {session} {of}"),
        ("what judging cost", f"costs --by project {of}"),
        ("and when", f"costs --by day {of}"),
        ("how sessions were wrapped up", f"wrap-quality --project {PROJECTS['code-review']} {of}"),
        ("what judging the transcripts would cost", f"rejudge --dry-run {of} {by}"),
        *[("SQL of your own", f'sql "{query}" {of}') for query in QUERIES],
        ("a token for the server", f"operators rotate {OPERATOR} {of}"),
        ("the server; its address and /docs", f"serve {of} {by}"),
    ]
    return [line for words, command in steps for line in (f"# {words}", f"{program} {command}")]
