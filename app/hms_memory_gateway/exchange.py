"""One request and its answer, as they pass between the server and the application."""

from starlette.datastructures import MutableHeaders
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send


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
        return message

    async def send(self, message: Message) -> None:
        """Send the next message of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = self.request_id
        else:
            self.bytes_out += len(message.get("body", b""))
        await self._send(message)
