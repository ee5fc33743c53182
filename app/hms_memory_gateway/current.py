"""The engine that has a store now, as the store calls it; behind it engines can be exchanged."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from hms_memory_tool.errors import NotConnected
from hms_memory_tool.session import EngineSession
from hms_memory_tool.store import ToolFailed

from .changes import Changes


class CurrentEngine:
    """Calls a tool of whichever engine it is (`store.Call`), and notes what is written.

    Args:
        session: the engine to begin with.
        on_superseded: called before a write that leaves an earlier text behind, where nobody can
            read it but on the disk.

    Attributes:
        session: the engine of the next call.
        changes: where writes are noted.
    """

    def __init__(
        self, session: EngineSession, on_superseded: Callable[[], Awaitable[None]]
    ) -> None:
        self.session = session
        self.changes = Changes()
        self._on_superseded = on_superseded

    async def __call__(self, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        written = _written(tool, arguments)
        if not written:
            return await self.session(tool, arguments)
        if tool == "forget" or "if_version" in arguments:
            await self._on_superseded()
        self.changes.sent(written)
        try:
            answer = await self.session(tool, arguments)
        except NotConnected:
            self.changes.refused(written)
            raise
        except ToolFailed as failure:
            if failure.code != "internal":  # which a full disk is, that may have the write
                self.changes.refused(written)
            raise
        self.changes.written(written)
        return answer


def _written(tool: str, arguments: Mapping[str, Any]) -> Sequence[str]:
    if tool == "remember":
        return [arguments["id"]]
    keys: Sequence[str] = arguments["ids"] if tool == "forget" else ()
    return keys
