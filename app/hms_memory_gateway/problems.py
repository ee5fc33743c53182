"""Errors as HTTP says them: one class per fault, one table from class to status.

What Claude can mend is an answer with `is_error`, never one of these. A body (RFC 9457) has a
stable `code` and the request id; it never repeats what was sent, and holds no path, token or
stack trace.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from hms_memory_tool.errors import (
    ConnectionLost,
    EngineFault,
    KeyReused,
    MemoryFault,
    NotConnected,
    OutcomeUnknown,
    TimedOut,
    Unavailable,
)


class CallerFault(MemoryFault):
    """The caller sent a request that no retry can make right."""

    code = "bad_request"
    detail = "The request cannot be served as it is."

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(detail or self.detail)


class NamespaceMissing(CallerFault):
    """There is no `X-Memory-Namespace`, and no default one."""

    code = "namespace_missing"
    detail = "Send the header X-Memory-Namespace: it says whose memory the request is about."


class NamespaceInvalid(CallerFault):
    """The value of `X-Memory-Namespace` names no store."""

    code = "namespace_invalid"
    detail = "The X-Memory-Namespace header is not valid."


class BodyInvalid(CallerFault):
    """The body is not the JSON that the route takes."""

    code = "body_invalid"
    detail = "The body has to be a JSON object."


class BodyTooLarge(CallerFault):
    """The body is over `MAX_BODY_BYTES`."""

    code = "body_too_large"
    detail = "The body is too large."


class KeyInvalid(CallerFault):
    """The value of `Idempotency-Key` is no key."""

    code = "idempotency_key_invalid"
    detail = "An Idempotency-Key is sent once, and is 1 to 255 printable ASCII characters."


class Unauthorized(CallerFault):
    """There is no token, or a wrong one."""

    code = "unauthorized"
    detail = "Send the gateway's token as `Authorization: Bearer ...`."


class HostRefused(CallerFault):
    """The `Host` is none of ours: a page of another site, by DNS rebinding."""

    code = "host_refused"
    detail = (
        "The Host header names a host that this gateway does not answer for. "
        "Its operator can add it to HMS_GATEWAY_ALLOWED_HOSTS."
    )


class OriginRefused(CallerFault):
    """A browser sent the request from a page that is not ours."""

    code = "origin_refused"
    detail = "Requests from web pages of other sites are not served."


class RouteMissing(CallerFault):
    """There is no such route."""

    code = "route_not_found"
    detail = "There is no such route; GET /openapi.json lists them."


class MethodRefused(CallerFault):
    """The route has no such method."""

    code = "method_not_allowed"
    detail = "The route does not have this method; the Allow header lists those that it has."


class NamespaceNotFound(CallerFault):
    """There is no such store."""

    code = "namespace_not_found"
    detail = "There is no memory of this namespace."


class AtCapacity(Unavailable):
    """All connections are in use and stayed so."""

    code = "at_capacity"


class StillOpening(Unavailable):
    """The store of this namespace is being opened or closed, for longer than a request waits."""

    code = "still_opening"


class StartFailed(Unavailable):
    """The engine for this namespace did not start."""

    code = "engine_start_failed"


class ShuttingDown(Unavailable):
    """The gateway is about to end."""

    code = "shutting_down"


class CompactionUnsupported(CallerFault):
    """The store is kept by a shared engine, which has nothing of the kind."""

    code = "compaction_unsupported"
    detail = "The stores of a shared hms-mcp cannot be compacted through the gateway."


class CompactionGaveWay(Unavailable):
    """Commands, or the closing of the store, came before a compaction."""

    code = "compaction_gave_way"


class NoRoom(Unavailable):
    """The disk has no room for a copy of a store."""

    code = "no_room"


class CompactionFailed(Unavailable):
    """A store could not be compacted, and is as it was."""

    code = "compaction_failed"


class NotForgotten(Unavailable):
    """The command was done, and what it edited or deleted is still on the disk."""

    code = "not_forgotten"


class InternalFault(MemoryFault):
    """A defect of the gateway."""

    code = "internal"


STATUS: Mapping[type[MemoryFault], HTTPStatus] = {
    CallerFault: HTTPStatus.BAD_REQUEST,
    NamespaceMissing: HTTPStatus.BAD_REQUEST,
    NamespaceInvalid: HTTPStatus.BAD_REQUEST,
    BodyInvalid: HTTPStatus.BAD_REQUEST,
    KeyInvalid: HTTPStatus.BAD_REQUEST,
    KeyReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Unauthorized: HTTPStatus.UNAUTHORIZED,
    HostRefused: HTTPStatus.FORBIDDEN,
    OriginRefused: HTTPStatus.FORBIDDEN,
    RouteMissing: HTTPStatus.NOT_FOUND,
    MethodRefused: HTTPStatus.METHOD_NOT_ALLOWED,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    AtCapacity: HTTPStatus.SERVICE_UNAVAILABLE,
    StillOpening: HTTPStatus.SERVICE_UNAVAILABLE,
    StartFailed: HTTPStatus.SERVICE_UNAVAILABLE,
    ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    NotConnected: HTTPStatus.SERVICE_UNAVAILABLE,
    ConnectionLost: HTTPStatus.SERVICE_UNAVAILABLE,
    EngineFault: HTTPStatus.SERVICE_UNAVAILABLE,
    TimedOut: HTTPStatus.GATEWAY_TIMEOUT,
    OutcomeUnknown: HTTPStatus.GATEWAY_TIMEOUT,
    NamespaceNotFound: HTTPStatus.NOT_FOUND,
    CompactionUnsupported: HTTPStatus.NOT_IMPLEMENTED,
    CompactionGaveWay: HTTPStatus.SERVICE_UNAVAILABLE,
    NoRoom: HTTPStatus.INSUFFICIENT_STORAGE,
    CompactionFailed: HTTPStatus.SERVICE_UNAVAILABLE,
    # None of the codes that stand for a command that was not done: it was.
    NotForgotten: HTTPStatus.INTERNAL_SERVER_ERROR,
    InternalFault: HTTPStatus.INTERNAL_SERVER_ERROR,
}

# What a caller is told about a fault whose own text is for the operator's log.
_TOLD: Mapping[type[MemoryFault], str] = {
    KeyReused: "The Idempotency-Key came before with another body. Send a new key.",
    Unavailable: "The memory cannot be reached at the moment. Nothing was written.",
    AtCapacity: "All memory connections are in use. Nothing was written.",
    StillOpening: "The memory of this namespace is still being opened. Nothing was written.",
    StartFailed: "The memory of this namespace could not be opened. Nothing was written.",
    ShuttingDown: "The gateway is shutting down. Nothing was written.",
    NotConnected: "The connection to the memory was lost. Nothing was written.",
    ConnectionLost: "The connection to the memory was lost. Nothing was written.",
    EngineFault: "The memory engine failed. Nothing was written.",
    TimedOut: "The memory did not answer in time. Nothing was written.",
    OutcomeUnknown: (
        "The memory did not confirm a write, which may or may not have happened. "
        "View the path before trying again."
    ),
    CompactionGaveWay: "Other commands came first. The memory is as it was.",
    NoRoom: "The disk is too full for a compaction. The memory is as it was.",
    CompactionFailed: "The compaction failed. The memory is as it was.",
    NotForgotten: (
        "The command was done, but what it replaced could not be removed from the disk yet. "
        "The gateway will try again."
    ),
    InternalFault: "The gateway failed. The request id finds the reason in its log.",
}
_RETRY_SECONDS = 1


def told(fault: MemoryFault) -> str:
    """The sentence for whoever sent the request."""
    return _TOLD.get(type(fault)) or str(fault)


def retry_headers(fault: MemoryFault) -> dict[str, str]:
    """`Retry-After` where the same request may succeed later and cannot do harm."""
    is_safe = isinstance(fault, Unavailable) and not isinstance(
        fault, OutcomeUnknown | NotForgotten
    )
    return {"Retry-After": str(_RETRY_SECONDS)} if is_safe else {}


def problem(fault: MemoryFault, request_id: str) -> dict[str, Any]:
    """The body for a fault."""
    status = STATUS[type(fault)]
    return {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": told(fault),
        "code": fault.code,
        "request_id": request_id,
    }


def response(
    fault: MemoryFault, request_id: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The answer for a fault."""
    challenge = {"WWW-Authenticate": "Bearer"} if isinstance(fault, Unauthorized) else {}
    return JSONResponse(
        problem(fault, request_id),
        STATUS[type(fault)],
        {**(headers or {}), **challenge, **retry_headers(fault)},
        media_type="application/problem+json",
    )
