"""One exchange, by the id that its sender gave it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from service.http.routes.scores import PROJECT
from service.read.exchanges import ExchangeDetail, exchanges_by_id
from service.web.answering import AnswerRoute
from service.web.authentication import Reader, VisibleProject
from service.web.context import Services
from service.web.errors import ApiError, documented
from service.web.models import ConnectionName, Id

router = APIRouter(route_class=AnswerRoute, tags=["reading"])
ExchangeId = Annotated[Id, Path(description="Id from its sender; slashes need no escaping.", examples=["deploy-0114:7"])]
OfConnection = Annotated[
    ConnectionName | None,
    Query(description="Connection of the exchange: ids are unique within a connection. Required if several have the id."),
]


@router.get(f"{PROJECT}/exchanges/{{exchange_id:path}}", responses=documented(404, 409))
async def exchange(
    _: Reader,
    project: VisibleProject,
    services: Services,
    response: Response,
    exchange_id: ExchangeId,
    connection: OfConnection = None,
) -> ExchangeDetail:
    """Return one exchange with its texts, score and judgements. 409 if several connections of the project have the id."""
    found = await services.ask(lambda cursor: exchanges_by_id(cursor, project, exchange_id, connection))
    if not found:
        raise ApiError(404, "not_found", "the project has no exchange with this id")
    if len(found) > 1:
        names = ", ".join(detail.exchange.connection for detail in found[:5])
        raise ApiError(409, "ambiguous", f"connection: is missing; several have an exchange with this id: {names}")
    response.headers["Cache-Control"] = "no-store"
    return found[0]
