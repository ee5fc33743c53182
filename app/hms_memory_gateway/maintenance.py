"""Stores as their operator sees them: compacted when asked, and when what was deleted is due."""

import logging
from collections.abc import Iterator

import anyio
from anyio.to_thread import run_sync

from hms_memory_tool.errors import MemoryFault

from .compaction import Compacted, Progress
from .folders import Folders
from .namespaces import for_log, named
from .pool import Pool
from .problems import CompactionGaveWay, CompactionUnsupported, NamespaceNotFound
from .upkeep import insist

logger = logging.getLogger(__name__)

_EARLY = 0.8  # of the time, after which a store's turn has come: a compaction takes a while
_LOOKS = 10  # in that time, for stores whose turn has come
_MIN_LOOK_SECONDS = 0.2
_MAX_LOOK_SECONDS = 60.0
_RETRY_SECONDS = 60.0  # after a failure that is not for others' sake


class Maintenance:
    """Compacts stores, open or not.

    Args:
        pool: the connections.
        folders: where the stores lie; None for those of a shared engine.
        forget_seconds: time after which what was edited or deleted is gone from the disk.
        at_once: how many stores it opens for that at the same time.
    """

    def __init__(
        self, pool: Pool, folders: Folders | None, forget_seconds: float, at_once: int = 1
    ) -> None:
        self._pool = pool
        self._folders = folders
        self._forget_seconds = forget_seconds
        self._at_once = at_once
        self._retry_at: dict[str, float] = {}

    async def run(self) -> None:
        """Compact each store in time to keep the promise; cancelled when the gateway ends."""
        if self._folders is None:
            return
        pause = min(max(self._forget_seconds / _LOOKS, _MIN_LOOK_SECONDS), _MAX_LOOK_SECONDS)
        while True:
            try:
                names = await run_sync(self._folders.marked, self._forget_seconds * _EARLY)
            except OSError as error:
                logger.warning("nobody knows which stores hold what was deleted: %s", error)
                names = []
            turns = iter(names)
            async with anyio.create_task_group() as tasks:
                for _ in range(self._at_once):
                    tasks.start_soon(self._forget_each, turns)
            await anyio.sleep(pause)

    async def _forget_each(self, names: Iterator[str]) -> None:
        for name in names:
            if anyio.current_time() < self._retry_at.get(name, 0.0):
                continue
            self._retry_at.pop(name, None)
            try:
                await self._pool.forget(name, is_patient=True)
            except MemoryFault as fault:
                logger.warning("store %s still holds what was deleted: %s", for_log(name), fault)
                if not isinstance(fault, CompactionGaveWay):
                    self._retry_at[name] = anyio.current_time() + _RETRY_SECONDS

    async def compact(self, value: str, progress: Progress = lambda done, total: None) -> Compacted:
        """Compact the store of a namespace now.

        Args:
            value: the namespace as callers send it, or the name of its store.
            progress: told how many memories are done, and of how many.

        Raises:
            NamespaceInvalid: it can be neither.
            NamespaceNotFound: it has no store.
            CompactionUnsupported: a shared engine keeps it.
            CompactionGaveWay: commands kept coming.
            NoRoom: the disk is too full.
            CompactionFailed: it failed; the store is as it was.
            Unavailable: the store could not be opened.
        """
        if self._folders is None:
            raise CompactionUnsupported
        name = named(value)
        if not await run_sync(self._folders.has, name):
            raise NamespaceNotFound
        return await insist(lambda: self._pool.compact(name, progress))
