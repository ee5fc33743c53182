"""What routes are given: who runs blocks, the namespace, the key, the body."""

from typing import Annotated, Any, cast

from fastapi import Depends, Request

from hms_memory_gateway.blocks import Blocks
from hms_memory_gateway.body import read_object
from hms_memory_gateway.idempotency import key_name
from hms_memory_gateway.namespaces import store_name
from hms_memory_gateway.settings import Settings


async def _blocks(request: Request) -> Blocks:
    return cast("Blocks", request.state.blocks)


async def _settings(request: Request) -> Settings:
    return cast("Settings", request.state.settings)


async def _namespace(request: Request, settings: "SettingsDep") -> str:
    values = [v for name, v in request.scope["headers"] if name == b"x-memory-namespace"]
    return store_name(values, settings.default_namespace)


async def _key(request: Request) -> str | None:
    return key_name([v for name, v in request.scope["headers"] if name == b"idempotency-key"])


async def _body(request: Request, settings: "SettingsDep") -> dict[str, Any]:
    announced = request.headers.get("content-length")
    return await read_object(request.stream(), announced, settings.max_body_bytes)


BlocksDep = Annotated[Blocks, Depends(_blocks)]
SettingsDep = Annotated[Settings, Depends(_settings)]
# In this order in every route: who it is about is settled before a byte of the body is read.
Namespace = Annotated[str, Depends(_namespace)]
IdempotencyKey = Annotated[str | None, Depends(_key)]
Body = Annotated[dict[str, Any], Depends(_body)]
