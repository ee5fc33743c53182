"""The routes for those who keep the stores."""

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from hms_memory_gateway import documentation

router = APIRouter(prefix="/namespaces", tags=["namespaces"], default_response_class=JSONResponse)


@router.post("/{name:path}/compact", **documentation.COMPACT)
async def compact(name: str, request: Request) -> JSONResponse:
    """Rewrite the store of a namespace with what is live alone.

    `{name}` is the value of `X-Memory-Namespace`, percent-encoded. What was edited or deleted
    before is then in no file of the data folder. Commands go on meanwhile; `wait_seconds` is the
    longest that one can have waited.
    """
    return JSONResponse(asdict(await request.state.maintenance.compact(name)))
