"""How well sessions were wrapped up."""

from __future__ import annotations

from datetime import datetime

from analytics.queries import query_rows
from audit.exchanges.wrap_quality import wrap_quality
from audit.policy.policy import Policy
from schemas.lazy.duckdb import duckdb
from service.read.runs import ANY_TIME, Between, Row
from service.setup.workspace import Workspace


def wrap_rows(workspace: Workspace, project: str | None, limit: int) -> list[Row]:
    """Return the wrap quality of the newest sessions, without projects that switch it off."""
    return wrap_page(workspace.store.cursor(), workspace.policy, project, limit)


def wrap_page(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    project: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
    *,
    between: Between = ANY_TIME,
) -> list[Row]:
    """Return the same, after a session: the time of its last exchange, and its connection and id with a slash between.

    `between` is the time of a session's last exchange.
    """
    at, identity = after or (None, None)
    place = {"after_at": at, "after_id": identity, "from": between[0], "to": between[1]}
    values = {"project": project, "limit": limit, **place}
    return [
        {
            **{name: value for name, value in row.items() if name != "texts"},
            "score": quality.score,
            "steps_found": list(quality.steps_found),
            "steps_missing": list(quality.steps_missing),
        }
        for row in query_rows(cursor, "wrap_exchanges", values)
        if policy.for_project(row["project"]).settings.wrap_quality_scoring
        for quality in [wrap_quality(row["texts"])]
    ]
