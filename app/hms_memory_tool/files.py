"""The six commands, and recall, over a store.

A file is a key; a directory is the keys that begin with its path and a slash, and so there are
no empty ones. What each command answers is decided in `text` and `paths`; here it is done.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import random
from typing import Any, Self

import anyio
import anyio.lowlevel

from . import paths, text
from .commands import Command, Create, Delete, Insert, Recall, Rename, StrReplace, View
from .errors import (
    AlreadyExists,
    Contended,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
    VersionConflict,
)
from .gate import Gate
from .keys import RECORD_PREFIX, Attempt, Key, Sent, check_body, note_of, signed
from .paths import ROOT
from .recall import Terms, merge, rank, recalled
from .results import Recalled
from .store import Document, Entry, Hit, Limits, Store
from .tree import Tree, listed

ATTEMPTS = 25  # the seed's: how often an edit is tried while others change the file
_BACKOFF_SECONDS = 0.005  # the most that the first retry waits; each later one a step more
_SCAN_PAGE = 100  # whole documents held at once
_RECORDS = 100  # records of deletions looked at when one more is made


class MemoryFiles:
    """Executes commands on the files of one store, one at a time, in the order they came.

    Args:
        store: the store.
        limits: what the engine said its limits are.
        max_file_bytes: the largest file; can only lower the engine's limit.
        max_view_chars: characters after which an answer of `view` is cut, with a note.
        record_seconds: how long it is known that a deletion under a key was made.
        is_exclusive: whether nobody else can write to the store: an embedded engine's.
    """

    def __init__(
        self,
        store: Store,
        limits: Limits,
        *,
        max_file_bytes: int | None = None,
        max_view_chars: int = 16_000,
        record_seconds: float = 3_600,
        is_exclusive: bool = True,
    ) -> None:
        self._store = store
        self._tree = Tree(store, limits, is_exclusive=is_exclusive)
        self._limits = limits
        self._max_file_bytes = min(max_file_bytes or limits.max_text_bytes, limits.max_text_bytes)
        self._max_view_chars = max_view_chars
        self._record_seconds = record_seconds
        self._turn = anyio.Lock()
        self._moving = Gate()

    @classmethod
    async def open(
        cls, store: Store, *, max_file_bytes: int | None, max_view_chars: int, is_exclusive: bool
    ) -> Self:
        """The files of a store that has just been opened, with what a crash cut short brought to
        its end. The arguments are those of the class; the limits are asked for.

        Raises:
            Unavailable: the engine gave no answer.
        """
        files = cls(
            store,
            await store.limits(),
            max_file_bytes=max_file_bytes,
            max_view_chars=max_view_chars,
            is_exclusive=is_exclusive,
        )
        await files.recover()
        return files

    @property
    def max_page(self) -> int:
        """The longest listing that the engine gives."""
        return self._limits.max_page

    async def execute(self, command: Command, attempt: Attempt | None = None) -> str:
        """Do what Claude asks and return what it is told.

        Args:
            command: what to do.
            attempt: this very command, when it may be tried more than once: it is done once,
                whatever dies in between. A key in it is kept with what the command changes, so
                that holds for a new process, too.

        Raises:
            Refused: it cannot be done as asked; nothing was changed.
            KeyReused: the key came with another command before.
            Unavailable: the engine gave no answer; `OutcomeUnknown` if a write was sent.
        """
        attempt = attempt or Attempt()
        async with self._turn:
            await self._settle()
            match command:
                case View():
                    return await self._view(command)
                case Create():
                    return await self._create(command, attempt)
                case StrReplace():
                    return await self._str_replace(command, attempt)
                case Insert():
                    return await self._insert(command, attempt)
                case Delete():
                    return await self._delete(command, attempt)
                case Rename():
                    return await self._rename(command, attempt)

    async def recover(self) -> None:
        """Bring to its end what a crash cut short; called once the store is open.

        Raises:
            Unavailable: the engine gave no answer.
        """
        async with self._turn:
            await self._settle()

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Be the only one inside, between two commands, with nothing under way.

        Raises:
            Unavailable: what a crash cut short could not be brought to its end.
        """
        async with self._turn:
            await self._settle()
            async with self._moving.exclusive():
                yield

    async def _settle(self) -> None:
        if self._tree.is_unsettled:
            try:
                async with self._moving.exclusive():
                    await self._tree.recover()
            except OutcomeUnknown as fault:  # of an earlier command; this one has written nothing
                raise Unavailable(str(fault)) from fault

    async def recall(self, request: Recall) -> list[Recalled]:
        """The files most relevant to a query, best first, with the lines that match.

        Waits only while files are moved or deleted by the directory, so that it never shows a
        file in two places or none.

        Raises:
            Unavailable: the engine gave no answer.
        """
        if self._tree.is_unsettled:
            await self.recover()
        async with self._moving.shared():
            k = min(request.k, self._limits.max_recalled)
            hits = await self._store.recall(request.query, k)
            terms = Terms(request.query)
            if terms.pairs:
                hits = merge(hits, await self._scan(terms, k), k)
        results: list[Recalled] = []
        for hit in hits:
            if paths.is_valid(hit.key):
                results.append(recalled(hit, terms))
                await anyio.lowlevel.checkpoint()  # long texts take milliseconds each
        return results

    async def _scan(self, terms: Terms, k: int) -> list[Hit]:
        """Find what the engine cannot: to it, a clause written without spaces is one word."""
        limit = min(_SCAN_PAGE, self._limits.max_page)
        documents = listed(lambda cursor: self._store.documents(ROOT + "/", cursor, limit))
        found = {one.key: terms.pairs_in(one.text) async for one in documents}
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
        files = [(entry.key, entry.size) async for entry in self._tree.below(path)]
        if not files and path != ROOT:
            raise Refused(_missing(path))
        return text.view_directory(path, files, self._max_view_chars)

    async def _create(self, command: Create, attempt: Attempt) -> str:
        path, content = command.path, command.file_text
        text.check_size(path, content, self._max_file_bytes)
        if path == ROOT or await self._tree.is_directory(path):
            raise Refused(f"File {path} already exists")
        await self._tree.check_parents(path)
        was_sent = bool(attempt.sent)
        attempt.sent = [Sent("", content, 0)]
        try:
            await self._store.create(
                Document(
                    path,
                    content,
                    metadata=signed({}, attempt.key, "", self._limits.max_metadata_bytes),
                )
            )
        except AlreadyExists:
            found = await self._existing(path)
            is_ours = note_of(found.metadata, attempt.key) is not None
            if not (is_ours or (was_sent and found.text == content)):
                raise Refused(f"File {path} already exists") from None
        return f"File created successfully at: {path}"

    async def _str_replace(self, command: StrReplace, attempt: Attempt) -> str:
        path, old, new = command.path, command.old_str, command.new_str or ""

        def change(before: str) -> tuple[str, int]:
            return text.replace_once(path, before, old, new, self._max_view_chars)

        return text.snippet(*await self._edit(path, change, attempt))

    async def _insert(self, command: Insert, attempt: Attempt) -> str:
        def change(before: str) -> tuple[str, int]:
            at = command.insert_line
            return text.insert_after(before, at, command.insert_text), at

        await self._edit(command.path, change, attempt)
        return f"The file {command.path} has been edited."

    async def _edit(
        self, path: str, change: Callable[[str], tuple[str, int]], attempt: Attempt
    ) -> tuple[str, int]:
        """Read, change and write back until no other writer came in between.

        Returns the text and the line that was changed; if this was done before, the text as it is
        now and the line as it was then.
        """
        for number in range(1, ATTEMPTS + 1):
            before = await self._existing(path)
            if (line := _done(before, attempt)) is not None:
                return before.text, line
            after, line = change(before.text)
            text.check_size(path, after, self._max_file_bytes)
            if after == before.text:
                return after, line
            ours = replace(before, metadata=self._signed(before.metadata, attempt, line))
            sent = Sent(before.version, after, line)
            attempt.sent.append(sent)
            try:
                await self._store.replace(ours, after)
            except VersionConflict:
                attempt.sent.remove(sent)
                await anyio.sleep(random() * _BACKOFF_SECONDS * number)  # noqa: S311
            else:
                return after, line
        raise Contended(
            f"The file {path} was changed by others at each of {ATTEMPTS} attempts to edit it. "
            "Nothing was written. Please try again."
        )

    def _signed(
        self, metadata: Mapping[str, Any], attempt: Attempt, line: int
    ) -> Mapping[str, Any]:
        return signed(metadata, attempt.key, str(line), self._limits.max_metadata_bytes)

    async def _existing(self, path: str) -> Document:
        try:
            return await self._store.get(path)
        except NotFound:
            if path == ROOT or await self._tree.is_directory(path):
                raise Refused(f"The path {path} is not a file.") from None
            raise Refused(_missing(path)) from None

    async def _delete(self, command: Delete, attempt: Attempt) -> str:
        path, key = command.path, attempt.key
        if path == ROOT:
            raise Refused(f"Cannot delete the {ROOT} directory itself")
        entries = await self._tree.at(path)
        began = await self._recorded(key) if key else None
        if attempt.seen is not None or began is not None:
            entries = _doomed(entries, attempt.seen, began)
        elif not entries:
            raise Refused(f"The path {path} does not exist")
        elif key:
            await self._record(key)
        attempt.seen = {entry.key: entry.version for entry in entries}
        if [entry.key for entry in entries] == [path]:
            await self._tree.forget([path])
        elif entries:
            async with self._moving.exclusive():
                await self._tree.remove(entries, path)
        return f"Successfully deleted {path}"

    async def _recorded(self, key: Key) -> int | None:
        """When a deletion under this key began, by the engine's clock; None if none did."""
        page = await self._store.entries(key.record, None, 1)
        if not page.items:
            return None
        check_body((await self._store.get(key.record)).text, key)
        return page.items[0].updated_at

    async def _record(self, key: Key) -> None:
        """Record that a deletion begins, and drop the records that no retry can need any more."""
        await self._store.create(Document(key.record, key.body))
        kept = min(_RECORDS, self._limits.max_page)
        records = (await self._store.entries(RECORD_PREFIX, None, kept)).items
        newest = max((record.updated_at for record in records), default=0)
        await self._tree.forget(
            [one.key for one in records if one.updated_at < newest - self._record_seconds * 1_000]
        )

    async def _rename(self, command: Rename, attempt: Attempt) -> str:
        old, new = command.old_path, command.new_path
        if old == ROOT:
            raise Refused(f"Cannot rename the {ROOT} directory itself")
        done = f"Successfully renamed {old} to {new}"
        taken = [] if new == ROOT else await self._tree.at(new)
        if taken and await self._is_moved(taken[0], attempt, old):
            return done
        if new == ROOT or taken:
            raise Refused(f"The destination {new} already exists")
        sources = await self._tree.at(old)
        if not sources:
            raise Refused(f"The path {old} does not exist")
        if paths.is_under(new, old):
            raise Refused(f"Cannot move {old} into itself at {new}")
        for source in sources:
            paths.parse(new + source.key[len(old) :])
        await self._tree.check_parents(new)
        attempt.seen = {source.key: source.version for source in sources}
        async with self._moving.exclusive():
            await self._tree.move(sources, old, new, attempt.key)
        return done

    async def _is_moved(self, entry: Entry, attempt: Attempt, old: str) -> bool:
        """Whether this very command has put it where it is; with it came all the rest."""
        document = await self._store.get(entry.key)
        if note_of(document.metadata, attempt.key) is not None:
            return True
        return attempt.seen is not None and not await self._tree.at(old)


def _done(now: Document, attempt: Attempt) -> int | None:
    """The line that an earlier try of an edit has changed; None if there is none, or it did not.

    Raises:
        OutcomeUnknown: others have written since, over what was sent or instead of it.
    """
    if (note := note_of(now.metadata, attempt.key)) is not None:
        return int(note)
    for sent in attempt.sent:
        if now.text == sent.text:
            return sent.line
    if any(sent.version != now.version for sent in attempt.sent):
        raise OutcomeUnknown("others have written meanwhile")
    return None


def _doomed(
    entries: Sequence[Entry], seen: Mapping[str, str] | None, began: int | None
) -> list[Entry]:
    """What an earlier try of a deletion was to delete: what has come since is somebody's new file.

    Args:
        entries: what there is now.
        seen: the versions that it saw, if it was of this process.
        began: when it began, if it left a record.

    Raises:
        OutcomeUnknown: files have other versions now. They were edited, or the store compacted.
    """
    is_renewed = any(seen and seen.get(one.key, one.version) != one.version for one in entries)
    if seen is not None and not is_renewed:
        return [one for one in entries if one.key in seen]
    if began is None:
        raise OutcomeUnknown("what was to be deleted has been written anew")
    return [one for one in entries if one.updated_at <= began]


def _missing(path: str) -> str:
    return f"The path {path} does not exist. Please provide a valid path."
