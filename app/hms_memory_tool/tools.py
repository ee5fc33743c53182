"""The tool classes for the SDK's runners: Claude's memory in a gateway, or in an hms-mcp."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar, cast

import anyio.to_thread
from anthropic.lib.tools import (
    BetaAbstractMemoryTool,
    BetaAsyncAbstractMemoryTool,
    BetaAsyncBuiltinFunctionTool,
    BetaBuiltinFunctionTool,
    ToolError,
)
from anthropic.types.beta import BetaCacheControlEphemeralParam, BetaToolParam
from pydantic import BaseModel

from .commands import RECALL_TOOL, parse_recall
from .connect import Memory, Options, connect
from .errors import MemoryFault, OutcomeUnknown, Refused
from .gateway import abandoned
from .results import Recalled, render

T = TypeVar("T")

_LISTED = re.compile(r"^[^\t\n]+\t(/memories/[^/\n]+)/?$", re.MULTILINE)

UNREACHABLE = "The memory cannot be reached at the moment. Continue without it, or try again later."
UNCONFIRMED = (
    "The memory did not confirm the change, which may or may not have been made. "
    "View the path before trying again."
)
CLOSED = "The memory tool has been closed."


class _Told:
    """Runs things on a memory, every failure being a `ToolError` with a sentence for Claude.

    Any other exception would be shown to Claude as its `repr`.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory: Memory | None = memory

    def open(self) -> None:
        """Get ready. What is wrong is the developer's to know, so it is raised as it is."""
        if self._memory is None:
            raise ToolError(CLOSED)
        self._memory.open()

    def execute(self, given: object) -> str:
        """Run what a runner hands over: the raw input, or one of the SDK's command models."""
        fields = given.model_dump() if isinstance(given, BaseModel) else given
        if not isinstance(fields, Mapping):
            raise ToolError('The input should be an object, such as {"command": "view", ...}.')
        return self._told(lambda memory: memory.execute(fields))

    def recall(self, query: str, k: int) -> list[Recalled]:
        """Find files."""
        return self._told(lambda memory: memory.recall(query, k))

    def recall_input(self, given: object) -> str:
        """Run the input of a `memory_recall` block."""
        request = self._told(lambda _: parse_recall(given))
        return render(self.recall(request.query, request.k))

    def clear(self) -> str:
        """Delete every file."""
        while names := {*_LISTED.findall(self.execute({"command": "view", "path": "/memories"}))}:
            for name in sorted(names):
                self.execute({"command": "delete", "path": name})
        try:  # the one name that a listing leaves out
            self.execute({"command": "delete", "path": "/memories/node_modules"})
        except ToolError as error:
            if "does not exist" not in str(error):
                raise
        return "All memory cleared"

    def close(self) -> None:
        """Close, once."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    def _told(self, work: Callable[[Memory], T]) -> T:
        memory = self._memory
        if memory is None:
            raise ToolError(CLOSED)
        left = abandoned.get(None)
        if left is not None and left.is_set():
            raise ToolError(UNREACHABLE)  # to end `clear`; nobody hears it
        try:
            return work(memory)
        except Refused as refusal:
            raise ToolError(str(refusal)) from refusal
        except OutcomeUnknown as fault:
            raise ToolError(UNCONFIRMED) from fault
        except MemoryFault as fault:
            raise ToolError(CLOSED if self._memory is None else UNREACHABLE) from fault


class HolographicMemoryToolSync(BetaAbstractMemoryTool):
    """Claude's memory for `client.beta.messages.tool_runner` of a synchronous client.

    A context manager; made with `connect`. It can be used from several threads.
    """

    def __init__(
        self, memory: Memory, *, cache_control: BetaCacheControlEphemeralParam | None = None
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._memory = _Told(memory)

    @classmethod
    def connect(
        cls,
        *,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        gateway: str | None = None,
        token: str | None = None,
        namespace: str | None = None,
        max_file_bytes: int | None = None,
        max_view_chars: int | None = None,
        total_seconds: float | None = None,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> Self:
        """Make a tool over one of three: `command`, `url` or `gateway`.

        Args:
            command: start this hms-mcp over stdio, with `args` and with `env` on top of the few
                variables that are safe to pass on.
            args: its arguments.
            env: its variables.
            url: use a shared hms-mcp over streamable HTTP; `token` defaults to `HMS_MCP_TOKEN`.
            gateway: use an hms-memory-gateway; `token` defaults to `HMS_GATEWAY_TOKEN`.
            token: the bearer token of `url` or `gateway`.
            namespace: whose memory. For a gateway anything printable in ASCII; for an hms-mcp a
                name of `[a-z0-9_-]`, which selects a store of a server with `--namespace-arg`,
                and names the one store of an hms-mcp that is started here without that.
            max_file_bytes: the largest file; can only lower the engine's limit. Not for a
                gateway, which has a setting for it.
            max_view_chars: characters after which a view is cut (16,000). Not for a gateway.
            total_seconds: the longest that a call of a gateway may take, retries included (60).
            cache_control: for the tool's definition in requests.

        Raises:
            ValueError: the options do not go together.
        """
        options = locals()
        del options["cls"], options["cache_control"]
        return cls(connect(Options(**options)), cache_control=cache_control)

    def call(self, input: object) -> str:  # noqa: A002 - the SDK's name
        """Run the input of a `memory` block; the SDK's runner calls this."""
        return self._memory.execute(input)

    def execute(self, command: object) -> str:
        """Run one of the SDK's command models."""
        return self._memory.execute(command)

    view = create = str_replace = insert = delete = rename = execute

    def clear_all_memory(self) -> str:
        """Delete every file."""
        return self._memory.clear()

    def recall(self, query: str, k: int = 5) -> list[Recalled]:
        """The files most relevant to `query`, at most `k` (1 to 50), best first.

        Raises:
            ToolError: with a sentence that says why not.
        """
        return self._memory.recall(query, k)

    def recall_tool(self) -> BetaBuiltinFunctionTool:
        """The companion tool `memory_recall`, for the same runner."""
        return _RecallTool(self._memory)

    def close(self) -> None:
        """Let go of the memory; once more does no harm, and using it after that is an error."""
        self._memory.close()

    def __enter__(self) -> Self:
        self._memory.open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class HolographicMemoryTool(BetaAsyncAbstractMemoryTool):
    """Claude's memory for `client.beta.messages.tool_runner` of an asynchronous client.

    An async context manager; made with `connect`. It belongs to no event loop.
    """

    def __init__(
        self, memory: Memory, *, cache_control: BetaCacheControlEphemeralParam | None = None
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._memory = _Told(memory)

    @classmethod
    def connect(
        cls,
        *,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        gateway: str | None = None,
        token: str | None = None,
        namespace: str | None = None,
        max_file_bytes: int | None = None,
        max_view_chars: int | None = None,
        total_seconds: float | None = None,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> Self:
        """Make a tool; the options are those of `HolographicMemoryToolSync.connect`."""
        options = locals()
        del options["cls"], options["cache_control"]
        return cls(connect(Options(**options)), cache_control=cache_control)

    async def call(self, input: object) -> str:  # noqa: A002 - the SDK's name
        """Run the input of a `memory` block; the SDK's runner calls this."""
        return await _in_thread(self._memory.execute, input)

    async def execute(self, command: object) -> str:
        """Run one of the SDK's command models."""
        return await _in_thread(self._memory.execute, command)

    view = create = str_replace = insert = delete = rename = execute

    async def clear_all_memory(self) -> str:
        """Delete every file."""
        return await _in_thread(self._memory.clear)

    async def recall(self, query: str, k: int = 5) -> list[Recalled]:
        """The files most relevant to `query`, at most `k` (1 to 50), best first.

        Raises:
            ToolError: with a sentence that says why not.
        """
        return await _in_thread(self._memory.recall, query, k)

    def recall_tool(self) -> BetaAsyncBuiltinFunctionTool:
        """The companion tool `memory_recall`, for the same runner."""
        return _AsyncRecallTool(self._memory)

    async def aclose(self) -> None:
        """Let go of the memory; once more does no harm, and using it after that is an error."""
        await anyio.to_thread.run_sync(self._memory.close)

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._memory.open)
        return self

    async def __aexit__(self, *raised: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()


class _RecallTool(BetaBuiltinFunctionTool):
    def __init__(self, memory: _Told) -> None:
        self._memory = memory

    def to_dict(self) -> BetaToolParam:
        return cast("BetaToolParam", RECALL_TOOL)

    def call(self, input: object) -> str:  # noqa: A002 - the SDK's name
        return self._memory.recall_input(input)


class _AsyncRecallTool(BetaAsyncBuiltinFunctionTool):
    def __init__(self, memory: _Told) -> None:
        self._memory = memory

    def to_dict(self) -> BetaToolParam:
        return cast("BetaToolParam", RECALL_TOOL)

    async def call(self, input: object) -> str:  # noqa: A002 - the SDK's name
        return await _in_thread(self._memory.recall_input, input)


async def _in_thread(work: Callable[..., T], *args: object) -> T:
    """Wait for a call in a thread; a caller that is cancelled leaves it to end soon."""
    left = threading.Event()

    def call() -> T:
        abandoned.set(left)
        return work(*args)

    try:
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    finally:
        left.set()
