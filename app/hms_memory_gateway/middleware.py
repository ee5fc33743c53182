"""What every request passes before its route: an id, the rules of access, and one boundary for
whatever goes wrong. Plain ASGI, since the framework's own middleware costs a task per request.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from secrets import token_hex

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from hms_memory_tool.errors import KeyReused, MemoryFault, OutcomeUnknown, Unavailable

from .access import Access
from .exchange import Exchange
from .problems import CallerFault, InternalFault, response
from .telemetry import Telemetry

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Boundary:
    """Give a request its id, check access, and answer faults that no route has answered.

    Args:
        app: the application behind it.
        access: decides from the head of a request.
        telemetry: measures, traces and logs each request.
    """

    def __init__(self, app: ASGIApp, access: Access, telemetry: Telemetry) -> None:
        self._app = app
        self._access = access
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _single(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        exchange = Exchange(scope, receive, send, request_id)
        with self._telemetry.request(exchange, headers):
            await self._serve(exchange, headers)

    async def _serve(self, exchange: Exchange, headers: Mapping[bytes, bytes]) -> None:
        try:
            self._access.check(exchange.scope["path"], headers)
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except (CallerFault, KeyReused, Unavailable) as fault:
            await _answer(exchange, fault)
        except anyio.get_cancelled_exc_class():
            # By a server that ends; what was under way may have been done.
            if exchange.status is not None:
                raise
            await _answer(exchange, OutcomeUnknown("the gateway ended"))
        except ClientDisconnect:
            return  # nobody is left to answer
        except Exception as error:
            # The traceback names places in our code; the message could hold a user's text.
            logger.error(  # noqa: TRY400 - for that reason
                "request %s failed with %s at %s",
                exchange.request_id,
                type(error).__name__,
                _place(error),
            )
            if exchange.status is not None:
                raise
            await _answer(exchange, InternalFault())


async def _answer(exchange: Exchange, fault: MemoryFault) -> None:
    exchange.code = fault.code
    answer = response(fault, exchange.request_id)
    await answer(exchange.scope, exchange.receive, exchange.send)


def _single(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; one that is repeated has no value, since each reader may take another."""
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        headers[name] = b"" if name in headers else value
    return headers


def _request_id(given: bytes | None) -> str:
    return given.decode() if given and _REQUEST_ID.fullmatch(given) else token_hex(8)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return " > ".join(places[-4:])
