"""What is live in a store into a fresh one, while the old one goes on being used.

First everything is copied, then what was changed meanwhile, then both are compared item by item; at
last, with nobody inside, what has changed since is copied and compared, and the stores are
exchanged. The engine sets `version`, `created_at` and `updated_at` anew. Nothing that the gateway
promises rests on the first two; idempotency keys rest on the order of the third, so that is kept:
what was written earlier is copied earlier.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import anyio

from hms_memory_tool.errors import EngineFault, NotFound
from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.keys import RECORD_PREFIX
from hms_memory_tool.store import Document, Entry, HmsStore, Page
from hms_memory_tool.tree import listed

from .changes import Changes
from .problems import CompactionGaveWay

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many memories are done, and of how many."""

_PAGE = 50  # whole memories held at once, of each store
_FEW = 4  # changes that are left for the exchange itself: some milliseconds
_ROUNDS = 8  # of catching up with a writer, and of waiting for a quiet instant
_INSTANT_SECONDS = 0.002  # the engine's clock counts milliseconds


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction came to; `wait_seconds` is the longest that a command can have waited."""

    memories: int
    before_bytes: int
    after_bytes: int
    seconds: float
    wait_seconds: float


class Copying:
    """The copying of one store into another, which each step is given: it is opened twice.

    Args:
        old: the store that is in use.
        changes: what is written to the old one, followed from before the start.
        max_page: the longest listing that the engine gives.
        is_patient: rest as long as is worked, so that others are served first.
        progress: told how far it is.
    """

    def __init__(
        self,
        old: HmsStore,
        changes: Changes,
        *,
        max_page: int,
        is_patient: bool,
        progress: Progress,
    ) -> None:
        self._old = old
        self._changes = changes
        self._max_page = max_page
        self._is_patient = is_patient
        self._progress = progress
        self._rested_at = anyio.current_time()
        self._is_after_record = False
        self._is_writing = False  # to the new store, or was when it was given up
        self.memories = 0
        self.has_remains = False  # what was edited or deleted while the new store was filled
        self.wait_seconds = 0.0

    async def fill(self, new: HmsStore) -> None:
        """Copy everything that is not changed meanwhile, in the order in which it was written.

        Raises:
            MemoryFault: one of the engines failed, or a memory cannot be written as it was.
        """
        entries = listed(lambda cursor: self._old.entries("", cursor, self._max_page))
        order = sorted([_age(entry) async for entry in entries])
        for number, (*_, key) in enumerate(order, 1):
            if not self._changes.is_written(key):
                await self._copy(new, key)
            self._progress(number, len(order))
            if number % _PAGE == 0:
                await self._rest()

    async def catch_up(self, new: HmsStore) -> None:
        """Copy what has been written since, until that is little."""
        for _ in range(_ROUNDS):
            await self._apply(new)
            if len(self._changes) <= _FEW:
                return

    async def verify(self, new: HmsStore) -> None:
        """Compare the stores, except for what changes meanwhile.

        Raises:
            EngineFault: they differ.
        """
        self.memories = 0
        copies = self._documents(new)
        copy = await anext(copies, None)
        async for document in self._documents(self._old):
            while copy is not None and copy.key < document.key:
                self._differ(copy.key)
                copy = await anext(copies, None)
            if copy is None or copy.key > document.key:
                self._differ(document.key)
                continue
            if not _is_same(document, copy):
                self._differ(document.key)
            self.memories += 1
            copy = await anext(copies, None)
        while copy is not None:
            self._differ(copy.key)
            copy = await anext(copies, None)

    async def exchange(
        self,
        new: HmsStore,
        files: MemoryFiles,
        wait_seconds: float,
        exchange: Callable[[], Awaitable[None]],
    ) -> None:
        """Wait for an instant in which nobody is inside, copy what is left, and exchange.

        Args:
            new: the store that was filled.
            files: those who use the old one.
            wait_seconds: the longest that commands may wait, each time that it is tried.
            exchange: does it.

        Raises:
            CompactionGaveWay: it could not be done in that time.
        """
        for _ in range(_ROUNDS):
            started = anyio.current_time()
            is_exchanged = False
            with anyio.move_on_after(wait_seconds):
                async with files.alone():
                    await self._finish(new)
                    with anyio.CancelScope(shield=True):
                        await exchange()
                    is_exchanged = True
            self.wait_seconds = max(self.wait_seconds, anyio.current_time() - started)
            if is_exchanged:
                return
            if self._is_writing:
                raise CompactionGaveWay("the new store was too slow")
            await self._apply(new)
        raise CompactionGaveWay("commands kept coming")

    async def _apply(self, new: HmsStore) -> list[str]:
        """Copy what has changed, and return what that was."""
        keys = self._changes.take()
        try:
            for key in keys:
                self.has_remains |= not await self._copy(new, key)
        except BaseException:
            self._changes.put_back(keys)
            raise
        return keys

    async def _finish(self, new: HmsStore) -> None:
        changed = await self._apply(new)
        for key in self._changes.unanswered:
            if not await self._agree(new, key):
                self.has_remains |= not await self._copy(new, key)
        for key in (*changed, *self._changes.unanswered):
            if not await self._agree(new, key):
                raise _difference()

    async def _agree(self, new: HmsStore, key: str) -> bool:
        return _is_same(await _found(self._old, key), await _found(new, key))

    async def _copy(self, new: HmsStore, key: str) -> bool:
        """Copy a memory, or its absence; whether there was none of it."""
        document = await _found(self._old, key)
        await self._keep_order(key)
        # One that is given up may still be done, behind a later one: the new store is no good then.
        self._is_writing = True
        if document is None:
            is_new = await new.delete([key]) == 0
        else:
            is_new = await new.put(document)
        self._is_writing = False
        return is_new

    async def _keep_order(self, key: str) -> None:
        """What was written after a deletion began has to be younger than its record."""
        is_record = key.startswith(RECORD_PREFIX)
        if self._is_after_record and not is_record:
            await anyio.sleep(_INSTANT_SECONDS)
        self._is_after_record = is_record

    def _differ(self, key: str) -> None:
        if key not in self._changes:
            raise _difference()

    def _documents(self, store: HmsStore) -> AsyncGenerator[Document]:
        async def ask(cursor: str | None) -> Page[Document]:
            if cursor is not None:
                await self._rest()
            return await store.documents("", cursor, min(_PAGE, self._max_page))

        return listed(ask)

    async def _rest(self) -> None:
        if self._is_patient:
            await anyio.sleep(anyio.current_time() - self._rested_at)
        self._rested_at = anyio.current_time()


def _age(entry: Entry) -> tuple[int, bool, str]:
    """Sorts by the time of the last write, records of deletions behind what they may delete."""
    return entry.updated_at, entry.key.startswith(RECORD_PREFIX), entry.key


def _difference() -> EngineFault:
    return EngineFault("the copy of a store differs from it; the store stays as it is")


async def _found(store: HmsStore, key: str) -> Document | None:
    try:
        return await store.get(key)
    except NotFound:
        return None


def _is_same(one: Document | None, other: Document | None) -> bool:
    if one is None or other is None:
        return one is other
    return replace(one, version="") == replace(other, version="")
