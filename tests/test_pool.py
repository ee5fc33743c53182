"""The pool over engines that do what the test says: who waits, what is opened and closed."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from hms_memory_gateway.connection import Memory
from hms_memory_gateway.pool import Pool
from hms_memory_gateway.problems import AtCapacity, ShuttingDown

from .fake_engines import VIRTUAL_TIME, Engines, ask, elapse, open_pool, settle, use

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time that costs nothing."""
    return VIRTUAL_TIME


@pytest.fixture
def engines() -> Engines:
    """The engines behind the pool."""
    return Engines()


async def test_fifty_first_requests_open_one_connection(engines: Engines) -> None:
    engines.start("u1").close()
    async with open_pool(engines) as (pool, tasks):
        requests = await ask(tasks, pool, *["u1"] * 50)
        assert repr(pool) == "<Pool 1 opening, 0 busy, 0 idle, 0 draining, 50 waiting>"
        engines.start("u1").open()
        await settle()
        assert repr(pool) == "<Pool 0 opening, 1 busy, 0 idle, 0 draining, 0 waiting>"
        assert pool.stats()["leases"] == 50
        assert {request.files for request in requests} == {engines.engine("u1").files}
    assert engines.starts("u1") == 1


async def test_a_connection_counts_as_opened_while_it_is_open(engines: Engines) -> None:
    async with open_pool(engines) as (pool, _):
        await use(pool, "u1")
        counts = pool.stats()
    assert counts.get("opened") == 1


async def test_whoever_has_to_wait_is_told_of_and_nobody_else(engines: Engines) -> None:
    waits: list[str] = []

    @contextmanager
    def waiting() -> Generator[None]:
        waits.append("began")
        yield
        waits.append("ended")

    async with open_pool(engines, waiting=waiting) as (pool, _):
        await use(pool, "u1", "u1", "u1")
    assert waits == ["began", "ended"]


async def test_a_connection_does_not_carry_on_the_context_of_who_asked(engines: Engines) -> None:
    request, seen = ContextVar("request", default="none"), []

    @asynccontextmanager
    async def connect(namespace: str) -> AsyncGenerator[Memory]:
        seen.append(request.get())
        async with engines.connect(namespace) as memory:
            yield memory

    request.set("r1")
    async with Pool(connect) as pool:
        await use(pool, "u1")
    assert seen == ["none"]


async def test_a_namespace_does_not_wait_for_another_to_open(engines: Engines) -> None:
    engines.start("u1").close()
    async with open_pool(engines) as (pool, tasks):
        slow, quick = await ask(tasks, pool, "u1", "u2")
        assert slow.is_waiting
        assert quick.is_held


async def test_the_least_recently_used_idle_connection_makes_room(engines: Engines) -> None:
    async with open_pool(engines) as (pool, _):
        for namespaces in ("u1", "u2", "u1"):
            await use(pool, namespaces)
            await elapse(0.1)
        await use(pool, "u3")
        assert engines.names == ["u1", "u3"]
        assert pool.stats()["closed_evicted"] == 1


async def test_a_connection_in_use_is_never_evicted(engines: Engines) -> None:
    async with open_pool(engines) as (pool, tasks):
        (held,) = await ask(tasks, pool, "u1")
        await elapse(1)
        for number in range(5):
            await use(pool, f"other-{number}")
        assert held.files is engines.engine("u1").files


async def test_ten_requests_for_a_namespace_evict_one_connection(engines: Engines) -> None:
    async with open_pool(engines, cap=4) as (pool, tasks):
        await use(pool, "u1", "u2", "u3", "u4")
        for name in ("u1", "u2", "u3", "u4"):
            engines.exit(name).close()
        await ask(tasks, pool, *["u5"] * 10)
        assert repr(pool) == "<Pool 0 opening, 0 busy, 3 idle, 1 draining, 10 waiting>"
        for name in ("u1", "u2", "u3", "u4"):
            engines.exit(name).open()


async def test_a_connection_is_not_evicted_before_who_waited_for_it_has_used_it(
    engines: Engines,
) -> None:
    engines.start("u1").close()
    async with open_pool(engines, cap=1) as (pool, tasks):
        (first,) = await ask(tasks, pool, "u1")

        async def come_at_the_moment_it_opens() -> None:
            await engines.start("u1").wait()
            await use(pool, "u2")

        tasks.start_soon(come_at_the_moment_it_opens)
        await settle()
        engines.start("u1").open()
        await settle()
        assert first.is_held
    assert engines.starts("u1") == 1


async def test_a_namespace_that_is_being_evicted_is_opened_again_after_its_exit(
    engines: Engines,
) -> None:
    async with open_pool(engines) as (pool, tasks):
        await use(pool, "u1", "u2")
        engines.exit("u1").close()
        (other, same) = await ask(tasks, pool, "u3", "u1")
        assert engines.names == ["u1", "u2"]
        assert other.is_waiting
        assert same.is_waiting
        engines.exit("u1").open()
        await settle()
        assert engines.names == ["u3", "u1"]
        assert other.is_held
        assert same.is_held


async def test_at_capacity_after_a_bounded_wait_and_nothing_is_left(engines: Engines) -> None:
    async with open_pool(engines, acquire_seconds=5) as (pool, tasks):
        await ask(tasks, pool, "u1", "u2")
        (late,) = await ask(tasks, pool, "u3")
        await elapse(4.9)
        assert late.is_waiting
        await elapse(0.2)
        assert isinstance(late.fault, AtCapacity)
        assert repr(pool) == "<Pool 0 opening, 1 busy, 0 idle, 1 draining, 0 waiting>"


async def test_a_namespace_that_is_never_idle_makes_way_after_its_turn(engines: Engines) -> None:
    """Its leases overlap, so that there is no moment at which its connection could be taken."""
    async with open_pool(engines, cap=1, acquire_seconds=5) as (pool, tasks):
        (first,) = await ask(tasks, pool, "u1")
        await elapse(1.1)
        (late,) = await ask(tasks, pool, "u2")
        (second,) = await ask(tasks, pool, "u1")
        assert second.is_held  # u2 has not waited for long
        first.release()
        await elapse(1.1)
        (third,) = await ask(tasks, pool, "u1")
        assert third.is_waiting
        assert second.is_held
        second.release()
        await settle()
        assert late.is_held
        late.release()
        await settle()
        assert third.is_held


async def test_room_goes_to_who_came_first(engines: Engines) -> None:
    async with open_pool(engines, cap=1) as (pool, tasks):
        order = ["u1", "u2", "u3", "u4"]
        requests = await ask(tasks, pool, *order)
        for request in requests:
            assert engines.names == [request.namespace]
            request.release()
            await settle()
    assert [name for _, name in engines.started] == order


async def test_a_namespace_that_never_rests_cannot_keep_others_out(engines: Engines) -> None:
    async with open_pool(engines, cap=1) as (pool, tasks):

        async def never_rest() -> None:
            while True:
                await use(pool, "busy")

        tasks.start_soon(never_rest)
        await settle()
        (other,) = await ask(tasks, pool, "u1")
        assert other.ended.is_set() or other.is_held


async def test_what_nobody_uses_is_closed_though_nobody_asks(engines: Engines) -> None:
    async with open_pool(engines, idle_seconds=300) as (pool, tasks):
        await use(pool, "u1")
        (held,) = await ask(tasks, pool, "u2")
        await elapse(299)
        assert engines.names == ["u1", "u2"]
        held.release()
        await elapse(2)
        assert engines.names == ["u2"]
        await elapse(300)
        assert engines.names == []
        assert pool.stats()["closed_idle"] == 2


class Service:
    """A pool in a task of its own, which leaves it when told to shut down."""

    def __init__(self, engines: Engines, drain_seconds: float) -> None:
        self.pool = Pool(engines.connect, drain_seconds=drain_seconds)
        self.closed = anyio.Event()
        self._shut_down = anyio.Event()

    async def run(self) -> None:
        async with self.pool:
            await self._shut_down.wait()
        self.closed.set()

    async def shut_down(self) -> None:
        self._shut_down.set()
        await settle()


@asynccontextmanager
async def serving(
    engines: Engines, drain_seconds: float = 10
) -> AsyncGenerator[tuple[Service, TaskGroup]]:
    """A service, and tasks for requests that outlive it."""
    service = Service(engines, drain_seconds)
    with anyio.fail_after(1_000):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.run)
            await settle()
            yield service, tasks
            await service.shut_down()
            await service.closed.wait()
    assert not engines.running


async def test_shutdown_waits_for_leases_and_refuses_all_others(engines: Engines) -> None:
    async with serving(engines, drain_seconds=10) as (service, tasks):
        await use(service.pool, "idle")
        (held,) = await ask(tasks, service.pool, "u1")
        engines.start("u2").close()
        (waiting,) = await ask(tasks, service.pool, "u2")
        await service.shut_down()
        engines.start("u2").open()
        (late,) = await ask(tasks, service.pool, "u1")
        assert isinstance(waiting.fault, ShuttingDown)
        assert isinstance(late.fault, ShuttingDown)
        assert engines.names == ["u1"]
        await elapse(9)
        assert not service.closed.is_set()
        held.release()
        await settle()
        assert service.closed.is_set()
        assert service.pool.stats()["closed_shutdown"] == 3


async def test_shutdown_does_not_wait_for_ever(engines: Engines) -> None:
    async with serving(engines, drain_seconds=10) as (service, tasks):
        engines.start("u2").close()
        held, waiting = await ask(tasks, service.pool, "u1", "u2")
        await service.shut_down()
        await elapse(11)
        assert service.closed.is_set()
        assert isinstance(waiting.fault, ShuttingDown)
        held.release()


async def test_nothing_is_leased_once_the_pool_is_closing(engines: Engines) -> None:
    engines.start("u1").close()
    async with serving(engines) as (service, tasks):
        (waiting,) = await ask(tasks, service.pool, "u1")
        await service.shut_down()
        assert isinstance(waiting.fault, ShuttingDown)

        async def come_at_the_moment_it_opens() -> None:
            await engines.start("u1").wait()
            with pytest.raises(ShuttingDown):
                await use(service.pool, "u1")

        tasks.start_soon(come_at_the_moment_it_opens)
        await settle()
        engines.start("u1").open()


async def test_a_closed_pool_refuses(engines: Engines) -> None:
    async with serving(engines) as (service, _):
        await use(service.pool, "u1")
        await service.shut_down()
        assert service.pool.is_closing
        with pytest.raises(ShuttingDown):
            await use(service.pool, "u1")
        assert repr(service.pool) == "<Pool 0 opening, 0 busy, 0 idle, 0 draining, 0 waiting>"
