"""What failed in a project, in groups: their size, whether they are new or grow, and examples."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta

from analytics.queries import query_rows
from audit.comparison import share_difference
from audit.exchanges.outcomes import score_id
from schemas.lazy import duckdb
from service.text.answers import Answer, Moment

MAX_GROUPS = 1000
"""Groups of a period, the largest, of which lists show the first."""
MIN_SESSIONS = 3
"""Sessions from which on a group counts as new: one or two are rather chance than a finding."""
Trend = Literal["new", "growing", "steady", "shrinking"]
FINDINGS: tuple[Trend, ...] = ("new", "growing")
"""The trends that are findings."""


class FailureExample(Answer, frozen=True):
    """A run or an exchange of a group."""

    connection: str
    session_id: str
    exchange_id: Annotated[str | None, Meta(description="Null for a run.")]
    score_id: Annotated[str | None, Meta(description="Score of the exchange; null for a run.")]


class FailureGroup(Answer, frozen=True):
    """Failures that have the same tool and near errors, or the same cause."""

    id: Annotated[str, Meta(description="Stays while the record of its first failure is kept.", examples=["c5f6b1f7625f83ed"])]
    name: Annotated[str, Meta(examples=["search failed: connection refused to {host}"])]
    kind: Annotated[
        Literal["tool_error", "run", "attempt", "check", "dimension", "alignment"],
        Meta(
            description="`tool_error`: a tool failed and did not recover; `run`: a finding of a detector; `attempt`: to sway the judge or "
            "the agent; `check`: a rule of Tier 1; `dimension`: scored low by the judge; `alignment`: thinking and answer do not align."
        ),
    ]
    cause: Annotated[str, Meta(description="Failure type, reason of the attempt, check or dimension; empty for other kinds.")]
    tool: Annotated[str, Meta(description="Empty without one.")]
    error: Annotated[
        str, Meta(description="Error of the first failure, with placeholders for numbers, ids, paths, hosts and quoted values.")
    ]
    wordings: Annotated[int, Meta(description="Different errors in the period.")]
    sessions: Annotated[int, Meta(description="Sessions in the period, each counted once per UTC day.")]
    runs: int
    exchanges: int
    sessions_before: Annotated[
        int | None, Meta(description="Sessions in the period of the same length before; null without records of it.")
    ]
    trend: Annotated[
        Trend | None,
        Meta(
            description=f"`new`: first seen in the period, in {MIN_SESSIONS} sessions or more; `growing` and `shrinking`: its share of all "
            "exchanges and runs differs from the period before, by a 95% interval; null without records of a period before."
        ),
    ]
    wasted_tokens: Annotated[
        int, Meta(description="Tokens of its exchanges, or the wasted tokens of its runs, whichever is more in a session.")
    ]
    first_at: Annotated[Moment, Meta(description="First failure of all that are kept.")]
    last_at: Moment
    examples: Annotated[list[FailureExample], Meta(description="The newest three.")]

    @property
    def is_finding(self) -> bool:
        """Whether the group is new or grows."""
        return self.trend in FINDINGS


class FailureGroupList(Answer, frozen=True):
    """What failed, in groups: those that are new or grow first, then the largest."""

    failures: list[FailureGroup]
    count: int
    more: Annotated[bool, Meta(description="Whether there are further groups.")]
    is_behind: Annotated[
        bool, Meta(description="Whether the newest records are not grouped yet; a server groups them within a minute.")
    ]


def read_failures(
    cursor: duckdb.DuckDBPyConnection, project: str, start: datetime | None, end: datetime | None, limit: int = MAX_GROUPS
) -> list[FailureGroup]:
    """Return the failures of a project in a period of whole UTC days, in groups: new and growing ones first, then the largest."""
    values = {"project": project, "since": start, "until": end, "limit": MAX_GROUPS}
    groups = [_build_group(row) for row in query_rows(cursor, "failure_groups", values)]
    return sorted(groups, key=lambda group: (not group.is_finding, -group.sessions))[:limit]


def _build_group(row: dict[str, Any]) -> FailureGroup:
    is_compared = row["units_before"] > 0
    return FailureGroup.of(
        row,
        id=row["failure_group"],
        sessions_before=row["sessions_before"] if is_compared else None,
        trend=_find_trend(row) if is_compared else None,
        examples=[_build_example(example) for example in row["examples"]],
    )


def _build_example(example: dict[str, Any]) -> FailureExample:
    exchange_id = example["exchange_id"]
    return FailureExample.of(example, score_id=None if exchange_id is None else score_id(example["connection"], exchange_id))


def _find_trend(row: dict[str, Any]) -> Trend:
    before, units_before = row["sessions_before"], row["units_before"]
    if row["is_new"]:
        return "new" if row["sessions"] >= MIN_SESSIONS else "steady"
    # A session has at least one unit, but units and sessions are counted by different days.
    difference = share_difference((before, max(before, units_before)), (row["sessions"], max(row["sessions"], row["units"])))
    if difference is None or difference[0] <= 0 <= difference[1]:
        return "steady"
    return "growing" if difference[0] > 0 else "shrinking"
