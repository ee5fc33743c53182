"""The routes for those who run the gateway: open, cheap, and silent about what is inside."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hms_memory_gateway import documentation
from hms_memory_gateway.ownership import ID_HEADER

router = APIRouter(tags=["operations"], default_response_class=JSONResponse)


@router.get("/healthz", **documentation.HEALTHZ)
async def healthz(request: Request) -> JSONResponse:
    """Whether the process serves.

    `X-Gateway-Id` is another one after each start.
    """
    return JSONResponse({"status": "ok"}, headers={ID_HEADER: request.state.gateway_id})


@router.get("/readyz", **documentation.READYZ)
async def readyz(request: Request) -> JSONResponse:
    """Whether the gateway can do its work: engine and data folder are there, and it stays."""
    reason = await request.state.readiness.reason()
    if reason is None:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not_ready", "reason": reason}, 503, {"Retry-After": "1"})


@router.get("/metrics", **documentation.METRICS, response_class=Response)
async def metrics(request: Request) -> Response:
    """The gateway's figures for Prometheus: as text, or as OpenMetrics for whoever accepts it.

    They are for those who have the token, if there is one.
    """
    figures = request.state.metrics
    figures.ready.set(await request.state.readiness.reason() is None)
    content, media_type = figures.render(request.headers.get("accept", ""))
    return Response(content, media_type=media_type)
