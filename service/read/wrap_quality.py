"""Wrap quality: the steps of a proper wrap-up in the last exchanges of sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from analytics.queries import query_rows
from audit.exchanges.wrap_quality import STEPS, wrap_quality
from audit.policy import Policy
from schemas.lazy import duckdb
from service.text.answers import Answer, Moment, NextCursor, Place, Share


class WrapUp(Answer, frozen=True):
    """The steps of a wrap-up found in the last exchanges of a session."""

    project: str
    session_id: str
    connection: str
    exchange_count: int
    last_timestamp: Moment
    score: Annotated[Share, Meta(description="Found / expected.")]
    steps_found: Annotated[list[str], Meta(examples=[["changelog", "commit"]])]
    steps_missing: list[str]
    total_steps: int

    @property
    def place(self) -> Place:
        """The session's place in the list of its project, by its last exchange."""
        return Place(self.last_timestamp, f"{self.connection}/{self.session_id}")


class WrapUpList(Answer, frozen=True):
    """Sessions, the one with the newest exchange first."""

    project: str
    sessions: list[WrapUp]
    next_cursor: NextCursor


def wrap_ups(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    project: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
) -> list[WrapUp]:
    """Return a page of wrap-ups of one project or all, newest first; empty if the policy switches them off."""
    at, identity = after or (None, None)
    values = {"project": project, "limit": limit, "after_at": at, "after_id": identity, "from": None, "to": None}
    return [
        WrapUp.of(
            row,
            last_timestamp=row["last_at"],
            score=quality.score,
            steps_found=list(quality.steps_found),
            steps_missing=list(quality.steps_missing),
            total_steps=len(STEPS),
        )
        for row in query_rows(cursor, "wrap_exchanges", values)
        if policy.for_project(row["project"]).settings.wrap_quality_scoring
        for quality in [wrap_quality(row["texts"])]
    ]
