"""One compaction of a large store, and what agents notice of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import anyio

from hms_memory_gateway.blocks import Blocks
from hms_memory_gateway.compaction import Compacted
from hms_memory_gateway.engine import Engine
from hms_memory_gateway.idempotency import Answers
from hms_memory_gateway.metrics import Metrics
from hms_memory_gateway.pool import Pool
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.telemetry import Telemetry
from measured import Latencies, engines, forget_peak, peak_bytes, resident_bytes
from notes import Notes
from report import duration, ratio, shown, size, table
from stores import NO_COMPACTION, Stores

_LARGE, _OTHER = "large", "other"
_OTHER_FILES = 50
_BEFORE_SECONDS = 10.0  # of the same work, without a compaction
_VIEW_PAUSE_SECONDS = 0.005  # agents think; without a pause they would measure each other
_EDIT_PAUSE_SECONDS = 0.02
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Phase:
    """What was seen in some time: how long commands took, and the most memory."""

    views: Latencies
    edits: Latencies
    gateway: int
    engines: int


@dataclass(frozen=True, slots=True)
class Large:
    """A compaction, and the time before it."""

    files: int
    fill_seconds: float
    before: Phase
    during: Phase
    compacted: Compacted


class _Agent:
    """Sends a command again and again, until it is stopped.

    Args:
        command: sends it.
        pause_seconds: between two of them.
    """

    def __init__(self, command: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
        self._command = command
        self._pause_seconds = pause_seconds
        self._seconds: list[float] = []
        self.is_stopped = False

    async def run(self) -> None:
        while not self.is_stopped:
            started = perf_counter()
            await self._command()
            self._seconds.append(perf_counter() - started)
            await anyio.sleep(self._pause_seconds)

    def take(self) -> Latencies:
        """How long each took since this was last asked."""
        seconds, self._seconds = self._seconds, []
        return Latencies(seconds)


class _Engines:
    """Watches the memory of the engines of the large store, all together."""

    def __init__(self) -> None:
        self._peak = 0
        self.is_stopped = False

    async def run(self) -> None:
        while not self.is_stopped:
            now = sum(resident_bytes(pid) for pid in engines(_LARGE))
            self._peak = max(self._peak, now)
            await anyio.sleep(_SAMPLE_SECONDS)

    def take(self) -> int:
        """The most they had since this was last asked."""
        peak, self._peak = self._peak, 0
        return peak


class _Watch:
    """An agent that reads in one store, one that writes in the large one, and the memory."""

    def __init__(self, blocks: Blocks, notes: Notes, others: Notes) -> None:
        self._viewer = _Agent(lambda: others.view(blocks, _OTHER), _VIEW_PAUSE_SECONDS)
        self._writer = _Agent(lambda: notes.edit(blocks, _LARGE), _EDIT_PAUSE_SECONDS)
        self._engines = _Engines()

    @property
    def _all(self) -> tuple[_Agent, _Agent, _Engines]:
        return self._viewer, self._writer, self._engines

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        for one in self._all:
            tasks.start_soon(one.run)

    def stop(self) -> None:
        for one in self._all:
            one.is_stopped = True

    def take(self) -> Phase:
        """What was seen since this was last asked."""
        phase = Phase(self._viewer.take(), self._writer.take(), peak_bytes(), self._engines.take())
        forget_peak()
        return phase


async def measure(engine: Engine, files: int) -> Large:
    """Fill a store with so many files, use it, and compact it while it is used."""
    notes, others = Notes(files), Notes(_OTHER_FILES)
    with TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), **NO_COMPACTION)  # but the one asked for
        stores = Stores(engine, settings)
        await stores.fill(_OTHER, others)
        fill_seconds = await stores.fill(_LARGE, notes)
        async with Pool(stores.connect, acquire_seconds=settings.open_seconds) as pool:
            before, during, compacted = await _compact(pool, notes, others)
        await stores.check(_LARGE, notes)
        return Large(files, fill_seconds, before, during, compacted)


async def _compact(pool: Pool, notes: Notes, others: Notes) -> tuple[Phase, Phase, Compacted]:
    blocks = Blocks(pool, Answers(), Telemetry(Metrics()))
    watch = _Watch(blocks, notes, others)
    await notes.view(blocks, _LARGE)  # opens the stores
    await others.view(blocks, _OTHER)
    async with anyio.create_task_group() as tasks:
        watch.start(tasks)
        await anyio.sleep(1)
        watch.take()
        with shown("without a compaction"):
            await anyio.sleep(_BEFORE_SECONDS)
        before = watch.take()
        with shown(f"{len(notes)} files compacted") as progress:
            compacted = await pool.compact(_LARGE, progress)
        during = watch.take()
        watch.stop()
    return before, during, compacted


def in_words(large: Large) -> str:
    """Tables in Markdown."""
    compacted, filled = large.compacted, large.fill_seconds
    whole = [
        ["filling the store, directly", duration(filled), ratio(1, 1)],
        ["compacting it", duration(compacted.seconds), ratio(compacted.seconds, filled)],
        ["on disk before", size(compacted.before_bytes), ratio(1, 1)],
        ["on disk after", size(compacted.after_bytes), _times(compacted)],
    ]
    before, during = large.before, large.during
    noticed = [
        *_latencies("another namespace, view", before.views, during.views),
        *_latencies("the same namespace, edit", before.edits, during.edits),
        _memory("the gateway, most memory", before.gateway, during.gateway),
        _memory("the namespace's engines, most memory", before.engines, during.engines),
    ]
    return (
        table([f"{large.files} files", "", "ratio"], whole)
        + "\n"
        + table(["", "before", "during", "ratio"], noticed)
        + f"\nBy the gateway's own account, commands waited for at most "
        f"{duration(compacted.wait_seconds)}; {len(during.edits.seconds)} edits and "
        f"{len(during.views.seconds)} views were made meanwhile.\n"
    )


def _times(compacted: Compacted) -> str:
    return ratio(compacted.after_bytes, compacted.before_bytes)


def _latencies(what: str, before: Latencies, during: Latencies) -> list[list[str]]:
    rows = []
    for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
        one, other = before.at(share), during.at(share)
        rows.append([f"{what}, {name}", duration(one), duration(other), ratio(other, one)])
    return rows


def _memory(what: str, before: int, during: int) -> list[str]:
    return [what, size(before), size(during), ratio(during, before)]
