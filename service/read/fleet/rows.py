"""The rows of a fleet: every project with records or a connection, by name, with its health."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from audit.policy.policy import Policy
from service.read.project_checks import EMPTY_PROJECT
from service.read.project_health import with_health


def rows_of_fleet(
    found: Iterable[Mapping[str, Any]], connected: Iterable[str], policy: Policy, until: date
) -> list[dict[str, Any]]:
    """Return the rows of the query `projects`, and one of each other project that has a connection, with their health, by name.

    `until` is the last of the days of their figures, which each row has as `recent_until`.
    """
    rows = {row["project"]: row for row in found}
    return [
        with_health(
            {
                **EMPTY_PROJECT,
                **rows.get(name, {}),
                "project": name,
                "enabled": policy.for_project(name).settings.enabled,
                "recent_until": until,
            }
        )
        for name in sorted({*rows, *connected})
    ]
