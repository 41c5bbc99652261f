"""Checks of a project for drift: the absence of incidents is stated as what it is.

A check looks at projects with exchanges of late, as of a moment. No incident is good news only where a check was made, at a history that
is as long as a whole baseline's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from analytics.queries import query_rows
from audit.policy.policy import Policy
from schemas.lazy.duckdb import duckdb
from service.text.rounding import counted, grouped
from service.text.window import LENGTHS, RECENT, recent_window

CheckState = Literal["off", "nothing", "never", "behind", "learning", "quiet", "found"]
"""The result of checking a project.

off: the policy does not have it audited; nothing: it has no scores; never: not checked yet; behind: exchanges came since the
check; learning: the history is shorter than a whole baseline's; quiet: nothing was found; found: the rules saw something.
"""
Row = Mapping[str, Any]
RECENT_DAYS = LENGTHS[RECENT].days
"""Days that count as the last ones of a project: those up to today."""
COUNTS = (
    *("exchanges", "scores", "scored", "anomalies", "simulated", "runs", "runs_with_evidence"),
    *("open_incidents", "critical_incidents", "acknowledged_incidents", "suspected_incidents"),
)
"""The totals of a project in the query `projects`."""
_RECENT = (
    *("recent_scores", "recent_anomalies", "recent_scored", "recent_unscored", "recent_unsafe_runs", "recent_runs"),
    *("before_scores", "before_anomalies", "before_scored", "before_unscored"),
)
_UNKNOWN = (
    *("before_cost_usd", "before_tier1", "before_tier2", "before_tier2_5", "before_tier3"),
    *("last_score_day", "recent_cost_usd", "recent_tier1", "recent_tier2", "recent_tier2_5", "recent_tier3"),
    *("last_exchange_at", "last_run_at", "checked_at", "check_days", "baseline_days", "check_findings"),
)
EMPTY_PROJECT: Row = dict.fromkeys((*COUNTS, *_RECENT), 0) | dict.fromkeys(_UNKNOWN)
"""The row of an unknown project."""
UNSCORED_SHARE = 1 / 3
"""Share of the exchanges due to be judged from which on missing scores make a comparison doubtful."""
_LATE = timedelta(days=1)
"""Exchanges from this long after the day of the check have not been checked, and not only since midnight."""


def check_state(row: Row) -> CheckState:
    """Return the result of checking a project, from its row of the query `projects` with `enabled`."""
    at = row["checked_at"]
    newest = row["last_score_day"]
    states: tuple[tuple[CheckState, bool], ...] = (
        ("off", not row["enabled"]),
        ("nothing", at is None and not row["scores"]),
        ("never", at is None),
        ("behind", at is not None and newest is not None and newest - at.date() > _LATE),
        ("found", bool(row["check_findings"])),
        ("learning", at is not None and row["check_days"] < row["baseline_days"]),
    )
    return next((state for state, holds in states if holds), "quiet")


def check_words(row: Row) -> str:
    """Say the same in a sentence or two."""
    return _WORDS[check_state(row)](row)


def check_by_hand(row: Row) -> date | None:
    """Return the day to check a project by hand as of, the one after its newest score; None if checked or impossible."""
    newest: date | None = row["last_score_day"]
    if check_state(row) not in {"never", "behind"} or newest is None:
        return None
    return newest + timedelta(days=1)


def asked_of_projects(project: str | None, now: datetime, until: date | None = None) -> dict[str, Any]:
    """Return the parameters of the query `projects`: of one or of all, with the figures of the days up to today, or to another day."""
    recent = recent_window(now, until)
    return {"project": project, "as_of": now, "from": recent.start, "to": recent.end}


def check_rows(cursor: duckdb.DuckDBPyConnection, policy: Policy, now: datetime, project: str | None = None) -> Sequence[Row]:
    """Return the rows of the query `projects`, of one or of all, each with whether it is `enabled`."""
    rows = query_rows(cursor, "projects", asked_of_projects(project, now))
    return [{**row, "enabled": policy.for_project(row["project"]).settings.enabled} for row in rows]


def check_row(cursor: duckdb.DuckDBPyConnection, policy: Policy, now: datetime, project: str) -> Row:
    """Return the row of one project; that of an empty one if it is unknown."""
    enabled = policy.for_project(project).settings.enabled
    return next(iter(check_rows(cursor, policy, now, project)), {"project": project, **EMPTY_PROJECT, "enabled": enabled})


def last_until(row: Row) -> date | None:
    """Return the newest day with a score of a project that has none in its recent days; None otherwise, and without an older one.

    `row` is one of a fleet.
    """
    newest: date | None = row["last_score_day"]
    return newest if newest is not None and not row["recent_scores"] and newest < row["recent_until"] else None


def unchecked_words(rows: Sequence[Row]) -> str:
    """Say of the projects without an incident how many were checked and quiet, and what the others are."""
    if len(rows) == 1:
        return check_words(rows[0])
    quiet = sum(check_state(row) in {"quiet", "found"} for row in rows)
    others = [f"{row['project']}: {check_words(row)}" for row in rows if check_state(row) not in {"quiet", "found"}]
    return " ".join([f"{counted(quiet, 'project')} checked.", *others])


def blind_spots(cursor: duckdb.DuckDBPyConnection, rows: Sequence[Row], project: str | None = None) -> dict[str, list[str]]:
    """Say what of each project is not compared, and why: by its newest check, and by how many of its latest scores are missing.

    `rows` are those of the projects; `project` is the only one to read, None for all. A project of which all is compared has an empty list.
    """
    words = {row["project"]: _unscored_words(row) for row in rows}
    for spot in query_rows(cursor, "blind_spots", {"project": project}):
        if spot["project"] in words:
            words[spot["project"]].append(spot_words(spot))
    return words


def spot_words(spot: Row) -> str:
    """Say one blind spot in words."""
    return _BLIND[spot["reason"]](spot)


def _unscored_words(row: Row) -> list[str]:
    unscored, due = row["recent_unscored"], row["recent_scored"] + row["recent_unscored"]
    if not due or unscored < UNSCORED_SHARE * due or "unscored" in row.get("reasons", ()):
        return []  # few, or said already as a reason of the project's health
    exchanges = f"{grouped(unscored)} of {grouped(due)} exchanges of the last {RECENT_DAYS} days that were due to be judged"
    return [f"{exchanges} have no score: what is compared may differ from them."]


def moment_words(at: datetime | None) -> str:
    """Write a moment to the minute, UTC; nothing for None."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _since(spot: Row) -> str:
    return f"{spot['since'].astimezone(UTC):%Y-%m-%d}"


_BLIND: Mapping[str, Callable[[Row], str]] = {
    "new_judge": lambda spot: (
        f"Judged tiers are not compared since {_since(spot)}, because {spot['subject']} judges since then: comparisons begin once it has "
        f"scores of {spot['of']} days; it has {spot['count']}. Tier 1 and runs are compared as before."
    ),
    "other_judges": lambda spot: (
        f"{grouped(spot['count'])} of {grouped(spot['of'])} judged exchanges of the last 7 days are not compared, because another judge "
        f"scored them: {spot['subject']}."
    ),
    "few_days": lambda spot: (
        f"Not compared yet, because there are scores on {counted(spot['count'], 'day')} only: a change needs {spot['of']} days before it."
    ),
    "agents_beyond_limit": lambda spot: (
        f"Runs of {spot['count']} of {spot['of']} agents are not compared, because only the agents with the most runs are"
        + (f": {spot['subject']}." if spot["subject"] else ".")
    ),
    "agent_stopped": lambda spot: (
        f"{spot['subject']} is not compared since {_since(spot)}, because it has no exchanges since then; it had some on "
        f"{spot['count']} of the {spot['of']} days before."
    ),
}
"""A blind spot in words, by its reason."""
_WORDS: Mapping[CheckState, Callable[[Row], str]] = {
    "off": lambda _: "Not checked: the policy switches auditing off.",
    "nothing": lambda _: "Not checked yet: there are no scores to check.",
    "never": lambda _: "Not checked yet.",
    "behind": lambda row: (
        f"Not checked since {moment_words(row['checked_at'])}, and the newest exchange is of {row['last_score_day']}."
    ),
    "learning": lambda row: (
        f"No full baseline yet ({row['check_days']} of {row['baseline_days']} days). "
        f"Checked {moment_words(row['checked_at'])}: nothing found so far."
    ),
    "quiet": lambda row: f"Checked {moment_words(row['checked_at'])}: nothing {'new' if row['open_incidents'] else 'found'}.",
    "found": lambda row: f"Checked {moment_words(row['checked_at'])}: {counted(row['check_findings'], 'finding')}.",
}
