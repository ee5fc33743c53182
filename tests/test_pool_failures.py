"""Engines that do not start, die or fall silent under a pool: who is told, what replaces them."""

from itertools import pairwise
from typing import Any

import anyio
import pytest

from hms_memory_gateway.pool import Pool
from hms_memory_gateway.problems import StartFailed
from hms_memory_tool.errors import TimedOut

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


async def test_a_failed_start_is_told_to_all_who_waited(engines: Engines) -> None:
    engines.start("u1").close()
    engines.broken.add("u1")
    async with open_pool(engines) as (pool, tasks):
        requests = await ask(tasks, pool, *["u1"] * 10)
        engines.start("u1").open()
        await settle()
        assert [type(request.fault) for request in requests] == [StartFailed] * 10
        assert engines.starts("u1") == 1
        assert pool.stats()["failed"] == 1
        engines.broken.clear()
        await elapse(0.01)
        (next_one,) = await ask(tasks, pool, "u1")
        assert next_one.is_waiting  # for the back-off
        await elapse(0.2)
        assert next_one.is_held
    assert engines.starts("u1") == 2


async def fail_in_a_row(pool: Pool, times: int) -> None:
    for _ in range(times):
        await anyio.sleep(0.01)
        with pytest.raises(StartFailed):
            await use(pool, "u1")


def pauses(started: list[tuple[float, str]]) -> list[float]:
    """Between the starts, to a hundredth of a second."""
    times = [time for time, _ in started]
    return [round(after - before, 2) for before, after in pairwise(times)]


async def test_back_off_grows_to_a_limit(engines: Engines) -> None:
    engines.broken.add("u1")
    async with open_pool(engines, acquire_seconds=30) as (pool, _):
        await fail_in_a_row(pool, 9)
    assert pauses(engines.started) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize(
    ("lived_seconds", "back_off"),
    [
        (6.0, [0.1, 0.2]),
        (1.0, [1.6, 3.2]),
    ],
)
async def test_back_off_begins_anew_after_an_engine_that_lived(
    engines: Engines, lived_seconds: float, back_off: list[float]
) -> None:
    engines.broken.add("u1")
    async with open_pool(engines, acquire_seconds=30) as (pool, _):
        await fail_in_a_row(pool, 3)
        engines.broken.clear()
        await elapse(0.01)
        await use(pool, "u1")
        await elapse(lived_seconds)
        engines.engine("u1").ended.set()
        await settle()
        died = (anyio.current_time(), "u1")
        engines.broken.add("u1")
        await fail_in_a_row(pool, 3)
    assert pauses([died, *engines.started[-3:]])[-2:] == back_off


async def test_old_failures_are_forgotten(engines: Engines) -> None:
    engines.broken.add("u1")
    async with open_pool(engines, acquire_seconds=30, idle_seconds=10) as (pool, _):
        await fail_in_a_row(pool, 3)
        await elapse(90)
        await fail_in_a_row(pool, 2)
    assert pauses(engines.started)[-1] == 0.1


async def test_a_failed_start_is_not_told_to_who_comes_after_it(engines: Engines) -> None:
    engines.broken.add("u1")
    async with open_pool(engines) as (pool, _):
        with pytest.raises(StartFailed):
            await use(pool, "u1")
        engines.broken.clear()
        await use(pool, "u1")


async def test_namespaces_that_do_not_start_take_no_room(engines: Engines) -> None:
    async with open_pool(engines, cap=1) as (pool, tasks):
        engines.broken.update(f"bad-{number}" for number in range(5))
        await ask(tasks, pool, *engines.broken, *engines.broken)
        (request,) = await ask(tasks, pool, "u1")
        assert request.is_held


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_what_died_unused_is_replaced_at_the_next_request(
    engines: Engines, is_noticed: bool
) -> None:
    async with open_pool(engines) as (pool, _):
        await use(pool, "u1")
        dead = engines.engine("u1")
        dead.ended.set()
        if is_noticed:
            await settle()
        async with pool.lease("u1") as files:
            assert files is not dead.files


async def test_a_wedged_engine_is_replaced_without_waiting_for_its_leases(
    engines: Engines,
) -> None:
    async with open_pool(engines) as (pool, tasks):
        failing, other = await ask(tasks, pool, "u1", "u1")
        engines.engine("u1").answers = False
        failing.release(TimedOut("no answer"))
        await settle()
        (after,) = await ask(tasks, pool, "u1")
        await elapse(0.2)
        assert after.is_held
        assert other.is_held
        assert other.files is not after.files
        assert pool.stats()["closed_wedged"] == 1


async def test_a_slow_engine_is_kept(engines: Engines) -> None:
    async with open_pool(engines) as (pool, tasks):
        (failing,) = await ask(tasks, pool, "u1")
        failing.release(TimedOut("no answer yet"))
        await settle()
        await use(pool, "u1")
    assert engines.starts("u1") == 1


async def test_an_engine_that_comes_after_a_lost_one_is_a_restart(engines: Engines) -> None:
    async with open_pool(engines, idle_seconds=10) as (pool, _):
        await use(pool, "u1", "u2")
        assert pool.stats().get("restarts") == 0
        await elapse(8)
        engines.engine("u1").ended.set()  # long after its start: no back-off
        await settle()
        await use(pool, "u1")
        assert pool.stats()["restarts"] == 1
        await elapse(20)
        assert pool.stats()["closed_idle"] == 2
        await use(pool, "u1", "u2")
        assert pool.stats()["restarts"] == 1
