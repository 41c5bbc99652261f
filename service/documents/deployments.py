"""Deployments as the API, the command line and the pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from service.documents.members import Document, members

Row = Mapping[str, Any]


def deployment_document(row: Row) -> Document:
    """Return one deployment."""
    return members(row, "id=deployment_id project label version agent at=occurred_at by=deployed_by comment url")


def deployed_by_day(rows: Iterable[Row]) -> dict[str, str]:
    """Return the deployments of each day in words, the earliest first; days as charts label them."""
    found: dict[str, str] = {}
    for row in sorted(rows, key=lambda one: (one["occurred_at"], one["deployment_id"])):
        of = f" of {row['agent']}" if row["agent"] else ""
        words = f"{row['label']} {row['version']}{of}"
        day = f"{row['occurred_at']:%Y-%m-%d}"
        found[day] = f"{found[day]}, {words}" if day in found else words
    return found
