"""Sessions with the real engine: how they begin, what they say when it goes, how they end."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from hms_memory_gateway.engine import Engine
from hms_memory_tool.errors import ConnectionLost, MemoryFault, StoreLocked, TimedOut, Unavailable
from hms_memory_tool.session import EngineSession, open_stdio
from hms_memory_tool.store import ToolFailed

from .conftest import processes_with, stop

pytestmark = pytest.mark.anyio
CALL_SECONDS = 0.5  # where the engine does not answer; elsewhere it is given all it needs
CLOSE_SECONDS = 8.0  # stdin, TERM and KILL, each of them given its time by the SDK


class Owner:
    """Opens and closes a session in a task of its own, as a connection of the pool does."""

    def __init__(self, opening: AbstractAsyncContextManager[EngineSession]) -> None:
        self.fault: Exception | None = None
        self.stop = anyio.Event()
        self.closed = anyio.Event()
        self._opening = opening

    async def run(self, *, task_status: TaskStatus[EngineSession]) -> None:
        try:
            async with self._opening as session:
                task_status.started(session)
                await self.stop.wait()
        except Unavailable as fault:
            self.fault = fault
        self.closed.set()


class Engines:
    """Opens sessions on stores of one data folder, and knows its processes."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self.heard: list[str] = []

    def open(
        self, namespace: str, *arguments: str, passphrase: str = "", call_seconds: float = 30
    ) -> AbstractAsyncContextManager[EngineSession]:
        """A session that the caller itself opens and closes."""
        return open_stdio(
            str(self._engine.path),
            [f"--data-dir={self._folder}", f"--namespace={namespace}", *arguments],
            {"HMS_MCP_ENCRYPT": "true", "HMS_MCP_PASSPHRASE": passphrase} if passphrase else {},
            open_seconds=10,
            call_seconds=call_seconds,
            on_stderr=self.heard.append,
        )

    @asynccontextmanager
    async def owned(
        self, namespace: str, call_seconds: float = 30
    ) -> AsyncGenerator[tuple[EngineSession, Owner]]:
        """A session that a task of its own opens and closes."""
        owner = Owner(self.open(namespace, call_seconds=call_seconds))
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                session = await tasks.start(owner.run)
                yield session, owner
                owner.stop.set()
                with anyio.fail_after(CLOSE_SECONDS):
                    await owner.closed.wait()

    def pids(self, namespace: str = "") -> list[int]:
        """Of the processes that run on its stores, or on one of them."""
        named = [f"--namespace={namespace}"] if namespace else []
        return processes_with(f"--data-dir={self._folder}", *named)

    def pid(self, namespace: str) -> int:
        """Of the engine of a namespace."""
        (pid,) = self.pids(namespace)
        return pid


@pytest.fixture
def engines(engine: Engine, tmp_path: Path) -> Engines:
    """Engines on stores of their own."""
    return Engines(engine, tmp_path)


async def remember(session: EngineSession, text: str) -> None:
    await session("remember", {"id": "/memories/a", "text": text})


async def is_usable(session: EngineSession) -> bool:
    with anyio.fail_after(5):
        return "limits" in await session("stats", {})


async def last_words(
    opening: AbstractAsyncContextManager[EngineSession], fault: type[Unavailable] = Unavailable
) -> str:
    with anyio.fail_after(15), pytest.raises(fault) as caught:
        async with opening:
            pytest.fail("it has opened")
    return str(caught.value)


async def test_a_store_that_another_process_has_is_said_to_be_locked(engines: Engines) -> None:
    async with engines.open("n") as session:
        assert "store_locked" in await last_words(engines.open("n"), StoreLocked)
        assert await is_usable(session)
    assert any("store_locked" in line for line in engines.heard)


async def test_wrong_arguments_are_named(engines: Engines) -> None:
    assert "--no-such-flag" in await last_words(engines.open("n", "--no-such-flag"))
    assert not engines.pids()


async def test_a_wrong_passphrase_is_told_apart(engines: Engines) -> None:
    async with engines.open("n", passphrase="right") as session:
        await remember(session, "secret")
    words = await last_words(engines.open("n", passphrase="wrong"))
    assert "store_unavailable" in words
    assert "encryption" in words
    assert "right" not in words


async def test_a_program_that_does_not_exist_is_a_fault(tmp_path: Path) -> None:
    missing = open_stdio(
        str(tmp_path / "missing"), [], {}, open_seconds=5, call_seconds=5, on_stderr=print
    )
    await last_words(missing)


async def test_a_program_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    mute = open_stdio(
        "sh",
        ["-c", "echo hello >&2; while read -r line; do :; done; echo goodbye >&2"],
        {},
        open_seconds=0.2,
        call_seconds=5,
        on_stderr=print,
    )
    assert (await last_words(mute)).endswith("hello goodbye")


async def test_a_tool_that_fails_leaves_the_session_as_it_is(engines: Engines) -> None:
    async with engines.open("n") as session:
        with pytest.raises(ToolFailed) as caught:
            await session("get", {"id": "/memories/none"})
        assert caught.value.code == "not_found"
        assert await is_usable(session)


async def test_the_death_of_an_idle_engine_shows_without_a_call(engines: Engines) -> None:
    async with engines.owned("n") as (session, owner):
        os.kill(engines.pid("n"), signal.SIGKILL)
        with anyio.fail_after(5):
            await session.ended.wait()
        with pytest.raises(Unavailable):
            await is_usable(session)
        assert not await session.is_alive()
    assert owner.fault is None
    assert not engines.pids()


@pytest.mark.parametrize("calls", [1, 5])
async def test_a_call_that_the_engine_dies_under_is_lost_and_not_cancelled(
    engines: Engines, calls: int
) -> None:
    faults: list[type[Exception]] = []

    async def call(session: EngineSession) -> None:
        try:
            await session("stats", {})
        except MemoryFault as fault:
            faults.append(type(fault))

    async with engines.owned("n") as (session, _), engines.owned("other") as (other, _):
        stop(engines.pid("n"))
        async with anyio.create_task_group() as tasks:
            for _ in range(calls):
                tasks.start_soon(call, session)
            await anyio.wait_all_tasks_blocked()
            os.kill(engines.pid("n"), signal.SIGKILL)
        assert faults == [ConnectionLost] * calls
        assert await is_usable(other)


async def test_a_stopped_engine_times_out_and_is_not_alive_and_ends(engines: Engines) -> None:
    async with (
        engines.owned("n", CALL_SECONDS) as (session, owner),
        engines.owned("other") as (other, _),
    ):
        stop(engines.pid("n"))
        with pytest.raises(TimedOut):
            await session("stats", {})
        assert not session.ended.is_set()
        assert not await session.is_alive()
        assert await is_usable(other)
        owner.stop.set()
        with anyio.fail_after(CLOSE_SECONDS):
            await owner.closed.wait()
        assert not engines.pids("n")
        assert await is_usable(other)


async def test_a_stopped_engine_times_out_even_when_no_call_can_be_written(
    engines: Engines,
) -> None:
    async def fill_the_pipe(session: EngineSession) -> None:
        with pytest.raises(MemoryFault):
            await remember(session, "x" * 1_000_000)

    async with engines.owned("n", CALL_SECONDS) as (session, _):
        stop(engines.pid("n"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill_the_pipe, session)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(TimedOut):
                await session("stats", {})


async def test_half_a_surrogate_pair_is_a_fault_of_its_session_alone(engines: Engines) -> None:
    async with engines.owned("n") as (session, _), engines.owned("other") as (other, _):
        with anyio.fail_after(5), pytest.raises(MemoryFault):
            await remember(session, "hi \ud83d")
        assert await is_usable(other)
    async with engines.owned("n") as (session, _):
        assert await is_usable(session)


async def test_a_cancelled_call_leaves_the_session_as_it_is(engines: Engines) -> None:
    async with engines.owned("n") as (session, _):
        for _ in range(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(remember, session, "never mind")
                tasks.cancel_scope.cancel()
        assert await is_usable(session)


@pytest.mark.parametrize("turns", [0, 3, 30])
async def test_cancelled_while_opening_it_leaves_no_process(engines: Engines, turns: int) -> None:
    with anyio.fail_after(CLOSE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(last_words, engines.open("n"))
            for _ in range(turns):
                await checkpoint()
            tasks.cancel_scope.cancel()
    with anyio.fail_after(CLOSE_SECONDS):
        while engines.pids():  # one that is cancelled in mid-spawn dies on its own
            await checkpoint()
