"""The rows of a fleet: every project with records or a connection, by name, with its health."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from audit.policy.policy import Policy
from service.documents.project_checks import EMPTY_PROJECT
from service.documents.project_health import with_health


def rows_of_fleet(found: Iterable[Mapping[str, Any]], connected: Iterable[str], policy: Policy) -> list[dict[str, Any]]:
    """Return the rows of the query `projects`, and one of each other project that has a connection, with their health, by name."""
    rows = {row["project"]: row for row in found}
    return [
        with_health(
            {**EMPTY_PROJECT, **rows.get(name, {}), "project": name, "enabled": policy.for_project(name).settings.enabled}
        )
        for name in sorted({*rows, *connected})
    ]
