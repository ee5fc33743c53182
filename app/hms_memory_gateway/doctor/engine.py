"""The engine: which one, whether it opens a store here, and a full round trip through it."""

import re
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio

from hms_memory_gateway.connection import Connect
from hms_memory_gateway.embedded import embedded
from hms_memory_gateway.engine import EngineMissing
from hms_memory_gateway.engine_install import CRATE_VERSION
from hms_memory_tool.commands import parse_command, parse_recall
from hms_memory_tool.errors import MemoryFault, Refused
from hms_memory_tool.files import MemoryFiles

from .findings import Case, Finding, failure, ok, warning

_NAMESPACE = "doctor"
_DENSE_BYTES = 32 << 20  # a new store of 64 MiB takes some 40 KiB where files are sparse
_OLD, _NEW = "/memories/doctor/old.md", "/memories/doctor/new.md"
_WRITES: Sequence[dict[str, Any]] = (
    {"command": "create", "path": _OLD, "file_text": "# Doctor\nA telegram came.\n"},
    {"command": "str_replace", "path": _OLD, "old_str": "telegram", "new_str": "letter"},
    {"command": "insert", "path": _OLD, "insert_line": 2, "insert_text": "It was read.\n"},
    {"command": "rename", "old_path": _OLD, "new_path": _NEW},
)
_VIEW = {"command": "view", "path": _NEW}
_DELETE = {"command": "delete", "path": _NEW}
_LINES = ("# Doctor", "A letter came.", "It was read.")


class Untrue(Exception):
    """The engine said that something was done, and it was not."""


def found(case: Case) -> Finding:
    """There is one, and it is as new as the gateway needs."""
    try:
        engine = case.engine
    except EngineMissing as error:
        return failure(str(error), "Correct HMS_MCP_BIN, or unset it.")
    if engine is None:
        return failure(
            "there is no hms-mcp on this machine",
            "Install it, which shows how far it is: hms-memory-gateway engine",
        )
    about = f"hms-mcp {engine.version} at {engine.path} ({engine.reason})"
    if _numbers(engine.version) < _numbers(CRATE_VERSION):
        return warning(
            f"{about} is older than {CRATE_VERSION}, which the gateway is made for",
            "Update it, or unset HMS_MCP_BIN and take it off PATH: the gateway gets its own then.",
        )
    return ok(about)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def starts(case: Case) -> Finding:
    """It opens a new store on the disk of the data folder."""
    began = perf_counter()
    try:
        anyio.run(_open, _connect(case))
    except MemoryFault as fault:
        return failure(str(fault), _start_advice(case))
    figures = {
        "open_ms": round((perf_counter() - began) * 1_000, 1),
        "store_bytes": _taken(case.scratch),
    }
    if figures["store_bytes"] > _DENSE_BYTES:
        return warning(
            f"a new store takes {figures['store_bytes'] / 1e6:.0f} MB: files are not sparse here",
            "Count on that for each namespace, or keep stores on ext4, XFS or Btrfs.",
            **figures,
        )
    took = f"opened a new store in {figures['open_ms']:.0f} ms"
    return ok(f"{took}; it takes {figures['store_bytes'] / 1e3:.0f} kB", **figures)


def round_trip(case: Case) -> Finding:
    """What is written is there, can be found, and outlives the process."""
    try:
        figures = anyio.run(_round, _connect(case))
    except (MemoryFault, Untrue) as fault:
        return failure(
            str(fault), "Look at the disk and the system's log; report it if they are in order."
        )
    return ok(
        f"{len(_WRITES) + 1} writes, {figures['write_ms']:.1f} ms each; recall in "
        f"{figures['recall_ms']:.1f} ms; opened again in {figures['reopen_ms']:.0f} ms, "
        "and all of it was there",
        **figures,
    )


def _connect(case: Case) -> Connect:
    if case.engine is None:
        raise RuntimeError("a check that needs the engine has to say so")
    ours = {"data_dir": case.scratch, "max_file_bytes": None, "max_view_chars": 16_000}
    return embedded(case.engine.path, case.settings.model_copy(update=ours), case.environ)


def _start_advice(case: Case) -> str:
    if "--encrypt" in case.settings.hms_args or case.environ.get("HMS_MCP_ENCRYPT") == "true":
        return (
            "Encryption needs HMS_MCP_PASSPHRASE, and an hms-mcp that was built with the "
            "feature `security`."
        )
    return "Correct HMS_GATEWAY_HMS_ARGS and the variables that begin with HMS_MCP_."


def _taken(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


async def _open(connect: Connect) -> None:
    async with connect(_NAMESPACE):
        pass


async def _round(connect: Connect) -> dict[str, float]:
    watch = _Watch()
    async with connect(_NAMESPACE) as memory:
        watch.lap()
        for write in _WRITES:
            await memory.files.execute(parse_command(write))
        write_ms = watch.lap() / len(_WRITES)
        await _see(memory.files)
        watch.lap()
        results = await memory.files.recall(parse_recall({"query": "letter", "k": 5}))
        recall_ms = watch.lap()
        if [result.path for result in results] != [_NEW]:
            raise Untrue("recall did not find what was written")
    watch.lap()
    async with connect(_NAMESPACE) as memory:
        reopen_ms = watch.lap()
        await _see(memory.files)
        await memory.files.execute(parse_command(_DELETE))
        if await _is_there(memory.files):
            raise Untrue("a file was there after it had been deleted")
    return {"write_ms": write_ms, "recall_ms": recall_ms, "reopen_ms": reopen_ms}


async def _see(files: MemoryFiles) -> None:
    shown = await files.execute(parse_command(_VIEW))
    lines = tuple(line.partition("\t")[2] for line in shown.split("\n")[1:])
    if lines[: len(_LINES)] != _LINES:
        raise Untrue("a file was not as it had been written")


async def _is_there(files: MemoryFiles) -> bool:
    try:
        await files.execute(parse_command(_VIEW))
    except Refused:
        return False
    return True


class _Watch:
    """A stop-watch that is read in milliseconds."""

    def __init__(self) -> None:
        self._since = perf_counter()

    def lap(self) -> float:
        """The time since the last one."""
        before, self._since = self._since, perf_counter()
        return round((self._since - before) * 1_000, 1)
