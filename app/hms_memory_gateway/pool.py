"""The connections of all namespaces: who waits, what is opened, what is closed.

State is `_connections` (every one whose process may still live), `_waiting` (who waits for which
namespace, in the order they came), `_failures` and `_is_closing`. `_assign` decides, without an
await, after every change; waiters wait for facts and are handed nothing, so one that is cancelled
leaves nothing behind.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import Context
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from hms_memory_tool.errors import Unavailable
from hms_memory_tool.files import MemoryFiles

from .backoff import Failure
from .compaction import Compacted, Progress
from .connection import Connect, Connection, State
from .problems import AtCapacity, ShuttingDown, StartFailed, StillOpening
from .upkeep import Upkeep

_TURNS = 5  # where all are busy, connections change hands this often in the longest wait
_LIVED_SECONDS = 5.0  # an engine that ran this long did start: the next failure is a first one
_FORGET_SECONDS = 60.0  # names come from callers: a failure is not kept for ever


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Who waits for a connection, and since when."""

    namespace: str
    since: float


class Pool:
    """At most one connection for a namespace, at most `max_connections` in all.

    Args:
        connect: opens the store of a namespace.
        max_connections: when they are all open, the least recently used idle one is closed for
            the next namespace.
        idle_seconds: time after which an unused connection is closed.
        acquire_seconds: the longest wait for a connection.
        drain_seconds: how long connections wait for their leases when the pool closes.
        waiting: entered by each request that has to wait for its connection.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        max_connections: int = 64,
        idle_seconds: float = 300,
        acquire_seconds: float = 5,
        drain_seconds: float = 10,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._connect = connect
        self._max_connections = max_connections
        self._idle_seconds = idle_seconds
        self._acquire_seconds = acquire_seconds
        self._turn_seconds = acquire_seconds / _TURNS
        self._drain_seconds = drain_seconds
        self._connections: dict[str, Connection] = {}
        self._waiting: list[_Waiter] = []
        self._failures: dict[str, Failure] = {}
        self._wait_for = waiting
        self._is_closing = False
        self._changed = anyio.Event()
        self._totals: Counter[str] = Counter()
        self._tasks = anyio.create_task_group()

    def __repr__(self) -> str:
        now = self.stats()
        return (
            f"<Pool {now['opening']} opening, {now['busy']} busy, {now['idle']} idle, "
            f"{now['draining']} draining, {now['waiting']} waiting>"
        )

    def stats(self) -> dict[str, int]:
        """What there is now, and in all: `opened`, `failed`, `restarts` and `closed_*`."""
        states = Counter(connection.state for connection in self._connections.values())
        idle = sum(connection.is_idle for connection in self._connections.values())
        return {
            "opening": states[State.OPENING],
            "busy": states[State.READY] - idle,
            "idle": idle,
            "draining": states[State.DRAINING],
            "max": self._max_connections,
            "waiting": len(self._waiting),
            "leases": sum(connection.leases for connection in self._connections.values()),
            **self._totals,
            # counted at their end; those that live have been opened too
            "opened": self._totals["opened"]
            + sum(one.ready_at is not None for one in self._connections.values()),
        }

    @property
    def is_closing(self) -> bool:
        """Whether it takes no more requests."""
        return self._is_closing

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._expire)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection, when its leases are returned or their time is over."""
        self._is_closing = True
        for connection in list(self._connections.values()):
            connection.stop("shutdown")
        self._notify()
        try:
            with anyio.move_on_after(self._drain_seconds):
                while self._connections:
                    await self._changed.wait()
        finally:
            # The rest closes without waiting for its leases; so does all of it if we are cancelled.
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)

    @asynccontextmanager
    async def lease(self, namespace: str) -> AsyncGenerator[MemoryFiles]:
        """Use the files of a namespace, opening its store first if need be.

        Raises:
            AtCapacity: all connections stayed in use for `acquire_seconds`.
            StillOpening: its store is being opened or closed, for longer than that.
            StartFailed: its engine did not start.
            ShuttingDown: the pool is closing.
        """
        connection = await self._open_connection(namespace)
        async with connection.lease() as files:
            yield files

    async def compact(
        self, namespace: str, progress: Progress = lambda done, total: None
    ) -> Compacted:
        """Compact the store of a namespace, opening it first if need be.

        Args:
            namespace: the store's name.
            progress: told how many memories are done, and of how many.

        Raises:
            CompactionUnsupported: somebody else keeps the store.
            CompactionGaveWay: the store was closed meanwhile, or commands kept coming.
            NoRoom, CompactionFailed: it could not be done; the store is as it was.
            Unavailable: the store could not be opened.
        """
        async with self._tending(namespace) as upkeep:
            return await upkeep.compact(progress)

    async def forget(self, namespace: str, *, is_patient: bool = False) -> None:
        """Compact the store of a namespace if it holds what was edited or deleted.

        Args:
            namespace: the store's name.
            is_patient: whether nobody waits for it.

        Raises:
            MemoryFault: as `compact` does.
        """
        async with self._tending(namespace) as upkeep:
            if upkeep.has_remains:
                await upkeep.compact(is_patient=is_patient)

    @asynccontextmanager
    async def _tending(self, namespace: str) -> AsyncGenerator[Upkeep]:
        """Look after a store, without letting others close it or leaving it open for nobody."""
        was_there = namespace in self._connections
        connection = await self._open_connection(namespace)
        async with connection.lease():
            yield connection.upkeep
        if not was_there and connection in self._idle():
            connection.stop("idle")

    async def _open_connection(self, namespace: str) -> Connection:
        connection = self._connections.get(namespace)
        if self._is_closing or connection is None or not connection.is_ready:
            with self._wait_for():
                connection = await self._ready(namespace)
        return connection

    async def _ready(self, namespace: str) -> Connection:
        known = self._failures.get(namespace)
        waiter = _Waiter(namespace, anyio.current_time())
        self._waiting.append(waiter)
        try:
            with anyio.fail_after(self._acquire_seconds):
                self._assign()
                while True:
                    self._raise_failure(namespace, known)
                    connection = self._connections.get(namespace)
                    if connection and connection.is_ready:
                        return connection
                    await self._change(namespace)
        except TimeoutError:
            raise self._too_late(namespace) from None
        finally:
            self._waiting.remove(waiter)

    def _raise_failure(self, namespace: str, known: Failure | None) -> None:
        """Tell everybody who waited for an attempt that it failed."""
        if self._is_closing:
            raise ShuttingDown("the pool is closing")
        failure = self._failures.get(namespace)
        if failure and failure.error and failure is not known:
            raise StartFailed(str(failure.error)) from failure.error

    def _too_late(self, namespace: str) -> Unavailable:
        if self._is_backing_off(namespace):
            return StartFailed("waiting before the next attempt to start the engine")
        kind = StillOpening if namespace in self._connections else AtCapacity
        return kind(f"no connection in {self._acquire_seconds:g} seconds")

    async def _change(self, namespace: str) -> None:
        """Wait until something changes, a back-off is over, or it is time to take turns."""
        failure = self._failures.get(namespace)
        now = anyio.current_time()
        limit = failure.retry_at - now if failure and failure.retry_at > now else None
        with anyio.move_on_after(min(limit or self._turn_seconds, self._turn_seconds)) as wait:
            await self._changed.wait()
        if wait.cancelled_caught:  # of a change, somebody else has drawn the conclusions
            self._assign()

    def _assign(self) -> None:
        """Open what is waited for, in order of arrival, and make room for the rest."""
        if self._is_closing or not self._waiting:
            return
        wanting: dict[str, float] = {}
        for waiter in self._waiting:
            if waiter.namespace in self._connections or self._is_backing_off(waiter.namespace):
                continue
            if len(self._connections) < self._max_connections:
                self._open(waiter.namespace)
            else:
                wanting.setdefault(waiter.namespace, waiter.since)
        coming = sum(one.state is State.DRAINING for one in self._connections.values())
        short = max(len(wanting) - coming, 0)
        idle = self._idle()[:short]
        # Where nothing rests, whoever has had a connection longest makes way for who has waited.
        patient = sum(self._has_waited(since) for since in wanting.values()) - coming
        busy = self._busy()[: max(min(short, patient) - len(idle), 0)]
        for connection in (*idle, *busy):
            connection.stop("evicted")

    def _open(self, namespace: str) -> None:
        connection = Connection(
            namespace, self._connect, drain_seconds=self._drain_seconds, on_change=self._notify
        )
        self._connections[namespace] = connection
        self._totals["restarts"] += namespace in self._failures
        # It outlives the request that it is opened for, whose id and trace it must not carry on.
        Context().run(self._tasks.start_soon, self._own, connection)

    async def _own(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._connections[connection.namespace]
            self._record(connection)
            self._notify()

    def _record(self, connection: Connection) -> None:
        now = anyio.current_time()
        has_opened = connection.ready_at is not None
        self._totals["opened"] += has_opened
        self._totals["failed"] += not has_opened
        if has_opened:
            self._totals[f"closed_{connection.close_reason}"] += 1
        lived = now - connection.ready_at if connection.ready_at is not None else 0
        if connection.close_reason in ("died", "wedged"):
            last = self._failures.get(connection.namespace)
            error = None if has_opened else connection.failure
            count = (last.count if last else 0) + 1 if lived < _LIVED_SECONDS else 0
            self._failures[connection.namespace] = Failure(count, now, error)
        else:
            self._failures.pop(connection.namespace, None)

    def _notify(self) -> None:
        """Decide anew after a change, then wake those who wait for one."""
        self._assign()
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _is_backing_off(self, namespace: str) -> bool:
        failure = self._failures.get(namespace)
        return failure is not None and anyio.current_time() < failure.retry_at

    def _idle(self) -> list[Connection]:
        """Connections that nobody uses or is about to use: the least recently used first, and last
        those whose stores are being compacted.
        """
        wanted = {waiter.namespace for waiter in self._waiting}
        idle = [
            connection
            for namespace, connection in self._connections.items()
            if connection.is_idle and namespace not in wanted
        ]
        return sorted(idle, key=lambda one: (one.is_being_compacted, one.returned_at))

    def _busy(self) -> list[Connection]:
        """Connections in use that have had their turn: the longest first, and last those whose
        stores are being compacted.
        """
        busy = [
            connection
            for connection in self._connections.values()
            if connection.leases and connection.is_ready and self._has_waited(connection.ready_at)
        ]
        return sorted(busy, key=lambda one: (one.is_being_compacted, one.ready_at or 0.0))

    def _has_waited(self, since: float | None) -> bool:
        return since is not None and anyio.current_time() - since >= self._turn_seconds

    async def _expire(self) -> None:
        """Close what nobody has used for a while, whether or not anybody asks for more."""
        while True:
            now = anyio.current_time()
            for connection in self._idle():
                if connection.returned_at + self._idle_seconds <= now:
                    connection.expire()
            for namespace, failure in list(self._failures.items()):
                if failure.at + _FORGET_SECONDS <= now:
                    del self._failures[namespace]
            oldest = next((one.returned_at for one in self._idle() if not one.is_tended), now)
            await anyio.sleep(max(oldest + self._idle_seconds - now, 0.01))
