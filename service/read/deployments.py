"""Deployments, as everybody sees them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from schemas.lazy.duckdb import duckdb
from service.text.answers import Answer, Moment
from streams.upkeep.deployments import MOST, deployments


class DeployedVersion(Answer, frozen=True):
    """A deployment."""

    id: str
    project: str
    label: str
    version: str
    agent: str | None
    at: Moment
    by: str
    comment: str | None
    url: str | None


class RecordedDeployment(Answer, frozen=True):
    """A recorded deployment; `known` if it was recorded before."""

    deployment: DeployedVersion
    known: bool


class DeploymentList(Answer, frozen=True):
    """Deployments, newest first."""

    deployments: list[DeployedVersion]
    count: int


def deployed_version(row: Mapping[str, Any]) -> DeployedVersion:
    """Return the deployment of a row or of the fields of a record."""
    return DeployedVersion.of(row, id=row["deployment_id"], at=row["occurred_at"], by=row["deployed_by"])


def deployed_versions(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = MOST,
) -> list[DeployedVersion]:
    """Return the deployments of a project, newest first; `since` is inclusive, `until` is not."""
    return [deployed_version(row) for row in deployments(cursor, project, since, until, limit)]
