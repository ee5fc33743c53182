"""The routes for those who run the gateway: open, cheap, and silent about what is inside."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from hms_memory_gateway import documentation

router = APIRouter(tags=["operations"], default_response_class=JSONResponse)


@router.get("/healthz", **documentation.HEALTHZ)
async def healthz() -> JSONResponse:
    """Whether the process serves."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", **documentation.READYZ)
async def readyz(request: Request) -> JSONResponse:
    """Whether the gateway can do its work: engine and data folder are there, and it stays."""
    reason = await request.state.readiness.reason()
    if reason is None:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not_ready", "reason": reason}, 503, {"Retry-After": "1"})
