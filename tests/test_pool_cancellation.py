"""Requests that are cancelled, wherever they are: nothing of them is left, and others go on."""

from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from hms_memory_gateway.pool import Pool
from hms_memory_gateway.problems import StartFailed

from .fake_engines import VIRTUAL_TIME, Engines, Request, ask, elapse, open_pool, settle, use

pytestmark = pytest.mark.anyio
MAX_TURNS = 40  # of the loop; more than any of these scenarios takes


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time that costs nothing."""
    return VIRTUAL_TIME


@pytest.fixture
def engines() -> Engines:
    """The engines behind the pool."""
    return Engines()


async def cancel(*requests: Request) -> None:
    for request in requests:
        request.scope.cancel()
    await settle()
    assert all(request.ended.is_set() for request in requests)


async def test_twenty_cancelled_waiters_leave_an_idle_connection(engines: Engines) -> None:
    engines.start("u1").close()
    async with open_pool(engines) as (pool, tasks):
        requests = await ask(tasks, pool, *["u1"] * 20)
        await cancel(*requests)
        assert repr(pool) == "<Pool 1 opening, 0 busy, 0 idle, 0 draining, 0 waiting>"
        engines.start("u1").open()
        await settle()
        assert repr(pool) == "<Pool 0 opening, 0 busy, 1 idle, 0 draining, 0 waiting>"
        await use(pool, "u1")
    assert engines.starts("u1") == 1


async def test_those_who_wait_on_are_served_when_others_are_cancelled(engines: Engines) -> None:
    engines.start("u1").close()
    async with open_pool(engines) as (pool, tasks):
        requests = await ask(tasks, pool, *["u1"] * 4)
        await cancel(*requests[:3])
        engines.start("u1").open()
        await settle()
        assert requests[3].is_held


async def test_room_is_not_kept_for_a_cancelled_request(engines: Engines) -> None:
    async with open_pool(engines, cap=1) as (pool, tasks):
        held, cancelled, waiting = await ask(tasks, pool, "u1", "u2", "u3")
        await cancel(cancelled)
        held.release()
        await settle()
        assert waiting.is_held
    assert engines.starts("u2") == 0


async def test_what_opens_for_nobody_makes_room(engines: Engines) -> None:
    engines.start("u1").close()
    async with open_pool(engines, cap=1) as (pool, tasks):
        gone, waiting = await ask(tasks, pool, "u1", "u2")
        await cancel(gone)
        engines.start("u1").open()
        await settle()
        assert waiting.is_held


async def test_what_opens_for_nobody_expires(engines: Engines) -> None:
    engines.start("u1").close()
    async with open_pool(engines, idle_seconds=30) as (pool, tasks):
        await cancel(*await ask(tasks, pool, "u1"))
        engines.start("u1").open()
        await elapse(61)
        assert not engines.running


@pytest.mark.parametrize("is_cancelled_first", [True, False])
async def test_cancelled_at_the_moment_it_opens(engines: Engines, is_cancelled_first: bool) -> None:
    engines.start("u1").close()
    async with open_pool(engines) as (pool, tasks):
        (request,) = await ask(tasks, pool, "u1")
        steps = [request.scope.cancel, engines.start("u1").open]
        for step in steps if is_cancelled_first else reversed(steps):
            step()
        await settle()
        assert request.ended.is_set()
        assert repr(pool) == "<Pool 0 opening, 0 busy, 1 idle, 0 draining, 0 waiting>"


async def test_cancelled_between_ready_and_use(engines: Engines) -> None:
    engines.start("u1").close()
    async with open_pool(engines) as (pool, tasks):
        (request,) = await ask(tasks, pool, "u1")

        async def cancel_once_it_is_ready() -> None:
            await engines.start("u1").wait()
            assert request.is_waiting
            assert pool.stats()["opening"] == 0
            request.scope.cancel()

        tasks.start_soon(cancel_once_it_is_ready)
        await settle()
        engines.start("u1").open()
        await settle()
        assert request.ended.is_set()
        assert repr(pool) == "<Pool 0 opening, 0 busy, 1 idle, 0 draining, 0 waiting>"


async def test_cancelled_while_it_holds_a_lease(engines: Engines) -> None:
    async with open_pool(engines, cap=1) as (pool, tasks):
        held, waiting = await ask(tasks, pool, "u1", "u2")
        await cancel(held)
        assert waiting.is_held
        assert pool.stats()["leases"] == 1


async def test_cancelled_during_the_back_off(engines: Engines) -> None:
    engines.broken.add("u1")
    async with open_pool(engines) as (pool, tasks):
        with pytest.raises(StartFailed):
            await use(pool, "u1")
        await elapse(0.01)
        await cancel(*await ask(tasks, pool, "u1"))
        await elapse(1)
        assert engines.starts("u1") == 1
        assert pool.stats()["waiting"] == 0


async def test_cancelled_while_it_waits_for_an_exit(engines: Engines) -> None:
    async with open_pool(engines, cap=1) as (pool, tasks):
        await use(pool, "u1")
        engines.exit("u1").close()
        evicting, same = await ask(tasks, pool, "u2", "u1")
        await cancel(evicting)
        engines.exit("u1").open()
        await settle()
        assert same.is_held
    assert engines.starts("u2") == 0


@pytest.mark.parametrize("turns", range(MAX_TURNS))
async def test_cancelled_at_any_turn_of_the_loop(engines: Engines, turns: int) -> None:
    async with open_pool(engines, cap=1) as (pool, tasks):
        await use(pool, "u1")
        request = Request(pool, "u2")  # evicts, opens, leases, returns
        request.release()
        tasks.start_soon(request.run)
        for _ in range(turns):
            await checkpoint()
        request.scope.cancel()
        await settle()
        assert request.ended.is_set()
        assert pool.stats()["leases"] == pool.stats()["waiting"] == 0
        with anyio.fail_after(5):
            await use(pool, "u1", "u2")


async def serve(pool: Pool, requests: TaskGroup, is_left: bool) -> None:
    """A pool with connections that are idle, in use and being opened; it is left, or served."""
    async with pool:
        await use(pool, "idle")
        await ask(requests, pool, "u1", "opening")
        if not is_left:
            await anyio.sleep_forever()


@pytest.mark.parametrize("is_left", [True, False])
async def test_a_pool_that_is_cancelled_closes_every_connection(
    engines: Engines, is_left: bool
) -> None:
    engines.start("opening").close()
    pool = Pool(engines.connect)
    with anyio.fail_after(100):
        async with anyio.create_task_group() as requests:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve, pool, requests, is_left)
                await elapse(1)
                assert len(engines.running) == (2 if is_left else 3)
                tasks.cancel_scope.cancel()
            assert not engines.running
            requests.cancel_scope.cancel()
    assert pool.stats()["waiting"] == pool.stats()["leases"] == 0
