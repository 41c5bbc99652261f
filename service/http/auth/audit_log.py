"""Audit log endpoint: changes by operators and commands."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.read.access import AuditLines
from service.text.answers import Place, page_of
from service.text.links import API
from service.web.answering import AnswerRoute
from service.web.authentication import FleetAdmin
from service.web.context import Services
from service.web.errors import documented
from service.web.models import ConnectionName
from service.web.parameters import Cursor, Limit

router = APIRouter(route_class=AnswerRoute, tags=["access"])


@router.get(f"{API}/audit-log", responses=documented(400))
def audit_log(
    *,
    _: FleetAdmin,
    services: Services,
    response: Response,
    name: Annotated[ConnectionName | None, Query(description="Only changes by this operator or account.")] = None,
    project: Annotated[ConnectionName | None, Query(description="Only changes in this project.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditLines:
    """List the changes by operators, also refused ones, newest first, without the bodies that were sent."""
    before = None if cursor is None else cursor.number
    lines = services.access.audit_log.lines(limit + 1, before, name=name, project=project)
    shown, following = page_of(lines, limit, lambda line: Place(line.at, "", line.id))
    response.headers["Cache-Control"] = "no-store"
    return AuditLines(lines=shown, count=len(shown), next_cursor=following)
