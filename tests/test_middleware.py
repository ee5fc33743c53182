"""The boundary around the application: what happens to an error that no route has answered."""

import anyio
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hms_memory_gateway.access import Access
from hms_memory_gateway.metrics import Metrics
from hms_memory_gateway.middleware import Boundary
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.telemetry import Telemetry

SCOPE: Scope = {
    "type": "http",
    "http_version": "1.1",
    "method": "GET",
    "path": "/memory/tools",
    "headers": [(b"host", b"localhost")],
}


def answered(app: ASGIApp) -> tuple[list[Message], BaseException | None]:
    """What is sent for a request, and what the server is left with."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> BaseException | None:
        try:
            await Boundary(app, Access(Settings()), Telemetry(Metrics()))({**SCOPE}, receive, send)
        except RuntimeError as error:
            return error
        return None

    return sent, anyio.run(run)


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_error_is_answered_once_or_left_to_the_server(
    caplog: pytest.LogCaptureFixture, has_begun: bool
) -> None:
    """An answer that has begun cannot be taken back: only the server can end the connection."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("zebra text")

    sent, left = answered(app)
    starts = [message["status"] for message in sent if message["type"] == "http.response.start"]
    assert starts == ([200] if has_begun else [500])
    assert (left is not None) is has_begun
    assert "RuntimeError at " in caplog.text
    assert "zebra" not in caplog.text
