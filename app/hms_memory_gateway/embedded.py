"""The embedded engine: one hms-mcp child over stdio for each open namespace."""

import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.session import open_stdio
from hms_memory_tool.store import Call, HmsStore

from .connection import Connect, Memory
from .namespaces import for_log
from .settings import Settings

logger = logging.getLogger(__name__)

# What of the engine's own environment reaches a child: how a store is kept, never whose it is or
# who may call. The SDK passes on nothing by itself but a short list of safe variables.
FORWARDED = (
    "HMS_EMBED_MODEL",
    "HMS_EMBED_REVISION",
    "HMS_MCP_DIM",
    "HMS_MCP_ENCRYPT",
    "HMS_MCP_LOG",
    "HMS_MCP_MAX_CONCURRENT",
    "HMS_MCP_MAX_METADATA_BYTES",
    "HMS_MCP_MAX_TAGS",
    "HMS_MCP_MAX_TEXT_BYTES",
    "HMS_MCP_PASSPHRASE",
)
_QUIET = ("hms-mcp info", "hms-mcp debug")  # how its less important lines begin
# A listing in few calls; the engine's default is 200.
_DEFAULTS = {"HMS_MCP_MAX_PAGE": "1000"}


def embedded(
    binary: Path,
    settings: Settings,
    environ: Mapping[str, str],
    watch: Callable[[Call], Call] = lambda call: call,
) -> Connect:
    """Make the function that opens a namespace in a child of its own.

    Args:
        binary: the hms-mcp to run.
        settings: where stores are kept, and the limits.
        environ: the gateway's environment; `FORWARDED` of it reaches the child.
        watch: makes of an engine's calls those that are used.
    """
    forwarded = {name: environ[name] for name in FORWARDED if name in environ}

    @asynccontextmanager
    async def connect(namespace: str) -> AsyncGenerator[Memory]:
        name = re.compile(rf"(?<![a-z0-9_-]){re.escape(namespace)}(?![a-z0-9_-])")

        def log(line: str) -> None:
            level = logging.INFO if line.startswith(_QUIET) else logging.WARNING
            logger.log(level, "store %s %s", for_log(namespace), line)

        arguments = [
            # Not `--namespace NAME`: a name may begin with a dash.
            f"--namespace={namespace}",
            f"--data-dir={settings.data_dir}",
            *settings.hms_args,
        ]
        async with open_stdio(
            str(binary),
            arguments,
            {**_DEFAULTS, **forwarded},
            open_seconds=settings.open_seconds,
            call_seconds=settings.call_seconds,
            on_stderr=log,
            clean=lambda line: name.sub(for_log(namespace), line),
        ) as session:
            store = HmsStore(watch(session), namespace)
            files = await MemoryFiles.open(
                store,
                max_file_bytes=settings.max_file_bytes,
                max_view_chars=settings.max_view_chars,
                is_exclusive=True,
            )
            yield Memory(files, session.ended, session.is_alive)

    return connect
