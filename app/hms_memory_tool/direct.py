"""The commands over an engine of one's own, without a gateway: for any thread, in any program.

The engine's connection lives on an event loop in a thread of its own, so it outlives the loops of
its callers, and nothing that happens to it can cancel a task of theirs.
"""

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
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


class DirectMemory:
    """The files of one store of an engine.

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
        self._open_session = open_session
        self._namespace = namespace
        self._is_shared = is_shared
        self._is_exclusive = is_exclusive
        self._max_file_bytes = max_file_bytes
        self._max_view_chars = max_view_chars
        self._lock = threading.Lock()
        self._portal, self._thread = _start_portal()
        self._connection = ExitStack()
        self._opened: tuple[MemoryFiles, anyio.Event] | None = None

    def open(self) -> None:
        """Open the connection, which is done at the first call otherwise.

        Raises:
            Unavailable: with the engine's own words.
        """
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
        """Close the connection; returns when an engine that was started here has exited."""
        with self._lock:
            self._drop()
        self._portal.call(self._portal.stop)
        self._thread.join()

    def _do(self, work: Callable[[MemoryFiles], Awaitable[T]]) -> T:
        """Use the files; once more if their engine gave no answer, which settles what it did."""
        try:
            return self._portal.call(work, self._files())
        except (NotConnected, ConnectionLost):
            return self._portal.call(work, self._files())
        except OutcomeUnknown as unknown:
            try:
                return self._portal.call(work, self._files())
            except Unavailable as fault:
                raise unknown from fault

    def _files(self) -> MemoryFiles:
        """The files, on a new connection if there is none that lives."""
        with self._lock:
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
    async def _open(self) -> AsyncGenerator[tuple[MemoryFiles, anyio.Event]]:
        async with self._open_session() as session:
            store = HmsStore(session, self._namespace, is_shared=self._is_shared)
            files = MemoryFiles(
                store,
                await store.limits(),
                max_file_bytes=self._max_file_bytes,
                max_view_chars=self._max_view_chars,
                is_exclusive=self._is_exclusive,
            )
            await files.recover()
            yield files, session.ended


def _start_portal() -> tuple[BlockingPortal, threading.Thread]:
    """An event loop in a daemon thread: a program that forgets to close can still end."""
    started: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    thread = threading.Thread(target=anyio.run, args=(serve,), name="hms-memory", daemon=True)
    thread.start()
    return started.result(), thread
