"""One connection, over engines that do what the test says and on virtual time."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from hms_memory_gateway.connection import Connection, Memory, State
from hms_memory_tool.errors import ConnectionLost, MemoryFault, OutcomeUnknown, Refused, TimedOut

from .fake_engines import VIRTUAL_TIME, Engines, elapse, settle

pytestmark = pytest.mark.anyio
DRAIN_SECONDS = 10.0
NAME = "u1"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time that costs nothing."""
    return VIRTUAL_TIME


@pytest.fixture
def engines() -> Engines:
    """The engine behind the connection."""
    return Engines()


class Observed:
    """A connection that runs, and each state that it was seen in."""

    def __init__(self, engines: Engines) -> None:
        self.states: list[State] = []
        self.changes = 0
        self.exited = anyio.Event()
        self.connection = Connection(
            NAME, engines.connect, drain_seconds=DRAIN_SECONDS, on_change=self._changed
        )

    async def run(self) -> None:
        await self.connection.run()
        self.exited.set()

    def _changed(self) -> None:
        self.changes += 1
        self.states.append(self.connection.state)


@asynccontextmanager
async def running(engines: Engines) -> AsyncGenerator[Observed]:
    """Run a connection; it has ended at the end of the block, or is made to."""
    observed = Observed(engines)
    with anyio.fail_after(1_000):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(observed.run)
            await settle()
            yield observed
            observed.connection.stop("idle")
            await observed.exited.wait()
    assert not engines.running
    assert not engines.overlaps


async def fail_in_lease(connection: Connection, fault: MemoryFault) -> None:
    with pytest.raises(type(fault)):
        async with connection.lease():
            raise fault
    await settle()


async def test_states_go_forwards_alone(engines: Engines) -> None:
    async with running(engines) as observed:
        assert observed.states == [State.READY]
        assert observed.connection.is_idle
        observed.connection.stop("idle")
    assert observed.states == [State.READY, State.DRAINING, State.CLOSED]
    assert observed.connection.close_reason == "idle"
    assert observed.connection.failure is None


async def test_a_failed_start_is_kept_and_not_raised(engines: Engines) -> None:
    engines.broken.add(NAME)
    async with running(engines) as observed:
        assert observed.states == [State.CLOSED]
    assert str(observed.connection.failure) == "u1 is broken"
    assert observed.connection.ready_at is None


async def test_it_is_opened_and_closed_by_one_task() -> None:
    tasks: list[int] = []

    @asynccontextmanager
    async def connect(namespace: str) -> AsyncGenerator[Memory]:
        tasks.append(anyio.get_current_task().id)
        async with Engines().connect(namespace) as memory:
            yield memory
        tasks.append(anyio.get_current_task().id)

    connection = Connection(NAME, connect, drain_seconds=1, on_change=lambda: None)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(connection.run)
            await settle()
            async with connection.lease():
                connection.stop("idle")
    assert len(tasks) == 2
    assert len(set(tasks)) == 1


async def test_no_lease_before_it_is_ready(engines: Engines) -> None:
    engines.start(NAME).close()
    async with running(engines) as observed:
        with pytest.raises(RuntimeError):
            async with observed.connection.lease():
                pass
        engines.start(NAME).open()


async def test_told_to_stop_while_opening_it_closes_once_open(engines: Engines) -> None:
    engines.start(NAME).close()
    async with running(engines) as observed:
        observed.connection.stop("shutdown")
        assert engines.names == [NAME]
        engines.start(NAME).open()
        await observed.exited.wait()
    assert observed.connection.close_reason == "shutdown"


async def test_it_closes_when_the_last_lease_is_returned(engines: Engines) -> None:
    async with running(engines) as observed:
        async with observed.connection.lease():
            async with observed.connection.lease():
                observed.connection.stop("shutdown")
                await settle()
            await settle()
            assert repr(observed.connection) == "<Connection draining, 1 leases>"
            assert engines.names == [NAME]
        await settle()
        assert observed.exited.is_set()


async def test_leases_hold_up_the_end_for_so_long_alone(engines: Engines) -> None:
    async with running(engines) as observed, observed.connection.lease():
        observed.connection.stop("shutdown")
        await elapse(DRAIN_SECONDS - 1)
        assert engines.names == [NAME]
        await elapse(2)
        assert observed.exited.is_set()


async def test_a_dead_engine_is_closed_at_once_whoever_uses_it(engines: Engines) -> None:
    async with running(engines) as observed, observed.connection.lease():
        engines.engine(NAME).ended.set()
        await settle()
        assert observed.exited.is_set()
    assert observed.connection.close_reason == "died"
    assert repr(observed.connection) == "<Connection closed, 0 leases>"


@pytest.mark.parametrize("fault", [TimedOut("read"), OutcomeUnknown("write")], ids=type)
async def test_a_silent_engine_is_closed_without_waiting_for_other_leases(
    engines: Engines, fault: MemoryFault
) -> None:
    async with running(engines) as observed, observed.connection.lease():
        engines.engine(NAME).answers = False
        await fail_in_lease(observed.connection, fault)
        assert observed.exited.is_set()
    assert observed.connection.close_reason == "wedged"


async def test_a_slow_engine_is_kept_and_asked_again_at_each_doubt(engines: Engines) -> None:
    async with running(engines) as observed:
        for pings in (1, 2):
            await fail_in_lease(observed.connection, TimedOut("slow"))
            assert engines.engine(NAME).pings == pings
            assert observed.connection.is_idle


async def test_a_doubt_that_comes_during_a_question_is_asked_too(engines: Engines) -> None:
    async with running(engines) as observed:
        engine = engines.engine(NAME)
        engine.pong.close()
        await fail_in_lease(observed.connection, TimedOut("slow"))
        await fail_in_lease(observed.connection, TimedOut("slow again"))
        assert engine.pings == 1
        engine.pong.open()
        await settle()
        assert engine.pings == 2


async def test_an_engine_that_dies_during_the_question_died(engines: Engines) -> None:
    async with running(engines) as observed:
        engine = engines.engine(NAME)
        engine.pong.close()
        await fail_in_lease(observed.connection, TimedOut("dying"))
        engine.ended.set()
        await observed.exited.wait()
    assert observed.connection.close_reason == "died"


@pytest.mark.parametrize("fault", [Refused("no such path"), ConnectionLost("gone")], ids=type)
async def test_other_faults_raise_no_doubt(engines: Engines, fault: MemoryFault) -> None:
    async with running(engines) as observed:
        await fail_in_lease(observed.connection, fault)
        assert engines.engine(NAME).pings == 0
        assert observed.connection.is_idle


async def test_use_counts_until_its_end(engines: Engines) -> None:
    async with running(engines) as observed:
        async with observed.connection.lease():
            assert not observed.connection.is_idle
            await elapse(100)
            now = anyio.current_time()
        assert observed.connection.returned_at == now


async def test_only_the_last_return_is_a_change(engines: Engines) -> None:
    async with running(engines) as observed:
        before = observed.changes
        async with observed.connection.lease():
            async with observed.connection.lease():
                pass
            assert observed.changes == before
        assert observed.changes == before + 1


async def test_a_broken_transport_ends_this_connection_alone(engines: Engines) -> None:
    async with running(engines) as observed:
        engines.engine(NAME).break_transport()
        await observed.exited.wait()
    assert observed.connection.failure is not None


async def test_with_a_broken_transport_it_is_not_ready_while_it_closes(engines: Engines) -> None:
    async with running(engines) as observed:
        engines.exit(NAME).close()
        engines.engine(NAME).break_transport()
        await settle()
        assert engines.names == [NAME]
        is_ready = observed.connection.is_ready
        engines.exit(NAME).open()
    assert not is_ready
