"""A shared engine: an `hms-mcp --transport http --namespace-arg` that somebody else runs."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.session import can_be_sent, open_http
from hms_memory_tool.store import Call, HmsStore

from .connection import Connect, Memory
from .settings import Settings, VariableInvalid


def engine_token(environ: Mapping[str, str]) -> str | None:
    """The token of a shared engine, if it has one.

    Raises:
        VariableInvalid: no header can carry it.
    """
    token = environ.get("HMS_MCP_TOKEN")
    if token and not can_be_sent(token):
        raise VariableInvalid(
            "HMS_MCP_TOKEN: a token is printable ASCII, and does not end in white space"
        )
    return token


def shared(
    url: str,
    settings: Settings,
    environ: Mapping[str, str],
    watch: Callable[[Call], Call] = lambda call: call,
) -> Connect:
    """Make the function that opens a namespace in a session of its own.

    Args:
        url: the engine's address, such as `http://127.0.0.1:8765/mcp`.
        settings: deadlines and limits.
        environ: `HMS_MCP_TOKEN` of it is the engine's token.
        watch: makes of an engine's calls those that are used.

    Raises:
        VariableInvalid: no header can carry the token.
    """
    token = engine_token(environ)

    @asynccontextmanager
    async def connect(namespace: str) -> AsyncGenerator[Memory]:
        async with open_http(
            url, token, open_seconds=settings.open_seconds, call_seconds=settings.call_seconds
        ) as session:
            store = HmsStore(watch(session), namespace, is_shared=True)
            files = await MemoryFiles.open(
                store,
                max_file_bytes=settings.max_file_bytes,
                max_view_chars=settings.max_view_chars,
                is_exclusive=False,
            )
            yield Memory(files, session.ended, session.is_alive)

    return connect
