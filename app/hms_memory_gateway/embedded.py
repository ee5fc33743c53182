"""The embedded engine: one hms-mcp child over stdio for each open namespace."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import time

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from hms_memory_tool.errors import StoreLocked, Unavailable
from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.session import EngineSession
from hms_memory_tool.store import Call, HmsStore

from .compaction import Compacted, Copying, Progress
from .connection import Connect, Memory
from .current import CurrentEngine
from .folders import Folders
from .held import Held, hold
from .problems import NoRoom
from .processes import Processes
from .remains import Remains
from .settings import Settings
from .upkeep import Measure, Upkeep

_LOCKED_SECONDS = 5.0  # in which an engine whose gateway was killed ends its last call and exits
_LOCKED_PAUSE_SECONDS = 0.2
_ROOM_BYTES = 64 << 20  # what others need; and the first file of a store where there are no holes


def embedded(
    binary: Path,
    settings: Settings,
    environ: Mapping[str, str],
    watch: Callable[[Call], Call] = lambda call: call,
    measure: Measure = lambda came_to, seconds: None,
) -> Connect:
    """Make the function that opens a namespace in a child of its own.

    What a crash left of a compaction is brought to its end first: no other gateway may use the
    data folder.

    Args:
        binary: the hms-mcp to run.
        settings: where stores are kept, and the limits.
        environ: the gateway's environment; what says how a store is kept reaches the child.
        watch: makes of an engine's calls those that commands use.
        measure: told what came of each compaction, and how many seconds it took.
    """
    folders = Folders(settings.data_dir)
    folders.recover()
    processes = Processes(binary, settings, environ)
    limiter = anyio.CapacityLimiter(settings.compact_at_once)

    @asynccontextmanager
    async def connect(namespace: str) -> AsyncGenerator[Memory]:
        try:
            async with anyio.create_task_group() as tasks:
                store = EmbeddedStore(namespace, folders, processes, settings, tasks)
                await store.start()
                try:
                    yield await store.open(watch, limiter, measure)
                finally:
                    with anyio.CancelScope(shield=True):
                        await store.close()
                    tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from group  # of its tasks, only the opening can fail

    return connect


class EmbeddedStore:
    """The store of one namespace, from the opening of its engine to the exit of the last one.

    Args:
        namespace: the store's name.
        folders: where it lies.
        processes: starts its engines.
        settings: limits and deadlines.
        tasks: the tasks that own the engines.
    """

    def __init__(
        self,
        namespace: str,
        folders: Folders,
        processes: Processes,
        settings: Settings,
        tasks: TaskGroup,
    ) -> None:
        self._namespace = namespace
        self._folders = folders
        self._processes = processes
        self._settings = settings
        self._tasks = tasks
        self._ended = anyio.Event()
        self._remains = Remains(folders, namespace)
        self._is_outdated = False

    async def start(self) -> None:
        """Start its engine.

        Raises:
            Unavailable: it did not start.
        """
        self._held = await self._first()
        self._engine = CurrentEngine(self._held.value, self._remains.add)
        self._tasks.start_soon(self._watch, self._held.value)

    async def open(
        self, watch: Callable[[Call], Call], limiter: anyio.CapacityLimiter, measure: Measure
    ) -> Memory:
        """Open its files, and begin to look after it.

        Raises:
            Unavailable: the engine gave no answer.
        """
        self._files = await MemoryFiles.open(
            HmsStore(watch(self._engine), self._namespace),
            max_file_bytes=self._settings.max_file_bytes,
            max_view_chars=self._settings.max_view_chars,
            is_exclusive=True,
        )
        upkeep = Upkeep(
            self._namespace,
            self.compact,
            self._is_large,
            lambda: bool(self._remains),
            limiter,
            measure,
        )
        return Memory(self._files, self._ended, self._is_alive, upkeep)

    async def close(self) -> None:
        """See its engine exit."""
        await self._held.release()

    async def compact(self, progress: Progress, is_patient: bool) -> Compacted:
        """Put what is live into a fresh store, and that in the place of this one.

        Args:
            progress: told how far it is.
            is_patient: whether nobody waits for it.

        Raises:
            NoRoom: the disk is too full.
            CompactionGaveWay: commands kept coming.
            MemoryFault, OSError: it failed; the store is as it was.
        """
        started, since = anyio.current_time(), time()
        before = await run_sync(self._check_room)
        changes = self._engine.changes
        changes.follow()
        copying = Copying(
            HmsStore(self._engine.session, self._namespace),
            changes,
            max_page=self._files.max_page,
            is_patient=is_patient,
            progress=progress,
        )
        try:
            fresh = await self._filled(copying)
            await self._replace(fresh, copying, since)
        finally:
            changes.leave()
            with anyio.CancelScope(shield=True):
                await run_sync(self._folders.discard, self._namespace)
        return Compacted(
            memories=copying.memories,
            before_bytes=before,
            after_bytes=await run_sync(self._folders.journal_bytes, self._namespace),
            seconds=anyio.current_time() - started,
            wait_seconds=copying.wait_seconds,
        )

    def _check_room(self) -> int:
        size = self._folders.journal_bytes(self._namespace)
        # A copy of what is live takes no more than what has been written in all.
        if self._folders.free_bytes() < size + _ROOM_BYTES:
            raise NoRoom(f"the disk has no room for a copy of {size >> 10} KiB, and 64 MiB more")
        return size

    async def _filled(self, copying: Copying) -> Held[EngineSession]:
        """A fresh store with everything in it, closed once and opened from the disk again."""
        folder = await run_sync(self._folders.begin, self._namespace)
        background = self._processes.open(self._namespace, folder, is_copying=True)
        async with background as session:
            await copying.fill(HmsStore(session, self._namespace))
        await run_sync(self._folders.note_size, self._namespace)
        await run_sync(self._folders.sync, self._namespace)
        return await hold(self._tasks, self._processes.open(self._namespace, folder))

    async def _replace(self, fresh: Held[EngineSession], copying: Copying, since: float) -> None:
        new = HmsStore(fresh.value, self._namespace)
        old, leaving = self._held, fresh

        async def exchange() -> None:
            nonlocal leaving
            await run_sync(self._folders.exchange, self._namespace)
            self._held, leaving = fresh, old
            self._engine.session = fresh.value
            self._engine.changes.exchanged()
            self._tasks.start_soon(self._watch, fresh.value)
            self._remains.exchanged(copying.has_remains)
            self._is_outdated = False

        try:
            await copying.catch_up(new)
            await copying.verify(new)
            await copying.exchange(new, self._files, self._settings.compact_wait_seconds, exchange)
        finally:
            with anyio.CancelScope(shield=True):
                await leaving.release()
                await run_sync(self._folders.clear, self._namespace)
                if leaving is old:
                    await self._remains.gone(since)

    def _is_large(self) -> bool:
        fresh = self._folders.fresh_bytes(self._namespace)
        allowed = self._settings.compact_factor * fresh + self._settings.compact_min_bytes
        return self._is_outdated or self._folders.journal_bytes(self._namespace) > allowed

    async def _first(self) -> Held[EngineSession]:
        """Its engine, as soon as the one of a gateway that was killed has let go of the store."""
        folder = await run_sync(self._folders.store, self._namespace)
        deadline = anyio.current_time() + _LOCKED_SECONDS
        while True:
            try:
                return await self._unlocked(folder)
            except StoreLocked:
                if anyio.current_time() >= deadline:
                    raise
                await anyio.sleep(_LOCKED_PAUSE_SECONDS)

    async def _unlocked(self, folder: Path) -> Held[EngineSession]:
        """Its engine, by the passphrase before the present one where it has not been rewritten."""
        previous = self._settings.previous_passphrase
        try:
            return await hold(self._tasks, self._processes.open(self._namespace, folder))
        except Unavailable as fault:
            if previous is None or isinstance(fault, StoreLocked):
                raise
            former = self._processes.open(
                self._namespace, folder, passphrase=previous.get_secret_value()
            )
            with suppress(Unavailable):
                self._is_outdated = True
                return await hold(self._tasks, former)
            raise

    async def _watch(self, session: EngineSession) -> None:
        await session.ended.wait()
        if self._engine.session is session:
            self._ended.set()

    async def _is_alive(self) -> bool:
        return await self._engine.session.is_alive()
