"""Stand-ins for engines, requests that can be steered, and a loop on which time costs nothing."""

import asyncio
import selectors
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from hms_memory_gateway.connection import Memory
from hms_memory_gateway.pool import Pool
from hms_memory_tool.errors import MemoryFault, Unavailable
from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.store import HmsStore, Limits

_EXIT_SECONDS = 60.0  # an exit that nobody lets go on ends all the same, as a killed process does
_TEST_SECONDS = 1_000.0
_TURNS = 50  # of the loop: enough for every chain of wake-ups in these tests


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for the next timer, it moves the clock there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing else is left to do.

    Back-off, deadlines and idle expiry take as long as in production by `anyio.current_time`, no
    time at all by the clock on the wall, and exactly as long on a busy machine.
    """

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


VIRTUAL_TIME = ("asyncio", {"loop_factory": VirtualTimeLoop})


async def settle() -> None:
    """Let everything run that waits for no time."""
    for _ in range(_TURNS):
        await checkpoint()


async def elapse(seconds: float) -> None:
    """Let (virtual) time pass."""
    await anyio.sleep(seconds)
    await settle()


class Gate:
    """Open unless closed; those who wait go on once it is open."""

    def __init__(self) -> None:
        self._opened = anyio.Event()
        self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def close(self) -> None:
        if self.is_open:
            self._opened = anyio.Event()

    def open(self) -> None:
        self._opened.set()

    async def wait(self) -> None:
        """Does not even give way where it is open."""
        if not self.is_open:
            await self._opened.wait()


async def _no_call(tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
    raise AssertionError("a pool calls no tools")


class Engine:
    """A process that was started for a namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.files = MemoryFiles(HmsStore(_no_call, namespace), Limits(1, 1, 1))
        self.ended = anyio.Event()
        self.answers = True
        self.pings = 0
        self.pong = Gate()
        self._broken = anyio.Event()

    async def is_alive(self) -> bool:
        self.pings += 1
        await self.pong.wait()
        return self.answers

    def break_transport(self) -> None:
        """What the SDK does on a message that it cannot send: its host task is cancelled."""
        self._broken.set()

    async def transport(self) -> None:
        await self._broken.wait()
        self.ended.set()
        raise ConnectionError("the transport broke")


class Engines:
    """A `Connect` without processes: when they start, exit and fail is up to the test.

    Attributes:
        running: started and not yet exited, in the order they were started.
        started: when which namespace was started.
        overlaps: namespaces that had two at once; has to stay empty.
        max_running: the most there were at any time.
        exited: when the last one of a namespace did.
        broken: namespaces whose engines do not start.
    """

    def __init__(self) -> None:
        self.running: list[Engine] = []
        self.started: list[tuple[float, str]] = []
        self.overlaps: list[str] = []
        self.max_running = 0
        self.exited: dict[str, float] = {}
        self.broken: set[str] = set()
        self._starts: dict[str, Gate] = {}
        self._exits: dict[str, Gate] = {}

    @asynccontextmanager
    async def connect(self, namespace: str) -> AsyncGenerator[Memory]:
        engine = Engine(namespace)
        self._count(engine)
        try:
            await self.start(namespace).wait()
            if namespace in self.broken:
                raise Unavailable(f"{namespace} is broken")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.transport)
                yield Memory(engine.files, engine.ended, engine.is_alive)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.move_on_after(_EXIT_SECONDS, shield=True):
                await self.exit(namespace).wait()
            self.running.remove(engine)
            self.exited[namespace] = anyio.current_time()

    def start(self, namespace: str) -> Gate:
        """Closed, it keeps the engine of a namespace from being ready."""
        return self._starts.setdefault(namespace, Gate())

    def exit(self, namespace: str) -> Gate:
        """Closed, it keeps the engine of a namespace from exiting."""
        return self._exits.setdefault(namespace, Gate())

    def engine(self, namespace: str) -> Engine:
        """The engine that runs for a namespace."""
        return next(one for one in self.running if one.namespace == namespace)

    @property
    def names(self) -> list[str]:
        """Whose engines run."""
        return [one.namespace for one in self.running]

    def starts(self, namespace: str) -> int:
        """How often one was started for a namespace."""
        return sum(name == namespace for _, name in self.started)

    def _count(self, engine: Engine) -> None:
        self.started.append((anyio.current_time(), engine.namespace))
        if engine.namespace in self.names:
            self.overlaps.append(engine.namespace)
        self.running.append(engine)
        self.max_running = max(self.max_running, len(self.running))


class Request:
    """A request in a task of its own: it waits, holds its lease until told, and ends.

    Attributes:
        files: what it was given.
        fault: what it ended with.
        scope: cancels it.
        ended: set when nothing of it is left.
    """

    def __init__(self, pool: Pool, namespace: str) -> None:
        self.namespace = namespace
        self.files: MemoryFiles | None = None
        self.fault: MemoryFault | None = None
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self._pool = pool
        self._released = anyio.Event()
        self._last: MemoryFault | None = None

    @property
    def is_held(self) -> bool:
        return self.files is not None and not self.ended.is_set()

    @property
    def is_waiting(self) -> bool:
        return self.files is None and not self.ended.is_set()

    def release(self, fault: MemoryFault | None = None) -> None:
        """End the lease, with what a call in it has raised."""
        self._last = fault
        self._released.set()

    async def run(self) -> None:
        try:
            with self.scope:
                await self._use()
        finally:
            self.ended.set()

    async def _use(self) -> None:
        try:
            async with self._pool.lease(self.namespace) as self.files:
                await self._released.wait()
                if self._last:
                    raise self._last
        except MemoryFault as fault:
            self.fault = fault


@asynccontextmanager
async def open_pool(
    engines: Engines, cap: int = 2, **options: Any
) -> AsyncGenerator[tuple[Pool, TaskGroup]]:
    """A pool, and tasks for requests to it; those left at the end are cancelled.

    No store ever had two engines, there were never more than `cap`, and none is left.
    """
    with anyio.fail_after(_TEST_SECONDS):
        async with (
            Pool(engines.connect, max_connections=cap, **options) as pool,
            anyio.create_task_group() as tasks,
        ):
            yield pool, tasks
            tasks.cancel_scope.cancel()
    assert not engines.overlaps
    assert engines.max_running <= cap
    assert not engines.running
    assert pool.stats()["waiting"] == pool.stats()["leases"] == 0


async def ask(tasks: TaskGroup, pool: Pool, *namespaces: str) -> list[Request]:
    """Send a request for each namespace, one after the other, and let them come to rest."""
    requests = [Request(pool, namespace) for namespace in namespaces]
    for request in requests:
        tasks.start_soon(request.run)
    await settle()
    return requests


async def use(pool: Pool, *namespaces: str) -> None:
    """Use the namespaces in turn, each for an instant."""
    for namespace in namespaces:
        async with pool.lease(namespace):
            await checkpoint()
