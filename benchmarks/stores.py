"""Stores on the disk: filled without a gateway, opened as a gateway does, and compared."""

import os
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from hms_memory_gateway.connection import Connect
from hms_memory_gateway.embedded import embedded
from hms_memory_gateway.engine import Engine
from hms_memory_gateway.folders import Folders
from hms_memory_gateway.processes import Processes
from hms_memory_gateway.settings import Settings
from hms_memory_tool.store import Document, HmsStore
from hms_memory_tool.tree import listed
from measured import engines, private_bytes, resident_bytes
from notes import Notes
from report import shown

_OPENINGS = 5  # of which the best counts
NO_COMPACTION: dict[str, Any] = {"compact_min_bytes": 1 << 60}


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine that has just opened a store: the time to its first answer, and its memory."""

    seconds: float
    resident: int
    private: int


class Stores:
    """The stores of a data folder.

    Args:
        engine: the hms-mcp to run; the environment says how it keeps stores.
        settings: the gateway's.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.connect: Connect = embedded(engine.path, settings, os.environ)
        self._folders = Folders(settings.data_dir)
        self._processes = Processes(engine.path, settings, os.environ)

    async def fill(self, namespace: str, notes: Notes) -> float:
        """Write the files into an empty store, and return how many seconds that took."""
        started = perf_counter()
        folder = self._folders.store(namespace)
        with shown(f"{namespace}: filled with {len(notes)} files") as progress:
            async with self._processes.open(namespace, folder) as session:
                store = HmsStore(session, namespace)
                for number, (path, text) in enumerate(notes, 1):
                    await store.create(Document(path, text))
                    progress(number, len(notes))
        return perf_counter() - started

    async def opened(self, namespace: str) -> Opened:
        """Open a store that nobody has open, some times; the quickest time counts."""
        return min([await self._open(namespace) for _ in range(_OPENINGS)], key=_seconds)

    async def check(self, namespace: str, notes: Notes) -> None:
        """See that a store holds just these files: a figure counts if nothing was lost for it."""
        async with self._processes.open(namespace, self._folders.store(namespace)) as session:
            store = HmsStore(session, namespace)
            documents = listed(lambda cursor: store.documents("", cursor, 100))
            texts = {one.key: one.text async for one in documents}
        if texts != dict(notes):
            raise RuntimeError(f"the store {namespace} does not hold what was written")

    async def _open(self, namespace: str) -> Opened:
        started = perf_counter()
        async with self._processes.open(namespace, self._folders.store(namespace)) as session:
            await HmsStore(session, namespace).limits()
            seconds = perf_counter() - started
            [pid] = engines(namespace)
            return Opened(seconds, resident_bytes(pid), private_bytes(pid))


def _seconds(opened: Opened) -> float:
    return opened.seconds
