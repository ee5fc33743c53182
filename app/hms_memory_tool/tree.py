"""The keys of a store as a tree: what is a file or a directory, and how a whole one goes away.

A directory is the keys that begin with its path and a slash, never a bare prefix.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from time import time
from typing import TypeVar

from . import intents, paths
from .errors import (
    AlreadyExists,
    Contended,
    EngineFault,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
    VersionConflict,
)
from .intents import Intent
from .keys import Key, signed
from .store import Document, Entry, Limits, Page, Store

T = TypeVar("T")
_DELETE_KEYS = 1_000  # the engine's limit for one call


class Tree:
    """Files and directories of one store.

    Args:
        store: the store.
        limits: what the engine said its limits are.
        is_exclusive: whether nobody else can write to the store.

    `is_unsettled` says that something may be under way that has to be recovered first: after a
    crash, which is why it is true at first, and after an answer that did not come.
    """

    def __init__(self, store: Store, limits: Limits, *, is_exclusive: bool) -> None:
        self._store = store
        self._limits = limits
        self._is_exclusive = is_exclusive
        self.is_unsettled = True

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

    def below(self, directory: str) -> AsyncIterator[Entry]:
        """Every file below a directory, however deep, in key order."""
        limit = self._limits.max_page
        return listed(lambda cursor: self._store.entries(directory + "/", cursor, limit))

    async def move(self, sources: Sequence[Entry], old: str, new: str, key: Key | None) -> None:
        """Copy everything, then delete the sources; a failure before that undoes the copies.

        Raises:
            Contended: others changed something meanwhile; nothing was moved.
            OutcomeUnknown: the engine gave no answer; `recover` makes it the old state or the new.
        """
        intent = Intent(old, new, is_committed=False)
        version = await self._declare(intent)
        made: list[str] = []
        try:
            for source in sources:
                copy = new + source.key[len(old) :]
                await self._copy(source, copy, key)
                made.append(copy)
            if await self.at(old) != sources:
                raise VersionConflict(old)
            committed = replace(intent, is_committed=True)
            await self._store.replace(Document(intents.KEY, "", version), committed.to_text())
        except (NotFound, AlreadyExists, VersionConflict) as conflict:
            await self.forget([*made, intents.KEY], begun=True)
            self.is_unsettled = False
            raise Contended(
                f"{old} or {new} was changed by others during the move. "
                "Nothing was moved. Please try again."
            ) from conflict
        except Unavailable as fault:
            raise OutcomeUnknown(str(fault)) from fault
        await self._finish(sources)

    async def remove(self, entries: Sequence[Entry], path: str) -> None:
        """Delete everything below a directory.

        Raises:
            OutcomeUnknown: the engine gave no answer; `recover` finishes it.
        """
        await self._declare(Intent(path))
        await self._finish(entries)

    async def recover(self) -> None:
        """Finish or undo what was declared and not brought to its end.

        Raises:
            Unavailable: the engine gave no answer; it is still to be done.
        """
        try:
            document = await self._store.get(intents.KEY)
        except NotFound:
            self.is_unsettled = False
            return
        intent = Intent.from_text(document.text)
        declared = (await self._store.entries(intents.KEY, None, 1)).items[0]
        if intent.is_committed:
            left = [one for one in await self.at(intent.old) if _is_before(one, declared)]
        else:
            left = await self._copies(intent)
        await self._finish(left)

    async def _declare(self, intent: Intent) -> str:
        self.is_unsettled = True
        try:
            return await self._store.create(Document(intents.KEY, intent.to_text()))
        except AlreadyExists:
            # Left by a gateway that died, or under way in one that shares the engine with us.
            await self._wait_out()
            return await self._store.create(Document(intents.KEY, intent.to_text()))

    async def _wait_out(self) -> None:
        declared = (await self._store.entries(intents.KEY, None, 1)).items
        age = time() - declared[0].updated_at / 1_000 if declared else 0
        if declared and not self._is_exclusive and age < intents.STALE_SECONDS:
            self.is_unsettled = False  # it is theirs
            raise Contended("Other files are being moved or deleted. Please try again.")
        await self.recover()
        self.is_unsettled = True

    async def _finish(self, left: Sequence[Entry]) -> None:
        await self.forget([entry.key for entry in left], begun=True)
        await self.forget([intents.KEY], begun=True)
        self.is_unsettled = False

    async def _copies(self, intent: Intent) -> list[Entry]:
        """What a rename that is not committed has put at its destination: copies of its sources."""
        made = []
        for entry in await self.at(str(intent.new)):
            source = intent.old + entry.key[len(str(intent.new)) :]
            if await self._text(source) == await self._text(entry.key):
                made.append(entry)
        return made

    async def _text(self, path: str) -> str | None:
        try:
            return (await self._store.get(path)).text
        except NotFound:
            return None

    async def _copy(self, source: Entry, copy: str, key: Key | None) -> None:
        document = await self._store.get(source.key)
        if document.version != source.version:
            raise VersionConflict(source.key)
        metadata = signed(document.metadata, key, "", self._limits.max_metadata_bytes)
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


def _is_before(entry: Entry, declared: Entry) -> bool:
    """Whether it was there when the intent was written: what came later is somebody's new file."""
    return entry.updated_at <= declared.updated_at


async def listed(ask: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncGenerator[T]:
    """Everything in a listing, in key order.

    Args:
        ask: gives the page after a cursor, the first one after None.

    Raises:
        EngineFault: the listing does not advance.
    """
    cursor: str | None = None
    while True:
        page = await ask(cursor)
        for item in page.items:
            yield item
        if (cursor := _advanced(cursor, page.cursor)) is None:
            return


def _advanced(before: str | None, after: str | None) -> str | None:
    """The cursor of the next page, which lies further on, or a listing would never end."""
    if before is not None and after is not None and after <= before:
        raise EngineFault("a listing of the engine does not advance")
    return after
