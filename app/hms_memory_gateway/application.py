"""The application: settings and a way to open stores in, a FastAPI out."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from fastapi import APIRouter, FastAPI, Request
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from .access import Access
from .blocks import Blocks
from .collectors import PoolFigures
from .connection import Connect
from .documentation import DESCRIPTION
from .folders import Folders
from .idempotency import Answers
from .maintenance import Maintenance
from .metrics import Metrics
from .middleware import Boundary
from .pool import Pool
from .problems import CallerFault, InternalFault, MethodRefused, RouteMissing, response
from .readiness import Readiness
from .routes import memory, namespaces, operations
from .settings import Settings
from .telemetry import Telemetry

logger = logging.getLogger(__name__)

_ROUTING_FAULTS: Mapping[int, type[CallerFault]] = {404: RouteMissing, 405: MethodRefused}


def create_app(
    settings: Settings,
    connect: Connect,
    readiness: Readiness | None = None,
    folders: Folders | None = None,
    telemetry: Telemetry | None = None,
    on_failure: Callable[[], None] = lambda: None,
    gateway_id: str = "",
) -> FastAPI:
    """Build the gateway.

    Args:
        settings: as the operator wants it.
        connect: opens the store of a namespace.
        readiness: answers `/readyz`; without it, the gateway is ready until it stops.
        folders: where embedded stores lie; without them, none is compacted.
        telemetry: measures and traces; without it, figures are kept and nothing is traced.
        on_failure: called when it cannot go on; requests are refused then.
        gateway_id: what `/healthz` answers that it is.

    Returns:
        An ASGI application for one process: it owns the stores that it opens.
    """
    telemetry = telemetry or Telemetry(Metrics())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[Mapping[str, Any]]:
        try:
            async with serving() as state:
                yield state
        except Exception:
            logger.critical("the gateway cannot go on")  # the server logs why
            on_failure()
            raise

    @asynccontextmanager
    async def serving() -> AsyncGenerator[Mapping[str, Any]]:
        answers = Answers()
        async with (
            Pool(
                telemetry.opening(connect),
                max_connections=settings.max_connections,
                idle_seconds=settings.idle_seconds,
                acquire_seconds=settings.acquire_seconds,
                drain_seconds=settings.drain_seconds,
                waiting=telemetry.waiting,
            ) as pool,
            anyio.create_task_group() as tasks,
        ):
            maintenance = Maintenance(
                pool, folders, settings.forget_seconds, settings.compact_at_once
            )
            tasks.start_soon(maintenance.run)
            forgets_at_once = settings.forget_seconds == 0
            with telemetry.metrics.watching(PoolFigures(pool, answers)):
                yield {
                    "blocks": Blocks(pool, answers, telemetry, forgets_at_once=forgets_at_once),
                    "maintenance": maintenance,
                    "gateway_id": gateway_id,
                    "metrics": telemetry.metrics,
                    "settings": settings,
                    "readiness": readiness or Readiness([], lambda: pool.is_closing),
                }
            tasks.cancel_scope.cancel()

    # Its documentation page asks no other host for its scripts: gateways run in closed networks.
    app = FastAPIOffline(
        title="hms-memory-gateway",
        version=version("hms-memory-gateway"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
    )
    app.add_middleware(Boundary, access=Access(settings), telemetry=telemetry)
    app.add_exception_handler(HTTPException, _routing_fault)
    app.include_router(memory.router)
    app.include_router(namespaces.router)
    app.include_router(operations.router)
    telemetry.metrics.expect(_methods(app, memory.router, namespaces.router, operations.router))
    return app


def _methods(*routers: FastAPI | APIRouter) -> dict[str, set[str]]:
    """The methods of every route, by its template."""
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    return {route.path: route.methods or set() for route in routes}


def _routing_fault(request: Request, error: Exception) -> Response:
    status, headers = (
        (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    )
    fault = _ROUTING_FAULTS.get(status, InternalFault)()
    return response(fault, request.state.request_id, headers)
