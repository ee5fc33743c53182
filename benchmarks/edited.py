"""What many edits of a few files leave behind, with compaction and without."""

import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import anyio

from hms_memory_gateway.blocks import Blocks
from hms_memory_gateway.compaction import Progress
from hms_memory_gateway.engine import Engine
from hms_memory_gateway.folders import disk_bytes
from hms_memory_gateway.idempotency import Answers
from hms_memory_gateway.metrics import Metrics
from hms_memory_gateway.pool import Pool
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.telemetry import Telemetry
from notes import Notes
from report import duration, ratio, shown, size, table
from stores import NO_COMPACTION, Opened, Stores

_NAME = "edited"
# The default is 300. A store rests for twenty times as long as its last compaction took; closed
# earlier than that, it would be measured in a state in which no user's store is left.
_IDLE_SECONDS = 10.0
_CLOSE_SECONDS = 300.0  # the longest wait for a store to be compacted and closed
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Left:
    """A closed store: what it takes to open, and on the disk."""

    opened: Opened
    disk: int


@dataclass(frozen=True, slots=True)
class Work:
    """The edits: how long they took in all, the longest of them, and what was done meanwhile."""

    seconds: float
    longest: float
    compactions: str


@dataclass(frozen=True, slots=True)
class Row:
    """What so many edits came to."""

    edits: int
    without: Left
    without_work: Work
    compacted: Left
    compacted_work: Work


@dataclass(frozen=True, slots=True)
class Growth:
    """All of it, and the same files in a fresh store to compare with."""

    fresh: Left
    rows: Sequence[Row]


class _Compactions(logging.Handler):
    """Counts the compactions that the gateway reports, and repeats why one failed."""

    def __init__(self) -> None:
        super().__init__()
        self.done = self.failed = 0

    def __str__(self) -> str:
        return f"{self.done}, {self.failed} failed" if self.failed else str(self.done)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self.done += 1
        else:
            self.failed += 1
            sys.stderr.write(f"{record.getMessage()}\n")


async def measure(engine: Engine, files: int, numbers: Sequence[int]) -> Growth:
    """Edit stores of so many files so many times each, and look at what is left of them."""
    rows = []
    for edits in numbers:
        without = await _edited(engine, files, edits, "without", idle_seconds=1, **NO_COMPACTION)
        compacted = await _edited(engine, files, edits, "with", idle_seconds=_IDLE_SECONDS)
        rows.append(Row(edits, *without, *compacted))
    return Growth(await _fresh(engine, Notes(files)), rows)


def in_words(growth: Growth) -> str:
    """A table in Markdown."""
    head = ["Store", "opens in", "on disk", "resident", "private", "edits took", "compactions"]
    fresh = growth.fresh
    rows = [["fresh", *_closed(fresh, fresh), "", "", ""]]
    for row in growth.rows:
        without, compacted = row.without_work, row.compacted_work
        rows += [
            [
                f"{row.edits} edits without compaction",
                *_closed(row.without, fresh),
                *_done(without, without),
            ],
            [
                f"{row.edits} edits with compaction",
                *_closed(row.compacted, fresh),
                *_done(compacted, without),
            ],
        ]
    return table([*head, "longest command"], rows) + (
        "\nIn brackets: how many times that of the fresh store; for the edits, how many times that "
        "without compaction.\n"
    )


def _closed(left: Left, fresh: Left) -> list[str]:
    opened, reference = left.opened, fresh.opened
    return [
        f"{duration(opened.seconds)} ({ratio(opened.seconds, reference.seconds)})",
        f"{size(left.disk)} ({ratio(left.disk, fresh.disk)})",
        f"{size(opened.resident)} ({ratio(opened.resident, reference.resident)})",
        f"{size(opened.private)} ({ratio(opened.private, reference.private)})",
    ]


def _done(work: Work, without: Work) -> list[str]:
    return [
        f"{duration(work.seconds)} ({ratio(work.seconds, without.seconds)})",
        work.compactions,
        f"{duration(work.longest)} ({ratio(work.longest, without.longest)})",
    ]


async def _fresh(engine: Engine, notes: Notes) -> Left:
    with TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        stores = Stores(engine, settings)
        await stores.fill(_NAME, notes)
        return await _left(stores, settings)


async def _edited(
    engine: Engine, files: int, edits: int, compaction: str, **options: Any
) -> tuple[Left, Work]:
    notes = Notes(files)
    with TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), **options)
        stores = Stores(engine, settings)
        await stores.fill(_NAME, notes)
        with shown(f"{edits} edits {compaction} compaction") as progress:
            work = await _edit(stores, settings, notes, edits, progress)
        await stores.check(_NAME, notes)
        return await _left(stores, settings), work


async def _edit(
    stores: Stores, settings: Settings, notes: Notes, edits: int, progress: Progress
) -> Work:
    """Edit as an agent does that never pauses, then leave the store alone until it is closed."""
    seconds = []
    with _counted() as compactions:
        async with Pool(stores.connect, idle_seconds=settings.idle_seconds) as pool:
            blocks = Blocks(pool, Answers(), Telemetry(Metrics()))
            await notes.view(blocks, _NAME)  # opens the store
            for number in range(1, edits + 1):
                started = perf_counter()
                await notes.edit(blocks, _NAME)
                seconds.append(perf_counter() - started)
                progress(number, edits)
            with anyio.fail_after(_CLOSE_SECONDS):
                while pool.stats()["idle"]:  # noqa: ASYNC110 - a pool tells nobody
                    await anyio.sleep(_POLL_SECONDS)
    return Work(sum(seconds), max(seconds), str(compactions))


async def _left(stores: Stores, settings: Settings) -> Left:
    disk = disk_bytes(settings.data_dir)
    return Left(await stores.opened(_NAME), disk)


@contextmanager
def _counted() -> Generator[_Compactions]:
    upkeep = logging.getLogger("hms_memory_gateway.upkeep")
    compactions = _Compactions()
    upkeep.addHandler(compactions)
    upkeep.setLevel(logging.INFO)
    try:
        yield compactions
    finally:
        upkeep.removeHandler(compactions)
