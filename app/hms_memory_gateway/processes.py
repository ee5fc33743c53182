"""The hms-mcp processes of the embedded engine: what each is told, and what of it is logged."""

import logging
import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from hms_memory_tool.session import EngineSession, open_stdio

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
_IN_BACKGROUND = ("-n", "10")
# The most that the engine takes: a store is copied that may have been written under other limits.
_UNLIMITED = {
    "HMS_MCP_MAX_METADATA_BYTES": "1048576",
    "HMS_MCP_MAX_TAGS": "1024",
    "HMS_MCP_MAX_TEXT_BYTES": "65536",
}


class Processes:
    """Starts engines.

    Args:
        binary: the hms-mcp to run.
        settings: its arguments, and the deadlines.
        environ: the gateway's environment; `FORWARDED` of it reaches the child.
    """

    def __init__(self, binary: Path, settings: Settings, environ: Mapping[str, str]) -> None:
        self._binary = binary
        self._settings = settings
        self._environ = {
            **_DEFAULTS,
            **{name: environ[name] for name in FORWARDED if name in environ},
        }
        self._nice = shutil.which("nice")

    def open(
        self,
        namespace: str,
        folder: Path,
        *,
        passphrase: str | None = None,
        is_copying: bool = False,
    ) -> AbstractAsyncContextManager[EngineSession]:
        """Start an engine on the store in a folder.

        Args:
            namespace: what the store is called.
            folder: where it lies; it is the engine's working folder, so it can be moved meanwhile.
            passphrase: what the store is encrypted with, if it is another than that of the
                environment; an empty one for a store that is not.
            is_copying: whether it takes what another store has, whatever the limits are, and lets
                everything else on the machine go first.

        Raises:
            Unavailable: it did not start.
        """
        arguments = [f"--namespace={namespace}", "--store=.", *self._settings.hms_args]
        command = [str(self._binary), *arguments]
        environ = self._environ if passphrase is None else self._with(passphrase)
        if is_copying:
            environ = {**environ, **_UNLIMITED}
        if is_copying and self._nice:
            command = [self._nice, *_IN_BACKGROUND, *command]
        name = re.compile(rf"(?<![a-z0-9_-]){re.escape(namespace)}(?![a-z0-9_-])")

        def log(line: str) -> None:
            level = logging.INFO if line.startswith(_QUIET) else logging.WARNING
            logger.log(level, "store %s %s", for_log(namespace), line)

        return open_stdio(
            command[0],
            command[1:],
            environ,
            open_seconds=self._settings.open_seconds,
            call_seconds=self._settings.call_seconds,
            on_stderr=log,
            clean=lambda line: name.sub(for_log(namespace), line),
            folder=folder,
        )

    def _with(self, passphrase: str) -> dict[str, str]:
        environ = {**self._environ, "HMS_MCP_PASSPHRASE": passphrase, "HMS_MCP_ENCRYPT": "true"}
        if not passphrase:
            del environ["HMS_MCP_PASSPHRASE"], environ["HMS_MCP_ENCRYPT"]
        return environ
