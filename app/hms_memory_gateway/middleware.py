"""What every request passes before its route: an id, the rules of access, and one boundary for
whatever goes wrong. Plain ASGI, since the framework's own middleware costs a task per request.
"""

import logging
import re
from collections.abc import Iterable
from secrets import token_hex

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hms_memory_tool.errors import KeyReused, Unavailable

from .access import Access
from .problems import CallerFault, InternalFault, response

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Boundary:
    """Give a request its id, check access, and answer faults that no route has answered.

    Args:
        app: the application behind it.
        access: decides from the head of a request.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _single(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        has_begun = False

        async def answer(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            self._access.check(scope["path"], headers)
            await self._app(scope, receive, answer)
        except (CallerFault, KeyReused, Unavailable) as fault:
            await response(fault, request_id)(scope, receive, answer)
        except ClientDisconnect:
            return  # nobody is left to answer
        except Exception as error:
            # The traceback names places in our code; the message could hold a user's text.
            logger.error(  # noqa: TRY400 - for that reason
                "request %s failed with %s at %s", request_id, type(error).__name__, _place(error)
            )
            if has_begun:
                raise
            await response(InternalFault(), request_id)(scope, receive, answer)


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
