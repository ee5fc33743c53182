"""One request and its answer, as they pass between the server and the application."""

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

# Of a body that is not wanted: what a client that never looks up may send until it reads.
_DISCARD_BYTES = 8 << 20
_DISCARD_SECONDS = 2.0


class Exchange:
    """Passes messages on, gives the answer its request id, and remembers what has passed.

    Args:
        scope: the request.
        receive: the server's.
        send: the server's.
        request_id: of the request.

    Attributes:
        status: of the answer, once it has begun.
        code: of the fault that was answered, if one was.
        bytes_in: of the request's body, as far as it was read.
        bytes_out: of the answer's body.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope = scope
        self.request_id = request_id
        self.status: int | None = None
        self.code: str | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self._has_more = True
        self._receive = receive
        self._send = send

    @property
    def route(self) -> str:
        """The template of its route; its path where it has not come to one."""
        route = self.scope.get("route")
        return route.path if isinstance(route, Route) else str(self.scope["path"])

    async def receive(self) -> Message:
        """Take the next message of the request."""
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        self._has_more = message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send the next message of the answer."""
        if message["type"] == "http.response.start":
            if self._has_more:
                await self._discard_body()
            self.status = message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = self.request_id
        else:
            self.bytes_out += len(message.get("body", b""))
        await self._send(message)

    async def _discard_body(self) -> None:
        """Take the rest of the body, within limits, before an answer that does not need it.

        A connection that is closed with something unread in it takes the answer away from whoever
        is still sending: a proxy, as a rule, that asks for each to be closed. On one that stays
        open the server takes it by itself.
        """
        headers = Headers(scope=self.scope)
        is_closed = self.scope["http_version"] == "1.0" or "close" in headers.get("connection", "")
        is_held_back = "expect" in headers and self.bytes_in == 0
        if not is_closed or is_held_back:
            return
        with anyio.move_on_after(_DISCARD_SECONDS):
            while self._has_more and self.bytes_in < _DISCARD_BYTES:  # of none, one message says so
                await self.receive()
