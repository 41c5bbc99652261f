"""Next steps for the demo's database: commands to copy."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from service.demo.conversations import PROJECTS
from service.demo.releases import WORSE_AGENT

PROGRAM = "driftline"
QUERIES = (
    (
        "agents by trust, lowest first",
        "SELECT agent, count(*) AS runs, avg(trust_score)::INT AS trust FROM diagnoses WHERE event_count > 0 GROUP BY agent ORDER BY trust",
    ),
    (
        "failures by type, with their number",
        "SELECT c.type, c.severity, count(*) AS sessions FROM diagnoses, unnest(failure_causes) AS u(c) GROUP BY ALL ORDER BY ALL",
    ),
    (
        "drift by day",
        (
            "SELECT exchange_at::DATE AS day, round(avg(tier2_score), 2) AS tier2 FROM scores WHERE project = 'support' "
            "GROUP BY day ORDER BY day"
        ),
    ),
)
"""Example queries in SQL, each with its purpose. None contains a character that a shell interprets inside double quotes."""


def next_steps(program: str, database: Path, run: str, session: str, policy: Path) -> list[str]:
    """Return commands that query the database, each below a comment with its purpose.

    `program` is how the reader starts the command line; the run and the session are those to look at first.
    """
    of, by = f"--db {shlex.quote(str(database))}", f"--policy {shlex.quote(str(policy))}"
    steps = [
        ("one of the failed sessions, with causes and evidence", f"run {run} {of}"),
        ("all finished sessions", f"runs {of}"),
        (f"what {WORSE_AGENT} did", f"scores --anomalies --project {PROJECTS[WORSE_AGENT]} {of}"),
        ("incidents of drift: since when, and how much", f"incidents list {of}"),
        ("the session of the worst exchange, turn by turn", f"scores --session {session} {of}"),
        ("what judging cost", f"costs --by project {of}"),
        ("how well sessions were wrapped up", f"wrap-quality --project {PROJECTS['code-review']} {of}"),
        ("what judging the transcripts would cost", f"rejudge --dry-run {of} {by}"),
        *[(f"SQL: {words}", f'sql "{query}" {of}') for words, query in QUERIES],
    ]
    return typed(program, steps)


def pages_steps(program: str, database: Path, policy: Path | None, as_of: date | None = None) -> list[str]:
    """Return commands that lead to the pages, as of a day if one is given."""
    of = f"--db {shlex.quote(str(database))}"
    by = "" if policy is None else f" --policy {shlex.quote(str(policy))}"
    then = "" if as_of is None else f" --as-of {as_of}"
    return typed(
        program,
        [
            ("a token to sign in with; it is shown once", f"operators add me {of}"),
            ("the server: open the address it prints, and paste the token; Ctrl-C stops it", f"serve {of}{by}{then}"),
        ],
    )


def typed(program: str, steps: Iterable[tuple[str, str]]) -> list[str]:
    """Return commands to copy, each below a comment with its purpose."""
    return [line for words, command in steps for line in (f"# {words}", f"{program} {command}")]


def program_name() -> str:
    """Return how the reader starts the command line: by its name if that is on the path, else as it was started."""
    if shutil.which(PROGRAM):
        return PROGRAM
    started = Path(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m service.cli.main" if started.suffix == ".py" else shlex.quote(str(started))
