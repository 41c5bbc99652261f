"""Deployments as the API, the command line and the pages show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.text.members import Document, members

Row = Mapping[str, Any]


def deployment_document(row: Row) -> Document:
    """Return one deployment."""
    return members(row, "id=deployment_id project label version agent at=occurred_at by=deployed_by comment url")
