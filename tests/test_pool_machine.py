"""Random requests, cancellations and faults against a pool, and what has to hold after each."""

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskGroup
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hms_memory_gateway.pool import Pool
from hms_memory_gateway.problems import AtCapacity, ShuttingDown, StartFailed
from hms_memory_tool.errors import TimedOut

from .fake_engines import VIRTUAL_TIME, Engine, Engines, Request, ask, elapse, use

T = TypeVar("T")
Step: TypeAlias = tuple[str, Any]

CAP = 2
IDLE_SECONDS = 20.0
ACQUIRE_SECONDS = 15.0
DRAIN_SECONDS = 10.0
MAX_BACK_OFF_SECONDS = 5.0
STEP_SECONDS = 0.01
NAMES = ("a", "b", "c")

_NAME = st.sampled_from(NAMES)
_ANY = st.integers(0, 1_000)
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ask", "ask", "ask", "ask_twice"]), _NAME),
        st.tuples(st.sampled_from(["release", "release", "time_out", "wedge", "cancel"]), _ANY),
        st.tuples(st.sampled_from(["die", "fall_silent", "break_transport"]), _ANY),
        st.tuples(st.sampled_from(["break_start", "mend_start"]), _NAME),
        st.tuples(st.sampled_from(["hold_start", "let_start", "hold_exit", "let_exit"]), _NAME),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 6.0, 21.0])),
    ),
    min_size=15,
    max_size=60,
)


class Machine:
    """Sends requests to a pool; knows from these and the engines alone how the pool has to be."""

    def __init__(self, tasks: TaskGroup, pool: Pool, engines: Engines) -> None:
        self._tasks = tasks
        self._pool = pool
        self._engines = engines
        self._requests: list[tuple[Request, float]] = []
        self._doomed: list[Engine] = []  # died, broken, or found silent: none may be given out
        self._troubled: set[str] = set()  # namespaces that may have to wait for a back-off

    @property
    def held(self) -> list[Request]:
        return [request for request, _ in self._requests if request.is_held]

    @property
    def waiting(self) -> list[Request]:
        return [request for request, _ in self._requests if request.is_waiting]

    async def step(self, name: str, argument: Any) -> None:
        """Do one thing, let the pool come to rest, and check it."""
        await getattr(self, name)(argument)
        await elapse(STEP_SECONDS)
        self.check()

    async def ask(self, namespace: str) -> None:
        requests = await ask(self._tasks, self._pool, namespace)
        now = anyio.current_time()
        self._requests += [(request, now) for request in requests]
        given = [request.files for request in requests if request.files]
        assert not any(engine.files in given for engine in self._doomed)

    async def ask_twice(self, namespace: str) -> None:
        await self.ask(namespace)
        await self.ask(namespace)

    async def release(self, number: int) -> None:
        if request := _one(self.held, number):
            request.release()

    async def time_out(self, number: int) -> None:
        if request := _one(self.held, number):
            engine = self._engine(request)
            if engine and not engine.answers:
                self._doom(engine)
            request.release(TimedOut("no answer"))

    async def wedge(self, number: int) -> None:
        request = _one(self.held, number)
        if request and (engine := self._engine(request)):
            engine.answers = False
            await self.time_out(number)

    async def cancel(self, number: int) -> None:
        if request := _one(self.held + self.waiting, number):
            request.scope.cancel()

    async def die(self, number: int) -> None:
        if engine := self._open(number):
            self._doom(engine)
            engine.ended.set()

    async def break_transport(self, number: int) -> None:
        if engine := self._open(number):
            self._doom(engine)
            engine.break_transport()

    async def fall_silent(self, number: int) -> None:
        if engine := self._open(number):
            engine.answers = False

    async def break_start(self, namespace: str) -> None:
        self._troubled.add(namespace)
        self._engines.broken.add(namespace)

    async def mend_start(self, namespace: str) -> None:
        self._engines.broken.discard(namespace)

    async def hold_start(self, namespace: str) -> None:
        self._engines.start(namespace).close()

    async def let_start(self, namespace: str) -> None:
        self._engines.start(namespace).open()

    async def hold_exit(self, namespace: str) -> None:
        self._engines.exit(namespace).close()

    async def let_exit(self, namespace: str) -> None:
        self._engines.exit(namespace).open()

    async def wait(self, seconds: float) -> None:
        await elapse(seconds)

    def check(self) -> None:
        """What holds whenever the pool has come to rest."""
        assert not self._engines.overlaps
        assert self._engines.max_running <= CAP
        self._check_counts()
        self._check_held()
        self._check_waiting()
        self._check_faults()

    def _check_counts(self) -> None:
        counts = self._pool.stats()
        open_ones = sum(counts[name] for name in ("opening", "busy", "idle", "draining"))
        assert open_ones == len(self._engines.running)
        assert counts["waiting"] == len(self.waiting)
        assert counts["leases"] == sum(self._engine(one) is not None for one in self.held)

    def _check_held(self) -> None:
        """What is in use is not closed; only what went wrong by itself may have gone."""
        doomed = [engine.files for engine in self._doomed]
        for request in self.held:
            assert self._engine(request) or request.files in doomed

    def _check_waiting(self) -> None:
        """Whoever waits has a reason to."""
        without_room = set()
        for name in {request.namespace for request in self.waiting}:
            if name in self._engines.names:  # opening, or on its way out
                is_held = any(one.namespace == name for one in self.held)
                is_slow = not (
                    self._engines.start(name).is_open and self._engines.exit(name).is_open
                )
                assert is_held or is_slow
            elif not self._may_back_off(name):
                without_room.add(name)
        if without_room:
            counts = self._pool.stats()
            assert len(self._engines.running) == CAP
            assert counts["idle"] == 0 or counts["draining"] >= len(without_room)

    def _check_faults(self) -> None:
        now = anyio.current_time()
        for request, asked_at in self._requests:
            if isinstance(request.fault, StartFailed):
                assert request.namespace in self._troubled
            if isinstance(request.fault, AtCapacity):
                assert now - asked_at >= ACQUIRE_SECONDS
            assert not isinstance(request.fault, ShuttingDown)
            assert not request.is_waiting or now - asked_at <= ACQUIRE_SECONDS + 1

    async def rest(self) -> None:
        """Once nothing goes wrong any more, everybody is served and nobody is left."""
        self._engines.broken.clear()
        for name in NAMES:
            self._engines.start(name).open()
            self._engines.exit(name).open()
        for request in self.held:
            request.release()
        await elapse(ACQUIRE_SECONDS + MAX_BACK_OFF_SECONDS)
        for request in self.held:
            request.release()
        await elapse(STEP_SECONDS)
        self.check()
        assert not self.waiting
        assert not self.held
        await use(self._pool, *NAMES)

    def let_go(self) -> None:
        for request in self.held:
            request.release()

    def _open(self, number: int) -> Engine | None:
        ready = [one for one in self._engines.running if self._engines.start(one.namespace).is_open]
        return _one([engine for engine in ready if engine not in self._doomed], number)

    def _engine(self, request: Request) -> Engine | None:
        return next((one for one in self._engines.running if one.files is request.files), None)

    def _doom(self, engine: Engine) -> None:
        self._doomed.append(engine)
        self._troubled.add(engine.namespace)

    def _may_back_off(self, name: str) -> bool:
        since = anyio.current_time() - self._engines.exited.get(name, -1_000.0)
        return name in self._troubled and since <= MAX_BACK_OFF_SECONDS + 2 * STEP_SECONDS


def _one(choices: Sequence[T], number: int) -> T | None:
    return choices[number % len(choices)] if choices else None


async def drive(steps: list[Step], comes_to_rest: bool) -> None:
    engines = Engines()
    with anyio.fail_after(100_000):
        async with anyio.create_task_group() as tasks:
            async with Pool(
                engines.connect,
                max_connections=CAP,
                idle_seconds=IDLE_SECONDS,
                acquire_seconds=ACQUIRE_SECONDS,
                drain_seconds=DRAIN_SECONDS,
            ) as pool:
                machine = Machine(tasks, pool, engines)
                for name, argument in steps:
                    await machine.step(name, argument)
                if comes_to_rest:
                    await machine.rest()
            assert not engines.running
            assert not machine.waiting
            machine.let_go()
    assert not engines.overlaps
    assert pool.stats()["waiting"] == 0


@settings(
    max_examples=300,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(steps=STEPS, comes_to_rest=st.booleans())
def test_whatever_happens_the_pool_keeps_its_promises(
    steps: list[Step], comes_to_rest: bool
) -> None:
    anyio.run(drive, steps, comes_to_rest, backend_options=VIRTUAL_TIME[1])
