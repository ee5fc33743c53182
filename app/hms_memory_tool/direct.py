"""The commands over an engine of one's own, without a gateway: for any thread, in any program.

The engine's connection lives on an event loop in a thread of its own, so it outlives the loops of
its callers, and nothing that happens to it can cancel a task of theirs.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from .commands import parse_command, parse_recall
from .errors import ConnectionLost, MemoryFault, NotConnected, OutcomeUnknown, Unavailable
from .files import MemoryFiles
from .keys import Attempt
from .results import Recalled
from .session import EngineSession
from .store import HmsStore

T = TypeVar("T")
OpenSession = Callable[[], AbstractAsyncContextManager[EngineSession]]
Opened = tuple[MemoryFiles, anyio.Event]

_JOIN_SECONDS = 5.0


class DirectMemory:
    """The files of one store of an engine, for the process that made it.

    One that is forgotten without `close` lets go of its engine when it is collected.

    Args:
        open_session: opens a session; called again when the engine has gone.
        namespace: the store's name, checked on answers; None takes whatever the engine has.
        is_shared: send the namespace with each call, to a server with `--namespace-arg`.
        is_exclusive: whether nobody else can write to the store.
        max_file_bytes: the largest file; can only lower the engine's limit.
        max_view_chars: characters after which a view is cut, with a note.
    """

    def __init__(
        self,
        open_session: OpenSession,
        namespace: str | None,
        *,
        is_shared: bool,
        is_exclusive: bool,
        max_file_bytes: int | None,
        max_view_chars: int,
    ) -> None:
        # Nothing that the loop runs may refer to this object, or it would never be collected.
        self._open = partial(
            _open,
            open_session,
            namespace,
            is_shared=is_shared,
            is_exclusive=is_exclusive,
            max_file_bytes=max_file_bytes,
            max_view_chars=max_view_chars,
        )
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False
        self._portal, self._thread, cancel = _start_portal()
        self._connection = ExitStack()
        self._opened: Opened | None = None
        self._forgotten = weakref.finalize(self, _forget, self._process, cancel)
        self._forgotten.atexit = False  # the thread is a daemon, and the engine ends with its pipe

    def open(self) -> None:
        """Open the connection, which is done at the first call otherwise.

        Raises:
            Unavailable: with the engine's own words.
        """
        self._check_process()
        with self._lock:
            self._files()

    def execute(self, given: Mapping[str, Any]) -> str:
        """Run a memory command and return its text.

        Raises:
            Refused: Claude can mend it.
            OutcomeUnknown: it may have been done.
            Unavailable: the engine gave no answer.
        """
        command, attempt = parse_command(given), Attempt()
        return self._do(lambda files: files.execute(command, attempt))

    def recall(self, query: str, k: int) -> list[Recalled]:
        """The files most relevant to a query, best first.

        Raises:
            Refused: the query or `k` can be none.
            Unavailable: the engine gave no answer.
        """
        request = parse_recall({"query": query, "k": k})
        return self._do(lambda files: files.recall(request))

    def close(self) -> None:
        """Close the connection; returns when an engine that was started here has exited.

        Calls that are under way get no other connection. After a fork the engine is the parent's.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._drop()
            self._forgotten.detach()
            self._portal.call(self._portal.stop)
        self._thread.join(_JOIN_SECONDS)

    def _do(self, work: Callable[[MemoryFiles], Awaitable[T]]) -> T:
        """Use the files; once more if their engine gave no answer, which settles what it did."""
        try:
            return self._run(work)
        except (NotConnected, ConnectionLost):
            return self._run(work)
        except OutcomeUnknown as unknown:
            try:
                return self._run(work)
            except Unavailable as fault:
                raise unknown from fault

    def _run(self, work: Callable[[MemoryFiles], Awaitable[T]]) -> T:
        self._check_process()
        with self._lock:  # so that the loop still runs when the work gets there
            done = self._portal.start_task_soon(work, self._files())
        return done.result()

    def _check_process(self) -> None:
        if self._process != os.getpid():  # the lock may be held for ever, and the loop is not here
            raise Unavailable("a fork has no engine of its parent's: connect in each process")

    def _files(self) -> MemoryFiles:
        """The files, on a new connection if there is none that lives. Needs the lock."""
        if self._is_closed:
            raise Unavailable("the memory has been closed")
        if self._opened is None or self._opened[1].is_set():
            self._drop()
            opening = self._portal.wrap_async_context_manager(self._open())
            self._opened = self._connection.enter_context(opening)
        return self._opened[0]

    def _drop(self) -> None:
        self._opened = None
        connection, self._connection = self._connection, ExitStack()
        with suppress(MemoryFault):  # what is being left may have broken long before
            connection.close()


@asynccontextmanager
async def _open(
    open_session: OpenSession,
    namespace: str | None,
    *,
    is_shared: bool,
    is_exclusive: bool,
    max_file_bytes: int | None,
    max_view_chars: int,
) -> AsyncGenerator[Opened]:
    async with open_session() as session:
        store = HmsStore(session, namespace, is_shared=is_shared)
        files = await MemoryFiles.open(
            store,
            max_file_bytes=max_file_bytes,
            max_view_chars=max_view_chars,
            is_exclusive=is_exclusive,
        )
        yield files, session.ended


def _start_portal() -> tuple[BlockingPortal, threading.Thread, Callable[[], object]]:
    """An event loop in a daemon thread, and what cancels all that it runs, from any thread.

    A daemon, so that a program that forgets to close can still end.
    """
    started: Future[tuple[BlockingPortal, Callable[[], object]]] = Future()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            async with BlockingPortal() as portal:
                started.set_result((portal, partial(loop.call_soon_threadsafe, scope.cancel)))
                await portal.sleep_until_stopped()

    thread = threading.Thread(target=anyio.run, args=(serve,), name="hms-memory", daemon=True)
    thread.start()
    portal, cancel = started.result()
    return portal, thread, cancel


def _forget(process: int, cancel: Callable[[], object]) -> None:
    """Only asks, since objects are collected in any thread, whatever locks it holds."""
    if process == os.getpid():
        cancel()
