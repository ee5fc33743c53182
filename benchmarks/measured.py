"""What is measured: memory as the kernel counts it, and how long commands take."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SELF = _PROC / "self"


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long each of many commands took, in seconds."""

    seconds: Sequence[float]

    def at(self, share: float) -> float:
        """What this share of them did not exceed; 1 for the longest."""
        return sorted(self.seconds)[round(share * (len(self.seconds) - 1))]


def engines(namespace: str) -> list[int]:
    """The engines that this process has started for a namespace, and that still run."""
    children = (_SELF / "task" / str(os.getpid()) / "children").read_text().split()
    return [int(pid) for pid in children if f"--namespace={namespace}" in _arguments(pid)]


def resident_bytes(pid: int | str = "self") -> int:
    """What a process has in memory, what it shares with others included."""
    return _field(_PROC / str(pid) / "status", "VmRSS")


def private_bytes(pid: int) -> int:
    """What of that nobody else has."""
    rollup = _PROC / str(pid) / "smaps_rollup"
    return _field(rollup, "Private_Clean") + _field(rollup, "Private_Dirty")


def forget_peak() -> None:
    """Measure the peak of this process anew."""
    (_SELF / "clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most that this process has had in memory."""
    return _field(_SELF / "status", "VmHWM")


def _arguments(pid: str) -> list[str]:
    try:
        return (_PROC / pid / "cmdline").read_text().split("\0")
    except OSError:  # it has just exited
        return []


def _field(file: Path, name: str) -> int:
    """A figure of the kernel's in bytes; 0 for a process that has exited."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)
