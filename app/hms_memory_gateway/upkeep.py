"""When the store of an open connection is compacted."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import anyio

from hms_memory_tool.errors import MemoryFault

from .compaction import Compacted, Progress
from .namespaces import for_log
from .problems import CompactionFailed, CompactionGaveWay, NoRoom

logger = logging.getLogger(__name__)
T = TypeVar("T")

Measure: TypeAlias = Callable[[Compacted | Exception, float], None]

_LOOK_SECONDS = 5.0  # between two looks at the size of an open store
_SHARE = 20  # a store that is written to all the time is compacted a twentieth of it
_TRIES = 3
_RETRY_SECONDS = 60.0  # after a failure


async def insist(compact: Callable[[], Awaitable[T]]) -> T:
    """Compact, again where commands come first or the store is closed for another.

    Raises:
        CompactionGaveWay: they did each time.
    """
    for _ in range(_TRIES - 1):
        with suppress(CompactionGaveWay):
            return await compact()
    return await compact()


@dataclass(slots=True, eq=False)
class _Order:
    """Somebody who waits for a compaction that begins after they asked."""

    progress: Progress
    is_patient: bool
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Compacted | Exception | None = None

    def answer(self, outcome: Compacted | Exception) -> None:
        self.outcome = outcome
        self.done.set()


class Upkeep:
    """Compacts one open store when it is due, and when somebody asks.

    Args:
        namespace: the store's name.
        compact: does it; the second argument says whether to be patient.
        is_large: whether the store has become so large that it should be done.
        has_remains: whether the store holds what was edited or deleted.
        limiter: how many stores may be compacted at once.
        measure: told what came of each compaction, and how many seconds it took.
    """

    def __init__(
        self,
        namespace: str,
        compact: Callable[[Progress, bool], Awaitable[Compacted]],
        is_large: Callable[[], bool],
        has_remains: Callable[[], bool],
        limiter: anyio.CapacityLimiter,
        measure: Measure = lambda came_to, seconds: None,
    ) -> None:
        self._namespace = namespace
        self._compact = compact
        self._is_large = is_large
        self._has_remains = has_remains
        self._limiter = limiter
        self._measure = measure
        self._orders: list[_Order] = []
        self._woken = anyio.Event()
        self._rest_until = self._retry_at = -1.0
        self._has_ended = False
        self.is_running = False

    @property
    def is_due(self) -> bool:
        """Whether the store should be compacted now, for all that is known here."""
        with suppress(OSError):  # of the moment; a look must not end the gateway's work
            return anyio.current_time() >= self._retry_at and self._is_large()
        return False

    @property
    def has_remains(self) -> bool:
        """Whether the store holds what was edited or deleted."""
        return self._has_remains()

    async def run(self) -> None:
        """Look after the store for as long as it is open; cancelled when it closes."""
        while True:
            if self._orders or (anyio.current_time() >= self._rest_until and self.is_due):
                await self._compact_once()
            self._woken = anyio.Event()
            if not self._orders:
                with anyio.move_on_after(_LOOK_SECONDS):
                    await self._woken.wait()

    def end(self) -> None:
        """Tell those who wait that there will be no compaction any more."""
        self._has_ended = True
        self._answer(self._orders, CompactionGaveWay("the store was closed"))

    def wake(self) -> None:
        """Look now, however short ago the last compaction was."""
        self._rest_until = -1.0
        self._woken.set()

    async def compact(
        self, progress: Progress = lambda done, total: None, *, is_patient: bool = False
    ) -> Compacted:
        """Compact the store, with all that has been written until now.

        Args:
            progress: told how many memories are done, and of how many.
            is_patient: whether nobody waits for it.

        Raises:
            CompactionGaveWay: the store was closed meanwhile, or commands kept coming.
            NoRoom: the disk is too full.
            CompactionFailed: it failed; the store is as it was.
        """
        if self._has_ended:
            raise CompactionGaveWay("the store was closed")
        order = _Order(progress, is_patient)
        self._orders.append(order)
        self.wake()
        await order.done.wait()
        if isinstance(order.outcome, Compacted):
            return order.outcome
        raise order.outcome or CompactionGaveWay("the store was closed")

    async def _compact_once(self) -> None:
        self.is_running = True
        orders: list[_Order] = []
        outcome: Compacted | Exception = CompactionGaveWay("the store was closed")
        started = anyio.current_time()
        try:
            async with self._limiter:
                orders, self._orders = self._orders, []
                is_patient = all(order.is_patient for order in orders)
                outcome = await self._compact(_all(orders), is_patient)
        except (CompactionGaveWay, NoRoom) as error:
            outcome = error
        except (MemoryFault, OSError) as error:  # whose own outcome is that of a copy
            outcome = CompactionFailed(str(error))
        finally:
            self.is_running = False
            now = anyio.current_time()
            self._rest_until = now + (now - started) * _SHARE
            self._retry_at = now if isinstance(outcome, Compacted) else now + _RETRY_SECONDS
            self._answer(orders, outcome)
            self._measure(outcome, now - started)
        if isinstance(outcome, Compacted):
            self._log(
                logging.INFO,
                "compacted %d memories from %d to %d KiB in %.2f s; commands waited %.0f ms",
                outcome.memories,
                outcome.before_bytes >> 10,
                outcome.after_bytes >> 10,
                outcome.seconds,
                outcome.wait_seconds * 1_000,
            )
        else:
            self._log(logging.WARNING, "not compacted: %s", outcome)

    @staticmethod
    def _answer(orders: list[_Order], outcome: Compacted | Exception) -> None:
        for order in orders:
            order.answer(outcome)
        orders.clear()

    def _log(self, level: int, message: str, *args: object) -> None:
        logger.log(level, "store %s %s", for_log(self._namespace), message % args)


def _all(orders: list[_Order]) -> Progress:
    def report(done: int, total: int) -> None:
        for order in orders:
            order.progress(done, total)

    return report
