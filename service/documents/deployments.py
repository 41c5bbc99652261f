"""Deployments as the API, the command line and the pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from service.documents.scores import iso_time

Row = Mapping[str, Any]


def deployment_document(row: Row) -> dict[str, Any]:
    """Return one deployment."""
    return {
        "id": row["deployment_id"],
        "project": row["project"],
        "label": row["label"],
        "version": row["version"],
        "agent": row["agent"],
        "at": iso_time(row["occurred_at"]),
        "by": row["deployed_by"],
        "comment": row["comment"],
        "url": row["url"],
    }


def deployed_by_day(rows: Iterable[Row]) -> dict[str, str]:
    """Return the deployments of each day in words, the earliest first; days as charts label them."""
    found: dict[str, str] = {}
    for row in sorted(rows, key=lambda one: (one["occurred_at"], one["deployment_id"])):
        of = f" of {row['agent']}" if row["agent"] else ""
        words = f"{row['label']} {row['version']}{of}"
        day = f"{row['occurred_at']:%Y-%m-%d}"
        found[day] = f"{found[day]}, {words}" if day in found else words
    return found
