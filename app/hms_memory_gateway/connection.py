"""One connection to an engine, from its opening to the exit of its process."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

import anyio

from hms_memory_tool.errors import OutcomeUnknown, TimedOut
from hms_memory_tool.files import MemoryFiles

from .namespaces import for_log
from .problems import CompactionFailed, CompactionUnsupported
from .upkeep import Upkeep

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """An open store: its files, an event for its end, and a question for when it is silent.

    Its `upkeep` compacts it; None where somebody else keeps it.
    """

    files: MemoryFiles
    ended: anyio.Event
    is_alive: Callable[[], Awaitable[bool]]
    upkeep: Upkeep | None = None


Connect: TypeAlias = Callable[[str], AbstractAsyncContextManager[Memory]]
"""Open the store of a namespace. Leaving the context returns only when its process has exited."""

CloseReason: TypeAlias = Literal["died", "evicted", "idle", "shutdown", "wedged"]
"""Why a connection was closed: its engine went, somebody needed the room, nobody needed it, ..."""


class State(Enum):
    """OPENING → READY → DRAINING → CLOSED, forwards alone; a failed opening goes to CLOSED."""

    OPENING = "opening"
    READY = "ready"
    DRAINING = "draining"  # takes no new lease; closes once those held are returned
    CLOSED = "closed"  # its process has exited


class Connection:
    """Owns one connection; `run` is the only place where it is opened and closed.

    Args:
        namespace: the store's name.
        connect: opens it.
        drain_seconds: how long leases may be held on to when the gateway ends.
        on_change: called after each change of state, and when the last lease is returned.
    """

    def __init__(
        self,
        namespace: str,
        connect: Connect,
        *,
        drain_seconds: float,
        on_change: Callable[[], None],
    ) -> None:
        self.namespace = namespace
        self.state = State.OPENING
        self.failure: Exception | None = None
        self.ready_at: float | None = None
        self.returned_at = anyio.current_time()
        self.leases = 0
        self.close_reason: CloseReason = "died"
        self._connect = connect
        self._drain_seconds = drain_seconds
        self._on_change = on_change
        self._stopped = anyio.Event()
        self._returned = anyio.Event()
        self._doubted = anyio.Event()
        self._memory: Memory | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.state.value}, {self.leases} leases>"

    @property
    def is_ready(self) -> bool:
        """Whether it can be leased: it is open, and its engine has not gone."""
        is_there = self._memory is not None and not self._memory.ended.is_set()
        return self.state is State.READY and is_there

    @property
    def is_tended(self) -> bool:
        """Whether its store is being compacted, or should be before it is closed for idleness."""
        return self.is_being_compacted or (self._has_upkeep and self.upkeep.is_due)

    @property
    def is_being_compacted(self) -> bool:
        """Whether its store is being compacted; closing it would be in vain for both."""
        return self._has_upkeep and self.upkeep.is_running

    @property
    def upkeep(self) -> Upkeep:
        """What compacts its store.

        Raises:
            CompactionUnsupported: somebody else keeps the store.
        """
        if self._memory is None or self._memory.upkeep is None:
            raise CompactionUnsupported
        return self._memory.upkeep

    @property
    def _has_upkeep(self) -> bool:
        return self._memory is not None and self._memory.upkeep is not None

    @property
    def is_idle(self) -> bool:
        """Whether it is open and nobody uses it."""
        return self.state is State.READY and self.leases == 0

    async def run(self) -> None:
        """Enter, hold and leave the connection in one task; anyio's scopes allow no other."""
        started = anyio.current_time()
        try:
            async with self._connect(self.namespace) as memory:
                self._memory = memory
                self.ready_at = anyio.current_time()
                self._log("opened in %.0f ms", (self.ready_at - started) * 1_000)
                self._become(State.READY)
                await self._hold(memory)
                self._become(State.DRAINING)
                await self._drain(memory)
        except Exception as error:  # noqa: BLE001 - one bad child must not end its siblings
            self.failure = error
            self._log("failed: %s", error, level=logging.WARNING)
        finally:
            self._log("closed: %s", self.close_reason)
            self._become(State.CLOSED)

    def expire(self) -> None:
        """Close it because nobody uses it; first let its store be compacted, if that is due."""
        if self.is_tended:
            self.upkeep.wake()
        else:
            self.stop("idle")

    def stop(self, reason: CloseReason) -> None:
        """Take no new lease, and close when those held are returned."""
        if self.state is State.READY:
            self._become(State.DRAINING)
        if not self._stopped.is_set():
            self.close_reason = reason
            self._stopped.set()

    @asynccontextmanager
    async def lease(self) -> AsyncGenerator[MemoryFiles]:
        """Use the files; while leased, the connection is not closed for being idle."""
        if self._memory is None:
            raise RuntimeError("a lease of a connection that was never ready")
        self.leases += 1
        try:
            yield self._memory.files
        except (TimedOut, OutcomeUnknown, CompactionFailed):
            self._doubted.set()
            raise
        finally:
            self.leases -= 1
            self.returned_at = anyio.current_time()
            if self.leases == 0:
                self._returned.set()
                self._on_change()

    async def _hold(self, memory: Memory) -> None:
        try:
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(self._watch_end, memory)
                watchers.start_soon(self._watch_doubt, memory)
                if memory.upkeep:
                    watchers.start_soon(memory.upkeep.run)
                await self._stopped.wait()
                watchers.cancel_scope.cancel()
        finally:
            # Not for `run` itself to do: cancelled before it began, it would leave some waiting.
            if memory.upkeep:
                memory.upkeep.end()

    async def _watch_end(self, memory: Memory) -> None:
        await memory.ended.wait()
        self.stop("died")

    async def _watch_doubt(self, memory: Memory) -> None:
        """After a call without an answer: replace a wedged engine, keep a slow one."""
        while True:
            await self._doubted.wait()
            self._doubted = anyio.Event()
            if not memory.ended.is_set() and not await memory.is_alive():
                self.stop("wedged")

    async def _drain(self, memory: Memory) -> None:
        if self.close_reason == "wedged" or memory.ended.is_set():
            return
        # Leases are bounded by the deadlines of calls; a gateway that ends alone cannot wait.
        bound = self._drain_seconds if self.close_reason == "shutdown" else None
        with anyio.move_on_after(bound):
            while self.leases:
                self._returned = anyio.Event()
                await self._returned.wait()

    def _become(self, state: State) -> None:
        if self.state is not state:
            self.state = state
            self._on_change()

    def _log(self, message: str, *args: object, level: int = logging.INFO) -> None:
        logger.log(level, "store %s %s", for_log(self.namespace), message % args)
