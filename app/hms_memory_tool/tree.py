"""The keys of a store as a tree: what is a file or a directory, and how a whole one goes away.

A directory is the keys that begin with its path and a slash, never a bare prefix.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from . import paths
from .errors import (
    Contended,
    EngineFault,
    MemoryFault,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
    VersionConflict,
)
from .keys import Key, signed
from .store import Entry, Store

_DELETE_KEYS = 1_000  # the engine's limit for one call


class Tree:
    """Files and directories of one store.

    Args:
        store: the store.
        max_page: the most entries that it lists at once.
    """

    def __init__(self, store: Store, max_page: int) -> None:
        self._store = store
        self._max_page = max_page

    async def is_file(self, path: str) -> bool:
        """Whether there is a file at `path`."""
        try:
            await self._store.get(path)
        except NotFound:
            return False
        return True

    async def is_directory(self, path: str) -> bool:
        """Whether there is anything below `path`."""
        return bool((await self._store.entries(path + "/", None, 1)).items)

    async def check_parents(self, path: str) -> None:
        """Refuse a path below a file. What has files below it is none, nor is any above."""
        for parent in paths.parents(path):
            if await self.is_directory(parent):
                return
            if await self.is_file(parent):
                raise Refused(
                    f"The path {path} cannot be used: {parent} is a file, not a directory."
                )

    async def at(self, path: str) -> list[Entry]:
        """The file at `path`, or else every file below it."""
        first = await self._store.entries(path, None, 1)
        if first.items and first.items[0].key == path:
            return list(first.items)
        return [entry async for entry in self.below(path)]

    async def below(self, directory: str) -> AsyncIterator[Entry]:
        """Every file below a directory, however deep, in key order."""
        cursor: str | None = None
        while True:
            page = await self._store.entries(directory + "/", cursor, self._max_page)
            for entry in page.items:
                yield entry
            if (cursor := advanced(cursor, page.cursor)) is None:
                return

    async def move(self, sources: Sequence[Entry], old: str, new: str, key: Key | None) -> None:
        """Copy everything, then delete the sources; a failure before that undoes the copies."""
        copies: list[str] = []
        try:
            for source in sources:
                copy = new + source.key[len(old) :]
                await self._copy(source, copy, key)
                copies.append(copy)
            if await self.at(old) != sources:
                raise VersionConflict(old)
        except MemoryFault as fault:
            await self.forget(copies, begun=True)
            if isinstance(fault, Unavailable):
                raise
            raise Contended(
                f"{old} or {new} was changed by others during the move. "
                "Nothing was moved. Please try again."
            ) from fault
        await self.forget([source.key for source in sources], begun=True)

    async def _copy(self, source: Entry, copy: str, key: Key | None) -> None:
        document = await self._store.get(source.key)
        if document.version != source.version:
            raise VersionConflict(source.key)
        metadata = signed(document.metadata, key, "")
        await self._store.create(replace(document, key=copy, metadata=metadata))

    async def forget(self, keys: Sequence[str], *, begun: bool = False) -> None:
        """Delete keys. Once something has been written, no failure leaves a known outcome."""
        for start in range(0, len(keys), _DELETE_KEYS):
            try:
                await self._store.delete(keys[start : start + _DELETE_KEYS])
            except Unavailable as fault:
                if begun or start:
                    raise OutcomeUnknown(str(fault)) from fault
                raise


def advanced(before: str | None, after: str | None) -> str | None:
    """The cursor of the next page, which lies further on, or a listing would never end."""
    if before is not None and after is not None and after <= before:
        raise EngineFault("a listing of the engine does not advance")
    return after
