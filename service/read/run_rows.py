"""Finished runs as rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from analytics.queries import query_rows
from analytics.store.store import Store

EXCHANGES_ONLY = "No runtime events: only exchanges were received"
"""What is said of a run whose row has `exchanges_only`."""


def runs_of(store: Store, project: str | None, *, newest: int | None = None) -> list[dict[str, Any]]:
    """Return the runs of a project, or of all, as rows of the query `runs`, in the order in which they were finished.

    `newest`: so many of them, those that ended last.
    """
    return query_rows(store.cursor(), "runs", {"project": project, "since": None, "newest": newest})


def ended_at(run: Mapping[str, Any]) -> datetime:
    """Return when a run ended, or was closed if that is not known."""
    moment: datetime = run["ended_at"] or run["closed_at"]
    return moment
