"""A session with an hms-mcp: opened and closed in one task, called from any."""

import codecs
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import anyio
import httpx2
from mcp import ClientSession, MCPError, StdioServerParameters
from mcp.client import Transport
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    CallToolRequest,
    CallToolRequestParams,
    Implementation,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import ConnectionLost, EngineFault, NotConnected, StoreLocked, TimedOut, Unavailable
from .store import ToolFailed

_ADVICE = {
    401: "It asks for a token: HMS_MCP_TOKEN is missing here, or another than there.",
    403: "It refuses our Host: start it with --allow-host and the name it is called by.",
    404: "There is nothing at that path of its address; its default is /mcp.",
}
_LOCKED = "Error: store_locked:"  # how the engine says so, and only there
_STDERR_LINES = 20  # what is kept of the engine's last words
_STDERR_SECONDS = 1.0  # for them to arrive once it has exited
_STDERR_CHUNK = 65_536
_PING_SECONDS = 1.0  # a process that runs answers a ping in well under this
_CLIENT = Implementation(name="hms-memory-gateway", version="0.1.0")
_TOKEN = re.compile(r"[\t -~]*[!-~]")


class _Answer(BaseModel):
    """A tool's result without its `content`, which repeats `structuredContent` as text."""

    model_config = ConfigDict(extra="ignore")

    structured: dict[str, Any] = Field(alias="structuredContent")
    is_error: bool = Field(False, alias="isError")


class _Dispatcher(JSONRPCDispatcher[Any]):
    """The SDK's receive loop, and an event for its end: how the death of an idle child shows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ended = anyio.Event()

    async def run(self, *args: Any, **options: Any) -> None:
        try:
            await super().run(*args, **options)
        finally:
            self.ended.set()


class EngineSession:
    """An open session. Calling it calls a tool of the engine (`store.Call`).

    Args:
        session: an initialized session of the MCP SDK.
        ended: set when the connection is gone.
        call_seconds: the longest that a call may take.
    """

    def __init__(self, session: ClientSession, ended: anyio.Event, call_seconds: float) -> None:
        self._session = session
        self._call_seconds = call_seconds
        self.ended = ended

    async def __call__(self, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Call a tool and return its structured result.

        Raises:
            ToolFailed: the tool answered with an error.
            ConnectionLost, TimedOut, EngineFault: it was sent, and there is no result.
            NotConnected: it was not sent.
        """
        if self.ended.is_set():
            raise NotConnected("the engine's connection has ended")
        answer = await self._send(tool, arguments)
        if answer.is_error:
            error = answer.structured.get("error", {})
            raise ToolFailed(error.get("code", "internal"), error.get("message", "no message"))
        return answer.structured

    async def is_alive(self) -> bool:
        """Whether the engine answers at all: a slow one does, a stopped one does not."""
        try:
            with anyio.fail_after(_PING_SECONDS):
                await self._session.send_ping()
        except (MCPError, TimeoutError):
            return False
        return True

    async def _send(self, tool: str, arguments: dict[str, Any]) -> _Answer:
        # send_request: call_tool checks each result against the tool's schema once more, which
        # triples the time of a call.
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            # Not the SDK's own time-out: it starts once the request is written, and a stopped child
            # with a full pipe lets nobody write.
            with anyio.fail_after(self._call_seconds):
                return await self._session.send_request(request, _Answer)
        except TimeoutError as error:
            raise TimedOut(f"no answer in {self._call_seconds:g} seconds") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self.ended.set()  # known here first: the receive loop is still winding down
                raise ConnectionLost("the engine's connection ended") from error
            if error.code == INVALID_REQUEST:
                # A server that was restarted, or had not heard from us for five minutes, knows
                # our session no more, and has not run the call.
                self.ended.set()
                raise NotConnected("the engine's session ended") from error
            raise EngineFault(f"the engine failed: {error}") from error
        except ValidationError as error:
            raise EngineFault(f"{tool} gave an answer that is not hms-mcp's") from error


@asynccontextmanager
async def open_stdio(
    command: str,
    args: Sequence[str],
    env: Mapping[str, str],
    *,
    open_seconds: float,
    call_seconds: float,
    on_stderr: Callable[[str], None],
    clean: Callable[[str], str] = str,
    folder: Path | None = None,
) -> AsyncGenerator[EngineSession]:
    """Start an hms-mcp, hold a session with it, and see it exit.

    Args:
        command: the binary.
        args: its arguments.
        env: variables on top of the SDK's short list of safe ones.
        open_seconds: the longest that it may take until it answers; a store with a long history
            takes seconds to open.
        call_seconds: the longest that a call may take.
        on_stderr: takes each line that it writes to stderr, for the log.
        clean: makes such a line fit to be seen; the engine writes namespaces and folders.
        folder: where it works; ours where none is given.

    Raises:
        Unavailable: it did not start, or its transport broke; the text ends with its own last
            words, since a wrong passphrase shows nowhere else. `StoreLocked` if another process
            has the store open.
    """
    parameters = StdioServerParameters(command=command, args=list(args), env=dict(env), cwd=folder)
    last_words: deque[str] = deque(maxlen=_STDERR_LINES)

    def heard(line: str) -> None:
        last_words.append(clean(line))
        on_stderr(clean(line))

    @asynccontextmanager
    async def opening() -> AsyncGenerator[EngineSession]:
        async with _stderr(heard) as errlog:
            transport = stdio_client(parameters, errlog)
            async with _session(transport, open_seconds, call_seconds) as session:
                yield session

    def fault() -> Unavailable:
        is_locked = any(_LOCKED in line for line in last_words)
        return (StoreLocked if is_locked else Unavailable)(
            " ".join(["hms-mcp failed.", *last_words])
        )

    async with _plainly(opening(), fault) as session:
        yield session


def can_be_sent(token: str) -> bool:
    """Whether a header can carry a token: printable ASCII that does not end in white space."""
    return _TOKEN.fullmatch(token) is not None


@asynccontextmanager
async def open_http(
    url: str, token: str | None, *, open_seconds: float, call_seconds: float
) -> AsyncGenerator[EngineSession]:
    """Hold a session with a shared hms-mcp over streamable HTTP.

    Args:
        url: its address, such as `http://127.0.0.1:8765/mcp`.
        token: the bearer token that it asks for, if any; one that `can_be_sent`.
        open_seconds: the longest that it may take until it answers.
        call_seconds: the longest that a call may take.

    Raises:
        Unavailable: it does not answer, or refuses us.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = httpx2.Timeout(open_seconds, read=None)  # calls have deadlines of their own
    refusals: list[int] = []

    async def note(response: httpx2.Response) -> None:
        if response.status_code in _ADVICE:  # the SDK keeps the status to itself
            refusals.append(response.status_code)

    @asynccontextmanager
    async def opening() -> AsyncGenerator[EngineSession]:
        async with httpx2.AsyncClient(
            headers=headers, timeout=timeout, event_hooks={"response": [note]}
        ) as http:
            transport = streamable_http_client(url, http_client=http)
            async with _session(transport, open_seconds, call_seconds) as session:
                yield session

    def fault() -> Unavailable:
        advice = _ADVICE[refusals[-1]] if refusals else "Does it run, and is its address right?"
        return Unavailable(f"The shared hms-mcp cannot be used. {advice}")

    async with _plainly(opening(), fault) as session:
        yield session


@asynccontextmanager
async def _plainly(
    opening: AbstractAsyncContextManager[EngineSession], fault: Callable[[], Unavailable]
) -> AsyncGenerator[EngineSession]:
    """Raise one `Unavailable` for what task groups wrap in layers, and the caller's as it is."""
    callers: Exception | None = None
    try:
        async with opening as session:
            try:
                yield session
            except Exception as error:  # noqa: BLE001 - raised again below
                callers = error
    except Exception as error:
        raise fault() from error
    if callers is not None:
        raise callers


@asynccontextmanager
async def _session(
    transport: Transport, open_seconds: float, call_seconds: float
) -> AsyncGenerator[EngineSession]:
    async with transport as streams:
        dispatcher = _Dispatcher(*streams)
        async with ClientSession(dispatcher=dispatcher, client_info=_CLIENT) as session:
            with anyio.fail_after(open_seconds):
                await session.initialize()
            yield EngineSession(session, dispatcher.ended, call_seconds)


@asynccontextmanager
async def _stderr(on_line: Callable[[str], None]) -> AsyncGenerator[TextIO]:
    """A file for a child's stderr, read line by line until the child has exited."""
    receive, send = os.pipe()
    async with anyio.create_task_group() as tasks:
        ended = anyio.Event()
        tasks.start_soon(_listen, receive, on_line, ended)
        try:
            with os.fdopen(send, "w") as errlog:
                yield errlog
        finally:
            with anyio.move_on_after(_STDERR_SECONDS, shield=True):
                await ended.wait()
            tasks.cancel_scope.cancel()


async def _listen(receive: int, on_line: Callable[[str], None], ended: anyio.Event) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    try:
        with os.fdopen(receive, "rb", buffering=0) as pipe:
            while True:
                await anyio.wait_readable(pipe)
                chunk = pipe.read(_STDERR_CHUNK)
                *lines, rest = (rest + decoder.decode(chunk or b"")).split("\n")
                for line in filter(None, map(str.strip, lines)):
                    on_line(line)
                if not chunk:
                    break
    finally:
        ended.set()
