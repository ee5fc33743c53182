"""The six commands, and recall, over a store.

A file is a key; a directory is the keys that begin with its path and a slash, and so there are
no empty ones. What each command answers is decided in `text` and `paths`; here it is done.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import random

import anyio

from . import paths, text
from .commands import Command, Create, Delete, Insert, Recall, Rename, StrReplace, View
from .errors import (
    AlreadyExists,
    Contended,
    EngineFault,
    MemoryFault,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
    VersionConflict,
)
from .paths import ROOT
from .recall import Recalled, Terms, merge, rank, recalled
from .store import Document, Entry, Hit, Limits, Store

ATTEMPTS = 25  # the seed's: how often an edit is tried while others change the file
_BACKOFF_SECONDS = 0.005  # the most that the first retry waits; each later one a step more
_SCAN_PAGE = 100  # whole documents held at once
_DELETE_KEYS = 1_000  # the engine's limit for one call


class MemoryFiles:
    """Executes commands on the files of one store, one at a time, in the order they came.

    Args:
        store: the store.
        limits: what the engine said its limits are.
        max_file_bytes: the largest file; can only lower the engine's limit.
        max_view_chars: characters after which an answer of `view` is cut, with a note.
    """

    def __init__(
        self,
        store: Store,
        limits: Limits,
        *,
        max_file_bytes: int | None = None,
        max_view_chars: int = 16_000,
    ) -> None:
        self._store = store
        self._limits = limits
        self._max_file_bytes = min(max_file_bytes or limits.max_text_bytes, limits.max_text_bytes)
        self._max_view_chars = max_view_chars
        self._turn = anyio.Lock()
        self._moving = _Gate()

    async def execute(self, command: Command) -> str:
        """Do what Claude asks and return what it is told.

        Raises:
            Refused: it cannot be done as asked; nothing was changed.
            Unavailable: the engine gave no answer; `OutcomeUnknown` if a write was sent.
        """
        async with self._turn:
            match command:
                case View():
                    return await self._view(command)
                case Create():
                    return await self._create(command)
                case StrReplace():
                    return await self._str_replace(command)
                case Insert():
                    return await self._insert(command)
                case Delete():
                    return await self._delete(command)
                case Rename():
                    return await self._rename(command)

    async def recall(self, request: Recall) -> list[Recalled]:
        """The files most relevant to a query, best first, with the lines that match.

        Waits only while files are moved or deleted by the directory, so that it never shows a
        file in two places or none.

        Raises:
            Unavailable: the engine gave no answer.
        """
        async with self._moving.shared():
            k = min(request.k, self._limits.max_recalled)
            hits = await self._store.recall(request.query, k)
            terms = Terms(request.query)
            if terms.pairs:
                hits = merge(hits, await self._scan(terms, k), k)
        return [recalled(hit, terms) for hit in hits if paths.is_valid(hit.key)]

    async def _scan(self, terms: Terms, k: int) -> list[Hit]:
        """Find what the engine cannot: to it, a clause written without spaces is one word."""
        found: dict[str, set[str]] = {}
        cursor: str | None = None
        while True:
            page = await self._store.documents(ROOT + "/", cursor, _SCAN_PAGE)
            found.update((one.key, terms.pairs_in(one.text)) for one in page.items)
            if (cursor := _advanced(cursor, page.cursor)) is None:
                break
        ranked = rank(found)[:k]
        hits: list[Hit] = []
        for key, score in ranked:
            with suppress(NotFound):  # deleted since it was found
                document = await self._store.get(key)
                hits.append(Hit(key, document.text, score / ranked[0][1], score, None))
        return hits

    async def _view(self, command: View) -> str:
        path = command.path
        if path != ROOT:
            try:
                document = await self._store.get(path)
            except NotFound:
                pass
            else:
                return text.view_file(path, document.text, command.view_range, self._max_view_chars)
        files = [(entry.key, entry.size) async for entry in self._below(path)]
        if not files and path != ROOT:
            raise Refused(_missing(path))
        return text.view_directory(path, files, self._max_view_chars)

    async def _create(self, command: Create) -> str:
        path = command.path
        text.check_size(path, command.file_text, self._max_file_bytes)
        if path == ROOT or await self._is_directory(path):
            raise Refused(f"File {path} already exists")
        await self._check_parents(path)
        try:
            await self._store.create(Document(path, command.file_text))
        except AlreadyExists:
            raise Refused(f"File {path} already exists") from None
        return f"File created successfully at: {path}"

    async def _str_replace(self, command: StrReplace) -> str:
        path = command.path
        snippet = ""

        def change(before: str) -> str:
            nonlocal snippet
            after, snippet = text.replace_once(
                path, before, command.old_str, command.new_str or "", self._max_view_chars
            )
            return after

        await self._edit(path, change)
        return snippet

    async def _insert(self, command: Insert) -> str:
        path = command.path
        await self._edit(
            path,
            lambda before: text.insert_after(before, command.insert_line, command.insert_text),
        )
        return f"The file {path} has been edited."

    async def _edit(self, path: str, change: Callable[[str], str]) -> None:
        """Read, change and write back until no other writer came in between."""
        for attempt in range(ATTEMPTS):
            before = await self._existing(path)
            after = change(before.text)
            text.check_size(path, after, self._max_file_bytes)
            if after == before.text:
                return
            try:
                await self._store.replace(before, after)
            except VersionConflict:
                await anyio.sleep(random() * _BACKOFF_SECONDS * (attempt + 1))  # noqa: S311
            else:
                return
        raise Contended(
            f"The file {path} was changed by others at each of {ATTEMPTS} attempts to edit it. "
            "Nothing was written. Please try again."
        )

    async def _existing(self, path: str) -> Document:
        try:
            return await self._store.get(path)
        except NotFound:
            if path == ROOT or await self._is_directory(path):
                raise Refused(f"The path {path} is not a file.") from None
            raise Refused(_missing(path)) from None

    async def _delete(self, command: Delete) -> str:
        path = command.path
        if path == ROOT:
            raise Refused(f"Cannot delete the {ROOT} directory itself")
        if not await self._store.delete([path]):
            keys = [entry.key async for entry in self._below(path)]
            if not keys:
                raise Refused(f"The path {path} does not exist")
            async with self._moving.exclusive():
                await self._forget(keys)
        return f"Successfully deleted {path}"

    async def _rename(self, command: Rename) -> str:
        old, new = command.old_path, command.new_path
        if old == ROOT:
            raise Refused(f"Cannot rename the {ROOT} directory itself")
        if await self._exists(new):
            raise Refused(f"The destination {new} already exists")
        sources = await self._tree(old)
        if not sources:
            raise Refused(f"The path {old} does not exist")
        if paths.is_under(new, old):
            raise Refused(f"Cannot move {old} into itself at {new}")
        for source in sources:
            paths.parse(new + source.key[len(old) :])
        await self._check_parents(new)
        async with self._moving.exclusive():
            await self._move(sources, old, new)
        return f"Successfully renamed {old} to {new}"

    async def _move(self, sources: Sequence[Entry], old: str, new: str) -> None:
        """Copy everything, then delete the sources; a failure before that undoes the copies."""
        copies: list[str] = []
        try:
            for source in sources:
                copy = new + source.key[len(old) :]
                await self._copy(source, copy)
                copies.append(copy)
            if await self._tree(old) != sources:
                raise VersionConflict(old)
        except MemoryFault as fault:
            await self._forget(copies, begun=True)
            if isinstance(fault, Unavailable):
                raise
            raise Contended(
                f"{old} or {new} was changed by others during the move. "
                "Nothing was moved. Please try again."
            ) from fault
        await self._forget([source.key for source in sources], begun=True)

    async def _copy(self, source: Entry, key: str) -> None:
        document = await self._store.get(source.key)
        if document.version != source.version:
            raise VersionConflict(source.key)
        await self._store.create(replace(document, key=key))

    async def _forget(self, keys: Sequence[str], *, begun: bool = False) -> None:
        """Delete keys. Once something has been written, no failure leaves a known outcome."""
        for start in range(0, len(keys), _DELETE_KEYS):
            try:
                await self._store.delete(keys[start : start + _DELETE_KEYS])
            except Unavailable as fault:
                if begun or start:
                    raise OutcomeUnknown(str(fault)) from fault
                raise

    async def _exists(self, path: str) -> bool:
        return path == ROOT or await self._is_file(path) or await self._is_directory(path)

    async def _is_file(self, path: str) -> bool:
        try:
            await self._store.get(path)
        except NotFound:
            return False
        return True

    async def _is_directory(self, path: str) -> bool:
        return bool((await self._store.entries(path + "/", None, 1)).items)

    async def _check_parents(self, path: str) -> None:
        """Refuse a path below a file. What has files below it is none, nor is any above."""
        for parent in paths.parents(path):
            if await self._is_directory(parent):
                return
            if await self._is_file(parent):
                raise Refused(
                    f"The path {path} cannot be used: {parent} is a file, not a directory."
                )

    async def _tree(self, path: str) -> list[Entry]:
        """The file at `path`, or else every file below it."""
        first = await self._store.entries(path, None, 1)
        if first.items and first.items[0].key == path:
            return list(first.items)
        return [entry async for entry in self._below(path)]

    async def _below(self, directory: str) -> AsyncIterator[Entry]:
        cursor: str | None = None
        while True:
            page = await self._store.entries(directory + "/", cursor, self._limits.max_page)
            for entry in page.items:
                yield entry
            if (cursor := _advanced(cursor, page.cursor)) is None:
                return


class _Gate:
    """Many at once, or one alone, who waits for those inside and keeps the next ones out."""

    def __init__(self) -> None:
        self._entry = anyio.Lock()
        self._inside = 0
        self._left = anyio.Event()

    @asynccontextmanager
    async def shared(self) -> AsyncGenerator[None]:
        async with self._entry:
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None]:
        async with self._entry:
            while self._inside:
                self._left = anyio.Event()
                await self._left.wait()
            yield


def _advanced(before: str | None, after: str | None) -> str | None:
    """The cursor of the next page, which lies further on, or a listing would never end."""
    if before is not None and after is not None and after <= before:
        raise EngineFault("a listing of the engine does not advance")
    return after


def _missing(path: str) -> str:
    return f"The path {path} does not exist. Please provide a valid path."
