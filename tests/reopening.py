"""A process that opens and closes again and again, and says what it holds before and after.

Run as `python reopening.py stores|sessions BINARY FOLDER TIMES`. In a process of its own nobody
else opens and closes anything, so that what it holds can be compared to the last descriptor.
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from hms_memory_gateway.embedded import embedded
from hms_memory_gateway.settings import Settings
from hms_memory_tool.errors import Unavailable
from hms_memory_tool.session import open_stdio

WARM_UP = 20  # what is made once and kept is there then
_OPENINGS_PER_FAILURE = 5
_SETTLE_SECONDS = 10.0


def footprint() -> dict[str, int]:
    """Open files, children, tasks of the loop, memory in KiB."""
    gc.collect()
    (resident,) = [
        line
        for line in Path("/proc/self/status").read_text().split("\n")
        if line.startswith("VmRSS")
    ]
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "tasks": len(asyncio.all_tasks()),
        "kib": int(resident.split()[1]),
    }


def of_stores(binary: Path, folder: Path) -> Callable[[bool], Awaitable[None]]:
    """Open a store as the pool does, or fail to."""
    connects = [
        embedded(binary, Settings(data_dir=folder, hms_args=arguments), {})
        for arguments in ("", "--dim 1")
    ]

    async def use(is_broken: bool) -> None:
        async with connects[is_broken](f"n{is_broken:d}"):
            pass

    return use


def of_sessions(binary: Path, folder: Path) -> Callable[[bool], Awaitable[None]]:
    """Open a session with an engine and use it, or fail to."""

    async def use(is_broken: bool) -> None:
        wrong = ["--no-such-flag"] if is_broken else []
        arguments = ["--namespace=n", f"--data-dir={folder}", *wrong]
        opening = open_stdio(
            str(binary), arguments, {}, open_seconds=30, call_seconds=30, on_stderr=print
        )
        async with opening as session:
            assert "limits" in await session("stats", {})

    return use


async def main(kind: str, binary: Path, folder: Path, times: int) -> None:
    """Every fifth opening of these is followed by one that fails."""
    use = {"stores": of_stores, "sessions": of_sessions}[kind](binary, folder)

    async def fail() -> None:
        try:
            await use(True)
        except Unavailable:
            return
        raise AssertionError("it has opened")

    for _ in range(WARM_UP):
        await use(False)
        await fail()
    before = footprint()
    for number in range(times):
        await use(False)
        if number % _OPENINGS_PER_FAILURE == 0:
            await fail()
    with anyio.move_on_after(_SETTLE_SECONDS):  # the last one's descriptors go a little later
        while any(footprint()[name] > before[name] for name in ("files", "children", "tasks")):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    sys.stdout.write(json.dumps({"before": before, "after": footprint()}) + "\n")


if __name__ == "__main__":
    _, given, binary, folder, times = sys.argv
    anyio.run(
        main, given, Path(binary), Path(folder), int(times), backend_options={"use_uvloop": True}
    )
