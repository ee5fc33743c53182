"""What routes are given: the pool, the namespace, the body."""

from typing import Annotated, Any, cast

from fastapi import Depends, Request

from hms_memory_gateway.body import read_object
from hms_memory_gateway.namespaces import store_name
from hms_memory_gateway.pool import Pool
from hms_memory_gateway.settings import Settings


async def _pool(request: Request) -> Pool:
    return cast("Pool", request.state.pool)


async def _settings(request: Request) -> Settings:
    return cast("Settings", request.state.settings)


async def _namespace(request: Request, settings: "SettingsDep") -> str:
    values = [v for name, v in request.scope["headers"] if name == b"x-memory-namespace"]
    return store_name(values, settings.default_namespace)


async def _body(request: Request, settings: "SettingsDep") -> dict[str, Any]:
    announced = request.headers.get("content-length")
    return await read_object(request.stream(), announced, settings.max_body_bytes)


PoolDep = Annotated[Pool, Depends(_pool)]
SettingsDep = Annotated[Settings, Depends(_settings)]
# In this order in every route: who it is about is settled before a byte of the body is read.
Namespace = Annotated[str, Depends(_namespace)]
Body = Annotated[dict[str, Any], Depends(_body)]
