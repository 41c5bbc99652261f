"""The application: endpoints, and the layers around them that each request passes from the outside in.

record and error answers → host → token → requests in flight → body limits → ETags → audit log → endpoints.
A request without a valid token is refused after its head was read.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from schemas.errors import BrokerError, BusyError
from service.http.routes import operations, query
from service.http.routes.documentation import TAGS, describe
from service.pages.rendering import add_problem_pages
from service.read.queries.pool import DatabaseSource, QueryPool, SnapshotSource
from service.setup.access import AccessStore
from service.setup.version import version
from service.web.authentication import Authentication, Failures
from service.web.bounds import ApiSettings
from service.web.context import RETRY_AFTER, ApiContext, Metrics
from service.web.errors import ApiError, add_error_answers, error_response
from service.web.json_routes import RoundedJson
from service.web.middleware import AuditTrail, BodyLimits, ConcurrencyLimit, Etags, HostCheck, RequestLog, begin_audit_line
from service.web.models import refuse_unknown
from streams.engine.record_intake import RecordIntake

RETRY_BROKER = "5"
"""Seconds after which a sender may retry when Kafka accepted no records."""
_PACKAGES = ("service.http.routes", "service.pages")
"""Packages whose modules with a `router` are endpoints and pages."""


def _find_routers() -> tuple[APIRouter, ...]:
    """Return the `router` of every module that has one: endpoints by their tags, then pages."""
    packages = [importlib.import_module(package) for package in _PACKAGES]
    names = [module.name for package in packages for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    routers = [vars(importlib.import_module(name)).get("router") for name in names]
    order = [[tag] for tag in TAGS] + [[]]
    return tuple(sorted(filter(None, routers), key=lambda router: order.index(router.tags)))


ROUTERS = _find_routers()
log = logging.getLogger(__name__)


def create_app(
    engine: RecordIntake, access: AccessStore, settings: ApiSettings, statements_over: SnapshotSource | None = None
) -> FastAPI:
    """Build the application over a started engine and its token store.

    Analysts' statements run over `statements_over`, by default the engine's database.
    """
    app = _build_app(access, redoc_url=None)
    metrics = Metrics()
    app.state.context = ApiContext(engine, access, settings, metrics)
    source = statements_over or DatabaseSource(engine.store, engine.flush)
    app.state.query_pool = QueryPool(source, engine.now, settings.queries)
    app.state.refused_sign_ins = Failures(settings.max_failures)
    for router in ROUTERS:
        app.include_router(router)
    describe(app, [route for router in ROUTERS for route in router.routes])
    _add_layers(app, access, settings, metrics)
    add_problem_pages(app)
    app.add_exception_handler(BrokerError, _answer_without_broker)
    return app


def create_reader_app(pool: QueryPool, access: AccessStore, settings: ApiSettings) -> FastAPI:
    """Build the application of a reader of a lake: it answers statements, and reports its health."""
    app = _build_app(access, openapi_url=None)
    app.state.query_pool = pool
    app.include_router(query.router)
    app.add_api_route("/healthz", operations.health)
    _add_layers(app, access, settings, Metrics())
    return app


def _build_app(access: AccessStore, **options: Any) -> FastAPI:
    app = FastAPI(
        title="Driftline",
        version=version(),
        summary="Continuous audit of AI agent fleets.",
        docs_url=None,
        redirect_slashes=False,
        default_response_class=RoundedJson,
        dependencies=[Depends(_check_call)],
        generate_unique_id_function=_name_operation,
        **options,
    )
    app.state.access = access
    return app


def _add_layers(app: FastAPI, access: AccessStore, settings: ApiSettings, metrics: Metrics) -> None:
    """Add the error answers and the middleware."""
    add_error_answers(app)
    app.add_exception_handler(BusyError, _answer_busy)
    app.add_middleware(AuditTrail, access=access)
    app.add_middleware(Etags)
    app.add_middleware(BodyLimits, settings=settings)
    app.add_middleware(ConcurrencyLimit, limit=settings.max_in_flight)
    app.add_middleware(Authentication, access=access, settings=settings)
    app.add_middleware(HostCheck, settings=settings)
    app.add_middleware(RequestLog, metrics=metrics)


def prepare_routes(app: FastAPI) -> None:
    """Make FastAPI build every endpoint now; by default it builds a router's endpoints at the first call to one of them."""
    for route in app.routes:
        route.matches({"type": "http", "method": "GET", "path": "/", "headers": []})


async def _check_call(request: Request) -> None:
    await refuse_unknown(request)
    await begin_audit_line(request)


async def _answer_busy(_: Request, error: Exception) -> JSONResponse:
    return error_response(ApiError(503, "busy", str(error), {"Retry-After": RETRY_AFTER}))


async def _answer_without_broker(_: Request, error: Exception) -> JSONResponse:
    # Details about brokers and addresses belong in the server's log, not in answers.
    log.warning("a record was refused: %s", error)
    message = "the log cannot take records at the moment"
    return error_response(ApiError(503, "log_unavailable", message, {"Retry-After": RETRY_BROKER}))


def _name_operation(route: APIRoute) -> str:
    """Name an endpoint for generated clients: its subject and its function."""
    return "_".join([*map(str, route.tags[:1]), route.name])
