"""What the routes of a memory are given: a call, read from the request in the order that counts."""

from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, Request

from hms_memory_gateway.blocks import Blocks
from hms_memory_gateway.body import read_object
from hms_memory_gateway.idempotency import key_name
from hms_memory_gateway.namespaces import store_name
from hms_memory_gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Call:
    """Whose memory, under which key, what is asked, and who does it."""

    namespace: str
    key: str | None
    body: dict[str, Any]
    blocks: Blocks


async def _call(request: Request) -> Call:
    """Read a request; whom it is about is settled before a byte of the body is read."""
    settings = cast("Settings", request.state.settings)
    namespace = store_name(_values(request, b"x-memory-namespace"), settings.default_namespace)
    key = key_name(_values(request, b"idempotency-key"))
    announced = request.headers.get("content-length")
    body = await read_object(request.stream(), announced, settings.max_body_bytes)
    return Call(namespace, key, body, cast("Blocks", request.state.blocks))


def _values(request: Request, header: bytes) -> list[bytes]:
    """Every value of a header, as it came: a framework's `get` hides all but the first."""
    return [value for name, value in request.scope["headers"] if name == header]


# One dependency: each costs more than all that it does here.
CallDep = Annotated[Call, Depends(_call)]
