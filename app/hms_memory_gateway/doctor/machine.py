"""The machine and the process: limits, memory, clock, temporary files."""

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

from .findings import Case, Finding, failure, ok, warning

_FILES_BESIDE = 100  # that the gateway has open anyway
_FILES_PER_STORE = 10  # four for its engine, the others for those who call
_STORE_BYTES = 30 << 20  # of memory, with some 200 files in the store
_SKEW_SECONDS = 60
_JUMP_SECONDS = 1
_SAMPLE = 1_000
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMORY_INFO = Path("/proc/meminfo")


def limits(case: Case) -> Finding:
    """The process may have what MAX_CONNECTIONS stores take."""
    stores = case.settings.max_connections
    shortages = list(_files(stores))
    if not case.is_shared:
        shortages += [*_processes(stores), *_memory(stores)]
    if shortages:
        return warning(
            f"too low for {stores} open stores: {'; '.join(found for found, _ in shortages)}",
            f"{', '.join(advice for _, advice in shortages)}, "
            "or lower HMS_GATEWAY_MAX_CONNECTIONS.",
        )
    return ok(f"enough for {stores} open stores")


Shortage = tuple[str, str]


def _files(stores: int) -> Iterator[Shortage]:
    may, need = _limit(resource.RLIMIT_NOFILE), _FILES_BESIDE + stores * _FILES_PER_STORE
    if may < need:
        yield f"{may} open files instead of {need}", f"Raise `ulimit -n` (LimitNOFILE=) to {need}"


def _processes(stores: int) -> Iterator[Shortage]:
    # Threads count, of which an engine has a few more than there are processors.
    may, need = _limit(resource.RLIMIT_NPROC), stores * (4 + (os.cpu_count() or 1))
    if may < need and os.geteuid() != 0:  # root is not bound by it
        yield f"{may} processes instead of {need}", f"Raise `ulimit -u` (LimitNPROC=) to {need}"


def _memory(stores: int) -> Iterator[Shortage]:
    may, need = available_bytes(), stores * _STORE_BYTES
    if may is not None and may < need:
        found = f"{may / 1e9:.1f} GB of memory instead of {need / 1e9:.1f}, at 200 files in each"
        yield found, "Give it more memory"


def _limit(kind: int) -> float:
    soft = resource.getrlimit(kind)[0]
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def available_bytes() -> int | None:
    """The memory that this machine and this container leave us, where the system says so."""
    found = []
    with suppress(OSError, ValueError):  # no container, or one without a limit
        found.append(int(_MEMORY_LIMIT.read_text()))
    with suppress(OSError):
        lines = _MEMORY_INFO.read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return min(found, default=None)


class Clocks:
    """The clock on the wall beside one that only goes forwards, from now on."""

    def __init__(self) -> None:
        self._began = time.time(), monotonic()

    def check(self, case: Case) -> Finding:
        """The time is not before what has happened, and does not jump."""
        now, steady = time.time(), monotonic()
        jumped = (now - self._began[0]) - (steady - self._began[1])
        installed = Path(__file__).stat().st_mtime
        kept = [] if case.is_shared else [_written(case.settings.data_dir)]
        return judged(now, jumped, max([installed, *kept]))


def judged(now: float, jumped: float, newest: float) -> Finding:
    """What is to be said of a clock.

    Args:
        now: what it shows.
        jumped: how many seconds it went further than a steady one, meanwhile.
        newest: the time of the newest file that is here.
    """
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    advice = "Set the clock, and keep it right with an NTP client."
    if newest - now > _SKEW_SECONDS:
        return failure(f"{shown}, and there are files that are {newest - now:.0f} s newer", advice)
    if abs(jumped) > _JUMP_SECONDS:
        return warning(f"{shown}, after a jump of {jumped:.0f} s just now", advice)
    return ok(shown)


def _written(folder: Path) -> float:
    """When something was last written: of a sample of stores."""
    times = [0.0]
    with suppress(OSError), os.scandir(folder / "stores") as stores:
        for store, _ in zip(stores, range(_SAMPLE), strict=False):
            for file in (store.path, f"{store.path}/documents.text"):
                with suppress(OSError):
                    times.append(Path(file).stat().st_mtime)
    return max(times)


def temporary(case: Case) -> Finding:
    """Temporary files can be made: an installation of the engine needs them."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 4_096)
    except OSError as error:
        return warning(
            f"no temporary file can be made ({error.strerror})",
            "Make room in a temporary folder, or name another in TMPDIR.",
        )
    return ok(tempfile.gettempdir())
