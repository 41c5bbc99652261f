"""Finished runs as rows."""

from __future__ import annotations

from typing import Any

from analytics.queries import query_rows
from analytics.store.store import Store


def runs_of(store: Store, project: str | None) -> list[dict[str, Any]]:
    """Return every run of a project, or of all, as rows of the query `runs`."""
    return query_rows(store.cursor(), "runs", {"project": project})
